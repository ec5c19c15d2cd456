//! Freeing a file's blocks a piece at a time, from the end, so that no txg has more than it can hold in memory.
//!
//! A piece is what one lowest indirect block points to. Freeing it reads that block and those above it, whatever the size of
//! its data and however sparse it is.

use std::ops::Range;

use cenote_dmu::tx::Cost;
use cenote_dmu::write::Object;
use cenote_format::ids::Txg;

use super::LiveFileSystem;
use super::txgs::HeldTxg;
use crate::ZplError;

/// Blocks freed in a txg, of all files together: their pointers, and the indirect blocks above them, are in memory when it is
/// written.
const BLOCKS_PER_TXG_MAX: u64 = 64 << 10;
/// What a piece counts for at least, for the indirect blocks that it needs read: of a file with one of them, of a larger one.
const SMALL_WEIGHT: u64 = 16;
const LARGE_WEIGHT: u64 = 256;

/// Whether all of an object's blocks may be freed at once: they are of few pieces.
pub(super) fn is_small(object: &Object) -> bool {
    let head = object.head();
    head.max_block_id >> head.blkptrs_per_indirect_shift() == 0
}

/// What freeing so many blocks of an object counts for.
pub(super) fn weight(object: &Object, blocks: u64) -> u64 {
    if object.head().max_block_id == 0 {
        return 1;
    }
    blocks.clamp(if is_small(object) { SMALL_WEIGHT } else { LARGE_WEIGHT }, BLOCKS_PER_TXG_MAX)
}

impl LiveFileSystem {
    /// The last piece of a range that has data, cut to the range.
    pub(super) async fn last_piece(&self, object: &Object, range: Range<u64>) -> Result<Option<Range<u64>>, ZplError> {
        let Some(last) = object.last_data_block(range.start, range.end).await? else { return Ok(None) };
        let shift = object.head().blkptrs_per_indirect_shift();
        let start = (last >> shift) << shift;
        Ok(Some(start.max(range.start)..last + 1))
    }

    /// A txg in which something of this weight may be freed.
    pub(super) async fn begin_piece(&self, cost: Cost, weight: u64) -> Result<HeldTxg, ZplError> {
        loop {
            let held = self.source().begin(cost.that_frees()).await?;
            let txg = held.txg();
            if self.count_freed(txg, weight) {
                self.shared.objset.count_frees(txg, weight);
                return Ok(held);
            }
            drop(held);
            self.source().later_than(txg).await?;
        }
    }

    fn count_freed(&self, txg: Txg, weight: u64) -> bool {
        let mut freed = self.shared.freed.lock();
        if freed.0 < txg {
            *freed = (txg, 0);
        }
        let has_room = freed.1 < BLOCKS_PER_TXG_MAX;
        if has_room {
            freed.1 += weight;
        }
        has_room
    }
}
