//! Mappings of removed vdevs, read from the MOS when first needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use cenote_dmu::{DmuError, DmuErrorKind, Objset};
use cenote_format::ids::{ObjectId, VdevId};
use cenote_format::indirect::{IndirectMapping, IndirectMappingEntry, IndirectMappingPhys};
use cenote_format::nvlist::NvList;
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::error::VdevError;
use cenote_vdev::tree::{IndirectMap, Segment};

/// Entries of one mapping at most: a removed vdev of 16 TiB in the smallest pieces is more than any memory; what OpenZFS
/// makes stays far below.
const ENTRIES_MAX: u64 = 1 << 26;
/// Bytes of a mapping read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The mappings of a pool, by removed vdev.
///
/// They are all loaded before they are used, the newest removal's first, and looking one up loads nothing. For a mapping is
/// an object whose blocks are read through the same vdevs: one of an older removal may well lie on a vdev removed since,
/// but never on its own or on one removed before it. Loading on demand would have to trust that, and a pool that breaks
/// the rule would make a mapping wait for itself.
pub(crate) struct Mappings {
    /// Of each vdev that has one, its object in the MOS.
    pub(crate) objects: BTreeMap<VdevId, ObjectId>,
    loaded: Mutex<BTreeMap<VdevId, Result<Arc<IndirectMapping>, DmuError>>>,
}

impl fmt::Debug for Mappings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mappings").field("objects", &self.objects).finish_non_exhaustive()
    }
}

impl Mappings {
    /// Mappings in these objects of the MOS, none loaded.
    pub(crate) fn new(objects: BTreeMap<VdevId, ObjectId>) -> Self {
        Self { objects, loaded: Mutex::new(BTreeMap::new()) }
    }

    /// Loads the mappings of these vdevs, in this order. If it cannot be read, a read that needs it gets the error.
    pub(crate) async fn load(&self, mos: &Objset, order: &[VdevId]) {
        for vdev in order {
            let Some(object) = self.objects.get(vdev) else { continue };
            let mapping = load(mos, *object).await.map(Arc::new);
            self.loaded.lock().insert(*vdev, mapping);
        }
    }

    /// Takes over what another has loaded.
    pub(crate) fn take_from(&self, other: &Self) {
        let loaded = other.loaded.lock().clone();
        self.loaded.lock().extend(loaded);
    }

    /// Has a vdev's mapping be this one, from now on.
    pub(crate) fn put(&self, vdev: VdevId, mapping: Arc<IndirectMapping>) {
        self.loaded.lock().insert(vdev, Ok(mapping));
    }

    /// Takes the mapping of a vdev, to be changed: it has none until it is put back.
    pub(crate) fn take(&self, vdev: VdevId) -> Arc<IndirectMapping> {
        let taken = self.loaded.lock().remove(&vdev);
        taken.and_then(Result::ok).unwrap_or_default()
    }

    /// Forgets the mapping of a vdev that is not removed after all.
    pub(crate) fn forget(&self, vdev: VdevId) {
        self.loaded.lock().remove(&vdev);
    }

    /// The vdevs that have a mapping and none loaded.
    pub(crate) fn missing(&self) -> Vec<VdevId> {
        let loaded = self.loaded.lock();
        self.objects.keys().filter(|vdev| !loaded.contains_key(vdev)).copied().collect()
    }

    /// The mapping of a vdev, as far as it is known.
    pub(crate) fn mapping(&self, vdev: VdevId) -> Result<Arc<IndirectMapping>, VdevError> {
        let bad = |reason: String| VdevError::BadMapping { vdev, reason };
        match self.loaded.lock().get(&vdev) {
            Some(Ok(mapping)) => Ok(mapping.clone()),
            Some(Err(error)) => Err(bad(error.to_string())),
            None if self.objects.contains_key(&vdev) => {
                Err(bad("it is needed to read a mapping that has to be read before it".to_owned()))
            }
            None => Err(bad("the configuration names no mapping".to_owned())),
        }
    }
}

/// Removed vdevs, each with the one removed before it.
pub(crate) fn removals(vdevs: &VdevConfig) -> BTreeMap<VdevId, Option<VdevId>> {
    let removed = vdevs.children.iter().filter_map(|top| match top.kind {
        VdevKind::Indirect(indirect) => Some((VdevId(u32::try_from(top.id).ok()?), indirect.previous)),
        _ => None,
    });
    removed.collect()
}

