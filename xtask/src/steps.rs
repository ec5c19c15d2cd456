//! Steps of the project's test, and the account of a run.
//!
//! A step ends in one of three ways: it was done, with so many checks good and so many bad; it was left out, with a reason;
//! or it could not be carried out, which counts as one bad check. In continuous integration leaving out counts as bad too:
//! there every check must be run, or the green light means less than it says.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::lane::Lane;
pub(crate) use crate::outcome::{Context, Outcome, Tally};
use crate::passed::Sources;
use crate::shares;

/// One step.
pub(crate) struct Step {
    /// The word for `--only` and `--skip`.
    pub(crate) name: &'static str,
    /// The description of its check, in a few words.
    pub(crate) about: &'static str,
    /// The crates that its checks are made of, if it comes out as before while they stay as they are; none if it is always done.
    pub(crate) of: &'static [&'static str],
    /// Carries it out.
    pub(crate) run: fn(&Context) -> Result<Outcome>,
}

/// Steps that run beside others in a process of their own, from when a step is reached.
pub(crate) struct Beside {
    /// That step.
    pub(crate) from: &'static str,
    /// Their names.
    pub(crate) names: &'static [&'static str],
    /// The work that must be done before they start.
    pub(crate) prepare: fn() -> Result<()>,
}

/// Runs the steps in order, all of them whatever happens; returns whether all was good.
pub(crate) fn run_all(steps: &[&Step], beside: &[Beside], context: &Context) -> bool {
    let mut lanes = Vec::new();
    let mut total = Tally::default();
    let mut lines = Vec::new();
    let sources = Sources::read(context);
    let mut is_as_before = false;
    for (index, step) in steps.iter().enumerate() {
        for beside in beside.iter().filter(|beside| beside.from == step.name) {
            let begin = Instant::now();
            let prepared = (beside.prepare)();
            lines.push(format!("{:<10} {:>7}  for {}", "prepare", seconds(begin.elapsed()), beside.names.join(", ")));
            lanes.push(prepared.and_then(|()| Lane::start(beside.names)));
        }
        println!("\n=== {}/{} {}: {}", index + 1, steps.len(), step.name, step.about);
        let (begin, used) = (Instant::now(), shares::used_s());
        let sources = sources.as_ref().filter(|_| !step.of.is_empty());
        // Its checks are in this program.
        let of = [step.of, &["xtask"]].concat();
        let outcome = match sources.is_some_and(|sources| sources.has_passed(step.name, &of)) {
            true => Ok(Outcome::AsBefore),
            false => (step.run)(context),
        };
        is_as_before |= matches!(outcome, Ok(Outcome::AsBefore));
        if let (Some(sources), Ok(Outcome::Done(tally))) = (sources, &outcome) {
            sources.note(step.name, &of, tally.failed == 0 && tally.passed > 0);
        }
        let used = shares::used_s() - used;
        let (mut tally, line) = judge(outcome, context.ci);
        let growth = shares::growth(step.name, used).unwrap_or_default();
        if context.ci && !growth.is_empty() {
            tally.failed += 1;
        }
        total.absorb(tally);
        let line =
            format!("{:<10} {:>7} {used:>5} s of processors  {line}{growth}", step.name, seconds(begin.elapsed()));
        println!("--- {line}");
        lines.push(line);
    }
    for lane in lanes {
        let (tally, more) = match lane {
            Ok(lane) => lane.finish(),
            Err(error) => (Tally { passed: 0, failed: 1 }, vec![format!("FAILED: {error:#}")]),
        };
        total.absorb(tally);
        lines.extend(more);
    }
    println!("\n=== summary");
    for line in &lines {
        println!("{line}");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    total.failed == 0 && (total.passed > 0 || is_as_before)
}

/// The counts of an outcome, and its words.
fn judge(outcome: Result<Outcome>, ci: bool) -> (Tally, String) {
    match outcome {
        Ok(Outcome::Done(tally)) if tally == Tally::default() => {
            (Tally { passed: 0, failed: 1 }, "FAILED: nothing was checked".to_owned())
        }
        Ok(Outcome::Done(tally)) if tally.failed == 0 => (tally, format!("{} passed", tally.passed)),
        Ok(Outcome::Done(tally)) => (tally, format!("FAILED: {} of {}", tally.failed, tally.passed + tally.failed)),
        Ok(Outcome::LeftOut(reason)) if ci => (Tally { passed: 0, failed: 1 }, format!("FAILED: left out: {reason}")),
        Ok(Outcome::AsBefore) => (Tally::default(), "as before: it has passed with the same sources".to_owned()),
        Ok(Outcome::LeftOut(reason)) => (Tally::default(), format!("left out: {reason}")),
        Err(error) => (Tally { passed: 0, failed: 1 }, format!("FAILED: {error:#}")),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn leaving_out_is_bad_only_in_continuous_integration() {
        let left_out = || Ok(Outcome::LeftOut("no zdb".to_owned()));
        assert_eq!(judge(left_out(), false).0, Tally::default());
        assert_eq!(judge(left_out(), true).0, Tally { passed: 0, failed: 1 });
    }

    #[test]
    fn a_step_that_checked_nothing_or_broke_off_is_bad() {
        assert_eq!(judge(Ok(Outcome::Done(Tally::default())), false).0.failed, 1);
        assert_eq!(judge(Err(anyhow!("no")), false).0.failed, 1);
    }

    #[test]
    fn a_run_in_which_all_is_as_before_is_good() {
        let step = Step { name: "old", about: "", of: &[], run: |_| Ok(Outcome::AsBefore) };
        assert!(run_all(&[&step], &[], &Context { ci: false, is_chosen: false }));
        let step = Step { name: "absent", about: "", of: &[], run: |_| Ok(Outcome::LeftOut("no zdb".to_owned())) };
        assert!(!run_all(&[&step], &[], &Context { ci: false, is_chosen: false }));
    }

    #[test]
    fn a_run_in_which_nothing_ran_is_not_good() {
        assert!(!run_all(&[], &[], &Context { ci: false, is_chosen: false }));
    }
}
