//! Volumes of a pool as block devices.
//!
//! # Theory
//!
//! **Need.** A volume is an objset with one large object; clients want its size and its bytes at any offset, and which
//! ranges are holes, so that they can be skipped.
//!
//! **On disk.** Object 1 is the data, with blocks of `volblocksize`; object 2 is a ZAP whose entry `size` is `volsize`
//! in bytes. A snapshot of a volume is the same, frozen.
//!
//! **Life of a read.** Offset and length to the data object, which reads the blocks concurrently and returns one buffer;
//! within one block nothing is copied.
//!
//! **Invariants.** Nothing is read past `volsize`. The size comes from the pool and is not trusted for any allocation.
//!
//! **Rejected.** A layer of its own for caching: the block cache is below.
//!
//! **Writing** has a theory of its own: [`mod@write`]; so has what clients of a volume in use are told: [`mod@live`].

pub mod live;
pub mod write;

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::zap::Zap;
use cenote_dmu::{Ahead, DataStream, DmuError, Dnode, Objset};
use cenote_format::ids::{BlockId, ObjectId};
use cenote_taskq::buf::Block;

/// The object with the data, fixed by the format.
const DATA_OBJECT: ObjectId = ObjectId(1);
/// The object with the properties, fixed by the format.
const PROPERTIES_OBJECT: ObjectId = ObjectId(2);
/// The entry of the properties that is the size.
const SIZE: &str = "size";

/// An opened volume or snapshot of one. Cheap to clone.
#[derive(Clone)]
pub struct Volume {
    data: Dnode,
    size_bytes: u64,
    /// What its readers do, taken together. Absent: nothing is loaded ahead.
    ahead: Option<Arc<Ahead>>,
}

impl Volume {
    /// Opens the volume in `objset`.
    pub async fn open(objset: Objset) -> Result<Self, DmuError> {
        let properties = Zap::open(objset.object(PROPERTIES_OBJECT).await?).await?;
        let size_bytes = properties.lookup_u64(SIZE).await?;
        let data = objset.object(DATA_OBJECT).await?;
        Ok(Self { ahead: Some(Ahead::new(&data)), data, size_bytes })
    }

    /// Its size (`volsize`) in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The size of its blocks (`volblocksize`) in bytes.
    #[must_use]
    pub fn block_size_bytes(&self) -> u64 {
        self.data.data_block_size_bytes()
    }

    /// Up to `len` bytes at `offset_bytes`; fewer only at the end.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        let len = self.clip(offset_bytes, len);
        match &self.ahead {
            Some(ahead) => self.data.read_ahead(offset_bytes, len, ahead).await,
            None => self.data.read(offset_bytes, len).await,
        }
    }

    /// As [`Volume::read`], past the cache and with nothing loaded ahead, for whoever keeps what it reads: see
    /// [`Dnode::read_direct`].
    pub async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        self.data.read_direct(offset_bytes, self.clip(offset_bytes, len)).await
    }

    /// The same volume for a reader of its own kind: what is read through the other has no bearing on what is loaded
    /// ahead here, and nothing is if `ahead` is false.
    #[must_use]
    pub fn reopened(&self, ahead: bool) -> Self {
        let ahead = ahead.then(|| Ahead::new(&self.data));
        Self { data: self.data.clone(), size_bytes: self.size_bytes, ahead }
    }

    fn clip(&self, offset_bytes: u64, len: usize) -> usize {
        let left = self.size_bytes.saturating_sub(offset_bytes);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// The whole content in order, with `window_bytes` of reads in flight; holes as runs of their own.
    #[must_use]
    pub fn stream(&self, window_bytes: u64) -> DataStream {
        self.data.stream(0..self.size_bytes, window_bytes)
    }

    /// The extent that `offset_bytes` lies in, up to `limit_bytes`: its end, and whether it is a hole.
    pub async fn extent(&self, offset_bytes: u64, limit_bytes: u64) -> Result<(Range<u64>, bool), DmuError> {
        let limit = limit_bytes.min(self.size_bytes);
        let size = self.block_size_bytes().max(1);
        let block = BlockId(offset_bytes / size);
        let data = self.data.next_data_block(block).await?;
        let data_start = data.map_or(limit, |data| data.0.saturating_mul(size)).min(limit);
        if data_start > offset_bytes {
            return Ok((offset_bytes..data_start, true));
        }
        let hole = self.data.next_hole_block(block).await?;
        let past_last = self.data.last_block().0.saturating_add(1).saturating_mul(size);
        let hole_start = hole.map_or(past_last, |hole| hole.0.saturating_mul(size)).min(limit);
        Ok((offset_bytes..hole_start.max(offset_bytes), false))
    }
}
