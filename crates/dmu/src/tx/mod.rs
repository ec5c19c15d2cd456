//! Transactions: assigning changes to txgs, and limiting the amount of dirty data.
//!
//! # Theory
//!
//! **Need.** Many tasks change a pool at once. All changes of one operation must be in one txg. A syncing txg must not change any more,
//! and its sync must not block tasks that change later txgs. Dirty data must be bounded, a change must fail with `ENOSPC` before it has
//! changed anything, and writers that are faster than the devices must be delayed as little as possible, and never stopped for long.
//!
//! **In memory.**
//! ```text
//!            open                 quiescing              syncing
//!   txg      12                   11                     10               three at most; often no txg is quiescing
//!   holds    group of txg 12      group, closing         none left
//!   shards   [txg 12, its group] x workers, each under a lock of its own
//!   Dirty    bytes by txg and shard, the total in steps; delay and stop follow from the total. Data, and what metadata
//!            holds in memory: changed objects, blocks of dnodes, indirect blocks, frees (`write::held`)
//!   Account  for each directory of datasets that is short of space: bytes admitted by txg
//!   coming   by txg and shard: bytes that changes in progress may still dirty, for accounts that become short of space
//! ```
//!
//! **Life of a change.**
//! 1. [`Transactions::assign`] asks [`Dirty`] whether there is room: below `zfs_delay_min_dirty_percent` of `zfs_dirty_data_max` a change
//!    is not delayed; above it the delay grows with the amount of dirty data; at the limit the change waits until some data is written.
//!    Writes that intent logs may have to copy are counted too, each time, with a limit of their own (`zfs_wrlog_data_max`).
//! 2. It asks the [`Account`]s of the dataset, from the inside out, whether there is space for the worst case.
//! 3. It enters the group of the open txg, through the lock of its own worker's shard. The result, a [`Tx`], keeps the txg from being
//!    written until it is dropped; layers of objects are changed under it.
//! 4. When the txg has been open for `zfs_txg_timeout`, holds a fifth of what may be dirty, has much for intent logs, or somebody wants it,
//!    the next txg is opened. All shards are locked for that, so that no change is assigned to the old txg after another was assigned to the new one.
//!    Then the group of the old txg is closed (quiesced), which waits for its holders only.
//! 5. The task that syncs (the counterpart of OpenZFS's `txg_sync_thread`; a *sync task* is something else) takes the quiesced txg
//!    ([`Transactions::next`]). Data is subtracted from [`Dirty`] as it is written, metadata at the end of the txg.
//!    [`Transactions::done`] wakes the waiters for the txg ([`Transactions::wait_synced`]).
//!
//! **Invariants.**
//! 1. Assigned txgs never decrease: a change that is assigned after another is in the same or a later txg (asserted
//!    in `txgs`: all shards are at one txg whenever the next is opened; in `object::layer`: nothing changes in a txg that is on
//!    disk).
//! 2. A txg is handed to the sync once, in order, when no task holds it, and when the one before is done (asserted in `txgs`).
//! 3. At most three txgs have changes that are not on disk (asserted in `txgs`, `changes` and `object::layer`).
//! 4. The sizes that an [`Account`] has counted for admitted changes (the worst cases, or what the open txg has really dirtied) never
//!    exceed the space left as of the last sync, so the sync of a txg never runs out of space.
//! 5. A task that holds a [`Tx`] never waits for a txg to be synced, nor for another [`Tx`].
//!
//! **Crash.** Nothing here is on disk.
//!
//! **No hot cache line.** Entering touches only the worker's own shard. The total of dirty bytes is touched when a shard's own
//! share has moved by a step; accounts are touched only when space is short.
//!
//! **Rejected.** *One lock around the open txg's hold count*: every change on every core would contend for it. *Counting space always*:
//! the root directory's account would be as contended, and while more space is left than can be dirty it cannot run out. *Reserving dirty
//! bytes by estimate*, as `dmu_tx_hold_*` does: rewriting a dirty block costs nothing, and only the layers know that.

mod account;
mod dirty;
mod failure;
mod kstat;
mod source;
mod sync_mode;
#[cfg(test)]
mod tests;
mod tunables;
mod txgs;

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::Txg;
use cenote_taskq::Member;
use thiserror::Error;

pub use account::{Account, Left};
pub use dirty::Dirty;
pub use failure::TxgFailure;
pub use source::{Committing, PendingFrees, TxgSource};
pub use sync_mode::SyncMode;
pub use tunables::TxTunables;
pub use txgs::Transactions;

/// Txgs with changes that are not on disk at most: one open, one quiescing, one syncing.
pub const UNWRITTEN_TXGS_MAX: usize = 3;
/// Places of counts by txg, rounded up to what a number's low bits tell apart.
const TXGS: usize = 4;
const _: () = assert!(TXGS.is_power_of_two() && TXGS >= UNWRITTEN_TXGS_MAX, "no two txgs in memory have one place");

/// The place of a txg's counts.
const fn slot(txg: Txg) -> usize {
    (txg.0 % TXGS as u64) as usize
}

