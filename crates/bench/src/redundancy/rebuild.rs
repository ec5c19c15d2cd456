//! Devices that get what they lack: after an outage, and all of it.

use anyhow::{Context as _, Result};
use cenote_spa::{AttachOptions, NewDevice, Offline, Pool, TopKind};
use cenote_taskq::Rng;
use cenote_taskq::sim::model::{FlashOptions, RotatingOptions};
use serde_json::{Map, Value, json};

use super::rig::{Bed, CACHE_BYTES, Data, Disks, Model, Traffic, leaf, scan_ended, whole};
use super::scrub::peer_scan;
use super::{Options, listed, middle};
use crate::clock::Watch;
use crate::report::{Suite, Table, short};
use crate::writing::rig::noise;

const MIRROR: [(TopKind, usize); 1] = [(TopKind::Mirror, 2)];
const SINGLE: [(TopKind, usize); 1] = [(TopKind::Single, 1)];

/// The cost of a short outage: one leg of a mirror is away while some records are written.
pub(super) fn outage(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 128_u64 << 20 } else { 1 << 30 };
    let record_bytes = 128_u64 << 10;
    let mut table = Table::new(
        format!(
            "Resilver of a mirror's leg that was away, {} MiB in records of 128 KiB, modelled SATA drives",
            data_bytes >> 20
        ),
        &["written meanwhile, MiB", "the other leg wrote, MiB", "read, MiB", "written, MiB", "seconds"],
    );
    let mut kept = Vec::new();
    for written in [8_u64 << 20, 64 << 20] {
        let bed = Bed::models(&[Model::Flash(FlashOptions::sata()); 2], data_bytes)?;
        let disks = bed.disks.clone();
        let (missed, moved, seconds) = bed.run(async move {
            let pool = disks.pool(&MIRROR, &[], CACHE_BYTES).await?;
            let data = Data::filled(&pool, record_bytes, data_bytes).await?;
            let away = leaf(&pool, &disks.paths[1]).await?;
            pool.offline_device(away, Offline::default()).await?;
            let before = disks.traffic(&[0]);
            let (mut rng, block) = (Rng::new(9), noise(record_bytes as usize, 9));
            for _ in 0..written / record_bytes {
                data.write(rng.below(data.records), &block).await?;
            }
            pool.sync().await?;
            let missed = disks.traffic(&[0]).written_bytes - before.written_bytes;
            let (before, begun) = (disks.traffic(&[0, 1]), disks.handle.now());
            pool.online_device(away, Vec::new()).await?;
            scan_ended(&pool).await?;
            whole(&pool).await?;
            let seconds = (disks.handle.now() - begun).as_secs_f64();
            let after = disks.traffic(&[0, 1]);
            drop(data);
            pool.export().await?;
            let moved = Traffic {
                read_bytes: after.read_bytes - before.read_bytes,
                written_bytes: after.written_bytes - before.written_bytes,
            };
            Ok((missed, moved, seconds))
        })?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let cells = [written, missed, moved.read_bytes, moved.written_bytes].map(|bytes| short(mib(bytes)));
        table.row(cells.into_iter().chain([short(seconds)]));
        // Both legs are read of each block that one has missed. Beside the leg's data are the txgs of the verbs, on both legs.
        let most = mib(missed) * 1.1 + 8.0;
        let wanted = format!(
            "resilver after {} MiB: reads and writes what was missed, a tenth and 8 MiB more at most",
            written >> 20
        );
        let shown = format!(
            "{} and {} of {} MiB",
            short(mib(moved.read_bytes)),
            short(mib(moved.written_bytes)),
            short(mib(missed))
        );
        suite.target(wanted, shown, mib(moved.read_bytes) <= 2.0 * most && mib(moved.written_bytes) <= most);
        kept.push(json!({
            "data_bytes": written, "missed_bytes": missed, "read_bytes": moved.read_bytes,
            "written_bytes": moved.written_bytes, "seconds": seconds,
        }));
    }
    suite.tables.push(table);
    raw.insert("resilver_outage".into(), kept.into());
    Ok(())
}

/// Attaches a device to the first, and waits until it has everything; seconds.
async fn attached(disks: &Disks, pool: &Pool, new: usize, is_sequential: bool) -> Result<f64> {
    let begun = disks.handle.now();
    let old = leaf(pool, &disks.paths[0]).await?;
    let options = AttachOptions {
        old,
        new: NewDevice::Disk(disks.disk(new).await?),
        is_replacing: false,
        is_sequential,
        ashift: Some(12),
        seed: None,
    };
    pool.attach_device(options).await?;
    whole(pool).await?;
    Ok((disks.handle.now() - begun).as_secs_f64())
}

const WAYS: [(bool, &str); 2] = [(false, "resilver"), (true, "sequential rebuild")];

