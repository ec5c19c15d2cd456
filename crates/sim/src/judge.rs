//! Judges of pools: Cenote's own verify, and `zdb`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use cenote_format::ids::Txg;
use cenote_scan::{VerifyOptions, VerifyReport, verify};
use cenote_spa::{ImportOptions, find, import};
use cenote_taskq::Handle;
use cenote_taskq::sim::disk::Image;
use cenote_testkit::zdb::{BlockStatistics, Devices, run};

use crate::CACHE_BYTES;
use crate::machine::export;

/// Bytes at the end of what `zdb` wrote that are shown.
const SHOWN_BYTES_MAX: usize = 1500;

/// Has Cenote verify the only pool on these disks: its txg, and what was found.
///
/// # Errors
/// There is not one pool, or it cannot be read.
pub async fn check(handle: &Handle, paths: &[PathBuf]) -> Result<(Txg, VerifyReport)> {
    let (mut pools, skipped) = find(handle, paths).await;
    ensure!(pools.len() == 1, "{} pools: {skipped:?}", pools.len());
    let options = ImportOptions { cache_bytes: CACHE_BYTES, force: true, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await?;
    let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await?;
    // A report with faults goes to the caller, which an assertion would hide.
    if report.is_clean() {
        pool.audit().await?;
    }
    Ok((pool.txg(), report))
}

/// Has `zdb -bcc` read every block of the pool on these disks, and compare the space maps with them, and `zdb -y` with the livelists of
/// destroyed clones.
///
/// # Errors
/// It cannot be run, or it finds fault.
pub fn zdb(pool: &str, images: &[Image], size_bytes: u64) -> Result<()> {
    let dir = tempfile::tempdir().context("a folder for images")?;
    let files = export(images, size_bytes, dir.path())?;
    let told = run(&Devices::of(&files)?, &["-bcc"], pool)?;
    let is_whole = BlockStatistics::parse(&told.text).is_some_and(|statistics| statistics.leak_free);
    if told.status != Some(0) || !is_whole {
        let from = told.text.ceil_char_boundary(told.text.len().saturating_sub(SHOWN_BYTES_MAX));
        bail!("zdb -bcc: status {:?}: {}", told.status, &told.text[from..]);
    }
    let told = run(&Devices::of(&files)?, &["-y"], pool)?;
    if told.status != Some(0) || told.text.lines().any(is_livelist_fault) {
        let from = told.text.ceil_char_boundary(told.text.len().saturating_sub(SHOWN_BYTES_MAX));
        bail!("zdb -y: status {:?}: {}", told.status, &told.text[from..]);
    }
    Ok(())
}

/// Whether a line of `zdb -y` tells of a fault. A place that was freed can be taken again by the txg whose flush enters that it was freed, before
/// what the txg itself takes: the order in which Cenote writes space maps, and OpenZFS reads them. zdb takes that for a block that was freed.
fn is_livelist_fault(line: &str) -> bool {
    let Some((_, error)) = line.split_once("ERROR: ") else { return false };
    let txgs = error.split_once(" from TXG ").and_then(|(_, txgs)| txgs.trim_end().split_once(" FREED at TXG "));
    txgs.is_none_or(|(taken, freed)| taken != freed)
}
