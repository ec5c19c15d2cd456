//! When a change of a dataset in use is on disk, and who waits for that.
//!
//! There is no intent log yet, so the txg of a change is what makes it durable. The newest txg in which anything of the dataset
//! was changed is noted before the change is made, so a caller that asks afterwards waits for that txg, and for nothing if it is
//! on disk already. All callers that wait for one txg share its sync. `fsync`, `O_SYNC`, NBD's `FLUSH` and `FUA` and the property
//! `sync` all end here, and `crates/cuts` holds the engine to the answers that are given here.

use std::fmt;
use std::sync::Arc;

use cenote_format::ids::Txg;
use cenote_taskq::BoxFuture;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

use super::{Cost, PendingFrees, Tx, TxError, TxgSource};

/// The property `sync`: when changes are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// When a client asks for it (`fsync`, `O_SYNC`, `FLUSH`, `FUA`).
    #[default]
    Standard,
    /// After each change.
    Always,
    /// Never: `fsync` succeeds at once, and a crash loses what the last txg does not have.
    Disabled,
}

impl SyncMode {
    /// By the number that the property is stored as; an unknown number counts as the default.
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Always,
            2 => Self::Disabled,
            _ => Self::Standard,
        }
    }
}

/// The txgs of a dataset, with how far the dataset has to be written for its clients.
pub struct Durable {
    source: Arc<dyn TxgSource>,
    mode: SyncMode,
    /// The newest txg that the dataset may have been changed in.
    changed: AtomicU64,
}

impl Durable {
    /// Of a dataset that nobody has changed since it was opened.
    #[must_use]
    pub const fn new(source: Arc<dyn TxgSource>, mode: SyncMode) -> Self {
        Self { source, mode, changed: AtomicU64::new(0) }
    }

    /// The property `sync`, as it is obeyed here.
    #[must_use]
    pub const fn mode(&self) -> SyncMode {
        self.mode
    }

    /// Waits until everything that was changed so far is on disk, as a client has asked for (`fsync`, `FLUSH`); with
    /// `sync=disabled` it returns at once.
    ///
    /// # Errors
    /// A txg could not be written.
    pub async fn sync(&self) -> Result<(), TxError> {
        if mutant::is(Mutant::FsyncEarly) {
            return Ok(());
        }
        match (self.mode, self.changed.load(Ordering::Acquire)) {
            (SyncMode::Disabled, _) | (_, 0) => Ok(()),
            (SyncMode::Standard | SyncMode::Always, txg) => self.source.wait_synced(Txg(txg)).await,
        }
    }

    /// Waits at the end of a change where the property `sync` says so, or where the client asked for this one change to be durable
    /// (`is_asked`: `FUA`, `O_SYNC`).
    ///
    /// # Errors
    /// A txg could not be written.
    pub async fn settle(&self, is_asked: bool) -> Result<(), TxError> {
        if mutant::is(Mutant::FuaIgnored) {
            return Ok(());
        }
        match self.mode {
            SyncMode::Always => self.sync().await,
            // Others may have changed more since: then that is waited for too, which is the same sync most of the time.
            SyncMode::Standard if is_asked => self.sync().await,
            SyncMode::Standard | SyncMode::Disabled => Ok(()),
        }
    }
}

/// A txg that is begun here is noted.
impl TxgSource for Durable {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        Box::pin(async move {
            let tx = self.source.begin(cost).await?;
            assert!(tx.txg() > Txg(0), "txg 0 says that nothing was changed");
            if self.changed.load(Ordering::Acquire) < tx.txg().0 {
                self.changed.fetch_max(tx.txg().0, Ordering::AcqRel);
            }
            Ok(tx)
        })
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        self.source.wait_synced(txg)
    }

    fn frees_begin(&self) -> Option<Box<dyn PendingFrees>> {
        self.source.frees_begin()
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("mode", &self.mode).field("changed", &self.changed).finish_non_exhaustive()
    }
}
