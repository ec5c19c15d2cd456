//! Jobs that are cut at points of their run, themselves put to the test.

use cenote_crash::points::Wanted;
use cenote_crash::points::jobs::{CASES, JobRun, JobTally};
use cenote_taskq::mutant::{self, Mutant};
use cenote_testkit::Part;

/// Points of each job in a test run.
const POINTS: u64 = 5;

/// Deliberate bugs, each with the job whose points see it and how many of them are looked at.
const BUGS: [(Mutant, &str, u64); 2] =
    [(Mutant::EvacuationUncopied, "removal", 4), (Mutant::CondensedEntryLost, "condensing", 4)];

/// Goal: each job, cut at any moment, ends as one that was never stopped; and a bug of a job is seen. Method: some points of each job, without and with
/// bugs of the engine; the whole enumeration is `points --jobs`. (One test, since a bug is the whole process's.)
#[test]
fn a_job_that_is_cut_ends_as_one_that_was_never_stopped() {
    let part = Part::of_environment();
    let mut tally = JobTally::default();
    for (number, case) in CASES.iter().enumerate() {
        let (before, mine) = part.share(CASES.len() as u64);
        if !(before..before + mine).contains(&(number as u64)) {
            continue;
        }
        let run = JobRun::of(case, 1).unwrap_or_else(|why| panic!("{why}"));
        let wanted = Wanted { points: POINTS, draws: 1, has_zdb: false, moments: Wanted::EVER };
        run.judge(&wanted, &mut tally).unwrap_or_else(|why| panic!("{why}"));
    }
    assert!(tally.opened > 10 && tally.stages.len() > 1, "{tally}");
    for (bug, name, points) in BUGS {
        let case = CASES.iter().find(|case| case.name == name).expect("a job of that name");
        assert!(mutant::set(Some(bug)));
        let run = JobRun::of(case, 1);
        let judged = run.and_then(|run| {
            run.judge(&Wanted { points, draws: 1, has_zdb: false, moments: Wanted::EVER }, &mut JobTally::default())
        });
        mutant::set(None);
        assert!(judged.is_err(), "{} was not found by {name}", bug.name());
    }
}
