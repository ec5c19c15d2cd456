//! Stream detection for prefetch (OpenZFS's zfetch): predicts the next blocks of an object from a reader's accesses.
//!
//! A pure state machine: accesses go in, plans come out. It knows no clock, no cache and no device. Its caller reports the one fact that
//! it needs: how a prefetched block was met by its reader, in time or late ([`Met`]).
//!
//! ```text
//!   access ─► a stream's next? ── yes ─► move on, grow, and plan when half of what is ahead is used up
//!                │ no
//!                └─► fits an earlier access (before it, after it, two at one distance)? ─► a new stream
//! ```
//!
//! A *stream* repeats a *step*: one block on (forward), one block back, or a stride between accesses of one length. It
//! keeps a *distance* of steps planned ahead of the reader. The distance doubles with each access at first, up to what
//! costs little; beyond that only when a block came late, so it settles at what the reader's pace times the device's
//! latency demands; it halves when prefetched blocks were evicted unused, and a stream whose blocks are repeatedly evicted stops
//! prefetching.
//!
//! Bounds: [`STREAMS_MAX`] streams of [`Limits::distance_max`] blocks each; time a few hundred comparisons.

/// Streams of one reader. More readers of one file than this take the places of the least used.
pub(crate) const STREAMS_MAX: usize = 8;
/// Earlier accesses remembered, in which streams are found.
const STARTS_MAX: usize = 8;
/// How far behind a stream an access may fall and still be its: concurrent reads arrive out of order.
const DISORDER_MAX: u64 = 32;
/// How far ahead of a stream an access may be and still be its, where nothing is planned.
const OVERTAKING_MAX: u64 = 16;
/// Steps over which it is judged whether a stream is followed: a few queues of reads in disorder.
const LATELY: u64 = 128;
/// Times in a row that a stream's blocks may be evicted unused before it rests.
const WASTED_MAX: u32 = 3;
/// Steps that a stream rests for the first time, and at most; each time twice as long.
const REST_MIN: u64 = 256;
const REST_MAX: u64 = 1 << 20;

/// The bounds of an object's streams, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The distance that a new stream plans, and the least of any stream.
    pub(crate) distance_min: u64,
    /// How far a stream grows that has not been late.
    pub(crate) distance_easy: u64,
    /// How far any stream grows.
    pub(crate) distance_max: u64,
    /// The object's last block.
    pub(crate) last: u64,
}

/// The reason why planned blocks were not there for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// They were on their way, or not even that.
    Late,
    /// They had come, and were gone again.
    Gone,
}

/// Blocks to load: `count` runs of `span` blocks, `step` apart, the first at `first`. All within the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) stream: u64,
    pub(crate) first: u64,
    pub(crate) span: u64,
    pub(crate) step: i64,
    pub(crate) count: u64,
}

impl Plan {
    /// The blocks, in the order in which they will be wanted.
    pub(crate) fn blocks(self) -> impl Iterator<Item = u64> {
        (0..self.count).flat_map(move |index| {
            let start = self.first.wrapping_add_signed(self.step.wrapping_mul(index as i64));
            start..start.saturating_add(self.span)
        })
    }

    /// Whether the first and the last run lie in an object, and so all between.
    fn is_within(self, last: u64) -> bool {
        let end = |steps: u64| {
            let start = self.first.checked_add_signed(self.step.checked_mul(i64::try_from(steps).ok()?)?)?;
            start.checked_add(self.span - 1)
        };
        [0, self.count - 1].into_iter().all(|steps| end(steps).is_some_and(|end| end <= last))
    }

