//! The way to the blocks of one objset.

use std::sync::Arc;

use cenote_arc::Source;
use cenote_codec::crypt::DatasetKey;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_taskq::buf::Block;
use cenote_zio::{Bookmark, ReadContext};

use crate::Dmu;
use crate::caching::{Caching, SharedCaching};

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

impl KeyAccess {
    /// The key, if it is loaded.
    pub(crate) fn key(&self) -> Option<&DatasetKey> {
        match self {
            Self::Loaded(key) => Some(key),
            Self::None | Self::Without => None,
        }
    }
}

/// All that reading a block of an objset takes beside its pointer: pipeline and cache, the objset's number, its key. It knows
/// nothing of the objset's objects, so a tree that holds it keeps none of them in memory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
}

struct Shared {
    dmu: Dmu,
    id: ObjsetId,
    key: KeyAccess,
    caching: SharedCaching,
}

impl Reader {
    pub(crate) fn new(dmu: Dmu, id: ObjsetId, key: KeyAccess) -> Self {
        Self { shared: Arc::new(Shared { dmu, id, key, caching: SharedCaching::new(Caching::default()) }) }
    }

    pub(crate) fn dmu(&self) -> &Dmu {
        &self.shared.dmu
    }

    pub(crate) fn id(&self) -> ObjsetId {
        self.shared.id
    }

    pub(crate) fn key_access(&self) -> &KeyAccess {
        &self.shared.key
    }

    /// The kinds of its blocks that are cached and read ahead.
    pub(crate) fn caching(&self) -> &SharedCaching {
        &self.shared.caching
    }

    /// The block at `bp`, and where it came from, if it is in the cache.
    pub(crate) fn resident(&self, bp: &Blkptr) -> Option<(Block, Source)> {
        self.shared.dmu.resident(bp, self.shared.key.key().is_some())
    }

    /// The context for reading one of the objset's blocks.
    pub(crate) fn context(&self, object: ObjectId, level: u8, block: BlockId) -> ReadContext<'_> {
        let level = i8::try_from(level).unwrap_or(i8::MAX);
        let context =
            ReadContext::new(Bookmark { objset: self.shared.id, object, level, block }, self.shared.key.key());
        // Until its txg is on disk, a block of the pool's own objects can be written once more at its place.
        match self.shared.id {
            ObjsetId(0) => context,
            _ => context.shelved(self.shared.caching.on_devices()),
        }
    }
}
