//! Goal: devices are attached, replaced and detached while blocks are written, no block has fewer copies at any moment, and a power cut leaves
//! the old vdevs or the new ones. Method: a resilver is played by copying a disk's data area to another disk; the read path, `zdb`, cuts at every
//! write of a change, and random histories against a model.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg};
use cenote_sim::{Machine, disk};
use cenote_spa::{
    AddOptions, AttachOptions, AuxSpec, ImportOptions, NewDevice, Offline, Pool, PoolState, SpaError, TopKind, find,
};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Handle, Rng, Runtime};
use cenote_vdev::config::{AllocationClass, VdevConfig};
use cenote_vdev::tree::VdevState;

use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;

use crate::offline::{Object, assert_readable, assert_refused, leaf_of, state, stop_at, vdevs};

const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];
const DATA: Range<u64> = 4 << 20..DISK_BYTES - (512 << 10);

/// The tree of a top-level vdev, its leaves by path.
fn shape(vdev: &VdevConfig) -> String {
    let children: Vec<String> = vdev.children.iter().map(shape).collect();
    match vdev.kind.is_leaf() {
        true => vdev.path.as_deref().unwrap_or("-").trim_start_matches('/').to_owned(),
        false => format!("{}[{}]", vdev.kind.name(), children.join(" ")),
    }
}

pub(crate) async fn tops(pool: &Pool) -> String {
    vdevs(pool).await.children.iter().map(shape).collect::<Vec<_>>().join(" ")
}

async fn options(handle: &Handle, machine: &Machine, old: Guid, new: usize, is_replacing: bool) -> AttachOptions {
    let new = NewDevice::Disk(disk(handle, &machine.paths[new]).await.unwrap());
    AttachOptions { old, new, is_replacing, is_sequential: false, ashift: Some(12), seed: None }
}

/// Attaches a disk, or has it replace another.
async fn attach(
    handle: &Handle,
    machine: &Machine,
    pool: &Pool,
    old: &str,
    new: usize,
    is_replacing: bool,
) -> Result<Txg, SpaError> {
    let old = leaf_of(pool, old).await;
    pool.attach_device(options(handle, machine, old, new, is_replacing).await).await
}

/// Plays a resilver: the data area of a disk goes to another, whose log is emptied.
pub(crate) async fn resilver(machine: &Machine, pool: &Pool, from: usize, to: usize) {
    // The txgs to come of a new leaf's log.
    let head = pool.open_head("written").await.unwrap();
    let mut own = Object::new(&head, 5000).await;
    for _ in 0..4 {
        own.write(&head, 1).await;
        pool.sync().await.unwrap();
    }
    drop(head);
    for at in DATA.step_by(1 << 20) {
        let bytes = machine.disks[from].peek(at, (DATA.end - at).min(1 << 20) as usize);
        machine.disks[to].poke(at, &bytes);
    }
    let guid = leaf_of(pool, &machine.paths[to].display().to_string()).await;
    pool.mended(guid).await.unwrap();
    pool.sync().await.unwrap();
}

