//! Counts of a disk's requests and histograms of their latencies, as `zpool iostat` shows them.

use cenote_kstat::{Counters, Histogram, Sheet};
use cenote_taskq::{Handle, Instant};

/// Buckets of a histogram of nanoseconds (`VDEV_L_HISTO_BUCKETS`): the last one is of answers that took 69 seconds and more.
const LATENCY_BUCKETS: usize = 37;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    Read = 0,
    Write = 1,
    Flush = 2,
}

/// Counts of what a device has done; what fails counts as an error elsewhere.
#[derive(Debug)]
pub(crate) struct IoStats {
    clock: Option<Handle>,
    /// For each kind its requests and their bytes.
    counts: Counters<6>,
    /// Times from asking the device to its answer.
    took_ns: [Histogram<LATENCY_BUCKETS>; 3],
}

impl IoStats {
    /// Without a clock no times are taken.
    pub(crate) fn new(clock: Option<Handle>) -> Self {
        Self { clock, counts: Counters::default(), took_ns: Default::default() }
    }

    /// The time, if there is a clock.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.clock.as_ref().map(Handle::now)
    }

    /// A request that began then is done.
    pub(crate) fn done(&self, io: Io, bytes: u64, begun: Option<Instant>) {
        self.counts.add([(2 * io as usize, 1), (2 * io as usize + 1, bytes)]);
        if let (Some(begun), Some(now)) = (begun, self.now()) {
            self.took_ns[io as usize].add(now.as_ns().saturating_sub(begun.as_ns()));
        }
    }

    /// Enters them into a group.
    pub(crate) fn kstat(&self, sheet: &mut Sheet) {
        let [read_ops, read_bytes, write_ops, write_bytes, flush_ops, _] = self.counts.sums();
        for (name, count) in [
            ("read_ops", read_ops),
            ("read_bytes", read_bytes),
            ("write_ops", write_ops),
            ("write_bytes", write_bytes),
            ("flush_ops", flush_ops),
        ] {
            sheet.count(name, count);
        }
        let [read, write, flush] = &self.took_ns;
        sheet.histogram("vdev_disk_r_lat_histo", read.buckets());
        sheet.histogram("vdev_disk_w_lat_histo", write.buckets());
        sheet.histogram("vdev_disk_f_lat_histo", flush.buckets());
    }
}
