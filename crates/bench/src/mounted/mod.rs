//! `cenote bench mount`: a file system of ours as programs meet it, beside bindfs and ext4 in one run.
//!
//! Three trees are mounted in images of one folder: a dataset by a `cenote mount --rw` of its own process, ext4 on a loop device,
//! and bindfs over a directory of that ext4. bindfs does next to nothing but hand requests on, so it is what FUSE itself costs a
//! program; ext4 is what a program pays in the kernel. Rounds go over the three in turns, so that all meet the same noise.

mod databases;
mod rig;
mod work;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use self::rig::{Images, Rig};
use self::work::{Work, Workload};
use crate::report::{Suite, Table, short};

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where images and mount points are made.
    pub folder: PathBuf,
    /// The program that mounts ours.
    pub program: PathBuf,
    /// Rounds of each part.
    pub rounds: u32,
    /// Seconds of a round of the parts that run for a time.
    pub seconds: f64,
    /// Less, and less exact.
    pub quick: bool,
    /// The parts, of [`PARTS`]; all if none is named.
    pub only: Vec<String>,
}

/// The parts.
pub const PARTS: [&str; 11] = [
    "look-up",
    "absent",
    "fchmod",
    "pwrite",
    "mkdir",
    "create",
    "stat-walk",
    "random-write",
    "dbench",
    "sqlite",
    "postgresql",
];

/// A part's place in the table.
struct Line {
    name: &'static str,
    what: &'static str,
    work: Work,
    goal: Goal,
}

/// The goal of a part.
#[derive(Clone, Copy)]
enum Goal {
    /// No more than so many times bindfs's time.
    TimesBindfs(f64),
    /// At least so many a second (or MB).
    Rate(f64),
    /// At least so much of ext4's rate.
    OfExt4(f64),
    /// There is none.
    Nothing,
}

const LINES: [Line; 11] = [
    Line { name: "look-up", what: "look-up of a name", work: Work::LookUp, goal: Goal::TimesBindfs(1.5) },
    Line { name: "absent", what: "look-up of an absent name", work: Work::Absent, goal: Goal::Nothing },
    Line { name: "fchmod", what: "fchmod", work: Work::Fchmod, goal: Goal::TimesBindfs(1.5) },
    Line { name: "pwrite", what: "pwrite of 4 KiB", work: Work::Pwrite, goal: Goal::TimesBindfs(1.5) },
    Line { name: "mkdir", what: "mkdir", work: Work::Mkdir, goal: Goal::TimesBindfs(1.5) },
    Line { name: "create", what: "files of 4 KiB created", work: Work::Create, goal: Goal::Rate(6_000.0) },
    Line { name: "stat-walk", what: "names listed and looked at", work: Work::StatWalk, goal: Goal::Rate(60_000.0) },
    Line { name: "random-write", what: "4 KiB written at random", work: Work::RandomWrite, goal: Goal::Rate(40_000.0) },
    Line { name: "dbench", what: "dbench, four clients", work: Work::Dbench, goal: Goal::Rate(250.0) },
    Line { name: "sqlite", what: "SQLite, WAL, FULL", work: Work::Sqlite, goal: Goal::OfExt4(0.8) },
    Line { name: "postgresql", what: "pgbench -c 4", work: Work::Postgresql, goal: Goal::OfExt4(0.8) },
];

/// Names of the trees, in the order of [`Rig::trees`].
const TREES: [&str; 3] = ["Cenote", "bindfs", "ext4"];

/// The best round: other programs only slow.
fn best(work: Work, values: &[f64]) -> f64 {
    let better = if work.is_rate() { f64::max } else { f64::min };
    values.iter().copied().reduce(better).unwrap_or(f64::NAN)
}

fn cell(work: Work, values: &[f64]) -> String {
    match values {
        [one] => short(*one),
        all => {
            let each: Vec<String> = all.iter().map(|value| short(*value)).collect();
            format!("{} of {}", short(best(work, all)), each.join(", "))
        }
    }
}

