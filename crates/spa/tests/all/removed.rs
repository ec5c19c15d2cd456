//! Goal: a log device goes while it is used, and nothing that a client was told is lost by that, whenever the power goes. Method: files of a
//! pool in use are changed and asked to be stable while the device is removed; then it is looked at by the read path, by `zdb`, and after
//! power cuts.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::SyncMode;
use cenote_format::ids::Guid;
use cenote_sim::{Machine, disk};
use cenote_spa::{
    AddOptions, AuxSpec, Condition, ImportOptions, Offline, Pool, Refusal, SpaError, TopKind, device_condition,
};
use cenote_taskq::sim::disk::{Crash, Fault, Latency};
use cenote_taskq::{Class, Handle, Rng, Runtime, both};
use cenote_vdev::config::{AllocationClass, VdevKind};
use cenote_vdev::tree::VdevState;
use cenote_zil::Log;
use cenote_zpl::{FileSystem, NewNode};

use cenote_sim::tree::Tree;
use cenote_sim::written::files::{make_on, new_files, opened, opened_files};
use cenote_sim::written::tree::{change, seen};
use cenote_sim::written::*;

/// The layouts of the log device.
const LOGS: [(TopKind, usize); 2] = [(TopKind::Single, 1), (TopKind::Mirror, 2)];

/// The guid of a top-level vdev.
async fn top(pool: &Pool, at: usize) -> Guid {
    pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[at].guid
}

async fn add_log(handle: &Handle, pool: &Pool, machine: &Machine, first: usize, layout: (TopKind, usize)) {
    let mut tops = cenote_sim::tops(handle, &[layout], &machine.paths[first..first + layout.1]).await.unwrap();
    tops[0].class = AllocationClass::Log;
    pool.add_vdevs(AddOptions { tops, ashift: Some(12), ..AddOptions::default() }).await.unwrap();
}

/// Changes files and asks for them to be stable until it is told to end; gives what it left.
async fn work(handle: Handle, fs: FileSystem, log: Arc<Log>, mut rng: Rng, ends: Arc<cenote_taskq::Event>) -> Tree {
    let mut tree = seen(&fs).await;
    while !ends.is_set() {
        change(&fs, &tree, &mut rng).await;
        tree = seen(&fs).await;
        let synced = handle.timeout(Duration::from_secs(60), log.sync(None)).await;
        assert!(matches!(synced, Some(Ok(()))), "{synced:?}");
    }
    tree
}

fn zdb(machine: &Machine, disks: std::ops::Range<usize>) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images = machine.part(disks).images();
        cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
    }
}

#[test]
fn a_log_device_goes_while_it_is_used_and_another_comes() {
    for (seed, layout) in (0..6).zip(LOGS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2 + 2 * layout.1, Latency::default());
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2), layout], true).await;
            for round in 0..2_usize {
                let ends = Arc::new(cenote_taskq::Event::default());
                let working = work(handle.clone(), fs.clone(), log.clone(), Rng::new(seed + 100), ends.clone());
                let working = handle.spawn(Class::Issue, working);
                handle.sleep(Duration::from_millis(5 + seed * 3)).await;
                let place = 1 + round;
                let own = 2 + round * layout.1..2 + (round + 1) * layout.1;
                let writes = || own.clone().map(|at| machine.disks[at].counts().written_bytes).sum::<u64>();
                let before = writes();
                pool.remove_vdev(top(&pool, place).await).await.unwrap();
                assert!(writes() > before, "{what}: its labels are cleared");
                let after = writes();
                handle.sleep(Duration::from_millis(20)).await;
                ends.set();
                let tree = working.await.unwrap();
                assert_eq!(writes(), after, "{what}: nothing is written to it any more");
                let view = pool.view(&ImportOptions::default()).await.unwrap();
                assert_eq!(view.vdevs().children.len(), 2 + round, "{what}");
                assert_eq!(view.vdevs().children[place].kind, VdevKind::Hole, "{what}");
                drop(view);
                assert_eq!(seen(&fs).await, tree, "{what}");
                let again = pool.remove_vdev(Guid(1)).await;
                assert!(matches!(again, Err(SpaError::Refused { why: Refusal::NotThere, .. })), "{again:?}");
                if round == 0 {
                    add_log(&handle, &pool, &machine, 2 + layout.1, layout).await;
                }
            }
            let tree = seen(&fs).await;
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            // The disks that went are not asked for.
            let pool = opened_pool(&handle, &machine.paths[..2], import_with(&[])).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            drop((fs, log));
            export_whole(&handle, &machine, pool, &what).await;
            zdb(&machine, 0..2);
        });
    }
}

