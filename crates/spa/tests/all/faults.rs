//! Fault management: a device that gives too many errors is taken out of use, or shown as ailing where others need it; that is on disk, is
//! an event, and is over when a person says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_spa::{AttachOptions, Event, NewDevice, Pool, PropertyValue, TopKind};
use cenote_taskq::sim::disk::{Fault, Latency, RequestKind, SimDisk};
use cenote_taskq::{Handle, Runtime};
use cenote_vdev::tree::LeafState;

use crate::failing::assert_whole;
use cenote_sim::Machine;
use cenote_sim::written::*;

const MIRROR: Layout = &[(TopKind::Mirror, 2)];

/// Has a disk fail these requests, while that is switched on.
fn fail(disk: &SimDisk, kinds: &'static [RequestKind]) -> Arc<AtomicBool> {
    let is_on = Arc::new(AtomicBool::new(true));
    let switch = is_on.clone();
    disk.set_faults(move |request, _| match switch.load(Ordering::SeqCst) && kinds.contains(&request.kind) {
        true => Fault::Error(std::io::ErrorKind::Other),
        false => Fault::None,
    });
    is_on
}

fn leaf(pool: &Pool, disk: usize) -> (Guid, LeafState) {
    let tree = pool.tree().unwrap();
    let status = tree.status();
    let name = format!("/disk{disk}");
    let guid = status.leaves().into_iter().find(|leaf| leaf.name == name).unwrap().guid;
    (guid, tree.leaf_states().into_iter().find(|(of, _)| *of == guid).unwrap().1)
}

/// Changes blocks of the MOS.
async fn change(pool: &Pool, number: u64) {
    pool.record_command(&format!("change {number}"), 0).await.unwrap();
}

/// Changes blocks until a leaf is in this state.
async fn change_until(handle: &Handle, pool: &Pool, disk: usize, wanted: LeafState) {
    for seed in 0..50 {
        change(pool, seed).await;
        pool.sync().await.unwrap();
        handle.sleep(Duration::from_secs(1)).await;
        if leaf(pool, disk).1 == wanted {
            return;
        }
    }
    panic!("disk {disk} is {:?}, not {wanted:?}", leaf(pool, disk).1);
}

fn classes(events: &[Arc<Event>]) -> Vec<&str> {
    events.iter().filter_map(|event| event.list.str("class")).collect()
}

fn run(seed: u64, test: impl AsyncFnOnce(&Handle, &Machine)) {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async { test(&handle, &machine).await });
}

#[test]
fn a_device_that_fails_its_writes_is_faulted_on_disk_and_comes_back_when_it_is_cleared() {
    run(1, async |handle, machine| {
        let pool = live(handle, machine, MIRROR, small()).await;
        let is_on = fail(&machine.disks[0], &[RequestKind::Write]);
        change_until(handle, &pool, 0, LeafState::Faulted).await;
        pool.sync().await.unwrap();
        let events = pool.events().after(0);
        let seen = classes(&events.events);
        for class in ["ereport.fs.zfs.io", "resource.fs.zfs.statechange", "sysevent.fs.zfs.config_sync"] {
            assert!(seen.contains(&class), "{class}: {seen:?}");
        }
        let changed = events.events.iter().find(|event| event.list.u64("vdev_state").is_some()).unwrap();
        assert_eq!((changed.list.u64("vdev_state"), changed.list.u64("vdev_laststate")), (Some(5), Some(7)));
        // The other one has all, and what this one lacks is known.
        let missed = |pool: &Pool| pool.tree().unwrap().status().leaves()[0].missed.clone();
        assert!(!missed(&pool).is_empty());
        // Its labels say nothing any more; those of the other say that it is faulted.
        is_on.store(false, Ordering::SeqCst);
        change(&pool, 77).await;
        let last = pool.sync().await.unwrap();
        assert!(missed(&pool).contains(last), "it is not written by itself");
        pool.resume().await.unwrap();
        assert_eq!(leaf(&pool, 0).1, LeafState::Online);
        let after = pool.events().after(events.events.last().unwrap().eid).events;
        let seen = classes(&after);
        assert!(
            seen.contains(&"sysevent.fs.zfs.vdev_clear") && seen.contains(&"resource.fs.zfs.statechange"),
            "{seen:?}"
        );
        change(&pool, 78).await;
        let last = pool.sync().await.unwrap();
        let missed = missed(&pool);
        assert!(!missed.is_empty() && !missed.contains(last), "{missed}: written again, and not resilvered");
        pool.export().await.unwrap();
        let (_, report) = check(handle, &machine.paths).await;
        assert_whole(&report, "cleared");
    });
}

/// An import looks anew: the device may be well there.
#[test]
fn a_fault_that_was_diagnosed_ends_with_the_import_and_what_was_missed_is_known() {
    run(2, async |handle, machine| {
        let pool = live(handle, machine, MIRROR, small()).await;
        fail(&machine.disks[1], &[RequestKind::Write]);
        change_until(handle, &pool, 1, LeafState::Faulted).await;
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
        machine.disks[1].clear_faults();
        let pool = reopened(handle, &machine.paths, small()).await;
        assert_eq!(leaf(&pool, 1).1, LeafState::Online);
        assert!(pool.tree().unwrap().status().leaves().iter().any(|leaf| !leaf.missed.is_empty()));
        pool.export().await.unwrap();
        let (_, report) = check(handle, &machine.paths).await;
        assert_whole(&report, "imported");
    });
}

