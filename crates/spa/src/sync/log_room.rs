//! The share of the main space that intent logs may take before the next txg is on disk.
//!
//! # Theory
//!
//! **Need.** A log block takes space at once, outside any txg, and gives it back only in the sync of a later txg. That sync needs space of
//! its own. Clients that overwrite few bytes, and wait for each write, make a log of any length while little is dirty. If the log could have
//! all space, no txg could be written, so the log could never be freed: the pool would be suspended for good.
//!
//! **Shares.** After each sync the main space that can be allocated is divided anew ([`Split`]):
//! ```text
//! free, without what is deferred, and without blocks of logs of txgs that are not on disk
//! ├─ data: as much as datasets may still use, or as may be dirty, if that is less     accounts (`dmu::tx::Account`)
//! ├─ logs: the rest, at least a quarter of both                                       `LogRoom`
//! ├─ a quarter of the slop space: changes that free space                             accounts
//! └─ a quarter of the slop space: the sync itself                                     nobody asks for it
//! ```
//! *Logs* are log blocks that do not fit onto log devices, those of a log device that has failed among them, and data that is stored for
//! logs (`WR_INDIRECT`) although its txg may change it again. In a full pool their share is a quarter to half of the slop space.
//! Blocks of logs that are allocated on disk, claimed ones too, are neither data nor free, so all shares become smaller.
//!
//! **Life of a log block.** [`LogRoom::take`] counts it when it gets its place. When it is refused, the log is broken off and its clients
//! wait for their txg ([`cenote_zil`]), which frees the log. So that this is rare, a log that has taken half of the share has the open txg
//! written ([`LogRoom::wants_txg`]). The sync of its txg makes the block a part of what is allocated ([`LogRoom::synced`]).
//!
//! **Short of space.** When less than a quarter of the slop space is left, freed space no longer waits for two txgs
//! ([`cenote_metaslab::Keep`]): a txg that frees as much as it takes can then be written again and again, and each frees something of a log.
//!
//! **Replay** of a claimed log asks for none of the shares: it may use what the sync has, in txgs that are small where space is short, and
//! each txg frees the log blocks behind the position ([`cenote_zil::Replaying`]).
//!
//! **Invariants.** 1. The shares are disjoint: a split adds up to no more than what is free (asserted). 2. A share only becomes smaller
//! between two syncs.
//!
//! **Crash.** Nothing of it is on disk. What a crash leaves allocated is no more than was shared, and claiming allocates nothing else.
//!
//! **Rejected.** *Counting log blocks as used bytes of datasets*: they would count against quotas, and OpenZFS does not. *One counter for
//! data and logs*: each change would touch a shared cache line, also where there is space. *A limit by `zfs_wrlog_data_max` alone*: it
//! follows memory, not free space.

use cenote_format::ids::Txg;

/// Places of counts by txg: more than there are txgs that are not on disk.
const TXGS: usize = 4;
/// The part of the slop space that changes which free space have, and that which the sync has.
const SLOP_PART: u64 = 4;
/// Of what data and logs have together, logs have at least one part in so many.
const LOG_PART: u64 = 4;

/// How the free space is shared until the next sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// For changes that take space.
    pub(crate) data_bytes: u64,
    /// The same with what changes have that free space.
    pub(crate) frees_bytes: u64,
    /// For logs.
    pub(crate) log_bytes: u64,
}

impl Split {
    /// `free_bytes` can be allocated, `slop_bytes` are kept back of all. Datasets may use `left_bytes` more, of which `dirty_max_bytes` at most
    /// before the next sync.
    pub(crate) fn of(free_bytes: u64, slop_bytes: u64, left_bytes: u64, dirty_max_bytes: u64) -> Self {
        let kept = slop_bytes / SLOP_PART;
        let shared = free_bytes.saturating_sub(2 * kept);
        let log_bytes = shared.saturating_sub(left_bytes.min(dirty_max_bytes)).max(shared / LOG_PART);
        let data_bytes = left_bytes.min(shared - log_bytes);
        let frees_bytes = data_bytes + kept.min(free_bytes / 2);
        assert!(frees_bytes + log_bytes <= free_bytes, "no more is shared than is free");
        Self { data_bytes, frees_bytes, log_bytes }
    }
}

