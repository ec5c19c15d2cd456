//! Goal: a device that loses its contents or goes away while it is open is not taken for one that has everything, and one that takes nothing is not
//! asked for ever. Method: simulated disks that are emptied or fail while their pool is in use, and the verbs that look at devices.

use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_format::label::START_BYTES;
use cenote_sim::written::*;
use cenote_spa::{Offline, Pool, TopKind};
use cenote_taskq::Runtime;
use cenote_taskq::sim::disk::{Fault, Latency, RequestKind};
use cenote_vdev::tree::VdevState;

use crate::offline::{Object, assert_refused, leaf_of, state};

const LAYOUTS: [(Layout, usize); 3] =
    [(&[(TopKind::Mirror, 2)], 2), (&[(TopKind::Raidz { parity: 1 }, 3)], 3), (&[(TopKind::Mirror, 3)], 3)];

async fn guids(pool: &Pool, count: usize) -> Vec<Guid> {
    let mut guids = Vec::new();
    for disk in 0..count {
        guids.push(leaf_of(pool, &format!("/disk{disk}")).await);
    }
    guids
}

/// The verbs that look at a device.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Online,
    Clear,
    Reopen,
    /// The others are looked at before one goes.
    Detach,
    Offline,
}

/// Found by an outsider: after `online` of an emptied device its good mirror could be detached, and all files with it.
#[test]
fn a_device_that_was_emptied_while_it_is_open_is_lost_and_the_others_stay() {
    for (seed, (layout, count)) in LAYOUTS.into_iter().enumerate() {
        for verb in [Verb::Online, Verb::Clear, Verb::Reopen, Verb::Detach, Verb::Offline] {
            let what = format!("{layout:?} {verb:?}");
            let runtime = Runtime::simulated(seed as u64);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, count, Latency::default());
            runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                let head = pool.open_head("written").await.unwrap();
                let mut object = Object::new(&head, 10).await;
                object.write(&head, 40).await;
                pool.sync().await.unwrap();
                let guids = guids(&pool, count).await;
                let lost = count - 1;
                machine.disks[lost].restore(&Default::default());
                match verb {
                    Verb::Online => {
                        let onlined = pool.online_device(guids[lost], Vec::new()).await.unwrap();
                        assert!(!onlined.state.is_readable(), "{what}: {onlined:?}");
                        assert!(onlined.reason.is_some_and(|reason| reason.contains("label")), "{what}");
                    }
                    Verb::Clear => pool.clear_device(guids[lost]).await.unwrap(),
                    Verb::Reopen => assert!(pool.reopen_devices().await.unwrap().is_empty(), "{what}"),
                    Verb::Detach => drop(pool.detach_device(guids[0]).await),
                    Verb::Offline => drop(pool.offline_device(guids[0], Offline::default()).await),
                }
                assert_eq!(state(&pool, &format!("/disk{lost}")), VdevState::Unavailable, "{what}");
                // Nothing that the lost one alone would have made up for can go.
                if count == 2 || layout[0].0 != TopKind::Mirror {
                    assert!(state(&pool, "/disk0").is_readable(), "{what}");
                    for other in &guids[..lost] {
                        assert_refused(pool.offline_device(*other, Offline::default()).await, "no valid replicas");
                    }
                }
                object.write(&head, 40).await;
                pool.sync().await.unwrap();
                object.check(&what).await;
                drop((head, object));
                pool.export().await.unwrap();
                crate::offline::assert_readable(&handle, &machine.paths[..lost], &what).await;
            });
        }
    }
}

/// There is nothing to take its place: it stays, and the caller is told.
#[test]
fn a_device_that_alone_has_something_is_kept_whatever_its_label_says() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Single, 1)], small()).await;
        let guid = leaf_of(&pool, "/disk0").await;
        let mut image = machine.disks[0].image();
        let size = machine.size_bytes;
        for label in 0..4 {
            let at = cenote_format::label::DeviceLayout::new(size).unwrap().label_offset(label);
            image.write(at, &vec![0xee; cenote_format::label::LABEL_BYTES]);
        }
        machine.disks[0].restore(&image);
        assert_refused(pool.online_device(guid, Vec::new()).await, "no other device has all that it had");
        assert_eq!(state(&pool, "/disk0"), VdevState::Online);
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A device fails all that it is asked, and is given up within seconds; one that is out for a moment is not.
#[test]
fn a_device_that_takes_nothing_is_faulted_after_three_tries_and_one_that_returns_is_not() {
    for (layout, count) in LAYOUTS {
        for is_short in [false, true] {
            let what = format!("{layout:?}, back again: {is_short}");
            let runtime = Runtime::simulated(5);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, count, Latency::default());
            runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                let head = pool.open_head("written").await.unwrap();
                let mut object = Object::new(&head, 10).await;
                object.write(&head, 4).await;
                pool.sync().await.unwrap();
                machine.disks[1].set_faults(|request, _| match request.kind {
                    // As a file that was deleted. The same failure again is no event, so no count of them would judge it.
                    RequestKind::Flush => Fault::Error(std::io::ErrorKind::NotFound),
                    _ => Fault::None,
                });
                object.write(&head, 4).await;
                pool.sync().await.unwrap();
                handle.sleep(Duration::from_millis(1500)).await;
                if is_short {
                    machine.disks[1].clear_faults();
                }
                handle.sleep(Duration::from_secs(8)).await;
                assert_eq!(state(&pool, "/disk1") == VdevState::Faulted, !is_short, "{what}");
                let events = pool.events().after(0).events;
                let has = |class: &str| events.iter().any(|event| event.list.str("class") == Some(class));
                assert_eq!(has("ereport.fs.zfs.probe_failure"), !is_short, "{what}");
                object.write(&head, 4).await;
                pool.sync().await.unwrap();
                object.check(&what).await;
                machine.disks[1].clear_faults();
                drop((head, object));
                pool.export().await.unwrap();
            });
        }
    }
}

/// The tries of a device do not touch what it has.
#[test]
fn a_try_writes_what_was_there() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        pool.sync().await.unwrap();
        let guid = leaf_of(&pool, "/disk1").await;
        let before = machine.disks[1].peek(0, START_BYTES as usize);
        pool.tree().unwrap().probe_leaf(guid).await.unwrap();
        assert!(machine.disks[1].peek(0, START_BYTES as usize) == before);
        machine.disks[1].set_faults(|_, _| Fault::Error(std::io::ErrorKind::Other));
        assert!(pool.tree().unwrap().probe_leaf(guid).await.is_err());
        machine.disks[1].clear_faults();
        pool.export().await.unwrap();
    });
}
