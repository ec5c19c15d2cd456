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
    volume: Volume,
    range: RangeGuard,
    bytes: Range<u64>,
}

impl Volume {
    /// Waits until nothing else changes a block of this range, and keeps others away from them until the claim is dropped. The
    /// txg is to be asked for after this.
    ///
    /// # Errors
    /// The range does not lie within the volume.
    #[boxed]
    pub async fn claim(&self, offset_bytes: u64, len_bytes: u64) -> Result<Claim, VolumeError> {
        let bytes = offset_bytes..offset_bytes.saturating_add(len_bytes);
        // The size is from disk: it may be the largest number, which no range reaches that has an end.
        if offset_bytes.checked_add(len_bytes).is_none() {
            return Err(VolumeError::BeyondEnd { bytes, size_bytes: self.size_bytes() });
        }
        let range = self.shared.data.lock_bytes(offset_bytes, len_bytes).await;
        // Not before: it may have changed meanwhile.
        let size_bytes = self.size_bytes();
        if bytes.end > size_bytes {
            return Err(VolumeError::BeyondEnd { bytes, size_bytes });
        }
        let (size, blocks) = (self.shared.block_bytes, range.blocks());
        debug_assert!(
            bytes.is_empty() || (blocks.start * size <= bytes.start && bytes.end <= blocks.end.saturating_mul(size)),
            "a claim has all blocks of its bytes (invariant 2)"
        );
        Ok(Claim { volume: self.clone(), range, bytes })
    }

    /// As [`Volume::claim`], of everything.
    #[boxed]
    pub async fn claim_all(&self) -> Claim {
        let range = self.shared.data.lock_range(0..u64::MAX).await;
        Claim { volume: self.clone(), range, bytes: 0..self.size_bytes() }
    }
}

impl Claim {
    /// The object that has the volume's data.
    pub(crate) fn object(&self) -> &Object {
        self.range.object()
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<Range<u64>, VolumeError> {
        debug_assert!(
            self.bytes.is_empty() || self.bytes.end <= self.volume.size_bytes(),
            "a volume becomes no smaller while a part of it is claimed (invariant 1)"
        );
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
            assert!(
                self.bytes.start <= whole.start * size && whole.end * size <= self.bytes.end,
                "no byte outside of the claim is freed (invariant 2)"
            );
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
            debug_assert!(len > 0 && at % size + len <= size, "zeros are written block by block (invariant 2)");
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
        assert_eq!(self.range.blocks(), &(0..u64::MAX), "a size changes with the claim of all blocks (invariant 1)");
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
