//! Reading through vdevs made for the purpose: what can be recovered is, what was wrong is reported where it was wrong, and
//! what cannot be had fails with its reasons.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::BoxFuture;
use cenote_taskq::buf::Buf;
use cenote_vdev::config::VdevConfig;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::error::VdevError;
use cenote_vdev::fault::{ErrorTotals, FaultKind};
use cenote_vdev::layout::raidz::Raidz;
use cenote_vdev::tree::{CopiesReport, IndirectMap, LeafState, ReadContext, Segment, VdevState, VdevTree};
use common::made::{Made, leaves, pattern, raidz, vdev, with_children};
use proptest::prelude::*;

const TOP: VdevId = VdevId(0);
const BIRTH: Txg = Txg(100);

fn read(made: &Made, tree: &VdevTree, offset: u64, want: &[u8]) -> Result<Buf, VdevError> {
    let verify = |bytes: &[u8]| bytes == want;
    made.runtime.block_on(tree.read(TOP, offset, want.len() as u64, &verify, &ReadContext::new(BIRTH)))
}

fn read_copies(made: &Made, tree: &VdevTree, offset: u64, want: &[u8]) -> Result<CopiesReport, VdevError> {
    let verify = |bytes: &[u8]| bytes == want;
    made.runtime.block_on(tree.read_copies(TOP, offset, want.len() as u64, &verify, &ReadContext::new(BIRTH)))
}

fn errors(tree: &VdevTree, guid: u64) -> ErrorTotals {
    tree.error_counts(Guid(guid)).unwrap().totals()
}

fn txgs(range: std::ops::Range<u64>) -> Dtl {
    let mut set = Dtl::new();
    set.insert(range);
    set
}

/// Guids of the faults of one kind.
fn guilty(faults: &[cenote_vdev::fault::Fault], kind: FaultKind) -> BTreeSet<u64> {
    faults.iter().filter(|fault| fault.kind == kind).map(|fault| fault.guid.0).collect()
}

fn mirror(count: usize) -> Made {
    let mut list = vdev("mirror", 500);
    list.push("ashift", 12_u64);
    Made::new(vec![with_children(list, leaves(10, count))])
}

fn put_mirror(made: &Made, offset: u64, bytes: &[u8]) {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4096), 0);
    made.disks.values().for_each(|disk| disk.write(offset + START_BYTES, &padded));
}

#[test]
fn a_mirror_survives_all_but_one_bad_child_and_counts_the_bad_ones() {
    let want = pattern(5120, 1);
    for good in 10..13 {
        let made = mirror(3);
        put_mirror(&made, 1 << 20, &want);
        for bad in (10..13).filter(|guid| *guid != good) {
            made.disk(bad).spoil(START_BYTES + (1 << 20), 4096);
        }
        let tree = made.tree(&[]);
        // Every region of the address space prefers another child, so over all of them each is met.
        for region in 0..3 {
            put_mirror(&made, (1 << 20) + (region << 21), &want);
            for bad in (10..13).filter(|guid| *guid != good) {
                made.disk(bad).spoil(START_BYTES + (1 << 20) + (region << 21), 4096);
            }
            assert_eq!(read(&made, &tree, (1 << 20) + (region << 21), &want).unwrap()[..], want);
        }
        assert_eq!(errors(&tree, good), ErrorTotals::default());
        let counted: u64 = (10..13).map(|guid| errors(&tree, guid).checksum).sum();
        assert!(counted >= 1);
        assert_eq!(counted as usize, tree.fault_log().snapshot().len());
        assert!(tree.fault_log().drain().iter().all(|fault| fault.guid.0 != good && fault.size_bytes == 8192));
        // A scrub finds every bad copy, and no other.
        let report = read_copies(&made, &tree, 1 << 20, &want).unwrap();
        assert_eq!(report.read_count, 3);
        assert_eq!(report.block[..], want);
        let expected: BTreeSet<u64> = (10..13).filter(|guid| *guid != good).collect();
        assert_eq!(guilty(&report.bad, FaultKind::Checksum), expected);
    }
}

