//! Children of stripes with several devices: while one is replaced, or a spare stands for it. Any of them is enough.

use std::collections::BTreeSet;

use crate::common;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::fault::FaultKind;
use cenote_vdev::tree::ReadContext;
use common::made::{Made, leaves, pattern, raidz, vdev, with_children};

const BIRTH: Txg = Txg(100);
const DATA: usize = 3;
const SECTOR_BYTES: usize = 4096;
/// The first devices of children, and the second ones of those that have two.
const FIRST: u64 = 10;
const SECOND: u64 = 40;

/// The layouts of stripes.
#[derive(Clone, Copy, Debug)]
enum Stripe {
    Raidz,
    Draid,
    /// Its distributed spare stands for a child.
    Spared,
}

/// The fault of the device of a child that is not the good one.
#[derive(Clone, Copy, Debug)]
enum Ill {
    /// It was not there for the block, and its log says so.
    Stale,
    /// It lost the block, and its log does not say so; the good device's log says that it lacks the block, and is wrong.
    StaleUnknown,
    Missing,
    /// The device answers with an error.
    Unreadable,
    Corrupt,
}

/// A stripe, of which some children have two devices below a vdev of this kind.
fn made(stripe: Stripe, parity: usize, kind: &str, nested: usize) -> Made {
    let spares = usize::from(matches!(stripe, Stripe::Spared));
    let mut children = leaves(FIRST, parity + DATA + spares);
    for (at, child) in (0_u64..).zip(children.iter_mut().take(nested)) {
        let second = match stripe {
            Stripe::Spared => {
                let mut spare = vdev("dspare", SECOND + at);
                spare.push("top_guid", 500_u64);
                spare.push("spareid", at);
                spare
            }
            _ => vdev("file", SECOND + at),
        };
        *child = with_children(vdev(kind, 70 + at), vec![vdev("file", FIRST + at), second]);
    }
    Made::new(vec![match stripe {
        Stripe::Raidz => raidz(parity as u64, 12, children),
        _ => draid(parity, spares, children),
    }])
}

fn draid(parity: usize, spares: usize, children: Vec<NvList>) -> NvList {
    let mut list = vdev("draid", 500);
    list.push("ashift", 12_u64);
    list.push("nparity", parity as u64);
    list.push("draid_ndata", DATA as u64);
    list.push("draid_nspares", spares as u64);
    list.push("draid_ngroups", 1_u64);
    with_children(list, children)
}

