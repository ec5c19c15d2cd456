//! A cache device in front of a drive with a head: hit rate, feed rate, and the memory of its index.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cenote_kstat::{Body, Stat};
use cenote_spa::{AddOptions, AuxSpec, Pool, TopKind};
use cenote_taskq::sim::model::{FlashOptions, RotatingOptions};
use cenote_taskq::{Rng, for_each_concurrent};
use serde_json::{Map, Value, json};

use super::Options;
use super::rig::{Bed, Data, Model};
use crate::report::{Suite, Table, short};

/// Of the cache in memory: a part of what is read.
const MEMORY_BYTES: usize = 32 << 20;
const RECORD_BYTES: u64 = 16 << 10;
const READERS: usize = 8;

/// A figure of the pool's `arcstats`.
fn figure(pool: &Pool, name: &str) -> Result<u64> {
    let snapshot = pool.kstats().snapshot();
    let group = snapshot.iter().find(|group| group.name == "arcstats").context("the cache has figures")?;
    let Body::Named(figures) = &group.body else { anyhow::bail!("arcstats has names") };
    let found = figures.iter().find(|(of, _)| *of == name).map(|(_, stat)| stat.clone());
    match found {
        Some(Stat::Count(count) | Stat::Level(count)) => Ok(count),
        _ => anyhow::bail!("arcstats has no {name}"),
    }
}

/// Reads so many records at random; records a second.
async fn read(data: &Data, count: u64, seed: u64) -> Result<f64> {
    let handle = data.head.pool().handle().clone();
    let begun = handle.now();
    let mut rng = Rng::new(seed);
    let failed = std::sync::atomic::AtomicBool::new(false);
    for_each_concurrent(READERS, (0..count).map(|_| rng.below(data.records)), |record| {
        let (data, failed) = (data, &failed);
        async move {
            let read = data.object.read(record * RECORD_BYTES, RECORD_BYTES as usize).await;
            failed.fetch_or(read.is_err(), std::sync::atomic::Ordering::Relaxed);
        }
    })
    .await;
    anyhow::ensure!(!failed.into_inner(), "a record cannot be read");
    Ok(count as f64 / (handle.now() - begun).as_secs_f64())
}

/// Reads records at random, of more than memory takes, before and after a cache device has them.
pub(super) fn cache_device(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 128_u64 << 20 } else { 512 << 20 };
    let models = [Model::Rotating(RotatingOptions::desktop()), Model::Flash(FlashOptions::sata())];
    let bed = Bed::models(&models, data_bytes)?;
    let disks = bed.disks.clone();
    let found = bed.run(async move {
        let pool = disks.pool(&[(TopKind::Single, 1)], &[], MEMORY_BYTES).await?;
        let data = Data::filled(&pool, RECORD_BYTES, data_bytes).await?;
        let count = data.records / 4;
        let before = read(&data, count, 1).await?;
        let caches = vec![disks.disk(1).await?];
        let auxiliaries = AuxSpec { caches, ..AuxSpec::default() };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await?;
        let (begun, written) = (disks.handle.now(), disks.traffic(&[1]).written_bytes);
        // Each record is read once, in sequence, and those that did not get there some more times, at random.
        for record in 0..data.records {
            data.object.read(record * RECORD_BYTES, RECORD_BYTES as usize).await?;
        }
        for seed in 2..6 {
            read(&data, count, seed).await?;
        }
        let fed_s = (disks.handle.now() - begun).as_secs_f64();
        let fed = (disks.traffic(&[1]).written_bytes - written) as f64 / 1e6 / fed_s;
        disks.handle.sleep(Duration::from_secs(5)).await;
        let counts = |pool: &Pool| Ok::<_, anyhow::Error>((figure(pool, "l2_hits")?, figure(pool, "l2_misses")?));
        let (hits, misses) = counts(&pool)?;
        let after = read(&data, count, 7).await?;
        let (hits, misses) = {
            let now = counts(&pool)?;
            (now.0 - hits, now.1 - misses)
        };
        let (held, memory) = (figure(&pool, "l2_asize")?, figure(&pool, "l2_hdr_size")?);
        drop(data);
        pool.export().await?;
        Ok((before, after, fed, hits as f64 / (hits + misses).max(1) as f64, held, memory))
    })?;
    let (before, after, fed, hit_rate, held, memory) = found;
    let blocks = held as f64 / RECORD_BYTES as f64;
    let mut table = Table::new(
        format!(
            "{} MiB in records of 16 KiB on a modelled drive with a head, 32 MiB of memory, a modelled SATA drive as cache device, 8 \
             readers at random",
            data_bytes >> 20
        ),
        &["what", "measured"],
    );
    table.row(["reads a second without".into(), short(before)]);
    table.row(["reads a second with it".into(), short(after)]);
    table.row(["hit rate of the cache device".into(), short(hit_rate)]);
    table.row(["MB/s written to it while it was filled".into(), short(fed)]);
    table.row(["MiB on it".into(), short(held as f64 / f64::from(1 << 20))]);
    table.row(["bytes of memory for each block on it".into(), short(memory as f64 / blocks)]);
    suite.tables.push(table);
    raw.insert(
        "cache_device".into(),
        json!({
            "reads_per_s_without": before, "reads_per_s_with": after, "hit_rate": hit_rate, "fed_mb_per_s": fed,
            "held_bytes": held, "index_bytes": memory,
        }),
    );
    Ok(())
}
