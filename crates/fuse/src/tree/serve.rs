//! The client's requests.

use std::sync::Arc;
use std::time::Duration;

use cenote_taskq::Block;
use cenote_zpl::AccessTimes;

use super::snapdir::snapshots_of;
use super::{Found, Tree};
use crate::layout::CONTROL_NAME;
use crate::listing::Position;
use crate::live::{Live, errno};
use crate::node::Place;
use crate::server::{
    Caching, Caller, Changed, Client, DirItem, Entry, Errno, FileServer, InodeFlags, NewFile, NodeId, Opened, Rename,
    Seek, SetAttributes, SpaceFigures, Stat, Writer,
};
use crate::zfsvfs::Zfsvfs;

/// How long the kernel keeps what it is told of a pool that is open read-only, where nothing changes. Chosen by eye: longer than anyone
/// keeps a mount.
const FOUND_FOR: Duration = Duration::from_secs(30 * 86_400);
/// How long the kernel keeps what it is told of a pool in use: files are changed through it alone, and of datasets that come and go it
/// is told, so any time would do. A file's space on disk is kept for a shorter time while it is about to change
/// ([`Stat::is_passing`]).
const KEPT: Duration = Duration::from_secs(3600);
/// The largest read that is served at once; a client never asks for more than its own limit, which is less.
const READ_MAX_BYTES: u32 = 16 << 20;

impl Tree {
    /// A node that is to be changed, and what that takes.
    async fn changeable(&self, node: NodeId) -> Result<Found<'_>, Errno> {
        let found = self.object(node, Errno::ROFS).await?;
        found.zfsvfs.changeable()?;
        Ok(found)
    }

    /// A directory in which a name is to be changed. The names of what stands there by the mount's doing are in use; `errno` says so.
    async fn directory(&self, node: NodeId, name: &[u8], errno: Errno) -> Result<Found<'_>, Errno> {
        let found = self.changeable(node).await?;
        let is_control = name == CONTROL_NAME && node == found.slot.root && found.zfsvfs.has_control();
        let is_graft = || self.graft_at(node).is_some_and(|graft| graft.children.contains_key(name));
        if is_control || is_graft() { Err(errno) } else { Ok(found) }
    }

    /// Whether two nodes belong to the same dataset.
    fn is_one_dataset(one: NodeId, other: NodeId) -> bool {
        Place::nested_slot(one) == Place::nested_slot(other)
    }

    /// The one dataset of two nodes.
    fn same<'a>(one: &'a Found<'_>, other: &Found<'_>) -> Result<&'a Live, Errno> {
        if one.slot.index != other.slot.index {
            return Err(Errno::XDEV);
        }
        one.live()
    }
}

impl FileServer for Tree {
    fn caching(&self) -> Caching {
        let is_immutable = self.shared.source.is_frozen();
        let kept = if is_immutable { FOUND_FOR } else { KEPT };
        Caching { found: kept, absent: kept, is_immutable }
    }

    fn connected(&self, client: Arc<dyn Client>) {
        let _ = self.shared.client.set(client);
    }

    fn is_writable(&self) -> bool {
        !self.shared.source.is_frozen()
    }

