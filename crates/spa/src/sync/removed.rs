//! Space on vdevs that were removed, or are being evacuated, when it is given up.
//!
//! # Theory
//!
//! **Need.** A block pointer goes on naming the vdev that the block was written to. When the block is freed, the space to be freed is where its bytes are
//! now; and the mapping that leads there has a range that nobody needs any more.
//!
//! **The way of a free.**
//! ```text
//!   on a vdev that is there       freed there
//!   on a removed vdev             the range is *obsolete* there; each piece that its mapping leads to goes the same way: it may lie on a vdev that was
//!                                 removed since
//!   on one that is evacuated      freed there, so that it is not copied; as far as it was copied, it is obsolete and the copy is freed too; the rest
//!                                 counts as done
//! ```
//! **On disk** (feature `obsolete_counts`). What became obsolete in a txg is appended to the vdev's obsolete space map, an object that its table names
//! (`com.delphix:indirect_obsolete_sm`), in the same pass as the frees: in bytes, entries of kind "allocated". OpenZFS condenses mappings by it. Without
//! the feature nothing is noted.
//!
//! **Invariants.** 1. A mapping is changed at the beginning of a txg's sync, before anything of the txg is freed beside the sync. 2. A range is obsolete
//! once (asserted where the ranges are put in order). 3. All that is obsolete is in space maps when the sync ends (asserted by `take`'s caller: what is
//! left makes the MOS dirty, and the passes go on).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_format::blkptr::Dva;
use cenote_format::ids::VdevId;
use cenote_format::indirect::IndirectMapping;
use cenote_metaslab::Extent;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;

use crate::SpaError;
use crate::indirect::Mappings;

/// Removals one after the other that a range may have gone through.
const CHAIN_MAX: usize = 64;

/// A vdev that is being evacuated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evacuated {
    pub(crate) vdev: VdevId,
    /// All that is in use below this offset has a copy.
    pub(crate) mapped_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    removed: BTreeSet<VdevId>,
    evacuated: Option<Evacuated>,
    /// Ranges that became obsolete since these were last entered into maps.
    obsolete: BTreeMap<VdevId, Vec<Range<u64>>>,
    /// Bytes of the vdev that is evacuated which were freed before they were copied, since that was last recorded.
    settled_bytes: u64,
}

/// The removed vdevs of a pool that is written, and the one that is being evacuated.
#[derive(Debug)]
pub(crate) struct Removed {
    /// The mappings by which blocks are read.
    pub(crate) mappings: Arc<Mappings>,
    is_any: AtomicBool,
    /// More became obsolete since this was last asked for.
    has_more: AtomicBool,
    state: Mutex<State>,
}

/// The record that a pass's frees leave.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) obsolete: BTreeMap<VdevId, Vec<Range<u64>>>,
    pub(super) settled_bytes: u64,
}

impl Removed {
    /// None yet, with the mappings by which the pool's tree reads.
    pub(crate) fn new(mappings: Arc<Mappings>) -> Self {
        let (is_any, has_more) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { mappings, is_any, has_more, state: Mutex::default() }
    }

    /// A vdev is removed, and its mapping known.
    pub(crate) fn add(&self, vdev: VdevId) {
        let mut state = self.state.lock();
        assert!(
            state.evacuated.is_none_or(|evacuated| evacuated.vdev != vdev),
            "a vdev is evacuated before it is removed"
        );
        state.removed.insert(vdev);
        self.is_any.store(true, Ordering::Release);
    }

    /// The vdev that is evacuated, and how far.
    pub(crate) fn set_evacuated(&self, evacuated: Option<Evacuated>) {
        let mut state = self.state.lock();
        assert!(evacuated.is_none_or(|of| !state.removed.contains(&of.vdev)), "a vdev is removed once");
        state.evacuated = evacuated;
        self.is_any.store(state.evacuated.is_some() || !state.removed.is_empty(), Ordering::Release);
    }

    /// Whether a vdev is being evacuated.
    pub(crate) fn is_evacuated(&self, vdev: VdevId) -> bool {
        self.state.lock().evacuated.is_some_and(|evacuated| evacuated.vdev == vdev)
    }

