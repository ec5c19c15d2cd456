//! One metaslab: what of it is free, what is on the way, and what has to be written.
//!
//! ```text
//!            allocate                  sync                     flush
//!   free ───────────────► allocating ─────────► (unflushed_allocs) ─────► own map
//!    ▲                       [txg]         └──► log or own map
//!    │                                 sync                     flush
//!    │        free ─────► freeing ────────────► (unflushed_frees) ──────► own map
//!    │                       │             └──► log or own map
//!    └─ deferred [2] ◄── freed
//!      two txgs later      txg done
//! ```

mod deferred;
mod hold;
mod load;
mod sync;

use std::ops::Range;

use cenote_format::ids::{Txg, VdevId};
use cenote_format::spacemap::HISTOGRAM_BUCKETS;

use self::deferred::Deferred;
pub use self::deferred::Keep;
pub use self::load::{LoadStep, Loading};
pub(crate) use self::sync::SyncTarget;
use crate::map::map_histogram;
use crate::weight::{self, Weight};
use crate::{MetaslabFault, MetaslabId, RangeTree, SpaceError, SpaceMap, Tunables, fragmentation};

/// The unflushed changes of a metaslab, replayed from the logs.
pub(crate) struct Replayed {
    pub(crate) id: MetaslabId,
    pub(crate) allocs: RangeTree,
    pub(crate) frees: RangeTree,
    pub(crate) allocated_bytes: u64,
    /// Whether a log had anything for it.
    pub(crate) is_changed: bool,
}

/// Txgs that can be alive at once, rounded up to a power of two.
pub(crate) const TXG_SIZE: usize = 4;
/// Txgs that pass before what was freed is used again, so that the last states of the pool stay readable.
pub(crate) const TXG_DEFER_SIZE: usize = 2;
/// Ranges that first fit looks at before the distance counts (OpenZFS's number).
const SEARCH_COUNT_MIN: u64 = 100;

/// An allocator's claim on a metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activation {
    pub(crate) allocator: usize,
    /// For first copies; else for second ones.
    pub(crate) primary: bool,
    /// The weight at the time.
    pub(crate) weight: Weight,
}

#[derive(Clone, Debug)]
struct Loaded {
    /// The ranges that may be allocated (`ms_allocatable`).
    free: RangeTree,
    /// Where the last allocation of each alignment ended.
    cursors: Box<[u64; 64]>,
}

/// A metaslab in memory.
#[derive(Clone, Debug)]
pub struct Metaslab {
    id: MetaslabId,
    range: Range<u64>,
    ashift: u32,
    map: Option<SpaceMap>,
    loaded: Option<Loaded>,
    allocating: [RangeTree; TXG_SIZE],
    freeing: RangeTree,
    freed: RangeTree,
    deferred: Deferred,
    /// Free, and not to be allocated now.
    held: RangeTree,
    /// The ranges of it as they were given out, one for each holder.
    holds: Vec<Range<u64>>,
    unflushed_allocs: RangeTree,
    unflushed_frees: RangeTree,
    /// The first txg that the own map lacks; 0 while no log ever had anything about it.
    unflushed_txg: Txg,
    unflushed_dirty: bool,
    /// Bytes allocated as of what was synced.
    allocated_bytes: u64,
    weight: Weight,
    fragmentation: Option<u64>,
    pub(crate) activation: Option<Activation>,
    /// Not part of any synced txg yet.
    is_new: bool,
    condense_wanted: bool,
    /// How often the map was rewritten: a load that began before another must begin again.
    rewrites: u64,
    /// Since when its map cannot be read, in the caller's milliseconds.
    unreadable_since_ms: Option<u64>,
    /// When it was last chosen, as txg and milliseconds.
    pub(crate) selected: (Txg, u64),
}

/// The size of an allocation from a metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// At least this many bytes.
    pub min_bytes: u64,
    /// At most so many, if there are more in one piece.
    pub max_bytes: u64,
}

impl SizeRange {
    /// Exactly so many bytes.
    #[must_use]
    pub const fn exactly(bytes: u64) -> Self {
        Self { min_bytes: bytes, max_bytes: bytes }
    }
}

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SIZE as u64) as usize
}

