//! On files of one folder: the raw device, the library with its log and with batches, and the OpenZFS code in userspace.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow};
use cenote_dmu::tx::SyncMode;
use cenote_format::enums::ObjsetType;
use cenote_spa::LiveHead;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Direct, OpenOptions, Rng, Runtime, RuntimeOptions};
use cenote_zil::Log;
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};
use cenote_zvol::live::LiveVolume;
use cenote_zvol::{Volume, VolumeSpec};
use serde_json::{Map, Value, json};

use super::batch::Batch;
use super::{LogWork, Options, Round, WRITE_BYTES, WRITERS, log_counts, middle};
use cenote_bench::clock::{Took, Watch, context_switches};
use cenote_bench::report::{Suite, Table, short};
use cenote_bench::whole::peer;
use cenote_bench::writing::rig::{PoolSpec, Rig, filled, noise};

/// Bytes of a write's record, and of a block's link.
const RECORD_BYTES: usize = WRITE_BYTES + 192;
const CHAIN_BYTES: usize = 184;
/// The largest block of a log.
const BLOCK_MAX_BYTES: usize = 128 << 10;
/// Bytes of a file, and of what is written over.
const POOL_BYTES: u64 = 2 << 30;
pub(super) const DATA_BYTES: u64 = 64 << 20;
/// As on a machine with 10 GiB of memory, so that time and not dirty data ends a txg, as for the peer.
const DIRTY_MAX_BYTES: u64 = 1 << 30;
/// Of a pool in memory.
const MEMORY_BYTES: u64 = 1 << 30;
pub(super) const SPEC: PoolSpec =
    PoolSpec { size_bytes: POOL_BYTES, has_log: true, metaslabs_min: 64, dirty_max_bytes: DIRTY_MAX_BYTES };
pub(super) const VOLUME: &str = "bench/v";
pub(super) const COLUMNS: [&str; 12] = [
    "writers",
    "who",
    "writes/s",
    "median us",
    "p99 us",
    "p99.9 us",
    "cpu us",
    "switches",
    "blocks",
    "flushes",
    "log bytes",
    "txgs",
];

/// Measures on files of the folder.
pub(super) fn folder(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let mut table = Table::new("4 KiB, each stable before the writer's next", &COLUMNS);
    let mut all = Vec::new();
    for writers in WRITERS {
        let whos = ["raw", "grouped", "volume", "files", "batch", "peer"];
        let found = rows(&mut table, &mut all, options.rounds, writers, &whos, |who| on_files(options, who, writers))?;
        targets(suite, writers, &found);
    }
    suite.notes.push(
        "raw: each writer writes 4 KiB at random and flushes. grouped: one writer writes log blocks with all writers' records and flushes \
         once. volume, files: through the library, a file for each writer. batch: files, with commits as they were before M4: one batch at \
         a time, whose end all wait for. peer: OpenZFS's code in userspace. Each writer waits for its write to be stable before the next. \
         cpu us, switches, blocks, flushes, log bytes: for each write, the processor time of all threads and how often one was taken off \
         a processor, the blocks and bytes of the log, and its flushes (of batches: one each)."
            .into(),
    );
    suite.tables.push(table);
    raw.insert("folder".into(), all.into());
    Ok(())
}

/// Measures what a commit costs where the device costs next to nothing.
pub(super) fn memory(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let mut table = Table::new("The same on a device in memory, which answers at once", &COLUMNS);
    let mut all = Vec::new();
    for writers in [1, 16] {
        rows(&mut table, &mut all, options.rounds, writers, &["volume", "files"], |who| {
            let rig = Rig::in_memory(PoolSpec { size_bytes: MEMORY_BYTES, ..SPEC })?;
            library(&rig, who, None, writers, options.seconds).map(Some)
        })?;
    }
    suite.tables.push(table);
    raw.insert("memory".into(), all.into());
    Ok(())
}

