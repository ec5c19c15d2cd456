//! Goal: a hot spare stands for a device that fails, is the one that fits best, and is free again when the device is back; a power cut loses nothing.
//! Method: simulated disks that fail, resilvers that are played, and `zdb`.

use cenote_dmu::Zap;
use cenote_format::ids::{BlockId, Guid, ObjectId};
use cenote_sim::{Machine, disk};
use cenote_spa::{AddOptions, AttachOptions, AuxSpec, ImportOptions, NewDevice, Offline, Pool, TopKind};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::VdevKind;
use cenote_vdev::tree::VdevState;

use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;

use crate::offline::{assert_readable, leaf_of, state, vdevs, zdb};

const MIRROR: Layout = &[(TopKind::Mirror, 2)];

/// A mirror on the first two disks, with spares on the others.
async fn with_spares(handle: &Handle, machine: &Machine) -> Pool {
    let pool = live(handle, machine, MIRROR, small()).await;
    let mut spares = Vec::new();
    for path in &machine.paths[2..] {
        spares.push(disk(handle, path).await.unwrap());
    }
    let auxiliaries = AuxSpec { spares, caches: Vec::new() };
    pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
    change(&pool, 1).await;
    pool
}

async fn change(pool: &Pool, seed: u64) {
    let head = pool.open_head("written").await.unwrap();
    change_head(pool, head.head(), &mut Rng::new(seed)).await.unwrap();
    pool.sync().await.unwrap();
}

/// The spare that stands for something, and its path.
async fn in_use(pool: &Pool) -> Option<(Guid, String)> {
    let mut found = None;
    vdevs(pool).await.walk(&mut |vdev| {
        if let (VdevKind::Spare, Some(last)) = (&vdev.kind, vdev.children.last()) {
            found = Some((last.guid, last.path.as_deref().unwrap_or("-").to_owned()));
        }
    });
    found
}

#[test]
fn a_spare_stands_for_a_device_that_is_faulted_and_goes_when_it_is_back() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        assert!(pool.use_spares().await.unwrap().is_empty(), "all is well");
        let leaf = leaf_of(&pool, "/disk1").await;
        pool.offline_device(leaf, Offline::default()).await.unwrap();
        assert!(pool.use_spares().await.unwrap().is_empty(), "a person has it");
        pool.online_device(leaf, Vec::new()).await.unwrap();
        pool.mended(leaf).await.unwrap();
        // The task takes one when it hears of it.
        pool.take_spares();
        pool.offline_device(leaf, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
        for _ in 0..100 {
            if in_use(&pool).await.is_some() {
                break;
            }
            handle.sleep(std::time::Duration::from_millis(100)).await;
        }
        let (spare, path) = in_use(&pool).await.expect("a spare is taken");
        assert_eq!(path, "/disk2");
        assert!(pool.use_spares().await.unwrap().is_empty(), "one is enough");
        change(&pool, 2).await;
        // The power goes: it stays.
        cut(&handle, &machine, Crash::Random).await;
        drop(pool);
        let pool = reopened(&handle, &machine.paths, small()).await;
        assert_eq!(in_use(&pool).await.map(|(spare, _)| spare), Some(spare));
        pool.online_device(leaf, Vec::new()).await.unwrap();
        assert_eq!(pool.finish_replacing().await.unwrap(), 0, "the device lacks txgs");
        crate::attach::resilver(&machine, &pool, 0, 1).await;
        assert_eq!(pool.finish_replacing().await.unwrap(), 1);
        assert_eq!((in_use(&pool).await, state(&pool, "/disk1")), (None, VdevState::Online));
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths, "exported").await;
        zdb(&machine, "exported");
    });
}

#[test]
fn a_spare_stands_for_a_device_that_is_not_there() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        with_spares(&handle, &machine).await.export().await.unwrap();
        let there: Vec<_> = [0, 2, 3].map(|at: usize| machine.paths[at].clone()).into();
        let pool = reopened(&handle, &there, small()).await;
        assert_eq!(state(&pool, "/disk1"), VdevState::Unavailable);
        let used = pool.use_spares().await.unwrap();
        let (spare, path) = in_use(&pool).await.unwrap();
        assert_eq!((used, path.as_str()), (vec![spare], "/disk2"));
        change(&pool, 3).await;
        pool.export().await.unwrap();
        assert_readable(&handle, &there, "exported").await;
    });
}

