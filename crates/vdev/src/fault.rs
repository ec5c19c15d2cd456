//! Faults of devices: error counts of a vdev, and a bounded log of single faults.
//!
//! `zpool status` shows the counts as READ, WRITE and CKSUM. They are touched only when something fails, so they cost a good read nothing.
//! The log keeps the newest [`FaultLog::CAPACITY`] faults.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_format::ids::{BlockId, Guid, ObjectId, ObjsetId};
use cenote_taskq::sync::Mutex;

use crate::queue::QueueClass;

/// An operating system's or driver's error, reduced to what can be copied and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCause {
    /// The kind.
    pub kind: io::ErrorKind,
    /// The operating system's number, where the error came from there.
    pub errno: Option<i32>,
}

impl From<&io::Error> for IoCause {
    fn from(error: &io::Error) -> Self {
        Self { kind: error.kind(), errno: error.raw_os_error() }
    }
}

impl fmt::Display for IoCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno).fmt(f),
            None => self.kind.fmt(f),
        }
    }
}

/// The kind of a device's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The device was not asked: it is absent, offline or faulted.
    Unavailable,
    /// The device was asked only after others, since its dirty time log says it has missed this txg, and its bytes were
    /// indeed old.
    Stale,
    /// The device did not answer for so long that another one was asked. Its answer may still have come.
    Overdue,
    /// The device is far slower than its siblings, and is not read for a while: its data is reconstructed from theirs.
    SatOut,
    /// The device failed the read.
    Read(IoCause),
    /// The device failed the write.
    Write(IoCause),
    /// The device answered with bytes that are not what was written.
    Checksum,
    /// The device answered after more than `zio_slow_io_ms`. A watcher is told; the log does not keep it.
    Slow {
        /// It was asked for a write or a flush.
        is_write: bool,
        /// The time that the answer took.
        took: Duration,
    },
}

impl FaultKind {
    /// Whether writing the bytes again may help: the device gave wrong ones, or said that it has none.
    #[must_use]
    pub fn is_damage(self) -> bool {
        match self {
            Self::Checksum => true,
            // One that does not answer at all is not asked more.
            Self::Read(cause) => cause.kind != io::ErrorKind::TimedOut,
            Self::Unavailable | Self::Stale | Self::Overdue | Self::SatOut | Self::Slow { .. } | Self::Write(_) => {
                false
            }
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str("device unavailable"),
            Self::Stale => f.write_str("stale (device missed the write)"),
            Self::Overdue => f.write_str("no answer for long (another device was asked)"),
            Self::SatOut => f.write_str("far slower than its siblings (sits out reads)"),
            Self::Read(cause) => write!(f, "read error: {cause}"),
            Self::Write(cause) => write!(f, "write error: {cause}"),
            Self::Checksum => f.write_str("checksum error"),
            Self::Slow { took, .. } => write!(f, "answered after {} s", took.as_secs()),
        }
    }
}

/// One range of one leaf that could not be had, or was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The leaf.
    pub guid: Guid,
    /// Where the leaf is, for messages.
    pub path: Arc<str>,
    /// First byte on the leaf, label area included.
    pub address_bytes: u64,
    /// Length of the range.
    pub size_bytes: u64,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The purpose of the request, if that is known.
    pub class: Option<QueueClass>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guid, path, address_bytes, size_bytes, kind, .. } = self;
        write!(f, "{path} (guid {guid}): {kind} at {address_bytes:#x}, {size_bytes:#x} bytes")
    }
}

/// Errors of one vdev since it was opened or cleared.
#[derive(Debug, Default)]
pub struct ErrorCounts {
    read: AtomicU64,
    write: AtomicU64,
    checksum: AtomicU64,
    healed_bytes: AtomicU64,
}

/// A copy of a vdev's [`ErrorCounts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorTotals {
    /// Reads that the device failed.
    pub read: u64,
    /// Writes that the device failed.
    pub write: u64,
    /// Reads that brought wrong bytes.
    pub checksum: u64,
}