/// See above.
#[derive(Debug, Default)]
pub(crate) struct LogRoom {
    whole_bytes: u64,
    left_bytes: u64,
    /// By txg, of those that are not on disk.
    taken_bytes: [u64; TXGS],
}

impl LogRoom {
    /// Before any dataset is open.
    pub(crate) fn open(&mut self, free_bytes: u64, slop_bytes: u64) {
        self.share(Split::of(free_bytes, slop_bytes, free_bytes, free_bytes).log_bytes);
    }

    /// This is the share until the next sync.
    pub(crate) fn share(&mut self, bytes: u64) {
        (self.whole_bytes, self.left_bytes) = (bytes, bytes);
    }

    /// Whether so much is left.
    pub(crate) const fn has(&self, bytes: u64) -> bool {
        bytes <= self.left_bytes
    }

    /// So much was taken in a txg that is not on disk.
    pub(crate) fn take(&mut self, txg: Txg, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        self.taken_bytes[txg.0 as usize % TXGS] += bytes;
    }

    /// Taken in txgs that are not on disk.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        self.taken_bytes.iter().sum()
    }

    /// A txg is on disk.
    pub(crate) const fn synced(&mut self, txg: Txg) {
        self.taken_bytes[txg.0 as usize % TXGS] = 0;
    }

    /// Whether the open txg should be written, so that logs can be freed.
    pub(crate) const fn wants_txg(&self) -> bool {
        self.left_bytes < self.whole_bytes / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn logs_have_what_data_cannot_use_and_never_the_last_half_of_what_is_kept_back() {
        // A pool of 128 MiB, empty; half of it is kept back.
        let empty = Split::of(126 * MIB, 64 * MIB, 62 * MIB, 400 * MIB);
        assert_eq!(empty, Split { data_bytes: 62 * MIB, frees_bytes: 78 * MIB, log_bytes: 32 * MIB });
        // The same, full of data.
        let full = Split::of(64 * MIB, 64 * MIB, 0, 400 * MIB);
        assert_eq!(full, Split { data_bytes: 0, frees_bytes: 16 * MIB, log_bytes: 32 * MIB });
        // And with a log that has half of what is kept back.
        assert_eq!(Split::of(32 * MIB, 64 * MIB, 0, 400 * MIB).log_bytes, 0);
        // Full of a log that a crash has left.
        let claimed = Split::of(MIB / 4, 64 * MIB, 62 * MIB, 400 * MIB);
        assert_eq!(claimed, Split { data_bytes: 0, frees_bytes: MIB / 8, log_bytes: 0 });
        // A large one: what cannot become dirty before the next sync is the log's.
        let large = Split::of(1000 << 30, 32 << 30, 968 << 30, 8 << 30);
        assert_eq!((large.data_bytes, large.log_bytes), (8 << 30, 976 << 30));
        assert_eq!(Split::of(0, 0, 0, 0).log_bytes, 0);
    }

    #[test]
    fn what_is_taken_counts_until_its_txg_is_on_disk() {
        let mut room = LogRoom::default();
        assert!(!room.has(1));
        room.share(100);
        room.take(Txg(7), 40);
        assert!(room.has(60) && !room.has(61) && !room.wants_txg());
        room.take(Txg(8), 20);
        assert!(room.wants_txg());
        assert_eq!(room.unsynced_bytes(), 60);
        room.synced(Txg(7));
        assert_eq!(room.unsynced_bytes(), 20);
        assert!(!room.has(41), "the share grows with the next split only");
    }
}
