//! Layers of crates: which crate may depend on which, and which of them must be deterministic.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::steps::Tally;

/// The layers, lowest first; crates on one line do not know each other.
pub(super) const LAYERS: &[&[&str]] = &[
    &["boxed", "format"],
    &["codec", "props"],
    &["taskq"],
    &["kstat"],
    &["vdev"],
    &["zio"],
    &["arc", "metaslab"],
    &["dmu", "l2arc"],
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

pub(super) fn layer_of(krate: &str) -> usize {
    LAYERS.iter().position(|layer| layer.contains(&krate)).expect("the crate is in the list")
}
/// Checks the manifest and the lints of each crate in the list, the program's dependencies, and that libraries of others are told of.
pub(super) fn check(root: &Path, faults: &mut Vec<String>, tally: &mut Tally) -> Result<()> {
    for (rank, layer) in LAYERS.iter().enumerate() {
        for krate in *layer {
            let manifest = root.join("crates").join(krate).join("Cargo.toml");
            let text = fs::read_to_string(&manifest).with_context(|| format!("no {}", manifest.display()))?;
            let before = faults.len();
            check_layer(krate, rank, &text, faults);
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
    check_program(&fs::read_to_string(root.join("crates/cli/Cargo.toml"))?, faults);
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
    Ok(())
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

/// The program stands on the crates for programs alone.
fn check_program(manifest: &str, faults: &mut Vec<String>) {
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
    fn a_program_that_stands_on_the_engine_is_a_fault() {
        let mut faults = Vec::new();
        let good = "[dependencies]\ncenote-admin.workspace = true\n\n[dev-dependencies]\ncenote-sim.workspace = true\n";
        check_program(good, &mut faults);
        assert!(faults.is_empty());
        check_program("[dependencies]\ncenote-spa.workspace = true\n", &mut faults);
        assert_eq!(faults.len(), 1);
    }

    #[test]
    fn libraries_are_those_of_others() {
        let manifest =
            "[workspace.dependencies]\ncenote-a = { path = \"a\" }\n\n# Why.\nserde = \"1\"\n\n[profile.dev]\nx = 1\n";
        assert_eq!(libraries(manifest), ["serde"]);
    }
}
