//! The founding measurement of the pipelined log (M4) on modelled drives: 4 volumes of raidz, all written at once.
//!
//! The engine is the real one, and so are the layouts, `sync=always`, the 4 volumes and their blocks of 4 KiB. The document has neither the
//! drives nor the number of writers, so there is a table for each of several drives, with rows for each of several numbers.
//!
//! Drives take as long as their models say (`drive.rs`). A writer writes again 10 to 30 us after it was answered, drawn anew each time. The
//! engine's own work takes no time, or in a table of its own a little for each step of a task: the simulation has one processor, so that is
//! a machine of one. Txgs end in a table of its own too: a few of them in the time that is measured here would be many times what there are
//! of them in the same time elsewhere. All is the same each time.

mod rig;

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};

use self::rig::{Case, Layout, Outcome, VOLUMES, Way};
use super::drive::Drive;
use super::{Options, WRITERS};
use cenote_bench::report::{Suite, Table, short};

/// The ratio of the document: 29 000 writes a second, 19 000 before.
const FOUNDING_RATIO: f64 = 1.53;

const RAIDZ2: Layout = Layout { name: "raidz2 of 12", parity: 2, disks: 12 };
const RAIDZ1: Layout = Layout { name: "raidz1 of 5", parity: 1, disks: 5 };

/// The ways to write: the log, with the part of latency for which it holds a block back; the same with OpenZFS's part; batches.
const WHO: [(&str, Way); 3] = [
    ("pipeline", Way::Pipeline { commit_timeout_pct: 100 }),
    ("held for 10 %", Way::Pipeline { commit_timeout_pct: 10 }),
    ("batch", Way::Batch),
];

/// No txg ends by itself meanwhile.
const NO_TXG_S: u64 = 3600;
/// Pauses in the measured time.
const TURNS: u32 = 20;
/// A cost of each step of a task: 0 to this.
const STEP_MAX: Duration = Duration::from_micros(1);

const COLUMNS: [&str; 10] = [
    "writers of a volume",
    "who",
    "writes/s",
    "of batch",
    "median us",
    "p99 us",
    "p99.9 us",
    "blocks",
    "log bytes",
    "flushes",
];

/// All ways on the same drives under the same load, in the order of [`WHO`].
#[derive(Clone, Debug, PartialEq)]
struct Compared {
    writers: usize,
    outcomes: [Outcome; 3],
}

impl Compared {
    fn of(case: Case) -> Result<Self> {
        let [pipeline, held, batch] = WHO.map(|(_, way)| Case { way, ..case }.run());
        Ok(Self { writers: case.writers, outcomes: [pipeline?, held?, batch?] })
    }

    const fn pipeline(&self) -> &Outcome {
        &self.outcomes[0]
    }

    const fn batch(&self) -> &Outcome {
        &self.outcomes[2]
    }

    fn ratio(&self) -> f64 {
        self.pipeline().per_s / self.batch().per_s
    }

    fn rows(&self, table: &mut Table) {
        for ((who, _), outcome) in WHO.iter().zip(&self.outcomes) {
            let Outcome { per_s, median_us, p99_us, p999_us, blocks, bytes, flushes, .. } = *outcome;
            let figures = [per_s, per_s / self.batch().per_s, median_us, p99_us, p999_us, blocks, bytes, flushes];
            table.row([self.writers.to_string(), (*who).to_owned()].into_iter().chain(figures.map(short)));
        }
    }

    fn json(&self, case: Case) -> Value {
        let found: Map<_, _> =
            WHO.iter().zip(&self.outcomes).map(|(who, out)| (who.0.to_owned(), json!(out))).collect();
        json!({
            "layout": case.layout.name, "drive": case.drive.name, "writers": self.writers, "seed": case.seed,
            "step_max_ns": case.step_max.as_nanos() as u64, "txg_s": case.txg_s, "span_s": case.span.as_secs_f64(), "found": found,
        })
    }
}

/// Long enough for hundreds of commits of a single writer, and short enough for memory.
fn span_of(drive: Drive, is_quick: bool) -> Duration {
    let ms = match drive.name {
        name if name == Drive::VOLATILE.name => 400,
        name if name == Drive::PROTECTED.name => 150,
        _ => 32,
    };
    Duration::from_millis(if is_quick { ms / 4 } else { ms })
}

/// Every table.
pub(super) fn modelled(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let mut all = Vec::new();
    for (layout, drive, step_max) in [
        (RAIDZ2, Drive::PROTECTED, Duration::ZERO),
        (RAIDZ2, Drive::PROTECTED, STEP_MAX),
        (RAIDZ2, Drive::VOLATILE, Duration::ZERO),
        (RAIDZ2, Drive::NVME, Duration::ZERO),
        (RAIDZ1, Drive::PROTECTED, Duration::ZERO),
        (RAIDZ1, Drive::VOLATILE, Duration::ZERO),
        (RAIDZ1, Drive::NVME, Duration::ZERO),
    ] {
        let costs = if step_max.is_zero() { "" } else { ", and up to 1 us of one processor for each step of a task" };
        let place = format!("{}, {}{costs}", layout.name, drive.name);
        let mut table = Table::new(format!("{VOLUMES} volumes of modelled drives: {place}"), &COLUMNS);
        let mut found = Vec::new();
        for writers in WRITERS {
            let span = span_of(drive, options.quick);
            let case = Case {
                layout,
                drive,
                writers,
                way: Way::Batch,
                step_max,
                txg_s: NO_TXG_S,
                seed: 1,
                span,
                turns: TURNS,
            };
            let compared = Compared::of(case)?;
            compared.rows(&mut table);
            all.push(compared.json(case));
            found.push(compared);
        }
        suite.tables.push(table);
        targets(suite, &place, &found);
    }
    steadiness(options, suite, &mut all)?;
    suite.notes.push(
        "Modelled drives, in virtual time: the same on every machine. The engine and its layouts are the real ones; its own work takes no \
         time, but in the table that says so, and a client writes again 10 to 30 us after it was answered. Each volume's clients pause twenty times, so that the volumes fall into \
         step anew. pipeline: the log. held for 10 %: \
         the same with zfs_commit_timeout_pct=10. batch: commits as they were before M4, over the same log: one batch of a volume at a time, \
         whose end all wait for, with one flush. blocks, log bytes, flushes: for each write. No txg ends meanwhile but in the last table."
            .into(),
    );
    raw.insert("modelled".into(), all.into());
    Ok(())
}

