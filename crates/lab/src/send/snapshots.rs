//! Verbs of snapshots, as there are more and more of them; clones.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cenote_admin::{clone_dataset, create_filesystem, destroy_snapshots, promote, take_snapshots, tree_names};
use cenote_format::ids::Txg;
use cenote_spa::{LiveHead, Pool, TxgRecord};
use cenote_taskq::Class;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Options;
use super::rig::{Records, Rig, no_compression, write_records};
use cenote_bench::clock::Watch;
use cenote_bench::report::{Suite, Table, short};

/// Datasets of the tree.
const DATASETS: usize = 1000;
/// Times that one snapshot is taken and destroyed.
const TIMES: usize = 15;
/// The most that a verb may take of its time with the fewest snapshots.
const GROWTH_MAX: f64 = 2.0;
/// Seconds for a list of all.
const LIST_MAX_S: f64 = 1.0;
/// Bytes of the sparse file that a pool is made in.
const POOL_BYTES: u64 = 64 << 30;
/// Snapshots that are destroyed at once.
const RANGE: usize = 50_000;

/// The time of a verb in milliseconds, and the processor time.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    ms: f64,
    cpu_ms: f64,
}

/// Taking and destroying one snapshot, with so many in the pool.
#[derive(Clone, Debug, Serialize)]
struct Level {
    snapshots: usize,
    took: Vec<Cost>,
    destroyed: Vec<Cost>,
    /// Seconds of making those that were missing.
    filled_s: f64,
}

