//! Scrubs and resilvers of simulated pools.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_admin::{destroy_snapshots, take_snapshots};
use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DslDatasetPhys, ScanFunction, ScanPhys, ScanState, ZBookmark, pool_directory};
use cenote_format::ids::ObjectId;
use cenote_sim::written::blocks::{BLOCK_BYTES, change_head, content, make_objects};
use cenote_sim::written::*;
use cenote_sim::{MUTANT_VARIABLE, Machine};
use cenote_spa::{ImportOptions, Offline, Pool, ScrubSince, TopKind, View};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind, SimDiskOptions};
use cenote_taskq::sim::model::{Rotating, RotatingOptions};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::tree::VdevStatus;

use super::{attend, attend_in_steps};

const LAYOUTS: &[(Layout, usize)] = &[
    (&[(TopKind::Mirror, 2)], 2),
    (&[(TopKind::Mirror, 3)], 3),
    (&[(TopKind::Raidz { parity: 1 }, 3)], 3),
    (&[(TopKind::Raidz { parity: 2 }, 5)], 5),
    (&[(TopKind::Raidz { parity: 3 }, 6)], 6),
    (&[(TopKind::Mirror, 2), (TopKind::Raidz { parity: 1 }, 3)], 5),
];

/// Waits until the pool's scan has ended.
pub(super) async fn ended(handle: &Handle, pool: &Pool) -> ScanPhys {
    for _ in 0..600 {
        handle.sleep(Duration::from_secs(1)).await;
        if let Some(scan) = pool.scan().await.unwrap().filter(|scan| scan.state != ScanState::SCANNING) {
            return scan;
        }
    }
    panic!("the scan does not end: {:?}", pool.scan().await.unwrap());
}

/// Some txgs of changes.
async fn change(pool: &Pool, seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..6 {
        let head = pool.open_head("written").await.unwrap();
        let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
        change_head(pool, &pool.root().unwrap(), &mut rng).await.unwrap();
        drop((tx, head));
        pool.sync().await.unwrap();
    }
}

fn lacks(status: &VdevStatus) -> bool {
    !status.missed.is_empty() || status.children.iter().any(lacks)
}

/// The paths without one.
fn without(machine: &Machine, index: usize) -> Vec<PathBuf> {
    machine.paths.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, path)| path.clone()).collect()
}

pub(super) async fn open_again(handle: &Handle, paths: &[PathBuf]) -> Pool {
    open_in_order(handle, paths, &[]).await
}

/// The same with tunables.
async fn open_in_order(handle: &Handle, paths: &[PathBuf], given: &[&str]) -> Pool {
    opened_pool(handle, paths, import_with(given)).await.unwrap()
}

/// The orders in which scans read: by place, with one look a second at what was gathered; as blocks come; all by place.
const ORDERS: [&[&str]; 3] = [&["zfs_scan_checkpoint_intval=1"], &["zfs_scan_legacy=1"], &[]];

/// A device misses txgs, comes back, and is resilvered by itself: then the pool does without another one.
#[test]
fn a_device_that_was_away_gets_what_it_lacks() {
    for (seed, (layout, count)) in (1..).zip(LAYOUTS) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, *count, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed).await;
            pool.export().await.unwrap();
            for round in 0..2 {
                let away = round as usize % count;
                let pool = open_again(&handle, &without(&machine, away)).await;
                change(&pool, seed + 100 + round).await;
                pool.export().await.unwrap();
                let pool = open_again(&handle, &machine.paths).await;
                assert!(lacks(&pool.tree().unwrap().status()), "{layout:?}: what was missed is known");
                attend(&pool);
                let scan = ended(&handle, &pool).await;
                assert_eq!((scan.function, scan.state), (ScanFunction::RESILVER, ScanState::FINISHED));
                assert_eq!(scan.error_count, 0);
                assert!(scan.processed_bytes > 0, "{layout:?}: something was written");
                assert!(!lacks(&pool.tree().unwrap().status()), "{layout:?}: nothing is missed any more");
                export_whole(&handle, &machine, pool, "resilvered").await;
                // Each other disk of its vdev can go now.
                for other in (0..*count).filter(|other| *other != away) {
                    let (_, report) = check(&handle, &without(&machine, other)).await;
                    assert_eq!(report.error_count, 0, "{layout:?} without disk {other}: {report}");
                }
            }
        });
    }
}

