//! `cenote bench mirror`: which child of a mirror is read, on modelled disks in virtual time.
//!
//! The vdev layer is the real one; disks are models with exact service times (`cenote_taskq::sim::model`), so that the table of
//! 2013 with its eight drives can be had on any machine, and twice the same. What the figures carry is the comparison of
//! policies on the same disks, not what a given drive does.

mod rig;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use cenote_taskq::Instant;
use cenote_taskq::sim::model::{FlashOptions, RotatingOptions, Stalls};
use cenote_taskq::sync::Mutex;
use cenote_vdev::mirror::POLICIES;
use cenote_vdev::tunables::Tunables;

use self::rig::{Model, Outcome, RECORD, Rig, Work};
use crate::report::{Plot, Suite, Table, short};

/// Readers, as in the document: 16 threads on 16 files.
const READERS: u64 = 16;
/// A file on each top-level vdev: with 16 of them half of the drives' span is in use.
const FILE_BYTES: u64 = 32 << 30;
/// How far the file system reads ahead of a sequential reader: `zfetch_block_cap` of 2013, 256 records. (It is 8 MiB in OpenZFS
/// from 0.7 to 2.1, and 64 MiB since.)
const AHEAD: u64 = 32 << 20;
/// How much is read for nothing behind a random 1 MB.
const MISLED: u64 = 8 << 20;

/// The document's columns.
const COLUMNS: [(&str, &str); 4] =
    [("seq 1 MB", "MB/s"), ("seq 4 KB", "MB/s"), ("rand 1 MB", "IO/s"), ("rand 4 KB", "IO/s")];
/// The document's rows: children of each of two mirrors, and before and after of each column.
const FOUNDING: [(usize, [(f64, f64); 4]); 4] = [
    (1, [(226.0, 222.0), (243.0, 255.0), (11.0, 11.0), (304.0, 299.0)]),
    (2, [(302.0, 433.0), (324.0, 448.0), (16.0, 23.0), (534.0, 571.0)]),
    (3, [(429.0, 648.0), (458.0, 648.0), (24.0, 41.0), (714.0, 808.0)]),
    (4, [(562.0, 816.0), (601.0, 828.0), (36.0, 82.0), (849.0, 926.0)]),
];

fn column_work(column: usize) -> Work {
    match column {
        0 => Work::Sequential { piece: 1 << 20, ahead: AHEAD },
        1 => Work::Sequential { piece: RECORD, ahead: AHEAD },
        // Its prefetcher took eight records in a row for a stream.
        2 => Work::Random { records: 8, misled: MISLED },
        _ => Work::Random { records: 1, misled: 0 },
    }
}

fn figure(column: usize, outcome: &Outcome) -> f64 {
    if column < 2 { outcome.mb_per_s() } else { outcome.per_s() }
}

fn tunables(policy: &str) -> Result<Tunables> {
    let mut tunables = Tunables::default();
    tunables.set("zfs_vdev_mirror_policy", policy)?;
    Ok(tunables)
}

/// How long each case runs, in virtual seconds, and from how many seeds.
#[derive(Clone, Copy)]
struct Length {
    sequential_s: f64,
    random_s: f64,
    flash_s: f64,
    seeds: u64,
}

impl Length {
    const fn of(quick: bool) -> Self {
        if quick {
            Self { sequential_s: 2.0, random_s: 10.0, flash_s: 0.15, seeds: 1 }
        } else {
            Self { sequential_s: 8.0, random_s: 40.0, flash_s: 1.0, seeds: 2 }
        }
    }

    fn seconds(&self, work: Work, all_flash: bool) -> f64 {
        match work {
            _ if all_flash => self.flash_s,
            Work::Sequential { .. } => self.sequential_s,
            Work::Random { .. } | Work::Small => self.random_s,
        }
    }
}

/// One simulation to run.
#[derive(Clone)]
struct Case {
    tops: u64,
    models: Vec<Model>,
    policy: &'static str,
    work: Work,
    readers: u64,
}