    /// The blocks at the far end, one step beyond the last, if it is in the object: what the next plan begins with.
    pub(crate) fn beyond(self, last: u64) -> Option<u64> {
        let steps = self.step.checked_mul(i64::try_from(self.count.checked_mul(2)?).ok()?)?;
        self.first.checked_add_signed(steps).filter(|block| *block <= last)
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    id: u64,
    /// Where the next access begins: the first block not yet read, in the stream's direction.
    next: u64,
    step: i64,
    /// Blocks of each step: one, but for strides.
    span: u64,
    /// Steps planned beyond `next`.
    planned: u64,
    /// Steps to keep planned.
    distance: u64,
    /// Steps since the stream began, and how many had been loaded as far as we were told.
    passed: u64,
    loaded: u64,
    /// Of the steps lately passed, those that were asked for: an access far ahead passes those between.
    lately_passed: u64,
    lately_seen: u64,
    wasted: u32,
    /// `passed` when blocks were last found gone (or when the rest after that ends), and when the distance last grew.
    gone_at: u64,
    grown_at: u64,
    /// Steps for which nothing is planned, and how many it will be the next time.
    rest: u64,
    next_rest: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    first: u64,
    end: u64,
}

/// The streams of one reader of one object.
#[derive(Debug)]
pub(crate) struct Streams {
    limits: Limits,
    streams: Vec<Stream>,
    starts: Vec<Start>,
    /// The oldest of `starts`, when they are full.
    oldest: usize,
    ticks: u64,
    ids: u64,
}

/// The stream of an access, and the blocks to load for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The stream that it belongs to, if any.
    pub(crate) stream: Option<u64>,
    /// Whether its blocks had been planned: then how they were met is to be told.
    pub(crate) planned: bool,
    /// Whether what had been planned there had been loaded.
    pub(crate) loaded: bool,
    /// The blocks to load.
    pub(crate) plan: Option<Plan>,
}

impl Streams {
    pub(crate) fn new(limits: Limits) -> Self {
        assert!(limits.distance_min <= limits.distance_easy, "a stream begins with no more than it easily gets");
        assert!(limits.distance_easy <= limits.distance_max, "no stream easily gets more than any gets");
        Self { limits, streams: Vec::new(), starts: Vec::new(), oldest: 0, ticks: 0, ids: 0 }
    }

    /// The object's last block, which moves where the object is written.
    pub(crate) fn set_last(&mut self, last: u64) {
        self.limits.last = last;
    }

