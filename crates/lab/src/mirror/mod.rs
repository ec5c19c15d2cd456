//! `cenote-lab mirror`: which child of a mirror is read (M3), on modelled disks in virtual time.
//!
//! This machine's disks are no mirror of eight drives; models of drives are, and with them a run is the same everywhere and every
//! time. The vdev layer that reads pools runs on disks whose service times are exact (`cenote_taskq::sim::model`);
//! nothing else has a cost. So these are comparisons of policies and queues, and no measurement of a machine.
//!
//! * The table of 2013: two mirrors of drives as the document had them, 16 readers of a file each (`rig.rs` says what they do).
//!   The row without mirrors shows how well drive and load fit the document.
//! * Mirrors of unlike children, against the best way to deal the readers out to the children by hand.
//! * One child ten times slower: the tail of what readers see.
//!
//! Older policies run with the queue of their time: no runs, and until 2013 no classes and less brought together.

mod rig;

use std::time::Duration;

use anyhow::Result;
use cenote_kstat::Settings;
use cenote_taskq::Instant;
use cenote_taskq::sim::model::{FlashOptions, RotatingOptions, Stalls};
use cenote_vdev::tunables::{Policy, Tunables};

use cenote_bench::report::{Plot, Suite, Table, short};
use rig::{Model, Outcome, Rig, Work};

/// Readers, as in the document: 16 threads on 16 files.
const READERS: u64 = 16;
/// Size of each file. The document does not tell; the drives' random reads say that heads did not move far.
const FILE_BYTES: u64 = 4 << 30;
/// A drive as those of the document: with it the row without mirrors is about met. That row is what the drive and the load are
/// fitted to; the others follow.
const DRIVE: RotatingOptions = RotatingOptions { track_bytes: 1_070_000, ..RotatingOptions::desktop() };

/// Before and after.
type Cell = (f64, f64);
/// The document's columns: name, unit, work.
const COLUMNS: [(&str, &str, Work); 4] = [
    ("seq 1 MB", "MB/s", Work::Sequential(1 << 20)),
    ("seq 4 KB", "MB/s", Work::Sequential(4096)),
    ("rand 1 MB", "reads/s", Work::Random(8)),
    ("rand 4 KB", "reads/s", Work::Random(1)),
];
/// The document's rows: children of each of two mirrors, and before and after of each column.
const FOUNDING: [(usize, [Cell; 4]); 4] = [
    (1, [(226.0, 222.0), (243.0, 255.0), (11.0, 11.0), (304.0, 299.0)]),
    (2, [(302.0, 433.0), (324.0, 448.0), (16.0, 23.0), (534.0, 571.0)]),
    (3, [(429.0, 648.0), (458.0, 648.0), (24.0, 41.0), (714.0, 808.0)]),
    (4, [(562.0, 816.0), (601.0, 828.0), (36.0, 82.0), (849.0, 926.0)]),
];

/// How long each case runs, in virtual seconds.
#[derive(Clone, Copy, Debug)]
struct Length {
    sequential_s: f64,
    random_s: f64,
    flash_s: f64,
    tail_s: f64,
}

/// The words for the policies, the oldest first.
fn policies() -> impl Iterator<Item = &'static str> {
    Policy::WORDS.iter().copied()
}

/// For a user who waits for the result.
const QUICK: Length = Length { sequential_s: 2.5, random_s: 6.0, flash_s: 0.1, tail_s: 40.0 };
/// For figures.
const FULL: Length = Length { sequential_s: 20.0, random_s: 40.0, flash_s: 1.0, tail_s: 300.0 };

/// One case.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    tops: u64,
    models: Vec<Model>,
    policy: &'static str,
    work: Work,
    readers: u64,
    seconds: f64,
}

impl Case {
    fn run(&self, settings: &Settings) -> Result<Outcome> {
        let mut tunables = Tunables::default();
        if self.policy == "adaptive" {
            tunables = tunables.with(settings);
        } else {
            tunables.zfs_vdev_read_run_limit = 0;
        }
        tunables.set("zfs_vdev_mirror_policy", self.policy)?;
        let is_first = matches!(self.policy, "offset" | "pending");
        if is_first {
            tunables.zfs_vdev_aggregation_limit = 128 << 10;
        }
        let rig = Rig::new(7, self.tops, &self.models, &tunables);
        let rig = if is_first { rig.without_classes() } else { rig };
        Ok(rig.run(self.work, self.readers, FILE_BYTES, self.seconds))
    }

