//! The file server over a pool: one dataset's tree with what is nested in it and its snapshots.

mod changes;
mod control;
mod list;
mod place;
mod serve;
mod snapdir;
mod suspend;

pub use suspend::SuspendedFs;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Report};
use cenote_spa::{Pool, View};
use cenote_taskq::sync::{Mutex, RwLock};
use cenote_taskq::{AsyncMutex, Semaphore, boxed};
use cenote_zpl::{AccessTimes, Attributes, File, Forbidden, Time, ZplError};

use crate::files::Files;
use crate::grafts::{Graft, Grafts};
use crate::layout::{Layout, Placed};
use crate::live::{Live, errno};
use crate::node::{Place, snapshot_root_ino};
use crate::server::{Client, Entry, Errno, NodeId, Pin, Stat};
use crate::slots::{Slot, Slots};
use crate::source::Source;
use crate::zfsvfs::{Zfsvfs, made_directory, open_errno};

/// Memory for the data of requests in flight, in bytes.
const READ_BUDGET_BYTES: u64 = 256 << 20;
/// Nodes whose space is about to change of which is kept that the client knows them.
const PASSING_MAX: usize = 4096;
/// Causes of errors reported for one mount at most: a bad disk gives one for every block.
const REPORTS_MAX: u32 = 200;

/// Options of a tree.
#[derive(Clone)]
pub struct TreeOptions {
    /// The datasets that are shown beside the mounted one.
    pub layout: Layout,
    /// When reading changes access times, whatever the properties say.
    pub access_times: Option<AccessTimes>,
    /// Whether there are extended attributes of users, whatever the property says.
    pub xattrs: Option<bool>,
    /// Whether snapshots are taken, destroyed and renamed by `mkdir`, `rmdir` and `rename` in `.zfs/snapshot` (`zfs_admin_snapshot`).
    pub admin_snapshots: bool,
    /// Takes the causes of errors.
    pub report: Report,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            access_times: None,
            xattrs: None,
            admin_snapshots: false,
            report: Arc::new(|_| {}),
        }
    }
}

/// One dataset's tree as a file server. Cheap to clone.
#[derive(Clone)]
pub struct Tree {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    /// The mounted dataset.
    slot: Arc<Slot>,
    slots: Slots,
    grafts: RwLock<Arc<Grafts>>,
    /// All nested datasets as they were when each was last looked at; none where they have to be looked at again.
    known: Mutex<Option<Vec<Placed>>>,
    /// Held while datasets are placed.
    placing: AsyncMutex<()>,
    layout: Layout,
    admin_snapshots: bool,
    /// The uses that the properties of the shown datasets forbid.
    forbidden: Mutex<Forbidden>,
    files: Files,
    reading: Semaphore,
    client: OnceLock<Arc<dyn Client>>,
    report: Report,
    reports_left: Mutex<u32>,
    /// Remarks that were reported.
    noted: Mutex<BTreeSet<String>>,
    /// Nodes of files that a rollback has removed, until the numbers are handed out again.
    stale: RwLock<BTreeSet<NodeId>>,
    /// Nodes that the client was told of while their space was about to change; so many at most, since what it keeps of them it keeps for
    /// a moment only.
    passing: Mutex<BTreeSet<NodeId>>,
    /// The times of directories that are in no dataset.
    made_at: Time,
}

/// The mounted dataset's, or another's of which this is a share.
enum Held<'a, T> {
    Top(&'a Arc<T>),
    Nested(Arc<T>),
}

impl<T> Deref for Held<'_, T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        match self {
            Self::Top(held) => held,
            Self::Nested(held) => held,
        }
    }
}

/// A dataset of the mount, opened.
struct At<'a> {
    slot: Held<'a, Slot>,
    zfsvfs: Arc<Zfsvfs>,
    _pin: Pin,
}

/// An object found from its node.
struct Found<'a> {
    at: At<'a>,
    object: ObjectId,
}

impl Found<'_> {
    /// The means to change it, of one that was found to be changeable.
    fn live(&self) -> Result<&Live, Errno> {
        self.at.zfsvfs.as_live().ok_or(Errno::ROFS)
    }
}

impl<'a> Deref for Found<'a> {
    type Target = At<'a>;

