//! Vdevs of classes, spares and cache devices: in pools that are made, and in pools that get them later, with the power cut on
//! the way.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::VdevId;
use cenote_spa::{
    AddOptions, AuxSpec, DiskSpec, ImportOptions, Pool, PropertyValue, TopKind, TopSpec, WriteOptions, create, find,
    import, open,
};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Handle, OpenOptions, Rng, Runtime, both};
use cenote_vdev::config::{AllocationClass, VdevKind};
use cenote_vdev::disk::Disk;

use cenote_sim::written::*;

pub(crate) async fn disk(handle: &Handle, path: &Path) -> DiskSpec {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let disk = Disk::whole(handle.open(path, options).await.unwrap());
    DiskSpec { disk, path: path.display().to_string(), is_file: true }
}

pub(crate) async fn top(handle: &Handle, kind: TopKind, class: AllocationClass, paths: &[PathBuf]) -> TopSpec {
    let mut disks = Vec::new();
    for path in paths {
        disks.push(disk(handle, path).await);
    }
    TopSpec { kind, class, disks }
}

async fn reopen(handle: &Handle, paths: &[PathBuf]) -> Pool {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, WriteOptions { ..write_options() }).await.unwrap()
}

/// Writes an object of blocks of noise, and says how large it is on each vdev.
async fn fill(pool: &Pool, kind: DmuType, block_bytes: u32, count: u64) {
    let head = match pool.root() {
        Some(head) => head,
        None => pool.open_head("written").await.unwrap().head().clone(),
    };
    let txg = pool.txg();
    let object = head.objset.create_object(txg, &ObjectSpec::new(kind, block_bytes)).unwrap();
    let mut bytes = vec![0; block_bytes as usize];
    let mut rng = Rng::new(u64::from(block_bytes));
    for block in 0..count {
        rng.fill(&mut bytes);
        object.write(txg, block * u64::from(block_bytes), &bytes).await.unwrap();
    }
    pool.sync().await.unwrap();
}

/// Bytes allocated on each vdev of the pool on disk, which must be whole.
pub(crate) async fn allocated(handle: &Handle, paths: &[PathBuf], what: &str) -> BTreeMap<VdevId, u64> {
    let (_, report) = check(handle, paths).await;
    assert_clean(&report, what);
    let (mut pools, _) = find(handle, paths).await;
    let options = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await.unwrap();
    let space = pool.space().await.unwrap();
    let found = space.vdevs.iter().map(|vdev| (vdev.maps.vdev, vdev.allocated.iter().map(|r| r.end - r.start).sum()));
    found.collect()
}

const NORMAL: VdevId = VdevId(0);
const SPECIAL: VdevId = VdevId(1);
const DEDUP: VdevId = VdevId(2);
const LOG: VdevId = VdevId(3);

/// A pool with a vdev of every class, a spare and a cache device.
async fn of_all_classes(handle: &Handle, paths: &[PathBuf], ashift: u32) -> Pool {
    let tops = vec![
        top(handle, TopKind::Mirror, AllocationClass::Normal, &paths[0..2]).await,
        top(handle, TopKind::Mirror, AllocationClass::Special, &paths[2..4]).await,
        top(handle, TopKind::Single, AllocationClass::Dedup, &paths[4..5]).await,
        top(handle, TopKind::Mirror, AllocationClass::Log, &paths[5..7]).await,
    ];
    let auxiliaries =
        AuxSpec { spares: vec![disk(handle, &paths[7]).await], caches: vec![disk(handle, &paths[8]).await] };
    make(handle, cenote_spa::CreateOptions { auxiliaries, ..options(tops, ashift) }).await
}

