//! Finding data and holes in a block tree without reading data.

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::BlockId;

use super::BlockTree;
use crate::{DmuError, DmuErrorKind};

/// Subtrees that claim to hold what is sought and do not, before the tree is called corrupt. In a sound pool the fill
/// counts are right and there are none; a hostile tree of shared indirect blocks could otherwise be searched for ever.
const FALSE_CLAIMS_MAX: u32 = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Data,
    Hole,
}

impl BlockTree {
    /// The first data block at or after `from` that is not a hole; `None` if there is none up to the last block.
    pub(crate) async fn next_data_block(&self, from: BlockId) -> Result<Option<BlockId>, DmuError> {
        self.next_block(from, Want::Data).await
    }

    /// The first data block at or after `from` that is a hole; `None` if there is none up to the last block.
    pub(crate) async fn next_hole_block(&self, from: BlockId) -> Result<Option<BlockId>, DmuError> {
        self.next_block(from, Want::Hole).await
    }

    async fn next_block(&self, from: BlockId, want: Want) -> Result<Option<BlockId>, DmuError> {
        let levels = self.phys().levels;
        let last = self.last_block().0;
        let mut at = from.0;
        let mut false_claims = 0;
        'from_top: while at <= last {
            // One pass from the top down; `range` is log2 of the data blocks under one pointer of the level at hand.
            let mut parent: Option<(Blkptr, cenote_taskq::buf::Block)> = None;
            for level in (0..levels).rev() {
                let range = u32::from(level) * self.phys().blkptrs_per_indirect_shift();
                let (first, count) = match &parent {
                    None => (0, self.phys().blkptrs().len() as u64),
                    Some((_, indirect)) => {
                        let count = indirect.len() as u64 / Blkptr::SIZE as u64;
                        let index = at.checked_shr(range).unwrap_or(0);
                        (index - index % count.max(1), count)
                    }
                };
                let mut found = None;
                let start = at.checked_shr(range).unwrap_or(0);
                for index in start..first.saturating_add(count) {
                    let pointer = match &parent {
                        None => self.phys().blkptrs()[index as usize],
                        Some((parent, indirect)) => self.pointer_in(indirect, parent, (index - first) as usize)?,
                    };
                    if self.may_hold(&pointer, level, want) {
                        found = Some((index, pointer));
                        break;
                    }
                }
                let Some((index, pointer)) = found else {
                    if parent.is_none() {
                        return Ok(None);
                    }
                    false_claims += 1;
                    if false_claims > FALSE_CLAIMS_MAX {
                        return Err(self.error(DmuErrorKind::Corrupt("indirect blocks belie their fill counts".into())));
                    }
                    let Some(next) = shifted(first.saturating_add(count), range) else { return Ok(None) };
                    assert!(next > at, "a search that goes on goes on further behind");
                    at = next;
                    continue 'from_top;
                };
                let Some(start) = shifted(index, range) else { return Ok(None) };
                at = at.max(start);
                if at > last {
                    return Ok(None);
                }
                if level == 0 || (want == Want::Hole && pointer.is_hole()) {
                    debug_assert!(at >= from.0, "what is found is not before where the search began");
                    return Ok(Some(BlockId(at)));
                }
                let indirect = self.indirect(&pointer, level, BlockId(index)).await?;
                parent = Some((pointer, indirect));
            }
            return Ok(None);
        }
        Ok(None)
    }

    /// Whether what is sought can lie at or under `pointer`.
    fn may_hold(&self, pointer: &Blkptr, level: u8, want: Want) -> bool {
        match want {
            Want::Data => !pointer.is_hole(),
            Want::Hole if pointer.is_hole() => true,
            Want::Hole => {
                // A full subtree has one fill per data block.
                level > 0
                    && 1_u64
                        .checked_shl(u32::from(level) * self.phys().blkptrs_per_indirect_shift())
                        .is_none_or(|capacity| pointer.fill() < capacity)
            }
        }
    }
}

/// `value << shift`, or `None` when that does not fit: beyond any block that an object can have.
fn shifted(value: u64, shift: u32) -> Option<u64> {
    let result = value.checked_shl(shift)?;
    (result >> shift == value).then_some(result)
}
