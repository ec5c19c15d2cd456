//! `cenote bench taskq`: many producers dispatch many empty items (M1).

mod historic;
#[cfg(feature = "peers")]
mod peers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_taskq::{Class, IoChoice, JoinSet, Runtime, RuntimeOptions};

use crate::clock::Watch;
use crate::report::{Plot, Suite, Table, short};

/// Producers of the measurement by number of them.
const PRODUCERS: [u64; 5] = [2, 8, 32, 128, 256];

/// A run of a queue: wall time, and processor time of the process.
struct Took {
    wall: Duration,
    cpu_s: f64,
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Our runtime, producers being threads that are none of its workers.
fn ours_from_threads(producers: u64, items: u64) -> Result<Took> {
    let runtime = Runtime::real(RuntimeOptions { workers: Some(workers()), io: IoChoice::Auto })?;
    let handle = runtime.handle();
    let group = handle.group();
    let done = Arc::new(AtomicU64::new(0));
    let (watch, start) = (Watch::start(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                for _ in 0..items / producers {
                    let done = Arc::clone(&done);
                    let spawned = group.spawn(Class::Issue, async move {
                        done.fetch_add(1, Ordering::Relaxed);
                    });
                    drop(spawned);
                }
            });
        }
    });
    runtime.block_on(group.close());
    let took = Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s };
    anyhow::ensure!(done.load(Ordering::Relaxed) == items / producers * producers, "every item runs once");
    anyhow::ensure!(group.spawn(Class::Issue, async {}).is_err(), "a dispatch after the close is refused");
    Ok(took)
}

/// Our runtime, producers being tasks of its own: how the engine dispatches.
fn ours_from_tasks(producers: u64, items: u64) -> Result<Took> {
    let runtime = Runtime::real(RuntimeOptions { workers: Some(workers()), io: IoChoice::Auto })?;
    let handle = runtime.handle();
    let group = handle.group();
    let (watch, start) = (Watch::start(), Instant::now());
    let spawner = handle.clone();
    let inner = group.clone();
    runtime.block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..producers {
            let group = inner.clone();
            set.push(spawner.spawn(Class::Issue, async move {
                for index in 0..items / producers {
                    drop(group.spawn(Class::Issue, async {}));
                    if index % 256 == 255 {
                        cenote_taskq::yield_now().await;
                    }
                }
            }));
        }
        while set.next().await.is_some() {}
        group.close().await;
    });
    Ok(Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s })
}

fn per_item_ns(took: &Took, items: u64) -> (f64, f64) {
    (took.wall.as_secs_f64() * 1e9 / items as f64, took.cpu_s * 1e9 / items as f64)
}

