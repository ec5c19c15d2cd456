//! Changing the vdevs of a pool in use: what is known of a device outlives the change, reads that are under way end in the topology
//! that they began in, and a tree that has grown is one that was opened so.

use crate::common::made;

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{BoxFuture, Device, Driver, Event};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::error::VdevError;
use cenote_vdev::tree::{LeafState, ReadContext, VdevState, VdevTree};
use made::{Made, TestDisk, leaves, pattern, raidz, vdev, with_children};
use proptest::prelude::*;

const BIRTH: Txg = Txg(100);
const OFFSET_BYTES: u64 = 1 << 20;

fn mirror(guid: u64, count: usize) -> NvList {
    with_children(vdev("mirror", guid), leaves(guid + 1, count))
}

fn config(tops: Vec<NvList>) -> VdevConfig {
    VdevConfig::parse(&with_children(vdev("root", 1), tops)).unwrap()
}

impl Made {
    fn disk_of(&self, guid: u64) -> (Guid, Disk) {
        (Guid(guid), Disk::whole(Device::from_driver(self.disks[&Guid(guid)].clone())))
    }

    fn write(&self, tree: &Arc<VdevTree>, vdev: u32, block: &[u8]) {
        let block = Block::copied_from(block);
        self.runtime.block_on(tree.write(VdevId(vdev), OFFSET_BYTES, &block, BIRTH)).unwrap();
    }

    fn read(&self, tree: &Arc<VdevTree>, vdev: u32, block: &[u8]) -> Result<Buf, VdevError> {
        let verify = |found: &[u8]| found == block;
        let (offset, size) = (OFFSET_BYTES, block.len() as u64);
        self.runtime.block_on(tree.read(VdevId(vdev), offset, size, &verify, &ReadContext::new(BIRTH)))
    }
}

#[test]
fn a_vdev_that_is_added_is_used_and_the_others_stay_as_they_were() {
    let made = Made::new(vec![mirror(10, 2), mirror(20, 2)]);
    let before = config(vec![mirror(10, 2)]);
    let tree = VdevTree::open(&before, [11, 12].map(|guid| made.disk_of(guid))).unwrap();
    let block = pattern(8192, 1);
    made.write(&tree, 0, &block);
    assert!(matches!(made.read(&tree, 1, &block), Err(VdevError::NoSuchVdev(VdevId(1)))));
    // Everything that a leaf can have learnt.
    made.disk(11).spoil_all();
    made.read(&tree, 0, &block).unwrap();
    let mut missed = Dtl::new();
    missed.insert(7..9);
    assert!(tree.control().unwrap().set_dtl(Guid(12), missed.clone()));
    assert!(tree.control().unwrap().set_leaf_state(Guid(11), LeafState::Faulted));
    let of_first = format!("{:?}", tree.status().children[0]);

    tree.control().unwrap().change(&made.config, [21, 22].map(|guid| made.disk_of(guid))).unwrap();
    let status = tree.status();
    assert_eq!(format!("{:?}", status.children[0]), of_first);
    assert_eq!((status.children[1].state, status.children[0].children[1].missed.clone()), (VdevState::Online, missed));
    assert_eq!(tree.top_count(), 2);
    made.write(&tree, 1, &block);
    made.read(&tree, 1, &block).unwrap();
    made.read(&tree, 0, &block).unwrap();
    let errors = tree.error_counts(Guid(11)).unwrap();
    made.disk(12).fail(0..Made::DISK_BYTES);
    made.read(&tree, 0, &block).unwrap_err();
    assert!(Arc::ptr_eq(&errors, &tree.error_counts(Guid(11)).unwrap()), "one state to a guid");
    assert_eq!(tree.error_counts(Guid(12)).unwrap().totals().read, 1);
}

#[test]
fn a_change_that_moves_or_drops_a_top_level_vdev_is_refused_and_changes_nothing() {
    let made = Made::new(vec![mirror(10, 2), mirror(20, 2)]);
    let tree = made.tree(&[]);
    let hole = || vdev("hole", 0);
    for other in [
        vec![mirror(20, 2), mirror(10, 2)],
        vec![mirror(10, 2)],
        vec![mirror(10, 2), mirror(30, 2)],
        vec![hole(), mirror(20, 2), mirror(10, 2)],
        vec![mirror(10, 2), hole(), mirror(20, 2)],
    ] {
        let before = format!("{:?}", tree.status());
        assert!(matches!(tree.control().unwrap().change(&config(other), []), Err(VdevError::BadConfig { .. })));
        assert_eq!(format!("{:?}", tree.status()), before);
    }
}

/// A disk whose reads end when they are let.
#[derive(Debug)]
struct Gated {
    disk: Arc<TestDisk>,
    gate: Arc<Event>,
}

impl Driver for Gated {
    fn read(&self, offset_bytes: u64, buf: Buf) -> BoxFuture<'_, (io::Result<()>, Buf)> {
        Box::pin(async move {
            self.gate.wait().await;
            self.disk.read(offset_bytes, buf).await
        })
    }

    fn write(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>> {
        Driver::write(&*self.disk, offset_bytes, block)
    }

    fn flush(&self) -> BoxFuture<'_, io::Result<()>> {
        self.disk.flush()
    }

    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn path(&self) -> &Path {
        self.disk.path()
    }
}