/// A resilver reads what a device has missed from another, and writes it: it neither looks at what the device has there, nor reads what it wrote.
#[test]
fn a_resilver_writes_each_byte_once_and_does_not_read_what_is_stale() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        change(&pool, 8).await;
        pool.export().await.unwrap();
        let pool = open_again(&handle, &without(&machine, 1)).await;
        change(&pool, 108).await;
        pool.export().await.unwrap();
        let pool = open_again(&handle, &machine.paths).await;
        let before = [0, 1].map(|disk: usize| machine.disks[disk].counts());
        attend(&pool);
        let scan = ended(&handle, &pool).await;
        let after = [0, 1].map(|disk: usize| machine.disks[disk].counts());
        assert_eq!((scan.function, scan.error_count), (ScanFunction::RESILVER, 0));
        let written = [0, 1].map(|disk| after[disk].written_bytes - before[disk].written_bytes);
        // Txgs are written to both.
        assert_eq!(written[1] - written[0], scan.processed_bytes, "each byte that was missed is written once");
        // Beside the labels of both, and blocks that both have.
        let read = [0, 1].map(|disk| after[disk].read_bytes - before[disk].read_bytes);
        assert!(read[1] + scan.processed_bytes / 4 * 3 <= read[0], "{read:?} read, {} missed", scan.processed_bytes);
        export_whole(&handle, &machine, pool, "resilvered").await;
    });
}

/// One disk has noise in place of its data, and a scrub mends it.
#[test]
fn a_scrub_writes_bad_copies_again() {
    for (seed, (layout, count)) in (11..).zip(LAYOUTS) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, *count, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed).await;
            let mut noise = vec![0; 8 << 20];
            Rng::new(seed).fill(&mut noise);
            let victim = seed as usize % count;
            for mib in (4..60).step_by(8) {
                machine.disks[victim].poke(mib << 20, &noise);
            }
            attend(&pool);
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let scan = ended(&handle, &pool).await;
            assert_eq!((scan.function, scan.state), (ScanFunction::SCRUB, ScanState::FINISHED));
            assert_eq!(scan.error_count, 0, "{layout:?}");
            assert!(scan.processed_bytes > 0, "{layout:?}: something was repaired");
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_eq!((report.error_count, report.bad_copy_count), (0, 0), "{layout:?}: {report}");
        });
    }
}

/// Snapshots come and go while a scan is under way, and the power is cut at any moment: what is on disk can be opened, and names no dataset that is gone; the scan
/// goes on, and ends as if nothing had been.
#[test]
fn a_resilver_that_is_cut_ends_like_one_that_is_not() {
    for seed in seeds(12) {
        let (layout, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        // Reads take long, so that a cut meets the walk.
        let latency = Latency { read: Duration::from_millis(50), ..cenote_sim::slow() };
        let machine = machine_of(&runtime, count, latency);
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let away = rng.below(count as u64) as usize;
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed).await;
            take_snapshots(&pool, &["written@0".to_owned()], &[]).await.unwrap();
            pool.export().await.unwrap();
            let pool = open_again(&handle, &without(&machine, away)).await;
            for more in 1..4 {
                change(&pool, seed + 100 * more).await;
            }
            pool.export().await.unwrap();
            let mut newest = 0;
            for _ in 0..1 + rng.below(3) {
                let order = ORDERS[rng.below(3) as usize];
                let pool = open_in_order(&handle, &machine.paths, order).await;
                attend_in_steps(&pool, 4);
                for _ in 0..rng.below(6) {
                    handle.sleep(Duration::from_millis(rng.below(900))).await;
                    if rng.chance(1, 8) {
                        // A scan that is given up has made nothing good.
                        drop(pool.stop_scan().await);
                    }
                    if rng.chance(1, 2) {
                        newest += 1;
                        take_snapshots(&pool, &[format!("written@{newest}")], &[]).await.unwrap();
                    } else {
                        let gone = [format!("written@{newest}")];
                        drop(destroy_snapshots(&pool, &gone, false, &|_| ()).await);
                    }
                    check_named(&pool).await;
                }
                if rng.chance(1, 2) {
                    handle.sleep(Duration::from_millis(rng.below(2500))).await;
                    pool.export().await.unwrap();
                } else {
                    cut(&handle, &machine, if rng.chance(1, 2) { Crash::Random } else { Crash::Torn }).await;
                }
            }
            let pool = open_again(&handle, &machine.paths).await;
            attend_in_steps(&pool, 4);
            let scan = ended(&handle, &pool).await;
            assert_eq!((scan.state, scan.error_count), (ScanState::FINISHED, 0), "seed {seed}");
            assert!(!lacks(&pool.tree().unwrap().status()), "seed {seed}: nothing is missed any more");
            export_whole(&handle, &machine, pool, "resilvered after cuts").await;
            let (_, report) = check(&handle, &machine.paths).await;
            assert_eq!((report.error_count, report.bad_copy_count), (0, 0), "seed {seed}: {report}");
        });
    }
}

