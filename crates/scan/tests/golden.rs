//! Goal: our walk of a pool and OpenZFS's (`zdb -bcc`, `zpool list`) must count the same blocks, bytes and space, and find
//! every golden pool whole. Method: each theme's pool is imported and verified; the figures are compared with zdb's text
//! and with the properties in the manifest. A block missed or counted twice, a space map misread, or a log not replayed
//! would show as a difference.

#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cenote_dsl::Secret;
use cenote_scan::{VerifyOptions, VerifyReport, verify};
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::{Handle, Runtime, RuntimeOptions};
use cenote_testkit::zdb::BlockStatistics;
use cenote_testkit::{Golden, Theme};

async fn open(handle: &Handle, images: &[PathBuf], keys: &[(String, Vec<u8>)]) -> Result<View> {
    let (mut pools, _) = find(handle, images).await;
    ensure!(pools.len() == 1, "{} pools", pools.len());
    let options = ImportOptions { force: true, cache_bytes: 64 << 20, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await?;
    for (dataset, key) in keys {
        pool.dsl().load_key(dataset, Secret::new(key.clone())).await?;
    }
    Ok(pool)
}

fn describe(report: &VerifyReport) -> String {
    let mut text = format!(
        "errors {} bad copies {} misuses {} leaked {} accounted {} allocated {}\n",
        report.error_count,
        report.bad_copy_count,
        report.misuse_count,
        report.leaked_bytes,
        report.statistics.accounted_bytes(),
        report.allocated_bytes
    );
    let bad = report.errors.iter().chain(&report.bad_copies).map(ToString::to_string);
    for line in bad.chain(report.problems.iter().cloned()).take(12) {
        text += &format!("    {line}\n");
    }
    for misuse in report.misuses.iter().take(8) {
        text += &format!("    {misuse}\n");
    }
    for leak in report.leaks.iter().take(8) {
        text += &format!("    leak: vdev {} {:#x}..{:#x}\n", leak.vdev, leak.range.start, leak.range.end);
    }
    text
}

/// Themes whose state makes OpenZFS itself see errors: devices that are missing or stale.
const DAMAGED: &[&str] = &["degraded_mirror", "degraded_raidz", "stale_mirror"];

fn check(handle: &Handle, runtime: &Runtime, theme: &Theme) -> Result<Vec<String>> {
    let manifest = theme.manifest()?;
    if manifest.pools.len() != 1 {
        return Ok(Vec::new());
    }
    let images = theme.unpacked()?.images;
    let keys: Vec<_> = manifest.keys.iter().map(|(name, key)| (name.clone(), key.bytes())).collect();
    let (report, txg) = runtime.block_on(async {
        let pool = open(handle, &images, &keys).await?;
        let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await?;
        anyhow::Ok((report, pool.txg()))
    })?;
    let mut differences = Vec::new();
    if !report.is_clean() && !DAMAGED.contains(&theme.name()) {
        differences.push(format!("not clean at txg {txg}: {}", describe(&report)));
    }
    let zdb = BlockStatistics::parse(&theme.zdb_text()?).context("zdb's figures")?;
    let mut compare = |what: &str, ours: u64, theirs: u64| {
        if ours != theirs {
            differences.push(format!("{what}: ours {ours}, OpenZFS {theirs}"));
        }
    };
    let total = report.statistics.total;
    compare("bp count", total.count, zdb.bp_count);
    compare("bp logical", total.lsize_bytes, zdb.bp_logical_bytes);
    compare("bp physical", total.psize_bytes, zdb.bp_physical_bytes);
    compare("bp allocated", total.asize_bytes, zdb.bp_allocated_bytes);
    let space = report.space.context("no space was loaded")?;
    let figures = space.figures();
    let json = theme.manifest_json()?;
    let properties = &json["sections"][0]["zpool_get"]["pools"][&manifest.pools[0]]["properties"];
    if let Some(theirs) = properties["size"]["value"].as_str().and_then(|text| text.parse().ok()) {
        compare("size", figures.size_bytes, theirs);
    }
    // A pool that OpenZFS imported read-only shows no figures of space: only sections of read-write imports count.
    let read_write = json["sections"].as_array().into_iter().flatten().find(|section| section["section"] == "imported");
    if let Some(section) = read_write {
        let properties = &section["zpool_get"]["pools"][&manifest.pools[0]]["properties"];
        if let Some(theirs) = properties["size"]["value"].as_str().and_then(|text| text.parse().ok()) {
            compare("size when imported", figures.size_bytes, theirs);
        }
    }
    // zdb says that what it found equals what the space maps say; so its sum is the figure to meet.
    if zdb.leak_free {
        compare("allocated", report.allocated_bytes, report.statistics.accounted_bytes());
    } else {
        compare("zdb found the pool whole", 1, 0);
    }
    Ok(differences)
}

#[test]
fn verify_agrees_with_openzfs_on_every_golden_pool() -> Result<()> {
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let handle = runtime.handle();
    let mut failures = Vec::new();
    let mut checked = 0;
    for theme in Golden::find()?.themes()? {
        match check(&handle, &runtime, &theme) {
            Ok(differences) if differences.is_empty() => {}
            Ok(differences) => failures.push(format!("{}:\n  {}", theme.name(), differences.join("\n  "))),
            Err(error) => failures.push(format!("{}: {error:#}", theme.name())),
        }
        checked += 1;
    }
    ensure!(checked > 0, "no golden pools");
    ensure!(failures.is_empty(), "{} of {checked} themes differ\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

/// Destroys that are part-way: a dataset's tree of which some is freed, another not begun, and the livelist of a clone. All of it
/// is allocated still, and OpenZFS counts it.
#[test]
fn what_is_being_destroyed_is_accounted_for() -> Result<()> {
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let handle = runtime.handle();
    let theme = Golden::selection()?.theme("destroying")?;
    let differences = check(&handle, &runtime, &theme)?;
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    let images = theme.unpacked()?.images;
    runtime.block_on(async {
        let pool = open(&handle, &images, &[]).await?;
        for name in ["bptree_obj", "com.delphix:deleted_clones"] {
            ensure!(pool.directory_object(name).await?.is_some(), "the pool has no {name}");
        }
        Ok(())
    })
}
