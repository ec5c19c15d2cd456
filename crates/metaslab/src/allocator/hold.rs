//! Free space of a vdev, held piece by piece along its offsets.

use std::ops::Range;

use cenote_format::ids::{Txg, VdevId};

use super::Allocator;
use crate::{AllocError, MetaslabId, SpaceError};

impl Allocator {
    /// Holds the next free range of a vdev from an offset on, of `max_bytes` at most: nothing is placed there until [`Self::release`]. A piece lies in one
    /// metaslab; those that are new or cannot be read are passed over. `None` after the last one.
    ///
    /// # Errors
    /// A metaslab has to be loaded first; or a defect was found.
    pub fn hold_free(
        &mut self,
        vdev: VdevId,
        from: u64,
        max_bytes: u64,
        (txg, now_ms): (Txg, u64),
    ) -> Result<Option<Range<u64>>, AllocError> {
        let Some(spaces) = self.vdevs.get_mut(&vdev) else { return Ok(None) };
        let granule = spaces.setup.maps.granule_bytes;
        let ids: Vec<(MetaslabId, Range<u64>)> =
            spaces.metaslabs.iter().map(|metaslab| (metaslab.id(), metaslab.range())).collect();
        for (id, range) in ids.into_iter().filter(|(_, range)| range.end > from) {
            let metaslab = spaces.metaslab(id.index)?;
            if metaslab.is_new() || metaslab.is_unreadable() {
                continue;
            }
            if !metaslab.is_loaded() {
                return Err(AllocError::NeedsLoad(id));
            }
            let found = spaces.change(id.index, |metaslab| {
                metaslab.selected = (txg, now_ms);
                metaslab.hold(from.max(range.start), max_bytes, granule)
            })??;
            if let Some(found) = found {
                spaces.weigh(id.index, &self.tunables)?;
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Ends a hold.
    ///
    /// # Errors
    /// A defect was found.
    pub fn release(&mut self, vdev: VdevId, range: Range<u64>) -> Result<(), SpaceError> {
        // A vdev that is gone has no space.
        let Some(spaces) = self.vdevs.get_mut(&vdev) else { return Ok(()) };
        let held =
            spaces.metaslabs.iter().find(|metaslab| metaslab.range().contains(&range.start)).map(crate::Metaslab::id);
        let Some(id) = held else { return Ok(()) };
        spaces.change(id.index, |metaslab| metaslab.release(range))??;
        spaces.weigh(id.index, &self.tunables)?;
        Ok(())
    }
}
