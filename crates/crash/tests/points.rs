//! Crash points, themselves put to the test.

use cenote_crash::points::{Base, Run, SHAPES, Script, Tally, Wanted, hunt};
use cenote_taskq::mutant::Mutant;

/// Goal: points say no where there is reason to, and only there; and a script's number decides everything. Method: scripts with and
/// without deliberate bugs of the engine; a run twice. (One test, since a bug is the whole process's.)
#[test]
fn points_find_bugs_that_are_there_and_no_others() {
    let bases: Vec<Base> = SHAPES[..2].iter().map(|shape| Base::make(shape).unwrap()).collect();
    let wanted = Wanted { points: 12, draws: 2, has_zdb: false, moments: Wanted::EVER };
    let judged = || {
        let mut tally = Tally::default();
        for number in (0..).step_by(1009).filter(|number| Script::nth(2, *number).is_some()).take(6) {
            let run = Run::of(&bases[1], Script::nth(2, number).unwrap(), number).unwrap();
            run.judge(&wanted, &mut tally).unwrap();
        }
        tally
    };
    let tally = judged();
    assert!(tally.points > 30 && tally.verified > 0 && tally.moments > 300, "{tally:?}");
    assert_eq!(judged(), tally);
    let log = [Mutant::LogUnflushed, Mutant::LogAcksIssued, Mutant::LogWrongNext, Mutant::LogDataUnflushed];
    for mutant in [Mutant::FsyncEarly].into_iter().chain(log) {
        let found = hunt(&bases, mutant, 60).unwrap();
        assert!(found.is_some(), "{} was not found", mutant.name());
    }
}