/// One cursor for each alignment: blocks of a size keep together.
const fn cursor_of(bytes: u64) -> usize {
    (bytes & bytes.wrapping_neg()).ilog2() as usize
}

impl Metaslab {
    /// A metaslab of a vdev that is being added: all free, loaded, and not to be used until a txg has synced.
    #[must_use]
    pub(crate) fn new(id: MetaslabId, range: Range<u64>, ashift: u32) -> Self {
        let mut metaslab = Self::open(id, range, ashift, None, Txg(0));
        metaslab.is_new = true;
        metaslab
    }

    /// A metaslab of a pool that is being opened. `map` is its space map, if it ever had one, and `unflushed_txg` the first
    /// txg that the map lacks. The logs are still to be replayed ([`crate::open()`]).
    ///
    /// # Panics
    /// If the metaslab is larger than a [`RangeTree`] can be.
    #[must_use]
    pub(crate) fn open(
        id: MetaslabId,
        range: Range<u64>,
        ashift: u32,
        map: Option<SpaceMap>,
        unflushed_txg: Txg,
    ) -> Self {
        let empty = RangeTree::new(range.start, range.end - range.start, ashift);
        let allocated = map.as_ref().map_or(0, |map| u64::try_from(map.allocated_bytes).unwrap_or(0));
        Self {
            id,
            ashift,
            map,
            loaded: None,
            allocating: std::array::from_fn(|_| empty.clone()),
            freeing: empty.clone(),
            freed: empty.clone(),
            deferred: Deferred::new(&empty),
            held: empty.clone(),
            holds: Vec::new(),
            unflushed_allocs: empty.clone(),
            unflushed_frees: empty,
            unflushed_txg,
            unflushed_dirty: false,
            allocated_bytes: allocated.min(range.end - range.start),
            range,
            weight: Weight::default(),
            fragmentation: None,
            activation: None,
            is_new: false,
            condense_wanted: false,
            rewrites: 0,
            unreadable_since_ms: None,
            selected: (Txg(0), 0),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> MetaslabId {
        self.id
    }

    /// The part of the vdev that it is.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Its size.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Bytes allocated as of what was synced; what is deferred is not among them.
    #[must_use]
    pub const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Bytes freed that may not be used yet, those among them that the txg has freed which is being synced.
    #[must_use]
    pub fn deferred_bytes(&self) -> u64 {
        self.deferred.total() + self.freed.total()
    }

    /// Those of them that only wait for pinned txgs ([`Keep`]).
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.deferred.kept_bytes()
    }

    /// Its space map, if it has one.
    #[must_use]
    pub const fn map(&self) -> Option<&SpaceMap> {
        self.map.as_ref()
    }

    /// The ranges that may be allocated, if it is loaded.
    #[must_use]
    pub fn free_space(&self) -> Option<&RangeTree> {
        self.loaded.as_ref().map(|loaded| &loaded.free)
    }

    /// Whether it can be allocated from at once.
    #[must_use]
    pub const fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    /// The first txg that its own map lacks; 0 while no log ever had anything about it.
    #[must_use]
    pub(crate) const fn unflushed_txg(&self) -> Txg {
        self.unflushed_txg
    }

    /// Whether logs have changes that its own map lacks.
    #[must_use]
    pub(crate) const fn is_unflushed(&self) -> bool {
        self.unflushed_dirty
    }

    /// Its weight, as of the last time it was weighed.
    #[must_use]
    pub(crate) const fn weight(&self) -> Weight {
        self.weight
    }

    /// Its fragmentation in per cent; `None` where its map has no histogram.
    #[must_use]
    pub(crate) const fn fragmentation(&self) -> Option<u64> {
        self.fragmentation
    }

    /// Memory of what is loaded, in bytes.
    #[must_use]
    pub fn loaded_memory_bytes(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| (loaded.free.memory_bytes() + 512) as u64)
    }

