//! Long holds: datasets that somebody reads as they are on disk, and that are not to go meanwhile (OpenZFS's `dsl_dataset_long_hold`).
//!
//! **Need.** A reader of a snapshot knows its blocks by their addresses. If the snapshot were destroyed, others would write there, and the
//! reader would get their data. Blocks without a checksum would not reveal it.
//!
//! **In memory.** The number of holders of each dataset, by its object. Datasets that are open to be changed are in
//! [`Pool::is_used`](crate::Pool::is_used) instead.
//!
//! **Invariants.** 1. A hold is taken with the slot ([`Syncer::long_hold`](crate::Syncer::long_hold)), as a task has it from its check to
//! its change: nobody begins to read a dataset that a task is about to destroy. 2. A task that would destroy a held dataset is refused in
//! its check.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_format::ids::ObjectId;
use cenote_taskq::sync::Mutex;

/// The datasets of a pool that are held, and how often.
#[derive(Default)]
pub(crate) struct LongHolds(Mutex<BTreeMap<ObjectId, usize>>);

impl LongHolds {
    pub(crate) fn is_held(&self, dataset: ObjectId) -> bool {
        self.0.lock().contains_key(&dataset)
    }

    pub(crate) fn held(&self) -> Vec<ObjectId> {
        self.0.lock().keys().copied().collect()
    }

    pub(crate) fn hold(self: &Arc<Self>, dataset: ObjectId) -> LongHold {
        *self.0.lock().entry(dataset).or_insert(0) += 1;
        LongHold { dataset, all: self.clone() }
    }
}

/// Keeps a dataset from being destroyed, until it is dropped.
pub struct LongHold {
    dataset: ObjectId,
    all: Arc<LongHolds>,
}

impl Drop for LongHold {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.dataset) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.dataset);
            }
        }
    }
}

impl fmt::Debug for LongHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LongHold of dataset {}", self.dataset)
    }
}
