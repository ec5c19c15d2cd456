//! The numbers one may turn, with OpenZFS's names and defaults (zfs(4), master of 2026).

/// Tunables of space accounting and allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Bytes for each data disk of a vdev before the rotor moves on. Default 2 MiB.
    pub metaslab_aliquot: u64,
    /// Whether emptier vdevs get more. Default on.
    pub metaslab_bias_enabled: bool,
    /// Whether faster vdevs get more: 0 never, 1 while the pool is busy, 2 always. Default 1.
    pub metaslab_perf_bias: u8,
    /// Blocks of at least this size may be ganged on purpose, for tests. Default 16 MiB + 1: none.
    pub metaslab_force_ganging: u64,
    /// Of those, how many of a hundred. Default 3.
    pub metaslab_force_ganging_pct: u64,
    /// Whether weights count segments by size instead of bytes. Default on.
    pub zfs_metaslab_segment_weight_enabled: bool,
    /// An active metaslab is left when its largest segments are this many powers of two smaller than at the start.
    /// Default 2.
    pub zfs_metaslab_switch_threshold: u64,
    /// Whether fragmentation lowers a weight that counts bytes. Default on.
    pub metaslab_fragmentation_factor_enabled: bool,
    /// Whether the outer tracks of rotating disks are preferred. Default on.
    pub metaslab_lba_weighting_enabled: bool,
    /// Per cent of fragmentation past which a metaslab does not stay active. Default 77.
    pub zfs_metaslab_fragmentation_threshold: u64,
    /// How far first fit looks ahead, in bytes. Default 16 MiB.
    pub metaslab_df_max_search: u64,
    /// With no free segment of this size, search by size. Default 128 KiB.
    pub metaslab_df_alloc_threshold: u64,
    /// With less free space than this, in per cent, search by size. Default 4.
    pub metaslab_df_free_pct: u64,
    /// Search by size takes the largest segment, not the closest. Default off.
    pub metaslab_df_use_largest_segment: bool,
    /// Metaslabs looked at in an allocation that is not trying hard. Default 100.
    pub zfs_metaslab_find_max_tries: u64,
    /// Whether to look everywhere before splitting a block. Default off.
    pub zfs_metaslab_try_hard_before_gang: bool,
    /// Per cent of free space at or below which a vdev is left alone while others have more. Default 0.
    pub zfs_mg_noalloc_threshold: u64,
    /// Per cent of fragmentation above which a vdev is left alone while others have less. Default 95.
    pub zfs_mg_fragmentation_threshold: u64,
    /// A space map is rewritten when it is this many per cent of what it could be. Default 200; at least 100.
    pub zfs_metaslab_condense_pct: u64,
    /// Block size of metaslabs' space maps without log space maps. Default 16 KiB.
    pub zfs_metaslab_sm_blksz_no_log: u64,
    /// Block size of metaslabs' space maps with log space maps. Default 128 KiB.
    pub zfs_metaslab_sm_blksz_with_log: u64,
    /// Block size of log space maps. Default 128 KiB.
    pub zfs_log_sm_blksz: u64,
    /// Memory of unflushed changes at most, in bytes. Default 1 GiB.
    pub zfs_unflushed_max_mem_amt: u64,
    /// The same as parts of a million of the machine's memory. Default 1000.
    pub zfs_unflushed_max_mem_ppm: u64,
    /// Log blocks at most, whatever else. Default 131 072.
    pub zfs_unflushed_log_block_max: u64,
    /// Log blocks that are always allowed. Default 1000.
    pub zfs_unflushed_log_block_min: u64,
    /// Log blocks allowed, in per cent of the number of dirty metaslabs. Default 400.
    pub zfs_unflushed_log_block_pct: u64,
    /// Logs at most. Default 1000.
    pub zfs_unflushed_log_txg_max: u64,
    /// Rows of the summary by which flushes are planned. Default 10.
    pub zfs_max_logsm_summary_length: u64,
    /// Metaslabs to flush in each txg at least. Default 1.
    pub zfs_min_metaslabs_to_flush: u64,
    /// Logs looked back at for the rate of new blocks. Default 5.
    pub zfs_max_log_walking: u64,
    /// Per cent of the metaslabs to flush each txg when everything is to be flushed on request. Default 5.
    pub zfs_min_metaslabs_to_condense_pct: u64,
    /// A metaslab stays loaded for this many txgs after its last use. Default 32.
    pub metaslab_unload_delay: u64,
    /// And for this many milliseconds. Default 600 000.
    pub metaslab_unload_delay_ms: u64,
    /// Whether to load the next metaslabs before they are asked for. Default on.
    pub metaslab_preload_enabled: bool,
    /// How many of each group. Default 10.
    pub metaslab_preload_limit: usize,
    /// Never unload. Default off.
    pub metaslab_debug_unload: bool,
    /// Memory of loaded metaslabs in per cent of the machine's. Default 25.
    pub zfs_metaslab_mem_limit: u64,
    /// A vdev needs more metaslabs than this to give one to the embedded log. Default 64.
    pub zfs_embedded_slog_min_ms: u64,
    /// Whether indirect blocks of files and volumes go to special vdevs. Default on.
    pub zfs_user_indirect_is_special: bool,
    /// Whether dedup tables go to special vdevs where no vdev is theirs. Default on.
    pub zfs_ddt_data_is_special: bool,
    /// Per cent of the special vdevs that small blocks of files leave to metadata. Default 25.
    pub zfs_special_class_metadata_reserve_pct: u64,
    /// Allocators of a class at most. Default 4.
    pub spa_num_allocators: usize,
    /// Whether allocations wait for earlier ones to be written. Default on.
    pub zio_dva_throttle_enabled: bool,
    /// The machine's memory, in bytes, of which the limits above are parts. No tunable of OpenZFS, which asks the kernel.
    pub system_memory_bytes: u64,
    /// Memory of loaded metaslabs in bytes for each TB (10^12) of the pool, at any fragmentation. Ours: 32 MiB. Pools with
    /// units of less than 4 KiB keep it by unloading.
    pub metaslab_mem_per_tb: u64,
    /// What is always allowed, so that small pools need not unload. Ours: 16 MiB.
    pub metaslab_mem_min: u64,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            metaslab_aliquot: 2 << 20,
            metaslab_bias_enabled: true,
            metaslab_perf_bias: 1,
            metaslab_force_ganging: (16 << 20) + 1,
            metaslab_force_ganging_pct: 3,
            zfs_metaslab_segment_weight_enabled: true,
            zfs_metaslab_switch_threshold: 2,
            metaslab_fragmentation_factor_enabled: true,
            metaslab_lba_weighting_enabled: true,
            zfs_metaslab_fragmentation_threshold: 77,
            metaslab_df_max_search: 16 << 20,
            metaslab_df_alloc_threshold: 128 << 10,
            metaslab_df_free_pct: 4,
            metaslab_df_use_largest_segment: false,
            zfs_metaslab_find_max_tries: 100,
            zfs_metaslab_try_hard_before_gang: false,
            zfs_mg_noalloc_threshold: 0,
            zfs_mg_fragmentation_threshold: 95,
            zfs_metaslab_condense_pct: 200,
            zfs_metaslab_sm_blksz_no_log: 16 << 10,
            zfs_metaslab_sm_blksz_with_log: 128 << 10,
            zfs_log_sm_blksz: 128 << 10,
            zfs_unflushed_max_mem_amt: 1 << 30,
            zfs_unflushed_max_mem_ppm: 1000,
            zfs_unflushed_log_block_max: 1 << 17,
            zfs_unflushed_log_block_min: 1000,
            zfs_unflushed_log_block_pct: 400,
            zfs_unflushed_log_txg_max: 1000,
            zfs_max_logsm_summary_length: 10,
            zfs_min_metaslabs_to_flush: 1,
            zfs_max_log_walking: 5,
            zfs_min_metaslabs_to_condense_pct: 5,
            metaslab_unload_delay: 32,
            metaslab_unload_delay_ms: 600_000,
            metaslab_preload_enabled: true,
            metaslab_preload_limit: 10,
            metaslab_debug_unload: false,
            zfs_metaslab_mem_limit: 25,
            zfs_embedded_slog_min_ms: 64,
            zfs_user_indirect_is_special: true,
            zfs_ddt_data_is_special: true,
            zfs_special_class_metadata_reserve_pct: 25,
            spa_num_allocators: 4,
            zio_dva_throttle_enabled: true,
            system_memory_bytes: 8 << 30,
            metaslab_mem_per_tb: 32 << 20,
            metaslab_mem_min: 16 << 20,
        }
    }
}

impl Tunables {
    /// Memory that unflushed changes may take before metaslabs are flushed for it.
    #[must_use]
    pub const fn unflushed_memory_bytes_max(&self) -> u64 {
        let part = (self.system_memory_bytes as u128 * self.zfs_unflushed_max_mem_ppm as u128 / 1_000_000) as u64;
        if part < self.zfs_unflushed_max_mem_amt { part } else { self.zfs_unflushed_max_mem_amt }
    }

    /// Memory that loaded metaslabs of a pool of this size may take.
    #[must_use]
    pub const fn loaded_memory_bytes_max(&self, pool_bytes: u64) -> u64 {
        let part = (self.system_memory_bytes as u128 * self.zfs_metaslab_mem_limit as u128 / 100) as u64;
        let by_size = (pool_bytes as u128 * self.metaslab_mem_per_tb as u128 / 1_000_000_000_000) as u64;
        let by_size = if by_size < self.metaslab_mem_min { self.metaslab_mem_min } else { by_size };
        if part < by_size { part } else { by_size }
    }
}
