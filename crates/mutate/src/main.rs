//! `mutate [--count N] [--seed N] [--pools A,B…] [--every SECONDS] [--verbose]`: N mutations from the seed on.
//!
//! Mutation *i* is seed + *i*, so a run that was ended goes on at the seed that its last line names.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_mutate::memory::Counting;
use cenote_mutate::pools;
use cenote_mutate::trial::{Done, SECONDS_MAX, mutate, survey};
use cenote_testkit::campaign::{note_panics, watch};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const USAGE: &str = "usage: mutate [--count N] [--seconds N] [--seed N] [--pools A,B…] [--every SECONDS] [--verbose]";

struct Arguments {
    count: u64,
    seconds: u64,
    seed: u64,
    pools: Vec<String>,
    /// Seconds between two lines that say how far it is; never if 0.
    every: u64,
    verbose: bool,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { count: 1, seconds: u64::MAX, seed: 1, pools: Vec::new(), every: 0, verbose: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--count" => found.count = args.next()?.parse().ok()?,
            "--seconds" => found.seconds = args.next()?.parse().ok()?,
            "--seed" => found.seed = args.next()?.parse().ok()?,
            "--pools" => found.pools = args.next()?.split(',').map(str::to_owned).collect(),
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
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let mut pools = pools::load(&arguments.pools)?;
    for pool in &mut pools {
        let tally = survey(pool)?;
        if arguments.verbose {
            let targets: usize = pool.targets.values().map(Vec::len).sum();
            println!("{}: {tally:?}, {} steps, {targets} blocks", pool.name, pool.clean_steps);
        }
    }
    note_panics();
    let current = watch("seed", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let (mut done, mut failed, mut imported, mut errors, mut peak_bytes, mut steps) = (0, 0, 0, 0, 0, 0);
    for index in 0..arguments.count {
        if started.elapsed().as_secs() >= arguments.seconds {
            break;
        }
        let seed = arguments.seed.wrapping_add(index);
        current.store(seed, Ordering::Relaxed);
        match mutate(&pools, seed) {
            Ok(Done { kind, tally, steps: taken, peak_bytes: peak }) => {
                if arguments.verbose {
                    println!("seed {seed}: {kind:?} {tally:?} {taken} steps, {} MiB", peak >> 20);
                }
                imported += tally.imported.min(1);
                errors += u64::from(tally.errors > 0);
                peak_bytes = peak_bytes.max(peak);
                steps = steps.max(taken);
            }
            Err(what) => {
                failed += 1;
                println!("FAILED seed {seed}: {what}");
            }
        }
        done += 1;
        if arguments.every > 0 && said.elapsed().as_secs() >= arguments.every {
            said = Instant::now();
            let seconds = started.elapsed().as_secs();
            println!("{done} done in {seconds} s, {failed} failed; next is seed {}", seed.wrapping_add(1));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{done} mutations of {} pools from seed {} in {seconds:.1} s ({:.0} a second): {failed} failed, {imported} could be \
         imported, {errors} met errors; at most {steps} steps and {} MiB",
        pools.len(),
        arguments.seed,
        f64::from(u32::try_from(done).unwrap_or(u32::MAX)) / seconds,
        peak_bytes >> 20,
    );
    Ok(failed == 0)
}
