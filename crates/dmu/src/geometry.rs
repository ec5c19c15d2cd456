//! Numbers of objects and shapes of trees.

use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::{DnodePhys, MAX_SLOTS};
use cenote_format::ids::ObjectId;

/// Slots of dnodes in a block of the meta-dnode.
pub(crate) const SLOTS: u64 = MAX_SLOTS as u64;
/// Numbers of objects have 48 bits.
pub(crate) const OBJECT_MAX: u64 = 1 << 48;

/// The usual size of indirect blocks, as a power of two.
pub const INDIRECT_SHIFT: u8 = 17;
/// The largest data block.
pub(crate) const BLOCK_MAX_BYTES: u32 = 16 << 20;

/// The numbers under which the accounting objects of an objset are known; their dnodes stand in the root block.
pub const USERUSED: ObjectId = ObjectId(u64::MAX);
/// See [`USERUSED`].
pub const GROUPUSED: ObjectId = ObjectId(u64::MAX - 1);
/// See [`USERUSED`].
pub const PROJECTUSED: ObjectId = ObjectId(u64::MAX - 2);

/// True for the objects whose dnodes stand in the root block beside the meta-dnode.
pub(crate) const fn is_special(id: ObjectId) -> bool {
    id.0 >= PROJECTUSED.0
}

/// The block that the block `block` of level `from` lies under at level `to`.
pub(crate) fn ancestor(block: u64, from: u8, to: u8, shift: u32) -> u64 {
    debug_assert!(from <= to, "an ancestor is not below");
    block.checked_shr(u32::from(to.saturating_sub(from)) * shift).unwrap_or(0)
}

/// Levels of a tree that reaches `blocks` data blocks, from the dnode's own pointers on.
pub(crate) fn levels_for(dnode: &DnodePhys, blocks: u64) -> u8 {
    let shift = dnode.blkptrs_per_indirect_shift();
    let mut levels = 1_u8;
    let mut reach = u128::from(dnode.blkptr_count);
    while reach < u128::from(blocks) {
        reach <<= shift;
        levels += 1;
    }
    levels.max(dnode.levels)
}

const _: () = assert!(1 << (INDIRECT_SHIFT as u32 - Blkptr::SHIFT) == 1024);
