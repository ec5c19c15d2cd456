//! Frees of a metaslab that may not be used yet.
//!
//! A freed range waits for two txgs, so that the last txgs on disk stay whole. Where a *view* pins an older txg, the range waits until
//! no pin needs it: one that was freed in txg F is a part of the txgs before F.
//!
//! Ranges that the same pins need are kept in one set, so there are no more sets than pins.

use std::ops::Range;

use cenote_format::ids::Txg;
use cenote_taskq::mutant::{self, Mutant};

use crate::{RangeError, RangeTree};

use super::TXG_DEFER_SIZE;

/// The reasons to keep freed blocks from reuse once a txg is on disk.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// The last txgs on disk stay whole. Not where space is short, or the vdev is leaving: then what is freed can be used at once.
    pub may_defer: bool,
    /// Txgs that are pinned.
    pub pins: &'a [Txg],
}

impl Keep<'_> {
    /// Frees wait for two txgs, and nothing is pinned.
    pub const USUAL: Keep<'static> = Keep { may_defer: true, pins: &[] };

    /// Whether a pin needs what was freed in this txg.
    #[must_use]
    pub fn needs(&self, freed: Txg) -> bool {
        self.pins.iter().any(|pin| *pin < freed)
    }

    /// Whether a pin needs what was freed in the later txg, and not what was freed in the earlier one.
    fn tells_apart(&self, earlier: Txg, later: Txg) -> bool {
        self.pins.iter().any(|pin| earlier <= *pin && *pin < later)
    }
}

/// See the module comment.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    waiting: [RangeTree; TXG_DEFER_SIZE],
    /// With the last txg in which some of it was freed, in order.
    kept: Vec<(Txg, RangeTree)>,
}

impl Deferred {
    pub(super) fn new(empty: &RangeTree) -> Self {
        Self { waiting: std::array::from_fn(|_| empty.clone()), kept: Vec::new() }
    }

    /// All sets. They are disjoint.
    pub(super) fn trees(&self) -> impl Iterator<Item = &RangeTree> {
        self.waiting.iter().chain(self.kept.iter().map(|(_, tree)| tree))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trees().all(RangeTree::is_empty)
    }

    pub(super) fn total(&self) -> u64 {
        self.trees().map(RangeTree::total).sum()
    }

    /// Bytes that are kept for pins alone.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|(_, tree)| tree.total()).sum()
    }

    /// The txg is on disk, and `freed` was freed in it: the sets that can be used now.
    pub(super) fn sync_done(
        &mut self,
        txg: Txg,
        freed: RangeTree,
        keep: &Keep<'_>,
    ) -> Result<Vec<RangeTree>, RangeError> {
        let slots = if mutant::is(Mutant::DeferOnce) { 1 } else { TXG_DEFER_SIZE as u64 };
        let index = (txg.0 % slots) as usize;
        let due = std::mem::replace(&mut self.waiting[index], freed);
        let of = Txg(txg.0.saturating_sub(slots));
        let mut usable = Vec::new();
        if due.is_empty() || !keep.needs(of) {
            usable.push(due);
        } else {
            match self.kept.last_mut() {
                Some((last, tree)) if !keep.tells_apart(*last, of) => {
                    *last = of;
                    tree.add_all(&due)?;
                }
                last => {
                    assert!(
                        last.is_none_or(|(last, _)| *last < of),
                        "what is kept is in the order of txgs (invariant 8)"
                    );
                    self.kept.push((of, due));
                }
            }
        }
        if !keep.may_defer {
            debug_assert!(keep.pins.is_empty(), "where space is short nothing is pinned");
            usable.push(self.waiting[index].take());
        }
        for (_, tree) in self.kept.extract_if(.., |(last, _)| !keep.needs(*last)) {
            usable.push(tree);
        }
        let is_kept = |range: Range<u64>| self.trees().any(|tree| tree.overlap(range.clone()).is_some());
        debug_assert!(
            !usable.iter().flat_map(RangeTree::iter).any(is_kept),
            "what can be used is in no set of frees that wait (invariants 4 and 8)"
        );
        Ok(usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(range: std::ops::Range<u64>) -> RangeTree {
        let mut tree = RangeTree::new(0, 1 << 20, 9);
        if !range.is_empty() {
            tree.add(range).unwrap();
        }
        tree
    }

    /// A txg in which 512 bytes are freed, at a place of its own: the txgs whose frees can be used now.
    fn usable(deferred: &mut Deferred, txg: u64, pins: &[Txg]) -> Vec<u64> {
        let freed = tree(txg * 512..(txg + 1) * 512);
        let trees = deferred.sync_done(Txg(txg), freed, &Keep { may_defer: true, pins }).unwrap();
        let mut txgs: Vec<u64> =
            trees.iter().flat_map(RangeTree::iter).flat_map(|range| range.start / 512..range.end / 512).collect();
        txgs.sort_unstable();
        txgs
    }

    #[test]
    fn what_a_pinned_txg_has_is_kept_until_the_pin_is_gone_and_no_longer() {
        let mut deferred = Deferred::new(&tree(0..0));
        let mut seen = Vec::new();
        for txg in 1..=10 {
            let pins: &[Txg] = if txg >= 5 { &[Txg(4)] } else { &[] };
            seen.extend(usable(&mut deferred, txg, pins));
        }
        // Ranges freed in txg 4 are no part of txg 4.
        assert_eq!(seen, [1, 2, 3, 4]);
        assert_eq!((deferred.kept_bytes(), deferred.total()), (4 * 512, 6 * 512));
        assert_eq!(usable(&mut deferred, 11, &[]), [5, 6, 7, 8, 9]);
        assert_eq!(deferred.kept_bytes(), 0);
    }

    #[test]
    fn of_two_pins_each_keeps_what_it_needs() {
        let mut deferred = Deferred::new(&tree(0..0));
        let mut seen = Vec::new();
        for txg in 1..=12 {
            let pins: Vec<Txg> = [3, 7].into_iter().filter(|pin| *pin < txg).map(Txg).collect();
            seen.extend(usable(&mut deferred, txg, &pins));
        }
        assert_eq!(seen, [1, 2, 3]);
        // The older one goes, and what the younger one needs stays.
        assert_eq!(usable(&mut deferred, 13, &[Txg(7)]), [4, 5, 6, 7]);
        assert_eq!(usable(&mut deferred, 14, &[]), [8, 9, 10, 11, 12]);
    }
}
