//! Scrubs: of pools written in order and of one that was overwritten at random, and their processor time and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cenote_spa::{Pool, TopKind};
use cenote_taskq::sim::model::{FlashOptions, RotatingOptions};
use cenote_taskq::{Class, Rng};
use serde_json::{Map, Value, json};

use super::rig::{Bed, CACHE_BYTES, Data, Model, Scanned, scrubbed};
use super::{Options, listed, middle};
use crate::report::{Suite, Table, short};
use crate::whole::peer;
use crate::writing::rig::noise;

/// Devices of a pool that is scrubbed.
const STRIPE: usize = 2;
/// Sorted scans take one part in so many of four times the cache: OpenZFS's share.
const MEMORY_PARTS: usize = 20;

const fn stripe(count: usize) -> [(TopKind, usize); 1] {
    [(TopKind::Single, count)]
}

/// So many vdevs of one device.
fn singles(count: usize) -> Vec<(TopKind, usize)> {
    vec![stripe(1)[0]; count]
}

/// On files: the raw device, ours, and the peer, in turns.
pub(super) fn files(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let (file_bytes, data_bytes) = if options.quick { (1_u64 << 30, 1_u64 << 30) } else { (4 << 30, 4 << 30) };
    let columns = ["what", "raw device", "ours", "OpenZFS code in userspace"];
    let mut kept = Vec::new();
    for (record_bytes, name) in [(128 << 10, "128 KiB"), (1 << 20, "1 MiB")] {
        let (mut device, mut ours, mut cpu, mut peers, mut peer_cpu) = (vec![], vec![], vec![], vec![], vec![]);
        for _ in 0..options.rounds {
            let bed = Bed::files(&options.folder, STRIPE, file_bytes)?;
            let disks = bed.disks.clone();
            let (raw_rate, scanned) = bed.run(async move {
                let pool = disks.pool(&singles(STRIPE), &[], CACHE_BYTES).await?;
                let data = Data::filled(&pool, record_bytes, data_bytes).await?;
                drop(data);
                let raw_rate = disks.raw_read(STRIPE, data_bytes / STRIPE as u64).await?;
                let scanned = scrubbed(&pool).await?;
                pool.export().await?;
                Ok((raw_rate, scanned))
            })?;
            device.push(raw_rate / 1e6);
            ours.push(scanned.bytes_per_s() / 1e6);
            cpu.push(ns_per_byte(&scanned));
            if let Some(program) = &options.peer {
                let line = peer_scan(program, options, "scrub", &format!("stripe{STRIPE}"), record_bytes, data_bytes)?;
                peers.push(line.mb_per_s);
                peer_cpu.push(line.cpu_ns_per_byte);
            }
        }
        let mut table = Table::new(format!("Scrub of two files written in order, records of {name}"), &columns);
        table.row(["MB/s".into(), listed(&device), listed(&ours), listed(&peers)]);
        table.row(["ns of processor a byte".into(), "-".into(), listed(&cpu), listed(&peer_cpu)]);
        suite.tables.push(table);
        let ratios: Vec<f64> = ours.iter().zip(&device).map(|(ours, raw)| ours / raw).collect();
        suite.target(
            format!("scrub of files, {name}: at least 0.9 of the raw device"),
            listed(&ratios),
            middle(&ratios) >= 0.9,
        );
        kept.push(json!({
            "record_bytes": record_bytes, "raw_mb_per_s": device, "ours_mb_per_s": ours, "ours_cpu_ns_per_byte": cpu,
            "peer_mb_per_s": peers, "peer_cpu_ns_per_byte": peer_cpu,
        }));
    }
    raw.insert("scrub_files".into(), kept.into());
    Ok(())
}

fn ns_per_byte(scanned: &Scanned) -> f64 {
    scanned.took.cpu_s * 1e9 / scanned.phys.examined_bytes as f64
}

/// Long work of the peer.
pub(super) struct PeerScan {
    pub(super) mb_per_s: f64,
    pub(super) cpu_ns_per_byte: f64,
}

