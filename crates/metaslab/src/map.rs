//! Writing space maps: appending a txg's changes, upkeep of the header, and the size that a map could have.

use std::ops::Range;

use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::{
    HISTOGRAM_BUCKETS, RUN_MAX, RUN2_MAX, SpaceMapEntry, SpaceMapPhys, SpaceMapType, SpaceMapWriter,
};

use crate::{ORDER, RangeTree, SpaceError, SpaceStore};

/// Bytes of entries encoded before they are handed to the store: bounds memory while a large map is rewritten.
const WRITE_BYTES: usize = 1 << 20;

/// A space map that is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceMap {
    /// Its object.
    pub object: ObjectId,
    /// Size of its blocks.
    pub block_size_bytes: u64,
    /// Where the space begins that it describes.
    pub start_bytes: u64,
    /// Its unit, as a power of two.
    pub shift: u32,
    /// Length of the log.
    pub length_bytes: u64,
    /// Bytes allocated less bytes freed, by its entries. Negative in a log with more frees.
    pub allocated_bytes: i64,
    /// Counts of free runs; `None` in maps of old pools, until they are condensed.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

/// The sync pass that writes: the fields of the debug entry that begins a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The txg that syncs.
    pub txg: Txg,
    /// Its sync pass, from 1.
    pub pass: u16,
    /// Whether `spacemap_v2` is on: two-word entries.
    pub two_words: bool,
}

/// A range tree's histogram as a space map has it: from the unit on, 32 buckets, what is larger counted as so many of the
/// last.
#[must_use]
pub fn map_histogram(tree: &RangeTree, shift: u32) -> [u64; HISTOGRAM_BUCKETS] {
    let mut buckets = [0_u64; HISTOGRAM_BUCKETS];
    for (class, count) in tree.histogram().iter().enumerate().skip(shift as usize) {
        let bucket = class - shift as usize;
        let last = bucket.min(HISTOGRAM_BUCKETS - 1);
        buckets[last] += count << (bucket - last);
    }
    buckets
}

impl SpaceMap {
    /// A new, empty map, made in the store.
    pub fn create(
        store: &mut dyn SpaceStore,
        block_size_bytes: u64,
        start_bytes: u64,
        shift: u32,
    ) -> Result<Self, SpaceError> {
        let object = store.create(block_size_bytes).map_err(SpaceError::store(ObjectId(0), "create a space map"))?;
        let histogram = store.has_histograms().then_some([0; HISTOGRAM_BUCKETS]);
        assert!(block_size_bytes > 0, "a space map has blocks");
        Ok(Self { object, block_size_bytes, start_bytes, shift, length_bytes: 0, allocated_bytes: 0, histogram })
    }

    /// Blocks that it takes.
    #[must_use]
    pub(crate) const fn blocks(&self) -> u64 {
        self.length_bytes.div_ceil(self.block_size_bytes)
    }

