//! Where operations get the txg from that their changes go to.
//!
//! An operation takes its locks first, then a txg, and lets the txg go before the locks. So of two operations on one object the later
//! has the same txg or a later one, and layers in memory pile up in order; and the holder of a txg waits for nobody but, briefly, for
//! other holders, so a txg that closes is soon free of them.

use cenote_format::ids::Txg;
use cenote_taskq::BoxFuture;

use super::{Cost, Transactions, Tx, TxError};

/// The txgs of a pool, for the changes of one dataset.
pub trait TxgSource: Send + Sync + 'static {
    /// The txg that is open now, once there is room for a change of this cost. Waits where changes come faster than they can be
    /// written.
    ///
    /// # Errors
    /// There is no space for it, or the pool is closed or suspended.
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>>;

    /// Waits until a txg is on disk, and has it written soon. The caller holds no txg.
    ///
    /// # Errors
    /// It could not be written.
    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>>;

    /// Announces that space is about to be freed in the background, until the guard is dropped: changes that find no space wait
    /// meanwhile. `None` where the source refuses no change for want of space.
    fn frees_begin(&self) -> Option<Box<dyn PendingFrees>> {
        None
    }
}

/// Frees that are about to be made, until this is dropped.
pub trait PendingFrees: Send + Sync {
    /// Another piece is freed.
    fn went_on(&self);
}

/// Txgs without accounts of space.
impl TxgSource for Transactions {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        Box::pin(self.assign(cost, None))
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        Box::pin(Self::wait_synced(self, txg))
    }
}
