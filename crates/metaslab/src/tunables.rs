//! The tunables of allocation, with OpenZFS's names and defaults (zfs(4), master of 2026).

cenote_kstat::tunables! {
    /// Tunables of space accounting and allocation.
    pub struct Tunables {
        /// Bytes for each data disk of a vdev before allocation moves on to the next vdev.
        metaslab_aliquot: u64 = 2 << 20, "bytes", Number(4096, 1 << 30), AtOpen;
        /// Gives emptier vdevs more than fuller ones.
        metaslab_bias_enabled: bool = true, "", Switch, AtOpen;
        /// Least size of blocks that may be stored as gangs on purpose, for tests. By default there are none.
        metaslab_force_ganging: u64 = (16 << 20) + 1, "bytes", Number(512, 1 << 40), AtOpen;
        /// Percentage of such blocks that is stored as gangs.
        metaslab_force_ganging_pct: u64 = 3, "%", Number(0, 100), AtOpen;
        /// Weighs metaslabs by their free segments, by size, instead of by their free bytes.
        zfs_metaslab_segment_weight_enabled: bool = true, "", Switch, AtOpen;
        /// An active metaslab is left when its largest segments are this many powers of two smaller than at the start.
        zfs_metaslab_switch_threshold: u64 = 2, "powers of two", Number(0, 63), AtOpen;
        /// Lets fragmentation lower a weight that counts bytes.
        metaslab_fragmentation_factor_enabled: bool = true, "", Switch, AtOpen;
        /// Prefers the outer tracks of rotating disks.
        metaslab_lba_weighting_enabled: bool = true, "", Switch, AtOpen;
        /// Fragmentation above which a metaslab does not stay active.
        zfs_metaslab_fragmentation_threshold: u64 = 77, "%", Number(0, 100), AtOpen;
        /// Distance that first fit looks ahead.
        metaslab_df_max_search: u64 = 16 << 20, "bytes", Number(0, 1 << 40), AtOpen;
        /// A metaslab without a free segment of this size is searched by size.
        metaslab_df_alloc_threshold: u64 = 128 << 10, "bytes", Number(0, 1 << 40), AtOpen;
        /// A metaslab with less free space than this is searched by size.
        metaslab_df_free_pct: u64 = 4, "%", Number(0, 100), AtOpen;
        /// Takes the largest segment in a search by size, not the closest.
        metaslab_df_use_largest_segment: bool = false, "", Switch, AtOpen;
        /// Metaslabs that are looked at in an allocation that is not trying hard.
        zfs_metaslab_find_max_tries: u64 = 100, "metaslabs", Number(1, 1 << 32), AtOpen;
        /// Looks everywhere before a block is split into a gang.
        zfs_metaslab_try_hard_before_gang: bool = false, "", Switch, AtOpen;
        /// A vdev with this percentage of free space, or less, is left alone while others have more.
        zfs_mg_noalloc_threshold: u64 = 0, "%", Number(0, 100), AtOpen;
        /// Fragmentation above which a vdev is left alone while others have less.
        zfs_mg_fragmentation_threshold: u64 = 95, "%", Number(0, 100), AtOpen;
        /// A space map is rewritten when it has this percentage of its least possible size.
        zfs_metaslab_condense_pct: u64 = 200, "%", Number(100, 10_000), AtOpen;
        /// Block size of metaslabs' space maps in pools without log space maps.
        zfs_metaslab_sm_blksz_no_log: u64 = 16 << 10, "bytes", Power(4096, 1 << 20), AtOpen;
        /// Block size of metaslabs' space maps in pools with log space maps.
        zfs_metaslab_sm_blksz_with_log: u64 = 128 << 10, "bytes", Power(4096, 1 << 20), AtOpen;
        /// Block size of log space maps.
        zfs_log_sm_blksz: u64 = 128 << 10, "bytes", Power(4096, 1 << 20), AtOpen;
        /// Memory of unflushed changes of metaslabs at most.
        zfs_unflushed_max_mem_amt: u64 = 1 << 30, "bytes", Number(1 << 20, 1 << 50), AtOpen;
        /// Memory of unflushed changes of metaslabs at most, as parts of a million of the machine's memory.
        zfs_unflushed_max_mem_ppm: u64 = 1000, "ppm", Number(1, 1_000_000), AtOpen;
        /// Blocks of log space maps at most, whatever else allows more.
        zfs_unflushed_log_block_max: u64 = 1 << 17, "blocks", Number(1, 1 << 40), AtOpen;
        /// Blocks of log space maps that are always allowed.
        zfs_unflushed_log_block_min: u64 = 1000, "blocks", Number(1, 1 << 40), AtOpen;
        /// Blocks of log space maps that are allowed, as a percentage of the number of dirty metaslabs.
        zfs_unflushed_log_block_pct: u64 = 400, "%", Number(1, 100_000), AtOpen;
        /// Log space maps at most.
        zfs_unflushed_log_txg_max: u64 = 1000, "logs", Number(1, 1 << 32), AtOpen;
        /// Rows of the summary by which flushes of metaslabs are planned.
        zfs_max_logsm_summary_length: u64 = 10, "rows", Number(1, 10_000), AtOpen;
        /// Metaslabs that are flushed in each txg at least.
        zfs_min_metaslabs_to_flush: u64 = 1, "metaslabs", Number(0, 1 << 32), AtOpen;
        /// Log space maps that are looked back at for the rate of new blocks.
        zfs_max_log_walking: u64 = 5, "logs", Number(1, 10_000), AtOpen;
        /// Percentage of the metaslabs that is flushed each txg when all are to be flushed on request.
        zfs_min_metaslabs_to_condense_pct: u64 = 5, "%", Number(1, 100), AtOpen;
        /// Txgs for which a metaslab stays loaded after its last use.
        metaslab_unload_delay: u64 = 32, "txgs", Number(0, 1 << 32), AtOpen;
        /// Time for which a metaslab stays loaded after its last use.
        metaslab_unload_delay_ms: u64 = 600_000, "ms", Number(0, 86_400_000), AtOpen;
        /// Loads the next metaslabs before they are asked for.
        metaslab_preload_enabled: bool = true, "", Switch, AtOpen;
        /// Metaslabs of each group that are loaded before they are asked for.
        metaslab_preload_limit: usize = 10, "metaslabs", Number(0, 1 << 20), AtOpen;
        /// Never unloads a metaslab.
        metaslab_debug_unload: bool = false, "", Switch, AtOpen;
        /// Memory of loaded metaslabs at most, as a percentage of the machine's memory.
        zfs_metaslab_mem_limit: u64 = 25, "%", Number(0, 100), AtOpen;
        /// A vdev with more metaslabs than this gives one to the embedded intent log.
        zfs_embedded_slog_min_ms: u64 = 64, "metaslabs", Number(0, 1 << 32), AtOpen;
        /// Stores indirect blocks of files and volumes on special vdevs.
        zfs_user_indirect_is_special: bool = true, "", Switch, AtOpen;
        /// Stores deduplication tables on special vdevs where no vdev is theirs.
        zfs_ddt_data_is_special: bool = true, "", Switch, AtOpen;
        /// Percentage of the special vdevs that small blocks of files leave to metadata.
        zfs_special_class_metadata_reserve_pct: u64 = 25, "%", Number(0, 100), AtOpen;
        /// Allocators of a class at most.
        spa_num_allocators: usize = 4, "allocators", Number(1, 256), AtOpen;
        /// Memory of the machine, of which other limits are parts. OpenZFS asks the kernel.
        cenote_system_memory: u64 = 8 << 30, "bytes", Number(1 << 20, 1 << 60), AtOpen;
        /// Memory of loaded metaslabs for each TB (10^12 bytes) of the pool, at any fragmentation. Pools with units of less than
        /// 4 KiB keep it by unloading.
        cenote_metaslab_mem_per_tb: u64 = 32 << 20, "bytes", Number(0, 1 << 50), AtOpen;
        /// Memory of loaded metaslabs that is always allowed, so that small pools need not unload.
        cenote_metaslab_mem_min: u64 = 16 << 20, "bytes", Number(0, 1 << 50), AtOpen;
    }
}

impl Tunables {
    /// Memory that unflushed changes may take before metaslabs are flushed for it.
    #[must_use]
    pub(crate) const fn unflushed_memory_bytes_max(&self) -> u64 {
        let part = (self.cenote_system_memory as u128 * self.zfs_unflushed_max_mem_ppm as u128 / 1_000_000) as u64;
        if part < self.zfs_unflushed_max_mem_amt { part } else { self.zfs_unflushed_max_mem_amt }
    }

    /// Memory that loaded metaslabs of a pool of this size may take.
    #[must_use]
    pub const fn loaded_memory_bytes_max(&self, pool_bytes: u64) -> u64 {
        let part = (self.cenote_system_memory as u128 * self.zfs_metaslab_mem_limit as u128 / 100) as u64;
        let by_size = (pool_bytes as u128 * self.cenote_metaslab_mem_per_tb as u128 / 1_000_000_000_000) as u64;
        let by_size = if by_size < self.cenote_metaslab_mem_min { self.cenote_metaslab_mem_min } else { by_size };
        if part < by_size { part } else { by_size }
    }
}
