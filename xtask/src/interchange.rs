//! `cargo xtask interchange [PATTERN]`: Cenote and OpenZFS's own code in a process (libzpool) end each other's half-done work; `tools/libzpool/jobs`.
//!
//! A run of the project's test does a part of the scenarios, by the commit.

use anyhow::{Result, bail};

use crate::steps::{Context, Outcome, Tally};
use crate::{golden, process, rotation};

/// Scenarios take ten to twenty seconds each; so many parts leave about nine of them to a run.
const PARTS: u64 = 24;

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.len() > 1 {
        bail!("usage: cargo xtask interchange [PATTERN]");
    }
    let program = golden::built_program()?;
    process::run(process::script("tools/libzpool/jobs").arg(program).args(args))
}

/// A part of the scenarios.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    if !process::may_install() {
        return Ok(Outcome::LeftOut(
            "only root may install what the program of tools/libzpool is built with".to_owned(),
        ));
    }
    let part = rotation::of_commit(PARTS);
    let program = golden::built_program()?;
    let mut script = process::script("tools/libzpool/jobs");
    script.arg(program).env("JOBS_SHARE", format!("{}/{}", part.at + 1, part.of));
    let mut tally = Tally::default();
    let is_good = process::run_and_read(&mut script, |line| {
        if let Some(is_passed) = verdict(line) {
            tally.count(is_passed);
        }
    })?;
    // The script has broken off.
    if !is_good && tally.failed == 0 {
        tally.count(false);
    }
    Ok(Outcome::Done(tally))
}

/// The verdict of a scenario's line, if it is one.
fn verdict(line: &str) -> Option<bool> {
    match line.split_whitespace().next() {
        Some("ok" | "over") => Some(true),
        Some("FAILED") if !line.starts_with(' ') => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_scenarios_count_and_others_do_not() {
        assert_eq!(verdict("ok      scrub-cut-mirror (5 s)"), Some(true));
        assert_eq!(verdict("over    rebuild-by-openzfs-cut-mirror (5 s)"), Some(true));
        assert_eq!(verdict("FAILED  scrub-cut-mirror"), Some(false));
        assert_eq!(verdict("        FAILED: files differ"), None);
        assert_eq!(verdict("jobs: 3 ok, 0 failed: "), None);
    }
}