/// Asserts that the pool on these disks is whole, by the read path and by `zdb`.
async fn assert_whole(handle: &Handle, machine: &Machine, disks: &[usize], what: &str) {
    let paths: Vec<PathBuf> = disks.iter().map(|disk| machine.paths[*disk].clone()).collect();
    let (_, report) = check(handle, &paths).await;
    assert_clean(&report, what);
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images: Vec<_> = disks.iter().map(|disk| machine.disks[*disk].image()).collect();
        cenote_sim::zdb("written", &images, machine.size_bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// The same of a pool of which a disk lacks something.
async fn assert_known(handle: &Handle, machine: &Machine, disks: &[usize], what: &str) {
    let paths: Vec<PathBuf> = disks.iter().map(|disk| machine.paths[*disk].clone()).collect();
    assert_readable(handle, &paths, what).await;
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images: Vec<_> = disks.iter().map(|disk| machine.disks[*disk].image()).collect();
        cenote_sim::zdb("written", &images, machine.size_bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// The pools on a disk.
async fn pools_on(handle: &Handle, machine: &Machine, disk: usize) -> usize {
    find(handle, &machine.paths[disk..=disk]).await.0.len()
}

#[test]
fn a_disk_becomes_a_mirror_of_three_and_a_single_disk_again() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let mut object = Object::new(&head, 10).await;
        object.write(&head, 80).await;
        for new in [1, 2] {
            let what = format!("attached {new}");
            attach(&handle, &machine, &pool, "/disk0", new, false).await.unwrap();
            assert_eq!(state(&pool, &format!("/disk{new}")), VdevState::Degraded, "{what}: it lacks what came before");
            object.write(&head, 40).await;
            object.check(&what).await;
            // It has nothing of what was written before.
            let old = leaf_of(&pool, "/disk0").await;
            if new == 1 {
                assert_refused(pool.detach_device(old).await, "no valid replicas");
                assert_refused(pool.offline_device(old, Offline::default()).await, "no valid replicas");
            }
            resilver(&machine, &pool, 0, new).await;
            assert_eq!(state(&pool, &format!("/disk{new}")), VdevState::Online, "{what}");
        }
        assert_eq!(tops(&pool).await, "mirror[disk0 disk1 disk2]");
        drop(head);
        pool.export().await.unwrap();
        assert_whole(&handle, &machine, &[0, 1, 2], "three").await;
        let pool = reopened(&handle, &machine.paths, small()).await;
        let head = pool.open_head("written").await.unwrap();
        for (gone, left) in [("/disk0", "mirror[disk1 disk2]"), ("/disk2", "disk1")] {
            let guid = leaf_of(&pool, gone).await;
            pool.detach_device(guid).await.unwrap();
            assert_eq!(tops(&pool).await, left);
            let mut more = Object::new(&head, 1000).await;
            more.write(&head, 30).await;
            more.check(gone).await;
        }
        assert_eq!((pools_on(&handle, &machine, 0).await, pools_on(&handle, &machine, 2).await), (0, 0));
        assert_refused(pool.detach_device(leaf_of(&pool, "/disk1").await).await, "only applicable to mirror");
        drop(head);
        pool.export().await.unwrap();
        assert_whole(&handle, &machine, &[1], "one").await;
        // All of them together are the pool of the one that is left.
        assert_whole(&handle, &machine, &[0, 1, 2], "all").await;
    });
}

#[test]
fn a_disk_is_replaced_and_the_old_one_goes_when_the_new_one_has_everything() {
    for (seed, (layout, disks)) in [(SINGLE, 1), (MIRROR, 2), (RAIDZ, 3)].into_iter().enumerate() {
        let what = format!("{layout:?}");
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, disks + 1, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let mut object = Object::new(&head, 10).await;
            object.write(&head, 60).await;
            attach(&handle, &machine, &pool, "/disk0", disks, true).await.unwrap();
            assert!(tops(&pool).await.contains(&format!("replacing[disk0 disk{disks}]")), "{what}");
            object.write(&head, 60).await;
            object.check(&what).await;
            assert_eq!(pool.finish_replacing().await.unwrap(), 0, "{what}: it lacks what came before");
            // Half-way, by whoever opens the pool.
            drop(head);
            pool.export().await.unwrap();
            let all: Vec<usize> = (0..=disks).collect();
            assert_known(&handle, &machine, &all, &what).await;
            let pool = reopened(&handle, &machine.paths, small()).await;
            resilver(&machine, &pool, 0, disks).await;
            assert_eq!(pool.finish_replacing().await.unwrap(), 1, "{what}");
            let left = tops(&pool).await;
            assert!(
                !left.contains("replacing") && !left.contains("disk0") && left.contains(&format!("disk{disks}")),
                "{left}"
            );
            assert_eq!(pools_on(&handle, &machine, 0).await, 0, "{what}");
            let new = leaf_of(&pool, &format!("/disk{disks}")).await;
            let config = vdevs(&pool).await.leaves().into_iter().find(|leaf| leaf.guid == new).unwrap().clone();
            assert_eq!(config.resilver_txg, None, "{what}");
            let head = pool.open_head("written").await.unwrap();
            let mut more = Object::new(&head, 1000).await;
            more.write(&head, 30).await;
            more.check(&what).await;
            drop(head);
            pool.export().await.unwrap();
            let rest: Vec<usize> = (1..=disks).collect();
            assert_whole(&handle, &machine, &rest, &what).await;
        });
    }
}