/// Runs the suite.
///
/// # Errors
/// When a runtime does not start, or loses an item.
pub fn run(quick: bool) -> Result<Suite> {
    let (threads, producers) = (16, 16);
    let items: u64 = if quick { 40_000 } else { 400_000 };
    let rounds = if quick { 2 } else { 5 };
    let mut suite = Suite {
        name: "taskq".into(),
        title: "a queue of many small items (M1)".into(),
        notes: vec![
            format!(
                "{producers} producers dispatch {items} empty items to {threads} threads of a queue with one lock, as in \
                 taskq:contention; mean of {rounds} rounds. The historic rows differ only in who is woken when; ours has as many \
                 workers as cores. Hold time is of the queue's own lock. What the kernel's mutexes cost is not what these cost: \
                 the order of the rows is the point."
            ),
            "Ours: dispatch goes to the worker's own queue, or to a shared lock-free one from other threads; one dispatch wakes at \
             most one worker, outside any lock, and none while one is searching. Each item is a task with a future, a place in \
             the register of live tasks and membership in a group."
                .into(),
        ],
        ..Suite::default()
    };
    let mut table = Table::new(
        "The document's table and ours",
        &["queue", "document: hold, s", "wall, s", "% less", "here: hold, ms", "wall, ms", "% less"],
    );
    let mut walls = Vec::new();
    let mut holds = Vec::new();
    for (variant, document_us, document_s) in historic::VARIANTS {
        let mut wall = Duration::ZERO;
        let mut held = Duration::ZERO;
        for _ in 0..rounds {
            let (this_wall, this_held) = historic::measure(variant, threads, producers, items);
            wall += this_wall / rounds;
            held += this_held / rounds;
        }
        walls.push(wall.as_secs_f64());
        holds.push(held.as_secs_f64());
        let less = |value: f64, first: f64| format!("{:.1}", (1.0 - value / first) * 100.0);
        table.row([
            variant.name.to_owned(),
            short(document_us / 1e6),
            short(document_s),
            less(document_s, historic::VARIANTS[0].2),
            short(held.as_secs_f64() * 1e3),
            short(wall.as_secs_f64() * 1e3),
            less(wall.as_secs_f64(), walls[0]),
        ]);
    }
    let mut ours_s = 0.0;
    for _ in 0..rounds {
        ours_s += ours_from_threads(producers, items)?.wall.as_secs_f64() / f64::from(rounds);
    }
    table.row([
        "ours".into(),
        "-".into(),
        "-".into(),
        "-".into(),
        "no such lock".into(),
        short(ours_s * 1e3),
        format!("{:.1}", (1.0 - ours_s / walls[0]) * 100.0),
    ]);
    suite.plots.push(Plot {
        title: format!("{items} items from {producers} producers"),
        unit: "ms".into(),
        groups: vec!["original".into(), "exclusive".into(), "lazily".into(), "wakes outside".into(), "ours".into()],
        series: vec![
            ("wall".into(), walls.iter().chain([&ours_s]).map(|s| Some(s * 1e3)).collect()),
            ("lock held".into(), holds.iter().map(|s| Some(s * 1e3)).chain([Some(0.0)]).collect()),
        ],
    });
    let in_order = holds.windows(2).all(|pair| pair[1] <= pair[0]);
    let shown: Vec<String> = holds.iter().map(|s| short(s * 1e3)).collect();
    suite.target("the four rows in their order of hold time", format!("{} ms", shown.join(", ")), in_order);
    suite.target("ours: wall at most 1/10 of row one", short(ours_s / walls[0]), ours_s <= walls[0] / 10.0);
    suite.tables.push(table);
    flat(&mut suite, quick)?;
    Ok(suite)
}

/// What an item costs by the number of producers.
fn flat(suite: &mut Suite, quick: bool) -> Result<()> {
    let items: u64 = if quick { 200_000 } else { 2_000_000 };
    let mut table = Table::new(
        "Dispatch and run of an empty item, ns of wall time (ns of processor time)",
        &["producers", "ours, from tasks", "ours, from threads", "tokio", "rayon"],
    );
    let pair = |(wall, cpu): (f64, f64)| format!("{} ({})", short(wall), short(cpu));
    let mut series: Vec<(String, Vec<Option<f64>>)> =
        ["ours, from tasks", "ours, from threads", "tokio", "rayon"].map(|name| (name.to_owned(), Vec::new())).into();
    let mut own = Vec::new();
    for producers in PRODUCERS {
        let tasks = per_item_ns(&ours_from_tasks(producers, items)?, items);
        let threads = per_item_ns(&ours_from_threads(producers, items)?, items);
        #[cfg(feature = "peers")]
        let others = [peers::tokio(producers, items), peers::rayon(producers, items)].map(|took| took.ok());
        #[cfg(not(feature = "peers"))]
        let others: [Option<Took>; 2] = [None, None];
        let others = others.map(|took| took.map(|took| per_item_ns(&took, items)));
        own.push(tasks.0);
        for ((_, values), value) in
            series.iter_mut().zip([Some(tasks.0), Some(threads.0), others[0].map(|o| o.0), others[1].map(|o| o.0)])
        {
            values.push(value);
        }
        table.row(
            [producers.to_string(), pair(tasks), pair(threads)]
                .into_iter()
                .chain(others.map(|other| other.map_or_else(|| "not built in".into(), pair))),
        );
    }
    if !cfg!(feature = "peers") {
        suite.notes.push("tokio and rayon are measured when the program is built with `--features peers`.".into());
    }
    let most = own.iter().copied().fold(0.0, f64::max);
    let least = own.iter().copied().fold(f64::INFINITY, f64::min);
    suite.target("dispatch and run of an empty item at most 60 ns", format!("{} to {} ns", short(least), short(most)), most <= 60.0);
    suite.target(
        "flat from 2 to 256 producers (within a half)",
        format!("{} of the least at most", short(most / least)),
        most <= least * 1.5,
    );
    suite.plots.push(Plot {
        title: "An empty item, by producers".into(),
        unit: "ns of wall time".into(),
        groups: PRODUCERS.iter().map(u64::to_string).collect(),
        series,
    });
    suite.tables.push(table);
    Ok(())
}
