//! `crash [--count N] [--first N] [--seconds N] [--every SECONDS] [--zdb-every N] [--without-snapshots] [--hash] [--verbose]`: N cuts from the first on; of some, zdb
//! judges what they have left. With `--seconds` no life is begun later.
//!
//! `crash --little-space [--count N] [--first N]`: N lives of pools that are short of space ([`cenote_crash::log_space`]), and each of their
//! pools rescued.
//!
//! `crash --mutants all|snapshots|COUNT|NAME [--seed N] [--without-snapshots]`: has the engine have deliberate bugs, one after the other, and says whether the cuts find
//! them; COUNT of them are chosen by the seed.
//!
//! `--hash` prints a hash of all bytes on the devices after each cut: a change that is to move code and nothing else leaves it as it was.
//!
//! A cut's number is all that is needed to do it again; what its life was before comes with it, and is not counted.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_crash::life::Life;
use cenote_crash::mutants::{chosen, cuts_max, hunt};
use cenote_crash::{CUTS, log_space, zdb};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::Image;
use cenote_testkit::campaign::{Span, note_panics, number, watch};
use sha2::{Digest as _, Sha256};

const USAGE: &str = "usage: crash [--count N] [--first N] [--seconds N] [--every SECONDS] [--zdb-every N]
            [--without-snapshots] [--hash] [--verbose]
       crash --little-space [--count N] [--first N]
       crash --mutants all|snapshots|COUNT|NAME [--seed N] [--without-snapshots]";
/// Real seconds that a life may take before the watchdog ends the program: it takes half a second of processor time, but one may have
/// to wait long for a processor.
const SECONDS_MAX: u64 = 1200;

/// How much is shown of what was said when a bug was found.
const FOUND_CHARACTERS_MAX: usize = 300;

