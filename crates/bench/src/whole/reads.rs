//! Reads through the whole path: file, block tree, cache, pipeline, vdev, device.

use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use cenote_dmu::Run;
use cenote_taskq::{Class, JoinSet};
use serde::Serialize;

use super::pool::{Bench, Data, Place, Which};
use crate::clock::{Took, Watch};

const RECORD: u64 = 4096;

/// One measurement of reads.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Round {
    /// Reads that clients asked for.
    pub(super) reads: u64,
    /// Blocks that came from the device and were verified.
    pub(super) verified: u64,
    pub(super) bytes: u64,
    pub(super) wall_s: f64,
    /// Processor seconds of the process.
    pub(super) cpu_s: f64,
    /// Blocks loaded ahead, and how many of them were evicted unused.
    pub(super) prefetched: u64,
    pub(super) wasted: u64,
}

impl Round {
    pub(super) fn verified_per_core_second(&self) -> f64 {
        self.verified as f64 / self.cpu_s
    }

    pub(super) fn verified_per_s(&self) -> f64 {
        self.verified as f64 / self.wall_s
    }

    pub(super) fn cpu_ns_per_verified(&self) -> f64 {
        self.cpu_s * 1e9 / self.verified as f64
    }

    pub(super) fn cpu_ns_per_read(&self) -> f64 {
        self.cpu_s * 1e9 / self.reads as f64
    }

    pub(super) fn reads_per_s(&self) -> f64 {
        self.reads as f64 / self.wall_s
    }

    pub(super) fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.wall_s / 1e9
    }

    pub(super) fn gb_per_core_second(&self) -> f64 {
        self.bytes as f64 / self.cpu_s / 1e9
    }
}

/// The order in which one client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One that no prefetcher guesses.
    Random,
    /// Every so many records, as a strided reader goes: what prefetchers are for.
    Strided(u64),
}

/// Places of the data, the same in each run.
#[derive(Clone)]
struct Places {
    order: Order,
    state: u64,
    count: u64,
}

impl Places {
    fn of(data: &Data, order: Order, seed: u64) -> Self {
        let count = data.size_bytes() / RECORD;
        // Strided readers start apart from each other.
        let state = if order == Order::Random { seed << 32 } else { seed * 977 % count };
        Self { order, state, count }
    }

    fn next(&mut self) -> u64 {
        if let Order::Strided(records) = self.order {
            self.state = (self.state + records) % self.count;
            return self.state * RECORD;
        }
        // SplitMix64: tasks with neighbouring seeds must not read at places that have a pattern between them.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % self.count * RECORD
    }
}

/// The clients, and how they read.
#[derive(Clone, Copy)]
pub(super) struct Clients {
    pub(super) count: u64,
    pub(super) order: Order,
    /// Past the cache.
    pub(super) direct: bool,
    pub(super) seed: u64,
}

impl Clients {
    pub(super) const fn random(count: u64, seed: u64) -> Self {
        Self { count, order: Order::Random, direct: false, seed }
    }
}

/// Reads records for `seconds`, each client one after the other.
pub(super) fn timed(bench: &Bench, data: &Data, clients: Clients, seconds: f64) -> Result<Round> {
    let handle = bench.handle();
    let before = bench.pool.cache().stats();
    let watch = Arc::new(Watch::start());
    let reads = bench.runtime.block_on(async {
        let mut set = JoinSet::new();
        for client in 0..clients.count {
            // A strided reader is one by itself; random ones share what is known of the file.
            let data = if clients.order == Order::Random { data.clone() } else { data.reopened(true) };
            let watch = watch.clone();
            let mut places = Places::of(&data, clients.order, clients.seed + client);
            set.push(handle.spawn(Class::Issue, async move {
                let mut reads = 0_u64;
                while watch.runs_for(seconds) {
                    for _ in 0..32 {
                        let block = match clients.direct {
                            true => data.read_direct(places.next(), RECORD as usize).await?,
                            false => data.read(places.next(), RECORD as usize).await?,
                        };
                        ensure!(block.len() as u64 == RECORD, "a short read");
                        reads += 1;
                    }
                }
                anyhow::Ok(reads)
            }));
        }
        total(set).await
    })?;
    Ok(round(bench, &before, reads, clients.direct, watch.took()))
}

async fn total(mut set: JoinSet<Result<u64>>) -> Result<u64> {
    let mut total = 0;
    while let Some(reads) = set.next().await {
        total += reads.map_err(|error| anyhow!("{error}"))??;
    }
    Ok(total)
}

fn round(bench: &Bench, before: &cenote_arc::Stats, reads: u64, direct: bool, took: Took) -> Round {
    let after = bench.pool.cache().stats();
    Round {
        reads,
        // Past the cache every read is verified; the cache's misses are then indirect blocks.
        verified: if direct { reads } else { after.misses - before.misses },
        bytes: reads * RECORD,
        wall_s: took.wall_s,
        cpu_s: took.cpu_s,
        prefetched: after.prefetched - before.prefetched,
        wasted: after.prefetch_wasted - before.prefetch_wasted,
    }
}

