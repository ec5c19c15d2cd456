//! Writing files.

use std::ops::Range;

use cenote_dmu::Object;
use cenote_dmu::tx::{Cost, SyncMode};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{BlockId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_zil::WriteShape;

use super::File;
use super::size::{Allocation, SIZE_MAX_BYTES, check_writable};
use crate::ZplError;
use crate::filesystem::FileSystem;
use crate::node::{Node, Writing};
use crate::record::touch;

/// Bytes written in one txg by one call: a longer write is made of several.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are kept for the intent log where they will be asked for; more are read again.
const COPIED_MAX_BYTES: usize = 7680;

impl FileSystem {
    /// The size that a file's blocks are to get before it reaches `end`, if that is another than they have: while there is
    /// one block at most, and up to the record size.
    pub(crate) fn grown_block(&self, node: &Node, end: u64) -> Result<Option<u32>, ZplError> {
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
        let grown = end.min(u64::from(limit)).next_multiple_of(512) as u32;
        assert!(grown > block, "a block that grows gets larger");
        assert!(
            end <= u64::from(grown) || grown.is_power_of_two(),
            "a file of more than one block has blocks whose size is a power of two"
        );
        Ok(Some(grown))
    }
}

/// The new content of a block that is written.
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

/// How a write changes its file's size.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// The file ends no sooner than what is written.
    Written,
    /// The file ends no sooner than this: a replay writes the whole of a block, of which the file may have a part. The bytes of its
    /// blocks behind the file's end are kept.
    To(u64),
}

/// A write, to be divided into blocks of some size.
struct Write<'a> {
    offset_bytes: u64,
    bytes: &'a [u8],
    /// Bytes of the file that are kept where they are not written: its size before.
    size_bytes: u64,
}

impl<'a> Write<'a> {
    fn end(&self) -> u64 {
        self.offset_bytes + self.bytes.len() as u64
    }

    fn blocks(&self, block_bytes: u64) -> Range<u64> {
        self.offset_bytes / block_bytes..self.end().div_ceil(block_bytes)
    }

    /// The new content of one block; bytes of the block that are kept are read but not copied.
    async fn piece(&self, object: &Object, block: u64, block_bytes: u64) -> Result<Piece<'a>, ZplError> {
        let first = block * block_bytes;
        let start = self.offset_bytes.max(first);
        let end = self.end().min(first + block_bytes);
        assert!(start < end, "a block that is written is touched");
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

impl File {
    /// Writes bytes; the file grows where they reach behind its end. Up to 1 MiB is one change.
    ///
    /// # Errors
    /// The file would be too large, a flag forbids it, or there is no room.
    pub async fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), ZplError> {
        self.write_reaching(offset_bytes, bytes, Reach::Written).await
    }

