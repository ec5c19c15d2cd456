//! Pools on simulated disks, changes at random, and the judge.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_dmu::{DmuError, Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::Txg;
use cenote_scan::VerifyReport;
use cenote_sim::Machine;
use cenote_spa::{CreateOptions, ImportOptions, Pool, SpaError, TopKind, TopSpec, find, open};
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_testkit::Part;
use cenote_vdev::config::AllocationClass;
use cenote_zil::Log;
use cenote_zpl::{FileSystem, FileSystemOptions};

pub(crate) use cenote_sim::{LAYOUTS, Layout, SINGLE, slow};

pub(crate) const DISK_BYTES: u64 = 80 << 20;

/// The seeds of so many that this run has: all, or a part ([`Part`]). They are neighbours, since their remainders decide on layouts.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let (before, mine) = Part::of_environment().share(count);
    before..before + mine
}

pub(crate) fn machine_of(runtime: &Runtime, count: usize, latency: Latency) -> Machine {
    Machine::new(runtime, count, &SimDiskOptions { size_bytes: DISK_BYTES, latency, ..SimDiskOptions::default() })
}

pub(crate) fn options(tops: Vec<TopSpec>, ashift: u32) -> CreateOptions {
    cenote_sim::options("written", tops, ashift)
}

pub(crate) async fn make(handle: &Handle, options: CreateOptions) -> Pool {
    cenote_sim::new_pool(handle, options).await.unwrap()
}

pub(crate) async fn check(handle: &Handle, paths: &[PathBuf]) -> (Txg, VerifyReport) {
    cenote_sim::check(handle, paths).await.unwrap()
}

pub(crate) fn assert_clean(report: &VerifyReport, what: &str) {
    assert!(report.is_clean(), "{what}: {report}");
}

/// Makes a pool of this layout with an empty file system, and exports it; `has_log`: the last vdev is a log device.
pub(crate) async fn make_on(handle: &Handle, machine: &Machine, layout: &[(TopKind, usize)], has_log: bool) {
    let mut tops = machine.tops(handle, layout).await.unwrap();
    if has_log {
        tops.last_mut().unwrap().class = AllocationClass::Log;
    }
    let pool = crate::files::make(handle, options(tops, 12)).await;
    pool.export().await.unwrap();
}

/// How pools with logs are opened, with these tunables, each as `NAME=VALUE`.
pub(crate) fn import_with(given: &[&str]) -> ImportOptions {
    let mut tunables = cenote_spa::tunables::settings();
    given.iter().for_each(|given| tunables.set_from(given).unwrap());
    ImportOptions { cache_bytes: 16 << 20, force: true, tunables, ..ImportOptions::default() }
}

/// The pool on these disks, to be changed, and none of its datasets. No txg is written unless somebody waits for one.
pub(crate) async fn opened_pool(handle: &Handle, paths: &[PathBuf], how: ImportOptions) -> Result<Pool, SpaError> {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let tunables = TxTunables { zfs_txg_timeout: 3600, ..TxTunables::default() };
    Ok(open(handle, pools.remove(0), &how, crate::reopened::write_options()).await?.start(tunables).await)
}

/// Its file system, with its log, which was replayed.
pub(crate) async fn opened_files(pool: &Pool) -> Result<(FileSystem, Arc<Log>), SpaError> {
    let options = FileSystemOptions { record_bytes: 16 << 10, has_posix_acls: true, ..FileSystemOptions::default() };
    opened_files_with(pool, options).await
}

/// The same with these properties.
pub(crate) async fn opened_files_with(
    pool: &Pool,
    options: FileSystemOptions,
) -> Result<(FileSystem, Arc<Log>), SpaError> {
    let head = pool.open_head("written").await?;
    let log = Arc::new(head.log(SyncMode::Standard));
    let fs = FileSystem::open_logged(head.objset(), log.clone(), options).await.unwrap();
    Ok((fs, log))
}

/// The pool on the machine's disks, its files and its log.
pub(crate) async fn opened(handle: &Handle, machine: &Machine) -> Result<(Pool, FileSystem, Arc<Log>), SpaError> {
    opened_with(handle, machine, &[]).await
}

/// The same with these tunables.
pub(crate) async fn opened_with(
    handle: &Handle,
    machine: &Machine,
    given: &[&str],
) -> Result<(Pool, FileSystem, Arc<Log>), SpaError> {
    let pool = opened_pool(handle, &machine.paths, import_with(given)).await?;
    let (fs, log) = opened_files(&pool).await?;
    Ok((pool, fs, log))
}

/// A new pool of this layout, as [`make_on`] makes it, its files and its log.
pub(crate) async fn new_files(
    handle: &Handle,
    machine: &Machine,
    layout: &[(TopKind, usize)],
    has_log: bool,
) -> (Pool, FileSystem, Arc<Log>) {
    make_on(handle, machine, layout, has_log).await;
    opened(handle, machine).await.unwrap()
}

/// Cuts the power of all disks, and gives it back.
pub(crate) async fn cut(handle: &Handle, machine: &Machine, how: Crash) {
    machine.disks.iter().for_each(|disk| disk.crash(how));
    handle.sleep(Duration::from_secs(20)).await;
    machine.disks.iter().for_each(|disk| disk.power_on());
}

/// Exports the pool, and asserts that it is whole.
pub(crate) async fn export_whole(handle: &Handle, machine: &Machine, pool: Pool, what: &str) {
    pool.export().await.unwrap();
    let (_, report) = check(handle, &machine.paths).await;
    assert_clean(&report, what);
}

/// Changes this and that in the open txg: objects grow, shrink, come and go.
pub(crate) async fn change(pool: &Pool, objects: &mut Vec<Object>, rng: &mut Rng) -> Result<(), DmuError> {
    let root = pool.root().unwrap().objset.clone();
    let txg = pool.txg();
    for _ in 0..1 + rng.below(4) {
        match rng.below(6) {
            0 | 1 => {
                let block = 512 << rng.below(9);
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, block);
                objects.push(root.create_object(txg, &spec)?);
            }
            2 if !objects.is_empty() => {
                let object = objects.swap_remove(rng.below(objects.len() as u64) as usize);
                object.free(txg);
            }
            3 if !objects.is_empty() => {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                let from = rng.below(64);
                object.free_blocks(txg, from..from + rng.below(2000));
            }
            _ if !objects.is_empty() => {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                let mut bytes = vec![0; rng.below(200_000) as usize];
                if rng.chance(2, 3) {
                    rng.fill(&mut bytes);
                }
                let offset = if rng.chance(1, 8) { rng.below(1 << 34) } else { rng.below(1 << 20) };
                object.write(txg, offset, &bytes).await?;
            }
            _ => {}
        }
    }
    Ok(())
}
