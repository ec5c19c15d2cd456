//! Goal: a hot spare stands for a device that fails, is the one that fits best, and is free again when the device is back; a power cut loses nothing.
//! Method: simulated disks that fail, resilvers that are played, and `zdb`.

use cenote_dmu::Zap;
use cenote_format::ids::{BlockId, Guid, ObjectId};
use cenote_sim::{Machine, disk};
use cenote_spa::{AddOptions, AuxSpec, ImportOptions, Offline, Pool, TopKind};
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
