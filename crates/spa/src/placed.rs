//! Where blocks of removed vdevs lie.

use std::ops::Range;

use cenote_format::dsl::pool_directory;
use cenote_format::ids::VdevId;
use cenote_format::indirect::{IndirectMappingPhys, Removing};
use cenote_taskq::boxed;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::tree::{IndirectMap as _, Segment};

use crate::{SpaError, View};

/// The state of a removal that is in progress.
const RUNNING: u64 = 1;
/// Removals one after the other that a range may have gone through.
const CHAIN_MAX: usize = 64;

impl View {
    /// Where a range of a top-level vdev lies in the end: itself, or, for a removed vdev, where its mapping leads, through
    /// as many removals as there were.
    #[boxed]
    pub async fn placed(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> Result<Vec<(VdevId, Range<u64>)>, SpaError> {
        let mut found = Vec::new();
        let mut pending = vec![(vdev, offset_bytes, size_bytes, 0)];
        while let Some((vdev, offset, size, depth)) = pending.pop() {
            let is_removed = |top: &VdevConfig| matches!(top.kind, VdevKind::Indirect(_));
            if !self.vdevs().children.get(vdev.0 as usize).is_some_and(is_removed) {
                found.push((vdev, offset..offset.saturating_add(size)));
                continue;
            }
            if depth > CHAIN_MAX {
                return Err(self.corrupt("the mappings of removed vdevs form a loop"));
            }
            for (vdev, range) in self.mapped(vdev, offset, size).await? {
                pending.push((vdev, range.start, range.end - range.start, depth + 1));
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Where the mapping of a removed vdev, or of one being removed, leads for a range: one step.
    #[boxed]
    pub async fn mapped(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> Result<Vec<(VdevId, Range<u64>)>, SpaError> {
        let segments = self.shared.mappings.segments(vdev, offset_bytes, size_bytes).await;
        let segments = segments.map_err(|error| self.error(error))?;
        let range = |segment: &Segment| segment.target_offset_bytes..segment.target_offset_bytes + segment.size_bytes;
        Ok(segments.iter().map(|segment| (segment.target, range(segment))).collect())
    }

    /// The vdev that is being removed, and how far its mapping reaches; `None` if no removal is in progress.
    #[boxed]
    pub async fn removing(&self) -> Result<Option<(VdevId, u64)>, SpaError> {
        let value = self.directory().lookup(pool_directory::REMOVING.as_bytes()).await;
        let value = value.map_err(|error| self.error(error))?;
        let words: Option<[u64; Removing::WORDS]> =
            value.and_then(|value| value.integers().collect::<Vec<_>>().try_into().ok());
        let Some(removing) = words.map(Removing::from_words).filter(|removing| removing.state == RUNNING) else {
            return Ok(None);
        };
        let Some(vdev) = removing.removing_vdev else { return Ok(None) };
        let Some(object) = self.shared.mappings.objects.get(&vdev) else { return Ok(None) };
        let dnode = self.mos().object(*object).await.map_err(|error| self.error(error))?;
        let phys = dnode.bonus(IndirectMappingPhys::parse).map_err(|error| self.error(error))?;
        Ok(Some((vdev, phys.max_offset_bytes)))
    }
}
