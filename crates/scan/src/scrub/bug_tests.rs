//! Known bugs of OpenZFS's scans, by their numbers: what has to be well here. Others are where the verb is tested; docs/robustness.md has the whole
//! list.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_admin::take_snapshots;
use cenote_format::dsl::{ScanFunction, ScanState};
use cenote_format::ids::Guid;
use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;
use cenote_sim::{MUTANT_VARIABLE, Machine, disk, slow};
use cenote_spa::{AttachOptions, ImportOptions, NewDevice, Offline, Pool, ScrubSince, TopKind};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind};
use cenote_taskq::{Class, Handle, Rng, Runtime};
use cenote_vdev::layout::draid::Draid;
use cenote_vdev::tree::LeafState;

use super::tests::{ended, open_again};
use super::{attend, attend_in_steps};

const SPARED: Layout = &[(TopKind::Draid { parity: 2, data: Some(4), spares: 2 }, 8)];

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

fn leaf(pool: &Pool, at: usize) -> Guid {
    let status = pool.tree().unwrap().status();
    let name = Machine::name(at);
    status.leaves().into_iter().find(|leaf| leaf.name == name).unwrap().guid
}

/// No leaf that is there lacks anything, and no scan is under way.
async fn settle(handle: &Handle, pool: &Pool, what: &str) {
    for _ in 0..600 {
        handle.sleep(Duration::from_millis(500)).await;
        let is_behind = !pool.tree().unwrap().status().behind().is_empty();
        let is_scanned = pool.scan().await.unwrap().is_some_and(|scan| scan.state == ScanState::SCANNING);
        if !is_behind && !is_scanned && !pool.peek(|syncer| syncer.is_rebuilding()).await.unwrap() {
            return;
        }
    }
    panic!("{what}: no end: {:?}", pool.scan().await);
}

/// The test that is run once more with the bug.
const SPARE_TEST: &str = "scrub::bug_tests::a_spare_keeps_what_lay_on_a_device_that_was_away_18286";

/// A device fails, and its spare is rebuilt; a second one fails, and the spare of that one is rebuilt, which lies on the first device in part. The
/// first device is back, and its spare goes.
#[test]
fn a_spare_keeps_what_lay_on_a_device_that_was_away_18286() {
    // The places of both spares in the beginning of each disk, the second one first.
    let draid = Draid::new(12, 2, 4, 2, 1, 8).unwrap();
    let [first, stand_in] = [1, 0].map(|spare| draid.spare_child(spare, 0).unwrap() as usize);
    let others: Vec<usize> = (0..8).filter(|at| *at != first && *at != stand_in).collect();
    let second = others[0];
    for seed in 1..4 {
        let what = format!("a spare, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 8, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, SPARED, small()).await;
            attend(&pool);
            change(&pool, seed, 8).await;
            for at in [first, second] {
                let how = Offline { is_fault: true, ..Offline::default() };
                pool.offline_device(leaf(&pool, at), how).await.unwrap();
                assert_eq!(pool.use_spares().await.unwrap().len(), 1, "{what}: a spare is taken for disk {at}");
                settle(&handle, &pool, &what).await;
            }
            change(&pool, seed + 50, 2).await;
            pool.clear_device(leaf(&pool, first)).await.unwrap();
            settle(&handle, &pool, &what).await;
            handle.sleep(Duration::from_secs(5)).await;
            let leaves = pool.tree().unwrap().status().leaves().len();
            assert_eq!(leaves, 9, "{what}: the first spare is gone");
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let scan = ended(&handle, &pool).await;
            assert_eq!((scan.error_count, scan.processed_bytes), (0, 0), "{what}: nothing is to be repaired");
            pool.export().await.unwrap();
            // The second device is away, and two more.
            let gone = [second, stand_in, others[1]];
            let paths: Vec<_> = (0..8).filter(|at| !gone.contains(at)).map(|at| machine.paths[at].clone()).collect();
            let (_, report) = check(&handle, &paths).await;
            assert_eq!(report.error_count, 0, "{what}: {report}");
        });
    }
}

