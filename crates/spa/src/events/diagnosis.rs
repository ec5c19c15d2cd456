//! The diagnosis of devices: so many errors of a kind within so much time, and the device is degraded or faulted.
//!
//! A pure state machine: errors with their times go in, verdicts come out. It knows nothing of the pool; `Devices` (in `sync`) decides
//! what a verdict may do, so that no device is taken away that others need. As OpenZFS's daemon has it (`zed`): ten checksum errors in ten
//! minutes degrade a device, ten failed requests in ten minutes fault it, slow requests degrade it where that was asked for. A device that
//! was degraded can still be faulted for failed requests, where the daemon looks no more.
//!
//! **Invariants.** 1. Of a series only the newest errors are kept, as many as its rule needs. 2. A series gives one verdict until it is
//! forgotten. 3. Errors that are further apart than the rule's time never count together.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_taskq::Instant;

use super::limits::Class;

/// Errors of a series that are kept at most: a rule that needs more gives no verdict.
const KEPT_MAX: u64 = 1 << 16;

/// A judgement of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is used on, and shown as ailing.
    Degrade,
    /// It is not used any more.
    Fault,
}

/// So many errors within this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) errors: u64,
    pub(crate) within: Duration,
}

impl Rule {
    /// The rule of a leaf whose properties are these (`vdevprops(7)`). One for slow requests is there if both of its numbers are set.
    pub(crate) fn with_settings(
        class: Class,
        usual: Option<Self>,
        setting: impl Fn(&str) -> Option<u64>,
    ) -> Option<Self> {
        let [(errors, _), (within, _)] = Self::settings(class)?;
        let errors = setting(errors).or_else(|| usual.map(|rule| rule.errors))?;
        let within = setting(within).map(Duration::from_secs).or_else(|| usual.map(|rule| rule.within))?;
        Some(Self { errors, within })
    }

    /// The properties of a vdev that change the rule, how many errors and within how many seconds; each with its name in an event.
    pub(crate) const fn settings(class: Class) -> Option<[(&'static str, &'static str); 2]> {
        match class {
            Class::Checksum => Some([("checksum_n", "vdev_cksum_n"), ("checksum_t", "vdev_cksum_t")]),
            Class::Io => Some([("io_n", "vdev_io_n"), ("io_t", "vdev_io_t")]),
            Class::Delay => Some([("slow_io_n", "vdev_slow_io_n"), ("slow_io_t", "vdev_slow_io_t")]),
            Class::Data | Class::SitOut | Class::IoFailure | Class::ProbeFailure => None,
        }
    }

    /// The rule for a kind of errors unless properties say otherwise, and its verdict; none for errors that condemn nothing.
    pub(crate) const fn usual(class: Class) -> Option<(Option<Self>, Verdict)> {
        const TEN_IN_TEN_MINUTES: Option<Rule> = Some(Rule { errors: 10, within: Duration::from_secs(600) });
        match class {
            Class::Checksum => Some((TEN_IN_TEN_MINUTES, Verdict::Degrade)),
            Class::Io => Some((TEN_IN_TEN_MINUTES, Verdict::Fault)),
            Class::Delay => Some((None, Verdict::Degrade)),
            Class::Data | Class::SitOut | Class::IoFailure | Class::ProbeFailure => None,
        }
    }
}

/// The errors of one kind of one leaf.
#[derive(Debug, Default)]
struct Series {
    seen: VecDeque<Instant>,
    has_fired: bool,
}

/// The errors of all leaves.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    series: BTreeMap<(Guid, Class), Series>,
}

impl Diagnosis {
    /// An error of a leaf; `true` if it was the one that completes the rule.
    pub(crate) fn observe(&mut self, leaf: Guid, class: Class, rule: Rule, now: Instant) -> bool {
        if rule.errors == 0 || rule.errors > KEPT_MAX {
            return false;
        }
        let series = self.series.entry((leaf, class)).or_default();
        if series.has_fired {
            return false;
        }
        series.seen.push_back(now);
        while series.seen.len() as u64 > rule.errors {
            series.seen.pop_front();
        }
        debug_assert!(
            series.seen.len() as u64 <= rule.errors,
            "a series keeps what its rule needs (diagnosis, invariant 1)"
        );
        let is_complete = series.seen.len() as u64 == rule.errors;
        series.has_fired = is_complete && series.seen.front().is_some_and(|first| now - *first <= rule.within);
        series.has_fired
    }

