//! Datasets: directories, datasets, snapshots, bookmarks, holds, properties and keys.
//!
//! # Theory
//!
//! **Need.** People name data `pool/home/alice@monday`; the MOS knows numbered objects. This crate turns names into
//! datasets, and datasets into opened objsets, with everything that is recorded *about* them: who is whose parent and
//! origin, which properties hold and where they come from, how much space each takes, which key it needs.
//!
//! **On disk (all in the MOS).**
//! ```text
//! root_dataset ─► DSL dir ── child_dirs ZAP ─► DSL dir ...           the tree of names
//!                  ├─ properties ZAP, quota, reservation, used       inherited down the tree
//!                  ├─ (zapified) crypto_key_obj ─► wrapped keys
//!                  └─ head_dataset ─► DSL dataset ── block pointer ─► objset
//!                                      ├─ snapshot_names ZAP ─► DSL dataset (a snapshot) ...
//!                                      ├─ prev_snapshot ─► the chain of snapshots, newest first
//!                                      ├─ deadlist: blocks of the previous snapshot that are gone here
//!                                      └─ (zapified) bookmarks ZAP
//! ```
//!
//! **In memory.** [`Dsl`] is the MOS with the root directory's number and the keys loaded so far. [`Dir`] and [`Dataset`]
//! are values read from the MOS at one txg; they hold no locks and may be kept.
//!
//! **Life of a look-up.** Each part of a name is one ZAP look-up from directory to directory; then the head dataset, or
//! a ZAP look-up in its snapshot names. Opening a dataset reads its objset block with the dataset's key, if it has one.
//!
//! **Invariants.**
//! 1. Names are checked before they are looked up; what the MOS says is checked again (types, depth, cycles): a walk up
//!    or down the tree is bounded by [`DEPTH_MAX`].
//! 2. Keys never leave this crate but as opaque handles that decrypt blocks; secrets are wiped when dropped.
//! 3. A dataset whose key is not loaded can be listed, sized and walked, but not read: every error says so.
//!
//! **Crash.** Nothing to leave behind yet: reading only.
//!
//! **Rejected.** A cache of opened datasets (the block cache has the same bytes, and values that cannot go stale need no
//! invalidation when writing comes).

mod bookmark;
mod dataset;
mod dir;
mod error;
mod keys;
pub mod name;
pub mod property;
mod space;
pub mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::write::ObjsetMut;
use cenote_dmu::{Dmu, Dnode, Objset};
use cenote_format::ids::ObjectId;
use cenote_taskq::sync::Mutex;

pub use bookmark::Bookmark;
pub use dataset::{Dataset, Hold};
pub use dir::Dir;
pub use error::DslError;
pub use keys::{Encryption, KeyFormat, Secret};

/// Directories above one another at most. OpenZFS's default limit (`zfs_max_dataset_nesting`) is 50.
pub const DEPTH_MAX: usize = 512;

/// The datasets of a pool. Cheap to clone.
#[derive(Clone)]
pub struct Dsl {
    shared: Arc<Shared>,
}

struct Shared {
    mos: Objset,
    root: ObjectId,
    pool: String,
    keys: Mutex<BTreeMap<ObjectId, Arc<cenote_codec::crypt::DatasetKey>>>,
    /// Head datasets that are being changed.
    heads: BTreeMap<ObjectId, ObjsetMut>,
}

impl Dsl {
    /// The datasets of the pool `pool` whose MOS is `mos`; `root` is the object `root_dataset` of its directory.
    #[must_use]
    pub fn new(pool: String, mos: Objset, root: ObjectId) -> Self {
        let (keys, heads) = (Mutex::new(BTreeMap::new()), BTreeMap::new());
        Self { shared: Arc::new(Shared { mos, root, pool, keys, heads }) }
    }

    /// The same, with head datasets that are being changed: one of them that is not on disk yet is opened as it is in memory.
    #[must_use]
    pub fn with_open_heads(self, heads: BTreeMap<ObjectId, ObjsetMut>) -> Self {
        let Shared { mos, root, pool, .. } = &*self.shared;
        let keys = Mutex::new(self.shared.keys.lock().clone());
        Self { shared: Arc::new(Shared { mos: mos.clone(), root: *root, pool: pool.clone(), keys, heads }) }
    }

    /// The pool's name, which is the first part of every dataset's.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.shared.pool
    }

    /// The meta objset.
    #[must_use]
    pub fn mos(&self) -> &Objset {
        &self.shared.mos
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        self.shared.mos.dmu()
    }

    async fn mos_object(&self, id: ObjectId) -> Result<Dnode, DslError> {
        Ok(self.shared.mos.object(id).await?)
    }

    fn loaded_key(&self, key_object: ObjectId) -> Option<Arc<cenote_codec::crypt::DatasetKey>> {
        self.shared.keys.lock().get(&key_object).cloned()
    }
}