#[test]
fn a_leaf_that_was_passed_over_and_does_not_know_it_is_found() {
    let mutant = Mutant::PassedOverForgotten.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([SPARE_TEST, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("a spare, seed"), "{mutant}: {text}");
}

/// A device misses a write now and then while a scrub is under way, and later while a resilver is: each fault costs one scan at most, and a scrub
/// that is wanted then ends.
#[test]
fn a_write_that_fails_has_no_scans_go_round_840_5970_8639_9551_14727() {
    for seed in 1..5 {
        let what = format!("round, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = Latency { read: Duration::from_millis(20), ..Latency::default() };
        let machine = machine_of(&runtime, 3, latency);
        runtime.block_on(async {
            let layout: Layout =
                if seed % 2 == 0 { &[(TopKind::Mirror, 3)] } else { &[(TopKind::Raidz { parity: 1 }, 3)] };
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 6).await;
            attend_in_steps(&pool, 4);
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let faults = Arc::new(AtomicU64::new(0));
            let mut begun = std::collections::BTreeSet::new();
            for round in 0..3 {
                let left = Arc::new(AtomicU64::new(2));
                let counted = faults.clone();
                // Both tries of a write.
                machine.disks[1].set_faults(move |request, _| {
                    let fails = request.kind == RequestKind::Write
                        && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
                    counted.fetch_add(u64::from(fails), Ordering::SeqCst);
                    if fails { Fault::Error(std::io::ErrorKind::Other) } else { Fault::None }
                });
                change(&pool, seed * 10 + round, 1).await;
                pool.resilver().await.unwrap();
                for _ in 0..20 {
                    handle.sleep(Duration::from_millis(100)).await;
                    begun.extend(
                        pool.scan().await.unwrap().map(|scan| (scan.max_txg, scan.function == ScanFunction::RESILVER)),
                    );
                }
            }
            machine.disks[1].clear_faults();
            pool.resilver().await.unwrap();
            settle(&handle, &pool, &what).await;
            assert!(faults.load(Ordering::SeqCst) > 0, "{what}: a write has failed");
            let resilvers = begun.iter().filter(|(_, is_resilver)| *is_resilver).count() as u64;
            assert!(resilvers <= 4, "{what}: {resilvers} resilvers for 3 faults");
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let scan = ended(&handle, &pool).await;
            assert_eq!(
                (scan.function, scan.state, scan.error_count),
                (ScanFunction::SCRUB, ScanState::FINISHED, 0),
                "{what}"
            );
            export_whole(&handle, &machine, pool, &what).await;
        });
    }
}

/// Somebody reads snapshots all the while, and takes more of them: a scrub ends all the same.
#[test]
fn a_scrub_ends_while_snapshots_are_read_16321() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let latency = Latency { read: Duration::from_millis(10), ..Latency::default() };
    let machine = machine_of(&runtime, 2, latency);
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        for snapshot in 0..4 {
            change(&pool, snapshot, 2).await;
            take_snapshots(&pool, &[format!("written@s{snapshot}")], &[]).await.unwrap();
        }
        attend_in_steps(&pool, 4);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        let mut left = u64::MAX;
        for round in 0..600 {
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            let snapshot = view.dsl().dataset(&format!("written@s{}", round % 4)).await.unwrap();
            drop(view.dsl().open(&snapshot).await.unwrap());
            handle.sleep(Duration::from_millis(100)).await;
            let scan = pool.scan().await.unwrap().unwrap();
            assert_eq!(scan.function, ScanFunction::SCRUB);
            if scan.state == ScanState::FINISHED {
                left = 0;
                break;
            }
            if round < 4 {
                take_snapshots(&pool, &[format!("written@t{round}")], &[]).await.unwrap();
            }
        }
        assert_eq!(left, 0, "the scrub ends");
        export_whole(&handle, &machine, pool, "scrubbed").await;
    });
}

/// Several devices fail at once, as many as redundancy makes up for: none more is taken out of use, and each gets what it lacks when all are back.
#[test]
fn several_devices_that_fail_at_once_come_back_whole_14923() {
    for seed in 1..4 {
        let what = format!("several, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 6, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Raidz { parity: 3 }, 6)], small()).await;
            attend(&pool);
            change(&pool, seed, 3).await;
            for at in 0..3 {
                machine.disks[at].set_faults(|request, _| match request.kind {
                    RequestKind::Read => Fault::None,
                    _ => Fault::Error(std::io::ErrorKind::Other),
                });
            }
            for more in 0..12 {
                change(&pool, seed * 100 + more, 1).await;
                handle.sleep(Duration::from_secs(1)).await;
                assert_eq!(pool.suspended(), None, "{what}");
            }
            (0..3).for_each(|at| machine.disks[at].clear_faults());
            pool.resume().await.unwrap();
            pool.reopen_devices().await.unwrap();
            pool.resilver().await.unwrap();
            settle(&handle, &pool, &what).await;
            export_whole(&handle, &machine, pool, &what).await;
            let (_, report) = check(&handle, &machine.paths[..3]).await;
            assert_eq!(report.error_count, 0, "{what}: without the others: {report}");
        });
    }
}

