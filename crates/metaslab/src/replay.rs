//! Replaying logs at import: what all of them together change, metaslab by metaslab.
//!
//! ```text
//!   logs by txg, cut into pieces      read and decoded ahead        applied, in order        turned into trees
//!   [..][..] [..] [..][..][..]  ──►   by shard: changes  ───────►   bits of a metaslab  ──►  unflushed allocs, frees
//!                                     (any core)                    (a task a shard)
//! ```
//! The logs of a large pool have up to a thousand million entries, and the pool cannot be used before they are read. Metaslabs
//! have nothing to do with each other, so they are dealt out to shards, one for each core, and a shard sees the changes of its
//! metaslabs in the order of the logs. Each change is entered into bitmaps, a word at a time: the entries of a txg about a
//! metaslab stand together and ascend, so that is some nanoseconds, where a change of a tree is some hundred. The resulting
//! trees have the smallest number of ranges, however long the logs were.
//!
//! **Memory.** Bitmaps are made where there are changes, 8 KiB for 32 768 units; when a shard has too many they are entered
//! into its trees and begun anew. Pieces that are read ahead have a bound each, and there are so many at once.
//!
//! **Damage.** A change that contradicts an earlier one, or leaves its metaslab, ends it with an error. When bitmaps were begun
//! anew in between, one contradiction that another one takes back goes unseen.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_format::ids::{Txg, VdevId};
use cenote_format::spacemap::{SpaceMapEntry, SpaceMapRecord, SpaceMapRecords, SpaceMapType};

use crate::load::LOG_SHIFT;
use crate::metaslab::Replayed;
use crate::{
    LogEntryFault, Metaslab, MetaslabFault, MetaslabId, ORDER, RangeTree, SpaceError, SpaceMapError, VdevMaps,
};

/// Units of a window.
const WINDOW_UNITS: u64 = 1 << 15;
const WORDS: usize = WINDOW_UNITS as usize / 64;
/// Windows of a shard at most, before they are entered into trees: 64 MiB.
const WINDOWS_MAX: usize = 1 << 13;

/// A change that a log tells of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry {
    /// The metaslab, counted over all vdevs.
    pub(crate) place: u32,
    pub(crate) kind: SpaceMapType,
    /// Where, on its vdev.
    pub(crate) start_bytes: u64,
    pub(crate) end_bytes: u64,
}

/// Units that are allocated, and units that are freed: by no means both.
struct Window {
    allocs: [u64; WORDS],
    frees: [u64; WORDS],
}

impl Window {
    fn new() -> Box<Self> {
        Box::new(Self { allocs: [0; WORDS], frees: [0; WORDS] })
    }

    /// Enters a change of units, which lie in the window. False if it contradicts what is there.
    fn enter(&mut self, kind: SpaceMapType, units: Range<u64>) -> bool {
        let (undone, done) = match kind {
            SpaceMapType::Alloc => (&mut self.frees, &mut self.allocs),
            SpaceMapType::Free => (&mut self.allocs, &mut self.frees),
        };
        debug_assert!(units.start < units.end && units.end <= WINDOW_UNITS, "a change is entered into its window");
        let mut at = units.start;
        while at < units.end {
            let word = (at / 64) as usize;
            let stop = units.end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (stop - at))) << (at % 64);
            let cancelled = undone[word] & mask;
            let rest = mask & !cancelled;
            if done[word] & rest != 0 {
                return false;
            }
            undone[word] &= !cancelled;
            done[word] |= rest;
            debug_assert_eq!(undone[word] & done[word], 0, "no unit is both allocated and freed (invariant 5)");
            at = stop;
        }
        true
    }
}

/// Runs of ones, as units from the window's start.
fn runs(bits: &[u64; WORDS]) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut at = 0_u64;
    std::iter::from_fn(move || {
        let next = |from: u64, flip: u64| {
            let mut word = (from / 64) as usize;
            let mut left = (bits.get(word)? ^ flip) & (u64::MAX << (from % 64));
            while left == 0 {
                word += 1;
                left = bits.get(word)? ^ flip;
            }
            Some(word as u64 * 64 + u64::from(left.trailing_zeros()))
        };
        let start = next(at, 0)?;
        let end = next(start, u64::MAX).unwrap_or(WINDOW_UNITS);
        at = end;
        Some(start..end)
    })
}