    fn figure(&self, outcome: &Outcome) -> f64 {
        if matches!(self.work, Work::Sequential(_)) { outcome.mb_per_s() } else { outcome.per_s() }
    }
}

/// Cases that were run, each once.
struct Cases {
    settings: Settings,
    known: Vec<(Case, Outcome)>,
}

impl Cases {
    /// Runs those that were not run yet, as many at once as there are cores.
    fn run(&mut self, cases: Vec<Case>) -> Result<()> {
        let mut left: Vec<Case> = Vec::new();
        for case in cases {
            if !left.contains(&case) && self.known.iter().all(|(known, _)| *known != case) {
                left.push(case);
            }
        }
        let next = std::sync::atomic::AtomicUsize::new(0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (left, settings) = (&left, &self.settings);
        let work = || -> Result<Vec<(Case, Outcome)>> {
            let mut done = Vec::new();
            while let Some(case) = left.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                done.push((case.clone(), case.run(settings)?));
            }
            Ok(done)
        };
        let parts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        for part in parts {
            self.known.extend(part.map_err(|_| anyhow::anyhow!("a case panicked"))??);
        }
        Ok(())
    }

    fn outcome(&self, case: &Case) -> Result<&Outcome> {
        let found = self.known.iter().find(|(known, _)| known == case);
        found.map(|(_, outcome)| outcome).ok_or_else(|| anyhow::anyhow!("{case:?} was not run"))
    }

    fn figure(&self, case: &Case) -> Result<f64> {
        Ok(case.figure(self.outcome(case)?))
    }
}

/// Runs the suite. `settings`: tunables of policy `adaptive`.
///
/// # Errors
/// When a case fails.
pub(crate) fn run(quick: bool, settings: &Settings) -> Result<Suite> {
    let length = if quick { QUICK } else { FULL };
    let mut cases = Cases { settings: settings.clone(), known: Vec::new() };
    let mut suite = Suite {
        name: "mirror".into(),
        title: "which child of a mirror is read (M3)".into(),
        notes: vec![
            "Modelled drives (7200 turns a minute, 117 MB/s at the track, seeks to 15 ms, an elevator that plugs and merges) and SATA \
             solid-state disks, in virtual time: the same on every machine. The vdev layer with its queues and policies is the real one; \
             nothing above it takes part, and 16 readers read ahead as the document's file system did."
                .into(),
            "offset is what OpenZFS did until 2013 and pending what the document made of it, both with the queue of their time; locality \
             is OpenZFS since 2016, with classes. By hand: the readers dealt out evenly to the drives, each with a queue as ours. The \
             ceiling is what the drives move at the track, never seeking, or do at random alone."
                .into(),
        ],
        ..Suite::default()
    };
    founding(&mut suite, &mut cases, length, quick)?;
    mixed(&mut suite, &mut cases, length, quick)?;
    slow(&mut suite, &mut cases, length)?;
    if !settings.is_empty() {
        suite.notes.push(format!("adaptive with {}.", settings));
    }
    Ok(suite)
}

/// The rate of a drive that never seeks, in MB/s.
fn track_rate() -> f64 {
    DRIVE.track_bytes as f64 / 1e6 / (DRIVE.rotation + DRIVE.track_switch).as_secs_f64()
}

/// The readers that each of `ways` drives gets, dealt out evenly.
fn shares(ways: usize) -> impl Iterator<Item = u64> {
    let ways = ways as u64;
    (0..ways).map(move |child| READERS / ways + u64::from(child < READERS % ways))
}

