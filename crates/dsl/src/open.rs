//! The state in memory of the datasets of a pool that is open for writing.

use std::collections::BTreeMap;

use cenote_dmu::{Objset, Writer};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

use crate::deadlist::LoadedDeadlists;
use crate::freed::CountingBookmarks;
use crate::{Dsl, DslError};

/// A head dataset that is open for changes.
#[derive(Clone)]
pub struct Head {
    /// Its object in the MOS.
    pub dataset: ObjectId,
    /// Its objset.
    pub objset: Objset,
}

/// The state of a [`Dsl`] for changes.
pub(crate) struct Open {
    pub(crate) writer: Writer,
    /// The directory that the pool's own objects are charged to (`$MOS`).
    mos_dir: ObjectId,
    /// The snapshot from which all datasets descend.
    origin: ObjectId,
    /// The list of blocks to be freed in the background.
    free_bpobj: ObjectId,
    /// The shared empty list, if the pool has one.
    empty_bpobj: Mutex<Option<ObjectId>>,
    /// Head datasets that are open, in the order in which they were opened.
    heads: Mutex<Vec<Head>>,
    /// For each head that was synced, the bookmarks that count the blocks it gives up.
    pub(crate) kept: Mutex<BTreeMap<ObjectId, CountingBookmarks>>,
    /// Lists of deadlists.
    pub(crate) deadlists: Mutex<LoadedDeadlists>,
    /// Renames of directories since the pool was opened.
    renames: AtomicU64,
}

impl Open {
    pub(crate) fn new(
        writer: &Writer,
        mos_dir: ObjectId,
        origin: ObjectId,
        free_bpobj: ObjectId,
        empty_bpobj: Option<ObjectId>,
    ) -> Self {
        let (empty_bpobj, heads) = (Mutex::new(empty_bpobj), Mutex::new(Vec::new()));
        let (kept, renames) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
        let deadlists = Mutex::default();
        Self { writer: writer.clone(), mos_dir, origin, free_bpobj, empty_bpobj, heads, kept, deadlists, renames }
    }
}

impl Dsl {
    /// The datasets of a pool whose MOS is open for changes. `view` is the same pool as of its root. `free_bpobj` is the list of blocks to be
    /// freed in the background, `empty_bpobj` the one that empty entries of deadlists share.
    ///
    /// # Errors
    /// A directory that every pool has is missing, or cannot be read.
    #[boxed]
    pub async fn own(
        mos: &Objset,
        writer: &Writer,
        view: &Self,
        free_bpobj: ObjectId,
        empty_bpobj: Option<ObjectId>,
    ) -> Result<Self, DslError> {
        let root = view.root_dir().await?;
        let child = async |name: &str| {
            let what = || DslError::Corrupt { object: root.object.0, what: format!("there is no '{name}' below it") };
            view.child(&root, name).await?.ok_or_else(what)
        };
        let mos_dir = child(pool_directory::MOS_DIR).await?.object;
        let origin = view.head(&child(pool_directory::ORIGIN_DIR).await?).await?;
        let origin = origin.map_or(ObjectId(0), |head| head.phys.prev_snapshot);
        let open = Open::new(writer, mos_dir, origin, free_bpobj, empty_bpobj);
        Ok(Self::with(view.pool().to_owned(), mos.clone(), root.object, Some(open)))
    }

    /// The state for changes. Code that makes changes needs a txg and an open MOS, so it never gets a `Dsl` that is as of a root.
    pub(crate) fn open_part(&self) -> &Open {
        match &self.shared.open {
            Some(open) => open,
            None => panic!("pool '{}': its datasets are as of a root, and are not changed", self.pool()),
        }
    }

    /// The object of the root directory.
    #[must_use]
    pub fn root_object(&self) -> ObjectId {
        self.shared.root
    }

    /// The directory that the pool's own objects are charged to (`$MOS`).
    #[must_use]
    pub fn mos_dir(&self) -> ObjectId {
        self.open_part().mos_dir
    }

    /// The pool's origin: a dataset that is no clone of another is a clone of this snapshot.
    #[must_use]
    pub fn origin(&self) -> ObjectId {
        self.open_part().origin
    }

    /// The list of blocks to be freed in the background.
    #[must_use]
    pub fn free_bpobj(&self) -> ObjectId {
        self.open_part().free_bpobj
    }

    /// The shared empty list, if the pool has one.
    #[must_use]
    pub fn empty_bpobj(&self) -> Option<ObjectId> {
        *self.open_part().empty_bpobj.lock()
    }

    /// Sets the shared empty list of a pool without one.
    pub fn set_empty_bpobj(&self, list: ObjectId) {
        let before = self.open_part().empty_bpobj.lock().replace(list);
        assert_eq!(before, None, "a pool has one list that stands for empty ones");
    }

    /// Returns the pool's empty bpobj, and forgets it.
    #[must_use]
    pub fn take_empty_bpobj(&self) -> Option<ObjectId> {
        self.open_part().empty_bpobj.lock().take()
    }

    /// The number of renames of directories since the pool was opened. While it does not change, every dataset keeps its name.
    #[must_use]
    pub fn renames(&self) -> u64 {
        self.open_part().renames.load(Ordering::Acquire)
    }

    /// Counts a rename of a directory.
    pub(crate) fn renamed(&self) {
        self.open_part().renames.fetch_add(1, Ordering::Release);
    }

    /// The head datasets that are open for changes, in the order in which they were opened.
    #[must_use]
    pub fn heads(&self) -> Vec<Head> {
        self.open_part().heads.lock().clone()
    }

    /// The open head with this object.
    #[must_use]
    pub fn open_head(&self, dataset: ObjectId) -> Option<Head> {
        let open = self.shared.open.as_ref()?;
        open.heads.lock().iter().find(|head| head.dataset == dataset).cloned()
    }

    /// Adds a head dataset that was opened.
    pub fn add_head(&self, head: Head) {
        let mut heads = self.open_part().heads.lock();
        assert_eq!(head.objset.id().0, head.dataset.0, "an objset has the number of its dataset");
        assert!(head.objset.is_open(), "a head that is open can be changed");
        debug_assert!(heads.iter().all(|other| other.dataset != head.dataset), "a dataset is open once");
        heads.push(head);
    }

    /// Closes the open heads that are not to be kept.
    pub fn retain_heads(&self, is_kept: impl Fn(&Head) -> bool) {
        // Drops the objsets without holding the lock.
        let gone: Vec<Head> = {
            let mut heads = self.open_part().heads.lock();
            let (kept, gone) = std::mem::take(&mut *heads).into_iter().partition(|head| is_kept(head));
            *heads = kept;
            gone
        };
        drop(gone);
    }
}
