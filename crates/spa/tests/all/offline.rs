//! Goal: a device that is taken offline and online again lacks what the pool says that it lacks, nothing that only it has is given away, and a
//! power cut leaves the pool before or after. Method: blocks written to simulated disks while devices go and come, cuts at every write of
//! the change, the read path, and `zdb`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_format::ids::{Guid, VdevId};
use cenote_sim::Machine;
use cenote_spa::{ImportOptions, LiveHead, Offline, Pool, SpaError, TopKind};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::tree::VdevState;

use cenote_sim::written::blocks::{Written, change_head, check_blocks, make_objects, write_blocks};
use cenote_sim::written::*;

const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];
/// Redundant layouts, and the number of their disks.
const LAYOUTS: [(Layout, usize); 3] = [(MIRROR, 2), (RAIDZ, 3), (&[(TopKind::Mirror, 3)], 3)];

/// The configuration of the vdevs in the MOS.
pub(crate) async fn vdevs(pool: &Pool) -> VdevConfig {
    pool.view(&ImportOptions::default()).await.unwrap().vdevs().clone()
}

/// The guid of the leaf on a disk.
pub(crate) async fn leaf_of(pool: &Pool, path: &str) -> Guid {
    vdevs(pool).await.leaves().into_iter().find(|leaf| leaf.path.as_deref() == Some(path)).unwrap().guid
}

pub(crate) fn state(pool: &Pool, path: &str) -> VdevState {
    crate::health::leaf(&pool.tree().unwrap().status(), path).state
}

pub(crate) fn assert_refused<T: std::fmt::Debug>(made: Result<T, SpaError>, what: &str) {
    match made {
        Err(SpaError::Refused { what: said, .. }) => assert!(said.contains(what), "{said}"),
        other => panic!("{other:?}"),
    }
}

/// Writes blocks of an object of its own.
pub(crate) struct Object {
    object: cenote_dmu::Object,
    written: Arc<Mutex<Written>>,
    seed: u64,
}

impl Object {
    pub(crate) async fn new(head: &LiveHead, seed: u64) -> Self {
        Self { object: make_objects(head, 1).await.remove(0), written: Arc::default(), seed }
    }

    pub(crate) async fn write(&mut self, head: &LiveHead, blocks: u64) {
        self.seed += 1;
        write_blocks(head.clone(), self.object.clone(), self.seed, blocks, self.written.clone()).await;
    }

    pub(crate) async fn check(&self, what: &str) {
        let written = self.written.lock().clone();
        check_blocks(&self.object, &written, cenote_format::ids::Txg(u64::MAX), what).await;
    }
}

pub(crate) fn zdb(machine: &Machine, what: &str) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        cenote_sim::zdb("written", &machine.images(), machine.size_bytes)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn a_device_goes_offline_and_comes_back_with_what_it_lacks_known() {
    for (seed, (layout, disks)) in LAYOUTS.into_iter().enumerate() {
        for how in [Offline::default(), Offline { is_fault: true, ..Offline::default() }] {
            let what = format!("{layout:?} {how:?}");
            let runtime = Runtime::simulated(seed as u64);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, disks, Latency::default());
            runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                let head = pool.open_head("written").await.unwrap();
                let mut object = Object::new(&head, 10).await;
                object.write(&head, 60).await;
                let guid = leaf_of(&pool, "/disk1").await;
                let txg = pool.offline_device(guid, how).await.unwrap();
                let away = if how.is_fault { VdevState::Faulted } else { VdevState::Offline };
                assert_eq!(state(&pool, "/disk1"), away, "{what}");
                let written = || machine.disks[1].counts().written_bytes;
                let before = written();
                object.write(&head, 60).await;
                let last = pool.sync().await.unwrap();
                assert_eq!(written(), before, "{what}: nothing is written to it");
                object.check(&what).await;
                // It is offline for whoever opens the pool.
                drop(head);
                pool.export().await.unwrap();
                zdb(&machine, &what);
                let pool = reopened(&handle, &machine.paths, small()).await;
                assert_eq!(state(&pool, "/disk1"), away, "{what}");
                let others: Vec<Guid> = vdevs(&pool).await.leaves().iter().map(|leaf| leaf.guid).collect();
                if disks == 2 || layout == RAIDZ {
                    for other in others.iter().filter(|other| **other != guid) {
                        assert_refused(pool.offline_device(*other, how).await, "no valid replicas");
                    }
                }
                let onlined = pool.online_device(guid, Vec::new()).await.unwrap();
                assert!(onlined.state.is_readable(), "{what}: {onlined:?}");
                for missed in [txg, last] {
                    assert!(onlined.missed.contains(missed), "{what}: {missed} of {}", onlined.missed);
                }
                let before = written();
                let head = pool.open_head("written").await.unwrap();
                let mut more = Object::new(&head, 400).await;
                more.write(&head, 40).await;
                pool.sync().await.unwrap();
                assert!(written() > before, "{what}: it is written again");
                // The others have what it lacks: they stay.
                for other in others.iter().filter(|other| **other != guid && disks == 2) {
                    assert_refused(pool.offline_device(*other, how).await, "no valid replicas");
                }
                more.check(&what).await;
                drop(head);
                pool.export().await.unwrap();
                assert_readable(&handle, &machine.paths, &what).await;
                zdb(&machine, &what);
                let view = read(&handle, &machine.paths).await;
                let config = view.vdevs().leaves().into_iter().find(|leaf| leaf.guid == guid).unwrap().clone();
                assert!(!config.state.offline && !config.state.faulted, "{what}");
                let missed = crate::health::leaf(&view.tree().status(), "/disk1").missed.clone();
                assert!(missed.contains(txg) && missed.contains(last), "{what}: {missed}");
            });
        }
    }
}

