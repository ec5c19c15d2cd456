//! Blocks that have their places: their pointers, and what they take and give up. Found out on any core, like all that does not
//! decide on places.

use cenote_format::blkptr::Blkptr;
use cenote_format::needs::Needs;
use cenote_taskq::buf::Block;
use cenote_zio::{Placed, Places, PreparedBatch, WritePolicy, ZioError};

use super::killed::Killed;
use super::shared::Shared;
use super::space::SpaceDelta;

/// Blocks made ready together: their numbers, what of them is kept in the cache, how each is written, and what it has become.
pub(super) struct Made {
    /// Metadata is kept: the next txg changes it again, and so reads it. Data is, where `primarycache` has it so.
    pub(super) blocks: Vec<(Option<u64>, Option<Block>)>,
    pub(super) batch: PreparedBatch,
}

/// The changes that the blocks of a span make in the accounts.
#[derive(Default)]
pub(super) struct SpanDelta {
    /// Bytes that their object uses more.
    pub(super) used_bytes: i64,
    pub(super) born: SpaceDelta,
    /// The new blocks, where a list of them is kept.
    pub(super) new: Vec<Blkptr>,
    pub(super) killed: Killed,
    /// Features that new blocks need.
    pub(super) needs: Needs,
}

/// Blocks of a batch whose pointers are complete, to be stored.
pub(super) struct Pointed {
    /// Of each span.
    pub(super) changes: Vec<SpanDelta>,
    pub(super) pointers: Vec<(Option<u64>, Blkptr)>,
    pub(super) placed: Vec<Placed>,
    /// Blocks in whose place others have come, which may be in the cache.
    pub(super) replaced: Vec<Blkptr>,
    /// The error that ended the batch, and its span.
    pub(super) error: Option<(usize, ZioError)>,
}

impl Made {
    /// The blocks with their places; `spans` gives the number of blocks of each span, and whether new ones are to be listed. The cache must
    /// not return the old contents of a block that is written in place again (`forgets`).
    pub(super) fn point(self, shared: &Shared, spans: &[(usize, bool)], places: Places, forgets: bool) -> Pointed {
        let count = self.blocks.len();
        let (changes, pointers) = (Vec::with_capacity(spans.len()), Vec::with_capacity(count));
        let (placed, replaced) = (Vec::with_capacity(count), Vec::new());
        let mut pointed = Pointed { changes, pointers, placed, replaced, error: None };
        let mut blocks = self.blocks.into_iter().zip(self.batch.placed(places));
        for (span, (count, lists_new)) in spans.iter().enumerate() {
            let mut change = SpanDelta::default();
            for ((block, kept), (policy, placed)) in blocks.by_ref().take(*count) {
                let placed = match placed {
                    Ok(placed) => placed,
                    Err(error) => {
                        pointed.error = Some((span, error));
                        return pointed;
                    }
                };
                change.count(shared, &policy, &placed.bp, *lists_new);
                match kept {
                    Some(content) => {
                        shared.dmu.keep(&placed.bp, &content);
                        if !policy.previous.is_hole() && policy.previous.dva(0) != placed.bp.dva(0) {
                            pointed.replaced.push(policy.previous);
                        }
                    }
                    None if forgets => shared.dmu.forget(&placed.bp),
                    None => {}
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

impl SpanDelta {
    /// Counts a block in the place of the one before it, and lists it where that is wanted.
    pub(super) fn count(&mut self, shared: &Shared, policy: &WritePolicy, bp: &Blkptr, lists_new: bool) {
        let previous = &policy.previous;
        let same_place = previous.dva(0).is_some() && previous.dva(0) == bp.dva(0) && !bp.is_embedded();
        if same_place && previous.physical_birth() == bp.physical_birth() {
            return;
        }
        let (born, gone) = (shared.space_of(bp), shared.space_of(previous));
        self.born.add(born);
        if lists_new && !bp.is_hole() && !bp.is_embedded() {
            self.new.push(*bp);
        }
        self.needs |= Needs::of_pointer(bp);
        if !previous.is_hole() {
            self.killed.push(*previous, gone);
        }
        self.used_bytes += born.used_bytes - gone.used_bytes;
    }
}
