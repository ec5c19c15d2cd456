//! Space that datasets may use, of a pool that is written.

use cenote_format::ids::{Txg, VdevId};
use cenote_vdev::config::{AllocationClass, VdevKind};
use cenote_vdev::layout::ASHIFT_MIN;

use crate::figures::{DEFLATE_PSIZE_BYTES, EMBEDDED_LOG_METASLABS, slop_bytes};
use crate::sync::Syncer;

/// Sizes of blocks by which the worst overhead of a vdev is measured, beside a single unit, which has the worst on raidz.
const SIZES_BYTES: [u64; 4] = [4 << 10, 8 << 10, 16 << 10, 128 << 10];
/// The space of indirect blocks, relative to the data that they lead to, in per cent.
const INDIRECT_PERCENT: u64 = 15;

/// Space as datasets count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usable {
    /// Bytes that datasets may use in all.
    pub(crate) bytes: u64,
    /// The slop space: bytes kept back so that the pool can always be written.
    pub(crate) slop_bytes: u64,
    /// Bytes that were freed and can be used only after the next txgs: not among [`Self::bytes`].
    pub(crate) deferred_bytes: u64,
    /// Some of what was freed can be used only after the next txgs.
    pub(crate) has_deferred: bool,
    /// Bytes that datasets are told that they may use: with what was freed, as OpenZFS has it.
    pub(crate) shown_bytes: u64,
    /// Bytes that can be allocated now, as datasets count them and as the vdevs do. Blocks of intent logs take of these, and are no
    /// dataset's.
    pub(crate) free_bytes: u64,
    pub(crate) free_raw_bytes: u64,
}

impl Syncer {
    /// Bytes allocated on a vdev as datasets count them: by what a block of 128 KiB takes.
    fn deflated_bytes(&self, vdev: VdevId, bytes: u64) -> u64 {
        let asize = self.devices.tree.psize_to_asize(vdev, DEFLATE_PSIZE_BYTES, Txg(0)).unwrap_or(DEFLATE_PSIZE_BYTES);
        assert!(asize >= DEFLATE_PSIZE_BYTES, "a block takes its own size at least");
        (u128::from(bytes) * u128::from(DEFLATE_PSIZE_BYTES) / u128::from(asize)) as u64
    }

    /// The space that datasets may use, as of the last sync.
    pub(crate) fn usable(&self) -> Usable {
        let (mut normal, mut log, mut shared, mut deferred, mut lost) = (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
        let (mut free_bytes, mut free_raw_bytes, mut checkpoint) = (0, 0, 0_u64);
        for top in &self.devices.root_vdev.config.children {
            let vdev = VdevId(u32::try_from(top.id).unwrap_or(u32::MAX));
            let mut sums = (0_u64, 0_u64, 0_u64, 0_u64);
            let (mut unreadable, mut main_free) = (0, 0);
            self.blocks.space.with(|allocator| {
                for metaslab in allocator.metaslabs().filter(|metaslab| metaslab.id().vdev == vdev) {
                    sums.0 += 1;
                    sums.1 += metaslab.size_bytes();
                    sums.2 += metaslab.allocated_bytes();
                    sums.3 += metaslab.deferred_bytes();
                    let free = metaslab.size_bytes().saturating_sub(metaslab.allocated_bytes());
                    let free = free.saturating_sub(metaslab.deferred_bytes());
                    match metaslab.is_unreadable() {
                        true => unreadable += free,
                        false if allocator.is_for_logs(metaslab.id()) => {}
                        false => main_free += free,
                    }
                }
            });
            let only_checkpoint = self.blocks.space.with(|allocator| allocator.checkpoint_bytes(vdev));
            if only_checkpoint > 0 {
                checkpoint = checkpoint.saturating_add(self.deflated_bytes(vdev, only_checkpoint));
            }
            let (count, size, allocated, kept) = sums;
            match top.class {
                AllocationClass::Normal if !top.non_allocating && !top.removing => {
                    let one = if count > EMBEDDED_LOG_METASLABS { size / count } else { 0 };
                    normal += self.deflated_bytes(vdev, size - one);
                    log += self.deflated_bytes(vdev, one);
                    deferred += self.deflated_bytes(vdev, kept);
                    lost += self.deflated_bytes(vdev, unreadable);
                    free_bytes += self.deflated_bytes(vdev, main_free);
                    free_raw_bytes += main_free;
                }
                AllocationClass::Special | AllocationClass::Dedup => shared += self.deflated_bytes(vdev, allocated),
                AllocationClass::Normal | AllocationClass::Log => {}
            }
        }
        let slop_bytes = slop_bytes(normal, log);
        let saved = self.blocks.shared.saved_bytes;
        // No dataset uses what only the checkpoint has.
        let all = (normal + shared).saturating_add(saved).saturating_sub(checkpoint);
        let bytes = all.saturating_sub(deferred + lost).saturating_sub(slop_bytes);
        let shown_bytes = all.saturating_sub(lost).saturating_sub(slop_bytes);
        Usable {
            bytes,
            slop_bytes,
            deferred_bytes: deferred,
            has_deferred: deferred > 0,
            shown_bytes,
            free_bytes,
            free_raw_bytes,
        }
    }

    /// The unit in which space is counted before it is allocated: the largest sector of any vdev that has data. A block of fewer bytes takes
    /// as much.
    pub(crate) fn unit_bytes(&self) -> u64 {
        let tops = self.devices.root_vdev.config.children.iter();
        let with_data = tops.filter(|top| !matches!(top.kind, VdevKind::Hole) && top.class != AllocationClass::Log);
        let shift = with_data.map(|top| top.ashift).max().unwrap_or(ASHIFT_MIN);
        1 << shift
    }

    /// Bytes that a logical byte of data, and one of metadata, can come to at worst as datasets count them, in per cent:
    /// copies, and what small blocks take on raidz. Blocks fill units of [`Self::unit_bytes`]; smaller ones count as one.
    pub(crate) fn inflation_percent(&self) -> (u64, u64) {
        let mut worst = 100;
        let unit = self.unit_bytes();
        for top in self.devices.root_vdev.config.children.iter().filter(|top| !matches!(top.kind, VdevKind::Hole)) {
            let vdev = VdevId(u32::try_from(top.id).unwrap_or(u32::MAX));
            for size in [unit].into_iter().chain(SIZES_BYTES.into_iter().filter(|size| *size > unit)) {
                let asize = self.devices.tree.psize_to_asize(vdev, size, self.txg).unwrap_or(size);
                worst = worst.max(self.deflated_bytes(vdev, asize).saturating_mul(100) / size);
            }
        }
        let copies = self.mos.dsl.heads().iter().map(|head| u64::from(head.objset.policy().copies)).max().unwrap_or(1);
        (worst * copies + INDIRECT_PERCENT, worst * (copies + 1))
    }
}
