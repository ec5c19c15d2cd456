//! Content of files: open handles, reading, writing, finding data and holes.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::Object;
use cenote_dmu::tx::Cost;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::RangeGuard;
use cenote_taskq::buf::{Block, Buf};

use super::node::Node;
use super::{LiveFileSystem, NewNode};
use crate::record::touch;
use crate::{Attributes, FileKind, ZplError};

/// Bytes written in one txg by one call: a longer write is made of several.
const PIECE_BYTES: u64 = 1 << 20;
/// The largest file.
pub(super) const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// An opened node: it stays, readable and writable, until this is dropped, whatever becomes of its names.
pub struct OpenFile {
    filesystem: LiveFileSystem,
    node: Arc<Node>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let was_last = self.node.count_open(false);
        if was_last && self.node.with(|record| record.u64(ZplAttribute::Links)) == 0 {
            self.filesystem.is_garbage(self.node.id);
        }
    }
}

impl LiveFileSystem {
    /// Opens a file, or anything else that is to stay while it is in use.
    ///
    /// # Errors
    /// It is not there.
    pub async fn open_file(&self, id: ObjectId) -> Result<OpenFile, ZplError> {
        let node = self.node(id).await?;
        let shared = node.lock.read().await;
        node.check_there()?;
        if node.with(|record| record.u64(ZplAttribute::Links)) == 0 && node.opens() == 0 {
            return Err(ZplError::Stale);
        }
        node.count_open(true);
        drop(shared);
        Ok(OpenFile { filesystem: self.clone(), node })
    }

    /// Makes a regular file and opens it.
    ///
    /// # Errors
    /// As [`LiveFileSystem::create`].
    pub async fn create_file(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<(OpenFile, Attributes), ZplError> {
        let (node, _) = self.create_node(parent, name, new, true).await?;
        let attributes = self.attributes_of(&node);
        Ok((OpenFile { filesystem: self.clone(), node }, attributes))
    }

    /// The size that a file's blocks are to get before it reaches `end`, if that is another than they have: while there is
    /// one block at most, and up to the record size.
    pub(super) fn grown_block(&self, node: &Node, end: u64) -> Result<Option<u32>, ZplError> {
        let head = node.object.phys();
        let (block, last) = (head.data_block_bytes(), head.max_block_id);
        if end <= u64::from(block) {
            return Ok(None);
        }
        let record = self.options().record_bytes;
        let is_regular = block.is_power_of_two();
        let has_one = last == 0 && node.size_bytes() <= u64::from(block);
        if !has_one && !is_regular {
            let what = "blocks whose size is no power of two".to_owned();
            return Err(ZplError::Corrupt { object: node.id.0, what });
        }
        if !has_one || (is_regular && block >= record) {
            return Ok(None);
        }
        let limit = if block > record { block.next_power_of_two() } else { record };
        Ok(Some(end.min(u64::from(limit)).next_multiple_of(512) as u32))
    }
}

/// # Errors
/// A flag forbids changing a file's bytes from `from_bytes` on.
pub(super) fn check_writable(node: &Node, from_bytes: u64) -> Result<(), ZplError> {
    node.check_there()?;
    node.check_kind(FileKind::File)?;
    let flags = node.with(|record| record.flags());
    if flags.contains(ZnodeFlags::IMMUTABLE) {
        return Err(ZplError::NotPermitted("immutable"));
    }
    if flags.contains(ZnodeFlags::APPEND_ONLY) && from_bytes < node.size_bytes() {
        return Err(ZplError::NotPermitted("only to be appended to"));
    }
    Ok(())
}

/// What becomes of a block that is written.
enum Piece<'a> {
    /// All of its content.
    Whole(Block),
    /// Bytes from an offset on; the rest stays as it is (nothing, in a hole).
    Part { start: usize, bytes: &'a [u8], kept: Option<Block> },
}

impl Piece<'_> {
    fn put(self, object: &Object, txg: Txg, block: u64) {
        match self {
            Self::Whole(data) => object.write_block(txg, block, data),
            Self::Part { start, bytes, kept } => object.write_part(txg, block, start, bytes, kept),
        }
    }
}