    /// Memory of unflushed changes, in bytes.
    #[must_use]
    pub(crate) fn unflushed_memory_bytes(&self) -> u64 {
        if self.unflushed_allocs.is_empty() && self.unflushed_frees.is_empty() {
            return 0;
        }
        (self.unflushed_allocs.memory_bytes() + self.unflushed_frees.memory_bytes()) as u64
    }

    /// Asks that the map be rewritten the next time it is loaded and synced.
    pub(crate) fn want_condensed(&mut self) {
        self.condense_wanted = true;
    }

    /// Whether allocations may be made here at all.
    pub(crate) const fn is_usable(&self) -> bool {
        !self.is_new && self.unreadable_since_ms.is_none()
    }

    /// True if its map could not be read. It then serves no allocations, and is not flushed, since its map cannot be appended to;
    /// frees in it are recorded in the log space maps all the same.
    #[must_use]
    pub const fn is_unreadable(&self) -> bool {
        self.unreadable_since_ms.is_some()
    }

    pub(crate) fn set_unreadable(&mut self, since_ms: Option<u64>) {
        self.unreadable_since_ms = since_ms;
    }

    pub(crate) const fn unreadable_since_ms(&self) -> Option<u64> {
        self.unreadable_since_ms
    }

    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Takes over what the logs change, at import.
    pub(crate) fn set_replayed(&mut self, replayed: Replayed) {
        assert_eq!(replayed.id, self.id, "each metaslab has the changes that logs have for it");
        let Replayed { allocs, frees, allocated_bytes, is_changed, .. } = replayed;
        assert!(allocated_bytes <= self.size_bytes(), "no more is allocated than there is (invariant 5)");
        assert!(is_changed || (allocs.is_empty() && frees.is_empty()), "without a log's entry nothing is unflushed");
        debug_assert!(
            allocs.iter().all(|range| frees.overlap(range).is_none()),
            "unflushed allocations and frees are disjoint (invariant 5)"
        );
        (self.unflushed_allocs, self.unflushed_frees) = (allocs, frees);
        self.allocated_bytes = allocated_bytes;
        self.unflushed_dirty |= is_changed;
    }

    pub(crate) const fn ashift(&self) -> u32 {
        self.ashift
    }

    /// Whether an allocation of this size may succeed. Certain where it is loaded, else by the weight.
    pub(crate) fn may_fit(&mut self, size_bytes: u64) -> bool {
        let Some(loaded) = &mut self.loaded else { return self.weight.may_fit(size_bytes) };
        let class = size_bytes.max(1).next_power_of_two().ilog2();
        loaded.free.has_class(class) || loaded.free.good_fit(size_bytes).is_some()
    }

    /// The longest free range, if it is loaded.
    #[must_use]
    pub(crate) fn largest_bytes(&self) -> Option<u64> {
        let loaded = self.loaded.as_ref()?;
        Some(loaded.free.largest().map_or(0, |range| range.end - range.start))
    }

    /// Takes space for a block of this txg: where the last of its alignment ended, or by size when little or nothing large
    /// is left. `None` if nothing fits, or it is not loaded.
    pub(crate) fn allocate(
        &mut self,
        txg: Txg,
        size: SizeRange,
        tunables: &Tunables,
    ) -> Result<Option<Range<u64>>, SpaceError> {
        debug_assert!(size.min_bytes > 0 && size.min_bytes <= size.max_bytes);
        let Some(found) = self.pick(size, tunables) else { return Ok(None) };
        debug_assert!(
            self.range.start <= found.start && found.end <= self.range.end,
            "space is its metaslab's (invariant 4)"
        );
        debug_assert!(
            (size.min_bytes..=size.max_bytes).contains(&(found.end - found.start)),
            "as much is taken as was asked for"
        );
        let Some(loaded) = &mut self.loaded else { return Ok(None) };
        loaded.free.remove(found.clone()).map_err(SpaceError::tree(self.id, "free space"))?;
        self.allocating[slot(txg)].add(found.clone()).map_err(SpaceError::tree(self.id, "space being allocated"))?;
        Ok(Some(found))
    }