#[test]
fn what_was_made_stable_is_there_when_the_power_goes_amid_a_removal() {
    let (mut gone, mut stayed) = (0, 0);
    for (seed, layout) in (0..30).zip(LOGS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1 + layout.1, cenote_sim::slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), layout], true).await;
            let mut tree = seen(&fs).await;
            for _ in 0..1 + rng.below(10) {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            let guid = top(&pool, 1).await;
            let removing = pool.clone();
            let removing = handle.spawn(Class::Issue, async move { removing.remove_vdev(guid).await });
            // The device may go, and a client be answered, before the power does.
            for _ in 0..rng.below(4) {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            handle.sleep(Duration::from_nanos(rng.below(60_000_000))).await;
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool, removing));
            let (pool, fs, log) =
                opened(&handle, &machine).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(seen(&fs).await, tree, "seed {seed}");
            let is_gone =
                pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[1].kind == VdevKind::Hole;
            gone += u32::from(is_gone);
            stayed += u32::from(!is_gone);
            drop((fs, log));
            export_whole(&handle, &machine, pool, &format!("seed {seed}")).await;
        });
    }
    assert!(gone > 2 && stayed > 2, "{gone} gone, {stayed} stayed");
}

#[test]
fn a_log_that_was_not_replayed_keeps_its_device_and_an_empty_one_does_not() {
    for has_records in [true, false] {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let (pool, fs, log) =
                new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
            let mut rng = Rng::new(8);
            let mut tree = seen(&fs).await;
            for _ in 0..10 {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            if !has_records {
                // The chain's last block stays, which nobody has written.
                pool.sync().await.unwrap();
                pool.sync().await.unwrap();
            }
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            let pool = opened_pool(&handle, &machine.paths, import_with(&[])).await.unwrap();
            let guid = top(&pool, 1).await;
            let removed = pool.remove_vdev(guid).await;
            if has_records {
                let Err(SpaError::Refused { why: Refusal::Busy, what }) = removed else { panic!("{removed:?}") };
                assert!(what.contains("'written'") && what.contains("mount"), "{what}");
                // It goes on as it was, and replays.
                let (fs, log) = opened_files(&pool).await.unwrap();
                let before = machine.disks[1].counts().written_bytes;
                for _ in 0..5 {
                    change(&fs, &tree, &mut rng).await;
                    log.sync(None).await.unwrap();
                    tree = seen(&fs).await;
                }
                assert!(machine.disks[1].counts().written_bytes > before, "the device is used again");
                drop((fs, log));
                pool.remove_vdev(guid).await.unwrap();
            } else {
                removed.unwrap();
            }
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree);
            drop((fs, log));
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths[..1]).await;
            assert_clean(&report, "exported");
            zdb(&machine, 0..1);
        });
    }
}

