//! Programs that do one trial after the other, each by its number: damaged pools (crates/mutate), power cuts and crash points
//! (crates/crash), datasets that are sent and received (crates/replicas).

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::rotation;
use crate::steps::{Outcome, Tally};

/// One of them.
pub(crate) struct Campaign {
    /// Its program.
    name: &'static str,
    /// Trials of the runs of a day, of which each does a part.
    count_in_step: u64,
    /// The flag that says which trial is the first, and which is where nothing is said.
    first: (&'static str, u64),
    /// The distance from a trial's number to the next one's.
    stride: u64,
    /// Further arguments.
    more: &'static [&'static str],
    /// The text between the count and the rest in its last line.
    noun: &'static str,
    /// Whether that counts the trials that were wanted, and not what each came to.
    counts_trials: bool,
}

/// Golden pools, damaged, through the whole read path.
pub(crate) const MUTATE: Campaign = Campaign {
    name: "mutate",
    count_in_step: 2000,
    first: ("--seed", 1),
    stride: 1,
    more: &[],
    noun: " mutations of ",
    counts_trials: true,
};
/// Power cuts of pools under load, in simulation.
pub(crate) const CUTS: Campaign = Campaign {
    name: "crash",
    count_in_step: 256,
    first: ("--first", 0),
    stride: 1,
    more: &["--zdb-every", "20"],
    noun: " cuts from ",
    counts_trials: true,
};
/// Short runs, cut in every moment: in a test run at some, of scripts far from each other.
pub(crate) const POINTS: Campaign = Campaign {
    name: "points",
    count_in_step: 40,
    first: ("--first", 0),
    stride: 367,
    more: &["--stride", "367", "--points", "8", "--zdb"],
    noun: " points of ",
    counts_trials: false,
};

/// Pools that live through one failure of a disk after the other.
pub(crate) const SCHEDULES: Campaign = Campaign {
    name: "schedules",
    count_in_step: 40,
    first: ("--first", 0),
    stride: 1,
    more: &["--zdb-every", "50"],
    noun: " schedules from ",
    counts_trials: true,
};

/// Datasets with random histories, sent and received.
pub(crate) const REPLICAS: Campaign = Campaign {
    name: "replicas",
    count_in_step: 300,
    first: ("--first", 0),
    stride: 1,
    more: &["--zdb-every", "20"],
    noun: " cases from ",
    counts_trials: true,
};

/// Parts that campaigns are cut into.
const PARTS: u64 = 3;

/// Deliberate bugs that the step has found: a few seconds each, and for the rarest ones minutes.
const MUTANTS_IN_STEP: &str = "3";

impl Campaign {
    /// The program, built so that overflows and assertions are seen.
    fn program(&self, count: u64, first: u64) -> Result<Command> {
        let mut command = Command::new(process::built(self.name)?);
        command.args(["--count", &count.to_string(), self.first.0, &first.to_string()]).args(self.more);
        Ok(command)
    }

    /// Carries out the chore: `cargo xtask NAME [COUNT] [FIRST]`.
    pub(crate) fn main(&self, args: &[String]) -> Result<()> {
        let number = |text: &String| text.parse::<u64>().with_context(|| format!("{text} is no number"));
        let (count, first) = match args {
            [] => (self.count_in_step, self.first.1),
            [count] => (number(count)?, self.first.1),
            [count, first] => (number(count)?, number(first)?),
            _ => bail!("usage: cargo xtask {} [COUNT] [FIRST]", self.name),
        };
        process::run(self.program(count, first)?.args(["--every", "60"]))
    }

    /// The step. Each trial counts.
    pub(crate) fn step(&self) -> Result<Outcome> {
        let mut tally = Tally::default();
        let (before, count) = rotation::of_commit(PARTS).share(self.count_in_step);
        let first = self.first.1 + before * self.stride;
        println!("again: cargo xtask {} {count} {first}", self.name);
        let good = process::run_and_read(&mut self.program(count, first)?, |line| {
            if let Some(result) = self.parse(line) {
                tally.absorb(result);
            }
        })?;
        let is_short = match self.counts_trials {
            true => tally.passed + tally.failed != count,
            false => tally.passed + tally.failed < count,
        };
        if is_short || (!good && tally.failed == 0) {
            // It did not build, or the watchdog or a limit ended it.
            tally.failed += 1;
        }
        Ok(Outcome::Done(tally))
    }

    /// The figures of the last line: `2000 mutations of 12 pools …: 0 failed, …`.
    fn parse(&self, line: &str) -> Option<Tally> {
        let (count, rest) = line.split_once(self.noun)?;
        let (_, rest) = rest.split_once(": ")?;
        let (failed, _) = rest.split_once(" failed, ")?;
        let (count, failed): (u64, u64) = (count.parse().ok()?, failed.parse().ok()?);
        Some(Tally { passed: count.checked_sub(failed)?, failed })
    }
}

/// Minutes of `cargo xtask sim` if nothing is said.
const SIM_MINUTES: u64 = 10;
/// Seeds that are next to each other lead to trials that are far from each other.
const SIM_SEED_CUTS: u64 = 1_000_000;
const SIM_SEED_SCRIPTS: u64 = 6007;
/// No divisor of the number of scripts.
const SIM_STRIDE: u64 = 367;