/// Layouts, their disks, and how many of those are enough.
const BESIDE: [(Layout, usize, usize); 3] = [
    (&[(TopKind::Mirror, 3)], 3, 1),
    (&[(TopKind::Raidz { parity: 2 }, 4)], 4, 2),
    (&[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)], 6, 4),
];

/// A disk is replaced while another child is away: the end of that resilver says nothing about the one that is away, which is resilvered when it is
/// back.
#[test]
fn a_replacement_beside_a_child_that_is_away_forgets_nothing() {
    for (seed, (layout, count, alone)) in (1..).zip(BESIDE) {
        let what = format!("beside a child that is away, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count + 1, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            attend(&pool);
            change(&pool, seed, 4).await;
            let away = leaf(&pool, 0);
            pool.offline_device(away, Offline::default()).await.unwrap();
            change(&pool, seed + 10, 3).await;
            let new = NewDevice::Disk(disk(&handle, &machine.paths[count]).await.unwrap());
            let options = AttachOptions {
                old: leaf(&pool, 1),
                new,
                is_replacing: true,
                is_sequential: false,
                ashift: Some(12),
                seed: None,
            };
            pool.attach_device(options).await.unwrap();
            change(&pool, seed + 20, 2).await;
            settle(&handle, &pool, &what).await;
            let onlined = pool.online_device(away, Vec::new()).await.unwrap();
            assert!(!onlined.missed.is_empty(), "{what}: what it lacks is known");
            settle(&handle, &pool, &what).await;
            handle.sleep(Duration::from_secs(5)).await;
            export_whole(&handle, &machine, pool, &what).await;
            // The one that was away, and as few others as can be.
            let paths: Vec<_> =
                [0].into_iter().chain(count - alone + 2..=count).map(|at| machine.paths[at].clone()).collect();
            let (_, report) = check(&handle, &paths).await;
            assert_eq!(report.error_count, 0, "{what}: {report}");
        });
    }
}

/// Found by schedules: a new leaf lacks some txgs to come, and its resilver waits for them. A pool that was exported meanwhile had the worker wait
/// for them for ever, and take a processor for it.
#[test]
fn a_resilver_that_waits_for_txgs_ends_with_the_pool() {
    for pause_ms in [0, 1, 2, 5, 10, 20] {
        let runtime = Runtime::simulated(3);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
            attend(&pool);
            change(&pool, 3, 2).await;
            let new = NewDevice::Disk(disk(&handle, &machine.paths[2]).await.unwrap());
            let options = AttachOptions {
                old: leaf(&pool, 0),
                new,
                is_replacing: false,
                is_sequential: false,
                ashift: Some(12),
                seed: None,
            };
            pool.attach_device(options).await.unwrap();
            handle.sleep(Duration::from_millis(pause_ms)).await;
            pool.export().await.unwrap();
            handle.sleep(Duration::from_secs(60)).await;
            let pool = open_again(&handle, &machine.paths).await;
            attend(&pool);
            settle(&handle, &pool, "attached").await;
            export_whole(&handle, &machine, pool, "attached").await;
        });
    }
}

/// Found by schedules: a leaf that was attached in the txg in which a resilver ended was taken for resilvered by that one, but for the txgs to come.
#[test]
fn a_leaf_that_comes_as_a_resilver_ends_has_one_of_its_own() {
    let mut met = 0;
    for pause_ms in (0..60).step_by(2) {
        let what = format!("attached after {pause_ms} ms");
        let runtime = Runtime::simulated(pause_ms);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
            attend(&pool);
            change(&pool, 3, 3).await;
            for at in [2, 3] {
                let new = NewDevice::Disk(disk(&handle, &machine.paths[at]).await.unwrap());
                let options = AttachOptions {
                    old: leaf(&pool, 0),
                    new,
                    is_replacing: false,
                    is_sequential: false,
                    ashift: Some(12),
                    seed: None,
                };
                pool.attach_device(options).await.unwrap();
                if at == 2 {
                    handle.sleep(Duration::from_millis(pause_ms)).await;
                    met += u64::from(pool.scan().await.unwrap().is_some_and(|scan| scan.state == ScanState::SCANNING));
                }
            }
            settle(&handle, &pool, &what).await;
            export_whole(&handle, &machine, pool, &what).await;
            let (_, report) = check(&handle, &machine.paths[3..]).await;
            assert_eq!(report.error_count, 0, "{what}: {report}");
        });
    }
    assert!(met > 3, "{met} were attached during a resilver");
}

