//! `cenote-lab taskq`: many producers dispatch many empty items (M1).

mod historic;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cenote_taskq::{Class, Entry, IoChoice, JoinSet, Runtime, RuntimeOptions, yield_now};

use cenote_bench::clock::Watch;
use cenote_bench::report::{Plot, Suite, Table, short};
use cenote_bench::whole::peer;

/// Producers of the measurement by number of them.
const PRODUCERS: [u64; 5] = [2, 8, 32, 128, 256];
/// The cost of a task that a worker dispatches to itself, by the model: a push, a pop and the task, in nanoseconds.
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
    let refused = AtomicU64::new(0);
    let (watch, start) = (Watch::start(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                let each = items / producers;
                let stood: u64 = (0..each).map(|_| u64::from(group.dispatch(Class::Issue, || ()).is_ok())).sum();
                refused.fetch_add(each - stood, Ordering::Relaxed);
            });
        }
    });
    // An item leaves the group when it has run.
    runtime.block_on(group.close());
    let took = Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s };
    ensure!(refused.load(Ordering::Relaxed) == 0, "an open group refuses nobody");
    ensure!(group.dispatch(Class::Issue, || ()).is_err(), "a dispatch after the close is refused");
    Ok(took)
}

/// How a producer that is a task of the runtime dispatches an empty item.
#[derive(Clone, Copy)]
enum How {
    /// A closure, as a member of a group.
    Closure,
    /// The same, with a word that it captures.
    Capture,
    /// A future, as a member of a group.
    Future,
    /// An entry that was made before.
    Entry,
}

/// Items that a producer dispatches before it lets others run; also how many entries it has.
const STRETCH: u64 = 256;

/// Our runtime, producers being tasks of its own: how the engine dispatches. After one stretch of each producer for nothing,
/// so that memory is there: a runtime lives for long.
fn from_tasks(how: How, producers: u64, items: u64) -> Result<Took> {
    let runtime = runtime()?;
    tasks_dispatch(&runtime, how, producers, producers * STRETCH)?;
    tasks_dispatch(&runtime, how, producers, items)
}

