//! `cargo xtask test`: the steps, in the order in which they are most likely to say no soonest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use cenote_testkit::{Golden, repository_root};

use crate::passed::Sources;
use crate::programs::{Kind, Ran};
use crate::steps::{Beside, Context, Outcome, Step, Tally, run_all};
use crate::{
    campaign, changed, dist, fuzz, golden, house, interchange, kills, licences, packages, process, programs, rotation,
    tour, value_of, vm, zdb, zdb_check, ztest,
};

const STEPS: &[Step] = &[
    Step { name: "packages", about: "programs that the tests need", of: &[], run: packages::step },
    Step { name: "fmt", about: "formatting", of: &[], run: fmt },
    Step { name: "house", about: "layers, file sizes, words", of: &[], run: house::step },
    Step { name: "licences", about: "licences and sources of dependencies", of: &[], run: licences::step },
    Step { name: "clippy", about: "lints, warnings denied", of: &[], run: clippy },
    Step {
        name: "tests",
        about: "tests of crates that compute",
        of: &[],
        run: |context| tests(context, Kind::Computing),
    },
    Step { name: "doctests", about: "examples in the documentation", of: &[], run: doctests },
    Step { name: "docs", about: "documentation, warnings denied", of: &[], run: docs },
    Step {
        name: "models",
        about: "the runtime's primitives under random schedules (shuttle) or over all interleavings (loom)",
        of: &["cenote-taskq"],
        run: models,
    },
    Step {
        name: "fuzz",
        about: "fuzz targets with a fixed number of made-up inputs",
        of: &["cenote-fuzz"],
        run: fuzz::step,
    },
    Step {
        name: "mutate",
        about: "damaged golden pools through the whole read path",
        of: &["cenote-mutate"],
        run: |_| campaign::MUTATE.step(),
    },
    Step {
        name: "crash",
        about: "power cuts of pools under load, in simulation",
        of: &["cenote-crash"],
        run: |_| campaign::CUTS.step(),
    },
    Step {
        name: "points",
        about: "short runs, cut in every moment, in simulation",
        of: &["cenote-crash"],
        run: |_| campaign::POINTS.step(),
    },
    Step {
        name: "schedules",
        about: "failures of disks up to redundancy and beyond, in any order, in simulation",
        of: &["cenote-crash"],
        run: |_| campaign::SCHEDULES.step(),
    },
    Step {
        name: "replicas",
        about: "datasets sent and received in all ways, in simulation",
        of: &["cenote-replicas"],
        run: |_| campaign::REPLICAS.step(),
    },
    Step {
        name: "mutants",
        about: "deliberate bugs of the engine, which the power cuts have to find",
        of: &["cenote-crash"],
        run: |_| campaign::step_mutants(),
    },
    Step { name: "golden", about: "golden pools against their manifests", of: &["cenote-cli"], run: golden::step },
    Step { name: "zdb", about: "verify against zdb", of: &["cenote-cli"], run: zdb::step },
    Step {
        name: "zdb-check",
        about: "pools that Cenote writes, judged by zdb",
        of: &["cenote-cli"],
        run: zdb_check::step,
    },
    Step { name: "demo", about: "the README's first command", of: &["cenote-cli"], run: demo },
    Step {
        name: "kills",
        about: "a server that writes a pool, killed at any moment",
        of: &["cenote-cli"],
        run: kills::step,
    },
    Step { name: "tour", about: "the tours of README and docs/TOUR.md, word for word", of: &[], run: tour::step },
    Step { name: "dist", about: "packages for users, installed and used", of: &[], run: dist::step },
    Step {
        name: "serving",
        about: "tests of crates that mount and serve",
        of: &[],
        run: |context| tests(context, Kind::Serving),
    },
    Step { name: "vm", about: "the real OpenZFS in a virtual machine", of: &["cenote-cli"], run: vm::step },
    Step {
        name: "ztest",
        about: "verify against zdb on pools fresh from OpenZFS's stress test",
        of: &["cenote-cli"],
        run: ztest::step,
    },
    Step {
        name: "interchange",
        about: "half-done work that Cenote and OpenZFS's code end for each other",
        of: &["cenote-cli"],
        run: interchange::step,
    },
];

