//! A dnode and its block tree.

use std::sync::Arc;

use cenote_arc::Source;
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::DnodePhys;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::{Endian, FormatError};
use cenote_taskq::buf::Block;

use crate::objset::{KeyAccess, Objset};
use crate::write::Object;
use crate::{DmuError, DmuErrorKind};

/// An object of an objset. Cheap to clone.
#[derive(Clone)]
pub struct Dnode {
    shared: Arc<Shared>,
}

struct Shared {
    objset: Objset,
    id: ObjectId,
    phys: DnodePhys,
    /// The layers of changes that are not on disk yet, of an object in an objset's open state.
    open: Option<Object>,
}

impl Dnode {
    pub(crate) fn new(objset: Objset, id: ObjectId, phys: DnodePhys) -> Self {
        Self { shared: Arc::new(Shared { objset, id, phys, open: None }) }
    }

    /// An object of an objset's open state. Its fields are as of now, its blocks as of the newest change.
    pub(crate) fn of_open(objset: Objset, object: Object) -> Self {
        let (id, phys) = (object.id(), object.head());
        Self { shared: Arc::new(Shared { objset, id, phys, open: Some(object) }) }
    }

    pub(crate) fn open(&self) -> Option<&Object> {
        self.shared.open.as_ref()
    }

    /// Whether both are the same, and not only of the same object.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The objset it is of.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.shared.objset
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.shared.id
    }

    /// Its fields.
    #[must_use]
    pub fn phys(&self) -> &DnodePhys {
        &self.shared.phys
    }

    /// The byte order of the dnode itself, and so of its bonus.
    #[must_use]
    pub fn byte_order(&self) -> Endian {
        self.shared.phys.endian
    }

    /// Size in bytes of a data block.
    #[must_use]
    pub fn data_block_size_bytes(&self) -> u64 {
        u64::from(self.shared.phys.data_block_bytes())
    }

    /// The id of the last data block; the object has `last_block + 1` of them (a fresh object: one, a hole).
    #[must_use]
    pub fn last_block(&self) -> BlockId {
        BlockId(self.shared.phys.max_block_id)
    }

    /// The bonus: small attributes kept in the dnode.
    #[must_use]
    pub fn bonus(&self) -> &[u8] {
        &self.shared.phys.bonus
    }

    /// An error about this object.
    pub fn error(&self, kind: impl Into<DmuErrorKind>) -> DmuError {
        DmuError::new(self.objset().id(), self.id(), kind)
    }

    /// The pointer to block `block` of level `level`. A hole's pointer if it, or anything above it, is a hole or outside
    /// the tree.
    ///
    /// # Errors
    /// A block on the way cannot be read; or the object is of an objset's open state, whose blocks have no pointers yet.
    pub async fn pointer(&self, level: u8, block: BlockId) -> Result<Blkptr, DmuError> {
        if self.open().is_some() {
            return Err(self.error(DmuErrorKind::Unsupported("pointers of blocks that are being changed".into())));
        }
        let phys = &self.shared.phys;
        let levels = phys.levels;
        if level >= levels {
            return Err(self.error(DmuErrorKind::Corrupt(format!("level {level} of a tree of {levels}"))));
        }
        let shift = self.phys().blkptrs_per_indirect_shift();
        let index_at = |at_level: u8| block.0.checked_shr(u32::from(at_level - level) * shift).unwrap_or(0);
        let top = index_at(levels - 1);
        let Some(mut pointer) = usize::try_from(top).ok().and_then(|top| phys.blkptrs().get(top).copied()) else {
            return Ok(Blkptr::HOLE);
        };
        for at_level in (level + 1..levels).rev() {
            if pointer.is_hole() {
                return Ok(pointer);
            }
            let indirect = self.indirect(&pointer, at_level, BlockId(index_at(at_level))).await?;
            let index = index_at(at_level - 1) & ((1 << shift) - 1);
            pointer = self.pointer_in(&indirect, &pointer, index as usize)?;
        }
        self.check_level(&pointer, level)?;
        Ok(pointer)
    }

    /// The pointer at `index` of an indirect block that `parent` points to.
    pub(crate) fn pointer_in(&self, indirect: &Block, parent: &Blkptr, index: usize) -> Result<Blkptr, DmuError> {
        let bytes = indirect.get(index * Blkptr::SIZE..).unwrap_or_default();
        Blkptr::parse(bytes, parent.byte_order()).map_err(|error| self.error(error))
    }

    /// Reads the indirect block of `level` that `pointer` points to, and checks that it is one.
    pub(crate) async fn indirect(&self, pointer: &Blkptr, level: u8, block: BlockId) -> Result<Block, DmuError> {
        self.check_level(pointer, level)?;
        let expected = 1_u64 << self.shared.phys.indirect_block_shift;
        if pointer.lsize_bytes() != expected {
            return Err(self.error(FormatError::invalid(
                "blkptr",
                0,
                "lsize",
                pointer.lsize_bytes(),
                "an indirect block has the size that its dnode names",
            )));
        }
        let context = self.objset().context(self.id(), level, block);
        self.objset().dmu().read(pointer, context).await.map_err(|error| self.error(error))
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

    /// The data block `block` and the byte order of its fields; `None` for a hole (all zeros).
    pub async fn block(&self, block: BlockId) -> Result<Option<(Block, Endian)>, DmuError> {
        if let Some(object) = self.open() {
            return Ok(object.block(block.0).await?.map(|bytes| (bytes, cenote_zio::ORDER)));
        }
        self.block_on_disk(block).await
    }

    /// As [`Dnode::block`], of an object on disk.
    pub(crate) async fn block_on_disk(&self, block: BlockId) -> Result<Option<(Block, Endian)>, DmuError> {
        if block > self.last_block() {
            return Ok(None);
        }
        let pointer = self.pointer(0, block).await?;
        self.data(&pointer, block).await
    }

    /// The data block at `pointer`, which is the pointer of `block`.
    pub(crate) async fn data(&self, pointer: &Blkptr, block: BlockId) -> Result<Option<(Block, Endian)>, DmuError> {
        Ok(self.find_data(pointer, block, || ()).await?.map(|(block, _)| (block, pointer.byte_order())))
    }

    /// As [`Dnode::data`], and where the block came from. `on_miss` is called when it is about to be read.
    pub(crate) async fn find_data(
        &self,
        pointer: &Blkptr,
        block: BlockId,
        on_miss: impl FnOnce(),
    ) -> Result<Option<(Block, Source)>, DmuError> {
        if pointer.is_hole() {
            return Ok(None);
        }
        let context = self.objset().context(self.id(), 0, block);
        let dmu = self.objset().dmu();
        let found = if self.walks_without_key(pointer) {
            dmu.zio().read_physical(pointer, context).await.map(|block| (block, Source::Resident))
        } else {
            dmu.find(pointer, context, on_miss).await
        };
        let found = found.map_err(|error| self.error(error))?;
        self.check_data(pointer, &found.0)?;
        Ok(Some(found))
    }

    /// As [`Dnode::data`], past the cache.
    pub(crate) async fn data_direct(&self, block: BlockId) -> Result<Option<Block>, DmuError> {
        if self.open().is_some() {
            return Ok(self.block(block).await?.map(|(bytes, _)| bytes));
        }
        if block > self.last_block() {
            return Ok(None);
        }
        let pointer = self.pointer(0, block).await?;
        if pointer.is_hole() {
            return Ok(None);
        }
        let context = self.objset().context(self.id(), 0, block);
        let read = self.objset().dmu().zio().read(&pointer, context).await;
        let bytes = read.map_err(|error| self.error(error))?;
        self.check_data(&pointer, &bytes)?;
        Ok(Some(bytes))
    }

    fn check_data(&self, pointer: &Blkptr, bytes: &Block) -> Result<(), DmuError> {
        let expected = self.data_block_size_bytes();
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

    /// Loads data block `block` into the cache. What is wrong with it is left to whoever asks for it.
    pub(crate) async fn load_ahead(&self, block: BlockId) {
        let Ok(pointer) = self.pointer(0, block).await else { return };
        if !pointer.is_hole() && !self.walks_without_key(&pointer) {
            self.objset().dmu().load_ahead(&pointer, self.objset().context(self.id(), 0, block)).await;
        }
    }

    /// Blocks of dnodes are never compressed in an encrypted dataset and only their bonus areas are ciphertext, so the
    /// trees can be walked without the key.
    fn walks_without_key(&self, pointer: &Blkptr) -> bool {
        self.id() == ObjectId(0) && pointer.is_encrypted() && matches!(self.objset().key_access(), KeyAccess::Without)
    }
}
