//! The verdict on snapshots, put to the test.

use cenote_crash::CUTS;
use cenote_crash::life::{Life, has_snapshots};
use cenote_crash::mutants::hunt_in;
use cenote_taskq::mutant::Mutant;

/// Goal: bugs about snapshots are found where snapshots are taken, and only there; and a life's number decides everything there too. Method:
/// bugs of the engine with those who take snapshots and without; a life twice. (One test, since a bug is the whole process's.)
#[test]
fn bugs_about_snapshots_are_found_where_there_are_some() {
    let number = (0..).find(|number| has_snapshots(*number)).unwrap();
    let lived = || {
        let mut life = Life::begin(number).unwrap();
        (0..CUTS).map(|_| life.cut().unwrap()).collect::<Vec<_>>()
    };
    let first = lived();
    assert_eq!(first, lived());
    assert!(first.iter().map(|done| done.verbs).sum::<u64>() > 4, "{first:?}");
    for mutant in [Mutant::DeadlistEntryForgotten, Mutant::SnapshotsApart] {
        let found = |has_snapshots| hunt_in(mutant, 2, has_snapshots).unwrap().found;
        assert!(found(true).is_some(), "{} was not found", mutant.name());
        assert_eq!(found(false), None, "{} was found without snapshots", mutant.name());
    }
}