/// Those that run beside the others where all are run, and from when on: tests of servers wait most of the time; the machine that is
/// emulated has one core, and so has what `ztest` is compared with.
const BESIDE: [Beside; 2] = [
    Beside { from: "tests", names: &["serving"], prepare: programs::build },
    // Both use the program, and whoever builds it keeps the other waiting.
    Beside {
        from: "tests",
        names: &["vm", "ztest", "interchange"],
        prepare: || golden::built_program().map(drop).and_then(|()| vm::prepared()),
    },
];

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let mut only: Vec<String> = Vec::new();
    let mut skip: Vec<String> = Vec::new();
    let mut is_chosen = false;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let words = |list: String| list.split(',').map(str::to_owned).collect::<Vec<_>>();
        match arg.as_str() {
            "--list" => {
                for step in STEPS {
                    println!("{:<10} {}", step.name, step.about);
                }
                return Ok(());
            }
            "--only" => {
                is_chosen = true;
                only.extend(words(value_of(arg, &mut rest)?));
            }
            // As a lane is begun: no person has chosen them.
            "--beside" => only.extend(words(value_of(arg, &mut rest)?)),
            "--skip" => skip.extend(words(value_of(arg, &mut rest)?)),
            other => bail!("test: unknown argument {other}"),
        }
    }
    for name in only.iter().chain(&skip) {
        if !STEPS.iter().any(|step| step.name == name) {
            bail!("there is no step {name}; cargo xtask test --list names them");
        }
    }
    let wanted = |step: &&Step| {
        (only.is_empty() || only.iter().any(|name| name == step.name)) && !skip.iter().any(|name| name == step.name)
    };
    let mut steps: Vec<&Step> = STEPS.iter().filter(wanted).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let is_whole = steps.len() == STEPS.len() && cores > 1;
    let beside: &[Beside] = if is_whole { &BESIDE } else { &[] };
    steps.retain(|step| !beside.iter().any(|beside| beside.names.contains(&step.name)));
    let context = Context { ci: std::env::var("CI").is_ok_and(|value| value == "true" || value == "1"), is_chosen };
    if let Ok(golden) = Golden::find() {
        println!("golden pools: {}", golden.root().display());
    }
    if !run_all(&steps, beside, &context) {
        bail!("not all checks passed");
    }
    Ok(())
}

/// A step that is one command.
fn whole(command: &mut Command) -> Result<Outcome> {
    process::run(command)?;
    Ok(Outcome::Done(Tally::ONE))
}

fn fmt(_: &Context) -> Result<Outcome> {
    whole(process::cargo().args(["fmt", "--all", "--check"]))
}

/// The lints' level in the step: none is only a warning.
const DENIED: [&str; 2] = ["-D", "warnings"];

fn clippy(_: &Context) -> Result<Outcome> {
    whole(process::cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--"]).args(DENIED))
}

/// Of how many runs one documents a crate that did not change: writing pages takes long, and nearly all faults are in what changes.
const DOCS_PARTS: u64 = 3;

fn docs(_: &Context) -> Result<Outcome> {
    let mut command = process::cargo();
    command.args(["doc", "--no-deps", "--locked", "--document-private-items"]);
    let part = rotation::of_commit(DOCS_PARTS);
    for (index, (name, is_touched)) in changed::crates()?.into_iter().enumerate() {
        if is_touched || part.has(index as u64 % DOCS_PARTS) {
            command.args(["--package", &name]);
        }
    }
    // Private items are documented too, so links to them lead somewhere.
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    command.envs(as_clippy_checks()?);
    whole(&mut command)
}

/// The environment in which Cargo takes the crates that [`clippy`] has checked for those that it needs: they are the same to it only if the same
/// program has checked them with the same words.
fn as_clippy_checks() -> Result<[(&'static str, OsString); 2]> {
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]).current_dir(repository_root()))?;
    let driver = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim()).join("bin/clippy-driver");
    let words = DENIED.iter().map(|word| format!("{word}__CLIPPY_HACKERY__")).collect::<String>();
    Ok([("RUSTC_WORKSPACE_WRAPPER", driver.into()), ("CLIPPY_ARGS", words.into())])
}

