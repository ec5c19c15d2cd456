//! The way down a block tree, from the dnode to the pointer of one block.
//!
//! A descent goes as far as the cache reaches without waiting, and stops at the indirect block that has to be read. So a reader
//! of cached blocks needs no task that could wait, and a reader that waits goes the same way, block by block.

use cenote_format::FormatError;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::BlockId;
use cenote_taskq::boxed;

use super::BlockTree;
use crate::geometry::ancestor;
use crate::{DmuError, DmuErrorKind};

/// A descent to block `block` of level `level`.
pub(super) struct Descent {
    level: u8,
    block: BlockId,
    /// The level of the block that `pointer` points to.
    at_level: u8,
    pointer: Blkptr,
}

impl Descent {
    /// Begins at the dnode.
    ///
    /// # Errors
    /// The tree has no such level.
    pub(super) fn new(tree: &BlockTree, level: u8, block: BlockId) -> Result<Self, DmuError> {
        let levels = tree.phys.levels;
        if level >= levels {
            return Err(tree.error(DmuErrorKind::Corrupt(format!("level {level} of a tree of {levels}"))));
        }
        let top = ancestor(block.0, level, levels - 1, tree.phys.blkptrs_per_indirect_shift());
        let pointer = usize::try_from(top).ok().and_then(|top| tree.phys.blkptrs().get(top).copied());
        debug_assert!(levels > 0, "a tree has the level of its data");
        // Outside the tree.
        let pointer = pointer.unwrap_or(Blkptr::HOLE);
        Ok(Self { level, block, at_level: levels - 1, pointer })
    }

    /// Goes on through the indirect blocks that are in the cache. True if the pointer is found.
    ///
    /// # Errors
    /// A block on the way contradicts the dnode.
    pub(super) fn through_cache(&mut self, tree: &BlockTree) -> Result<bool, DmuError> {
        while !self.is_over() {
            tree.check_indirect(&self.pointer, self.at_level)?;
            let Some((indirect, _)) = tree.reader.resident(&self.pointer) else { return Ok(false) };
            self.step(tree, &indirect)?;
        }
        tree.check_level(&self.pointer, self.at_level)?;
        Ok(true)
    }

    /// Goes on to the end, and reads what is not in the cache.
    ///
    /// # Errors
    /// A block on the way cannot be read, or contradicts the dnode.
    #[boxed]
    pub(super) async fn finish(&mut self, tree: &BlockTree) -> Result<Blkptr, DmuError> {
        while !self.through_cache(tree)? {
            let at = ancestor(self.block.0, self.level, self.at_level, tree.phys.blkptrs_per_indirect_shift());
            let indirect = tree.indirect(&self.pointer, self.at_level, BlockId(at)).await?;
            self.step(tree, &indirect)?;
        }
        Ok(self.pointer)
    }

    /// The pointer that was found: a hole's if the block, or anything above it, is a hole or outside the tree.
    pub(super) fn pointer(&self) -> &Blkptr {
        debug_assert!(self.is_over(), "a descent has a pointer when it is over");
        &self.pointer
    }

    /// Nothing lies below a hole.
    fn is_over(&self) -> bool {
        self.at_level == self.level || self.pointer.is_hole()
    }

    fn step(&mut self, tree: &BlockTree, indirect: &[u8]) -> Result<(), DmuError> {
        assert!(self.at_level > self.level, "a descent goes on above the level that it leads to");
        let shift = tree.phys.blkptrs_per_indirect_shift();
        let index = ancestor(self.block.0, self.level, self.at_level - 1, shift) & ((1 << shift) - 1);
        self.pointer = tree.pointer_in(indirect, &self.pointer, index as usize)?;
        self.at_level -= 1;
        Ok(())
    }
}

impl BlockTree {
    /// The pointer at `index` of an indirect block that `parent` points to.
    pub(super) fn pointer_in(&self, indirect: &[u8], parent: &Blkptr, index: usize) -> Result<Blkptr, DmuError> {
        let bytes = indirect.get(index * Blkptr::SIZE..).unwrap_or_default();
        Blkptr::parse(bytes, parent.byte_order()).map_err(|error| self.error(error))
    }

    /// Fails if a pointer does not look like one to an indirect block of `level`.
    pub(super) fn check_indirect(&self, pointer: &Blkptr, level: u8) -> Result<(), DmuError> {
        assert!(level > 0, "an indirect block is above the data");
        self.check_level(pointer, level)?;
        let expected = 1_u64 << self.phys.indirect_block_shift;
        if pointer.lsize_bytes() != expected {
            return Err(self.error(FormatError::invalid(
                "blkptr",
                0,
                "lsize",
                pointer.lsize_bytes(),
                "an indirect block has the size that its dnode names",
            )));
        }
        Ok(())
    }

    fn check_level(&self, pointer: &Blkptr, level: u8) -> Result<(), DmuError> {
        // A hole without a birth txg has no fields at all, its level included.
        if pointer.is_hole() || pointer.level() == level {
            return Ok(());
        }
        Err(self.error(FormatError::invalid(
            "blkptr",
            0,
            "level",
            u64::from(pointer.level()),
            "one less than its parent's",
        )))
    }
}