/// Goal: a block is read if one device of each child has its part, whatever the other one has, and as many of the other children as there is parity
/// have lost theirs. Method: all kinds of stripes, of children with two devices, and of faults, with either device as the good one; a device that is
/// read at first and is wrong is thereby among them, whichever that is.
#[test]
fn a_child_is_as_good_as_the_best_of_its_devices() {
    use Ill::{Corrupt, Missing, Stale, StaleUnknown, Unreadable};
    let mut count = 0;
    for stripe in [Stripe::Raidz, Stripe::Draid, Stripe::Spared] {
        let nested_max = if matches!(stripe, Stripe::Spared) { 1 } else { 2 };
        for (parity, kind, nested) in (1..=3).flat_map(|parity| {
            ["replacing", "spare"].into_iter().flat_map(move |kind| (1..=nested_max).map(move |n| (parity, kind, n)))
        }) {
            for ill in [Stale, StaleUnknown, Missing, Unreadable, Corrupt] {
                for good in 0..1 << nested {
                    let what = format!("{stripe:?}{parity}, {nested} {kind}, {ill:?}, good devices {good:b}");
                    one_is_enough(stripe, parity, kind, nested, ill, good, &what);
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 3 * 2 * 5 * (2 + 4) * 2 + 3 * 2 * 5 * 2, "all were tried");
}

/// `good`: a bit for each child with two devices, set if the second is the good one.
fn one_is_enough(stripe: Stripe, parity: usize, kind: &str, nested: usize, ill: Ill, good: u64, what: &str) {
    let made = made(stripe, parity, kind, nested);
    let want = pattern(DATA * SECTOR_BYTES, 3);
    // A place where the children with two devices have a part of the block each.
    let row_bytes = ((parity + DATA) * SECTOR_BYTES) as u64;
    let group_bytes = ((parity + DATA) as u64) << 24;
    let children_at = |offset: u64| -> BTreeSet<u64> {
        made.map(offset, want.len() as u64, BIRTH).columns().iter().map(|column| u64::from(column.child)).collect()
    };
    let step = if matches!(stripe, Stripe::Raidz) { row_bytes } else { group_bytes };
    let offset =
        (0..40).map(|at| at * step).find(|offset| (0..nested as u64).all(|at| children_at(*offset).contains(&at)));
    let offset = offset.expect("some block has a part on each of the first children");
    made.put(offset, &want, BIRTH);
    for other in children_at(offset).range(nested as u64..).take(parity) {
        made.disk(FIRST + other).spoil_all();
    }
    let (mut missing, mut missed, mut spoilt) = (Vec::new(), Vec::new(), BTreeSet::new());
    for at in 0..nested as u64 {
        let (bad, good) = if good >> at & 1 == 1 { (FIRST + at, SECOND + at) } else { (SECOND + at, FIRST + at) };
        let bad_disk = match (stripe, bad >= SECOND) {
            (Stripe::Spared, true) => spare_disk(&made, parity, offset, at),
            _ => bad,
        };
        match ill {
            Ill::Missing => missing.push(bad_disk),
            Ill::Unreadable => made.disk(bad_disk).fail(0..Made::DISK_BYTES),
            Ill::Stale => missed.push(bad),
            Ill::StaleUnknown => missed.push(good),
            Ill::Corrupt => {}
        }
        if matches!(ill, Ill::Stale | Ill::StaleUnknown | Ill::Corrupt) {
            made.disk(bad_disk).spoil_all();
            spoilt.insert(bad_disk);
        }
    }
    let tree = made.tree(&missing);
    let mut txgs = Dtl::new();
    txgs.insert(90..110);
    missed.iter().for_each(|guid| assert!(tree.control().unwrap().set_dtl(Guid(*guid), txgs.clone()), "{what}"));
    let verify = |bytes: &[u8]| bytes == want;
    let context = ReadContext::new(BIRTH);
    let read = made.runtime.block_on(tree.read(VdevId(0), offset, want.len() as u64, &verify, &context));
    let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(read[..], want, "{what}");
    // No good device is blamed for what another one of its child has.
    for fault in tree.fault_log().drain().iter().filter(|fault| fault.kind == FaultKind::Checksum) {
        let guid = fault.guid.0;
        let is_other = (FIRST + nested as u64..SECOND).contains(&guid);
        assert!(is_other || spoilt.contains(&guid) || (70..80).contains(&guid), "{what}: {fault}");
    }
    let copies = made.runtime.block_on(tree.read_copies(VdevId(0), offset, want.len() as u64, &verify, &context));
    assert_eq!(copies.unwrap_or_else(|error| panic!("{what}: {error}")).block[..], want, "{what}");
}

/// The disk on which a distributed spare has the part of a block that belongs to a child.
fn spare_disk(made: &Made, parity: usize, offset: u64, child: u64) -> u64 {
    let map = made.map(offset, (DATA * SECTOR_BYTES) as u64, BIRTH);
    let column = map.columns().iter().find(|column| u64::from(column.child) == child).expect("it has a part");
    let width = parity + DATA + 1;
    let draid = cenote_vdev::layout::draid::Draid::new(12, parity as u64, DATA as u64, 1, 1, width);
    let address = column.address_bytes - cenote_format::label::START_BYTES;
    FIRST + u64::from(draid.unwrap().spare_child(0, address).expect("a spare is everywhere"))
}
