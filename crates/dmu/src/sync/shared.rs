//! The resources that writing blocks needs besides the blocks.

use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{Txg, VdevId};
use cenote_taskq::Semaphore;
use cenote_vdev::tree::VdevTree;
use cenote_zio::Allocator;

use super::space::SpaceDelta;
use crate::Dmu;

/// The state that the clones of a writer share.
pub(super) struct Shared {
    pub(super) dmu: Dmu,
    pub(super) allocator: Arc<dyn Allocator>,
    /// For each top-level vdev that was there from the beginning, bytes that count for a sector of 512 allocated.
    ratios: Vec<u64>,
    pub(super) in_flight: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn new(dmu: Dmu, allocator: Arc<dyn Allocator>, in_flight: Arc<Semaphore>) -> Self {
        let tree = dmu.zio().tree();
        let ratios = (0..tree.top_count()).map(|top| deflate_ratio(tree, VdevId(top as u32))).collect();
        Self { dmu, allocator, ratios, in_flight }
    }

    pub(super) fn space_of(&self, bp: &Blkptr) -> SpaceDelta {
        if bp.is_hole() || bp.is_redacted() {
            return SpaceDelta::default();
        }
        let ratio = |vdev: VdevId| {
            let known = self.ratios.get(vdev.0 as usize).copied();
            // It was added since.
            known.unwrap_or_else(|| deflate_ratio(self.dmu.zio().tree(), vdev))
        };
        let used: u64 =
            if bp.is_embedded() { 0 } else { bp.dvas().map(|dva| (dva.asize_bytes >> 9) * ratio(dva.vdev)).sum() };
        let physical = if bp.is_embedded() { 0 } else { bp.psize_bytes() };
        let is_metadata = bp.level() > 0 || bp.dmu_type().is_metadata();
        SpaceDelta {
            used_bytes: used as i64,
            compressed_bytes: physical as i64,
            uncompressed_bytes: (if is_metadata { physical } else { bp.lsize_bytes() }) as i64,
        }
    }
}

/// The logical share of allocated bytes on a vdev, by a block of 128 KiB: what 512 bytes allocated count.
fn deflate_ratio(tree: &VdevTree, vdev: VdevId) -> u64 {
    const BYTES: u64 = 128 << 10;
    let asize = tree.psize_to_asize(vdev, BYTES, Txg(0)).unwrap_or(BYTES);
    BYTES / (asize >> 9).max(1)
}
