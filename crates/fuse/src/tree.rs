//! The file server over a pool: one dataset's tree with what is nested in it and its snapshots.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Zap;
use cenote_dsl::Dataset;
use cenote_format::dsl::dir_field;
use cenote_format::ids::ObjectId;
use cenote_spa::View;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, Class, Group, Handle, Semaphore, map_concurrent};
use cenote_zpl::{Attributes, DirEntry, FileKind, Snapdir, Time, ZplError};

use crate::files::{Files, OpenFile};
use crate::grafts::{Graft, Grafts};
use crate::layout::{self, Layout};
use crate::listing::{AFTER_ABOVE, AFTER_CONTROL, AFTER_SELF, Position};
use crate::node::{Place, snapshot_root_ino};
use crate::server::{
    Caching, Caller, DirItem, Entry, Errno, FileServer, InodeFlags, NodeId, Pin, Seek, SpaceFigures, Stat,
};
use crate::slots::{Slot, Slots};
use crate::space;
use crate::volume::{OpenError, Volume, errno, made_directory};

/// What is read from a pool that is open read-only never changes. Chosen by eye: longer than anyone keeps a mount.
const FOUND_FOR: Duration = Duration::from_secs(30 * 86_400);
/// Memory for the data of requests in flight, in bytes.
const READ_BUDGET_BYTES: u64 = 256 << 20;
/// Memory for what is being read ahead, in bytes. What finds no room is not read ahead.
const AHEAD_BUDGET_BYTES: u64 = 64 << 20;
/// The largest read that is served at once; a client never asks for more than its own limit, which is less.
const READ_MAX_BYTES: u32 = 16 << 20;
/// Attributes fetched at once for one listing.
const STATS_AT_ONCE: usize = 16;
/// Causes of errors reported for one mount at most: a bad disk gives one for every block.
const REPORTS_MAX: u32 = 200;

/// The name of the control directory and of what is in it.
const CONTROL_NAME: &[u8] = b".zfs";
const SNAPSHOTS_NAME: &[u8] = b"snapshot";
const SHARES_NAME: &[u8] = b"shares";

/// The extended attributes that hold POSIX ACLs.
const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Where causes of errors go that a client only sees as an errno. Called from any thread; must not block for long.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What decides how a tree looks and behaves.
#[derive(Clone)]
pub struct TreeOptions {
    /// Which datasets are shown besides the mounted one.
    pub layout: Layout,
    /// Where causes of errors go.
    pub report: Report,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self { layout: Layout::default(), report: Arc::new(|_| {}) }
    }
}

/// One dataset's tree as a file server. Cheap to clone.
#[derive(Clone)]
pub struct Tree {
    shared: Arc<Shared>,
}

struct Shared {
    pool: View,
    slots: Slots,
    grafts: Grafts,
    files: Files,
    space: space::PoolSize,
    reading: Semaphore,
    ahead: Arc<Semaphore>,
    /// Work that nobody waits for.
    background: Group,
    report: Report,
    reports_left: Mutex<u32>,
    /// The times of directories that are in no dataset.
    made_at: Time,
}

/// An object found from its node.
struct Found {
    slot: Arc<Slot>,
    volume: Arc<Volume>,
    object: ObjectId,
}

