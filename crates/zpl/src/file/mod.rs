//! Files: handles, reading, and finding data and holes.

mod size;
mod write;

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::{DataStream, Zfetch};
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::sa::ZplAttribute;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

pub use size::Allocation;
pub(crate) use write::Reach;

use crate::dir::NewNode;
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::{Attributes, FileKind, ZplError};

/// An opened file. Where the file system is changed it stays, readable and writable, until this and all clones of it are dropped,
/// whatever becomes of its names.
pub struct File {
    filesystem: FileSystem,
    node: Arc<Node>,
    /// The prefetch state of its reader. Absent: nothing is loaded ahead.
    ahead: Option<Arc<Zfetch>>,
}

impl Clone for File {
    fn clone(&self) -> Self {
        debug_assert!(self.filesystem.is_read_only() || self.node.opens() > 0, "a handle is counted while it is there");
        self.node.count_open(true);
        Self { filesystem: self.filesystem.clone(), node: Arc::clone(&self.node), ahead: self.ahead.clone() }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let was_last = self.node.count_open(false);
        if was_last && self.node.word(ZplAttribute::Links) == 0 {
            self.filesystem.note_garbage(self.node.id);
        }
    }
}

impl FileSystem {
    /// Opens a regular file.
    ///
    /// # Errors
    /// It is not there, or is something else.
    #[boxed]
    pub async fn open_file(&self, id: ObjectId) -> Result<File, ZplError> {
        let file = self.hold(id).await?;
        file.node.check_kind(FileKind::File)?;
        Ok(file)
    }

    /// Opens a file, directory or node of another kind, which is not freed while it is open. Only a regular file can be read and written.
    ///
    /// # Errors
    /// It is not there.
    #[boxed]
    pub async fn hold(&self, id: ObjectId) -> Result<File, ZplError> {
        let node = self.node(id).await?;
        {
            let _shared = node.look().await;
            node.check_there()?;
            if !self.is_read_only() && node.word(ZplAttribute::Links) == 0 && node.opens() == 0 {
                return Err(ZplError::Stale);
            }
            node.count_open(true);
        }
        Ok(self.opened(node))
    }

    /// Makes a regular file and opens it.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    #[boxed]
    pub async fn create_file(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<(File, Attributes), ZplError> {
        let (node, _) = self.create_node(parent, name, new, true, None).await?;
        let file = self.opened(node);
        let attributes = file.attributes()?;
        Ok((file, attributes))
    }

    /// The handle of a node that counts it already.
    fn opened(&self, node: Arc<Node>) -> File {
        debug_assert!(self.is_read_only() || node.opens() > 0, "a node is counted before it has its handle");
        let ahead = Some(node.object.zfetch());
        File { filesystem: self.clone(), node, ahead }
    }
}

impl File {
    /// Its object.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.node.id
    }

    /// Its attributes as of the newest change.
    ///
    /// # Errors
    /// They contradict themselves.
    pub fn attributes(&self) -> Result<Attributes, ZplError> {
        self.node.attributes()
    }