fn tasks_dispatch(runtime: &Runtime, how: How, producers: u64, items: u64) -> Result<Took> {
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
                        How::Capture => {
                            u64::from(group.dispatch(Class::Issue, move || _ = std::hint::black_box(index)).is_ok())
                        }
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
const OURS: [(&str, Measure); 5] = [
    ("ours", |producers, items| from_tasks(How::Closure, producers, items)),
    ("ours, capturing", |producers, items| from_tasks(How::Capture, producers, items)),
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
pub(crate) fn run(quick: bool, peers: &[PathBuf]) -> Result<Suite> {
    let mut suite = Suite {
        name: "taskq".into(),
        title: "a queue of many small items (M1)".into(),
        notes: vec![
            format!(
                "{FOUNDING_PRODUCERS} producers dispatch empty items to {FOUNDING_THREADS} threads of a queue with one lock, as in \
                 taskq:contention. The historic rows differ only in who is woken when; ours has as many workers as cores. All rows \
                 are measured in turns, and each has the best of its rounds: what other programs do only slows, and a holder of a \
                 lock that loses its core holds it on. Hold time is of the queue's own lock, from runs of their own, since noting it \
                 slows a run. What the kernel's mutexes cost is not \
                 what these cost: the order of the rows is the point."
            ),
            "Ours: dispatch goes to the worker's own queue, or to a shared lock-free one from other threads; one dispatch wakes at \
             most one worker, outside any lock, and none while one is searching or the items are few and short. Producers are tasks \
             of the runtime, as everything in the engine is, or threads of their own, as in the historic rows. Each item is a member \
             of a group, which is how their end is waited for; an entry is made once and dispatched again and again."
                .into(),
        ],
        ..Suite::default()
    };
    founding(&mut suite, quick)?;
    flat(&mut suite, quick, peers)?;
    Ok(suite)
}

/// Threads of the queue and producers, in the founding table.
const FOUNDING_THREADS: u64 = 16;
const FOUNDING_PRODUCERS: u64 = 16;

/// The document's table, and ours in its terms.
fn founding(suite: &mut Suite, quick: bool) -> Result<()> {
    let items: u64 = if quick { 40_000 } else { 400_000 };
    let rounds = if quick { 9 } else { 11 };
    let mut walls = [f64::INFINITY; historic::VARIANTS.len()];
    let mut holds = walls;
    let mut ours: [(&str, Measure, f64); 2] = [
        ("ours, producers are tasks", |producers, items| from_tasks(How::Closure, producers, items), f64::INFINITY),
        ("ours, producers are threads", from_threads, f64::INFINITY),
    ];
    for _ in 0..rounds {
        for (place, (variant, ..)) in historic::VARIANTS.into_iter().enumerate() {
            let wall = historic::wall(variant, FOUNDING_THREADS, FOUNDING_PRODUCERS, items);
            let held = historic::hold(variant, FOUNDING_THREADS, FOUNDING_PRODUCERS, items);
            walls[place] = walls[place].min(wall.as_secs_f64());
            holds[place] = holds[place].min(held.as_secs_f64());
        }
        for (_, measure, best) in &mut ours {
            *best = best.min(measure(FOUNDING_PRODUCERS, items)?.wall.as_secs_f64());
        }
    }
    let mut table = Table::new(
        format!("The document's table and ours, {items} items"),
        &["queue", "document: hold, s", "wall, s", "% less", "here: hold, ms", "wall, ms", "% less"],
    );
    let less = |value: f64, first: f64| format!("{:.1}", (1.0 - value / first) * 100.0);
    for (place, (variant, document_us, document_s)) in historic::VARIANTS.into_iter().enumerate() {
        table.row([
            variant.name.to_owned(),
            short(document_us / 1e6),
            short(document_s),
            less(document_s, historic::VARIANTS[0].2),
            short(holds[place] * 1e3),
            short(walls[place] * 1e3),
            less(walls[place], walls[0]),
        ]);
    }
    let mut own = |name: &str, hold: &str, wall_s: f64| {
        let cells = [name, "-", "-", "-", hold].map(str::to_owned).into_iter();
        table.row(cells.chain([short(wall_s * 1e3), less(wall_s, walls[0])]));
    };
    for (name, _, wall_s) in ours {
        own(name, "no such lock", wall_s);
    }
    own("ceiling (model: 50 ns an item on every core)", "none", items as f64 * CEILING_NS / 1e9 / workers() as f64);
    suite.tables.push(table);
    suite.notes.push(
        "OpenZFS today: still one lock and one list of waiters for each queue, and so many queues (one for about six threads)."
            .into(),
    );
    let ours_s = ours.map(|(_, _, wall_s)| wall_s);
    suite.plots.push(Plot {
        title: format!("{items} items from {FOUNDING_PRODUCERS} producers"),
        unit: "ms".into(),
        groups: ["original", "exclusive", "lazily", "wakes outside", "ours (tasks)", "ours (threads)"]
            .map(str::to_owned)
            .into(),
        series: vec![
            ("wall".into(), walls.iter().chain(&ours_s).map(|s| Some(s * 1e3)).collect()),
            ("lock held".into(), holds.iter().map(|s| Some(s * 1e3)).chain([None, None]).collect()),
        ],
    });
    let listed = |all: &[f64]| all.iter().map(|s| short(s * 1e3)).collect::<Vec<_>>().join(", ");
    suite.target(
        "the four rows in their order of hold time",
        format!("{} ms", listed(&holds)),
        holds.windows(2).all(|pair| pair[1] <= pair[0]),
    );
    suite.target(
        "rows two to four faster on the wall than row one",
        format!("{} ms", listed(&walls)),
        walls[1..].iter().all(|wall| *wall < walls[0]),
    );
    for (name, _, wall_s) in ours {
        suite.target(
            format!("{name}: wall at most 1/10 of row one"),
            short(wall_s / walls[0]),
            wall_s <= walls[0] / 10.0,
        );
    }
    Ok(())
}

/// A queue that is measured beside ours: its name, and the cost of an item for each number of producers.
struct Beside {
    name: String,
    figures: Vec<Option<(f64, f64)>>,
}

/// Asks a peer program, which may know several queues, for all numbers of producers. Numbers that it leaves out are noted.
fn beside(program: &Path, items: u64, rounds: u32, notes: &mut Vec<String>) -> Result<Vec<Beside>> {
    let mut found: Vec<Beside> = Vec::new();
    for (place, producers) in PRODUCERS.iter().enumerate() {
        let (producers, items, workers) = (producers.to_string(), items.to_string(), workers().to_string());
        let arguments = ["taskq", "-t", &producers, "--workers", &workers, "--tasks", &items];
        // OpenZFS's queue has entries that the caller keeps; others do not know the word.
        let mut lines = peer(program, &arguments)?;
        if lines.iter().any(|line| line["params"].is_object() && line["api"].is_string()) {
            lines.extend(peer(program, &[&arguments[..], &["--ent"]].concat())?);
        }
        for _ in 1..rounds {
            lines.extend(peer(program, &arguments)?);
        }
        for line in lines {
            if let (Some(label), Some(why)) = (line["label"].as_str(), line["left_out"].as_str()) {
                let note = format!("Left out: {label}: {why}.");
                if !notes.contains(&note) {
                    notes.push(note);
                }
                continue;
            }
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
                let (wall, cpu) = (1e9 / per_s, cpu_s * 1e9 / ops);
                let (best_wall, best_cpu) = beside.figures[place].unwrap_or((wall, cpu));
                beside.figures[place] = Some((wall.min(best_wall), cpu.min(best_cpu)));
            }
        }
    }
    Ok(found)
}

/// The cost of an item by the number of producers.
fn flat(suite: &mut Suite, quick: bool, peers: &[PathBuf]) -> Result<()> {
    let items: u64 = if quick { 200_000 } else { 2_000_000 };
    let rounds: u32 = if quick { 5 } else { 9 };
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
        queues.extend(beside(program, items, rounds, &mut suite.notes)?);
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
            "tokio, rayon and OpenZFS's queue in userspace are measured beside ours with `--peer` and the program of \
             tools/queue-peers. On another machine of two virtual cores OpenZFS's took 120 to 360 ns an item on the wall with as \
             many producers as threads, from 1 to 16 (2.3.2)."
                .into(),
        );
    }
    suite.tables.push(table);
    let extremes = |queue: &Beside| {
        let all = || queue.figures.iter().flatten().map(|(_, cpu)| *cpu);
        (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
    };
    let from_threads = queues.iter().position(|queue| queue.name.ends_with("from threads"));
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
            // Like with like.
            let threads = from_threads.filter(|_| other.name.ends_with("from threads"));
            let own = threads.map_or(own, |place| &queues[place]);
            let (least, most) = extremes(own);
            let ahead = own.figures.iter().zip(&other.figures).all(|(own, other)| match (own, other) {
                (Some(own), Some(other)) => own.1 < other.1,
                _ => true,
            });
            let (other_least, other_most) = extremes(other);
            let found =
                format!("{} to {} ns, it {} to {}", short(least), short(most), short(other_least), short(other_most));
            suite.target(format!("{} ahead of {}", own.name, other.name), found, ahead);
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