#[test]
fn what_is_offline_for_a_time_is_used_by_the_next_import() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, MIRROR, small()).await;
        let guid = leaf_of(&pool, "/disk0").await;
        let txg = pool.offline_device(guid, Offline { is_temporary: true, is_fault: false }).await.unwrap();
        assert_eq!(state(&pool, "/disk0"), VdevState::Offline);
        pool.export().await.unwrap();
        let pool = reopened(&handle, &machine.paths, small()).await;
        assert_eq!(state(&pool, "/disk0"), VdevState::Degraded, "it is there, and lacks txgs");
        let missed = crate::health::leaf(&pool.tree().unwrap().status(), "/disk0").missed.clone();
        assert!(missed.contains(txg), "{missed}");
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths, "exported").await;
        zdb(&machine, "exported");
    });
}

#[test]
fn what_cannot_be_taken_offline_is_refused_and_nothing_changes() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Mirror, 2)], small()).await;
        let tops = vdevs(&pool).await.children;
        for (guid, what) in [
            (tops[0].guid, "no valid replicas"),
            (tops[1].guid, "operation not supported on this type of vdev"),
            (Guid(77), "no such device in pool"),
        ] {
            assert_refused(pool.offline_device(guid, Offline::default()).await, what);
            assert_eq!(vdevs(&pool).await.children, tops);
        }
        assert_refused(pool.online_device(Guid(77), Vec::new()).await, "no such device in pool");
        // One that is online already may be taken online.
        assert_eq!(pool.online_device(tops[1].children[0].guid, Vec::new()).await.unwrap().state, VdevState::Online);
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A device that comes back as an older copy of itself is known to lack what came after the copy.
#[test]
fn a_device_that_comes_back_as_an_older_copy_lacks_more_than_its_log_says() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, MIRROR, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let guid = leaf_of(&pool, "/disk1").await;
        let mut object = Object::new(&head, 10).await;
        let copied = pool.sync().await.unwrap();
        let copy = machine.disks[1].image();
        object.write(&head, 60).await;
        let between = pool.sync().await.unwrap();
        assert!(between > copied);
        pool.offline_device(guid, Offline::default()).await.unwrap();
        machine.disks[1].restore(&copy);
        let onlined = pool.online_device(guid, Vec::new()).await.unwrap();
        assert!(onlined.missed.contains(between) && !onlined.missed.contains(copied), "{}", onlined.missed);
        object.check("after").await;
        drop((head, object));
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths, "exported").await;
    });
}

/// Has all writes that come after `at` more get nowhere, counted over all disks, as if the power went then. The number of writes goes on.
pub(crate) fn stop_at(machine: &Machine, at: u64) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    for disk in &machine.disks {
        let counted = count.clone();
        disk.set_faults(move |request, _| {
            let is_write = matches!(request.kind, RequestKind::Write);
            let number = counted.fetch_add(u64::from(is_write), Ordering::SeqCst);
            let is_stopped = number > at || (is_write && number == at);
            if is_stopped && request.kind != RequestKind::Read { Fault::Hang } else { Fault::None }
        });
    }
    count
}

