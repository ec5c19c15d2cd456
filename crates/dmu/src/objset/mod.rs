//! Objsets: arrays of objects under one block pointer, as of one root or with the changes that are on their way to disk.
//!
//! ```text
//!   Objset ─┬─ frozen: a root                          of a snapshot, a view, a pool opened read-only
//!           └─ open:   objects in memory by number (`table`), the set of objects that each txg has changed, the root on disk
//! ```

mod free_numbers;
mod list;
mod object_alloc;
mod open;
mod policy;
mod raw;
mod seals;
mod stats;
mod table;

use std::sync::Arc;

use cenote_codec::crypt::DatasetKey;
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{BLOCK_BYTES, DnodePhys, DnodeView, SLOT_BYTES, SLOT_SHIFT};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_format::objset::{MAC_BYTES, ObjsetFlags, ObjsetPhys, ObjsetVersion};
use cenote_format::zil_header::ZilHeader;
use cenote_taskq::{boxed, give_way};
use cenote_zio::{Bookmark, ReadContext};

pub use self::list::NextObjects;
pub(crate) use self::policy::{BlockKind, Now, PASS_REWRITE};
pub use self::policy::{ObjsetPolicy, RedundantMetadata};
pub use self::stats::ObjsetStats;

pub use self::seals::RawRoot;

use self::open::Open;
use self::seals::Raw;
use crate::caching::Caching;
use crate::geometry::{GROUPUSED, INDIRECT_SHIFT, OBJECT_MAX, PROJECTUSED, SLOTS, USERUSED, levels_for};
use crate::object::{Object, ObjectSpec};
use crate::reader::{KeyAccess, Reader};
use crate::tree::BlockTree;
use crate::{Dmu, DmuError, DmuErrorKind};

/// An objset. Cheap to clone. An open one lets its objects go with its last clone.
#[derive(Clone)]
pub struct Objset {
    shared: Arc<Shared>,
}

struct Shared {
    reader: Reader,
    content: Content,
}

enum Content {
    Frozen { root: Blkptr, phys: Arc<ObjsetPhys>, meta: BlockTree },
    Open(Open),
}

impl Objset {
    /// Opens the objset whose block is at `root`, as of that root.
    ///
    /// # Errors
    /// The block cannot be read.
    #[boxed]
    pub async fn open(dmu: Dmu, id: ObjsetId, root: Blkptr, key: KeyAccess) -> Result<Self, DmuError> {
        let reader = Reader::new(dmu, id, key);
        let phys = read_phys(&reader, &root).await?;
        Ok(Self::frozen(reader, root, Arc::new(phys)))
    }

    fn frozen(reader: Reader, root: Blkptr, phys: Arc<ObjsetPhys>) -> Self {
        let meta = BlockTree::new(reader.clone(), ObjectId(0), Arc::new(phys.meta_dnode.clone()));
        Self { shared: Arc::new(Shared { reader, content: Content::Frozen { root, phys, meta } }) }
    }

    /// Opens the objset whose block is at `root`, to be changed. There is one such objset for each dataset in use: two would
    /// not know of each other's changes.
    ///
    /// # Errors
    /// The block cannot be read, or a big-endian machine wrote it.
    #[boxed]
    pub async fn own(dmu: Dmu, id: ObjsetId, root: Blkptr, policy: ObjsetPolicy) -> Result<Self, DmuError> {
        Self::own_with(Reader::new(dmu, id, KeyAccess::None), root, policy, None).await
    }

    async fn own_with(reader: Reader, root: Blkptr, policy: ObjsetPolicy, raw: Option<Raw>) -> Result<Self, DmuError> {
        let id = reader.id();
        let phys = read_phys(&reader, &root).await?;
        if phys.endian() != cenote_zio::ORDER {
            let what = "changing objsets that a big-endian machine wrote";
            return Err(DmuError::new(id, ObjectId(0), DmuErrorKind::Unsupported(what.into())));
        }
        let next = phys.meta_dnode.max_block_id.saturating_add(1).saturating_mul(SLOTS);
        let this = Self::owned(reader, root, phys.clone(), policy, next, raw);
        this.add(ObjectId(0), phys.meta_dnode.clone(), Some(phys.meta_dnode));
        let special =
            [(USERUSED, phys.userused_dnode), (GROUPUSED, phys.groupused_dnode), (PROJECTUSED, phys.projectused_dnode)];
        for (id, dnode) in special {
            if let Some(dnode) = dnode {
                this.add(id, dnode.clone(), Some(dnode));
            }
        }
        Ok(this)
    }

