//! Steps that have passed, so that a run after a small change does not do again what cannot come out otherwise.
//!
//! **Need.** While a person works, most changes touch one crate. A campaign of the engine has nothing new to say of a change of the program, and
//! a run of all takes half an hour.
//!
//! **Structure.** A step, or the tests of a crate, is made of sources: those of its crates and, but for their folders `tests`, of all that these
//! and their tests stand on, all files of no crate, except texts, and for a step this program, which has its checks. When it passes, the hash of these is left in `target/xtask/passed`. A later run leaves it out if the hash is the same.
//!
//! **Rejected.** *The crates that differ from `main`*: a first run in a fresh clone would test next to nothing, and a failed step would be left
//! out after its change is committed.
//!
//! Continuous integration, `CENOTE_WHOLE=1` and a person who names steps (`--only`) leave nothing out. Where a program, a folder of golden pools or
//! a part is given, what passes says nothing of the sources: nothing is left out or noted. Clippy and rustdoc need none of this: Cargo knows what is fresh.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use cenote_testkit::repository_root;
use sha2::{Digest as _, Sha256};

use crate::changed::{Crates, kept_files};
use crate::outcome::Context;

/// Folders of files that no test reads, but those of the documents themselves.
const TEXTS: [&str; 1] = ["docs"];

/// Variables that give what is tested in place of what is built, or a part of it.
const GIVEN: [&str; 4] = ["CENOTE_PROGRAM", "CENOTE_GOLDEN", "CENOTE_MUTANT", cenote_testkit::PART_VARIABLE];

/// The sources as they are, hashed once for a run.
pub(crate) struct Sources {
    crates: Crates,
    /// Of each crate, by name, the hash of its own files, but for its folder `tests`.
    of_crates: BTreeMap<String, [u8; 32]>,
    /// Of each crate, by name, the hash of its folder `tests`, of which no other crate is made.
    of_tests: BTreeMap<String, [u8; 32]>,
    /// Of all files of no crate.
    of_none: [u8; 32],
    /// All is done again, whether or not it has passed.
    does_all: bool,
}

impl Sources {
    /// The sources; without git none, and all is done.
    pub(crate) fn read(context: &Context) -> Option<Self> {
        if GIVEN.iter().any(|name| std::env::var_os(name).is_some()) {
            return None;
        }
        let does_all = context.ci || context.is_chosen || std::env::var_os("CENOTE_WHOLE").is_some();
        let sources = Self::hashed(repository_root()).ok()?;
        Some(Self { does_all, ..sources })
    }

    fn hashed(root: &Path) -> Result<Self> {
        let crates = Crates::read()?;
        let (mut of_crates, mut of_tests) = (BTreeMap::<String, Sha256>::new(), BTreeMap::<String, Sha256>::new());
        let mut of_none = Sha256::new();
        for file in kept_files()? {
            let owner = crates.owner(&file);
            if owner.is_none() && is_text(&file) {
                continue;
            }
            let hash = match owner {
                Some(name) if crates.is_of_tests(&file) => of_tests.entry(name.to_owned()).or_default(),
                Some(name) => of_crates.entry(name.to_owned()).or_default(),
                None => &mut of_none,
            };
            // One that is listed and not there was removed.
            let content = fs::read(root.join(&file)).map(Sha256::digest).unwrap_or_default();
            hash.update(file.as_bytes());
            hash.update([0]);
            hash.update(content);
        }
        let done = |hashes: BTreeMap<String, Sha256>| {
            hashes.into_iter().map(|(name, hash)| (name, hash.finalize().into())).collect()
        };
        let (of_crates, of_tests) = (done(of_crates), done(of_tests));
        Ok(Self { crates, of_crates, of_tests, of_none: of_none.finalize().into(), does_all: false })
    }

    /// The hash of what these crates are made of.
    fn of(&self, crates: &[&str]) -> String {
        let names: BTreeSet<String> = crates.iter().map(|name| (*name).to_owned()).collect();
        let mut hash = Sha256::new_with_prefix(self.of_none);
        for name in self.crates.below(&names) {
            hash.update(name.as_bytes());
            hash.update(self.of_crates.get(&name).copied().unwrap_or_default());
        }
        for name in crates {
            hash.update(self.of_tests.get(*name).copied().unwrap_or_default());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The checks of this name have passed with these crates as they are now, and need not be done again.
    pub(crate) fn has_passed(&self, what: &str, crates: &[&str]) -> bool {
        !self.does_all && fs::read_to_string(note(what)).is_ok_and(|hash| hash == self.of(crates))
    }

    /// Notes whether it has passed now. A note that cannot be written costs a later run time, and nothing else.
    pub(crate) fn note(&self, what: &str, crates: &[&str], has_passed: bool) {
        let note = note(what);
        let written = match has_passed {
            true => fs::create_dir_all(note.with_file_name("")).and_then(|()| fs::write(&note, self.of(crates))),
            false => fs::remove_file(&note),
        };
        drop(written);
    }
}

fn note(what: &str) -> PathBuf {
    repository_root().join("target/xtask/passed").join(what)
}

/// Whether a file of no crate is for people alone.
fn is_text(file: &str) -> bool {
    file.ends_with(".md") || TEXTS.iter().any(|folder| Path::new(file).starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_crate_is_one_of_all_that_stand_on_it_and_of_nothing_else() {
        let mut sources = Sources::hashed(repository_root()).unwrap();
        let before = [sources.of(&["cenote-cli"]), sources.of(&["cenote-crash"]), sources.of(&["cenote-taskq"])];
        sources.of_crates.insert("cenote-listing".to_owned(), [1; 32]);
        let after = [sources.of(&["cenote-cli"]), sources.of(&["cenote-crash"]), sources.of(&["cenote-taskq"])];
        assert_ne!(before[0], after[0]);
        assert_eq!(before[1..], after[1..]);
        sources.of_tests.insert("cenote-taskq".to_owned(), [1; 32]);
        let tested = [sources.of(&["cenote-cli"]), sources.of(&["cenote-crash"])];
        assert_eq!(after[..2], tested);
        assert_ne!(after[2], sources.of(&["cenote-taskq"]));
        sources.of_none = [2; 32];
        assert_ne!(sources.of(&["cenote-taskq"]), after[2]);
    }

    #[test]
    fn texts_are_those_of_people() {
        assert!(is_text("README.md") && is_text("docs/man/a.svg"));
        assert!(!is_text("tools/openzfs-vm/run") && !is_text("Cargo.lock"));
    }
}