/// The table of 2013: adaptive over offset at least the document's ratio, nowhere below pending or locality, and at least 0.95 of
/// what the same drives come to when readers are dealt out to them by hand.
fn founding(suite: &mut Suite, cases: &mut Cases, length: Length, quick: bool) -> Result<()> {
    let rows: Vec<_> = FOUNDING.into_iter().filter(|row| !quick || matches!(row.0, 1 | 4)).collect();
    let case = |policy, ways, column: usize, readers| Case {
        tops: 2,
        models: vec![Model::Rotating(DRIVE); ways],
        policy,
        work: COLUMNS[column].2,
        readers,
        seconds: if column < 2 { length.sequential_s } else { length.random_s },
    };
    let mut all = Vec::new();
    for (ways, _) in &rows {
        for column in 0..COLUMNS.len() {
            all.extend(policies().map(|policy| case(policy, *ways, column, READERS)));
            all.extend(shares(*ways).map(|readers| case("adaptive", 1, column, readers)));
        }
    }
    cases.run(all)?;
    let mut table = Table::new(
        "Two mirrors, 16 readers: the document's table and the model",
        &[
            "children, work",
            "document: before",
            "document: after",
            "offset",
            "pending",
            "locality",
            "adaptive (ours)",
            "by hand",
            "ceiling (model)",
            "document: ratio",
            "ours over offset",
        ],
    );
    for &(ways, cells) in &rows {
        let mut plot = Plot {
            title: format!("Two {ways}-way mirrors, 16 readers"),
            unit: "of the ceiling".into(),
            groups: COLUMNS.map(|column| column.0.to_owned()).into(),
            series: policies().chain(["by hand"]).map(|name| (name.to_owned(), Vec::new())).collect(),
        };
        let (mut over_offset, mut over_others, mut of_hand) = (Vec::new(), Vec::new(), Vec::new());
        for (column, (before, after)) in cells.into_iter().enumerate() {
            let figures: Result<Vec<f64>> =
                policies().map(|policy| cases.figure(&case(policy, ways, column, READERS))).collect();
            let figures = figures?;
            let (offset, pending, locality, adaptive) = (figures[0], figures[1], figures[2], figures[3]);
            let mut by_hand = 0.0;
            for readers in shares(ways) {
                by_hand += cases.figure(&case("adaptive", 1, column, readers))?;
            }
            let drives = 2.0 * ways as f64;
            // A random record alone: a seek of the mean over the readers' files, half a turn, the transfer.
            let ceiling = match column {
                0 | 1 => drives * track_rate(),
                2 => drives * track_rate() * 1e6 / f64::from(1 << 20),
                _ => {
                    let span = READERS as f64 * FILE_BYTES as f64 / 2.0 / DRIVE.track_bytes as f64;
                    let seek = DRIVE.settle.as_secs_f64()
                        + DRIVE.stroke.as_secs_f64() * (span / DRIVE.tracks() as f64).sqrt() * 8.0 / 15.0;
                    let record = f64::from(128 << 10) / (track_rate() * 1e6);
                    drives / (seek + DRIVE.rotation.as_secs_f64() / 2.0 + record)
                }
            };
            let label = format!("{ways}, {} ({})", COLUMNS[column].0, COLUMNS[column].1);
            let values = [before, after, offset, pending, locality, adaptive, by_hand, ceiling];
            let ratios = [after / before, adaptive / offset].map(|ratio| format!("{ratio:.2}"));
            table.row([label].into_iter().chain(values.map(short)).chain(ratios));
            for ((_, values), value) in plot.series.iter_mut().zip(figures.iter().chain([&by_hand])) {
                values.push(Some(value / ceiling));
            }
            over_offset.push(adaptive / offset / (after / before));
            over_others.push(adaptive / pending.max(locality));
            of_hand.push(adaptive / by_hand);
        }
        if ways > 1 {
            let say = |values: &[f64]| values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ");
            let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
            suite.target(
                format!("{ways}-way: adaptive over offset at least the document's ratio (1 is equal)"),
                say(&over_offset),
                least(&over_offset) >= 1.0,
            );
            suite.target(
                format!("{ways}-way: nowhere below pending or locality (the better of them is 1)"),
                say(&over_others),
                least(&over_others) >= 1.0,
            );
            suite.target(format!("{ways}-way: at least 0.95 of dealt by hand"), say(&of_hand), least(&of_hand) >= 0.95);
            suite.plots.push(plot);
        }
    }
    suite.tables.push(table);
    Ok(())
}

/// Figures of one child alone are measured at these counts of readers; between them they are taken to be straight.
const COUNTS: [u64; 6] = [0, 1, 3, 6, 10, 16];

