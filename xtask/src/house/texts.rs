//! Texts and sizes of the files that the repository keeps.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process;
use crate::steps::Tally;

/// A file past this is two ideas.
const LINES_MAX: usize = 1500;
/// Words that have no business in a file that is kept, each with its fault.
const WORDS: &[(&str, &str)] = &[("<<<<<<< ", "a merge was not finished"), ("todo!(", "unfinished")];

/// Words that leave the subject of a comment's sentence unnamed where they open it. A question may.
const OPENERS: &[&str] = &["What ", "Who ", "Whoever ", "Whatever ", "Whose ", "Whichever "];

/// The largest file that is kept outside of `testdata`, in bytes: what is larger came with a careless `git add`.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Checks each file's text and size.
pub(super) fn check(root: &Path, faults: &mut Vec<String>, tally: &mut Tally) -> Result<()> {
    for file in files(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let before = faults.len();
        check_text(&name, &text, faults);
        tally.count(faults.len() == before);
    }
    for (name, bytes) in kept(root)? {
        let is_small = bytes <= FILE_BYTES_MAX || name.starts_with("testdata/");
        if !is_small {
            faults.push(format!("{name}: {bytes} bytes are kept in the repository"));
        }
        tally.count(is_small);
    }
    Ok(())
}

/// All files that the repository keeps, and their sizes in bytes; none where this is no checkout.
fn kept(root: &Path) -> Result<Vec<(String, u64)>> {
    if !root.join(".git").exists() {
        return Ok(Vec::new());
    }
    let listed = process::output(Command::new("git").current_dir(root).args(["ls-files", "-z"]))?;
    ensure!(listed.good, "git ls-files: {}", listed.stderr);
    let names = listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(names.filter_map(|name| fs::symlink_metadata(root.join(&name)).ok().map(|file| (name, file.len()))).collect())
}

/// All text files that are ours.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                if !["target", ".git", "testdata", "corpus", "artifacts", "proptest-regressions"]
                    .contains(&name.as_str())
                {
                    folders.push(path);
                }
            } else if [".rs", ".md", ".toml", ".sh", ".yml"].iter().any(|end| name.ends_with(end)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn check_text(name: &str, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if name.ends_with(".rs") && lines > LINES_MAX {
        faults.push(format!("{name}: {lines} lines; split it by idea"));
    }
    if name.ends_with("src/lib.rs") && !text.starts_with("//!") {
        faults.push(format!("{name}: a crate opens with its theory"));
    }
    for (index, line) in text.lines().enumerate().filter(|_| name.ends_with(".rs")) {
        let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!', ' ']));
        if let Some(comment) = comment.filter(|comment| OPENERS.iter().any(|opener| comment.starts_with(opener)))
            && !comment.contains('?')
        {
            faults.push(format!("{name}:{}: name the subject: {comment}", index + 1));
        }
    }
    // This file names the words.
    if name != "xtask/src/house/texts.rs" {
        for (word, why) in WORDS {
            if let Some((line, _)) = text.lines().enumerate().find(|(_, line)| line.contains(word)) {
                faults.push(format!("{name}:{}: {word}: {why}", line + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_theory_and_a_file_without_end_are_faults() {
        let mut faults = Vec::new();
        check_text("crates/x/src/lib.rs", "mod a;\n", &mut faults);
        check_text("crates/x/src/a.rs", &"\n".repeat(LINES_MAX + 1), &mut faults);
        assert_eq!(faults.len(), 2);
    }

    #[test]
    fn a_comment_that_does_not_name_its_subject_is_a_fault() {
        let text_faults = |text: &str| {
            let mut faults = Vec::new();
            check_text("crates/x/src/a.rs", text, &mut faults);
            faults.len()
        };
        assert_eq!(text_faults("    /// What is wrong.\n"), 1);
        assert_eq!(text_faults("//! Whoever reads it.\n"), 1);
        assert_eq!(text_faults("// What limits it?\n/// The fault.\nlet x = \"// What\";\n"), 0);
    }
}