/// Carries out the chore: `cargo xtask sim [--seed N] [--minutes M]`: the whole engine on simulated disks, in the worlds that there are, one
/// after the other. A failure says how it is had again.
pub(crate) fn main_sim(args: &[String]) -> Result<()> {
    const USAGE: &str = "usage: cargo xtask sim [--seed N] [--minutes M]";
    let (mut seed, mut minutes) = (1, SIM_MINUTES);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let number: u64 = words.next().and_then(|text| text.parse().ok()).context(USAGE)?;
        match word.as_str() {
            "--seed" => seed = number,
            "--minutes" => minutes = number.max(1),
            _ => bail!(USAGE),
        }
    }
    // Lives take most: each is another one, where scripts come again.
    let seconds = minutes * 60;
    let (lives, points, streams, damage) = (seconds * 2 / 5, seconds * 2 / 5, seconds / 10, seconds / 10);
    let worlds = [
        (
            "cenote-crash",
            "crash",
            vec![("--first", seed * SIM_SEED_CUTS), ("--count", u64::MAX >> 1), ("--seconds", lives)],
        ),
        (
            "cenote-crash",
            "points",
            vec![
                ("--steps", 3),
                ("--first", seed * SIM_SEED_SCRIPTS),
                ("--stride", SIM_STRIDE),
                ("--points", 40),
                ("--seconds", points),
            ],
        ),
        (
            "cenote-replicas",
            "replicas",
            vec![("--first", seed * SIM_SEED_CUTS), ("--count", u64::MAX >> 1), ("--seconds", streams)],
        ),
        ("cenote-mutate", "mutate", vec![("--seed", seed * SIM_SEED_CUTS), ("--count", damage * MUTATIONS_PER_SECOND)]),
    ];
    let mut failed = Vec::new();
    for (package, world, words) in worlds {
        let mut command = Command::new(process::built_for_campaigns(package, world)?);
        command.args(["--every", "60"]);
        for (flag, number) in words {
            command.arg(flag).arg(number.to_string());
        }
        println!("=== {world}");
        if process::run(&mut command).is_err() {
            failed.push(world);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("seed {seed}: failures in {}", failed.join(", ")),
    }
}

/// About as many as the program manages.
const MUTATIONS_PER_SECOND: u64 = 40;

/// Carries out the chore: `cargo xtask mutants [NAME|COUNT]`, deliberate bugs of the engine that the power cuts are to find; all of them
/// where nothing is said, COUNT at random.
pub(crate) fn main_mutants(args: &[String]) -> Result<()> {
    let which = match args {
        [] => "all",
        [which] => which.as_str(),
        _ => bail!("usage: cargo xtask mutants [NAME|COUNT]"),
    };
    let tally = hunt(which)?;
    if tally.failed > 0 || tally.passed == 0 {
        bail!("{} deliberate bugs were not found", tally.failed);
    }
    Ok(())
}

/// The step: some of them, others each time.
pub(crate) fn step_mutants() -> Result<Outcome> {
    Ok(Outcome::Done(hunt(MUTANTS_IN_STEP)?))
}

fn hunt(which: &str) -> Result<Tally> {
    let mut tally = None;
    let good = process::run_and_read(&mut mutants(which)?, |line| tally = parse_mutants(line).or(tally))?;
    let mut tally = tally.unwrap_or_default();
    if !good && tally.failed == 0 {
        // It did not build, or the watchdog ended it.
        tally.failed += 1;
    }
    Ok(tally)
}

fn mutants(which: &str) -> Result<Command> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = (since.as_micros() % 1_000_000).to_string();
    if which.parse::<u64>().is_ok() {
        println!("again: crash --mutants {which} --seed {seed}");
    }
    let mut command = Command::new(process::built("crash")?);
    command.args(["--mutants", which, "--seed", &seed]);
    Ok(command)
}

/// The last line: `3 mutants: 3 caught, 0 not caught`.
fn parse_mutants(line: &str) -> Option<Tally> {
    let (_, rest) = line.split_once(" mutants: ")?;
    let (caught, rest) = rest.split_once(" caught, ")?;
    let missed = rest.strip_suffix(" not caught")?;
    Some(Tally { passed: caught.parse().ok()?, failed: missed.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_counted() {
        let line = "2000 mutations of 12 pools from seed 1 in 50.1 s (40 a second): 3 failed, 1700 could be imported, \
                    1500 met errors; at most 1 steps and 1 MiB";
        assert_eq!(MUTATE.parse(line), Some(Tally { passed: 1997, failed: 3 }));
        assert_eq!(MUTATE.parse("FAILED seed 7: basic Blind: panic"), None);
        let line = "400 cuts from 0 on in 50.1 s (8.0 a second): 4 failed, 60 amid a commit, 33 while the pool was opened; 1 \
                    txgs with 2 changes; at most 3 steps";
        assert_eq!(CUTS.parse(line), Some(Tally { passed: 396, failed: 4 }));
        assert_eq!(CUTS.parse("FAILED cut 7: [(Single, 1)]: panic"), None);
        let line = "300 cases from 0 on in 61.0 s (4.9 a second): 2 failed, {Chain: 120, Tree: 60}; 900 streams with 5 records";
        assert_eq!(REPLICAS.parse(line), Some(Tally { passed: 298, failed: 2 }));
        assert_eq!(parse_mutants("3 mutants: 2 caught, 1 not caught"), Some(Tally { passed: 2, failed: 1 }));
        assert_eq!(parse_mutants("one-leg: caught by cut 1 of at most 200, in 0.1 s: …"), None);
    }
}
