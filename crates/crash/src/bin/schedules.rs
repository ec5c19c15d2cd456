//! `schedules [--count N] [--first SEED] [--seconds N] [--every SECONDS] [--zdb-every N] [--wide] [--verbose]`: pools that live through one failure after
//! the other, up to their redundancy, and beyond it ([`cenote_crash::schedules`]).
//!
//! `schedules --mutant NAME [--first SEED] [--count N]`: has the engine have a deliberate bug, and says whether so many schedules find it.
//!
//! A seed is all that is needed to make a schedule again: `schedules --first SEED --count 1`. With `--seconds` none is begun later.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_crash::schedules::{Done, hunt, live};
use cenote_crash::zdb;
use cenote_taskq::mutant::Mutant;
use cenote_testkit::campaign::{Span, note_panics, watch};

const USAGE: &str =
    "usage: schedules [--count N] [--first SEED] [--seconds N] [--every SECONDS] [--zdb-every N] [--wide] [--verbose]
       schedules --mutant NAME [--first SEED] [--count N]";
/// How much is shown of what was said when a bug was found.
const FOUND_CHARACTERS_MAX: usize = 600;
/// Real seconds that a schedule may take before the watchdog ends the program.
const SECONDS_MAX: u64 = 1200;

struct Arguments {
    span: Span,
    /// Only wide schedules, those of odd seeds.
    is_wide: bool,
    /// A deliberate bug that is to be found.
    mutant: Option<Mutant>,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { span: Span::new(1, 1), is_wide: false, mutant: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--mutant" => {
                let name = args.next()?;
                found.mutant = Some(*Mutant::ALL.iter().find(|mutant| mutant.name() == name)?);
            }
            "--wide" => found.is_wide = true,
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
    if arguments.span.zdb_every > 0 && !zdb::is_there() {
        println!("zdb is not installed (Debian package zfsutils-linux): no image is judged by it");
        arguments.span.zdb_every = 0;
    }
    let is_good = match arguments.mutant {
        Some(mutant) => hunt_one(mutant, arguments.span.first..arguments.span.end()),
        None => explore(&arguments.span, arguments.is_wide),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Has the engine have a bug; whether it is found.
fn hunt_one(mutant: Mutant, schedules: Range<u64>) -> bool {
    note_panics();
    let (name, started) = (mutant.name(), Instant::now());
    match hunt(mutant, schedules.clone()) {
        Ok(Some((seed, what))) => {
            let what: String = what.chars().take(FOUND_CHARACTERS_MAX).collect();
            println!("{name}: caught by schedule {seed} in {:.1} s: {what}", started.elapsed().as_secs_f64());
            true
        }
        Ok(None) => {
            println!("{name}: NOT CAUGHT by schedules {} to {}", schedules.start, schedules.end.saturating_sub(1));
            false
        }
        Err(why) => {
            println!("{why}");
            false
        }
    }
}

fn explore(span: &Span, is_wide: bool) -> bool {
    note_panics();
    let current = watch("schedule", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let (mut sums, mut count, mut failed, mut judged) = (Done::default(), 0_u64, 0_u64, 0_u64);
    for seed in span.first..span.end() {
        if !span.is_time(started) {
            break;
        }
        if is_wide && seed.is_multiple_of(2) {
            continue;
        }
        current.store(seed + 1, Ordering::Relaxed);
        let has_zdb = span.has_zdb(seed);
        count += 1;
        judged += u64::from(has_zdb);
        match live(seed, has_zdb) {
            Ok(done) => {
                if span.verbose {
                    println!("schedule {seed}: {done:?}");
                }
                sums.add(&done);
            }
            Err(why) => {
                failed += 1;
                println!("FAILED schedule {seed}: {why}");
            }
        }
        if span.is_line_due(said) {
            said = Instant::now();
            let seconds = started.elapsed().as_secs_f64();
            let rate = count as f64 / seconds;
            let left = span.count.saturating_sub(count) as f64 / rate;
            println!(
                "{count} done in {seconds:.0} s ({rate:.1} a second, {left:.0} s left), {failed} failed; next is {}",
                seed + 1
            );
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{count} schedules from {} on in {seconds:.1} s ({:.1} a second): {failed} failed, {} steps and {} txgs with {} failures of disks, {} power cuts, {} verbs and {} \
         that were refused; {} evacuations, {} expansions, {} splits and {} returns to checkpoints; {} resilvers seen; at most {} slots of a vdev unsound at once; {} blocks compared, {} exported pools checked before the end, {} blocks destroyed beyond redundancy; {judged} judged \
         by zdb",
        span.first,
        count as f64 / seconds,
        sums.steps,
        sums.txgs,
        sums.failures,
        sums.cuts,
        sums.verbs,
        sums.refused,
        sums.reshapes[0],
        sums.reshapes[1],
        sums.reshapes[2],
        sums.reshapes[3],
        sums.resilvers,
        sums.unsound_max,
        sums.compared,
        sums.checked,
        sums.lost,
    );
    failed == 0
}
