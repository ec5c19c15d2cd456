//! Where blocks of removed vdevs lie.

use std::ops::Range;

use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, VdevId};
use cenote_format::indirect::{IndirectMappingPhys, Removing};
use cenote_taskq::boxed;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::tree::{IndirectMap as _, Segment};

use crate::tunables::RemovalTunables;
use crate::{SpaError, View};

/// The state of a removal that is in progress.
pub(crate) const REMOVAL_RUNS: u64 = 1;
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

    /// How many entries the mapping of a vdev would have if it were removed now: none of one without blocks of datasets.
    #[boxed]
    pub async fn mapping_entries(&self, guid: Guid) -> Result<u64, SpaError> {
        let tops = (0..).map(VdevId).zip(&self.vdevs().children);
        let is_it = |top: &VdevConfig| top.guid == guid && top.class != AllocationClass::Log;
        let Some(vdev) = tops.into_iter().find(|(_, top)| is_it(top)).map(|(vdev, _)| vdev) else { return Ok(0) };
        let RemovalTunables { zfs_remove_max_segment: piece_max, vdev_removal_max_span: gap_max, .. } =
            RemovalTunables::default();
        let space = self.space().await?;
        let (mut entries, mut last) = (0, 0..0_u64);
        for range in space.vdev(vdev).into_iter().flat_map(|space| space.allocated.iter()) {
            let is_near = entries > 0 && range.start - last.end <= gap_max;
            if is_near && range.end - last.start <= piece_max {
                last.end = range.end;
            } else {
                entries += 1 + (range.end - range.start) / piece_max;
                last = range;
            }
        }
        Ok(entries)
    }

    /// The last removal of a vdev that had blocks of datasets, if there was one.
    #[boxed]
    pub async fn removal(&self) -> Result<Option<Removing>, SpaError> {
        let value = self.directory().lookup(pool_directory::REMOVING.as_bytes()).await;
        let value = value.map_err(|error| self.error(error))?;
        let words: Option<[u64; Removing::WORDS]> =
            value.and_then(|value| value.integers().collect::<Vec<_>>().try_into().ok());
        Ok(words.map(Removing::from_words))
    }

    /// The vdev that is being removed, and how far its mapping reaches; `None` if no removal is in progress.
    #[boxed]
    pub async fn removing(&self) -> Result<Option<(VdevId, u64)>, SpaError> {
        let running = self.removal().await?.filter(|removing| removing.state == REMOVAL_RUNS);
        let Some(removing) = running else { return Ok(None) };
        let Some(vdev) = removing.removing_vdev else { return Ok(None) };
        let Some(object) = self.shared.mappings.objects.get(&vdev) else { return Ok(None) };
        let dnode = self.mos().object(*object).await.map_err(|error| self.error(error))?;
        let phys = dnode.bonus(IndirectMappingPhys::parse).map_err(|error| self.error(error))?;
        Ok(Some((vdev, phys.max_offset_bytes)))
    }
}
