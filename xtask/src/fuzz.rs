//! Fuzzing: coverage-guided by hand, and a fixed budget of made-up inputs in every test run.
//!
//! The targets are the functions in `fuzz/src/lib.rs`. libFuzzer drives them for as long as one likes, guided by what code
//! an input reaches; the budget runner in `fuzz/src/bin/budget.rs` takes the same inputs every time.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use cenote_testkit::repository_root;

use crate::process;
use crate::rotation;
use crate::steps::{Context, Outcome, Tally};

/// Inputs per target in the runs of a day, of which each makes up a part, from a seed of its own.
const BUDGET_COUNT: u64 = 20_000;
const PARTS: u64 = 3;

/// Seconds per target when none are given.
const SECONDS_DEFAULT: u64 = 600;

/// Names of all targets, from the budget runner.
fn targets() -> Result<Vec<String>> {
    let output = process::output(budget()?.arg("--list"))?;
    if !output.good {
        bail!("cannot list the fuzz targets: {}", output.stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn budget() -> Result<Command> {
    Ok(Command::new(process::built("budget")?))
}

/// `fuzz [TARGET,…] [SECONDS]`
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (names, seconds) = match args {
        [] => (None, SECONDS_DEFAULT),
        [word] => match word.parse() {
            Ok(seconds) => (None, seconds),
            Err(_) => (Some(word), SECONDS_DEFAULT),
        },
        [names, seconds] => (Some(names), seconds.parse().context("SECONDS is a number")?),
        _ => bail!("usage: cargo xtask fuzz [TARGET,…] [SECONDS]"),
    };
    let all = targets()?;
    let chosen: Vec<String> = names.map_or_else(|| all.clone(), |names| names.split(',').map(str::to_owned).collect());
    if let Some(unknown) = chosen.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target {unknown}; there are: {}", all.join(" "));
    }
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for target in chosen {
        println!("=== {target}, {seconds} s");
        let summary = fuzz(&target, seconds)?;
        lines.push(format!(
            "| {target} | {seconds} | {} | {} | {} |",
            summary.executions,
            summary.edges,
            summary.verdict()
        ));
        if !summary.good {
            failed.push(target);
        }
    }
    println!(
        "\n| target | seconds | executions | edges covered | findings |\n|---|---|---|---|---|\n{}",
        lines.join("\n")
    );
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(" "));
    }
    Ok(())
}

/// The figures that a run of libFuzzer reported.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    good: bool,
    executions: u64,
    /// Edges of the control flow that some input took.
    edges: u64,
    /// Where the input that broke it was written.
    artifact: Option<String>,
}

impl Summary {
    /// Takes what a line tells; `true` if a person wants to see it.
    fn take(&mut self, line: &str) -> bool {
        let number_after = |word: &str| {
            let rest = line.split_once(word)?.1;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        if let Some(edges) = number_after(" cov: ") {
            self.edges = edges;
            return !(line.contains("\tNEW ") || line.contains("\tREDUCE "));
        }
        if let Some(count) = number_after("stat::number_of_executed_units:") {
            self.executions = count;
        }
        if let Some((_, path)) = line.split_once("Test unit written to ") {
            self.artifact = Some(path.to_owned());
        }
        true
    }

    fn verdict(&self) -> String {
        match &self.artifact {
            None if self.good => "none".to_owned(),
            None => "ended badly".to_owned(),
            Some(path) => path.clone(),
        }
    }
}

/// Flags that have the compiler count edges and comparisons, as libFuzzer reads them. They are flags of the code generator,
/// so the stable toolchain knows them; what nightly toolchains add is sanitizers, which safe code can do without.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Fuzzes one target.
fn fuzz(target: &str, seconds: u64) -> Result<Summary> {
    // Inputs that the fuzzer finds worth keeping lie apart; the repository's corpus is for chosen inputs.
    let (corpus, found) = (format!("fuzz/corpus/{target}"), format!("fuzz/found/{target}"));
    for dir in [&corpus, &found, "fuzz/artifacts"] {
        std::fs::create_dir_all(repository_root().join(dir))?;
    }
    let mut command = process::cargo();
    // With a target named, build scripts and macros are built without the flags.
    command.env("RUSTFLAGS", COVERAGE.join(" ")).args(["run", "--quiet", "--profile", "checked", "--locked"]);
    command.args(["--target", &host()?, "--package", "cenote-fuzz", "--features", "libfuzzer", "--bin", "any", "--"]);
    command.args([&found, &corpus, &format!("-artifact_prefix=fuzz/artifacts/{target}-")]);
    command.args([&format!("-max_total_time={seconds}"), "-print_final_stats=1", "-rss_limit_mb=2048", "-timeout=10"]);
    let mut child = command
        .env("CENOTE_FUZZ_TARGET", target)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let mut summary = Summary::default();
    for line in BufReader::new(child.stderr.take().expect("stderr is piped")).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if summary.take(&line) {
            println!("{line}");
        }
    }
    summary.good = child.wait()?.success();
    Ok(summary)
}

/// The machine's target triple.
fn host() -> Result<String> {
    let output = process::output(Command::new("rustc").arg("-vV").current_dir(repository_root()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it is for")?.to_owned())
}

/// `fuzz-budget [COUNT]`
pub(crate) fn main_budget(args: &[String]) -> Result<()> {
    let count = match args {
        [] => BUDGET_COUNT,
        [count] => count.parse().context("COUNT is a number")?,
        _ => bail!("usage: cargo xtask fuzz-budget [COUNT]"),
    };
    process::run(budget()?.args(["--count", &count.to_string()]))
}

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let mut tally = Tally::default();
    let part = rotation::of_commit(PARTS);
    let (_, count) = part.share(BUDGET_COUNT);
    let arguments = ["--count", &count.to_string(), "--seed", &(part.at + 1).to_string()].map(str::to_owned);
    let good = process::run_and_read(budget()?.args(arguments), |line| {
        if line.starts_with("ok ") {
            tally.passed += 1;
        }
    })?;
    if !good {
        tally.failed += 1;
    }
    Ok(Outcome::Done(tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_of_itself_is_read() {
        let mut summary = Summary::default();
        assert!(
            !summary.take("#2048\tNEW    cov: 312 ft: 812 corp: 41/2301b lim: 21 exec/s: 0 rss: 41Mb L: 20/73 MS: 1 -")
        );
        assert!(summary.take("#65536\tpulse  cov: 345 ft: 913 corp: 57/3312b lim: 670 exec/s: 21845 rss: 60Mb"));
        assert!(summary.take("stat::number_of_executed_units: 70123"));
        assert!(summary.take("artifact_prefix='x/'; Test unit written to x/crash-da39"));
        let expected =
            Summary { good: false, executions: 70123, edges: 345, artifact: Some("x/crash-da39".to_owned()) };
        assert_eq!(summary, expected);
        assert_eq!(summary.verdict(), "x/crash-da39");
    }
}