/// Mirrors whose children differ: at least 0.9 of the best way to deal the readers out.
fn mixed(suite: &mut Suite, cases: &mut Cases, length: Length, quick: bool) -> Result<()> {
    let solid = FlashOptions::sata();
    let stalls = |period_ms: u64| Stalls {
        first: Instant::from_ns(137_000_000),
        period: Duration::from_millis(period_ms),
        length: Duration::from_millis(100),
    };
    let (rotating, flash) = (Model::Rotating, Model::Flash);
    let shapes: [(&str, Vec<Model>); 5] = [
        ("2 rotating, 1 solid", vec![rotating(DRIVE), rotating(DRIVE), flash(solid)]),
        ("3 rotating, one 4 x slower", vec![rotating(DRIVE), rotating(DRIVE), rotating(DRIVE.slower(4))]),
        ("3 solid, one 4 x slower", vec![flash(solid), flash(solid), flash(solid.slower(4))]),
        (
            "3 rotating, one stalls",
            vec![rotating(DRIVE), rotating(DRIVE), rotating(RotatingOptions { stalls: Some(stalls(1000)), ..DRIVE })],
        ),
        (
            "3 solid, one stalls",
            vec![flash(solid), flash(solid), flash(FlashOptions { stalls: Some(stalls(700)), ..solid })],
        ),
    ];
    let works = [("rand 4 KB, reads/s", Work::Small), ("seq 1 MB, MB/s", Work::Sequential(1 << 20))];
    let case = |models: &[Model], is_flash: bool, policy, work, readers| Case {
        tops: 1,
        models: models.to_vec(),
        policy,
        work,
        readers,
        seconds: match work {
            Work::Sequential(_) if is_flash => length.sequential_s / 4.0,
            Work::Sequential(_) => length.sequential_s,
            _ if is_flash => length.flash_s,
            _ => length.random_s,
        },
    };
    let is_flash = |models: &[Model]| models.iter().all(|model| matches!(model, Model::Flash(_)));
    let shapes = if quick { &shapes[1..2] } else { &shapes[..] };
    let mut all = Vec::new();
    for (_, models) in shapes {
        for (_, work) in works {
            let is_flash = is_flash(models);
            all.extend(policies().map(|policy| case(models, is_flash, policy, work, READERS)));
            let alone = |model: &Model| {
                let model = *model;
                COUNTS[1..].iter().map(move |count| case(&[model], is_flash, "adaptive", work, *count))
            };
            all.extend(models.iter().flat_map(alone));
        }
    }
    cases.run(all)?;
    let mut table = Table::new(
        "One mirror of unlike children, 16 readers",
        &["children, work", "offset", "pending", "locality", "adaptive (ours)", "best dealing", "share of it"],
    );
    for (name, models) in shapes {
        for (work_name, work) in works {
            let is_flash = is_flash(models);
            let figures: Result<Vec<f64>> =
                policies().map(|policy| cases.figure(&case(models, is_flash, policy, work, READERS))).collect();
            let figures = figures?;
            let best = best_dealing(models, |model, readers| {
                cases.figure(&case(&[model], is_flash, "adaptive", work, readers))
            })?;
            let share = figures[3] / best;
            let label = format!("{name}, {work_name}");
            suite.target(format!("{label}: at least 0.9 of the best dealing"), format!("{share:.2}"), share >= 0.9);
            table.row(
                [label].into_iter().chain(figures.into_iter().chain([best]).map(short)).chain([format!("{share:.2}")]),
            );
        }
    }
    suite.notes.push(
        "The best dealing is the most that the children come to with readers of their own, over all ways to deal 16 readers out; for \
         sequential readers of drives it is one reader alone on a fast drive, which never seeks, and the crowd on the slow one."
            .into(),
    );
    suite.tables.push(table);
    Ok(())
}

/// The most that disks come to with readers of their own, over all ways to deal the readers out.
fn best_dealing(models: &[Model], alone: impl Fn(Model, u64) -> Result<f64>) -> Result<f64> {
    let mut best = [0.0_f64; READERS as usize + 1];
    for model in models {
        let mut known = [0.0; COUNTS.len()];
        for (figure, count) in known.iter_mut().zip(COUNTS).skip(1) {
            *figure = alone(*model, count)?;
        }
        let at = |readers: u64| {
            let above = COUNTS.iter().position(|count| *count >= readers).unwrap_or(COUNTS.len() - 1).max(1);
            let (low, high) = (COUNTS[above - 1], COUNTS[above]);
            let share = (readers - low) as f64 / (high - low) as f64;
            known[above - 1] * (1.0 - share) + known[above] * share
        };
        let figures: Vec<f64> = (0..=READERS).map(at).collect();
        let before = best;
        for (readers, best) in best.iter_mut().enumerate() {
            *best = (0..=readers).map(|own| before[readers - own] + figures[own]).fold(0.0, f64::max);
        }
    }
    Ok(best[READERS as usize])
}

