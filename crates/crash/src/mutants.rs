//! The test of the test: pools whose engine has a deliberate bug ([`cenote_taskq::mutant`]) live the same lives, and each bug has to
//! be found within so many cuts.

use cenote_taskq::Rng;
use cenote_taskq::mutant::{self, Mutant};

use crate::CUTS;
use crate::life::{self, Life};
use crate::log_space;

/// Within how many cuts, from the first on, a bug is to be found: several times the number that it took when it was tried last.
#[must_use]
pub fn cuts_max(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::FsyncEarly
        | Mutant::FuaIgnored
        | Mutant::DeferNone
        | Mutant::LogUnflushed
        | Mutant::LogAcksIssued
        | Mutant::LogFreedEarly
        | Mutant::LogHeaderKept
        | Mutant::LogWrongNext
        | Mutant::LogUnloggedIgnored
        | Mutant::LogUnclaimed => 200,
        // Those of a log's data and of flushes, which only blocks with data have, are for crash points: within a life the next flush comes too
        // soon.
        Mutant::LogFlushEarlier
        | Mutant::LogDataFirst
        | Mutant::LogDataFreedEarly
        | Mutant::KeptDropped
        | Mutant::LabelsAtOnce
        | Mutant::UberblockUnflushed
        | Mutant::LogDataUnflushed
        | Mutant::LogDataElsewhere
        | Mutant::LogDeviceClearedEarly
        // One cut in about 200 meets a large amount of data between two txgs.
        | Mutant::LogItxsDropped => 2000,
        // A clone of these lives soon shares too little with its origin to keep a livelist. Histories of verbs see it by the 100th verb
        // (docs/robustness-results.md).
        Mutant::LivelistFreeForgotten => 2000,
        // A receive has to be cut between two of its txgs.
        Mutant::ReceiveNotedEarly => 800,
        // For lives that are short of space.
        Mutant::LogSpaceUnlimited | Mutant::SectorsUncounted => 40,
        // Nothing else does what these are in.
        _ if Mutant::OF_SNAPSHOTS.contains(&mutant) => 400,
        // Clients wait for logs and not for txgs, so there are fewer txgs in a life than when these were tried last.
        _ => 800,
    }
}

/// How a bug was found, or that it was not.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub mutant: Mutant,
    /// The cut, and what was said of it.
    pub found: Option<(u64, String)>,
}

/// Lives lives with a bug until it is found, in which snapshots are taken or not.
///
/// # Errors
/// Bugs cannot be had in this build.
pub fn hunt(mutant: Mutant, has_snapshots: bool) -> Result<Hunt, String> {
    hunt_in(mutant, (cuts_max(mutant) / CUTS) as usize, has_snapshots)
}

/// The same in so many lives.
///
/// # Errors
/// As [`hunt`].
pub fn hunt_in(mutant: Mutant, lives: usize, has_snapshots: bool) -> Result<Hunt, String> {
    if !mutant::set(Some(mutant)) {
        return Err("deliberate bugs are only in builds with debug assertions".to_owned());
    }
    if matches!(mutant, Mutant::LogSpaceUnlimited | Mutant::SectorsUncounted) {
        let found = (0..cuts_max(mutant)).find_map(|number| log_space::live(number).err().map(|what| (number, what)));
        mutant::set(None);
        return Ok(Hunt { mutant, found });
    }
    // Those that need snapshots are looked for where there are some.
    let is_worth = |number: &u64| !Mutant::OF_SNAPSHOTS.contains(&mutant) || life::has_snapshots(*number);
    let found = (0..).filter(is_worth).take(lives).find_map(|number| live(number, has_snapshots));
    mutant::set(None);
    Ok(Hunt { mutant, found })
}

/// Lives one life. The cut that failed, and how.
fn live(number: u64, has_snapshots: bool) -> Option<(u64, String)> {
    let first = number * CUTS;
    match Life::begin_with(number, has_snapshots) {
        Ok(mut life) => (first..first + CUTS).find_map(|cut| life.cut().err().map(|what| (cut, what))),
        Err(what) => Some((first, what)),
    }
}

/// The bugs that tests of a crate find.
const ELSEWHERE: [&[Mutant]; 12] = [
    Mutant::OF_STREAMS,
    Mutant::OF_HOSTS,
    Mutant::OF_REPAIRS,
    Mutant::OF_CACHES,
    Mutant::OF_REMOVALS,
    Mutant::OF_SCANNED_REMOVALS,
    Mutant::OF_SPLITS,
    Mutant::OF_CONDENSING,
    Mutant::OF_EXPANSIONS,
    Mutant::OF_REBUILDS,
    Mutant::OF_SCANS,
    Mutant::OF_ERROR_LOGS,
];

/// The bugs that power cuts are to find.
fn of_cuts() -> impl Iterator<Item = Mutant> {
    let is_elsewhere = |mutant: &Mutant| ELSEWHERE.iter().any(|group| group.contains(mutant));
    Mutant::ALL.iter().copied().filter(move |mutant| !is_elsewhere(mutant))
}

/// More cuts than this are the campaign's, not the test's.
const QUICK_MAX: u64 = 400;

/// The bugs that a word of a command line names: `all`, one by its name, or a number of them at random, of those that are found soon.
#[must_use]
pub fn chosen(word: &str, seed: u64) -> Option<Vec<Mutant>> {
    if word == "all" {
        return Some(of_cuts().collect());
    }
    if word == "snapshots" {
        return Some(Mutant::OF_SNAPSHOTS.to_vec());
    }
    if let Ok(count) = word.parse::<usize>() {
        let mut all: Vec<_> = of_cuts().filter(|mutant| cuts_max(*mutant) <= QUICK_MAX).collect();
        let mut rng = Rng::new(seed);
        let picked = (0..count.min(all.len())).map(|_| all.swap_remove(rng.below(all.len() as u64) as usize));
        return Some(picked.collect());
    }
    let named = of_cuts().find(|mutant| mutant.name() == word);
    named.map(|mutant| vec![mutant])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_chosen_by_name_or_by_chance() {
        assert_eq!(
            chosen("all", 0).map(|all| all.len()),
            Some(Mutant::ALL.len() - ELSEWHERE.iter().map(|group| group.len()).sum::<usize>())
        );
        assert_eq!(chosen("receive-frees-ignored", 0), None);
        assert_eq!(chosen("fsync-early", 0), Some(vec![Mutant::FsyncEarly]));
        assert_eq!(chosen("no-such-bug", 0), None);
        let three = chosen("3", 7).unwrap();
        assert_eq!(three, chosen("3", 7).unwrap());
        assert!(three.len() == 3 && three[0] != three[1] && three[1] != three[2] && three[0] != three[2]);
        assert!((0..50).any(|seed| chosen("3", seed).unwrap() != three));
    }
}