impl Case {
    fn run(&self, length: Length) -> Result<Outcome> {
        let all_flash = self.models.iter().all(|model| matches!(model, Model::Flash(_)));
        let seconds = length.seconds(self.work, all_flash);
        let mut sum = Outcome::default();
        for seed in 1..=length.seeds {
            let rig = Rig::new(seed, self.tops, &self.models, &tunables(self.policy)?)?;
            let one = rig.run(self.work, self.readers, FILE_BYTES * self.tops, seconds)?;
            sum.seconds += one.seconds;
            sum.pieces += one.pieces;
            sum.bytes += one.bytes;
            sum.asked += one.asked;
            sum.sent += one.sent;
            sum.times_ns.extend(one.times_ns);
        }
        sum.times_ns.sort_unstable();
        Ok(sum)
    }
}

/// Runs all cases, on as many threads as there are cores; the outcomes in their order.
fn run_all(cases: &[Case], length: Length) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Result<Outcome>>>> = Mutex::new(cases.iter().map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(cases.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, case)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, cases.get(i)?))) {
                    let outcome = case.run(length);
                    outcomes.lock()[index] = Some(outcome);
                }
            });
        }
    });
    outcomes.into_inner().into_iter().map(|outcome| outcome.ok_or_else(|| anyhow!("a case did not run"))?).collect()
}

/// How many readers each of `disks` gets when they are dealt evenly.
fn dealt(readers: u64, disks: u64) -> impl Iterator<Item = u64> {
    (0..disks).map(move |disk| readers / disks + u64::from(disk < readers % disks))
}

/// Figures of single disks with so many readers each: what the best dealing comes to is made of these.
struct Alone {
    cases: Vec<Case>,
    figures: Vec<f64>,
}

impl Alone {
    fn measure(cases: Vec<Case>, column: impl Fn(&Case) -> usize, length: Length) -> Result<Self> {
        let outcomes = run_all(&cases, length)?;
        let figures = cases.iter().zip(&outcomes).map(|(case, outcome)| figure(column(case), outcome)).collect();
        Ok(Self { cases, figures })
    }

    fn of(&self, is_case: impl Fn(&Case) -> bool) -> f64 {
        self.cases.iter().position(is_case).map_or(0.0, |index| self.figures[index])
    }
}

/// Runs the suite.
///
/// # Errors
/// When a simulation fails, which is a defect.
pub fn run(quick: bool) -> Result<Suite> {
    let length = Length::of(quick);
    let mut suite = Suite {
        name: "mirror".into(),
        title: "which child of a mirror is read (M3)".into(),
        notes: vec![
            "Modelled disks in virtual time: the vdev layer is the one that reads pools, the disks are models with exact service \
             times. 16 readers on 16 files of 64 GiB (32 GiB on each mirror), records of 128 KiB, over two mirrors, as in the document. Drives: 7200 turns \
             a minute, 2.25 MB a track (246 MB/s), seeks of 0.8 to 14.8 ms, an elevator that merges. 32 MiB are read ahead of a \
             sequential reader, the cap of the prefetcher of 2013; it took the eight records of a random 1 MB for a stream, which \
             is modelled as 8 MiB read behind each for nothing."
                .into(),
            "Dealt by hand: what the same disks do when each serves its own share of the readers and no other, the shares being \
             even for like disks and the best of all for others. No policy knows the shares in advance; one that uses the nearer \
             of two heads can still come out above it."
                .into(),
        ],
        ..Suite::default()
    };
    founding(&mut suite, length)?;
    mixed(&mut suite, length)?;
    slow(&mut suite, length)?;
    Ok(suite)
}

