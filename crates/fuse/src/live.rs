//! One dataset that is changed through its mount, and through nothing else meanwhile.
//!
//! What changes the kernel has asked for itself, so it may keep names, attributes and data as it does for a disk of its own.
//! A node's number is its object's; the root's is 1. A file that is open is held, so that it outlives its name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_dmu::tx::{Durable, TxError};
use cenote_format::ids::ObjectId;
use cenote_spa::LiveHead;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, Class, Join};
use cenote_zpl::{
    Allocation, AttributeChange, Attributes, Cursor, File, FileKind, FileSystem, FileSystemOptions, NewNode,
    Properties, RenameMode, Time, XattrSet, ZplError,
};

use crate::groups;
use crate::listing::{AFTER_ABOVE, AFTER_SELF, Position};
use crate::server::{
    Caching, Caller, Changed, DirItem, Entry, Errno, FileServer, InodeFlags, NewFile, NodeId, Pin, Rename, Seek,
    SetAttributes, SpaceFigures, Stat, Writer,
};
use crate::space::figures_of;
use crate::tree::Report;

/// How long the kernel keeps attributes: nobody else changes anything, so any time would do. A file's space on disk is kept
/// for a shorter time while it is about to change ([`Stat::is_passing`]).
const KEPT: Duration = Duration::from_secs(3600);
/// Pause before freeing is tried again where it failed.
const REAP_AGAIN: Duration = Duration::from_secs(1);
/// What names of POSIX access control lists begin with.
const POSIX_ACLS: &[u8] = b"system.posix_acl_";
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const SETGID: u32 = 0o2000;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;

/// A dataset that is changed. Cheap to clone.
#[derive(Clone)]
pub struct LiveServer {
    shared: Arc<Shared>,
}

struct Shared {
    fs: FileSystem,
    head: LiveHead,
    durable: Arc<Durable>,
    has_xattrs: AtomicBool,
    /// Open files, with how often.
    open: Mutex<BTreeMap<ObjectId, (Arc<File>, u64)>>,
    /// Frees files without a name and without a user, in the background.
    reaper: Mutex<Option<Join<()>>>,
    report: Report,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.fs.stop_reaping();
    }
}

/// Frees the delete queue, until the file system is closed.
async fn reap(fs: FileSystem, report: Report) {
    let handle = fs.objset().dmu().handle().clone();
    let mut said = None;
    while fs.garbage().await {
        match fs.reap().await {
            Ok(_) => said = None,
            Err(error) => {
                let error = format!("freeing what was removed: {error}");
                if said.as_ref() != Some(&error) {
                    report(&error);
                    said = Some(error);
                }
                // A full pool has space again some time; one that is not written any more is closed soon.
                handle.sleep(REAP_AGAIN).await;
            }
        }
    }
}

impl LiveServer {
    /// Serves a dataset of a pool that is written in the background. Files that its last user left in the delete queue are freed
    /// meanwhile.
    ///
    /// # Errors
    /// It is no file system, or one that cannot be changed yet.
    pub async fn open(head: LiveHead, options: Properties, report: Report) -> Result<Self, ZplError> {
        let durable = Arc::new(Durable::new(Arc::new(head.clone()), options.sync));
        let fs = FileSystem::open_head(head.objset(), durable.clone(), options.files).await?.keeping_until_forgotten();
        let reaper = head.pool().handle().spawn(Class::Background, reap(fs.clone(), report.clone()));
        let (open, has_xattrs) = (Mutex::new(BTreeMap::new()), AtomicBool::new(options.has_xattrs));
        let reaper = Mutex::new(Some(reaper));
        Ok(Self { shared: Arc::new(Shared { fs, head, durable, has_xattrs, open, reaper, report }) })
    }

    /// Obeys changed properties from the next request on. The kernel learns only at a mount whether there are POSIX access control
    /// lists, so `acltype` counts from the next mount on; `sync` likewise.
    pub fn set_options(&self, options: Properties) {
        let has_posix_acls = self.fs().options().has_posix_acls;
        self.fs().set_options(FileSystemOptions { has_posix_acls, ..options.files });
        self.shared.has_xattrs.store(options.has_xattrs, Ordering::Relaxed);
    }