/// A metaslab in the making.
struct Slot {
    id: MetaslabId,
    range: Range<u64>,
    shift: u32,
    allocated_bytes: u64,
    windows: BTreeMap<u64, Box<Window>>,
    /// The window that was changed last, which is not among them.
    last: Option<(u64, Box<Window>)>,
    allocs: RangeTree,
    frees: RangeTree,
    is_changed: bool,
}

impl Slot {
    fn contradiction(&self, change: &LogEntry, fault: LogEntryFault) -> SpaceError {
        let LogEntry { kind, start_bytes, end_bytes, .. } = *change;
        SpaceError::Figures {
            metaslab: self.id,
            fault: MetaslabFault::LogEntry { kind, start_bytes, end_bytes, fault },
        }
    }

    /// Enters a change; returns how many windows it made.
    fn enter(&mut self, change: &LogEntry) -> Result<usize, SpaceError> {
        let LogEntry { kind, start_bytes, end_bytes, .. } = *change;
        let unit = 1_u64 << self.shift;
        if start_bytes < self.range.start || end_bytes > self.range.end || end_bytes < start_bytes {
            return Err(self.contradiction(change, LogEntryFault::Outside));
        }
        let (start, end) = (start_bytes - self.range.start, end_bytes - self.range.start);
        if !start.is_multiple_of(unit) || !end.is_multiple_of(unit) {
            return Err(self.contradiction(change, LogEntryFault::NotWhole));
        }
        let allocated = match kind {
            SpaceMapType::Alloc => self.allocated_bytes.checked_add(end - start),
            SpaceMapType::Free => self.allocated_bytes.checked_sub(end - start),
        };
        let allocated = allocated.filter(|bytes| *bytes <= self.range.end - self.range.start);
        self.allocated_bytes = allocated.ok_or_else(|| self.contradiction(change, LogEntryFault::Allocated))?;
        let (mut at, end, mut made) = (start >> self.shift, end >> self.shift, 0);
        while at < end {
            let number = at / WINDOW_UNITS;
            let stop = end.min((number + 1) * WINDOW_UNITS);
            let window = self.window(number, &mut made);
            let first = number * WINDOW_UNITS;
            if !window.enter(kind, at - first..stop - first) {
                return Err(self.contradiction(change, LogEntryFault::Repeated));
            }
            at = stop;
        }
        Ok(made)
    }

    fn window(&mut self, number: u64, made: &mut usize) -> &mut Window {
        let found = match self.last.take() {
            Some((last, window)) if last == number => window,
            before => {
                self.windows.extend(before);
                self.windows.remove(&number).unwrap_or_else(|| {
                    *made += 1;
                    Window::new()
                })
            }
        };
        &mut self.last.insert((number, found)).1
    }

    /// Enters what the windows have into the trees.
    fn settle(&mut self) -> Result<(), SpaceError> {
        self.windows.extend(self.last.take());
        let (id, empty) = (self.id, self.allocs.emptied());
        for (number, window) in std::mem::take(&mut self.windows) {
            let base = self.range.start + ((number * WINDOW_UNITS) << self.shift);
            let bytes = |units: Range<u64>| base + (units.start << self.shift)..base + (units.end << self.shift);
            let enter = |bits: &[u64; WORDS], undone: &mut RangeTree, done: &mut RangeTree| {
                let add = |tree: &mut RangeTree| runs(bits).try_for_each(|units| tree.add(bytes(units)));
                if undone.is_empty() {
                    return add(done);
                }
                let mut change = empty.clone();
                add(&mut change)?;
                change.cancel_or_add(undone, done)
            };
            enter(&window.allocs, &mut self.frees, &mut self.allocs)
                .and_then(|()| enter(&window.frees, &mut self.allocs, &mut self.frees))
                .map_err(SpaceError::tree(id, "unflushed changes"))?;
        }
        Ok(())
    }
}

