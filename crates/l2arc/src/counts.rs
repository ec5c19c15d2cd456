//! The work of cache devices, with the names of OpenZFS's `arcstats`.

use cenote_kstat::Snapshot;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Counts since the pool was opened.
        #[derive(Default)]
        pub(crate) struct Counts { $($(#[$doc])* pub(crate) $field: AtomicU64,)* }

        impl Counts {
            /// Enters them into the cache's statistics.
            pub(crate) fn kstat(&self, snapshot: &mut Snapshot) {
                let sheet = snapshot.group("arcstats");
                $(sheet.count($name, self.$field.load(Ordering::Relaxed));)*
            }
        }
    };
}

counts! {
    /// Blocks that were read from a device.
    hits = "l2_hits",
    /// Blocks that the pool was read for, since no device had them.
    misses = "l2_misses",
    /// Batches.
    feeds = "l2_feeds",
    /// Bytes of blocks that were read.
    read_bytes = "l2_read_bytes",
    /// Bytes that were written, log blocks included.
    write_bytes = "l2_write_bytes",
    /// Batches that were sent,
    writes_sent = "l2_writes_sent",
    /// that came to an end,
    writes_done = "l2_writes_done",
    /// and of these those that failed.
    writes_error = "l2_writes_error",
    /// Blocks that were written over while they were read.
    evict_reading = "l2_evict_reading",
    /// Blocks that were left since too many waited.
    feed_left = "l2_feed_left",
    /// Blocks that were not what was written.
    cksum_bad = "l2_cksum_bad",
    /// Reads that failed, or took too long.
    io_error = "l2_io_error",
    /// Log blocks that were written.
    log_blk_writes = "l2_log_blk_writes",
    /// Devices whose contents were found again,
    rebuild_success = "l2_rebuild_success",
    /// that had another header,
    rebuild_unsupported = "l2_rebuild_unsupported",
    /// log blocks that could not be read,
    rebuild_io_errors = "l2_rebuild_io_errors",
    /// no header that could be read,
    rebuild_dh_errors = "l2_rebuild_dh_errors",
    /// log blocks that were not what was written,
    rebuild_cksum_lb_errors = "l2_rebuild_cksum_lb_errors",
    /// or more blocks than memory takes.
    rebuild_lowmem = "l2_rebuild_lowmem",
    /// Blocks that were found again,
    rebuild_bufs = "l2_rebuild_bufs",
    /// their log blocks,
    rebuild_log_blks = "l2_rebuild_log_blks",
    /// and their bytes on the devices.
    rebuild_asize = "l2_rebuild_asize",
}

/// One more.
pub(crate) fn up(count: &AtomicU64) {
    more(count, 1);
}

/// So many more.
pub(crate) fn more(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}