/// Found by schedules: a disk that fails its writes is given up while it is resilvered, and a person has it used again in the same txg. The resilver has
/// passed it over meanwhile, and another one makes up for that.
#[test]
fn a_disk_that_is_condemned_and_cleared_within_a_txg_is_resilvered_again() {
    for (seed, (layout, count)) in (1..).zip([
        (&[(TopKind::Mirror, 2)][..], 2),
        (&[(TopKind::Raidz { parity: 1 }, 3)][..], 3),
        (&[(TopKind::Draid { parity: 1, data: None, spares: 0 }, 4)][..], 4),
    ]) {
        let what = format!("condemned and cleared, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = Latency { read: Duration::from_millis(50), ..Latency::default() };
        let machine = machine_of(&runtime, count, latency);
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            attend_in_steps(&pool, 1);
            change(&pool, seed, 4).await;
            let failing = leaf(&pool, 1);
            pool.offline_device(failing, Offline::default()).await.unwrap();
            change(&pool, seed + 10, 6).await;
            pool.online_device(failing, Vec::new()).await.unwrap();
            let state = || {
                let states = pool.tree().unwrap().leaf_states();
                states.into_iter().find(|(guid, _)| *guid == failing).unwrap().1
            };
            while pool.scan().await.unwrap().is_none_or(|scan| scan.state != ScanState::SCANNING) {
                handle.sleep(Duration::from_millis(1)).await;
            }
            handle.sleep(Duration::from_millis(500)).await;
            // No txg ends as long as a client is amid a change.
            let head = pool.open_head("written").await.unwrap();
            let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
            machine.disks[1].set_faults(|request, _| match request.kind {
                RequestKind::Write => Fault::Error(std::io::ErrorKind::Other),
                _ => Fault::None,
            });
            let mut waited = 0;
            while state() != LeafState::Faulted {
                handle.sleep(Duration::from_millis(1)).await;
                waited += 1;
                assert!(
                    waited < 60_000,
                    "{what}: it is not given up: {:?} {:?}",
                    pool.tree().unwrap().status(),
                    pool.scan().await
                );
            }
            handle.sleep(Duration::from_millis(500)).await;
            machine.disks[1].clear_faults();
            let cleared = handle.spawn(Class::Background, {
                let pool = pool.clone();
                async move { pool.clear_device(failing).await.unwrap() }
            });
            while state() == LeafState::Faulted {
                handle.sleep(Duration::from_millis(1)).await;
            }
            drop((tx, head));
            assert!(cleared.await.is_ok(), "{what}: it is cleared");
            settle(&handle, &pool, &what).await;
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let scan = ended(&handle, &pool).await;
            assert_eq!((scan.error_count, scan.processed_bytes), (0, 0), "{what}: nothing is left to be repaired");
            export_whole(&handle, &machine, pool, &what).await;
        });
    }
}

/// A disk refuses some writes of its resilver, and is well again: `online` asks for what it lacks, though the resilver that is under way is of all that.
#[test]
fn a_disk_that_refused_writes_of_its_resilver_gets_them_when_it_is_asked_online() {
    for seed in 1..4 {
        let what = format!("refused, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = Latency { read: Duration::from_millis(50), ..Latency::default() };
        let machine = machine_of(&runtime, 2, latency);
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
            attend_in_steps(&pool, 1);
            change(&pool, seed, 4).await;
            let failing = leaf(&pool, 1);
            pool.offline_device(failing, Offline::default()).await.unwrap();
            change(&pool, seed + 10, 6).await;
            pool.online_device(failing, Vec::new()).await.unwrap();
            handle.sleep(Duration::from_millis(500)).await;
            let refused = Arc::new(AtomicU64::new(0));
            let counted = refused.clone();
            machine.disks[1].set_faults(move |request, _| match request.kind {
                RequestKind::Write if counted.fetch_add(1, Ordering::SeqCst) < 4 => {
                    Fault::Error(std::io::ErrorKind::Other)
                }
                _ => Fault::None,
            });
            while refused.load(Ordering::SeqCst) < 4 {
                handle.sleep(Duration::from_millis(10)).await;
            }
            machine.disks[1].clear_faults();
            handle.sleep(Duration::from_millis(100)).await;
            let scan = pool.scan().await.unwrap();
            assert!(scan.is_some_and(|scan| scan.state == ScanState::SCANNING), "{what}: it is under way");
            pool.online_device(failing, Vec::new()).await.unwrap();
            settle(&handle, &pool, &what).await;
            export_whole(&handle, &machine, pool, &what).await;
        });
    }
}