/// Metadata that changing one object dirties at worst, in bytes: a block of dnodes, and what is above it.
const OBJECT_BYTES: u64 = 64 << 10;
/// The bytes that changing one entry of a directory may write: a leaf that is split, the table that says so, and the header.
const ENTRY_BYTES: u64 = 4 * (16 << 10);
/// The pointers to a block, two copies of them.
const POINTERS_BYTES: u64 = 2 * Blkptr::SIZE as u64;
/// A spill block at most.
const SPILL_BYTES: u64 = 128 << 10;

/// The worst-case cost of a change, declared before the change (as by OpenZFS's `dmu_tx_hold_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of data blocks that are written, in whole blocks.
    write_bytes: u64,
    /// The number of these blocks, and the bits that are set in any of their sizes.
    blocks: u64,
    size_bits: u64,
    /// Objects whose dnode or tables change.
    objects: u64,
    /// The change frees space in the end (OpenZFS's netfree): it is admitted even if a quota is used up, and may use part of the slop
    /// space.
    pub frees: bool,
}

impl Cost {
    /// Writing `len` bytes at an offset of an object with blocks of this size.
    #[must_use]
    pub const fn write(offset_bytes: u64, len: u64, block_bytes: u64) -> Self {
        let block_bytes = if block_bytes == 0 { 1 } else { block_bytes };
        let first = offset_bytes / block_bytes;
        let end = offset_bytes.saturating_add(len).div_ceil(block_bytes);
        Self::objects(1).with_blocks(end.saturating_sub(first), block_bytes)
    }

    /// Changing the attributes or entries of so many objects.
    #[must_use]
    pub const fn objects(objects: u64) -> Self {
        Self { write_bytes: 0, blocks: 0, size_bits: 0, objects, frees: false }
    }

    /// The same for a change that frees more than it takes.
    #[must_use]
    pub const fn that_frees(self) -> Self {
        Self { frees: true, ..self }
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            write_bytes: self.write_bytes.saturating_add(other.write_bytes),
            blocks: self.blocks.saturating_add(other.blocks),
            size_bits: self.size_bits | other.size_bits,
            objects: self.objects.saturating_add(other.objects),
            frees: self.frees || other.frees,
        }
    }

    /// With so many blocks of this size written too.
    #[must_use]
    pub const fn with_blocks(self, blocks: u64, block_bytes: u64) -> Self {
        let write_bytes = blocks.saturating_mul(block_bytes);
        self.and(Self { write_bytes, blocks, size_bits: block_bytes, objects: 0, frees: false })
    }

    /// With one block of this size written too.
    #[must_use]
    pub const fn with_bytes(self, bytes: u64) -> Self {
        self.with_blocks((bytes > 0) as u64, bytes)
    }

    /// Objects whose dnode or tables change.
    #[must_use]
    pub const fn object_count(&self) -> u64 {
        self.objects
    }

    /// Bytes that the data blocks and their pointers take at worst, copies and parity left out, in a pool that allocates this much at a time: a
    /// block of 512 bytes takes a sector of 4 KiB.
    #[must_use]
    pub const fn data_bytes(&self, unit_bytes: u64) -> u64 {
        // Sizes of blocks are multiples of this.
        let step = if self.size_bits == 0 { unit_bytes } else { 1 << self.size_bits.trailing_zeros() };
        let pad = self.blocks.saturating_mul(unit_bytes.saturating_sub(step).saturating_add(POINTERS_BYTES));
        self.write_bytes.saturating_add(pad)
    }

    /// With so many objects' attributes changed in place too.
    #[must_use]
    pub const fn with_objects(self, count: u64) -> Self {
        self.and(Self::objects(count))
    }

    /// With so many entries of directories (or tables) changed too, each in another object.
    #[must_use]
    pub const fn with_entries(self, count: u64) -> Self {
        self.with_objects(count).with_bytes(count.saturating_mul(ENTRY_BYTES))
    }

    /// With attributes of one object packed anew too, which may take a block of their own.
    #[must_use]
    pub const fn with_repack(self) -> Self {
        self.with_objects(1).with_bytes(SPILL_BYTES)
    }

    /// Logical bytes of metadata at worst.
    const fn metadata_bytes(&self) -> u64 {
        self.objects.saturating_mul(OBJECT_BYTES)
    }
}

/// Why a change cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TxError {
    /// The pool has no space left.
    #[error("no space left in the pool")]
    NoSpace,
    /// A quota is used up.
    #[error("the quota of '{0}' is used up")]
    Quota(String),
    /// The pool is being closed.
    #[error("the pool is being closed")]
    Closed,
    /// A txg could not be written; nothing can be changed any more.
    #[error("the pool is suspended: {0}")]
    Suspended(String),
}

/// A change under way. Its txg is not written before this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Tx {
    txg: Txg,
    /// Dropped before the hold: the txg is not written while a change is counted neither as coming nor as dirty.
    _coming: txgs::Coming,
    _hold: Member,
}

impl Tx {
    /// The txg that the change goes to.
    #[must_use]
    pub const fn txg(&self) -> Txg {
        self.txg
    }
}
