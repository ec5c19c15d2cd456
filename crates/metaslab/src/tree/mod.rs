//! Sets of ranges with a bound on their memory: what the allocator searches.
//!
//! The address space is cut into chunks of 32 768 units. A chunk with few runs is a sorted list of them, four bytes each;
//! when the list would outgrow the chunk's bitmap it becomes the bitmap, so a chunk never takes more than 4 KiB. With
//! units of 4 KiB that is 32 MiB a TiB at any fragmentation, and next to nothing where space is whole.
//!
//! ```text
//! chunk        0          1            2 (absent: empty)    3
//! body         bitmap     runs                              runs
//! contents     # # ## #   ####     ################         ###
//!              each run in one chunk alone is counted by length in that chunk;
//!              a run over several chunks stands in `spanning`: at most one for each border between chunks
//! ```
//!
//! A search by size asks the counts (a mask of 16 bits a chunk) and `spanning`, and reads only a chunk that has what it
//! wants. That is exact about whether something fits, and picks the smallest run of the first chunk that has a fitting
//! one: *good* fit. An index of all runs by size, which exact best fit needs, has no bound in memory worth the name.

mod chunk;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use self::chunk::{CHUNK_UNITS, CLASSES, Chunk};
use crate::RangeError;

/// Buckets of a histogram: bucket `i` counts runs of at least `2^i` bytes and less than twice that.
pub(crate) const TREE_HISTOGRAM_BUCKETS: usize = 64;

/// Chunks that a search reads in the hope of a closer fit while something larger is known to fit. Chosen by eye.
const CLOSER_FIT_CHUNKS_MAX: usize = 8;

/// Disjoint byte ranges of a window, in whole units; ranges that touch are one.
#[derive(Clone, Debug)]
pub struct RangeTree {
    start_bytes: u64,
    size_units: u64,
    shift: u32,
    /// Number of each chunk that holds something, ascending; `present` and `chunks` run beside it.
    index: Vec<u32>,
    /// For each chunk, the classes of which it has runs of its own.
    present: Vec<u16>,
    chunks: Vec<Chunk>,
    /// Runs that lie in more than one chunk: start to end, in units.
    spanning: BTreeMap<u64, u64>,
    /// The same by length, then start.
    spanning_by_size: BTreeSet<(u64, u64)>,
    /// Runs by length in units, as far as there ever were any: an empty tree has no memory but its own.
    histogram: Vec<u64>,
    units: u64,
    segments: u64,
    /// No run is this long, as far as is known; it spares the search that would find that out again.
    nothing_of_units: u64,
}

impl RangeTree {
    /// An empty set within `size_bytes` from `start_bytes`, in units of `2^shift` bytes. A rest of the size that is no
    /// whole unit is not part of it.
    ///
    /// # Panics
    /// If the window has more than 2^47 units: [`Self::fits_window`] tells before.
    #[must_use]
    pub fn new(start_bytes: u64, size_bytes: u64, shift: u32) -> Self {
        assert!(Self::fits_window(size_bytes, shift), "a window of {size_bytes} bytes in units of 2^{shift}");
        Self {
            start_bytes,
            size_units: size_bytes >> shift,
            shift,
            index: Vec::new(),
            present: Vec::new(),
            chunks: Vec::new(),
            spanning: BTreeMap::new(),
            spanning_by_size: BTreeSet::new(),
            histogram: Vec::new(),
            units: 0,
            segments: 0,
            nothing_of_units: 1,
        }
    }

    /// Whether a window can be told in chunks.
    #[must_use]
    pub(crate) const fn fits_window(size_bytes: u64, shift: u32) -> bool {
        shift < 64 && (size_bytes >> shift) <= (u32::MAX as u64) * CHUNK_UNITS as u64
    }

