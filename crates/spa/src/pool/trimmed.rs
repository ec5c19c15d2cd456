//! Counts of what a pool has trimmed by itself.

use cenote_kstat::Snapshot;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

/// Trims that devices were told, with the names of OpenZFS's `iostats`.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) extents: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl Counts {
    pub(super) fn kstat(&self, snapshot: &mut Snapshot) {
        let sheet = snapshot.group("iostats");
        for (name, count) in [
            ("autotrim_extents_written", &self.extents),
            ("autotrim_bytes_written", &self.bytes),
            ("autotrim_extents_skipped", &self.skipped),
            ("autotrim_extents_failed", &self.failed),
        ] {
            sheet.count(name, count.load(Ordering::Relaxed));
        }
    }
}