    /// A leaf is well again: what it did before counts no more.
    pub(crate) fn forget(&mut self, leaf: Option<Guid>) {
        self.series.retain(|(of, _), _| leaf.is_some_and(|leaf| *of != leaf));
    }
}

#[cfg(test)]
mod tests {
    use cenote_taskq::Rng;

    use super::*;

    const LEAF: Guid = Guid(7);

    fn at(s: u64) -> Instant {
        Instant::from_ns(s * 1_000_000_000)
    }

    fn rule(errors: u64, within_s: u64) -> Rule {
        Rule { errors, within: Duration::from_secs(within_s) }
    }

    #[test]
    fn ten_in_ten_minutes_fire_once_and_again_when_forgotten() {
        let (Some((Some(usual), verdict)), mut diagnosis) = (Rule::usual(Class::Checksum), Diagnosis::default()) else {
            panic!("checksum errors have a rule")
        };
        assert_eq!((usual, verdict), (rule(10, 600), Verdict::Degrade));
        let fired: Vec<u64> = (0..30).filter(|s| diagnosis.observe(LEAF, Class::Checksum, usual, at(s * 60))).collect();
        assert_eq!(fired, [9], "nine minutes after the first");
        diagnosis.forget(Some(Guid(8)));
        assert!(!diagnosis.observe(LEAF, Class::Checksum, usual, at(1801)));
        diagnosis.forget(Some(LEAF));
        let fired = (0..10).filter(|s| diagnosis.observe(LEAF, Class::Checksum, usual, at(2000 + s))).count();
        assert_eq!(fired, 1);
    }

    #[test]
    fn properties_change_rules_and_slow_requests_need_both() {
        let with = |class, set: &[(&str, u64)]| {
            let usual = Rule::usual(class).and_then(|(rule, _)| rule);
            Rule::with_settings(class, usual, |name| set.iter().find(|(of, _)| *of == name).map(|(_, value)| *value))
        };
        assert_eq!(with(Class::Checksum, &[("checksum_n", 3), ("io_t", 7)]), Some(rule(3, 600)));
        assert_eq!(with(Class::Io, &[("checksum_n", 3), ("io_t", 7)]), Some(rule(10, 7)));
        assert_eq!(with(Class::Delay, &[("slow_io_n", 3)]), None);
        assert_eq!(with(Class::Delay, &[("slow_io_n", 3), ("slow_io_t", 9)]), Some(rule(3, 9)));
        // Zero errors condemn nothing.
        assert!(!Diagnosis::default().observe(LEAF, Class::Io, rule(0, 9), at(1)));
    }

    #[test]
    fn errors_of_other_leaves_and_kinds_do_not_count() {
        let mut diagnosis = Diagnosis::default();
        for s in 0..9 {
            assert!(!diagnosis.observe(LEAF, Class::Io, rule(10, 600), at(s)));
            assert!(!diagnosis.observe(Guid(8), Class::Io, rule(10, 600), at(s)));
            assert!(!diagnosis.observe(LEAF, Class::Checksum, rule(10, 600), at(s)));
        }
        assert!(diagnosis.observe(LEAF, Class::Io, rule(10, 600), at(9)));
    }

    /// A rule fires at the first error that is the last of N within T, by counting all of them.
    #[test]
    fn a_rule_fires_exactly_when_so_many_came_within_its_time() {
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let rule = rule(1 + rng.below(8), rng.below(50));
            let (mut diagnosis, mut times, mut now) = (Diagnosis::default(), Vec::new(), 0);
            let mut has_fired = false;
            for _ in 0..60 {
                now += rng.below(20);
                times.push(now);
                let within = times.iter().filter(|time| now - **time <= rule.within.as_secs()).count() as u64;
                let expected = !has_fired && within >= rule.errors;
                assert_eq!(
                    diagnosis.observe(LEAF, Class::Io, rule, at(now)),
                    expected,
                    "seed {seed}, {rule:?}, {times:?}"
                );
                has_fired |= expected;
                let kept = diagnosis.series.values().map(|series| series.seen.len() as u64).max();
                assert!(kept <= Some(rule.errors), "seed {seed}");
            }
        }
    }
}
