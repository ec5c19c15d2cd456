//! A reader now waits for a prefetch read that is still queued: the read goes before all background I/O.
//!
//! The reader knows the block, but neither the requests that were made for it nor whether they still wait. So the requests are found by
//! their offset. This costs one load of a counter for each leaf with an empty queue.

use cenote_format::ids::{Txg, VdevId};
use cenote_format::label::START_BYTES;

use super::node::{Kind, Node};
use super::{Depth, Extent, Topology, VdevTree};

impl VdevTree {
    /// Gives queued reads of a block the highest priority. The arguments are those of the read.
    pub fn hurry(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64, birth: Txg) {
        let topology = self.current.of(vdev);
        if let Ok((node, extent)) = topology.locate(vdev, offset_bytes, size_bytes) {
            topology.hurry_below(node, extent, birth, Depth::START);
        }
    }
}

impl Topology {
    fn hurry_below(&self, node: &Node, extent: Extent, birth: Txg, depth: Depth) {
        let Some(depth) = depth.below() else { return };
        let map = match &node.kind {
            Kind::Leaf(leaf) => return leaf.queue.iter().for_each(|queue| queue.hurry(&extent.range())),
            Kind::Mirror => {
                node.shared.iter().for_each(|shared| shared.hurry(&extent.range()));
                let children = node.children.iter().map(|child| self.node(*child));
                return children.for_each(|child| self.hurry_below(child, extent, birth, depth));
            }
            Kind::Raidz(raidz) => {
                raidz.map(extent.address.saturating_sub(START_BYTES), extent.len, birth, self.common.reflow.reflow())
            }
            Kind::Draid(draid) => draid.map(extent.address.saturating_sub(START_BYTES), extent.len),
            Kind::DraidSpare { .. } | Kind::Indirect | Kind::Hole | Kind::Missing => return,
        };
        let Ok(map) = map else { return };
        for column in map.columns().iter().filter(|column| column.size_bytes != 0) {
            let extent = Extent { address: column.address_bytes, len: column.size_bytes };
            self.hurry_below(self.node(node.children[column.child as usize]), extent, birth, depth);
        }
    }
}
