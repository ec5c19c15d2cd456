//! A head dataset of a pool, open to be changed.

use std::ops::Deref;
use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_dmu::tx::{Account, Committing, Cost, PendingFrees, SyncMode, Tx, TxError, TxgSource};
use cenote_dsl::Head;
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::sync::atomic::Ordering;
use cenote_taskq::{BoxFuture, boxed};
use cenote_zil::Log;

use super::Pool;
use crate::SpaError;
use crate::inuse::{Owned, User};
use crate::sync::Syncer;

/// A head dataset of a pool that is open to be changed. Cheap to clone.
#[derive(Clone)]
pub struct LiveHead {
    pub(super) pool: Pool,
    pub(super) head: Head,
    pub(super) account: Arc<Account>,
    owned: Arc<Owned>,
}

impl Deref for LiveHead {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// Keeps a head dataset in use ([`Pool::is_used`]), open or not.
pub(crate) struct HeadHold(#[expect(dead_code, reason = "it is dropped, and not looked at")] Arc<Owned>);

impl LiveHead {
    /// Has the dataset be in use for as long as this lives, whether or not it is open.
    #[must_use]
    pub(crate) fn hold(&self) -> HeadHold {
        HeadHold(self.owned.clone())
    }

    /// The dataset and its objset, without the pool's accounts.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// Its objset.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.head.objset
    }

    /// Its object in the MOS.
    #[must_use]
    pub const fn dataset(&self) -> ObjectId {
        self.head.dataset
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The dataset's changes with its intent log, obeying this property `sync`.
    #[must_use]
    pub fn log(&self, sync: SyncMode) -> Log {
        self.log_through(Arc::new(self.clone()), sync)
    }

    /// The same, with txgs that come by way of somebody else.
    #[must_use]
    pub fn log_through(&self, source: Arc<dyn TxgSource>, sync: SyncMode) -> Log {
        let logs = self.pool.shared.logs.lock().clone();
        match logs {
            Some(logs) => Log::new(source, sync, &logs, self.head.dataset),
            None => Log::without(source, sync),
        }
    }

    /// Begins a change of what is in the dataset: waits for its turn where much is dirty, and is refused where there is no
    /// space for what it costs at worst. The change is made in the txg of what comes back, before that is dropped. While the pool
    /// is suspended it waits or is refused, as `failmode` says.
    ///
    /// # Errors
    /// No space, or the pool is closed or suspended.
    #[boxed]
    pub async fn begin(&self, cost: Cost) -> Result<Tx, TxError> {
        let shared = &self.pool.shared;
        shared.pass().await?;
        shared.unless_refused(self.assign(cost)).await
    }
}

impl TxgSource for LiveHead {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        Box::pin(Self::begin(self, cost))
    }

    #[boxed]
    async fn begin_replayed(&self, cost: Cost) -> Result<Tx, TxError> {
        let shared = &self.pool.shared;
        shared.pass().await?;
        shared.unless_refused(shared.txgs.assign(cost, None)).await
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        let shared = &self.pool.shared;
        Box::pin(shared.unless_refused(shared.txgs.wait_synced(txg)))
    }

    fn hurry(&self) {
        if self.pool.shared.is_background.load(Ordering::Acquire) {
            self.pool.shared.want_txg();
        }
    }

    fn unless_refused<'a>(&'a self, work: Committing<'a>) -> Committing<'a> {
        Box::pin(self.pool.shared.unless_refused(work))
    }

    #[boxed]
    async fn log_replayed(&self, until: Txg) -> Result<(), TxError> {
        let shared = &self.pool.shared;
        // In a txg that comes after all that was replayed.
        shared.unless_refused(shared.txgs.wait_synced(until)).await?;
        let objset = self.head.objset.clone();
        let destroyed =
            self.pool.change(move |syncer| Box::pin(async move { syncer.in_txg().destroy_log(&objset).await }));
        destroyed.await.map_err(|error| TxError::Suspended(error.to_string()))
    }

    fn frees_begin(&self) -> Option<Box<dyn PendingFrees>> {
        Some(Box::new(Self::frees_begin(self)))
    }
}

impl Pool {
    /// Opens a head dataset for changing what is in it. It takes no txg.
    ///
    /// # Errors
    /// There is none of this name, or it has something that cannot be kept up yet.
    #[boxed]
    pub async fn open_head(&self, name: &str) -> Result<LiveHead, SpaError> {
        let name = name.to_owned();
        let pool = self.clone();
        self.look(move |syncer| {
            Box::pin(async move {
                let head = syncer.open_head(&name).await?;
                pool.adopt(syncer, &name, head, User::Command).await
            })
        })
        .await
    }

    /// Takes up a head dataset that a change has made or opened: what is dirty of it counts from now on, and `user` owns it. For use within
    /// the change.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn adopt(&self, syncer: &Syncer, name: &str, head: Head, user: User) -> Result<LiveHead, SpaError> {
        debug_assert!(syncer.dsl().open_head(head.dataset).is_some(), "a head that is taken up is open");
        head.objset.count_dirty(self.shared.txgs.dirty());
        self.shared.kstats.opened(name, &head);
        let account = self.shared.account_of(syncer, name, head.dataset).await?;
        let owned = self.shared.in_use.own(head.dataset, user);
        self.shared.update_accounts(syncer).await?;
        // A dataset in use outlasts the command that opened it.
        Ok(LiveHead { pool: self.without_command(), head, account, owned })
    }
}
