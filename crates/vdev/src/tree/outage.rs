//! The txgs that a vdev cannot be relied on for, given what its leaves have missed.
//!
//! ```text
//!   leaf            what its dirty time log says; all txgs if it is not there
//!   mirror          what all of its children lack
//!   raidz, draid    what more of its children lack than it has parity
//!   draid spare     what its own log says
//! ```
//!
//! A distributed spare lies on the other children of its draid, so it loses a part of itself with each of them. It counts as one good child all
//! the same. In each row of a draid, a spare stands for another child than each other spare, and that child has no column of the row's
//! group. So a child that lacks a txg costs a row one column: its own, or that of the spare which it stands for there, never both.
//!
//! A dirty time log names txgs, not blocks. So a txg in an outage *may* have blocks that are nowhere (two legs that failed
//! different blocks of one txg both have it in their logs, and nothing is lost); a txg that is not in it has none.

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, Txg, VdevId};

use super::node::{Kind, Leaf, Node};
use super::{Topology, VdevTree};
use crate::dtl::Dtl;
use crate::fault::{FaultKind, IoCause};

impl VdevTree {
    /// The txgs whose blocks on a top-level vdev may be on none of its leaves that are there, the leaves `without` counted as
    /// gone (`DTL_OUTAGE` in OpenZFS). Empty on a vdev that is whole, and where redundancy makes up for all that was missed; all
    /// txgs where too many leaves are gone. Empty, too, for vdevs that hold no blocks of their own.
    #[must_use]
    pub fn outage(&self, vdev: VdevId, without: &BTreeSet<Guid>) -> Dtl {
        self.current.of(vdev).outage(vdev, without)
    }

    /// Whether a leaf of a top-level vdev that can be written has missed blocks of this birth (`DTL_PARTIAL` in OpenZFS).
    #[must_use]
    pub fn misses(&self, vdev: VdevId, birth: Txg) -> bool {
        self.current.look(vdev, |topology| {
            topology.tops.get(vdev.0 as usize).is_some_and(|top| topology.misses(topology.node(top.node), birth))
        })
    }

    /// Whether a top-level vdev was removed, and its blocks are where its mapping says: written there in a txg that their pointers do not name.
    #[must_use]
    pub fn is_removed(&self, vdev: VdevId) -> bool {
        self.current.look(vdev, |topology| {
            let top = topology.tops.get(vdev.0 as usize).map(|top| topology.node(top.node));
            top.is_some_and(|node| matches!(node.kind, Kind::Indirect))
        })
    }

    /// The same of any vdev; none if there is no vdev of this guid.
    #[must_use]
    pub fn lacks_of(&self, guid: Guid, without: &BTreeSet<Guid>) -> Option<Dtl> {
        let topology = self.topology();
        topology.lookup(guid).map(|node| topology.lacks(node, without))
    }

    /// Notes that a leaf could not take its labels or the uberblock of a txg that is the pool's all the same: counted as a write
    /// error, and the leaf has missed that txg.
    pub fn missed_commit(&self, guid: Guid, txg: Txg, error: &std::io::Error) {
        let topology = self.topology();
        let Some(node) = topology.lookup(guid) else { return };
        node.missed.insert(txg);
        // One that was given up was not asked.
        if matches!(&node.kind, Kind::Leaf(leaf) if leaf.writable_disk().is_some()) {
            let extent = super::Extent { address: 0, len: 0 };
            topology.report(node, extent, FaultKind::Write(IoCause::from(error)), super::ReadContext::new(txg));
        }
    }
}

impl Topology {
    /// As [`VdevTree::outage`].
    pub(super) fn outage(&self, vdev: VdevId, without: &BTreeSet<Guid>) -> Dtl {
        self.tops.get(vdev.0 as usize).map(|top| self.lacks(self.node(top.node), without)).unwrap_or_default()
    }

    fn misses(&self, node: &Node, birth: Txg) -> bool {
        match &node.kind {
            Kind::Leaf(leaf) => leaf.writable_disk().is_some() && node.missed.contains(birth),
            Kind::DraidSpare { .. } => node.missed.contains(birth),
            // Its blocks may be on any vdev, copied in any txg.
            Kind::Indirect => self.nodes.iter().any(
                |node| matches!(&node.kind, Kind::Leaf(leaf) if leaf.writable_disk().is_some() && !node.missed.get().is_empty()),
            ),
            // As deep as the configuration, which is bounded.
            _ => node.children.iter().any(|child| self.misses(self.node(*child), birth)),
        }
    }

    /// The same of any vdev.
    pub(super) fn lacks(&self, node: &Node, without: &BTreeSet<Guid>) -> Dtl {
        match &node.kind {
            Kind::Leaf(leaf) => leaf_lacks(node, leaf, without),
            Kind::Mirror | Kind::Raidz(_) | Kind::Draid(_) => {
                // As deep as the configuration, which is bounded.
                let children: Vec<Dtl> =
                    node.children.iter().map(|child| self.lacks(self.node(*child), without)).collect();
                Dtl::outage(&children, node.dispensable_children())
            }
            Kind::DraidSpare { .. } => Self::spare_lacks(node, without),
            Kind::Missing => Dtl::all(),
            Kind::Indirect | Kind::Hole => Dtl::new(),
        }
    }

    /// The txgs that a distributed spare lacks, the children that it lies on left out: they are counted themselves.
    fn spare_lacks(spare: &Node, without: &BTreeSet<Guid>) -> Dtl {
        let is_there = matches!(&spare.kind, Kind::DraidSpare { draid: Some(_), .. });
        if !is_there || spare.is_rebuilding() || without.contains(&spare.guid) {
            return Dtl::all();
        }
        spare.missed.get()
    }
}

fn leaf_lacks(node: &Node, leaf: &Leaf, without: &BTreeSet<Guid>) -> Dtl {
    if leaf.readable_disk().is_none() || without.contains(&node.guid) {
        return Dtl::all();
    }
    node.missed.get()
}
