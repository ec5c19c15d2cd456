//! Goal: the replica test finds the bugs that it is for. Method: the engine has one deliberate bug of sending or receiving after the other, and a
//! case must fail soon. `replicas --mutants 400` does the same with those that few cases meet.

use cenote_replicas::mutants::hunt;
use cenote_taskq::mutant::Mutant;

/// Several times the cases that each took.
const CASES_MAX: u64 = 40;
/// The bugs that one of the first cases finds.
const SOON: [Mutant; 4] = [
    Mutant::SendHolesDropped,
    Mutant::ReceiveFreesIgnored,
    Mutant::ReceiveFreeObjectsIgnored,
    Mutant::ReceiveSpillForgotten,
];

#[test]
fn deliberate_bugs_are_found() {
    cenote_testkit::campaign::note_panics();
    for mutant in SOON {
        let found = hunt(mutant, CASES_MAX).expect("a build with debug assertions");
        assert!(found.is_some(), "{} is not found by {CASES_MAX} cases", mutant.name());
    }
}