    /// A new objset without objects, to be changed.
    #[must_use]
    pub fn create(dmu: Dmu, id: ObjsetId, kind: ObjsetType, policy: ObjsetPolicy) -> Self {
        let mut meta = ObjectSpec::new(DmuType::DNODE, BLOCK_BYTES as u32);
        meta.indirect_shift = INDIRECT_SHIFT;
        let mut meta = meta.dnode().expect("a meta-dnode is a dnode");
        if kind != ObjsetType::Meta {
            // As high as it will ever be, so that its growth never moves what is there.
            meta.levels = levels_for(&meta, OBJECT_MAX >> (BLOCK_BYTES.ilog2() - SLOT_SHIFT));
        }
        let phys = Self::empty_phys(kind, &meta);
        let this = Self::owned(Reader::new(dmu, id, KeyAccess::None), Blkptr::HOLE, phys, policy, 1, None);
        this.add(ObjectId(0), meta, None);
        this
    }

    fn empty_phys(kind: ObjsetType, meta: &DnodePhys) -> ObjsetPhys {
        ObjsetPhys {
            version: ObjsetVersion::V3,
            meta_dnode: meta.clone(),
            zil_header: ZilHeader::default(),
            type_number: u64::from(kind.number()),
            flags: ObjsetFlags::empty(),
            portable_mac: [0; MAC_BYTES],
            local_mac: [0; MAC_BYTES],
            userused_dnode: None,
            groupused_dnode: None,
            projectused_dnode: None,
        }
    }

    fn owned(
        reader: Reader,
        root: Blkptr,
        phys: ObjsetPhys,
        policy: ObjsetPolicy,
        next: u64,
        raw: Option<Raw>,
    ) -> Self {
        reader.caching().set(policy.caching);
        let content = Content::Open(Open::new(&reader, root, phys, policy, next, raw));
        Self { shared: Arc::new(Shared { reader, content }) }
    }

    /// The same objset as of its root, with encrypted blocks treated as in [`KeyAccess::Without`].
    #[must_use]
    pub fn without_key(&self) -> Self {
        let reader = Reader::new(self.dmu().clone(), self.id(), KeyAccess::Without);
        Self::frozen(reader, self.root(), self.phys())
    }

    /// Changes which kinds of its blocks are cached and read ahead, from now on.
    pub fn set_caching(&self, caching: Caching) {
        self.shared.reader.caching().set(caching);
    }

    /// Changes the dataset's I/O statistics, if it is open for changing. The front ends (ZPL, zvol) call this.
    pub fn count(&self, count: impl FnOnce(&ObjsetStats)) {
        if let Content::Open(open) = &self.shared.content {
            count(&open.stats);
        }
    }

    /// The counts, of an objset that is open for changing.
    #[must_use]
    pub fn stats(&self) -> Option<&Arc<ObjsetStats>> {
        match &self.shared.content {
            Content::Open(open) => Some(&open.stats),
            Content::Frozen { .. } => None,
        }
    }

    /// Its number: its dataset's object in the MOS, 0 for the MOS.
    #[must_use]
    pub fn id(&self) -> ObjsetId {
        self.shared.reader.id()
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        self.shared.reader.dmu()
    }

