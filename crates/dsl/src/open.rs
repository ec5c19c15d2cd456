//! The in-memory state of datasets of a pool that is open for writing, beside that on disk.

use std::collections::BTreeMap;

use cenote_dmu::{Objset, Writer};
use cenote_format::Endian;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

use crate::deadlist::LoadedDeadlists;
use crate::freed::CountingBookmarks;
use crate::{Dsl, DslError};

/// The byte order of what is written.
pub(crate) const ORDER: Endian = cenote_zio::ORDER;

/// A head dataset that is open to be changed.
#[derive(Clone)]
pub struct Head {
    /// Its object in the MOS.
    pub dataset: ObjectId,
    /// Its objset.
    pub objset: Objset,
}

/// The part of a [`Dsl`] that changes.
pub(crate) struct Open {
    pub(crate) writer: Writer,
    /// The directory that counts the pool's own objects.
    mos_dir: ObjectId,
    /// The snapshot that everything is a clone of.
    origin: ObjectId,
    /// The list of blocks that are freed in the background.
    free_bpobj: ObjectId,
    /// The list that stands for all empty ones, where there is one.
    empty_bpobj: Mutex<Option<ObjectId>>,
    /// Head datasets that are open, in the order in which they were opened.
    heads: Mutex<Vec<Head>>,
    /// Of heads that were synced: the bookmarks that count what the head gives up.
    pub(crate) kept: Mutex<BTreeMap<ObjectId, CountingBookmarks>>,
    /// Lists of deadlists.
    pub(crate) deadlists: Mutex<LoadedDeadlists>,
    /// Directories that were given other names since the pool was opened.
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
    /// The datasets of a pool whose MOS is open to be changed: those of `view`, which is as of its root. `free_bpobj` is the list
    /// of what is freed in the background, `empty_bpobj` the one that deadlists' empty entries share.
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

    /// The part that changes. A `Dsl` as of a root is never given to code that changes it, since that takes a txg and an open MOS.
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

    /// The directory that counts the pool's own objects.
    #[must_use]
    pub fn mos_dir(&self) -> ObjectId {
        self.open_part().mos_dir
    }

    /// The snapshot that every dataset that is no clone of another is a clone of.
    #[must_use]
    pub fn origin(&self) -> ObjectId {
        self.open_part().origin
    }

    /// The list of blocks that are freed in the background.
    #[must_use]
    pub fn free_bpobj(&self) -> ObjectId {
        self.open_part().free_bpobj
    }

    /// The list that stands for all empty ones, where there is one.
    #[must_use]
    pub fn empty_bpobj(&self) -> Option<ObjectId> {
        *self.open_part().empty_bpobj.lock()
    }

    /// The pool has such a list from now on.
    pub fn set_empty_bpobj(&self, list: ObjectId) {
        let before = self.open_part().empty_bpobj.lock().replace(list);
        assert_eq!(before, None, "a pool has one list that stands for empty ones");
    }

    /// Returns the pool's empty bpobj, and forgets it.
    #[must_use]
    pub fn take_empty_bpobj(&self) -> Option<ObjectId> {
        self.open_part().empty_bpobj.lock().take()
    }

    /// How many directories have been given other names since the pool was opened: while it stays the same, a dataset keeps its name.
    #[must_use]
    pub fn renames(&self) -> u64 {
        self.open_part().renames.load(Ordering::Acquire)
    }

    /// A directory has another name.
    pub(crate) fn renamed(&self) {
        self.open_part().renames.fetch_add(1, Ordering::Release);
    }

    /// The head datasets that are open to be changed, in the order in which they were opened.
    #[must_use]
    pub fn heads(&self) -> Vec<Head> {
        self.open_part().heads.lock().clone()
    }

    /// One of them, by its object.
    #[must_use]
    pub fn open_head(&self, dataset: ObjectId) -> Option<Head> {
        let open = self.shared.open.as_ref()?;
        open.heads.lock().iter().find(|head| head.dataset == dataset).cloned()
    }

    /// One more head dataset is open.
    pub fn add_head(&self, head: Head) {
        let mut heads = self.open_part().heads.lock();
        assert_eq!(head.objset.id().0, head.dataset.0, "an objset has the number of its dataset");
        assert!(head.objset.is_open(), "a head that is open can be changed");
        debug_assert!(heads.iter().all(|other| other.dataset != head.dataset), "a dataset is open once");
        heads.push(head);
    }

    /// Closes the open heads that are not to be kept.
    pub fn retain_heads(&self, is_kept: impl Fn(&Head) -> bool) {
        // Objsets are let go with no lock held.
        let gone: Vec<Head> = {
            let mut heads = self.open_part().heads.lock();
            let (kept, gone) = std::mem::take(&mut *heads).into_iter().partition(|head| is_kept(head));
            *heads = kept;
            gone
        };
        drop(gone);
    }
}
