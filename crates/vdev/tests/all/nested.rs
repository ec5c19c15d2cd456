//! Mirrors whose children are stripes: as good as their best child, and each child as good as its parity.

use std::sync::Arc;

use crate::common;

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_taskq::buf::Buf;
use cenote_vdev::config::VdevConfig;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::error::VdevError;
use cenote_vdev::fault::{ErrorTotals, Fault, FaultKind};
use cenote_vdev::layout::draid::Draid;
use cenote_vdev::layout::raidz::Raidz;
use cenote_vdev::tree::{CopiesReport, ReadContext, VdevState, VdevTree};
use common::made::{Made, leaves, pattern, vdev, with_children};
use proptest::prelude::*;

const TOP: VdevId = VdevId(0);
const BIRTH: Txg = Txg(100);

fn read(made: &Made, tree: &Arc<VdevTree>, offset: u64, want: &[u8]) -> Result<Buf, VdevError> {
    let verify = |bytes: &[u8]| bytes == want;
    made.runtime.block_on(tree.read(TOP, offset, want.len() as u64, &verify, &ReadContext::new(BIRTH)))
}

fn read_copies(made: &Made, tree: &Arc<VdevTree>, offset: u64, want: &[u8]) -> Result<CopiesReport, VdevError> {
    let verify = |bytes: &[u8]| bytes == want;
    made.runtime.block_on(tree.read_copies(TOP, offset, want.len() as u64, &verify, &ReadContext::new(BIRTH)))
}

fn guilty(faults: &[Fault], kind: FaultKind) -> BTreeSet<u64> {
    faults.iter().filter(|fault| fault.kind == kind).map(|fault| fault.guid.0).collect()
}

/// A raidz or draid as a mirror's child: inner vdevs record no sector size.
fn stripe(kind: &str, guid: u64, parity: u64, children: Vec<NvList>) -> NvList {
    let mut list = vdev(kind, guid);
    list.push("nparity", parity);
    if kind == "draid" {
        list.push("draid_ndata", children.len() as u64 - parity);
        list.push("draid_nspares", 0_u64);
        list.push("draid_ngroups", 1_u64);
    }
    with_children(list, children)
}

fn mirror(kind: &str, ashift: u64, children: Vec<NvList>) -> Made {
    let mut list = vdev(kind, 500);
    list.push("ashift", ashift);
    Made::new(vec![with_children(list, children)])
}

/// The first disk of the mirror's child with this index.
const fn first_disk(child: usize) -> u64 {
    100 + 100 * child as u64
}

/// `copies` stripes alike; the disks of each count from [`first_disk`], the stripes have the guids 501, 502, ...
fn mirror_of(kind: &str, copies: usize, parity: u64, width: usize, ashift: u64) -> Made {
    let stripes = (0..copies).map(|copy| stripe(kind, 501 + copy as u64, parity, leaves(first_disk(copy), width)));
    mirror("mirror", ashift, stripes.collect())
}