struct Arguments {
    span: Span,
    /// The bytes on the devices are hashed.
    hash: bool,
    /// Snapshots are taken, and what is done with them.
    has_snapshots: bool,
    /// Lives that are short of space.
    little_space: bool,
    /// Which bugs the engine is to have.
    mutants: Option<String>,
    seed: u64,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        span: Span::new(1, 1),
        hash: false,
        has_snapshots: true,
        little_space: false,
        mutants: None,
        seed: 0,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--mutants" => found.mutants = Some(args.next()?),
            "--seed" => found.seed = number(&mut args)?,
            "--hash" => found.hash = true,
            "--little-space" => found.little_space = true,
            "--without-snapshots" => found.has_snapshots = false,
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
    let is_good = match &arguments.mutants {
        Some(word) => match chosen(word, arguments.seed) {
            Some(mutants) => hunt_all(&mutants, arguments.has_snapshots),
            None => {
                let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
                eprintln!("cuts: there is no mutant '{word}'; there are: {}", names.join(" "));
                return ExitCode::from(2);
            }
        },
        None if arguments.little_space => live_in_little_space(&arguments),
        None => run(&arguments),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lives lives that are short of space, and rescues their pools; whether all was well.
fn live_in_little_space(arguments: &Arguments) -> bool {
    note_panics();
    let current = watch("life in little space", Duration::from_secs(SECONDS_MAX));
    let (mut failures, mut suspended, mut beyond_help) = (0, 0, 0);
    for number in arguments.span.first..arguments.span.end() {
        current.store(number + 1, Ordering::Relaxed);
        for (what, live) in [("life", log_space::live as fn(u64) -> _), ("rescue", log_space::rescue)] {
            match live(number) {
                Ok((shape, done)) => {
                    suspended += u64::from(done.was_suspended);
                    beyond_help += u64::from(done.is_beyond_help);
                    if arguments.span.verbose {
                        println!("{what} {number}: {done:?}, {shape}");
                    }
                }
                Err(error) => {
                    failures += 1;
                    println!("{what} {number}: {error}");
                }
            }
        }
    }
    println!(
        "{} lives in little space, {suspended} pools full of logs without a limit ({beyond_help} beyond help), {failures} failures",
        arguments.span.count
    );
    failures == 0
}

/// Has the engine have one bug after the other; whether all were found.
fn hunt_all(mutants: &[Mutant], has_snapshots: bool) -> bool {
    note_panics();
    let current = watch("mutant", Duration::from_secs(SECONDS_MAX));
    let mut caught = 0;
    for (at, mutant) in mutants.iter().enumerate() {
        current.store(at as u64 + 1, Ordering::Relaxed);
        let started = Instant::now();
        let (name, most) = (mutant.name(), cuts_max(*mutant));
        let found = match hunt(*mutant, has_snapshots) {
            Ok(hunt) => hunt.found,
            Err(why) => {
                println!("{why}");
                return false;
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        match found {
            Some((cut, what)) => {
                caught += 1;
                let what: String = what.chars().take(FOUND_CHARACTERS_MAX).collect();
                println!("{name}: caught by cut {} of at most {most}, in {seconds:.1} s: {what}", cut + 1);
            }
            None => println!("{name}: NOT CAUGHT by {most} cuts in {seconds:.1} s"),
        }
    }
    println!("{} mutants: {caught} caught, {} not caught", mutants.len(), mutants.len() - caught);
    caught == mutants.len()
}

#[derive(Default)]
struct Sums {
    done: u64,
    failed: u64,
    later: u64,
    opening: u64,
    changes: u64,
    promises: u64,
    verbs: u64,
    streams: u64,
    resumed: u64,
    judgements: u64,
    degraded: u64,
    outages: u64,
    grown: u64,
    late: u64,
    /// Images that zdb has judged, and of how many cuts it judges one; none if 0.
    zdb: u64,
    zdb_every: u64,
    txgs: u64,
    steps_max: u64,
    /// Of all bytes on the devices after each cut, if they are hashed.
    bytes: Option<Sha256>,
}

fn run(arguments: &Arguments) -> bool {
    note_panics();
    let current = watch("cut", Duration::from_secs(SECONDS_MAX));
    let started = Instant::now();
    let mut said = started;
    let mut sums =
        Sums { zdb_every: arguments.span.zdb_every, bytes: arguments.hash.then(Sha256::new), ..Sums::default() };
    if sums.zdb_every > 0 && !zdb::is_there() {
        println!("zdb is not installed (Debian package zfsutils-linux): no image is judged by it");
        sums.zdb_every = 0;
    }
    let end = arguments.span.end();
    let mut cut = arguments.span.first;
    let is_time = || arguments.span.is_time(started);
    while cut < end && is_time() {
        current.store(cut, Ordering::Relaxed);
        cut = live(cut, end, arguments, &mut sums);
        if arguments.span.is_line_due(said) {
            said = Instant::now();
            let seconds = started.elapsed().as_secs();
            println!("{} done in {seconds} s, {} failed; next is cut {cut}", sums.done, sums.failed);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} cuts from {} on in {seconds:.1} s ({:.1} a second): {} failed, {} amid a commit, {} while the pool was opened; {} \
         txgs with {} changes, {} of them promised to be on disk, {} about snapshots, {} streams among these, {} of them \
         resumed; {} judgements, {} by zdb; {} with a device away, {} with devices \
         that failed, {} with a vdev added, {} with late writes; at most {} steps",
        sums.done,
        arguments.span.first,
        sums.done as f64 / seconds,
        sums.failed,
        sums.later,
        sums.opening,
        sums.txgs,
        sums.changes,
        sums.promises,
        sums.verbs,
        sums.streams,
        sums.resumed,
        sums.judgements,
        sums.zdb,
        sums.degraded,
        sums.outages,
        sums.grown,
        sums.late,
        sums.steps_max,
    );
    if let Some(bytes) = sums.bytes.take() {
        let hash: String = bytes.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("sha256 of the devices after each cut: {hash}");
    }
    sums.failed == 0
}

/// Lives the life of a cut, up to its end or that of what is wanted; the first cut that is still to be done comes back.
/// Adds the bytes on devices, as far as they were written, and where they are.
fn hash(into: &mut Sha256, images: &[Image]) {
    for (number, image) in images.iter().enumerate() {
        into.update((number as u64).to_le_bytes());
        for (offset_bytes, page) in image.pages() {
            into.update(offset_bytes.to_le_bytes());
            into.update(page);
        }
    }
}

fn live(first: u64, end: u64, arguments: &Arguments, sums: &mut Sums) -> u64 {
    let number = first / CUTS;
    let next = ((number + 1) * CUTS).min(end);
    let failed = |cut: u64, what: String, sums: &mut Sums| {
        println!("FAILED cut {cut}: {what}");
        // The cuts after it cannot be made.
        (sums.done, sums.failed) = (sums.done + next - cut, sums.failed + next - cut);
    };
    let mut life = match Life::begin_with(number, arguments.has_snapshots) {
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
                if arguments.span.verbose {
                    println!("cut {cut}: {}: {done:?}", life.words());
                }
                sums.done += 1;
                if let Some(bytes) = &mut sums.bytes {
                    hash(bytes, life.images());
                }
                sums.later += u64::from(done.is_later);
                sums.opening += u64::from(done.was_opening);
                sums.changes += done.changes;
                sums.promises += done.promises;
                sums.verbs += done.verbs;
                sums.streams += done.streams;
                sums.resumed += done.resumed;
                sums.judgements += done.judgements;
                sums.degraded += u64::from(done.was_degraded);
                sums.outages += u64::from(done.had_outage);
                sums.grown += u64::from(done.has_grown);
                sums.late += u64::from(done.late > 0);
                if sums.zdb_every > 0 && cut % sums.zdb_every == 0 {
                    sums.zdb += 1;
                    if let Err(what) = zdb::judge(life.images()) {
                        failed(cut, format!("{}: {what:#}", life.words()), sums);
                        sums.done -= 1;
                        break;
                    }
                }
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
