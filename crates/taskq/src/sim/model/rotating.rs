//! A rotating disk: one head over tracks, and an elevator in front of it.
//!
//! ```text
//!   arrive --> plug: the first one on an idle disk waits up to `plug` for neighbours, or until there are `plug_count`
//!          --> elevator: the one at or after the head with the lowest offset, else the lowest of all; but first one that has
//!              waited for `expire`, once in `batch`; with all that follow it without a gap, up to `merge_max_bytes`
//!          --> seek (track to track) --> wait for the platter --> transfer, over as many tracks as it takes --> done
//! ```
//!
//! Where the platter is follows from the clock: at time `t` the angle `t mod rotation` is under the head. Tracks hold
//! `track_bytes` each and are skewed by `track_switch`, so that a transfer that goes on over the end of a track loses just
//! that. From which follow, and are tested:
//!
//! * seek over `d` of `n` tracks: 0 for none, else `settle + stroke * sqrt(d / n)`;
//! * transfer: `size / track_bytes * rotation`, and `track_switch` for each end of a track that is passed;
//! * sequential rate: `track_bytes / (rotation + track_switch)`;
//! * random small ones one at a time: the mean seek, half a rotation and the transfer; over uniform places the mean of
//!   `sqrt(d / n)` is 8/15.
//!
//! While nobody asks, the drive reads on behind the last read into `read_ahead_bytes` of its memory: a read that continues
//! there is served as though the head had never stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Asked, DeviceModel, Done, Stalls, after_stalls, ns};
use crate::sim::disk::RequestKind;
use crate::time::Instant;

/// The parameters of a [`Rotating`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotatingOptions {
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of a track, the same everywhere.
    pub track_bytes: u64,
    /// One turn of the platter.
    pub rotation: Duration,
    /// From one track to the next within a transfer.
    pub track_switch: Duration,
    /// The shortest seek.
    pub settle: Duration,
    /// The time that a seek over all tracks takes beside that.
    pub stroke: Duration,
    /// How long the drive is busy with each request, beside the head.
    pub command: Duration,
    /// How far it reads on while nobody asks; 0 if it does not.
    pub read_ahead_bytes: u64,
    /// How long the first request on an idle disk waits for others; 0 if it does not.
    pub plug: Duration,
    /// How many requests end the plug.
    pub plug_count: usize,
    /// The most that neighbours are merged into.
    pub merge_max_bytes: u64,
    /// How long a request may be passed over.
    pub expire: Duration,
    /// How many transfers follow in order before the next check for one that has waited that long.
    pub batch: u32,
    /// When it stands still.
    pub stalls: Option<Stalls>,
}

impl RotatingOptions {
    /// A drive of 1 TB at 7200 turns a minute: about 79 random reads a second one at a time, 246 MB/s in sequence.
    #[must_use]
    pub const fn desktop() -> RotatingOptions {
        RotatingOptions {
            size_bytes: 1 << 40,
            track_bytes: 2_250_000,
            rotation: Duration::from_nanos(8_333_333),
            track_switch: Duration::from_micros(800),
            settle: Duration::from_micros(800),
            stroke: Duration::from_millis(14),
            command: Duration::from_micros(10),
            read_ahead_bytes: 2 << 20,
            plug: Duration::from_micros(500),
            plug_count: 4,
            merge_max_bytes: 512 << 10,
            expire: Duration::from_millis(500),
            batch: 16,
            stalls: None,
        }
    }

    /// The same, `factor` times slower in everything the head and the platter do.
    #[must_use]
    pub fn slower(self, factor: u32) -> RotatingOptions {
        RotatingOptions {
            rotation: self.rotation * factor,
            track_switch: self.track_switch * factor,
            settle: self.settle * factor,
            stroke: self.stroke * factor,
            command: self.command * factor,
            ..self
        }
    }

    /// Its tracks.
    #[must_use]
    pub const fn tracks(&self) -> u64 {
        self.size_bytes.div_ceil(self.track_bytes)
    }

