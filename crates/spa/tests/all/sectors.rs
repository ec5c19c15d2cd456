//! Sector sizes: a device whose sectors are larger than its vdev's is read and never written, and new vdevs take the sectors that
//! devices write without reading first.

use std::sync::Arc;

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_spa::{
    AddOptions, AuxSpec, Condition, CreateOptions, DiskSpec, SpaError, TopKind, TopSpec, create, device_condition,
};
use cenote_taskq::sim::disk::{Latency, SimDiskOptions};
use cenote_taskq::{Handle, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::tree::VdevState;

use cenote_sim::Machine;

use crate::health::{leaf, seen};
use cenote_sim::written::*;

const SINGLE_OF_TWO: Layout = &[(TopKind::Single, 1), (TopKind::Single, 1)];
const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];

fn disk_of(logical: u32, physical: u32) -> SimDiskOptions {
    SimDiskOptions {
        size_bytes: DISK_BYTES,
        sector_bytes: logical,
        physical_sector_bytes: physical,
        latency: Latency::default(),
        ..SimDiskOptions::default()
    }
}

/// Moves the pool of a machine to one whose disks have these sectors.
fn moved(from: &Machine, runtime: &Runtime, logical: &[u32]) -> Machine {
    let (handle, sim) = (runtime.handle(), runtime.sim().unwrap());
    let paths: Vec<_> = (0..logical.len()).map(|index| format!("/moved{index}").into()).collect();
    let add = |(path, logical): (&std::path::PathBuf, &u32)| sim.add_disk(&handle, path, disk_of(*logical, 0));
    let disks: Vec<_> = paths.iter().zip(logical).map(add).collect();
    disks.iter().zip(&from.disks).for_each(|(disk, from)| disk.restore(&from.image()));
    Machine { disks, paths, size_bytes: DISK_BYTES }
}

/// A pool of ashift 9 with something in it.
async fn of_ashift_9(handle: &Handle, machine: &Machine, layout: Layout) {
    let pool = make(handle, options(machine.tops(handle, layout).await.unwrap(), 9)).await;
    let (root, txg) = (pool.root().unwrap().objset.clone(), pool.txg());
    let object = root.create_object(txg, &ObjectSpec::new(DmuType::UINT8_DATA, 512)).unwrap();
    object.write(txg, 0, &vec![7; 100_000]).await.unwrap();
    pool.sync().await.unwrap();
    pool.export().await.unwrap();
}

#[test]
fn a_device_with_larger_sectors_than_its_vdev_is_read_and_never_written() {
    for (layout, logical) in [(MIRROR, &[512, 4096][..]), (RAIDZ, &[512, 4096, 512])] {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let before = machine_of(&runtime, logical.len(), Latency::default());
        runtime.block_on(async {
            of_ashift_9(&handle, &before, layout).await;
            let machine = moved(&before, &runtime, logical);
            // It is not there for writing, and says why; all that was written can be read, from it too.
            let pool = seen(&handle, &machine.paths).await.unwrap();
            let status = pool.tree().status();
            let coarse = leaf(&status, "/moved1");
            let reason = coarse.coarse.unwrap().to_string();
            assert_eq!(reason, "the device's required alignment (4096 bytes) is larger than the vdev's ashift 9");
            assert_eq!((coarse.state, status.state), (VdevState::Unavailable, VdevState::Degraded));
            assert_eq!(device_condition(&status), Some(Condition::CoarseSectors));
            pool.close().await;
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, "as it was moved");
            // The pool is written without it, which is written down.
            let reads = machine.disks[1].counts().reads;
            let pool = reopen(&handle, &machine.paths).await.unwrap();
            let head = pool.open_head("written").await.unwrap();
            let (txg, spec) = (pool.txg(), ObjectSpec::new(DmuType::UINT8_DATA, 512));
            head.objset.create_object(txg, &spec).unwrap().write(txg, 0, &vec![8; 100_000]).await.unwrap();
            pool.sync().await.unwrap();
            let (of_writer, is_coarse) =
                (pool.tree().unwrap().status(), |status| leaf(status, "/moved1").coarse.is_some());
            assert!(is_coarse(&of_writer) && leaf(&of_writer, "/moved1").errors.write == 0);
            pool.export().await.unwrap();
            let counts = machine.disks[1].counts();
            assert_eq!((counts.writes, counts.flushes), (0, 0), "{layout:?}");
            assert!(counts.reads > reads);
            let pool = seen(&handle, &machine.paths).await.unwrap();
            assert!(leaf(&pool.tree().status(), "/moved1").missed.contains(txg));
            pool.close().await;
            let (_, report) = check(&handle, &machine.paths).await;
            assert!(report.errors.is_empty() && report.problems.is_empty() && report.leaked_bytes == 0, "{report}");
        });
    }
}

