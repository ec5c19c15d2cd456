//! Parts of campaigns: a run of the tests does one, and the commit says which.
//!
//! Campaigns find faults by their number of trials, and a run of the tests has half an hour. So each is cut into parts, and a run does the
//! part that follows from the commit: again the same one for the same commit, so that a failure comes again, and over the commits of a day
//! all of them. A part is named when it is run. `CENOTE_WHOLE=1` runs all parts, in a night or before a release. Drawing at random each time
//! would cover as much, but a run that failed could not be had again.

use std::process::Command;

use cenote_testkit::repository_root;

use crate::process;

/// A part of a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its number, from 0 on.
    pub(crate) at: u64,
    /// How many there are. One is the whole.
    pub(crate) of: u64,
}

impl Part {
    /// The part of so many that this commit has.
    pub(crate) fn of_commit(of: u64) -> Self {
        if std::env::var_os("CENOTE_WHOLE").is_some() {
            println!("all {of} parts (CENOTE_WHOLE)");
            return Self { at: 0, of: 1 };
        }
        let mut git = Command::new("git");
        let head = process::output(git.args(["rev-parse", "HEAD"]).current_dir(repository_root()));
        // Without git it is always the first.
        let head = head.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let part = Self::of_hash(&head, of);
        println!("part {} of {of}, by the commit (all: CENOTE_WHOLE=1)", part.at + 1);
        part
    }

    fn of_hash(hash: &str, of: u64) -> Self {
        let number = hash.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
        Self { at: number % of, of }
    }

    /// Its share of `count` trials: how many come before it, and how many it has.
    pub(crate) fn share(self, count: u64) -> (u64, u64) {
        let before = count * self.at / self.of;
        (before, count * (self.at + 1) / self.of - before)
    }

    /// Whether it has the thing of this number.
    pub(crate) fn has(self, number: usize) -> bool {
        number as u64 % self.of == self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_is_in_one_part() {
        for (count, of) in [(256, 3), (40, 3), (3, 3), (2000, 4), (7, 1)] {
            let mut next = 0;
            for at in 0..of {
                let (before, mine) = Part { at, of }.share(count);
                assert_eq!(before, next);
                next += mine;
                assert_eq!(
                    (0..count).filter(|number| Part { at, of }.has(*number as usize)).count() as u64 / (count / of),
                    1
                );
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn a_commit_has_always_the_same_part_and_others_have_others() {
        let hashes = ["116d2b1561", "000000000001aa", "000000000002aa", "000000000003aa"];
        let parts = hashes.map(|hash| Part::of_hash(hash, 3).at);
        assert_eq!(parts, [0, 1, 2, 0]);
        assert_eq!(Part::of_hash("", 3), Part { at: 0, of: 3 });
    }
}
