//! Copying a range of a top-level vdev as it lies on its devices, for an evacuation: what blocks are in it, the caller does not know.
//!
//! No checksum says which copy of a mirror is right. So each leaf's bytes are read, and a mirror that takes them gets them side by side: what one leg
//! had good, one leg has good afterwards. (OpenZFS copies child by child likewise.)

use cenote_format::ids::{Txg, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{boxed, join_all};

use super::node::{Kind, Node};
use super::write::WriteContext;
use super::{Depth, Extent, Faults, ReadContext, Topology, VdevTree};
use crate::error::VdevError;
use crate::queue::QueueClass;

impl VdevTree {
    /// The different contents that the leaves of a vdev have in a range, in the order of its leaves; one if they have the same. Leaves that have missed
    /// something are not asked where there are others.
    ///
    /// # Errors
    /// No leaf gave it, or the vdev is neither a leaf nor a mirror.
    #[boxed]
    pub async fn read_each(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Result<Vec<Block>, VdevError> {
        let topology = self.current.of(vdev);
        topology.read_each(vdev, offset_bytes, size_bytes).await
    }

    /// Gives the leaves of a vdev, whose range was written already, each its own contents: those of its place, beginning again with the first after
    /// the last. One that does not take it keeps what was written.
    #[boxed]
    pub async fn write_each(&self, vdev: VdevId, offset_bytes: u64, contents: &[Block], context: WriteContext) {
        let topology = self.current.of(vdev);
        topology.write_each(vdev, offset_bytes, contents, context).await;
    }
}

impl Topology {
    async fn read_each(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Result<Vec<Block>, VdevError> {
        let (node, extent) = self.locate(vdev, offset_bytes, size_bytes)?;
        let context = ReadContext::new(Txg(0)).of_class(QueueClass::Scrub);
        let leaves = self.leaves_for_copy(node, extent)?;
        let mut contents: Vec<Block> = Vec::new();
        let mut faults = Faults::default();
        for read in join_all(leaves.iter().map(|leaf| self.read_one(leaf, extent, None, context))).await {
            match read.map(Buf::freeze) {
                Ok(bytes) if contents.iter().any(|known| known[..] == bytes[..]) => {}
                Ok(bytes) => contents.push(bytes),
                Err(more) => faults.extend(more),
            }
        }
        debug_assert!(contents.iter().all(|bytes| bytes.len() as u64 == extent.len), "a copy is as long as its range");
        match contents.is_empty() {
            true => Err(self.unreadable(node, vdev, offset_bytes, size_bytes, faults, context)),
            false => Ok(contents),
        }
    }

    /// The leaves that are read: those that are whole, or else those that are there.
    fn leaves_for_copy<'a>(&'a self, node: &'a Node, extent: Extent) -> Result<Vec<&'a Node>, VdevError> {
        let mut leaves = self.holders_at(node, extent.address);
        if leaves.iter().any(|leaf| !matches!(leaf.kind, Kind::Leaf(_))) {
            return Err(VdevError::Unsupported("copying a vdev with parity".into()));
        }
        leaves.retain(|leaf| matches!(&leaf.kind, Kind::Leaf(leaf) if leaf.readable_disk().is_some()));
        if leaves.iter().any(|leaf| leaf.missed.get().is_empty()) {
            leaves.retain(|leaf| leaf.missed.get().is_empty());
        }
        Ok(leaves)
    }

    async fn write_each(&self, vdev: VdevId, offset_bytes: u64, contents: &[Block], context: WriteContext) {
        let Some(first) = contents.first() else { return };
        let Ok((node, extent)) = self.locate(vdev, offset_bytes, first.len() as u64) else { return };
        let leaves = self.holders_at(node, extent.address);
        let own = leaves.iter().enumerate().map(|(place, leaf)| (leaf, &contents[place % contents.len()]));
        let writes = own.filter(|(_, bytes)| bytes[..] != first[..]).map(|(leaf, bytes)| async move {
            debug_assert_eq!(bytes.len() as u64, extent.len, "each leaf gets the whole range");
            if matches!(leaf.kind, Kind::Leaf(_)) {
                self.write_nested(leaf, extent.address, bytes.clone(), context, Depth::START).await;
            }
        });
        join_all(writes).await;
    }
}