    /// Takes space for up to `count` blocks of the same size that follow each other: as one range, which is what taking one
    /// after the other from the same free run comes to. `None` as [`Self::allocate`].
    pub(crate) fn allocate_run(
        &mut self,
        txg: Txg,
        size_bytes: u64,
        count: u64,
        tunables: &Tunables,
    ) -> Result<Option<Range<u64>>, SpaceError> {
        let Some(mut found) = self.pick(SizeRange::exactly(size_bytes), tunables) else { return Ok(None) };
        let Some(loaded) = &mut self.loaded else { return Ok(None) };
        if count > 1
            && let Some(free) = loaded.free.next_from(found.start)
        {
            let blocks = ((free.end - found.start) / size_bytes).min(count);
            debug_assert!(
                blocks > 0 && blocks <= count,
                "the run has the block that was found, and no more than asked for"
            );
            found.end = found.start + blocks * size_bytes;
            loaded.cursors[cursor_of(size_bytes)] = found.end;
        }
        loaded.free.remove(found.clone()).map_err(SpaceError::tree(self.id, "free space"))?;
        self.allocating[slot(txg)].add(found.clone()).map_err(SpaceError::tree(self.id, "space being allocated"))?;
        Ok(Some(found))
    }

    fn pick(&mut self, size: SizeRange, tunables: &Tunables) -> Option<Range<u64>> {
        let metaslab_bytes = self.size_bytes();
        let loaded = self.loaded.as_mut()?;
        let free = &mut loaded.free;
        let fits = |run: Range<u64>| run.start..run.end.min(run.start + size.max_bytes);
        let by_size = u128::from(free.total()) * 100
            < u128::from(tunables.metaslab_df_free_pct) * u128::from(metaslab_bytes)
            || !free.has_class(tunables.metaslab_df_alloc_threshold.max(1).next_power_of_two().ilog2());
        if !by_size {
            let cursors = [cursor_of(size.max_bytes), cursor_of(size.min_bytes)];
            for cursor in &cursors[..1 + usize::from(size.min_bytes < size.max_bytes)] {
                let cursor = *cursor;
                let at = loaded.cursors[cursor];
                let found =
                    free.first_fit(at, size.min_bytes, tunables.metaslab_df_max_search, SEARCH_COUNT_MIN).map(fits);
                loaded.cursors[cursor] = found.as_ref().map_or(0, |found| found.end);
                if found.is_some() {
                    return found;
                }
            }
        }
        let found = if tunables.metaslab_df_use_largest_segment {
            free.largest().filter(|run| run.end - run.start >= size.min_bytes)
        } else {
            free.good_fit(size.max_bytes).or_else(|| free.good_fit(size.min_bytes))
        }
        .map(fits)?;
        loaded.cursors[cursor_of(size.min_bytes)] = found.end;
        Some(found)
    }

    /// Gives back what was allocated in the same txg and never written to: at once.
    pub fn unallocate(&mut self, txg: Txg, range: Range<u64>) -> Result<(), SpaceError> {
        self.allocating[slot(txg)].remove(range.clone()).map_err(SpaceError::tree(self.id, "space being allocated"))?;
        match &mut self.loaded {
            Some(loaded) => loaded.free.add(range).map_err(SpaceError::tree(self.id, "free space")),
            None => Ok(()),
        }
    }

    /// Takes a given range: blocks of the intent log that no synced txg knows of, at import. It must be loaded.
    pub(crate) fn claim(&mut self, txg: Txg, range: Range<u64>) -> Result<(), SpaceError> {
        let Some(loaded) = &mut self.loaded else {
            return Err(SpaceError::Figures { metaslab: self.id, fault: MetaslabFault::NotLoaded });
        };
        loaded.free.remove(range.clone()).map_err(SpaceError::tree(self.id, "free space"))?;
        self.allocating[slot(txg)].add(range).map_err(SpaceError::tree(self.id, "space being allocated"))
    }

    /// Frees a block in the txg that syncs. Its space comes back two txgs later.
    pub(crate) fn free(&mut self, range: Range<u64>) -> Result<(), SpaceError> {
        self.check_taken(range.clone())?;
        self.freeing.add(range).map_err(SpaceError::tree(self.id, "space being freed"))
    }