/// Adds a row for each of these, in the middle of some rounds.
pub(super) fn rows<'a>(
    table: &mut Table,
    raw: &mut Vec<Value>,
    rounds: u32,
    writers: usize,
    whos: &[&'a str],
    measure: impl Fn(&str) -> Result<Option<Round>>,
) -> Result<Vec<(&'a str, Round)>> {
    let mut found = Vec::new();
    for &who in whos {
        let mut measured = Vec::new();
        for _ in 0..rounds.max(1) {
            measured.extend(measure(who)?);
        }
        if measured.is_empty() {
            continue;
        }
        raw.extend(measured.iter().map(|round| json!({ "writers": writers, "who": who, "round": round.json() })));
        let round = middle(measured)?;
        let figures = [Some(round.per_s), Some(round.median_us), Some(round.p99_us), round.p999_us, Some(round.cpu_us)];
        let log = round.log.map_or([None; 4], |log| [log.blocks, log.flushes, log.bytes, log.txgs as f64].map(Some));
        let cells = figures.into_iter().chain([round.switches]).chain(log);
        let cells = cells.map(|figure| figure.map_or_else(|| "-".to_owned(), short));
        table.row([writers.to_string(), who.to_owned()].into_iter().chain(cells));
        found.push((who, round));
    }
    Ok(found)
}

fn targets(suite: &mut Suite, writers: usize, rates: &[(&str, Round)]) {
    let of = |who: &str| rates.iter().find(|rate| rate.0 == who).map(|rate| &rate.1);
    if let (4.., Some(files), Some(batch)) = (writers, of("files"), of("batch")) {
        let ratio = files.per_s / batch.per_s;
        suite.target(format!("files, {writers} writers: rate >= 1.53 of batches"), short(ratio), ratio >= 1.53);
    }
    for who in ["volume", "files"] {
        let Some(ours) = of(who) else { continue };
        // Of one writer the perfectly grouped block is the bytes that the log writes for it.
        if let (1, Some(same)) = (writers, of("grouped")) {
            let ratio = ours.median_us / same.median_us;
            let wanted = format!("{who}, 1 writer: latency <= 1.15 of a write and flush of the same bytes");
            suite.target(wanted, short(ratio), ratio <= 1.15);
        }
        if let (16.., Some(grouped)) = (writers, of("grouped")) {
            let ratio = ours.per_s / grouped.per_s;
            suite.target(format!("{who}, {writers} writers: rate >= 0.85 of grouped"), short(ratio), ratio >= 0.85);
        }
        if let (16.., Some(peer)) = (writers, of("peer")) {
            let ratio = ours.per_s / peer.per_s;
            suite.target(format!("{who}, {writers} writers: rate >= 2 of the peer"), short(ratio), ratio >= 2.0);
        }
        if let Some(peer) = of("peer") {
            let ratio = ours.cpu_us / peer.cpu_us;
            suite.target(format!("{who}, {writers} writers: cpu <= 1/4 of the peer"), short(ratio), ratio <= 0.25);
        }
    }
}

/// A round; none where there is no peer.
fn on_files(options: &Options, who: &str, writers: usize) -> Result<Option<Round>> {
    let Options { folder, seconds, .. } = options;
    match who {
        "raw" => raw(folder, writers, WRITE_BYTES, 1, *seconds).map(Some),
        "grouped" => {
            let bytes = (CHAIN_BYTES + writers * RECORD_BYTES).next_multiple_of(4096);
            raw(folder, 1, bytes, writers, *seconds).map(Some)
        }
        "volume" | "files" => library(&Rig::new(folder, SPEC)?.keep_file(), who, None, writers, *seconds).map(Some),
        "batch" => {
            let rig = Rig::with_settings(folder, SPEC, Batch::settings()?)?.keep_file();
            let (handle, path) = (rig.runtime().handle(), folder.join("pool"));
            let device = rig.run(async move { Ok(handle.open(&path, OpenOptions::default()).await?) })?;
            library(&rig, "files", Some(Batch::new(vec![Arc::new(device)])), writers, *seconds).map(Some)
        }
        _ => options.peer.as_deref().map(|program| peers(program, folder, writers, *seconds)).transpose(),
    }
}