    /// Its size in bytes as of the newest change.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.node.size_bytes()
    }

    /// The size of its blocks in bytes: what reads past the cache are made of.
    #[must_use]
    pub fn block_size_bytes(&self) -> u64 {
        self.node.object.block_bytes()
    }

    /// The same file for a reader of its own kind: what is read through the other has no bearing on what is loaded ahead
    /// here, and nothing is if `ahead` is false.
    #[must_use]
    pub fn reopened(&self, ahead: bool) -> Self {
        let mut again = self.clone();
        again.ahead = ahead.then(|| self.node.object.zfetch());
        again
    }

    /// Up to `len` bytes at `offset_bytes`; fewer only at the end of the file.
    ///
    /// # Errors
    /// It is no regular file, or cannot be read.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        self.note_read(len)?;
        let read = self.read_whole(offset_bytes, len).await?;
        self.count_read(read.len());
        Ok(read)
    }

    /// Reads what no writer is at work on, or waits for the writers that are.
    async fn read_whole(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        let Ok(in_use) = self.node.in_use() else { return self.read_now(offset_bytes, len).await };
        if let Some(quiet) = in_use.bytes.quiet() {
            let read = self.read_now(offset_bytes, len).await;
            if in_use.bytes.was_quiet_since(quiet) {
                return read;
            }
        }
        let _range = in_use.bytes.read(offset_bytes..offset_bytes.saturating_add(len as u64)).await;
        self.read_now(offset_bytes, len).await
    }

    async fn read_now(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        let len = self.clip(offset_bytes, len);
        if len == 0 {
            return Ok(Block::default());
        }
        let object = &self.node.object;
        let read = match &self.ahead {
            Some(ahead) => object.read_prefetching(offset_bytes, len, ahead).await?,
            None => object.read(offset_bytes, len).await?,
        };
        assert_eq!(read.len(), len, "a read gives as many bytes as the file has there");
        Ok(read)
    }

    /// Counts a read, unless there was nothing to read.
    fn count_read(&self, len: usize) {
        if len == 0 {
            return;
        }
        self.filesystem.objset().count(|stats| stats.read(len as u64));
    }

    /// As [`File::read`], past the cache and with nothing loaded ahead, for clients that keep what they read: see
    /// [`Object::read_direct`](cenote_dmu::Object::read_direct).
    ///
    /// # Errors
    /// As [`File::read`].
    pub async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        self.note_read(len)?;
        let _range = match self.node.in_use() {
            Ok(in_use) => Some(in_use.bytes.read(offset_bytes..offset_bytes.saturating_add(len as u64)).await),
            Err(_) => None,
        };
        let clipped = self.clip(offset_bytes, len);
        // The file's end need not be a block's: what was asked for decides whether the last block is asked for whole.
        let block_bytes = usize::try_from(self.block_size_bytes()).unwrap_or(usize::MAX).max(1);
        let whole = clipped.checked_next_multiple_of(block_bytes).map_or(clipped, |whole| whole.min(len));
        let block = self.node.object.read_direct(offset_bytes, whole).await?;
        self.count_read(clipped);
        assert!(clipped <= whole && whole <= len, "what is read whole is what was asked for at most");
        let read = block.try_into_slice(..clipped).unwrap_or_default();
        assert_eq!(read.len(), clipped, "a read gives as many bytes as the file has there");
        Ok(read)
    }

    /// Notes that the file is read, if that is to be noted.
    fn note_read(&self, len: usize) -> Result<(), ZplError> {
        self.node.check_kind(FileKind::File)?;
        if len > 0
            && let Ok(in_use) = self.filesystem.in_use()
        {
            self.node.note_access(in_use.nodes.access_times(), self.filesystem.now());
        }
        Ok(())
    }

    /// Notes that an empty file is read, if that is to be noted: it is read without a read. True if it was noted.
    #[must_use]
    pub fn note_empty_read(&self) -> bool {
        match self.filesystem.in_use() {
            Ok(in_use) if self.size_bytes() == 0 => {
                self.node.note_access(in_use.nodes.access_times(), self.filesystem.now())
            }
            _ => false,
        }
    }

    fn clip(&self, offset_bytes: u64, len: usize) -> usize {
        let left = self.size_bytes().saturating_sub(offset_bytes);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// The whole content in order, with `window_bytes` of reads in flight; holes as runs of their own.
    #[must_use]
    pub fn stream(&self, window_bytes: u64) -> DataStream {
        self.node.object.stream(0..self.size_bytes(), window_bytes)
    }

    /// A range of the content, as [`File::stream`].
    #[must_use]
    pub fn stream_range(&self, range: Range<u64>, window_bytes: u64) -> DataStream {
        self.node.object.stream(range.start..range.end.min(self.size_bytes()), window_bytes)
    }

    /// `SEEK_DATA`: the first offset at or after `offset_bytes` that is not in a hole; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    #[boxed]
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        let _range = self.lock_from(offset_bytes).await;
        let (size, block) = (self.size_bytes(), self.block_size_bytes());
        if offset_bytes >= size || block == 0 {
            return Ok(None);
        }
        let found = self.node.object.next_data_block(BlockId(offset_bytes / block)).await?;
        Ok(found.map(|at| at.0.saturating_mul(block).max(offset_bytes)).filter(|at| *at < size))
    }

    /// `SEEK_HOLE`: the first offset at or after `offset_bytes` in a hole, or the end; `None` past the end.
    ///
    /// # Errors
    /// It cannot be read.
    #[boxed]
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        let _range = self.lock_from(offset_bytes).await;
        let (size, block) = (self.size_bytes(), self.block_size_bytes());
        if offset_bytes >= size {
            return Ok(None);
        }
        let object = &self.node.object;
        let from = BlockId(offset_bytes.checked_div(block).unwrap_or(u64::MAX));
        // All after the last block is a hole, which a file that was made longer has.
        if from > object.last_block() {
            return Ok(Some(offset_bytes));
        }
        let found = object.next_hole_block(from).await?;
        let found = found.unwrap_or(BlockId(object.last_block().0.saturating_add(1)));
        Ok(Some(found.0.saturating_mul(block).max(offset_bytes).min(size)))
    }

    /// Keeps writers away from all from an offset on.
    async fn lock_from(&self, offset_bytes: u64) -> Option<cenote_taskq::RangeGuard<'_>> {
        match self.node.in_use() {
            Ok(in_use) => Some(in_use.bytes.read(offset_bytes..u64::MAX).await),
            Err(_) => None,
        }
    }
}