/// The progress of a sorted scan is seen before it reports, and never goes back.
#[test]
fn progress_is_seen_while_gathered_blocks_are_read() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let latency = Latency { read: Duration::from_millis(50), ..cenote_sim::slow() };
    let machine = machine_of(&runtime, 2, latency);
    runtime.block_on(async {
        let pool = live(&handle, &machine, LAYOUTS[0].0, small()).await;
        change(&pool, 7).await;
        attend(&pool);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        let (mut seen, mut unreported_max, mut left_bytes) = (0, 0, u64::MAX);
        while let Some(scan) = pool.scan().await.unwrap().filter(|scan| scan.state == ScanState::SCANNING) {
            let unreported = pool.scan_unreported();
            let issued = scan.examined_bytes + unreported.read_bytes;
            assert!(issued >= seen, "{issued} after {seen}");
            seen = issued;
            unreported_max = unreported_max.max(unreported.read_bytes);
            if let Some(job) = pool.jobs().iter().find(|job| job.name == "scrub") {
                assert!(job.left_bytes <= left_bytes, "{} left after {left_bytes}", job.left_bytes);
                left_bytes = job.left_bytes;
            }
            handle.sleep(Duration::from_millis(20)).await;
        }
        assert!(unreported_max > 0 && left_bytes < u64::MAX, "nothing was seen of it");
        assert_eq!(pool.scan_unreported().read_bytes, 0);
        pool.export().await.unwrap();
    });
}

/// Found by hand: in a pool that nobody changes no txg came while a scrub went on, so that its progress was seen, and on disk, at its end alone.
#[test]
fn a_scrub_is_recorded_where_nobody_changes_the_pool() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let latency = Latency { read: Duration::from_secs(2), ..cenote_sim::slow() };
    let machine = machine_of(&runtime, 2, latency);
    runtime.block_on(async {
        let first = live(&handle, &machine, LAYOUTS[0].0, small()).await;
        change(&first, 8).await;
        first.export().await.unwrap();
        let pool = open_in_order(&handle, &machine.paths, &["zfs_scan_legacy=1"]).await;
        attend_in_steps(&pool, 4);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        let mut in_middle = 0;
        while let Some(scan) = pool.scan().await.unwrap().filter(|scan| scan.state == ScanState::SCANNING) {
            in_middle += u64::from(scan.examined_bytes > 0 && pool.scan_unreported().scan == Some(scan));
            handle.sleep(Duration::from_secs(1)).await;
        }
        assert!(in_middle > 2, "nothing was seen before its end ({in_middle} times)");
        pool.export().await.unwrap();
    });
}

/// Blocks in the order of places are the same ones as in the order of trees, and what is bad is mended.
#[test]
fn a_sorted_scrub_reads_the_same_blocks() {
    for seed in seeds(6) {
        let (layout, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, Latency { read: Duration::from_millis(5), ..Latency::default() });
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            for round in 0..4 {
                change(&pool, seed + 100 * round).await;
                take_snapshots(&pool, &[format!("written@{round}")], &[]).await.unwrap();
            }
            let mut noise = vec![0; 8 << 20];
            Rng::new(seed).fill(&mut noise);
            pool.export().await.unwrap();
            for mib in (4..60).step_by(8) {
                machine.disks[seed as usize % count].poke(mib << 20, &noise);
            }
            let images: Vec<_> = machine.disks.iter().map(|disk| disk.image()).collect();
            let mut figures = Vec::new();
            for order in ORDERS {
                machine.disks.iter().zip(&images).for_each(|(disk, image)| disk.restore(image));
                let pool = open_in_order(&handle, &machine.paths, order).await;
                attend_in_steps(&pool, 16);
                pool.scrub(ScrubSince::Ever).await.unwrap();
                let scan = ended(&handle, &pool).await;
                figures.push((scan.examined_bytes, scan.skipped_bytes, scan.processed_bytes, scan.error_count));
                assert_eq!(pool.scan_unreported().gathered_bytes, 0);
                export_whole(&handle, &machine, pool, "scrubbed").await;
                let (_, report) = check(&handle, &machine.paths).await;
                assert_eq!((report.error_count, report.bad_copy_count), (0, 0), "{layout:?} {order:?}: {report}");
            }
            // Txgs meanwhile write some blocks of the MOS anew, which are examined or not.
            for other in &figures[1..] {
                assert!(figures[0].0.abs_diff(other.0) <= 512 << 10, "{layout:?}: {figures:?}");
                assert!(other.2 > 0 && other.3 == 0, "{layout:?}: {figures:?}");
            }
        });
    }
}

