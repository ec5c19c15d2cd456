//! Statistics of devices: a group for each leaf.

use cenote_kstat::Snapshot;

use super::VdevTree;
use super::node::Kind;

impl VdevTree {
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
