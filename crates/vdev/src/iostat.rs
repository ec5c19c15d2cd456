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

/// Classes of requests in a leaf's queue.
pub(crate) const CLASSES: usize = 5;
/// OpenZFS's names of the histograms of whole times, and of times in the queue of each class.
const HISTOGRAMS: [&str; 2 + CLASSES] = [
    "vdev_tot_r_lat_histo",
    "vdev_tot_w_lat_histo",
    "vdev_sync_r_lat_histo",
    "vdev_sync_w_lat_histo",
    "vdev_async_r_lat_histo",
    "vdev_async_w_lat_histo",
    "vdev_scrub_histo",
];

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

/// A request's turn in its leaf's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The place of its class among all, the most urgent first.
    pub(crate) class: usize,
    /// When it began to wait; `None` if it did not.
    pub(crate) since_ns: Option<u64>,
}

/// A request that the device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    at: Instant,
    /// Of one that came through the queue.
    turn: Option<Turn>,
}

impl Begun {
    fn waited_ns(self) -> u64 {
        let since_ns = self.turn.and_then(|turn| turn.since_ns);
        since_ns.map_or(0, |since_ns| self.at.as_ns().saturating_sub(since_ns))
    }
}

/// Histograms of times as `zpool iostat -lw` has them, by powers of two of nanoseconds: for each request to a device. One that took others along
/// counts once, with its own wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// From a request's coming to the device's answer: of reads, and of writes.
    pub total: [Vec<u64>; 2],
    /// From asking the device to its answer: of reads, and of writes.
    pub disk: [Vec<u64>; 2],
    /// In the queue, for each class.
    pub queue: [Vec<u64>; CLASSES],
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
    /// The same of reads and writes, with the time in the queue before.
    total_ns: [Histogram<LATENCY_BUCKETS>; 2],
    /// For each class, times in the queue.
    waited_ns: [Histogram<LATENCY_BUCKETS>; CLASSES],
    slow: Slow,
    slow_count: AtomicU64,
}

impl IoStats {
    /// Without a clock no times are taken.
    pub(crate) fn new(clock: Option<Handle>, slow: Slow) -> Self {
        let slow_count = AtomicU64::new(0);
        let (counts, discards) = (Counters::default(), Histogram::default());
        let (took_ns, total_ns, waited_ns) = Default::default();
        Self { clock, counts, took_ns, discards, total_ns, waited_ns, slow, slow_count }
    }

    fn now(&self) -> Option<Instant> {
        self.clock.as_ref().map(Handle::now)
    }

    /// The device is asked now, if there is a clock.
    pub(crate) fn begin(&self, turn: Option<Turn>) -> Option<Begun> {
        Some(Begun { at: self.now()?, turn })
    }

    /// A request that began then is done.
    pub(crate) fn done(&self, io: Io, address_bytes: u64, bytes: u64, begun: Option<Begun>) {
        self.counts.add([(2 * io as usize, 1), (2 * io as usize + 1, bytes)]);
        if let (Some(begun), Some(now)) = (begun, self.now()) {
            let (took_ns, waited_ns) = (now.as_ns().saturating_sub(begun.at.as_ns()), begun.waited_ns());
            let took = Duration::from_nanos(took_ns);
            self.took_ns[io as usize].add(took_ns);
            if let Some(total_ns) = self.total_ns.get(io as usize) {
                total_ns.add(took_ns.saturating_add(waited_ns));
            }
            if let Some(waited) = begun.turn.and_then(|turn| self.waited_ns.get(turn.class)) {
                waited.add(waited_ns);
            }
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

    /// The histograms of times.
    pub(crate) fn waits(&self) -> Waits {
        Waits {
            total: self.total_ns.each_ref().map(Histogram::buckets),
            disk: [Io::Read, Io::Write].map(|io| self.took_ns[io as usize].buckets()),
            queue: self.waited_ns.each_ref().map(Histogram::buckets),
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
        sheet.count("slow_ios", self.slow_count());
        sheet.histogram("vdev_disk_r_lat_histo", read.buckets());
        sheet.histogram("vdev_disk_w_lat_histo", write.buckets());
        sheet.histogram("vdev_disk_f_lat_histo", flush.buckets());
        let waits = self.waits();
        for (name, buckets) in HISTOGRAMS.into_iter().zip(waits.total.into_iter().chain(waits.queue)) {
            sheet.histogram(name, buckets);
        }
    }
}