/// Found by a reader: a chain that a crash has left stands in the header of a dataset that somebody has open, and nothing in memory knows of
/// its blocks. Without records it goes with the device; with records that are being replayed it keeps it.
#[test]
fn a_chain_that_a_crash_has_left_is_seen_though_its_dataset_is_open() {
    for has_records in [true, false] {
        let runtime = Runtime::simulated(6);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let (pool, fs, log) =
                new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
            let mut rng = Rng::new(8);
            let mut tree = seen(&fs).await;
            for _ in 0..10 {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            if !has_records {
                pool.sync().await.unwrap();
                pool.sync().await.unwrap();
            }
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            let pool = opened_pool(&handle, &machine.paths, import_with(&[])).await.unwrap();
            let guid = top(&pool, 1).await;
            let head = pool.open_head("written").await.unwrap();
            // As while the log is replayed: the log is in use, and was not changed.
            let held = has_records.then(|| head.log(SyncMode::Standard));
            let files = if has_records { None } else { Some(opened_files(&pool).await.unwrap()) };
            let removed = pool.remove_vdev(guid).await;
            match has_records {
                true => {
                    let Err(SpaError::Refused { why: Refusal::Busy, what }) = removed else { panic!("{removed:?}") };
                    assert!(what.contains("'written'"), "{what}");
                }
                false => drop(removed.unwrap()),
            }
            drop((held, files, head));
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "records {has_records}");
            for _ in 0..5 {
                change(&fs, &tree, &mut rng).await;
                log.sync(None).await.unwrap();
                tree = seen(&fs).await;
            }
            drop((fs, log));
            export_whole(&handle, &machine, pool, "exported").await;
        });
    }
}

#[test]
fn a_device_is_removed_by_one_at_a_time() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
        let mut rng = Rng::new(8);
        let mut tree = seen(&fs).await;
        for _ in 0..5 {
            change(&fs, &tree, &mut rng).await;
            log.sync(None).await.unwrap();
            tree = seen(&fs).await;
        }
        pool.sync().await.unwrap();
        let guid = top(&pool, 1).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let second = pool.clone();
        let first = handle.spawn(Class::Issue, async move { second.remove_vdev(guid).await });
        handle.sleep(Duration::from_micros(300)).await;
        let again = pool.remove_vdev(guid).await;
        assert!(matches!(&again, Err(SpaError::Refused { why: Refusal::Busy, .. })), "{again:?}");
        let first = first.await.unwrap();
        drop(view);
        let before = machine.disks[1].counts().written_bytes;
        for _ in 0..5 {
            change(&fs, &tree, &mut rng).await;
            log.sync(None).await.unwrap();
            tree = seen(&fs).await;
        }
        let is_used = machine.disks[1].counts().written_bytes > before;
        assert_eq!(is_used, first.is_err(), "a device that stays is used, and one that went is not: {first:?}");
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