/// Some of the metaslabs.
#[derive(Default)]
pub(crate) struct Shard {
    slots: BTreeMap<u32, Slot>,
    windows: usize,
}

impl Shard {
    /// Takes a metaslab in.
    pub(crate) fn add(&mut self, place: u32, metaslab: &Metaslab) {
        let range = metaslab.range();
        let empty = RangeTree::new(range.start, range.end - range.start, metaslab.ashift());
        let slot = Slot {
            id: metaslab.id(),
            shift: metaslab.ashift(),
            allocated_bytes: metaslab.allocated_bytes(),
            windows: BTreeMap::new(),
            last: None,
            allocs: empty.clone(),
            frees: empty,
            is_changed: false,
            range,
        };
        let before = self.slots.insert(place, slot);
        assert!(before.is_none(), "each metaslab has a place of its own");
    }

    /// Enters changes in their order.
    pub(crate) fn enter(&mut self, changes: &[LogEntry]) -> Result<(), SpaceError> {
        for of_one in changes.chunk_by(|one, next| one.place == next.place) {
            let Some(slot) = of_one.first().and_then(|first| self.slots.get_mut(&first.place)) else { continue };
            slot.is_changed = true;
            for change in of_one {
                self.windows += slot.enter(change)?;
            }
            if self.windows >= WINDOWS_MAX {
                self.slots.values_mut().try_for_each(Slot::settle)?;
                self.windows = 0;
            }
        }
        Ok(())
    }

    /// Ends the replay: the changes of each metaslab of the shard.
    pub(crate) fn end(mut self) -> Result<Vec<Replayed>, SpaceError> {
        let mut all = Vec::new();
        for (_, mut slot) in std::mem::take(&mut self.slots) {
            slot.settle()?;
            let Slot { id, allocs, frees, allocated_bytes, is_changed, .. } = slot;
            all.push(Replayed { id, allocs, frees, allocated_bytes, is_changed });
        }
        Ok(all)
    }
}

/// Where entries belong: the metaslabs of a vdev.
#[derive(Clone, Copy, Debug)]
struct VdevPlaces {
    /// Counted over all vdevs, the first of this one.
    first: u32,
    count: u64,
    metaslab_shift: u32,
    end_bytes: u64,
}

/// All metaslabs, counted over all vdevs.
#[derive(Debug, Default)]
pub(crate) struct Places {
    vdevs: BTreeMap<VdevId, VdevPlaces>,
    /// The first txg that each one's own map lacks.
    unflushed: Vec<Txg>,
}

impl Places {
    /// Takes a vdev's metaslabs in; returns the place of the first.
    pub(crate) fn add(&mut self, maps: &VdevMaps, unflushed: impl Iterator<Item = Txg>) -> u32 {
        let first = self.unflushed.len() as u32;
        self.unflushed.extend(unflushed);
        let count = self.unflushed.len() as u64 - u64::from(first);
        let (metaslab_shift, end_bytes) = (maps.metaslab_shift, maps.end_bytes());
        let before = self.vdevs.insert(maps.vdev, VdevPlaces { first, count, metaslab_shift, end_bytes });
        assert!(before.is_none(), "a vdev's metaslabs are counted once");
        first
    }

    /// The change that an entry of the log of `txg` is; `None` if its vdev is gone, or the metaslab's own map has it.
    fn change(&self, txg: Txg, entry: &SpaceMapEntry) -> Result<Option<LogEntry>, SpaceMapError> {
        let vdev = entry.vdev.ok_or(SpaceMapError::NoVdev)?;
        let Some(vdev) = self.vdevs.get(&vdev) else { return Ok(None) };
        let (start_bytes, end_bytes) = entry.range_bytes(0, vdev.end_bytes, LOG_SHIFT)?;
        let index = start_bytes.checked_shr(vdev.metaslab_shift).filter(|index| *index < vdev.count);
        let index = index.ok_or(SpaceMapError::NoMetaslab)?;
        let place = vdev.first + index as u32;
        let is_news = self.unflushed.get(place as usize).is_some_and(|unflushed| txg >= *unflushed);
        Ok(is_news.then_some(LogEntry { place, kind: entry.kind, start_bytes, end_bytes }))
    }

