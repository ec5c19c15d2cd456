//! House rules that a program can check. The others are in CONTRIBUTING.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cenote_testkit::repository_root;

use crate::documents;
use crate::facts;
use crate::process;
use crate::steps::{Context, Outcome, Tally};

/// A file past this is two ideas.
const LINES_MAX: usize = 1500;

/// The layers, lowest first; crates on one line do not know each other.
const LAYERS: &[&[&str]] = &[
    &["boxed", "format"],
    &["codec", "props"],
    &["taskq"],
    &["kstat"],
    &["vdev"],
    &["zio"],
    &["arc", "metaslab"],
    &["dmu"],
    &["zil"],
    &["dsl"],
    &["spa"],
    &["zpl", "zvol", "send", "scan"],
    &["inuse"],
    &["admin"],
    &["fuse", "nbd", "bench", "host"],
    &["image", "inspect", "listing", "server"],
    &["cenote"],
    &["cli", "capi"],
];

/// Lines of the program at most, tests included: it keeps the grammar of the command line, and printing.
const PROGRAM_LINES_MAX: usize = 9_000;
/// The crates of ours that the program may depend on, and nothing below them.
const PROGRAM_CRATES: &[&str] = &["admin", "bench", "cenote", "host", "image", "inspect", "listing", "server"];

/// The line of a library that must not touch clock, chance, threads or files but through taskq: its lints, which clippy.toml describes, are off in
/// the workspace. Libraries that the runtime stands on have to take the standard library's locks.
fn determinism(rank: usize) -> Option<&'static str> {
    match rank {
        _ if rank < layer_of("taskq") => Some("#![cfg_attr(not(test), deny(clippy::disallowed_methods))]"),
        _ if rank == layer_of("taskq") || rank >= layer_of("fuse") => None,
        _ => Some("#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]"),
    }
}

fn layer_of(krate: &str) -> usize {
    LAYERS.iter().position(|layer| layer.contains(&krate)).expect("the crate is in the list")
}
/// Words that have no business in a file that is kept, each with its fault.
const WORDS: &[(&str, &str)] = &[("<<<<<<< ", "a merge was not finished"), ("todo!(", "unfinished")];

/// Words that leave the subject of a comment's sentence unnamed where they open it. A question may.
const OPENERS: &[&str] = &["What ", "Who ", "Whoever ", "Whatever ", "Whose ", "Whichever "];

/// The largest file that is kept outside of `testdata`, in bytes: what is larger came with a careless `git add`.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let mut faults = Vec::new();
    let mut tally = Tally::default();
    let root = repository_root();
    for file in files(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let before = faults.len();
        check_text(&name, &text, &mut faults);
        tally.count(faults.len() == before);
    }
    for (name, bytes) in kept(root)? {
        let is_small = bytes <= FILE_BYTES_MAX || name.starts_with("testdata/");
        if !is_small {
            faults.push(format!("{name}: {bytes} bytes are kept in the repository"));
        }
        tally.count(is_small);
    }
    for (rank, layer) in LAYERS.iter().enumerate() {
        for krate in *layer {
            let manifest = root.join("crates").join(krate).join("Cargo.toml");
            let text = fs::read_to_string(&manifest).with_context(|| format!("no {}", manifest.display()))?;
            let before = faults.len();
            check_layer(krate, rank, &text, &mut faults);
            let library = root.join("crates").join(krate).join("src/lib.rs");
            if let Some(line) = determinism(rank)
                && !fs::read_to_string(&library).unwrap_or_default().lines().any(|other| other == line)
            {
                faults.push(format!("{} lacks the line {line}", library.display()));
            }
            tally.count(faults.len() == before);
        }
    }
    let before = faults.len();
    let program = root.join("crates/cli");
    let program_manifest = fs::read_to_string(program.join("Cargo.toml"))?;
    check_program(&program_manifest, facts::lines(&program)?, &mut faults);
    tally.count(faults.len() == before);
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).context("no ARCHITECTURE.md")?;
    for name in libraries(&manifest) {
        let told = architecture.contains(&format!("`{name}`"));
        if !told {
            faults.push(format!("ARCHITECTURE.md does not say why {name} is used"));
        }
        tally.count(told);
    }
    facts::print(root)?;
    println!("crates that the program depends on: {}", crates_of(&program_manifest).join(" "));
    for fault in documents::check(root)? {
        tally.count(fault.is_none());
        faults.extend(fault);
    }
    for fault in &faults {
        println!("{fault}");
    }
    Ok(Outcome::Done(tally))
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
    if name != "xtask/src/house.rs" {
        for (word, why) in WORDS {
            if let Some((line, _)) = text.lines().enumerate().find(|(_, line)| line.contains(word)) {
                faults.push(format!("{name}:{}: {word}: {why}", line + 1));
            }
        }
    }
}

