//! The block tree of an object as it is on disk.
//!
//! A [`BlockTree`] is a parsed dnode and the way to the blocks below it. It is immutable: a change of an object makes a new tree, and a
//! holder of the old tree reads the blocks that the old pointers lead to. There is no table of open blocks: a block is
//! found by walking from the dnode, whose indirect blocks are hits in the cache.

mod descent;
mod walk;

use std::sync::Arc;

use cenote_arc::Source;
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::DnodePhys;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::{Endian, FormatError};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use self::descent::Descent;
use crate::caching::Kinds;
use crate::reader::{KeyAccess, Reader};
use crate::{DmuError, DmuErrorKind};

/// The number that the spill block of an object has in bookmarks.
const SPILL: BlockId = BlockId(u64::MAX - 1);

/// A block, the byte order of its fields, and where it came from.
pub(crate) type Found = (Block, Endian, Source);

/// A dnode on disk and its tree. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BlockTree {
    reader: Reader,
    id: ObjectId,
    phys: Arc<DnodePhys>,
}

impl BlockTree {
    pub(crate) fn new(reader: Reader, id: ObjectId, phys: Arc<DnodePhys>) -> Self {
        Self { reader, id, phys }
    }

    /// Whether both are the same, and not only of the same object.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.phys, &other.phys)
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The number of its object.
    #[must_use]
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// The dnode.
    #[must_use]
    pub(crate) fn phys(&self) -> &Arc<DnodePhys> {
        &self.phys
    }

