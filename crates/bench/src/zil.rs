//! Synchronous writes of 4 KiB through the intent log, beside the raw device and the OpenZFS code in userspace, on files of one folder.
//!
//! Each writer writes at random and waits until that is stable, then writes again. The raw device is written in two ways: each writer for
//! itself, with a flush after each write, as a single writer must; and one writer for all, that writes the blocks of a perfectly grouped
//! log, with one flush for what all writers have. All three write to files that were written in full before.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cenote_dmu::tx::SyncMode;
use cenote_format::enums::ObjsetType;
use cenote_kstat::{Body, Stat};
use cenote_spa::LiveHead;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Direct, OpenOptions, Rng, Runtime, RuntimeOptions};
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};
use cenote_zvol::live::LiveVolume;
use cenote_zvol::{Volume, VolumeSpec};
use serde_json::{Value, json};

use crate::clock::{Took, Watch};
use crate::report::{Suite, Table, short};
use crate::whole::peer;
use crate::writing::rig::{PoolSpec, Rig, filled, noise};

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder for the files: on the device that is measured.
    pub folder: PathBuf,
    /// A program with OpenZFS's code in userspace.
    pub peer: Option<PathBuf>,
    /// Rounds of each part.
    pub rounds: u32,
    /// Seconds of a round.
    pub seconds: f64,
}

/// Writers at once.
const WRITERS: [usize; 4] = [1, 4, 16, 64];
/// Bytes of a write.
const WRITE_BYTES: usize = 4 << 10;
/// Bytes of a write's record, and of a block's link.
const RECORD_BYTES: usize = WRITE_BYTES + 192;
const CHAIN_BYTES: usize = 184;
/// The largest block of a log.
const BLOCK_MAX_BYTES: usize = 128 << 10;
/// Bytes of a file, and of what is written over.
const POOL_BYTES: u64 = 2 << 30;
const DATA_BYTES: u64 = 64 << 20;
const DIRTY_MAX_BYTES: u64 = 256 << 20;
const VOLUME: &str = "bench/v";

/// A round.
struct Round {
    per_s: f64,
    /// Microseconds.
    median_us: f64,
    p99_us: f64,
    cpu_us: f64,
    /// Of the logs: blocks and flushes for each write.
    log: Option<LogWork>,
}

/// The work of logs for each write.
#[derive(Clone, Copy)]
struct LogWork {
    blocks: f64,
    flushes: f64,
    /// Bytes of blocks that were written.
    bytes: f64,
    txgs: usize,
}

impl Round {
    /// Of so many writes, each of which took so many nanoseconds.
    fn of(mut latencies_ns: Vec<u64>, took: Took, log: Option<LogWork>) -> Result<Self> {
        ensure!(!latencies_ns.is_empty(), "nothing was written");
        latencies_ns.sort_unstable();
        let count = latencies_ns.len() as f64;
        let at = |part: f64| latencies_ns[((count - 1.0) * part) as usize] as f64 / 1e3;
        let (per_s, cpu_us) = (count / took.wall_s, took.cpu_s * 1e6 / count);
        Ok(Self { per_s, median_us: at(0.5), p99_us: at(0.99), cpu_us, log })
    }

    fn json(&self) -> Value {
        let Self { per_s, median_us, p99_us, cpu_us, log } = self;
        let log = log.map(|LogWork { blocks, flushes, bytes, txgs }| {
            json!({ "blocks": blocks, "flushes": flushes, "bytes": bytes, "txgs": txgs })
        });
        json!({ "per_s": per_s, "median_us": median_us, "p99_us": p99_us, "cpu_us": cpu_us, "log": log })
    }
}

/// The round of several with the median rate: noise only slows, and not all of them.
fn middle(mut rounds: Vec<Round>) -> Result<Round> {
    rounds.sort_by(|one, next| one.per_s.total_cmp(&next.per_s));
    let at = rounds.len() / 2;
    rounds.into_iter().nth(at).context("no rounds")
}

/// Measures.
///
/// # Errors
/// A file cannot be made or written, or the peer fails.
pub fn run(options: &Options) -> Result<Suite> {
    let columns =
        ["writers", "who", "writes/s", "median us", "p99 us", "cpu us", "blocks", "flushes", "log bytes", "txgs"];
    let mut table = Table::new("4 KiB, each stable before the writer's next", &columns);
    let (mut suite, mut raw) = (Suite::default(), Vec::new());
    for writers in WRITERS {
        let mut rates = Vec::new();
        for who in ["raw", "grouped", "volume", "files", "peer"] {
            let mut rounds = Vec::new();
            for _ in 0..options.rounds.max(1) {
                rounds.extend(measure(options, who, writers)?);
            }
            if rounds.is_empty() {
                continue;
            }
            raw.extend(rounds.iter().map(|round| json!({ "writers": writers, "who": who, "round": round.json() })));
            let round = middle(rounds)?;
            let figures = [round.per_s, round.median_us, round.p99_us, round.cpu_us].map(short);
            let log = round.log.map_or_else(
                || ["-"; 4].map(String::from),
                |log| [log.blocks, log.flushes, log.bytes, log.txgs as f64].map(short),
            );
            table.row([writers.to_string(), who.to_owned()].into_iter().chain(figures).chain(log));
            rates.push((who, round));
        }
        targets(&mut suite, writers, &rates);
    }
    suite.name = "zil".into();
    suite.title = "Synchronous writes".into();
    suite.notes = vec![
        "raw: each writer writes 4 KiB at random and flushes. grouped: one writer writes log blocks with all writers' records and flushes \
         once. volume, files: through the library, a file for each writer. peer: OpenZFS's code in userspace. Each writer waits for its \
         write to be stable before the next. cpu us, blocks, flushes, log bytes: for each write, the processor time of all threads, and \
         the blocks and bytes of the log and its flushes."
            .into(),
    ];
    suite.tables.push(table);
    suite.raw = Value::Array(raw);
    Ok(suite)
}

