//! The account of space: allocated ranges, from which each visited block takes its own.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use cenote_format::ids::VdevId;
use cenote_metaslab::{PoolSpace, RangeSet};
use cenote_zio::Bookmark;

/// A range of a vdev that a block takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) vdev: VdevId,
    pub(crate) range: Range<u64>,
}

/// An allocated range that nothing refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// The vdev.
    pub vdev: VdevId,
    /// The range, as DVAs count.
    pub range: Range<u64>,
}

/// The fault of a block's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MisuseKind {
    /// Another block has taken (part of) it already.
    Twice,
    /// (Part of) it is free according to the space maps.
    Free,
    /// The vdev has no such place.
    NoSuchPlace,
}

/// A block whose place the account does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// The block.
    pub bookmark: Bookmark,
    /// The vdev.
    pub vdev: VdevId,
    /// The range.
    pub range: Range<u64>,
    /// The fault.
    pub kind: MisuseKind,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            MisuseKind::Twice => "is used by another block too",
            MisuseKind::Free => "is free according to the space maps",
            MisuseKind::NoSuchPlace => "does not exist",
        };
        write!(f, "{}: vdev {} {:#x}..{:#x} {what}", self.bookmark, self.vdev, self.range.start, self.range.end)
    }
}

struct VdevAccount {
    allocated: RangeSet,
    left: RangeSet,
    size_bytes: u64,
}

/// The account of all vdevs.
pub(crate) struct Account {
    vdevs: BTreeMap<VdevId, VdevAccount>,
}

impl Account {
    /// Everything allocated is to be claimed, but what is kept only for the checkpoint.
    pub(crate) fn new(space: &PoolSpace) -> Self {
        let vdevs = space
            .vdevs
            .iter()
            .map(|vdev| {
                let mut left = vdev.allocated.clone();
                for range in vdev.checkpoint.iter() {
                    // The checkpoint's ranges must be allocated; if not, the walk reports the contradiction.
                    let _ = left.remove(range);
                }
                assert!(left.total() <= vdev.allocated.total(), "no more is to be claimed than is allocated");
                let account =
                    VdevAccount { allocated: vdev.allocated.clone(), left, size_bytes: vdev.maps.end_bytes() };
                (vdev.maps.vdev, account)
            })
            .collect();
        Self { vdevs }
    }

    /// Takes a range out, or says why it cannot be had.
    pub(crate) fn claim(&mut self, claim: &Claim) -> Result<(), MisuseKind> {
        let Some(vdev) = self.vdevs.get_mut(&claim.vdev) else { return Err(MisuseKind::NoSuchPlace) };
        let before_bytes = vdev.left.total();
        if vdev.left.remove(claim.range.clone()).is_ok() {
            let claimed_bytes = claim.range.end - claim.range.start;
            assert_eq!(vdev.left.total() + claimed_bytes, before_bytes, "a byte is claimed once");
            return Ok(());
        }
        assert_eq!(vdev.left.total(), before_bytes, "a claim that is refused takes nothing");
        Err(if claim.range.end > vdev.size_bytes {
            MisuseKind::NoSuchPlace
        } else if vdev.allocated.contains(claim.range.clone()) {
            MisuseKind::Twice
        } else {
            MisuseKind::Free
        })
    }

    /// Whether a range is still unclaimed in whole.
    pub(crate) fn is_unclaimed(&self, claim: &Claim) -> bool {
        self.vdevs.get(&claim.vdev).is_some_and(|vdev| vdev.left.contains(claim.range.clone()))
    }

    /// The allocated space that nothing claimed: total bytes, and the first `max` ranges.
    pub(crate) fn leaks(&self, max: usize) -> (u64, Vec<Leak>) {
        let total = self.vdevs.values().map(|vdev| vdev.left.total()).sum();
        let ranges: Vec<Leak> = self
            .vdevs
            .iter()
            .flat_map(|(id, vdev)| vdev.left.iter().map(|range| Leak { vdev: *id, range }))
            .take(max)
            .collect();
        assert!(ranges.len() <= max, "memory for reports is bounded");
        debug_assert!(max == 0 || ranges.is_empty() == (total == 0), "what leaks has a place");
        (total, ranges)
    }
}