#[test]
fn a_log_device_is_replaced_in_a_pool_that_nobody_changes() {
    for is_replacing in [true, false] {
        let runtime = Runtime::simulated(u64::from(is_replacing));
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, SINGLE, small()).await;
            let mut log = cenote_sim::tops(&handle, SINGLE, &machine.paths[1..2]).await.unwrap();
            log[0].class = AllocationClass::Log;
            pool.add_vdevs(AddOptions { tops: log, ashift: Some(12), ..AddOptions::default() }).await.unwrap();
            attach(&handle, &machine, &pool, "/disk1", 2, is_replacing).await.unwrap();
            handle.sleep(Duration::from_secs(60)).await;
            let wanted = if is_replacing { "disk0 disk2" } else { "disk0 mirror[disk1 disk2]" };
            assert_eq!(tops(&pool).await, wanted);
            assert_eq!(state(&pool, "/disk2"), VdevState::Online, "it lacks nothing");
            let new = leaf_of(&pool, "/disk2").await;
            let config = vdevs(&pool).await.leaves().into_iter().find(|leaf| leaf.guid == new).unwrap().clone();
            assert_eq!(config.resilver_txg, None, "it is not new any more");
            if !is_replacing {
                // The same of one that was away.
                pool.offline_device(new, Offline::default()).await.unwrap();
                let head = pool.open_head("written").await.unwrap();
                Object::new(&head, 10).await.write(&head, 5).await;
                drop(head);
                pool.sync().await.unwrap();
                pool.online_device(new, vec![machine.paths[2].clone()]).await.unwrap();
                handle.sleep(Duration::from_secs(60)).await;
                assert_eq!(state(&pool, "/disk2"), VdevState::Online, "it lacks nothing again");
            }
            // Then the pool is at rest again.
            let txg = pool.peek(|syncer| syncer.txg()).await.unwrap();
            handle.sleep(Duration::from_secs(600)).await;
            assert_eq!(pool.peek(|syncer| syncer.txg()).await.unwrap(), txg, "nothing is left to be done");
            pool.export().await.unwrap();
            let rest: &[usize] = if is_replacing { &[0, 2] } else { &[0, 1, 2] };
            assert_whole(&handle, &machine, rest, wanted).await;
        });
    }
}

#[test]
fn a_replacement_is_called_off_by_detaching_the_new_disk() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, MIRROR, small()).await;
        attach(&handle, &machine, &pool, "/disk0", 2, true).await.unwrap();
        pool.detach_device(leaf_of(&pool, "/disk2").await).await.unwrap();
        assert_eq!(tops(&pool).await, "mirror[disk0 disk1]");
        assert_eq!(pools_on(&handle, &machine, 2).await, 0);
        pool.export().await.unwrap();
        assert_whole(&handle, &machine, &[0, 1], "called off").await;
    });
}

#[test]
fn a_disk_that_was_changed_at_its_path_is_replaced_in_place() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        live(&handle, &machine, MIRROR, small()).await.export().await.unwrap();
        for at in (0..DISK_BYTES).step_by(1 << 20) {
            machine.disks[1].poke(at, &[0; 1 << 20]);
        }
        for is_called_off in [true, false] {
            let pool = reopened(&handle, &machine.paths, small()).await;
            attach(&handle, &machine, &pool, "/disk1", 1, true).await.unwrap();
            assert_eq!(tops(&pool).await, "mirror[disk0 replacing[disk1/old disk1]]");
            if is_called_off {
                pool.detach_device(leaf_of(&pool, "/disk1").await).await.unwrap();
                assert_eq!(tops(&pool).await, "mirror[disk0 disk1]", "it has its path again");
            } else {
                resilver(&machine, &pool, 0, 1).await;
                assert_eq!(pool.finish_replacing().await.unwrap(), 1);
                assert_eq!(tops(&pool).await, "mirror[disk0 disk1]");
                assert_eq!(pool.tree().unwrap().status().state, VdevState::Online);
            }
            pool.export().await.unwrap();
        }
        assert_whole(&handle, &machine, &[0, 1], "replaced").await;
    });
}