fn targets(suite: &mut Suite, writers: usize, rates: &[(&str, Round)]) {
    let of = |who: &str| rates.iter().find(|rate| rate.0 == who).map(|rate| &rate.1);
    for who in ["volume", "files"] {
        let Some(ours) = of(who) else { continue };
        if let (1, Some(raw)) = (writers, of("raw")) {
            let ratio = ours.median_us / raw.median_us;
            suite.target(format!("{who}, 1 writer: latency <= 1.15 of write and flush"), short(ratio), ratio <= 1.15);
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
fn measure(options: &Options, who: &str, writers: usize) -> Result<Option<Round>> {
    let Options { folder, seconds, .. } = options;
    match who {
        "raw" => raw(folder, writers, WRITE_BYTES, 1, *seconds).map(Some),
        "grouped" => {
            let bytes = (CHAIN_BYTES + writers * RECORD_BYTES).next_multiple_of(4096);
            raw(folder, 1, bytes, writers, *seconds).map(Some)
        }
        "volume" | "files" => library(folder, who == "volume", writers, *seconds).map(Some),
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
    let measured = timed(&runtime, tasks, seconds, write);
    std::fs::remove_file(&path)?;
    let (latencies, took) = measured?;
    let all = latencies.into_iter().flat_map(|latency| std::iter::repeat_n(latency, count)).collect();
    Round::of(all, took, None)
}

/// Has tasks write one after the other for some seconds: how long each write took.
fn timed<F, W>(runtime: &Runtime, tasks: usize, seconds: f64, write: F) -> Result<(Vec<u64>, Took)>
where
    F: Fn(usize, u64) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let handle = runtime.handle();
    let watch = Watch::start();
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
    let mut all = Vec::new();
    for join in joins {
        all.extend(runtime.block_on(join).map_err(|error| anyhow!("{error}"))??);
    }
    Ok((all, watch.took()))
}

/// Through the library.
fn library(folder: &Path, is_volume: bool, writers: usize, seconds: f64) -> Result<Round> {
    let spec = PoolSpec { size_bytes: POOL_BYTES, has_log: true, metaslabs_min: 64, dirty_max_bytes: DIRTY_MAX_BYTES };
    let rig = Rig::new(folder, spec)?;
    let head = rig.head()?;
    let pool = head.pool().clone();
    let data = noise(WRITE_BYTES, 5);
    let measured = if is_volume {
        let volume = Arc::new(rig.run(volume(head))?);
        let write = move |task: usize, number: u64| {
            let (volume, data) = (volume.clone(), data.clone());
            async move {
                let at = Rng::new((task as u64) << 32 | number).below(DATA_BYTES / 4096) * 4096;
                volume.write(at, &data).await?;
                Ok(volume.settle(true).await?)
            }
        };
        warmed(&rig, &pool, writers, seconds, write)?
    } else {
        let (files, log) = rig.run(files(head, writers, data.clone()))?;
        let (files, log) = (Arc::new(files), Arc::new(log));
        let write = move |task: usize, number: u64| {
            let (files, log, data) = (files.clone(), log.clone(), data.clone());
            async move {
                let at = Rng::new((task as u64) << 32 | number).below(256) * 4096;
                files[task].write(at, &data).await?;
                Ok(log.sync(Some(files[task].id())).await?)
            }
        };
        warmed(&rig, &pool, writers, seconds, write)?
    };
    let (latencies, took, log) = measured;
    Round::of(latencies, took, Some(log))
}

/// Writes for a moment, so that the log is begun, and then for as long as is measured.
fn warmed<F, W>(
    rig: &Rig,
    pool: &cenote_spa::Pool,
    writers: usize,
    seconds: f64,
    write: F,
) -> Result<(Vec<u64>, Took, LogWork)>
where
    F: Fn(usize, u64) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    timed(rig.runtime(), writers, 0.2, write.clone())?;
    let before = (pool.txgs().synced_txg(), log_counts(pool)?);
    let (latencies, took) = timed(rig.runtime(), writers, seconds, write)?;
    let now = log_counts(pool)?;
    let each = |at: usize| (now[at] - before.1[at]) as f64 / latencies.len().max(1) as f64;
    let txgs = (pool.txgs().synced_txg().0 - before.0.0) as usize;
    let work = LogWork { blocks: each(0), flushes: each(1), bytes: each(2), txgs };
    Ok((latencies, took, work))
}

/// Blocks, flushes and bytes of a pool's logs so far.
fn log_counts(pool: &cenote_spa::Pool) -> Result<[u64; 3]> {
    let groups = pool.kstats().snapshot();
    let log = groups.iter().find(|group| group.name == "zil").context("the pool counts nothing of its logs")?;
    let Body::Named(counts) = &log.body else { bail!("the counts of logs are a table") };
    let count = |name: &str| match counts.iter().find(|(known, _)| *known == name) {
        Some((_, Stat::Count(count))) => Ok(*count),
        _ => Err(anyhow!("the pool does not count {name}")),
    };
    Ok([count("zil_itx_metaslab_normal_count")?, count("zil_flush_count")?, count("zil_itx_metaslab_normal_write")?])
}

async fn volume(head: LiveHead) -> Result<LiveVolume> {
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

async fn files(head: LiveHead, writers: usize, data: Block) -> Result<(Vec<cenote_zpl::File>, Arc<cenote_zil::Log>)> {
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
        cpu_us: number(&line["cpu_us_per_op"], "cpu_us_per_op")?,
        log: None,
    })
}
