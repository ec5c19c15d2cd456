//! The handle of a pool that this process has for writing.
//!
//! # Theory
//!
//! **Need.** A command makes a pool, fills it and exports it. A server has clients that write all the time, some that wait for their writes
//! to be stable, and sometimes one that makes a dataset or sets a property. Both use the same handle.
//!
//! **In memory.**
//! ```text
//! Pool ─ Transactions (dmu::tx)      txgs: open, quiescing, syncing
//!      ─ slot ─ Syncer               the state that a sync owns (`crate::sync`); one task holds it at a time, first come first served
//!      ─ accounts                    the space that each DSL directory has left, as of the last sync
//!      ─ history                     what the last txgs held, and how long each phase took
//! task quiesce    opens the next txg when it is time
//! task sync       takes the slot for each quiesced txg and syncs it (OpenZFS's `txg_sync_thread`)
//! ```
//! A pool begins **by hand**: a txg is written when the owner says so ([`Pool::sync`]), so the same calls give the same bytes; a device
//! that fails is an error. [`Pool::start`] switches to syncing **in the background**: a txg is synced when its time is over or enough
//! data is dirty, and failing devices suspend the pool.
//!
//! **Life of a change of data.** [`LiveHead::begin`] assigns a txg; objects of the dataset are changed in it; the [`Tx`](cenote_dmu::tx::Tx) is
//! dropped. A caller that needs it on disk waits for the txg ([`Pool::wait_synced`]).
//!
//! **Life of a change of the pool** (a *sync task*, [`Pool::change`]). A sync task takes the slot and makes its change in the MOS's open
//! txg, which is synced next, on top of earlier changes. Sync tasks get the slot in the order of their requests. In the background mode
//! the caller waits until that txg is on disk; all sync tasks that queue for the slot meanwhile share the next txg. By hand the call
//! returns at once. A change is atomic. If it fails before it has changed anything, it is refused. If it fails half-way, the MOS in
//! memory is inconsistent, so the txg is not written and the pool has failed ([`FailedPool`]); the pool on disk is consistent. So a
//! change that may be refused has a separate check, as OpenZFS's sync tasks have: [`SyncTask`]. [`Pool::sync_tasks`] makes several of
//! them as one atomic change.
//!
//! **Life of a snapshot** ([`Pool::take_snapshots`]): it is asked for with the open txg held, and made in the sync of that txg when the data of
//! the txg is written, before the MOS is ([`crate::sync::late`]). So the snapshot has all that was written before the request.
//!
//! **Reading the open state.** [`Pool::look`] takes the slot for a short time, and needs no txg.
//!
//! **Devices that are added** ([`Pool::add_vdevs`]) are labelled by the task of the caller; the rest is a change of the pool:
//! [`crate::admin::add`].
//!
//! **Reading the pool as of a txg** delays nobody: [`View`](crate::View).
//!
//! **Blocks that are found damaged** are healed in the background ([`heal`]).
//!
//! **Devices that fail.** Where too few take a block, a flush, labels or an uberblock the pool is *suspended*: that write waits in
//! the vdev layer, and the sync with it. [`Pool::resume`] (`zpool clear`) repeats all writes that a device may have lost, and the sync
//! continues with the same bytes at the same DVAs. A device that hangs is left out, or suspends the pool until it answers.
//! The property `failmode` decides whether requests wait or fail meanwhile ([`FailMode`]).
//!
//! **The end.** [`Pool::export`] and [`Pool::destroy`] admit no more changes, and write the last txg, which also says that the pool is
//! exported or destroyed: the last changes and the export are one step. Where the last handle is dropped without either, what is not on
//! disk is lost, as in a crash.
//!
//! **Invariants.**
//! 1. The MOS is changed by the task that has the slot alone (the type says so: a change gets `&mut Syncer`).
//! 2. In the background an answer to a change of the pool is given when it is on disk.
//! 3. After a failure other than of devices nothing more is written, and every later call gets the error: the slot no longer has a
//!    syncer.
//! 4. A change is written unless the process ends; failing devices only delay it.
//! 5. The syncer is at the txg that is synced (asserted).
//!
//! **Crash.** As [`crate::sync`]: the pool is as of the last synced txg. For the code above, a suspended pool is only a pool whose sync
//! takes long.
//!
//! **Rejected.** *A queue of changes that the background sync works off*: a change had to wait for the next txg even if nothing was being
//! written, and a pool without a background sync needed another type. *One txg for each change*: creating a thousand datasets took a
//! thousand txgs. *A change made by the caller's own task*: a caller that goes away half-way would leave half a change.

