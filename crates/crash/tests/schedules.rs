//! Schedules of failures, themselves put to the test. Alone in a process, since a deliberate bug is alive in all of it.

use cenote_crash::schedules::{Done, FOUND, hunt, live};

/// Schedules that have found faults, and the faults.
const MENDED: [(u64, &str); 9] = [
    (120, "a disk that comes back fails its first writes, which nobody had lost"),
    (445, "a leaf that could not be taken offline lacks txgs for ever"),
    (549, "a device that hung is used again, and each request to it fails"),
    (1230, "a detaching that an expansion or a checkpoint waits for"),
    (100_155, "a leaf that comes back in the txg in which a resilver ends"),
    (101_713, "a block of a removed vdev that is given once counts as read from nowhere"),
    (101_829, "an expansion waits for a spare whose device hung"),
    (103_629, "a trim of a process that ended goes on beside the next one"),
    (103_716, "a spare that is taken between the last look and the export"),
];

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
    for (seed, fault) in MENDED {
        live(seed, false).unwrap_or_else(|error| panic!("schedule {seed} ({fault}): {error}"));
    }
    assert_eq!(live(5, false), live(5, false));
    for (mutant, first, count) in FOUND {
        let found = hunt(mutant, first..first + count).unwrap();
        assert!(found.is_some(), "{} was not found", mutant.name());
    }
}
