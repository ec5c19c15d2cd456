//! Datasets: directories, datasets, snapshots, bookmarks, holds, properties and keys.
//!
//! # Theory
//!
//! **Need.** Users name data `pool/home/alice@monday`; the MOS has numbered objects. This crate resolves names to datasets and opens
//! their objsets, and it manages their metadata: parent, origin, properties and their sources, space accounting, and keys.
//!
//! **On disk (all in the MOS).**
//! ```text
//! root_dataset ─► DSL dir ── child_dirs ZAP ─► DSL dir ...           the tree of names
//!                  ├─ properties ZAP, quota, reservation, used       inherited down the tree
//!                  ├─ (zapified) crypto_key_obj ─► wrapped keys
//!                  └─ head_dataset ─► DSL dataset ── block pointer ─► objset
//!                                      ├─ snapshot_names ZAP ─► DSL dataset (a snapshot) ...
//!                                      ├─ prev_snapshot ─► the chain of snapshots, newest first
//!                                      ├─ deadlist: blocks that the previous snapshot has and this dataset does not
//!                                      └─ (zapified) bookmarks ZAP
//! ```
//!
//! **In memory.** [`Dsl`] is the MOS with the root directory's number and the keys loaded so far. If the MOS is open for changes, names are
//! looked up in its open state, so a dataset that was just created is found at once; `Dsl` then also has the table of open head datasets.
//! [`Dir`] and [`Dataset`] are values read from the MOS at one txg; they hold no locks, and callers may keep them.
//!
//! **Life of a look-up.** Each part of a name is one ZAP look-up from directory to directory. Then follows the head dataset, or a ZAP look-up in
//! its snapshot names. Opening a dataset reads its objset block with the dataset's key, if it has one.
//!
//! **Invariants.**
//! 1. Names are validated before they are looked up. The MOS is not trusted either (types, depth, cycles): a walk up or down the
//!    directories is bounded by [`DEPTH_MAX`].
//! 2. Keys leave this crate only as opaque handles that decrypt blocks; key material is zeroized when dropped.
//! 3. A dataset whose key is not loaded can be listed, sized and walked, but not read: every error says so.
//! 4. `used` of a directory is the sum of its breakdown, the previous and next pointers of snapshots match, and the totals of a deadlist
//!    are the sums of its bpobjs (asserted by `audit`, in tests and simulations).
//!
//! **Changes** are made by one task at a time, the holder of the syncer's slot (OpenZFS: in syncing context), so no lock is held for
//! long.
//!
//! **Crash.** All changes of a txg become durable together, with its MOS.
//!
//! **Rejected.** A cache of opened datasets: the ARC has the same bytes, and each change would have to invalidate it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod accounts;
mod audit;
mod bookmark;
mod bpobj;
mod clone;
mod create;
mod dataset;
mod deadlist;
mod destroy;
mod dir;
mod error;
mod fields;
mod freed;
mod hold;
mod keys;
mod limits;
mod livelist;
pub mod name;
mod open;
mod promote;
pub mod property;
mod receive;
mod redaction;
mod rename;
mod reserve;
mod snapshot;
mod space;
mod wrapped;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::{Dmu, Object, Objset};
use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_taskq::sync::Mutex;

pub use self::accounts::{Settled, UsedBy};
pub use self::bookmark::{Bookmark, BookmarkCounts, BookmarkForm};
pub use self::bpobj::EmptyRefs;
pub use self::clone::LeftTree;
pub use self::create::Birth;
pub use self::dataset::{Dataset, Hold};
pub use self::destroy::Gone;
pub use self::dir::Dir;
pub use self::error::DslError;
pub use self::fields::Noted;
pub use self::keys::{Encryption, KeyFormat, Secret};
pub use self::limits::Counted;
pub use self::livelist::{Livelist, LivelistLimits};
pub use self::open::Head;
pub use self::promote::Promotion;
pub use self::redaction::redaction_snapshots_max;
pub use self::space::Sizes;

use self::open::Open;

/// The maximum depth of directories. OpenZFS's default limit (`zfs_max_dataset_nesting`) is 50.
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
    /// The state for changes, if the MOS is open for them.
    open: Option<Open>,
}

impl Dsl {
    /// The datasets of the pool `pool` with MOS `mos`. `root` is the object of its root directory (`root_dataset`).
    #[must_use]
    pub fn new(pool: String, mos: Objset, root: ObjectId) -> Self {
        Self::with(pool, mos, root, None)
    }

    fn with(pool: String, mos: Objset, root: ObjectId, open: Option<Open>) -> Self {
        assert!(open.is_none() || mos.is_open(), "datasets that are changed are in a MOS that is changed");
        assert_eq!(mos.id(), ObjsetId(0), "datasets are objects of the MOS");
        Self { shared: Arc::new(Shared { mos, root, pool, keys: Mutex::new(BTreeMap::new()), open }) }
    }

    /// The pool's name, which is the first part of every dataset's.
    #[must_use]
    pub(crate) fn pool(&self) -> &str {
        &self.shared.pool
    }

    /// The meta objset.
    #[must_use]
    pub fn mos(&self) -> &Objset {
        &self.shared.mos
    }

    /// The DMU of the MOS.
    #[must_use]
    pub(crate) fn dmu(&self) -> &Dmu {
        self.shared.mos.dmu()
    }

    async fn mos_object(&self, id: ObjectId) -> Result<Object, DslError> {
        Ok(self.shared.mos.object(id).await?)
    }

    fn loaded_key(&self, key_object: ObjectId) -> Option<Arc<cenote_codec::crypt::DatasetKey>> {
        self.shared.keys.lock().get(&key_object).cloned()
    }
}