/// Over seconds, in which txgs end.
fn steadiness(options: &Options, suite: &mut Suite, all: &mut Vec<Value>) -> Result<()> {
    let columns = ["who", "writes/s", "variation", "median us", "p99 us", "p99.9 us", "txgs"];
    let (layout, drive, writers) = (RAIDZ1, Drive::VOLATILE, 4);
    let place = format!("{}, {}, {writers} writers of each volume", layout.name, drive.name);
    let title =
        format!("{place}, a txg each second; variation: the deviation of the rates of 100 ms as a part of their mean");
    let mut table = Table::new(title, &columns);
    let span = Duration::from_secs(if options.quick { 1 } else { 5 });
    let case =
        Case { layout, drive, writers, way: Way::Batch, step_max: Duration::ZERO, txg_s: 1, seed: 1, span, turns: 1 };
    let compared = Compared::of(case)?;
    for ((who, _), outcome) in WHO.iter().zip(&compared.outcomes) {
        let variation = outcome.variation.unwrap_or(f64::NAN);
        let figures = [outcome.per_s, variation, outcome.median_us, outcome.p99_us, outcome.p999_us];
        let cells = figures.map(short).into_iter().chain([outcome.txgs.to_string()]);
        table.row([(*who).to_owned()].into_iter().chain(cells));
    }
    suite.tables.push(table);
    all.push(compared.json(case));
    let variation = compared.pipeline().variation.unwrap_or(f64::NAN);
    suite.target(format!("{place}: rates of 100 ms vary by at most a tenth"), short(variation), variation <= 0.1);
    Ok(())
}

fn targets(suite: &mut Suite, place: &str, found: &[Compared]) {
    let of = |figure: fn(&Compared) -> f64| found.iter().map(figure).map(short).collect::<Vec<_>>().join(", ");
    let is_met = found.iter().all(|one| one.writers == 1 || one.ratio() >= FOUNDING_RATIO);
    let wanted = format!("{place}: with 4 and more writers at least {FOUNDING_RATIO} times the rate of batches");
    suite.target(wanted, of(Compared::ratio), is_met);
    let bytes: fn(&Compared) -> f64 = |one| one.pipeline().bytes / one.batch().bytes;
    // Where the time begins and ends cuts off other blocks of the one than of the other.
    let is_met = found.iter().all(|one| bytes(one) <= 1.005);
    suite.target(format!("{place}: at most the bytes of batches"), of(bytes), is_met);
    let flushes: fn(&Compared) -> f64 = |one| one.pipeline().flushes;
    let is_met = found.iter().all(|one| flushes(one) <= 1.0) && found.iter().map(flushes).is_sorted_by(|a, b| a >= b);
    suite.target(
        format!("{place}: at most one flush for each write, and fewer with more writers"),
        of(flushes),
        is_met,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case {
        layout: RAIDZ1,
        drive: Drive::PROTECTED,
        writers: 4,
        way: Way::Batch,
        step_max: Duration::ZERO,
        txg_s: NO_TXG_S,
        seed: 3,
        span: Duration::from_millis(80),
        turns: TURNS,
    };

    #[test]
    fn the_same_seed_gives_the_same_table() {
        let (one, same) = (Compared::of(CASE).unwrap(), Compared::of(CASE).unwrap());
        assert_eq!(one, same);
        assert_ne!(one, Compared::of(Case { seed: 4, ..CASE }).unwrap(), "the seed is used");
    }

    /// No clock but the models' is in this: what the log does for its writers, in numbers.
    #[test]
    fn the_log_takes_fewer_flushes_and_bytes_with_more_writers_and_is_ahead_of_batches() {
        let found = [4, 16].map(|writers| Compared::of(Case { writers, ..CASE }).unwrap());
        let alone = Case { writers: 1, way: WHO[0].1, ..CASE }.run().unwrap();
        let mut before = alone.flushes;
        assert!(before <= 1.0, "{alone:?}");
        for one in &found {
            let (pipeline, batch) = (one.pipeline(), one.batch());
            assert!(one.ratio() >= 1.2, "{one:?}");
            assert!(pipeline.flushes <= before && pipeline.flushes < batch.flushes, "{one:?}");
            assert!(pipeline.blocks < batch.blocks && pipeline.bytes <= batch.bytes, "{one:?}");
            before = pipeline.flushes;
        }
    }
}