#[test]
fn what_cannot_have_a_place_is_refused_and_nothing_changes() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 6, Latency::default());
    let tiny = cenote_taskq::sim::disk::SimDiskOptions { size_bytes: 64 << 20, ..Default::default() };
    runtime.sim().unwrap().add_disk(&handle, "/tiny", tiny);
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2), (TopKind::Raidz { parity: 1 }, 3)], small()).await;
        let config = vdevs(&pool).await;
        let (mirror, raidz) = (config.children[0].clone(), config.children[1].clone());
        let with = async |old: Guid, is_replacing: bool| options(&handle, &machine, old, 5, is_replacing).await;
        let small = NewDevice::Disk(disk(&handle, "/tiny".as_ref()).await.unwrap());
        for (options, what) in [
            (with(raidz.children[0].guid, false).await, "can only attach to mirrors and top-level disks"),
            (with(mirror.guid, false).await, "can only attach to mirrors and top-level disks"),
            (AttachOptions { ashift: Some(13), ..with(raidz.guid, false).await }, "different optimal sector size"),
            (AttachOptions { new: small.clone(), ..with(raidz.guid, false).await }, "device is too small"),
            (with(Guid(77), true).await, "no such device in pool"),
            (
                AttachOptions { ashift: Some(13), ..with(mirror.children[0].guid, true).await },
                "different optimal sector size",
            ),
            (AttachOptions { new: small, ..with(mirror.children[0].guid, false).await }, "device is too small"),
            (
                AttachOptions { new: NewDevice::Spare(Guid(7)), ..with(mirror.children[0].guid, true).await },
                "no such device",
            ),
        ] {
            assert_refused(pool.attach_device(options).await, what);
            assert_eq!(vdevs(&pool).await.children, config.children, "{what}");
        }
        for (guid, what) in [
            (raidz.children[0].guid, "only applicable to mirror and replacing vdevs"),
            (mirror.guid, "only applicable to mirror and replacing vdevs"),
            (Guid(77), "no such device in pool"),
        ] {
            assert_refused(pool.detach_device(guid).await, what);
            assert_eq!(vdevs(&pool).await.children, config.children, "{what}");
        }
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A draid has whole rows of its smallest child, without what it reserves: one that is a little smaller than the others would shrink it, and OpenZFS imports no
/// pool whose vdev has shrunk.
#[test]
fn a_disk_that_would_shrink_a_draid_is_refused_18380() {
    let layout: Layout = &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)];
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 5, Latency::default());
    let smaller = cenote_taskq::sim::disk::SimDiskOptions { size_bytes: DISK_BYTES - (14 << 20), ..Default::default() };
    runtime.sim().unwrap().add_disk(&handle, "/smaller", smaller);
    runtime.block_on(async {
        let pool = live(&handle, &machine, layout, small()).await;
        let before = vdevs(&pool).await.children;
        let old = leaf_of(&pool, "/disk0").await;
        let new = NewDevice::Disk(disk(&handle, "/smaller".as_ref()).await.unwrap());
        let small = AttachOptions { new, ..options(&handle, &machine, old, 4, true).await };
        assert_refused(pool.attach_device(small).await, "device is too small");
        assert_eq!(vdevs(&pool).await.children, before);
        pool.attach_device(options(&handle, &machine, old, 4, true).await).await.unwrap();
        resilver(&machine, &pool, 0, 4).await;
        assert_eq!(pool.finish_replacing().await.unwrap(), 1);
        pool.export().await.unwrap();
        assert_whole(&handle, &machine, &[1, 2, 3, 4], "replaced").await;
    });
}

/// The spares that are free, and whether the disk has a spare's labels.
async fn spare_is_free(handle: &Handle, machine: &Machine, at: usize) -> bool {
    let (pools, _) = find(handle, &machine.paths).await;
    let path = machine.paths[at].display().to_string();
    pools[0].auxiliaries.values().any(|found| **found.disk.path() == *path && found.state == PoolState::Spare)
}