#[test]
fn metadata_and_small_blocks_go_to_special_vdevs_and_data_does_not() {
    for ashift in [9, 12] {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 9, Latency::default());
        runtime.block_on(async {
            let pool = of_all_classes(&handle, &machine.paths, ashift).await;
            let root = pool.root().unwrap().clone();
            let before = allocated(&handle, &machine.paths, "new").await;
            assert_eq!((before[&NORMAL], before[&DEDUP], before[&LOG]), (0, 0, 0), "a pool without data is metadata");
            assert!(before[&SPECIAL] > 0);
            fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 16 << 10, 100).await;
            let large = allocated(&handle, &machine.paths, "data").await;
            assert_eq!(large[&NORMAL], 100 * (16 << 10));
            let small = PropertyValue::Number(8 << 10);
            pool.set_property(&root, "special_small_blocks", &small).await.unwrap();
            fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 16 << 10, 10).await;
            fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 8 << 10, 100).await;
            // A volume's blocks are never small.
            fill(&pool, DmuType::ZVOL, 8 << 10, 10).await;
            let small = allocated(&handle, &machine.paths, "small data").await;
            assert_eq!(small[&NORMAL], 110 * (16 << 10) + 10 * (8 << 10));
            assert!(small[&SPECIAL] > large[&SPECIAL] + 100 * (8 << 10), "{small:?}");
            assert_eq!((small[&DEDUP], small[&LOG]), (0, 0));
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn small_blocks_leave_space_for_metadata_even_within_one_txg() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 9, Latency::default());
    runtime.block_on(async {
        let pool = of_all_classes(&handle, &machine.paths, 12).await;
        let root = pool.root().unwrap().clone();
        let small = PropertyValue::Number(16 << 10);
        pool.set_property(&root, "special_small_blocks", &small).await.unwrap();
        // More than three quarters of the special vdev.
        fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 16 << 10, (70 << 20) / (16 << 10)).await;
        pool.export().await.unwrap();
        let found = allocated(&handle, &machine.paths, "full of small data").await;
        let most = DISK_BYTES * 3 / 4 + (2 << 20);
        assert!((40 << 20..most).contains(&found[&SPECIAL]) && found[&NORMAL] > 8 << 20, "{found:?}");
    });
}

#[test]
fn what_vdevs_are_for_is_found_again_with_spares_and_caches() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 16, Latency::default());
    runtime.block_on(async {
        let pool = of_all_classes(&handle, &machine.paths, 12).await;
        pool.export().await.unwrap();
        let pool = reopen(&handle, &machine.paths).await;
        let draid = TopKind::Draid { parity: 1, data: Some(2), spares: 2 };
        let tops = vec![top(&handle, draid, AllocationClass::Normal, &machine.paths[9..16]).await];
        pool.add_vdevs(AddOptions { tops, ashift: Some(12), ..AddOptions::default() }).await.unwrap();
        pool.export().await.unwrap();
        let (mut pools, _) = find(&handle, &machine.paths).await;
        let options = ImportOptions { cache_bytes: 16 << 20, ..ImportOptions::default() };
        let pool = import(&handle, pools.remove(0), &options).await.unwrap();
        let classes: Vec<_> = pool.vdevs().children.iter().map(|top| top.class).collect();
        use AllocationClass::{Dedup, Log, Normal, Special};
        assert_eq!(classes, [Normal, Special, Dedup, Log, Normal]);
        let spares = pool.spares().await.unwrap();
        let draid = pool.vdevs().children[4].guid;
        assert_eq!(spares.len(), 3);
        assert_eq!(spares[0].path.as_deref(), Some("/disk7"));
        for (id, spare) in spares[1..].iter().enumerate() {
            assert_eq!(spare.kind, VdevKind::DraidSpare { top_guid: draid, spare_id: id as u64 });
            assert_eq!(spare.path.as_deref(), Some(format!("draid1-4-{id}").as_str()));
        }
        let caches = pool.cache_devices().await.unwrap();
        assert_eq!(caches.iter().map(|cache| cache.path.as_deref()).collect::<Vec<_>>(), [Some("/disk8")]);
        let found = pool.found().auxiliaries.clone();
        assert!(found.contains_key(&spares[0].guid) && found.contains_key(&caches[0].guid));
    });
}

#[test]
fn what_is_added_is_written_to_when_the_pool_is_opened_again() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 5, Latency::default());
    runtime.block_on(async {
        let paths = &machine.paths;
        let first = top(&handle, TopKind::Single, AllocationClass::Normal, &paths[..1]).await;
        let pool = create(&handle, options(vec![first], 12)).await.unwrap();
        let node = cenote_zpl::bulk::NodeSpec { mode: 0o755, ..Default::default() };
        let root = pool.root().unwrap().objset.clone();
        cenote_zpl::bulk::BulkWriter::create(&root, pool.txg(), &node).await.unwrap();
        fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 128 << 10, 100).await;
        pool.export().await.unwrap();
        // Another sector size is refused, and nothing changes by that.
        let pool = reopen(&handle, paths).await;
        let other = vec![top(&handle, TopKind::Single, AllocationClass::Normal, &paths[1..2]).await];
        let refused =
            pool.add_vdevs(AddOptions { tops: other.clone(), ashift: Some(9), ..AddOptions::default() }).await;
        assert!(refused.unwrap_err().to_string().contains("mismatched ashift"));
        let nothing = pool.add_vdevs(AddOptions::default()).await;
        assert!(nothing.unwrap_err().to_string().contains("no vdevs are named"));
        pool.add_vdevs(AddOptions { tops: other, ashift: Some(12), ..AddOptions::default() }).await.unwrap();
        pool.export().await.unwrap();
        let before = allocated(&handle, paths, "added").await;
        assert_eq!(before[&VdevId(1)], 0);
        let pool = reopen(&handle, paths).await;
        fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 128 << 10, 100).await;
        let special = vec![top(&handle, TopKind::Mirror, AllocationClass::Special, &paths[2..4]).await];
        pool.add_vdevs(AddOptions { tops: special, ashift: Some(12), ..AddOptions::default() }).await.unwrap();
        pool.export().await.unwrap();
        let used = allocated(&handle, paths, "used").await;
        assert!(used[&VdevId(1)] > 4 << 20, "{used:?}");
        let pool = reopen(&handle, paths).await;
        fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 16 << 10, 10).await;
        pool.export().await.unwrap();
        let last = allocated(&handle, paths, "with special").await;
        assert!(last[&VdevId(2)] > 0, "{last:?}");
    });
}

