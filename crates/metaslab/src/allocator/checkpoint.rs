//! Frees that the pool's checkpoint keeps: [`crate::kept`] has the theory.

use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::{SpaceMapRecord, SpaceMapRecords, SpaceMapType};

use super::{Allocator, slot};
use crate::group::Extent;
use crate::map::Batch;
use crate::{AllocError, ORDER, SpaceError, SpaceStore};

/// The end of a checkpoint's map, which is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptTail {
    /// The map.
    pub object: ObjectId,
    /// Where it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

impl Allocator {
    /// Keeps places that are freed in the txg that syncs, and that the checkpoint has.
    ///
    /// # Errors
    /// A place is not allocated, as far as is known, or is kept already.
    pub fn keep(&mut self, txg: Txg, extents: &[Extent]) -> Result<(), AllocError> {
        for extent in extents {
            let (id, metaslab) = self.owner(extent)?;
            metaslab.check_taken(extent.range())?;
            let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
            vdev.kept.pending.add(extent.range()).map_err(SpaceError::tree(id, "space kept for the checkpoint"))?;
            self.dirty[slot(txg)].insert(id);
        }
        Ok(())
    }

    /// Bytes of a vdev that only the checkpoint has.
    #[must_use]
    pub fn checkpoint_bytes(&self, vdev: VdevId) -> u64 {
        self.vdevs.get(&vdev).map_or(0, |vdev| vdev.kept.bytes())
    }

    /// The vdevs with maps of the checkpoint.
    pub fn checkpoint_vdevs(&self) -> impl Iterator<Item = VdevId> {
        self.vdevs.iter().filter(|(_, vdev)| vdev.kept.map.is_some()).map(|(id, _)| *id)
    }

    /// Enters what is kept for the checkpoint into its maps.
    pub(crate) fn sync_kept(&mut self, store: &mut dyn SpaceStore, batch: Batch) -> Result<(), SpaceError> {
        for vdev in self.vdevs.values_mut() {
            vdev.kept.sync(store, batch, &vdev.setup.maps, &self.tunables)?;
        }
        Ok(())
    }

    /// The last block of a vdev's map of the checkpoint.
    #[must_use]
    pub fn checkpoint_tail(&self, vdev: VdevId) -> Option<KeptTail> {
        let map = self.vdevs.get(&vdev)?.kept.map.as_ref()?;
        let block = map.block_size_bytes.max(1);
        let offset_bytes = map.length_bytes.saturating_sub(1) / block * block;
        Some(KeptTail { object: map.object, offset_bytes, len_bytes: map.length_bytes - offset_bytes })
    }

    /// Frees the last ranges of a vdev's map of the checkpoint, `entries_max` at most, and takes them off it; a map without an entry goes.
    /// `bytes` are those of [`Self::checkpoint_tail`]. Returns the number of entries, and their bytes.
    ///
    /// # Errors
    /// An entry is none of such a map: nothing is changed then. Or a range is not allocated.
    pub fn discard(
        &mut self,
        store: &mut dyn SpaceStore,
        txg: Txg,
        id: VdevId,
        bytes: &[u8],
        entries_max: u64,
    ) -> Result<(u64, u64), AllocError> {
        let (tail, maps) = match (self.checkpoint_tail(id), self.vdevs.get(&id)) {
            (Some(tail), Some(vdev)) => (tail, vdev.setup.maps.clone()),
            _ => return Ok((0, 0)),
        };
        assert_eq!(bytes.len() as u64, tail.len_bytes, "all of the map's end was read");
        let damaged = |what: String| SpaceError::Checkpoint { object: tail.object, what };
        let (mut entries, mut at) = (Vec::new(), tail.offset_bytes);
        for record in SpaceMapRecords::new(bytes, ORDER) {
            let start = at;
            at += 8;
            let entry = match record.map_err(|error| damaged(error.to_string()))? {
                SpaceMapRecord::Debug { .. } => continue,
                SpaceMapRecord::Entry(entry) => entry,
            };
            at += if entry.vdev.is_some() { 8 } else { 0 };
            let range = entry.range_bytes(0, maps.end_bytes(), maps.ashift);
            let (from, to) = range.map_err(|error| damaged(error.to_string()))?;
            if entry.kind != SpaceMapType::Free || (to - 1) >> maps.metaslab_shift != from >> maps.metaslab_shift {
                return Err(damaged(format!("an entry at {start} is no free within a metaslab")).into());
            }
            entries.push((start, from..to));
        }
        let first = entries.len().saturating_sub(usize::try_from(entries_max).unwrap_or(usize::MAX));
        let length_bytes = if first == 0 { tail.offset_bytes } else { entries[first].0 };
        let mut freed_bytes = 0;
        for (_, range) in &entries[first..] {
            let asize_bytes = range.end - range.start;
            self.free(txg, &Extent { vdev: id, offset_bytes: range.start, asize_bytes })?;
            freed_bytes += asize_bytes;
        }
        let vdev = self.vdevs.get_mut(&id).expect("a vdev with a map is there");
        let map = vdev.kept.map.as_mut().expect("a map whose end was read is there");
        assert!(length_bytes <= map.length_bytes, "a map that is discarded gets shorter");
        map.length_bytes = length_bytes;
        map.allocated_bytes = map.allocated_bytes.saturating_add(freed_bytes.cast_signed());
        if length_bytes > 0 {
            map.put_header(store)?;
        } else {
            let object = map.object;
            vdev.kept.map = None;
            store.free(object).map_err(SpaceError::store(object, "free the checkpoint's space map"))?;
            let entered = store.set_checkpoint_map(id, None);
            entered.map_err(SpaceError::store(object, "take the checkpoint's space map out of its table"))?;
        }
        Ok(((entries.len() - first) as u64, freed_bytes))
    }
}
