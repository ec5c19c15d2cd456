//! Parts of campaigns: a run of the tests does one, and the commit says which.
//!
//! Campaigns find faults by their number of trials, and a run of the tests has half an hour. So each is cut into parts, and a run does the
//! part that follows from the commit: again the same one for the same commit, so that a failure comes again, and over the commits of a day
//! all of them. A part is named when it is run. `CENOTE_WHOLE=1` runs all parts, in a night or before a release. Drawing at random each time
//! would cover as much, but a run that failed could not be had again.

use std::process::Command;

use cenote_testkit::{Part, repository_root};

use crate::process;

/// The part of so many that this commit has.
pub(crate) fn of_commit(of: u64) -> Part {
    if std::env::var_os("CENOTE_WHOLE").is_some() {
        println!("all {of} parts (CENOTE_WHOLE)");
        return Part::WHOLE;
    }
    let mut git = Command::new("git");
    let head = process::output(git.args(["rev-parse", "HEAD"]).current_dir(repository_root()));
    // Without git it is always the first.
    let head = head.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let part = of_hash(&head, of);
    println!("part {}, by the commit (all: CENOTE_WHOLE=1)", part.text());
    part
}

fn of_hash(hash: &str, of: u64) -> Part {
    let number = hash.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
    Part { at: number % of, of }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_always_the_same_part_and_others_have_others() {
        let hashes = ["116d2b1561", "000000000001aa", "000000000002aa", "000000000003aa"];
        let parts = hashes.map(|hash| of_hash(hash, 3).at);
        assert_eq!(parts, [0, 1, 2, 0]);
        assert_eq!(of_hash("", 3), Part { at: 0, of: 3 });
    }
}
