//! Objsets: an array of objects under one block pointer.

use std::sync::Arc;

use cenote_codec::crypt::DatasetKey;
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::{DnodePhys, DnodeView, SLOT_BYTES, dnodes_in_block};
use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_format::objset::ObjsetPhys;
use cenote_zio::{Bookmark, ReadContext};

use crate::dnode::Dnode;
use crate::write::ObjsetMut;
use crate::{Dmu, DmuError, DmuErrorKind};

/// How encrypted blocks of an objset are to be treated.
#[derive(Clone)]
pub enum KeyAccess {
    /// The dataset is not encrypted, or its key is not loaded (encrypted blocks then give an error that says so).
    None,
    /// The dataset's key.
    Loaded(Arc<DatasetKey>),
    /// Work without the key: dnodes are handed out with their bonus still encrypted, data blocks cannot be read.
    Without,
}

/// An opened objset. Cheap to clone.
#[derive(Clone)]
pub struct Objset {
    shared: Arc<Shared>,
}

struct Shared {
    dmu: Dmu,
    id: ObjsetId,
    root: Blkptr,
    phys: ObjsetPhys,
    key: KeyAccess,
    /// The layers of changes that are not on disk yet, where there are any.
    open: Option<ObjsetMut>,
}

impl Objset {
    /// Opens the objset whose block is at `root`.
    pub async fn open(dmu: Dmu, id: ObjsetId, root: Blkptr, key: KeyAccess) -> Result<Self, DmuError> {
        let fail = |kind: DmuErrorKind| DmuError::new(id, ObjectId(0), kind);
        let context = ReadContext::new(Bookmark::objset(id), key_of(&key));
        let block = dmu.read(&root, context).await.map_err(|error| fail(error.into()))?;
        let phys = ObjsetPhys::parse(&block, root.byte_order()).map_err(|error| fail(error.into()))?;
        Ok(Self { shared: Arc::new(Shared { dmu, id, root, phys, key, open: None }) })
    }

    /// An objset whose root block is known, or does not exist yet.
    pub(crate) fn from_parts(dmu: Dmu, id: ObjsetId, root: Blkptr, phys: ObjsetPhys) -> Self {
        Self { shared: Arc::new(Shared { dmu, id, root, phys, key: KeyAccess::None, open: None }) }
    }

    /// The open state of an objset that is being changed: an object is as of its newest change. What one change puts into several
    /// blocks or objects is seen in part by others that read meanwhile, so this is for those that alone change the objset.
    ///
    /// The meta-dnode, and with it every list of objects, is as of the last sync: objects that were made since are found by their
    /// numbers.
    #[must_use]
    pub fn of_open(open: &ObjsetMut) -> Self {
        let (dmu, id, root, phys) = (open.dmu().clone(), open.id(), open.root(), open.phys());
        Self { shared: Arc::new(Shared { dmu, id, root, phys, key: KeyAccess::None, open: Some(open.clone()) }) }
    }

    /// The same objset with encrypted blocks treated as in [`KeyAccess::Without`].
    #[must_use]
    pub fn without_key(&self) -> Self {
        let shared = &self.shared;
        Self {
            shared: Arc::new(Shared {
                dmu: shared.dmu.clone(),
                id: shared.id,
                root: shared.root,
                phys: shared.phys.clone(),
                key: KeyAccess::Without,
                open: shared.open.clone(),
            }),
        }
    }

    /// The objset's number: its dataset's object in the MOS, 0 for the MOS.
    #[must_use]
    pub fn id(&self) -> ObjsetId {
        self.shared.id
    }

    /// The block pointer it was opened at.
    #[must_use]
    pub fn root(&self) -> &Blkptr {
        &self.shared.root
    }

    /// Its root structure: type, meta-dnode, intent log header, flags.
    #[must_use]
    pub fn phys(&self) -> &ObjsetPhys {
        &self.shared.phys
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        &self.shared.dmu
    }

    /// The dataset's key, if loaded.
    #[must_use]
    pub fn key(&self) -> Option<&DatasetKey> {
        key_of(&self.shared.key)
    }

    /// How encrypted blocks are treated.
    #[must_use]
    pub fn key_access(&self) -> &KeyAccess {
        &self.shared.key
    }