#[test]
fn a_log_device_that_failed_or_is_lost_can_be_removed() {
    for is_lost in [false, true] {
        let runtime = Runtime::simulated(9);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let (mut pool, mut fs, mut log) =
                new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
            let mut rng = Rng::new(3);
            let mut tree = seen(&fs).await;
            for _ in 0..10 {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            if is_lost {
                pool.sync().await.unwrap();
                cut(&handle, &machine, Crash::Random).await;
                drop((fs, log, pool));
                let how = ImportOptions { missing_log: true, ..import_with(&[]) };
                pool = opened_pool(&handle, &machine.paths[..1], how).await.unwrap();
                (fs, log) = opened_files(&pool).await.unwrap();
                // It goes on without the log, as its state says.
                let status = pool.tree().unwrap().status();
                assert_eq!((status.state, status.children[1].state), (VdevState::Degraded, VdevState::Unavailable));
                assert_eq!(device_condition(&status), Some(Condition::MissingLog));
            } else {
                machine.disks[1].set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
                change(&fs, &tree, &mut rng).await;
                log.sync(None).await.unwrap();
                tree = seen(&fs).await;
            }
            pool.remove_vdev(top(&pool, 1).await).await.unwrap();
            let _ = pool.troubled().await;
            change(&fs, &tree, &mut rng).await;
            log.sync(None).await.unwrap();
            tree = seen(&fs).await;
            drop((fs, log));
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths[..1]).await;
            assert_clean(&report, "exported");
            zdb(&machine, 0..1);
            let pool = opened_pool(&handle, &machine.paths[..1], import_with(&[])).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree);
            drop((fs, log));
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn spares_and_cache_devices_go_and_vdevs_with_data_stay() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 6, Latency::default());
    runtime.block_on(async {
        make_on(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        let pool = opened_pool(&handle, &machine.paths, import_with(&[])).await.unwrap();
        let auxiliaries = AuxSpec {
            spares: vec![
                disk(&handle, &machine.paths[2]).await.unwrap(),
                disk(&handle, &machine.paths[3]).await.unwrap(),
            ],
            caches: vec![disk(&handle, &machine.paths[4]).await.unwrap()],
        };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let (spares, caches) = (view.spares().await.unwrap(), view.cache_devices().await.unwrap());
        let mirror = view.vdevs().children[0].clone();
        drop(view);
        for guid in [mirror.guid, mirror.children[1].guid] {
            let refused = pool.remove_vdev(guid).await;
            assert!(matches!(&refused, Err(SpaError::Refused { why: Refusal::Invalid, .. })), "{refused:?}");
        }
        pool.remove_vdev(spares[0].guid).await.unwrap();
        pool.remove_vdev(caches[0].guid).await.unwrap();
        let again = pool.remove_vdev(spares[0].guid).await;
        assert!(matches!(again, Err(SpaError::Refused { why: Refusal::NotThere, .. })), "{again:?}");
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let left: Vec<Guid> = view.spares().await.unwrap().iter().map(|spare| spare.guid).collect();
        assert_eq!((left, view.cache_devices().await.unwrap().len()), (vec![spares[1].guid], 0));
        drop(view);
        export_whole(&handle, &machine, pool, "exported").await;
        zdb(&machine, 0..2);
    });
}

/// A reader of an earlier txg keeps what was freed since, on the log device too.
#[test]
fn a_log_device_stays_while_somebody_reads_the_pool_as_it_was() {
    let runtime = Runtime::simulated(12);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        fs.create(fs.root(), b"file", &new).await.unwrap();
        log.sync(None).await.unwrap();
        pool.sync().await.unwrap();
        let guid = top(&pool, 1).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        fs.create(fs.root(), b"second", &new).await.unwrap();
        log.sync(None).await.unwrap();
        let refused = pool.remove_vdev(guid).await;
        assert!(matches!(&refused, Err(SpaError::Refused { why: Refusal::Busy, .. })), "{refused:?}");
        drop(view);
        pool.remove_vdev(guid).await.unwrap();
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A log device that failed once and is well again stayed degraded for good, for blocks that were long gone; so did a leg of a mirror of them.
#[test]
fn a_log_device_that_is_well_again_lacks_nothing_and_is_used_again_when_errors_are_cleared() {
    for (layout, disks) in [((TopKind::Single, 1), 1..2), ((TopKind::Mirror, 2), 1..3)] {
        let runtime = Runtime::simulated(9);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, disks.end, Latency::default());
        runtime.block_on(async {
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), layout], true).await;
            let written = || machine.disks[1].counts().written_bytes;
            let mut rng = Rng::new(3);
            let mut tree = seen(&fs).await;
            let mut work = async || {
                let before = written();
                for _ in 0..10 {
                    change(&fs, &tree, &mut rng).await;
                    tree = seen(&fs).await;
                    log.sync(None).await.unwrap();
                }
                written() - before
            };
            work().await;
            machine.disks[1].set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
            work().await;
            pool.sync().await.unwrap();
            if disks.len() > 1 {
                let status = pool.devices().unwrap();
                let is_faulted = status.leaves().iter().any(|leaf| leaf.state == VdevState::Faulted);
                assert!(is_faulted || status.behind().len() == 1, "what it missed of blocks in use is noted");
            }
            machine.disks[1].clear_faults();
            pool.resume().await.unwrap();
            assert_eq!(pool.devices().unwrap().behind().len(), 0, "{layout:?}: nothing on it is needed");
            assert!(work().await > 2 * 4096, "{layout:?}: it is used again");
            drop((fs, log));
            export_whole(&handle, &machine, pool, "exported").await;
            let view = crate::health::seen(&handle, &machine.paths).await.unwrap();
            assert_eq!(view.tree().status().behind().len(), 0, "{layout:?}: nor is that on disk");
            drop(view);
            zdb(&machine, 0..disks.end);
        });
    }
}

