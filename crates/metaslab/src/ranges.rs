//! Sets of byte ranges.

use std::collections::BTreeMap;
use std::ops::Range;

use thiserror::Error;

/// Disjoint ranges in order; ranges that touch are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

/// A change that contradicts the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// Part of what is added is there already.
    #[error("{start:#x}..{end:#x} is already in use in part (from {at:#x})")]
    Overlap {
        /// Start of what was to be added.
        start: u64,
        /// Its end.
        end: u64,
        /// Where the part that is there begins.
        at: u64,
    },
    /// Part of what is removed is not there.
    #[error("{start:#x}..{end:#x} is not in use in whole (not from {at:#x})")]
    Absent {
        /// Start of what was to be removed.
        start: u64,
        /// Its end.
        end: u64,
        /// Where the part that is missing begins.
        at: u64,
    },
    /// It does not lie within the set's window, or has no whole units.
    #[error("{start:#x}..{end:#x} lies outside, or between units")]
    Misplaced {
        /// Start of the range.
        start: u64,
        /// Its end.
        end: u64,
    },
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: BTreeMap::new(), total: 0 }
    }

    /// Bytes in the set.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// The range that holds `at`, or the first after it.
    fn at_or_after(&self, at: u64) -> Option<(u64, u64)> {
        if let Some((start, end)) = self.ranges.range(..=at).next_back()
            && *end > at
        {
            return Some((*start, *end));
        }
        self.ranges.range(at..).next().map(|(start, end)| (*start, *end))
    }

    /// Whether all of `range` is in the set. Empty ranges are.
    #[must_use]
    pub fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty()
            || self.at_or_after(range.start).is_some_and(|(start, end)| start <= range.start && range.end <= end)
    }

    /// Whether any of `range` is in the set.
    #[must_use]
    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        !range.is_empty() && self.at_or_after(range.start).is_some_and(|(start, _)| start < range.end)
    }

    /// Adds a range of which nothing is there; on error nothing changes.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        let Range { start, end } = range;
        if start >= end {
            return Ok(());
        }
        if let Some((found, _)) = self.at_or_after(start).filter(|(found, _)| *found < end) {
            return Err(RangeError::Overlap { start, end, at: found.max(start) });
        }
        let (mut from, mut to) = (start, end);
        if let Some((before, before_end)) = self.ranges.range(..start).next_back().map(|(a, b)| (*a, *b))
            && before_end == start
        {
            self.ranges.remove(&before);
            from = before;
        }
        if let Some(after_end) = self.ranges.remove(&end) {
            to = after_end;
        }
        self.ranges.insert(from, to);
        self.total += end - start;
        let is_apart = || {
            self.ranges.range(..from).next_back().is_none_or(|(_, end)| *end < from)
                && self.ranges.range(from + 1..).next().is_none_or(|(start, _)| *start > to)
        };
        debug_assert!(is_apart(), "ranges neither overlap nor touch (invariant 1)");
        debug_assert!(from <= start && end <= to, "what is added is there");
        Ok(())
    }

    /// Removes a range of which all is there; on error nothing changes.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        let Range { start, end } = range;
        if start >= end {
            return Ok(());
        }
        let (found, found_end) = match self.at_or_after(start) {
            Some((found, found_end)) if found <= start => (found, found_end),
            _ => return Err(RangeError::Absent { start, end, at: start }),
        };
        if found_end < end {
            return Err(RangeError::Absent { start, end, at: found_end });
        }
        self.ranges.remove(&found);
        if found < start {
            self.ranges.insert(found, start);
        }
        if end < found_end {
            self.ranges.insert(end, found_end);
        }
        debug_assert!(end - start <= self.total, "what is removed was counted");
        self.total -= end - start;
        debug_assert!(!self.ranges.is_empty() || self.total == 0, "without a range there is no byte");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain bitmap, over random operations that overlap, touch and miss.
    #[test]
    fn it_agrees_with_a_bitmap() {
        let mut set = RangeSet::new();
        let mut bits = [false; 256];
        let mut state = 7_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (state >> 40) % 256;
            let end = (start + (state >> 50) % 24).min(256);
            let span = start as usize..end as usize;
            assert_eq!(set.contains(start..end), bits[span.clone()].iter().all(|bit| *bit));
            assert_eq!(set.overlaps(start..end), bits[span.clone()].iter().any(|bit| *bit));
            if state & 1 == 0 {
                let legal = bits[span.clone()].iter().all(|bit| !*bit);
                assert_eq!(set.add(start..end).is_ok(), legal);
                if legal {
                    bits[span].fill(true);
                }
            } else {
                let legal = bits[span.clone()].iter().all(|bit| *bit);
                assert_eq!(set.remove(start..end).is_ok(), legal);
                if legal {
                    bits[span].fill(false);
                }
            }
            assert_eq!(set.total(), bits.iter().filter(|bit| **bit).count() as u64);
        }
        let ranges: Vec<_> = set.iter().collect();
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "ranges touch or overlap");
    }

    #[test]
    fn contradictions_say_where() {
        let mut set = RangeSet::new();
        set.add(10..20).unwrap();
        assert_eq!(set.add(15..30), Err(RangeError::Overlap { start: 15, end: 30, at: 15 }));
        assert_eq!(set.remove(15..25), Err(RangeError::Absent { start: 15, end: 25, at: 20 }));
        assert_eq!(set.total(), 10);
    }
}