fn median(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn least(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    costs.iter().map(of).fold(f64::INFINITY, f64::min)
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<Cost> {
    let watch = Watch::start();
    work.await?;
    let took = watch.took();
    Ok(Cost { ms: took.wall_s * 1e3, cpu_ms: took.cpu_s * 1e3 })
}

async fn take(pool: &Pool, names: &[String]) -> Result<()> {
    Ok(take_snapshots(pool, names, &[]).await?)
}

/// One snapshot more and less, so many times. `older`: one that is there, which is destroyed and taken again.
async fn measure(pool: &Pool, dataset: &str, snapshots: usize, filled_s: f64) -> Result<Level> {
    let (mut took, mut destroyed) = (Vec::new(), Vec::new());
    for time in 0..TIMES {
        let names = [format!("{dataset}@one{time}")];
        took.push(timed(take(pool, &names)).await?);
        destroyed.push(timed(async { Ok(destroy_snapshots(pool, &names, false, &|_| ()).await?) }).await?);
    }
    Ok(Level { snapshots, took, destroyed, filled_s })
}

fn child(index: usize) -> String {
    format!("bench/tree/{index:04}")
}

/// A small record is written to a dataset, so that its next snapshot is another.
async fn touch(head: &LiveHead) -> Result<()> {
    write_records(head, Records { record_bytes: 4096, records: 1, objects: 1 }).await
}

async fn make_tree(pool: &Pool) -> Result<Cost> {
    create_filesystem(pool, "bench/tree", no_compression(), false).await?;
    for index in 1..DATASETS {
        create_filesystem(pool, &child(index), Vec::new(), false).await?;
    }
    let names = tree_names(pool, "bench/tree").await?;
    ensure!(names.len() == DATASETS, "the tree has all datasets");
    let names: Vec<String> = names.iter().map(|name| format!("{name}@all")).collect();
    let cost = timed(take(pool, &names)).await?;
    let dsl = pool.dsl()?;
    let mut txgs = Vec::new();
    for name in &names {
        txgs.push(dsl.dataset(name).await?.phys.creation_txg);
    }
    ensure!(txgs.windows(2).all(|two| two[0] == two[1]), "all were taken in one txg");
    destroy_snapshots(pool, &names, false, &|_| ()).await?;
    Ok(cost)
}

/// Snapshots spread over the datasets of a tree, as `snapshot -r` makes them.
async fn levels_of_many(pool: &Pool, counts: &[usize]) -> Result<Vec<Level>> {
    let mut levels = Vec::new();
    let mut made = 0;
    for &count in counts {
        let watch = Watch::start();
        while made < count {
            let step = (count - made).min(DATASETS);
            let round = made / DATASETS;
            let names: Vec<String> = (0..step)
                .map(|at| (made + at) % DATASETS)
                .map(|index| if index == 0 { "bench/tree".to_owned() } else { child(index) })
                .map(|name| format!("{name}@s{round}-{made}"))
                .collect();
            take(pool, &names).await?;
            made += step;
        }
        let filled_s = watch.took().wall_s;
        levels.push(measure(pool, &child(7), made, filled_s).await?);
    }
    Ok(levels)
}

/// Snapshots of one dataset that changes between them.
async fn levels_of_one(pool: &Pool, counts: &[usize]) -> Result<Vec<Level>> {
    create_filesystem(pool, "bench/one", no_compression(), false).await?;
    let head = pool.open_head("bench/one").await?;
    let mut levels = Vec::new();
    let mut made = 0;
    for &count in counts {
        let watch = Watch::start();
        while made < count {
            if made % 100 == 0 {
                touch(&head).await?;
            }
            take(pool, &[format!("bench/one@s{made}")]).await?;
            made += 1;
        }
        let filled_s = watch.took().wall_s;
        levels.push(measure(pool, "bench/one", made, filled_s).await?);
    }
    Ok(levels)
}

fn show(title: &str, levels: &[Level], suite: &mut Suite) {
    let columns = [
        "snapshots in the pool",
        "snapshot, ms",
        "of processor",
        "destroy, ms",
        "of processor",
        "times the first: snapshot",
        "destroy",
        "s of making those missing",
    ];
    let mut table = Table::new(title, &columns);
    for level in levels {
        let cell = |costs: &[Cost], of: fn(&Cost) -> f64| {
            format!("{}, best {}", short(median(costs, of)), short(least(costs, of)))
        };
        let [took, destroyed] = growth(levels, level);
        table.row([
            level.snapshots.to_string(),
            cell(&level.took, |cost| cost.ms),
            cell(&level.took, |cost| cost.cpu_ms),
            cell(&level.destroyed, |cost| cost.ms),
            cell(&level.destroyed, |cost| cost.cpu_ms),
            short(took),
            short(destroyed),
            short(level.filled_s),
        ]);
    }
    suite.tables.push(table);
}

/// How much longer taking and destroying take than at the first level, by medians.
fn growth(levels: &[Level], level: &Level) -> [f64; 2] {
    let Some(first) = levels.first() else { return [f64::NAN; 2] };
    let times = |now: &[Cost], then: &[Cost]| median(now, |cost| cost.ms) / median(then, |cost| cost.ms);
    [times(&level.took, &first.took), times(&level.destroyed, &first.destroyed)]
}

fn grows(what: &str, levels: &[Level], suite: &mut Suite) {
    let Some(last) = levels.last() else { return };
    let [took, destroyed] = growth(levels, last);
    let wanted =
        |verb: &str| format!("{verb} of one with {} snapshots in {what}: below 2 times that at 10", last.snapshots);
    suite.target(wanted("snapshot"), format!("{} times", short(took)), took < GROWTH_MAX);
    suite.target(wanted("destroy"), format!("{} times", short(destroyed)), destroyed < GROWTH_MAX);
}

/// Snapshots of many datasets: one of all, more and more of them, a list of all, and half of them destroyed.
pub(super) fn many(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let counts: &[usize] = if options.quick { &[10, 1000, 10_000] } else { &[10, 1000, 10_000, 100_000] };
    let mut rig = Rig::in_file(&options.folder, POOL_BYTES, true)?;
    let pool = rig.pool()?;
    let (all, levels) = rig.run(async move {
        let all = make_tree(&pool).await?;
        anyhow::Ok((all, levels_of_many(&pool, counts).await?))
    })?;
    show(&format!("Snapshots of {DATASETS} datasets"), &levels, suite);
    grows("many datasets", &levels, suite);
    suite.target(
        format!("snapshot -r of {DATASETS} datasets in one txg"),
        format!("{} ms, {} of processor", short(all.ms), short(all.cpu_ms)),
        true,
    );
    rig.export()?;
    let count = counts.last().copied().unwrap_or(0);
    let lists = (0..options.rounds.max(3)).map(|_| list(&options.program, &rig, count)).collect::<Result<Vec<_>>>()?;
    rig.reopen_exported()?;
    let pool = rig.pool()?;
    let range = RANGE.min(count / 2);
    let background = rig.run(async move { destroy_beside(&pool, range).await })?;
    let fastest = |at: usize| lists.iter().map(|list| list[at]).fold(f64::INFINITY, f64::min);
    let mut table = Table::new(format!("zfs list -t all of {count} snapshots, the whole command"), &["columns", "s"]);
    for (at, what) in ["name", "name, used, avail, refer, mountpoint"].into_iter().enumerate() {
        let each: Vec<String> = lists.iter().map(|list| short(list[at])).collect();
        table.row([what.to_owned(), each.join(", ")]);
    }
    suite.tables.push(table);
    suite.target(format!("list of {count} snapshots below 1 s"), short(fastest(1)), fastest(1) < LIST_MAX_S);
    background.show(range, suite);
    raw.insert("snapshots".into(), json!({ "all": all, "levels": levels, "list_s": lists, "destroy": background }));
    Ok(())
}

/// Snapshots of one dataset.
pub(super) fn one(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let counts: &[usize] = if options.quick { &[10, 1000] } else { &[10, 1000, 10_000] };
    let rig = Rig::in_file(&options.folder, POOL_BYTES, true)?;
    let pool = rig.pool()?;
    let levels = rig.run(async move { levels_of_one(&pool, counts).await })?;
    show("Snapshots of one dataset", &levels, suite);
    grows("one dataset", &levels, suite);
    raw.insert("snapshots-of-one".into(), json!(levels));
    Ok(())
}

/// Seconds of listing all by name, and with the usual columns.
fn list(program: &Path, rig: &Rig, count: usize) -> Result<[f64; 2]> {
    let mut seconds = [0.0; 2];
    for (at, columns) in ["name", "name,used,avail,refer,mountpoint"].into_iter().enumerate() {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(["zfs", "-d"]).arg(rig.path()).args(["-f", "list", "-H", "-t", "all", "-o", columns]);
        let told = command.stdin(Stdio::null()).output().context("cenote zfs list")?;
        seconds[at] = begun.elapsed().as_secs_f64();
        ensure!(told.status.success(), "cenote zfs list: {}", String::from_utf8_lossy(&told.stderr));
        let lines = told.stdout.iter().filter(|byte| **byte == b'\n').count();
        ensure!(lines > count, "it has {lines} lines for {count} snapshots and their datasets");
    }
    Ok(seconds)
}

/// Lengths of txgs before and while many snapshots were destroyed.
#[derive(Clone, Debug, Serialize)]
struct Background {
    snapshots: usize,
    took_s: f64,
    cpu_s: f64,
    before_ms: Vec<f64>,
    during_ms: Vec<f64>,
}

impl Background {
    fn show(&self, range: usize, suite: &mut Suite) {
        let at = |values: &[f64], part: f64| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(((sorted.len().saturating_sub(1)) as f64 * part) as usize).copied().unwrap_or(f64::NAN)
        };
        let mut table = Table::new(
            format!("Destroying {range} snapshots beside a writer, {} s", short(self.took_s)),
            &["ms of a txg", "txgs", "median", "nine of ten", "longest"],
        );
        for (what, values) in [("before", &self.before_ms), ("meanwhile", &self.during_ms)] {
            let [median, most, longest] = [0.5, 0.9, 1.0].map(|part| short(at(values, part)));
            table.row([what.to_owned(), values.len().to_string(), median, most, longest]);
        }
        suite.tables.push(table);
        let times = at(&self.during_ms, 1.0) / at(&self.before_ms, 0.5);
        let wanted = format!("destroy of {range} snapshots without a txg above 2 times the usual length");
        suite.target(wanted, format!("{} times", short(times)), times <= GROWTH_MAX);
    }
}

/// Lengths of the txgs from one on, in milliseconds.
fn lengths(records: &[TxgRecord], first: Txg) -> Vec<f64> {
    records.iter().filter(|record| record.txg >= first).map(|record| record.took.as_secs_f64() * 1e3).collect()
}

/// Destroys snapshots of the tree while a client writes.
async fn destroy_beside(pool: &Pool, count: usize) -> Result<Background> {
    create_filesystem(pool, "bench/written", no_compression(), false).await?;
    let head = pool.open_head("bench/written").await?;
    let ended = Arc::new(AtomicBool::new(false));
    let (handle, flag, writing) = (pool.handle().clone(), ended.clone(), head.clone());
    let writer = handle.spawn(Class::Issue, async move {
        while !flag.load(Ordering::Relaxed) {
            write_records(&writing, Records { record_bytes: 128 << 10, records: 160, objects: 1 }).await?;
            writing.pool().sync().await?;
        }
        anyhow::Ok(())
    });
    pool.sync().await?;
    let first = pool.txgs().open_txg();
    handle.sleep(Duration::from_secs(2)).await;
    let mut before_ms = lengths(&pool.history(), first);
    // The first few find a cold cache.
    before_ms.drain(..before_ms.len().min(3));
    let dsl = pool.dsl()?;
    let mut names = Vec::new();
    for dir in dsl.tree(dsl.dir("bench/tree").await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        names.extend(dsl.snapshots(&head).await?.iter().map(cenote_dsl::Dataset::name));
        if names.len() >= count {
            break;
        }
    }
    names.truncate(count);
    ensure!(names.len() == count, "there are so many snapshots");
    let (watch, first) = (Watch::start(), pool.txgs().open_txg());
    let seen = Arc::new(cenote_taskq::sync::Mutex::new((first, Vec::new())));
    let told = {
        let (pool, seen) = (pool.clone(), seen.clone());
        move |_: usize| {
            // The pool keeps some records only.
            let mut seen = seen.lock();
            let records = pool.history();
            let mut more = lengths(&records, seen.0);
            seen.1.append(&mut more);
            seen.0 = records.last().map_or(seen.0, |last| Txg(last.txg.0 + 1).max(seen.0));
        }
    };
    destroy_snapshots(pool, &names, false, &told).await?;
    let took = watch.took();
    told(0);
    let during_ms = std::mem::take(&mut seen.lock().1);
    ended.store(true, Ordering::Relaxed);
    writer.await.map_err(|error| anyhow!("{error}"))??;
    Ok(Background { snapshots: count, took_s: took.wall_s, cpu_s: took.cpu_s, before_ms, during_ms })
}

/// Clones of a small and a large snapshot, and a promotion that takes a thousand snapshots along.
pub(super) fn clones(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let rig = Rig::in_file(&options.folder, POOL_BYTES, true)?;
    let pool = rig.pool()?;
    let records: u64 = if options.quick { 1000 } else { 100_000 };
    let costs = rig.run(async move {
        let mut costs = Vec::new();
        for (name, records) in [("small", 1), ("large", records)] {
            let dataset = format!("bench/{name}");
            create_filesystem(&pool, &dataset, no_compression(), false).await?;
            let head = pool.open_head(&dataset).await?;
            write_records(&head, Records { record_bytes: 4096, records, objects: 1 }).await?;
            drop(head);
            let origin = format!("{dataset}@origin");
            take(&pool, std::slice::from_ref(&origin)).await?;
            for time in 0..TIMES {
                let clone = format!("bench/{name}-clone{time}");
                let used = pool.dsl()?.root_dir().await?.phys.used_bytes;
                let cost = timed(async { Ok(clone_dataset(&pool, &origin, &clone, Vec::new()).await?) }).await?;
                pool.sync().await?;
                let bytes = pool.dsl()?.root_dir().await?.phys.used_bytes.saturating_sub(used);
                costs.push((format!("clone of a snapshot of {records} records"), cost, Some(bytes)));
            }
        }
        // A chain of clones, each of a snapshot of the one before.
        let mut last = "bench/small".to_owned();
        for link in 0..DATASETS {
            let origin = format!("{last}@link{link}");
            take(&pool, std::slice::from_ref(&origin)).await?;
            last = format!("bench/chain{link}");
            clone_dataset(&pool, &origin, &last, Vec::new()).await?;
        }
        for link in (DATASETS - TIMES..DATASETS).rev() {
            let name = format!("bench/chain{link}");
            let cost = timed(async { Ok(promote(&pool, &name).await?) }).await?;
            costs.push((format!("promote in a chain of {DATASETS} clones"), cost, None));
        }
        let head = "bench/snapped";
        create_filesystem(&pool, head, no_compression(), false).await?;
        for snapshot in 0..DATASETS {
            take(&pool, &[format!("{head}@s{snapshot}")]).await?;
        }
        let origin = format!("{head}@s{}", DATASETS - 1);
        clone_dataset(&pool, &origin, "bench/promoted", Vec::new()).await?;
        let (mut now, mut then) = ("bench/promoted", head);
        for _ in 0..TIMES {
            let cost = timed(async { Ok(promote(&pool, now).await?) }).await?;
            costs.push((format!("promote with {DATASETS} snapshots"), cost, None));
            std::mem::swap(&mut now, &mut then);
        }
        anyhow::Ok(costs)
    })?;
    let mut table = Table::new("Clones", &["what", "ms, median", "best", "ms of processor", "bytes more in use"]);
    let mut medians = Vec::new();
    for group in costs.chunk_by(|one, next| one.0 == next.0) {
        let what = group.first().map_or_else(String::new, |first| first.0.clone());
        let each: Vec<Cost> = group.iter().map(|(_, cost, _)| *cost).collect();
        let bytes = group.iter().filter_map(|(_, _, bytes)| *bytes).max();
        medians.push(median(&each, |cost| cost.ms));
        table.row([
            what,
            short(median(&each, |cost| cost.ms)),
            short(least(&each, |cost| cost.ms)),
            short(median(&each, |cost| cost.cpu_ms)),
            bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string()),
        ]);
    }
    suite.tables.push(table);
    let times = medians.get(1).copied().unwrap_or(f64::NAN) / medians.first().copied().unwrap_or(f64::NAN);
    suite.target(
        "clone in constant time",
        format!("{} times with {records} records", short(times)),
        times < GROWTH_MAX,
    );
    raw.insert("clones".into(), json!(costs));
    Ok(())
}
