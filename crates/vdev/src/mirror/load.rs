//! The load of one child: its outstanding requests and its response times.
//!
//! The *nominal* time of a request is the time that its answer *should* take on a device of its kind that has nothing else to do. For a
//! rotating device that is seek, half a turn and transfer, of which the first two are spared a read that goes on where a recent one ended;
//! for another one it is a share of its parallel work and the transfer. The *backlog* is the sum over all outstanding requests. Devices are
//! told apart by the ratio of the time an answer took to the backlog when its read was sent, decayed over answers and kept by size: it is
//! about 1 for the modelled device, 10 for one that is 10 times slower, 1/16 for one that does 16 at once.

use std::time::Duration;

use cenote_taskq::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use cenote_taskq::{Handle, Instant};

use super::Ask;

/// A ratio of one.
pub(super) const ONE: u64 = 1 << 16;
/// Recent runs of reads that are remembered: as many streams stay with the child that has their neighbours.
const RUNS: usize = 32;
/// How far from a run's end a read still belongs to it: what an elevator brings together, and what a command may cover.
const RUN_NEAR_BYTES: u64 = 4 << 20;
/// Size classes end below these; the last has no end.
const CLASS_ENDS: [u64; 2] = [32 << 10, 256 << 10];
const CLASSES: usize = CLASS_ENDS.len() + 1;

/// A seek to the next track, and over all of them; half a turn at 7200 a minute; a byte at 244 MB/s.
const SETTLE_NS: u64 = 800_000;
const STROKE_NS: u64 = 14_000_000;
const HALF_TURN_NS: u64 = 4_200_000;
const ROTATING_PS_A_BYTE: u64 = 4_100;
/// A solid-state device: until its answer comes, and how busy it is with it: 8 at once, at 1 GB/s.
const ACCESS_NS: u64 = 80_000;
const SHARE_NS: u64 = 10_000;
const SOLID_PS_A_BYTE: u64 = 1_000;

/// A read counts this much in the middle of where its child reads, as a power of two.
const MIDDLE_SHIFT: u32 = 5;
const CONTINUED_ONE: u32 = 1 << 16;
/// An answer counts this much in the averages, as a power of two; and this much if there was none for a while.
const WEIGHT_SHIFT: u32 = 5;
const RARE_WEIGHT_SHIFT: u32 = 1;
const RARE_NS: u64 = 250_000_000;

/// Second reads that can be saved up, and what one costs; what is earned is in hundredths.
const CREDIT_MAX: u32 = 16 * CREDIT;
const CREDIT: u32 = 100;
const CREDIT_AT_START: u32 = 4 * CREDIT;

/// Averages over answers to reads of one class of sizes.
#[derive(Debug, Default)]
struct Answers {
    /// Time over backlog, in 1/[`ONE`]; 0 before the first.
    ratio: AtomicU64,
    mean_ns: AtomicU64,
    deviation_ns: AtomicU64,
}

/// The outstanding requests of a device and the history of its answers. See the module comment.
#[derive(Debug)]
#[repr(align(128))]
pub struct Load {
    rotational: bool,
    span_bytes: u64,
    pending: AtomicU32,
    /// Of those, reads that the device has been given; the others wait for it.
    passed_on: AtomicU32,
    /// Of those, reads that nobody waits for any more.
    overdue: AtomicU32,
    backlog_ns: AtomicU64,
    next_address: AtomicU64,
    /// The middle of where it has been reading, decayed.
    middle: AtomicU64,
    /// How many reads go on with a run, decayed, in 1/[`CONTINUED_ONE`].
    continued: AtomicU32,
    /// When the latest read was sent.
    sent_ns: AtomicU64,
    /// Since when it has not answered, if it has something to answer.
    silent_since_ns: AtomicU64,
    answered_ns: AtomicU64,
    credit: AtomicU32,
    run_turn: AtomicU32,
    sit_out_until_ns: AtomicU64,
    /// Of a parity stripe: whether its children are compared, and when they last were. Of a child: how often in a row it came out far behind.
    is_compared: AtomicBool,
    compared_ns: AtomicU64,
    behind: AtomicU32,
    /// How many reads fail or bring wrong bytes, decayed, in 1/[`ONE`].
    failing: AtomicU64,
    /// Since when it had been silent when that was last reported.
    hang_reported_ns: AtomicU64,
    answers: [Answers; CLASSES],
    runs: [AtomicU64; RUNS],
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The device brought what it has.
    Good,
    /// The bytes came, and were wrong.
    Wrong,
    /// None came, which says nothing about the device's speed.
    Failed,
}

