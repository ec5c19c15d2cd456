//! A pool that is called `written`, for tests that write one and judge it.
//!
//! **Need.** Tests of `dmu`, `dsl`, `zil`, `zpl` and `spa` run the whole engine: each makes a pool on simulated disks, writes it, cuts the power or
//! lets devices fail, opens it again and has it judged. They are in the crates that they test, and have this in common.
//!
//! **Shape.**
//! ```text
//! here     the pool: made, opened to be changed or only read, cut off, judged
//! blocks   objects of blocks whose contents follow from a seed, and what each txg left in them
//! files    a file system of it, with its intent log; contents of files by their paths
//! tree     random changes of a file system
//! ```
//!
//! A function here panics where a test would, so that a test says what it is about and nothing else. What a campaign or a judge needs returns its
//! error, and is in the crate's root.
//!
//! **Rejected.** *One test program for the whole engine*, as there was in `scan`: a change of one layer, and its author, saw no test of its own, and
//! `cargo test` of that layer said next to nothing.

pub mod blocks;
pub mod files;
pub mod tree;

use std::path::PathBuf;
use std::time::Duration;

use cenote_dmu::tx::TxTunables;
use cenote_format::ids::Txg;
use cenote_scan::VerifyReport;
use cenote_spa::{
    Clock, CreateOptions, Host, ImportOptions, Pool, SpaError, TopSpec, View, WriteOptions, find, import, open,
};
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Handle, Runtime};
use cenote_testkit::Part;

use crate::Machine;
pub use crate::{LAYOUTS, Layout, SINGLE, slow};

/// The size of a disk in bytes.
pub const DISK_BYTES: u64 = 80 << 20;

/// The seeds below `count` that this run has: all, or a part ([`Part`]). They are neighbours, since their remainders decide on layouts.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let (before, mine) = Part::of_environment().share(count);
    before..before + mine
}

/// `count` disks in a simulated runtime.
pub fn machine_of(runtime: &Runtime, count: usize, latency: Latency) -> Machine {
    Machine::new(runtime, count, &SimDiskOptions { size_bytes: DISK_BYTES, latency, ..SimDiskOptions::default() })
}

/// Options to make the pool.
pub fn options(tops: Vec<TopSpec>, ashift: u32) -> CreateOptions {
    crate::options("written", tops, ashift)
}

/// Makes the pool, with a root directory.
pub async fn make(handle: &Handle, options: CreateOptions) -> Pool {
    crate::new_pool(handle, options).await.unwrap()
}

/// Has Cenote verify the pool on these disks.
pub async fn check(handle: &Handle, paths: &[PathBuf]) -> (Txg, VerifyReport) {
    crate::check(handle, paths).await.unwrap()
}

/// Asserts that verify found no fault.
pub fn assert_clean(report: &VerifyReport, what: &str) {
    assert!(report.is_clean(), "{what}: {report}");
}

/// Options to open the pool, with these tunables, each as `NAME=VALUE`.
pub fn import_with(given: &[&str]) -> ImportOptions {
    let mut tunables = cenote_spa::tunables::settings();
    given.iter().for_each(|given| tunables.set_from(given).unwrap());
    ImportOptions { cache_bytes: 16 << 20, force: true, tunables, ..ImportOptions::default() }
}

/// Options to write the pool: a fixed clock, and the second book of space.
pub fn write_options() -> WriteOptions {
    WriteOptions { clock: Clock::Fixed(1_700_000_001), host: Host { id: 0, name: "here".into() }, check: true }
}

/// The pool on these disks, to be changed in txgs that the test writes.
pub async fn reopen(handle: &Handle, paths: &[PathBuf]) -> Result<Pool, SpaError> {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, write_options()).await
}

/// The pool on these disks, only to be read.
pub async fn read(handle: &Handle, paths: &[PathBuf]) -> View {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &how).await.unwrap()
}

/// The pool on these disks, to be changed, and none of its datasets. No txg is written unless somebody waits for one.
pub async fn opened_pool(handle: &Handle, paths: &[PathBuf], how: ImportOptions) -> Result<Pool, SpaError> {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let tunables = TxTunables { zfs_txg_timeout: 3600, ..TxTunables::default() };
    Ok(open(handle, pools.remove(0), &how, write_options()).await?.start(tunables).await)
}

/// Tunables by which little data is dirty at once.
pub fn small() -> TxTunables {
    TxTunables { zfs_dirty_data_max: 2 << 20, ..TxTunables::default() }
}

/// A new pool of this layout, whose txgs are written in the background.
pub async fn live(handle: &Handle, machine: &Machine, layout: Layout, tunables: TxTunables) -> Pool {
    let pool = make(handle, options(machine.tops(handle, layout).await.unwrap(), 12)).await;
    pool.start(tunables).await
}

/// The pool on these disks, whose txgs are written in the background.
pub async fn reopened(handle: &Handle, paths: &[PathBuf], tunables: TxTunables) -> Pool {
    let (mut pools, _) = find(handle, paths).await;
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    let options = WriteOptions { clock: Clock::Now, host: Host { id: 0, name: "here".into() }, check: true };
    open(handle, pools.remove(0), &how, options).await.unwrap().start(tunables).await
}

/// Cuts the power of all disks, and gives it back.
pub async fn cut(handle: &Handle, machine: &Machine, how: Crash) {
    machine.disks.iter().for_each(|disk| disk.crash(how));
    handle.sleep(Duration::from_secs(20)).await;
    machine.disks.iter().for_each(|disk| disk.power_on());
}

/// Exports the pool, and asserts that it is whole.
pub async fn export_whole(handle: &Handle, machine: &Machine, pool: Pool, what: &str) {
    pool.export().await.unwrap();
    let (_, report) = check(handle, &machine.paths).await;
    assert_clean(&report, what);
}
