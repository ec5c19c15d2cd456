//! The part of the delete queue that is known in memory.

use std::collections::BTreeSet;

use cenote_dmu::tx::PendingFrees;
use cenote_format::ids::ObjectId;

/// Objects noted in memory at most, so that many small files that are removed faster than they are freed do not fill it.
const IDS_MAX: usize = 64 << 10;

/// The part of the delete queue that is known in memory.
pub(crate) struct Garbage {
    /// Objects in it that are not open.
    pub(super) ids: BTreeSet<ObjectId>,
    /// The queue may have others: those that the last user of the file system left there, or more than are noted here.
    pub(super) is_unseen: bool,
    /// Nothing more is to be begun.
    pub(super) is_stopped: bool,
    /// The pool has been told that something is freed.
    pub(super) pending: Option<Box<dyn PendingFrees>>,
}

impl Default for Garbage {
    fn default() -> Self {
        Self { ids: BTreeSet::new(), is_unseen: true, is_stopped: false, pending: None }
    }
}

impl Garbage {
    /// Notes an object of the queue that nobody has open. Where too many are noted the queue, which has them all, is looked
    /// through again.
    pub(super) fn note(&mut self, id: ObjectId) {
        if self.ids.len() < IDS_MAX {
            self.ids.insert(id);
        } else {
            self.is_unseen = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_garbage_than_is_noted_is_left_to_a_look_through_the_queue() {
        let mut garbage = Garbage { is_unseen: false, ..Garbage::default() };
        (0..IDS_MAX as u64).for_each(|id| garbage.note(ObjectId(id)));
        assert!(!garbage.is_unseen);
        garbage.note(ObjectId(u64::MAX));
        assert!(garbage.is_unseen);
        assert_eq!(garbage.ids.len(), IDS_MAX);
    }
}