/// Found by schedules, once: a distributed spare is rebuilt, disks are pulled meanwhile, and another one is to go offline. The verb is answered.
#[test]
fn offline_is_answered_while_a_distributed_spare_is_rebuilt_and_disks_are_pulled() {
    const ONE_SPARE: Layout = &[(TopKind::Draid { parity: 2, data: Some(3), spares: 1 }, 7)];
    const ANSWERED: Duration = Duration::from_secs(900);
    let pull = |machine: &Machine, at: usize| {
        machine.disks[at].crash(Crash::Random);
        machine.disks[at].power_on();
        machine.disks[at].set_faults(|_, _| Fault::Error(std::io::ErrorKind::NotConnected));
    };
    for seed in 1..13 {
        let what = format!("pulled beside a rebuild, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 7, if seed % 2 == 0 { Latency::default() } else { slow() });
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = live(&handle, &machine, ONE_SPARE, small()).await;
            change(&pool, seed, 6).await;
            attend(&pool);
            pool.take_spares();
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            let spare = view.spares().await.unwrap()[0].guid;
            drop(view);
            let options = AttachOptions {
                old: leaf(&pool, 1),
                new: NewDevice::Spare(spare),
                is_replacing: true,
                is_sequential: true,
                ashift: None,
                seed: None,
            };
            pool.attach_device(options).await.unwrap();
            pull(&machine, 1);
            change(&pool, seed + 10, 1).await;
            handle.sleep(Duration::from_millis(rng.below(200))).await;
            machine.disks[1].clear_faults();
            pull(&machine, 5);
            handle.sleep(Duration::from_millis(rng.below(150))).await;
            let offline = pool.offline_device(leaf(&pool, 2), Offline::default());
            assert!(handle.timeout(ANSWERED, offline).await.is_some(), "{what}: {:?}", pool.tree().unwrap().status());
            assert!(handle.timeout(ANSWERED, change(&pool, seed + 20, 1)).await.is_some(), "{what}: a change");
            assert_eq!(pool.suspended(), None, "{what}");
            pool.export().await.unwrap();
        });
    }
}

/// Found by schedules: a disk is away while another one is resilvered, and is back in the txg in which that resilver ends. It was passed over, and has a
/// resilver of its own.
#[test]
fn a_disk_that_is_back_as_a_resilver_ends_is_not_taken_for_resilvered() {
    let mut met = 0;
    for (layout, count) in [
        (&[(TopKind::Mirror, 3)][..], 3),
        (&[(TopKind::Raidz { parity: 2 }, 5)][..], 5),
        (&[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)][..], 6),
    ] {
        for pause_ms in [30, 300, 3000, 10_000] {
            let what = format!("back after {pause_ms} ms, {layout:?}");
            let runtime = Runtime::simulated(pause_ms);
            let handle = runtime.handle();
            let latency = Latency { read: Duration::from_millis(10), ..Latency::default() };
            let machine = machine_of(&runtime, count, latency);
            runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                attend_in_steps(&pool, 4);
                change(&pool, 1, 4).await;
                let [first, second] = [leaf(&pool, 1), leaf(&pool, 2)];
                pool.offline_device(first, Offline::default()).await.unwrap();
                change(&pool, 2, 2).await;
                pool.offline_device(second, Offline::default()).await.unwrap();
                change(&pool, 3, 4).await;
                pool.online_device(first, Vec::new()).await.unwrap();
                // No txg ends as long as a client is amid a change, and no scan does.
                let head = pool.open_head("written").await.unwrap();
                let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
                handle.sleep(Duration::from_millis(pause_ms)).await;
                let scan = pool.scan().await.unwrap();
                met += u64::from(scan.is_some_and(|scan| scan.state == ScanState::SCANNING));
                let online = handle.spawn(Class::Background, {
                    let pool = pool.clone();
                    async move { pool.online_device(second, Vec::new()).await.unwrap() }
                });
                while !pool.tree().unwrap().is_leaf_online(second) {
                    handle.sleep(Duration::from_millis(1)).await;
                }
                drop((tx, head));
                assert!(online.await.is_ok(), "{what}: it is online");
                settle(&handle, &pool, &what).await;
                pool.scrub(ScrubSince::Ever).await.unwrap();
                let scan = ended(&handle, &pool).await;
                assert_eq!((scan.error_count, scan.processed_bytes), (0, 0), "{what}: nothing is left to be repaired");
                export_whole(&handle, &machine, pool, &what).await;
            });
        }
    }
    assert!(met > 4, "{met} came back while another disk was resilvered");
}
