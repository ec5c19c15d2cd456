//! Range locks: one change at a time of a block of an object.
//!
//! A change of a part of a block reads the rest first, and no other may come in between; changes of other blocks need not wait. So a
//! change locks a range of blocks, in order of arrival ([`RangeLock`]). Reading takes no lock: a block is replaced as a whole.
//!
//! **Lock before txg.** A change that waits for its txg while it has a range must not be waited for by one that holds an older txg
//! open: that txg would never be synced. Also the older txg's change would then be made after the newer one's. So where several
//! change the same blocks at once each locks the range first and takes the txg then ([`Object::lock_range`]).

use std::ops::Range;

use cenote_taskq::{RangeLock, RangeTicket};

use super::Object;

/// The range locks of one object.
pub(super) type RangeLocks = RangeLock;

/// A range of an object's blocks that other tasks do not change until this is dropped.
#[must_use]
pub struct RangeGuard {
    object: Object,
    blocks: Range<u64>,
    /// None where there are no blocks.
    ticket: Option<RangeTicket>,
}

impl RangeGuard {
    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &Range<u64> {
        &self.blocks
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.object.range_locks().release(ticket);
        }
    }
}

impl Object {
    /// Waits until nothing else changes any of these blocks, and keeps others away until the guard is dropped. To be taken
    /// before the txg (see the module `range_lock`); the future may be dropped at any moment.
    pub async fn lock_range(&self, blocks: Range<u64>) -> RangeGuard {
        let ticket = match blocks.is_empty() {
            true => None,
            false => Some(self.range_locks().write(blocks.clone()).await.into_ticket()),
        };
        RangeGuard { object: self.clone(), blocks, ticket }
    }
}
