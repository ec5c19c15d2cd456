//! Scrubs of pools whose labels were overwritten.

use cenote_format::label::{DeviceLayout, LABEL_BYTES, VDEV_PHYS_BYTES};
use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;
use cenote_spa::{ScrubSince, TopKind};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{OpenOptions, Rng, Runtime};
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::probe;

use super::attend;
use super::tests::ended;

/// Labels that are overwritten while their devices are in use are whole after a scrub, which counts them; a device with another's label gets none.
#[test]
fn a_scrub_mends_labels() {
    for (seed, how_many) in [(1, 1), (2, 3), (3, 4)] {
        let what = format!("{how_many} labels");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Mirror, 3)], small()).await;
            attend(&pool);
            let head = pool.open_head("written").await.unwrap();
            let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
            change_head(&pool, &pool.root().unwrap(), &mut Rng::new(seed)).await.unwrap();
            drop((tx, head));
            pool.sync().await.unwrap();
            let label = |index: usize| DeviceLayout::new(machine.size_bytes).unwrap().label_offset(index);
            let mut image = machine.disks[1].image();
            (0..how_many).for_each(|index| image.write(label(index), &[0xff; LABEL_BYTES]));
            machine.disks[1].restore(&image);
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let scan = ended(&handle, &pool).await;
            let bytes = how_many as u64 * VDEV_PHYS_BYTES as u64;
            assert_eq!((scan.error_count, scan.processed_bytes), (0, bytes), "{what}");
            let status = pool.tree().unwrap().status();
            let counted: Vec<u64> = status.leaves().into_iter().map(|leaf| leaf.errors.checksum).collect();
            assert_eq!(counted, [0, how_many as u64, 0], "{what}");
            pool.reopen_devices().await.unwrap();
            pool.resume().await.unwrap();
            assert!(pool.tree().unwrap().status().leaves().iter().all(|leaf| leaf.state.is_readable()), "{what}");
            for disk in &machine.paths {
                let device = handle.open(disk, OpenOptions::default()).await.unwrap();
                assert_eq!(probe(&Disk::whole(device)).await.good_labels(), 4, "{what}");
            }
            // Another pool's label in the place of its own.
            let mut image = machine.disks[1].image();
            let mut other = vec![0; LABEL_BYTES];
            machine.disks[0].image().read(label(0), &mut other);
            image.write(label(0), &other);
            image.write(label(1), &[0xff; LABEL_BYTES]);
            machine.disks[1].restore(&image);
            pool.scrub(ScrubSince::Ever).await.unwrap();
            assert_eq!(ended(&handle, &pool).await.processed_bytes, 0, "{what}: it is not the pool's any more");
        });
    }
}