mod accounts;
mod audit;
mod autotrim;
mod background;
mod caches;
mod errlog;
mod failmode;
mod faults;
mod frees;
mod head;
mod head_frees;
mod heal;
mod history;
mod jobs;
mod kstat;
mod leaf_work;
mod log_leaves;
mod memory;
mod rebuild;
mod root;
mod scan;
mod shared;
mod sync_task;
mod syncer_slot;
mod task;
mod trimmed;
mod verbs;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_dmu::tx::{Transactions, TxError, TxTunables};
use cenote_dsl::{Dsl, DslError, Head};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_kstat::Registry;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use cenote_taskq::{AsyncMutex, BoxFuture, Class, Handle, boxed};
use cenote_vdev::tree::VdevTree;
use cenote_zil::Logs;

pub(crate) use head::HeadHold;
pub use head::LiveHead;
pub use head_frees::HeadFrees;
pub use heal::{HealCounts, HealedBlock};
pub use history::TxgRecord;
pub use memory::MemoryLimits;
pub use scan::WeakPool;
pub use sync_task::SyncTask;
pub use view::KeptTxg;

use crate::admin::command::Command;
use crate::config::PoolState;
use crate::events::Events;
use crate::failmode::FailMode;
use crate::inuse::{LongHold, User};
use crate::sync::Syncer;
use crate::sync::late::LateTask;
use crate::{FailedPool, FoundAuxiliary, NamePool, Refusal, SpaError};
use frees::Frees;
use heal::Healing;
use kstat::Kstats;
use root::Root;
use shared::Shared;
use syncer_slot::SyncerSlot;

/// A pool that this process has for writing. Cheap to clone; the pool is given up, as in a crash, when the last clone is dropped and
/// it was neither exported nor destroyed.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    _owned: Arc<Owned>,
    command: Option<Arc<Command>>,
}