/// A device that gives errors is faulted by diagnosis, its spare is taken, and `zpool clear` sends it back.
#[test]
fn a_spare_stands_for_a_device_that_gives_errors_until_it_is_forgiven() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        pool.take_spares();
        machine.disks[1].set_faults(|request, _| match request.kind {
            RequestKind::Write => Fault::Error(std::io::ErrorKind::Other),
            _ => Fault::None,
        });
        for seed in 0..40 {
            change(&pool, 10 + seed).await;
            handle.sleep(std::time::Duration::from_millis(200)).await;
            if in_use(&pool).await.is_some() {
                break;
            }
        }
        assert_eq!(in_use(&pool).await.map(|(_, path)| path).as_deref(), Some("/disk2"));
        machine.disks[1].clear_faults();
        let leaf = leaf_of(&pool, "/disk1").await;
        pool.pardon(Some(leaf)).await.unwrap();
        pool.mended(leaf).await.unwrap();
        pool.finish_replacing().await.unwrap();
        assert_eq!(in_use(&pool).await, None);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_spare_whose_device_has_another_label_is_none() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        let paths = async || pool.auxiliary_paths().await.unwrap().len();
        let image = machine.disks[2].image();
        let there = async || {
            pool.look_at_spares().await.unwrap();
            pool.view(&ImportOptions::default()).await.unwrap().found().auxiliaries.len()
        };
        assert_eq!((there().await, paths().await), (2, 2));
        machine.disks[2].restore(&machine.disks[0].image());
        assert_eq!((there().await, paths().await), (1, 1));
        let leaf = leaf_of(&pool, "/disk1").await;
        pool.offline_device(leaf, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
        pool.use_spares().await.unwrap();
        assert_eq!(in_use(&pool).await.map(|(_, path)| path).as_deref(), Some("/disk3"));
        machine.disks[2].restore(&image);
        assert_eq!(there().await, 1, "one is back, and the other is a leaf");
        pool.export().await.unwrap();
    });
}

/// A list that cannot be read keeps no pool closed (openzfs a5d6788648): it is told, the devices are left out, and new ones make a new list.
#[test]
fn a_pool_whose_list_of_spares_is_damaged_is_opened_without_them() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let directory = Zap::open(view.mos().object(ObjectId(1)).await.unwrap()).await.unwrap();
        let list = directory.find_u64("spares").await.unwrap().expect("there is a list");
        let block = view.mos().object(ObjectId(list)).await.unwrap().pointer(0, BlockId(0)).await.unwrap();
        let places: Vec<u64> = block.dvas().map(|dva| (4 << 20) + dva.offset_bytes).collect();
        assert!(places.len() > 1, "{block:?}");
        drop((view, directory));
        pool.export().await.unwrap();
        for disk in &machine.disks[..2] {
            places.iter().for_each(|at| disk.poke(*at, &[0x5a; 512]));
        }
        let pool = reopened(&handle, &machine.paths, small()).await;
        let told = pool.notes().concat();
        assert!(told.contains("the pool's list of hot spares cannot be read"), "{told}");
        assert!(pool.view(&ImportOptions::default()).await.unwrap().spares().await.unwrap().is_empty());
        let leaf = leaf_of(&pool, "/disk1").await;
        pool.offline_device(leaf, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
        assert!(pool.use_spares().await.unwrap().is_empty());
        pool.online_device(leaf, Vec::new()).await.unwrap();
        crate::attach::resilver(&machine, &pool, 0, 1).await;
        change(&pool, 7).await;
        let auxiliaries = AuxSpec { spares: vec![disk(&handle, &machine.paths[3]).await.unwrap()], caches: Vec::new() };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
        assert_eq!(pool.view(&ImportOptions::default()).await.unwrap().spares().await.unwrap().len(), 1);
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths[..2], "exported").await;
        zdb(&machine, "exported");
    });
}

async fn fault(pool: &Pool, path: &str) -> Guid {
    let leaf = leaf_of(pool, path).await;
    pool.offline_device(leaf, Offline { is_fault: true, ..Offline::default() }).await.unwrap();
    leaf
}

/// The spares and cache devices that are there.
async fn there(pool: &Pool) -> Vec<String> {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    view.found().auxiliaries.values().map(|found| found.disk.path().to_string()).collect()
}

