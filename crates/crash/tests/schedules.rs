//! Schedules of failures, themselves put to the test. Alone in a process, since a deliberate bug is alive in all of it.

use cenote_crash::schedules::{Done, FOUND, hunt, live};

/// Goal: schedules say no where there is reason to, and only there; and a seed decides everything. Method: schedules with and without deliberate
/// bugs of the engine; one twice.
#[test]
fn schedules_find_bugs_that_are_there_and_no_others() {
    let mut sums = Done::default();
    for seed in 0..24 {
        let done = live(seed, false).unwrap_or_else(|error| panic!("schedule {seed}: {error}"));
        sums.add(&done);
    }
    assert!(sums.failures > 15 && sums.cuts > 5 && sums.resilvers > 8 && sums.checked > 5 && sums.lost > 1, "{sums:?}");
    assert_eq!(live(5, false), live(5, false));
    for (mutant, first, count) in FOUND {
        let found = hunt(mutant, first..first + count).unwrap();
        assert!(found.is_some(), "{} was not found", mutant.name());
    }
}
