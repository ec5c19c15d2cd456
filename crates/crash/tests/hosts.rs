//! Lives of two hosts, and whether they find a bug that is there.

use cenote_crash::hosts::live;
use cenote_taskq::mutant::{self, Mutant};

const LIVES: u64 = 24;

/// Goal: a host that has lost its pool tells no client that something is durable. Method: lives of two hosts, without and with the bug
/// that nobody is asked when devices have answered. (One test, since a bug is the whole process's.)
#[test]
fn a_host_that_has_lost_its_pool_acknowledges_nothing() {
    let ended: Vec<_> =
        (0..LIVES).map(|number| live(number).unwrap_or_else(|what| panic!("life {number}: {what}"))).collect();
    let taken = ended.iter().filter(|ended| ended.is_taken).count() as u64;
    assert!(taken > LIVES / 2, "the second host got the pool in {taken} of {LIVES} lives");
    assert!(ended.iter().all(|ended| ended.promised >= 3), "{ended:?}");
    for mutant in Mutant::OF_HOSTS {
        assert!(mutant::set(Some(*mutant)));
        let found = (0..LIVES).find_map(|number| live(number).err());
        mutant::set(None);
        let what = found.unwrap_or_else(|| panic!("{} was not found", mutant.name()));
        assert!(what.contains("was told that asked"), "{}: {what}", mutant.name());
    }
}
