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
use cenote_testkit::campaign::{Span, note_panics, number, watch};

const USAGE: &str =
    "usage: replicas [--count N] [--first N] [--seconds N] [--every SECONDS] [--zdb-every N] [--verbose]
       replicas --mutants CASES [--mutant NAME]";
/// Characters that are shown of a failure by which a bug was found.
const FOUND_CHARACTERS_MAX: usize = 300;
/// Real seconds that a case may take before the watchdog ends the program.
const SECONDS_MAX: u64 = 600;

struct Arguments {
    span: Span,
    /// Cases in which each deliberate bug is to be found.
    mutants: Option<u64>,
    /// This bug alone.
    mutant: Option<Mutant>,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { span: Span::new(1, 0), mutants: None, mutant: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--mutants" => found.mutants = Some(number(&mut args)?),
            "--mutant" => {
                let name = args.next()?;
                found.mutant = Some(*Mutant::OF_STREAMS.iter().find(|mutant| mutant.name() == name)?);
            }
            option if found.span.take(option, &mut args)? => {}
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
    if arguments.span.zdb_every > 0 && cenote_testkit::zdb::program("zdb").is_none() {
        println!("zdb is not installed (Debian package zfsutils-linux): no pool is judged by it");
        arguments.span.zdb_every = 0;
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
    if arguments.span.verbose {
        tell();
    }
    let current = watch("case", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let (mut tally, mut done, mut failed, mut judged) = (Tally::default(), 0_u64, 0_u64, 0_u64);
    let mut courses: BTreeMap<Course, u64> = BTreeMap::new();
    let mut number = arguments.span.first;
    let is_time = || arguments.span.is_time(started);
    while number < arguments.span.end() && is_time() {
        current.store(number + 1, Ordering::Relaxed);
        let zdb = arguments.span.has_zdb(number);
        let began = Instant::now();
        match case::run(number, golden, zdb) {
            Ok(case) => {
                if arguments.span.verbose {
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
        if arguments.span.is_line_due(said) {
            said = Instant::now();
            println!("{done} done in {} s, {failed} failed; next is case {number}", started.elapsed().as_secs());
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{done} cases from {} on in {seconds:.1} s ({:.1} a second): {failed} failed, {courses:?}; {} streams with {} records, {} broken off, \
         {} gone on with; {} snapshots compared, {judged} pools judged by zdb",
        arguments.span.first,
        done as f64 / seconds,
        tally.streams,
        tally.records,
        tally.broken,
        tally.resumed,
        tally.compared,
    );
    failed == 0
}