/// The disks of a mirror's stripe that hold a part of a block.
fn holders(made: &Made, child: usize, offset: u64, len: u64) -> BTreeSet<u64> {
    let map = made.map_of(&made.config.children[0].children[child], offset, len, BIRTH);
    let used = map.columns().iter().filter(|column| column.size_bytes != 0);
    used.map(|column| first_disk(child) + u64::from(column.child)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However many disks lie in all stripes but one, and as many as it has parity in that one: the block is had, a
    /// scrub names every liar that holds a part of it, and nobody else is ever blamed.
    #[test]
    fn one_stripe_within_its_parity_is_enough(
        is_draid: bool, copies in 1_usize..4, parity in 1_u64..=3, data in 1_usize..4, good: prop::sample::Index,
        liars in prop::collection::vec(any::<prop::sample::Index>(), 0..=3), row in 0_u64..3000,
        size in 1_usize..40_000, ashift in prop::sample::select(vec![9_u64, 12]), seed: u64,
    ) {
        let width = parity as usize + data;
        let made = mirror_of(if is_draid { "draid" } else { "raidz" }, copies, parity, width, ashift);
        let offset = (row * if is_draid { width as u64 } else { 1 }) << ashift;
        let want = pattern(size, seed);
        made.put(offset, &want, BIRTH);
        let good = good.index(copies);
        let mut lying: BTreeSet<u64> =
            liars.iter().take(parity as usize).map(|liar| first_disk(good) + liar.index(width) as u64).collect();
        for copy in (0..copies).filter(|copy| *copy != good) {
            lying.extend(first_disk(copy)..first_disk(copy) + width as u64);
        }
        lying.iter().for_each(|guid| made.disk(*guid).spoil_all());
        let tree = made.tree(&[]);
        prop_assert_eq!(&read(&made, &tree, offset, &want).unwrap()[..], &want[..]);
        for fault in tree.fault_log().drain() {
            prop_assert!(lying.contains(&fault.guid.0), "{}", fault);
        }
        let report = read_copies(&made, &tree, offset, &want).unwrap();
        prop_assert_eq!(&report.block[..], &want[..]);
        let holding: BTreeSet<u64> =
            (0..copies).flat_map(|copy| holders(&made, copy, offset, size as u64)).collect();
        prop_assert_eq!(report.read_count, {
            let columns = |copy: usize| {
                let vdev = &made.config.children[0].children[copy];
                made.map_of(vdev, offset, size as u64, BIRTH).columns().iter().filter(|c| c.size_bytes != 0).count()
            };
            (0..copies).map(columns).sum::<usize>()
        });
        prop_assert_eq!(guilty(&report.bad, FaultKind::Checksum), &holding & &lying);
    }

    /// A mirror takes what the child takes that takes most.
    #[test]
    fn a_mirror_takes_as_much_as_its_largest_child(psize in 1_u64..300_000, parity in 1_u64..=3, data in 1_usize..6) {
        let width = parity as usize + data;
        let raidz = Raidz::new(12, parity, width, &[], false).unwrap().psize_to_asize(psize, BIRTH);
        let draid = Draid::new(12, parity, data as u64, 0, 1, width).unwrap().psize_to_asize(psize);
        let asize = |children| mirror("mirror", 12, children).tree(&[]).psize_to_asize(TOP, psize, BIRTH);
        let stripe = |kind, guid| stripe(kind, guid, parity, leaves(guid + 1, width));
        prop_assert_eq!(asize(vec![stripe("raidz", 600), vdev("file", 10)]), Some(raidz));
        prop_assert_eq!(asize(vec![stripe("draid", 600), vdev("file", 10)]), Some(draid));
        prop_assert_eq!(asize(vec![stripe("raidz", 600), stripe("draid", 700)]), Some(raidz.max(draid)));
        prop_assert_eq!(asize(leaves(10, 2)), Some(psize.next_multiple_of(4096)));
    }
}

/// Leaves, mirrors and stripes side by side, below mirror, replacing and spare.
#[test]
fn any_child_of_a_mixed_mirror_is_enough() {
    let want = pattern(50_000, 3);
    for kind in ["mirror", "replacing", "spare"] {
        let children = || {
            let inner = with_children(vdev("mirror", 503), leaves(300, 2));
            vec![stripe("raidz", 501, 1, leaves(100, 3)), vdev("file", 200), inner]
        };
        let groups: [&[u64]; 3] = [&[100, 101, 102], &[200], &[300, 301]];
        for good in 0..3 {
            let others: Vec<u64> =
                (0..3).filter(|group| *group != good).flat_map(|group| groups[group]).copied().collect();
            // Absent, then lying.
            let made = mirror(kind, 12, children());
            made.put(1 << 20, &want, BIRTH);
            let tree = made.tree(&others);
            assert_eq!(read(&made, &tree, 1 << 20, &want).unwrap()[..], want);
            assert_eq!(tree.status().children[0].state, VdevState::Degraded);
            let report = read_copies(&made, &tree, 1 << 20, &want).unwrap();
            assert_eq!(guilty(&report.bad, FaultKind::Unavailable), others.iter().copied().collect());
            others.iter().for_each(|guid| made.disk(*guid).spoil_all());
            let tree = made.tree(&[]);
            assert_eq!(read(&made, &tree, 1 << 20, &want).unwrap()[..], want);
            let report = read_copies(&made, &tree, 1 << 20, &want).unwrap();
            assert_eq!(guilty(&report.bad, FaultKind::Checksum), others.iter().copied().collect());
        }
    }
}

/// A stripe that lies beyond its parity, with nobody to contradict it, is blamed as a whole and counted.
#[test]
fn a_mirror_of_hopeless_stripes_says_that_it_read_wrong_bytes() {
    for copies in [false, true] {
        let made = mirror_of("raidz", 2, 1, 4, 12);
        let want = pattern(3 * 4096, 4);
        made.put(0, &want, BIRTH);
        made.disks.values().for_each(|disk| disk.spoil_all());
        let tree = made.tree(&[]);
        let error = match copies {
            false => read(&made, &tree, 0, &want).unwrap_err(),
            true => read_copies(&made, &tree, 0, &want).unwrap_err(),
        };
        assert!(error.is_checksum(), "{error}");
        let VdevError::Unreadable { faults, .. } = &error else { panic!("{error}") };
        assert_eq!(guilty(faults, FaultKind::Checksum), [501, 502].into());
        for guid in [500, 501, 502] {
            let totals = tree.error_counts(Guid(guid)).unwrap().totals();
            assert_eq!(totals, ErrorTotals { checksum: 1, ..Default::default() }, "{guid}");
        }
    }
}

#[test]
fn states_add_up_through_every_level() {
    let made = mirror_of("raidz", 2, 1, 3, 12);
    let want = pattern(9000, 5);
    made.put(0, &want, BIRTH);
    let states = |lost: &[u64]| {
        let tree = made.tree(lost);
        let top = tree.status().children[0].clone();
        (top.state, top.children.iter().map(|child| child.state).collect::<Vec<_>>(), read(&made, &tree, 0, &want))
    };
    use VdevState::{Degraded, Online, Unavailable};
    let check = |lost: &[u64], top: VdevState, children: [VdevState; 2]| {
        let (state, found, read) = states(lost);
        assert_eq!((state, &found[..]), (top, &children[..]), "without {lost:?}");
        assert_eq!(read.is_ok(), top != Unavailable, "without {lost:?}");
    };
    check(&[], Online, [Online, Online]);
    check(&[100], Degraded, [Degraded, Online]);
    check(&[100, 201], Degraded, [Degraded, Degraded]);
    check(&[100, 101], Degraded, [Unavailable, Online]);
    check(&[100, 101, 202], Degraded, [Unavailable, Degraded]);
    check(&[100, 101, 201, 202], Unavailable, [Unavailable, Unavailable]);
}

/// A stripe with more stale children than parity is not asked while another has the block.
#[test]
fn a_stale_stripe_is_the_last_resort() {
    let made = mirror_of("raidz", 2, 1, 3, 12);
    let want = pattern(8192, 6);
    made.put(0, &want, BIRTH);
    let missed = |tree: &Arc<VdevTree>, guids: &[u64]| {
        let mut txgs = Dtl::new();
        txgs.insert(90..110);
        guids.iter().for_each(|guid| assert!(tree.control().unwrap().set_dtl(Guid(*guid), txgs.clone())));
    };
    let tree = made.tree(&[]);
    missed(&tree, &[100, 101]);
    for region in 0..4 {
        made.put(region << 21, &want, BIRTH);
        assert_eq!(read(&made, &tree, region << 21, &want).unwrap()[..], want);
    }
    assert_eq!((100..103).map(|guid| made.disk(guid).reads()).sum::<u64>(), 0);
    // It is all there is, and has the block after all.
    let tree = made.tree(&[200, 201]);
    missed(&tree, &[100, 101]);
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
    // One stale child is what parity is for.
    let tree = made.tree(&[200, 201]);
    missed(&tree, &[100]);
    made.disk(100).spoil_all();
    assert_eq!(read(&made, &tree, 0, &want).unwrap()[..], want);
}

#[test]
fn a_device_being_replaced_below_a_nested_stripe_is_read_from_either() {
    let mut children = leaves(100, 3);
    children[1] = with_children(vdev("replacing", 50), vec![vdev("file", 101), vdev("file", 150)]);
    let made = mirror("mirror", 12, vec![stripe("raidz", 501, 1, children), stripe("raidz", 502, 1, leaves(200, 3))]);
    let want = pattern(8192, 7);
    made.put(0, &want, BIRTH);
    made.disk(150).spoil_all();
    for lost in [101, 150] {
        let tree = made.tree(&[lost, 102, 200, 201]);
        assert_eq!(read(&made, &tree, 0, &want).is_ok(), lost == 150);
    }
    let report = read_copies(&made, &made.tree(&[]), 0, &want).unwrap();
    assert_eq!(guilty(&report.bad, FaultKind::Checksum), [150].into());
}

#[test]
fn a_stripe_below_a_stripe_is_refused() {
    let parse = |top: NvList| VdevConfig::parse(&with_children(vdev("root", 1), vec![top]));
    let below = with_children(vdev("replacing", 50), vec![stripe("raidz", 501, 1, leaves(100, 3)), vdev("file", 9)]);
    let mut children = leaves(200, 3);
    children.push(below);
    let error = parse(stripe("raidz", 500, 1, children)).unwrap_err().to_string();
    assert!(error.contains("a stripe below a raidz"), "{error}");
    let mut deep = vdev("file", 60);
    for level in 0..12 {
        deep = with_children(vdev("mirror", 61 + level), vec![deep]);
    }
    assert!(parse(deep).unwrap_err().to_string().contains("nested too deeply"));
}
