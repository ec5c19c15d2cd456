//! Filling a pool with files: how `cenote build` and `cenote put` store the files of a source.
//!
//! A source gives files one after the other, directories before their contents. Files are written as they arrive. The entries of directories are
//! kept in memory and written at the end, since they are complete only then. While one txg is written the next one is filled.

mod entries;
mod existing;
mod folder;
mod oci;
mod part;
mod size;
mod source;
mod spool;
mod store;
mod tarball;
mod tree;

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_admin::NewPool;
use cenote_dmu::Object;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zpl::DirEntry;
use cenote_spa::Pool;
use cenote_taskq::boxed;
use cenote_taskq::buf::Buf;
use cenote_zpl::bulk::{BulkWriter, MODE_DIR, MODE_FILE, MODE_KIND, MODE_SYMLINK, NewEntry, NodeSpec};

use crate::error::{Result, bad_name, malformed, unsupported};

pub use entries::Budget;
pub use existing::{folder_of, open_files};
pub use folder::{Event, Folder};
pub use oci::Choice;
pub(crate) use oci::is_layout;
pub use size::{bytes_below, size_of_devices, size_that_is_enough};
pub use source::{Source, SourceKind};
pub use spool::{Room, archive};
pub(crate) use tarball::Whiteouts;
pub(crate) use tarball::add_archive;
pub use tree::FileTree;

/// The bytes in a txg.
const TXG_BYTES: u64 = 64 << 20;
/// The maximum bytes added to an existing file system: they are in one txg, and so in memory.
const PUT_MAX_BYTES: u64 = 512 << 20;
/// The least bytes that an object counts for these bounds.
const OBJECT_BYTES: u64 = 2 << 10;

/// A directory being filled.
struct Directory {
    object: Object,
    node: NodeSpec,
    entries: BTreeMap<Vec<u8>, (ObjectId, u32)>,
    /// The entries of a directory that existed before.
    before: Option<BTreeMap<Vec<u8>, DirEntry>>,
}

/// The index of a directory; the root is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryId(usize);

/// The root directory.
pub const ROOT: DirectoryId = DirectoryId(0);

/// A file that has, or may have, several links.
struct Linked {
    object: Object,
    node: NodeSpec,
    is_changed: bool,
}

/// Counts of the objects made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Links, devices, pipes, sockets.
    pub others: u64,
    /// Bytes of content, without holes.
    pub bytes: u64,
    /// Txgs that were written.
    pub txgs: u64,
    /// Changes in the source while it was read.
    pub changed: u64,
}

/// Fills the root file system of a new pool, or adds to an existing directory.
pub struct Builder {
    pool: Pool,
    /// A txg being written.
    syncing: Option<Txg>,
    files: BulkWriter,
    txg: Txg,
    dirty_bytes: u64,
    /// The bytes at which a txg is written.
    txg_bytes_max: u64,
    directories: Vec<Directory>,
    linked: BTreeMap<ObjectId, Linked>,
    /// The latest time that may be written, in seconds.
    latest_s: Option<u64>,
    now: [u64; 2],
    counts: Counts,
}

/// A time in the form of nodes: seconds since 1970, and nanoseconds.
fn stamp(time: Duration) -> [u64; 2] {
    [time.as_secs(), time.subsec_nanos().into()]
}

impl Builder {
    /// A builder for a pool whose root file system was made in its open txg. `latest_s` is the latest time that may be written, in seconds since
    /// 1970.
    pub fn new(new: NewPool, latest_s: Option<u64>) -> Self {
        let NewPool { pool, files, root: (object, node) } = new;
        Self {
            txg: pool.txg(),
            now: stamp(pool.time()),
            pool,
            syncing: None,
            files,
            dirty_bytes: 0,
            directories: vec![Directory { object, node, entries: BTreeMap::new(), before: None }],
            txg_bytes_max: TXG_BYTES,
            linked: BTreeMap::new(),
            latest_s,
            counts: Counts::default(),
        }
    }

    /// A builder that adds to a directory of an existing file system, in the open txg only: it adds everything or nothing.
    #[boxed]
    pub async fn into_existing(pool: Pool, files: BulkWriter, directory: Object) -> Result<Self> {
        let before = Some(files.entries(&directory).await?);
        Ok(Self {
            txg: pool.txg(),
            now: stamp(pool.time()),
            pool,
            syncing: None,
            files,
            dirty_bytes: 0,
            txg_bytes_max: u64::MAX,
            directories: vec![Directory {
                object: directory,
                node: NodeSpec::default(),
                entries: BTreeMap::new(),
                before,
            }],
            linked: BTreeMap::new(),
            latest_s: None,
            counts: Counts::default(),
        })
    }