#[test]
fn a_spare_takes_a_place_and_is_a_spare_again_or_stays() {
    for keeps in [false, true] {
        let what = format!("the spare stays: {keeps}");
        let runtime = Runtime::simulated(8);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, MIRROR, small()).await;
            let auxiliaries =
                AuxSpec { spares: vec![disk(&handle, &machine.paths[2]).await.unwrap()], caches: Vec::new() };
            pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
            pool.export().await.unwrap();
            let pool = reopened(&handle, &machine.paths, small()).await;
            let spares =
                async |pool: &Pool| pool.view(&ImportOptions::default()).await.unwrap().spares().await.unwrap();
            let spare = spares(&pool).await[0].guid;
            let old = leaf_of(&pool, "/disk0").await;
            let with = |old| AttachOptions {
                old,
                new: NewDevice::Spare(spare),
                is_replacing: true,
                is_sequential: false,
                ashift: None,
                seed: None,
            };
            pool.attach_device(with(old)).await.unwrap();
            assert_eq!(tops(&pool).await, "mirror[spare[disk0 disk2] disk1]", "{what}");
            assert_refused(pool.attach_device(with(leaf_of(&pool, "/disk1").await)).await, "is busy");
            assert_eq!(spares(&pool).await.len(), 1, "{what}: it is in the list while it is in use");
            resilver(&machine, &pool, 0, 2).await;
            assert_eq!(pool.finish_replacing().await.unwrap(), 0, "{what}: both stay");
            pool.export().await.unwrap();
            assert_whole(&handle, &machine, &[0, 1, 2], &what).await;
            let pool = reopened(&handle, &machine.paths, small()).await;
            if keeps {
                pool.detach_device(old).await.unwrap();
                assert_eq!(tops(&pool).await, "mirror[disk2 disk1]", "{what}");
                assert_eq!(spares(&pool).await.len(), 0, "{what}: it is a device of the pool");
                assert!(!vdevs(&pool).await.leaves().iter().any(|leaf| leaf.is_spare), "{what}");
            } else {
                pool.detach_device(spare).await.unwrap();
                assert_eq!(tops(&pool).await, "mirror[disk0 disk1]", "{what}");
                assert_eq!(spares(&pool).await.len(), 1, "{what}");
                assert!(spare_is_free(&handle, &machine, 2).await, "{what}: it has a spare's labels");
                // It can be used again by the same process.
                pool.attach_device(with(old)).await.unwrap();
                pool.detach_device(spare).await.unwrap();
            }
            pool.export().await.unwrap();
            assert_whole(&handle, &machine, if keeps { &[1, 2] } else { &[0, 1] }, &what).await;
        });
    }
}

#[test]
fn a_spare_goes_when_its_device_is_back_or_was_replaced() {
    for is_back in [true, false] {
        let runtime = Runtime::simulated(9);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, MIRROR, small()).await;
            let auxiliaries =
                AuxSpec { spares: vec![disk(&handle, &machine.paths[2]).await.unwrap()], caches: Vec::new() };
            pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
            let spare = pool.view(&ImportOptions::default()).await.unwrap().spares().await.unwrap()[0].guid;
            let old = leaf_of(&pool, "/disk0").await;
            pool.offline_device(old, Offline::default()).await.unwrap();
            let options = AttachOptions {
                old,
                new: NewDevice::Spare(spare),
                is_replacing: true,
                is_sequential: false,
                ashift: None,
                seed: None,
            };
            pool.attach_device(options).await.unwrap();
            resilver(&machine, &pool, 1, 2).await;
            assert_eq!(pool.finish_replacing().await.unwrap(), 0);
            if is_back {
                pool.online_device(old, Vec::new()).await.unwrap();
                assert_eq!(pool.finish_replacing().await.unwrap(), 0, "it lacks txgs");
                resilver(&machine, &pool, 1, 0).await;
                assert_eq!(pool.finish_replacing().await.unwrap(), 1);
                assert_eq!(tops(&pool).await, "mirror[disk0 disk1]");
            } else {
                attach(&handle, &machine, &pool, "/disk0", 3, true).await.unwrap();
                assert_eq!(tops(&pool).await, "mirror[spare[replacing[disk0 disk3] disk2] disk1]");
                resilver(&machine, &pool, 1, 3).await;
                assert_eq!(pool.finish_replacing().await.unwrap(), 2);
                assert_eq!(tops(&pool).await, "mirror[disk3 disk1]");
            }
            assert!(spare_is_free(&handle, &machine, 2).await);
            pool.export().await.unwrap();
            assert_whole(&handle, &machine, if is_back { &[0, 1] } else { &[3, 1] }, "exported").await;
        });
    }
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Attach,
    Replace,
    Detach,
    DetachLast,
    Spare,
}

