//! Chores of the project, so that nobody has to remember them: `cargo xtask help`.
//!
//! A chore is a module here. Those that make up the project's test are *steps* ([`steps`]); `cargo xtask test` runs all of
//! them in order ([`mod@test`]), prints each with its time and ends with one line, `N passed, N failed`.

mod bench_table;
mod campaign;
mod changed;
mod dist;
mod frontends;
mod fuzz;
mod golden;
mod house;
mod interchange;
mod kills;
mod lane;
mod licences;
mod limited;
mod outcome;
mod packages;
mod passed;
mod process;
mod programs;
mod quick;
mod rotation;
mod shares;
mod steps;
mod test;
mod tour;
mod vm;
mod zdb;
mod zdb_check;
mod ztest;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
Usage: cargo xtask CHORE

  test [--list] [--only STEP,…] [--skip STEP,…] [--quick]
                         all checks of the project; installs what they need where it may; --quick: those of the crates that changed
  golden [DIR] [--theme NAME,…] [--datasets]
                         read all golden pools of a folder and compare with their manifests
  bench-table            the results page again from what `cenote bench --json` recorded (docs/bench)
  zdb [DIR]              compare 'cenote verify' with zdb on the golden pools of a folder
  zdb-check              judge pools that Cenote writes by zdb
  openzfs-vm setup|run|smoke|judge|image|owner|devices|logs|frozen|jobs|written|multihost|send|snapshots|livelists|redact|
                         replicate|raw [ARG…]
                         the real OpenZFS in a virtual machine (tools/openzfs-vm); image, written: it judges pools of ours;
                         owner, multihost: each refuses what the other has; devices: such that miss txgs, and large sectors;
                         logs: it replays what a killed server leaves; frozen: each side replays logs of all kinds of the other;
                         jobs: each side ends the other's half-done scrubs, resilvers, rebuilds, removals, expansions
  fuzz [TARGET,…] [SECONDS]
                         coverage-guided fuzzing, SECONDS for each target
  fuzz-budget [COUNT]    the same targets with COUNT made-up inputs each, the same every time
  mutate [COUNT] [SEED]  golden pools, damaged in COUNT ways, through the whole read path
  kills [CLIENT,…] [COUNT] [SEED]
                         kills of a server that writes a pool, which is judged after each; CLIENT: own writers, databases, or history
                         (all of sqlite-wal, sqlite-truncate, sqlite-persist, postgresql, postgresql-half, fio-files, fio-volume)
  crash [COUNT] [FIRST]  power cuts of pools under load, in simulation, from cut FIRST on
  points [COUNT] [FIRST] short runs of a small pool, cut in every moment, from script FIRST on
  schedules [COUNT] [FIRST]
                         failures of disks up to redundancy and beyond, in any order, in simulation, from seed FIRST on
  replicas [COUNT] [FIRST]
                         datasets with random histories, sent and received in all ways, in simulation, from case FIRST on
  sim [--seed N] [--minutes M]
                         crash, points, replicas and damage for so long, from trials on that the seed names
  mutants [NAME|COUNT]   deliberate bugs of the engine, which the power cuts have to find
  interchange [PATTERN]  Cenote and OpenZFS's own code in a process (tools/libzpool) end each other's half-done scrubs, resilvers, rebuilds,
                         replacements, removals, expansions, checkpoints, and work on devices
  ztest-pools COUNT DIR  pools made by OpenZFS's own stress test
  ztest-judge DIR        compare 'cenote verify' with zdb on such pools
  dist [DIR]             packages for users, in target/dist or DIR: static program, Debian package, wheel, archive, sums
  wheel [DIR]            the wheel for Python alone
  licences               licences and sources of all dependencies against deny.toml
  house                  the house rules that a program can check
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (chore, rest) = match args.split_first() {
        Some((chore, rest)) => (chore.as_str(), rest),
        None => ("help", &[][..]),
    };
    let result = match chore {
        "test" if rest.iter().any(|arg| arg == "--quick") => quick::main(),
        "test" => test::main(rest),
        "bench-table" => bench_table::main(rest),
        "golden" => golden::main(rest),
        "zdb" => zdb::main(rest),
        "zdb-check" => zdb_check::main(rest),
        "openzfs-vm" => vm::main(rest),
        "fuzz" => fuzz::main(rest),
        "fuzz-budget" => fuzz::main_budget(rest),
        "mutate" => campaign::MUTATE.main(rest),
        "crash" => campaign::CUTS.main(rest),
        "points" => campaign::POINTS.main(rest),
        "schedules" => campaign::SCHEDULES.main(rest),
        "replicas" => campaign::REPLICAS.main(rest),
        "sim" => campaign::main_sim(rest),
        "mutants" => campaign::main_mutants(rest),
        "kills" => kills::main(rest),
        "interchange" => interchange::main(rest),
        "ztest-pools" => ztest::main(rest),
        "ztest-judge" => ztest::main_judge(rest),
        "dist" => dist::main(rest),
        "wheel" => dist::main_wheel(rest),
        "licences" | "deny" => step_alone("licences"),
        "house" => step_alone("house"),
        "limited" => return limited::main(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => {
            eprint!("{HELP}");
            eprintln!("\nxtask: there is no chore {other}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn step_alone(name: &str) -> Result<()> {
    test::main(&["--only".to_owned(), name.to_owned()])
}

/// The value that follows an option, taken from the arguments.
fn value_of(option: &str, rest: &mut std::slice::Iter<'_, String>) -> Result<String> {
    match rest.next() {
        Some(value) => Ok(value.clone()),
        None => bail!("{option} wants a value"),
    }
}
