//! `cargo xtask test --quick`: the checks of what a change touches, in minutes, before the whole run is worth its time.
//!
//! A change is all that differs from the branch it goes to, commits and files alike; where nothing does, it is the last commit. The crates that
//! it changes are tested whole. All that stand on them, by the graph of crates, are compiled and linted: a change that breaks their code is
//! seen, one that breaks their behaviour is left to the whole run, and so are campaigns, other programs' judgements and documents. Testing
//! them too takes as long as the whole run wherever the change is in the engine.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::changed::{Crates, changed_files};
use crate::{process, programs};

/// Carries it out.
pub(crate) fn main() -> Result<()> {
    let changed = changed_files()?;
    let crates = Crates::read()?;
    let touched = crates.touched(&changed);
    // Nothing stands on the tests of a crate.
    let code = changed.iter().filter(|file| !crates.is_of_tests(file)).cloned().collect();
    let above: BTreeSet<_> = crates.above(&crates.touched(&code)).difference(&touched).cloned().collect();
    println!("{} files changed, in: {}", changed.len(), listed(&touched));
    println!("compiled and linted only, since they stand on these: {}", listed(&above));
    println!("left to the whole run: their tests, campaigns, zdb, the virtual machine, packages, tours");
    process::run(process::cargo().args(["fmt", "--all", "--check"]))?;
    crate::test::main(&["--only".to_owned(), "house".to_owned()])?;
    if touched.is_empty() {
        return Ok(());
    }
    let mut clippy = process::cargo();
    clippy.args(["clippy", "--all-targets", "--locked"]);
    for name in touched.iter().chain(&above) {
        clippy.arg("--package").arg(name);
    }
    process::run(clippy.args(["--", "-D", "warnings"]))?;
    let mut tests = process::cargo();
    // All that has tests: crates without a library too.
    tests.args(["test", "--tests", "--locked", "--no-fail-fast"]);
    for name in &touched {
        tests.arg("--package").arg(name);
    }
    if touched.iter().any(|name| programs::is_serving(name)) {
        tests.env(programs::THREADS_VARIABLE, programs::serving_threads());
    }
    process::run(&mut tests)
}

fn listed(names: &BTreeSet<String>) -> String {
    let short = names.iter().map(|name| name.strip_prefix("cenote-").unwrap_or(name));
    match names.is_empty() {
        true => "no crate".to_owned(),
        false => short.collect::<Vec<_>>().join(" "),
    }
}
