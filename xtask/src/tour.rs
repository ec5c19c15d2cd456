//! The tours of the README and of docs/TOUR.md, word for word: every indented block of that section, in one shell for each page, in order.
//!
//! The commands of a tour must work as a newcomer types them. The only liberties: the tour's folder and the list of pools are fresh ones,
//! and blocks that mount are left out where the system has no `/dev/fuse`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use cenote_testkit::repository_root;

use crate::process;
use crate::steps::{Context, Outcome, Tally};

/// Options that have Cargo build a release in less time; the program does the same. Libraries are optimised a little.
///
/// # Errors
/// The workspace's manifest cannot be read.
pub(crate) fn quick_release() -> Result<Vec<String>> {
    let manifest = std::fs::read_to_string(repository_root().join("Cargo.toml"))?;
    let named = manifest.lines().filter_map(|line| line.strip_prefix("[profile.release.package.")?.strip_suffix(']'));
    let levels = named.map(|name| format!("package.{name}.opt-level=0"));
    let levels = levels.chain(["opt-level=0".to_owned(), "package.\"*\".opt-level=1".to_owned()]);
    Ok(levels.flat_map(|level| ["--config".to_owned(), format!("profile.release.{level}")]).collect())
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
    // The words that are typed are what counts here, not the speed of the program that they build.
    let options: Vec<String> = quick_release()?.iter().map(|option| quoted(option)).collect();
    let mut script =
        format!("set -eu\nshopt -s expand_aliases\ncargo() {{ command cargo {} \"$@\"; }}\n", options.join(" "));
    for block in &blocks {
        for line in block.lines() {
            // Shown before it is run, as a reader would see it.
            script.push_str(&format!("printf '$ %s\\n' {}\n{line}\n", quoted(line)));
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