#[test]
fn a_block_with_no_good_copy_names_every_copy() {
    let made = mirror(3);
    let want = pattern(4096, 2);
    put_mirror(&made, 0, &want);
    made.disk(10).spoil(START_BYTES, 4096);
    made.disk(11).fail(START_BYTES..START_BYTES + 512);
    let tree = made.tree(&[12]);
    let error = read(&made, &tree, 0, &want).unwrap_err();
    assert!(error.is_checksum());
    let VdevError::Unreadable { vdev: TOP, offset_bytes: 0, size_bytes: 4096, faults } = &error else {
        panic!("{error}")
    };
    assert_eq!(guilty(faults, FaultKind::Checksum), [10].into());
    assert_eq!(guilty(faults, FaultKind::Unavailable), [12].into());
    let io: Vec<_> = faults.iter().filter(|fault| matches!(fault.kind, FaultKind::Read(_))).collect();
    assert_eq!((io.len(), io[0].guid, io[0].address_bytes), (1, Guid(11), START_BYTES));
    let text = error.to_string();
    assert!(text.contains("disk10") && text.contains("disk11") && text.contains("Input/output error"), "{text}");
    assert_eq!(errors(&tree, 10), ErrorTotals { checksum: 1, ..Default::default() });
    assert_eq!(errors(&tree, 11), ErrorTotals { read: 1, ..Default::default() });
    assert_eq!(errors(&tree, 12), ErrorTotals::default());
    assert_eq!(tree.status().errors.checksum, 1);
    tree.clear_errors();
    assert_eq!(tree.status().errors, ErrorTotals::default());
}

#[test]
fn expected_failures_leave_no_trace() {
    let made = mirror(2);
    let tree = made.tree(&[]);
    let never = |_: &[u8]| false;
    let context = ReadContext::new(BIRTH).speculative();
    assert!(made.runtime.block_on(tree.read(TOP, 0, 4096, &never, &context)).is_err());
    assert_eq!(tree.fault_log().snapshot(), []);
    assert_eq!(tree.status().errors, ErrorTotals::default());
    assert_eq!(errors(&tree, 10), ErrorTotals::default());
}

/// A child that was away when the block was written is asked last, and is no liar for what it does not know.
#[test]
fn stale_children_are_the_last_resort() {
    let made = mirror(2);
    let (old, new) = (pattern(4096, 3), pattern(4096, 4));
    put_mirror(&made, 0, &new);
    made.disk(10).write(START_BYTES, &old);
    let tree = made.tree(&[]);
    assert!(tree.control().unwrap().set_dtl(Guid(10), txgs(90..110)));
    assert_eq!(tree.status().children[0].children[0].missed, txgs(90..110));
    for _ in 0..4 {
        assert_eq!(read(&made, &tree, 0, &new).unwrap()[..], new);
    }
    assert_eq!(made.disk(10).reads(), 0);
    assert_eq!(tree.fault_log().snapshot(), []);
    // It is all there is, and has the block after all.
    assert!(tree.control().unwrap().set_leaf_state(Guid(11), LeafState::Faulted));
    assert_eq!(read(&made, &tree, 0, &old).unwrap()[..], old);
    // Or it has not.
    let VdevError::Unreadable { faults, .. } = read(&made, &tree, 0, &new).unwrap_err() else { panic!() };
    assert_eq!(guilty(&faults, FaultKind::Stale), [10].into());
    assert_eq!(errors(&tree, 10), ErrorTotals::default());
    assert_eq!(tree.status().children[0].state, VdevState::Degraded);
}

/// Which children of vdev 0 hold a block, by guid, and whether spoiling them changes anything.
fn holders(made: &Made, offset: u64, len: u64) -> BTreeSet<u64> {
    let map = made.map(offset, len, BIRTH);
    let used = map.columns().iter().filter(|column| column.size_bytes != 0);
    used.map(|column| 10 + u64::from(column.child)).collect()
}

/// How one child of the property tests is bad.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Lies,
    Fails,
    Absent,
}

fn bad_children(children: usize, most: usize) -> impl Strategy<Value = BTreeMap<u64, Bad>> {
    let kinds = prop_oneof![3 => Just(Bad::Lies), 1 => Just(Bad::Fails), 1 => Just(Bad::Absent)];
    prop::collection::btree_map(10..10 + children as u64, kinds, 0..=most)
}