/// A pool whose files were written in no order, on the model of a disk with a head.
#[test]
fn a_sorted_scrub_of_a_fragmented_pool_spares_the_head() {
    const OBJECTS: usize = 24;
    const BLOCKS: u64 = 200;
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let size_bytes = 192 << 20;
    let options = SimDiskOptions { size_bytes, rotational: true, ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 1, &options);
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let objects = make_objects(&head, OBJECTS).await;
        let mut left: Vec<(usize, u64)> =
            (0..OBJECTS).flat_map(|object| (0..BLOCKS).map(move |block| (object, block))).collect();
        let mut rng = Rng::new(3);
        while !left.is_empty() {
            for _ in 0..left.len().min(60) {
                let (object, block) = left.swap_remove(rng.below(left.len() as u64) as usize);
                let at = block * BLOCK_BYTES;
                let cost = cenote_dmu::tx::Cost::write(at, BLOCK_BYTES, BLOCK_BYTES);
                let tx = head.begin(cost).await.unwrap();
                objects[object].write(tx.txg(), at, &content(at + object as u64)).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        drop((head, objects));
        pool.export().await.unwrap();
        let model = RotatingOptions { size_bytes, track_bytes: 500_000, ..RotatingOptions::desktop() };
        machine.disks[0].set_model(Rotating::new(model));
        let mut took = Vec::new();
        for order in [&["zfs_scan_legacy=1"][..], &[]] {
            let pool = open_in_order(&handle, &machine.paths, order).await;
            attend(&pool);
            let begun = handle.now();
            pool.scrub(ScrubSince::Ever).await.unwrap();
            while pool.scan().await.unwrap().is_none_or(|scan| scan.state == ScanState::SCANNING) {
                handle.sleep(Duration::from_millis(10)).await;
            }
            took.push(handle.now() - begun);
            pool.export().await.unwrap();
        }
        assert!(took[0] >= 5 * took[1], "in the order of trees {:?}, of places {:?}", took[0], took[1]);
    });
}

/// A device that comes back while a resilver is far waits for its end, and has one of its own then: also when the pool is closed meanwhile.
#[test]
fn a_device_that_comes_back_late_waits_for_the_end_of_a_resilver() {
    for (seed, is_cut) in [(1, false), (2, true)] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = Latency { read: Duration::from_millis(60), ..Latency::default() };
        let machine = machine_of(&runtime, 3, latency);
        let given = ["zfs_resilver_defer_percent=0", "zfs_scan_legacy=1"];
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 3)], small()).await;
            change(&pool, seed).await;
            pool.export().await.unwrap();
            let pool = open_again(&handle, &without(&machine, 0)).await;
            change(&pool, seed + 100).await;
            let late = pool.tree().unwrap().status().children[0].children[1].guid;
            pool.offline_device(late, Offline::default()).await.unwrap();
            change(&pool, seed + 200).await;
            pool.export().await.unwrap();
            let mut pool = open_in_order(&handle, &machine.paths, &given).await;
            attend_in_steps(&pool, 4);
            handle.sleep(Duration::from_millis(300)).await;
            pool.sync().await.unwrap();
            let first = pool.scan().await.unwrap().unwrap();
            assert_eq!((first.function, first.state), (ScanFunction::RESILVER, ScanState::SCANNING));
            change(&pool, seed + 300).await;
            pool.online_device(late, Vec::new()).await.unwrap();
            pool.sync().await.unwrap();
            pool.sync().await.unwrap();
            let count = async |pool: &Pool| {
                let view = pool.view(&ImportOptions::default()).await.unwrap();
                let counts = view.feature_counts(pool_directory::FEATURES_FOR_WRITE).await.unwrap();
                counts.get("com.datto:resilver_defer").copied().unwrap_or(0)
            };
            assert_eq!(count(&pool).await, 1, "a device waits");
            let now = pool.scan().await.unwrap().unwrap();
            assert_eq!((now.state, now.max_txg), (ScanState::SCANNING, first.max_txg), "the first resilver goes on");
            if is_cut {
                drop(pool);
                cut(&handle, &machine, Crash::Random).await;
                pool = open_in_order(&handle, &machine.paths, &given).await;
                attend_in_steps(&pool, 4);
            }
            let mut last = first;
            while last.state == ScanState::SCANNING || count(&pool).await > 0 || lacks(&pool.tree().unwrap().status()) {
                handle.sleep(Duration::from_secs(1)).await;
                last = pool.scan().await.unwrap().unwrap();
            }
            assert!(last.max_txg > first.max_txg, "the device that came late had a resilver of its own");
            export_whole(&handle, &machine, pool, "resilvered").await;
            for other in 0..3 {
                let paths = [machine.paths[other].clone()];
                let (_, report) = check(&handle, &paths).await;
                assert_eq!(report.error_count, 0, "disk {other} alone: {report}");
            }
        });
    }
}

