//! Leaves that are older than the leaves beside them, by their labels alone.
//!
//! A commit writes its uberblock to every leaf of the top-level vdevs that it chooses (all, in this version; some, in OpenZFS). A
//! leaf that did not take it while another leaf of its vdev did is *behind*:
//!
//! * By one commit: the power went in the middle of it, or the leaf refused it and no txg came after. The leaf has every block of
//!   the txg, since these were stable before, or its dirty time log says that it lacks some; before the next commit
//!   the leaf gets the uberblock that it lacks (or it would be behind by two if power went in that one too), and the commit brings its
//!   labels up to date, or fails and is noted. Until then the last txg is lost with the other leaves. An exported pool may stay so for long,
//!   so there the leaf is shown as if it had missed the txg.
//! * By more: it was put back from a copy, or the writer of the pool did not note the missed txgs. Alone it would pass for an older
//!   state of the pool, whose freed blocks were overwritten since. It is taken to have missed all txgs in between.

use std::collections::BTreeMap;

use cenote_format::ids::{Guid, Txg};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::dtl::Dtl;

use crate::FoundLeaf;

/// A leaf whose newest uberblock is older than the pool's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// The leaf.
    pub(crate) guid: Guid,
    /// Txgs that it has missed at least.
    pub(crate) missed: Dtl,
    /// It has missed the last commit alone: it has the blocks of that txg, unless its dirty time log says otherwise.
    pub(crate) is_one_commit: bool,
}

/// The leaves that have no uberblock as new as the one of `txg`, which the pool was opened at, while a leaf of the same top-level
/// vdev has.
pub(crate) fn behind(root: &VdevConfig, found: &BTreeMap<Guid, FoundLeaf>, txg: Txg) -> Vec<Behind> {
    let txgs = |leaf: &FoundLeaf| leaf.uberblocks.iter().map(|copy| copy.uberblock.txg).collect::<Vec<_>>();
    let mut behind = Vec::new();
    for top in &root.children {
        let leaves: Vec<(Guid, Vec<Txg>)> = top
            .leaves()
            .into_iter()
            .filter_map(|leaf| found.get(&leaf.guid))
            .map(|leaf| (leaf.guid, txgs(leaf)))
            .collect();
        let all = || leaves.iter().flat_map(|(_, txgs)| txgs).copied();
        if !all().any(|at| at >= txg) {
            continue;
        }
        let before = all().filter(|at| *at < txg).max();
        for (guid, txgs) in &leaves {
            let newest = txgs.iter().max().copied();
            if newest.is_some_and(|newest| newest >= txg) {
                continue;
            }
            // Of one without any uberblock nothing is known but that it did not take the last.
            let first = newest.map_or(txg.0, |newest| newest.0 + 1);
            let missed = Dtl::of(first..txg.0.saturating_add(1));
            behind.push(Behind { guid: *guid, missed, is_one_commit: newest.is_some() && newest == before });
        }
    }
    behind
}
