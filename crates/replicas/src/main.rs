//! `replicas [--count N] [--first N] [--seconds N] [--every SECONDS] [--zdb-every N] [--verbose]`: N cases from the first on; of some,
//! zdb judges the pool that has received. With `--seconds` no case is begun later.
//!
//! `replicas --mutants COUNT [--mutant NAME]`: has the engine have deliberate bugs of receiving and sending, one after the other or the one
//! that is named, and says whether so many cases find them.
//!
//! A case's number is all that is needed to do it again: `replicas --first NUMBER --count 1`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_replicas::case::{self, Course};
use cenote_replicas::golden::Pools;
use cenote_replicas::mutants::hunt;
use cenote_replicas::streams::{Tally, tell};
use cenote_taskq::mutant::Mutant;
use cenote_testkit::campaign::{note_panics, watch};

const USAGE: &str =
    "usage: replicas [--count N] [--first N] [--seconds N] [--every SECONDS] [--zdb-every N] [--verbose]
       replicas --mutants CASES [--mutant NAME]";
/// Characters that are shown of a failure by which a bug was found.
const FOUND_CHARACTERS_MAX: usize = 300;
/// Real seconds that a case may take before the watchdog ends the program.
const SECONDS_MAX: u64 = 600;

struct Arguments {
    count: u64,
    first: u64,
    /// No case is begun later; any time if 0.
    seconds: u64,
    /// Seconds between two lines that say how far it is; never if 0.
    every: u64,
    /// Of so many cases zdb judges what one has left; of none if 0.
    zdb_every: u64,
    verbose: bool,
    /// Cases in which each deliberate bug is to be found.
    mutants: Option<u64>,
    /// This bug alone.
    mutant: Option<Mutant>,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        count: 1,
        first: 0,
        seconds: 0,
        every: 0,
        zdb_every: 0,
        verbose: false,
        mutants: None,
        mutant: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--count" => found.count = args.next()?.parse().ok()?,
            "--first" => found.first = args.next()?.parse().ok()?,
            "--seconds" => found.seconds = args.next()?.parse().ok()?,
            "--every" => found.every = args.next()?.parse().ok()?,
            "--zdb-every" => found.zdb_every = args.next()?.parse().ok()?,
            "--mutants" => found.mutants = Some(args.next()?.parse().ok()?),
            "--mutant" => {
                let name = args.next()?;
                found.mutant = Some(*Mutant::OF_STREAMS.iter().find(|mutant| mutant.name() == name)?);
            }
            "--verbose" => found.verbose = true,
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(mut arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(cases) = arguments.mutants {
        return if hunt_all(cases, arguments.mutant) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let golden = match Pools::load() {
        Ok(golden) => Some(golden),
        Err(why) => {
            println!("no golden pools, whose cases are left out: {why:#}");
            None
        }
    };
    if arguments.zdb_every > 0 && cenote_testkit::zdb::program("zdb").is_none() {
        println!("zdb is not installed (Debian package zfsutils-linux): no pool is judged by it");
        arguments.zdb_every = 0;
    }
    match run(&arguments, golden.as_ref()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Has the engine have one bug after the other; whether all were found.
fn hunt_all(cases: u64, only: Option<Mutant>) -> bool {
    note_panics();
    let mutants: Vec<Mutant> =
        Mutant::OF_STREAMS.iter().copied().filter(|mutant| only.is_none_or(|only| only == *mutant)).collect();
    let mut caught = 0;
    for &mutant in &mutants {
        let (name, started) = (mutant.name(), Instant::now());
        match hunt(mutant, cases) {
            Ok(Some((case, what))) => {
                caught += 1;
                let what: String = what.chars().take(FOUND_CHARACTERS_MAX).collect();
                println!("{name}: caught by case {case} in {:.1} s: {what}", started.elapsed().as_secs_f64());
            }
            Ok(None) => println!("{name}: NOT CAUGHT by {cases} cases"),
            Err(why) => {
                println!("{why}");
                return false;
            }
        }
    }
    println!("{} mutants: {caught} caught, {} not caught", mutants.len(), mutants.len() - caught);
    caught == mutants.len()
}

fn run(arguments: &Arguments, golden: Option<&Pools>) -> bool {
    note_panics();
    if arguments.verbose {
        tell();
    }
    let current = watch("case", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let (mut tally, mut done, mut failed, mut judged) = (Tally::default(), 0_u64, 0_u64, 0_u64);
    let mut courses: BTreeMap<Course, u64> = BTreeMap::new();
    let mut number = arguments.first;
    let is_time = || arguments.seconds == 0 || started.elapsed().as_secs() < arguments.seconds;
    while number < arguments.first.saturating_add(arguments.count) && is_time() {
        current.store(number + 1, Ordering::Relaxed);
        let zdb = arguments.zdb_every > 0 && number.is_multiple_of(arguments.zdb_every);
        let began = Instant::now();
        match case::run(number, golden, zdb) {
            Ok(case) => {
                if arguments.verbose {
                    println!("case {number}: {case:?} in {:.2} s", began.elapsed().as_secs_f64());
                }
                tally.absorb(case.tally);
                *courses.entry(case.course).or_default() += 1;
                judged += u64::from(zdb);
            }
            Err(what) => {
                failed += 1;
                println!("FAILED case {number}: {what}");
            }
        }
        done += 1;
        number += 1;
        if arguments.every > 0 && said.elapsed().as_secs() >= arguments.every {
            said = Instant::now();
            println!("{done} done in {} s, {failed} failed; next is case {number}", started.elapsed().as_secs());
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{done} cases from {} on in {seconds:.1} s ({:.1} a second): {failed} failed, {courses:?}; {} streams with {} records, {} broken off, \
         {} gone on with; {} snapshots compared, {judged} pools judged by zdb",
        arguments.first,
        done as f64 / seconds,
        tally.streams,
        tally.records,
        tally.broken,
        tally.resumed,
        tally.compared,
    );
    failed == 0
}
