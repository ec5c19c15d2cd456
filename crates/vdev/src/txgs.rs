//! Sets of txgs as sorted ranges: what a leaf's dirty time log (DTL) says it is missing.
//!
//! A device that was away while others were written has stale bytes for every block born in those txgs. The pool's
//! MOS holds one space map a leaf, in units of txgs, that says which. Reads then turn to other children first.

use std::ops::Range;

use cenote_format::ids::Txg;

/// A set of txgs: disjoint, sorted, not touching ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgSet {
    ranges: Vec<Range<u64>>,
}

impl TxgSet {
    /// The set with no txg in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Whether there is no txg in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Whether `txg` is in the set.
    #[must_use]
    pub fn contains(&self, txg: Txg) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= txg.0);
        after > 0 && txg.0 < self.ranges[after - 1].end
    }

    /// Adds a range; empty ranges add nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Those that overlap or touch it are [first, last).
        let first = self.ranges.partition_point(|other| other.end < range.start);
        let last = self.ranges.partition_point(|other| other.start <= range.end);
        let mut merged = range;
        if first < last {
            merged.start = merged.start.min(self.ranges[first].start);
            merged.end = merged.end.max(self.ranges[last - 1].end);
        }
        self.ranges.splice(first..last, [merged]);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|other| other.end <= range.start);
        let last = self.ranges.partition_point(|other| other.start < range.end);
        if first >= last {
            return;
        }
        let left = self.ranges[first].start..range.start;
        let right = range.end..self.ranges[last - 1].end;
        self.ranges.splice(first..last, [left, right].into_iter().filter(|piece| !piece.is_empty()));
    }
}

impl FromIterator<Range<u64>> for TxgSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Insertions and removals in any order agree with a plain set, and the ranges stay sorted and apart.
        #[test]
        fn a_txg_set_agrees_with_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..15), 0..30)
        ) {
            let mut set = TxgSet::new();
            let mut model = BTreeSet::new();
            for (insert, start, len) in steps {
                if insert {
                    set.insert(start..start + len);
                    model.extend(start..start + len);
                } else {
                    set.remove(start..start + len);
                    (start..start + len).for_each(|txg| {
                        model.remove(&txg);
                    });
                }
                for txg in 0..80 {
                    prop_assert_eq!(set.contains(Txg(txg)), model.contains(&txg));
                }
                prop_assert!(set.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert!(set.ranges().iter().all(|range| !range.is_empty()));
            }
        }
    }
}
