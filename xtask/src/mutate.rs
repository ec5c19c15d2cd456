//! `cargo xtask mutate [COUNT] [SEED]`: golden pools, damaged, through the whole read path (crates/mutate).

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::steps::{Context, Outcome, Tally};

/// Mutations in a test run: about a minute's worth.
const COUNT_IN_STEP: u64 = 2000;

/// The mutation test, built so that overflows and assertions are seen.
fn program() -> Command {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--profile", "checked", "--locked", "--package", "cenote-mutate"]);
    command.args(["--bin", "mutate", "--"]);
    command
}

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (count, seed) = match args {
        [] => (COUNT_IN_STEP, 1),
        [count] => (count.parse().context("COUNT is a number")?, 1),
        [count, seed] => (count.parse().context("COUNT is a number")?, seed.parse().context("SEED is a number")?),
        _ => bail!("usage: cargo xtask mutate [COUNT] [SEED]"),
    };
    process::run(program().args(["--count", &count.to_string(), "--seed", &seed.to_string(), "--every", "60"]))
}

/// The step. Each mutation counts.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let mut tally = Tally::default();
    let count = COUNT_IN_STEP.to_string();
    let good = process::run_and_read(program().args(["--count", &count, "--seed", "1"]), |line| {
        if let Some(result) = parse(line) {
            tally.absorb(result);
        }
    })?;
    if tally.passed + tally.failed != COUNT_IN_STEP || (!good && tally.failed == 0) {
        // It did not build, or the watchdog or the memory limit ended it.
        tally.failed += 1;
    }
    Ok(Outcome::Done(tally))
}

/// The figures of the last line: `2000 mutations of 12 pools …: 0 failed, …`.
fn parse(line: &str) -> Option<Tally> {
    let (count, rest) = line.split_once(" mutations of ")?;
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
        let line = "2000 mutations of 12 pools from seed 1 in 50.1 s (40 a second): 3 failed, 1700 could be imported, \
                    1500 met errors; at most 1 steps and 1 MiB";
        assert_eq!(parse(line), Some(Tally { passed: 1997, failed: 3 }));
        assert_eq!(parse("FAILED seed 7: basic Blind: panic"), None);
    }
}