fn class(size_bytes: u64) -> usize {
    CLASS_ENDS.iter().position(|end| size_bytes < *end).unwrap_or(CLASSES - 1)
}

fn times(bytes: u64, ps_a_byte: u64) -> u64 {
    bytes.saturating_mul(ps_a_byte) / 1000
}

/// Moves an average towards a sample. Two at once may lose one of them, which an average survives.
fn decay(average: &AtomicU64, sample: u64, shift: u32) {
    let before = average.load(Ordering::Relaxed);
    let after = before - (before >> shift) + (sample >> shift);
    average.store(after.max(1), Ordering::Relaxed);
}

impl Load {
    /// Of a device that has not been asked anything. `span_bytes`: how far its head can move.
    #[must_use]
    pub fn new(rotational: bool, span_bytes: u64) -> Self {
        Self {
            rotational,
            span_bytes: span_bytes.max(1),
            pending: AtomicU32::new(0),
            passed_on: AtomicU32::new(0),
            overdue: AtomicU32::new(0),
            backlog_ns: AtomicU64::new(0),
            next_address: AtomicU64::new(0),
            middle: AtomicU64::new(0),
            continued: AtomicU32::new(0),
            sent_ns: AtomicU64::new(0),
            silent_since_ns: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
            credit: AtomicU32::new(CREDIT_AT_START),
            run_turn: AtomicU32::new(0),
            sit_out_until_ns: AtomicU64::new(0),
            is_compared: AtomicBool::new(true),
            compared_ns: AtomicU64::new(0),
            behind: AtomicU32::new(0),
            failing: AtomicU64::new(0),
            hang_reported_ns: AtomicU64::new(0),
            answers: Default::default(),
            runs: Default::default(),
        }
    }

    /// Whether distance costs time.
    #[must_use]
    pub(crate) const fn is_rotational(&self) -> bool {
        self.rotational
    }

    /// Reads that were sent and are not answered, including those whose reader has gone.
    #[must_use]
    pub(crate) fn pending(&self) -> u32 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Of those, reads that do not wait for the device's queue any more.
    #[must_use]
    pub(crate) fn passed_on(&self) -> u32 {
        self.passed_on.load(Ordering::Relaxed)
    }

    /// Where the latest read that was sent ends.
    #[must_use]
    pub(crate) fn next_address(&self) -> u64 {
        self.next_address.load(Ordering::Relaxed)
    }

    /// When the latest read was sent.
    #[must_use]
    pub(crate) fn sent(&self) -> Instant {
        Instant::from_ns(self.sent_ns.load(Ordering::Relaxed))
    }

    /// Mean time of an answer to a read of this size, and the mean deviation; `None` before the first.
    pub(crate) fn answer_ns(&self, size_bytes: u64) -> Option<(u64, u64)> {
        let answers = &self.answers[class(size_bytes)];
        let mean = answers.mean_ns.load(Ordering::Relaxed);
        (mean != 0).then(|| (mean, answers.deviation_ns.load(Ordering::Relaxed)))
    }

    /// How many of its reads fail, decayed, in 1/[`ONE`].
    pub(super) fn failing(&self) -> u64 {
        self.failing.load(Ordering::Relaxed)
    }

    /// Takes the turn to report that it has been silent for so long, which one read gets for each silence.
    pub(crate) fn take_hang(&self, now: Instant, limit: Duration) -> bool {
        let since_ns = self.silent_since_ns.load(Ordering::Relaxed);
        u128::from(self.silence_ns(now)) >= limit.as_nanos()
            && self.hang_reported_ns.swap(since_ns + 1, Ordering::Relaxed) != since_ns + 1
    }

    /// Time over backlog for reads of this size, in 1/[`ONE`]; where there was none of this size, of the nearest class.
    pub(super) fn ratio(&self, size_bytes: u64) -> u64 {
        let own = class(size_bytes);
        let ratio = |index: usize| self.answers[index].ratio.load(Ordering::Relaxed);
        let nearest = [own, own.saturating_sub(1), (own + 1).min(CLASSES - 1), 0, CLASSES - 1];
        nearest.into_iter().map(ratio).find(|ratio| *ratio != 0).unwrap_or(ONE)
    }

