//! Volumes of a pool that is open for writing, as clients of block devices change them.
//!
//! # Theory
//!
//! **Need.** A block device's client sends writes, zeros and discards of any size, and is told when they are on disk: by the answer
//! to a flush, or by the answer to a request with *forced unit access*. Since the answer promises durability, one function decides about
//! it for all front ends.
//!
//! **Life of a request.** It is split into steps, each in one txg: lock the range of blocks, hold the txg, change the blocks. The request
//! is complete after its last step; a crash may leave any number of its steps done, as a disk may have written any number of sectors.
//! Then [`LiveVolume::commit_if_sync`] waits where the request or the property `sync` asks for it; [`LiveVolume::flush`] waits for
//! everything that was changed so far. Both use the volume's [`Log`], to which each step adds an itx.
//!
//! **Invariants.**
//! 1. The txg of a step is noted before the step changes anything, so a flush that comes after the answer waits for it.
//! 2. A request holds one txg for a bounded number of bytes or blocks.
//!
//! **Rejected.** *One txg for the whole request*: a discard of a terabyte would hold up every other client's flush.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_dmu::tx::{Cost, SyncMode, TxError, TxgSource};
use cenote_dmu::{LogBlock, Objset};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zil::Tx as Record;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_zil::{Log, LogData, LogDataError, LogTxg, ReplayError, WriteShape};
use thiserror::Error;

use crate::volume::DATA_OBJECT;
use crate::{Claim, Volume, VolumeError};

/// A request holds one txg for so many bytes at most, so that a large one does not hold up the others' flushes.
const WRITE_STEP_BYTES: u64 = 4 << 20;
/// Blocks that are freed in one step at most: those below one lowest indirect block. They count as dirty, so a discard of a terabyte
/// waits like any other change once the txg holds as many pointers as memory allows.
const FREE_STEP_BLOCKS: u64 = 1 << 10;

/// Why a change of a live volume was not made, or is not known to be on disk.
#[derive(Debug, Error)]
pub enum LiveVolumeError {
    /// No space, or the pool is closed or suspended, or a txg could not be written.
    #[error(transparent)]
    Tx(#[from] TxError),
    /// The range or the size is wrong, or what stands around the range cannot be read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Its intent log is there and cannot be replayed; it stays as it is.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The property `readonly` is on.
    #[error("the volume is read-only: its property 'readonly' is on")]
    ReadOnly,
}

/// How a range is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// Zeros are written.
    Written,
    /// Whole blocks are freed, the rest is zeros.
    Freed,
    /// Whole blocks are freed, the rest stays as it is.
    Discarded,
}

/// The end of a step of a write that begins at `at`: at least `step_bytes` later, and the end of a block.
fn step_end(at: u64, step_bytes: u64, block_bytes: u64) -> u64 {
    at.saturating_add(step_bytes).checked_next_multiple_of(block_bytes).unwrap_or(u64::MAX)
}

/// A volume that clients change.
pub struct LiveVolume {
    pub(crate) objset: Objset,
    pub(crate) log: Arc<Log>,
    volume: Volume,
    /// Where the log reads data.
    _data: Arc<LoggedVolume>,
    is_read_only: AtomicBool,
}

/// Data for the intent log: read when a write that was noted becomes a record.
struct LoggedVolume(Objset, Volume);