/// Found by an outsider: blocks that a resilver came to while devices were changed were not written, and counted as visited. The device that it was for
/// ended without them: for good in a pool that was opened again meanwhile, which did not know of them.
#[test]
fn a_resilver_comes_back_to_what_it_could_not_write_while_devices_changed() {
    for (seed, is_reopened, order) in [(1, false, ORDERS[2]), (2, true, ORDERS[2]), (3, true, ORDERS[1])] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency =
            Latency { read: Duration::from_millis(20), write: Duration::from_millis(10), ..Latency::default() };
        let machine = machine_of(&runtime, 3, latency);
        let given = [order, &["zfs_resilver_defer_percent=0"]].concat();
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 3)], small()).await;
            change(&pool, seed).await;
            pool.export().await.unwrap();
            let pool = open_again(&handle, &without(&machine, 0)).await;
            for round in 0..4 {
                change(&pool, seed + 100 + round).await;
            }
            let other = pool.tree().unwrap().status().children[0].children[1].guid;
            pool.export().await.unwrap();
            let mut pool = open_in_order(&handle, &machine.paths, &given).await;
            attend_in_steps(&pool, 4);
            handle.sleep(Duration::from_millis(200)).await;
            pool.sync().await.unwrap();
            if is_reopened {
                pool.export().await.unwrap();
                pool = open_in_order(&handle, &machine.paths, &given).await;
                attend_in_steps(&pool, 4);
            }
            let mut changes = 0;
            while pool.scan().await.unwrap().is_some_and(|scan| scan.state == ScanState::SCANNING) && changes < 8 {
                pool.offline_device(other, Offline { is_temporary: true, ..Offline::default() }).await.unwrap();
                pool.online_device(other, Vec::new()).await.unwrap();
                changes += 1;
                handle.sleep(Duration::from_millis(30)).await;
            }
            assert!(changes > 1, "the resilver was over before devices changed");
            for _ in 0..600 {
                handle.sleep(Duration::from_secs(1)).await;
                let is_over = pool.scan().await.unwrap().is_none_or(|scan| scan.state != ScanState::SCANNING);
                if is_over && !lacks(&pool.tree().unwrap().status()) {
                    break;
                }
            }
            assert!(!lacks(&pool.tree().unwrap().status()), "something is missed for good");
            export_whole(&handle, &machine, pool, "resilvered").await;
            for disk in 0..3 {
                let (_, report) = check(&handle, &[machine.paths[disk].clone()]).await;
                assert_eq!(report.error_count, 0, "disk {disk} alone: {report}");
            }
        });
    }
}

