//! The requests of a front end to a file server, in our own terms.
//!
//! The kernel binding knows FUSE's messages and nothing of pools; the server knows pools and nothing of messages. This
//! trait is all that lies between, so another transport (FUSE over io_uring, virtio-fs, 9P) is another binding, and a
//! test needs no kernel.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cenote_taskq::Block;
use cenote_zpl::{FileKind, Time};
pub use rustix::io::Errno;

/// A file or directory as the front end names it between a look-up and a forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

/// The attributes that `stat` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The inode number shown.
    pub ino: u64,
    /// The file type.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky.
    pub permissions: u32,
    /// Links.
    pub link_count: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number (major, minor), for devices.
    pub device: (u32, u32),
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space taken in units of 512 bytes.
    pub blocks: u64,
    /// There are changes that are not on disk yet, and the space does not include them: the client is to ask again soon.
    pub is_passing: bool,
    /// The size in bytes in which reading is best.
    pub block_size_bytes: u32,
    /// Last access.
    pub accessed: Time,
    /// Last change of content.
    pub modified: Time,
    /// Last change of attributes.
    pub changed: Time,
    /// Creation.
    pub created: Time,
}

/// Keeps a node known to the server. Dropped, it lets go; [`Pin::keep`] leaves that to a later
/// [`FileServer::forget`].
pub struct Pin(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Pin {
    /// A pin for a node that needs none.
    pub const NONE: Self = Self(None);

    /// A pin that runs `release` when it is dropped.
    pub fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(release)))
    }

    /// The client has been told of the node and will say when it forgets it.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin")
    }
}

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The client may answer reads from what it has kept since the file was last open. Where each access is to be noted
    /// (`strictatime`) it asks anew.
    pub keeps_pages: bool,
    /// Its access time has changed.
    pub is_access: bool,
}

/// A node found, with what the client may cache of it.
#[derive(Debug)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Tells reuses of a node number apart.
    pub generation: u64,
    /// Its attributes.
    pub stat: Stat,
    /// Keeps the node until the client has been told.
    pub pin: Pin,
}

/// One entry of a directory's listing.
#[derive(Debug)]
pub struct DirItem {
    /// The name: any bytes but `/` and zero.
    pub name: Vec<u8>,
    /// The inode number shown.
    pub ino: u64,
    /// The file type, where the directory says so.
    pub kind: Option<FileKind>,
    /// Where a listing goes on after this item.
    pub next: u64,
    /// The node, if the listing was asked for nodes and this one could be looked up. Without it, the inode number of an
    /// item other than `.` and `..` is its node number.
    pub entry: Option<Entry>,
    /// Keeps the node of an item without entry.
    pub pin: Pin,
}

/// The figures that `statfs` shows. Sizes in units of `block_size_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFigures {
    /// The unit.
    pub block_size_bytes: u32,
    /// All of the space: used and available.
    pub blocks: u64,
    /// Available.
    pub blocks_free: u64,
    /// Files there are and could be.
    pub files: u64,
    /// Files that could be made.
    pub files_free: u64,
    /// The longest name in bytes.
    pub name_max_bytes: u32,
}

/// Flags of a file beyond `stat`, as `lsattr` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// Linux's `FS_*_FL` bits.
    pub bits: u32,
    /// The project id; 0 for none.
    pub project: u32,
    /// Whether new files of this directory inherit its project.
    pub inherits_project: bool,
}

/// Which way to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// To the next byte that is not in a hole.
    Data,
    /// To the next hole, or the end.
    Hole,
}

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its thread, as this process numbers it; 0 where it has no number here (another namespace of processes).
    pub thread: u32,
}

/// A node to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Type and permission bits.
    pub mode: u32,
    /// Permission bits that are not to be set, unless an access control list is handed down.
    pub umask: u32,
    /// The owner.
    pub caller: Caller,
    /// Device number (major, minor), for devices.
    pub device: (u32, u32),
    /// A symbolic link's target.
    pub target: Option<Vec<u8>>,
}

/// The attributes of a node that are to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits with set-uid, set-gid and sticky.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Last access; `None` within is now.
    pub accessed: Option<Option<Time>>,
    /// Last change of content; likewise.
    pub modified: Option<Option<Time>>,
    /// A change of the size takes set-user-id and set-group-id away, as [`Writer::drops_set_ids`] says.
    pub drops_set_ids: bool,
}

/// On whose behalf bytes of a file are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// The file loses set-user-id, and set-group-id where its group may execute it, since the writer has no right to keep them.
    pub drops_set_ids: bool,
}

/// The treatment of a file that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced.
    Replace,
    /// The rename is refused.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// The effects of a change of a file's bytes beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The file has lost set-ids: what the client knows of its mode is not so any more.
    pub mode: bool,
}

/// How long the client may believe what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Names, attributes and data.
    pub found: Duration,
    /// That a name is absent.
    pub absent: Duration,
    /// Whether nothing ever changes, so that opening a file needs no word from the server.
    pub is_immutable: bool,
}

/// A way to have the client forget what it was told and keeps, or hand over what it keeps back. All block until requests of the client are
/// done: those that it has going in the directory, or those by which it hands over.
pub trait Client: Send + Sync {
    /// Another file, or none, has a name in a directory.
    fn forget_name(&self, parent: NodeId, name: &[u8]);

    /// A directory lists something else, and has other attributes.
    fn forget_content(&self, node: NodeId);

