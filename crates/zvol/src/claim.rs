//! Changes of a range of a volume, which the caller has for itself.

use std::ops::Range;

use cenote_dmu::{Object, RangeGuard, Zap};
use cenote_format::ids::Txg;
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_taskq::buf::Buf;
use cenote_taskq::sync::atomic::Ordering;

use crate::volume::{SIZE, Volume, VolumeError, check_size};

/// A range of a volume that nothing else changes until this is dropped. Each change is of a txg that the caller holds open
/// meanwhile, and got after the claim.
#[must_use]
pub struct Claim {
    pub(crate) volume: Volume,
    pub(crate) range: RangeGuard,
    pub(crate) bytes: Range<u64>,
}

impl Claim {
    /// The range, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Range<u64> {
        &self.bytes
    }

    /// The object that has the volume's data.
    pub(crate) fn object(&self) -> &Object {
        self.range.object()
    }

    /// Bytes of the blocks that the range touches: what a write dirties at most.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let blocks = self.range.blocks();
        (blocks.end - blocks.start).saturating_mul(self.volume.block_size_bytes())
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<Range<u64>, VolumeError> {
        let bytes = offset_bytes..offset_bytes.saturating_add(len_bytes);
        if bytes.start < self.bytes.start || bytes.end > self.bytes.end {
            return Err(VolumeError::BeyondEnd { bytes, size_bytes: self.volume.size_bytes() });
        }
        Ok(bytes)
    }

    /// Writes bytes of the range.
    ///
    /// # Errors
    /// They are not within it, or what stands around them cannot be read.
    pub async fn write(&self, txg: Txg, offset_bytes: u64, data: &[u8]) -> Result<(), VolumeError> {
        self.check(offset_bytes, data.len() as u64)?;
        Ok(self.range.object().write_in(&self.range, txg, offset_bytes, data).await?)
    }

    /// Makes the range zeros, by freeing whole blocks.
    ///
    /// # Errors
    /// The data around it cannot be read.
    #[boxed]
    pub async fn clear(&self, txg: Txg) -> Result<(), VolumeError> {
        Ok(self.range.object().clear_in(&self.range, txg, self.bytes.clone()).await?)
    }

    /// Frees the blocks that lie within the range as a whole. The rest stays as it is.
    pub fn discard(&self, txg: Txg) {
        let size = self.volume.block_size_bytes();
        let whole = self.bytes.start.div_ceil(size)..self.bytes.end / size;
        if !whole.is_empty() {
            self.range.object().free_blocks(txg, whole);
        }
    }

    /// Writes zeros over the range: blocks of them, unless compression makes holes of those.
    ///
    /// # Errors
    /// The data around it cannot be read.
    #[boxed]
    pub async fn write_zeros(&self, txg: Txg) -> Result<(), VolumeError> {
        let size = self.volume.block_size_bytes();
        let zeros = Buf::zeroed(size as usize).freeze();
        let mut at = self.bytes.start;
        while at < self.bytes.end {
            let len = (size - at % size).min(self.bytes.end - at);
            if len == size {
                // The same zeros for all.
                self.range.object().write_block(txg, at / size, zeros.clone());
            } else {
                self.range.object().write_in(&self.range, txg, at, &zeros[..len as usize]).await?;
            }
            at += len;
        }
        Ok(())
    }

    /// Gives the volume another size, with the claim of all of it ([`Volume::claim_all`]). Blocks behind a smaller size are freed.
    ///
    /// # Errors
    /// It can have no such size.
    #[boxed]
    pub async fn resize(&mut self, txg: Txg, size_bytes: u64) -> Result<(), VolumeError> {
        debug_assert_eq!(self.range.blocks(), &(0..u64::MAX));
        let shared = &self.volume.shared;
        check_size(size_bytes, shared.block_bytes)?;
        Zap::put_entry(&shared.properties, txg, SIZE, Some(&ZapValue::from_u64(size_bytes))).await?;
        if size_bytes < self.bytes.end {
            shared.data.shrink(txg, size_bytes / shared.block_bytes);
        }
        shared.size_bytes.store(size_bytes, Ordering::Release);
        self.bytes = 0..size_bytes;
        Ok(())
    }
}
