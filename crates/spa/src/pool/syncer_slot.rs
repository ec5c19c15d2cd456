//! The slot of the syncer: one task has it at a time, in the order of asking; a pool that has failed or ended has none.

use cenote_dmu::tx::TxError;

use crate::sync::Syncer;

/// Where the syncer is between two uses.
pub(super) enum SyncerSlot {
    /// Here.
    Syncer(Box<Syncer>),
    /// A change or a txg failed half-way: the syncer is gone, and with it all that is not on disk.
    Failed,
    /// The pool was exported, destroyed or given up.
    Closed,
}

impl SyncerSlot {
    pub(super) fn syncer(&mut self) -> Result<&mut Syncer, TxError> {
        match self {
            Self::Syncer(syncer) => Ok(syncer),
            Self::Failed => Err(TxError::Suspended("the pool has failed".to_owned())),
            Self::Closed => Err(TxError::Closed),
        }
    }
}