    /// A node has other attributes.
    fn forget_attributes(&self, _node: NodeId) {}

    /// All that programs have changed in files by mappings is to be handed over: the client's writes of it are done when this returns.
    fn hand_over(&self) {}
}

/// A file server: one mount's tree. Every method may be called any number of times at once; what it comes to is a task
/// of its own. `Errno` is what the client sees; the server has reported the cause where it is more than the errno says.
pub trait FileServer: Send + Sync + 'static {
    /// How long the client may believe what it was told.
    fn caching(&self) -> Caching;

    /// There is a way to the client, which is about to ask.
    fn connected(&self, _client: Arc<dyn Client>) {}

    /// The node that `name` refers to in the directory `parent`.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> impl Future<Output = Result<Entry, Errno>> + Send;

    /// The client forgets `count` of the entries of this node that it kept.
    fn forget(&self, node: NodeId, count: u64);

    /// Whether the client may believe for as long that a name is absent in a directory.
    fn keeps_absent(&self, _parent: NodeId) -> bool {
        true
    }

    /// A node's attributes.
    fn getattr(&self, node: NodeId) -> impl Future<Output = Result<Stat, Errno>> + Send;

    /// The target of a symbolic link.
    fn readlink(&self, node: NodeId) -> impl Future<Output = Result<Vec<u8>, Errno>> + Send;

    /// Whether a regular file can be opened for reading; `write` asks for writing too.
    fn open(&self, node: NodeId, write: bool) -> impl Future<Output = Result<Opened, Errno>> + Send;

    /// Up to `len` bytes of a file at `offset_bytes`; fewer only at its end.
    fn read(&self, node: NodeId, offset_bytes: u64, len: u32) -> impl Future<Output = Result<Block, Errno>> + Send;

    /// Up to `count_max` items of a directory from `position` on (0 is the beginning), each with its node where
    /// `with_entries`. Empty at the end.
    fn readdir(
        &self,
        node: NodeId,
        position: u64,
        with_entries: bool,
        count_max: usize,
    ) -> impl Future<Output = Result<Vec<DirItem>, Errno>> + Send;

    /// The value of an extended attribute.
    fn getxattr(
        &self,
        node: NodeId,
        name: &[u8],
        caller: Caller,
    ) -> impl Future<Output = Result<Vec<u8>, Errno>> + Send;

    /// The names of the extended attributes, each ended by a zero byte.
    fn listxattr(&self, node: NodeId, caller: Caller) -> impl Future<Output = Result<Vec<u8>, Errno>> + Send;

    /// The space of the dataset that the node is in.
    fn statfs(&self, node: NodeId) -> impl Future<Output = Result<SpaceFigures, Errno>> + Send;

    /// Where the next data or hole begins, at `offset_bytes` or after.
    fn seek(&self, node: NodeId, offset_bytes: u64, to: Seek) -> impl Future<Output = Result<u64, Errno>> + Send;

    /// Whether the node can be used in a way (bits of `access(2)`: read 4, write 2, execute 1) as far as the server has
    /// a say; permission bits are checked by the kernel.
    fn access(&self, node: NodeId, mask: u32) -> impl Future<Output = Result<(), Errno>> + Send;

    /// Flags of a file beyond `stat`.
    fn inode_flags(&self, node: NodeId) -> impl Future<Output = Result<InodeFlags, Errno>> + Send;

    /// Whether anything can be changed: else what follows is never asked for.
    fn is_writable(&self) -> bool {
        false
    }

    /// A file that was opened is not used any more; once for each time.
    fn release(&self, _node: NodeId) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Makes a node and its name; opened where that is asked for.
    fn create(
        &self,
        _parent: NodeId,
        _name: &[u8],
        _new: &NewFile,
        _open: bool,
    ) -> impl Future<Output = Result<Entry, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Gives a node another name.
    fn link(&self, _node: NodeId, _parent: NodeId, _name: &[u8]) -> impl Future<Output = Result<Entry, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Takes a name away: of a directory, or of anything else.
    fn remove(
        &self,
        _parent: NodeId,
        _name: &[u8],
        _directory: bool,
        _caller: Caller,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Renames.
    fn rename(
        &self,
        _from: (NodeId, &[u8]),
        _to: (NodeId, &[u8]),
        _how: Rename,
        _caller: Caller,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Writes all of the bytes.
    fn write(
        &self,
        _node: NodeId,
        _offset_bytes: u64,
        _data: &[u8],
        _writer: Writer,
    ) -> impl Future<Output = Result<Changed, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Changes attributes; all of them come back. A new owner or group takes set-user-id and set-group-id away, as
    /// [`Writer::drops_set_ids`] says.
    fn setattr(&self, _node: NodeId, _set: &SetAttributes) -> impl Future<Output = Result<Stat, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Sets an extended attribute; flags as of `setxattr(2)`.
    fn setxattr(
        &self,
        _node: NodeId,
        _name: &[u8],
        _value: &[u8],
        _flags: i32,
        _caller: Caller,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Takes an extended attribute away.
    fn removexattr(&self, _node: NodeId, _name: &[u8]) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Makes room or holes; mode as of `fallocate(2)`.
    fn fallocate(
        &self,
        _node: NodeId,
        _offset_bytes: u64,
        _len_bytes: u64,
        _mode: i32,
        _writer: Writer,
    ) -> impl Future<Output = Result<Changed, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Makes durable what was done to a node.
    fn fsync(&self, _node: NodeId) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Ok(()) }
    }
}