    /// Whether any place may be elsewhere than its pointer says.
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// The places at which the bytes of an extent are.
    pub(crate) fn places(&self, extent: Extent) -> Result<Vec<Extent>, SpaError> {
        let mut state = self.state.lock();
        self.follow(&mut state, extent, None)
    }

    /// The places to be freed when extents are given up, of which it is noted what is to be recorded of that.
    pub(crate) fn give_up(&self, extents: impl Iterator<Item = Extent>) -> Result<Vec<Extent>, SpaError> {
        let (mut state, mut given, mut places) = (self.state.lock(), Given::default(), Vec::new());
        for extent in extents {
            places.extend(self.follow(&mut state, extent, Some(&mut given))?);
        }
        for (vdev, mut ranges) in given.obsolete {
            state.obsolete.entry(vdev).or_default().append(&mut ranges);
        }
        state.settled_bytes += given.settled_bytes;
        Ok(places)
    }

    fn follow(
        &self,
        state: &mut State,
        extent: Extent,
        mut given: Option<&mut Given>,
    ) -> Result<Vec<Extent>, SpaError> {
        let (mut places, mut pending) = (Vec::new(), vec![(extent, 0)]);
        while let Some((at, depth)) = pending.pop() {
            let Range { start, end } = at.range();
            let evacuated = state.evacuated.filter(|evacuated| evacuated.vdev == at.vdev && given.is_some());
            let mapped = match evacuated {
                _ if state.removed.contains(&at.vdev) => start..end,
                Some(evacuated) => start..evacuated.mapped_bytes.clamp(start, end),
                None => start..start,
            };
            if !state.removed.contains(&at.vdev) {
                places.push(at);
            }
            if let Some(given) = given.as_deref_mut().filter(|_| evacuated.is_some()) {
                given.settled_bytes += end - mapped.end;
            }
            if mapped.is_empty() || (evacuated.is_some() && mutant::is(Mutant::EvacuatedCopyKept)) {
                continue;
            }
            if depth >= CHAIN_MAX {
                return Err(SpaError::contradiction("the mappings of removed vdevs form a loop"));
            }
            let mapping = self.mappings.mapping(at.vdev).map_err(SpaError::contradiction)?;
            let pieces = remapped(&mapping, &mapped).ok_or_else(|| {
                let place = format!("{:#x} to {:#x} of vdev {}", mapped.start, mapped.end, at.vdev);
                SpaError::contradiction(format!("a block that is freed lies at {place}, which no mapping has"))
            })?;
            pending.extend(pieces.into_iter().map(|piece| (piece, depth + 1)));
            if let Some(given) = given.as_deref_mut() {
                given.obsolete.entry(at.vdev).or_default().push(mapped);
            }
        }
        Ok(places)
    }

    /// Takes what is to be recorded.
    pub(super) fn take(&self) -> Given {
        let mut state = self.state.lock();
        let (obsolete, settled_bytes) = (std::mem::take(&mut state.obsolete), std::mem::take(&mut state.settled_bytes));
        if !obsolete.is_empty() {
            self.has_more.store(true, Ordering::Release);
        }
        Given { obsolete, settled_bytes }
    }

    /// Whether something became obsolete since this was last asked for, or it was never asked for.
    pub(crate) fn take_has_more(&self) -> bool {
        self.is_any() && self.has_more.swap(false, Ordering::AcqRel)
    }

    /// Forgets what is to be recorded of a vdev that stays after all.
    pub(crate) fn forget(&self, vdev: VdevId) {
        let mut state = self.state.lock();
        state.obsolete.remove(&vdev);
        state.settled_bytes = 0;
    }
}

/// Where a mapping leads for a range.
pub(crate) fn remapped(mapping: &IndirectMapping, range: &Range<u64>) -> Option<Vec<Extent>> {
    let pieces = mapping.remap(range.start, range.end - range.start)?;
    let extent =
        |piece: Dva| Extent { vdev: piece.vdev, offset_bytes: piece.offset_bytes, asize_bytes: piece.asize_bytes };
    Some(pieces.into_iter().map(extent).collect())
}