#[test]
fn a_pool_that_needs_a_device_with_larger_sectors_is_only_read() {
    for (layout, logical) in [(SINGLE, &[4096][..]), (SINGLE_OF_TWO, &[512, 4096]), (RAIDZ, &[4096, 512, 4096])] {
        let runtime = Runtime::simulated(2);
        let handle = runtime.handle();
        let before = machine_of(&runtime, logical.len(), Latency::default());
        runtime.block_on(async {
            of_ashift_9(&handle, &before, layout).await;
            let machine = moved(&before, &runtime, logical);
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, "as it was moved");
            let pool = seen(&handle, &machine.paths).await.unwrap();
            assert_eq!(pool.tree().status().state, VdevState::Unavailable);
            pool.close().await;
            let Err(error) = reopen(&handle, &machine.paths).await.map(drop) else { panic!("{layout:?} is written") };
            assert!(matches!(error, SpaError::MissingDevices { .. }), "{error}");
            assert!(error.to_string().contains("required alignment (4096 bytes)"), "{error}");
            assert_eq!(machine.disks.iter().map(|disk| disk.counts().writes).sum::<u64>(), 0);
        });
    }
}

async fn spec(handle: &Handle, path: &std::path::Path) -> DiskSpec {
    let options = cenote_taskq::OpenOptions { write: true, ..Default::default() };
    let disk = cenote_vdev::disk::Disk::whole(handle.open(path, options).await.unwrap());
    DiskSpec { disk, path: path.display().to_string(), is_file: false }
}

async fn of_class(handle: &Handle, class: AllocationClass, paths: &[&str]) -> TopSpec {
    let mut disks = Vec::new();
    for path in paths {
        disks.push(spec(handle, path.as_ref()).await);
    }
    TopSpec { kind: if disks.len() == 1 { TopKind::Single } else { TopKind::Mirror }, class, disks }
}

/// Disks, the ashift that is asked for, and the one that is made, or a word of why it is not.
type Case = (&'static [&'static str], Option<u32>, Result<u64, &'static str>);

