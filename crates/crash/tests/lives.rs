//! The test of power cuts, itself put to the test.

use cenote_crash::CUTS;
use cenote_crash::life::Life;

/// Goal: a cut's number decides everything. Method: the same life twice.
#[test]
fn the_same_number_is_the_same_cut() {
    let lived = |number: u64| {
        let mut life = Life::begin(number).unwrap();
        let done: Vec<_> = (0..CUTS).map(|_| life.cut().unwrap()).collect();
        (life.words(), done)
    };
    let first = lived(1);
    assert_eq!(first, lived(1));
    assert!(first.1.iter().any(|done| done.changes > 50 && done.txgs > 1), "{first:?}");
}

/// Goal: the verdict says no where there is reason to. Method: devices that do not do what they say of flushes, which no pool
/// survives for long.
#[test]
fn pools_on_devices_that_lie_about_flushes_are_found_out() {
    let mut caught = 0;
    for number in 0..4 {
        let mut life = Life::begin(number).unwrap();
        life.lose_flushes(100);
        caught += u64::from((0..CUTS).any(|_| life.cut().is_err()));
    }
    assert!(caught >= 2, "{caught} of 4 lives were found to be broken");
}