/// Has the peer do long work on files of its own.
pub(super) fn peer_scan(
    program: &std::path::Path,
    options: &Options,
    verb: &str,
    layout: &str,
    record_bytes: u64,
    data_bytes: u64,
) -> Result<PeerScan> {
    let (folder, file) = (options.folder.join("peer"), (data_bytes / 2 * 3).to_string());
    let (folder, record, data) = (folder.display().to_string(), record_bytes.to_string(), data_bytes.to_string());
    let arguments = [
        verb,
        "--dir",
        &folder,
        "--layout",
        layout,
        "--filesize",
        &file,
        "--recordsize",
        &record,
        "--objsize",
        &data,
        "--io",
        "direct",
    ];
    let lines = peer(program, &arguments)?;
    let line = lines.last().context("the peer says nothing")?;
    let number = |value: &Value, what: &str| value.as_f64().with_context(|| format!("the peer says no {what}"));
    let bytes = number(&line["allocated"], "allocated")?;
    let cpu_s = number(&line["cpu_user_s"], "cpu_user_s")? + number(&line["cpu_sys_s"], "cpu_sys_s")?;
    Ok(PeerScan { mb_per_s: bytes / 1e6 / number(&line["seconds"], "seconds")?, cpu_ns_per_byte: cpu_s * 1e9 / bytes })
}

/// On four drives that are models, of each kind.
pub(super) fn drives(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    const COUNT: usize = 4;
    let data_bytes = if options.quick { 256 << 20 } else { 1 << 32 };
    let columns = ["drives", "the same reads in sequence, MB/s", "scrub, MB/s", "of that"];
    let mut table = Table::new("Scrub of four modelled drives written in order, records of 128 KiB", &columns);
    let mut kept = Vec::new();
    for (name, model) in kinds() {
        let bed = Bed::models(&[model; COUNT], data_bytes)?;
        let disks = bed.disks.clone();
        let (device, scanned) = bed.run(async move {
            let pool = disks.pool(&singles(COUNT), &[], CACHE_BYTES).await?;
            drop(Data::filled(&pool, 128 << 10, data_bytes).await?);
            let device = disks.raw_read(COUNT, data_bytes / COUNT as u64).await?;
            let scanned = scrubbed(&pool).await?;
            pool.export().await?;
            Ok((device, scanned))
        })?;
        let (device, ours) = (device / 1e6, scanned.bytes_per_s() / 1e6);
        let ratio = ours / device;
        table.row([name.into(), short(device), short(ours), short(ratio)]);
        suite.target(format!("scrub of four {name}: at least 0.9 of their bandwidth"), short(ratio), ratio >= 0.9);
        kept.push(json!({ "drives": name, "raw_mb_per_s": device, "ours_mb_per_s": ours }));
    }
    suite.tables.push(table);
    raw.insert("scrub_drives".into(), kept.into());
    Ok(())
}

/// Kinds of drives.
pub(super) const fn kinds() -> [(&'static str, Model); 2] {
    [
        ("modelled drives with heads", Model::Rotating(RotatingOptions::desktop())),
        ("modelled SATA solid-state drives", Model::Flash(FlashOptions::sata())),
    ]
}

/// Processor time and memory of scrubs of devices in memory.
pub(super) fn processor(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 512_u64 << 20 } else { 1 << 30 };
    let mut table = Table::new(
        "Scrub of a device in memory: processor time, and growth of the process while it is sorted",
        &["records", "ns a byte", "us a block", "MB/s", "MiB grown at most", "MiB of its tunable"],
    );
    let tunable_mib = (CACHE_BYTES * 4 / MEMORY_PARTS) as f64 / f64::from(1 << 20);
    let mut kept = Vec::new();
    for (record_bytes, name) in [(4_u64 << 10, "4 KiB"), (128 << 10, "128 KiB"), (1 << 20, "1 MiB")] {
        let (mut ns, mut rate, mut grown) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            let bed = Bed::memory(1, data_bytes / 2 * 3 + (256 << 20))?;
            let disks = bed.disks.clone();
            let (scanned, grew) = bed.run(async move {
                let pool = disks.pool(&singles(1), &[], CACHE_BYTES).await?;
                drop(Data::filled(&pool, record_bytes, data_bytes).await?);
                // The first has caches and buffers grow.
                scrubbed(&pool).await?;
                let found = watched(&pool).await?;
                pool.export().await?;
                Ok(found)
            })?;
            ns.push(ns_per_byte(&scanned));
            rate.push(scanned.bytes_per_s() / 1e6);
            grown.push(grew as f64 / f64::from(1 << 20));
        }
        let us_a_block: Vec<f64> = ns.iter().map(|ns| ns * record_bytes as f64 / 1e3).collect();
        let cells = [listed(&ns), listed(&us_a_block), listed(&rate), listed(&grown), short(tunable_mib)];
        table.row([name.to_owned()].into_iter().chain(cells));
        if record_bytes >= 128 << 10 {
            let wanted = format!("scrub, records of {name}: at most 1 ns of processor a byte");
            suite.target(wanted, listed(&ns), middle(&ns) <= 1.0);
        }
        let wanted = format!("scrub, records of {name}: memory within its tunable of {} MiB", short(tunable_mib));
        suite.target(wanted, listed(&grown), middle(&grown) <= tunable_mib);
        kept.push(json!({ "record_bytes": record_bytes, "ns_per_byte": ns, "mb_per_s": rate, "grown_mib": grown }));
    }
    suite.tables.push(table);
    raw.insert("scrub_processor".into(), kept.into());
    Ok(())
}

