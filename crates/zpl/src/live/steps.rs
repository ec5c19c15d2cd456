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

/// Pieces freed in a txg, of all files together: each takes some hundred KiB of memory when it is written.
const PIECES_PER_TXG_MAX: u64 = 64;

/// Whether all of an object's blocks may be freed at once: they are of few pieces.
pub(super) fn is_small(object: &Object) -> bool {
    let head = object.head();
    head.max_block_id >> head.blkptrs_per_indirect_shift() == 0
}

impl LiveFileSystem {
    /// The last piece of a range that has data, cut to the range.
    pub(super) async fn last_piece(&self, object: &Object, range: Range<u64>) -> Result<Option<Range<u64>>, ZplError> {
        let Some(last) = object.last_data_block(range.start, range.end).await? else { return Ok(None) };
        let shift = object.head().blkptrs_per_indirect_shift();
        let start = (last >> shift) << shift;
        Ok(Some(start.max(range.start)..last + 1))
    }

    /// A txg in which another piece may be freed.
    pub(super) async fn begin_piece(&self, cost: Cost) -> Result<HeldTxg, ZplError> {
        loop {
            let held = self.source().begin(cost.that_frees()).await?;
            let txg = held.txg();
            if self.count_piece(txg) {
                return Ok(held);
            }
            drop(held);
            self.source().later_than(txg).await?;
        }
    }

    fn count_piece(&self, txg: Txg) -> bool {
        let mut freed = self.shared.freed.lock();
        if freed.0 < txg {
            *freed = (txg, 0);
        }
        let has_room = freed.1 < PIECES_PER_TXG_MAX;
        if has_room {
            freed.1 += 1;
        }
        has_room
    }
}