/// The vdevs are those before or after a change, whole, whatever write the power goes at, and no disk is taken for another.
#[test]
fn a_cut_at_any_write_leaves_the_old_vdevs_or_the_new_ones() {
    for verb in [Verb::Attach, Verb::Replace, Verb::Detach, Verb::DetachLast, Verb::Spare] {
        let (mut as_before, mut as_after) = (0, 0);
        for at in 0.. {
            let what = format!("{verb:?} cut at {at}");
            let runtime = Runtime::simulated(at);
            let handle = runtime.handle();
            let layout: (Layout, usize) = match verb {
                Verb::Attach | Verb::Spare => (SINGLE, 1),
                Verb::Replace | Verb::DetachLast => (MIRROR, 2),
                Verb::Detach => (&[(TopKind::Mirror, 3)], 3),
            };
            let machine = machine_of(&runtime, layout.1 + 1, slow());
            let is_done = runtime.block_on(async {
                let pool = live(&handle, &machine, layout.0, small()).await;
                let mut spare = None;
                if matches!(verb, Verb::Spare) {
                    let spares = vec![disk(&handle, &machine.paths[1]).await.unwrap()];
                    let auxiliaries = AuxSpec { spares, caches: Vec::new() };
                    pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
                    spare = pool.view(&ImportOptions::default()).await.unwrap().spares().await.unwrap().pop();
                }
                let head = pool.open_head("written").await.unwrap();
                change_head(&pool, head.head(), &mut Rng::new(at)).await.unwrap();
                let before = tops(&pool).await;
                let old = leaf_of(&pool, "/disk0").await;
                let is_replacing = matches!(verb, Verb::Replace | Verb::Spare);
                let mut how = options(&handle, &machine, old, layout.1, is_replacing).await;
                if let Some(spare) = spare {
                    how.new = NewDevice::Spare(spare.guid);
                }
                let count = stop_at(&machine, at);
                let changing = pool.clone();
                let changing = handle.spawn(Class::Issue, async move {
                    match verb {
                        Verb::Detach | Verb::DetachLast => changing.detach_device(old).await,
                        _ => changing.attach_device(how).await,
                    }
                });
                let made = handle.timeout(Duration::from_secs(5), changing).await;
                let is_over = matches!(made, Some(Ok(Ok(_)))) && count.load(Ordering::SeqCst) <= at;
                machine.disks.iter().for_each(|disk| disk.clear_faults());
                cut(&handle, &machine, Crash::Random).await;
                drop((head, pool));
                let pool = reopened(&handle, &machine.paths, small()).await;
                let now = tops(&pool).await;
                let after = match verb {
                    Verb::Attach => "mirror[disk0 disk1]",
                    Verb::Replace => "mirror[replacing[disk0 disk2] disk1]",
                    Verb::Detach => "mirror[disk1 disk2]",
                    Verb::DetachLast => "disk1",
                    Verb::Spare => "spare[disk0 disk1]",
                };
                assert!(now == before || now == after, "{what}: {now}");
                as_before += u32::from(now == before);
                as_after += u32::from(now == after);
                if matches!(verb, Verb::Spare) && now == before {
                    assert!(spare_is_free(&handle, &machine, 1).await, "{what}: a spare that is not used is a spare");
                }
                pool.export().await.unwrap();
                assert_readable(&handle, &machine.paths, &what).await;
                is_over
            });
            if is_done {
                break;
            }
        }
        assert!(as_before > 3 && as_after > 3, "{verb:?}: {as_before} as before, {as_after} as after");
    }
}