    /// An access to `count` blocks from `first`. `room` is how many blocks may be planned now.
    pub(crate) fn access(&mut self, first: u64, count: u64, room: u64) -> Found {
        self.ticks += 1;
        let end = first.saturating_add(count.max(1));
        for index in 0..self.streams.len() {
            let Some(steps) = self.streams[index].steps_to(first, end) else { continue };
            let stream = &mut self.streams[index];
            stream.used = self.ticks;
            stream.see(first, end);
            let planned = steps > 0 && stream.planned > 0;
            let loaded = stream.loaded > stream.passed;
            stream.pass(steps, self.limits);
            let (id, plan) = (stream.id, stream.plan(self.limits, room));
            stream.check(self.limits);
            return Found { stream: Some(id), planned, loaded, plan };
        }
        let Some(mut stream) = self.begin(first, end) else {
            return Found { stream: None, planned: false, loaded: false, plan: None };
        };
        self.ids += 1;
        (stream.id, stream.used) = (self.ids, self.ticks);
        let plan = stream.plan(self.limits, room);
        stream.check(self.limits);
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(least) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *least = stream;
        }
        Found { stream: Some(stream.id), planned: false, loaded: false, plan }
    }

    /// Tells how blocks that were planned were met.
    pub(crate) fn met(&mut self, stream: u64, met: Met) {
        let limits = self.limits;
        let Some(stream) = self.streams.iter_mut().find(|own| own.id == stream) else { return };
        match met {
            // Blocks planned before the distance last grew say nothing about whether it is enough now.
            Met::Late if stream.passed.saturating_sub(stream.grown_at) < stream.distance => {}
            Met::Late => {
                stream.grown_at = stream.passed;
                stream.distance = (stream.distance * 2).min(stream.max(limits.distance_max));
            }
            Met::Gone => {
                stream.distance = (stream.distance / 2).max(stream.max(limits.distance_min));
                stream.planned = 0;
                stream.loaded = stream.passed;
                // "In a row" is: before the reader has seen what was planned since the last time.
                let since = stream.passed.saturating_sub(stream.gone_at);
                stream.wasted = if since > 4 * stream.distance { 1 } else { stream.wasted + 1 };
                stream.gone_at = stream.passed;
                if stream.wasted >= WASTED_MAX {
                    // After it, one more time is enough.
                    stream.wasted = WASTED_MAX - 1;
                    stream.rest = stream.next_rest;
                    stream.next_rest = (stream.next_rest * 2).min(REST_MAX);
                    stream.gone_at = stream.gone_at.saturating_add(stream.rest);
                }
            }
        }
        stream.check(limits);
    }

    /// Tells that `steps` of what was planned for a stream have been loaded.
    pub(crate) fn loaded(&mut self, stream: u64, steps: u64) {
        if let Some(stream) = self.streams.iter_mut().find(|own| own.id == stream) {
            stream.loaded = stream.loaded.saturating_add(steps).min(stream.passed.saturating_add(stream.planned));
            stream.check(self.limits);
        }
    }

    /// A stream that the access and earlier ones make, or a place for it among those.
    fn begin(&mut self, first: u64, end: u64) -> Option<Stream> {
        let count = end - first;
        let mut found = None;
        for index in 0..self.starts.len() {
            let start = self.starts[index];
            if first == start.end {
                found = Some((vec![index], end, 1, 1));
                break;
            }
            if end == start.first && start.first > 0 {
                found = Some((vec![index], first.checked_sub(1)?, -1, 1));
                break;
            }
            // Reads that do not keep to blocks share the block where they meet, and small ones are of the same block.
            if (start.first..start.end).contains(&first) {
                if end <= start.end {
                    return None;
                }
                found = Some((vec![index], end, 1, 1));
                break;
            }
            if start.first < end && end <= start.end && start.first > 0 {
                found = Some((vec![index], first.checked_sub(1)?, -1, 1));
                break;
            }
            // Two earlier accesses of this length, as far from each other as the nearer is from this one.
            let distance = first.abs_diff(start.first);
            if distance <= count || start.end - start.first != count {
                continue;
            }
            let before =
                if first > start.first { start.first.checked_sub(distance) } else { start.first.checked_add(distance) };
            let Some(before) = before else { continue };
            let step = i64::try_from(distance).ok().map(|step| if first > start.first { step } else { -step });
            let other = self.starts.iter().position(|other| other.first == before && other.end - other.first == count);
            if let (Some(other), Some(step)) = (other, step)
                && let Some(next) = first.checked_add_signed(step)
            {
                found = Some((vec![index, other], next, step, count));
                break;
            }
        }
        let Some((mut parts, next, step, span)) = found else {
            self.remember(Start { first, end });
            return None;
        };
        parts.sort_unstable();
        for part in parts.into_iter().rev() {
            self.starts.remove(part);
        }
        self.oldest = 0;
        let mut stream = Stream {
            id: 0,
            next,
            step,
            span,
            planned: 0,
            distance: 0,
            passed: 0,
            loaded: 0,
            lately_passed: 0,
            lately_seen: 0,
            wasted: 0,
            gone_at: 0,
            grown_at: 0,
            rest: 0,
            next_rest: REST_MIN,
            used: 0,
        };
        // A reader that asks for much at once wants as much ahead; a stride is a guess until it has come true.
        stream.distance = match span {
            1 => self.limits.distance_min.max(count),
            _ => 1,
        };
        stream.distance = stream.distance.min(stream.max(self.limits.distance_max));
        Some(stream)
    }

    fn remember(&mut self, start: Start) {
        debug_assert!(self.oldest == 0 || self.starts.len() == STARTS_MAX, "accesses go round once they are full");
        if self.starts.len() < STARTS_MAX {
            self.starts.push(start);
        } else {
            self.starts[self.oldest] = start;
            self.oldest = (self.oldest + 1) % STARTS_MAX;
        }
    }
}

impl Stream {
    /// Checks the relations between its numbers.
    fn check(&self, limits: Limits) {
        debug_assert!(self.step != 0 && self.span > 0, "a stream moves, by blocks");
        debug_assert!(self.span == 1 || self.span < self.step.unsigned_abs(), "the steps of a stride do not overlap");
        debug_assert!(self.distance <= self.max(limits.distance_max), "no stream keeps more planned than any may");
        debug_assert!(self.planned <= self.max(limits.distance_max), "no more is planned than any stream has ahead");
        debug_assert!(self.passed <= self.loaded, "what was passed need not be loaded");
        debug_assert!(
            self.loaded <= self.passed.saturating_add(self.planned),
            "what is loaded was passed, or is planned"
        );
        debug_assert!(self.grown_at <= self.passed, "a stream has grown at a step that it passed");
        debug_assert!(self.wasted < WASTED_MAX, "a stream whose blocks are wasted rests");
        debug_assert!((REST_MIN..=REST_MAX).contains(&self.next_rest) && self.rest <= REST_MAX, "a rest ends");
    }