/// Scrubs, and looks at the process's memory meanwhile; its growth at most.
async fn watched(pool: &Pool) -> Result<(Scanned, u64)> {
    let before = resident_bytes();
    let (most, is_over) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
    let (seen, over, clock) = (most.clone(), is_over.clone(), pool.handle().clone());
    let watching = pool.handle().spawn(Class::Background, async move {
        while !over.load(Ordering::Relaxed) {
            seen.fetch_max(resident_bytes(), Ordering::Relaxed);
            clock.sleep(Duration::from_millis(5)).await;
        }
    });
    let scanned = scrubbed(pool).await;
    is_over.store(true, Ordering::Relaxed);
    ensure!(watching.await.is_ok(), "the watch ended early");
    Ok((scanned?, most.load(Ordering::Relaxed) - before))
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Of a drive with a head whose records were overwritten at random: sorted, and in the order of the walk.
pub(super) fn fragmented(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 64_u64 << 20 } else { 512 << 20 };
    let mut found = Vec::new();
    let bed = Bed::models(&[Model::Rotating(RotatingOptions::desktop())], data_bytes)?;
    for given in [&["zfs_scan_legacy=0"][..], &["zfs_scan_legacy=1"], &["zfs_scan_mem_lim_fact=1048576"]] {
        let disks = bed.disks.clone();
        let is_first = found.is_empty();
        found.push(bed.run(async move {
            let pool = match is_first {
                true => {
                    let pool = disks.pool(&singles(1), given, CACHE_BYTES).await?;
                    shredded(&pool, 8 << 10, data_bytes).await?;
                    pool
                }
                false => disks.opened(1, given, CACHE_BYTES).await?,
            };
            let scanned = scrubbed(&pool).await?;
            pool.export().await?;
            Ok(scanned)
        })?);
    }
    let title = format!(
        "Scrub of a modelled drive with a head, {} MiB in records of 8 KiB, each overwritten at random",
        data_bytes >> 20
    );
    let mut table = Table::new(title, &["order", "seconds", "MB/s"]);
    let names = ["by place", "as the walk comes to them (zfs_scan_legacy)", "by place, 1 MiB of memory for it"];
    for (name, scanned) in names.iter().zip(&found) {
        table.row([(*name).into(), short(scanned.seconds), short(scanned.bytes_per_s() / 1e6)]);
    }
    suite.tables.push(table);
    let times = found[1].seconds / found[0].seconds;
    suite.target("scrub of a fragmented drive with a head: 5 times the unsorted order", short(times), times >= 5.0);
    let seconds: Vec<f64> = found.iter().map(|scanned| scanned.seconds).collect();
    raw.insert("scrub_fragmented".into(), json!({ "data_bytes": data_bytes, "orders": names, "seconds": seconds }));
    Ok(())
}

/// Fills an object, and overwrites as many of its records, at random, as it has.
async fn shredded(pool: &Pool, record_bytes: u64, data_bytes: u64) -> Result<()> {
    let data = Data::filled(pool, record_bytes, data_bytes).await?;
    let (mut rng, block) = (Rng::new(3), noise(record_bytes as usize, 3));
    for _ in 0..data.records {
        data.write(rng.below(data.records), &block).await?;
    }
    pool.sync().await?;
    Ok(())
}
