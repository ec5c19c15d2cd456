//! Background jobs: long work on the pool, a slice in each txg.
//!
//! # Theory
//!
//! **Need.** Some work takes time in proportion to the size of the pool: freeing a destroyed dataset now, and scrub, resilver and trim in
//! the future. No client waits for it, it must not delay changes of files, and it must continue after a crash.
//!
//! **A slice.** At the beginning of each txg's sync a job does a bounded piece of its work as changes of that txg, and writes into
//! the MOS how far it has come. So the work and its cursor become durable in the same txg, and after a crash the job continues where the
//! last txg on disk left it. A slice ends when it has taken [`SLICE`] or has freed [`SLICE_BLOCKS_MAX`] blocks, whichever comes
//! first. While there is work and the pool is in use, the end of one txg asks for the next.
//!
//! **Watching.** [`JobStatus`] tells what is left, what was done since the pool was opened, and why a job stands still.
//!
//! **Invariants.**
//! 1. A slice's memory is bounded by [`SLICE_BLOCKS_MAX`], whatever the job; and where a list of a livelist is settled, by that list (its
//!    pointers, of 128 bytes each, are written anew in one txg).
//! 2. The cursor that a txg writes is that of the work that the same txg does.
//! 3. A job that cannot read what it has to do stands still, tells the pool's owner, and fails no txg. (A block that is free already, or lies on no
//!    device, does fail the txg: the space maps can be trusted no more.)
//!
//! **Rejected.** *A task of its own beside the sync*: it would change the MOS, which the sync alone does. *Work between txgs*: a
//! crash would do it twice or not at all.

pub(crate) mod async_destroy;
pub(crate) mod deleted_clones;
mod doomed;
mod free_destroyed;
pub(crate) mod free_list;
mod free_live;
pub(crate) mod freeing;

use std::time::Duration;

use cenote_format::ids::ObjectId;
use cenote_taskq::Instant;

use async_destroy::AsyncDestroy;
use deleted_clones::DeletedClones;
use freeing::FreeList;

/// A slice ends after this long (OpenZFS's `zfs_free_min_time_ms` is 1 s; here other changes of the txg wait meanwhile).
pub(crate) const SLICE: Duration = Duration::from_millis(200);
/// Blocks freed in one slice at most (`zfs_async_block_max_blocks`): each holds memory until its txg is on disk.
pub(crate) const SLICE_BLOCKS_MAX: u64 = 100_000;

/// A job as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// The feature or list that it belongs to: `async_destroy`, `free_bpobj`, `livelist`.
    pub name: &'static str,
    /// Bytes that are still to be done.
    pub left_bytes: u64,
    /// Bytes done since the pool was opened.
    pub done_bytes: u64,
    /// The time that this took, from the first slice on.
    pub took: Duration,
    /// The reason for which it does not go on until the pool is opened again, if there is one.
    pub stalled: Option<String>,
}

impl JobStatus {
    /// Bytes a second so far; nothing before the first slice's end.
    #[must_use]
    pub fn rate_bytes(&self) -> Option<u64> {
        let ms = u64::try_from(self.took.as_millis()).ok().filter(|ms| *ms > 0)?;
        Some(self.done_bytes.saturating_mul(1000) / ms)
    }

    /// The time that the rest takes at this rate.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let rate = self.rate_bytes().filter(|rate| *rate > 0)?;
        Some(Duration::from_secs(self.left_bytes.div_ceil(rate)))
    }
}

/// The background jobs of a pool, each with what it has of the pool's lists.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Frees that OpenZFS put off, until the list is empty.
    pub(crate) deferred: Option<ObjectId>,
    /// Destroyed datasets.
    pub(crate) async_destroy: AsyncDestroy,
    /// The blocks that only destroyed snapshots had.
    pub(crate) free_list: FreeList,
    /// Livelists of destroyed clones.
    pub(crate) deleted_clones: DeletedClones,
}

/// The bounds of the slice that is under way.
pub(crate) struct Slice {
    until: Instant,
    blocks_left: u64,
}

impl Slice {
    pub(crate) fn new(now: Instant, blocks_max: u64) -> Self {
        Self { until: now + SLICE, blocks_left: blocks_max }
    }

    pub(crate) fn take(&mut self, blocks: usize) {
        self.blocks_left = self.blocks_left.saturating_sub(blocks as u64);
    }

    /// Blocks that it may still take.
    pub(crate) const fn blocks_left(&self) -> u64 {
        self.blocks_left
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.blocks_left == 0 || now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_left_are_of_what_was_done() {
        let job = |done_bytes, ms| JobStatus {
            name: "async_destroy",
            left_bytes: 3000,
            done_bytes,
            took: Duration::from_millis(ms),
            stalled: None,
        };
        assert_eq!(job(0, 0).rate_bytes(), None);
        assert_eq!(job(0, 500).time_left(), None);
        assert_eq!(job(1000, 500).rate_bytes(), Some(2000));
        assert_eq!(job(1000, 500).time_left(), Some(Duration::from_secs(2)));
    }
}