    /// True if it is open to be changed, and not as of one root.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.shared.content, Content::Open(_))
    }

    /// The part that can be changed. A frozen objset is never given to code that does: see [`crate::object`].
    fn open_state(&self) -> &Open {
        match &self.shared.content {
            Content::Open(open) => open,
            Content::Frozen { .. } => panic!("objset {}: opened as of a root, it is not changed", self.id().0),
        }
    }

    /// Its root on disk; a hole before the first sync.
    #[must_use]
    pub fn root(&self) -> Blkptr {
        match &self.shared.content {
            Content::Frozen { root, .. } => *root,
            Content::Open(open) => open.root(),
        }
    }

    /// Its root structure: type, meta-dnode, intent log header, flags. In an open objset its dnodes are those on disk.
    #[must_use]
    pub fn phys(&self) -> Arc<ObjsetPhys> {
        match &self.shared.content {
            Content::Frozen { phys, .. } => phys.clone(),
            Content::Open(open) => open.phys(),
        }
    }

    /// The dataset's key, if loaded.
    #[must_use]
    pub fn key(&self) -> Option<&DatasetKey> {
        self.shared.reader.key_access().key()
    }

    /// The context for reading one of this objset's blocks.
    #[must_use]
    pub fn context(&self, object: ObjectId, level: u8, block: BlockId) -> ReadContext<'_> {
        self.shared.reader.context(object, level, block)
    }

    /// The byte order of the root block.
    #[must_use]
    pub fn byte_order(&self) -> Endian {
        match &self.shared.content {
            Content::Frozen { root, .. } => root.byte_order(),
            Content::Open(_) => cenote_zio::ORDER,
        }
    }

    /// The meta-dnode, whose data are the dnodes.
    #[must_use]
    pub fn meta_dnode(&self) -> Object {
        match &self.shared.content {
            Content::Frozen { meta, .. } => Object::of_tree(meta.clone()),
            Content::Open(open) => open.meta(),
        }
    }

    /// One of the special dnodes of the root block (user, group and project accounting) as it is on disk, under its reserved
    /// number.
    #[must_use]
    pub fn special_dnode(&self, id: ObjectId, phys: &DnodePhys) -> Object {
        Object::frozen(&self.shared.reader, id, phys.clone())
    }

    /// The object `id`; [`DmuErrorKind::NoSuchObject`] if the slot is free or inside another, large dnode.
    ///
    /// # Errors
    /// There is none, or its dnode cannot be read.
    #[boxed]
    pub async fn object(&self, id: ObjectId) -> Result<Object, DmuError> {
        give_way().await;
        match &self.shared.content {
            Content::Frozen { .. } => Ok(Object::frozen(&self.shared.reader, id, self.find_dnode(id).await?)),
            Content::Open(_) => self.open_object(id).await,
        }
    }

    /// An object's dnode, from the block of the meta-dnode that it stands in.
    async fn find_dnode(&self, id: ObjectId) -> Result<DnodePhys, DmuError> {
        let fail = |kind: DmuErrorKind| DmuError::new(self.id(), id, kind);
        let absent = || fail(DmuErrorKind::NoSuchObject);
        let meta = self.meta_dnode();
        let slots = meta.block_bytes() / SLOT_BYTES as u64;
        if id.0 == 0 || slots == 0 {
            return Err(absent());
        }
        let (block_id, slot) = (id.0 / slots, (id.0 % slots) as usize);
        let Some((block, order)) = meta.block(BlockId(block_id)).await? else { return Err(absent()) };
        if !slot_is_start(&block, slot, order) {
            return Err(absent());
        }
        match DnodeView::in_block(&block, slot, order).map_err(|error| fail(error.into()))? {
            Some(view) => Ok(view.to_value()),
            None => Err(absent()),
        }
    }
}

async fn read_phys(reader: &Reader, root: &Blkptr) -> Result<ObjsetPhys, DmuError> {
    let fail = |kind: DmuErrorKind| DmuError::new(reader.id(), ObjectId(0), kind);
    let context = ReadContext::new(Bookmark::objset(reader.id()), reader.key_access().key());
    let block = reader.dmu().read(root, context).await.map_err(|error| fail(error.into()))?;
    ObjsetPhys::parse(&block, root.byte_order()).map_err(|error| fail(error.into()))
}

/// True if a dnode can start at `slot`: found by walking from the block's start, since a slot in the middle of a large
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
