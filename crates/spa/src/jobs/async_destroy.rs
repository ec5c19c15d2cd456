//! Freeing destroyed datasets in the background (feature `async_destroy`).
//!
//! **On disk.** The directory's entry `bptree_obj` is a list of destroyed objsets: root, the txg of the snapshot before, and the stop
//! where the last slice ended. The bytes still to be freed count to the directory `$FREE`. The list goes with its last entry, and
//! with it the one use of the feature.
//!
//! **Life of a destroyed dataset.** The txg that takes its name away enters its root at the end of the list, and moves the bytes of its
//! blocks from its own directory to `$FREE`: that is short however large the dataset is. Each txg's slice frees blocks of the first
//! entry in the order of [`Doomed`](super::doomed::Doomed), takes their bytes off `$FREE`, and writes the stop. OpenZFS goes on where Cenote stopped, and the
//! other way round.
//!
//! **A block that cannot be read** is not freed: the job writes the stop before that block, stands still until the pool is opened again,
//! and tells the owner. OpenZFS does so too (`zfs_free_leak_on_eio=0`).

use crate::jobs::SLICE_BLOCKS_MAX;
use cenote_dmu::{DmuError, Zap};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_taskq::Instant;

/// The job's state while the pool is open.
#[derive(Debug)]
pub(crate) struct AsyncDestroy {
    /// The list, if there is one.
    pub(crate) list: Option<ObjectId>,
    pub(super) left_bytes: u64,
    pub(super) done_bytes: u64,
    pub(super) begun: Option<Instant>,
    pub(super) stalled: Option<String>,
    /// Blocks freed in one slice at most.
    pub(super) blocks_max: u64,
}

impl Default for AsyncDestroy {
    fn default() -> Self {
        Self { list: None, left_bytes: 0, done_bytes: 0, begun: None, stalled: None, blocks_max: SLICE_BLOCKS_MAX }
    }
}

impl AsyncDestroy {
    /// As the pool's directory has it.
    pub(crate) async fn open(directory: &Zap) -> Result<Self, DmuError> {
        let list = directory.find_u64(pool_directory::BPTREE).await?.map(ObjectId).filter(|list| list.0 != 0);
        Ok(Self { list, ..Self::default() })
    }
}
