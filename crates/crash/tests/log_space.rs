//! Logs in pools that are short of space. Alone in a process, since a deliberate bug is alive in all of it.

use cenote_crash::log_space::{NO_SPACE, live, rescue};
use cenote_crash::mutants::hunt;
use cenote_taskq::mutant::Mutant;

/// Regression test: a log that was overwritten within one txg took all space of its pool, which was suspended, and could not be opened any more.
#[test]
fn a_log_never_takes_the_space_that_its_txg_needs_and_what_one_without_a_limit_has_taken_comes_back() {
    let (mut bytes, mut txgs) = (0, 0);
    for number in [0, 1, 2] {
        let (shape, done) = live(number).unwrap_or_else(|error| panic!("life {number}: {error}"));
        println!("life {number}: {done:?} {shape}");
        (bytes, txgs) = (bytes + done.answered_bytes, txgs + done.txgs);
    }
    assert!(bytes > 256 << 20 && txgs > 6, "{bytes} bytes were answered, in {txgs} txgs");
    let found = hunt(Mutant::LogSpaceUnlimited, false).unwrap().found;
    assert!(found.as_ref().is_some_and(|(_, what)| what.contains(NO_SPACE)), "{found:?}");
    // The second life has blocks that are smaller than sectors.
    let found = hunt(Mutant::SectorsUncounted, false).unwrap().found;
    assert!(found.as_ref().is_some_and(|(_, what)| what.contains(NO_SPACE)), "{found:?}");
    // In the last much of the log is freed by one txg, and the next has nothing else.
    for number in [0, 1, 38] {
        let (shape, done) = rescue(number).unwrap_or_else(|error| panic!("pool {number}: {error}"));
        println!("pool {number}: {done:?} {shape}");
        assert!(done.was_suspended && !done.is_beyond_help, "a log without a limit takes all space of pool {number}");
    }
}