    /// How long a seek over `distance` tracks takes.
    #[must_use]
    pub(crate) fn seek(&self, distance: u64) -> Duration {
        if distance == 0 {
            return Duration::ZERO;
        }
        let share = (distance as f64 / self.tracks() as f64).sqrt();
        self.settle + Duration::from_nanos((ns(self.stroke) as f64 * share) as u64)
    }

    /// How long the bytes from `from` to `to` take to pass under the head, track switches included.
    #[must_use]
    pub(crate) fn transfer(&self, from: u64, to: u64) -> Duration {
        let turning = u128::from(to.saturating_sub(from)) * u128::from(ns(self.rotation));
        let turning = u64::try_from(turning.div_ceil(u128::from(self.track_bytes))).unwrap_or(u64::MAX);
        let switches = to.saturating_sub(1).max(from) / self.track_bytes - from / self.track_bytes;
        Duration::from_nanos(turning.saturating_add(switches.saturating_mul(ns(self.track_switch))))
    }

    /// When, from `at` on, the head that is on its track has `place` under it.
    fn turn_to(&self, place: u64, at: Instant) -> Instant {
        let rotation = u128::from(ns(self.rotation));
        let (track, within) = (place / self.track_bytes, place % self.track_bytes);
        let start = u128::from(within) * rotation / u128::from(self.track_bytes);
        let angle = (start + u128::from(track) * u128::from(ns(self.track_switch))) % rotation;
        let now = u128::from(at.as_ns()) % rotation;
        at + Duration::from_nanos(((angle + rotation - now) % rotation) as u64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    end: u64,
    arrived: Instant,
    read: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Idle,
    Plugged(Instant),
    /// `passed`: when the head is behind `end`; the answer may come later than that.
    Busy {
        until: Instant,
        passed: Instant,
        ids: Vec<u64>,
        end: u64,
        read: bool,
    },
}

/// The model; see the module comment.
#[derive(Debug)]
pub struct Rotating {
    options: RotatingOptions,
    queue: BTreeMap<(u64, u64), Waiting>,
    by_arrival: BTreeMap<u64, (u64, u64)>,
    arrivals: u64,
    arrival_of: BTreeMap<u64, u64>,
    flushes: BTreeMap<(Instant, u64), ()>,
    phase: Phase,
    /// Transfers left of the batch.
    batch_left: u32,
    /// Where the head is: behind the last byte it passed.
    head: u64,
    /// Since when the drive has been reading on from there, if it has: when the head passed that place, which may be before the
    /// answer left.
    reading_on: Option<Instant>,
}

impl Rotating {
    /// An idle drive with its head at the start.
    ///
    /// # Panics
    /// When a track has no bytes or a turn takes no time: that is no drive.
    #[must_use]
    pub fn new(options: RotatingOptions) -> Rotating {
        assert!(options.track_bytes != 0 && !options.rotation.is_zero(), "tracks have bytes, and the platter turns");
        Rotating {
            options,
            queue: BTreeMap::new(),
            by_arrival: BTreeMap::new(),
            arrivals: 0,
            arrival_of: BTreeMap::new(),
            flushes: BTreeMap::new(),
            phase: Phase::Idle,
            batch_left: 0,
            head: 0,
            reading_on: None,
        }
    }

    /// Which request is served next.
    fn pick(&mut self, now: Instant) -> Option<(u64, u64)> {
        let oldest = self.by_arrival.first_key_value().map(|(_, key)| *key)?;
        let has_expired = self.queue.get(&oldest).is_some_and(|waiting| waiting.arrived + self.options.expire <= now);
        if has_expired && self.batch_left == 0 {
            self.batch_left = self.options.batch;
            return Some(oldest);
        }
        self.batch_left = self.batch_left.saturating_sub(1);
        let onward = self.queue.range((self.head, 0)..).next();
        onward.or_else(|| self.queue.first_key_value()).map(|(key, _)| *key)
    }

    fn take(&mut self, key: (u64, u64)) -> Option<Waiting> {
        if let Some(arrival) = self.arrival_of.remove(&key.1) {
            self.by_arrival.remove(&arrival);
        }
        self.queue.remove(&key)
    }

    /// Begins the next service at `now`, if anything waits.
    fn start(&mut self, now: Instant) {
        let Some(first) = self.pick(now) else {
            self.phase = Phase::Idle;
            return;
        };
        let (start, mut ids) = (first.0, vec![first.1]);
        let Some(Waiting { mut end, read, .. }) = self.take(first) else { return };
        while let Some((&key, waiting)) = self.queue.range((end, 0)..).next() {
            if key.0 != end || waiting.read != read || waiting.end - start > self.options.merge_max_bytes {
                break;
            }
            end = waiting.end;
            ids.push(key.1);
            self.take(key);
        }
        let begin = after_stalls(self.options.stalls.as_ref(), now);
        let (until, passed) = self.serve(begin, start, end, read);
        self.phase = Phase::Busy { until, passed, ids, end, read };
    }

    /// When a transfer that the drive is told of at `begin` is done, and when the head has passed its end.
    fn serve(&self, begin: Instant, start: u64, end: u64, read: bool) -> (Instant, Instant) {
        let options = &self.options;
        let ready = begin + options.command;
        let distance = (start / options.track_bytes).abs_diff(self.head / options.track_bytes);
        let there = ready + options.seek(distance);
        let sought = options.turn_to(start, there) + options.transfer(start, end);
        let Some(since) = self.reading_on.filter(|_| read && start >= self.head) else { return (sought, sought) };
        let limit = self.head.saturating_add(options.read_ahead_bytes);
        if start > limit {
            return (sought, sought);
        }
        let passed = if end <= limit || begin <= since + options.transfer(self.head, limit) {
            // In the drive's memory, or still ahead of a head that has not stopped.
            since + options.transfer(self.head, end)
        } else {
            options.turn_to(limit, ready) + options.transfer(limit, end)
        };
        if sought < passed { (sought, sought) } else { (passed.max(ready), passed) }
    }
}

impl DeviceModel for Rotating {
    fn submit(&mut self, now: Instant, asked: Asked) {
        if asked.kind == RequestKind::Flush {
            // The content of the drive's cache is on the platter within a turn.
            self.flushes.insert((now + self.options.rotation, asked.id), ());
            return;
        }
        let end = asked.offset_bytes.saturating_add(asked.size_bytes.max(1));
        let key = (asked.offset_bytes, asked.id);
        self.arrivals += 1;
        self.by_arrival.insert(self.arrivals, key);
        self.arrival_of.insert(asked.id, self.arrivals);
        self.queue.insert(key, Waiting { end, arrived: now, read: asked.kind == RequestKind::Read });
        match self.phase {
            Phase::Idle if self.options.plug.is_zero() => self.start(now),
            Phase::Idle => self.phase = Phase::Plugged(now + self.options.plug),
            Phase::Plugged(_) if self.queue.len() >= self.options.plug_count => self.start(now),
            _ => {}
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let own = match self.phase {
            Phase::Idle => None,
            Phase::Plugged(until) | Phase::Busy { until, .. } => Some(until),
        };
        let flush = self.flushes.first_key_value().map(|(&(at, _), ())| at);
        own.into_iter().chain(flush).min()
    }

    fn advance(&mut self, now: Instant, done: &mut Vec<Done>) {
        while let Some(at) = self.next_event().filter(|at| *at <= now) {
            while let Some((&(flushed, id), ())) = self.flushes.first_key_value() {
                if flushed > at {
                    break;
                }
                self.flushes.pop_first();
                done.push(Done { id, at: flushed });
            }
            match std::mem::replace(&mut self.phase, Phase::Idle) {
                Phase::Busy { until, passed, ids, end, read } if until <= at => {
                    done.extend(ids.into_iter().map(|id| Done { id, at: until }));
                    self.head = end;
                    self.reading_on = (read && self.options.read_ahead_bytes != 0).then_some(passed);
                    self.start(until);
                }
                Phase::Plugged(until) if until <= at => self.start(until),
                other => self.phase = other,
            }
        }
    }
}
