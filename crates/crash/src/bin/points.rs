//! `points [--steps N] [--count N] [--first N] [--stride N] [--points N] [--draws N] [--seconds N] [--every SECONDS] [--zdb]`: scripts of
//! so many steps, each cut in every moment, on every layout.
//!
//! With `--points` about so many points of each run are judged, with `--stride` only each so manyth script is run, and with `--seconds`
//! none is begun later. `points --jobs` cuts jobs of pools instead, all of them or the one that `--job` names, in all moments or in those from `--from` on
//! and before `--to`, and prints the counts of each.
//! `points --mutants SCRIPTS` has the engine have deliberate bugs of the log, one after the other or the one that is
//! named, and says whether so many scripts find them. A failure is said with its script's number,
//! which is all that is needed to have it again: `points --steps N --first NUMBER --count 1`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_crash::points::jobs::{CASES, JobRun, JobTally};
use cenote_crash::points::{Base, LOG_MUTANTS, Run, SHAPES, Script, Tally, Wanted, count, hunt};
use cenote_taskq::mutant::Mutant;
use cenote_testkit::campaign::{Span, note_panics, number, watch};

const USAGE: &str =
    "usage: points [--steps N] [--count SCRIPTS] [--first SCRIPT] [--stride N] [--points N] [--draws N] [--seconds N] \
                     [--every SECONDS] [--zdb]
       points --mutants SCRIPTS [--mutant NAME]
       points --jobs [--job NAME] [--points N] [--draws N] [--seed N] [--from MOMENT] [--to MOMENT] [--zdb]";
/// Real seconds that a script may take before the watchdog ends the program.
const SECONDS_MAX: u64 = 1200;
/// The same of a job, of which all points are judged.
const JOB_SECONDS_MAX: u64 = 6 * 3600;
/// Characters that are shown of a failure by which a bug was found.
const FOUND_CHARACTERS_MAX: usize = 300;

struct Arguments {
    steps: u32,
    /// Scripts; all if none are counted.
    span: Span,
    stride: u64,
    wanted: Wanted,
    /// Scripts in which each deliberate bug is to be found.
    mutants: Option<u64>,
    /// This bug alone.
    mutant: Option<Mutant>,
    /// Jobs are cut, and not scripts.
    is_of_jobs: bool,
    /// This job alone.
    job: Option<String>,
    /// Of jobs.
    seed: u64,
}