/// Regression: an audit that got its turn between the change and its txg found a vdev that no uberblock counts yet (found by cut 252).
#[test]
fn an_audit_between_an_addition_and_its_txg_finds_nothing() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let first = vec![top(&handle, TopKind::Single, AllocationClass::Normal, &machine.paths[..1]).await];
        let pool = make(&handle, options(first, 12)).await;
        let tops = vec![top(&handle, TopKind::Single, AllocationClass::Normal, &machine.paths[1..]).await];
        let (is_added, audits) = (Cell::new(false), Cell::new(0));
        let adding = async {
            pool.add_vdevs(AddOptions { tops, ashift: Some(12), ..AddOptions::default() }).await.unwrap();
            is_added.set(true);
        };
        let auditing = async {
            while !is_added.get() {
                pool.audit().await.unwrap();
                audits.set(audits.get() + 1);
                handle.sleep(Duration::from_micros(10)).await;
            }
        };
        both(adding, auditing).await;
        assert!(audits.get() > 10, "{audits:?}");
        pool.audit().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// Wherever the power goes while vdevs are added, the pool is there, with them or without, and can be written on.
#[test]
fn a_power_cut_while_vdevs_are_added_leaves_the_old_pool_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    // How long it takes when nothing comes in between, in the simulation: found out first.
    let mut whole = None;
    for seed in seeds(40) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 6, slow());
        runtime.block_on(async {
            let paths = machine.paths.clone();
            let first = top(&handle, TopKind::Mirror, AllocationClass::Normal, &paths[..2]).await;
            let pool = make(&handle, options(vec![first], 12)).await;
            pool.export().await.unwrap();
            let pool = reopen(&handle, &paths[..2]).await;
            let tops = vec![top(&handle, TopKind::Mirror, AllocationClass::Special, &paths[2..4]).await];
            let spares = vec![disk(&handle, &paths[4]).await];
            let auxiliaries = AuxSpec { spares, caches: vec![disk(&handle, &paths[5]).await] };
            let added = AddOptions { tops, auxiliaries, ashift: Some(12), ..AddOptions::default() };
            let begun = handle.now();
            let adding = handle.spawn(Class::Issue, async move {
                // The power may go at any of this.
                if pool.add_vdevs(added).await.is_ok() {
                    let _ = pool.export().await;
                }
            });
            let Some(whole_us) = whole else {
                let _ = adding.await;
                whole = Some((handle.now() - begun).as_micros() as u64);
                return;
            };
            handle.sleep(Duration::from_micros(Rng::new(seed).below(whole_us + whole_us / 8))).await;
            machine.disks.iter().for_each(|disk| disk.crash(Crash::Random));
            let _ = adding.await;
            handle.sleep(Duration::from_secs(20)).await;
            machine.disks.iter().for_each(|disk| disk.power_on());
            let found = allocated(&handle, &paths, &format!("seed {seed} after the cut")).await;
            match found.len() {
                1 => old += 1,
                _ => new += 1,
            }
            let pool = reopen(&handle, &paths).await;
            fill(&pool, DmuType::PLAIN_FILE_CONTENTS, 16 << 10, 10).await;
            pool.export().await.unwrap();
            let after = allocated(&handle, &paths, &format!("seed {seed} written on")).await;
            assert_eq!(after.len(), found.len());
        });
    }
    assert!(old > 0 && new > 0, "cut {old} times before, {new} after");
}