/// The document's table.
fn founding(suite: &mut Suite, length: Length) -> Result<()> {
    let drive = Model::Rotating(RotatingOptions::desktop());
    let mut cases = Vec::new();
    for (ways, _) in FOUNDING {
        for column in 0..COLUMNS.len() {
            for policy in POLICIES {
                let models = vec![drive; ways];
                cases.push(Case { tops: 2, models, policy, work: column_work(column), readers: READERS });
            }
        }
    }
    let outcomes = run_all(&cases, length)?;
    let figure_of = |row: usize, column: usize, policy: usize| {
        let index = (row * COLUMNS.len() + column) * POLICIES.len() + policy;
        figure(column, &outcomes[index])
    };
    // As many stripes without mirrors as there are ways, each with its share of the readers.
    let shares: [u64; 4] = [16, 8, 6, 5];
    let mut alone_cases = Vec::new();
    for column in 0..COLUMNS.len() {
        for readers in shares.into_iter().chain([4]) {
            let work = column_work(column);
            alone_cases.push(Case { tops: 2, models: vec![drive], policy: "offset", work, readers });
        }
    }
    let alone_outcomes = run_all(&alone_cases, length)?;
    let alone = |column: usize, readers: u64| {
        let per_column = shares.len() + 1;
        let index = (column * per_column..(column + 1) * per_column).find(|i| alone_cases[*i].readers == readers);
        index.map_or(f64::NAN, |index| figure(column, &alone_outcomes[index]))
    };
    let by_hand = |ways: usize, column: usize| dealt(READERS, ways as u64).map(|readers| alone(column, readers)).sum::<f64>();

    let mut absolute = Table::new(
        "The table of 2013 and ours",
        &["pool, cell", "document: before", "after", "offset", "pending", "locality", "adaptive", "dealt by hand"],
    );
    let mut ratios = Table::new(
        "Against the policy before (offset = 1)",
        &["pool, cell", "document", "pending", "locality", "adaptive", "adaptive of dealt"],
    );
    let (mut short_of_document, mut below_others, mut worst_of_dealt) = (Vec::new(), Vec::new(), f64::INFINITY);
    let mut plots: Vec<Plot> = Vec::new();
    for (column, (name, unit)) in COLUMNS.iter().enumerate() {
        plots.push(Plot {
            title: format!("{name}, 16 readers, two mirrors"),
            unit: (*unit).into(),
            groups: FOUNDING.iter().map(|(ways, _)| pool_name(*ways)).collect(),
            series: POLICIES
                .iter()
                .enumerate()
                .map(|(policy, name)| {
                    ((*name).to_owned(), (0..FOUNDING.len()).map(|row| Some(figure_of(row, column, policy))).collect())
                })
                .chain([(
                    "dealt by hand".to_owned(),
                    FOUNDING.iter().map(|(ways, _)| Some(by_hand(*ways, column))).collect(),
                )])
                .collect(),
        });
        for (row, (ways, founding)) in FOUNDING.iter().enumerate() {
            let label = format!("{}, {name} ({unit})", pool_name(*ways));
            let ours: Vec<f64> = (0..POLICIES.len()).map(|policy| figure_of(row, column, policy)).collect();
            let (before, after) = founding[column];
            let hand = by_hand(*ways, column);
            absolute.row(
                [label.clone(), short(before), short(after)]
                    .into_iter()
                    .chain(ours.iter().map(|value| short(*value)))
                    .chain([short(hand)]),
            );
            let [offset, pending, locality, adaptive] = ours[..] else { continue };
            ratios.row([
                label.clone(),
                short(after / before),
                short(pending / offset),
                short(locality / offset),
                short(adaptive / offset),
                short(adaptive / hand),
            ]);
            if *ways == 1 {
                continue;
            }
            worst_of_dealt = worst_of_dealt.min(adaptive / hand);
            if adaptive / offset < after / before - 0.005 {
                short_of_document.push(format!("{label} {} of {}", short(adaptive / offset), short(after / before)));
            }
            if adaptive < pending.max(locality) * 0.995 {
                below_others.push(format!("{label} {} of {}", short(adaptive), short(pending.max(locality))));
            }
        }
    }
    let listed = |cells: &[String]| if cells.is_empty() { "in all 12".to_owned() } else { format!("not in: {}", cells.join("; ")) };
    suite.target(
        "adaptive over offset at least the document's ratio in every cell with mirrors",
        listed(&short_of_document),
        short_of_document.is_empty(),
    );
    suite.target("adaptive never below pending or locality", listed(&below_others), below_others.is_empty());
    suite.target(
        "like children: at least 0.95 of dealt by hand",
        format!("worst cell {}", short(worst_of_dealt)),
        worst_of_dealt >= 0.95,
    );
    suite.tables.extend([absolute, ratios]);
    suite.plots.extend(plots);
    Ok(())
}

fn pool_name(ways: usize) -> String {
    if ways == 1 { "2 striped".into() } else { format!("2 x {ways}-way") }
}