impl LogData for LoggedVolume {
    #[boxed]
    async fn read(
        &self,
        _object: ObjectId,
        _generation: u64,
        offset_bytes: u64,
        len: usize,
    ) -> Result<Option<Block>, LogDataError> {
        // It may have become smaller.
        let claim = match self.1.claim(offset_bytes, len as u64).await {
            Ok(claim) => claim,
            Err(VolumeError::BeyondEnd { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let read = self.1.read(offset_bytes, len).await;
        drop(claim);
        Ok(Some(read?))
    }

    #[boxed]
    async fn block(
        &self,
        _object: ObjectId,
        _generation: u64,
        bytes: Range<u64>,
        at: LogTxg<'_>,
    ) -> Result<Option<LogBlock>, LogDataError> {
        let claim = match self.1.claim(bytes.start, bytes.end - bytes.start).await {
            Ok(claim) => claim,
            Err(VolumeError::BeyondEnd { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let block = at.block(&self.0, claim.object(), &bytes);
        drop(claim);
        Ok(block)
    }
}

impl LiveVolume {
    /// Opens the volume of a head dataset, whose changes go to txgs of `log`, which is told of all of them. Nobody gets it before
    /// [`Self::replay`].
    ///
    /// # Errors
    /// It is no volume, or it cannot be read.
    #[boxed]
    pub async fn open(objset: &Objset, log: Log) -> Result<Self, VolumeError> {
        let volume = Volume::open(objset).await?;
        let (objset, log) = (objset.clone(), Arc::new(log));
        let data = Arc::new(LoggedVolume(objset.clone(), volume.reopened(false)));
        let weak: std::sync::Weak<LoggedVolume> = Arc::downgrade(&data);
        log.set_data(weak);
        Ok(Self { objset, log, volume, _data: data, is_read_only: AtomicBool::new(false) })
    }

    /// Obeys another value of the property `sync` from the next request on.
    pub fn set_sync(&self, sync: SyncMode) {
        self.log.set_mode(sync);
    }

    /// Has the volume obey another value of its property `readonly`, from now on, whoever has it open.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::SeqCst);
    }

    /// Has writes logged for throughput or for latency, as the property `logbias` says: from now on.
    pub fn set_for_throughput(&self, is_for_throughput: bool) {
        self.log.set_for_throughput(is_for_throughput);
    }

    /// Whether writing is refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::SeqCst)
    }

    /// Its dataset.
    #[must_use]
    pub fn dataset(&self) -> ObjectId {
        ObjectId(self.objset.id().0)
    }

    /// The volume, to be read.
    #[must_use]
    pub const fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Gives the volume another size in bytes, on disk when this returns. Clients that are connected see the old one, and nothing
    /// behind the new. Gives the txg that has it.
    ///
    /// # Errors
    /// It can have no such size, there is no space, or the txg could not be written.
    #[boxed]
    pub async fn resize(&self, size_bytes: u64) -> Result<Txg, LiveVolumeError> {
        let mut claim = self.volume.claim_all().await;
        let tx = self.log.begin(Cost::objects(2).that_frees()).await?;
        let txg = tx.txg();
        claim.resize(txg, size_bytes).await?;
        drop((tx, claim));
        self.log.wait_synced(txg).await?;
        Ok(txg)
    }

    /// Writes bytes at `offset_bytes`. Gives the txg of the last of them, if there are any.
    ///
    /// # Errors
    /// They do not lie within the volume, there is no space, or what stands around them cannot be read: then some of them may
    /// have been written.
    pub async fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<Option<Txg>, LiveVolumeError> {
        if self.is_read_only() {
            return Err(LiveVolumeError::ReadOnly);
        }
        let last = self.write_in(offset_bytes, data).await?;
        self.objset.count(|stats| stats.wrote(data.len() as u64));
        Ok(last)
    }

    /// The same, whatever the property `readonly` says.
    pub(crate) async fn write_in(&self, offset_bytes: u64, data: &[u8]) -> Result<Option<Txg>, LiveVolumeError> {
        let block_bytes = self.volume.block_size_bytes();
        let claim = self.claim(offset_bytes, data.len() as u64).await?;
        let (mut at, mut rest, mut last) = (offset_bytes, data, None);
        while !rest.is_empty() {
            // Up to the end of a block, so that none is written twice.
            let end = step_end(at, WRITE_STEP_BYTES, block_bytes);
            let (part, later) = rest.split_at(rest.len().min((end - at) as usize));
            assert!(
                !part.is_empty() && part.len() as u64 <= WRITE_STEP_BYTES + block_bytes,
                "a txg is held for so many bytes at most (invariant 2)"
            );
            let mut tx = self.log.begin_change(Cost::write(at, part.len() as u64, block_bytes)).await?;
            claim.write(tx.txg(), at, part).await?;
            last = Some(tx.txg());
            let is_awaited = self.log.mode() == SyncMode::Always;
            let small_bytes = self.objset.policy().small_bytes_of(DmuType::ZVOL);
            let shape = WriteShape { block_bytes, small_bytes, is_awaited };
            tx.log_write(DATA_OBJECT, 0, at..at + part.len() as u64, shape, None);
            drop(tx);
            at += part.len() as u64;
            rest = later;
        }
        debug_assert_eq!(at, offset_bytes + data.len() as u64, "a write is complete after its last step");
        Ok(last)
    }

    /// Counts what a client has read of [`LiveVolume::volume`].
    pub fn count_read(&self, bytes: u64) {
        self.objset.count(|stats| stats.read(bytes));
    }

    /// Frees a range, or has it be zeros, step by step; holes are passed over where blocks are freed. Gives the txg of the last step,
    /// if there was anything to do.
    ///
    /// # Errors
    /// As [`LiveVolume::write`].
    #[boxed]
    pub async fn clear(&self, offset_bytes: u64, len_bytes: u64, how: Clear) -> Result<Option<Txg>, LiveVolumeError> {
        if self.is_read_only() {
            return Err(LiveVolumeError::ReadOnly);
        }
        self.clear_in(offset_bytes, len_bytes, how).await
    }

    /// The same, whatever the property `readonly` says.
    pub(crate) async fn clear_in(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        how: Clear,
    ) -> Result<Option<Txg>, LiveVolumeError> {
        let block_bytes = self.volume.block_size_bytes();
        let step = match how {
            Clear::Written => WRITE_STEP_BYTES,
            Clear::Freed | Clear::Discarded => FREE_STEP_BLOCKS.saturating_mul(block_bytes),
        };
        let (mut at, end, mut last) = (offset_bytes, offset_bytes.saturating_add(len_bytes), None);
        let size_bytes = self.volume.size_bytes();
        if end > size_bytes {
            return Err(VolumeError::BeyondEnd { bytes: at..end, size_bytes }.into());
        }
        while at < end {
            if how != Clear::Written {
                match self.volume.next_data(at).await.map_err(VolumeError::from)?.filter(|data| *data < end) {
                    Some(data) => at = data,
                    None => break,
                }
            }
            let next = at.saturating_add(1).checked_next_multiple_of(step).unwrap_or(end).min(end);
            assert!(at < next && next - at <= step, "a txg is held for so many bytes at most (invariant 2)");
            let claim = self.claim(at, next - at).await?;
            let cost = match how {
                Clear::Written => Cost::write(at, next - at, block_bytes),
                // The blocks at both ends.
                Clear::Freed => Cost::objects(1).with_blocks(2, block_bytes).that_frees(),
                Clear::Discarded => Cost::objects(1).that_frees(),
            };
            let mut tx = self.log.begin_change(cost).await?;
            if how != Clear::Written {
                self.objset.count_frees(tx.txg(), (next - at).div_ceil(block_bytes));
            }
            match how {
                Clear::Written => claim.write_zeros(tx.txg()).await?,
                Clear::Freed => claim.clear(tx.txg()).await?,
                Clear::Discarded => claim.discard(tx.txg()),
            }
            let cleared = match how {
                Clear::Written | Clear::Freed => at..next,
                // Blocks at the ends that it covers in part stay as they are.
                Clear::Discarded => {
                    at.checked_next_multiple_of(block_bytes).unwrap_or(next)..next / block_bytes * block_bytes
                }
            };
            match cleared.is_empty() {
                true => tx.needs_no_record(),
                false => tx.log(Record::Truncate {
                    object: DATA_OBJECT,
                    offset_bytes: cleared.start,
                    length_bytes: cleared.end - cleared.start,
                }),
            }
            last = Some(tx.txg());
            at = next;
        }
        Ok(last)
    }

    /// The end of a request that has changed something: waits until it is on disk where `fua` or the property `sync` asks for it.
    ///
    /// # Errors
    /// A txg could not be written.
    #[boxed]
    pub async fn commit_if_sync(&self, fua: bool) -> Result<(), LiveVolumeError> {
        Ok(self.log.commit_if_sync(fua, Some(DATA_OBJECT)).await?)
    }

    /// Waits until everything that was changed so far is on disk; with `sync=disabled` it returns at once.
    ///
    /// # Errors
    /// A txg could not be written.
    #[boxed]
    pub async fn flush(&self) -> Result<(), LiveVolumeError> {
        Ok(self.log.sync(Some(DATA_OBJECT)).await?)
    }

    async fn claim(&self, offset_bytes: u64, len_bytes: u64) -> Result<Claim, VolumeError> {
        self.volume.claim(offset_bytes, len_bytes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_a_block_also_in_a_volume_whose_size_on_disk_is_the_largest_number() {
        assert_eq!(step_end(0, 4096, 512), 4096);
        assert_eq!(step_end(100, 4096, 512), 4608);
        assert_eq!(step_end(u64::MAX - 5, 4096, 512), u64::MAX);
        assert_eq!(step_end(u64::MAX - 4097, 4096, 512), u64::MAX);
    }
}
