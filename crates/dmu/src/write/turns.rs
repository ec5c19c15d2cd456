//! Turns: who changes which blocks of an object.
//!
//! Whoever changes a part of a block reads the rest first, and nobody may come in between; whoever changes other blocks need
//! not wait. So a change takes a turn: a range of blocks that is its alone until the turn is dropped, in order of arrival
//! ([`RangeLock`]). Reading needs no turn: a block is replaced as a whole.
//!
//! **Turn before txg.** A change that waits for its txg while it has the turn must not be waited for by one that holds an older
//! txg open: it would never be synced. Also the older txg's change would then be made after the newer one's. So where several
//! change the same blocks at once each takes the turn first and the txg then ([`Object::turn`]).

use std::ops::Range;

use cenote_taskq::{RangeLock, RangeTicket};

use super::object::Object;

/// The turns of one object.
pub(super) type Turns = RangeLock;

/// A range of an object's blocks that nobody else changes, until it is dropped.
#[must_use]
pub struct Turn {
    object: Object,
    blocks: Range<u64>,
    /// None where there are no blocks.
    ticket: Option<RangeTicket>,
}

impl Turn {
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

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.object.turns().release(ticket);
        }
    }
}

impl Object {
    /// Waits until nobody else changes any of these blocks, and keeps others away until the turn is dropped. To be taken
    /// before the txg (see the module `turns`); the future may be dropped at any moment.
    pub async fn turn(&self, blocks: Range<u64>) -> Turn {
        let ticket = match blocks.is_empty() {
            true => None,
            false => Some(self.turns().write(blocks.clone()).await.into_ticket()),
        };
        Turn { object: self.clone(), blocks, ticket }
    }
}
