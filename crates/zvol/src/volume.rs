//! Volumes: the data and the size of one, as of a root or with the changes that are on their way to disk.
//!
//! # Theory of writing
//!
//! **Need.** A file system, a database or a virtual machine keeps its blocks in a volume and writes them at any offset, in any size, many
//! at once. It reads its own writes back at once; data reported durable is there after a crash.
//!
//! **In memory.** Nothing but the size and what readers have been seen to do: what has changed is in the layers of the data
//! object ([`cenote_dmu::sync`]), blocks that were read are in the cache.
//!
//! **Life of a write.**
//! 1. [`Volume::claim`] locks the blocks of the range, and checks that the range lies within the
//!    volume.
//! 2. The caller gets a txg that is open, and holds it. In this order: see [`cenote_dmu::Object::lock_range`].
//! 3. [`Claim::write`](crate::Claim::write) copies whole blocks into buffers, and of those that are written in part reads the rest first: the newest
//!    layer, the cache or the disk has it.
//! 4. Claim and txg are let go. Every read from now on sees this. The txg's sync makes it durable; a caller that must know waits for it.
//!
//! **Zeros.** [`Claim::clear`](crate::Claim::clear) frees whole blocks, so that they are holes, and clears parts of others where there is data.
//! [`Claim::discard`](crate::Claim::discard) frees whole blocks only. [`Claim::write_zeros`](crate::Claim::write_zeros) writes zeros as data: with compression they become holes all
//! the same when they are stored.
//!
//! **Size.** It changes with the claim of all blocks ([`Volume::claim_all`]), so no write is under way, and one that waited looks at the
//! new size. Blocks behind the new end are freed with it.
//!
//! **Invariants.**
//! 1. No byte behind the size is ever written, and when it grows what comes into view is zeros.
//! 2. Two changes of one block are made one after the other, in the order of their txgs.
//! 3. A block that is replaced as a whole is not read.
//!
//! **Crash.** The volume is as of the last txg that was synced.
//!
//! **Rejected.** *A lock for ranges of bytes*, as the original has: two changes of one block would both read it, and one be lost.
//! *A lock for the volume*: a disk has a queue.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::{DataStream, DmuError, Object, ObjectSpec, Objset, Zap, Zfetch};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// The object with the data, fixed by the format.
pub(crate) const DATA_OBJECT: ObjectId = ObjectId(1);
/// The object with the properties, fixed by the format.
const PROPERTIES_OBJECT: ObjectId = ObjectId(2);
/// The entry of the properties that is the size.
pub(crate) const SIZE: &str = "size";

/// The smallest block, in bytes.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// The largest block, in bytes. Above 128 KiB the pool must have the feature `large_blocks`.
pub const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// Why a volume cannot be made or changed.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// Of the objects below.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// Bytes that the volume does not have.
    #[error("bytes {start} to {end} do not lie within a volume of {size_bytes} bytes", start = .bytes.start, end = .bytes.end)]
    BeyondEnd {
        /// Those asked for.
        bytes: Range<u64>,
        /// The volume's size in bytes.
        size_bytes: u64,
    },
    /// A size that no volume of this block size has.
    #[error("volume size {size_bytes} is not a multiple of the volume block size {block_bytes}, or is zero")]
    BadSize {
        /// The size asked for, in bytes.
        size_bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// A block size that no volume has.
    #[error("volume block size {0} is not a power of two from 512 to 16M")]
    BadBlockSize(u32),
}

/// The parameters of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its size (`volsize`) in bytes: a multiple of the block size, not 0.
    pub size_bytes: u64,
    /// Bytes of a block (`volblocksize`): a power of two.
    pub block_bytes: u32,
}

impl VolumeSpec {
    /// Whether there can be such a volume.
    ///
    /// # Errors
    /// There cannot.
    pub const fn check(&self) -> Result<(), VolumeError> {
        let Self { size_bytes, block_bytes } = *self;
        if !block_bytes.is_power_of_two() || block_bytes < BLOCK_BYTES_MIN || block_bytes > BLOCK_BYTES_MAX {
            return Err(VolumeError::BadBlockSize(block_bytes));
        }
        check_size(size_bytes, block_bytes as u64)
    }
}

pub(crate) const fn check_size(size_bytes: u64, block_bytes: u64) -> Result<(), VolumeError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) || size_bytes > i64::MAX as u64 {
        return Err(VolumeError::BadSize { size_bytes, block_bytes });
    }
    Ok(())
}

/// A volume or a snapshot of one. Cheap to clone. Of a volume that is changed there is one, and clones of it.
#[derive(Clone)]
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
    /// The prefetcher over all of its readers. Absent: nothing is loaded ahead.
    zfetch: Option<Arc<Zfetch>>,
}