/// The libraries of others that the workspace declares.
fn libraries(manifest: &str) -> Vec<&str> {
    let (_, rest) = manifest.split_once("[workspace.dependencies]").unwrap_or_default();
    let body = rest.split_once("\n[").map_or(rest, |(body, _)| body);
    body.lines()
        .filter_map(|line| Some(line.split_once(" = ")?.0))
        .filter(|name| !name.starts_with("cenote-") && !name.starts_with('#'))
        .collect()
}

/// The crates of ours that a manifest depends on, but for tests.
fn crates_of(manifest: &str) -> Vec<&str> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let Some(rest) = line.strip_prefix("cenote").filter(|_| section != "[dev-dependencies]") else { continue };
        let used = rest.split(['.', ' ', '=']).next().unwrap_or_default();
        // The public face is the library of the whole.
        found.push(used.strip_prefix('-').unwrap_or("cenote"));
    }
    found
}

/// The program is short, and stands on the crates for programs alone.
fn check_program(manifest: &str, lines: usize, faults: &mut Vec<String>) {
    if lines > PROGRAM_LINES_MAX {
        faults.push(format!(
            "crates/cli: {lines} lines, of {PROGRAM_LINES_MAX} at most: it keeps grammar and printing, all else is a library's"
        ));
    }
    for used in crates_of(manifest).into_iter().filter(|used| !PROGRAM_CRATES.contains(used)) {
        faults.push(format!("crates/cli must not depend on {used}: {} are for programs", PROGRAM_CRATES.join(", ")));
    }
}

/// A crate may depend on layers below its own, and on what serves tests while testing.
fn check_layer(krate: &str, rank: usize, manifest: &str, faults: &mut Vec<String>) {
    for used in crates_of(manifest) {
        match LAYERS.iter().position(|layer| layer.contains(&used)) {
            Some(below) if below < rank => {}
            Some(_) => faults.push(format!("crates/{krate} must not depend on {used}, which is not below it")),
            None => faults.push(format!("crates/{krate} must not depend on {used}, which is no layer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer_faults(krate: &str, rank: usize, manifest: &str) -> usize {
        let mut faults = Vec::new();
        check_layer(krate, rank, manifest, &mut faults);
        faults.len()
    }

    #[test]
    fn an_arrow_that_points_up_or_sideways_is_a_fault() {
        assert_eq!(layer_faults("zio", 5, "[dependencies]\ncenote-vdev.workspace = true\n"), 0);
        assert_eq!(layer_faults("zio", 5, "[dependencies]\ncenote-dmu.workspace = true\n"), 1);
        assert_eq!(layer_faults("arc", 6, "[dependencies]\ncenote-metaslab.workspace = true\n"), 1);
        assert_eq!(layer_faults("zio", 5, "[dependencies]\ncenote-testkit.workspace = true\n"), 1);
        assert_eq!(layer_faults("zio", 5, "[dev-dependencies]\ncenote-testkit.workspace = true\n"), 0);
    }

    #[test]
    fn libraries_of_the_engine_deny_what_a_simulation_could_not_repeat() {
        let line = |krate| determinism(layer_of(krate)).unwrap_or_default();
        assert!(line("codec").contains("disallowed_methods") && !line("codec").contains("disallowed_types"));
        assert!(line("vdev").contains("disallowed_types") && line("admin").contains("disallowed_types"));
        assert!(line("taskq").is_empty() && line("fuse").is_empty() && line("cli").is_empty());
    }

    #[test]
    fn a_program_that_is_long_or_stands_on_the_engine_is_a_fault() {
        let program_faults = |manifest: &str, lines| {
            let mut faults = Vec::new();
            check_program(manifest, lines, &mut faults);
            faults.len()
        };
        let good = "[dependencies]\ncenote-admin.workspace = true\n\n[dev-dependencies]\ncenote-sim.workspace = true\n";
        assert_eq!(program_faults(good, PROGRAM_LINES_MAX), 0);
        assert_eq!(program_faults(good, PROGRAM_LINES_MAX + 1), 1);
        assert_eq!(program_faults("[dependencies]\ncenote-spa.workspace = true\n", 1), 1);
    }

    #[test]
    fn libraries_are_those_of_others() {
        let manifest =
            "[workspace.dependencies]\ncenote-a = { path = \"a\" }\n\n# Why.\nserde = \"1\"\n\n[profile.dev]\nx = 1\n";
        assert_eq!(libraries(manifest), ["serde"]);
    }

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