/// Found by an outsider: a device that was given up and emptied was used again by `clear`, as one that lacks a few txgs, and could not be
/// replaced in place, since it was still open.
#[test]
fn a_faulted_device_is_looked_at_before_it_is_used_again() {
    for (seed, is_emptied) in [(10, true), (11, false)] {
        for verb in 0..3 {
            run(seed, async |handle, machine| {
                let pool = live(handle, machine, MIRROR, small()).await;
                fail(&machine.disks[1], &[RequestKind::Write]);
                change_until(handle, &pool, 1, LeafState::Faulted).await;
                machine.disks[1].clear_faults();
                if is_emptied {
                    machine.disks[1].restore(&Default::default());
                }
                let guid = leaf(&pool, 1).0;
                let before = pool.events().after(0).events.last().map_or(0, |event| event.eid);
                match verb {
                    0 => pool.pardon(None).await.unwrap(),
                    1 => pool.resume().await.unwrap(),
                    _ => drop(pool.online_device(guid, Vec::new()).await.unwrap()),
                }
                let wanted = if is_emptied { LeafState::Unavailable } else { LeafState::Online };
                assert_eq!(leaf(&pool, 1).1, wanted, "verb {verb}");
                // It is told of once, by the name of what was done; it is online only if it is used again.
                let after = pool.events().after(before).events;
                let count = |name: &str| classes(&after).into_iter().filter(|class| class.ends_with(name)).count();
                let told = match (is_emptied, verb) {
                    (true, 2) => (0, 0),
                    (false, 2) => (0, 1),
                    _ => (1, 0),
                };
                assert_eq!((count(".vdev_clear"), count(".vdev_online")), told, "verb {verb}: {:?}", classes(&after));
                if is_emptied {
                    // It is closed, so that a new disk can be taken at its path.
                    let options = AttachOptions {
                        old: guid,
                        new: NewDevice::Disk(cenote_sim::disk(handle, &machine.paths[1]).await.unwrap()),
                        is_replacing: true,
                        is_sequential: false,
                        ashift: None,
                        seed: None,
                    };
                    pool.attach_device(options).await.unwrap();
                }
                change(&pool, 90).await;
                pool.sync().await.unwrap();
                pool.export().await.unwrap();
            });
        }
    }
}

/// The same of one that never failed a request, since what was written to it went to an empty device.
#[test]
fn clear_looks_at_devices_that_are_used() {
    run(12, async |handle, machine| {
        let pool = live(handle, machine, MIRROR, small()).await;
        change(&pool, 1).await;
        pool.sync().await.unwrap();
        machine.disks[1].restore(&Default::default());
        pool.resume().await.unwrap();
        assert_eq!((leaf(&pool, 0).1, leaf(&pool, 1).1), (LeafState::Online, LeafState::Unavailable));
        pool.export().await.unwrap();
    });
}

/// The last good copy is degraded, and never taken away.
#[test]
fn a_device_that_others_need_is_degraded_instead() {
    run(3, async |handle, machine| {
        let pool = live(handle, machine, MIRROR, small()).await;
        // The second disk misses a txg.
        let is_on = fail(&machine.disks[1], &[RequestKind::Flush]);
        change(&pool, 1).await;
        pool.sync().await.unwrap();
        is_on.store(false, Ordering::SeqCst);
        change(&pool, 2).await;
        pool.sync().await.unwrap();
        assert_eq!(leaf(&pool, 1).1, LeafState::Online);
        let is_on = fail(&machine.disks[0], &[RequestKind::Write]);
        change_until(handle, &pool, 0, LeafState::Degraded).await;
        for seed in 3..8 {
            change(&pool, seed).await;
            pool.sync().await.unwrap();
            assert_ne!(leaf(&pool, 0).1, LeafState::Faulted, "it alone has the txg that the other one missed");
        }
        is_on.store(false, Ordering::SeqCst);
        pool.export().await.unwrap();
        // Shown as ailing until it is cleared, also by the next import.
        let pool = reopened(handle, &machine.paths, small()).await;
        let (guid, state) = leaf(&pool, 0);
        assert_eq!(state, LeafState::Degraded);
        pool.clear_device(guid).await.unwrap();
        assert_eq!(leaf(&pool, 0).1, LeafState::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn properties_of_a_vdev_change_its_rules_and_those_of_vdevs_below_it() {
    run(4, async |handle, machine| {
        let pool = live(handle, machine, MIRROR, small()).await;
        let tree = pool.tree().unwrap();
        let top = tree.status().children[0].guid;
        // Never, by the mirror above it.
        pool.set_vdev_property(top, "io_n", Some(&PropertyValue::Number(0))).await.unwrap();
        let is_on = fail(&machine.disks[0], &[RequestKind::Write]);
        for seed in 0..20 {
            change(&pool, seed).await;
            pool.sync().await.unwrap();
        }
        assert!(tree.error_counts(leaf(&pool, 0).0).unwrap().totals().write > 10);
        assert_eq!(leaf(&pool, 0).1, LeafState::Online);
        is_on.store(false, Ordering::SeqCst);
        pool.resume().await.unwrap();
        pool.export().await.unwrap();
        // They are read again when the pool is; one of the leaf goes before the mirror's.
        let pool = reopened(handle, &machine.paths, small()).await;
        pool.set_vdev_property(leaf(&pool, 0).0, "io_n", Some(&PropertyValue::Number(1))).await.unwrap();
        let is_on = fail(&machine.disks[1], &[RequestKind::Write]);
        for seed in 0..20 {
            change(&pool, seed).await;
            pool.sync().await.unwrap();
        }
        assert_eq!(leaf(&pool, 1).1, LeafState::Online, "the mirror's rule, from disk");
        is_on.store(false, Ordering::SeqCst);
        pool.resume().await.unwrap();
        pool.export().await.unwrap();
    });
}