impl ErrorCounts {
    /// Counts one fault. A request that a device was not given is not its error.
    pub fn count(&self, kind: FaultKind) {
        let counter = match kind {
            FaultKind::Unavailable
            | FaultKind::Stale
            | FaultKind::Overdue
            | FaultKind::SatOut
            | FaultKind::Slow { .. } => {
                return;
            }
            FaultKind::Read(_) => &self.read,
            FaultKind::Write(_) => &self.write,
            FaultKind::Checksum => &self.checksum,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were wrong, or missing, and were written again and read back.
    pub(crate) fn count_healed(&self, bytes: u64) {
        self.healed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were written again since it was opened (`vs_self_healed`); clearing errors leaves them.
    #[must_use]
    pub fn healed_bytes(&self) -> u64 {
        self.healed_bytes.load(Ordering::Relaxed)
    }

    /// The counts now.
    #[must_use]
    pub fn totals(&self) -> ErrorTotals {
        ErrorTotals {
            read: self.read.load(Ordering::Relaxed),
            write: self.write.load(Ordering::Relaxed),
            checksum: self.checksum.load(Ordering::Relaxed),
        }
    }

    /// Forgets wrong bytes: they were read before anybody knew which txgs the leaf has missed, so they may just have been old.
    pub fn forgive_checksums(&self) {
        self.checksum.store(0, Ordering::Relaxed);
    }

    /// Sets all counts to zero (`zpool clear`).
    pub fn clear(&self) {
        for counter in [&self.read, &self.write, &self.checksum] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// A block that is read, for those who are told of faults. Vdevs know nothing of it but what they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The dataset's objset (0: the MOS).
    pub objset: ObjsetId,
    /// The object.
    pub object: ObjectId,
    /// The level: 0 is data.
    pub level: i64,
    /// The block's index at that level.
    pub block: BlockId,
    /// The name of its checksum's algorithm, where there is one for all that is read.
    pub checksum: Option<&'static str>,
    /// It was written in the other byte order.
    pub is_swapped: bool,
}

/// Bytes that were read, and those that belong there.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a> {
    /// Where they begin in the range of the fault.
    pub at_bytes: u64,
    /// As long as the other.
    pub good: &'a [u8],
    /// As they were read.
    pub bad: &'a [u8],
}

impl<'a> Compared<'a> {
    /// Of a range from its start, as far as both reach.
    pub(crate) fn whole(good: &'a [u8], bad: &'a [u8]) -> Self {
        let len = good.len().min(bad.len());
        Self { at_bytes: 0, good: &good[..len], bad: &bad[..len] }
    }
}

/// All that is known of a fault beside its place. It lasts for the time of being told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// The block that was read.
    pub about: Option<&'a About>,
    /// The bytes have failed the block's checksum, in contrast to bytes that were compared with a block.
    pub is_by_checksum: bool,
    /// Wrong bytes beside the right ones, where these are known: by place, without overlap. Empty where they are not.
    pub compared: &'a [Compared<'a>],
}

/// Is told each fault, as it is met.
type Watcher = Box<dyn Fn(&Fault, Evidence<'_>) + Send + Sync>;

/// The newest faults of a pool's devices.
#[derive(Default)]
pub struct FaultLog {
    entries: Mutex<VecDeque<Fault>>,
    watcher: OnceLock<Watcher>,
}

impl fmt::Debug for FaultLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultLog").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl FaultLog {
    /// How many faults are kept. Chosen by eye: enough to see a pattern, small enough to forget about.
    pub(crate) const CAPACITY: usize = 1024;

    /// Has each fault from now on told, by the task that met it: the watcher may not wait. Only the first call has an effect.
    pub fn watch(&self, watcher: impl Fn(&Fault, Evidence<'_>) + Send + Sync + 'static) {
        let _ = self.watcher.set(Box::new(watcher));
    }

    /// Whether somebody is told.
    pub(crate) fn is_watched(&self) -> bool {
        self.watcher.get().is_some()
    }

    /// Tells the watcher, and keeps nothing.
    pub(crate) fn tell(&self, fault: &Fault, evidence: Evidence<'_>) {
        if let Some(watcher) = self.watcher.get() {
            watcher(fault, evidence);
        }
    }

    /// Adds a fault, pushing out the oldest where the log is full. Nobody is told.
    pub(crate) fn push(&self, fault: Fault) {
        let mut entries = self.entries.lock();
        if entries.len() >= Self::CAPACITY {
            entries.pop_front();
        }
        entries.push_back(fault);
        debug_assert!(entries.len() <= Self::CAPACITY, "faults that are kept are bounded (vdev, invariant 3)");
    }

    /// Takes all faults out, oldest first.
    #[must_use]
    pub fn drain(&self) -> Vec<Fault> {
        self.entries.lock().drain(..).collect()
    }

    /// Copies all faults, oldest first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Fault> {
        self.entries.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(address_bytes: u64) -> Fault {
        Fault {
            guid: Guid(1),
            path: "a.img".into(),
            address_bytes,
            size_bytes: 512,
            kind: FaultKind::Checksum,
            class: None,
        }
    }

    #[test]
    fn a_full_log_keeps_the_newest() {
        let log = FaultLog::default();
        for address in 0..FaultLog::CAPACITY as u64 + 5 {
            log.push(fault(address));
        }
        assert_eq!(log.snapshot().first().unwrap().address_bytes, 5);
        assert_eq!(log.drain().len(), FaultLog::CAPACITY);
        assert!(log.snapshot().is_empty());
    }

    #[test]
    fn only_what_was_asked_of_a_device_counts_against_it() {
        let counts = ErrorCounts::default();
        counts.count(FaultKind::Unavailable);
        counts.count(FaultKind::Stale);
        counts.count(FaultKind::Checksum);
        let cause = IoCause::from(&io::Error::other("broken"));
        counts.count(FaultKind::Read(cause));
        counts.count(FaultKind::Write(cause));
        assert_eq!(counts.totals(), ErrorTotals { read: 1, write: 1, checksum: 1 });
        counts.clear();
        assert_eq!(counts.totals(), ErrorTotals::default());
    }
}
