//! The tunables of cache devices, with OpenZFS's names.

cenote_kstat::tunables! {
    /// The tunables of cache devices.
    #[derive(Copy)]
    pub struct Tunables {
        /// The next batch follows sooner while more is waiting than one batch takes.
        l2arc_feed_again: bool = true, "", Switch, AtOpen;
        /// The time between two batches while more is waiting.
        l2arc_feed_min_ms: u64 = 200, "ms", Number(1, 600_000), AtOpen;
        /// The time between two batches of blocks that are written to a cache device.
        l2arc_feed_secs: u64 = 1, "s", Number(1, 86_400), AtOpen;
        /// Blocks that wait to be written take so many batches of memory at most, and a 16th of the cache's.
        l2arc_headroom: u64 = 8, "batches", Number(1, 1 << 20), AtOpen;
        /// The memory in which blocks of cache devices are kept in mind, as a part of the cache's.
        l2arc_meta_percent: u64 = 33, "%", Number(0, 90), AtOpen;
        /// Blocks that were read ahead are not written to cache devices.
        l2arc_noprefetch: bool = true, "", Switch, AtOpen;
        /// A smaller cache device gets no log blocks: it begins empty each time.
        l2arc_rebuild_blocks_min_l2size: u64 = 1 << 30, "bytes", Number(0, 1 << 60), AtOpen;
        /// The blocks of a cache device are found again when the pool is opened.
        l2arc_rebuild_enabled: bool = true, "", Switch, AtOpen;
        /// More bytes of a batch while the device is filled for the first time.
        l2arc_write_boost: u64 = 32 << 20, "bytes", Number(0, 1 << 40), AtOpen;
        /// Bytes of a batch.
        l2arc_write_max: u64 = 32 << 20, "bytes", Number(1 << 16, 1 << 40), AtOpen;
        /// Time after which a cache device that does not answer is left, and the pool read.
        cenote_l2arc_read_timeout_ms: u64 = 1000, "ms", Number(1, 600_000), AtOpen;
    }
}
