//! Blocks that have their places: their pointers, and what they take and give up. Found out on any core, like all that does not
//! decide on places.

use cenote_format::blkptr::Blkptr;
use cenote_zio::{Placed, Places, PreparedBatch, WritePolicy, ZioError};

use super::killed::Killed;
use super::sync::{Shared, SpaceDelta};

/// Blocks made ready together: their numbers, how each is written, and what it has become.
pub(super) struct Made {
    pub(super) blocks: Vec<Option<u64>>,
    pub(super) batch: PreparedBatch,
}

/// What the blocks of a span change in the accounts.
#[derive(Default)]
pub(super) struct Change {
    /// Bytes that their object uses more.
    pub(super) used_bytes: i64,
    pub(super) born: SpaceDelta,
    pub(super) killed: Killed,
}

/// Blocks of a batch whose pointers are complete, to be stored.
pub(super) struct Pointed {
    /// Of each span.
    pub(super) changes: Vec<Change>,
    pub(super) pointers: Vec<(Option<u64>, Blkptr)>,
    pub(super) placed: Vec<Placed>,
    /// What ended it, and in which span.
    pub(super) error: Option<(usize, ZioError)>,
}

impl Made {
    /// The blocks with their places; `spans` says how many of them each span has. What is written in place again (`forgets`) must
    /// not be found in the cache as it was before.
    pub(super) fn point(self, shared: &Shared, spans: &[usize], places: Places, forgets: bool) -> Pointed {
        let count = self.blocks.len();
        let (changes, pointers) = (Vec::with_capacity(spans.len()), Vec::with_capacity(count));
        let mut pointed = Pointed { changes, pointers, placed: Vec::with_capacity(count), error: None };
        let mut blocks = self.blocks.into_iter().zip(self.batch.placed(places));
        for (span, count) in spans.iter().enumerate() {
            let mut change = Change::default();
            for (block, (policy, placed)) in blocks.by_ref().take(*count) {
                let placed = match placed {
                    Ok(placed) => placed,
                    Err(error) => {
                        pointed.error = Some((span, error));
                        return pointed;
                    }
                };
                change.count(shared, &policy, &placed.bp);
                if forgets {
                    shared.dmu.forget(&placed.bp);
                }
                pointed.pointers.push((block, placed.bp));
                if placed.pending_bytes() > 0 {
                    pointed.placed.push(placed);
                }
            }
            pointed.changes.push(change);
        }
        pointed
    }
}

impl Change {
    /// Counts a block in the place of the one before it.
    pub(super) fn count(&mut self, shared: &Shared, policy: &WritePolicy, bp: &Blkptr) {
        let previous = &policy.previous;
        let same_place = previous.dva(0).is_some() && previous.dva(0) == bp.dva(0) && !bp.is_embedded();
        if same_place && previous.physical_birth() == bp.physical_birth() {
            return;
        }
        let (born, gone) = (shared.space_of(bp), shared.space_of(previous));
        self.born.add(born);
        if !previous.is_hole() {
            self.killed.push(*previous, gone);
        }
        self.used_bytes += born.used_bytes - gone.used_bytes;
    }
}
