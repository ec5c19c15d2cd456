//! The tours of the README and of docs/TOUR.md, word for word: every indented block of that section, in one shell for each page, in order.
//!
//! The commands of a tour must work as a newcomer types them. The only liberties: the tour's folder and the list of pools are fresh ones,
//! blocks that mount are left out where the system has no `/dev/fuse`, and the program is built as the tests have it. A release in one run of three
//! shows that it can be built, optimised less than a user's: code that has no debug assertions is compiled nowhere else.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use cenote_testkit::repository_root;

use crate::steps::{Context, Outcome, Tally};
use crate::{process, rotation};

/// The build of a program whose words count, not its speed.
pub(crate) struct Build {
    /// Its folder below `target`.
    pub(crate) folder: &'static str,
    /// Cargo's options for it.
    pub(crate) options: Vec<String>,
}

impl Build {
    /// The commit's.
    ///
    /// # Errors
    /// The workspace's manifest cannot be read.
    pub(crate) fn of_commit() -> Result<Self> {
        match rotation::of_commit(PARTS).has(0) {
            true => Ok(Self { folder: "release", options: quick_release()? }),
            false => Ok(Self { folder: "debug", options: Vec::new() }),
        }
    }

    /// Whether it is a release.
    pub(crate) fn is_release(&self) -> bool {
        self.folder == "release"
    }
}

/// One of so many runs builds a release.
const PARTS: u64 = 3;

/// Options that have Cargo build a release in less time; the program does the same. Libraries are optimised a little.
fn quick_release() -> Result<Vec<String>> {
    let manifest = std::fs::read_to_string(repository_root().join("Cargo.toml"))?;
    let named = manifest.lines().filter_map(|line| line.strip_prefix("[profile.release.package.")?.strip_suffix(']'));
    let levels = named.map(|name| format!("package.{name}.opt-level=0"));
    let levels = levels.chain(["opt-level=0".to_owned(), "package.\"*\".opt-level=1".to_owned()]);
    let levels = levels.flat_map(|level| ["--config".to_owned(), format!("profile.release.{level}")]);
    Ok(["--release".to_owned()].into_iter().chain(levels).collect())
}

/// The pages that have one.
const PAGES: [&str; 2] = ["README.md", "docs/TOUR.md"];
/// The folder that they use.
const FOLDER: &str = "/tmp/tour";

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let mut passed = 0;
    for page in PAGES {
        passed += typed(page)?;
    }
    Ok(Outcome::Done(Tally { passed, failed: 0 }))
}

/// Types a page's tour. The number of its blocks comes back.
fn typed(page: &str) -> Result<u64> {
    let text = std::fs::read_to_string(repository_root().join(page))?;
    let mut blocks = blocks(&text, "A tour").with_context(|| format!("{page} has no tour"))?;
    if !Path::new("/dev/fuse").exists() {
        let before = blocks.len();
        blocks.retain(|block| !block.contains(" mount "));
        println!("no /dev/fuse here: {} blocks of {page} that mount are left out", before - blocks.len());
    }
    let temp = tempfile::tempdir()?;
    let folder = temp.path().join("tour");
    let Build { folder: built, options } = Build::of_commit()?;
    let options: Vec<String> = options.iter().map(|option| quoted(option)).collect();
    let mut script =
        format!("set -eu\nshopt -s expand_aliases\nbuild() {{ cargo build --locked {}; }}\n", options.join(" "));
    for block in &blocks {
        for line in block.lines() {
            // Shown before it is run, as a reader would see it.
            let run =
                line.replace("cargo build --release", "build").replace("target/release", &format!("target/{built}"));
            script.push_str(&format!("printf '$ %s\\n' {}\n{run}\n", quoted(line)));
        }
    }
    let script = script.replace(FOLDER, &folder.display().to_string());
    let path = temp.path().join("tour.sh");
    std::fs::write(&path, script)?;
    let mut bash = Command::new("bash");
    // Pools of these names that somebody has are not this tour's.
    bash.env("CENOTE_CACHE", temp.path().join("cache.json"));
    process::run(bash.arg(&path).current_dir(repository_root()))?;
    Ok(blocks.len() as u64)
}

/// The indented blocks of a section, without their indentation.
fn blocks(text: &str, section: &str) -> Option<Vec<String>> {
    let (_, rest) = text.split_once(&format!("\n## {section}\n"))?;
    let body = rest.split_once("\n## ").map_or(rest, |(body, _)| body);
    let mut blocks: Vec<String> = Vec::new();
    let mut open = false;
    for line in body.lines() {
        match line.strip_prefix("    ") {
            Some(command) if open => {
                let block = blocks.last_mut().expect("a block is open");
                block.push('\n');
                block.push_str(command);
            }
            Some(command) => {
                blocks.push(command.to_owned());
                open = true;
            }
            None => open = false,
        }
    }
    (!blocks.is_empty()).then_some(blocks)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_indented_blocks_of_the_section_are_taken() {
        let text = "# T\n    no\n## A tour\nsay\n\n    a\n    b 'c'\n\nmore\n\n    d\n\n## Next\n\n    e\n";
        assert_eq!(blocks(text, "A tour").unwrap(), ["a\nb 'c'", "d"]);
        assert_eq!(blocks(text, "Other"), None);
        assert_eq!(quoted("b 'c'"), r"'b '\''c'\'''");
    }

    #[test]
    fn each_page_has_a_tour_in_its_own_folder() {
        for page in PAGES {
            let text = std::fs::read_to_string(repository_root().join(page)).unwrap();
            assert!(blocks(&text, "A tour").unwrap().iter().any(|block| block.contains(FOLDER)), "{page}");
        }
    }
}
