//! Writing through vdevs: every copy and parity column lands where OpenZFS has it, a child that fails is told and does no
//! harm while others suffice, and what too few took is an error.

use crate::common;
use crate::common::made;

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_taskq::buf::{Block, Buf};
use cenote_testkit::Golden;
use cenote_vdev::error::VdevError;
use cenote_vdev::tree::{ReadContext, VdevSet, VdevTree, Written};
use common::{Mode, Pool};
use made::{Made, leaves, pattern, raidz, vdev, with_children};
use proptest::prelude::*;

/// Found by a reader: a device tells one of those who flush it that it has lost its cache, and another one counted on its own flush.
#[test]
fn who_wrote_learns_of_a_flush_that_failed_for_somebody_else() {
    let top = |guid| {
        let mut list = vdev("file", guid);
        list.push("ashift", 12_u64);
        list
    };
    let made = Made::new(vec![top(10), top(11)]);
    let tree = made.tree(&[]);
    tree.wait_for_devices();
    let (data, log) = (VdevId(0), VdevId(1));
    let only = |vdev| {
        let mut set = VdevSet::default();
        set.insert(vdev);
        set
    };
    made.runtime.block_on(async {
        let failures = || [data, log].map(|vdev| tree.flush_failures_of(vdev)[0].1);
        tree.write_once(log, 0, &Block::from(vec![1; 4096]), BIRTH.into()).await.unwrap();
        made.disk(11).set_flush_fails(true);
        assert_eq!(tree.flush_of(only(data)).await.unwrap(), [], "of other devices nothing is asked");
        assert_eq!(failures(), [0, 0]);
        assert_eq!(tree.flush().await.unwrap(), [Guid(11)]);
        made.disk(11).set_flush_fails(false);
        assert_eq!(tree.flush_of(only(log)).await.unwrap(), []);
        assert_eq!(failures(), [0, 1], "the writer sees that its block may be gone");
    });
}

const TOP: VdevId = VdevId(0);
const BIRTH: Txg = Txg(100);

/// Every block of pools that OpenZFS wrote, written again to empty disks: each byte on them is the one that OpenZFS has
/// there, and each block can be read back without any one disk that redundancy allows to lose.
#[test]
fn what_is_written_equals_what_openzfs_wrote() {
    for name in ["basic", "mirror3", "raidz1"] {
        let pool = Pool::open(&Golden::find().unwrap().theme(name).unwrap());
        let walk = pool.walk(&pool.tree(&[]), Mode::Any);
        assert!(walk.stored.len() > 50, "{name}");
        let (tree, disks) = pool.blank();
        for (vdev, offset, birth, bytes) in &walk.stored {
            let sector = 1 << tree.ashift(*vdev).unwrap();
            let mut padded = bytes.clone();
            padded.resize(bytes.len().next_multiple_of(sector), 0);
            let block = Block::from(padded);
            let write = tree.write(*vdev, *offset, &block, *birth);
            assert_eq!(pool.runtime.block_on(write).unwrap(), Written::default());
        }
        assert!(pool.runtime.block_on(tree.flush()).unwrap().is_empty());
        for (guid, disk) in &disks {
            let content = |disk: &cenote_vdev::disk::Disk| {
                let (result, buf) = pool.runtime.block_on(disk.read(0, Buf::zeroed(disk.size_bytes() as usize)));
                result.unwrap();
                buf
            };
            let (ours, theirs) = (content(disk), content(&pool.disks[guid]));
            let mut sectors = 0;
            for (ours, theirs) in ours.chunks(512).zip(theirs.chunks(512)) {
                if ours.iter().any(|byte| *byte != 0) {
                    assert_eq!(ours, theirs, "{name}: {}", disk.path());
                    sectors += 1;
                }
            }
            assert!(sectors > 500, "{name}: {} has {sectors} sectors", disk.path());
        }
        let victims: Vec<Option<Guid>> =
            if name == "basic" { vec![None] } else { disks.keys().copied().map(Some).collect() };
        for victim in victims {
            let mut left = disks.clone();
            left.retain(|guid, _| Some(*guid) != victim);
            let tree = VdevTree::open(&pool.config, left).unwrap();
            for (vdev, offset, birth, bytes) in &walk.stored {
                let verify = |found: &[u8]| found == bytes;
                let context = ReadContext::new(*birth);
                let read = tree.read(*vdev, *offset, bytes.len() as u64, &verify, &context);
                pool.runtime.block_on(read).unwrap();
            }
        }
    }
}

