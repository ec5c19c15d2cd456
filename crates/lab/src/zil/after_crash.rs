//! Claim and replay of a log that a crash has left.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use cenote_dmu::tx::SyncMode;
use cenote_spa::{Clock, Host, ImportOptions, WriteOptions, find, open};
use cenote_taskq::{Class, Rng, Runtime, RuntimeOptions};
use cenote_zvol::live::LiveVolume;
use serde_json::{Map, Value, json};

use super::real::{DATA_BYTES, VOLUME, volume};
use super::{Options, WRITE_BYTES};
use cenote_bench::clock::Watch;
use cenote_bench::report::{Suite, Table, short};
use cenote_bench::writing::rig::{Rig, noise};

/// Records of the log.
const RECORDS: usize = 100_000;
/// Writers that make them at once.
const WRITERS: usize = 64;
/// Of the pool: its file takes what is written.
const POOL_BYTES: u64 = 4 << 30;
const CACHE_BYTES: usize = 256 << 20;
const CRASHED: &str = "crashed";
const CHUNK_BYTES: usize = 1 << 20;

/// Measures.
pub(super) fn after_crash(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let records = if options.quick { RECORDS / 10 } else { RECORDS };
    let folder = &options.folder;
    let rig = Rig::by_hand(folder, POOL_BYTES)?;
    wrote(&rig, records)?;
    let mut table = Table::new(
        format!("Claim and replay of {records} records of 4 KiB, in a volume"),
        &["round", "open, with the claim, ms", "replay, ms", "records/s", "cpu us a record"],
    );
    let mut all = Vec::new();
    let mut rates = Vec::new();
    for round in 0..options.rounds.max(1) {
        // Everything that a client was told is on the device: this is what a crash leaves.
        copied(&folder.join("pool"), &folder.join(CRASHED))?;
        let found = replayed(&folder.join(CRASHED))?;
        std::fs::remove_file(folder.join(CRASHED))?;
        let rate = records as f64 / (found.open_s + found.replay_s);
        let cpu_us = found.cpu_s * 1e6 / records as f64;
        let cells = [found.open_s * 1e3, found.replay_s * 1e3, rate, cpu_us].map(short);
        table.row([round.to_string()].into_iter().chain(cells));
        all.push(json!({ "open_s": found.open_s, "replay_s": found.replay_s, "cpu_us": cpu_us, "records": records }));
        rates.push(rate);
    }
    drop(rig);
    suite.tables.push(table);
    raw.insert("log-replay".into(), all.into());
    Ok(())
}

/// Makes the log, in one txg, which stays open.
fn wrote(rig: &Rig, records: usize) -> Result<()> {
    let volume = Arc::new(rig.run(volume(rig.head()?))?);
    let handle = rig.runtime().handle();
    let each = records / WRITERS + 1;
    let joins: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (volume, data) = (volume.clone(), noise(WRITE_BYTES, writer as u64));
            let count = each.min(records.saturating_sub(writer * each));
            handle.spawn(Class::Issue, async move {
                let mut rng = Rng::new(writer as u64);
                for _ in 0..count {
                    volume.write(rng.below(DATA_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64, &data).await?;
                    volume.commit_if_sync(true).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for join in joins {
        rig.runtime().block_on(join).map_err(|error| anyhow!("{error}"))??;
    }
    Ok(())
}

/// A copy that takes no more of the disk than the file, and is stable: its pages are not written back while it is measured.
fn copied(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (std::fs::File::open(from)?, std::fs::File::create(to)?);
    let len_bytes = from.metadata()?.len();
    to.set_len(len_bytes)?;
    let mut buf = vec![0; CHUNK_BYTES];
    for at in (0..len_bytes).step_by(CHUNK_BYTES) {
        let size = CHUNK_BYTES.min((len_bytes - at) as usize);
        from.read_exact_at(&mut buf[..size], at)?;
        if buf[..size].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buf[..size], at)?;
        }
    }
    Ok(to.sync_all()?)
}

struct Replayed {
    open_s: f64,
    replay_s: f64,
    cpu_s: f64,
}

fn replayed(path: &Path) -> Result<Replayed> {
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let (handle, path) = (runtime.handle(), path.to_owned());
    let replaying = runtime.handle().spawn(Class::Issue, async move {
        let whole = Watch::start();
        let found = find(&handle, std::slice::from_ref(&path)).await.0.pop().context("the pool is there")?;
        // It was not exported.
        let how = ImportOptions { cache_bytes: CACHE_BYTES, force: true, ..ImportOptions::default() };
        let host = Host { id: 0, name: "bench".into() };
        let pool = open(&handle, found, &how, WriteOptions { clock: Clock::Now, host, check: false }).await?;
        let pool = pool.start(cenote_dmu::tx::TxTunables::default()).await;
        let open_s = whole.took().wall_s;
        let head = pool.open_head(VOLUME).await?;
        let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await?;
        volume.replay().await?;
        let took = whole.took();
        drop((volume, head));
        pool.export().await?;
        anyhow::Ok(Replayed { open_s, replay_s: took.wall_s - open_s, cpu_s: took.cpu_s })
    });
    runtime.block_on(replaying).map_err(|error| anyhow!("{error}"))?
}