/// So many tasks that write so many bytes each and flush; each stands for `count` writes.
fn raw(folder: &Path, tasks: usize, bytes: usize, count: usize, seconds: f64) -> Result<Round> {
    let path = folder.join("raw");
    filled(&path, DATA_BYTES * 2)?;
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let handle = runtime.handle();
    let options = OpenOptions { write: true, direct: Direct::Always, ..OpenOptions::default() };
    let device = Arc::new(runtime.block_on(handle.open(&path, options))?);
    let write = move |task: usize, number: u64| {
        let device = device.clone();
        async move {
            let mut rng = Rng::new((task as u64) << 32 | number);
            let mut at = rng.below(DATA_BYTES / 4096) * 4096;
            let mut left = bytes;
            while left > 0 {
                let len = left.min(BLOCK_MAX_BYTES);
                device.write(at, noise(len, number)).await?;
                (at, left) = (at + len as u64, left - len);
            }
            Ok(device.flush().await?)
        }
    };
    let Timed { latencies_ns, took, switches } = timed(&runtime, tasks, seconds, write)?;
    let all = latencies_ns.into_iter().flat_map(|latency| std::iter::repeat_n(latency, count)).collect();
    Round::of(all, took, switches, None)
}

/// Writes that were timed.
struct Timed {
    latencies_ns: Vec<u64>,
    took: Took,
    switches: Option<u64>,
}

