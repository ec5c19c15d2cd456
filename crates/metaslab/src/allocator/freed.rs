//! Space that became free lately, for those who tell devices of it (OpenZFS's `ms_trim`).
//!
//! The space that a txg frees can be used two txgs later, and not before; then it is noted here. Noted space may have been used again since: who takes it
//! holds it first ([`Allocator::hold_free`]). It is in memory alone: a crash forgets it, and a trim of the whole vdev finds it.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_format::ids::VdevId;

use super::Allocator;

/// Ranges of a vdev that are noted at most: beyond them the short ones are forgotten.
const RANGES_MAX: usize = 1 << 16;

/// Ranges that became free, by vdev; merged where they touch or overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Freed {
    is_noted: bool,
    vdevs: BTreeMap<VdevId, BTreeMap<u64, u64>>,
}

impl Freed {
    pub(super) const fn is_noted(&self) -> bool {
        self.is_noted
    }

    pub(super) fn note(&mut self, vdev: VdevId, range: Range<u64>) {
        assert!(range.start < range.end, "a range that was freed has bytes");
        let ranges = self.vdevs.entry(vdev).or_default();
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = ranges.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            ranges.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        ranges.insert(start, end);
        let mut least_bytes = 32 << 10;
        while ranges.len() > RANGES_MAX {
            ranges.retain(|from, to| *to - *from > least_bytes);
            least_bytes *= 2;
        }
    }
}

impl Allocator {
    /// Has space that becomes free be noted from now on, or not.
    pub fn note_freed(&mut self, is_noted: bool) {
        self.freed.is_noted = is_noted;
        if !is_noted {
            self.freed.vdevs.clear();
        }
    }

    /// Whether space that becomes free is noted.
    #[must_use]
    pub const fn notes_freed(&self) -> bool {
        self.freed.is_noted()
    }

    /// The ranges that became free since this was asked last, in the order of places.
    #[must_use]
    pub fn take_freed(&mut self) -> Vec<(VdevId, Range<u64>)> {
        let all = std::mem::take(&mut self.freed.vdevs).into_iter();
        all.flat_map(|(vdev, ranges)| ranges.into_iter().map(move |(from, to)| (vdev, from..to))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_bounded() {
        let mut freed = Freed::default();
        for range in [0..10, 20..30, 10..15, 14..20, 40..50, 5..45] {
            freed.note(VdevId(1), range);
        }
        assert_eq!(freed.vdevs[&VdevId(1)], BTreeMap::from([(0, 50)]));
        for at in 0..RANGES_MAX as u64 + 2 {
            freed.note(VdevId(2), at << 20..(at << 20) + 4096);
        }
        assert!(freed.vdevs[&VdevId(2)].len() <= RANGES_MAX);
    }
}
