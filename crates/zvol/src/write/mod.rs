//! Volumes that are written.
//!
//! # Theory
//!
//! **Need.** A file system, a database or a virtual machine keeps its blocks in a volume and writes them at any offset, in any
//! size, many at once. What it wrote it reads back at once; what it was told to be durable is there after a crash.
//!
//! **On disk.** As for reading: object 1 with the data, object 2 with the size. Both have these numbers in every volume, and are
//! made with it.
//!
//! **In memory.** Nothing but the size and what readers have been seen to do: what has changed is in the layers of the data
//! object (`cenote_dmu::write`), blocks that were read are in the cache.
//!
//! **Life of a write.**
//! 1. [`VolumeMut::claim`] waits until nobody else changes any block of the range, and checks that the range lies within the
//!    volume.
//! 2. The caller gets a txg that is open, and holds it. In this order: see [`cenote_dmu::write::Turn`].
//! 3. [`Claim::write`] copies whole blocks into buffers, and of those that are written in part reads the rest first: the newest
//!    layer, the cache or the disk has it.
//! 4. Claim and txg are let go. Whoever reads from now on reads this. The txg's sync makes it durable; who must know waits for it.
//!
//! **Zeros.** [`Claim::clear`] frees whole blocks, so that they are holes, and clears parts of others where there is data.
//! [`Claim::discard`] frees whole blocks only. [`Claim::write_zeros`] writes zeros as data: with compression they become holes all
//! the same when they are stored.
//!
//! **Size.** It changes with the claim of all blocks ([`VolumeMut::claim_all`]), so no write is under way, and one that waited
//! looks at the new size. What lies behind the new end is freed with it.
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

mod claim;

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::write::{Object, ObjectSpec, ObjsetMut, ZapMut};
use cenote_dmu::{Ahead, DmuError};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::Txg;
use cenote_format::zap::ZapValue;
use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

use crate::{DATA_OBJECT, PROPERTIES_OBJECT, SIZE};

pub use claim::Claim;

/// Bytes of a block where nothing else is asked for.
pub const BLOCK_BYTES_DEFAULT: u32 = 16 << 10;
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

/// What a new volume is to be.
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

const fn check_size(size_bytes: u64, block_bytes: u64) -> Result<(), VolumeError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) || size_bytes > i64::MAX as u64 {
        return Err(VolumeError::BadSize { size_bytes, block_bytes });
    }
    Ok(())
}

/// A volume that can be written. Cheap to clone; there is one of each volume.
#[derive(Clone)]
pub struct VolumeMut {
    shared: Arc<Shared>,
}

struct Shared {
    data: Object,
    properties: Object,
    block_bytes: u64,
    size_bytes: AtomicU64,
    /// What readers do, taken together, and the last block that it knows of.
    ahead: Mutex<Option<(u64, Arc<Ahead>)>>,
}

impl VolumeMut {
    /// Makes a volume of an objset without objects.
    ///
    /// # Errors
    /// There can be no such volume, or the objset has objects.
    pub async fn create(objset: &ObjsetMut, txg: Txg, spec: &VolumeSpec) -> Result<Self, VolumeError> {
        spec.check()?;
        let data = objset.create_at(txg, DATA_OBJECT, &ObjectSpec::new(DmuType::ZVOL, spec.block_bytes))?;
        let properties = objset.create_at(txg, PROPERTIES_OBJECT, &ObjectSpec::new(DmuType::ZVOL_PROP, 512))?;
        let mut zap = ZapMut::create(properties.clone())?;
        zap.insert_u64(SIZE, spec.size_bytes).await?;
        zap.flush(txg).await?;
        Ok(Self::new(data, properties, spec.size_bytes))
    }

    /// Opens the volume in `objset`.
    ///
    /// # Errors
    /// It has none, or it cannot be read.
    pub async fn open(objset: &ObjsetMut) -> Result<Self, VolumeError> {
        let properties = objset.object(PROPERTIES_OBJECT).await?;
        let size = ZapMut::open(properties.clone()).await?.lookup(SIZE.as_bytes()).await?;
        let missing = || cenote_dmu::DmuErrorKind::Corrupt("a volume without a size".to_owned());
        let size = size.as_ref().and_then(ZapValue::as_u64);
        let size = size.ok_or_else(|| DmuError::new(objset.id(), PROPERTIES_OBJECT, missing()))?;
        let data = objset.object(DATA_OBJECT).await?;
        Ok(Self::new(data, properties, size))
    }

    fn new(data: Object, properties: Object, size_bytes: u64) -> Self {
        let (block_bytes, size_bytes) = (data.block_bytes(), AtomicU64::new(size_bytes));
        Self { shared: Arc::new(Shared { data, properties, block_bytes, size_bytes, ahead: Mutex::new(None) }) }
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

    /// Up to `len` bytes at `offset_bytes` as of the newest change; fewer only at the end.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        let left = self.size_bytes().saturating_sub(offset_bytes);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.ahead() {
            Some(ahead) => self.shared.data.read_ahead(offset_bytes, len, &ahead).await,
            None => self.shared.data.read(offset_bytes, len).await,
        }
    }

    /// What readers do, for the tree on disk as far as it reaches now.
    fn ahead(&self) -> Option<Arc<Ahead>> {
        let dnode = self.shared.data.on_disk()?;
        let mut ahead = self.shared.ahead.lock();
        if ahead.as_ref().is_none_or(|(last, _)| *last != dnode.last_block().0) {
            *ahead = Some((dnode.last_block().0, Ahead::new(&dnode)));
        }
        ahead.as_ref().map(|(_, ahead)| ahead.clone())
    }

    /// The extent that `offset_bytes` lies in, up to `limit_bytes` at most: where it ends, and whether it is a hole.
    pub async fn extent(&self, offset_bytes: u64, limit_bytes: u64) -> Result<(Range<u64>, bool), DmuError> {
        let limit = limit_bytes.min(self.size_bytes());
        let size = self.shared.block_bytes;
        if offset_bytes >= limit {
            return Ok((offset_bytes..offset_bytes, true));
        }
        let extent = self.shared.data.extent(offset_bytes / size, limit.div_ceil(size)).await?;
        Ok((offset_bytes..extent.blocks.end.saturating_mul(size).min(limit), extent.is_hole))
    }

    /// Where data begins at or behind `offset_bytes`, as of the newest change; nothing where only holes follow.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, DmuError> {
        let size = self.shared.block_bytes;
        let block = self.shared.data.next_data_block(offset_bytes / size).await?;
        Ok(block.map(|block| block.saturating_mul(size).max(offset_bytes)))
    }

    /// Waits until nobody else changes a block of this range, and keeps others away from them until the claim is dropped. The
    /// txg is to be asked for after this.
    ///
    /// # Errors
    /// The range does not lie within the volume.
    pub async fn claim(&self, offset_bytes: u64, len_bytes: u64) -> Result<Claim, VolumeError> {
        let bytes = offset_bytes..offset_bytes.saturating_add(len_bytes);
        let turn = self.shared.data.turn_of_bytes(offset_bytes, len_bytes).await;
        // Not before: it may have changed meanwhile.
        let size_bytes = self.size_bytes();
        if bytes.end > size_bytes {
            return Err(VolumeError::BeyondEnd { bytes, size_bytes });
        }
        Ok(Claim { volume: self.clone(), turn, bytes })
    }

    /// As [`VolumeMut::claim`], of everything.
    pub async fn claim_all(&self) -> Claim {
        let turn = self.shared.data.turn(0..u64::MAX).await;
        Claim { volume: self.clone(), turn, bytes: 0..self.size_bytes() }
    }
}