/// A second leg for a device, on drives that are models, of which the new one may be slower.
pub(super) fn drives(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 256_u64 << 20 } else { 1 << 30 };
    let (flash, rotating) = (FlashOptions::sata(), RotatingOptions::desktop());
    let cases = [
        ("SATA solid-state, as fast", [Model::Flash(flash); 2]),
        ("SATA solid-state, the new one half as fast", [Model::Flash(flash), Model::Flash(flash.slower(2))]),
        ("with heads, as fast", [Model::Rotating(rotating); 2]),
        ("with heads, the new one half as fast", [Model::Rotating(rotating), Model::Rotating(rotating.slower(2))]),
    ];
    let mut table = Table::new(
        format!(
            "A second leg for a modelled drive with {} MiB in records of 128 KiB, written in order",
            data_bytes >> 20
        ),
        &["drives", "copy of the raw device, MB/s", "resilver, MB/s", "of that", "sequential rebuild, MB/s", "of that"],
    );
    let mut kept = Vec::new();
    for (name, models) in cases {
        let mut rates = Vec::new();
        let mut device = 0.0;
        for (is_sequential, _) in WAYS {
            let bed = Bed::models(&models, data_bytes)?;
            let disks = bed.disks.clone();
            let (copy, rate) = bed.run(async move {
                let copy = disks.raw_copy(0, 1, data_bytes).await?;
                let pool = disks.pool(&SINGLE, &["zfs_rebuild_scrub_enabled=0"], CACHE_BYTES).await?;
                drop(Data::filled(&pool, 128 << 10, data_bytes).await?);
                let seconds = attached(&disks, &pool, 1, is_sequential).await?;
                pool.export().await?;
                Ok((copy / 1e6, data_bytes as f64 / 1e6 / seconds))
            })?;
            device = copy;
            rates.push(rate);
        }
        let cells = [device, rates[0], rates[0] / device, rates[1], rates[1] / device].map(short);
        table.row([name.to_owned()].into_iter().chain(cells));
        for ((_, way), rate) in WAYS.iter().zip(&rates) {
            let ratio = rate / device;
            let wanted = format!("{way}, drives {name}: at least 0.9 of a copy of the raw device");
            suite.target(wanted, short(ratio), ratio >= 0.9);
        }
        kept.push(json!({ "drives": name, "raw_mb_per_s": device, "resilver_mb_per_s": rates[0], "rebuild_mb_per_s": rates[1] }));
    }
    suite.tables.push(table);
    raw.insert("rebuild_drives".into(), kept.into());
    Ok(())
}

/// The same on files, in turns with a copy of the raw device and the peer.
pub(super) fn files(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 512_u64 << 20 } else { 2 << 30 };
    let mut table = Table::new(
        format!("A second leg for a file with {} MiB in records of 128 KiB, written in order", data_bytes >> 20),
        &[
            "what",
            "copy of the raw device, MB/s",
            "ours, MB/s",
            "ns of processor a byte",
            "OpenZFS code in userspace, MB/s",
            "ns",
        ],
    );
    let mut kept = Vec::new();
    for (is_sequential, way) in WAYS {
        let (mut device, mut ours, mut cpu, mut peers, mut peer_cpu) = (vec![], vec![], vec![], vec![], vec![]);
        for _ in 0..options.rounds {
            let bed = Bed::files(&options.folder, 2, data_bytes / 2 * 3)?;
            let disks = bed.disks.clone();
            let (copy, seconds, took) = bed.run(async move {
                let pool = disks.pool(&SINGLE, &["zfs_rebuild_scrub_enabled=0"], CACHE_BYTES).await?;
                drop(Data::filled(&pool, 128 << 10, data_bytes).await?);
                let copy = disks.raw_copy(0, 1, data_bytes).await?;
                let watch = Watch::start();
                let seconds = attached(&disks, &pool, 1, is_sequential).await?;
                let took = watch.took();
                pool.export().await?;
                Ok((copy, seconds, took))
            })?;
            device.push(copy / 1e6);
            ours.push(data_bytes as f64 / 1e6 / seconds);
            cpu.push(took.cpu_s * 1e9 / data_bytes as f64);
            if let Some(program) = &options.peer {
                let verb = if is_sequential { "rebuild" } else { "resilver" };
                let line = peer_scan(program, options, verb, "single", 128 << 10, data_bytes)
                    .with_context(|| format!("the peer's {verb}"))?;
                peers.push(line.mb_per_s);
                peer_cpu.push(line.cpu_ns_per_byte);
            }
        }
        table.row([way.into(), listed(&device), listed(&ours), listed(&cpu), listed(&peers), listed(&peer_cpu)]);
        let ratios: Vec<f64> = ours.iter().zip(&device).map(|(ours, raw)| ours / raw).collect();
        let wanted = format!("{way} of files: at least 0.9 of a copy of the raw device");
        suite.target(wanted, listed(&ratios), middle(&ratios) >= 0.9);
        kept.push(json!({
            "way": way, "raw_mb_per_s": device, "ours_mb_per_s": ours, "ours_cpu_ns_per_byte": cpu, "peer_mb_per_s": peers,
            "peer_cpu_ns_per_byte": peer_cpu,
        }));
    }
    suite.tables.push(table);
    raw.insert("rebuild_files".into(), kept.into());
    Ok(())
}