    /// Appends ranges as entries of one kind, opened by a record that names txg and pass. `vdev` makes them entries of a
    /// log. Without ranges nothing is written.
    pub fn append(
        &mut self,
        store: &mut dyn SpaceStore,
        batch: Batch,
        kind: SpaceMapType,
        vdev: Option<VdevId>,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Result<(), SpaceError> {
        let block_size = usize::try_from(self.block_size_bytes).unwrap_or(usize::MAX);
        let begin = |at: u64| SpaceMapWriter::new(at, block_size, batch.two_words, ORDER);
        let mut writer = begin(self.length_bytes);
        // Each entry takes two words and a padding at most, if it is not broken up.
        let (mut opened, mut entries) = (false, 0);
        for range in ranges {
            if !opened {
                writer.debug(kind, batch.pass, batch.txg);
                opened = true;
            }
            debug_assert!(
                self.start_bytes <= range.start && range.start < range.end,
                "an entry is within its map (invariant 2)"
            );
            debug_assert!(
                [range.start, range.end].iter().all(|at| (at - self.start_bytes).is_multiple_of(1 << self.shift)),
                "an entry has whole units"
            );
            let entry = SpaceMapEntry {
                kind,
                vdev,
                offset_units: (range.start - self.start_bytes) >> self.shift,
                run_units: (range.end - range.start) >> self.shift,
            };
            writer.entry(entry).map_err(|error| SpaceError::Entry { object: self.object, error })?;
            let bytes = (range.end - range.start) as i64;
            self.allocated_bytes += if kind == SpaceMapType::Alloc { bytes } else { -bytes };
            entries += 1;
            if entries * 24 >= WRITE_BYTES {
                let full = std::mem::replace(&mut writer, begin(0)).into_bytes();
                self.write(store, &full)?;
                writer = begin(self.length_bytes);
                entries = 0;
            }
        }
        self.write(store, &writer.into_bytes())
    }

    fn write(&mut self, store: &mut dyn SpaceStore, bytes: &[u8]) -> Result<(), SpaceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        assert!(bytes.len().is_multiple_of(8), "entries are whole words");
        store.write(self.object, self.length_bytes, bytes).map_err(SpaceError::store(self.object, "append entries"))?;
        self.length_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Empties the map, to be written anew; it gets a new object where the block size is to change or the header lacks the
    /// histogram that a new one has. Whether the object changed.
    pub fn truncate(&mut self, store: &mut dyn SpaceStore, block_size_bytes: u64) -> Result<bool, SpaceError> {
        let before = self.object;
        if self.block_size_bytes == block_size_bytes && self.histogram.is_some() == store.has_histograms() {
            store.truncate(self.object).map_err(SpaceError::store(before, "truncate the space map"))?;
        } else {
            store.free(self.object).map_err(SpaceError::store(before, "free the space map"))?;
            self.object =
                store.create(block_size_bytes).map_err(SpaceError::store(ObjectId(0), "create a space map"))?;
            self.block_size_bytes = block_size_bytes;
        }
        (self.length_bytes, self.allocated_bytes) = (0, 0);
        self.histogram = store.has_histograms().then_some([0; HISTOGRAM_BUCKETS]);
        Ok(self.object != before)
    }

    /// Adds a tree's ranges to the counts of free runs.
    pub(crate) fn count_free(&mut self, tree: &RangeTree) {
        let Some(histogram) = &mut self.histogram else { return };
        for (bucket, more) in histogram.iter_mut().zip(map_histogram(tree, self.shift)) {
            *bucket += more;
        }
    }

    /// Forgets the counts of free runs.
    pub(crate) fn clear_histogram(&mut self) {
        if let Some(histogram) = &mut self.histogram {
            *histogram = [0; HISTOGRAM_BUCKETS];
        }
    }

    /// Writes the header.
    pub fn put_header(&self, store: &mut dyn SpaceStore) -> Result<(), SpaceError> {
        let header = SpaceMapPhys {
            object: self.object.0,
            length_bytes: self.length_bytes,
            allocated_bytes: self.allocated_bytes,
            histogram: self.histogram,
        };
        store.set_header(self.object, &header).map_err(SpaceError::store(self.object, "write the space map's header"))
    }
}

/// Bytes that the ranges of a tree take as entries of a space map of one metaslab, about: by counts, not by walking.
#[must_use]
pub(crate) fn entries_bytes(tree: &RangeTree, two_words: bool) -> u64 {
    let mut bytes = 0_u64;
    for (class, count) in tree.histogram().iter().enumerate().filter(|(_, count)| **count > 0) {
        // Runs of this class have at most this many units.
        let units = 1_u64 << (class as u32 + 1).saturating_sub(tree.shift()).min(62);
        let each = if units <= RUN_MAX {
            8
        } else if two_words {
            16 * units.div_ceil(RUN2_MAX)
        } else {
            8 * units.div_ceil(RUN_MAX)
        };
        bytes = bytes.saturating_add(count * each);
    }
    bytes
}