/// Asserts that all of the pool can be read, and that copies are bad only where a device is not used or is known to lack them.
pub(crate) async fn assert_readable(handle: &Handle, paths: &[PathBuf], what: &str) {
    let (_, mut report) = check(handle, paths).await;
    report.bad_copies.retain(|bad| {
        let what = format!("{bad:?}").to_lowercase();
        !what.contains("stale") && !what.contains("unavailable")
    });
    if report.bad_copies.is_empty() {
        report.bad_copy_count = 0;
    }
    assert_clean(&report, what);
}

/// The pool is as before or after a change, whatever write of it the power goes at.
#[test]
fn a_cut_at_any_write_leaves_a_device_online_or_offline() {
    let (mut before, mut after) = (0, 0);
    for is_back in [false, true] {
        for at in 0.. {
            let runtime = Runtime::simulated(at);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, 2, slow());
            let is_done = runtime.block_on(async {
                let what = format!("cut at {at}, online {is_back}");
                let pool = live(&handle, &machine, MIRROR, small()).await;
                let head = pool.open_head("written").await.unwrap();
                change_head(&pool, head.head(), &mut Rng::new(at)).await.unwrap();
                let guid = leaf_of(&pool, "/disk1").await;
                if is_back {
                    pool.offline_device(guid, Offline::default()).await.unwrap();
                    change_head(&pool, head.head(), &mut Rng::new(at + 1)).await.unwrap();
                    pool.sync().await.unwrap();
                }
                let count = stop_at(&machine, at);
                let changing = pool.clone();
                let changing = handle.spawn(cenote_taskq::Class::Issue, async move {
                    match is_back {
                        true => changing.online_device(guid, Vec::new()).await.map(drop),
                        false => changing.offline_device(guid, Offline::default()).await.map(drop),
                    }
                });
                let made = handle.timeout(std::time::Duration::from_secs(5), changing).await;
                let is_over = matches!(made, Some(Ok(Ok(())))) && count.load(Ordering::SeqCst) <= at;
                machine.disks.iter().for_each(|disk| disk.clear_faults());
                cut(&handle, &machine, Crash::Random).await;
                drop((head, pool));
                let pool = reopened(&handle, &machine.paths, small()).await;
                let is_offline = state(&pool, "/disk1") == VdevState::Offline;
                match is_offline == is_back {
                    true => before += 1,
                    false => after += 1,
                }
                // It is one or the other: what it lacks is known, and the other can do without it or not.
                let outage = pool.tree().unwrap().outage(VdevId(0), &BTreeSet::new());
                assert!(outage.is_empty(), "{what}: {outage}");
                pool.export().await.unwrap();
                assert_readable(&handle, &machine.paths, &what).await;
                is_over
            });
            if is_done {
                break;
            }
        }
    }
    assert!(before > 3 && after > 3, "{before} as before, {after} as after");
}

/// A device that was not there when the pool was opened is found by `reopen`, and one that is faulted by `clear`.
#[test]
fn a_device_that_is_back_is_opened_again() {
    let runtime = Runtime::simulated(11);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        live(&handle, &machine, MIRROR, small()).await.export().await.unwrap();
        let pool = reopened(&handle, &machine.paths[..1], small()).await;
        let guid = leaf_of(&pool, "/disk1").await;
        assert_eq!(state(&pool, "/disk1"), VdevState::Unavailable);
        let txg = pool.sync().await.unwrap();
        assert_eq!(pool.reopen_devices().await.unwrap(), [guid]);
        assert_eq!(state(&pool, "/disk1"), VdevState::Degraded);
        let missed = crate::health::leaf(&pool.tree().unwrap().status(), "/disk1").missed.clone();
        assert!(missed.contains(txg), "{missed}");
        assert!(pool.reopen_devices().await.unwrap().is_empty());
        pool.offline_device(guid, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
        assert!(pool.reopen_devices().await.unwrap().is_empty(), "what was taken away is not opened");
        pool.clear_device(guid).await.unwrap();
        assert_eq!(state(&pool, "/disk1"), VdevState::Degraded);
        pool.offline_device(guid, Offline::default()).await.unwrap();
        pool.clear_device(guid).await.unwrap();
        assert_eq!(state(&pool, "/disk1"), VdevState::Offline, "clear is not online");
        assert_refused(pool.clear_device(Guid(77)).await, "no such device in pool");
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths, "exported").await;
        zdb(&machine, "exported");
    });
}