    /// The changes that a piece of the log of `txg` tells of, for each shard.
    pub(crate) fn changes(&self, txg: Txg, bytes: &[u8], shards: usize) -> Result<Vec<Vec<LogEntry>>, SpaceMapError> {
        let mut all = vec![Vec::new(); shards];
        for record in SpaceMapRecords::new(bytes, ORDER) {
            let SpaceMapRecord::Entry(entry) = record? else { continue };
            if let Some(change) = self.change(txg, &entry)? {
                all[change.place as usize % shards].push(change);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> Shard {
        let id = MetaslabId { vdev: VdevId(0), index: 0 };
        let mut shard = Shard::default();
        shard.add(0, &Metaslab::open(id, 1 << 30..2 << 30, 12, None, Txg(0)));
        shard
    }

    fn change(kind: SpaceMapType, units: Range<u64>) -> LogEntry {
        LogEntry {
            place: 0,
            kind,
            start_bytes: (1 << 30) + (units.start << 12),
            end_bytes: (1 << 30) + (units.end << 12),
        }
    }

    #[test]
    fn changes_cancel_each_other_over_the_borders_of_words_and_windows() {
        use SpaceMapType::{Alloc, Free};
        let mut shard = shard();
        shard.enter(&[change(Alloc, 60..32_770), change(Free, 62..70), change(Free, 32_766..32_769)]).unwrap();
        shard.enter(&[change(Alloc, 64..66)]).unwrap();
        let all = shard.end().unwrap();
        let units = |tree: &RangeTree| {
            let unit = |bytes: u64| (bytes - (1 << 30)) >> 12;
            tree.iter().map(|range| unit(range.start)..unit(range.end)).collect::<Vec<_>>()
        };
        assert_eq!(units(&all[0].allocs), [60..62, 64..66, 70..32_766, 32_769..32_770]);
        assert!(all[0].frees.is_empty());
        assert_eq!(all[0].allocated_bytes, all[0].allocs.total());
    }

    #[test]
    fn bitmaps_that_are_begun_anew_change_nothing() {
        use SpaceMapType::{Alloc, Free};
        let changes = [change(Alloc, 0..100), change(Free, 10..20), change(Alloc, 12..14), change(Free, 90..100)];
        let mut once = shard();
        once.enter(&changes).unwrap();
        let mut often = shard();
        for one in changes {
            often.enter(&[one]).unwrap();
            often.slots.values_mut().try_for_each(Slot::settle).unwrap();
        }
        let (once, often) = (once.end().unwrap(), often.end().unwrap());
        assert_eq!((&once[0].allocs, &once[0].frees), (&often[0].allocs, &often[0].frees));
    }

    /// Entries of a hostile log: an error each, whatever they name.
    #[test]
    fn hostile_log_entries_are_errors() {
        use SpaceMapType::{Alloc, Free};
        let bad = |changes: &[LogEntry]| assert!(shard().enter(changes).is_err(), "{changes:?}");
        bad(&[change(Alloc, 0..1), change(Alloc, 0..1)]);
        bad(&[change(Alloc, 0..1), change(Free, 0..2)]);
        bad(&[change(Free, 0..1)]);
        bad(&[LogEntry { end_bytes: (1 << 30) + 512, ..change(Alloc, 0..1) }]);
        bad(&[change(Alloc, (1 << 18) - 1..(1 << 18) + 1)]);
        bad(&[LogEntry { start_bytes: 0, ..change(Alloc, 0..1) }]);
        bad(&[LogEntry { start_bytes: 3 << 30, end_bytes: 3 << 30, ..change(Alloc, 0..1) }]);
    }
}