/// The spare has failed too: a further one stands for both, and the one that has failed goes when that one has everything.
#[test]
fn a_spare_that_fails_in_use_gets_a_spare() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        let first = fault(&pool, "/disk1").await;
        let spare = pool.use_spares().await.unwrap()[0];
        crate::attach::resilver(&machine, &pool, 0, 2).await;
        pool.finish_replacing().await.unwrap();
        change(&pool, 20).await;
        fault(&pool, "/disk2").await;
        let used = pool.use_spares().await.unwrap();
        assert_eq!(crate::attach::tops(&pool).await, "mirror[disk0 spare[disk1 disk2 disk3]]");
        assert!(pool.use_spares().await.unwrap().is_empty(), "one is enough");
        change(&pool, 21).await;
        cut(&handle, &machine, Crash::Random).await;
        drop(pool);
        let pool = reopened(&handle, &machine.paths, small()).await;
        assert_eq!(pool.finish_replacing().await.unwrap(), 0, "it lacks everything");
        crate::attach::resilver(&machine, &pool, 0, 3).await;
        assert_eq!(pool.finish_replacing().await.unwrap(), 1);
        assert_eq!(crate::attach::tops(&pool).await, "mirror[disk0 spare[disk1 disk3]]");
        assert!(!pool.peek(|syncer| syncer.is_replacing()).await.unwrap(), "nothing is waited for");
        pool.look_at_spares().await.unwrap();
        assert_eq!(there(&pool).await, ["/disk2"], "it is a spare again");
        assert!(spare != used[0]);
        pool.online_device(first, Vec::new()).await.unwrap();
        crate::attach::resilver(&machine, &pool, 0, 1).await;
        assert_eq!(pool.finish_replacing().await.unwrap(), 1);
        assert_eq!(crate::attach::tops(&pool).await, "mirror[disk0 disk1]");
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths, "exported").await;
        zdb(&machine, "exported");
    });
}

/// A device is back while its spare is being made ready: the spare goes, though it lacks something.
#[test]
fn a_device_that_is_back_sends_a_spare_away_that_is_not_ready() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        let leaf = fault(&pool, "/disk1").await;
        pool.use_spares().await.unwrap();
        change(&pool, 22).await;
        pool.online_device(leaf, Vec::new()).await.unwrap();
        crate::attach::resilver(&machine, &pool, 0, 1).await;
        assert_eq!(pool.finish_replacing().await.unwrap(), 1);
        assert_eq!(crate::attach::tops(&pool).await, "mirror[disk0 disk1]");
        assert_eq!(there(&pool).await.len(), 2);
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths[..2], "exported").await;
        zdb(&machine, "exported");
    });
}

/// It is asked for by a person when it was taken already: nothing is different, and nothing is refused.
#[test]
fn a_spare_that_stands_for_a_device_may_be_asked_for_again() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        let old = fault(&pool, "/disk1").await;
        let spare = pool.use_spares().await.unwrap()[0];
        let before = vdevs(&pool).await;
        let with = |old, new| AttachOptions {
            old,
            new: NewDevice::Spare(new),
            is_replacing: true,
            is_sequential: false,
            ashift: None,
            seed: None,
        };
        pool.attach_device(with(old, spare)).await.unwrap();
        assert_eq!(vdevs(&pool).await, before);
        let other = leaf_of(&pool, "/disk0").await;
        crate::offline::assert_refused(pool.attach_device(with(other, spare)).await, "is busy");
        pool.export().await.unwrap();
    });
}

/// The power goes after the txg in which a spare is given back, and before it has its labels.
#[test]
fn a_spare_without_its_labels_gets_them_when_the_pool_is_opened() {
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let pool = with_spares(&handle, &machine).await;
        let leaf = fault(&pool, "/disk1").await;
        let spare = pool.use_spares().await.unwrap()[0];
        change(&pool, 23).await;
        pool.online_device(leaf, Vec::new()).await.unwrap();
        let in_use = machine.disks[2].image();
        pool.detach_device(spare).await.unwrap();
        pool.export().await.unwrap();
        let free = machine.disks[2].image();
        machine.disks[2].restore(&in_use);
        let pool = reopened(&handle, &machine.paths, small()).await;
        assert!(there(&pool).await.is_empty(), "it has the labels of a leaf");
        pool.look_at_spares().await.unwrap();
        assert_eq!(there(&pool).await, ["/disk2"]);
        let label = 16 << 10..112 << 10;
        let labels = |bytes: &[u8]| bytes[label.clone()].to_vec();
        let now = machine.disks[2].peek(0, 256 << 10);
        machine.disks[2].restore(&free);
        assert!(labels(&now) == labels(&machine.disks[2].peek(0, 256 << 10)), "it has those of a spare");
        fault(&pool, "/disk1").await;
        assert_eq!(pool.use_spares().await.unwrap(), [spare]);
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths, "exported").await;
    });
}