    /// Size in bytes of a data block.
    #[must_use]
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.phys.data_block_bytes())
    }

    /// The id of the last data block; the object has `last_block + 1` of them (a fresh object: one, a hole).
    #[must_use]
    pub(crate) fn last_block(&self) -> BlockId {
        BlockId(self.phys.max_block_id)
    }

    /// An error about its object.
    pub(crate) fn error(&self, kind: impl Into<DmuErrorKind>) -> DmuError {
        DmuError::new(self.reader.id(), self.id, kind)
    }

    /// The pointer to block `block` of level `level`. A hole's pointer if it, or anything above it, is a hole or outside
    /// the tree.
    ///
    /// # Errors
    /// A block on the way cannot be read, or contradicts the dnode.
    pub(crate) async fn pointer(&self, level: u8, block: BlockId) -> Result<Blkptr, DmuError> {
        let mut descent = Descent::new(self, level, block)?;
        if descent.through_cache(self)? {
            return Ok(*descent.pointer());
        }
        descent.finish(self).await
    }

    /// Reads the indirect block of `level` that `pointer` points to, and checks that it is one.
    pub(crate) async fn indirect(&self, pointer: &Blkptr, level: u8, block: BlockId) -> Result<Block, DmuError> {
        self.check_indirect(pointer, level)?;
        let context = self.reader.context(self.id, level, block);
        self.reader.dmu().read(pointer, context).await.map_err(|error| self.error(error))
    }

    /// The data block `block` and the byte order of its fields; `None` for a hole (all zeros).
    pub(crate) async fn block(&self, block: BlockId) -> Result<Option<(Block, Endian)>, DmuError> {
        Ok(self.find_block(block, || ()).await?.map(|(block, order, _)| (block, order)))
    }

    /// As [`BlockTree::block`], and where the block came from. `on_miss` is called when it is about to be read.
    pub(crate) async fn find_block(&self, block: BlockId, on_miss: impl FnOnce()) -> Result<Option<Found>, DmuError> {
        if block > self.last_block() {
            return Ok(None);
        }
        let pointer = self.pointer(0, block).await?;
        if pointer.is_hole() {
            return Ok(None);
        }
        Ok(Some(self.load(block, &pointer, on_miss).await?))
    }

    /// The pointer to the data block `block`, if all above it is in the cache. Nothing in any other case, holes and contradictions
    /// among them; [`BlockTree::find_block`] tells which it is.
    pub(crate) fn resident_pointer(&self, block: BlockId) -> Option<Blkptr> {
        if block > self.last_block() {
            return None;
        }
        let mut descent = Descent::new(self, 0, block).ok()?;
        let is_there = descent.through_cache(self).ok()?;
        (is_there && !descent.pointer().is_hole()).then(|| *descent.pointer())
    }

    /// The data block that `pointer` points to, if it is in the cache, is to stay there, and is what the dnode says.
    pub(crate) fn resident(&self, pointer: &Blkptr) -> Option<Found> {
        if (self.is_data() && !self.reader.caching().keeps_data()) || self.walks_without_key(pointer) {
            return None;
        }
        let (bytes, source) = self.reader.resident(pointer)?;
        self.check_data(pointer, &bytes).ok()?;
        Some((bytes, pointer.byte_order(), source))
    }

    /// The data block `block`, which `pointer` points to.
    pub(crate) async fn load(
        &self,
        block: BlockId,
        pointer: &Blkptr,
        on_miss: impl FnOnce(),
    ) -> Result<Found, DmuError> {
        let context = self.reader.context(self.id, 0, block);
        let dmu = self.reader.dmu();
        let found = if self.walks_without_key(pointer) {
            dmu.zio().read_physical(pointer, context).await.map(|block| (block, Source::Resident))
        } else {
            dmu.find(pointer, context, on_miss).await
        };
        let (bytes, source) = found.map_err(|error| self.error(error))?;
        if self.is_data() && !self.reader.caching().keeps_data() {
            dmu.forget(pointer);
        }
        self.check_data(pointer, &bytes)?;
        Ok((bytes, pointer.byte_order(), source))
    }

    /// As [`BlockTree::block`], past the cache.
    pub(crate) async fn block_direct(&self, block: BlockId) -> Result<Option<(Block, Endian)>, DmuError> {
        if block > self.last_block() {
            return Ok(None);
        }
        let pointer = self.pointer(0, block).await?;
        if pointer.is_hole() {
            return Ok(None);
        }
        self.load_direct(block, &pointer).await.map(|(block, order, _)| Some((block, order)))
    }

    /// As [`BlockTree::load`], past the cache.
    pub(crate) async fn load_direct(&self, block: BlockId, pointer: &Blkptr) -> Result<Found, DmuError> {
        let context = self.reader.context(self.id, 0, block);
        let read = self.reader.dmu().zio().read(pointer, context).await;
        let bytes = read.map_err(|error| self.error(error))?;
        self.check_data(pointer, &bytes)?;
        Ok((bytes, pointer.byte_order(), Source::Loaded))
    }

    fn check_data(&self, pointer: &Blkptr, bytes: &Block) -> Result<(), DmuError> {
        let expected = self.block_bytes();
        if bytes.len() as u64 != expected && !pointer.is_embedded() {
            return Err(self.error(FormatError::invalid(
                "blkptr",
                0,
                "lsize",
                bytes.len() as u64,
                "a data block has the size that its dnode names",
            )));
        }
        Ok(())
    }

    /// The spill block and the byte order of its fields, if the dnode has one.
    pub(crate) async fn spill(&self) -> Result<Option<(Block, Endian)>, DmuError> {
        let Some(pointer) = self.phys.spill else { return Ok(None) };
        let context = self.reader.context(self.id, 0, SPILL);
        let block = self.reader.dmu().read(&pointer, context).await.map_err(|error| self.error(error))?;
        Ok(Some((block, pointer.byte_order())))
    }

    /// True if something of its dataset is read ahead.
    pub(crate) fn prefetches(&self) -> bool {
        self.reader.caching().get().prefetch != Kinds::None
    }

    /// True if its blocks are the contents of a file or a volume.
    fn is_data(&self) -> bool {
        !self.phys.object_type.is_metadata()
    }

    /// Loads data block `block` into the cache, if the dataset has such blocks read ahead. An error is left to the reader that asks for the
    /// block.
    #[boxed]
    pub(crate) async fn prefetch(&self, block: BlockId) {
        if !self.prefetches() {
            return;
        }
        let Ok(pointer) = self.pointer(0, block).await else { return };
        let is_wanted = !self.is_data() || self.reader.caching().get().prefetch == Kinds::All;
        if is_wanted && !pointer.is_hole() && !self.walks_without_key(&pointer) {
            self.reader.dmu().prefetch(&pointer, self.reader.context(self.id, 0, block)).await;
        }
    }

    /// Blocks of dnodes are never compressed in an encrypted dataset and only their bonus areas are ciphertext, so the
    /// trees can be walked without the key.
    fn walks_without_key(&self, pointer: &Blkptr) -> bool {
        self.id == ObjectId(0) && pointer.is_encrypted() && matches!(self.reader.key_access(), KeyAccess::Without)
    }
}
