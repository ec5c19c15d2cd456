//! `cuts [--count N] [--first N] [--every SECONDS] [--verbose]`: N cuts from the first on.
//!
//! A cut's number is all that is needed to do it again; what its life was before comes with it, and is not counted.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_cuts::CUTS;
use cenote_cuts::life::Life;
use cenote_testkit::campaign::{note_panics, watch};

const USAGE: &str = "usage: cuts [--count N] [--first N] [--every SECONDS] [--verbose]";
/// Real seconds that a life may take before the watchdog ends the program: it takes half a second of processor time, but one may have
/// to wait long for a processor.
const SECONDS_MAX: u64 = 1200;

struct Arguments {
    count: u64,
    first: u64,
    /// Seconds between two lines that say how far it is; never if 0.
    every: u64,
    verbose: bool,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { count: 1, first: 1, every: 0, verbose: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--count" => found.count = args.next()?.parse().ok()?,
            "--first" => found.first = args.next()?.parse().ok()?,
            "--every" => found.every = args.next()?.parse().ok()?,
            "--verbose" => found.verbose = true,
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if run(&arguments) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Default)]
struct Sums {
    done: u64,
    failed: u64,
    later: u64,
    opening: u64,
    changes: u64,
    txgs: u64,
    steps_max: u64,
}

fn run(arguments: &Arguments) -> bool {
    note_panics();
    let current = watch("cut", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let mut sums = Sums::default();
    let end = arguments.first.saturating_add(arguments.count);
    let mut cut = arguments.first;
    while cut < end {
        current.store(cut, Ordering::Relaxed);
        cut = live(cut, end, arguments.verbose, &mut sums);
        if arguments.every > 0 && said.elapsed().as_secs() >= arguments.every {
            said = Instant::now();
            let seconds = started.elapsed().as_secs();
            println!("{} done in {seconds} s, {} failed; next is cut {cut}", sums.done, sums.failed);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} cuts from {} on in {seconds:.1} s ({:.1} a second): {} failed, {} amid a commit, {} while the pool was opened; {} \
         txgs with {} changes; at most {} steps",
        sums.done,
        arguments.first,
        sums.done as f64 / seconds,
        sums.failed,
        sums.later,
        sums.opening,
        sums.txgs,
        sums.changes,
        sums.steps_max,
    );
    sums.failed == 0
}

/// Lives the life of a cut, up to its end or that of what is wanted; the first cut that is still to be done comes back.
fn live(first: u64, end: u64, verbose: bool, sums: &mut Sums) -> u64 {
    let number = first / CUTS;
    let next = ((number + 1) * CUTS).min(end);
    let failed = |cut: u64, what: String, sums: &mut Sums| {
        println!("FAILED cut {cut}: {what}");
        // What would have come after it cannot be done.
        (sums.done, sums.failed) = (sums.done + next - cut, sums.failed + next - cut);
    };
    let mut life = match Life::begin(number) {
        Ok(life) => life,
        Err(what) => {
            failed(first, what, sums);
            return next;
        }
    };
    for cut in number * CUTS..next {
        match life.cut() {
            Ok(_) if cut < first => {}
            Ok(done) => {
                if verbose {
                    println!("cut {cut}: {}: {done:?}", life.words());
                }
                sums.done += 1;
                sums.later += u64::from(done.is_later);
                sums.opening += u64::from(done.was_opening);
                sums.changes += done.changes;
                sums.txgs += done.txgs;
                sums.steps_max = sums.steps_max.max(done.steps);
            }
            Err(what) => {
                failed(cut.max(first), what, sums);
                break;
            }
        }
    }
    next
}
