//! Goal: a new leaf that is rebuilt has all that it should, whatever is written and freed meanwhile and wherever the power goes, and no leaf that has missed
//! something is copied from. Method: simulated disks, blocks written meanwhile, every block read from the new disk alone or with parity, and `zdb`.

use std::path::PathBuf;
use std::time::Duration;

use cenote_dmu::Zap;
use cenote_format::dsl::{RebuildPhys, RebuildState, ScanFunction, ScanState, pool_directory};
use cenote_format::ids::Txg;
use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;
use cenote_sim::{Machine, disk};
use cenote_spa::{AttachOptions, ImportOptions, NewDevice, Offline, Pool, ScrubSince, SpaError, TopKind};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind};
use cenote_taskq::{Handle, Rng, Runtime};

use crate::offline::{assert_refused, leaf_of, vdevs, zdb};

const DRAID1: Layout = &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)];
const DRAID2: Layout = &[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)];
const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];
const SPARED: Layout = &[(TopKind::Draid { parity: 1, data: Some(2), spares: 1 }, 5)];

/// A layout, its disks, whether a disk is replaced, and other disks that the pool can do without in the end.
type Case = (Layout, usize, bool, &'static [usize]);

const CASES: [Case; 6] = [
    (&[(TopKind::Single, 1)], 1, false, &[0]),
    (&[(TopKind::Mirror, 2)], 2, false, &[0, 1]),
    (&[(TopKind::Mirror, 2)], 2, true, &[1]),
    (DRAID1, 4, true, &[2]),
    (DRAID2, 6, true, &[1, 5]),
    (SPARED, 5, true, &[3]),
];

async fn change(pool: &Pool, seed: u64, txgs: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..txgs {
        let head = pool.open_head("written").await.unwrap();
        let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
        change_head(pool, &pool.root().unwrap(), &mut rng).await.unwrap();
        drop((tx, head));
        pool.sync().await.unwrap();
    }
}

/// Small pieces, so that there are many; and no scrub after them, which would hide what has been left out.
async fn open_again(handle: &Handle, paths: &[PathBuf]) -> Pool {
    let tunables = ["zfs_rebuild_vdev_limit=1048576", "zfs_rebuild_scrub_enabled=0"];
    opened_pool(handle, paths, import_with(&tunables)).await.unwrap()
}

async fn filled(handle: &Handle, machine: &Machine, (layout, ..): Case, seed: u64) -> Pool {
    let pool = live(handle, machine, layout, small()).await;
    change(&pool, seed, 6).await;
    pool.export().await.unwrap();
    open_again(handle, &machine.paths).await
}

/// The disk that gets a new one: in the small draid with a spare, the first has nothing but spare space.
fn old_of(layout: Layout) -> usize {
    usize::from(layout == SPARED)
}

/// Attaches the last disk to the first, or has it replace it.
async fn attach(
    handle: &Handle,
    machine: &Machine,
    pool: &Pool,
    (layout, _, is_replacing, _): Case,
) -> Result<Txg, SpaError> {
    let old = leaf_of(pool, &format!("/disk{}", old_of(layout))).await;
    let new = NewDevice::Disk(disk(handle, machine.paths.last().unwrap()).await.unwrap());
    let options = AttachOptions { old, new, is_replacing, is_sequential: true, ashift: Some(12), seed: None };
    pool.attach_device(options).await
}

/// The record of the first vdev's rebuild.
async fn recorded(pool: &Pool) -> RebuildPhys {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let zap = Zap::open(view.mos().object(view.vdevs().children[0].top_zap).await.unwrap()).await.unwrap();
    let words: Vec<u64> = zap.lookup(RebuildPhys::ENTRY.as_bytes()).await.unwrap().unwrap().integers().collect();
    RebuildPhys::from_words(&words).unwrap()
}

async fn feature_count(pool: &Pool) -> u64 {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let counts = view.feature_counts(pool_directory::FEATURES_FOR_WRITE).await.unwrap();
    counts.get("org.openzfs:device_rebuild").copied().unwrap_or(0)
}

async fn is_over(pool: &Pool) -> bool {
    !pool.peek(|syncer| syncer.is_rebuilding() || syncer.is_replacing()).await.unwrap()
}

async fn wait(handle: &Handle, pool: &Pool) {
    for _ in 0..600 {
        handle.sleep(Duration::from_millis(100)).await;
        if is_over(pool).await {
            return;
        }
    }
    panic!("the rebuild does not end: {:?}", recorded(pool).await);
}

/// Asserts that a new disk has everything: the pool is whole, and whole without others.
async fn assert_rebuilt(
    handle: &Handle,
    machine: &Machine,
    pool: Pool,
    (layout, count, is_replacing, others): Case,
    what: &str,
) {
    let missing = |pool: &Pool| {
        let tree = pool.tree().unwrap();
        pool.tree()
            .unwrap()
            .leaf_states()
            .into_iter()
            .any(|(leaf, _)| !tree.lacks_of(leaf, &[].into()).unwrap().is_empty())
    };
    assert!(!missing(&pool), "{what}: no leaf lacks anything");
    assert!(vdevs(&pool).await.leaves().iter().all(|leaf| leaf.rebuild_txg.is_none()), "{what}: nothing is marked");
    assert_eq!(feature_count(&pool).await, 0, "{what}");
    pool.export().await.unwrap();
    let without = |gone: &[usize]| -> Vec<PathBuf> {
        let is_there = |at: &usize| !(gone.contains(at) || is_replacing && *at == old_of(layout));
        (0..=count).filter(is_there).map(|at| machine.paths[at].clone()).collect()
    };
    let (_, report) = check(handle, &without(&[])).await;
    assert_clean(&report, what);
    let (_, report) = check(handle, &without(others)).await;
    assert_eq!(report.error_count, 0, "{what} without {others:?}: {report}");
    zdb(machine, what);
}

/// The test that is run once more with bugs.
/// OpenZFS opens a metaslab that is rebuilt to allocation too early (#18307, #18473): what is written meanwhile is copied over by old bytes.
const BUSY: &str = "rebuilt::a_new_leaf_has_all_that_it_should_18307_18473";

#[test]
fn a_new_leaf_has_all_that_it_should_18307_18473() {
    for seed in seeds(12) {
        let case = CASES[seed as usize % CASES.len()];
        let (layout, count, ..) = case;
        let what = format!("rebuilt, seed {seed}, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine =
            machine_of(&runtime, count + 1, if seed % 2 == 0 { Latency::default() } else { cenote_sim::slow() });
        runtime.block_on(async {
            let pool = filled(&handle, &machine, case, seed).await;
            attach(&handle, &machine, &pool, case).await.unwrap();
            assert_eq!((recorded(&pool).await.state, feature_count(&pool).await), (RebuildState::ACTIVE, 1), "{what}");
            for more in 0..60 {
                change(&pool, seed * 1000 + more, 1).await;
                if is_over(&pool).await {
                    break;
                }
                handle.sleep(Duration::from_millis(30)).await;
            }
            wait(&handle, &pool).await;
            let record = recorded(&pool).await;
            assert_eq!((record.state, record.error_count), (RebuildState::COMPLETE, 0), "{what}");
            assert!(record.rebuilt_bytes > 0 && record.scanned_bytes > 0, "{what}: {record:?}");
            assert_rebuilt(&handle, &machine, pool, case, &what).await;
        });
    }
}

#[test]
fn bugs_of_rebuilds_are_seen() {
    // `rebuild-unheld` is found where all blocks are overwritten meanwhile (`crates/crash/tests/rebuilt.rs`).
    let mutant = cenote_taskq::mutant::Mutant::RebuildRangeLost.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([BUSY, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("rebuilt, seed"), "{mutant}: {text}");
}

/// Cut, exported and opened again, it ends as if nothing had been.
#[test]
fn a_rebuild_that_is_cut_ends_like_one_that_is_not() {
    for seed in seeds(18) {
        let case = CASES[seed as usize % CASES.len()];
        let (layout, count, ..) = case;
        let what = format!("rebuilt after cuts, seed {seed}, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count + 1, cenote_sim::slow());
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let mut pool = filled(&handle, &machine, case, seed).await;
            attach(&handle, &machine, &pool, case).await.unwrap();
            let mut before = 0;
            for round in 0..4 {
                handle.sleep(Duration::from_millis(rng.below(120))).await;
                change(&pool, seed * 10 + round, 1).await;
                let record = recorded(&pool).await;
                if record.state != RebuildState::ACTIVE {
                    break;
                }
                assert!(record.last_offset_bytes >= before, "{what}: it goes forward");
                before = record.last_offset_bytes;
                if rng.chance(1, 3) {
                    pool.export().await.unwrap();
                } else {
                    cut(&handle, &machine, if rng.chance(1, 2) { Crash::Random } else { Crash::Torn }).await;
                    drop(pool);
                }
                pool = open_again(&handle, &machine.paths).await;
            }
            wait(&handle, &pool).await;
            assert_eq!(recorded(&pool).await.state, RebuildState::COMPLETE, "{what}");
            assert_rebuilt(&handle, &machine, pool, case, &what).await;
        });
    }
}

/// OpenZFS's #18405, #18414: another leaf misses something meanwhile. It is copied from no more, and a resilver takes over.
#[test]
fn nothing_is_copied_from_a_leaf_that_has_missed_something_18405_18414() {
    for seed in seeds(8) {
        let case = CASES[[1, 2, 3, 4][seed as usize % 4]];
        let (layout, count, ..) = case;
        let what = format!("second fault, seed {seed}, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count + 1, cenote_sim::slow());
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = filled(&handle, &machine, case, seed).await;
            attach(&handle, &machine, &pool, case).await.unwrap();
            handle.sleep(Duration::from_millis(rng.below(60))).await;
            let second = leaf_of(&pool, "/disk1").await;
            // A small pool may be rebuilt by now: then it is a fault like any other.
            let is_met = pool.peek(|syncer| syncer.is_rebuilding()).await.unwrap();
            let is_away = rng.chance(1, 2);
            if is_away {
                pool.offline_device(second, Offline::default()).await.unwrap();
                change(&pool, seed + 100, 2).await;
                pool.online_device(second, Vec::new()).await.unwrap();
            } else {
                // Some writes fail, twice each.
                machine.disks[1].set_faults(|request, _| match request.kind {
                    RequestKind::Write => Fault::Error(std::io::ErrorKind::Other),
                    _ => Fault::None,
                });
                change(&pool, seed + 100, 1).await;
                machine.disks[1].clear_faults();
            }
            change(&pool, seed + 200, 3).await;
            for _ in 0..600 {
                if !pool.peek(|syncer| syncer.is_rebuilding()).await.unwrap() {
                    break;
                }
                handle.sleep(Duration::from_millis(100)).await;
            }
            pool.sync().await.unwrap();
            let record = recorded(&pool).await;
            assert_ne!(record.state, RebuildState::ACTIVE, "{what}");
            let lacking = pool.tree().unwrap().rebuild_targets(cenote_format::ids::VdevId(0));
            if is_met && !lacking.is_empty() {
                let scan = pool.scan().await.unwrap();
                let scan = scan.expect("a resilver takes over");
                assert_eq!((scan.function, scan.state), (ScanFunction::RESILVER, ScanState::SCANNING), "{what}");
            }
            pool.export().await.unwrap();
            crate::offline::assert_readable(&handle, &machine.paths, &what).await;
        });
    }
}

#[test]
fn a_rebuild_and_scans_exclude_each_other() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        change(&pool, 5, 4).await;
        pool.export().await.unwrap();
        let still = import_with(&["zfs_scan_suspend_progress=1"]);
        let pool = opened_pool(&handle, &machine.paths[..2], still).await.unwrap();
        pool.scrub(ScrubSince::Ever).await.unwrap();
        let old = leaf_of(&pool, "/disk0").await;
        let with = async |at: usize, is_sequential| AttachOptions {
            old,
            new: NewDevice::Disk(disk(&handle, &machine.paths[at]).await.unwrap()),
            is_replacing: false,
            is_sequential,
            ashift: Some(12),
            seed: None,
        };
        pool.attach_device(with(2, true).await).await.unwrap();
        assert_eq!(pool.scan().await.unwrap().unwrap().state, ScanState::CANCELED, "the scrub has ended");
        assert_refused(pool.scrub(ScrubSince::Ever).await, "currently sequentially resilvering");
        assert_refused(pool.resilver_all().await, "currently sequentially resilvering");
        assert_refused(pool.attach_device(with(3, false).await).await, "currently sequentially resilvering");
        let first = recorded(&pool).await;
        pool.attach_device(with(3, true).await).await.unwrap();
        let second = recorded(&pool).await;
        assert!(second.max_txg > first.max_txg && second.last_offset_bytes == 0, "it begins anew: {second:?}");
        assert_eq!(feature_count(&pool).await, 1);
        // Both new legs go: it is given up.
        for path in ["/disk2", "/disk3"] {
            let leaf = leaf_of(&pool, path).await;
            pool.detach_device(leaf).await.unwrap();
        }
        pool.sync().await.unwrap();
        assert_eq!((recorded(&pool).await.state, feature_count(&pool).await), (RebuildState::CANCELED, 0));
        pool.scrub(ScrubSince::Ever).await.unwrap();
        pool.stop_scan().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A distributed spare takes the place of a device that is faulted: the pool does without that and a further one, and the spare is free again later.
#[test]
fn a_distributed_spare_is_rebuilt_and_goes_again() {
    for seed in seeds(6) {
        let what = format!("distributed spare, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 5, if seed % 2 == 0 { Latency::default() } else { cenote_sim::slow() });
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = live(&handle, &machine, SPARED, small()).await;
            change(&pool, seed, 6).await;
            pool.export().await.unwrap();
            let mut pool = open_again(&handle, &machine.paths).await;
            let failed = leaf_of(&pool, "/disk1").await;
            pool.offline_device(failed, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
            let spare = pool.use_spares().await.unwrap().pop().expect("the draid's own spare is taken");
            assert!(pool.use_spares().await.unwrap().is_empty(), "{what}: one is enough");
            for more in 0..4 {
                handle.sleep(Duration::from_millis(rng.below(60))).await;
                change(&pool, seed * 1000 + more, 1).await;
            }
            if rng.chance(1, 2) {
                cut(&handle, &machine, Crash::Random).await;
                drop(pool);
                pool = open_again(&handle, &machine.paths).await;
            }
            wait(&handle, &pool).await;
            assert_eq!(recorded(&pool).await.state, RebuildState::COMPLETE, "{what}");
            let lacks = |guid| pool.tree().unwrap().lacks_of(guid, &[].into()).unwrap();
            assert!(lacks(spare).is_empty(), "{what}: {}", lacks(spare));
            change(&pool, seed + 77, 2).await;
            pool.export().await.unwrap();
            // The spare lies on the other disks: one more may go.
            for gone in [0, 2, 3, 4] {
                let paths: Vec<PathBuf> = [0, 2, 3, 4]
                    .into_iter()
                    .filter(|at| *at != gone)
                    .map(|at: usize| machine.paths[at].clone())
                    .collect();
                let (_, report) = check(&handle, &paths).await;
                assert_eq!(report.error_count, 0, "{what} without {gone}: {report}");
            }
            zdb(&machine, &what);
            let pool = open_again(&handle, &machine.paths).await;
            pool.detach_device(spare).await.unwrap();
            assert_eq!(pool.use_spares().await.unwrap(), [spare], "{what}: it is free, and taken again");
            wait(&handle, &pool).await;
            pool.export().await.unwrap();
            crate::offline::assert_readable(&handle, &machine.paths, &what).await;
            // It counts as a good device: a second one is lost, and the pool is written on, in use and after it was opened without both.
            let pool = open_again(&handle, &machine.paths).await;
            let second = leaf_of(&pool, "/disk3").await;
            pool.offline_device(second, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
            change(&pool, seed + 78, 2).await;
            pool.export().await.unwrap();
            let left: Vec<PathBuf> = [0, 2, 4].map(|at: usize| machine.paths[at].clone()).to_vec();
            let pool = open_again(&handle, &left).await;
            change(&pool, seed + 79, 2).await;
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &left).await;
            assert_eq!(report.error_count, 0, "{what} in use without two: {report}");
        });
    }
}

/// The device that failed goes, and the distributed spare stays where it was: a child of its draid, in use, until a new disk replaces it.
#[test]
fn a_device_goes_for_which_a_distributed_spare_stands() {
    for seed in seeds(6) {
        let what = format!("its device went, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 6, if seed % 2 == 0 { Latency::default() } else { cenote_sim::slow() });
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = live(&handle, &machine.part(0..5), SPARED, small()).await;
            change(&pool, seed, 6).await;
            pool.export().await.unwrap();
            let mut pool = open_again(&handle, &machine.paths[..5]).await;
            let failed = leaf_of(&pool, "/disk1").await;
            pool.offline_device(failed, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
            let spare = pool.use_spares().await.unwrap().pop().expect("the draid's own spare is taken");
            // Also one that is not ready yet can be given back.
            pool.detach_device(spare).await.unwrap();
            assert_eq!(pool.use_spares().await.unwrap(), [spare], "{what}: it is free, and taken again");
            wait(&handle, &pool).await;
            change(&pool, seed + 50, 2).await;
            pool.detach_device(failed).await.unwrap();
            let children = async |pool: &Pool| vdevs(pool).await.children[0].children.clone();
            let is_child =
                |children: &[cenote_vdev::config::VdevConfig]| children[1].guid == spare && children[1].is_spare;
            assert!(is_child(&children(&pool).await), "{what}: {:?}", children(&pool).await);
            assert_refused(pool.detach_device(spare).await, "only applicable to mirror and replacing vdevs");
            assert!(pool.use_spares().await.unwrap().is_empty(), "{what}: nothing has failed any more");
            change(&pool, seed + 60, 2).await;
            if rng.chance(1, 2) {
                cut(&handle, &machine, Crash::Random).await;
                drop(pool);
            } else {
                pool.export().await.unwrap();
            }
            // The device that went is not asked for any more; one of the others may go.
            let at = |gone: Option<usize>| -> Vec<PathBuf> {
                [0, 2, 3, 4].into_iter().filter(|at| Some(*at) != gone).map(|at| machine.paths[at].clone()).collect()
            };
            pool = open_again(&handle, &at(None)).await;
            assert!(is_child(&children(&pool).await), "{what}: {:?}", children(&pool).await);
            change(&pool, seed + 70, 2).await;
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &at(None)).await;
            assert_clean(&report, &what);
            for gone in [0, 2, 3, 4] {
                let (_, report) = check(&handle, &at(Some(gone))).await;
                assert_eq!(report.error_count, 0, "{what} without {gone}: {report}");
            }
            zdb(&machine, &what);
            // A new disk takes its place, and it is free again.
            let pool = open_again(&handle, &at(None)).await;
            let new = NewDevice::Disk(disk(&handle, &machine.paths[5]).await.unwrap());
            let options = AttachOptions {
                old: spare,
                new,
                is_replacing: true,
                is_sequential: true,
                ashift: Some(12),
                seed: None,
            };
            pool.attach_device(options).await.unwrap();
            change(&pool, seed + 80, 2).await;
            wait(&handle, &pool).await;
            assert!(children(&pool).await.iter().all(|child| child.guid != spare && !child.is_spare), "{what}");
            let leaf = leaf_of(&pool, "/disk3").await;
            pool.offline_device(leaf, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
            assert_eq!(pool.use_spares().await.unwrap(), [spare], "{what}: it is free again");
            wait(&handle, &pool).await;
            pool.export().await.unwrap();
            let all: Vec<PathBuf> = [0, 2, 3, 4, 5].map(|at: usize| machine.paths[at].clone()).into();
            crate::offline::assert_readable(&handle, &all, &what).await;
            zdb(&machine, &what);
        });
    }
}

#[test]
fn a_raidz_is_not_rebuilt() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, RAIDZ, small()).await;
        assert_refused(
            attach(&handle, &machine, &pool, (RAIDZ, 3, true, &[])).await,
            "only mirror and dRAID vdevs support",
        );
        // Nor for an expansion, which copies in its own order.
        let options = AttachOptions {
            old: vdevs(&pool).await.children[0].guid,
            new: NewDevice::Disk(disk(&handle, &machine.paths[3]).await.unwrap()),
            is_replacing: false,
            is_sequential: true,
            ashift: None,
            seed: None,
        };
        assert_refused(pool.attach_device(options).await, "only mirror and dRAID vdevs support");
        pool.export().await.unwrap();
    });
}
