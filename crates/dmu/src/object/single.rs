//! Reading within one block of what is on disk, the usual case: the shortest way.
//!
//! If all indirect blocks above a block are in the cache, its pointer is found without waiting ([`Object::locate`]), and what is left is one block
//! from the cache or from a device. All other reads (of several blocks, holes, changed blocks, trees that are not in the cache) go
//! the general way, as do reads that this way cannot end: it says nothing then.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::BlockId;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use super::layer::Known;
use super::read::{is_bytes, part_of};
use super::{Form, Object};
use crate::DmuError;
use crate::prefetch::{Watch, Zfetch};
use crate::tree::{BlockTree, Found};

/// A range of bytes within one block that is on disk.
pub(super) struct Located<'a> {
    tree: Cow<'a, BlockTree>,
    block: BlockId,
    pointer: Blkptr,
    /// The bytes of the block.
    range: Range<usize>,
}

impl Located<'_> {
    /// True if the range is all of its block.
    pub(super) fn is_whole(&self) -> bool {
        self.range.len() as u64 == self.tree.block_bytes()
    }
}

impl Object {
    /// Finds the pointer to the one block that a range lies in, with one lock at most. Nothing if that takes a read, or there is none.
    pub(super) fn locate(&self, offset_bytes: u64, len: usize) -> Option<Located<'_>> {
        let tree = match &self.form {
            Form::Frozen(tree) => Cow::Borrowed(tree),
            Form::Open(shared) => {
                let state = shared.state.lock();
                let size = u64::from(state.head.data_block_bytes());
                let block = offset_bytes.checked_div(size)?;
                match state.known(block) {
                    Known::OnDisk(Some(tree)) if block <= state.head.max_block_id && tree.block_bytes() == size => {
                        Cow::Owned(tree)
                    }
                    _ => return None,
                }
            }
        };
        let size = tree.block_bytes();
        let block = BlockId(offset_bytes.checked_div(size)?);
        let start = (offset_bytes % size) as usize;
        let end = start.checked_add(len).filter(|end| len > 0 && *end as u64 <= size)?;
        let pointer = tree.resident_pointer(block)?;
        debug_assert!(start < end && !pointer.is_hole(), "a range that is located has bytes on disk");
        Some(Located { tree, block, pointer, range: start..end })
    }

    /// Reads a range that was located.
    pub(super) async fn read_at(&self, at: &Located<'_>) -> Option<Result<Block, DmuError>> {
        match at.tree.resident(&at.pointer) {
            Some(found) => self.part(at, Ok(found)),
            None => self.load_at(at).await,
        }
    }

    #[boxed]
    async fn load_at(&self, at: &Located<'_>) -> Option<Result<Block, DmuError>> {
        self.part(at, at.tree.load(at.block, &at.pointer, || ()).await)
    }

    /// As [`Object::read_at`], and records the access, to predict the next ones.
    pub(super) async fn read_at_watched(
        &self,
        at: &Located<'_>,
        zfetch: &Arc<Zfetch>,
    ) -> Option<Result<Block, DmuError>> {
        let watch = Watch::new(at.block.0, 1);
        match at.tree.resident(&at.pointer) {
            Some(found) => {
                watch.met_resident(found.2, &at.tree, zfetch);
                self.part(at, Ok(found))
            }
            None => self.load_at_watched(at, watch, zfetch).await,
        }
    }

    #[boxed]
    async fn load_at_watched(
        &self,
        at: &Located<'_>,
        watch: Watch,
        zfetch: &Arc<Zfetch>,
    ) -> Option<Result<Block, DmuError>> {
        let found = watch.load(&at.tree, at.block, &at.pointer, zfetch).await;
        watch.tell(zfetch);
        self.part(at, found)
    }

    /// As [`Object::read_at`], past the cache.
    #[boxed]
    pub(super) async fn read_at_direct(&self, at: &Located<'_>) -> Option<Result<Block, DmuError>> {
        let found = at.tree.load_direct(at.block, &at.pointer).await;
        self.part(at, found)
    }

    /// The part of a block that was asked for. Nothing where the block's tree was replaced meanwhile, or the block is not fit to be
    /// handed out as it is.
    fn part(&self, at: &Located<'_>, found: Result<Found, DmuError>) -> Option<Result<Block, DmuError>> {
        debug_assert!(at.range.end as u64 <= at.tree.block_bytes(), "a range is within its block");
        match found {
            Ok((bytes, order, _)) => self.is_fit(&at.tree, &bytes, order).then(|| Ok(part_of(bytes, at.range.clone()))),
            Err(_) if self.is_replaced(&at.tree) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The data block `block`, if it is as it is on disk, and in the cache.
    pub(super) fn resident_block(&self, block: BlockId) -> Option<Block> {
        let Known::OnDisk(Some(tree)) = self.known(block) else { return None };
        Some(self.resident_in(&tree, block)?.0)
    }

    /// The data block `block` of a tree, if it is in the cache, and fit to be handed out as it is.
    pub(super) fn resident_in(&self, tree: &BlockTree, block: BlockId) -> Option<Found> {
        let pointer = tree.resident_pointer(block)?;
        let found = tree.resident(&pointer)?;
        self.is_fit(tree, &found.0, found.1).then_some(found)
    }

    /// A block in another byte order may have to be turned round. A block of an open object may be changed and written again: then it has
    /// our byte order, and the size of the others. The general way sees to that, or refuses.
    fn is_fit(&self, tree: &BlockTree, bytes: &Block, order: Endian) -> bool {
        match &self.form {
            Form::Frozen(_) => order == cenote_zio::ORDER || is_bytes(tree.phys().object_type),
            Form::Open(_) => order == cenote_zio::ORDER && bytes.len() as u64 == tree.block_bytes(),
        }
    }
}
