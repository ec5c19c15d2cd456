//! `cargo xtask cuts [COUNT] [FIRST]`: power cuts of pools under load, in simulation (crates/cuts).

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::steps::{Context, Outcome, Tally};

/// Cuts in a test run: about a minute's worth.
const COUNT_IN_STEP: u64 = 400;

/// The test, built so that overflows and assertions are seen.
fn program() -> Command {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--profile", "checked", "--locked", "--package", "cenote-cuts"]);
    command.args(["--bin", "cuts", "--"]);
    command
}

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (count, first) = match args {
        [] => (COUNT_IN_STEP, 0),
        [count] => (count.parse().context("COUNT is a number")?, 0),
        [count, first] => (count.parse().context("COUNT is a number")?, first.parse().context("FIRST is a number")?),
        _ => bail!("usage: cargo xtask cuts [COUNT] [FIRST]"),
    };
    process::run(program().args(["--count", &count.to_string(), "--first", &first.to_string(), "--every", "60"]))
}

/// The step. Each cut counts.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let mut tally = Tally::default();
    let count = COUNT_IN_STEP.to_string();
    let good = process::run_and_read(program().args(["--count", &count, "--first", "0"]), |line| {
        if let Some(result) = parse(line) {
            tally.absorb(result);
        }
    })?;
    if tally.passed + tally.failed != COUNT_IN_STEP || (!good && tally.failed == 0) {
        // It did not build, or the watchdog ended it.
        tally.failed += 1;
    }
    Ok(Outcome::Done(tally))
}

/// The figures of the last line: `400 cuts from 0 on in …: 0 failed, …`.
fn parse(line: &str) -> Option<Tally> {
    let (count, rest) = line.split_once(" cuts from ")?;
    let (_, rest) = rest.split_once(": ")?;
    let (failed, _) = rest.split_once(" failed, ")?;
    let (count, failed): (u64, u64) = (count.parse().ok()?, failed.parse().ok()?);
    Some(Tally { passed: count.checked_sub(failed)?, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_counted() {
        let line = "400 cuts from 0 on in 50.1 s (8.0 a second): 4 failed, 60 amid a commit, 33 while the pool was opened; 1 \
                    txgs with 2 changes; at most 3 steps";
        assert_eq!(parse(line), Some(Tally { passed: 396, failed: 4 }));
        assert_eq!(parse("FAILED cut 7: [(Single, 1)]: panic"), None);
    }
}
