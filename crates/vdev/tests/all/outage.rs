//! The txgs that a vdev cannot be relied on for: the tree's answer agrees with counting, txg by txg, the children that have it.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::NvList;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::tree::VdevState;
use common::made::{Made, leaves, raidz, vdev, with_children};
use proptest::prelude::*;

const TOP: VdevId = VdevId(0);
/// Txgs that are tried.
const TXGS: u64 = 24;

/// A vdev as the model has it: how many children it can do without.
enum Model {
    Leaf(u64),
    Group(usize, Vec<Model>),
}

impl Model {
    /// A block of this txg can be read, given the leaves that have it.
    fn has(&self, leaf_has: &dyn Fn(u64) -> bool) -> bool {
        match self {
            Self::Leaf(guid) => leaf_has(*guid),
            Self::Group(spare_count, children) => {
                children.iter().filter(|child| !child.has(leaf_has)).count() <= *spare_count
            }
        }
    }
}

fn leaf_models(from: u64, count: u64) -> Vec<Model> {
    (from..from + count).map(Model::Leaf).collect()
}

fn group(kind: &str, guid: u64, children: Vec<NvList>) -> NvList {
    let mut list = vdev(kind, guid);
    list.push("ashift", 12_u64);
    with_children(list, children)
}

/// Trees, each as it is configured and as the model has it. Their leaves' guids are 10 and up.
fn trees() -> Vec<(&'static str, NvList, Model)> {
    let replaced = || {
        let mut children = leaves(10, 2);
        children.push(group("replacing", 501, leaves(12, 2)));
        children
    };
    let replaced_model = |spare_count| {
        let mut children = leaf_models(10, 2);
        children.push(Model::Group(1, leaf_models(12, 2)));
        Model::Group(spare_count, children)
    };
    let mut single = vdev("file", 10);
    single.push("ashift", 12_u64);
    single.push("id", 0_u64);
    vec![
        ("single", single, Model::Leaf(10)),
        ("mirror", group("mirror", 500, leaves(10, 2)), Model::Group(1, leaf_models(10, 2))),
        ("mirror of three", group("mirror", 500, leaves(10, 3)), Model::Group(2, leaf_models(10, 3))),
        ("raidz1", raidz(1, 12, leaves(10, 4)), Model::Group(1, leaf_models(10, 4))),
        ("raidz2", raidz(2, 12, leaves(10, 5)), Model::Group(2, leaf_models(10, 5))),
        ("raidz1 with one replaced", raidz(1, 12, replaced()), replaced_model(1)),
        ("mirror with one replaced", group("mirror", 500, replaced()), replaced_model(2)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn an_outage_is_what_too_few_leaves_have(
        kind in 0..trees().len(),
        missed in prop::collection::vec(prop::collection::vec((0..TXGS, 0_u64..6), 0..4), 5),
        absent in prop::collection::vec(prop::bool::weighted(0.15), 5),
        without in prop::collection::vec(prop::bool::weighted(0.15), 5),
    ) {
        let (name, list, model) = trees().swap_remove(kind);
        let made = Made::new(vec![list]);
        let mut guids: Vec<u64> = made.disks.keys().map(|guid| guid.0).collect();
        guids.sort_unstable();
        let picked = |which: &[bool]| guids.iter().zip(which).filter(|(_, is)| **is).map(|(guid, _)| *guid).collect::<Vec<_>>();
        let (absent, without) = (picked(&absent), picked(&without));
        let tree = made.tree(&absent);
        let mut sets = BTreeMap::new();
        for (guid, ranges) in guids.iter().zip(&missed) {
            let set: Dtl = ranges.iter().map(|(start, len)| *start..*start + len).collect();
            prop_assert!(tree.control().unwrap().set_dtl(Guid(*guid), set.clone()));
            sets.insert(*guid, set);
        }
        let gone = |gone: &[u64]| gone.iter().copied().map(Guid).collect::<BTreeSet<_>>();
        let outage = tree.outage(TOP, &gone(&without));
        for txg in 0..TXGS + 6 {
            let has = |guid: u64| !absent.contains(&guid) && !without.contains(&guid) && !sets[&guid].contains(Txg(txg));
            prop_assert_eq!(outage.contains(Txg(txg)), !model.has(&has), "{}: txg {}", name, txg);
        }
        // The status counts no leaf as gone that is there, and calls no vdev healthy of which a leaf lacks something.
        let status = tree.status();
        let (top, behind) = (&status.children[0], status.behind());
        prop_assert_eq!(&top.missed, &if guids.len() == 1 { sets[&10].clone() } else { tree.outage(TOP, &BTreeSet::new()) });
        for guid in guids.iter().filter(|guid| !absent.contains(guid)) {
            let is_behind = behind.iter().any(|leaf| leaf.guid.0 == *guid && leaf.state == VdevState::Degraded);
            prop_assert_eq!(is_behind, !sets[guid].is_empty(), "{}: leaf {}", name, guid);
        }
        prop_assert_eq!(status.state == VdevState::Online, behind.is_empty() && absent.is_empty());
    }
}
