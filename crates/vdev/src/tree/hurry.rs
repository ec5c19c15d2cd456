//! Someone has come to wait for a read that was begun ahead: it goes before all that nobody waits for.
//!
//! Whoever waits knows the block, not the requests that were made of it, nor whether they still wait. So they are looked for by
//! place, which costs a look at a counter for each leaf as long as nothing waits there.

use cenote_format::ids::{Txg, VdevId};
use cenote_format::label::START_BYTES;

use super::node::{Kind, Node};
use super::{Depth, Extent, Topology, VdevTree};

impl VdevTree {
    /// Makes reads of a block that wait for their turn as urgent as can be. The arguments are those of the read.
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
                raidz.map(extent.address.saturating_sub(START_BYTES), extent.len, birth, *self.common.reflow.read())
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