    fn deref(&self) -> &At<'a> {
        &self.at
    }
}

impl Tree {
    /// The tree of `dataset` (`pool/fs` or `pool/fs@snapshot`) of a pool as of a txg.
    #[boxed]
    pub async fn open(pool: &View, dataset: &str, options: TreeOptions) -> Result<Self, OpenError> {
        let source = Source::view(pool, options.xattrs, Arc::clone(&options.report));
        Self::of(source, dataset, options).await
    }

    /// The tree of a file system of a pool in use, to be changed through its mount and through nothing else meanwhile, and so those
    /// nested in it. It learns by [`Self::refresh`] of datasets that commands make, destroy or rename, and of properties that they set.
    ///
    /// # Errors
    /// It is no file system, or one that cannot be changed yet, or its property `readonly` is on.
    #[boxed]
    pub async fn open_live(pool: &Pool, dataset: &str, options: TreeOptions) -> Result<Self, OpenError> {
        let source = Source::pool(pool, (options.access_times, options.xattrs), Arc::clone(&options.report));
        Self::of(source, dataset, options).await
    }

    #[boxed]
    async fn of(source: Source, dataset: &str, options: TreeOptions) -> Result<Self, OpenError> {
        let top = source.dsl()?.dataset(dataset).await?;
        let zfsvfs = Arc::new(source.open_top(&top, &[]).await?);
        let seconds = i64::try_from(top.phys.creation_time).unwrap_or(0);
        let slot = Arc::new(Slot::new(0, top, NodeId::ROOT, NodeId::ROOT));
        slot.set_opened(zfsvfs);
        let tree = Self {
            shared: Arc::new(Shared {
                source,
                slots: Slots::new(Arc::clone(&slot)),
                slot,
                grafts: RwLock::default(),
                known: Mutex::default(),
                placing: AsyncMutex::new(()),
                layout: options.layout,
                admin_snapshots: options.admin_snapshots,
                forbidden: Mutex::default(),
                files: Files::default(),
                reading: Semaphore::new(READ_BUDGET_BYTES),
                client: OnceLock::new(),
                report: options.report,
                reports_left: Mutex::new(REPORTS_MAX),
                noted: Mutex::default(),
                stale: RwLock::default(),
                passing: Mutex::default(),
                made_at: Time { seconds, nanoseconds: 0 },
            }),
        };
        if let Err(error) = tree.show_all().await {
            tree.close().await;
            return Err(error);
        }
        Ok(tree)
    }

    /// The name of the mounted dataset.
    #[must_use]
    pub fn dataset(&self) -> String {
        self.shared.slot.dataset().name()
    }

    /// The uses that the properties of the mounted dataset and those nested in it forbid. Its `write` is that of the mounted dataset: each
    /// nested dataset has its own.
    #[must_use]
    pub fn forbidden(&self) -> Forbidden {
        *self.shared.forbidden.lock()
    }

    /// Ends the service, when no request comes any more: lets go of files that are still open and frees a little of what was removed; the
    /// rest is left to the next user.
    #[boxed]
    pub async fn close(&self) {
        let _turn = self.shared.placing.lock().await;
        for (_, zfsvfs) in self.shared.slots.live() {
            zfsvfs.close().await;
        }
        if let Some(zfsvfs) = self.shared.slot.moving().await {
            zfsvfs.close().await;
        }
    }

    /// Reports the cause of an error where the errno alone says too little, and gives the errno.
    fn failed(&self, what: &str, node: NodeId, error: &dyn std::fmt::Display, errno: Errno) -> Errno {
        if !matches!(errno, Errno::IO | Errno::BADE | Errno::NFILE | Errno::UCLEAN) {
            return errno;
        }
        let mut left = self.shared.reports_left.lock();
        if *left > 0 {
            *left -= 1;
            let last = if *left == 0 { " (further errors are not reported)" } else { "" };
            (self.shared.report)(&format!("{what} of inode {:#x}: {error}{last}", node.0));
        }
        drop(left);
        if let Some(txg) = self.shared.source.frozen_txg() {
            self.note(format!(
                "'{}' is shown as of txg {txg}. If the pool was changed since, blocks of that state may have been used again: unmount it \
                 and mount it again to see the pool as it is now",
                self.dataset()
            ));
        }
        errno
    }