/// Removed vdevs, the one removed last first; where they do not form a chain any order is as good.
pub(crate) fn removal_order(previous: &BTreeMap<VdevId, Option<VdevId>>) -> Vec<VdevId> {
    let older: BTreeSet<VdevId> = previous.values().flatten().copied().collect();
    let newest = previous.keys().filter(|vdev| !older.contains(vdev));
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for start in newest.chain(previous.keys()) {
        let mut at = Some(*start);
        while let Some(vdev) = at.filter(|vdev| previous.contains_key(vdev) && seen.insert(*vdev)) {
            order.push(vdev);
            at = previous.get(&vdev).copied().flatten();
        }
    }
    assert_eq!(order.len(), previous.len(), "a removed vdev is in the order once");
    order
}

/// Reads a mapping.
pub(crate) async fn load(mos: &Objset, object: ObjectId) -> Result<IndirectMapping, DmuError> {
    let dnode = mos.object(object).await?;
    let phys = dnode.bonus(IndirectMappingPhys::parse).map_err(|error| dnode.error(error))?;
    if phys.entry_count > ENTRIES_MAX {
        let what = format!("a mapping of {} entries", phys.entry_count);
        return Err(dnode.error(DmuErrorKind::Corrupt(what)));
    }
    let size = phys.entry_count as usize * IndirectMappingEntry::SIZE;
    let mut data = Vec::new();
    while data.len() < size {
        let len = CHUNK_BYTES.min(size - data.len());
        data.extend_from_slice(&dnode.read(data.len() as u64, len).await?);
    }
    IndirectMapping::parse(&phys, &data, cenote_dmu::ORDER).map_err(|error| dnode.error(error))
}

impl IndirectMap for Mappings {
    #[boxed]
    async fn segments(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Result<Vec<Segment>, VdevError> {
        let mapping = self.mapping(vdev)?;
        let pieces = mapping.remap(offset_bytes, size_bytes).ok_or(VdevError::Unmapped { vdev, offset_bytes })?;
        debug_assert_eq!(
            pieces.iter().map(|piece| piece.asize_bytes).sum::<u64>(),
            size_bytes,
            "the pieces of a range make it up"
        );
        let mut at = offset_bytes;
        Ok(pieces
            .into_iter()
            .map(|piece| {
                let segment = Segment {
                    offset_bytes: at,
                    size_bytes: piece.asize_bytes,
                    target: piece.vdev,
                    target_offset_bytes: piece.offset_bytes,
                };
                at += piece.asize_bytes;
                segment
            })
            .collect())
    }
}

/// The mapping objects of removed vdevs, and of one being removed, by the configuration.
pub(crate) fn mapping_objects(config: &NvList) -> BTreeMap<VdevId, ObjectId> {
    let tops = config.list("vdev_tree").and_then(|tree| tree.lists("children")).unwrap_or_default();
    tops.iter()
        .enumerate()
        .filter_map(|(index, top)| {
            let object = top.u64("com.delphix:indirect_object").filter(|object| *object != 0)?;
            Some((VdevId(u32::try_from(index).ok()?), ObjectId(object)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(previous: &[Option<u32>]) -> Vec<u32> {
        let ids = (0..).map(VdevId);
        let previous = ids.zip(previous.iter().map(|previous| previous.map(VdevId))).collect();
        removal_order(&previous).into_iter().map(|vdev| vdev.0).collect()
    }

    #[test]
    fn the_last_removal_comes_first() {
        assert_eq!(order(&[None, Some(0), Some(1)]), [2, 1, 0]);
        assert_eq!(order(&[Some(2), None, Some(1)]), [0, 2, 1]);
    }

    #[test]
    fn removals_that_name_each_other_end() {
        assert_eq!(order(&[Some(1), Some(0)]), [0, 1]);
        assert_eq!(order(&[Some(0)]), [0]);
        assert_eq!(order(&[None, None, Some(1), Some(1)]), [0, 2, 1, 3]);
    }

    #[test]
    fn a_mapping_that_lies_on_its_own_vdev_is_an_error_and_no_hang() {
        let mappings = Mappings::new(BTreeMap::from([(VdevId(1), ObjectId(100))]));
        let error = mappings.mapping(VdevId(1)).unwrap_err().to_string();
        assert!(error.contains("read before it"), "{error}");
        let error = mappings.mapping(VdevId(2)).unwrap_err().to_string();
        assert!(error.contains("names no mapping"), "{error}");
        assert_eq!(mappings.missing(), [VdevId(1)]);
    }
}