/// What is to be written into blocks of some size.
struct Write<'a> {
    offset_bytes: u64,
    bytes: &'a [u8],
    /// The file's size before.
    size_bytes: u64,
}

impl<'a> Write<'a> {
    fn end(&self) -> u64 {
        self.offset_bytes + self.bytes.len() as u64
    }

    fn blocks(&self, block_bytes: u64) -> Range<u64> {
        self.offset_bytes / block_bytes..self.end().div_ceil(block_bytes)
    }

    /// What is written of a block, and what is there, read but not copied.
    async fn piece(&self, object: &Object, block: u64, block_bytes: u64) -> Result<Piece<'a>, ZplError> {
        let first = block * block_bytes;
        let start = self.offset_bytes.max(first);
        let end = self.end().min(first + block_bytes);
        let covers_all = start == first && end >= self.size_bytes.min(first + block_bytes);
        let bytes = &self.bytes[(start - self.offset_bytes) as usize..(end - self.offset_bytes) as usize];
        if end - start == block_bytes {
            return Ok(Piece::Whole(Block::copied_from(bytes)));
        }
        if covers_all {
            let mut buf = Buf::zeroed(block_bytes as usize);
            buf[..bytes.len()].copy_from_slice(bytes);
            return Ok(Piece::Whole(buf.freeze()));
        }
        let kept = object.block(BlockId(block)).await?.map(|(kept, _)| kept);
        if kept.as_ref().is_some_and(|kept| kept.len() as u64 != block_bytes) {
            let what = format!("block {block} has not the size of the others");
            return Err(ZplError::Corrupt { object: object.id().0, what });
        }
        Ok(Piece::Part { start: (start - first) as usize, bytes, kept })
    }
}