    fn zpl(&self, what: &str, node: NodeId, error: &ZplError) -> Errno {
        self.failed(what, node, error, errno(error))
    }

    /// As [`Tree::zpl`], for a request that names a node by its number. If the file has been removed since the look-up, the answer is `ESTALE`
    /// and not `ENOENT`: the kernel then looks the name up again, and finds another file, or creates it.
    fn stale(&self, found: &Found<'_>, what: &str, node: NodeId, error: &ZplError) -> Errno {
        match self.zpl(what, node, error) {
            Errno::NOENT if found.zfsvfs.as_live().is_some() => Errno::STALE,
            errno => errno,
        }
    }

    fn grafts(&self) -> Arc<Grafts> {
        Arc::clone(&self.shared.grafts.read())
    }

    fn graft_at(&self, node: NodeId) -> Option<Arc<Graft>> {
        self.shared.grafts.read().at(node)
    }

    async fn top(&self) -> Result<At<'_>, Errno> {
        let slot = &self.shared.slot;
        let opened = match slot.opened() {
            Some(opened) => Some(opened),
            None => slot.moving().await,
        };
        // It is closed only if it could not be opened again after a rollback.
        Ok(At { slot: Held::Top(slot), zfsvfs: opened.ok_or(Errno::IO)?, _pin: Pin::NONE })
    }

    /// The dataset in a slot, opened.
    async fn at(&self, index: u16) -> Result<At<'_>, Errno> {
        if Slots::is_lasting(index) {
            return self.top().await;
        }
        self.nested(self.shared.slots.at(index).ok_or(Errno::STALE)?, Pin::NONE).await
    }

    async fn nested(&self, slot: Arc<Slot>, pin: Pin) -> Result<At<'_>, Errno> {
        if slot.is_gone() && slot.dataset().is_snapshot() {
            return Err(Errno::STALE);
        }
        let opened = self.shared.slots.open(&self.shared.source, &slot).await.map_err(|error| {
            // A dataset that is gone has no name that could be absent.
            let errno = if slot.is_gone() { Errno::STALE } else { open_errno(&error) };
            self.failed("opening", slot.root, &error, errno)
        })?;
        Ok(At { slot: Held::Nested(slot), zfsvfs: opened, _pin: pin })
    }

    /// The object of a node; `None` if the node is a directory that no dataset has.
    async fn find(&self, node: NodeId) -> Result<Option<Found<'_>>, Errno> {
        let (at, object) = match Place::of(node) {
            Place::Object { slot, object } => {
                let at = self.at(slot).await?;
                if self.is_stale(node) {
                    return Err(Errno::STALE);
                }
                (at, Some(object))
            }
            Place::Root { slot } => (self.at(slot).await?, None),
            Place::SnapshotRoot { slot, objset } => (Box::pin(self.at_snapshot(slot, objset)).await?, None),
            Place::Control { .. } | Place::Shares { .. } | Place::Snapshots { .. } | Place::Virtual { .. } => {
                return Ok(None);
            }
        };
        let object = object.unwrap_or_else(|| at.zfsvfs.filesystem.root());
        Ok(Some(Found { at, object }))
    }

    /// As [`Tree::find`]; `errno` where there is no object.
    async fn object(&self, node: NodeId, errno: Errno) -> Result<Found<'_>, Errno> {
        self.find(node).await?.ok_or(errno)
    }

    /// Whether an object's number is one that a file can have.
    fn may_be_file(at: &At<'_>, object: ObjectId) -> bool {
        object == at.zfsvfs.filesystem.root() || Place::Object { slot: at.slot.index, object }.node().is_some()
    }

    /// The node of an object, and the inode number shown.
    fn node_of(&self, at: &At<'_>, object: ObjectId) -> Result<(NodeId, u64), Errno> {
        let slot = &at.slot;
        if object != at.zfsvfs.filesystem.root() {
            let place = Place::Object { slot: slot.index, object };
            let node = place.node().ok_or_else(|| {
                let what = format!("a directory entry for object {}", object.0);
                self.failed("look-up", slot.root, &what, Errno::UCLEAN)
            })?;
            return Ok((node, node.0));
        }
        let ino = match slot.root {
            NodeId::ROOT if slot.dataset().is_snapshot() => snapshot_root_ino(slot.dataset().object.0),
            NodeId::ROOT => object.0,
            node => node.0,
        };
        Ok((slot.root, ino))
    }

    /// An entry for an object with its attributes.
    fn entry(&self, at: &At<'_>, attributes: &Attributes) -> Result<Entry, Errno> {
        let (node, ino) = self.node_of(at, attributes.object)?;
        self.is_fresh(node);
        // A listing names roots without reading them.
        let generation = if node == at.slot.root { 0 } else { attributes.generation };
        Ok(Entry { node, generation, stat: self.stat(at, node, attributes, ino), pin: self.shared.slots.pin(node) })
    }

    /// The attributes that `stat` shows of an object.
    fn stat(&self, at: &At<'_>, node: NodeId, attributes: &Attributes, ino: u64) -> Stat {
        let stat = at.zfsvfs.stat(attributes, ino);
        if stat.is_passing {
            let mut passing = self.shared.passing.lock();
            if passing.len() < PASSING_MAX {
                passing.insert(node);
            }
        }
        stat
    }

    /// An entry for a node that is not an object of a dataset already at hand.
    async fn entry_of_node(&self, node: NodeId) -> Result<Entry, Errno> {
        match self.find(node).await? {
            Some(found) => {
                let attributes = found.zfsvfs.filesystem.attributes(found.object).await;
                let attributes = attributes.map_err(|error| self.zpl("attributes", node, &error))?;
                self.entry(&found, &attributes)
            }
            None => {
                let stat = self.made_stat(node).await?;
                Ok(Entry { node, generation: 0, stat, pin: self.shared.slots.pin(node) })
            }
        }
    }

    /// The entry of a node that somebody has noted, or of the directory above it: what a file handle leads to. Numbers of nested
    /// datasets and snapshots are this mount's and not good for longer.
    async fn by_number(&self, node: NodeId, is_above: bool) -> Result<Entry, Errno> {
        let (slot, object) = match Place::of(node) {
            Place::Root { slot } => (slot, None),
            Place::Object { slot, object } => (slot, Some(object)),
            _ => return Err(Errno::NOENT),
        };
        if !Slots::is_lasting(slot) {
            return Err(Errno::STALE);
        }
        let at = self.top().await?;
        let object = object.unwrap_or_else(|| at.zfsvfs.filesystem.root());
        let found = at.zfsvfs.filesystem.find_by_number(object, is_above).await;
        self.entry(&at, &found.map_err(|error| errno(&error))?)
    }

    /// The attributes of a directory that no dataset has.
    async fn made_stat(&self, node: NodeId) -> Result<Stat, Errno> {
        let at = self.shared.made_at;
        match Place::of(node) {
            Place::Control { .. } | Place::Shares { .. } | Place::Snapshots { .. } => self.control_stat(node).await,
            Place::Virtual { .. } => {
                let graft = self.graft_at(node).ok_or(Errno::NOENT)?;
                Ok(made_directory(node.0, 0o555, graft.children.len() as u64 + 2, at))
            }
            _ => Err(Errno::NOENT),
        }
    }

    /// Opens a regular file to be read, or finds it open. A file that can be changed comes with a
    /// reference to its file system, which keeps that from being closed meanwhile.
    async fn open_file(&self, node: NodeId) -> Result<(Arc<File>, Option<Arc<Zfsvfs>>), Errno> {
        // A file that does not change is found by its node alone.
        if (self.shared.source.is_frozen() || Place::nested_slot(node).is_some())
            && let Some(file) = self.shared.files.find(node)
        {
            return Ok((file, None));
        }
        let found = self.object(node, Errno::ISDIR).await?;
        if let Some(live) = found.zfsvfs.as_live() {
            let file = live.file(found.object).await.map_err(|error| self.zpl("opening", node, &error))?;
            return Ok((file, Some(Arc::clone(&found.zfsvfs))));
        }
        let file = found.zfsvfs.filesystem.open_file(found.object).await;
        let file = file.map_err(|error| self.zpl("opening", node, &error))?;
        Ok((self.shared.files.keep(node, file), None))
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree of {:?}", self.shared.source.name())
    }
}
