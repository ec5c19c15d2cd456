//! `cenote bench taskq`: many producers dispatch many empty items (M1).

mod historic;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cenote_taskq::{Class, Entry, IoChoice, JoinSet, Runtime, RuntimeOptions, yield_now};

use crate::clock::Watch;
use crate::report::{Plot, Suite, Table, short};
use crate::whole::peer;

/// Producers of the measurement by number of them.
const PRODUCERS: [u64; 5] = [2, 8, 32, 128, 256];
/// What a task costs that a worker dispatches to itself, by the model: a push, a pop and the task, in nanoseconds.
const CEILING_NS: f64 = 50.0;

/// A run of a queue: wall time, and processor time of the process.
struct Took {
    wall: Duration,
    cpu_s: f64,
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn runtime() -> Result<Runtime> {
    Ok(Runtime::real(RuntimeOptions { workers: Some(workers()), io: IoChoice::Auto })?)
}

/// Our runtime, producers being threads that are none of its workers.
fn from_threads(producers: u64, items: u64) -> Result<Took> {
    let runtime = runtime()?;
    let group = runtime.handle().group();
    let (done, refused) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let (watch, start) = (Watch::start(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                for _ in 0..items / producers {
                    let done = Arc::clone(&done);
                    if group.dispatch(Class::Issue, move || _ = done.fetch_add(1, Ordering::Relaxed)).is_err() {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    runtime.block_on(group.close());
    let took = Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s };
    ensure!(done.load(Ordering::Relaxed) == items / producers * producers, "every item runs once");
    ensure!(refused.load(Ordering::Relaxed) == 0, "an open group refuses nobody");
    ensure!(group.dispatch(Class::Issue, || ()).is_err(), "a dispatch after the close is refused");
    Ok(took)
}

/// How a producer that is a task of the runtime dispatches an empty item.
#[derive(Clone, Copy)]
enum How {
    /// A closure, as a member of a group.
    Closure,
    /// A future, as a member of a group.
    Future,
    /// An entry that was made before.
    Entry,
}

/// Items that a producer dispatches before it lets others run; also how many entries it has.
const STRETCH: u64 = 256;

/// Our runtime, producers being tasks of its own: how the engine dispatches.
fn from_tasks(how: How, producers: u64, items: u64) -> Result<Took> {
    let runtime = runtime()?;
    let handle = runtime.handle();
    let group = handle.group();
    let each = items / producers;
    let ran = Arc::new(AtomicU64::new(0));
    let entries = |ran: &Arc<AtomicU64>| -> Vec<Entry> {
        if !matches!(how, How::Entry) {
            return Vec::new();
        }
        // Each entry counts its own runs; the sum is wanted at the end only.
        (0..STRETCH)
            .map(|_| {
                let mut own = Runs { count: 0, all: Arc::clone(ran) };
                handle.entry(Class::Issue, move || own.one())
            })
            .collect()
    };
    let prepared: Vec<Vec<Entry>> = (0..producers).map(|_| entries(&ran)).collect();
    let (watch, start) = (Watch::start(), Instant::now());
    let stood = runtime.block_on(async {
        let mut set = JoinSet::new();
        for entries in prepared {
            let group = group.clone();
            set.push(handle.spawn(Class::Issue, async move {
                let mut stood = 0;
                for index in 0..each {
                    stood += match how {
                        How::Closure => u64::from(group.dispatch(Class::Issue, || ()).is_ok()),
                        How::Future => u64::from(group.detach(Class::Issue, async {}).is_ok()),
                        How::Entry => {
                            let entry = &entries[(index % STRETCH) as usize];
                            // One that stands has not run since its last turn: let others go on.
                            let mut standing = entry.dispatch();
                            while standing == Ok(false) {
                                yield_now().await;
                                standing = entry.dispatch();
                            }
                            u64::from(standing.is_ok())
                        }
                    };
                    if index % STRETCH == STRETCH - 1 {
                        yield_now().await;
                    }
                }
                stood
            }));
        }
        let mut stood = 0;
        while let Some(each) = set.next().await {
            stood += each.unwrap_or(0);
        }
        group.close().await;
        stood
    });
    let took = Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s };
    ensure!(stood == each * producers, "every item is taken");
    if matches!(how, How::Entry) {
        // Dropped entries run what stands; then each adds what it has counted.
        while Arc::strong_count(&ran) > 1 {
            std::thread::sleep(Duration::from_micros(50));
        }
        ensure!(ran.load(Ordering::Relaxed) == each * producers, "every entry runs once for each dispatch");
    }
    Ok(took)
}

/// Adds what it has counted when it goes.
struct Runs {
    count: u64,
    all: Arc<AtomicU64>,
}

impl Runs {
    fn one(&mut self) {
        self.count += 1;
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.all.fetch_add(self.count, Ordering::Relaxed);
    }
}

/// Measures so many producers with so many items.
type Measure = fn(u64, u64) -> Result<Took>;

/// Our ways to dispatch; the first is what the targets are about.
const OURS: [(&str, Measure); 4] = [
    ("ours", |producers, items| from_tasks(How::Closure, producers, items)),
    ("ours, entries", |producers, items| from_tasks(How::Entry, producers, items)),
    ("ours, futures", |producers, items| from_tasks(How::Future, producers, items)),
    ("ours, from threads", from_threads),
];

fn per_item_ns(took: &Took, items: u64) -> (f64, f64) {
    (took.wall.as_secs_f64() * 1e9 / items as f64, took.cpu_s * 1e9 / items as f64)
}

/// Runs the suite.
///
/// # Errors
/// When a runtime does not start, or loses an item.
pub fn run(quick: bool, peers: &[PathBuf]) -> Result<Suite> {
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
             most one worker, outside any lock, and none while one is searching or the items are few and short. Each item is a member \
             of a group, which is how their end is waited for; an entry is made once and dispatched again and again."
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
        ours_s += from_threads(producers, items)?.wall.as_secs_f64() / f64::from(rounds);
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
    let ceiling_s = items as f64 * CEILING_NS / 1e9 / workers() as f64;
    table.row(
        ["ceiling (model: 50 ns an item on every core)", "-", "-", "-", "none"]
            .map(str::to_owned)
            .into_iter()
            .chain([short(ceiling_s * 1e3), format!("{:.1}", (1.0 - ceiling_s / walls[0]) * 100.0)]),
    );
    suite.notes.push(
        "OpenZFS today: still one lock and one list of waiters for each queue, and so many queues (one for about six threads). Its \
         queue in userspace took 120 to 360 ns an item on the wall with as many producers as threads, from 1 to 16 (2.3.2, on \
         another machine of two virtual cores)."
            .into(),
    );
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
    flat(&mut suite, quick, peers)?;
    Ok(suite)
}

/// A queue that is measured beside ours: its name, and what an item costs for each number of producers.
struct Beside {
    name: String,
    figures: Vec<Option<(f64, f64)>>,
}

/// Asks a peer program, which may know several queues, for all numbers of producers.
fn beside(program: &Path, items: u64) -> Result<Vec<Beside>> {
    let mut found: Vec<Beside> = Vec::new();
    for (place, producers) in PRODUCERS.iter().enumerate() {
        let (producers, items, workers) = (producers.to_string(), items.to_string(), workers().to_string());
        let arguments = ["taskq", "-t", &producers, "--workers", &workers, "--tasks", &items];
        // OpenZFS's queue has entries that the caller keeps; others do not know the word.
        let mut lines = peer(program, &arguments)?;
        if lines.iter().any(|line| line["params"].is_object() && line["api"].is_string()) {
            lines.extend(peer(program, &[&arguments[..], &["--ent"]].concat())?);
        }
        for line in lines {
            let name = match (line["label"].as_str(), line["api"].as_str()) {
                (Some(label), _) if !label.is_empty() => label.to_owned(),
                (_, Some(api)) => format!("OpenZFS {api}"),
                _ => "a peer".to_owned(),
            };
            let per_s = line["iops"].as_f64().context("the peer's report has no iops")?;
            let cpu_s =
                ["cpu_user_s", "cpu_sys_s"].map(|field| line[field].as_f64().unwrap_or(f64::NAN)).iter().sum::<f64>();
            let ops = line["ops"].as_f64().unwrap_or(f64::NAN);
            if !found.iter().any(|beside| beside.name == name) {
                found.push(Beside { name: name.clone(), figures: vec![None; PRODUCERS.len()] });
            }
            for beside in found.iter_mut().filter(|beside| beside.name == name) {
                beside.figures[place] = Some((1e9 / per_s, cpu_s * 1e9 / ops));
            }
        }
    }
    Ok(found)
}

/// What an item costs by the number of producers.
fn flat(suite: &mut Suite, quick: bool, peers: &[PathBuf]) -> Result<()> {
    let items: u64 = if quick { 200_000 } else { 2_000_000 };
    let rounds = if quick { 3 } else { 5 };
    let mut queues: Vec<Beside> = Vec::new();
    for (name, measure) in OURS {
        let mut figures = Vec::new();
        for producers in PRODUCERS {
            let mut best: Option<(f64, f64)> = None;
            for _ in 0..rounds {
                let (wall, cpu) = per_item_ns(&measure(producers, items)?, items);
                let (best_wall, best_cpu) = best.unwrap_or((wall, cpu));
                best = Some((wall.min(best_wall), cpu.min(best_cpu)));
            }
            figures.push(best);
        }
        queues.push(Beside { name: name.into(), figures });
    }
    let ours = queues.len();
    for program in peers {
        queues.extend(beside(program, items)?);
    }
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    let mut table = Table::new(
        "Dispatch and run of an empty item, by producers: ns of processor time (ns of wall time), the best of some rounds",
        &[&["producers"], &names[..], &["ceiling (model)"]].concat(),
    );
    for (place, producers) in PRODUCERS.iter().enumerate() {
        let cells = queues.iter().map(|queue| {
            queue.figures[place].map_or_else(|| "-".into(), |(wall, cpu)| format!("{} ({})", short(cpu), short(wall)))
        });
        table.row([producers.to_string()].into_iter().chain(cells).chain([short(CEILING_NS)]));
    }
    if peers.is_empty() {
        suite.notes.push(
            "tokio and rayon are measured beside ours with `--peer` and the program of tools/queue-peers, OpenZFS's queue in \
             userspace with a program that drives libzpool."
                .into(),
        );
    }
    suite.tables.push(table);
    let extremes = |queue: &Beside| {
        let all = || queue.figures.iter().flatten().map(|(_, cpu)| *cpu);
        (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
    };
    if let Some(own) = queues.first() {
        let (least, most) = extremes(own);
        suite.target(
            "dispatch and run of an empty item at most 60 ns of processor",
            format!("{} to {} ns", short(least), short(most)),
            most <= 60.0,
        );
        suite.target(
            "flat from 2 to 256 producers (the most at most half more than the least)",
            format!("{} times", short(most / least)),
            most <= least * 1.5,
        );
        for other in queues.iter().skip(ours) {
            let ahead = own.figures.iter().zip(&other.figures).all(|(own, other)| match (own, other) {
                (Some(own), Some(other)) => own.1 < other.1,
                _ => true,
            });
            let (other_least, other_most) = extremes(other);
            let found =
                format!("{} to {} ns, it {} to {}", short(least), short(most), short(other_least), short(other_most));
            suite.target(format!("ahead of {}", other.name), found, ahead);
        }
    }
    suite.plots.push(Plot {
        title: "An empty item, by producers".into(),
        unit: "ns of processor time".into(),
        groups: PRODUCERS.iter().map(u64::to_string).collect(),
        series: queues
            .into_iter()
            .map(|queue| (queue.name, queue.figures.iter().map(|figure| figure.map(|(_, cpu)| cpu)).collect()))
            .collect(),
    });
    Ok(())
}