pub(crate) struct Shared {
    pub(crate) data: Object,
    pub(crate) properties: Object,
    pub(crate) block_bytes: u64,
    pub(crate) size_bytes: AtomicU64,
}

impl Volume {
    /// Makes a volume of an open objset without objects.
    ///
    /// # Errors
    /// There can be no such volume, or the objset has objects.
    #[boxed]
    pub async fn create(objset: &Objset, txg: Txg, spec: &VolumeSpec) -> Result<Self, VolumeError> {
        spec.check()?;
        let data = objset.create_at(txg, DATA_OBJECT, &ObjectSpec::new(DmuType::ZVOL, spec.block_bytes))?;
        let properties = objset.create_at(txg, PROPERTIES_OBJECT, &ObjectSpec::new(DmuType::ZVOL_PROP, 512))?;
        assert_eq!(data.block_bytes(), u64::from(spec.block_bytes), "a volume has the blocks that were asked for");
        let mut zap = Zap::create(properties.clone())?;
        zap.insert_u64(SIZE, spec.size_bytes).await?;
        zap.flush(txg).await?;
        Ok(Self::new(data, properties, spec.size_bytes))
    }

    /// Opens the volume in `objset`. It can be changed if the objset can.
    ///
    /// # Errors
    /// The objset has none, or it cannot be read.
    #[boxed]
    pub async fn open(objset: &Objset) -> Result<Self, DmuError> {
        let properties = objset.object(PROPERTIES_OBJECT).await?;
        let size_bytes = Zap::open(properties.clone()).await?.lookup_u64(SIZE).await?;
        let data = objset.object(DATA_OBJECT).await?;
        Ok(Self::new(data, properties, size_bytes))
    }

    fn new(data: Object, properties: Object, size_bytes: u64) -> Self {
        let (block_bytes, size_bytes) = (data.block_bytes(), AtomicU64::new(size_bytes));
        let zfetch = Some(data.zfetch());
        Self { shared: Arc::new(Shared { data, properties, block_bytes, size_bytes }), zfetch }
    }

    /// Its size (`volsize`) in bytes, as of now.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.shared.size_bytes.load(Ordering::Acquire)
    }

    /// The size of its blocks (`volblocksize`) in bytes.
    #[must_use]
    pub fn block_size_bytes(&self) -> u64 {
        self.shared.block_bytes
    }

    fn clip(&self, offset_bytes: u64, len: usize) -> usize {
        let left = self.size_bytes().saturating_sub(offset_bytes);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Up to `len` bytes at `offset_bytes` as of the newest change; fewer only at the end.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        let len = self.clip(offset_bytes, len);
        match &self.zfetch {
            Some(zfetch) => self.shared.data.read_prefetching(offset_bytes, len, zfetch).await,
            None => self.shared.data.read(offset_bytes, len).await,
        }
    }

    /// As [`Volume::read`], past the cache and with nothing loaded ahead, for clients that keep what they read: see
    /// [`Object::read_direct`].
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        self.shared.data.read_direct(offset_bytes, self.clip(offset_bytes, len)).await
    }

    /// The same volume for a reader of its own kind: what is read through the other has no bearing on what is loaded
    /// ahead here, and nothing is if `ahead` is false.
    #[must_use]
    pub fn reopened(&self, ahead: bool) -> Self {
        let zfetch = ahead.then(|| self.shared.data.zfetch());
        Self { shared: Arc::clone(&self.shared), zfetch }
    }

    /// The whole content in order, with `window_bytes` of reads in flight; holes as runs of their own.
    #[must_use]
    pub fn stream(&self, window_bytes: u64) -> DataStream {
        self.shared.data.stream(0..self.size_bytes(), window_bytes)
    }

    /// The extent that `offset_bytes` lies in, up to `limit_bytes` at most: where it ends, and whether it is a hole.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    #[boxed]
    pub async fn extent(&self, offset_bytes: u64, limit_bytes: u64) -> Result<(Range<u64>, bool), DmuError> {
        let limit = limit_bytes.min(self.size_bytes());
        let size = self.shared.block_bytes.max(1);
        if offset_bytes >= limit {
            return Ok((offset_bytes..offset_bytes, true));
        }
        let extent = self.shared.data.extent(offset_bytes / size, limit.div_ceil(size)).await?;
        let end = extent.blocks.end.saturating_mul(size).min(limit);
        debug_assert!(end > offset_bytes, "an extent has the byte that was asked for");
        Ok((offset_bytes..end, extent.is_hole))
    }

    /// The first offset at or after `offset_bytes` with data, as of the newest change; nothing where only holes follow.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    #[boxed]
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, DmuError> {
        let size = self.shared.block_bytes.max(1);
        let block = self.shared.data.next_data_block(BlockId(offset_bytes / size)).await?;
        Ok(block.map(|block| block.0.saturating_mul(size).max(offset_bytes)))
    }
}
