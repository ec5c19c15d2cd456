//! Goal: a vdev with blocks of datasets goes while it is used, nothing is lost by that, whenever the power goes, and the pool is written, snapshotted and freed
//! afterwards like any other. Method: files of a pool in use are changed while the vdev is evacuated; then the pool is looked at by the read path, by
//! `verify`, and by `zdb`, which counts each block, each leak, and each obsolete byte of the mappings.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_sim::Machine;
use cenote_spa::{ImportOptions, NewSnapshot, Pool, Refusal, SpaError, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::VdevKind;
use cenote_zil::Log;
use cenote_zpl::{FileSystem, NewNode};

use cenote_sim::written::files::{make_on, new_files, opened, opened_files, opened_with};
use cenote_sim::written::tree::{change, seen};
use cenote_sim::written::*;

/// A removal takes many txgs, and entries for short pieces.
const SLOWLY: [&str; 2] = ["zfs_remove_max_copy_bytes=65536", "vdev_removal_max_span=4096"];

/// States of a removal.
const RUNS: u64 = 1;
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;

/// A layout, and the vdevs that go, one after the other.
type Going = (&'static [(TopKind, usize)], &'static [usize]);

const LAYOUTS: [Going; 4] = [
    (&[(TopKind::Single, 1), (TopKind::Single, 1)], &[0]),
    (&[(TopKind::Mirror, 2), (TopKind::Mirror, 2)], &[1]),
    (&[(TopKind::Single, 1), (TopKind::Mirror, 2), (TopKind::Single, 1)], &[0, 1]),
    (&[(TopKind::Mirror, 2), (TopKind::Single, 1), (TopKind::Single, 1)], &[2, 0]),
];

/// Disks with room for another one's blocks beside what a pool keeps back.
pub(crate) fn machine_with(runtime: &Runtime, count: usize, latency: Latency) -> Machine {
    Machine::new(runtime, count, &SimDiskOptions { size_bytes: 256 << 20, latency, ..SimDiskOptions::default() })
}

/// The guid of a top-level vdev.
pub(crate) async fn top(pool: &Pool, at: usize) -> Guid {
    pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[at].guid
}

async fn state(pool: &Pool) -> Option<u64> {
    pool.removal().await.unwrap().map(|removal| removal.state)
}

/// Waits until no vdev is evacuated any more.
pub(crate) async fn ended(handle: &Handle, pool: &Pool) {
    for _ in 0..100_000 {
        if state(pool).await != Some(RUNS) {
            return;
        }
        handle.sleep(Duration::from_millis(20)).await;
    }
    panic!("a removal does not end: {:?}", pool.jobs());
}

pub(crate) async fn snapshot(pool: &Pool, name: &str) {
    let wanted = NewSnapshot { name: format!("written@{name}"), ..NewSnapshot::default() };
    pool.take_snapshots(vec![wanted]).await.unwrap();
}

/// Fills files of a directory with data, so that there is something to copy.
pub(crate) async fn fill(fs: &FileSystem, rng: &mut Rng, count: u64) {
    for _ in 0..count {
        let name = format!("big{}", rng.below(6)).into_bytes();
        let object = match fs.lookup(fs.root(), &name).await {
            Ok(found) => found,
            Err(_) => {
                fs.create(fs.root(), &name, &NewNode { mode: 0o100_640, ..NewNode::default() }).await.unwrap().object
            }
        };
        // A change may have put something else there.
        let Ok(file) = fs.open_file(object).await else { continue };
        let mut bytes = vec![0; 400 << 10];
        rng.fill(&mut bytes);
        file.write(rng.below(4 << 20), &bytes).await.unwrap();
        file.close().await.unwrap();
    }
}

/// Changes files some times.
pub(crate) async fn work(fs: &FileSystem, rng: &mut Rng, count: u64) {
    for _ in 0..count {
        let tree = seen(fs).await;
        change(fs, &tree, rng).await;
    }
}

/// The disks of the layout's vdevs that stay.
pub(crate) fn left(machine: &Machine, layout: &[(TopKind, usize)], gone: &[usize]) -> Machine {
    let (mut at, mut keep) = (0, Vec::new());
    for (vdev, (_, count)) in layout.iter().enumerate() {
        if !gone.contains(&vdev) {
            keep.extend(at..at + count);
        }
        at += count;
    }
    let mut left = machine.part(0..0);
    for at in keep {
        left.disks.push(machine.disks[at].clone());
        left.paths.push(machine.paths[at].clone());
    }
    left
}

pub(crate) fn zdb(machine: &Machine, what: &str) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images = machine.images();
        cenote_sim::zdb("written", &images, machine.size_bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

pub(crate) async fn check_whole(handle: &Handle, machine: &Machine, pool: Pool, what: &str) {
    pool.export().await.unwrap();
    let (_, report) = check(handle, &machine.paths).await;
    assert_clean(&report, what);
    zdb(machine, what);
}

#[test]
fn vdevs_go_while_they_are_used_and_the_pool_is_written_afterwards() {
    for (seed, (layout, going)) in (0..8).zip(LAYOUTS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_with(&runtime, count, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            make_on(&handle, &machine, layout, false).await;
            let (pool, fs, log) = opened_with(&handle, &machine, &SLOWLY).await.unwrap();
            work(&fs, &mut rng, 20).await;
            fill(&fs, &mut rng, 20).await;
            snapshot(&pool, "before").await;
            work(&fs, &mut rng, 10).await;
            fill(&fs, &mut rng, 10).await;
            for (round, place) in going.iter().enumerate() {
                let guid = top(&pool, *place).await;
                pool.remove_vdev(guid).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let again = pool.remove_vdev(guid).await;
                assert!(matches!(again, Err(SpaError::Refused { .. })), "{what}: {again:?}");
                while state(&pool).await == Some(RUNS) {
                    work(&fs, &mut rng, 1).await;
                    handle.sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(state(&pool).await, Some(FINISHED), "{what}");
                let view = pool.view(&ImportOptions::default()).await.unwrap();
                assert!(matches!(view.vdevs().children[*place].kind, VdevKind::Indirect(_)), "{what}");
                drop(view);
                work(&fs, &mut rng, 10).await;
                fill(&fs, &mut rng, 5).await;
                snapshot(&pool, &format!("after-{round}")).await;
                work(&fs, &mut rng, 10).await;
            }
            let tree = seen(&fs).await;
            drop((fs, log));
            let machine = left(&machine, layout, going);
            check_whole(&handle, &machine, pool, &what).await;
            // The pool is opened without the devices that went.
            let pool = opened_pool(&handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            pool.change(|syncer| Box::pin(async move { syncer.destroy_snapshot("written@before", false).await }))
                .await
                .unwrap();
            work(&fs, &mut rng, 20).await;
            let tree = seen(&fs).await;
            drop((fs, log));
            check_whole(&handle, &machine, pool, &format!("{what}, again")).await;
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            drop((fs, log, pool));
        });
    }
}

/// A pool in use on two vdevs, with files.
async fn used(
    handle: &Handle,
    machine: &Machine,
    layout: &[(TopKind, usize)],
    rng: &mut Rng,
) -> (Pool, FileSystem, Arc<Log>) {
    make_on(handle, machine, layout, false).await;
    let (pool, fs, log) = opened_with(handle, machine, &SLOWLY).await.unwrap();
    work(&fs, rng, 10).await;
    fill(&fs, rng, 30).await;
    snapshot(&pool, "before").await;
    work(&fs, rng, 10).await;
    fill(&fs, rng, 10).await;
    (pool, fs, log)
}

#[test]
fn a_removal_that_is_cut_off_goes_on_and_ends_as_one_that_was_not() {
    let (mut begun, mut over) = (0, 0);
    for (seed, (layout, going)) in (0..24).zip(LAYOUTS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_with(&runtime, count, cenote_sim::slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            let (pool, fs, log) = used(&handle, &machine, layout, &mut rng).await;
            let guid = top(&pool, going[0]).await;
            pool.remove_vdev(guid).await.unwrap();
            let mut tree = seen(&fs).await;
            for _ in 0..rng.below(4) {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            handle.sleep(Duration::from_millis(rng.below(60))).await;
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            // Once more, as it is on disk: a second one goes on with it.
            let pool = opened_pool(&handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            match state(&pool).await {
                Some(RUNS) => begun += 1,
                found => {
                    assert_eq!(found, Some(FINISHED), "{what}");
                    over += 1;
                }
            }
            if seed % 3 == 0 && state(&pool).await == Some(RUNS) {
                // Looked at amid the removal.
                drop((fs, log));
                check_whole(&handle, &machine, pool, &format!("{what}, amid")).await;
                let pool = opened_pool(&handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
                let (fs, log) = opened_files(&pool).await.unwrap();
                finish(&handle, &machine, (pool, fs, log), layout, going[0], &what).await;
            } else {
                finish(&handle, &machine, (pool, fs, log), layout, going[0], &what).await;
            }
        });
    }
    assert!(begun > 4, "{begun} removals were cut off, {over} were over");
}

/// Waits for the end of a removal, and looks at what is left.
async fn finish(
    handle: &Handle,
    machine: &Machine,
    (pool, fs, log): (Pool, FileSystem, Arc<Log>),
    layout: &[(TopKind, usize)],
    place: usize,
    what: &str,
) {
    let tree = seen(&fs).await;
    ended(handle, &pool).await;
    assert_eq!(state(&pool).await, Some(FINISHED), "{what}");
    drop((fs, log));
    let machine = left(machine, layout, &[place]);
    check_whole(handle, &machine, pool, what).await;
    let (pool, fs, log) = opened(handle, &machine).await.unwrap();
    assert_eq!(seen(&fs).await, tree, "{what}");
    drop((fs, log, pool));
}

#[test]
fn a_removal_that_is_cancelled_leaves_the_pool_as_it_was() {
    for (seed, (layout, going)) in (0..12).zip(LAYOUTS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_with(&runtime, count, cenote_sim::slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            let (pool, fs, log) = used(&handle, &machine, layout, &mut rng).await;
            let none = pool.cancel_removal().await;
            assert!(matches!(none, Err(SpaError::Refused { .. })), "{what}: {none:?}");
            let guid = top(&pool, going[0]).await;
            pool.remove_vdev(guid).await.unwrap();
            for _ in 0..rng.below(6) {
                work(&fs, &mut rng, 1).await;
                handle.sleep(Duration::from_millis(rng.below(40))).await;
            }
            let is_cancelled = pool.cancel_removal().await.is_ok();
            pool.sync().await.unwrap();
            assert_eq!(state(&pool).await, Some(if is_cancelled { CANCELED } else { FINISHED }), "{what}");
            work(&fs, &mut rng, 5).await;
            fill(&fs, &mut rng, 5).await;
            let tree = seen(&fs).await;
            drop((fs, log));
            let machine = if is_cancelled { machine } else { left(&machine, layout, &going[..1]) };
            check_whole(&handle, &machine, pool, &what).await;
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            drop((fs, log, pool));
        });
    }
}

#[test]
fn what_cannot_be_elsewhere_is_not_removed() {
    let refused: [&[(TopKind, usize)]; 3] = [
        &[(TopKind::Single, 1)],
        &[(TopKind::Single, 1), (TopKind::Raidz { parity: 1 }, 3)],
        &[(TopKind::Raidz { parity: 1 }, 3), (TopKind::Single, 1)],
    ];
    for layout in refused {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_with(&runtime, count, Latency::default());
        runtime.block_on(async {
            let (pool, fs, log) = new_files(&handle, &machine, layout, false).await;
            let removed = pool.remove_vdev(top(&pool, 0).await).await.unwrap_err();
            assert!(removed.to_string().contains("same sector size and not be raidz"), "{removed}");
            drop((fs, log));
            check_whole(&handle, &machine, pool, "refused").await;
        });
    }
    // Too little room on the other: as OpenZFS counts it.
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1); 2], false).await;
        let removed = pool.remove_vdev(top(&pool, 0).await).await.unwrap_err();
        assert!(matches!(removed, SpaError::Refused { why: Refusal::NoSpace, .. }), "{removed}");
        drop((fs, log, pool));
    });
}

/// Bugs of removals. Each has its own process, since a bug is alive in a whole one.
#[test]
fn bugs_of_removals_are_found() {
    const NAMES: [&str; 2] = [
        "evacuated::vdevs_go_while_they_are_used_and_the_pool_is_written_afterwards",
        "evacuated::a_removal_that_is_cancelled_leaves_the_pool_as_it_was",
    ];
    for mutant in cenote_taskq::mutant::Mutant::OF_REMOVALS.iter().map(|mutant| mutant.name()) {
        let told = std::process::Command::new(std::env::current_exe().unwrap())
            .args(NAMES)
            .arg("--exact")
            .env_remove(cenote_testkit::PART_VARIABLE)
            .env(cenote_sim::MUTANT_VARIABLE, mutant)
            .output()
            .unwrap();
        assert!(!told.status.success(), "{mutant}: {}", String::from_utf8_lossy(&told.stdout));
    }
}
