//! Memory that changes hold beside the data that they write, until their txg is on disk.
//!
//! ```text
//!   a changed object    its layer, its dnode several times over, its tree in the sync     once per object and txg
//!   its dnode block     16 KiB, shared by its neighbours                                  once per block and txg
//!   above both          indirect blocks: 128 KiB each, read and written anew              once per indirect block and txg
//!   a small data block  what is left of the sector that it takes on disk                  once per block and txg
//! ```
//! The last row is no memory. Accounts of space are told what is dirty, and a file of blocks of 512 bytes takes eight times its size on
//! sectors of 4 KiB: without that row txgs came in which the pool had no room for. All of it counts as dirty ([`crate::tx::Dirty`]): a change of attributes has no data, and is bounded by nothing else.
//!
//! The objects that a txg has changed, the blocks that a layer has and the ranges that it frees are sorted. So the neighbours of a new
//! entry tell whether an indirect block is counted already: if neither neighbour is below it, no other entry is. Nothing is taken
//! back where a change is undone: these bytes leave with the txg, as their memory does.
//!
//! **Rejected.** *A set of dirty indirect blocks*: exact after an undo too, and a look-up for each level of each write. *An estimate
//! when the txg is assigned*: a second change of the same object costs nothing.

use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::{BLOCK_BYTES, DnodePhys};

use crate::geometry::{INDIRECT_SHIFT, SLOTS, levels_for};

/// Bytes of a tree in the making, which the sync keeps for each changed object.
pub(crate) const SYNC_TREE_BYTES: usize = 1 << 10;

/// Copies of an object's bonus while it is written: the newest, its layer's, that on disk, that of the tree, of its reader, and
/// the one that will be on disk.
const BONUS_COPIES: usize = 6;
/// An object's entries in the tables of objects, of a txg's changes and of nodes.
const ENTRIES_BYTES: usize = 512;
/// An object's entries in the accounts of owners while they are sorted and entered: names and sums.
const ACCOUNTS_BYTES: usize = 512;

/// Bytes that a changed object holds, with so large a bonus. `parts_bytes` is the size of what is made for it.
pub(super) const fn object_bytes(parts_bytes: usize, bonus_bytes: usize) -> i64 {
    let dnodes = SYNC_TREE_BYTES + 3 * size_of::<DnodePhys>();
    (parts_bytes + dnodes + BONUS_COPIES * bonus_bytes + ENTRIES_BYTES + ACCOUNTS_BYTES) as i64
}

/// Bytes of the block of dnodes that an object stands in, and of what is above it, as far as its neighbours in a txg's
/// set of changed objects do not share them.
pub(super) fn dnode_block_bytes(id: u64, before: Option<u64>, after: Option<u64>) -> i64 {
    /// Levels of the meta-dnode that can be reached by numbers of objects, and whose blocks are not one for all.
    const LEVELS: u8 = 3;
    let block = |id: u64| id / SLOTS;
    if [before, after].into_iter().flatten().any(|other| block(other) == block(id)) {
        return 0;
    }
    let shift = u32::from(INDIRECT_SHIFT) - Blkptr::SHIFT;
    let above = new_indirects(block(id), before.map(block), after.map(block), LEVELS, shift);
    BLOCK_BYTES as i64 + (above << INDIRECT_SHIFT)
}

/// Bytes that a data block takes on disk beside its own: it fills the units that the pool allocates. `bytes` is its size as it is stored at
/// most.
pub(super) fn pad_bytes(bytes: usize, unit_bytes: u64) -> i64 {
    debug_assert!(unit_bytes.is_power_of_two(), "a sector is a power of two");
    ((bytes as u64).wrapping_neg() & (unit_bytes - 1)) as i64
}

/// Bytes of indirect blocks above a data block of a tree, as far as its neighbours do not share them.
pub(super) fn indirect_bytes(head: &DnodePhys, block: u64, before: Option<u64>, after: Option<u64>) -> i64 {
    let levels = levels_for(head, head.max_block_id.max(block).saturating_add(1));
    if levels <= 1 {
        return 0;
    }
    new_indirects(block, before, after, levels, head.blkptrs_per_indirect_shift())
        << head.indirect_block_shift.min(INDIRECT_SHIFT)
}

/// The number of indirect blocks above a block that are not above its neighbours.
fn new_indirects(block: u64, before: Option<u64>, after: Option<u64>, levels: u8, shift: u32) -> i64 {
    let mut count = 0;
    for level in 1..levels {
        let above = |block: u64| block.checked_shr(shift * u32::from(level)).unwrap_or(0);
        // Blocks that share an ancestor share all above it.
        if [before, after].into_iter().flatten().any(|other| above(other) == above(block)) {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: i64 = BLOCK_BYTES as i64;
    const INDIRECT: i64 = 1 << INDIRECT_SHIFT;

    #[test]
    fn a_block_of_dnodes_counts_once_and_what_is_above_it_once() {
        // Blocks of 32 dnodes, 1024 blocks below an indirect block.
        assert_eq!(dnode_block_bytes(100, None, None), BLOCK + 2 * INDIRECT);
        assert_eq!(dnode_block_bytes(101, Some(100), None), 0);
        assert_eq!(dnode_block_bytes(101, Some(95), Some(130)), BLOCK);
        assert_eq!(dnode_block_bytes(32 * 1024, Some(101), None), BLOCK + INDIRECT);
        assert_eq!(dnode_block_bytes(32 << 20, Some(101), None), BLOCK + 2 * INDIRECT);
    }

    #[test]
    fn indirect_blocks_are_shared_by_neighbours_level_by_level() {
        assert_eq!(new_indirects(5, None, None, 3, 10), 2);
        assert_eq!(new_indirects(5, None, Some(1023), 3, 10), 0);
        assert_eq!(new_indirects(5, None, Some(1024), 3, 10), 1);
        assert_eq!(new_indirects(1 << 21, Some(5), None, 3, 10), 2);
        assert_eq!(new_indirects(5, None, None, 1, 10), 0);
    }
}