    async fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        if name == b"." || name == b".." {
            return self.by_number(parent, name == b"..").await;
        }
        match Place::of(parent) {
            Place::Control { slot } => self.lookup_in_control(slot, name).await,
            Place::Snapshots { slot } => self.lookup_snapshot(slot, name).await,
            Place::Shares { .. } => Err(Errno::NOENT),
            Place::Root { .. } | Place::Object { .. } | Place::SnapshotRoot { .. } | Place::Virtual { .. } => {
                let child = self.graft_at(parent).and_then(|graft| graft.children.get(name).copied());
                if let Some(child) = child {
                    return self.entry_of_node(child).await;
                }
                let found = self.object(parent, Errno::NOENT).await?;
                if name == CONTROL_NAME && parent == found.slot.root && found.zfsvfs.has_control() {
                    let control = Place::Control { slot: found.slot.index }.node().ok_or(Errno::NOENT)?;
                    return self.entry_of_node(control).await;
                }
                let attributes = found.zfsvfs.filesystem.find(found.object, name).await.map_err(|error| {
                    // A name that is there and leads to no object is damage, not absence.
                    let is_damage = errno(&error) == Errno::NOENT && !matches!(error, cenote_zpl::ZplError::NoEntry);
                    self.failed("look-up", parent, &error, if is_damage { Errno::UCLEAN } else { errno(&error) })
                })?;
                self.entry(&found, &attributes)
            }
        }
    }

    /// Snapshots come by commands, and which names were asked for before is not known.
    fn keeps_absent(&self, parent: NodeId) -> bool {
        self.shared.source.is_frozen() || !matches!(Place::of(parent), Place::Snapshots { .. })
    }

    /// The kernel forgets all it has counted of a node at once, when it has no use for it any more.
    fn forget(&self, node: NodeId, count: u64) {
        let forget = |zfsvfs: Option<&Zfsvfs>| {
            if let Place::Object { object, .. } = Place::of(node) {
                match zfsvfs.and_then(Zfsvfs::as_live) {
                    Some(live) => live.forgotten(object),
                    None => self.shared.files.forget(node),
                }
            }
        };
        match Place::nested_slot(node) {
            None => forget(self.shared.slot.opened().as_deref()),
            Some(index) => {
                let zfsvfs = self.shared.slots.at(index).and_then(|slot| slot.opened());
                forget(zfsvfs.as_deref());
                drop(zfsvfs);
                self.shared.slots.forget(index, count);
            }
        }
    }

    async fn getattr(&self, node: NodeId) -> Result<Stat, Errno> {
        let Some(found) = self.find(node).await? else { return self.made_stat(node).await };
        let attributes = found.zfsvfs.filesystem.attributes(found.object).await;
        let attributes = attributes.map_err(|error| self.stale(&found, "attributes", node, &error))?;
        let (_, ino) = self.node_of(&found, attributes.object)?;
        Ok(self.stat(&found, node, &attributes, ino))
    }

    async fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let found = self.object(node, Errno::INVAL).await?;
        let target = found.zfsvfs.filesystem.read_link(found.object).await;
        target.map_err(|error| self.stale(&found, "reading a link", node, &error))
    }

    async fn open(&self, node: NodeId, write: bool) -> Result<Opened, Errno> {
        let found = self.object(node, if write { Errno::ROFS } else { Errno::ISDIR }).await?;
        if write {
            found.zfsvfs.changeable()?;
        }
        match found.zfsvfs.as_live() {
            Some(live) => {
                let opened = live.open_file(found.object, !write).await;
                let is_access = opened.map_err(|error| self.stale(&found, "opening", node, &error))?;
                let access_times = found.zfsvfs.filesystem.options().access_times;
                Ok(Opened { keeps_pages: access_times != AccessTimes::Always, is_access })
            }
            None => {
                self.open_file(node).await?;
                if found.slot.dataset().is_snapshot() {
                    found.slot.file_opened();
                }
                Ok(Opened { keeps_pages: true, is_access: false })
            }
        }
    }

    async fn release(&self, node: NodeId) {
        let slot = Place::nested_slot(node).and_then(|index| self.shared.slots.at(index));
        if let Some(slot) = slot.filter(|slot| slot.dataset().is_snapshot()) {
            return slot.file_closed();
        }
        // By the number alone: the file may be stale.
        let Place::Object { slot, object } = Place::of(node) else { return };
        if let Ok(at) = self.at(slot).await
            && let Some(live) = at.zfsvfs.as_live()
        {
            live.release(object).await;
        }
    }

    async fn read(&self, node: NodeId, offset_bytes: u64, len: u32) -> Result<Block, Errno> {
        let (file, _share) = self.open_file(node).await?;
        let len = len.min(READ_MAX_BYTES);
        let _room = self.shared.reading.acquire(u64::from(len)).await;
        let read = file.read(offset_bytes, len as usize).await;
        read.map_err(|error| self.zpl("reading", node, &error))
    }

    async fn readdir(
        &self,
        node: NodeId,
        position: u64,
        with_entries: bool,
        count_max: usize,
    ) -> Result<Vec<DirItem>, Errno> {
        let at = Position::of(position);
        let mut items = match at {
            Position::Head(position) => self.items_before(node, position, count_max).await?,
            Position::Zap(_) => Vec::new(),
        };
        let has_own = matches!(Place::of(node), Place::Root { .. } | Place::Object { .. } | Place::SnapshotRoot { .. });
        if has_own && items.len() < count_max {
            items.extend(self.own_items(node, at, count_max - items.len(), with_entries).await?);
        }
        Ok(items)
    }

    async fn getxattr(&self, node: NodeId, name: &[u8], _caller: Caller) -> Result<Vec<u8>, Errno> {
        let Some(found) = self.find(node).await? else { return Err(Errno::NODATA) };
        if !found.zfsvfs.has_xattr(name) {
            return Err(Zfsvfs::no_xattr(name));
        }
        let value = found.zfsvfs.filesystem.xattr(found.object, name).await;
        value.map_err(|error| self.zpl("an extended attribute", node, &error))
    }

    async fn listxattr(&self, node: NodeId, caller: Caller) -> Result<Vec<u8>, Errno> {
        let Some(found) = self.find(node).await? else { return Ok(Vec::new()) };
        let names = found.zfsvfs.filesystem.xattr_names(found.object).await;
        let names = names.map_err(|error| self.zpl("extended attributes", node, &error))?;
        let listed = names.iter().filter(|name| found.zfsvfs.lists_xattr(name, caller));
        Ok(listed.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    async fn statfs(&self, node: NodeId) -> Result<SpaceFigures, Errno> {
        let at = match Place::of(node) {
            Place::SnapshotRoot { slot, objset } => Box::pin(self.at_snapshot(slot, objset)).await?,
            Place::Root { slot }
            | Place::Object { slot, .. }
            | Place::Control { slot }
            | Place::Shares { slot }
            | Place::Snapshots { slot } => self.at(slot).await?,
            Place::Virtual { .. } => self.top().await?,
        };
        let figures = self.shared.source.space(&at.slot.dataset(), &at.zfsvfs).await;
        figures.map_err(|error| self.failed("statfs", node, &error, Errno::IO))
    }

    async fn seek(&self, node: NodeId, offset_bytes: u64, to: Seek) -> Result<u64, Errno> {
        let (file, _share) = self.open_file(node).await?;
        let found = match to {
            Seek::Data => file.next_data(offset_bytes).await,
            Seek::Hole => file.next_hole(offset_bytes).await,
        };
        found.map_err(|error| self.zpl("seeking", node, &error))?.ok_or(Errno::NXIO)
    }

    async fn access(&self, node: NodeId, mask: u32) -> Result<(), Errno> {
        const WRITE: u32 = 2;
        match self.find(node).await? {
            None => {
                self.made_stat(node).await?;
                if mask & WRITE != 0 && snapshots_of(node).is_none() { Err(Errno::ROFS) } else { Ok(()) }
            }
            Some(found) => {
                let attributes = found.zfsvfs.filesystem.attributes(found.object).await;
                attributes.map_err(|error| self.zpl("attributes", node, &error))?;
                if mask & WRITE != 0 { found.zfsvfs.changeable().map(drop) } else { Ok(()) }
            }
        }
    }

    async fn inode_flags(&self, node: NodeId) -> Result<InodeFlags, Errno> {
        let found = self.object(node, Errno::NOTTY).await?;
        let attributes = found.zfsvfs.filesystem.attributes(found.object).await;
        let attributes = attributes.map_err(|error| self.zpl("flags", node, &error))?;
        Ok(InodeFlags {
            bits: attributes.flags.linux_bits(),
            project: attributes.project.and_then(|project| u32::try_from(project).ok()).unwrap_or(0),
            inherits_project: attributes.flags.is_project_inherited(),
        })
    }

    async fn create(&self, parent: NodeId, name: &[u8], new: &NewFile, open: bool) -> Result<Entry, Errno> {
        if let Some(slot) = snapshots_of(parent) {
            return self.make_snapshot(slot, name, new).await;
        }
        let found = self.directory(parent, name, Errno::EXIST).await?;
        let attributes = found.live()?.create(found.object, name, new, open).await?;
        self.entry(&found, &attributes)
    }

    async fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let directory = self.directory(parent, name, Errno::EXIST).await?;
        let found = match Self::is_one_dataset(node, parent) {
            true => self.object(node, Errno::XDEV).await?,
            // The reference to one dataset is dropped before waiting for the other: either may be suspended, which waits for references.
            false => {
                drop(directory);
                self.object(node, Errno::XDEV).await?;
                return Err(Errno::XDEV);
            }
        };
        let attributes = Self::same(&directory, &found)?.link(found.object, directory.object, name).await?;
        self.entry(&directory, &attributes)
    }

    async fn remove(&self, parent: NodeId, name: &[u8], directory: bool, caller: Caller) -> Result<(), Errno> {
        if let Some(slot) = snapshots_of(parent).filter(|_| directory) {
            return self.remove_snapshot(slot, name, caller).await;
        }
        let found = self.directory(parent, name, Errno::BUSY).await?;
        found.live()?.remove(found.object, name, directory).await
    }

    async fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: Rename,
        caller: Caller,
    ) -> Result<(), Errno> {
        match (snapshots_of(from.0), snapshots_of(to.0)) {
            (Some(one), Some(other)) if one == other => {
                return self.rename_snapshot(one, from.1, to.1, how, caller).await;
            }
            (None, None) => {}
            // A rename cannot move a snapshot out of its dataset, or make one of something else.
            _ => return Err(Errno::INVAL),
        }
        let there = self.directory(from.0, from.1, Errno::BUSY).await?;
        if !Self::is_one_dataset(from.0, to.0) {
            drop(there);
            self.directory(to.0, to.1, Errno::BUSY).await?;
            return Err(Errno::XDEV);
        }
        let here = self.directory(to.0, to.1, Errno::BUSY).await?;
        Self::same(&there, &here)?.rename((there.object, from.1), (here.object, to.1), how).await
    }

    async fn write(&self, node: NodeId, offset_bytes: u64, data: &[u8], writer: Writer) -> Result<Changed, Errno> {
        let found = self.changeable(node).await?;
        found.live()?.write(found.object, offset_bytes, data, writer).await
    }

    async fn setattr(&self, node: NodeId, set: &SetAttributes) -> Result<Stat, Errno> {
        let found = self.changeable(node).await?;
        let attributes = found.live()?.set_attributes(found.object, set).await;
        // The request names a node, so a removed file is ESTALE: see `stale`.
        let attributes = attributes.map_err(|errno| if errno == Errno::NOENT { Errno::STALE } else { errno })?;
        let (_, ino) = self.node_of(&found, attributes.object)?;
        Ok(self.stat(&found, node, &attributes, ino))
    }

    async fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], flags: i32, caller: Caller) -> Result<(), Errno> {
        let found = self.changeable(node).await?;
        if !found.zfsvfs.has_xattr(name) {
            return Err(Errno::OPNOTSUPP);
        }
        found.live()?.set_xattr(found.object, name, value, flags, caller).await
    }

    async fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let found = self.changeable(node).await?;
        if !found.zfsvfs.has_xattr(name) {
            return Err(Errno::OPNOTSUPP);
        }
        found.live()?.remove_xattr(found.object, name).await
    }

    async fn fallocate(
        &self,
        node: NodeId,
        offset_bytes: u64,
        len_bytes: u64,
        mode: i32,
        writer: Writer,
    ) -> Result<Changed, Errno> {
        let found = self.changeable(node).await?;
        found.live()?.allocate(found.object, offset_bytes, len_bytes, mode, writer).await
    }

    async fn fsync(&self, node: NodeId) -> Result<(), Errno> {
        match self.find(node).await? {
            Some(found) => match found.zfsvfs.as_live() {
                Some(live) => live.sync(found.object).await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}
