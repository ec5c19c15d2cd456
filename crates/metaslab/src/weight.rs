//! How good a metaslab is to allocate from, as one number, and how far it is fragmented.
//!
//! ```text
//! by segments   0 | index 6 | count 54     the largest power of two of which it has free runs, and how many
//! by space      1 | bytes 60               free bytes, less for fragmentation, more for outer tracks
//! ```
//!
//! Of two metaslabs the one with the larger number is taken. (OpenZFS keeps three more bits for *active*; here that is part
//! of the order in the group.)

use cenote_format::spacemap::HISTOGRAM_BUCKETS;

use crate::{RangeTree, Tunables};

const TYPE_BIT: u64 = 1 << 60;
const INDEX_SHIFT: u32 = 54;
const COUNT_MAX: u64 = (1 << INDEX_SHIFT) - 1;

/// A weight; 0 is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u64);

impl Weight {
    /// The weight of a metaslab whose largest free runs have `2^index` bytes.
    #[must_use]
    pub(crate) fn segments(index: u32, count: u64) -> Self {
        let weight =
            if count == 0 { Self(0) } else { Self(u64::from(index.min(63)) << INDEX_SHIFT | count.min(COUNT_MAX)) };
        debug_assert!(weight.index().is_some(), "a weight by segments is none by space");
        weight
    }

    /// The weight of so many bytes.
    #[must_use]
    pub(crate) fn space(bytes: u64) -> Self {
        let weight = Self(TYPE_BIT | bytes.min(TYPE_BIT - 1));
        debug_assert!(weight.index().is_none(), "a weight by space is none by segments");
        weight
    }

    /// The power of two of the largest free runs; `None` if it is a weight by space.
    #[must_use]
    pub(crate) const fn index(self) -> Option<u32> {
        if self.0 & TYPE_BIT == 0 { Some((self.0 >> INDEX_SHIFT) as u32) } else { None }
    }

    /// Whether an allocation may fit, as far as the weight tells.
    #[must_use]
    pub(crate) const fn may_fit(self, size_bytes: u64) -> bool {
        match self.index() {
            Some(_) if self.0 == 0 => false,
            Some(63) => true,
            Some(index) => size_bytes < 2 << index,
            None => size_bytes <= self.0 & (TYPE_BIT - 1),
        }
    }
}

/// The weight of a loaded metaslab by its segments. A segment above a space map's last histogram bucket counts as several of
/// that bucket, so that loaded and unloaded metaslabs compare. Smaller segments add up: two of half the size count as one.
#[must_use]
pub(crate) fn from_tree(free: &RangeTree, ashift: u32) -> Weight {
    let top = HISTOGRAM_BUCKETS as u32 + ashift - 1;
    let histogram = free.histogram();
    let mut segments = 0_u64;
    for index in (9..histogram.len() as u32).rev() {
        segments = segments.saturating_mul(2).saturating_add(histogram[index as usize]);
        if index <= top && segments > 0 {
            return Weight::segments(index, segments);
        }
    }
    Weight::default()
}

/// The weight of an unloaded metaslab by its map's counts of free runs, `pending` being those that are not to be used yet.
#[must_use]
pub(crate) fn from_map(
    histogram: &[u64; HISTOGRAM_BUCKETS],
    pending: &[u64; HISTOGRAM_BUCKETS],
    ashift: u32,
) -> Weight {
    (0..HISTOGRAM_BUCKETS)
        .rev()
        .map(|bucket| Weight::segments(bucket as u32 + ashift, histogram[bucket].saturating_sub(pending[bucket])))
        .find(|weight| *weight != Weight::default())
        .unwrap_or_default()
}

/// The weight of an empty metaslab.
#[must_use]
pub(crate) fn from_size(size_bytes: u64, ashift: u32) -> Weight {
    let (index, top) = (size_bytes.max(1).ilog2(), HISTOGRAM_BUCKETS as u32 + ashift - 1);
    if index < top { Weight::segments(index, 1) } else { Weight::segments(top, 1 << (index - top)) }
}

/// The weight by free space. `place` is the metaslab's index and the number of metaslabs, on rotating disks.
#[must_use]
pub(crate) fn from_space(
    free_bytes: u64,
    fragmentation: Option<u64>,
    place: Option<(u64, u64)>,
    tunables: &Tunables,
) -> Weight {
    let mut space = u128::from(free_bytes);
    if let Some(fragmentation) = fragmentation.filter(|_| tunables.metaslab_fragmentation_factor_enabled) {
        // Even all in pieces a hundredth is left, and one sector while there is anything.
        space = space * u128::from(101 - fragmentation.clamp(1, 100)) / 100;
        if free_bytes > 0 {
            space = space.max(512);
        }
    }
    if let Some((index, count)) = place.filter(|(_, count)| *count > 0 && tunables.metaslab_lba_weighting_enabled) {
        space = 2 * space - space * u128::from(index.min(count)) / u128::from(count);
    }
    Weight::space(u64::try_from(space).unwrap_or(u64::MAX))
}
