//! The cache's statistics, under the names of OpenZFS's `arcstats`.

use cenote_kstat::Snapshot;

use crate::Stats;

impl Stats {
    /// Enters them into a snapshot. Names that OpenZFS does not have: `ghost_hits`, which it counts by list; `loading_size`, memory
    /// of loads in flight; `prefetch_evicted`, blocks loaded ahead that were evicted before anyone asked for them.
    pub fn kstat(&self, snapshot: &mut Snapshot) {
        let sheet = snapshot.group("arcstats");
        for (name, count) in [
            ("hits", self.hits),
            ("iohits", self.joined),
            ("misses", self.misses),
            ("ghost_hits", self.ghost_hits),
            ("deleted", self.evictions),
            ("predictive_prefetch", self.prefetched),
            ("demand_hit_predictive_prefetch", self.prefetch_used),
            ("prefetch_evicted", self.prefetch_wasted),
        ] {
            sheet.count(name, count);
        }
        for (name, level) in [
            ("c", self.limit_bytes),
            ("c_max", self.limit_bytes),
            ("size", self.size_bytes + self.loading_bytes + self.overhead_bytes),
            ("hdr_size", self.overhead_bytes),
            ("data_size", self.size_bytes),
            ("loading_size", self.loading_bytes),
            ("mru_size", self.recent_bytes),
            ("mfu_size", self.frequent_bytes),
        ] {
            sheet.level(name, level);
        }
    }
}