    /// Whether a range is allocated, as far as is known without its map.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn check_taken(&self, range: Range<u64>) -> Result<(), SpaceError> {
        let deferred = self.deferred.trees().map(|tree| (tree, "deferred frees"));
        let free = [(&self.freed, "space freed in this txg"), (&self.held, "held free space")];
        for (tree, name) in free.into_iter().chain(deferred) {
            if let Some(at) = tree.overlap(range.clone()) {
                let error = crate::RangeError::Overlap { start: range.start, end: range.end, at: at.start };
                return Err(SpaceError::tree(self.id, name)(error));
            }
        }
        if let Some(at) = self.free_space().and_then(|free| free.overlap(range.clone())) {
            let error = crate::RangeError::Overlap { start: range.start, end: range.end, at: at.start };
            return Err(SpaceError::tree(self.id, "free space")(error));
        }
        Ok(())
    }

    /// The first range from `from` on that the pool uses, up to where something else begins: neither free, nor freed, be it that it may not
    /// be used yet. `None` where it is not loaded, or nothing is in use.
    #[must_use]
    pub(crate) fn next_in_use(&self, from: u64) -> Option<Range<u64>> {
        self.next_outside(from, &[])
    }

    /// The same without what no txg on disk has yet. While no txg is being synced.
    #[must_use]
    pub(crate) fn next_on_disk(&self, from: u64) -> Option<Range<u64>> {
        let [first, second, third, fourth] = &self.allocating;
        self.next_outside(from, &[first, second, third, fourth])
    }

    /// The next range that is neither free, nor freed, nor in one of these sets.
    fn next_outside(&self, from: u64, more: &[&RangeTree]) -> Option<Range<u64>> {
        let free = self.free_space()?;
        self.next_beside(from, || {
            let own = [free, &self.held, &self.freeing, &self.freed].into_iter().chain(self.deferred.trees());
            own.chain(more.iter().copied())
        })
    }

    /// The first range from `from` on that a block of this txg or of an earlier one may be in: all that is not free, what was freed and may not be used
    /// yet included. Where it is not loaded, that is all of it.
    #[must_use]
    pub(crate) fn next_taken(&self, from: u64) -> Option<Range<u64>> {
        let Some(free) = self.free_space() else {
            let rest = from.max(self.range.start)..self.range.end;
            return (!rest.is_empty()).then_some(rest);
        };
        self.next_beside(from, || [free, &self.held].into_iter())
    }

    /// The first range from `from` on that none of some trees has.
    fn next_beside<'a, I: Iterator<Item = &'a RangeTree>>(
        &self,
        from: u64,
        trees: impl Fn() -> I,
    ) -> Option<Range<u64>> {
        let mut at = from.max(self.range.start);
        while at < self.range.end {
            let mut next = self.range.end;
            let mut is_free = false;
            for range in trees().filter_map(|tree| tree.next_from(at)) {
                if range.start <= at {
                    (at, is_free) = (range.end, true);
                    break;
                }
                next = next.min(range.start);
            }
            if !is_free {
                debug_assert!(at < next && next <= self.range.end, "a range in use lies in its metaslab");
                return Some(at..next);
            }
        }
        None
    }

    /// Whether there is anything to sync in this txg.
    #[must_use]
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        !self.allocating[slot(txg)].is_empty() || !self.freeing.is_empty()
    }

    /// Whether allocations of any txg are still unsynced.
    #[must_use]
    pub(crate) fn is_allocating(&self) -> bool {
        self.allocating.iter().any(|tree| !tree.is_empty())
    }

    /// Weighs it anew. `place` is its index and the number of metaslabs of a vdev on rotating disks.
    pub(crate) fn weigh(&mut self, place: Option<(u64, u64)>, tunables: &Tunables) -> Weight {
        self.fragmentation = match &self.map {
            None => Some(0),
            Some(map) => map.histogram.as_ref().map(|histogram| fragmentation::of_histogram(histogram, self.ashift)),
        };
        let by_segments = tunables.zfs_metaslab_segment_weight_enabled && self.fragmentation.is_some();
        self.weight = if !by_segments {
            weight::from_space(self.size_bytes() - self.allocated_bytes, self.fragmentation, place, tunables)
        } else if self.allocated_bytes == 0 && !self.is_allocating() {
            weight::from_size(self.size_bytes(), self.ashift)
        } else if let Some(loaded) = &self.loaded {
            weight::from_tree(&loaded.free, self.ashift)
        } else {
            match self.map.as_ref().and_then(|map| map.histogram.as_ref()) {
                Some(histogram) => weight::from_map(histogram, &self.pending_histogram(), self.ashift),
                None => weight::from_size(self.size_bytes(), self.ashift),
            }
        };
        self.weight
    }

    /// The weight that its free space has now, while a txg syncs.
    pub(crate) fn weight_now(&self) -> Weight {
        self.loaded.as_ref().map_or(self.weight, |loaded| weight::from_tree(&loaded.free, self.ashift))
    }

    pub(crate) fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
    }

    /// Whether one range makes up nearly all free space: not fragmented, however small.
    pub(crate) fn is_one_piece(&self) -> bool {
        let Some(loaded) = &self.loaded else { return false };
        let most = loaded.free.total() / 16 * 15;
        // The longest range is looked for only where there can be such a one.
        let possible = most == 0 || loaded.free.has_class(most.ilog2().saturating_sub(1));
        possible && loaded.free.segments() < 1 << 16 && self.largest_bytes().is_some_and(|largest| largest > most)
    }

    /// Counts of ranges that the map has as free and that may not be used yet.
    fn pending_histogram(&self) -> [u64; HISTOGRAM_BUCKETS] {
        let mut pending = [0_u64; HISTOGRAM_BUCKETS];
        for tree in std::iter::once(&self.freed).chain(self.deferred.trees()) {
            for (bucket, more) in pending.iter_mut().zip(map_histogram(tree, self.ashift)) {
                *bucket += more;
            }
        }
        pending
    }

    /// Checks that nothing is in two sets that exclude each other, and that everything adds up. Expensive.
    pub(crate) fn verify(&self) -> Result<(), SpaceError> {
        let mut all = self.freeing.emptied();
        let named = [
            ("space allocating", &self.allocating[0]),
            ("space allocating", &self.allocating[1]),
            ("space allocating", &self.allocating[2]),
            ("space allocating", &self.allocating[3]),
            ("space freed in this txg", &self.freed),
            ("held free space", &self.held),
        ];
        let deferred = self.deferred.trees().map(|tree| ("deferred frees", tree));
        for (name, tree) in named.into_iter().chain(deferred) {
            all.add_all(tree).map_err(SpaceError::tree(self.id, name))?;
        }
        if let Some(loaded) = &self.loaded {
            all.add_all(&loaded.free).map_err(SpaceError::tree(self.id, "free space"))?;
            let (sum_bytes, size_bytes) = (all.total() + self.allocated_bytes, self.size_bytes());
            if sum_bytes != size_bytes {
                let fault = MetaslabFault::Sum { sum_bytes, size_bytes };
                return Err(SpaceError::Figures { metaslab: self.id, fault });
            }
        }
        for range in self.unflushed_allocs.iter() {
            if let Some(at) = self.unflushed_frees.overlap(range.clone()) {
                let error = crate::RangeError::Overlap { start: range.start, end: range.end, at: at.start };
                return Err(SpaceError::tree(self.id, "unflushed frees and allocations")(error));
            }
        }
        let own = self.map.as_ref().map_or(0, |map| map.allocated_bytes);
        let synced = own + self.unflushed_allocs.total() as i64 - self.unflushed_frees.total() as i64;
        if synced != self.allocated_bytes as i64 {
            let fault = MetaslabFault::Allocated { recorded_bytes: synced, allocated_bytes: self.allocated_bytes };
            return Err(SpaceError::Figures { metaslab: self.id, fault });
        }
        Ok(())
    }

    /// The vdev.
    #[must_use]
    pub const fn vdev(&self) -> VdevId {
        self.id.vdev
    }
}
