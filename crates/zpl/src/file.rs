//! Files: data, holes and link targets.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::{DataStream, Object, Zfetch};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::sa::ZplAttribute;
use cenote_taskq::buf::Block;

use crate::{Attributes, FileKind, FileSystem, ZplError};

/// The longest target of a symbolic link that any client takes, in bytes.
const TARGET_MAX_BYTES: u64 = 65_536;
/// Size in bytes of the old znode; a short link's target follows it in the bonus.
const ZNODE_BYTES: usize = 264;

/// An opened file: its dnode and attributes. Cheap to clone the parts of.
#[derive(Clone)]
pub struct File {
    dnode: Object,
    attributes: Attributes,
    /// What its reader does. Absent: nothing is loaded ahead.
    ahead: Option<Arc<Zfetch>>,
}

impl File {
    /// The attributes at opening.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Up to `len` bytes at `offset_bytes`; fewer only at the end of the file.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        let len = self.clip(offset_bytes, len);
        Ok(match &self.ahead {
            Some(ahead) => self.dnode.read_ahead(offset_bytes, len, ahead).await?,
            None => self.dnode.read(offset_bytes, len).await?,
        })
    }

    /// As [`File::read`], past the cache and with nothing loaded ahead, for whoever keeps what it reads: see
    /// [`Object::read_direct`].
    pub async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, ZplError> {
        let clipped = self.clip(offset_bytes, len);
        // The file's end need not be a block's: what was asked for decides whether the last block is asked for whole.
        let block_bytes = usize::try_from(self.block_size_bytes()).unwrap_or(usize::MAX).max(1);
        let whole = clipped.checked_next_multiple_of(block_bytes).map_or(clipped, |whole| whole.min(len));
        let block = self.dnode.read_direct(offset_bytes, whole).await?;
        Ok(block.try_into_slice(..clipped).unwrap_or_default())
    }

    /// The same file for a reader of its own kind: what is read through the other has no bearing on what is loaded ahead
    /// here, and nothing is if `ahead` is false.
    #[must_use]
    pub fn reopened(&self, ahead: bool) -> Self {
        let ahead = ahead.then(|| self.dnode.zfetch());
        Self { dnode: self.dnode.clone(), attributes: self.attributes.clone(), ahead }
    }

    /// The size of its blocks in bytes: what reads past the cache are made of.
    #[must_use]
    pub fn block_size_bytes(&self) -> u64 {
        self.dnode.block_bytes()
    }

    fn clip(&self, offset_bytes: u64, len: usize) -> usize {
        let left = self.attributes.size_bytes.saturating_sub(offset_bytes);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// The whole content in order, with `window_bytes` of reads in flight; holes as runs of their own.
    #[must_use]
    pub fn stream(&self, window_bytes: u64) -> DataStream {
        self.dnode.stream(0..self.attributes.size_bytes, window_bytes)
    }

    /// A range of the content, as [`File::stream`].
    #[must_use]
    pub fn stream_range(&self, range: Range<u64>, window_bytes: u64) -> DataStream {
        self.dnode.stream(range.start..range.end.min(self.attributes.size_bytes), window_bytes)
    }

    /// `SEEK_DATA`: the first offset at or after `offset_bytes` that is not in a hole; `None` if there is none.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        self.next(offset_bytes, true).await
    }

    /// `SEEK_HOLE`: the first offset at or after `offset_bytes` in a hole, or the end; `None` past the end.
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        if offset_bytes >= self.attributes.size_bytes {
            return Ok(None);
        }
        Ok(Some(self.next(offset_bytes, false).await?.unwrap_or(self.attributes.size_bytes)))
    }

    async fn next(&self, offset_bytes: u64, data: bool) -> Result<Option<u64>, ZplError> {
        let (size, block_size) = (self.attributes.size_bytes, self.dnode.block_bytes());
        if offset_bytes >= size || block_size == 0 {
            return Ok(None);
        }
        let from = BlockId(offset_bytes / block_size);
        if !data && from > self.dnode.last_block() {
            return Ok(Some(offset_bytes));
        }
        let found =
            if data { self.dnode.next_data_block(from).await? } else { self.dnode.next_hole_block(from).await? };
        // Past the last block there are only zeros.
        let past_last = (self.dnode.last_block().0.saturating_add(1)).saturating_mul(block_size);
        let at = match found {
            Some(block) => block.0.saturating_mul(block_size),
            None if data => return Ok(None),
            None => past_last,
        };
        Ok(Some(at.max(offset_bytes)).filter(|at| *at < size))
    }
}

impl FileSystem {
    /// Opens a regular file.
    pub async fn open_file(&self, id: ObjectId) -> Result<File, ZplError> {
        let dnode = self.dnode(id).await?;
        let attributes = self.attributes_of(&dnode).await?;
        match attributes.kind {
            FileKind::File => Ok(File { ahead: Some(dnode.zfetch()), dnode, attributes }),
            FileKind::Directory => Err(ZplError::IsDirectory),
            _ => Err(ZplError::Unsupported("not a regular file".into())),
        }
    }

    /// The target of a symbolic link: any bytes.
    pub async fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, ZplError> {
        let dnode = self.dnode(id).await?;
        let values = self.sa().record(&dnode).await?;
        let mode = values.u64(ZplAttribute::Mode);
        if FileKind::of_mode(mode) != Some(FileKind::Symlink) {
            return Err(ZplError::NotSymlink);
        }
        if let Some(target) = values.bytes(ZplAttribute::Symlink) {
            return Ok(target.to_vec());
        }
        let size = values.u64(ZplAttribute::Size);
        if size > TARGET_MAX_BYTES {
            return Err(ZplError::Corrupt { object: id.0, what: format!("a link target of {size} bytes") });
        }
        let len = size as usize;
        if dnode.phys().bonus_type == DmuType::ZNODE
            && let Some(target) = dnode.phys().bonus.get(ZNODE_BYTES..ZNODE_BYTES + len)
        {
            return Ok(target.to_vec());
        }
        Ok(dnode.read(0, len).await?.to_vec())
    }
}