/// Puts ranges in order, and joins neighbours.
///
/// # Panics
/// If two of them overlap: the space was given up twice.
pub(super) fn in_order(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            last => {
                assert!(last.is_none_or(|last| last.end < range.start), "a range becomes obsolete once (invariant 2)");
                joined.push(range);
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use cenote_format::indirect::IndirectMappingEntry;

    use super::*;

    fn entry(source: u64, vdev: u32, target: u64, len: u64) -> IndirectMappingEntry {
        let target = Dva { vdev: VdevId(vdev), offset_bytes: target, asize_bytes: len, gang: false };
        IndirectMappingEntry { source_offset_bytes: source, target }
    }

    fn mapping(entries: &[IndirectMappingEntry]) -> Arc<IndirectMapping> {
        let mut mapping = IndirectMapping::default();
        entries.iter().for_each(|entry| mapping.push(*entry));
        Arc::new(mapping)
    }

    fn extent(vdev: u32, offset_bytes: u64, asize_bytes: u64) -> Extent {
        Extent { vdev: VdevId(vdev), offset_bytes, asize_bytes }
    }

    /// Vdev 1 was moved onto 2, and that onto 0; 3 is being evacuated, and copied up to 8192.
    fn removed() -> Removed {
        let removed = Removed::new(Arc::new(Mappings::new(BTreeMap::new())));
        removed.mappings.put(VdevId(1), mapping(&[entry(0, 2, 4096, 4096), entry(4096, 0, 0, 4096)]));
        removed.mappings.put(VdevId(2), mapping(&[entry(0, 0, 8192, 6144), entry(6144, 0, 65536, 4096)]));
        removed.mappings.put(VdevId(3), mapping(&[entry(0, 0, 131_072, 8192)]));
        removed.add(VdevId(1));
        removed.add(VdevId(2));
        removed.set_evacuated(Some(Evacuated { vdev: VdevId(3), mapped_bytes: 8192 }));
        removed
    }

    #[test]
    fn a_free_goes_through_all_mappings_and_makes_each_range_obsolete() {
        let removed = removed();
        let mut places = removed.give_up([extent(1, 2048, 4096)].into_iter()).unwrap();
        places.sort_unstable();
        assert_eq!(places, [extent(0, 0, 2048), extent(0, 65536, 2048)]);
        let given = removed.take();
        assert_eq!(given.obsolete[&VdevId(1)], std::iter::once(2048..6144).collect::<Vec<_>>());
        assert_eq!(given.obsolete[&VdevId(2)], std::iter::once(6144..8192).collect::<Vec<_>>());
        assert_eq!(given.settled_bytes, 0);
        assert!(removed.take().obsolete.is_empty(), "each range is told of once");
    }

    #[test]
    fn a_free_of_a_vdev_that_is_evacuated_is_one_of_both_where_it_was_copied() {
        let removed = removed();
        let mut places = removed.give_up([extent(3, 4096, 8192), extent(0, 512, 512)].into_iter()).unwrap();
        places.sort_unstable();
        assert_eq!(places, [extent(0, 512, 512), extent(0, 135_168, 4096), extent(3, 4096, 8192)]);
        let given = removed.take();
        assert_eq!(given.obsolete[&VdevId(3)], std::iter::once(4096..8192).collect::<Vec<_>>());
        assert_eq!(given.settled_bytes, 4096);
        // Looking at a place gives up nothing.
        assert_eq!(removed.places(extent(3, 0, 4096)).unwrap(), [extent(3, 0, 4096)]);
        assert!(removed.take().obsolete.is_empty());
    }

    #[test]
    fn what_no_mapping_has_is_not_freed() {
        let removed = removed();
        let error = removed.give_up([extent(1, 8192, 4096)].into_iter()).unwrap_err().to_string();
        assert!(error.contains("no mapping has"), "{error}");
        removed.mappings.put(VdevId(1), mapping(&[entry(0, 1, 0, 4096)]));
        let error = removed.give_up([extent(1, 0, 4096)].into_iter()).unwrap_err().to_string();
        assert!(error.contains("loop"), "{error}");
    }
}
