//! The rate of a raidz expansion, on drives that are models.

use anyhow::Result;
use cenote_spa::{AttachOptions, NewDevice, TopKind};
use serde_json::{Map, Value, json};

use super::Options;
use super::rig::{Bed, CACHE_BYTES, Data, job_ended, top};
use super::scrub::kinds;
use crate::report::{Suite, Table, short};

/// Children before and after.
const BEFORE: usize = 4;

/// Expands a raidz1 by a fifth child.
pub(super) fn expansion(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 192_u64 << 20 } else { 768 << 20 };
    let mut table = Table::new(
        format!("A raidz1 of four drives gets a fifth, {} MiB in records of 128 KiB", data_bytes >> 20),
        &["drives", "raw device, MB/s", "seconds", "MB/s moved", "of a drive's bandwidth, read and written"],
    );
    let mut kept = Vec::new();
    for (name, model) in kinds() {
        let bed = Bed::models(&[model; BEFORE + 1], data_bytes)?;
        let disks = bed.disks.clone();
        let (device, seconds, moved) = bed.run(async move {
            let pool = disks.pool(&[(TopKind::Raidz { parity: 1 }, BEFORE)], &[], CACHE_BYTES).await?;
            drop(Data::filled(&pool, 128 << 10, data_bytes).await?);
            let device = disks.raw_read(1, data_bytes / BEFORE as u64).await?;
            let all: Vec<usize> = (0..=BEFORE).collect();
            let (before, begun) = (disks.traffic(&all), disks.handle.now());
            let options = AttachOptions {
                old: top(&pool, 0).await?,
                new: NewDevice::Disk(disks.disk(BEFORE).await?),
                is_replacing: false,
                is_sequential: false,
                ashift: Some(12),
                seed: None,
            };
            pool.attach_device(options).await?;
            job_ended(&pool, "raidz_expand").await;
            let (after, seconds) = (disks.traffic(&all), (disks.handle.now() - begun).as_secs_f64());
            pool.export().await?;
            Ok((device, seconds, after.written_bytes - before.written_bytes))
        })?;
        let (device, moved) = (device / 1e6, moved as f64 / 1e6 / seconds);
        // Each byte is read on one drive and written on another: five drives together do half of their bandwidth at most.
        let share = moved * 2.0 / (device * (BEFORE + 1) as f64);
        table.row([name.into(), short(device), short(seconds), short(moved), short(share)]);
        kept.push(json!({ "drives": name, "raw_mb_per_s": device, "seconds": seconds, "moved_mb_per_s": moved }));
    }
    suite.tables.push(table);
    raw.insert("expansion".into(), kept.into());
    Ok(())
}