impl Tree {
    /// The tree of `dataset` (`pool/fs` or `pool/fs@snapshot`).
    pub async fn open(handle: &Handle, pool: &View, dataset: &str, options: TreeOptions) -> Result<Self, OpenError> {
        let dsl = pool.dsl();
        let top = dsl.dataset(dataset).await?;
        let slots = Slots::new();
        let none = || OpenError::Empty(dataset.to_owned());
        let slot = slots.fix(top.clone(), |_| NodeId::ROOT, NodeId::ROOT).ok_or_else(none)?;
        slots.open(pool, &slot).await?;
        let placed = if top.is_snapshot() {
            Vec::new()
        } else {
            layout::placed(dsl, &top.dir, options.layout, |text| (options.report)(&text)).await?
        };
        let grafts = Grafts::resolve(pool, &slots, &placed, &mut |text| (options.report)(&text)).await?;
        let seconds = i64::try_from(top.phys.creation_time).unwrap_or(0);
        let shared = Shared {
            pool: pool.clone(),
            slots,
            grafts,
            files: Files::default(),
            space: space::PoolSize::default(),
            reading: Semaphore::new(READ_BUDGET_BYTES),
            ahead: Arc::new(Semaphore::new(AHEAD_BUDGET_BYTES)),
            background: handle.group(),
            report: options.report,
            reports_left: Mutex::new(REPORTS_MAX),
            made_at: Time { seconds, nanoseconds: 0 },
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits for work that nobody else waits for, and starts no more.
    pub async fn close(&self) {
        self.shared.background.close().await;
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
        errno
    }

    fn zpl(&self, what: &str, node: NodeId, error: &ZplError) -> Errno {
        self.failed(what, node, error, errno(error))
    }

    fn slot(&self, index: u16) -> Result<Arc<Slot>, Errno> {
        self.shared.slots.at(index).ok_or(Errno::STALE)
    }

    async fn volume(&self, slot: &Arc<Slot>) -> Result<Arc<Volume>, Errno> {
        let opened = self.shared.slots.open(&self.shared.pool, slot).await;
        opened.map_err(|error| self.failed("opening", slot.root, &error, error.errno()))
    }

    /// The volume in a slot, if that has a control directory.
    async fn with_control(&self, slot: u16) -> Result<(Arc<Slot>, Arc<Volume>), Errno> {
        let slot = self.slot(slot)?;
        let volume = self.volume(&slot).await?;
        if volume.has_control() { Ok((slot, volume)) } else { Err(Errno::NOENT) }
    }

    /// The object of a node; `None` if the node is a directory that no dataset has.
    async fn find(&self, node: NodeId) -> Result<Option<(Found, Pin)>, Errno> {
        let (slot, pin, object) = match Place::of(node) {
            Place::Root { slot } => (self.slot(slot)?, Pin::NONE, None),
            Place::Object { slot, object } => (self.slot(slot)?, Pin::NONE, Some(object)),
            Place::SnapshotRoot { slot, objset } => {
                let (slot, pin) = self.snapshot_slot(slot, objset).await?;
                (slot, pin, None)
            }
            Place::Control { .. } | Place::Shares { .. } | Place::Snapshots { .. } | Place::Virtual { .. } => {
                return Ok(None);
            }
        };
        let volume = self.volume(&slot).await?;
        let object = object.unwrap_or_else(|| volume.filesystem.root());
        Ok(Some((Found { slot, volume, object }, pin)))
    }

    /// As [`Tree::find`]; `errno` where there is no object.
    async fn object(&self, node: NodeId, errno: Errno) -> Result<(Found, Pin), Errno> {
        self.find(node).await?.ok_or(errno)
    }

    /// The slot of the snapshot `objset` of the dataset in `slot`.
    async fn snapshot_slot(&self, slot: u16, objset: u64) -> Result<(Arc<Slot>, Pin), Errno> {
        let (head, _) = self.with_control(slot).await?;
        let dsl = self.shared.pool.dsl();
        let dir = head.dataset.dir.clone();
        // The name only serves messages; looking it up would take a walk over all snapshots.
        let name = format!("#{objset}");
        let found = dsl.dataset_object(ObjectId(objset), dir, Some(name)).await.map_err(|_| Errno::NOENT)?;
        self.check_snapshot(&head, &found)?;
        self.pin_snapshot(&head, &found)
    }

    /// That a dataset is a snapshot of a head, as its number or name claims.
    fn check_snapshot(&self, head: &Slot, found: &Dataset) -> Result<(), Errno> {
        if found.phys.dir != head.dataset.dir.object || found.object == head.dataset.object {
            return Err(Errno::NOENT);
        }
        Ok(())
    }

    fn pin_snapshot(&self, head: &Slot, snapshot: &Dataset) -> Result<(Arc<Slot>, Pin), Errno> {
        let objset = snapshot.object.0;
        let root = Place::SnapshotRoot { slot: head.index, objset }.node().ok_or(Errno::UCLEAN)?;
        let above = Place::Snapshots { slot: head.index }.node().ok_or(Errno::UCLEAN)?;
        self.shared
            .slots
            .of_snapshot(snapshot, root, above)
            .ok_or_else(|| self.failed("opening", root, &"files of too many snapshots are in use", Errno::NFILE))
    }

    /// The node of an object, and the inode number shown.
    fn node_of(&self, slot: &Slot, volume: &Volume, object: ObjectId) -> Result<(NodeId, u64), Errno> {
        if object != volume.filesystem.root() {
            let place = Place::Object { slot: slot.index, object };
            let node = place.node().ok_or_else(|| {
                let what = format!("a directory entry for object {}", object.0);
                self.failed("look-up", slot.root, &what, Errno::UCLEAN)
            })?;
            return Ok((node, node.0));
        }
        let ino = match slot.root {
            NodeId::ROOT if slot.dataset.is_snapshot() => snapshot_root_ino(slot.dataset.object.0),
            NodeId::ROOT => object.0,
            node => node.0,
        };
        Ok((slot.root, ino))
    }

    /// An entry for an object with its attributes.
    fn entry(&self, slot: &Arc<Slot>, volume: &Volume, attributes: &Attributes) -> Result<Entry, Errno> {
        let (node, ino) = self.node_of(slot, volume, attributes.object)?;
        let is_counted = node != slot.root;
        Ok(Entry {
            node,
            // A listing names roots without reading them.
            generation: if is_counted { attributes.generation } else { 0 },
            stat: volume.stat(attributes, ino),
            pin: if is_counted { slot.pin() } else { Pin::NONE },
        })
    }

    /// An entry for a node that is not an object of a volume already at hand.
    async fn entry_of_node(&self, node: NodeId) -> Result<Entry, Errno> {
        match self.find(node).await? {
            Some((found, _pin)) => {
                let attributes = found.volume.filesystem.attributes(found.object).await;
                let attributes = attributes.map_err(|error| self.zpl("attributes", node, &error))?;
                self.entry(&found.slot, &found.volume, &attributes)
            }
            None => Ok(Entry { node, generation: 0, stat: self.made_stat(node).await?, pin: Pin::NONE }),
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
        let slot = self.slot(slot)?;
        let volume = self.volume(&slot).await?;
        let object = object.unwrap_or_else(|| volume.filesystem.root());
        let found = volume.filesystem.find_by_number(object, is_above).await.map_err(|error| errno(&error))?;
        self.entry(&slot, &volume, &found)
    }

    /// What `stat` shows of a directory that no dataset has.
    async fn made_stat(&self, node: NodeId) -> Result<Stat, Errno> {
        let at = self.shared.made_at;
        match Place::of(node) {
            Place::Control { slot } => {
                self.with_control(slot).await?;
                Ok(Stat { size_bytes: 0, ..made_directory(node.0, 0o777, 1, at) })
            }
            Place::Shares { slot } => {
                self.with_control(slot).await?;
                Ok(made_directory(node.0, 0o777, 2, at))
            }
            Place::Snapshots { slot } => {
                let (slot, _) = self.with_control(slot).await?;
                let snapshots = self.snapshots(&slot).await?;
                let at = self.snapshots_changed(&slot).await.unwrap_or(at);
                let mut stat = made_directory(node.0, 0o777, 2, at);
                stat.link_count += snapshots.len() as u64;
                Ok(stat)
            }
            Place::Virtual { index } => {
                let graft = self.shared.grafts.get(index).filter(|graft| graft.node == node).ok_or(Errno::NOENT)?;
                Ok(made_directory(node.0, 0o555, graft.children.len() as u64 + 2, at))
            }
            _ => Err(Errno::NOENT),
        }
    }

    async fn snapshots(&self, slot: &Slot) -> Result<Vec<Dataset>, Errno> {
        let found = self.shared.pool.dsl().snapshots(&slot.dataset).await;
        found.map_err(|error| self.failed("listing snapshots", slot.root, &error, Errno::IO))
    }

    /// When a snapshot of the dataset was last made or destroyed, if the pool keeps that.
    async fn snapshots_changed(&self, slot: &Slot) -> Option<Time> {
        let dir = self.shared.pool.mos().object(slot.dataset.dir.object).await.ok()?;
        if !dir.phys().object_type.is_zap() {
            return None;
        }
        let value = Zap::open(dir).await.ok()?.lookup(dir_field::SNAPSHOTS_CHANGED.as_bytes()).await.ok()??;
        let mut words = value.integers();
        Some(Time { seconds: words.next()?.cast_signed(), nanoseconds: words.next()? })
    }

    async fn lookup_snapshot(&self, slot: u16, name: &[u8]) -> Result<Entry, Errno> {
        let (head, _) = self.with_control(slot).await?;
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        if name.contains(['@', '#', '/']) {
            return Err(Errno::NOENT);
        }
        let full = format!("{}@{name}", head.dataset.dir.name);
        let found = self.shared.pool.dsl().dataset(&full).await.map_err(|error| {
            let error = OpenError::from(error);
            self.failed("look-up", head.root, &error, error.errno())
        })?;
        self.check_snapshot(&head, &found)?;
        let (slot, _pin) = self.pin_snapshot(&head, &found)?;
        self.entry_of_node(slot.root).await
    }

    /// Opens a regular file, or finds it open.
    async fn open_file(&self, node: NodeId) -> Result<Arc<OpenFile>, Errno> {
        if let Some(file) = self.shared.files.find(node) {
            return Ok(file);
        }
        let (found, _pin) = self.object(node, Errno::ISDIR).await?;
        let file = found.volume.filesystem.open_file(found.object).await;
        let file = file.map_err(|error| self.zpl("opening", node, &error))?;
        Ok(self.shared.files.keep(node, file))
    }

    /// Reads a range into the cache, if there is room for that.
    fn read_ahead(&self, file: Arc<OpenFile>, start: u64, end: u64) {
        let Some(room) = self.shared.ahead.try_acquire_owned(end - start) else { return };
        let work = async move {
            let mut stream = file.file.stream_range(start..end, end - start);
            // An error is the reader's to find.
            while let Ok(Some(_)) = stream.next().await {}
            drop(room);
        };
        drop(self.shared.background.spawn(Class::Background, work));
    }

    /// What stands before a directory's own entries, from `position` on.
    async fn head_items(&self, node: NodeId, position: u64) -> Result<Vec<DirItem>, Errno> {
        let item = |name: &[u8], node: u64, next: u64| DirItem {
            name: name.to_vec(),
            ino: node,
            kind: Some(FileKind::Directory),
            next,
            entry: None,
            pin: Pin::NONE,
        };
        let mut items = Vec::new();
        let (ino, above, control) = self.around(node).await?;
        if position < AFTER_SELF {
            items.push(item(b".", ino, AFTER_SELF));
        }
        if position < AFTER_ABOVE {
            items.push(item(b"..", above.0, AFTER_ABOVE));
        }
        if position < AFTER_CONTROL
            && let Some(control) = control
        {
            items.push(item(CONTROL_NAME, control.0, AFTER_CONTROL));
        }
        Ok(items)
    }

    /// A directory's inode number, the node above it, and its `.zfs` if that is listed.
    async fn around(&self, node: NodeId) -> Result<(u64, NodeId, Option<NodeId>), Errno> {
        let root_of = |slot: &Slot| slot.root;
        let place = Place::of(node);
        match place {
            Place::Control { slot } => Ok((node.0, root_of(&*self.slot(slot)?), None)),
            Place::Shares { slot } | Place::Snapshots { slot } => {
                Ok((node.0, Place::Control { slot }.node().unwrap_or(NodeId::ROOT), None))
            }
            Place::Virtual { .. } => {
                let above = self.shared.grafts.at(node).map_or(NodeId::ROOT, |graft| graft.above);
                Ok((node.0, above, None))
            }
            Place::Root { .. } | Place::SnapshotRoot { .. } | Place::Object { .. } => {
                let (found, _pin) = self.object(node, Errno::NOTDIR).await?;
                let (_, ino) = self.node_of(&found.slot, &found.volume, found.object)?;
                if node == found.slot.root {
                    let is_listed = found.volume.snapdir == Snapdir::Visible;
                    let control = is_listed.then(|| Place::Control { slot: found.slot.index }.node()).flatten();
                    let above = if node == NodeId::ROOT { NodeId(ino) } else { found.slot.above };
                    return Ok((ino, above, control));
                }
                let attributes = found.volume.filesystem.attributes(found.object).await;
                let attributes = attributes.map_err(|error| self.zpl("listing", node, &error))?;
                let above = self.node_of(&found.slot, &found.volume, attributes.parent);
                Ok((ino, above.map_or(NodeId(attributes.parent.0), |(_, ino)| NodeId(ino)), None))
            }
        }
    }

    /// Datasets that stand in a directory under names that it does not have itself, after `position`.
    async fn added_items(&self, node: NodeId, graft: &Graft, position: u64) -> Result<Vec<DirItem>, Errno> {
        let found = self.find(node).await?;
        let mut items = Vec::new();
        for (at, (name, child)) in (AFTER_CONTROL + 1..).zip(&graft.children) {
            if at <= position {
                continue;
            }
            if let Some((found, _pin)) = &found
                && found.volume.filesystem.lookup(found.object, name).await.is_ok()
            {
                continue;
            }
            let Some(child) = self.shared.grafts.get(*child) else { continue };
            let kind = Some(FileKind::Directory);
            items.push(DirItem { name: name.clone(), ino: child.node.0, kind, next: at, entry: None, pin: Pin::NONE });
        }
        Ok(items)
    }

    /// A directory's own entries after `position`.
    async fn own_items(
        &self,
        node: NodeId,
        position: Position,
        count_max: usize,
        with_entries: bool,
    ) -> Result<Vec<DirItem>, Errno> {
        let cursor = match position {
            Position::Head(_) => cenote_zpl::Cursor::START,
            Position::Zap(cursor) => cursor,
        };
        let (found, pin) = self.object(node, Errno::NOTDIR).await?;
        let listed = found.volume.filesystem.list(found.object, cursor, count_max).await;
        let listed = listed.map_err(|error| self.zpl("listing", node, &error))?;
        let found = Arc::new(found);
        let graft = self.shared.grafts.at(node);
        let items = map_concurrent(STATS_AT_ONCE, listed, |entry| {
            let (tree, found) = (self.clone(), Arc::clone(&found));
            let covered = graft.and_then(|graft| graft.children.get(&entry.name)).copied();
            async move { tree.own_item(node, &found, entry, covered, with_entries).await }
        });
        let items = items.await.into_iter().collect();
        drop(pin);
        items
    }

    async fn own_item(
        &self,
        directory: NodeId,
        found: &Found,
        entry: DirEntry,
        covered: Option<u32>,
        with_entry: bool,
    ) -> Result<DirItem, Errno> {
        let next = Position::number(entry.next)
            .ok_or_else(|| self.failed("listing", directory, &"a hash of too many bits", Errno::UCLEAN))?;
        if let Some(graft) = covered.and_then(|index| self.shared.grafts.get(index)) {
            let looked_up = if with_entry { self.entry_of_node(graft.node).await.ok() } else { None };
            let kind = Some(FileKind::Directory);
            return Ok(DirItem { name: entry.name, ino: graft.node.0, kind, next, entry: looked_up, pin: Pin::NONE });
        }
        let (_, ino) = self.node_of(&found.slot, &found.volume, entry.object)?;
        let mut item = DirItem { name: entry.name, ino, kind: entry.kind, next, entry: None, pin: Pin::NONE };
        if with_entry || item.kind.is_none() {
            // A name whose object cannot be read is listed all the same; looking it up says what is wrong.
            if let Ok(attributes) = found.volume.filesystem.attributes(entry.object).await {
                item.kind = Some(attributes.kind);
                item.entry = if with_entry { self.entry(&found.slot, &found.volume, &attributes).ok() } else { None };
            }
            if with_entry && item.entry.is_none() {
                item.pin = found.slot.pin();
            }
        }
        Ok(item)
    }

    async fn snapshot_items(&self, slot: u16, position: u64, count_max: usize) -> Result<Vec<DirItem>, Errno> {
        let (slot, _) = self.with_control(slot).await?;
        let snapshots = self.snapshots(&slot).await?;
        let from = usize::try_from(position.saturating_sub(AFTER_CONTROL)).unwrap_or(usize::MAX);
        let numbered = (AFTER_CONTROL + 1..).zip(snapshots).skip(from).take(count_max);
        let items = numbered.filter_map(|(next, snapshot)| {
            let node = Place::SnapshotRoot { slot: slot.index, objset: snapshot.object.0 }.node()?;
            let name = snapshot.snapshot?.into_bytes();
            let kind = Some(FileKind::Directory);
            Some(DirItem { name, ino: node.0, kind, next, entry: None, pin: Pin::NONE })
        });
        Ok(items.collect())
    }

    /// The extended attributes that a caller may see.
    async fn xattrs(
        &self,
        node: NodeId,
        caller: Caller,
    ) -> Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
        let Some((found, _pin)) = self.find(node).await? else { return Ok(Default::default()) };
        let all = found.volume.filesystem.xattrs(found.object).await;
        let mut all = all.map_err(|error| self.zpl("extended attributes", node, &error))?;
        all.retain(|name, _| is_shown(name, &found.volume, caller));
        Ok(all)
    }
}

/// Whether an attribute is shown, by the dataset's properties and by who asks.
fn is_shown(name: &[u8], volume: &Volume, caller: Caller) -> bool {
    if name.starts_with(b"system.") {
        return volume.has_acls && ACL_NAMES.contains(&name);
    }
    if name.starts_with(b"trusted.") {
        // The kernel checks the capability when a value is read; a list is for us to trim.
        return volume.has_xattrs && caller.uid == 0;
    }
    volume.has_xattrs || !name.starts_with(b"user.")
}

impl FileServer for Tree {
    fn caching(&self) -> Caching {
        Caching { found: FOUND_FOR, absent: FOUND_FOR, is_immutable: true }
    }

    async fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        if name == b"." || name == b".." {
            return self.by_number(parent, name == b"..").await;
        }
        match Place::of(parent) {
            Place::Control { slot } => {
                let (slot, _) = self.with_control(slot).await?;
                let place = match name {
                    SNAPSHOTS_NAME => Place::Snapshots { slot: slot.index },
                    SHARES_NAME => Place::Shares { slot: slot.index },
                    _ => return Err(Errno::NOENT),
                };
                self.entry_of_node(place.node().ok_or(Errno::NOENT)?).await
            }
            Place::Snapshots { slot } => self.lookup_snapshot(slot, name).await,
            Place::Shares { .. } => Err(Errno::NOENT),
            Place::Root { .. } | Place::Object { .. } | Place::SnapshotRoot { .. } | Place::Virtual { .. } => {
                if let Some(graft) = self.shared.grafts.at(parent)
                    && let Some(child) = graft.children.get(name).and_then(|child| self.shared.grafts.get(*child))
                {
                    return self.entry_of_node(child.node).await;
                }
                let (found, _pin) = self.object(parent, Errno::NOENT).await?;
                let filesystem = &found.volume.filesystem;
                if name == CONTROL_NAME && parent == found.slot.root && found.volume.has_control() {
                    let control = Place::Control { slot: found.slot.index }.node().ok_or(Errno::NOENT)?;
                    return self.entry_of_node(control).await;
                }
                let object = filesystem.lookup(found.object, name).await;
                let object = object.map_err(|error| self.zpl("look-up", parent, &error))?;
                let attributes = filesystem.attributes(object).await.map_err(|error| {
                    // The name is there, so an object that is not is damage and not absence.
                    let errno = if errno(&error) == Errno::NOENT { Errno::UCLEAN } else { errno(&error) };
                    self.failed("look-up", parent, &error, errno)
                })?;
                self.entry(&found.slot, &found.volume, &attributes)
            }
        }
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.shared.files.forget(node);
        if let Place::Object { slot, .. } = Place::of(node) {
            self.shared.slots.forget(slot, count);
        }
    }

    async fn getattr(&self, node: NodeId) -> Result<Stat, Errno> {
        Ok(self.entry_of_node(node).await?.stat)
    }

    async fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let (found, _pin) = self.object(node, Errno::INVAL).await?;
        let target = found.volume.filesystem.read_link(found.object).await;
        target.map_err(|error| self.zpl("reading a link", node, &error))
    }