/// Mirrors whose children differ.
fn mixed(suite: &mut Suite, length: Length) -> Result<()> {
    let drive = RotatingOptions::desktop();
    let solid = FlashOptions::sata();
    let stalls = |period_ms: u64| Stalls {
        first: Instant::from_ns(137_000_000),
        period: Duration::from_millis(period_ms),
        length: Duration::from_millis(100),
    };
    let rotating = Model::Rotating;
    let shapes: [(&str, Vec<Model>); 5] = [
        ("2 rotating, 1 solid", vec![rotating(drive), rotating(drive), Model::Flash(solid)]),
        ("3 rotating, one 4 x slower", vec![rotating(drive), rotating(drive), rotating(drive.slower(4))]),
        ("3 solid, one 4 x slower", vec![Model::Flash(solid), Model::Flash(solid), Model::Flash(solid.slower(4))]),
        (
            "3 rotating, one stalls 100 ms",
            vec![rotating(drive), rotating(drive), rotating(RotatingOptions { stalls: Some(stalls(1000)), ..drive })],
        ),
        (
            "3 solid, one stalls 100 ms",
            vec![Model::Flash(solid), Model::Flash(solid), Model::Flash(FlashOptions { stalls: Some(stalls(700)), ..solid })],
        ),
    ];
    let works = [("rand 4 KB (IO/s)", Work::Small), ("seq 1 MB (MB/s)", Work::Sequential { piece: 1 << 20, ahead: AHEAD })];
    let column_of = |work: &Work| if matches!(work, Work::Small) { 3 } else { 0 };
    let mut table = Table::new(
        "Unlike children, one mirror, 16 readers",
        &["children, load", "offset", "pending", "locality", "adaptive", "best dealing", "adaptive of best"],
    );
    let mut plot = Plot {
        title: "Unlike children: share of the best dealing".into(),
        unit: "1 = best".into(),
        series: POLICIES.iter().map(|policy| ((*policy).to_owned(), Vec::new())).collect(),
        ..Plot::default()
    };
    let (mut worst, mut worst_label) = (f64::INFINITY, String::new());
    for (name, models) in &shapes {
        for (work_name, work) in works {
            let cases: Vec<Case> = POLICIES
                .iter()
                .map(|policy| Case { tops: 1, models: models.clone(), policy, work, readers: READERS })
                .collect();
            let outcomes = run_all(&cases, length)?;
            let column = column_of(&work);
            let ours: Vec<f64> = outcomes.iter().map(|outcome| figure(column, outcome)).collect();
            let best = best_dealing(models, work, column, length)?;
            let share = ours[3] / best;
            if share < worst {
                (worst, worst_label) = (share, format!("{name}, {work_name}"));
            }
            table.row(
                [format!("{name}, {work_name}")]
                    .into_iter()
                    .chain(ours.iter().map(|value| short(*value)))
                    .chain([short(best), short(share)]),
            );
            plot.groups.push(format!("{} {}", name.replace(" rotating", " r.").replace(" solid", " s."), &work_name[..4]));
            for ((_, values), value) in plot.series.iter_mut().zip(&ours) {
                values.push(Some(value / best));
            }
        }
    }
    suite.target(
        "unlike children: at least 0.9 of the best dealing",
        format!("worst {} ({worst_label})", short(worst)),
        worst >= 0.9,
    );
    suite.notes.push(
        "OpenZFS in 2016 on two drives and a solid-state disk, sequential without prefetch: offset 95 MB/s, pending 51, locality \
         284; with prefetch 168, 142, 320 (openzfs/zfs 9f500936c8). Where one child has no seeks the policy of 2013 was worse \
         than what it replaced."
            .into(),
    );
    suite.tables.push(table);
    suite.plots.push(plot);
    Ok(())
}

