//! Freeing a file's blocks a piece at a time, from the end, so that a txg's frees fit into memory and do not make it long.
//!
//! A piece is the range of one lowest indirect block. Freeing it reads that block and those above it, whatever the size of
//! its data and however sparse it is.
//!
//! A txg has a *share*: the number of blocks that may be freed in it, of all files together. The share is bounded by a part of
//! `zfs_dirty_data_max`, and follows the time that txgs take. A task that finds it used up waits for the txg: the share is halved if
//! that took longer than `TXG_MAX`, and doubled if it took less than a quarter of that. So a slow disk has small steps, and a fast
//! one is not idle.

use std::time::Duration;

use cenote_dmu::Object;
use cenote_format::ids::Txg;

/// The share in blocks: at first, at least and at most.
const SHARE_FIRST: u64 = 64 << 10;
pub(super) const SHARE_MIN: u64 = 4 << 10;
pub(super) const SHARE_MAX: u64 = 1 << 20;
/// How long a txg with a full share should take at most.
const TXG_MAX: Duration = Duration::from_millis(500);
/// The least weight of a piece, for the indirect blocks that it needs read: of a file with one of them, of a larger one.
const SMALL_WEIGHT: u64 = 16;
const LARGE_WEIGHT: u64 = 256;

/// Whether all of an object's blocks may be freed at once: they are of few pieces.
pub(crate) fn is_small(object: &Object) -> bool {
    let head = object.phys();
    head.max_block_id >> head.blkptrs_per_indirect_shift() == 0
}

/// The weight in a share of freeing so many blocks of an object.
pub(crate) fn weight(object: &Object, blocks: u64) -> u64 {
    if object.phys().max_block_id == 0 {
        return 1;
    }
    blocks.clamp(if is_small(object) { SMALL_WEIGHT } else { LARGE_WEIGHT }, SHARE_MIN)
}

/// The share of the newest txg: how many blocks it may free, and has freed.
#[derive(Debug)]
pub(crate) struct Share {
    txg: Txg,
    freed: u64,
    most: u64,
    /// The last txg that the share was adapted to: several tasks may wait for one txg.
    judged: Txg,
}

impl Default for Share {
    fn default() -> Self {
        Self { txg: Txg(0), freed: 0, most: SHARE_FIRST, judged: Txg(0) }
    }
}

impl Share {
    /// Takes a part of the txg's share, which is `bound` at most; whether there was any left.
    pub(super) fn take(&mut self, txg: Txg, weight: u64, bound: u64) -> bool {
        assert!((SHARE_MIN..=SHARE_MAX).contains(&bound), "a share's bound is within its own");
        if self.txg < txg {
            (self.txg, self.freed) = (txg, 0);
        }
        let has_room = self.freed < self.most.min(bound);
        if has_room {
            self.freed += weight;
        }
        has_room
    }

    /// Adapts the share to the time that a txg took whose share was used up.
    pub(super) fn adapt(&mut self, txg: Txg, took: Duration, bound: u64) {
        if self.judged >= txg {
            return;
        }
        self.judged = txg;
        if took > TXG_MAX {
            self.most /= 2;
        } else if took < TXG_MAX / 4 {
            self.most *= 2;
        }
        self.most = self.most.clamp(SHARE_MIN, bound);
        assert!(self.judged <= self.txg, "a txg is judged whose share was used up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_txgs_get_a_smaller_share_and_fast_ones_a_larger_within_bounds() {
        let mut share = Share::default();
        assert!(share.take(Txg(1), SHARE_FIRST, SHARE_MAX));
        assert!(!share.take(Txg(1), 1, SHARE_MAX), "it is used up");
        assert!(share.take(Txg(2), 1, SHARE_MAX));
        share.adapt(Txg(2), TXG_MAX * 2, SHARE_MAX);
        assert_eq!(share.most, SHARE_FIRST / 2);
        share.adapt(Txg(2), TXG_MAX * 2, SHARE_MAX);
        assert_eq!(share.most, SHARE_FIRST / 2, "a txg counts once");
        let mut used_up = |txg, took, bound| {
            assert!(share.take(Txg(txg), SHARE_MAX, bound));
            share.adapt(Txg(txg), took, bound);
            share.most
        };
        assert_eq!((3..50).map(|txg| used_up(txg, TXG_MAX * 2, SHARE_MAX)).last(), Some(SHARE_MIN));
        assert_eq!((50..99).map(|txg| used_up(txg, TXG_MAX / 9, 100_000)).last(), Some(100_000));
    }

    #[test]
    fn the_first_share_is_bounded_by_what_may_be_dirty_too() {
        let mut share = Share::default();
        assert!(share.take(Txg(1), SHARE_MIN, SHARE_MIN));
        assert!(!share.take(Txg(1), 1, SHARE_MIN));
    }
}