    /// Sets the root directory's attributes, unless it existed before.
    pub(crate) fn set_root(&mut self, node: NodeSpec) {
        let node = self.timed(node);
        if self.directories[0].before.is_some() {
            return;
        }
        let root = &mut self.directories[0].node;
        *root = NodeSpec { mode: node.mode & 0o7777 | MODE_DIR, parent: root.parent, ..node };
    }

    /// A node with the times to write: the source's access time or else its modification time (reading a folder would change the former); change
    /// and creation are now.
    fn timed(&self, node: NodeSpec) -> NodeSpec {
        let clamped = |time: [u64; 2]| match self.latest_s {
            Some(latest) if time[0].cast_signed() > latest.cast_signed() => [latest, 0],
            _ => time,
        };
        let mtime = clamped(node.mtime);
        let atime = if node.atime == [0, 0] { mtime } else { clamped(node.atime) };
        NodeSpec { mtime, atime, ctime: self.now, crtime: self.now, ..node }
    }

    fn enter(&mut self, parent: DirectoryId, name: &[u8], object: ObjectId, mode: u32) -> Result<()> {
        let text = String::from_utf8_lossy(name);
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return Err(bad_name(format!("'{text}' cannot be a file's name")));
        }
        let directory = &mut self.directories[parent.0];
        if directory.before.as_ref().is_some_and(|before| before.contains_key(name)) {
            return Err(bad_name(format!("'{text}' exists already")));
        }
        if directory.entries.insert(name.to_vec(), (object, mode)).is_some() {
            return Err(bad_name(format!("the source has two files called '{text}' in one directory")));
        }
        Ok(())
    }

    fn parent(&self, parent: DirectoryId) -> ObjectId {
        self.directories[parent.0].object.id()
    }

    /// Creates a directory.
    #[boxed]
    pub async fn directory(&mut self, parent: DirectoryId, name: &[u8], node: NodeSpec) -> Result<DirectoryId> {
        let node = NodeSpec { mode: node.mode & 0o7777 | MODE_DIR, parent: self.parent(parent), ..self.timed(node) };
        let there = self.directories[parent.0].before.as_ref().and_then(|before| before.get(name));
        if let Some(entry) = there.filter(|entry| u32::from(entry.kind) << 12 == MODE_DIR) {
            let object = self.files.objset().object(entry.object).await?;
            let before = Some(self.files.entries(&object).await?);
            self.directories.push(Directory { object, node, entries: BTreeMap::new(), before });
            return Ok(DirectoryId(self.directories.len() - 1));
        }
        let object = self.files.new_node(self.txg, node.mode, 0)?;
        self.enter(parent, name, object.id(), node.mode)?;
        self.directories.push(Directory { object, node, entries: BTreeMap::new(), before: None });
        self.counts.directories += 1;
        self.dirtied(0).await?;
        Ok(DirectoryId(self.directories.len() - 1))
    }

    /// Creates a file that is neither a directory nor regular: a link, a device, a pipe.
    #[boxed]
    pub(crate) async fn special(
        &mut self,
        parent: DirectoryId,
        name: &[u8],
        node: NodeSpec,
        may_have_links: bool,
    ) -> Result<ObjectId> {
        let size_bytes = node.target.as_ref().map_or(0, |target| target.len() as u64);
        let node = NodeSpec { parent: self.parent(parent), size_bytes, links: 1, ..self.timed(node) };
        if node.mode & MODE_KIND == MODE_SYMLINK && node.target.as_ref().is_none_or(Vec::is_empty) {
            return Err(malformed("a symbolic link without a target"));
        }
        let object = self.files.new_node(self.txg, node.mode, 0)?;
        self.enter(parent, name, object.id(), node.mode)?;
        self.files.set_attributes(self.txg, &object, &node).await?;
        self.counts.others += 1;
        let id = object.id();
        if may_have_links {
            self.linked.insert(id, Linked { object, node, is_changed: false });
        }
        self.dirtied(0).await?;
        Ok(id)
    }

    /// Creates a regular file of `node.size_bytes`, with this content.
    pub async fn file(
        &mut self,
        parent: DirectoryId,
        name: &[u8],
        node: NodeSpec,
        may_have_links: bool,
        content: &mut dyn Content,
    ) -> Result<ObjectId> {
        let mode = node.mode & 0o7777 | MODE_FILE;
        let node = NodeSpec { mode, parent: self.parent(parent), links: 1, ..self.timed(node) };
        let size = node.size_bytes;
        let object = self.files.new_node(self.txg, mode, size)?;
        self.enter(parent, name, object.id(), mode)?;
        let block_bytes = object.block_bytes();
        let mut at = 0;
        while at < size {
            // Whole blocks without data are holes.
            let data = content.next_data(at)?.min(size);
            at = at.max(data / block_bytes * block_bytes);
            if at >= size || data >= size {
                break;
            }
            let len = block_bytes.min(size - at) as usize;
            let mut buf = Buf::zeroed(block_bytes as usize);
            content.read(at, &mut buf[..len])?;
            // Zeros are holes or not depending on the source's file system; but the pool must always be the same.
            if buf.iter().all(|byte| *byte == 0) {
                at += block_bytes;
                continue;
            }
            object.write_block(self.txg, at / block_bytes, buf.freeze());
            at += block_bytes;
            self.counts.bytes += len as u64;
            self.dirtied(block_bytes).await?;
        }
        self.files.set_attributes(self.txg, &object, &node).await?;
        self.counts.files += 1;
        let id = object.id();
        if may_have_links {
            self.linked.insert(id, Linked { object, node, is_changed: false });
        }
        self.dirtied(0).await?;
        Ok(id)
    }

    /// Gives a file another link.
    pub fn link(&mut self, parent: DirectoryId, name: &[u8], object: ObjectId) -> Result<()> {
        let Some(linked) = self.linked.get_mut(&object) else {
            return Err(malformed("a hard link to something that cannot have any"));
        };
        linked.node.links += 1;
        linked.is_changed = true;
        let mode = linked.node.mode;
        self.enter(parent, name, object, mode)
    }

    /// Counts bytes for the open txg, and has it written when it is full.
    async fn dirtied(&mut self, bytes: u64) -> Result<()> {
        self.dirty_bytes += if bytes == 0 { OBJECT_BYTES } else { bytes };
        if self.txg_bytes_max == u64::MAX && self.dirty_bytes > PUT_MAX_BYTES {
            return Err(unsupported(format!("adding more than {} MiB at once", PUT_MAX_BYTES >> 20)));
        }
        if self.dirty_bytes >= self.txg_bytes_max {
            self.next_txg().await?;
        }
        Ok(())
    }

    /// Waits for the txg being written, if there is one.
    async fn settle(&mut self) -> Result<()> {
        if let Some(txg) = self.syncing.take() {
            self.pool.wait_synced(txg).await?;
            self.counts.txgs += 1;
        }
        Ok(())
    }

    /// Starts to write the open txg, and continues in the next.
    async fn next_txg(&mut self) -> Result<()> {
        self.settle().await?;
        self.syncing = Some(self.txg);
        self.txg = self.pool.next_txg().await?;
        self.dirty_bytes = 0;
        Ok(())
    }

    /// Writes directories and other deferred data, and exports the pool; `line` is recorded in the history.
    pub async fn finish(mut self, line: Option<&str>) -> Result<Counts> {
        for linked in std::mem::take(&mut self.linked).into_values() {
            if linked.is_changed {
                self.files.set_attributes(self.txg, &linked.object, &linked.node).await?;
                self.dirtied(0).await?;
            }
        }
        for directory in std::mem::take(&mut self.directories) {
            let Directory { object, mut node, entries, before } = directory;
            let subdirectories = entries.values().filter(|(_, mode)| mode & MODE_KIND == MODE_DIR).count() as u64;
            node.links = 2 + subdirectories;
            node.size_bytes = 2 + entries.len() as u64;
            let bytes = entries.len() as u64 * 64;
            let entries: Vec<NewEntry> =
                entries.into_iter().map(|(name, (object, mode))| NewEntry { name, object, mode }).collect();
            if before.is_some() {
                if !entries.is_empty() {
                    self.files.add_entries(self.txg, &object, &entries, self.now).await?;
                }
                continue;
            }
            self.files.write_entries(self.txg, &object, &entries).await?;
            self.files.set_attributes(self.txg, &object, &node).await?;
            self.dirtied(bytes.max(OBJECT_BYTES)).await?;
        }
        if self.txg_bytes_max != u64::MAX {
            self.next_txg().await?;
            self.settle().await?;
        }
        if let Some(line) = line {
            self.pool.record_command(line, u64::from(rustix::process::getuid().as_raw())).await?;
        }
        self.pool.export().await?;
        self.counts.txgs += 1;
        Ok(self.counts)
    }
}

/// A file's content.
pub trait Content {
    /// The offset of the next data, at or after `offset`; [`u64::MAX`] if there is none.
    fn next_data(&mut self, offset: u64) -> Result<u64>;
    /// Fills `target` with the content at `offset`; holes become zeros.
    fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()>;
}
