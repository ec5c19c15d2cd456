//! Every block of pools that OpenZFS made, under every read policy: on disks that are well, and while one of them lies, fails,
//! hangs or is slow. Which child is asked is the policy's affair; what comes back is not.

use crate::common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_taskq::sim::disk::{Fault, SimDisk, SimDiskOptions};
use cenote_taskq::{Block, OpenOptions};
use cenote_testkit::Golden;
use cenote_vdev::disk::Disk;
use cenote_vdev::layout::raidz::Reflow;
use cenote_vdev::tree::VdevTree;
use cenote_vdev::tunables::{Policy, Tunables};
use common::{Mode, Pool};

/// A pool's vdevs on simulated disks with the images' bytes, so that time passes and requests wait. `rotational`: with heads, and so
/// with queues that are kept to.
fn on_simulated_disks(
    pool: &Pool,
    images: &[(Guid, Block)],
    policy: &str,
    rotational: bool,
) -> (Arc<VdevTree>, Vec<Arc<SimDisk>>) {
    let handle = pool.runtime.handle();
    let sim = pool.runtime.sim().unwrap();
    let mut tunables = Tunables::default();
    tunables.set("zfs_vdev_mirror_policy", policy).unwrap();
    let (mut disks, mut opened) = (Vec::new(), Vec::new());
    for (guid, image) in images {
        let path = PathBuf::from(format!("/{}", guid.0));
        let options = SimDiskOptions {
            size_bytes: image.len() as u64,
            base: Some(image.clone()),
            rotational,
            ..Default::default()
        };
        disks.push(sim.add_disk(&handle, &path, options));
        let device = pool.runtime.block_on(handle.open(&path, OpenOptions::default())).unwrap();
        opened.push((*guid, Disk::whole(device)));
    }
    let tree = VdevTree::open_with(&pool.config, opened, &tunables, Some(handle)).unwrap();
    tree.control().unwrap().set_reflow(Reflow::of(&pool.uberblock));
    for (guid, missed) in &pool.missed {
        assert!(tree.control().unwrap().set_dtl(*guid, missed.clone()));
    }
    (tree, disks)
}

#[test]
fn golden_pools_are_read_under_every_policy_whatever_one_disk_does() {
    let faults: [Option<Fault>; 5] = [
        None,
        Some(Fault::Corrupt),
        Some(Fault::Error(std::io::ErrorKind::Other)),
        Some(Fault::Hang),
        Some(Fault::Delay(Duration::from_millis(40))),
    ];
    for name in ["mirror3", "raidz1"] {
        let theme = Golden::selection().unwrap().theme(name).unwrap();
        let pool = Pool::open(&theme);
        let every = pool.walk(&pool.tree(&[]), Mode::Any);
        assert!(every.blocks > 50 && every.errors.is_empty(), "{name}");
        let mut images: Vec<(Guid, Block)> = Vec::new();
        for (guid, disk) in &pool.disks {
            let read = disk.read(0, cenote_taskq::Buf::unfilled(disk.size_bytes() as usize));
            let (result, bytes) = pool.runtime.block_on(read);
            result.unwrap();
            images.push((*guid, bytes.freeze()));
        }
        images.sort_by_key(|(guid, _)| *guid);
        // A stripe's columns are where they are: one policy shows as much as four.
        let policies = if name == "mirror3" { Policy::WORDS } else { &Policy::WORDS[3..] };
        for policy in policies {
            for (fault, rotational) in faults.into_iter().flat_map(|fault| [(fault, false), (fault, true)]) {
                let (tree, disks) = on_simulated_disks(&pool, &images, policy, rotational);
                assert_eq!(tree.policy_name(), *policy);
                if let Some(fault) = fault {
                    disks[1].set_faults(move |_, _| fault);
                }
                let walk = pool.walk(&tree, Mode::Any);
                assert_eq!(walk.errors, Vec::<String>::new(), "{name}, {policy}, {fault:?}, {rotational}");
                assert_eq!(walk.blocks, every.blocks, "{name}, {policy}, {fault:?}, {rotational}");
                assert!(disks.iter().map(|disk| disk.counts().reads).sum::<u64>() >= walk.blocks);
            }
        }
    }
}