/// The handles of a pool: the last one that goes gives the pool up.
struct Owned(Arc<Shared>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Pool {
    /// The handle of a pool that was opened or made, to be written by hand.
    pub(crate) fn new(mut syncer: Syncer) -> Self {
        let before = Txg(syncer.txg().0 - 1);
        assert!(
            syncer.devices.synced.is_none_or(|last| last.txg == before),
            "a pool is open in the txg after its last"
        );
        assert_eq!(syncer.state, PoolState::Active, "a pool that is opened is in use");
        let handle = syncer.handle.clone();
        let txgs = Transactions::new(&handle, syncer.txg(), TxTunables::by_hand());
        let cache = syncer.blocks.writer.dmu().shared_cache();
        let zio = syncer.blocks.writer.dmu().zio().clone();
        let caches = caches::second_level(&syncer, &cache);
        let seed = handle.unix_time().as_nanos() as u64 ^ syncer.guid().0 ^ syncer.txg().0.rotate_left(32);
        let logs = Logs::new(
            syncer.blocks.writer.dmu().clone(),
            syncer.blocks.space.clone(),
            txgs.clone(),
            syncer.zil.tunables,
            seed,
        );
        syncer.zil.logs = Some(logs.clone());
        let events = &syncer.blocks.space.events;
        events.open(&handle, syncer.clock, syncer.name(), syncer.guid(), syncer.tree());
        events.set_vdevs(&syncer.devices);
        let is_new = syncer.devices.old_config.is_empty();
        events.sysevent(if is_new { "pool_create" } else { "pool_import" }, None);
        let shared = Arc::new(Shared {
            handle: handle.clone(),
            name: syncer.name().to_owned(),
            guid: Mutex::new(syncer.guid()),
            clock: syncer.clock,
            notes: syncer.notes().to_vec(),
            suspension: OnceLock::new(),
            multihost: syncer.devices.multihost.clone(),
            tree: Arc::downgrade(syncer.tree()),
            dsl: Mutex::new(Some(syncer.dsl().clone())),
            failmode: Mutex::new(FailMode::default()),
            txgs: txgs.clone(),
            late: syncer.late.clone(),
            in_use: syncer.in_use.clone(),
            logs: Mutex::new(Some(logs)),
            is_background: AtomicBool::new(false),
            attends_logs: AtomicBool::new(false),
            troubles: syncer.blocks.space.troubles.clone(),
            events: syncer.blocks.space.events.clone(),
            frees: Frees::default(),
            pins: syncer.blocks.space.pins.clone(),
            root: Mutex::new(Root::of(&syncer)),
            healing: Healing::default(),
            accounts: Mutex::new(BTreeMap::new()),
            records: Mutex::new(VecDeque::new()),
            jobs: Mutex::new(syncer.jobs()),
            scan: syncer.jobs.scan.seat().clone(),
            leaf_work: syncer.jobs.leaf_work.seat.clone(),
            rebuild: syncer.jobs.rebuild.seat.clone(),
            kstats: Kstats::default(),
            caches,
            autotrim: trimmed::Counts::default(),
            slot: AsyncMutex::new(SyncerSlot::Syncer(Box::new(syncer))),
            asked: Mutex::default(),
            failed: OnceLock::new(),
            sync: Mutex::new(None),
        });
        kstat::register(&shared, &cache);
        shared.heal_what_is_damaged(&zio);
        handle.detach(Class::Sync, async move { txgs.quiesce().await });
        let syncing = shared.clone();
        let join = handle.spawn(Class::Sync, async move { syncing.sync_all().await });
        *shared.sync.lock() = Some(join);
        Self { _owned: Arc::new(Owned(shared.clone())), shared, command: None }
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The pool's guid.
    #[must_use]
    pub fn guid(&self) -> Guid {
        *self.shared.guid.lock()
    }

    /// The runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    /// Notes of the import: a device that has missed txgs, a missing log, ... Each a sentence.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.shared.notes
    }

    /// Its txgs.
    #[must_use]
    pub fn txgs(&self) -> &Transactions {
        &self.shared.txgs
    }

    /// The open txg, which changes go to. By hand it stays open until the owner has it written; in the background a change holds it
    /// open ([`LiveHead::begin`]).
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.shared.txgs.open_txg()
    }

    /// Now, in seconds since 1970, as it is written down.
    #[must_use]
    pub fn time_s(&self) -> u64 {
        self.shared.clock.now_s(&self.shared.handle)
    }

    /// The pool's time, since 1970.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.shared.clock.now(&self.shared.handle)
    }

    /// The vdevs; none once the pool is closed.
    #[must_use]
    pub fn tree(&self) -> Option<Arc<VdevTree>> {
        self.shared.tree.upgrade()
    }

    /// The root dataset, if it is open: a new pool's is.
    #[must_use]
    pub fn root(&self) -> Option<Head> {
        self.shared.dsl.lock().as_ref().and_then(|dsl| dsl.heads().into_iter().next())
    }

    /// The datasets in the open state: with all changes made so far. While a change is being made, they may show part of it; within a look
    /// ([`Self::look`]) no change is being made.
    ///
    /// # Errors
    /// The pool is closed or has failed.
    pub fn dsl(&self) -> Result<Dsl, SpaError> {
        self.shared.dsl.lock().clone().ok_or_else(|| self.fail(&TxError::Closed))
    }

    /// The contents and sync times of the last txgs, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<TxgRecord> {
        self.shared.records.lock().iter().cloned().collect()
    }

    /// Its statistics, to which those that serve it may add their own.
    #[must_use]
    pub fn kstats(&self) -> &Registry {
        &self.shared.kstats.registry
    }

    /// How long it has been open.
    #[must_use]
    pub fn open_for(&self) -> Duration {
        self.shared.events.open_for()
    }

    /// Its events.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.shared.events
    }

    fn fail(&self, error: &TxError) -> SpaError {
        self.shared.fail(error)
    }

    /// True if this head dataset is open to be changed.
    #[must_use]
    pub fn is_used(&self, dataset: ObjectId) -> bool {
        self.user(dataset).is_some()
    }

    /// The user that has this head dataset open to be changed.
    #[must_use]
    pub fn user(&self, dataset: ObjectId) -> Option<User> {
        self.shared.in_use.owner(dataset)
    }

    /// Keeps the dataset with this object and this guid, which is read as it is on disk, from being destroyed or rolled back.
    ///
    /// # Errors
    /// It is not there any more; or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn long_hold(&self, dataset: ObjectId, guid: Guid) -> Result<LongHold, SpaError> {
        let held = self.look(move |syncer| {
            Box::pin(async move {
                match syncer.dsl().dataset_phys(dataset).await {
                    Ok(phys) if phys.guid == guid => Ok(syncer.long_hold(dataset, User::Command)),
                    _ => Err(DslError::NoSuchDataset(format!("#{dataset}")).into()),
                }
            })
        });
        held.await
    }

    /// The datasets that are kept so.
    #[must_use]
    pub fn long_held(&self) -> Vec<ObjectId> {
        self.shared.in_use.held()
    }

    /// True if a dataset is kept so.
    #[must_use]
    pub fn is_long_held(&self, dataset: ObjectId) -> bool {
        self.shared.in_use.is_held(dataset)
    }

    /// Forgets the key of an encrypted dataset, and of all that have the same encryption root. Returns their names.
    ///
    /// # Errors
    /// [`Refusal::Busy`]: one of them, or a snapshot of one, is in use, by the user that is named. The dataset is not encrypted, or its key is
    /// not loaded; or as [`Self::look`].
    #[boxed]
    pub async fn unload_key(&self, name: &str) -> Result<Vec<String>, SpaError> {
        let name = name.to_owned();
        let unloaded = self.look(move |syncer| {
            Box::pin(async move {
                let dsl = syncer.dsl().clone();
                let root = dsl.encryption(&dsl.dir(&name).await?).await?.map(|encryption| encryption.root);
                for (object, user) in syncer.in_use.users() {
                    // A redaction list is held as a dataset is, and has no key.
                    let Ok(phys) = dsl.dataset_phys(object).await else { continue };
                    let dir = dsl.dir_object(phys.dir, dsl.dir_name(phys.dir).await?).await?;
                    let encryption = dsl.encryption(&dir).await?;
                    if root.is_some() && encryption.map(|encryption| encryption.root) == root {
                        let what = format!(
                            "cannot unload key for '{name}': '{}' is in use: {user}",
                            dsl.dataset_name(object).await?
                        );
                        return Err(SpaError::refused(Refusal::Busy, what));
                    }
                }
                Ok(dsl.unload_key(&name).await?)
            })
        });
        unloaded.await
    }

    /// Has a change made in the sync of the txg that is open now, when the data of that is written.
    pub(crate) async fn push_late(&self, task: Box<dyn LateTask>) -> Result<(), SpaError> {
        self.shared.pass().await.map_err(|error| self.fail(&error))?;
        // Held, so that the sync of that txg is still to come.
        let tx = self.shared.txgs.enter().map_err(|error| self.fail(&error))?;
        self.shared.late.push(tx.txg(), task);
        Ok(())
    }

    pub(crate) fn closed(&self) -> SpaError {
        self.fail(&TxError::Closed)
    }

    /// Waits until a txg is on disk, and has it written soon.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), SpaError> {
        self.shared.unless_refused(self.shared.txgs.wait_synced(txg)).await.map_err(|error| self.fail(&error))
    }

    /// Waits until intent logs without users have no blocks left.
    ///
    /// # Errors
    /// A txg could not be written.
    #[boxed]
    pub async fn wait_logs_freed(&self) -> Result<(), SpaError> {
        self.shared.wait_logs_freed().await.map_err(|error| self.fail(&error))
    }

    /// Waits until all that was changed up to now is on disk.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self) -> Result<Txg, SpaError> {
        self.shared.unless_refused(self.shared.txgs.sync()).await.map_err(|error| self.fail(&error))
    }

    /// Writes the open txg while the caller goes on in the next one, whose number is returned.
    ///
    /// # Errors
    /// The pool is closed or has failed.
    #[boxed]
    pub async fn next_txg(&self) -> Result<Txg, SpaError> {
        self.shared.unless_refused(self.shared.txgs.open_another()).await.map_err(|error| self.fail(&error))
    }

    /// Makes a change of the pool itself, a *sync task*, of which all is done or nothing. In the background the answer comes when the
    /// change is on disk, by hand at once.
    ///
    /// # Errors
    /// The error of the change; or the pool is closed, suspended, or has failed.
    pub async fn change<T, E, F>(&self, change: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: NamePool + Display + Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, E>> + Send + 'static,
    {
        let (txg, made) = self.shared.clone().make(self.command(), change).await?;
        if self.shared.is_background.load(Ordering::Acquire) {
            self.wait_synced(txg).await?;
        }
        Ok(made)
    }

    /// Has a change of the pool itself made, which the caller does not wait for. It may be lost where the power goes before its txg is
    /// on disk; where it is refused the pool's owner is told ([`Pool::troubled`]).
    ///
    /// # Errors
    /// The pool is closed.
    fn change_later<F>(&self, what: &'static str, change: F) -> Result<(), SpaError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<(), SpaError>> + Send + 'static,
    {
        if self.shared.dsl.lock().is_none() {
            return Err(self.fail(&TxError::Closed));
        }
        let shared = self.shared.clone();
        self.shared.handle.detach(Class::Sync, async move {
            match shared.clone().make(None, change).await {
                Ok(_) => shared.want_txg(),
                Err(error) => shared.troubles.tell(format!("{what}: {error}")),
            }
        });
        Ok(())
    }

    /// Looks at the pool itself, between two changes or txgs: it waits for the one that is being made, and needs none itself. Nothing
    /// that is on disk may be changed.
    ///
    /// # Errors
    /// The error of the look; or the pool is closed, suspended, or has failed.
    pub async fn look<T, E, F>(&self, look: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: NamePool + Display + Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, E>> + Send + 'static,
    {
        let seen = self.shared.clone().make(None, move |syncer| {
            Box::pin(async move {
                let before = syncer.change_count();
                let seen = look(syncer).await;
                debug_assert_eq!(syncer.change_count(), before, "a look changes nothing");
                seen
            })
        });
        seen.await.map(|(_, seen)| seen)
    }

    /// A look that waits for nothing but its turn.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    pub async fn peek<T, F>(&self, peek: F) -> Result<T, SpaError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Syncer) -> T + Send + 'static,
    {
        self.look(move |syncer| {
            Box::pin(async move {
                let seen = peek(syncer);
                Ok(seen)
            })
        })
        .await
    }

    /// Where the hot spares and cache devices are that this process has opened with the pool.
    ///
    /// # Errors
    /// As [`Self::peek`].
    pub async fn auxiliary_paths(&self) -> Result<Vec<PathBuf>, SpaError> {
        let path = |found: &FoundAuxiliary| found.disk.device().path().to_owned();
        self.peek(move |syncer| syncer.devices.found.auxiliaries.values().map(path).collect()).await
    }

    /// Why the pool can only be reported on and let go, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<&FailedPool> {
        self.shared.failed.get()
    }

    /// Writes all that was changed, says on disk that the pool is exported, and lets go of its devices.
    ///
    /// # Errors
    /// Something could not be written: the pool on disk is as of the last txg that was. While devices fail it waits, unless the
    /// pool is given up ([`Pool::abandon`]).
    pub async fn export(self) -> Result<(), SpaError> {
        self.shared.end(PoolState::Exported).await
    }

    /// As [`Self::export`], and says on disk that the pool is destroyed.
    ///
    /// # Errors
    /// As there.
    pub async fn destroy(self) -> Result<(), SpaError> {
        self.shared.end(PoolState::Destroyed).await
    }
}