/// Runs the suite.
///
/// # Errors
/// When something cannot be mounted, which takes root, `mkfs.ext4` and `bindfs`; or a call in a mount fails.
pub fn run(options: &Options) -> Result<Suite> {
    let mut suite = Suite { name: "mount".into(), title: "a mount as programs meet it".into(), ..Suite::default() };
    suite.notes.extend([
        "Three trees in images of one folder: a dataset served by `cenote mount --rw` (properties as they are by default, records \
         of 128 KiB), ext4 on a loop device, and bindfs over a directory of that ext4. Times are those of the system calls of one \
         thread; nothing is synced within the time measured. The databases sync, on images that have all their blocks."
            .into(),
        "look-up, and listing with a look at each name: after the kernel was told to forget names and inodes (drop_caches), so that \
         the server is asked; the server keeps what it has. Cells: the best round, and all where there are several; ratios and \
         targets are by the best."
            .into(),
    ]);
    // Root's switch decides which way requests come, and with that what a request costs.
    let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    let way = if switch.trim() == "Y" { "FUSE over io_uring (enable_uring=Y)" } else { "/dev/fuse (enable_uring=N)" };
    suite.notes.push(format!("Requests of Cenote's mount come by {way}."));
    let mut table = Table::new(
        "Time of a call, and rates",
        &["what", "unit", "Cenote", "bindfs", "ext4", "Cenote : bindfs", "Cenote : ext4"],
    );
    let mut raw = Map::new();
    let wanted = |line: &&Line| options.only.is_empty() || options.only.iter().any(|only| only == line.name);
    for images in [Images::Sparse, Images::Filled] {
        let of_these = |line: &&Line| line.work.syncs() == (images == Images::Filled);
        let (missing, lines): (Vec<_>, Vec<_>) =
            LINES.iter().filter(wanted).filter(of_these).partition(|line| line.work.missing().is_some());
        for (line, reason) in missing.iter().filter_map(|line| Some((line, line.work.missing()?))) {
            suite.notes.push(format!("{} is left out: {reason}.", line.what));
        }
        if lines.is_empty() {
            continue;
        }
        let rig = Rig::new(&options.folder, &options.program, images)?;
        for line in lines {
            measure(line, &rig, options, &mut suite, &mut table, &mut raw)?;
        }
        rig.end()?;
    }
    suite.tables.push(table);
    suite.raw = Value::Object(raw);
    Ok(suite)
}

/// Measures a line in all trees.
fn measure(
    line: &Line,
    rig: &Rig,
    options: &Options,
    suite: &mut Suite,
    table: &mut Table,
    raw: &mut Map<String, Value>,
) -> Result<()> {
    let mut found = [const { Vec::new() }; 3];
    for round in 0..options.rounds.max(1) {
        for (tree, values) in rig.trees().iter().zip(&mut found) {
            let load = Workload { at: tree, round, quick: options.quick, seconds: options.seconds };
            let value = load.run(line.work);
            values.push(value.with_context(|| format!("{} in {}", line.name, tree.display()))?);
        }
    }
    let [ours, bindfs, ext4] = [0, 1, 2].map(|index| best(line.work, &found[index]));
    let [first, second, third] = [0, 1, 2].map(|index| cell(line.work, &found[index]));
    let unit = line.work.unit().to_owned();
    table.row([line.what.into(), unit, first, second, third, short(ours / bindfs), short(ours / ext4)]);
    match line.goal {
        Goal::TimesBindfs(most) => suite.target(
            format!("{}: at most {most} times bindfs", line.what),
            format!("{} {} against {}: {}", short(ours), line.work.unit(), short(bindfs), short(ours / bindfs)),
            ours <= most * bindfs,
        ),
        Goal::Rate(least) => suite.target(
            format!("{}: at least {} {}", line.what, short(least), line.work.unit()),
            short(ours),
            ours >= least,
        ),
        Goal::OfExt4(least) => suite.target(
            format!("{}: at least {least} of ext4", line.what),
            format!("{} {} against {}: {}", short(ours), line.work.unit(), short(ext4), short(ours / ext4)),
            ours >= least * ext4,
        ),
        Goal::Nothing => {}
    }
    let rounds: Map<String, Value> =
        TREES.iter().zip(&found).map(|(name, values)| ((*name).to_owned(), json!(values))).collect();
    raw.insert(line.name.into(), Value::Object(rounds));
    Ok(())
}
