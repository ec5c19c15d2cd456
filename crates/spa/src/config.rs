//! A pool's configuration: from labels (provisional) and from the MOS (trusted).

use std::collections::BTreeMap;

use cenote_format::ids::Guid;
use cenote_format::nvlist::{NvList, NvValue};

/// The version of pools with features.
pub(crate) const VERSION: u64 = 5000;
/// The label's entry with the guid of the pool that its pool was split from (`ZPOOL_CONFIG_SPLIT_GUID`).
pub(crate) const SPLIT_GUID: &str = "split_guid";
/// Blocks of the object with the configuration.
pub(crate) const CONFIG_BLOCK_BYTES: u32 = 16 << 10;

/// The state of a pool, as a label or the MOS records it (`pool_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// In use, or not closed cleanly.
    Active,
    /// Exported.
    Exported,
    /// Destroyed.
    Destroyed,
    /// A hot spare's label.
    Spare,
    /// A cache device's label.
    L2Cache,
    /// Another number.
    Other(u64),
}

impl PoolState {
    /// From the number on disk.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Active,
            1 => Self::Exported,
            2 => Self::Destroyed,
            3 => Self::Spare,
            4 => Self::L2Cache,
            other => Self::Other(other),
        }
    }
}

/// Top-level vdevs of one pool at most: DVAs have 24 bits for them, pools have some hundreds at most.
const TOPS_MAX: u64 = 1 << 16;

/// One label's word about a top-level vdev.
pub(crate) struct LabelConfig<'a> {
    /// The label's txg.
    pub(crate) txg: u64,
    /// The whole nvlist.
    pub(crate) list: &'a NvList,
}

/// Puts a provisional root together: each top-level vdev as the newest label that describes it has it; holes where
/// labels say that there are some; the rest missing.
pub(crate) fn provisional(pool_guid: Guid, labels: &[LabelConfig<'_>]) -> NvList {
    let Some(newest) = labels.iter().max_by_key(|label| label.txg) else { return NvList::default() };
    let mut tops: BTreeMap<u64, (u64, &NvList)> = BTreeMap::new();
    for label in labels {
        let Some(tree) = label.list.list("vdev_tree") else { continue };
        let Some(id) = tree.u64("id") else { continue };
        match tops.get(&id) {
            Some((txg, _)) if *txg >= label.txg => {}
            _ => drop(tops.insert(id, (label.txg, tree))),
        }
    }
    let highest = tops.keys().next_back().map_or(0, |id| id.saturating_add(1));
    let count = newest.list.u64("vdev_children").unwrap_or(highest).clamp(highest.min(TOPS_MAX), TOPS_MAX);
    let holes = newest.list.u64s("hole_array").unwrap_or_default();
    let children: Vec<NvList> = (0..count)
        .map(|id| match tops.get(&id) {
            Some((_, tree)) => (*tree).clone(),
            None => placeholder(if holes.contains(&id) { "hole" } else { "missing" }, id),
        })
        .collect();
    root_of(pool_guid, children)
}

fn placeholder(kind: &str, id: u64) -> NvList {
    let mut list = NvList::default();
    list.push("type", kind);
    list.push("id", id);
    list.push("guid", 0_u64);
    list
}

fn root_of(pool_guid: Guid, children: Vec<NvList>) -> NvList {
    let mut root = NvList::default();
    root.push("type", "root");
    root.push("id", 0_u64);
    root.push("guid", pool_guid.0);
    root.push("children", NvValue::NvlistArray(children));
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(txg: u64, id: u64, ashift: u64, count: u64) -> NvList {
        let mut tree = NvList::default();
        tree.push("type", "file");
        tree.push("id", id);
        tree.push("guid", 100 + id);
        tree.push("ashift", ashift);
        let mut list = NvList::default();
        list.push("txg", txg);
        list.push("vdev_children", count);
        list.push("vdev_tree", tree);
        list
    }

    #[test]
    fn the_newest_label_of_each_vdev_wins_and_gaps_are_filled() {
        let (old, new, other) = (label(5, 0, 9, 2), label(9, 0, 12, 4), label(7, 3, 12, 4));
        let labels: Vec<_> =
            [&old, &new, &other].map(|list| LabelConfig { txg: list.u64("txg").unwrap(), list }).into_iter().collect();
        let root = provisional(Guid(1), &labels);
        let children = root.lists("children").unwrap();
        assert_eq!(children.len(), 4);
        assert_eq!(children[0].u64("ashift"), Some(12));
        assert_eq!(children[1].str("type"), Some("missing"));
        assert_eq!(children[3].u64("guid"), Some(103));
    }
}
