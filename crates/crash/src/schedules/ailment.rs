//! How disks of a schedule fail.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_taskq::sim::disk::{Crash, Fault, RequestKind, SimDisk};
use cenote_taskq::{Handle, Instant, Rng};

/// The longest that a request of a slow disk takes longer.
const SLOW_MS_MAX: u64 = 3000;
/// A disk that hangs answers after so many seconds: at most this many more or less than a pool waits for one.
const HANG_SECONDS: u64 = 310;
const HANG_SECONDS_MORE: u64 = 300;

/// Labels, and what belongs to them, end before this offset, and begin within so many bytes of the end.
const AREA_FIRST: u64 = 4 << 20;

/// Kinds of requests that fail together.
const KINDS: [&[RequestKind]; 5] = [
    &[RequestKind::Read],
    &[RequestKind::Write],
    &[RequestKind::Flush],
    &[RequestKind::Write, RequestKind::Flush],
    &[RequestKind::Read, RequestKind::Write, RequestKind::Flush],
];

/// How a disk fails at the moment.
#[derive(Clone, Debug)]
pub(super) enum Ailment {
    /// It does what it is asked.
    None,
    /// It was pulled. What it had not flushed is lost in part. A flush has been told of it, or not yet: that is all that a system promises.
    Away(Arc<AtomicBool>),
    /// Some of its requests, or all, give errors.
    Errors,
    /// It takes long.
    Slow,
    /// Some of its requests, or all, are answered at this time and no sooner.
    Hang(Instant),
}

impl Ailment {
    /// Whether what the disk is given may be lost.
    pub(super) const fn harms(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Errors | Self::Hang(_))
    }
}

/// The requests that give errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errors {
    kinds: &'static [RequestKind],
    /// All of them, one in so many, the n-th from now on alone, or some from the n-th on.
    how: How,
    /// Only where data is, between two offsets: labels are taken, so the disk stays in use.
    area: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum How {
    All,
    OneIn(u64),
    Nth(u64),
    /// Both tries of some, and no more than that: the disk is not given up, and takes the labels and the uberblock.
    Burst(u64, u64),
}

impl Errors {
    /// Draws some.
    pub(super) fn draw(rng: &mut Rng, disk_bytes: u64) -> Self {
        let kinds = KINDS[rng.below(KINDS.len() as u64) as usize];
        let how = match rng.below(5) {
            0 => How::All,
            1 => How::OneIn(2 + rng.below(6)),
            2 => How::Nth(rng.below(12)),
            _ => How::Burst(rng.below(30), 4 + rng.below(24)),
        };
        let area = rng.chance(1, 2).then(|| {
            let first = AREA_FIRST + rng.below(disk_bytes / 2);
            (first, (first + (1 << 20) + rng.below(disk_bytes / 2)).min(disk_bytes - AREA_FIRST))
        });
        Self { kinds, how, area }
    }

    /// Has a disk give them.
    pub(super) fn begin(self, disk: &SimDisk) -> Ailment {
        let mut asked = 0;
        disk.set_faults(move |request, rng| {
            let is_in =
                |(first, end): (u64, u64)| request.size_bytes > 0 && (first..end).contains(&request.offset_bytes);
            if !self.kinds.contains(&request.kind) || !self.area.is_none_or(is_in) {
                return Fault::None;
            }
            let at = asked;
            asked += 1;
            let fails = match self.how {
                How::All => true,
                How::OneIn(of) => rng.chance(1, of),
                How::Nth(nth) => at == nth,
                How::Burst(first, count) => (first..first + count).contains(&at),
            };
            if fails { Fault::Error(ErrorKind::Other) } else { Fault::None }
        });
        Ailment::Errors
    }
}

/// Pulls a disk.
pub(super) fn pull(disk: &SimDisk) -> Ailment {
    disk.crash(Crash::Random);
    disk.power_on();
    let is_told = Arc::new(AtomicBool::new(false));
    let told = is_told.clone();
    disk.set_faults(move |request, _| {
        if request.kind == RequestKind::Flush {
            told.store(true, Ordering::Relaxed);
        }
        Fault::Error(ErrorKind::NotConnected)
    });
    Ailment::Away(is_told)
}

/// Has a disk take long for some of its requests.
pub(super) fn slow(disk: &SimDisk) -> Ailment {
    disk.set_faults(|_, rng| match rng.chance(1, 4) {
        true => Fault::Delay(Duration::from_millis(rng.below(SLOW_MS_MAX))),
        false => Fault::None,
    });
    Ailment::Slow
}

/// Has a disk hang for a while. Until it answers the pool waits for it, or goes on without it if that is too long.
pub(super) fn hang(handle: &Handle, disk: &SimDisk, rng: &mut Rng) -> Ailment {
    let kinds = KINDS[rng.below(KINDS.len() as u64) as usize];
    let seconds = if rng.chance(1, 3) { rng.below(HANG_SECONDS) } else { HANG_SECONDS + rng.below(HANG_SECONDS_MORE) };
    let until = handle.now() + Duration::from_secs(seconds);
    let handle = handle.clone();
    disk.set_faults(move |request, _| match kinds.contains(&request.kind) && handle.now() < until {
        true => Fault::Delay(until - handle.now()),
        false => Fault::None,
    });
    Ailment::Hang(until)
}

/// Ends an ailment. A loss of unflushed writes that nobody was told of yet is told to the next flush: one that is told to nobody cannot be
/// known.
pub(super) fn end(disk: &SimDisk, ailment: &Ailment) {
    disk.clear_faults();
    if let Ailment::Away(is_told) = ailment
        && !is_told.load(Ordering::Relaxed)
    {
        let told = is_told.clone();
        disk.set_faults(move |request, _| {
            match request.kind == RequestKind::Flush && !told.swap(true, Ordering::Relaxed) {
                true => Fault::Error(ErrorKind::BrokenPipe),
                false => Fault::None,
            }
        });
    }
}
