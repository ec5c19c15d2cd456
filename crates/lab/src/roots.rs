//! `cenote-lab roots`: what it costs to keep account of detached I/O (M2).
//!
//! Every speculative read is a member of something that export waits for. With one root, every start and every end take its
//! lock; the document made 16 of them, OpenZFS today has one for each core; ours is a group of counters, one for each worker.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use cenote_taskq::{Runtime, RuntimeOptions};

use cenote_bench::clock::Watch;
use cenote_bench::report::{Plot, Suite, Table, short};

/// A root: its children, by number, and who is next; what `zio_add_child` and `zio_remove_child` keep under a lock.
#[derive(Default)]
struct Root {
    children: Mutex<(u64, BTreeSet<u64>)>,
}

impl Root {
    fn add(&self) -> u64 {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.0 += 1;
        let id = children.0;
        children.1.insert(id);
        id
    }

    fn remove(&self, id: u64) {
        self.children.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&id);
    }
}

/// Nanoseconds of processor for each pair of a start and an end; what waits is not seen, and neither are other programs.
fn timed(threads: u64, each: u64, pair: impl Fn(usize) + Sync) -> f64 {
    let watch = Watch::start();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let pair = &pair;
            scope.spawn(move || (0..each).for_each(|_| pair(thread as usize)));
        }
    });
    watch.took().cpu_s * 1e9 / (threads * each) as f64
}

/// The cost of a pair by the model: two updates of a line that no other core has, at 5 ns each.
const CEILING_NS: f64 = 10.0;

/// The rate that one lock allows with many cores, by the model that the notes state: pairs a second, for roots that are hit evenly.
fn modelled(roots: f64, cores: f64) -> f64 {
    // A pair moves the root's line twice at 75 ns; between two pairs a core spends a read's 2.9 µs.
    let root = roots / (2.0 * 75e-9);
    let counter = if roots > 1.0 { 1.0 / 75e-9 } else { f64::INFINITY };
    (cores / 2.9e-6).min(root).min(counter)
}

/// Runs the suite.
///
/// # Errors
/// When the runtime does not start.
pub(crate) fn run(quick: bool) -> Result<Suite> {
    let pairs: u64 = if quick { 400_000 } else { 4_000_000 };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let group = runtime.handle().group();
    let mut table = Table::new(
        "A detached I/O's start and end, ns of processor",
        &[
            "threads",
            "1 root (before 2014)",
            "16 roots (2014)",
            "a root a core (OpenZFS today)",
            "ours",
            "ceiling (model)",
        ],
    );
    let names = ["1 root", "16 roots", "a root a thread", "ours"];
    let mut series: Vec<(String, Vec<Option<f64>>)> = names.map(|name| (name.to_owned(), Vec::new())).into();
    let mut at_most = [0.0; 4];
    let counts = [1_u64, 2, 16, 256];
    for threads in counts {
        let each = pairs / threads;
        let one = Root::default();
        let single = timed(threads, each, |_| one.remove(one.add()));
        let sixteen: Vec<Root> = (0..16).map(|_| Root::default()).collect();
        let next = AtomicU64::new(0);
        let many = timed(threads, each, |_| {
            let root = &sixteen[(next.fetch_add(1, Ordering::Relaxed) & 15) as usize];
            root.remove(root.add());
        });
        let own: Vec<Root> = (0..threads).map(|_| Root::default()).collect();
        let local = timed(threads, each, |thread| own[thread].remove(own[thread].add()));
        let refused = AtomicUsize::new(0);
        let ours = timed(threads, each, |_| {
            if group.enter().is_err() {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        });
        anyhow::ensure!(refused.load(Ordering::Relaxed) == 0, "an open group refuses nobody");
        let figures = [single, many, local, ours];
        table.row([threads.to_string()].into_iter().chain(figures.map(short)).chain([short(CEILING_NS)]));
        for ((_, values), value) in series.iter_mut().zip(figures) {
            values.push(Some(value));
        }
        at_most.iter_mut().zip(figures).for_each(|(most, figure)| *most = figure.max(*most));
    }
    anyhow::ensure!(group.members() == 0, "everyone has left");
    runtime.block_on(group.close());
    anyhow::ensure!(group.enter().is_err(), "after the close nobody enters");
    let mut founding = Table::new(
        "The document: 256 strided readers of 4 KiB on 40 cores",
        &["roots", "document: reads/s", "document: processors", "model, 16 cores", "model, 64 cores"],
    );
    let model = |roots: f64| [16.0, 64.0].map(|cores| short(modelled(roots, cores)));
    for (name, reads, processors, roots) in
        [("1", "150 000", "100 %", 1.0), ("16, round-robin", "300 000", "60 %", 16.0)]
    {
        founding.row([name, reads, processors].map(str::to_owned).into_iter().chain(model(roots)));
    }
    founding.row(
        ["one a worker (ours)", "-", "-"].map(str::to_owned).into_iter().chain([16.0, 64.0].map(|c| short(c / 2.9e-6))),
    );
    // Cost of a verified read of 4 KiB from memory: docs/bench/history/reading.md.
    let read_ns = 2900.0;
    let mut suite = Suite {
        name: "roots".into(),
        title: "account of detached I/O (M2)".into(),
        notes: vec![
            format!(
                "{pairs} pairs of a start and an end with nothing between them, on {cores} cores: with so few, threads that wait for \
                 a lock mostly wait for a turn on a core, and the document's doubling on 40 cores cannot show."
            ),
            "The model's columns are no measurement. A contended line moves between cores in 50 to 100 ns (75 here) and a pair moves its \
             root's line twice; a core spends 2.9 µs on everything else of a read. So one root ends at 6.7 million pairs a second, 16 \
             roots at their round-robin counter's 13 million, one a worker nowhere. What the document measured is worse than that by \
             far, since a lock that is waited for is held longer than its line takes to move."
                .into(),
        ],
        ..Suite::default()
    };
    suite.target(
        "the root costs at most 1 % of a read of 4 KiB (29 ns of 2.9 µs)",
        format!("{} ns at most", short(at_most[3])),
        at_most[3] <= read_ns / 100.0,
    );
    suite.plots.push(Plot {
        title: "A detached I/O's start and end, by threads".into(),
        unit: "ns of processor".into(),
        groups: counts.iter().map(u64::to_string).collect(),
        series,
    });
    suite.tables.extend([founding, table]);
    Ok(suite)
}