/// 512e drives got ashift 9 for good.
#[test]
fn new_vdevs_take_the_physical_sector_and_never_less_than_the_logical_one() {
    let runtime = Runtime::simulated(3);
    let (handle, sim) = (runtime.handle(), runtime.sim().unwrap());
    let disks = [("n", 512, 0), ("e", 512, 4096), ("a", 4096, 0), ("s", 512, 16384), ("w", 512, 65536), ("k", 8192, 0)];
    let paths: Vec<String> = disks.iter().map(|(name, ..)| format!("/{name}")).collect();
    let _disks: Vec<Arc<_>> = disks
        .iter()
        .zip(&paths)
        .map(|((_, logical, physical), path)| sim.add_disk(&handle, path, disk_of(*logical, *physical)))
        .collect();
    runtime.block_on(async {
        let cases: &[Case] = &[
            (&["/n"], None, Ok(9)),
            (&["/e"], None, Ok(12)),
            (&["/n", "/e"], None, Ok(12)),
            (&["/a"], None, Ok(12)),
            (&["/n", "/a"], None, Ok(12)),
            (&["/s"], None, Ok(14)),
            // More than OpenZFS takes by itself.
            (&["/w"], None, Ok(9)),
            (&["/k", "/e"], None, Ok(13)),
            // The requested ashift is used, unless it is below a device's logical sector.
            (&["/e"], Some(9), Ok(9)),
            (&["/n"], Some(16), Ok(16)),
            (&["/n", "/a"], Some(9), Err("cannot use '/a': its sectors have 4096 bytes")),
            (&["/k"], Some(12), Err("'ashift=13' is the least")),
            (&["/n"], Some(17), Err("only values between 9 and 16")),
            (&["/n"], Some(8), Err("only values between 9 and 16")),
        ];
        for (paths, ashift, wanted) in cases {
            let tops = vec![of_class(&handle, AllocationClass::Normal, paths).await];
            let wish = CreateOptions { ashift: *ashift, ..options(tops, 9) };
            match (create(&handle, wish).await, wanted) {
                (Ok(pool), Ok(wanted)) => {
                    pool.sync().await.unwrap();
                    let top = cenote_format::ids::VdevId(0);
                    assert_eq!(pool.tree().unwrap().ashift(top).map(u64::from), Some(*wanted), "{paths:?} {ashift:?}");
                    pool.export().await.unwrap();
                }
                (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{paths:?}: {error}"),
                (Ok(_), Err(_)) => panic!("{paths:?} {ashift:?} was made"),
                (Err(error), Ok(_)) => panic!("{paths:?} {ashift:?}: {error}"),
            }
        }
    });
}

/// Every kind of vdev and every device beside them is looked at, in a new pool and in one that is extended.
#[test]
fn vdevs_of_every_class_are_refused_on_devices_with_larger_sectors() {
    let runtime = Runtime::simulated(4);
    let (handle, sim) = (runtime.handle(), runtime.sim().unwrap());
    let _disks: Vec<Arc<_>> = [("/n", 512), ("/m", 512), ("/a", 4096)]
        .iter()
        .map(|(path, logical)| sim.add_disk(&handle, *path, disk_of(*logical, 0)))
        .collect();
    runtime.block_on(async {
        let wanted = "its sectors have 4096 bytes";
        let classes = [AllocationClass::Normal, AllocationClass::Special, AllocationClass::Dedup, AllocationClass::Log];
        for class in classes {
            let tops = vec![
                of_class(&handle, AllocationClass::Normal, &["/n"]).await,
                of_class(&handle, class, &["/a"]).await,
            ];
            let error = create(&handle, options(tops, 9)).await.map(drop).unwrap_err();
            assert!(error.to_string().contains(wanted), "{class:?}: {error}");
        }
        let beside = async |is_spare: bool| {
            let disk = vec![spec(&handle, "/a".as_ref()).await];
            match is_spare {
                true => AuxSpec { spares: disk, ..AuxSpec::default() },
                false => AuxSpec { caches: disk, ..AuxSpec::default() },
            }
        };
        for is_spare in [true, false] {
            let tops = vec![of_class(&handle, AllocationClass::Normal, &["/n"]).await];
            let wish = CreateOptions { auxiliaries: beside(is_spare).await, ..options(tops, 9) };
            let error = create(&handle, wish).await.map(drop).unwrap_err();
            assert!(error.to_string().contains(wanted), "beside the vdevs: {error}");
        }
        let tops = vec![of_class(&handle, AllocationClass::Normal, &["/n"]).await];
        make(&handle, options(tops, 9)).await.export().await.unwrap();
        for class in classes {
            let pool = reopen(&handle, &["/n".into()]).await.unwrap();
            let tops = vec![of_class(&handle, class, &["/a"]).await];
            let added = pool.add_vdevs(AddOptions { tops, ashift: Some(9), ..AddOptions::default() }).await;
            let error = added.unwrap_err();
            assert!(error.to_string().contains(wanted), "{class:?}: {error}");
        }
        for is_spare in [true, false] {
            let pool = reopen(&handle, &["/n".into()]).await.unwrap();
            let auxiliaries = beside(is_spare).await;
            let added = pool.add_vdevs(AddOptions { auxiliaries, ashift: Some(9), ..AddOptions::default() }).await;
            assert!(added.unwrap_err().to_string().contains(wanted));
        }
    });
}