/// As [`a_log_device_stays_while_somebody_reads_the_pool_as_it_was`], but the reader ends soon: it is waited for.
#[test]
fn a_removal_waits_for_readers_that_end_soon() {
    let runtime = Runtime::simulated(12);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        fs.create(fs.root(), b"file", &new).await.unwrap();
        log.sync(None).await.unwrap();
        let guid = top(&pool, 1).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let reader = async {
            handle.sleep(Duration::from_secs(3)).await;
            drop(view);
        };
        let (removed, ()) = both(pool.remove_vdev(guid), reader).await;
        removed.unwrap();
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A log device that nothing mirrors is taken offline: what is on it goes elsewhere first, the pool goes on without it, also where it is opened again, and
/// uses it when it is online.
#[test]
fn a_log_device_goes_offline_and_comes_back() {
    for (is_temporary, is_opened_again) in [(false, false), (false, true), (true, false)] {
        let runtime = Runtime::simulated(13);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let what = format!("{is_temporary} {is_opened_again}");
            let layout = [(TopKind::Single, 1), (TopKind::Single, 1)];
            let (mut pool, mut fs, mut log) = new_files(&handle, &machine, &layout, true).await;
            let written = || machine.disks[1].counts().written_bytes;
            let mut rng = Rng::new(4);
            let work = async |fs: &FileSystem, log: &Log, rng: &mut Rng| {
                let before = written();
                for _ in 0..10 {
                    let tree = seen(fs).await;
                    change(fs, &tree, rng).await;
                    log.sync(None).await.unwrap();
                }
                written() - before
            };
            assert!(work(&fs, &log, &mut rng).await > 4096);
            let guid = top(&pool, 1).await;
            let how = Offline { is_temporary, is_fault: false };
            pool.offline_device(guid, how).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let state = |pool: &Pool| crate::health::leaf(&pool.devices().unwrap(), "/disk1").state;
            assert_eq!(state(&pool), VdevState::Offline);
            assert_eq!(pool.devices().unwrap().state, VdevState::Degraded, "{what}: the pool goes on");
            assert_eq!(work(&fs, &log, &mut rng).await, 0, "{what}: nothing is written to it");
            pool.resume().await.unwrap();
            assert_eq!(work(&fs, &log, &mut rng).await, 0, "{what}: clear is not online");
            if is_opened_again {
                let tree = seen(&fs).await;
                drop((fs, log));
                pool.export().await.unwrap();
                zdb(&machine, 0..2);
                (pool, fs, log) = opened(&handle, &machine).await.unwrap();
                assert_eq!((state(&pool), seen(&fs).await), (VdevState::Offline, tree));
                assert_eq!(work(&fs, &log, &mut rng).await, 0, "{what}: nothing is written to it");
            }
            let online = pool.online_device(guid, Vec::new()).await.unwrap();
            assert!(online.state.is_readable(), "{what}: {online:?}");
            pool.sync().await.unwrap();
            pool.sync().await.unwrap();
            assert!(work(&fs, &log, &mut rng).await > 2 * 4096, "{what}: it is used again");
            pool.sync().await.unwrap();
            assert_eq!(state(&pool), VdevState::Online, "{what}: it lacks nothing that is needed");
            drop((fs, log));
            export_whole(&handle, &machine, pool, &what).await;
            zdb(&machine, 0..2);
        });
    }
}