fn tests(context: &Context, kind: Kind) -> Result<Outcome> {
    let mut counts = Counts::default();
    let sources = Sources::read(context);
    let ran = programs::run(kind, sources.as_ref(), &mut |line| counts.count(line))?;
    match ran {
        Ran::Nothing => Ok(Outcome::AsBefore),
        Ran::Some { is_good } => Ok(counts.outcome(is_good)),
    }
}

fn doctests(_: &Context) -> Result<Outcome> {
    counted(process::cargo().args(["test", "--workspace", "--doc", "--locked", "--no-fail-fast"]))
}

/// Runs Cargo's tests and counts them.
fn counted(command: &mut Command) -> Result<Outcome> {
    let mut counts = Counts::default();
    let good = process::run_and_read(command, |line| counts.count(line))?;
    Ok(counts.outcome(good))
}

/// Tests that were run, by the line that each test program ends with.
#[derive(Default)]
struct Counts {
    tally: Tally,
    ignored: u64,
}

impl Counts {
    fn count(&mut self, line: &str) {
        if let Some(result) = TestResult::parse(line) {
            self.tally.absorb(Tally { passed: result.passed, failed: result.failed });
            self.ignored += result.ignored;
        }
    }

    fn outcome(self, good: bool) -> Outcome {
        let Self { mut tally, ignored } = self;
        if !good && tally.failed == 0 {
            // It did not build, or a test program died.
            tally.failed = 1;
        }
        if ignored > 0 {
            println!("{ignored} tests are marked to be run by hand (#[ignore])");
        }
        if good && tally.passed == 0 {
            // No examples in the documentation yet is not a fault.
            tally.passed = 1;
        }
        Outcome::Done(tally)
    }
}

/// Model checkers of the runtime, each with the module of its tests.
const CHECKERS: [(&str, &str); 2] = [("shuttle", "schedules"), ("loom", "models")];

/// Either is built apart from everything else, so a run does one of them.
fn models(_: &Context) -> Result<Outcome> {
    let part = rotation::of_commit(CHECKERS.len() as u64);
    let mut tally = Tally::default();
    for (index, (checker, module)) in CHECKERS.into_iter().enumerate() {
        if part.has(index as u64) {
            println!("{checker}");
            match checked(checker, module)? {
                Outcome::Done(done) => tally.absorb(done),
                left_out => return Ok(left_out),
            }
        }
    }
    Ok(Outcome::Done(tally))
}

/// Runs the runtime's tests named `module` with its locks and atomics replaced by a model checker's. The flag rebuilds
/// everything, so it has a target folder of its own.
fn checked(checker: &str, module: &str) -> Result<Outcome> {
    let mut command = process::cargo();
    command.env("RUSTFLAGS", format!("--cfg {checker}"));
    command.args(["test", "--release", "--package", "cenote-taskq", "--lib", "--locked"]);
    command.arg("--target-dir").arg(repository_root().join("target").join(checker));
    counted(command.arg(module))
}

fn demo(_: &Context) -> Result<Outcome> {
    let temp = tempfile::tempdir()?;
    // From an empty folder, as a newcomer's clone would be: nothing may depend on where it is run.
    whole(Command::new(golden::built_program()?).arg("demo").current_dir(temp.path()))
}

/// The figures of a line `test result: ok. 18 passed; 0 failed; 0 ignored; …`.
#[derive(Debug, PartialEq, Eq)]
struct TestResult {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl TestResult {
    fn parse(line: &str) -> Option<TestResult> {
        let rest = line.trim_start().strip_prefix("test result: ")?;
        let (_, figures) = rest.split_once(". ")?;
        let figure =
            |word: &str| figures.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok());
        Some(TestResult { passed: figure("passed")?, failed: figure("failed")?, ignored: figure("ignored")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_programs_last_line_is_counted() {
        let line = "test result: FAILED. 18 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.93s";
        assert_eq!(TestResult::parse(line), Some(TestResult { passed: 18, failed: 2, ignored: 1 }));
        assert_eq!(TestResult::parse("test result is good"), None);
    }

    #[test]
    fn step_names_are_unique() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
    }
}