    /// Ends the service, when no request comes any more: lets go of files that are still open and frees a little of the delete queue;
    /// the rest is left to the next user.
    pub(crate) async fn close(&self) {
        let open = std::mem::take(&mut *self.shared.open.lock());
        drop(open);
        self.shared.fs.all_forgotten();
        self.shared.fs.stop_reaping();
        let reaper = self.shared.reaper.lock().take();
        if let Some(reaper) = reaper {
            // If it panicked the runtime has said so, and the queue is on disk.
            drop(reaper.await);
        }
        if let Err(error) = self.shared.fs.reap_little().await {
            self.failed(error);
        }
    }

    fn fs(&self) -> &FileSystem {
        &self.shared.fs
    }

    fn object(&self, node: NodeId) -> ObjectId {
        if node == NodeId::ROOT { self.fs().root() } else { ObjectId(node.0) }
    }

    fn node(&self, object: ObjectId) -> NodeId {
        if object == self.fs().root() { NodeId::ROOT } else { NodeId(object.0) }
    }

    /// The errno, once the cause is reported where that says more.
    fn failed(&self, error: ZplError) -> Errno {
        let errno = Errno::from_raw_os_error(error.errno() as i32);
        if matches!(errno, Errno::IO | Errno::BADE) {
            (self.shared.report)(&error.to_string());
        }
        errno
    }

    fn entry(&self, attributes: &Attributes) -> Entry {
        Entry {
            node: self.node(attributes.object),
            generation: attributes.generation,
            stat: self.stat(attributes),
            pin: Pin::NONE,
        }
    }

    /// What `stat` shows. The only block of a file grows with it, up to a record: a program that writes by this size is not to begin
    /// with sectors, and takes it for the size of holes, which it is in a file that is longer.
    fn stat(&self, attributes: &Attributes) -> Stat {
        let block = u32::try_from(attributes.block_size_bytes).unwrap_or(u32::MAX);
        let may_grow = attributes.kind == FileKind::File && attributes.size_bytes <= attributes.block_size_bytes;
        Stat {
            ino: attributes.object.0,
            kind: attributes.kind,
            permissions: attributes.permissions,
            link_count: attributes.link_count,
            uid: attributes.uid,
            gid: attributes.gid,
            device: attributes.device,
            size_bytes: attributes.size_bytes,
            blocks: attributes.blocks,
            is_passing: attributes.is_changed,
            block_size_bytes: if may_grow { block.max(self.fs().options().record_bytes) } else { block },
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            created: attributes.created,
        }
    }

    /// The file as it was opened, or for the moment.
    async fn file(&self, node: NodeId) -> Result<Arc<File>, Errno> {
        let id = self.object(node);
        if let Some((file, _)) = self.shared.open.lock().get(&id) {
            return Ok(file.clone());
        }
        self.fs().open_file(id).await.map(Arc::new).map_err(|error| self.failed(error))
    }

    fn keep(&self, file: File) {
        let mut open = self.shared.open.lock();
        let id = file.id();
        open.entry(id).or_insert_with(|| (Arc::new(file), 0)).1 += 1;
    }

    fn hides(&self, name: &[u8]) -> bool {
        match name {
            name if name.starts_with(POSIX_ACLS) => !self.fs().options().has_posix_acls,
            name if name.starts_with(b"user.") || name.starts_with(b"trusted.") => {
                !self.shared.has_xattrs.load(Ordering::Relaxed)
            }
            _ => false,
        }
    }

    /// The permission bits that are left where set-ids go; nothing where nothing changes. The kernel has changes of one file's
    /// attributes and content follow each other, so they are the same still when they are put.
    async fn dropped_set_ids(&self, node: NodeId) -> Result<Option<u32>, Errno> {
        let found = self.fs().attributes(self.object(node)).await.map_err(|error| self.failed(error))?;
        let left = without_set_ids(found.permissions);
        Ok((found.kind == FileKind::File && left != found.permissions).then_some(left))
    }

    /// Has a file lose set-user-id and set-group-id before it is written by a writer who may not keep them.
    async fn drop_set_ids(&self, node: NodeId, writer: Writer) -> Result<Changed, Errno> {
        if !writer.drops_set_ids {
            return Ok(Changed::default());
        }
        let Some(left) = self.dropped_set_ids(node).await? else { return Ok(Changed::default()) };
        let change = AttributeChange { permissions: Some(left), ..AttributeChange::default() };
        let changed = self.fs().set_attributes(self.object(node), &change).await;
        self.changed(changed).await.map(|_| Changed { mode: true })
    }