    /// Writes bytes, and says where the file ends then.
    pub(crate) async fn write_reaching(&self, offset_bytes: u64, bytes: &[u8], reach: Reach) -> Result<(), ZplError> {
        let end = offset_bytes.checked_add(bytes.len() as u64).filter(|end| *end <= SIZE_MAX_BYTES);
        end.ok_or(ZplError::TooLarge)?;
        let mut at = offset_bytes;
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = (PIECE_BYTES - at % PIECE_BYTES).min(rest.len() as u64) as usize;
            self.write_piece(at, &rest[..len], reach).await?;
            at += len as u64;
            rest = &rest[len..];
        }
        self.filesystem.shared.objset.count(|stats| stats.wrote(bytes.len() as u64));
        Ok(())
    }

    /// Locks the blocks that a write touches, or all where their size changes; that size, then.
    async fn lock_range(&self, offset_bytes: u64, end: u64) -> Result<(Writing<'_>, Option<u32>), ZplError> {
        loop {
            let block_bytes = self.node.object.block_bytes();
            let grows = self.filesystem.grown_block(&self.node, end)?.is_some();
            let range = if grows {
                0..u64::MAX
            } else {
                offset_bytes / block_bytes * block_bytes..end.next_multiple_of(block_bytes)
            };
            let guard = self.node.in_use()?.bytes.write(range).await;
            // Someone may have written meanwhile.
            let grown = self.filesystem.grown_block(&self.node, end)?;
            if grown.is_some() == grows && self.node.object.block_bytes() == block_bytes {
                debug_assert!(grown.is_none_or(|grown| u64::from(grown) > block_bytes), "blocks get no smaller");
                return Ok((guard, grown));
            }
        }
    }

    async fn write_piece(&self, offset_bytes: u64, bytes: &[u8], reach: Reach) -> Result<(), ZplError> {
        let (fs, node) = (&self.filesystem, &self.node);
        let _shared = node.in_use()?.lock.read().await;
        if matches!(reach, Reach::Written) {
            check_writable(node, offset_bytes)?;
        }
        let end = offset_bytes + bytes.len() as u64;
        let (_range, grown) = self.lock_range(offset_bytes, end).await?;
        let (file_end, size_bytes) = match reach {
            Reach::Written => (end, node.size_bytes()),
            Reach::To(file_end) => (file_end, u64::MAX),
        };
        let write = Write { offset_bytes, bytes, size_bytes };
        let object = &node.object;
        let block_bytes = grown.map_or(object.block_bytes(), u64::from);
        let mut made = Vec::new();
        if grown.is_none() {
            for block in write.blocks(block_bytes) {
                made.push((block, write.piece(object, block, block_bytes).await?));
            }
        }
        let blocks = write.blocks(block_bytes);
        let cost = Cost::default().with_objects(1).with_blocks(blocks.end - blocks.start, block_bytes);
        let mut tx = node.begin_shared(fs.log()?, cost).await?;
        let txg = tx.txg();
        if let Some(grown) = grown {
            object.set_block_bytes(txg, grown).await?;
            for block in blocks {
                made.push((block, write.piece(object, block, block_bytes).await?));
            }
        }
        debug_assert_eq!(object.block_bytes(), block_bytes, "nobody else changes the size of blocks that are locked");
        for (block, piece) in made {
            piece.put(object, txg, block);
        }
        let now = fs.now();
        node.update(txg, |record| {
            record.put(ZplAttribute::Size, record.u64(ZplAttribute::Size).max(file_end))?;
            touch(record, now)
        })?;
        debug_assert!(node.size_bytes() >= file_end, "what is written lies in the file");
        if node.word(ZplAttribute::Links) == 0 {
            // After a crash the file is no more.
            tx.change().needs_no_record();
        } else {
            let is_awaited = fs.log()?.mode() == SyncMode::Always;
            let is_copied = is_awaited && bytes.len() <= COPIED_MAX_BYTES;
            let data = is_copied.then(|| Block::copied_from(bytes));
            let small_bytes = fs.objset().policy().small_bytes_of(DmuType::PLAIN_FILE_CONTENTS);
            let shape = WriteShape { block_bytes, small_bytes, is_awaited };
            tx.change().log_write(node.id, node.word(ZplAttribute::Gen), offset_bytes..end, shape, data);
        }
        Ok(())
    }

    /// True if reading has noted an access that is not written yet.
    #[must_use]
    pub fn has_unwritten_access(&self) -> bool {
        self.node.unwritten_access().is_some()
    }

    /// Writes down when the file was last read, where reading has noted that. Another handle need not be closed for it.
    ///
    /// # Errors
    /// It cannot be written.
    #[boxed]
    pub async fn write_atime(&self) -> Result<(), ZplError> {
        if !self.has_unwritten_access() {
            return Ok(());
        }
        let _lock = self.node.in_use()?.lock.write().await;
        if self.node.check_there().is_err() || self.node.word(ZplAttribute::Links) == 0 {
            return Ok(());
        }
        let mut tx = self.filesystem.begin(Cost::default().with_objects(1)).await?;
        tx.needs_no_record();
        // The change brings it along.
        self.node.update(tx.txg(), |_| Ok(()))
    }

    /// Changes the file's size.
    ///
    /// # Errors
    /// It would be too large, or a flag forbids it.
    #[boxed]
    pub async fn truncate(&self, size_bytes: u64) -> Result<(), ZplError> {
        let _lock = self.node.in_use()?.lock.write().await;
        self.filesystem.set_size(&self.node, size_bytes).await
    }

    /// Makes, or gives up, room: see [`Allocation`].
    ///
    /// # Errors
    /// The file would be too large, or a flag forbids it.
    #[boxed]
    pub async fn allocate(&self, how: Allocation, range: Range<u64>) -> Result<(), ZplError> {
        let _lock = self.node.in_use()?.lock.write().await;
        self.filesystem.allocate(&self.node, how, range).await
    }

    /// Closes the handle and writes the time of the last read. A file without a name whose last handle this was is garbage then
    /// ([`FileSystem::garbage`]).
    ///
    /// # Errors
    /// The time could not be written.
    pub async fn close(self) -> Result<(), ZplError> {
        self.write_atime().await
    }
}