/// A step of a random history.
async fn step(handle: &Handle, machine: &Machine, pool: &Pool, rng: &mut Rng) -> String {
    let config = vdevs(pool).await;
    let leaves: Vec<VdevConfig> = config.leaves().into_iter().cloned().collect();
    let leaf = &leaves[rng.below(leaves.len() as u64) as usize];
    let used: Vec<&str> = leaves.iter().filter_map(|leaf| leaf.path.as_deref()).collect();
    let free = (0..machine.disks.len()).find(|at| !used.contains(&machine.paths[*at].to_str().unwrap()));
    // Before the verb: can the pool do without the leaf? By the copies that are complete.
    let name = leaf.path.clone().unwrap_or_default();
    let complete = |pool: &Pool| {
        let status = pool.tree().unwrap().status();
        status
            .leaves()
            .iter()
            .filter(|leaf| leaf.state.is_readable() && leaf.missed.is_empty())
            .map(|leaf| leaf.guid)
            .collect::<Vec<_>>()
    };
    let whole = complete(pool);
    let is_only_copy = whole == [leaf.guid];
    let (verb, made) = match rng.below(6) {
        0 => ("offline", pool.offline_device(leaf.guid, Offline::default()).await.map(drop)),
        1 => ("online", pool.online_device(leaf.guid, Vec::new()).await.map(drop)),
        2 => ("detach", pool.detach_device(leaf.guid).await.map(drop)),
        3 | 4 => match free {
            Some(free) => {
                let is_replacing = rng.below(2) == 0;
                let options = options(handle, machine, leaf.guid, free, is_replacing).await;
                ("attach", pool.attach_device(options).await.map(drop))
            }
            None => ("attach", Ok(())),
        },
        _ => {
            let from = leaves.iter().find(|leaf| whole.contains(&leaf.guid));
            let to = leaves.iter().find(|leaf| {
                let status = pool.tree().unwrap().status();
                status.leaves().iter().any(|it| it.guid == leaf.guid && it.state.is_readable() && !it.missed.is_empty())
            });
            if let Some((from, to)) = from.zip(to) {
                let at = |leaf: &VdevConfig| {
                    machine.paths.iter().position(|path| path.to_str() == leaf.path.as_deref()).unwrap()
                };
                resilver(machine, pool, at(from), at(to)).await;
                pool.finish_replacing().await.unwrap();
            }
            ("resilver", Ok(()))
        }
    };
    match &made {
        Ok(()) => assert!(
            !is_only_copy || !matches!(verb, "offline" | "detach"),
            "{verb} {name}: the only copy was given away"
        ),
        Err(SpaError::Refused { .. }) => {}
        Err(error) => panic!("{verb} {name}: {error}"),
    }
    format!("{verb} {name}: {}", made.err().map_or("done".to_owned(), |error| error.to_string()))
}

/// Nothing is lost that was written, whatever comes after what, and what would lose it is refused.
#[test]
fn random_histories_of_devices_lose_nothing() {
    for seed in seeds(24) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 5, Latency::default());
        let mut rng = Rng::new(seed + 1000);
        runtime.block_on(async {
            let layout: Layout = if seed % 2 == 0 { SINGLE } else { MIRROR };
            let mut pool = live(&handle, &machine, layout, small()).await;
            let mut history = Vec::new();
            for round in 0..4 {
                let head = pool.open_head("written").await.unwrap();
                let mut object = Object::new(&head, 100 * (round + 1)).await;
                for _ in 0..5 {
                    history.push(step(&handle, &machine, &pool, &mut rng).await);
                    object.write(&head, 8).await;
                    object.check(&format!("seed {seed}: {history:?}")).await;
                }
                drop((head, object));
                let what = format!("seed {seed}: {history:?}");
                if rng.below(2) == 0 {
                    cut(&handle, &machine, Crash::Random).await;
                    drop(pool);
                    history.push("cut".into());
                } else {
                    pool.export().await.unwrap();
                    history.push("export".into());
                    assert_readable(&handle, &machine.paths, &what).await;
                }
                pool = reopened(&handle, &machine.paths, small()).await;
            }
            pool.export().await.unwrap();
            assert_readable(&handle, &machine.paths, &format!("seed {seed}: {history:?}")).await;
        });
    }
}
