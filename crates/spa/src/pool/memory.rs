//! The limits of the memory that a pool takes while it is written, and their sum.

use cenote_dmu::tx::TxTunables;

/// Memory of written blocks that is kept for the next ones at most, if so much may be dirty at all. Without it
/// each block's pages come from the kernel anew, which takes longer than to fill and sum them up.
const BUFFERS_KEPT_MAX_BYTES: u64 = 512 << 20;
/// Blocks on their way to devices, or not flushed yet.
const ON_THEIR_WAY_BYTES: u64 = 128 << 20;
/// The program itself: its code, stacks, tables, small buffers.
const FIXED_BYTES: u64 = 64 << 20;

/// Limits of memory, in bytes. Beside them loaded metaslabs take 32 MiB for each TB of the pool at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Blocks of the cache.
    pub cache: u64,
    /// Dirty data: `zfs_dirty_data_max` twice, since a txg's blocks are kept until all of it is on disk, and the next txgs may have
    /// as much by then.
    pub dirty: u64,
    /// Memory of written blocks that is kept for the next ones.
    pub buffers: u64,
    /// Blocks on their way to devices, or not flushed yet.
    pub on_their_way: u64,
    /// The program itself.
    pub fixed: u64,
}

impl MemoryLimits {
    /// Those of a pool with such a cache.
    #[must_use]
    pub fn of(cache_bytes: u64, tunables: &TxTunables) -> Self {
        let dirty_max = tunables.zfs_dirty_data_max;
        Self {
            cache: cache_bytes,
            dirty: dirty_max.saturating_mul(2),
            buffers: (dirty_max.saturating_mul(5) / 4).min(BUFFERS_KEPT_MAX_BYTES),
            on_their_way: ON_THEIR_WAY_BYTES,
            fixed: FIXED_BYTES,
        }
    }

    /// All together.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.cache
            .saturating_add(self.dirty)
            .saturating_add(self.buffers)
            .saturating_add(self.on_their_way)
            .saturating_add(self.fixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_leave_a_small_machine_something_for_others_and_a_large_one_half() {
        for (memory, percent) in [(1_u64 << 30, 80), (2 << 30, 70), (8 << 30, 60), (24 << 30, 50), (256 << 30, 30)] {
            let limits = MemoryLimits::of(memory / 4, &TxTunables::for_memory(memory));
            assert!(limits.sum() <= memory / 100 * percent, "{memory}: {limits:?}");
        }
    }
}
