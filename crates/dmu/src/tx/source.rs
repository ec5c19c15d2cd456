//! Where operations get the txg from that their changes go to.
//!
//! An operation takes its locks first, then a txg, and lets the txg go before the locks. So of two operations on one object the later
//! has the same txg or a later one, and layers in memory pile up in order; and the holder of a txg waits for nobody but, briefly, for
//! other holders, so a txg that closes is soon free of them.

use cenote_format::ids::Txg;
use cenote_taskq::{BoxFuture, boxed};

use super::{Cost, Transactions, Tx, TxError};

/// A wait for an intent log: the txg that has to be waited for instead, if there is one.
pub type Committing<'a> = BoxFuture<'a, Result<Option<Txg>, TxError>>;

/// The txgs of a pool, for the changes of one dataset.
pub trait TxgSource: Send + Sync + 'static {
    /// The txg that is open now, once there is room for a change of this cost. Waits where changes come faster than they can be
    /// written.
    ///
    /// # Errors
    /// There is no space for it, or the pool is closed or suspended.
    #[boxed]
    async fn begin(&self, cost: Cost) -> Result<Tx, TxError>;

    /// The same for a change that stands for itself, whatever becomes of the operation that needs it.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn begin_apart(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        self.begin(cost)
    }

    /// The same for a change that a client was told of before a crash: no account of space is asked.
    ///
    /// # Errors
    /// The pool is closed or suspended.
    fn begin_replayed(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        self.begin(cost)
    }

    /// Waits until a txg is on disk, and has it written soon. The caller holds no txg.
    ///
    /// # Errors
    /// It could not be written.
    #[boxed]
    async fn wait_synced(&self, txg: Txg) -> Result<(), TxError>;

    /// Has the open txg written soon, without waiting for it.
    fn hurry(&self) {}

    /// Waits for something that may be waiting for devices, unless the pool is suspended and refuses that.
    ///
    /// # Errors
    /// Those of what is waited for; or the pool is suspended.
    fn unless_refused<'a>(&'a self, work: Committing<'a>) -> Committing<'a> {
        work
    }

    /// Destroys the dataset's intent log, of which all is replayed, once what was changed up to this txg is on disk.
    ///
    /// # Errors
    /// The source has no intent logs, or a txg could not be written.
    #[boxed]
    async fn log_replayed(&self, _until: Txg) -> Result<(), TxError> {
        Err(TxError::Suspended("its changes go to txgs without intent logs".into()))
    }

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