fn arguments() -> Option<Arguments> {
    let wanted = Wanted { points: 0, draws: 2, has_zdb: false, moments: Wanted::EVER };
    let mut found = Arguments {
        steps: 2,
        span: Span::new(0, 0),
        stride: 1,
        wanted,
        mutants: None,
        mutant: None,
        is_of_jobs: false,
        job: None,
        seed: 1,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--steps" => found.steps = number(&mut args).filter(|steps: &u32| (1..=4).contains(steps))?,
            "--stride" => found.stride = number(&mut args).filter(|stride: &u64| *stride > 0)?,
            "--points" => found.wanted.points = number(&mut args)?,
            "--draws" => found.wanted.draws = number(&mut args)?,
            "--mutants" => found.mutants = Some(number(&mut args)?),
            "--mutant" => {
                let name = args.next()?;
                found.mutant = Some(LOG_MUTANTS.into_iter().find(|mutant| mutant.name() == name)?);
            }
            "--jobs" => found.is_of_jobs = true,
            "--job" => {
                found.is_of_jobs = true;
                found.job = Some(args.next().filter(|name| CASES.iter().any(|case| case.name == name))?);
            }
            "--from" => found.wanted.moments.0 = number(&mut args)?,
            "--to" => found.wanted.moments.1 = number(&mut args)?,
            "--seed" => found.seed = number(&mut args)?,
            "--zdb" => found.wanted.has_zdb = true,
            option if found.span.take(option, &mut args)? => {}
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
    note_panics();
    if arguments.is_of_jobs {
        return if cut_jobs(&arguments) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let made = SHAPES.iter().map(|shape| Base::make(shape).map_err(|why| format!("{}: {why}", shape.words)));
    let is_good = match (made.collect::<Result<Vec<Base>, String>>(), arguments.mutants) {
        (Err(why), _) => {
            println!("FAILED making the pool: {why}");
            false
        }
        (Ok(bases), Some(scripts)) => hunt_all(&bases, scripts, arguments.mutant),
        (Ok(bases), None) => explore(&arguments, &bases),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Cuts jobs, and says the counts of each.
fn cut_jobs(arguments: &Arguments) -> bool {
    let current = watch("job", Duration::from_secs(JOB_SECONDS_MAX));
    let (mut failed, mut points) = (0_u64, 0);
    let is_wanted = |name: &str| arguments.job.as_deref().is_none_or(|job| job == name);
    for (number, case) in (1..).zip(CASES).filter(|(_, case)| is_wanted(case.name)) {
        current.store(number, Ordering::Relaxed);
        let (started, mut tally) = (Instant::now(), JobTally::default());
        let judged = JobRun::of(case, arguments.seed).and_then(|run| run.judge(&arguments.wanted, &mut tally));
        points += tally.points;
        println!("{}: {tally} in {:.1} s", case.name, started.elapsed().as_secs_f64());
        if let Err(why) = judged {
            failed += 1;
            println!("FAILED {why}");
        }
    }
    println!("{points} points of jobs, {failed} jobs failed");
    failed == 0
}

/// Has the engine have one bug after the other; whether all were found.
fn hunt_all(bases: &[Base], scripts: u64, only: Option<Mutant>) -> bool {
    let mutants: Vec<Mutant> =
        LOG_MUTANTS.into_iter().filter(|mutant| only.is_none_or(|only| only == *mutant)).collect();
    let mut caught = 0;
    for &mutant in &mutants {
        let (name, started) = (mutant.name(), Instant::now());
        match hunt(bases, mutant, scripts) {
            Ok(Some((script, what))) => {
                caught += 1;
                let what: String = what.chars().take(FOUND_CHARACTERS_MAX).collect();
                println!("{name}: caught by script {script} in {:.1} s: {what}", started.elapsed().as_secs_f64());
            }
            Ok(None) => println!("{name}: NOT CAUGHT by {scripts} scripts"),
            Err(why) => {
                println!("{why}");
                return false;
            }
        }
    }
    println!("{} mutants: {caught} caught, {} not caught", mutants.len(), mutants.len() - caught);
    caught == mutants.len()
}

fn explore(arguments: &Arguments, bases: &[Base]) -> bool {
    let current = watch("script", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let (mut tally, mut scripts, mut failed) = (Tally::default(), 0_u64, 0_u64);
    let mut number = arguments.span.first;
    let all = count(arguments.steps);
    while number < all && (arguments.span.count == 0 || scripts < arguments.span.count) {
        if !arguments.span.is_time(started) {
            break;
        }
        current.store(number + 1, Ordering::Relaxed);
        if let Some(script) = Script::nth(arguments.steps, number) {
            scripts += 1;
            for base in bases {
                let run = Run::of(base, script.clone(), number);
                let judged = run.and_then(|run| run.judge(&arguments.wanted, &mut tally));
                if let Err(why) = judged {
                    failed += 1;
                    println!("FAILED script {number}: {why}");
                }
            }
        }
        number += arguments.stride;
        if arguments.span.is_line_due(said) {
            said = Instant::now();
            let (seconds, points) = (started.elapsed().as_secs(), tally.points);
            println!(
                "{points} points of {scripts} scripts in {seconds} s, {failed} failed; next is script {number} of {all}"
            );
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} points of {scripts} scripts in {seconds:.1} s ({:.0} a second): {failed} failed, {} moments, {} contents of disks opened, \
         {} points verified as a whole, {} by zdb; next is script {number} of {all}",
        tally.points,
        tally.points as f64 / seconds,
        tally.moments,
        tally.opened,
        tally.verified,
        tally.zdb,
    );
    failed == 0
}
