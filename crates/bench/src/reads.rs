//! Reads through the whole path: file, block tree, cache, pipeline, vdev, device.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use cenote_dmu::Run;
use cenote_taskq::{Class, JoinSet};
use cenote_zpl::File;
use serde_json::{Value, json};

use crate::clock::{Took, Watch};
use crate::pool::{Bench, LARGE, SMALL};

const RECORD: u64 = 4096;

/// Places of a file in an order that no prefetcher guesses, the same in each run.
#[derive(Clone)]
struct Places {
    state: u64,
    count: u64,
}

impl Places {
    fn of(file: &File, seed: u64) -> Self {
        Self { state: seed << 32, count: file.attributes().size_bytes / RECORD }
    }

    /// SplitMix64: tasks with neighbouring seeds must not read at places that have a pattern between them.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % self.count * RECORD
    }
}

/// Reads records at random, `tasks` at a time, for `seconds`; past the cache if `direct`.
fn random_by(bench: &Bench, file: &File, tasks: u64, seconds: f64, seed: u64, direct: bool) -> Result<(u64, Took)> {
    let handle = bench.handle();
    let watch = std::sync::Arc::new(Watch::start());
    let reads = bench.runtime.block_on(async {
        let mut set = JoinSet::new();
        for task in 0..tasks {
            let (file, watch) = (file.clone(), watch.clone());
            let mut places = Places::of(&file, seed + task);
            set.push(handle.spawn(Class::Issue, async move {
                let mut reads = 0_u64;
                while watch.runs_for(seconds) {
                    for _ in 0..32 {
                        let block = match direct {
                            true => file.read_direct(places.next(), RECORD as usize).await?,
                            false => file.read(places.next(), RECORD as usize).await?,
                        };
                        ensure!(block.len() as u64 == RECORD, "a short read");
                        reads += 1;
                    }
                }
                anyhow::Ok(reads)
            }));
        }
        let mut total = 0;
        while let Some(reads) = set.next().await {
            total += reads.map_err(|error| anyhow!("{error}"))??;
        }
        anyhow::Ok(total)
    })?;
    Ok((reads, watch.took()))
}

fn random(bench: &Bench, file: &File, tasks: u64, seconds: f64, seed: u64) -> Result<(u64, Took)> {
    random_by(bench, file, tasks, seconds, seed, false)
}

/// Verified 4 KiB reads from a device of memory: what the path itself costs.
pub(crate) fn memory_random(image: &Path, tasks: u64, workers: usize, rounds: u32, seconds: f64) -> Result<Value> {
    let bench = Bench::open(image, true, workers, 32 << 20)?;
    let file = bench.file(SMALL)?;
    random(&bench, &file, tasks, 0.3, 99)?;
    let mut all = Vec::new();
    for round in 0..rounds {
        let before = bench.pool.cache().stats();
        let (reads, took) = random(&bench, &file, tasks, seconds, u64::from(round) * 1000)?;
        let after = bench.pool.cache().stats();
        let verified = after.misses - before.misses;
        all.push(json!({
            "reads": reads, "verified": verified, "wall_s": took.wall_s, "cpu_s": took.cpu_s,
            "verified_per_core_second": verified as f64 / took.cpu_s, "cpu_ns_per_verified": took.cpu_s * 1e9 / verified as f64,
        }));
    }
    Ok(json!({ "tasks": tasks, "workers": workers, "cache_bytes": 32 << 20, "rounds": all }))
}

/// Hits of the cache: the block is there, and nothing is copied.
pub(crate) fn cache_hit(image: &Path, workers: usize, rounds: u32, seconds: f64) -> Result<Value> {
    let bench = Bench::open(image, true, workers, 1 << 30)?;
    let file = bench.file(SMALL)?;
    bench.runtime.block_on(async {
        let mut stream = file.stream(4 << 20);
        while stream.next().await?.is_some() {}
        anyhow::Ok(())
    })?;
    let mut all = Vec::new();
    for round in 0..rounds {
        let before = bench.pool.cache().stats();
        let (reads, took) = random(&bench, &file, workers as u64, seconds, u64::from(round) * 1000)?;
        let after = bench.pool.cache().stats();
        ensure!(after.misses == before.misses, "not all were hits");
        all.push(json!({
            "reads": reads, "wall_s": took.wall_s, "cpu_s": took.cpu_s, "cpu_ns_per_read": took.cpu_s * 1e9 / reads as f64,
            "reads_per_s": reads as f64 / took.wall_s,
        }));
    }
    Ok(json!({ "tasks": workers, "workers": workers, "resident": "256 MiB in blocks of 4 KiB", "rounds": all }))
}