/// A block that a resilver could not write is known to its process alone, so the place on disk stays before it: a pool that is opened again comes back.
#[test]
fn a_resilver_that_is_opened_again_comes_back_to_what_it_could_not_write() {
    for (seed, is_cut) in [(31, false), (32, true)] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = Latency { read: Duration::from_millis(15), ..Latency::default() };
        let machine = machine_of(&runtime, 2, latency);
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
            change(&pool, seed).await;
            pool.export().await.unwrap();
            let pool = open_again(&handle, &without(&machine, 0)).await;
            for round in 0..4 {
                change(&pool, seed + 100 + round).await;
            }
            pool.export().await.unwrap();
            let pool = open_in_order(&handle, &machine.paths, ORDERS[1]).await;
            attend_in_steps(&pool, 4);
            // Too few errors to have it faulted.
            let writes = Arc::new(AtomicU64::new(0));
            let count = writes.clone();
            machine.disks[0].set_faults(move |request, _| {
                let is_data = request.kind == RequestKind::Write && request.offset_bytes > 5 << 20;
                let nth = if is_data { count.fetch_add(1, Ordering::Relaxed) } else { 0 };
                match nth % 12 == 11 && nth < 8 * 12 {
                    true => Fault::Error(std::io::ErrorKind::Other),
                    false => Fault::None,
                }
            });
            let (begun, mut is_seen) = (handle.now(), false);
            for _ in 0..1000 {
                handle.sleep(Duration::from_millis(20)).await;
                pool.sync().await.unwrap();
                let Some(scan) = pool.scan().await.unwrap() else { continue };
                assert_eq!(scan.state, ScanState::SCANNING, "it was over before it was cut");
                if scan.processed_bytes > 256 << 10 && writes.load(Ordering::Relaxed) > 96 {
                    is_seen = true;
                    break;
                }
            }
            assert!(
                is_seen,
                "{} writes in {:?}, {:?}",
                writes.load(Ordering::Relaxed),
                handle.now() - begun,
                pool.scan().await
            );
            machine.disks[0].clear_faults();
            if is_cut {
                change(&pool, seed + 200).await;
                drop(pool);
                cut(&handle, &machine, Crash::Random).await;
            } else {
                pool.export().await.unwrap();
            }
            let pool = open_again(&handle, &machine.paths).await;
            attend(&pool);
            ended(&handle, &pool).await;
            export_whole(&handle, &machine, pool, "resilvered").await;
            let (_, report) = check(&handle, &[machine.paths[0].clone()]).await;
            assert_eq!(report.error_count, 0, "the disk alone: {report}");
        });
    }
}

/// The place of a scan never runs ahead of its reads, and a log is not shortened before the scan has ended, which the test of cuts finds out.
#[test]
fn a_scan_that_claims_too_much_is_found() {
    for mutant in Mutant::OF_SCANS {
        let test = "scrub::tests::a_resilver_that_is_cut_ends_like_one_that_is_not";
        let told = std::process::Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env_remove(cenote_testkit::PART_VARIABLE)
            .env(MUTANT_VARIABLE, mutant.name())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&told.stderr);
        let is_seen = text.contains("resilvered after cuts") || text.contains("failed: seed");
        assert!(!told.status.success() && is_seen, "{}: {text}", mutant.name());
    }
}

/// The pool's record of its scan names only datasets that it has.
async fn check_named(pool: &Pool) {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let Some(scan) = view.scan().await.unwrap().filter(|scan| scan.state == ScanState::SCANNING) else { return };
    let queue = Zap::open(view.mos().object(scan.queue).await.unwrap()).await.unwrap();
    let queued = queue.entries(1 << 16).await.unwrap();
    let number = |name: &[u8]| u64::from_str_radix(std::str::from_utf8(name).unwrap(), 16).unwrap();
    let queued: Vec<u64> = queued.iter().map(|entry| number(entry.name())).collect();
    for object in queued.iter().copied().chain(Some(scan.bookmark.objset.0)).filter(|object| *object != 0) {
        let dataset = view.mos().object(ObjectId(object)).await.unwrap();
        assert_eq!(dataset.phys().bonus_type, DmuType::DSL_DATASET, "dataset {object} of the scan");
    }
    // OpenZFS goes through deduplication tables first, and asserts that no bookmark is there before it has.
    let is_beginning = scan.bookmark == ZBookmark::default();
    assert!(is_beginning || scan.has_walked_tables(), "tables are left: {scan:?}");
    check_line(&view, scan.bookmark.objset.0, queued).await;
}