/// Two devices want the spare that is given back: its labels are those of the leaf that it becomes, whenever it is taken.
#[test]
fn a_spare_that_is_given_back_is_not_taken_before_it_has_its_labels() {
    for seed in 0..12 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let pause = std::time::Duration::from_micros;
        let latency = Latency { read: pause(80), write: pause(900), flush: pause(2000), jitter: pause(1500) };
        let machine = machine_of(&runtime, 5, latency);
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 2), (TopKind::Mirror, 2)], small()).await;
            let spares = vec![disk(&handle, &machine.paths[4]).await.unwrap()];
            let auxiliaries = AuxSpec { spares, caches: Vec::new() };
            pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
            change(&pool, 1).await;
            fault(&pool, "/disk1").await;
            let spare = pool.use_spares().await.unwrap()[0];
            fault(&pool, "/disk3").await;
            let other = pool.clone();
            let taking = handle.spawn(cenote_taskq::Class::Background, async move {
                for _ in 0..4000 {
                    if other.use_spares().await.unwrap().contains(&spare) {
                        return;
                    }
                    other.handle().sleep(std::time::Duration::from_micros(200)).await;
                }
                panic!("it is not taken again");
            });
            pool.detach_device(spare).await.unwrap();
            taking.await.unwrap();
            change(&pool, 2).await;
            cut(&handle, &machine, Crash::LoseAll).await;
            drop(pool);
            let pool = reopened(&handle, &machine.paths, small()).await;
            assert!(state(&pool, "/disk4").is_readable(), "seed {seed}: it lacks its labels");
            pool.export().await.unwrap();
        });
    }
}

/// A spare and a cache device are back under other paths: they are known by their guids, and the lists name their new paths. A spare that is elsewhere
/// when the pool is opened is found, too.
#[test]
fn spares_and_cache_devices_are_taken_back_under_any_path() {
    let runtime = Runtime::simulated(10);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 7, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, MIRROR, small()).await;
        let mut made = Vec::new();
        for path in &machine.paths[2..4] {
            made.push(disk(&handle, path).await.unwrap());
        }
        let caches = vec![made.pop().unwrap()];
        let auxiliaries = AuxSpec { spares: made, caches };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
        assert!(pool.absent_auxiliaries().await.unwrap().is_empty());
        pool.export().await.unwrap();
        let move_to = |from: usize, to: usize| {
            machine.disks[to].restore(&machine.disks[from].image());
            machine.disks[from].restore(&cenote_taskq::sim::disk::Image::default());
        };
        move_to(2, 4);
        move_to(3, 5);
        // Nobody looks where they are.
        let pool = reopened(&handle, &machine.paths[..4], small()).await;
        let absent = async || pool.absent_auxiliaries().await.unwrap().into_iter().map(|(_, path)| path);
        assert!(absent().await.eq(["/disk2", "/disk3"]));
        assert!(pool.take_back(&machine.paths[6..]).await.unwrap().is_empty());
        let mut back = pool.take_back(&machine.paths[4..]).await.unwrap();
        back.sort();
        assert_eq!(back, machine.paths[4..6]);
        assert_eq!(absent().await.count(), 0);
        let listed = async |pool: &Pool| {
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            let mut all = view.spares().await.unwrap();
            all.extend(view.cache_devices().await.unwrap());
            all.into_iter().map(|device| device.path.as_deref().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(listed(&pool).await, ["/disk4", "/disk5"]);
        assert!(pool.take_back(&machine.paths[4..]).await.unwrap().is_empty(), "they are there");
        fault(&pool, "/disk1").await;
        pool.use_spares().await.unwrap();
        assert_eq!(in_use(&pool).await.map(|(_, path)| path).as_deref(), Some("/disk4"));
        let spare = in_use(&pool).await.unwrap().0;
        pool.online_device(leaf_of(&pool, "/disk1").await, Vec::new()).await.unwrap();
        pool.detach_device(spare).await.unwrap();
        pool.export().await.unwrap();
        // They are found at an opening, and the lists say where.
        move_to(4, 2);
        move_to(5, 3);
        let pool = reopened(&handle, &machine.paths, small()).await;
        pool.note_auxiliary_paths().await.unwrap();
        assert_eq!(listed(&pool).await, ["/disk2", "/disk3"]);
        pool.export().await.unwrap();
        assert_readable(&handle, &machine.paths[..2], "exported").await;
        zdb(&machine, "exported");
    });
}
