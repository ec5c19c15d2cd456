//! Writing where nothing is: free space of a leaf is initialized or trimmed.
//!
//! # Theory
//!
//! **Need.** `zpool initialize` writes all free space of a device once, and `zpool trim` tells a device which of its space is free. Both work on one
//! leaf, along its own addresses, while free space is known by the offsets of its top-level vdev.
//!
//! **Places.** Below a leaf at the top and below mirrors an offset is the same on each leaf. A raidz deals its sectors out like cards: sector `b` is sector
//! `b / width` of child `b % width`, so a free run of the vdev is one run on each child:
//! ```text
//!   width 3, free 4..11     child 0   1   2
//!                           .   .   .
//!                           .   4   5          child 0: 2..4, child 1: 1..4, child 2: 1..3
//!                           6   7   8
//!                           9  10   .
//! ```
//! A raidz that was expanded deals them out over all children that it has now; while it is expanded there are no places. A draid allocates whole rows of
//! its groups, and a free run of it is one run in each group on each of the group's children; their order on a child is the order of the vdev.
//!
//! **Invariants.** 1. The caller holds the range, so that nothing is placed there meanwhile. 2. No such write is under way while the vdevs change
//! ([`VdevTree::pause_mends`]): a device that has left the pool gets no late write.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use super::node::{Kind, Leaf, Node};
use super::write::WriteContext;
use super::{Extent, Topology, VdevTree};
use crate::disk::Disk;
use crate::queue::{LeafQueue, QueueClass};

/// Something that is done to free space of a leaf.
#[derive(Clone, Debug)]
pub enum FreeWrite {
    /// These bytes are written.
    Block(Block),
    /// The device is told that so many bytes are not needed.
    Discard(u64),
}

fn unavailable() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the device is not in use")
}

impl VdevTree {
    /// The parts of a leaf's data area that a range of its top-level vdev takes, as offsets from the data area's beginning, in ascending order: one,
    /// or below a draid one for each group that the leaf is in. `None` for a leaf that is not there, and while a raidz is expanded.
    #[must_use]
    pub fn parts_of_leaf(&self, vdev: VdevId, leaf: Guid, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.current.look(vdev, |topology| {
            let top = topology.tops.get(vdev.0 as usize)?;
            topology.parts_of_leaf(topology.node(top.node), leaf, range)
        })
    }

    /// A top-level vdev allocates in multiples of so many bytes, from multiples of it on: those of which each leaf has a part of its own.
    #[must_use]
    pub fn row_bytes(&self, vdev: VdevId) -> u64 {
        self.current.look(vdev, |topology| {
            match topology.tops.get(vdev.0 as usize).map(|top| &topology.node(top.node).kind) {
                Some(Kind::Draid(draid)) => draid.group_row_bytes(),
                _ => 1,
            }
        })
    }

    /// The first offset of a top-level vdev of which nothing lies before an offset of a leaf's data area: where work goes on that has come so far.
    #[must_use]
    pub fn offset_after(&self, vdev: VdevId, leaf_offset: u64) -> u64 {
        self.current.look(vdev, |topology| {
            match topology.tops.get(vdev.0 as usize).map(|top| &topology.node(top.node).kind) {
                Some(Kind::Raidz(raidz)) => leaf_offset.saturating_mul(raidz.physical_width()),
                Some(Kind::Draid(draid)) => draid.offset_after(leaf_offset),
                _ => leaf_offset,
            }
        })
    }

    /// Has the vdevs stay as they are while it is there, so that a part of a leaf is the part still. None while they change.
    #[must_use]
    pub fn keep_vdevs(&self) -> Option<impl Drop + Send + '_> {
        self.common.mends.begin()
    }

    /// Writes free space of a leaf, at an offset of its data area.
    ///
    /// # Errors
    /// The device's; [`io::ErrorKind::NotConnected`] where it is not used now, and [`io::ErrorKind::WouldBlock`] while the vdevs change.
    #[boxed]
    pub async fn write_free(&self, leaf: Guid, leaf_offset: u64, what: FreeWrite) -> io::Result<()> {
        let _writing = self.common.mends.begin().ok_or(io::ErrorKind::WouldBlock)?;
        let topology = self.topology();
        let (found, disk, queue) = topology.free_disk(leaf)?;
        let address = START_BYTES + leaf_offset;
        let len = match &what {
            FreeWrite::Block(block) => block.len() as u64,
            FreeWrite::Discard(len) => *len,
        };
        if !found.holds(address, len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match what {
            FreeWrite::Block(block) => {
                let context = WriteContext { class: QueueClass::Scrub, ..WriteContext::new(Txg(0)) };
                topology.write_in_turn(disk, queue, context, Extent { address, len }, block).await
            }
            FreeWrite::Discard(len) => disk.discard(address..address + len).await,
        }
    }
}

impl Topology {
    fn free_disk(&self, guid: Guid) -> io::Result<(&Leaf, &Disk, &Arc<LeafQueue>)> {
        match self.lookup(guid).map(|node| &node.kind) {
            Some(Kind::Leaf(leaf)) => {
                leaf.writable_disk().map(|(disk, queue)| (&**leaf, disk, queue)).ok_or_else(unavailable)
            }
            _ => Err(unavailable()),
        }
    }

    fn parts_of_leaf(&self, node: &Node, leaf: Guid, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        match &node.kind {
            Kind::Raidz(raidz) => {
                let child = self.child_with(node, leaf)?;
                raidz.part_of_child(child, range).map(|part| vec![part])
            }
            Kind::Draid(draid) => Some(draid.parts_of_child(self.child_with(node, leaf)?, range)),
            _ => self.has_in_full(node, leaf).then(|| vec![range]),
        }
    }

    /// The child of a raidz or draid that a leaf is, or below which it has all that the child has.
    fn child_with(&self, node: &Node, leaf: Guid) -> Option<u64> {
        let child = node.children.iter().position(|child| self.has_in_full(self.node(*child), leaf))?;
        Some(child as u64)
    }

    /// A leaf is this vdev, or has all that it has.
    fn has_in_full(&self, node: &Node, leaf: Guid) -> bool {
        match &node.kind {
            Kind::Leaf(_) => node.guid == leaf,
            // As deep as the configuration, which is bounded.
            Kind::Mirror => node.children.iter().any(|child| self.has_in_full(self.node(*child), leaf)),
            _ => false,
        }
    }
}