/// One pass over the large file, cold.
pub(crate) fn sequential(image: &Path, memory: bool, window_bytes: u64) -> Result<Value> {
    // The cache is small so that a second pass finds nothing of the first.
    let bench = Bench::open(image, memory, 2, 64 << 20)?;
    let file = bench.file(LARGE)?;
    let handle = bench.handle();
    let watch = Watch::start();
    let bytes = bench.runtime.block_on(handle.spawn(Class::Issue, async move {
        let mut bytes = 0;
        let mut stream = file.stream(window_bytes);
        while let Some(run) = stream.next().await? {
            if let Run::Data { block, .. } = run {
                bytes += block.len() as u64;
            }
        }
        anyhow::Ok(bytes)
    }));
    let bytes = bytes.map_err(|error| anyhow!("{error}"))??;
    let took = watch.took();
    Ok(json!({
        "window_bytes": window_bytes, "bytes": bytes, "wall_s": took.wall_s, "cpu_s": took.cpu_s,
        "gb_per_s": bytes as f64 / took.wall_s / 1e9, "gb_per_core_second": bytes as f64 / took.cpu_s / 1e9,
    }))
}

/// One pass over the large file by a client that reads `len` bytes, looks at them and reads on; cold.
pub(crate) fn one_at_a_time(image: &Path, len: usize, ahead: bool) -> Result<Value> {
    let bench = Bench::open(image, false, 2, 256 << 20)?;
    let file = bench.file(LARGE)?.reopened(ahead);
    let handle = bench.handle();
    let watch = Watch::start();
    let bytes = bench.runtime.block_on(handle.spawn(Class::Issue, async move {
        let mut bytes = 0;
        while bytes < file.attributes().size_bytes {
            bytes += file.read(bytes, len).await?.len() as u64;
        }
        anyhow::Ok(bytes)
    }));
    let bytes = bytes.map_err(|error| anyhow!("{error}"))??;
    let took = watch.took();
    let stats = bench.pool.cache().stats();
    Ok(json!({
        "len_bytes": len, "ahead": ahead, "wall_s": took.wall_s, "cpu_s": took.cpu_s,
        "gb_per_s": bytes as f64 / took.wall_s / 1e9, "prefetched": stats.prefetched, "used": stats.prefetch_used,
        "wasted": stats.prefetch_wasted,
    }))
}

/// Cold random reads from the image itself; past the cache if `direct`.
pub(crate) fn device_random(
    image: &Path,
    tasks: u64,
    workers: usize,
    seconds: f64,
    seed: u64,
    direct: bool,
) -> Result<Value> {
    let bench = Bench::open(image, false, workers, 32 << 20)?;
    let file = bench.file(SMALL)?;
    let before = bench.pool.cache().stats();
    let (reads, took) = random_by(&bench, &file, tasks, seconds, seed, direct)?;
    // Past the cache every read is verified; the cache's misses are indirect blocks.
    let after = bench.pool.cache().stats();
    let verified = if direct { reads } else { after.misses - before.misses };
    Ok(json!({
        "tasks": tasks, "workers": workers, "reads": reads, "verified": verified, "prefetched": after.prefetched, "wall_s": took.wall_s, "cpu_s": took.cpu_s,
        "verified_per_s": verified as f64 / took.wall_s, "cpu_us_per_verified": took.cpu_s * 1e6 / verified as f64,
        "io": bench.handle().io_mode().explanation,
    }))
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = status.split(' ').nth(1).unwrap_or_default().parse()?;
    Ok(pages * 4096)
}

/// How much the process grows when more is read than the cache may hold.
pub(crate) fn memory_limit(image: &Path, limit_bytes: usize) -> Result<Value> {
    let bench = Bench::open(image, false, 2, limit_bytes)?;
    let (small, large) = (bench.file(SMALL)?, bench.file(LARGE)?);
    let before = resident_bytes()?;
    let mut highest = before;
    let mut look = || {
        highest = highest.max(resident_bytes()?);
        anyhow::Ok(())
    };
    for seed in 0..4 {
        bench.runtime.block_on(async {
            let mut stream = large.stream(8 << 20);
            while stream.next().await?.is_some() {
                look()?;
            }
            anyhow::Ok(())
        })?;
        random(&bench, &small, 32, 2.0, seed * 1000)?;
        look()?;
    }
    let stats = bench.pool.cache().stats();
    let buffers = cenote_taskq::buf::stats();
    Ok(json!({
        "limit_bytes": limit_bytes, "cache_bytes": stats.size_bytes, "resident_before_bytes": before,
        "resident_highest_bytes": highest, "growth_bytes": highest - before,
        "growth_over_limit": (highest - before) as f64 / limit_bytes as f64,
        "buffers_allocated_bytes": buffers.allocated_bytes, "buffers_pooled_bytes": buffers.pooled_bytes,
        "evictions": stats.evictions,
    }))
}