/// The most that single disks with their own readers come to, over all ways to deal the readers out.
fn best_dealing(models: &[Model], work: Work, column: usize, length: Length) -> Result<f64> {
    // Like disks have like figures.
    let mut kinds: Vec<(String, Model)> = Vec::new();
    for model in models {
        let text = format!("{model:?}");
        if kinds.iter().all(|(known, _)| *known != text) {
            kinds.push((text, *model));
        }
    }
    // Figures rise with the readers and flatten; between those measured they are taken to be straight.
    const COUNTS: [u64; 5] = [1, 3, 6, 10, 16];
    let mut cases = Vec::new();
    for (_, model) in &kinds {
        for readers in COUNTS {
            cases.push(Case { tops: 1, models: vec![*model], policy: "offset", work, readers });
        }
    }
    let alone = Alone::measure(cases, |_| column, length)?;
    let at = |kind: usize, readers: u64| -> f64 {
        let (_, model) = &kinds[kind];
        let text = format!("{model:?}");
        let of = |count: u64| alone.of(|case| case.readers == count && format!("{:?}", case.models[0]) == text);
        if readers == 0 {
            return 0.0;
        }
        let above = COUNTS.iter().position(|count| *count >= readers).unwrap_or(COUNTS.len() - 1);
        if COUNTS[above] == readers || above == 0 {
            return of(COUNTS[above]);
        }
        let (low, high) = (COUNTS[above - 1], COUNTS[above]);
        let share = (readers - low) as f64 / (high - low) as f64;
        of(low) * (1.0 - share) + of(high) * share
    };
    let table: Vec<Vec<f64>> = (0..kinds.len()).map(|kind| (0..=READERS).map(|readers| at(kind, readers)).collect()).collect();
    // Best over the first so many disks, for each number of readers.
    let mut best = vec![0.0_f64; READERS as usize + 1];
    for model in models {
        let text = format!("{model:?}");
        let kind = kinds.iter().position(|(known, _)| *known == text).unwrap_or(0);
        best = (0..=READERS as usize)
            .map(|readers| (0..=readers).map(|own| best[readers - own] + table[kind][own]).fold(0.0, f64::max))
            .collect();
    }
    Ok(best[READERS as usize])
}

/// One child that is ten times slower.
fn slow(suite: &mut Suite, length: Length) -> Result<()> {
    let drive = RotatingOptions::desktop();
    let solid = FlashOptions::sata();
    let shapes = [
        ("3 solid, 12 readers", vec![Model::Flash(solid); 3], Model::Flash(solid.slower(10)), 12),
        ("3 rotating, 6 readers", vec![Model::Rotating(drive); 3], Model::Rotating(drive.slower(10)), 6),
    ];
    let mut table = Table::new(
        "One child 10 x slower, random 4 KiB: time of a read in ms, p50 / p99 / p99.9, and reads beyond those asked for",
        &["children", "healthy", "offset", "pending", "locality", "adaptive", "extra", "p99.9 of healthy"],
    );
    let (mut worst, mut most_extra) = (0.0_f64, 0.0_f64);
    for (name, models, slow, readers) in shapes {
        let healthy = Case { tops: 1, models: models.clone(), policy: "adaptive", work: Work::Small, readers };
        let mut with_slow = models;
        with_slow[1] = slow;
        let mut cases = vec![healthy];
        cases.extend(POLICIES.map(|policy| Case { tops: 1, models: with_slow.clone(), policy, work: Work::Small, readers }));
        // The rare ones need many reads.
        let length = Length { flash_s: length.flash_s * 4.0, random_s: length.random_s * 3.0, ..length };
        let outcomes = run_all(&cases, length)?;
        let triple = |outcome: &Outcome| {
            let [a, b, c] = [0.5, 0.99, 0.999].map(|share| short(outcome.quantile_ms(share)));
            format!("{a} / {b} / {c}")
        };
        let ratio = outcomes[4].quantile_ms(0.999) / outcomes[0].quantile_ms(0.999);
        worst = worst.max(ratio);
        most_extra = most_extra.max(outcomes[4].extra());
        table.row(
            [name.to_owned()]
                .into_iter()
                .chain(outcomes.iter().map(triple))
                .chain([format!("{:.1} %", outcomes[4].extra() * 100.0), short(ratio)]),
        );
    }
    suite.target("one child 10 x slower: p99.9 at most 1.3 of healthy", short(worst), worst <= 1.3);
    suite.target("at no more than 5 % extra reads", format!("{:.1} %", most_extra * 100.0), most_extra <= 0.05);
    suite.tables.push(table);
    Ok(())
}
