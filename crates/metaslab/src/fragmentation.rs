//! Fragmentation of free space, in per cent, as OpenZFS 2.x rates it.
//!
//! Each power of two of a free run's size has a weight, from 100 for 512 bytes to 0 for 16 MiB; a metaslab's
//! fragmentation is the mean over its free bytes, a vdev's the mean over its metaslabs, a class's over its vdevs by size.

use cenote_format::spacemap::HISTOGRAM_BUCKETS;

use crate::{MetaslabSpace, VdevSpace};

/// Weights by size from 512 bytes to 16 MiB (OpenZFS 2.3).
const WEIGHTS: [u64; 16] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];

/// Fragmentation by a space map's counts of free runs.
pub(crate) fn of_histogram(histogram: &[u64; HISTOGRAM_BUCKETS], ashift: u32) -> u64 {
    let (mut weighted, mut total) = (0_u128, 0_u128);
    for (bucket, count) in histogram.iter().enumerate().filter(|(_, count)| **count > 0) {
        let shift = ashift as usize + bucket;
        let space = u128::from(*count) << shift.min(64);
        let index = shift.saturating_sub(9).min(WEIGHTS.len() - 1);
        weighted += space * u128::from(WEIGHTS[index]);
        total += space;
    }
    let percent = weighted.checked_div(total).unwrap_or(0) as u64;
    debug_assert!(percent <= 100, "a mean of percentages is one");
    percent
}

fn metaslab_fragmentation(metaslab: &MetaslabSpace, ashift: u32) -> Option<u64> {
    if metaslab.object.0 == 0 {
        return Some(0);
    }
    metaslab.histogram.as_ref().map(|histogram| of_histogram(histogram, ashift))
}

/// Fragmentation of one vdev; `None` where too few metaslabs have histograms to tell.
fn vdev_fragmentation(vdev: &VdevSpace) -> Option<u64> {
    let rated: Vec<u64> =
        vdev.metaslabs.iter().filter_map(|metaslab| metaslab_fragmentation(metaslab, vdev.maps.ashift)).collect();
    if rated.len() <= vdev.metaslabs.len() / 2 {
        return None;
    }
    Some(rated.iter().sum::<u64>() / rated.len() as u64)
}

/// Fragmentation over the given vdevs, weighted by size; `None` where it cannot be told.
#[must_use]
pub fn class_fragmentation<'a>(vdevs: impl Iterator<Item = &'a VdevSpace>) -> Option<u64> {
    let (mut weighted, mut size) = (0_u128, 0_u128);
    for vdev in vdevs {
        let bytes = u128::from(vdev.maps.size_bytes());
        weighted += u128::from(vdev_fragmentation(vdev)?) * bytes;
        size += bytes;
    }
    (size > 0).then(|| (weighted / size) as u64)
}