/// One client with `depth` reads of its own under way at any time, as a client with an asynchronous interface has them.
pub(super) fn one_client(
    bench: &Bench,
    data: &Data,
    depth: usize,
    direct: bool,
    seed: u64,
    seconds: f64,
) -> Result<Round> {
    let handle = bench.handle();
    let before = bench.pool.cache().stats();
    let watch = Watch::start();
    let mut places = Places::of(data, Order::Random, seed);
    let (spawner, data) = (handle.clone(), data.clone());
    let client = async move {
        let start = |at: u64| {
            let data = data.clone();
            spawner.spawn(Class::Issue, async move {
                let block = match direct {
                    true => data.read_direct(at, RECORD as usize).await?,
                    false => data.read(at, RECORD as usize).await?,
                };
                ensure!(block.len() as u64 == RECORD, "a short read");
                Ok(1)
            })
        };
        let mut set = JoinSet::new();
        let mut reads = 0_u64;
        for _ in 0..depth {
            set.push(start(places.next()));
        }
        while let Some(read) = set.next().await {
            reads += read.map_err(|error| anyhow!("{error}"))??;
            if reads.is_multiple_of(32) && !watch.runs_for(seconds) {
                break;
            }
            set.push(start(places.next()));
        }
        anyhow::Ok((reads + total(set).await?, watch.took()))
    };
    let (reads, took) =
        bench.runtime.block_on(handle.spawn(Class::Issue, client)).map_err(|error| anyhow!("{error}"))??;
    Ok(round(bench, &before, reads, direct, took))
}

/// One pass over the data, cold.
pub(super) fn sequential(place: &Place, window_bytes: u64) -> Result<Round> {
    // The cache is small so that a second pass finds nothing of the first.
    let bench = Bench::open(place, 2, 64 << 20)?;
    let data = bench.data(Which::Large)?;
    let watch = Watch::start();
    let bytes = bench.runtime.block_on(bench.handle().spawn(Class::Issue, async move {
        let mut bytes = 0;
        let mut stream = data.stream(window_bytes);
        while let Some(run) = stream.next().await? {
            if let Run::Data { block, .. } = run {
                bytes += block.len() as u64;
            }
        }
        anyhow::Ok(bytes)
    }));
    let bytes = bytes.map_err(|error| anyhow!("{error}"))??;
    let took = watch.took();
    Ok(Round { bytes, wall_s: took.wall_s, cpu_s: took.cpu_s, ..Round::default() })
}

/// One pass over the data by a client that reads `len` bytes, looks at them and reads on; cold.
pub(super) fn one_at_a_time(place: &Place, len: usize, ahead: bool) -> Result<Round> {
    let bench = Bench::open(place, 2, 256 << 20)?;
    let data = bench.data(Which::Large)?.reopened(ahead);
    let watch = Watch::start();
    let bytes = bench.runtime.block_on(bench.handle().spawn(Class::Issue, async move {
        let mut bytes = 0;
        while bytes < data.size_bytes() {
            bytes += data.read(bytes, len).await?.len() as u64;
        }
        anyhow::Ok(bytes)
    }));
    let bytes = bytes.map_err(|error| anyhow!("{error}"))??;
    let took = watch.took();
    let stats = bench.pool.cache().stats();
    Ok(Round {
        bytes,
        wall_s: took.wall_s,
        cpu_s: took.cpu_s,
        prefetched: stats.prefetched,
        wasted: stats.prefetch_wasted,
        ..Round::default()
    })
}

/// Brings all of the small-record data into the cache.
pub(super) fn make_resident(bench: &Bench, data: &Data) -> Result<()> {
    bench.runtime.block_on(async {
        let mut stream = data.stream(4 << 20);
        while stream.next().await?.is_some() {}
        anyhow::Ok(())
    })
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = status.split(' ').nth(1).unwrap_or_default().parse()?;
    Ok(pages * 4096)
}

/// The memory used under a limit of the cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Limit {
    pub(super) limit_bytes: u64,
    pub(super) cache_bytes: u64,
    pub(super) growth_bytes: u64,
    pub(super) buffers_bytes: u64,
    pub(super) pooled_bytes: u64,
}

/// How much the process grows when more is read than the cache may hold.
pub(super) fn memory_limit(place: &Place, limit_bytes: usize, seconds: f64) -> Result<Limit> {
    let bench = Bench::open(place, 2, limit_bytes)?;
    let (small, large) = (bench.data(Which::Small)?, bench.data(Which::Large)?);
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
        timed(&bench, &small, Clients::random(32, seed * 1000), seconds)?;
        look()?;
    }
    let stats = bench.pool.cache().stats();
    let buffers = cenote_taskq::buf::stats();
    Ok(Limit {
        limit_bytes: limit_bytes as u64,
        cache_bytes: stats.size_bytes,
        growth_bytes: highest - before,
        buffers_bytes: buffers.allocated_bytes,
        pooled_bytes: buffers.pooled_bytes,
    })
}