    /// Unanswered reads whose reader has gone.
    pub(super) fn overdue(&self) -> u32 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// How long it has been silent although there is something to answer.
    pub(crate) fn silence_ns(&self, now: Instant) -> u64 {
        if self.pending() == 0 {
            return 0;
        }
        now.as_ns().saturating_sub(self.silent_since_ns.load(Ordering::Relaxed))
    }

    /// The nominal time of a read if it were sent now, behind what is there already. `continues`: [`Self::continues`] of it.
    pub(super) fn nominal_ns(&self, ask: &Ask, continues: bool) -> u64 {
        if !self.rotational {
            return SHARE_NS + times(ask.size_bytes, SOLID_PS_A_BYTE);
        }
        let transfer = times(ask.size_bytes, ROTATING_PS_A_BYTE);
        if continues {
            return transfer;
        }
        transfer + self.seek_ns(ask.address_bytes)
    }

    /// How long a read keeps the device busy that continues nothing, by what its answers took lately.
    pub(crate) fn service_ns(&self, size_bytes: u64) -> u64 {
        let nominal = if self.rotational {
            HALF_TURN_NS + SETTLE_NS + STROKE_NS / 4 + times(size_bytes, ROTATING_PS_A_BYTE)
        } else {
            SHARE_NS + times(size_bytes, SOLID_PS_A_BYTE)
        };
        nominal.saturating_mul(self.ratio(size_bytes)) / ONE
    }

    /// The nominal time of a read that continues nothing, if there were no other.
    pub(super) fn alone_ns(&self, ask: &Ask) -> u64 {
        self.nominal_ns(ask, false) + if self.rotational { 0 } else { ACCESS_NS }
    }

    /// The nominal time of a read that continues nothing, without its transfer.
    pub(super) fn seek_ns(&self, address: u64) -> u64 {
        if !self.rotational {
            return SHARE_NS;
        }
        let (head, middle) =
            (self.next_address().abs_diff(address), self.middle.load(Ordering::Relaxed).abs_diff(address));
        let distance = if self.is_streaming() { middle } else { head.midpoint(middle) };
        self.seek_over_ns(distance)
    }

    /// Whether most reads go on with a run: then runs are placed, and the present position of the head means little.
    fn is_streaming(&self) -> bool {
        self.continued.load(Ordering::Relaxed) > CONTINUED_ONE / 2
    }

    /// The cost of moving a run to this child: a seek now, and again whenever the head comes back to it.
    pub(super) fn takeover_ns(&self, address: u64) -> u64 {
        if !self.rotational {
            return SHARE_NS;
        }
        self.seek_over_ns(self.middle.load(Ordering::Relaxed).abs_diff(address))
    }

    fn seek_over_ns(&self, distance: u64) -> u64 {
        let distance = distance.min(self.span_bytes);
        // The root of the share, in 1/1024: seeks are quicker by the root of their distance.
        let share = ((u128::from(distance) << 20) / u128::from(self.span_bytes)) as u64;
        HALF_TURN_NS + SETTLE_NS + STROKE_NS * share.isqrt() / 1024
    }

    /// The nominal time of the outstanding requests, with the answer's own latency where that is no work.
    pub(super) fn backlog_ns(&self) -> u64 {
        self.backlog_ns.load(Ordering::Relaxed) + if self.rotational { 0 } else { ACCESS_NS }
    }

    /// Whether a read here goes on with one of the recent runs. Neighbours do not come in order, so near is enough.
    pub(super) fn continues(&self, address: u64) -> bool {
        self.run(address).is_some()
    }

    fn run(&self, address: u64) -> Option<&AtomicU64> {
        // Where nothing moves there is nothing to keep together.
        if !self.rotational {
            return None;
        }
        self.runs.iter().find(|run| match run.load(Ordering::Relaxed) {
            0 => false,
            end => end.abs_diff(address) <= RUN_NEAR_BYTES,
        })
    }

    fn note_run(&self, run: Option<&AtomicU64>, end: u64) {
        if let Some(run) = run {
            let end = end.max(run.load(Ordering::Relaxed));
            return run.store(end, Ordering::Relaxed);
        }
        let turn = self.run_turn.load(Ordering::Relaxed);
        self.run_turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        self.runs[turn as usize % RUNS].store(end, Ordering::Relaxed);
    }

