//! The bytes that a volume of a given size and block size takes in a pool of this layout.
//!
//! Datasets count allocated bytes less the share that parity takes of a block of 128 KiB. Small blocks lose more to parity and padding than
//! that, so a volume of small blocks may count more bytes than its size; and its indirect blocks count too. The reservation of a volume has
//! to be enough however the volume is written: uncompressed, and on the top-level vdev where it takes most.

use cenote_dsl::{Dir, Dsl};
use cenote_format::ids::{Txg, VdevId};
use cenote_taskq::boxed;
use cenote_vdev::config::VdevKind;

use crate::SpaError;
use crate::sync::Syncer;

/// The block that parity is reckoned by, in bytes.
const USUAL_BLOCK_BYTES: u64 = 128 << 10;
/// A sector of the accounts, as a power of two.
const SECTOR_SHIFT: u32 = 9;
/// Block pointers of an indirect block of the usual size.
const POINTERS: u64 = 1 << 10;
/// Indirect blocks, in bytes, uncompressed.
const INDIRECT_BYTES: u64 = 128 << 10;
/// Blocks of the meta-dnode, from the data up to the root.
const META_BLOCKS: u64 = 7;
/// Copies of metadata.
const METADATA_COPIES: u64 = 2;
/// Blocks of a volume are not made smaller than this by default.
const BLOCK_BYTES_DEFAULT: u64 = 16 << 10;

/// How much to reserve for a volume of so many bytes in blocks of so many bytes. `stripes` are, for each top-level vdev with
/// parity, the bytes that a block of 128 KiB and one of the volume take of it.
fn reservation_bytes(size_bytes: u64, block_bytes: u64, stripes: &[(u64, u64)]) -> u64 {
    let mut blocks = size_bytes / block_bytes.max(1);
    let of_stripe = |(usual, block): &(u64, u64)| {
        let sum = u128::from(blocks) * u128::from(*block) / u128::from((usual >> SECTOR_SHIFT).max(1));
        u64::try_from(sum * u128::from(USUAL_BLOCK_BYTES >> SECTOR_SHIFT)).unwrap_or(u64::MAX)
    };
    let plain = blocks.saturating_mul(block_bytes);
    let data = stripes.iter().map(of_stripe).max().unwrap_or(plain);
    let mut indirect_blocks = META_BLOCKS;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        indirect_blocks += blocks;
    }
    data.saturating_add(indirect_blocks.saturating_mul(METADATA_COPIES * INDIRECT_BYTES))
}

impl Syncer {
    /// Bytes that a directory of datasets, as `view` shows it, and those below may use beyond what they use: what can be reserved
    /// there.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn available_bytes(&self, view: &Dsl, dir: &Dir) -> Result<u64, SpaError> {
        let usable = self.usable();
        Ok(view.dir_available_bytes(dir, usable.bytes.saturating_add(usable.deferred_bytes)).await?)
    }

    /// How much to reserve for a volume (`refreservation`) of so many bytes in blocks of so many bytes, so that it can always be
    /// written. Like OpenZFS this takes no notice of the property `copies`.
    #[must_use]
    pub fn volume_reservation_bytes(&self, size_bytes: u64, block_bytes: u64) -> u64 {
        let mut stripes = Vec::new();
        for (index, top) in self.devices.root_vdev.config.children.iter().enumerate() {
            if !matches!(top.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. }) {
                continue;
            }
            let asize = |bytes| self.devices.tree.psize_to_asize(VdevId(index as u32), bytes, Txg(u64::MAX));
            stripes.extend(asize(USUAL_BLOCK_BYTES).zip(asize(block_bytes)));
        }
        reservation_bytes(size_bytes, block_bytes, &stripes)
    }

    /// The block size in bytes of a volume for which none is asked for: such that more than half of what the smallest allocation
    /// takes is used.
    #[must_use]
    pub fn default_volume_block_bytes(&self) -> u64 {
        let smallest = |(kind, ashift): (&VdevKind, u64)| match kind {
            VdevKind::Draid { data, .. } => data << ashift,
            VdevKind::Raidz { parity: 1, .. } => 2 << ashift,
            VdevKind::Raidz { .. } => 4 << ashift,
            _ => 1 << ashift,
        };
        let tops = self.devices.root_vdev.config.children.iter().map(|top| (&top.kind, u64::from(top.ashift)));
        let most = tops.map(smallest).max().unwrap_or(0);
        let mut bytes = BLOCK_BYTES_DEFAULT;
        while bytes * 2 <= most {
            bytes *= 2;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_enough_for_data_parity_and_indirect_blocks() {
        // 64 MiB in blocks of 16 KiB: 4096 blocks, 4 + 1 indirect blocks.
        assert_eq!(reservation_bytes(64 << 20, 16 << 10, &[]), (64 << 20) + (7 + 5) * 2 * (128 << 10));
        // One block: no indirect blocks.
        assert_eq!(reservation_bytes(16 << 10, 16 << 10, &[]), (16 << 10) + 7 * 2 * (128 << 10));
        // Three disks of 4 KiB sectors with single parity: 128 KiB take 192 KiB, 8 KiB take 16 KiB.
        let stripe = (192 << 10, 16 << 10);
        let data = (8192 * (16 << 10) / (192 * 2)) * 256;
        assert_eq!(reservation_bytes(64 << 20, 8 << 10, &[stripe]), data + (7 + 8 + 1) * 2 * (128 << 10));
        // The layout that takes most counts.
        assert!(reservation_bytes(1 << 30, 8 << 10, &[(192 << 10, 12 << 10), stripe]) > 1 << 30);
        // Nothing overflows.
        assert_eq!(reservation_bytes(u64::MAX, 512, &[(128 << 10, 1 << 20)]), u64::MAX);
    }
}
