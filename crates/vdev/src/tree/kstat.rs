//! Statistics of devices: a group for each leaf.

use cenote_format::ids::Guid;
use cenote_kstat::Snapshot;

use super::VdevTree;
use super::node::{Kind, Node};
use crate::iostat::Waits;
use crate::queue::{QueueClass, SizeCounts};

/// The requests of a leaf: those since it was opened, and those of now.
#[derive(Clone, Debug, Default)]
pub struct LeafIo {
    /// Requests that read, the bytes of these, and the same of those that wrote.
    pub totals: [u64; 4],
    /// Times of requests.
    pub waits: Waits,
    /// For each class of requests, the most urgent first: those that wait, and those that the device has.
    pub queued: [(u32, u32); QueueClass::ALL.len()],
    /// For each class, how often requests had a size, by the power of two of its bytes: those that went to the device alone, and those that
    /// took others along.
    pub sizes: [SizeCounts; QueueClass::ALL.len()],
    /// How often the device was told that something is free (`zpool trim`, `autotrim`), by the power of two of its bytes.
    pub discards: Vec<u64>,
    /// Whether it is a device of a raidz or draid that sits out.
    pub sits_out: bool,
}

impl VdevTree {
    /// The requests of each leaf that has a device.
    #[must_use]
    pub fn leaf_io(&self) -> Vec<(Guid, LeafIo)> {
        let topology = self.topology();
        let now = self.common.clock.as_ref().map(cenote_taskq::Handle::now);
        let of_node = |node: &Node| {
            let Kind::Leaf(leaf) = &node.kind else { return None };
            let (stats, queue) = (node.stats()?, leaf.queue.as_ref()?);
            let io = LeafIo {
                totals: stats.totals(),
                waits: stats.waits(),
                queued: queue.depths(),
                sizes: queue.sizes(),
                discards: stats.discards(),
                sits_out: now.is_some_and(|now| topology.sits_out(node, now)),
            };
            Some((node.guid, io))
        };
        topology.nodes.iter().filter_map(of_node).collect()
    }

    /// Enters the counts of every leaf that has a device into a snapshot, as the group `iostats-0xGUID`: see
    /// `zpool iostat`. Labels and uberblocks are counted too.
    pub fn kstat(&self, snapshot: &mut Snapshot) {
        for node in self.topology().nodes.iter() {
            let Kind::Leaf(leaf) = &node.kind else { continue };
            let Some(stats) = leaf.disk.as_ref().and_then(|disk| disk.stats()) else { continue };
            let sheet = snapshot.group(format!("iostats-0x{:x}", node.guid.0));
            sheet.text("path", &*node.path);
            stats.kstat(sheet);
            let errors = node.errors.totals();
            for (name, count) in
                [("read_errors", errors.read), ("write_errors", errors.write), ("checksum_errors", errors.checksum)]
            {
                sheet.count(name, count);
            }
            sheet.level("reads_pending", u64::from(node.load.pending()));
        }
    }
}