impl OpenFile {
    /// Its object.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.node.id
    }

    /// Its attributes as of the newest change.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        self.filesystem.attributes_of(&self.node)
    }

    /// Up to `len` bytes at `offset_bytes`; fewer only at the end of the file.
    ///
    /// # Errors
    /// It is no regular file, or cannot be read.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        self.node.check_kind(FileKind::File)?;
        let _range = self.node.ranges.read(offset_bytes..offset_bytes.saturating_add(len as u64)).await;
        if len > 0 {
            self.node.note_access(self.filesystem.options().access_times, self.filesystem.now());
        }
        let left = self.node.size_bytes().saturating_sub(offset_bytes);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(Block::default());
        }
        Ok(self.node.object.read(offset_bytes, len).await?)
    }

    /// Writes bytes; the file grows where they reach behind its end. Up to 1 MiB is one change.
    ///
    /// # Errors
    /// The file would be too large, a flag forbids it, or there is no room.
    pub async fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), ZplError> {
        let end = offset_bytes.checked_add(bytes.len() as u64).filter(|end| *end <= SIZE_MAX_BYTES);
        end.ok_or(ZplError::TooLarge)?;
        let mut at = offset_bytes;
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = (PIECE_BYTES - at % PIECE_BYTES).min(rest.len() as u64) as usize;
            self.write_piece(at, &rest[..len]).await?;
            at += len as u64;
            rest = &rest[len..];
        }
        Ok(())
    }

    /// Locks the blocks that a write touches, or all where their size changes; that size, then.
    async fn lock_range(&self, offset_bytes: u64, end: u64) -> Result<(RangeGuard<'_>, Option<u32>), ZplError> {
        loop {
            let block_bytes = self.node.object.block_bytes();
            let grows = self.filesystem.grown_block(&self.node, end)?.is_some();
            let range = if grows {
                0..u64::MAX
            } else {
                offset_bytes / block_bytes * block_bytes..end.next_multiple_of(block_bytes)
            };
            let guard = self.node.ranges.write(range).await;
            // Someone may have written meanwhile.
            let grown = self.filesystem.grown_block(&self.node, end)?;
            if grown.is_some() == grows && self.node.object.block_bytes() == block_bytes {
                return Ok((guard, grown));
            }
        }
    }

    async fn write_piece(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), ZplError> {
        let (fs, node) = (&self.filesystem, &self.node);
        let _shared = node.lock.read().await;
        check_writable(node, offset_bytes)?;
        let end = offset_bytes + bytes.len() as u64;
        let (_range, grown) = self.lock_range(offset_bytes, end).await?;
        let write = Write { offset_bytes, bytes, size_bytes: node.size_bytes() };
        let object = &node.object;
        let block_bytes = grown.map_or(object.block_bytes(), u64::from);
        let mut made = Vec::new();
        if grown.is_none() {
            for block in write.blocks(block_bytes) {
                made.push((block, write.piece(object, block, block_bytes).await?));
            }
        }
        let blocks = write.blocks(block_bytes);
        let cost = Cost::default().with_objects(1).with_bytes((blocks.end - blocks.start).saturating_mul(block_bytes));
        let tx = node.begin_shared(fs.source(), cost).await?;
        let txg = tx.txg();
        if let Some(grown) = grown {
            object.set_block_bytes(txg, grown).await?;
            for block in blocks {
                made.push((block, write.piece(object, block, block_bytes).await?));
            }
        }
        for (block, piece) in made {
            piece.put(object, txg, block);
        }
        let now = fs.now();
        node.update(txg, |record| {
            record.put(ZplAttribute::Size, record.u64(ZplAttribute::Size).max(end))?;
            touch(record, now)
        })
    }

    /// Writes down when the file was last read, where reading has noted that. Another handle need not be closed for it.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn settle_access(&self) -> Result<(), ZplError> {
        if self.node.unwritten_access().is_none() {
            return Ok(());
        }
        let _lock = self.node.lock.write().await;
        if self.node.check_there().is_err() || self.node.with(|record| record.u64(ZplAttribute::Links)) == 0 {
            return Ok(());
        }
        let tx = self.filesystem.source().begin(Cost::default().with_objects(1)).await?;
        // The change brings it along.
        self.node.update(tx.txg(), |_| Ok(()))
    }

    /// `SEEK_DATA`: the first offset at or after this that is not in a hole; nothing if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        let _range = self.node.ranges.read(offset_bytes..u64::MAX).await;
        let (size, block) = (self.node.size_bytes(), self.node.object.block_bytes());
        if offset_bytes >= size {
            return Ok(None);
        }
        let found = self.node.object.next_data_block(BlockId(offset_bytes / block)).await?;
        Ok(found.map(|at| at.0.saturating_mul(block).max(offset_bytes)).filter(|at| *at < size))
    }

    /// `SEEK_HOLE`: the first offset at or after this that is in a hole, or the end; nothing behind the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        let _range = self.node.ranges.read(offset_bytes..u64::MAX).await;
        let (size, block) = (self.node.size_bytes(), self.node.object.block_bytes());
        if offset_bytes >= size {
            return Ok(None);
        }
        let object = &self.node.object;
        let found = object.next_hole_block(BlockId(offset_bytes / block)).await?;
        // All after the last block is a hole, which a file that was made longer has.
        let found = found.unwrap_or(BlockId(object.last_block().0.saturating_add(1)));
        Ok(Some(found.0.saturating_mul(block).max(offset_bytes).min(size)))
    }

    /// Changes the file's size.
    ///
    /// # Errors
    /// It would be too large, or a flag forbids it.
    pub async fn truncate(&self, size_bytes: u64) -> Result<(), ZplError> {
        let _lock = self.node.lock.write().await;
        self.filesystem.set_size(&self.node, size_bytes).await
    }

    /// Makes, or gives up, room: see [`super::Allocation`].
    ///
    /// # Errors
    /// The file would be too large, or a flag forbids it.
    pub async fn allocate(&self, how: super::Allocation, range: Range<u64>) -> Result<(), ZplError> {
        let _lock = self.node.lock.write().await;
        self.filesystem.allocate(&self.node, how, range).await
    }

    /// Closes the handle and writes the time of the last read. A file without a name whose last handle this was is garbage then
    /// ([`LiveFileSystem::garbage`]).
    ///
    /// # Errors
    /// The time could not be written.
    pub async fn close(self) -> Result<(), ZplError> {
        self.settle_access().await
    }
}