/// One child that is ten times slower: p99.9 at most 1.3 of healthy, at no more than 5 % extra reads. Six readers keep three drives
/// busy, and two drives have more to do for them, whatever the third is like: `without` is what these come to without it.
fn slow(suite: &mut Suite, cases: &mut Cases, length: Length) -> Result<()> {
    let solid = FlashOptions::sata();
    let (drive, slower) = (Model::Rotating(DRIVE), Model::Rotating(DRIVE.slower(10)));
    let shapes = [
        ("3 solid, 12 readers", Model::Flash(solid), Model::Flash(solid.slower(10)), 12, length.flash_s * 4.0),
        ("3 rotating, 2 readers", drive, slower, 2, length.tail_s),
        ("3 rotating, 6 readers", drive, slower, 6, length.tail_s),
    ];
    let case = |models: Vec<Model>, policy, readers, seconds| Case {
        tops: 1,
        models,
        policy,
        work: Work::Small,
        readers,
        seconds,
    };
    let mut all = Vec::new();
    for &(_, model, slow, readers, seconds) in &shapes {
        all.push(case(vec![model; 3], "adaptive", readers, seconds));
        all.push(case(vec![model; 2], "adaptive", readers, seconds));
        all.extend(policies().map(|policy| case(vec![model, slow, model], policy, readers, seconds)));
    }
    cases.run(all)?;
    let mut table = Table::new(
        "One child ten times slower: time of a 4 KiB read, ms",
        &[
            "children, quantile",
            "healthy",
            "without it",
            "offset",
            "pending",
            "locality",
            "adaptive (ours)",
            "extra reads",
        ],
    );
    for &(name, model, slow, readers, seconds) in &shapes {
        let healthy = cases.outcome(&case(vec![model; 3], "adaptive", readers, seconds))?;
        let without = cases.outcome(&case(vec![model; 2], "adaptive", readers, seconds))?;
        let mut ours = Vec::new();
        for policy in policies() {
            ours.push(cases.outcome(&case(vec![model, slow, model], policy, readers, seconds))?);
        }
        let extra = ours[3].extra();
        for (label, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let values = [healthy, without].into_iter().chain(ours.iter().copied());
            let values = values.map(|outcome| short(outcome.quantile_ms(share)));
            table
                .row([format!("{name}, {label}")].into_iter().chain(values).chain([format!("{:.2} %", extra * 100.0)]));
        }
        let ratio = ours[3].quantile_ms(0.999) / healthy.quantile_ms(0.999);
        suite.target(format!("{name}: p99.9 at most 1.3 of healthy"), format!("{ratio:.2}"), ratio <= 1.3);
        suite.target(format!("{name}: at most 5 % extra reads"), format!("{:.2} %", extra * 100.0), extra <= 0.05);
    }
    suite.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_dealing_is_found() {
        let (fast, slow) = (Model::Flash(FlashOptions::nvme()), Model::Flash(FlashOptions::sata()));
        // The fast one has all that it can do with three readers, the slow one with six.
        let alone = |model: Model, readers: u64| {
            Ok(if model == fast { 100.0 * readers.min(3) as f64 / 3.0 } else { 30.0 * readers.min(6) as f64 / 6.0 })
        };
        assert!((best_dealing(&[fast, slow], alone).unwrap() - 130.0).abs() < 1e-9);
        assert!((best_dealing(&[slow], alone).unwrap() - 30.0).abs() < 1e-9);
    }

    #[test]
    fn a_case_is_run_once() {
        let case = Case {
            tops: 1,
            models: vec![Model::Flash(FlashOptions::sata()); 2],
            policy: "adaptive",
            work: Work::Small,
            readers: 2,
            seconds: 0.001,
        };
        let mut cases = Cases { settings: Settings::default(), known: Vec::new() };
        cases.run(vec![case.clone(), case.clone()]).unwrap();
        cases.run(vec![case.clone()]).unwrap();
        assert_eq!(cases.known.len(), 1);
        assert!(cases.figure(&case).unwrap() > 1000.0);
    }
}