    async fn open(&self, node: NodeId, write: bool) -> Result<(), Errno> {
        if write {
            return Err(Errno::ROFS);
        }
        self.open_file(node).await.map(drop)
    }

    async fn read(&self, node: NodeId, offset_bytes: u64, len: u32) -> Result<Block, Errno> {
        let file = self.open_file(node).await?;
        let len = len.min(READ_MAX_BYTES);
        if let Some((start, end)) = file.advance(offset_bytes, u64::from(len)) {
            self.read_ahead(Arc::clone(&file), start, end);
        }
        let _room = self.shared.reading.acquire(u64::from(len)).await;
        let read = file.file.read(offset_bytes, len as usize).await;
        read.map_err(|error| self.zpl("reading", node, &error))
    }

    async fn readdir(
        &self,
        node: NodeId,
        position: u64,
        with_entries: bool,
        count_max: usize,
    ) -> Result<Vec<DirItem>, Errno> {
        let place = Place::of(node);
        let at = Position::of(position);
        let mut items = Vec::new();
        if let Position::Head(position) = at {
            items = self.head_items(node, position).await?;
            match place {
                Place::Control { slot } => {
                    for (next, name, place) in [
                        (AFTER_CONTROL + 1, SNAPSHOTS_NAME, Place::Snapshots { slot }),
                        (AFTER_CONTROL + 2, SHARES_NAME, Place::Shares { slot }),
                    ] {
                        let Some(node) = place.node().filter(|_| position < next) else { continue };
                        let kind = Some(FileKind::Directory);
                        let name = name.to_vec();
                        items.push(DirItem { name, ino: node.0, kind, next, entry: None, pin: Pin::NONE });
                    }
                }
                Place::Snapshots { slot } => items.extend(self.snapshot_items(slot, position, count_max).await?),
                _ => {
                    if let Some(graft) = self.shared.grafts.at(node) {
                        items.extend(self.added_items(node, graft, position).await?);
                    }
                }
            }
            items.truncate(count_max.max(1));
        }
        let has_own = matches!(place, Place::Root { .. } | Place::Object { .. } | Place::SnapshotRoot { .. });
        if has_own && items.len() < count_max {
            items.extend(self.own_items(node, at, count_max - items.len(), with_entries).await?);
        }
        Ok(items)
    }