/// Has tasks write one after the other for some seconds.
fn timed<F, W>(runtime: &Runtime, tasks: usize, seconds: f64, write: F) -> Result<Timed>
where
    F: Fn(usize, u64) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let handle = runtime.handle();
    let (watch, before) = (Watch::start(), context_switches());
    let ended = Arc::new(AtomicBool::new(false));
    let joins: Vec<_> = (0..tasks)
        .map(|task| {
            let (write, ended, handle) = (write.clone(), ended.clone(), handle.clone());
            let clock = handle.clone();
            handle.spawn(Class::Issue, async move {
                let mut latencies = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    let begun = clock.now();
                    write(task, latencies.len() as u64).await?;
                    latencies.push(u64::try_from((clock.now() - begun).as_nanos())?);
                }
                anyhow::Ok(latencies)
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
    ended.store(true, Ordering::Relaxed);
    let mut latencies_ns = Vec::new();
    for join in joins {
        latencies_ns.extend(runtime.block_on(join).map_err(|error| anyhow!("{error}"))??);
    }
    let switches = context_switches().zip(before).map(|(now, before)| now.saturating_sub(before));
    Ok(Timed { latencies_ns, took: watch.took(), switches })
}

/// Through the library; with batches where there are some.
fn library(rig: &Rig, who: &str, batch: Option<Batch>, writers: usize, seconds: f64) -> Result<Round> {
    let head = rig.head()?;
    let data = noise(WRITE_BYTES, 5);
    if who == "volume" {
        let volume = Arc::new(rig.run(volume(head))?);
        return warmed(rig, None, writers, seconds, move |task: usize, number: u64| {
            let (volume, data) = (volume.clone(), data.clone());
            async move {
                let at = Rng::new((task as u64) << 32 | number).below(DATA_BYTES / 4096) * 4096;
                volume.write(at, &data).await?;
                Ok(volume.commit_if_sync(true).await?)
            }
        });
    }
    let (files, log) = rig.run(files(head, writers, data.clone()))?;
    let (files, batch) = (Arc::new(files), batch.map(Arc::new));
    warmed(rig, batch.clone(), writers, seconds, move |task: usize, number: u64| {
        let (files, log, data, batch) = (files.clone(), log.clone(), data.clone(), batch.clone());
        async move {
            let at = Rng::new((task as u64) << 32 | number).below(256) * 4096;
            files[task].write(at, &data).await?;
            match batch {
                Some(batch) => batch.commit(async { Ok(log.sync(None).await?) }).await,
                None => Ok(log.sync(Some(files[task].id())).await?),
            }
        }
    })
}

/// Writes for a moment, so that the log is begun, and then for as long as is measured.
pub(super) fn warmed<F, W>(
    rig: &Rig,
    batch: Option<Arc<Batch>>,
    writers: usize,
    seconds: f64,
    write: F,
) -> Result<Round>
where
    F: Fn(usize, u64) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let head = rig.head()?;
    let pool = head.pool();
    timed(rig.runtime(), writers, 0.2, write.clone())?;
    let batches = || batch.as_ref().map_or(0, |batch| batch.batches());
    let before = (pool.txgs().synced_txg(), log_counts(pool)?, batches());
    let Timed { latencies_ns, took, switches } = timed(rig.runtime(), writers, seconds, write)?;
    let log = log_counts(pool)?.since(before.1);
    let each = |count: u64| count as f64 / latencies_ns.len().max(1) as f64;
    let work = LogWork {
        blocks: each(log.blocks),
        flushes: each(log.flushes + batches() - before.2),
        bytes: each(log.bytes),
        txgs: (pool.txgs().synced_txg().0 - before.0.0) as usize,
    };
    Round::of(latencies_ns, took, switches, Some(work))
}

pub(super) async fn volume(head: LiveHead) -> Result<LiveVolume> {
    let pool = head.pool();
    let made = pool.create_dataset(VOLUME, ObjsetType::Zvol).await?;
    let spec = VolumeSpec { size_bytes: DATA_BYTES, block_bytes: 8 << 10 };
    Volume::create(&made.objset, pool.txg(), &spec).await?;
    let head = pool.open_head(VOLUME).await?;
    let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await?;
    let data = noise(1 << 20, 3);
    for at in 0..DATA_BYTES >> 20 {
        volume.write(at << 20, &data).await?;
    }
    pool.sync().await?;
    Ok(volume)
}

async fn files(head: LiveHead, writers: usize, data: Block) -> Result<(Vec<cenote_zpl::File>, Arc<Log>)> {
    let log = Arc::new(head.log(SyncMode::Standard));
    let options = FileSystemOptions { record_bytes: 8 << 10, ..FileSystemOptions::default() };
    let fs = FileSystem::open_logged(head.objset(), log.clone(), options).await?;
    let mut files = Vec::new();
    for writer in 0..writers {
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, _) = fs.create_file(fs.root(), writer.to_string().as_bytes(), &new).await?;
        for at in 0..256 {
            file.write(at * 4096, &data).await?;
        }
        files.push(file);
    }
    head.pool().sync().await?;
    Ok((files, log))
}

/// OpenZFS's code.
fn peers(program: &Path, folder: &Path, writers: usize, seconds: f64) -> Result<Round> {
    let (folder, writers, seconds) = (folder.display().to_string(), writers.to_string(), seconds.to_string());
    let arguments = [
        "syncwrite",
        "--dir",
        &folder,
        "--layout",
        "single",
        "--filesize",
        "2g",
        "--objsize",
        "64m",
        "--recordsize",
        "8k",
        "-b",
        "4k",
        "-t",
        &writers,
        "-s",
        &seconds,
    ];
    let lines = peer(program, &arguments)?;
    let line = lines.last().context("the peer says nothing")?;
    let number = |value: &Value, what: &str| value.as_f64().with_context(|| format!("the peer says no {what}"));
    Ok(Round {
        per_s: number(&line["iops"], "iops")?,
        median_us: number(&line["lat_us"]["p50"], "lat_us.p50")?,
        p99_us: number(&line["lat_us"]["p99"], "lat_us.p99")?,
        p999_us: line["lat_us"]["p999"].as_f64(),
        cpu_us: number(&line["cpu_us_per_op"], "cpu_us_per_op")?,
        switches: None,
        log: None,
    })
}