    /// Steps that make no more than `blocks`, and one at least.
    fn max(&self, blocks: u64) -> u64 {
        (blocks / self.span).max(1)
    }

    /// How many steps the stream moves on if this access is its; `None` if it is not.
    fn steps_to(&self, first: u64, end: u64) -> Option<u64> {
        match self.step {
            1 => {
                // From a little behind to a little ahead, or to the end of what was planned.
                let reach = self.next.saturating_add(self.planned.max(OVERTAKING_MAX));
                (first <= reach && end.saturating_add(DISORDER_MAX) > self.next).then(|| end.saturating_sub(self.next))
            }
            -1 => {
                let reach = self.next.saturating_sub(self.planned.max(OVERTAKING_MAX));
                // `next` is the block below those read.
                let end_below = self.next.saturating_add(1);
                (end > reach && first <= end_below.saturating_add(DISORDER_MAX))
                    .then(|| end_below.saturating_sub(first))
            }
            step => {
                if end - first != self.span {
                    return None;
                }
                let distance = i64::try_from(first.abs_diff(self.next)).ok()?;
                let distance = if first >= self.next { distance } else { -distance };
                if distance % step != 0 {
                    return None;
                }
                match u64::try_from(distance / step) {
                    // From the next to the end of what was planned.
                    Ok(skipped) if skipped <= self.planned => Some(skipped + 1),
                    Ok(_) => None,
                    // An access that was overtaken.
                    Err(_) => (distance / step >= -4).then_some(0),
                }
            }
        }
    }

    /// Counts what an access of this stream asks for.
    fn see(&mut self, first: u64, end: u64) {
        let steps = (end - first) / self.span;
        self.lately_seen = self.lately_seen.saturating_add(steps);
    }

    /// Whether most of what was passed was asked for. Reads at random happen to fall on what is planned, too.
    fn is_followed(&self) -> bool {
        self.lately_seen >= self.lately_passed / 2
    }

    fn pass(&mut self, steps: u64, limits: Limits) {
        if steps == 0 {
            return;
        }
        // At the object's end the place after the last has no number; there is nothing to plan there either.
        let moved = i64::try_from(steps).ok().and_then(|steps| self.step.checked_mul(steps));
        self.next = moved.and_then(|moved| self.next.checked_add_signed(moved)).unwrap_or(u64::MAX);
        self.planned = self.planned.saturating_sub(steps);
        self.passed = self.passed.saturating_add(steps);
        self.loaded = self.loaded.max(self.passed);
        self.lately_passed = self.lately_passed.saturating_add(steps);
        // Pieces of blocks are seen many times: no credit beyond what was passed.
        self.lately_seen = self.lately_seen.min(self.lately_passed);
        if self.lately_passed > LATELY {
            (self.lately_passed, self.lately_seen) = (self.lately_passed / 2, self.lately_seen / 2);
        }
        if self.rest > 0 {
            self.rest = self.rest.saturating_sub(steps);
            return;
        }
        let easy = self.max(limits.distance_easy);
        // A stream that shrank grows again only when it is late.
        if self.distance < easy && self.wasted == 0 && self.is_followed() {
            self.distance = (self.distance * 2).min(easy);
            self.grown_at = self.passed;
        }
    }

    /// Plans up to the distance, once half of it has been used up.
    fn plan(&mut self, limits: Limits, room: u64) -> Option<Plan> {
        if self.rest > 0 || self.planned > self.distance / 2 || self.next == u64::MAX || !self.is_followed() {
            return None;
        }
        let offset = self.step.checked_mul(i64::try_from(self.planned).ok()?)?;
        let first = self.next.checked_add_signed(offset)?;
        // Steps that lie wholly within the object.
        let within = match self.step {
            step if step < 0 => (first.checked_add(self.span)? <= limits.last.saturating_add(1))
                .then(|| first / step.unsigned_abs() + 1),
            step => {
                let room_behind = (limits.last.saturating_add(1)).checked_sub(first.checked_add(self.span)?);
                room_behind.map(|room_behind| room_behind / step.unsigned_abs() + 1)
            }
        }?;
        let count = (self.distance - self.planned).min(within).min(room / self.span);
        if count == 0 {
            return None;
        }
        self.planned += count;
        let plan = Plan { stream: self.id, first, span: self.span, step: self.step, count };
        debug_assert!(plan.is_within(limits.last), "{plan:?} leaves the object");
        Some(plan)
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