    /// The same window with nothing in it.
    #[must_use]
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.start_bytes, self.size_units << self.shift, self.shift)
    }

    /// Takes all ranges out; the tree is empty afterwards.
    #[must_use]
    pub(crate) fn take(&mut self) -> Self {
        let empty = self.emptied();
        std::mem::replace(self, empty)
    }

    /// The unit, as a power of two.
    #[must_use]
    pub(crate) const fn shift(&self) -> u32 {
        self.shift
    }

    /// Bytes in the set.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.units << self.shift
    }

    /// Number of ranges.
    #[must_use]
    pub const fn segments(&self) -> u64 {
        self.segments
    }

    /// Whether nothing is in it.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// Counts of ranges by power of two of their bytes.
    #[must_use]
    pub(crate) fn histogram(&self) -> [u64; TREE_HISTOGRAM_BUCKETS] {
        let mut bytes = [0; TREE_HISTOGRAM_BUCKETS];
        for (class, count) in self.histogram.iter().enumerate() {
            bytes[class + self.shift as usize] = *count;
        }
        bytes
    }

    /// Bytes of memory it takes, what the general allocator adds left aside.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // A node of the standard B-tree is at least five elevenths full.
        const SPANNING_BYTES: usize = 32 * 11 / 5;
        size_of::<Self>()
            + self.index.capacity() * size_of::<u32>()
            + self.present.capacity() * size_of::<u16>()
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().map(Chunk::heap_bytes).sum::<usize>()
            + self.spanning.len() * SPANNING_BYTES
            + self.histogram.capacity() * size_of::<u64>()
    }

    fn bytes(&self, (start, end): (u64, u64)) -> Range<u64> {
        self.start_bytes + (start << self.shift)..self.start_bytes + (end << self.shift)
    }

    /// A range in units, if it lies within and has whole units.
    fn checked(&self, range: &Range<u64>) -> Result<(u64, u64), RangeError> {
        let misplaced = RangeError::Misplaced { start: range.start, end: range.end };
        let whole = |bytes: u64| bytes >> self.shift << self.shift == bytes;
        let start = range.start.checked_sub(self.start_bytes).filter(|start| whole(*start)).ok_or(misplaced)?;
        let end = range.end.checked_sub(self.start_bytes).filter(|end| whole(*end)).ok_or(misplaced)?;
        let (start, end) = (start >> self.shift, end >> self.shift);
        if end < start || end > self.size_units {
            return Err(misplaced);
        }
        Ok((start, end))
    }

    /// Where a chunk stands, or where it would.
    fn slot(&self, at: u64) -> Result<usize, usize> {
        self.index.binary_search(&((at / u64::from(CHUNK_UNITS)) as u32))
    }

    fn base(&self, slot: usize) -> u64 {
        u64::from(self.index[slot]) * u64::from(CHUNK_UNITS)
    }

    /// The spanning run that holds `at`.
    fn spanning_at(&self, at: u64) -> Option<(u64, u64)> {
        self.spanning.range(..=at).next_back().map(|(start, end)| (*start, *end)).filter(|(_, end)| *end > at)
    }

    /// The whole of a run that was found in a chunk.
    fn whole(&self, slot: usize, (start, end): (u32, u32)) -> (u64, u64) {
        let base = self.base(slot);
        let found = (base + u64::from(start), base + u64::from(end));
        if start == 0 || end == CHUNK_UNITS {
            return self.spanning_at(found.0).unwrap_or(found);
        }
        found
    }

    /// The run that holds `at`.
    fn run_at(&self, at: u64) -> Option<(u64, u64)> {
        let slot = self.slot(at).ok()?;
        let found = self.chunks[slot].run_at((at % u64::from(CHUNK_UNITS)) as u32)?;
        Some(self.whole(slot, found))
    }

    /// The run that ends after `at`: the one that holds it, or the first after it.
    fn run_from(&self, at: u64) -> Option<(u64, u64)> {
        if at >= self.size_units {
            return None;
        }
        let (mut slot, mut local) = match self.slot(at) {
            Ok(slot) => (slot, (at % u64::from(CHUNK_UNITS)) as u32),
            Err(slot) => (slot, 0),
        };
        while let Some(chunk) = self.chunks.get(slot) {
            if let Some(found) = chunk.next(local) {
                return Some(self.whole(slot, found));
            }
            (slot, local) = (slot + 1, 0);
        }
        None
    }

    /// The range that holds `at`, or the first after it.
    #[must_use]
    pub(crate) fn next_from(&self, at: u64) -> Option<Range<u64>> {
        let at = at.saturating_sub(self.start_bytes) >> self.shift;
        self.run_from(at).map(|run| self.bytes(run))
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let run = self.run_from(at)?;
            at = run.1;
            Some(self.bytes(run))
        })
    }

    /// Whether all of `range` is in the set. Empty ranges are.
    #[cfg(test)]
    pub(crate) fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty()
            || self.next_from(range.start).is_some_and(|run| run.start <= range.start && range.end <= run.end)
    }

    /// The first part of `range` that is in the set.
    #[must_use]
    pub fn overlap(&self, range: Range<u64>) -> Option<Range<u64>> {
        let run = self.next_from(range.start)?;
        let (start, end) = (run.start.max(range.start), run.end.min(range.end));
        (start < end).then_some(start..end)
    }

    fn count(&mut self, (start, end): (u64, u64), appears: bool) {
        let class = (end - start).ilog2() as usize;
        if self.histogram.len() <= class {
            self.histogram.resize(class + 1, 0);
        }
        if appears {
            self.histogram[class] += 1;
            self.segments += 1;
        } else {
            debug_assert!(self.histogram[class] > 0, "a run that goes was counted by its length");
            self.histogram[class] -= 1;
            debug_assert!(self.segments > 0, "a run that goes was counted");
            self.segments -= 1;
        }
        let width = u64::from(CHUNK_UNITS);
        if start / width == (end - 1) / width {
            let Ok(slot) = self.slot(start) else { return };
            let lengths = &mut self.chunks[slot].lengths[class];
            debug_assert!(appears || *lengths > 0, "a run that goes was counted in its chunk");
            *lengths = if appears { *lengths + 1 } else { *lengths - 1 };
            let bit = 1 << class;
            self.present[slot] = self.present[slot] & !bit | if *lengths > 0 { bit } else { 0 };
        } else if appears {
            let (before, is_new) =
                (self.spanning.insert(start, end), self.spanning_by_size.insert((end - start, start)));
            debug_assert!(before.is_none() && is_new, "a run over several chunks stands once by place and by length");
        } else {
            let (place, had_length) =
                (self.spanning.remove(&start), self.spanning_by_size.remove(&(end - start, start)));
            debug_assert!(place == Some(end) && had_length, "a run over several chunks stands by place and by length");
        }
    }

    fn fill(&mut self, (start, end): (u64, u64), value: bool) {
        let width = u64::from(CHUNK_UNITS);
        let mut at = start;
        while at < end {
            let stop = end.min((at / width + 1) * width);
            let local = ((at % width) as u32, ((stop - 1) % width) as u32 + 1);
            debug_assert!(value || self.slot(at).is_ok(), "what is removed is in a chunk");
            let slot = match self.slot(at) {
                Ok(slot) => slot,
                Err(slot) => {
                    // By an eighth, not by doubling: memory has a bound.
                    let more = if self.index.len() == self.index.capacity() { self.index.len() / 8 + 4 } else { 1 };
                    self.index.reserve_exact(more);
                    self.present.reserve_exact(more);
                    self.chunks.reserve_exact(more);
                    self.index.insert(slot, (at / width) as u32);
                    self.present.insert(slot, 0);
                    self.chunks.insert(slot, Chunk::new());
                    slot
                }
            };
            if value {
                self.chunks[slot].set(local.0, local.1);
            } else {
                self.chunks[slot].clear(local.0, local.1);
                if self.chunks[slot].units() == 0 {
                    self.index.remove(slot);
                    self.present.remove(slot);
                    self.chunks.remove(slot);
                }
            }
            at = stop;
        }
        if value {
            self.units += end - start;
        } else {
            debug_assert!(end - start <= self.units, "what is removed was counted");
            self.units -= end - start;
        }
        debug_assert!(self.units <= self.size_units, "no more is in the set than in its window");
        debug_assert!(
            self.index.len() == self.chunks.len() && self.present.len() == self.chunks.len(),
            "each chunk has its number and its classes"
        );
    }

    /// Adds a range of which nothing is there; on error nothing changes.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        let (start, end) = self.checked(&range)?;
        if start == end {
            return Ok(());
        }
        let after = self.run_from(start);
        if let Some((found, _)) = after.filter(|(found, _)| *found < end) {
            let at = self.start_bytes + (found.max(start) << self.shift);
            return Err(RangeError::Overlap { start: range.start, end: range.end, at });
        }
        let (mut from, mut to) = (start, end);
        if let Some(left) = start.checked_sub(1).and_then(|before| self.run_at(before)) {
            self.count(left, false);
            from = left.0;
        }
        if let Some(right) = after.filter(|(found, _)| *found == end) {
            self.count(right, false);
            to = right.1;
        }
        self.fill((start, end), true);
        self.count((from, to), true);
        debug_assert_eq!(self.run_at(start), Some((from, to)), "ranges that touch are one (invariant 1)");
        self.nothing_of_units = self.nothing_of_units.max(to - from + 1);
        Ok(())
    }

    /// Removes a range of which all is there; on error nothing changes.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        let (start, end) = self.checked(&range)?;
        if start == end {
            return Ok(());
        }
        let absent = |at: u64| {
            let at = self.start_bytes + (at << self.shift);
            RangeError::Absent { start: range.start, end: range.end, at }
        };
        let (from, to) = self.run_at(start).ok_or_else(|| absent(start))?;
        if to < end {
            return Err(absent(to));
        }
        self.count((from, to), false);
        self.fill((start, end), false);
        if from < start {
            self.count((from, start), true);
        }
        if end < to {
            self.count((end, to), true);
        }
        Ok(())
    }

    /// Takes out of `range` what is there. Parts outside the window are ignored.
    #[cfg(test)]
    pub(crate) fn clear(&mut self, range: Range<u64>) {
        while let Some(part) = self.overlap(range.clone()) {
            if self.remove(part).is_err() {
                debug_assert!(false, "what was found is there");
                return;
            }
        }
    }

    /// Adds all of `other`.
    pub(crate) fn add_all(&mut self, other: &Self) -> Result<(), RangeError> {
        other.iter().try_for_each(|range| self.add(range))
    }

    /// Removes all of `other`.
    pub(crate) fn remove_all(&mut self, other: &Self) -> Result<(), RangeError> {
        other.iter().try_for_each(|range| self.remove(range))
    }

    /// Removes the overlap of `self` and `undone` from `undone`; the rest of `self` joins `done`.
    ///
    /// So pending changes stay disjoint: an allocation that cancels a pending free removes it, any other is added.
    pub(crate) fn cancel_or_add(&self, undone: &mut Self, done: &mut Self) -> Result<(), RangeError> {
        for range in self.iter() {
            let mut at = range.start;
            while at < range.end {
                let part = undone.overlap(at..range.end).unwrap_or(range.end..range.end);
                debug_assert!(at <= part.start && part.end <= range.end, "what is cancelled is a part of the change");
                done.add(at..part.start)?;
                undone.remove(part.clone())?;
                at = part.end;
            }
        }
        Ok(())
    }

    /// The first range of at least `size_bytes` from `cursor` on. Gives up `search_bytes_max` after the first range that
    /// it saw, but not before it saw `search_count_min` of them.
    #[must_use]
    pub(crate) fn first_fit(
        &self,
        cursor: u64,
        size_bytes: u64,
        search_bytes_max: u64,
        search_count_min: u64,
    ) -> Option<Range<u64>> {
        let wanted = self.whole_units(size_bytes).max(1);
        if wanted >= self.nothing_of_units {
            return None;
        }
        let width = u64::from(CHUNK_UNITS);
        let classes = !((1_u32 << wanted.ilog2().min(CLASSES as u32)) - 1);
        let (mut at, mut first, mut count) = (cursor.saturating_sub(self.start_bytes) >> self.shift, None, 0);
        while let Some((start, end)) = self.run_from(at) {
            let distance = start.saturating_sub(*first.get_or_insert(start));
            if distance << self.shift > search_bytes_max && count >= search_count_min {
                return None;
            }
            if end - start >= wanted {
                return Some(self.bytes((start, end)));
            }
            count += 1;
            at = end;
            // Nothing of this class in the chunk: on to the next, or to a run that leads there.
            if let Ok(slot) = self.slot(at)
                && u32::from(self.present[slot]) & classes == 0
            {
                let border = (at / width + 1) * width;
                at = self.spanning_at(border).map_or(border, |(start, _)| start.max(at));
            }
        }
        None
    }

    fn whole_units(&self, size_bytes: u64) -> u64 {
        (size_bytes >> self.shift) + u64::from(size_bytes & ((1 << self.shift) - 1) != 0)
    }

    /// The shortest run of a chunk's own that is at least `wanted` long.
    fn closest_in(&self, slot: usize, wanted: u64) -> Option<(u64, u64)> {
        let base = self.base(slot);
        let mut best: Option<(u64, u64)> = None;
        let mut at = 0;
        while let Some((start, end)) = self.chunks[slot].next(at) {
            at = end;
            let length = u64::from(end - start);
            if length < wanted || best.is_some_and(|(start, end)| end - start <= length) {
                continue;
            }
            let run = (base + u64::from(start), base + u64::from(end));
            if self.whole(slot, (start, end)) == run {
                best = Some(run);
                if length == wanted {
                    break;
                }
            }
        }
        best
    }

    /// The longest run of a chunk's own.
    fn longest_in(&self, slot: usize) -> Option<(u64, u64)> {
        let base = self.base(slot);
        let mut best: Option<(u64, u64)> = None;
        let mut at = 0;
        while let Some((start, end)) = self.chunks[slot].next(at) {
            at = end;
            let run = (base + u64::from(start), base + u64::from(end));
            if best.is_none_or(|best| best.1 - best.0 < run.1 - run.0) && self.whole(slot, (start, end)) == run {
                best = Some(run);
            }
        }
        best
    }

    /// A range of at least `size_bytes`, about as short as there is one: of those of the lowest power of two that has a
    /// fitting one. `None` only if there is none at all.
    pub(crate) fn good_fit(&mut self, size_bytes: u64) -> Option<Range<u64>> {
        let wanted = self.whole_units(size_bytes).max(1);
        if wanted >= self.nothing_of_units {
            return None;
        }
        let mut best =
            self.spanning_by_size.range((wanted, 0)..).next().map(|(length, start)| (*start, start + length));
        let class = wanted.ilog2() as usize;
        if class < CLASSES {
            let larger = 2_u32 << class;
            let alternative = best.is_some() || self.present.iter().any(|mask| u32::from(*mask) >= larger);
            let mut own = None;
            let mut looked = 0;
            for slot in 0..self.chunks.len() {
                if self.present[slot] >> class & 1 == 1 {
                    own = self.closest_in(slot, wanted).filter(|(start, end)| (end - start).ilog2() as usize == class);
                    looked += 1;
                    if own.is_some() || (alternative && looked >= CLOSER_FIT_CHUNKS_MAX) {
                        break;
                    }
                }
            }
            if own.is_none() {
                let lowest = (class + 1..CLASSES).find(|class| self.present.iter().any(|mask| mask >> class & 1 == 1));
                own = lowest.and_then(|class| {
                    let slot = self.present.iter().position(|mask| mask >> class & 1 == 1)?;
                    self.closest_in(slot, 1 << class)
                });
            }
            if let Some((start, end)) = own
                && best.is_none_or(|(best_start, best_end)| end - start <= best_end - best_start)
            {
                best = own;
            }
        }
        debug_assert!(best.is_none_or(|(start, end)| end - start >= wanted), "what is found is large enough");
        if best.is_none() {
            self.nothing_of_units = wanted;
        }
        best.map(|run| self.bytes(run))
    }

    /// Whether a range of at least `2^class` bytes is there: cheap.
    #[must_use]
    pub(crate) fn has_class(&self, class: u32) -> bool {
        self.histogram.iter().skip(class.saturating_sub(self.shift) as usize).any(|count| *count > 0)
    }

    /// The longest range.
    #[must_use]
    pub(crate) fn largest(&self) -> Option<Range<u64>> {
        let mut best = self.spanning_by_size.last().map(|(length, start)| (*start, start + length));
        let highest = (0..CLASSES).rev().find(|class| self.present.iter().any(|mask| mask >> class & 1 == 1));
        if let Some(class) = highest {
            for slot in (0..self.chunks.len()).filter(|slot| self.present[*slot] >> class & 1 == 1) {
                let longer = self.longest_in(slot);
                if longer.map(|(start, end)| end - start) > best.map(|(start, end)| end - start) {
                    best = longer;
                }
            }
        }
        best.map(|run| self.bytes(run))
    }
}

impl PartialEq for RangeTree {
    fn eq(&self, other: &Self) -> bool {
        self.units == other.units && self.segments == other.segments && self.iter().eq(other.iter())
    }
}

impl Eq for RangeTree {}

#[cfg(test)]
mod tests;