/// Reads a block that was written to vdev 0 with some children bad, and checks data, faults and counts.
fn check_bad_children(made: &Made, offset: u64, want: &[u8], bad: &BTreeMap<u64, Bad>) {
    made.put(offset, want, BIRTH);
    let holders = holders(made, offset, want.len() as u64);
    let mut absent = Vec::new();
    for (guid, kind) in bad {
        match kind {
            Bad::Lies => made.disk(*guid).spoil_all(),
            Bad::Fails => made.disk(*guid).fail(0..Made::DISK_BYTES),
            Bad::Absent => absent.push(*guid),
        }
    }
    let tree = made.tree(&absent);
    assert_eq!(read(made, &tree, offset, want).unwrap()[..], *want);
    // No innocent child is blamed. (Not every guilty one need have been met.)
    for fault in tree.fault_log().drain() {
        match fault.kind {
            FaultKind::Checksum => assert!(matches!(bad[&fault.guid.0], Bad::Lies), "{fault}"),
            FaultKind::Read(_) => assert!(matches!(bad[&fault.guid.0], Bad::Fails), "{fault}"),
            _ => panic!("{fault}"),
        }
    }
    tree.clear_errors();

    // A scrub meets all of them.
    let report = read_copies(made, &tree, offset, want).unwrap();
    assert_eq!(report.block[..], *want);
    for guid in &holders {
        let totals = errors(&tree, *guid);
        match bad.get(guid) {
            None | Some(Bad::Absent) => assert_eq!(totals, ErrorTotals::default(), "child {guid}"),
            Some(Bad::Lies) => assert!(totals.checksum > 0 && totals.read == 0, "child {guid}: {totals:?}"),
            Some(Bad::Fails) => assert!(totals.read > 0 && totals.checksum == 0, "child {guid}: {totals:?}"),
        }
    }
    let blamed: BTreeSet<u64> = report.bad.iter().map(|fault| fault.guid.0).collect();
    let expected: BTreeSet<u64> = holders.intersection(&bad.keys().copied().collect()).copied().collect();
    assert_eq!(blamed, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// With faults of any kind in as many children as there is parity, the block is read and the bad children are named.
    #[test]
    fn raidz_recovers_from_as_many_bad_children_as_it_has_parity(
        (parity, children, bad) in (1_usize..=3, 1_usize..6).prop_flat_map(|(parity, more)| {
            (Just(parity), Just(parity + more), bad_children(parity + more, parity))
        }),
        sector in 0_u64..5000, size in 1_usize..40_000, ashift in prop::sample::select(vec![9_u64, 12]), seed: u64,
    ) {
        let made = Made::new(vec![raidz(parity as u64, ashift, leaves(10, children))]);
        check_bad_children(&made, sector << ashift, &pattern(size, seed), &bad);
    }

    /// The same where the block is narrower than the vdev is now, so that its rows lie one by one.
    #[test]
    fn expanded_raidz_recovers_too(
        (parity, children, bad) in (1_usize..=3, 2_usize..6).prop_flat_map(|(parity, more)| {
            (Just(parity), Just(parity + more), bad_children(parity + more, parity))
        }),
        sector in 0_u64..5000, size in 1_usize..40_000, seed: u64,
    ) {
        let mut list = raidz(parity as u64, 9, leaves(10, children));
        list.push("raidz_expand_txgs", NvValue::Uint64Array(vec![200]));
        let made = Made::new(vec![list]);
        check_bad_children(&made, sector << 9, &pattern(size, seed), &bad);
    }

    /// And on draid.
    #[test]
    fn draid_recovers_too(
        (parity, data, spares, bad) in (1_usize..=3, 1_usize..4, 0_usize..2).prop_flat_map(|(parity, data, spares)| {
            (Just(parity), Just(data), Just(spares), bad_children(parity + data + spares, parity))
        }),
        row in 3900_u64..4200, size in 1_usize..40_000, seed: u64,
    ) {
        let made = Made::new(vec![draid(parity, data, spares, leaves(10, parity + data + spares))]);
        let offset = (row * (parity + data) as u64) << 12;
        check_bad_children(&made, offset, &pattern(size, seed), &bad);
    }
}

/// A draid whose groups are one to a row.
fn draid(parity: usize, data: usize, spares: usize, children: Vec<NvList>) -> NvList {
    let mut list = vdev("draid", 500);
    list.push("ashift", 12_u64);
    list.push("nparity", parity as u64);
    list.push("draid_ndata", data as u64);
    list.push("draid_nspares", spares as u64);
    list.push("draid_ngroups", 1_u64);
    with_children(list, children)
}

/// A raidz vdev at the end of its redundancy, with children gone and others that have missed the txg, is asked for a block that nobody has written, as
/// at the end of an intent log. Its other children are enough to tell that the block is not there; where they are not, it may be elsewhere.
#[test]
fn a_block_that_was_never_written_is_told_from_one_that_is_lost() {
    for (parity, gone, stale, may_be_elsewhere) in [
        (2, &[10][..], &[11][..], false),
        (2, &[], &[10, 11], false),
        (3, &[10], &[11, 12], false),
        (2, &[10], &[11, 12], true),
        (1, &[10], &[11], true),
        (2, &[10, 11, 12], &[], true),
    ] {
        let made = Made::new(vec![raidz(parity, 12, leaves(10, 5))]);
        // Only something else that was there before.
        made.put(0, &pattern(4096 * 3, 5), Txg(9));
        let tree = made.tree(gone);
        for guid in stale {
            assert!(tree.control().unwrap().set_dtl(Guid(*guid), txgs(BIRTH.0..BIRTH.0 + 1)));
        }
        let error = read(&made, &tree, 0, &pattern(4096 * 3, 9)).unwrap_err();
        assert_eq!(
            error.may_be_elsewhere(),
            may_be_elsewhere,
            "raidz{parity} without {gone:?}, {stale:?} stale: {error}"
        );
    }
}

#[test]
fn more_bad_children_than_parity_cannot_be_helped() {
    for parity in 1..=3 {
        let children = parity as usize + 3;
        let made = Made::new(vec![raidz(parity, 12, leaves(10, children))]);
        let want = pattern(4096 * 3, 9);
        made.put(0, &want, BIRTH);
        // Of the data columns one more than parity can lie; of all columns, one more can be absent.
        let lying: Vec<u64> = (0..=parity).map(|index| 10 + children as u64 - 1 - index).collect();
        let tree = made.tree(&lying);
        let VdevError::Unreadable { faults, .. } = read(&made, &tree, 0, &want).unwrap_err() else { panic!() };
        assert_eq!(guilty(&faults, FaultKind::Unavailable), lying.iter().copied().collect());
        assert_eq!(tree.status().children[0].state, VdevState::Unavailable);
        lying.iter().for_each(|guid| made.disk(*guid).spoil_all());
        let tree = made.tree(&[]);
        assert!(read(&made, &tree, 0, &want).is_err());
        assert_eq!(errors(&tree, 500).checksum + errors(&tree, 500).read, 1);
    }
}

/// Good columns only: parity is neither read nor paid for.
#[test]
fn a_sound_stripe_is_read_without_its_parity() {
    let made = Made::new(vec![raidz(2, 12, leaves(10, 5))]);
    let want = pattern(3 * 4096, 5);
    made.put(0, &want, BIRTH);
    let tree = made.tree(&[]);
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
    assert_eq!((10..15).map(|guid| made.disk(guid).reads()).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
}

/// The end of the last sector is under no checksum, yet under parity: it is the disk that lies there which is blamed, not the
/// one with the parity.
#[test]
fn a_lie_behind_the_blocks_end_is_the_liars() {
    for parity in 1..=3 {
        let made = Made::new(vec![raidz(parity, 12, leaves(10, parity as usize + 2))]);
        let want = pattern(4096 + 1536, 7);
        made.put(0, &want, BIRTH);
        let map = made.map(0, want.len() as u64, BIRTH);
        let last = &map.columns()[parity as usize + 1];
        let liar = 10 + u64::from(last.child);
        made.disk(liar).spoil(last.address_bytes + 2048, 1024);
        let tree = made.tree(&[]);
        let report = read_copies(&made, &tree, 0, &want).unwrap();
        assert_eq!(report.block[..want.len()], want[..]);
        assert_eq!(report.bad.iter().map(|fault| fault.guid.0).collect::<Vec<_>>(), [liar]);
    }
}

/// A narrow block of an expanded raidz that once seemed to blame a child that had done nothing: two rows, one sector each.
#[test]
fn a_narrow_block_of_an_expanded_raidz_blames_the_right_child() {
    for kind in [Bad::Lies, Bad::Fails, Bad::Absent] {
        let mut list = raidz(1, 9, leaves(10, 3));
        list.push("raidz_expand_txgs", NvValue::Uint64Array(vec![200]));
        let made = Made::new(vec![list]);
        check_bad_children(&made, 369 << 9, &pattern(513, 0), &BTreeMap::from([(12, kind)]));
    }
}

/// A disk that lied before the expansion had its lies spread over all disks: the suspects of the old shape find them.
#[test]
fn lies_that_an_expansion_spread_are_found() {
    for parity in 1..=3_u64 {
        let old_width = parity as usize + 2;
        let mut list = raidz(parity, 9, leaves(10, old_width + 2));
        list.push("raidz_expand_txgs", NvValue::Uint64Array(vec![200, 300]));
        let made = Made::new(vec![list]);
        let want = pattern(9000, 6);
        let offset = 512 * 7;
        made.put(offset, &want, BIRTH);
        let old = Raidz::new(9, parity, old_width, &[], false).unwrap();
        let before = old.map(offset, want.len() as u64, BIRTH, cenote_vdev::layout::raidz::Reflow::COMPLETE).unwrap();
        // Spoil, at their places of today, the sectors that lay on one child then.
        let liar = before.columns()[parity as usize].child;
        let now = old_width as u64 + 2;
        let mut spoilt = BTreeSet::new();
        for column in before.columns().iter().filter(|column| column.child == liar) {
            for sector in 0..column.size_bytes / 512 {
                let line = ((column.address_bytes - START_BYTES) / 512 + sector) * old_width as u64 + u64::from(liar);
                made.disk(10 + line % now).spoil(START_BYTES + line / now * 512, 512);
                spoilt.insert(10 + line % now);
            }
        }
        assert!(spoilt.len() as u64 > parity, "the lies lie on more disks than parity can miss");
        let tree = made.tree(&[]);
        assert_eq!(read(&made, &tree, offset, &want).unwrap()[..], want);
        assert_eq!(guilty(&tree.fault_log().drain(), FaultKind::Checksum), spoilt);
    }
}

/// Neighbouring sectors are read together; where one of them is bad, the others are still had.
#[test]
fn one_bad_sector_costs_one_sector() {
    let mut list = raidz(1, 9, leaves(10, 4));
    list.push("raidz_expand_txgs", NvValue::Uint64Array(vec![200]));
    let made = Made::new(vec![list]);
    let want = pattern(512 * 20, 8);
    made.put(0, &want, BIRTH);
    let map = made.map(0, want.len() as u64, BIRTH);
    // A bad sector on two different disks, in different rows.
    let rows: Vec<_> = map.rows().collect();
    let (first, second) = (rows[0][1], rows[4].iter().skip(1).find(|c| c.child != rows[0][1].child).unwrap());
    for column in [&first, second] {
        made.disk(10 + u64::from(column.child)).fail(column.address_bytes..column.address_bytes + 512);
    }
    let tree = made.tree(&[]);
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
}

#[test]
fn a_distributed_spare_stands_in_for_a_lost_child() {
    let mut spare = vdev("dspare", 60);
    spare.push("top_guid", 500_u64);
    spare.push("spareid", 0_u64);
    let mut children = leaves(10, 4);
    children[2] = with_children(vdev("spare", 50), vec![vdev("file", 12), spare]);
    let made = Made::new(vec![draid(1, 2, 1, children)]);
    let want = pattern(3 * 4096, 10);
    let offsets: Vec<u64> = (0..40).map(|group| group * 3 * (16 << 20)).collect();
    offsets.iter().for_each(|offset| made.put(*offset, &want, BIRTH));
    let tree = made.tree(&[12]);
    assert_eq!(tree.status().children[0].state, VdevState::Degraded);
    for offset in &offsets {
        assert_eq!(read(&made, &tree, *offset, &want).unwrap()[..], want);
        assert!(guilty(&read_copies(&made, &tree, *offset, &want).unwrap().bad, FaultKind::Checksum).is_empty());
    }
    // With the spare, another child can go; a third cannot.
    let readable = |without: &[u64]| {
        let tree = made.tree(without);
        offsets.iter().filter(|offset| read(&made, &tree, **offset, &want).is_ok()).count()
    };
    assert_eq!(readable(&[12, 10]), offsets.len());
    assert_eq!(readable(&[12, 10, 11]), 0);
    // A resilver has not reached the spare yet: what it has there is stale.
    let tree = made.tree(&[12]);
    assert!(tree.control().unwrap().set_dtl(Guid(60), txgs(0..1000)));
    made.disks.iter().filter(|(guid, _)| guid.0 == 12).for_each(|(_, disk)| disk.spoil_all());
    for offset in &offsets {
        assert_eq!(read(&made, &tree, *offset, &want).unwrap()[..], want);
    }
}

/// Distributed spares that are complete count as good children, though each lies on the draid's other children: what can be read with any
/// children gone is what no outage names, row by row, and what could be written then is the same.
#[test]
fn a_distributed_spare_counts_for_the_child_that_it_stands_for() {
    let below_spare = |guid: u64, id: u64| {
        let mut spare = vdev("dspare", 60 + id);
        spare.push("top_guid", 500_u64);
        spare.push("spareid", id);
        with_children(vdev("spare", 50 + id), vec![vdev("file", guid), spare])
    };
    for (parity, data, spare_count) in [(1, 2, 1), (1, 3, 2), (2, 2, 1), (2, 3, 2)] {
        let mut children = leaves(10, parity + data + spare_count);
        (1..).take(spare_count).for_each(|at| children[at] = below_spare(10 + at as u64, at as u64 - 1));
        let made = Made::new(vec![draid(parity, data, spare_count, children)]);
        let want = pattern(data * 4096, 10);
        let offsets: Vec<u64> = (0..40).map(|group| group * (parity + data) as u64 * (16 << 20)).collect();
        offsets.iter().for_each(|offset| made.put(*offset, &want, BIRTH));
        let guids: Vec<u64> = (10..10 + (parity + data + spare_count) as u64).collect();
        for gone in 0_u32..1 << guids.len() {
            let gone: Vec<u64> =
                guids.iter().enumerate().filter(|(at, _)| gone >> at & 1 == 1).map(|(_, guid)| *guid).collect();
            // Those with a spare are made up for.
            let is_enough = gone.iter().filter(|guid| !(11..11 + spare_count as u64).contains(guid)).count() <= parity;
            let tree = made.tree(&gone);
            let what = format!("draid{parity}:{data}d:{spare_count}s without {gone:?}");
            assert_eq!(tree.outage(VdevId(0), &BTreeSet::new()).is_empty(), is_enough, "{what}");
            assert_eq!(tree.status().children[0].state.is_readable(), is_enough, "{what}");
            let readable = offsets.iter().filter(|offset| read(&made, &tree, **offset, &want).is_ok()).count();
            assert_eq!(readable == offsets.len(), is_enough, "{what}: {readable} can be read");
        }
        // A block that a spare lacks itself is not made up for.
        let tree = made.tree(&[11, 10]);
        assert!(tree.control().unwrap().set_dtl(Guid(60), txgs(3..5)));
        assert_eq!(tree.outage(VdevId(0), &BTreeSet::new()) == txgs(3..5), parity == 1);
    }
}

/// Two spares that stand for each other would send a read in circles.
#[test]
fn spares_that_lead_to_themselves_end() {
    let dspare = |guid: u64, id: u64| {
        let mut spare = vdev("dspare", guid);
        spare.push("top_guid", 500_u64);
        spare.push("spareid", id);
        spare
    };
    let children = (0..5).map(|id| dspare(60 + id, id % 2)).collect();
    let made = Made::new(vec![draid(1, 2, 2, children)]);
    let tree = made.tree(&[]);
    assert!(read(&made, &tree, 0, &pattern(4096, 1)).is_err());
    assert!(read_copies(&made, &tree, 0, &pattern(4096, 1)).is_err());
}

/// A hostile configuration: every child of a draid is a mirror of many of that draid's spares, each of which stands for
/// such a child again. A walk from spare to child to spare branched forty ways at each of sixteen steps.
#[test]
fn mirrors_of_spares_of_their_own_draid_are_not_a_maze() {
    let dspare = |guid: u64, id: u64| {
        let mut spare = vdev("dspare", guid);
        spare.push("top_guid", 500_u64);
        spare.push("spareid", id);
        spare
    };
    let maze = |child: u64| {
        let spares = (0..40).map(|id| dspare(1000 + child * 40 + id, id % 2)).collect();
        with_children(vdev("spare", 60 + child), spares)
    };
    let made = Made::new(vec![draid(1, 2, 2, (0..5).map(maze).collect())]);
    let tree = made.tree(&[]);
    let want = pattern(4096, 1);
    assert!(read(&made, &tree, 0, &want).is_err());
    assert!(read_copies(&made, &tree, 0, &want).is_err());
    // Data that can be read beside the maze is read.
    let children = leaves(10, 4).into_iter().chain([maze(4)]).collect();
    let made = Made::new(vec![draid(1, 2, 2, children)]);
    made.put(0, &want, BIRTH);
    assert_eq!(read(&made, &made.tree(&[]), 0, &want).unwrap()[..], want);
    assert_eq!(read_copies(&made, &made.tree(&[]), 0, &want).unwrap().block[..], want);
}

#[test]
fn a_child_being_replaced_is_read_from_either_device() {
    let mut children = leaves(10, 3);
    children[1] = with_children(vdev("replacing", 50), vec![vdev("file", 11), vdev("file", 20)]);
    let made = Made::new(vec![raidz(1, 12, children)]);
    let want = pattern(8192, 11);
    made.put(0, &want, BIRTH);
    for lost in [11, 20] {
        let tree = made.tree(&[lost]);
        assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
    }
    made.disk(20).spoil_all();
    made.disk(12).spoil_all();
    let tree = made.tree(&[]);
    assert!(tree.control().unwrap().set_dtl(Guid(20), txgs(0..200)));
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
    assert_eq!(guilty(&tree.fault_log().drain(), FaultKind::Checksum), [12].into());
    // A scrub sees that the new device has not got its data yet.
    let report = read_copies(&made, &tree, 0, &want).unwrap();
    assert_eq!(guilty(&report.bad, FaultKind::Stale), [20].into());
}

/// A mapping in memory.
#[derive(Debug)]
struct Mapping(Vec<(u32, Segment)>);

impl IndirectMap for Mapping {
    fn segments(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> BoxFuture<'_, Result<Vec<Segment>, VdevError>> {
        let end = offset_bytes + size_bytes;
        let of_vdev = self.0.iter().filter(|(id, _)| *id == vdev.0).map(|(_, segment)| segment);
        let within = of_vdev.filter(|s| s.offset_bytes < end && s.offset_bytes + s.size_bytes > offset_bytes);
        let found = within.copied().collect();
        Box::pin(async move { Ok(found) })
    }
}

fn segment(offset_bytes: u64, size_bytes: u64, target: u32, target_offset_bytes: u64) -> Segment {
    Segment { offset_bytes, size_bytes, target: VdevId(target), target_offset_bytes }
}

/// A removed vdev, two mirrors, and another removed vdev.
fn removed() -> Made {
    let top = |kind: &str, guid: u64| {
        let mut list = vdev(kind, guid);
        list.push("ashift", 12_u64);
        list
    };
    Made::new(vec![
        top("indirect", 500),
        with_children(top("mirror", 501), leaves(10, 2)),
        with_children(top("mirror", 502), leaves(20, 2)),
        top("indirect", 503),
    ])
}

#[test]
fn a_removed_vdevs_split_block_is_pieced_together_from_any_mixture_of_good_copies() {
    let made = removed();
    let want = pattern(3 * 4096, 12);
    // The middle piece went to vdev 3 first, which was removed later.
    let map = Mapping(vec![
        (0, segment(0, 4096, 1, 8192)),
        (0, segment(4096, 4096, 3, 0)),
        (0, segment(8192, 4096, 2, 4096)),
        (3, segment(0, 4096, 2, 1 << 20)),
    ]);
    for guid in [10, 11] {
        made.disk(guid).write(START_BYTES + 8192, &want[..4096]);
    }
    for guid in [20, 21] {
        made.disk(guid).write(START_BYTES + (1 << 20), &want[4096..8192]);
        made.disk(guid).write(START_BYTES + 4096, &want[8192..]);
    }
    let tree = made.tree(&[]);
    assert!(matches!(read(&made, &tree, 0, &want), Err(VdevError::BadMapping { .. })), "not loaded yet");
    tree.set_indirect_map(Arc::new(map));
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
    assert_eq!(tree.fault_log().snapshot(), []);
    // One bad copy of each piece, on different sides.
    made.disk(10).spoil(START_BYTES + 8192, 4096);
    made.disk(21).spoil(START_BYTES + (1 << 20), 4096);
    made.disk(20).spoil(START_BYTES + 4096, 4096);
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
    let report = read_copies(&made, &tree, 0, &want).unwrap();
    assert_eq!(report.read_count, 6);
    let bad: BTreeSet<_> = report.bad.iter().map(|fault| (fault.guid.0, fault.address_bytes - START_BYTES)).collect();
    assert_eq!(bad, [(10, 8192), (20, 4096), (21, 1 << 20)].into());
    // Both copies of a piece.
    made.disk(11).spoil(START_BYTES + 8192, 4096);
    assert!(read(&made, &tree, 0, &want).unwrap_err().is_checksum());
    // A piece by itself is verified copy by copy.
    assert_eq!(read(&made, &tree, 4096, &want[4096..8192]).unwrap()[..], want[4096..8192]);
}

/// Goal: a removed vdev's block that its devices give once and then no more is a block that was read, with faults; a scrub had a panic of that. Method:
/// all devices that have it fail as soon as it was verified.
#[test]
fn a_removed_vdevs_block_that_is_given_once_and_then_no_more_was_read() {
    let made = removed();
    let want = pattern(4096, 14);
    for guid in [10, 11] {
        made.disk(guid).write(START_BYTES + 8192, &want);
    }
    let tree = made.tree(&[]);
    tree.set_indirect_map(Arc::new(Mapping(vec![(0, segment(0, 4096, 1, 8192))])));
    let verify = |bytes: &[u8]| {
        [10, 11].iter().for_each(|guid| made.disk(*guid).fail(0..Made::DISK_BYTES));
        bytes == want
    };
    let context = ReadContext::new(BIRTH);
    let read = tree.read_copies(TOP, 0, want.len() as u64, &verify, &context);
    let report = made.runtime.block_on(read).unwrap();
    assert_eq!((&report.block[..], report.read_count), (&want[..], 1));
    let failed: BTreeSet<_> = report.bad.iter().map(|fault| fault.guid.0).collect();
    assert!(report.bad.iter().all(|fault| matches!(fault.kind, FaultKind::Read(_))), "{:?}", report.bad);
    assert_eq!(failed, [10, 11].into());
}

#[test]
fn mappings_that_lead_nowhere_are_named() {
    let made = removed();
    let want = pattern(4096, 13);
    let try_map = |segments: Vec<(u32, Segment)>| {
        let tree = made.tree(&[]);
        tree.set_indirect_map(Arc::new(Mapping(segments)));
        read(&made, &tree, 0, &want).unwrap_err()
    };
    let gap = try_map(vec![(0, segment(4096, 4096, 1, 0))]);
    assert!(matches!(gap, VdevError::Unmapped { vdev: TOP, offset_bytes: 0 }), "{gap}");
    let long = try_map(vec![(0, segment(0, 8192, 1, 0))]);
    assert!(matches!(long, VdevError::BadMapping { .. }), "{long}");
    let circle = try_map(vec![(0, segment(0, 4096, 3, 0)), (3, segment(0, 4096, 0, 0))]);
    assert!(matches!(circle, VdevError::BadMapping { .. }), "{circle}");
    let nowhere = try_map(vec![(0, segment(0, 4096, 99, 0))]);
    assert!(matches!(nowhere, VdevError::NoSuchVdev(VdevId(99))), "{nowhere}");
    let beyond = try_map(vec![(0, segment(0, 4096, 1, u64::MAX - 8191))]);
    assert!(matches!(beyond, VdevError::BadMapping { .. }), "{beyond}");
}

#[test]
fn places_where_nothing_can_be_have_their_own_errors() {
    let mut leaf = vdev("file", 10);
    leaf.push("ashift", 12_u64);
    let made = Made::new(vec![leaf, vdev("hole", 0), vdev("missing", 0)]);
    let tree = made.tree(&[]);
    let always = |_: &[u8]| true;
    let try_read = |vdev: u32, offset: u64, size: u64| {
        let context = ReadContext::new(BIRTH);
        let read = tree.read(VdevId(vdev), offset, size, &always, &context);
        made.runtime.block_on(read).map(|buf| buf.len())
    };
    assert_eq!(try_read(0, 0, 512).unwrap(), 512);
    assert!(matches!(try_read(1, 0, 512), Err(VdevError::NoSuchVdev(_))));
    assert!(matches!(try_read(2, 0, 512), Err(VdevError::Missing(_))));
    assert!(matches!(try_read(3, 0, 512), Err(VdevError::NoSuchVdev(_))));
    assert!(matches!(try_read(0, 0, 0), Err(VdevError::BadRange { .. })));
    assert!(matches!(try_read(0, 0, u64::MAX), Err(VdevError::BadRange { .. })));
    assert!(matches!(try_read(0, u64::MAX - 511, 512), Err(VdevError::BadRange { .. })));
    assert!(matches!(try_read(0, Made::DISK_BYTES, 512), Err(VdevError::Unreadable { .. })));
    // The labels at the end are no place for a block.
    assert!(try_read(0, Made::DISK_BYTES - START_BYTES - (512 << 10), 512).is_err());
    assert!(try_read(0, Made::DISK_BYTES - START_BYTES - (512 << 10) - 4096, 4096).is_ok());
    assert_eq!(tree.status().children[2].state, VdevState::Unavailable);
}

#[test]
fn shapes_that_no_pool_has_are_refused() {
    let refused = |list: NvList| match VdevConfig::parse(&list) {
        Err(error) => error.to_string(),
        Ok(config) => VdevTree::open(&config, []).unwrap_err().to_string(),
    };
    let root = |tops: Vec<NvList>| with_children(vdev("root", 1), tops);
    let mut deep = vdev("file", 10);
    for guid in 11..30 {
        deep = with_children(vdev("spare", guid), vec![deep]);
    }
    assert!(refused(root(vec![deep])).contains("too deeply"));
    assert!(refused(root(vec![vdev("mirror", 2)])).contains("without children"));
    assert!(refused(root(vec![with_children(vdev("file", 2), leaves(3, 1))])).contains("with children"));
    let raidz_of_raidz = raidz(1, 12, vec![raidz(1, 12, leaves(5, 3)), vdev("file", 9)]);
    assert!(refused(root(vec![raidz_of_raidz])).contains("raidz as a child of raidz"));
    assert!(refused(root(vec![with_children(vdev("root", 2), leaves(5, 3))])).contains("root"));
    assert!(refused(root(vec![vdev("floppy", 2)])).contains("not supported yet"));
    assert!(refused(root(vec![raidz(7, 12, leaves(5, 9))])).contains("parity"));
    assert!(refused(root(vec![raidz(1, 40, leaves(5, 9))])).contains("ashift"));
    assert!(refused(root(vec![raidz(1, 12, leaves(5, 300))])).contains("children"));
    assert!(refused(root(vec![vdev("file", 2), vdev("file", 2)])).contains("one guid"));
    let mut misplaced = root(vec![]);
    misplaced.remove("children");
    let mut child = vdev("file", 9);
    child.push("id", 5_u64);
    misplaced.push("children", NvValue::NvlistArray(vec![child]));
    assert!(refused(misplaced).contains("says that it is 5"));
    let mut typeless = NvList::new();
    typeless.push("guid", 2_u64);
    assert!(refused(root(vec![typeless])).contains("no type"));
}