/// Vdevs of all kinds that are written, with how many disks each can lose and in which units of sectors blocks may begin.
fn vdevs() -> Vec<(&'static str, NvList, usize, u64)> {
    let mirror = |count| {
        let mut list = vdev("mirror", 500);
        list.push("ashift", 12_u64);
        with_children(list, leaves(10, count))
    };
    let draid = |parity: u64, data: u64, spares: u64, groups: u64, children: usize| {
        let mut list = vdev("draid", 500);
        list.push("ashift", 12_u64);
        list.push("nparity", parity);
        list.push("draid_ndata", data);
        list.push("draid_nspares", spares);
        list.push("draid_ngroups", groups);
        with_children(list, leaves(10, children))
    };
    let mut single = vdev("file", 10);
    single.push("ashift", 9_u64);
    single.push("id", 0_u64);
    vec![
        ("single", single, 0, 1),
        ("mirror", mirror(3), 2, 1),
        ("raidz1", raidz(1, 12, leaves(10, 3)), 1, 1),
        ("raidz2", raidz(2, 9, leaves(10, 5)), 2, 1),
        ("raidz3", raidz(3, 12, leaves(10, 11)), 3, 1),
        ("draid1", draid(1, 2, 0, 1, 3), 1, 3),
        ("draid2", draid(2, 4, 1, 6, 7), 2, 6),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The tree puts every byte where the layout's own model puts it, and nothing anywhere else.
    #[test]
    fn blocks_land_where_the_layouts_say(
        kind in 0..vdevs().len(), unit in 0_u64..5000, sectors in 1_u64..300, seed: u64,
    ) {
        let (_, list, _, step) = vdevs().swap_remove(kind);
        let (ours, model) = (Made::new(vec![list.clone()]), Made::new(vec![list]));
        let sector = 1_u64 << ours.config.children[0].ashift;
        let block = pattern((sectors * sector) as usize, seed);
        let offset = unit * step * sector;
        model.put(offset, &block, BIRTH);
        let tree = ours.tree(&[]);
        let written = ours.runtime.block_on(tree.write(TOP, offset, &Block::from(block), BIRTH)).unwrap();
        prop_assert_eq!(written, Written::default());
        for (guid, disk) in &model.disks {
            prop_assert!(ours.disks[guid].sectors() == disk.sectors(), "disk {}", guid);
        }
    }

    /// With some disks absent or broken a write is good as long as the block can be read back, from whatever disks
    /// have it; those that have missed it are named. One disk too few, and it is an error that names them all.
    #[test]
    fn a_write_is_good_while_the_block_can_be_read_back(
        kind in 0..vdevs().len(), sectors in prop_oneof![1_u64..8, 1_u64..300], seed: u64, lost in 0_usize..5, absent: bool,
    ) {
        let (name, list, redundancy, _) = vdevs().swap_remove(kind);
        let made = Made::new(vec![list]);
        let sector = 1_u64 << made.config.children[0].ashift;
        let block = pattern((sectors * sector) as usize, seed);
        let mut guids: Vec<u64> = made.disks.keys().map(|guid| guid.0).collect();
        guids.sort_unstable();
        let turn = seed as usize % guids.len();
        guids.rotate_left(turn);
        let lost = &guids[..lost.min(guids.len())];
        if !absent {
            lost.iter().for_each(|guid| made.disk(*guid).fail(0..Made::DISK_BYTES));
        }
        let tree = made.tree(if absent { lost } else { &[] });
        let wrote = made.runtime.block_on(tree.write(TOP, 0, &Block::copied_from(&block), BIRTH));
        let is_readable = {
            // By disks that are sound and have what they were given.
            let tree = made.tree(lost);
            let verify = |found: &[u8]| found == block;
            made.runtime.block_on(tree.read(TOP, 0, block.len() as u64, &verify, &ReadContext::new(BIRTH))).is_ok()
        };
        prop_assert_eq!(wrote.is_ok(), is_readable, "{}: {:?}", name, wrote);
        prop_assert!(wrote.is_ok() || lost.len() > redundancy, "{}: {:?}", name, wrote);
        match wrote {
            Ok(Written { missed }) => {
                let missed: BTreeSet<u64> = missed.iter().map(|guid| guid.0).collect();
                prop_assert!(missed.iter().all(|guid| lost.contains(guid)), "{}: {:?}", name, missed);
                // The block has fewer columns than a wide stripe has children; elsewhere all that are lost have missed it.
                if name == "mirror" {
                    prop_assert_eq!(missed.len(), lost.len());
                }
            }
            Err(VdevError::Unwritable { faults, .. }) => prop_assert!(!faults.is_empty()),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

/// A block of one sector in a draid with four data columns leaves three of them padding. Disks that have only that are not
/// needed to read the block, however many they are; with the parity gone as well it still has its data.
#[test]
fn padding_that_is_lost_makes_no_write_bad() {
    let (_, list, redundancy, _) = vdevs().swap_remove(6);
    for parity_lost in 0..=redundancy {
        let made = Made::new(vec![list.clone()]);
        let map = made.map(0, 4096, BIRTH);
        let columns = map.columns();
        let padding = columns.iter().filter(|column| column.size_bytes == 0 && column.padding_bytes > 0);
        let parity = columns.iter().take(parity_lost);
        let lost: Vec<u64> = padding.chain(parity).map(|column| 10 + u64::from(column.child)).collect();
        assert_eq!(lost.len(), 3 + parity_lost);
        lost.iter().for_each(|guid| made.disk(*guid).fail(0..Made::DISK_BYTES));
        let block = pattern(4096, 5);
        let tree = made.tree(&[]);
        let written = made.runtime.block_on(tree.write(TOP, 0, &Block::copied_from(&block), BIRTH)).unwrap();
        let missed: BTreeSet<u64> = written.missed.iter().map(|guid| guid.0).collect();
        assert_eq!(missed, lost.into_iter().collect());
        let verify = |found: &[u8]| found == block;
        let tree = made.tree(&[]);
        made.runtime.block_on(tree.read(TOP, 0, 4096, &verify, &ReadContext::new(BIRTH))).unwrap();
    }
}

#[test]
fn a_disk_that_missed_a_write_is_asked_last_from_then_on() {
    let made = Made::new(vec![vdevs().swap_remove(1).1]);
    made.disk(11).fail(0..Made::DISK_BYTES);
    let tree = made.tree(&[]);
    let block = pattern(4096, 5);
    let written = made.runtime.block_on(tree.write(TOP, 0, &Block::copied_from(&block), BIRTH)).unwrap();
    assert_eq!(written.missed, [Guid(11)]);
    let reads = made.disk(11).reads();
    for region in 0..3 {
        let offset = region << 21;
        made.runtime.block_on(tree.write(TOP, offset, &Block::copied_from(&block), BIRTH)).unwrap();
        let verify = |found: &[u8]| found == block;
        made.runtime.block_on(tree.read(TOP, offset, 4096, &verify, &ReadContext::new(BIRTH))).unwrap();
    }
    assert_eq!(made.disk(11).reads(), reads);
    assert!(tree.error_counts(Guid(11)).unwrap().totals().write >= 1);
}

#[test]
fn a_block_that_is_no_multiple_of_the_sector_is_refused() {
    let made = Made::new(vec![vdevs().swap_remove(1).1]);
    let write = |len: usize| {
        let tree = made.tree(&[]);
        made.runtime.block_on(tree.write(TOP, 0, &Block::copied_from(&vec![1; len]), BIRTH))
    };
    assert!(matches!(write(512), Err(VdevError::BadRange { .. })));
    assert!(matches!(write(0), Err(VdevError::BadRange { .. })));
    write(4096).unwrap();
}

#[test]
fn nothing_is_written_beyond_a_disks_data_area() {
    let made = Made::new(vec![vdevs().swap_remove(0).1]);
    let write = |offset| {
        let tree = made.tree(&[]);
        made.runtime.block_on(tree.write(TOP, offset, &Block::copied_from(&[1; 512]), BIRTH))
    };
    assert!(matches!(write(Made::DISK_BYTES - (4 << 20) - (256 << 10)), Err(VdevError::Unwritable { .. })));
    assert!(made.disk(10).sectors().is_empty());
    write(0).unwrap();
}
