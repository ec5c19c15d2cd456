//! Counts of a disk's requests and histograms of their latencies, as `zpool iostat` shows them.

use std::fmt;
use std::time::Duration;

use cenote_kstat::{Counters, Histogram, Sheet};
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{Handle, Instant};

/// Buckets of a histogram of nanoseconds (`VDEV_L_HISTO_BUCKETS`): the last one is of answers that took 69 seconds and more.
const LATENCY_BUCKETS: usize = 37;
/// Buckets of a histogram of sizes (`VDEV_RQ_HISTO_BUCKETS`): the last one is of requests of 16 MiB and more.
pub(crate) const SIZE_BUCKETS: usize = 25;

/// A request that a device answered after more than `zio_slow_io_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowIo {
    /// It was a write, or a flush.
    pub(crate) is_write: bool,
    /// First byte on the leaf, label area included; 0 of a flush.
    pub(crate) address_bytes: u64,
    /// Length; 0 of a flush.
    pub(crate) size_bytes: u64,
    /// The time that the answer took.
    pub(crate) took: Duration,
}

/// The time after which a request is slow, and who is told then.
pub(crate) struct Slow {
    pub(crate) after: Duration,
    pub(crate) tell: Box<dyn Fn(SlowIo) + Send + Sync>,
}

impl fmt::Debug for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slow(after {:?})", self.after)
    }
}

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
    /// Sizes of what the device was told to be free.
    discards: Histogram<SIZE_BUCKETS>,
    slow: Slow,
    slow_count: AtomicU64,
}

impl IoStats {
    /// Without a clock no times are taken.
    pub(crate) fn new(clock: Option<Handle>, slow: Slow) -> Self {
        let slow_count = AtomicU64::new(0);
        Self {
            clock,
            counts: Counters::default(),
            took_ns: Default::default(),
            discards: Histogram::default(),
            slow,
            slow_count,
        }
    }

    /// The time, if there is a clock.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.clock.as_ref().map(Handle::now)
    }

    /// A request that began then is done.
    pub(crate) fn done(&self, io: Io, address_bytes: u64, bytes: u64, begun: Option<Instant>) {
        self.counts.add([(2 * io as usize, 1), (2 * io as usize + 1, bytes)]);
        if let (Some(begun), Some(now)) = (begun, self.now()) {
            let took = Duration::from_nanos(now.as_ns().saturating_sub(begun.as_ns()));
            self.took_ns[io as usize].add(now.as_ns().saturating_sub(begun.as_ns()));
            if took > self.slow.after {
                self.note_slow(SlowIo { is_write: io != Io::Read, address_bytes, size_bytes: bytes, took });
            }
        }
    }

    /// The device was told that so many bytes are free.
    pub(crate) fn discarded(&self, bytes: u64) {
        self.discards.add(bytes);
    }

    /// How often it was told so of which size, by powers of two of bytes.
    pub(crate) fn discards(&self) -> Vec<u64> {
        self.discards.buckets()
    }

    #[cold]
    fn note_slow(&self, io: SlowIo) {
        self.count_slow();
        (self.slow.tell)(io);
    }

    /// Counts one more, of which nobody is told: the device was too slow for its siblings.
    pub(crate) fn count_slow(&self) {
        self.slow_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Slow ones since the device was opened, or the count was cleared.
    pub(crate) fn slow_count(&self) -> u64 {
        self.slow_count.load(Ordering::Relaxed)
    }

    /// Forgets the count of slow ones (`zpool clear`).
    pub(crate) fn clear_slow(&self) {
        self.slow_count.store(0, Ordering::Relaxed);
    }

    /// Requests and bytes that were read, and that were written.
    pub(crate) fn totals(&self) -> [u64; 4] {
        let [read_ops, read_bytes, write_ops, write_bytes, ..] = self.counts.sums();
        [read_ops, read_bytes, write_ops, write_bytes]
    }

    /// The histograms of times of reads and of writes.
    pub(crate) fn latencies(&self) -> [Vec<u64>; 2] {
        [self.took_ns[Io::Read as usize].buckets(), self.took_ns[Io::Write as usize].buckets()]
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
        sheet.count("slow_ios", self.slow_count());
        sheet.histogram("vdev_disk_r_lat_histo", read.buckets());
        sheet.histogram("vdev_disk_w_lat_histo", write.buckets());
        sheet.histogram("vdev_disk_f_lat_histo", flush.buckets());
    }
}
