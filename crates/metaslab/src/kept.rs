//! Ranges that a pool has freed since its checkpoint, and that are kept for it.
//!
//! **On disk.** Each top-level vdev has a space map of them (entry `com.delphix:pool_checkpoint_sm` of its ZAP), made with the first. It lists frees
//! alone, counted from the vdev's start, and each entry lies in one metaslab, since OpenZFS relies on that. In the metaslabs' own maps the ranges
//! stay allocated: so nothing else has to know of them.
//!
//! **Life of a range.** [`crate::Allocator::keep`] notes it in place of a free; the txg's sync appends it to the map. When the checkpoint is discarded
//! [`crate::Allocator::discard`] takes entries off the map's end and frees them like any others, and the map goes with its last entry.
//!
//! **Invariants.** 1. What is kept is allocated in its metaslab (asserted where that is loaded). 2. A txg that frees ranges of the map takes them off
//! the map: a crash does both or neither.

use std::ops::Range;

use cenote_format::spacemap::SpaceMapType;

use crate::map::{Batch, SpaceMap};
use crate::{RangeSet, SpaceError, SpaceStore, Tunables, VdevMaps};

/// The space of one vdev that is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) map: Option<SpaceMap>,
    /// Since the last pass.
    pub(crate) pending: RangeSet,
}

impl Kept {
    /// That of a pool that is opened.
    pub(crate) fn of_map(map: Option<SpaceMap>) -> Self {
        Self { map, pending: RangeSet::new() }
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> u64 {
        let mapped = self.map.as_ref().map_or(0, |map| map.allocated_bytes.saturating_neg());
        u64::try_from(mapped).unwrap_or(0).saturating_add(self.pending.total())
    }

    /// Appends what was freed since the last pass.
    pub(crate) fn sync(
        &mut self,
        store: &mut dyn SpaceStore,
        batch: Batch,
        maps: &VdevMaps,
        tunables: &Tunables,
    ) -> Result<(), SpaceError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.total() == 0 {
            return Ok(());
        }
        if self.map.is_none() {
            let made = SpaceMap::create(store, tunables.zfs_metaslab_sm_blksz_no_log, 0, maps.ashift)?;
            let entered = store.set_checkpoint_map(maps.vdev, Some(made.object));
            entered.map_err(SpaceError::store(made.object, "enter the checkpoint's space map"))?;
            self.map = Some(made);
        }
        let map = self.map.as_mut().expect("a map that was made is there");
        let ranges = pending.iter().flat_map(|range| by_metaslab(range, maps.metaslab_shift));
        map.append(store, batch, SpaceMapType::Free, None, ranges)?;
        assert!(map.allocated_bytes <= 0, "a checkpoint's map has frees alone");
        map.put_header(store)
    }
}

/// The parts of a range in each metaslab.
fn by_metaslab(range: Range<u64>, metaslab_shift: u32) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min(((start >> metaslab_shift) + 1) << metaslab_shift);
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_ends_of_metaslabs() {
        let parts = |range: Range<u64>| by_metaslab(range, 4).map(|part| (part.start, part.end)).collect::<Vec<_>>();
        assert_eq!(parts(3..3), []);
        assert_eq!(parts(3..9), [(3, 9)]);
        assert_eq!(parts(0..16), [(0, 16)]);
        assert_eq!(parts(10..40), [(10, 16), (16, 32), (32, 40)]);
    }
}
