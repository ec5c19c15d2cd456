//! The child from which the answer may be expected soonest.
//!
//! ```text
//!   expected = ratio(size) * (backlog + nominal(read))   + silence, if that is longer than the child's answers take
//! ```
//!
//! The nominal time of a read that goes on with one of the child's recent runs is without a seek. Another child that would take
//! the run over pays for [`RUN_SEEKS`] of them, and has to be done in half the time: that is the hysteresis, and it follows the
//! devices instead of the clock. Where much is outstanding everywhere, runs would else change over by chance all the time.
//! Where heads move, distance counts: from the head and from the middle of where the child has been reading, so that children
//! come to have a region each and heads move less.
//!
//! Ratios of like devices differ by chance; as long as one is not [`ALIKE`] times another they count as the same, so that
//! chance does not unbalance them.
//!
//! A child that fails at once is soonest done, and must not draw all reads for that: what it costs grows with the share of its
//! reads that failed lately. Where nothing is known of a child, [`SILENCE_NS`] without any answer is silence.
//!
//! A child that is not chosen is not measured. One that has had no read for `zfs_vdev_mirror_forget_ms` while others had is
//! given one, longer after the slower it was and the more it owes; another child is asked as well, at once.

use super::load::{Load, ONE};
use super::{Ask, Candidate, Candidates, ReadPolicy};
use crate::tunables::Tunables;

/// Ratios that count as the same, in 1/[`ONE`] of the lowest.
const ALIKE: u64 = ONE * 3 / 2;
/// How many seeks more a run's child may be behind before another one takes the run over: what a takeover costs all of them is
/// then at most a fifth of what it moves.
const RUN_SEEKS: u64 = 4;
/// Mean deviations above the mean at which an answer is late: passed by fewer than one in a hundred where answers do not
/// depend on each other (TCP's figure for the same purpose).
const LATE_DEVIATIONS: u64 = 4;
/// A second read is for a device that is late, not for a queue: a child with more than so many reads to do is not asked for one.
const QUEUE_READS: u64 = 4;
/// A child that may take so many times as long as another one was chosen to be tried, or for nothing else being left.
const TRIAL_TIMES: u64 = 3;
/// A child that never answered is silent after this long: more than a healthy device is ever without an answer.
const SILENCE_NS: u64 = 200_000_000;
/// How many times dearer a child is of whose reads none succeeds.
const FAILURE_PRICE: u64 = 16;

/// See the module comment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adaptive {
    forget_ns: u64,
    hedge_min_ns: u64,
    hedge_percent: u64,
}

impl Adaptive {
    /// By `zfs_vdev_mirror_forget_ms` and `zfs_vdev_mirror_hedge_…`.
    #[must_use]
    pub(crate) fn new(tunables: &Tunables) -> Self {
        Self {
            forget_ns: tunables.zfs_vdev_mirror_forget_ms * 1_000_000,
            hedge_min_ns: tunables.zfs_vdev_mirror_hedge_min_us * 1000,
            hedge_percent: tunables.zfs_vdev_mirror_hedge_percent,
        }
    }

    /// A child that was avoided for long enough to be tried.
    fn trial(&self, ask: &Ask, candidates: &Candidates<'_>) -> Option<usize> {
        let latest = candidates.iter().map(|child| child.load.sent()).max()?;
        let lowest = candidates.iter().map(|child| child.load.ratio(ask.size_bytes)).min()?.max(1);
        candidates.iter().position(|child| {
            let (load, sent) = (child.load, child.load.sent());
            let slower = (load.ratio(ask.size_bytes) / lowest).clamp(1, 30);
            let patience = self.forget_ns.saturating_mul(slower + u64::from(load.overdue().min(30)));
            latest.since(sent).as_nanos() > u128::from(patience) && load.take_trial(sent, ask.now)
        })
    }
}

fn late_ns(load: &Load, size_bytes: u64) -> Option<u64> {
    load.answer_ns(size_bytes).map(|(mean, deviation)| mean.saturating_add(LATE_DEVIATIONS * deviation))
}

fn cost_ns(ask: &Ask, load: &Load, ratio: u64, continues: bool) -> u64 {
    let nominal = load.backlog_ns().saturating_add(load.nominal_ns(ask, continues));
    let expected = nominal.saturating_mul(ratio) / ONE;
    let silence = load.silence_ns(ask.now);
    let is_late = silence > late_ns(load, ask.size_bytes).unwrap_or(SILENCE_NS);
    let waiting = expected.saturating_add(if is_late { silence } else { 0 });
    waiting.saturating_add(waiting.saturating_mul(FAILURE_PRICE * load.failing()) / ONE)
}

impl ReadPolicy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn choose(&self, ask: &Ask, candidates: &Candidates<'_>) -> usize {
        if candidates.len() == 1 {
            return 0;
        }
        if let Some(index) = self.trial(ask, candidates) {
            return index;
        }
        let mut continues = [false; Candidates::MAX];
        let (mut lowest, mut is_run) = (u64::MAX, false);
        for (continues, child) in continues.iter_mut().zip(candidates.iter()) {
            *continues = child.load.continues(ask.address_bytes);
            is_run |= *continues;
            lowest = lowest.min(child.load.ratio(ask.size_bytes));
        }
        let cost = |index: usize, child: &Candidate<'_>| {
            let own = child.load.ratio(ask.size_bytes);
            let ratio = if own <= lowest.saturating_mul(ALIKE) / ONE { lowest } else { own };
            let breaks_run = is_run && !continues[index];
            let price = if breaks_run { RUN_SEEKS * child.load.takeover_ns(ask.address_bytes) } else { 0 };
            let cost = cost_ns(ask, child.load, ratio, continues[index]);
            let cost = if breaks_run { cost.saturating_mul(2) } else { cost };
            cost.saturating_add(price.saturating_mul(ratio) / ONE)
        };
        // Equals are idle ones: by regions, so that neighbours meet.
        candidates.cheapest(cost, |equals| ((ask.address_bytes >> 21) % equals as u64) as usize)
    }

    fn second_after_ns(&self, ask: &Ask, chosen: &Load, others: &Candidates<'_>) -> Option<u64> {
        if self.hedge_percent == 0 {
            return None;
        }
        // A child that is tried again may be as slow as before: the read that tries it need not wait for it.
        let expected = |load: &Load| cost_ns(ask, load, load.ratio(ask.size_bytes), load.continues(ask.address_bytes));
        let known = others.iter().filter(|child| child.load.answer_ns(ask.size_bytes).is_some());
        let best = known.map(|child| expected(child.load)).min();
        if best.is_some_and(|best| chosen.pending() <= 1 && expected(chosen) > TRIAL_TIMES * best) {
            return Some(0);
        }
        // Where all have much to do an answer is late for its queue, and a second read only costs another one a seek.
        let is_busy = |load: &Load| load.backlog_ns() > QUEUE_READS * load.alone_ns(ask);
        if others.iter().all(|child| is_busy(child.load)) {
            return None;
        }
        let late = std::iter::once(chosen).chain(others.iter().map(|child| child.load));
        let late = late.filter_map(|load| late_ns(load, ask.size_bytes)).min()?;
        Some(late.max(self.hedge_min_ns))
    }

    fn expected_ns(&self, ask: &Ask, load: &Load) -> Option<u64> {
        Some(cost_ns(ask, load, load.ratio(ask.size_bytes), load.continues(ask.address_bytes)))
    }
}
