//! Fuzzing: coverage-guided by hand, and a fixed budget of made-up inputs in every test run.
//!
//! The targets are the functions in `fuzz/src/lib.rs`. `cargo fuzz` (libFuzzer, a nightly toolchain) drives them for as long
//! as one likes; the budget runner in `fuzz/src/bin/budget.rs` needs neither and takes the same inputs every time.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::repository_root;

use crate::process;
use crate::steps::{Context, Outcome, Tally};

/// Inputs per target in a test run. Chosen by eye: some seconds for all targets together.
const BUDGET_COUNT: u64 = 20_000;

/// Seconds per target when none are given.
const SECONDS_DEFAULT: u64 = 600;

/// Names of all targets, from the budget runner.
fn targets() -> Result<Vec<String>> {
    let output = process::output(budget().arg("--list"))?;
    if !output.good {
        bail!("cannot list the fuzz targets: {}", output.stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn budget() -> Command {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--release", "--locked", "--package", "cenote-fuzz", "--bin", "budget", "--"]);
    command
}

/// `fuzz [TARGET] [SECONDS]`
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (target, seconds) = match args {
        [] => (None, SECONDS_DEFAULT),
        [word] => match word.parse() {
            Ok(seconds) => (None, seconds),
            Err(_) => (Some(word.clone()), SECONDS_DEFAULT),
        },
        [target, seconds] => (Some(target.clone()), seconds.parse().context("SECONDS is a number")?),
        _ => bail!("usage: cargo xtask fuzz [TARGET] [SECONDS]"),
    };
    let all = targets()?;
    let chosen = match target {
        Some(target) if all.contains(&target) => vec![target],
        Some(target) => bail!("no fuzz target {target}; there are: {}", all.join(" ")),
        None => all,
    };
    let have = |args: &[&str]| {
        process::output(Command::new("cargo").args(args).current_dir(repository_root())).is_ok_and(|output| output.good)
    };
    if !have(&["+nightly", "--version"]) || !have(&["+nightly", "fuzz", "--version"]) {
        bail!(
            "coverage-guided fuzzing needs a nightly toolchain and cargo-fuzz:\n  rustup toolchain install nightly\n  \
             cargo install cargo-fuzz\nWithout them: cargo xtask fuzz-budget"
        );
    }
    let mut failed = Vec::new();
    for target in chosen {
        println!("=== {target}, {seconds} s");
        let mut command = Command::new("cargo");
        command.current_dir(repository_root());
        let corpus = format!("fuzz/corpus/{target}");
        // What the fuzzer finds worth keeping lies apart; the repository's corpus is for chosen inputs.
        let found = format!("fuzz/found/{target}");
        for dir in [&corpus, &found] {
            std::fs::create_dir_all(repository_root().join(dir))?;
        }
        command.env("CENOTE_FUZZ_TARGET", &target);
        command.args(["+nightly", "fuzz", "run", "any", &found, &corpus, "--features", "libfuzzer", "--"]);
        command.args([&format!("-max_total_time={seconds}"), "-rss_limit_mb=2048", "-timeout=10"]);
        if process::run(&mut command).is_err() {
            failed.push(target);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(" "));
    }
    Ok(())
}

/// `fuzz-budget [COUNT]`
pub(crate) fn main_budget(args: &[String]) -> Result<()> {
    let count = match args {
        [] => BUDGET_COUNT,
        [count] => count.parse().context("COUNT is a number")?,
        _ => bail!("usage: cargo xtask fuzz-budget [COUNT]"),
    };
    process::run(budget().args(["--count", &count.to_string()]))
}

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let mut tally = Tally::default();
    let good = process::run_and_read(budget().args(["--count", &BUDGET_COUNT.to_string()]), |line| {
        if line.starts_with("ok ") {
            tally.passed += 1;
        }
    })?;
    if !good {
        tally.failed += 1;
    }
    Ok(Outcome::Done(tally))
}