/// A leaf leaves a mirror while it is read: the read ends with its answer, and the device is closed when the last such read has ended.
#[test]
fn a_read_ends_in_the_topology_that_it_began_in_and_a_device_is_closed_after_it() {
    let made = Made::new(vec![mirror(10, 2)]);
    let gate = Arc::new(Event::new());
    let gated = Arc::new(Gated { disk: made.disks[&Guid(11)].clone(), gate: gate.clone() });
    let driver = Arc::downgrade(&gated);
    let disks = [(Guid(11), Disk::whole(Device::from_driver(gated))), made.disk_of(12)];
    let tree = VdevTree::open(&made.config, disks).unwrap();
    let block = pattern(8192, 2);
    made.write(&tree, 0, &block);
    // So it is the gated one that is asked.
    assert!(tree.control().unwrap().set_leaf_state(Guid(12), LeafState::Offline));
    made.runtime.block_on(async {
        let verify = |found: &[u8]| found == block;
        let context = ReadContext::new(BIRTH);
        let mut read = pin!(tree.read(VdevId(0), OFFSET_BYTES, 8192, &verify, &context));
        let is_pending = std::future::poll_fn(|task| Poll::Ready(read.as_mut().poll(task).is_pending())).await;
        assert!(is_pending);
        let without = with_children(vdev("mirror", 10), leaves(12, 1));
        tree.control().unwrap().change(&config(vec![without]), []).unwrap();
        assert!(tree.error_counts(Guid(11)).is_none());
        assert!(driver.upgrade().is_some(), "it is being read");
        gate.set();
        assert_eq!(&read.await.unwrap()[..], &block[..]);
    });
    // The read itself is gone, and the topology with it.
    assert!(driver.upgrade().is_none(), "its device is closed");
}

fn top(kind: u8, guid: u64) -> NvList {
    match kind {
        0 => vdev("file", guid),
        1 => mirror(guid, 2),
        2 => mirror(guid, 3),
        _ => {
            let mut list = raidz(1, 12, leaves(guid + 1, 4));
            list.remove("guid");
            list.push("guid", guid);
            list
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The model of a tree that has grown is one that was opened with all its vdevs, and went through the same.
    #[test]
    fn a_tree_that_has_grown_is_one_that_was_opened_so(
        kinds in prop::collection::vec(0_u8..4, 1..6),
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..4, any::<u64>()), 0..24),
        grows in prop::collection::vec(0_usize..24, 0..5),
    ) {
        let tops: Vec<NvList> = kinds.iter().zip(1_u64..).map(|(kind, n)| top(*kind, n * 100)).collect();
        let (made, model) = (Made::new(tops.clone()), Made::new(tops.clone()));
        let first = config(tops[..1].to_vec());
        let of = |config: &VdevConfig| config.leaves().iter().map(|leaf| leaf.guid.0).collect::<Vec<_>>();
        let grown = VdevTree::open(&first, of(&first).into_iter().map(|guid| made.disk_of(guid))).unwrap();
        let whole = model.tree(&[]);
        let mut count = 1;
        for (number, (which, what, seed)) in steps.iter().enumerate() {
            for _ in grows.iter().filter(|at| **at == number) {
                if count < tops.len() {
                    let before = of(&config(tops[..count].to_vec()));
                    count += 1;
                    let next = config(tops[..count].to_vec());
                    let new = of(&next).into_iter().filter(|guid| !before.contains(guid));
                    grown.control().unwrap().change(&next, new.map(|guid| made.disk_of(guid))).unwrap();
                }
            }
            // Only what both have.
            let vdev = which.index(count) as u32;
            let leaves = made.config.children[vdev as usize].leaves();
            let leaf = leaves[*seed as usize % leaves.len()].guid;
            let block = pattern(8192, *seed);
            for (made, tree) in [(&made, &grown), (&model, &whole)] {
                match what {
                    0 => drop(made.runtime.block_on(tree.write(
                        VdevId(vdev), OFFSET_BYTES, &Block::copied_from(&block), BIRTH,
                    ))),
                    1 => drop(made.read(tree, vdev, &block)),
                    2 => made.disk(leaf.0).fail(OFFSET_BYTES..OFFSET_BYTES * 2 + (8 << 20)),
                    _ => drop(tree.control().unwrap().set_leaf_state(leaf, LeafState::Faulted)),
                }
            }
        }
        let next = config(tops.clone());
        let before = of(&config(tops[..count].to_vec()));
        let new = of(&next).into_iter().filter(|guid| !before.contains(guid)).collect::<Vec<_>>();
        grown.control().unwrap().change(&next, new.into_iter().map(|guid| made.disk_of(guid))).unwrap();
        prop_assert_eq!(format!("{:?}", grown.status()), format!("{:?}", whole.status()));
    }
}
