//! Reading where every child has everything: mirror, replacing, spare.
//!
//! One child is asked. Which one is a policy ([`ReadChoice`]); what is not a matter of policy is the order of resort: first
//! children that can be read and have not missed the block's txg, then those that have missed it, since stale bytes that pass
//! verification are not stale. A child that fails or answers wrongly is reported, and the next is asked.

use super::node::{Kind, LeafLoad, Node, NodeIndex};
use super::{Check, Depth, Extent, Faults, ReadContext, VdevTree};
use crate::fault::FaultKind;
use crate::layout::MAX_CHILDREN;
use cenote_taskq::buf::Buf;

/// How to choose among the children of a mirror that could serve a read.
pub trait ReadChoice: Send + Sync + std::fmt::Debug {
    /// What it would cost to ask this child; the cheapest is asked.
    fn cost(&self, address_bytes: u64, load: &LeafLoad) -> u64;

    /// Which of `count` equally cheap children to ask: a number below `count`.
    fn among_equals(&self, address_bytes: u64, count: usize) -> usize;
}

/// The least busy child, a near one where heads must move; among equals, by regions of the address space, so that
/// neighbouring blocks go to the same child and no child idles.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl LeastLoaded {
    /// Size of a region as a power of two (`vdev_mirror_shift` of OpenZFS before it counted pending reads).
    const REGION_SHIFT: u32 = 21;
    /// Price of a seek on a rotating device, in pending reads (`zfs_vdev_mirror_rotating_seek_inc`).
    const SEEK: u64 = 5;
    /// Seeks shorter than this cost half (`zfs_vdev_mirror_rotating_seek_offset`).
    const NEAR_BYTES: u64 = 1 << 20;
    /// Price of a discontinuity elsewhere: neighbours may be merged (`zfs_vdev_mirror_non_rotating_seek_inc`).
    const JUMP: u64 = 1;
}

impl ReadChoice for LeastLoaded {
    fn cost(&self, address_bytes: u64, load: &LeafLoad) -> u64 {
        let distance = load.next_address().abs_diff(address_bytes);
        let seek = match (distance, load.is_rotational()) {
            (0, _) => 0,
            (_, false) => Self::JUMP,
            (1..Self::NEAR_BYTES, true) => Self::SEEK / 2,
            (_, true) => Self::SEEK,
        };
        u64::from(load.pending()) + seek
    }

    fn among_equals(&self, address_bytes: u64, count: usize) -> usize {
        ((address_bytes >> Self::REGION_SHIFT) % count.max(1) as u64) as usize
    }
}

/// A set of children, without allocation.
#[derive(Clone, Copy, Default)]
pub(super) struct ChildSet([u64; MAX_CHILDREN.div_ceil(64)]);

impl ChildSet {
    pub(super) fn insert(&mut self, child: usize) {
        self.0[child / 64] |= 1 << (child % 64);
    }

    pub(super) const fn contains(&self, child: usize) -> bool {
        self.0[child / 64] & (1 << (child % 64)) != 0
    }
}

impl VdevTree {
    /// Reads from any child whose bytes pass the check.
    pub(super) async fn read_mirror(
        &self,
        node: &Node,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext,
        depth: Depth,
    ) -> Result<Buf, Faults> {
        let mut tried = ChildSet::default();
        let mut faults = Faults::default();
        loop {
            let Some((child, stale)) = self.choose_child(node, extent, context, &tried, &mut faults, depth) else {
                return Err(faults);
            };
            tried.insert(child);
            let child = self.node(node.children[child]);
            let read = match &child.kind {
                Kind::Leaf(leaf) => {
                    let pending = leaf.load.begin(extent.address, extent.len);
                    let read = self.read_leaf(child, leaf, extent, check, context, stale).await;
                    drop(pending);
                    read
                }
                _ => self.read_nested(child, extent, check, context, depth).await,
            };
            match read {
                Ok(buf) => return Ok(buf),
                Err(more) => faults.extend(more),
            }
        }
    }

    /// The next child to ask, and whether it is stale. Children that cannot be asked are marked as tried.
    fn choose_child(
        &self,
        node: &Node,
        extent: Extent,
        context: ReadContext,
        tried: &ChildSet,
        faults: &mut Faults,
        depth: Depth,
    ) -> Option<(usize, bool)> {
        let policy = &*self.read_choice;
        let is_candidate = |(position, child): (usize, &NodeIndex)| {
            let child = self.node(*child);
            (!tried.contains(position)
                && self.is_readable(child, extent.address, depth)
                && !self.has_missed(child, extent.address, context.birth, depth))
            .then(|| (position, self.child_cost(child, extent.address)))
        };
        let (mut cheapest, mut equals) = (u64::MAX, 0);
        for (_, cost) in node.children.iter().enumerate().filter_map(is_candidate) {
            if cost < cheapest {
                (cheapest, equals) = (cost, 0);
            }
            equals += usize::from(cost == cheapest);
        }
        if equals != 0 {
            let pick = if equals == 1 { 0 } else { policy.among_equals(extent.address, equals).min(equals - 1) };
            // Costs move while we look: whoever is now the pick-th candidate at that price, else the first candidate.
            let mut candidates = node.children.iter().enumerate().filter_map(is_candidate);
            let first = candidates.next();
            let chosen = first.into_iter().chain(candidates).filter(|(_, cost)| *cost <= cheapest).nth(pick).or(first);
            if let Some((position, _)) = chosen {
                return Some((position, false));
            }
        }
        // Whoever is left is stale or cannot be read at all.
        for (position, child) in node.children.iter().enumerate() {
            let child = self.node(*child);
            if tried.contains(position) {
                continue;
            }
            if self.is_readable(child, extent.address, depth) {
                return Some((position, true));
            }
            faults.add(self.fault(child, extent, FaultKind::Unavailable));
        }
        None
    }

    fn child_cost(&self, child: &Node, address: u64) -> u64 {
        match &child.kind {
            Kind::Leaf(leaf) => self.read_choice.cost(address, &leaf.load),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_taskq::sync::atomic::{AtomicU32, AtomicU64};

    fn load(rotational: bool, pending: u32, next_address: u64) -> LeafLoad {
        LeafLoad { rotational, pending: AtomicU32::new(pending), next_address: AtomicU64::new(next_address) }
    }

    #[test]
    fn busy_and_distant_children_cost_more() {
        let cost = |load: &LeafLoad| LeastLoaded.cost(1 << 30, load);
        assert_eq!(cost(&load(true, 0, 1 << 30)), 0);
        assert_eq!(cost(&load(true, 0, (1 << 30) + 4096)), 2);
        assert_eq!(cost(&load(true, 0, 0)), 5);
        assert_eq!(cost(&load(false, 0, 0)), 1);
        assert_eq!(cost(&load(false, 7, 1 << 30)), 7);
    }

    #[test]
    fn equals_share_the_address_space_by_regions() {
        let picks: Vec<_> = (0..6_u64).map(|region| LeastLoaded.among_equals((region << 21) + 5, 3)).collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_pending_read_counts_until_it_is_dropped() {
        let load = load(false, 0, 0);
        let pending = load.begin(100, 50);
        assert_eq!((load.pending(), load.next_address()), (1, 150));
        drop(pending);
        assert_eq!(load.pending(), 0);
    }
}