    /// Counts a read as sent until the result is told of its answer, or dropped.
    pub(crate) fn send(&self, ask: &Ask) -> Flight<'_> {
        let run = self.run(ask.address_bytes);
        let nominal_ns = self.nominal_ns(ask, run.is_some());
        // A read near a run's end may still have to wait for the platter. It adds little to the backlog; measured against that little
        // alone, one random read that happens to be near would make the device look hundreds of times slower.
        let wait_ns = if run.is_some() { HALF_TURN_NS + SETTLE_NS } else { 0 };
        let expected_ns = self.backlog_ns() + nominal_ns + wait_ns;
        if self.pending.fetch_add(1, Ordering::Relaxed) == 0 {
            self.silent_since_ns.store(ask.now.as_ns(), Ordering::Relaxed);
        }
        self.backlog_ns.fetch_add(nominal_ns, Ordering::Relaxed);
        self.sent_ns.store(ask.now.as_ns(), Ordering::Relaxed);
        let end = ask.address_bytes.saturating_add(ask.size_bytes);
        self.next_address.store(end, Ordering::Relaxed);
        if self.rotational {
            let middle = self.middle.load(Ordering::Relaxed);
            self.middle.store(middle - (middle >> MIDDLE_SHIFT) + (end >> MIDDLE_SHIFT), Ordering::Relaxed);
            let continued = self.continued.load(Ordering::Relaxed);
            let this = if run.is_some() { CONTINUED_ONE } else { 0 };
            self.continued.store(continued - (continued >> MIDDLE_SHIFT) + (this >> MIDDLE_SHIFT), Ordering::Relaxed);
            self.note_run(run, end);
        }
        Flight { load: self, sent: Some(Sent { ask: *ask, nominal_ns, expected_ns, passed_on: false }) }
    }

    /// A read is not outstanding any more.
    fn forget(&self, sent: &Sent) {
        let pending = self.pending.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(pending > 0, "what is not outstanding any more was outstanding");
        if sent.passed_on {
            let passed_on = self.passed_on.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(passed_on > 0, "the device had what it was given");
        }
        let backlog_ns = self.backlog_ns.fetch_sub(sent.nominal_ns, Ordering::Relaxed);
        debug_assert!(backlog_ns >= sent.nominal_ns, "the backlog had what was outstanding");
    }

    fn count_answer(&self, sent: &Sent, outcome: Outcome, now: Option<Instant>) {
        self.forget(sent);
        self.note_failure(outcome != Outcome::Good);
        let Some(now) = now else { return };
        self.silent_since_ns.store(now.as_ns(), Ordering::Relaxed);
        if outcome != Outcome::Failed {
            let took_ns = now.as_ns().saturating_sub(sent.ask.now.as_ns());
            self.sample(sent.ask.size_bytes, took_ns, sent.expected_ns, now);
        }
    }

    /// The answer came to a read that was given up on.
    pub(crate) fn count_late_answer(&self, sent: &Sent, outcome: Outcome, now: Instant) {
        let overdue = self.overdue.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(overdue > 0, "a read whose answer is late was given up on");
        self.count_answer(sent, outcome, Some(now));
    }

    /// Notes whether a read failed. Four in a row make it about 0.7, and as many good ones little again.
    fn note_failure(&self, failed: bool) {
        let before = self.failing.load(Ordering::Relaxed);
        debug_assert!(before <= ONE, "no more reads fail than there are");
        // The usual answer of a device that is well writes nothing.
        if failed {
            self.failing.store(before + (ONE - before) / 4, Ordering::Relaxed);
        } else if before != 0 {
            self.failing.store(before / 2, Ordering::Relaxed);
        }
    }

    /// Notes how long an answer took.
    fn sample(&self, size_bytes: u64, took_ns: u64, expected_ns: u64, now: Instant) {
        let answers = &self.answers[class(size_bytes)];
        let took_ns = took_ns.clamp(1, u64::MAX >> 20);
        let ratio = (took_ns.saturating_mul(ONE) / expected_ns.max(1)).max(1);
        let before = answers.mean_ns.load(Ordering::Relaxed);
        if before == 0 {
            answers.ratio.store(ratio, Ordering::Relaxed);
            answers.deviation_ns.store((took_ns / 2).max(1), Ordering::Relaxed);
            answers.mean_ns.store(took_ns, Ordering::Relaxed);
        } else {
            let since = now.as_ns().saturating_sub(self.answered_ns.load(Ordering::Relaxed));
            let shift = if since > RARE_NS { RARE_WEIGHT_SHIFT } else { WEIGHT_SHIFT };
            decay(&answers.ratio, ratio, shift);
            decay(&answers.deviation_ns, before.abs_diff(took_ns), shift);
            decay(&answers.mean_ns, took_ns, shift);
        }
        self.answered_ns.store(now.as_ns(), Ordering::Relaxed);
    }

    /// Earns `percent` hundredths of a second read.
    pub(crate) fn earn(&self, percent: u32) {
        let credit = self.credit.load(Ordering::Relaxed);
        if credit < CREDIT_MAX {
            self.credit.store(credit + percent, Ordering::Relaxed);
        }
    }

    /// Pays for a second read, if enough was earned.
    pub(crate) fn pay(&self) -> bool {
        let paid = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| credit.checked_sub(CREDIT));
        paid.is_ok()
    }

    /// Takes the turn to try a child that was avoided, which one read gets.
    pub(super) fn take_trial(&self, before: Instant, now: Instant) -> bool {
        let (before, now) = (before.as_ns(), now.as_ns());
        self.sent_ns.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes the turn to compare children, which one read gets every `interval_ns`.
    pub(crate) fn take_comparison(&self, now: Instant, interval_ns: u64) -> bool {
        let before = self.compared_ns.load(Ordering::Relaxed);
        now.as_ns().saturating_sub(before) >= interval_ns
            && self.compared_ns.compare_exchange(before, now.as_ns(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes how a comparison came out; how often in a row it was far behind by now.
    pub(crate) fn compared(&self, is_behind: bool) -> u32 {
        let count = if is_behind { self.behind.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.behind.store(count, Ordering::Relaxed);
        count
    }

    /// Whether the children of this stripe are compared.
    #[must_use]
    pub(crate) fn is_compared(&self) -> bool {
        self.is_compared.load(Ordering::Relaxed)
    }

    /// Has the children of this stripe be compared, or not.
    pub(crate) fn set_compared(&self, is_compared: bool) {
        self.is_compared.store(is_compared, Ordering::Relaxed);
    }

    /// Leaves the device out of parity stripes until then, or until [`Self::sit_in`]. How it answered is forgotten: it is not measured
    /// meanwhile, and would sit out for ever by what it was.
    pub(crate) fn sit_out(&self, until: Option<Instant>) {
        self.answers.iter().for_each(|answers| answers.mean_ns.store(0, Ordering::Relaxed));
        self.behind.store(0, Ordering::Relaxed);
        self.sit_out_until_ns.store(until.map_or(u64::MAX, |until| until.as_ns()), Ordering::Relaxed);
    }

    /// The device is read again.
    pub(crate) fn sit_in(&self) {
        self.sit_out_until_ns.store(0, Ordering::Relaxed);
    }

    /// Whether the device is left out of parity stripes.
    #[must_use]
    pub(crate) fn is_sitting_out(&self, now: Instant) -> bool {
        let until = self.sit_out_until_ns.load(Ordering::Relaxed);
        until != 0 && now.as_ns() < until
    }
}

/// The work that a read in flight adds to its device, and the expected time of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    ask: Ask,
    nominal_ns: u64,
    expected_ns: u64,
    passed_on: bool,
}

/// A read on its way. Dropped without an answer it is as though it had not been sent.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    load: &'a Load,
    sent: Option<Sent>,
}

impl Flight<'_> {
    /// It does not wait any more: the device has it.
    pub(crate) fn passed_on(&mut self) {
        if let Some(sent) = self.sent.as_mut().filter(|sent| !sent.passed_on) {
            sent.passed_on = true;
            self.load.passed_on.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The device answered.
    pub(crate) fn answered(mut self, outcome: Outcome, clock: Option<&Handle>) {
        if let Some(sent) = self.sent.take() {
            self.load.count_answer(&sent, outcome, clock.map(Handle::now));
        }
    }

    /// Nobody waits any more, but the device has not answered: it goes on counting until [`Load::count_late_answer`].
    pub(crate) fn give_up(mut self) -> Option<Sent> {
        let sent = self.sent.take();
        self.load.overdue.fetch_add(u32::from(sent.is_some()), Ordering::Relaxed);
        sent
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(sent) = &self.sent {
            self.load.forget(sent);
        }
    }
}