    /// The context for reading one of this objset's blocks.
    #[must_use]
    pub fn context(&self, object: ObjectId, level: u8, block: BlockId) -> ReadContext<'_> {
        let level = i8::try_from(level).unwrap_or(i8::MAX);
        ReadContext::new(Bookmark { objset: self.id(), object, level, block }, self.key())
    }

    /// The meta-dnode, whose data are the dnodes.
    #[must_use]
    pub fn meta_dnode(&self) -> Dnode {
        Dnode::new(self.clone(), ObjectId(0), self.shared.phys.meta_dnode.clone())
    }

    /// One of the special dnodes of the root block (user, group and project accounting), under its reserved number.
    #[must_use]
    pub fn special_dnode(&self, id: ObjectId, phys: &DnodePhys) -> Dnode {
        Dnode::new(self.clone(), id, phys.clone())
    }

    /// The byte order of the root block.
    #[must_use]
    pub fn byte_order(&self) -> Endian {
        self.shared.root.byte_order()
    }

    /// The object `id`; [`DmuErrorKind::NoSuchObject`] if the slot is free or inside another, large dnode.
    pub async fn object(&self, id: ObjectId) -> Result<Dnode, DmuError> {
        if let Some(open) = &self.shared.open {
            let object = open.object(id).await?;
            return Ok(Dnode::of_open(self.clone(), object));
        }
        let fail = |kind: DmuErrorKind| DmuError::new(self.id(), id, kind);
        let absent = || fail(DmuErrorKind::NoSuchObject);
        let meta = self.meta_dnode();
        let slots = meta.data_block_size_bytes() / SLOT_BYTES as u64;
        if id.0 == 0 || slots == 0 {
            return Err(absent());
        }
        let (block_id, slot) = (id.0 / slots, (id.0 % slots) as usize);
        let Some((block, order)) = meta.block(BlockId(block_id)).await? else { return Err(absent()) };
        if !slot_is_start(&block, slot, order) {
            return Err(absent());
        }
        match DnodeView::in_block(&block, slot, order).map_err(|error| fail(error.into()))? {
            Some(view) => Ok(Dnode::new(self.clone(), id, view.to_value())),
            None => Err(absent()),
        }
    }

    /// The allocated objects of the dnode block that holds `from` or of the first later one that holds any, at or after
    /// `from`. `None` after the last. Call again with [`NextObjects::next`].
    pub async fn next_objects(&self, from: ObjectId) -> Result<Option<NextObjects>, DmuError> {
        let meta = self.meta_dnode();
        let slots = meta.data_block_size_bytes() / SLOT_BYTES as u64;
        if slots == 0 {
            return Ok(None);
        }
        let mut from = from;
        loop {
            let Some(block_id) = meta.next_data_block(BlockId(from.0 / slots)).await? else { return Ok(None) };
            let objects = self.objects_in_block(block_id, from).await?;
            let next = ObjectId(block_id.0.saturating_add(1).saturating_mul(slots));
            if !objects.is_empty() {
                return Ok(Some(NextObjects { objects, next }));
            }
            from = next;
        }
    }

    /// The allocated objects of one block of the meta-dnode, those below `from` left out. A dnode that does not parse
    /// is an error in the list's place of that object.
    pub async fn objects_in_block(
        &self,
        block_id: BlockId,
        from: ObjectId,
    ) -> Result<Vec<(ObjectId, Result<Dnode, DmuError>)>, DmuError> {
        let meta = self.meta_dnode();
        let slots = meta.data_block_size_bytes() / SLOT_BYTES as u64;
        let Some((block, order)) = meta.block(block_id).await? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (slot, dnode) in dnodes_in_block(&block, order) {
            let id = ObjectId(block_id.0.saturating_mul(slots).saturating_add(slot as u64));
            if id.0 == 0 || id < from {
                continue;
            }
            let dnode = dnode
                .map(|view| Dnode::new(self.clone(), id, view.to_value()))
                .map_err(|error| DmuError::new(self.id(), id, error));
            found.push((id, dnode));
        }
        Ok(found)
    }
}

/// A batch of allocated objects and where to go on.
pub struct NextObjects {
    /// The objects, ascending; a dnode that does not parse is an error in its place.
    pub objects: Vec<(ObjectId, Result<Dnode, DmuError>)>,
    /// Give this as `from` to get the next batch.
    pub next: ObjectId,
}

fn key_of(key: &KeyAccess) -> Option<&DatasetKey> {
    match key {
        KeyAccess::Loaded(key) => Some(key),
        KeyAccess::None | KeyAccess::Without => None,
    }
}

/// Whether a dnode can start at `slot`: found by walking from the block's start, since a slot in the middle of a large
/// dnode holds bytes that may look like anything.
fn slot_is_start(block: &[u8], slot: usize, order: Endian) -> bool {
    let mut at = 0;
    while at < slot {
        at += match DnodeView::in_block(block, at, order) {
            Ok(Some(view)) => view.slots(),
            Ok(None) | Err(_) => 1,
        };
    }
    at == slot
}