    /// True where a new access control list takes set-group-id away: from a file of a group that the caller is not in, as a new mode
    /// does. The kernel sees to modes itself; of a list it tells nobody but servers that know a later form of its message.
    async fn loses_setgid(&self, object: ObjectId, caller: Caller) -> Result<bool, Errno> {
        if caller.uid == 0 {
            return Ok(false);
        }
        let found = self.fs().attributes(object).await.map_err(|error| self.failed(error))?;
        if found.permissions & SETGID == 0 {
            return Ok(false);
        }
        let handle = self.shared.head.pool().handle();
        let is_member = handle.spawn_blocking(move || groups::is_member(caller, found.gid)).await;
        Ok(!is_member.unwrap_or(false))
    }

    /// What came of a change, once it is as durable as it has to be.
    async fn changed<T>(&self, result: Result<T, ZplError>) -> Result<T, Errno> {
        let made = result.map_err(|error| self.failed(error))?;
        self.shared.durable.settle(false).await.map_err(|error| self.lost(&error))?;
        Ok(made)
    }

    /// A txg could not be written.
    fn lost(&self, error: &TxError) -> Errno {
        (self.shared.report)(&error.to_string());
        Errno::IO
    }
}

/// Permission bits without what a writer takes away. A set-group-id that the group cannot execute by is no right.
const fn without_set_ids(permissions: u32) -> u32 {
    let set_gid = if permissions & 0o010 != 0 { 0o2000 } else { 0 };
    permissions & !(0o4000 | set_gid)
}

fn new_node(new: &NewFile) -> NewNode {
    NewNode {
        mode: new.mode,
        umask: new.umask,
        uid: new.caller.uid,
        gid: new.caller.gid,
        device: new.device,
        target: new.target.clone(),
    }
}

impl FileServer for LiveServer {
    fn caching(&self) -> Caching {
        Caching { found: KEPT, absent: KEPT, is_immutable: false }
    }

    fn is_writable(&self) -> bool {
        true
    }

