//! Sets of txgs as sorted ranges: what a leaf's dirty time log (DTL) says it is missing.
//!
//! A device that was away while others were written has stale bytes for every block born in those txgs. The pool's
//! MOS holds one space map a leaf, in units of txgs, that says which. Reads then turn to other children first.
//!
//! The DTLs of a vdev's children give its *outage* ([`Dtl::outage`], OpenZFS's `DTL_OUTAGE`): the txgs that more children have missed
//! than the redundancy of the vdev can make up for. A block of such a txg may be unreadable.

use std::fmt;
use std::ops::Range;

use cenote_format::ids::Txg;

/// A dirty time log in memory: a set of txgs, as disjoint and sorted ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dtl {
    ranges: Vec<Range<u64>>,
}

impl Dtl {
    /// The set with no txg in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// The set of all txgs: what a leaf lacks that is not there.
    #[must_use]
    pub(crate) fn all() -> Self {
        Self::of(0..u64::MAX)
    }

    /// The set of one range.
    #[must_use]
    pub fn of(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
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

    /// The txgs that are in more than `spare_count` of `sets`: what is lost to a vdev that can do without so many of its
    /// children, given what each of them lacks (`DTL_OUTAGE` in OpenZFS). A mirror can do without all but one, a raidz or
    /// draid without as many as it has parity.
    #[must_use]
    pub(crate) fn outage(sets: &[Self], spare_count: usize) -> Self {
        // Where ranges begin and end, in order; how many stand open between two such places is how many sets have it.
        let mut edges: Vec<(u64, bool)> = Vec::new();
        for range in sets.iter().flat_map(|set| &set.ranges) {
            edges.push((range.start, true));
            edges.push((range.end, false));
        }
        edges.sort_unstable();
        let (mut outage, mut open, mut from) = (Self::new(), 0_usize, 0);
        for (at, is_start) in edges {
            if open > spare_count {
                outage.insert(from..at);
            }
            from = at;
            assert!(is_start || open > 0, "a range that ends has begun");
            open = if is_start { open + 1 } else { open - 1 };
        }
        assert_eq!(open, 0, "every range ends");
        outage
    }

    /// The part before a txg: what was missed earlier.
    #[must_use]
    pub fn before(&self, from: Txg) -> Self {
        let mut earlier = self.clone();
        earlier.remove(from.0..u64::MAX);
        debug_assert!(earlier.ranges.last().is_none_or(|last| last.end <= from.0), "nothing later is left");
        earlier
    }

    /// Adds all txgs of another set: `true` if this set did not have all of them.
    pub fn absorb(&mut self, other: &Self) -> bool {
        let before = self.ranges.clone();
        other.ranges.iter().for_each(|range| self.insert(range.clone()));
        self.ranges != before
    }

    /// Whether the ranges are as they must be.
    fn is_sound(&self) -> bool {
        self.ranges.iter().all(|range| range.start < range.end)
            && self.ranges.is_sorted_by(|one, next| one.end < next.start)
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
        debug_assert!(self.is_sound(), "ranges are sorted, and do not touch");
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
        debug_assert!(self.is_sound(), "ranges are sorted, and do not touch");
    }
}

impl FromIterator<Range<u64>> for Dtl {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

/// Ranges that are shown; of more only the first and the last are of use to a person.
const SHOWN_MAX: usize = 4;

/// For messages: `12..15, 20`, the ends included.
impl fmt::Display for Dtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |range: &Range<u64>| match range.end - 1 {
            last if last == range.start => last.to_string(),
            last if last == u64::MAX - 1 => format!("{}..", range.start),
            last => format!("{}..{last}", range.start),
        };
        let shown: Vec<String> = match &self.ranges[..] {
            [first @ .., last] if first.len() >= SHOWN_MAX => {
                let hidden = first.len() + 1 - SHOWN_MAX;
                let first = first[..SHOWN_MAX - 1].iter().map(text);
                first.chain([format!("... ({hidden} more)"), text(last)]).collect()
            }
            all => all.iter().map(text).collect(),
        };
        f.write_str(&shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_txg_set_is_shown_with_the_ends_included_and_in_bounded_length() {
        let set = |ranges: &[(u64, u64)]| ranges.iter().map(|(start, end)| *start..*end).collect::<Dtl>().to_string();
        assert_eq!(set(&[]), "");
        assert_eq!(set(&[(12, 16), (20, 21)]), "12..15, 20");
        assert_eq!(set(&[(1, 2), (3, 4), (5, 6), (7, 9)]), "1, 3, 5, 7..8");
        assert_eq!(set(&[(1, 2), (3, 4), (5, 6), (7, 9), (10, 11), (12, 14)]), "1, 3, 5, ... (2 more), 12..13");
        assert_eq!(Dtl::all().to_string(), "0..");
    }

    proptest! {
        /// The outage is, txg by txg, what more than so many children lack.
        #[test]
        fn an_outage_agrees_with_counting_who_lacks_each_txg(
            children in prop::collection::vec(prop::collection::vec((0_u64..40, 0_u64..12), 0..6), 0..6),
            spare_count in 0_usize..6,
        ) {
            let sets: Vec<Dtl> =
                children.iter().map(|ranges| ranges.iter().map(|(start, len)| *start..start + len).collect()).collect();
            let outage = Dtl::outage(&sets, spare_count);
            for txg in 0..60 {
                let lack = children.iter().filter(|ranges| ranges.iter().any(|(start, len)| (*start..start + len).contains(&txg)));
                prop_assert_eq!(outage.contains(Txg(txg)), lack.count() > spare_count, "txg {}", txg);
            }
            prop_assert!(outage.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        /// Insertions and removals in any order agree with a plain set, and the ranges stay sorted and apart.
        #[test]
        fn a_txg_set_agrees_with_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..15), 0..30)
        ) {
            let mut set = Dtl::new();
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