/// Goes through datasets as OpenZFS's scan does from the record: the one at hand, then the one of the queue with the lowest number; when one is visited, those
/// after it come into the queue. OpenZFS panics where one of them is there already.
async fn check_line(view: &View, at: u64, queued: Vec<u64>) {
    let mut queue: BTreeSet<u64> = queued.into_iter().collect();
    assert!(!queue.contains(&at), "the dataset at hand is in the queue, too");
    let mut next = Some(at).filter(|at| *at != 0).or_else(|| queue.pop_first());
    while let Some(object) = next {
        let dataset = view.mos().object(ObjectId(object)).await.unwrap();
        let phys = dataset.bonus(DslDatasetPhys::parse).unwrap();
        let mut after: BTreeSet<u64> = Some(phys.next_snapshot.0).into_iter().filter(|next| *next != 0).collect();
        if phys.next_clones.0 != 0 {
            let clones = Zap::open(view.mos().object(phys.next_clones).await.unwrap()).await.unwrap();
            let clones = clones.entries(1 << 16).await.unwrap();
            after.extend(clones.iter().filter_map(|clone| clone.value.as_u64()));
        }
        for object in after {
            assert!(queue.insert(object), "dataset {object} comes into the queue twice");
        }
        next = queue.pop_first();
    }
}

/// Found by an outsider: a device that fails each commit had a resilver begin in each txg, more than a thousand in a minute, and no wait for it ended.
#[test]
fn a_device_that_misses_each_txg_is_not_resilvered_in_each_5970() {
    let runtime = Runtime::simulated(21);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        attend(&pool);
        change(&pool, 21).await;
        // Rings of uberblocks alone: tries of the device succeed.
        machine.disks[1].set_faults(|request, _| match request.kind {
            RequestKind::Write if (128 << 10..256 << 10).contains(&request.offset_bytes) => {
                Fault::Error(std::io::ErrorKind::Other)
            }
            _ => Fault::None,
        });
        change(&pool, 22).await;
        pool.resilver().await.unwrap();
        handle.sleep(Duration::from_secs(2)).await;
        let before = pool.sync().await.unwrap();
        handle.sleep(Duration::from_secs(60)).await;
        let txgs = pool.txgs().synced_txg().0 - before.0;
        assert!(txgs < 20, "{txgs} txgs in a minute in which nobody changed anything");
        let scan = pool.scan().await.unwrap().unwrap();
        assert_eq!(scan.state, ScanState::FINISHED, "nobody waits for ever");
        // It makes up for all of it as soon as it takes a txg.
        machine.disks[1].clear_faults();
        drop(pool.pardon(None).await);
        change(&pool, 23).await;
        handle.sleep(Duration::from_secs(30)).await;
        change(&pool, 24).await;
        ended(&handle, &pool).await;
        handle.sleep(Duration::from_secs(30)).await;
        assert!(!lacks(&pool.tree().unwrap().status()), "{:?}", pool.tree().unwrap().status());
        export_whole(&handle, &machine, pool, "resilvered").await;
    });
}

/// A block that no device has any more keeps its txg in the log of the device that was resilvered: the one that is to go may be the last to give it.
#[test]
fn a_resilver_with_errors_leaves_what_it_could_not_read_in_the_log_9551() {
    let mut errors = 0;
    for seed in 22..28 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
            pool.export().await.unwrap();
            let pool = open_again(&handle, &without(&machine, 1)).await;
            change(&pool, seed).await;
            pool.export().await.unwrap();
            // The first disk alone has the newest txgs, and fails some reads. Metadata has a second copy.
            let pool = open_again(&handle, &machine.paths).await;
            machine.disks[0].set_faults(|request, rng| match request.kind {
                RequestKind::Read if rng.chance(1, 8) => Fault::Error(std::io::ErrorKind::Other),
                _ => Fault::None,
            });
            attend(&pool);
            let scan = ended(&handle, &pool).await;
            let is_missed = lacks(&pool.tree().unwrap().status());
            assert!(is_missed || scan.error_count == 0, "seed {seed}: what could not be read is missed still");
            errors += scan.error_count;
            machine.disks[0].clear_faults();
            pool.resilver().await.unwrap();
            handle.sleep(Duration::from_secs(5)).await;
            assert_eq!(ended(&handle, &pool).await.error_count, 0);
            assert!(!lacks(&pool.tree().unwrap().status()), "nothing is missed any more");
            export_whole(&handle, &machine, pool, "resilvered twice").await;
        });
    }
    assert!(errors > 0, "something could not be read");
}