    async fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let found = match name {
            b"." | b".." => self.fs().find_by_number(self.object(parent), name == b"..").await,
            name => self.fs().find(self.object(parent), name).await,
        };
        found.map(|attributes| self.entry(&attributes)).map_err(|error| self.failed(error))
    }

    /// The kernel forgets all it has counted of a node at once, when it has no use for it any more.
    fn forget(&self, node: NodeId, _count: u64) {
        self.fs().forgotten(self.object(node));
    }

    async fn getattr(&self, node: NodeId) -> Result<Stat, Errno> {
        let found = self.fs().attributes(self.object(node)).await;
        found.map(|attributes| self.stat(&attributes)).map_err(|error| self.failed(error))
    }

    async fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.fs().read_link(self.object(node)).await.map_err(|error| self.failed(error))
    }

    async fn open(&self, node: NodeId, _write: bool) -> Result<(), Errno> {
        let file = self.fs().open_file(self.object(node)).await.map_err(|error| self.failed(error))?;
        self.keep(file);
        Ok(())
    }

    async fn release(&self, node: NodeId) {
        let last = {
            let mut open = self.shared.open.lock();
            let id = self.object(node);
            match open.get_mut(&id) {
                Some((_, count)) if *count > 1 => {
                    *count -= 1;
                    None
                }
                Some(_) => open.remove(&id),
                None => None,
            }
        };
        if let Some((file, _)) = last {
            // A pool that is full, or is no longer written, does not keep anyone from reading.
            let _ = file.settle_access().await;
            drop(file);
        }
    }

    async fn read(&self, node: NodeId, offset_bytes: u64, len: u32) -> Result<Block, Errno> {
        let file = self.file(node).await?;
        file.read(offset_bytes, len as usize).await.map_err(|error| self.failed(error))
    }

    async fn readdir(
        &self,
        node: NodeId,
        position: u64,
        with_entries: bool,
        count_max: usize,
    ) -> Result<Vec<DirItem>, Errno> {
        let directory = self.object(node);
        let mut items = Vec::new();
        let own = |name: &[u8], id: ObjectId, next| DirItem {
            name: name.to_vec(),
            ino: id.0,
            kind: Some(FileKind::Directory),
            next,
            entry: None,
            pin: Pin::NONE,
        };
        if position < AFTER_ABOVE {
            let attributes = self.fs().attributes(directory).await.map_err(|error| self.failed(error))?;
            if position < AFTER_SELF {
                items.push(own(b".", directory, AFTER_SELF));
            }
            items.push(own(b"..", attributes.parent, AFTER_ABOVE));
        }
        let cursor = match Position::of(position) {
            Position::Zap(cursor) => cursor,
            Position::Head(_) => Cursor::START,
        };
        let left = count_max.saturating_sub(items.len());
        let found = self.fs().list(directory, cursor, left).await.map_err(|error| self.failed(error))?;
        for entry in found {
            let next = Position::number(entry.next).ok_or(Errno::BADE)?;
            let attributes = match with_entries {
                // What was removed meanwhile is listed without attributes, and found absent when it is asked for.
                true => self.fs().attributes(entry.object).await.ok(),
                false => None,
            };
            items.push(DirItem {
                name: entry.name,
                ino: entry.object.0,
                kind: entry.kind,
                next,
                entry: attributes.map(|attributes| self.entry(&attributes)),
                pin: Pin::NONE,
            });
        }
        Ok(items)
    }

    async fn getxattr(&self, node: NodeId, name: &[u8], _caller: Caller) -> Result<Vec<u8>, Errno> {
        if self.hides(name) {
            // The kernel asks for the list of a file that is not the caller's before it lets anyone open it, and takes any other
            // error for the answer.
            return Err(if name.starts_with(POSIX_ACLS) { Errno::NODATA } else { Errno::OPNOTSUPP });
        }
        self.fs().xattr(self.object(node), name).await.map_err(|error| self.failed(error))
    }

    async fn listxattr(&self, node: NodeId, caller: Caller) -> Result<Vec<u8>, Errno> {
        let names = self.fs().xattr_names(self.object(node)).await.map_err(|error| self.failed(error))?;
        let may_see = |name: &&Vec<u8>| !self.hides(name) && (caller.uid == 0 || !name.starts_with(b"trusted."));
        Ok(names.iter().filter(may_see).flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    async fn statfs(&self, _node: NodeId) -> Result<SpaceFigures, Errno> {
        Ok(figures_of(&self.shared.head.space(), self.fs().options().record_bytes))
    }

    async fn seek(&self, node: NodeId, offset_bytes: u64, to: Seek) -> Result<u64, Errno> {
        let file = self.file(node).await?;
        let found = match to {
            Seek::Data => file.next_data(offset_bytes).await,
            Seek::Hole => file.next_hole(offset_bytes).await,
        };
        found.map_err(|error| self.failed(error))?.ok_or(Errno::NXIO)
    }

    async fn access(&self, _node: NodeId, _mask: u32) -> Result<(), Errno> {
        Ok(())
    }

    async fn inode_flags(&self, node: NodeId) -> Result<InodeFlags, Errno> {
        let found = self.fs().attributes(self.object(node)).await.map_err(|error| self.failed(error))?;
        Ok(InodeFlags {
            bits: found.flags.linux_bits(),
            project: found.project.and_then(|project| u32::try_from(project).ok()).unwrap_or(0),
            inherits_project: found.flags.is_project_inherited(),
        })
    }

    async fn create(&self, parent: NodeId, name: &[u8], new: &NewFile, open: bool) -> Result<Entry, Errno> {
        let (parent, new) = (self.object(parent), new_node(new));
        if !open {
            let made = self.fs().create(parent, name, &new).await;
            return self.changed(made).await.map(|attributes| self.entry(&attributes));
        }
        let made = self.fs().create_file(parent, name, &new).await;
        let (file, attributes) = self.changed(made).await?;
        self.keep(file);
        Ok(self.entry(&attributes))
    }

    async fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let made = self.fs().link(self.object(node), self.object(parent), name).await;
        self.changed(made).await.map(|attributes| self.entry(&attributes))
    }

    async fn remove(&self, parent: NodeId, name: &[u8], directory: bool) -> Result<(), Errno> {
        let parent = self.object(parent);
        let removed =
            if directory { self.fs().rmdir(parent, name).await } else { self.fs().unlink(parent, name).await };
        self.changed(removed).await
    }

    async fn rename(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), how: Rename) -> Result<(), Errno> {
        let mode = match how {
            Rename::Replace => RenameMode::Replace,
            Rename::NoReplace => RenameMode::NoReplace,
            Rename::Exchange => RenameMode::Exchange,
        };
        let renamed = self.fs().rename(self.object(from.0), from.1, self.object(to.0), to.1, mode).await;
        self.changed(renamed).await
    }

    async fn write(&self, node: NodeId, offset_bytes: u64, data: &[u8], writer: Writer) -> Result<Changed, Errno> {
        let beside = self.drop_set_ids(node, writer).await?;
        let file = self.file(node).await?;
        let written = file.write(offset_bytes, data).await;
        self.changed(written).await.map(|()| beside)
    }

    async fn setattr(&self, node: NodeId, set: &SetAttributes) -> Result<Stat, Errno> {
        let now = self.shared.head.pool().handle().unix_time();
        let now = Time { seconds: now.as_secs().cast_signed(), nanoseconds: u64::from(now.subsec_nanos()) };
        let drops = set.uid.is_some() || set.gid.is_some() || set.size_bytes.is_some() && set.drops_set_ids;
        let permissions = match set.permissions {
            None if drops => self.dropped_set_ids(node).await?,
            given => given,
        };
        let change = AttributeChange {
            permissions,
            uid: set.uid,
            gid: set.gid,
            size_bytes: set.size_bytes,
            accessed: set.accessed.map(|at| at.unwrap_or(now)),
            modified: set.modified.map(|at| at.unwrap_or(now)),
            ..AttributeChange::default()
        };
        let changed = self.fs().set_attributes(self.object(node), &change).await;
        self.changed(changed).await.map(|attributes| self.stat(&attributes))
    }

    async fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], flags: i32, caller: Caller) -> Result<(), Errno> {
        if self.hides(name) {
            return Err(Errno::OPNOTSUPP);
        }
        let how = match flags {
            0 => XattrSet::Any,
            1 => XattrSet::Create,
            2 => XattrSet::Replace,
            _ => return Err(Errno::INVAL),
        };
        let object = self.object(node);
        let set = if name == ACCESS_LIST && self.loses_setgid(object, caller).await? {
            self.fs().set_xattr_without_setgid(object, name, value, how).await
        } else {
            self.fs().set_xattr(object, name, value, how).await
        };
        self.changed(set).await
    }

    async fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        if self.hides(name) {
            return Err(Errno::OPNOTSUPP);
        }
        let removed = self.fs().remove_xattr(self.object(node), name).await;
        self.changed(removed).await
    }

    async fn fallocate(
        &self,
        node: NodeId,
        offset_bytes: u64,
        len_bytes: u64,
        mode: i32,
        writer: Writer,
    ) -> Result<Changed, Errno> {
        const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: i32 = ZERO_RANGE | KEEP_SIZE;
        let how = match mode {
            0 | KEEP_SIZE => Allocation::Reserve { keep_size: mode == KEEP_SIZE },
            PUNCH => Allocation::Punch,
            ZERO_RANGE | ZERO_KEEP => Allocation::Zero { keep_size: mode == ZERO_KEEP },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let end = offset_bytes.checked_add(len_bytes).ok_or(Errno::FBIG)?;
        // Nothing is set aside, so this is all that a reservation can promise: that the room is there now. Without a margin for
        // metadata, so that what `df` shows can be asked for.
        let is_reserved = matches!(how, Allocation::Reserve { .. });
        if is_reserved && len_bytes > self.shared.head.space().available_bytes {
            return Err(Errno::NOSPC);
        }
        let beside = self.drop_set_ids(node, writer).await?;
        let file = self.file(node).await?;
        let allocated = file.allocate(how, offset_bytes..end).await;
        self.changed(allocated).await.map(|()| beside)
    }

    async fn fsync(&self, _node: NodeId) -> Result<(), Errno> {
        self.shared.durable.sync().await.map_err(|error| self.lost(&error))
    }
}
