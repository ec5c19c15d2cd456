//! When a change of a live dataset is on disk, and who waits for that.
//!
//! There is no intent log yet, so what makes a change durable is its txg. The newest txg in which anything of the dataset was
//! changed is noted before the change is made, so whoever asks afterwards waits for it, and for nothing if that is on disk
//! already. All who wait for one txg share its sync.

use cenote_dmu::tx::Cost;
use cenote_format::ids::Txg;
use cenote_spa::SpaError;
use cenote_spa::write::live::LiveHead;
use cenote_taskq::BoxFuture;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_zpl::ZplError;
use cenote_zpl::live::{HeldTxg, TxgSource};

/// The property `sync`: when changes are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// When a program asks for it (`fsync`, `O_SYNC`).
    #[default]
    Standard,
    /// After each change.
    Always,
    /// Never: `fsync` says yes at once, and a crash loses what the last txg has not.
    Disabled,
}

impl SyncMode {
    /// By the number that the property is stored as; what is not known is as if nothing was set.
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Always,
            2 => Self::Disabled,
            _ => Self::Standard,
        }
    }
}

/// A dataset's txgs.
pub(crate) struct Durable {
    head: LiveHead,
    mode: SyncMode,
    /// The newest txg that the dataset may have been changed in.
    changed: AtomicU64,
}

impl Durable {
    pub(crate) fn new(head: LiveHead, mode: SyncMode) -> Self {
        Self { head, mode, changed: AtomicU64::new(0) }
    }

    /// Waits for what was changed so far, as a program has asked for.
    pub(crate) async fn sync(&self) -> Result<(), SpaError> {
        match (self.mode, self.changed.load(Ordering::Acquire)) {
            (SyncMode::Disabled, _) | (_, 0) => Ok(()),
            (SyncMode::Standard | SyncMode::Always, txg) => self.head.pool().wait_synced(Txg(txg)).await,
        }
    }

    /// Waits after a change, where every change is waited for.
    pub(crate) async fn settle(&self) -> Result<(), SpaError> {
        match self.mode {
            SyncMode::Always => self.sync().await,
            SyncMode::Standard | SyncMode::Disabled => Ok(()),
        }
    }
}

impl TxgSource for Durable {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<HeldTxg, ZplError>> {
        Box::pin(async move {
            let held = TxgSource::begin(&self.head, cost).await?;
            let txg = held.txg().0;
            if self.changed.load(Ordering::Acquire) < txg {
                self.changed.fetch_max(txg, Ordering::AcqRel);
            }
            Ok(held)
        })
    }

    fn later_than(&self, txg: Txg) -> BoxFuture<'_, Result<(), ZplError>> {
        TxgSource::later_than(&self.head, txg)
    }
}