    async fn getxattr(&self, node: NodeId, name: &[u8], caller: Caller) -> Result<Vec<u8>, Errno> {
        let Some((found, _pin)) = self.find(node).await? else { return Err(Errno::NODATA) };
        // The caller of a `trusted.` attribute has been checked by the kernel.
        if !is_shown(name, &found.volume, Caller { uid: 0, ..caller }) {
            return Err(Errno::NODATA);
        }
        let value = found.volume.filesystem.xattr(found.object, name).await;
        value.map_err(|error| self.zpl("an extended attribute", node, &error))
    }

    async fn listxattr(&self, node: NodeId, caller: Caller) -> Result<Vec<u8>, Errno> {
        let mut names = Vec::new();
        // A name with a zero in it cannot be told to the client.
        for name in self.xattrs(node, caller).await?.keys().filter(|name| !name.contains(&0)) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    async fn statfs(&self, node: NodeId) -> Result<SpaceFigures, Errno> {
        let slot = match Place::of(node) {
            Place::SnapshotRoot { slot, objset } => self.snapshot_slot(slot, objset).await?.0,
            Place::Root { slot }
            | Place::Object { slot, .. }
            | Place::Control { slot }
            | Place::Shares { slot }
            | Place::Snapshots { slot } => self.slot(slot)?,
            Place::Virtual { .. } => self.slot(0)?,
        };
        let volume = self.volume(&slot).await?;
        let figures = self.shared.space.figures(&self.shared.pool, &volume).await;
        figures.map_err(|error| self.failed("statfs", node, &error, Errno::IO))
    }

    async fn seek(&self, node: NodeId, offset_bytes: u64, to: Seek) -> Result<u64, Errno> {
        let file = self.open_file(node).await?;
        let found = match to {
            Seek::Data => file.file.next_data(offset_bytes).await,
            Seek::Hole => file.file.next_hole(offset_bytes).await,
        };
        found.map_err(|error| self.zpl("seeking", node, &error))?.ok_or(Errno::NXIO)
    }

    async fn access(&self, node: NodeId, mask: u32) -> Result<(), Errno> {
        const WRITE: u32 = 2;
        self.getattr(node).await?;
        if mask & WRITE != 0 { Err(Errno::ROFS) } else { Ok(()) }
    }

    async fn inode_flags(&self, node: NodeId) -> Result<InodeFlags, Errno> {
        let (found, _pin) = self.object(node, Errno::NOTTY).await?;
        let attributes = found.volume.filesystem.attributes(found.object).await;
        let attributes = attributes.map_err(|error| self.zpl("flags", node, &error))?;
        Ok(InodeFlags {
            bits: attributes.flags.linux_bits(),
            project: attributes.project.and_then(|project| u32::try_from(project).ok()).unwrap_or(0),
            inherits_project: attributes.flags.is_project_inherited(),
        })
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree of {:?}", self.shared.pool.name())
    }
}
