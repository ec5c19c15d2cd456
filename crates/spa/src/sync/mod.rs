//! A pool that is written: creation, and the loop that makes txgs durable.
//!
//! # Theory
//!
//! **Need.** All changes of a txg become part of the pool atomically, and the pool on disk is consistent after a power failure at any
//! moment.
//!
//! **In memory.**
//! ```text
//! Syncer                          the pool's identity, and which txg is next
//!   Devices (devices)             vdevs, labels, uberblocks, multihost writes
//!   Blocks (blocks)               the allocator of metaslab behind the trait of zio; references; frees
//!   Mos (mos)                     the MOS, its directory and configuration, the datasets, counts of features
//!   Jobs (jobs)                   long work, a slice in each txg
//!   Zil                           intent logs in use
//! open heads (Objset)             changed by anyone who holds an open txg
//! ```
//! Each room is changed only by the holder of the syncer's slot. A function takes the rooms that it touches: it is one of a room, or of the
//! rooms that changes of a txg may touch ([`rooms::InTxg`]), or, where it changes devices or ends a txg, of the syncer.
//!
//! **Life of a txg's sync** (`sync`).
//! 1. The datasets' objsets are written, all at once. While the devices write these blocks, the new roots and the space accounting are
//!    entered into the MOS, the killed blocks are freed (`free`), and all allocations and frees are appended to the log space maps or
//!    space maps. That is safe early, because allocations never use space that the same txg has freed. Then snapshots are taken (`late`),
//!    which get these roots.
//! 2. Sync passes, until nothing changes: each writes feature counts, the configuration and the MOS, and then appends the allocations and
//!    frees of this pass to the space maps. These are objects of the MOS, so the MOS is dirty again. From the second pass on a block of
//!    this txg is rewritten in place, so each pass changes less. Two passes are enough if the entries of the second fit into space map
//!    blocks that the first has already written, otherwise three or four.
//! 3. Every device is flushed.
//! 4. The uberblock is written, and the labels too if the configuration changed, in an order that leaves a valid pool if power fails at
//!    any step (`cenote_vdev::commit`).
//! 5. Space that was freed two txgs ago can be allocated again (OpenZFS's `TXG_DEFER_SIZE`); where hardly any is left, what this txg has
//!    freed (`space`, `log_room`).
//!
//! **Creation** is a txg like any other: the MOS is filled in memory, the devices get labels without an uberblock, and the first sync
//! writes the pool's first uberblock.
//!
//! **Invariants.**
//! 1. Before the uberblock of a txg is written, every block that it leads to is stable. It leads to the MOS of its txg, and comes after
//!    that of the txg before (asserted in `txg`).
//! 2. No block is written outside an extent that was allocated to it (checked by `ExtentCheck` where it is kept).
//! 3. The space maps have exactly the live blocks as allocated (checked by `zdb` and `verify`). At the end of a txg the allocator has all
//!    frees of the txg, and the space accounting includes the MOS itself (asserted in `txg`).
//! 4. The same changes, device sizes, seed and time give the same bytes on disk.
//! 5. Between two txgs the uberblock, the MOS, the configuration, the vdevs, the allocator and the counts of features say the same
//!    (asserted by `audit`, in tests and simulations).
//!
//! **Crash.** Until step 4 has written its first uberblock the pool is as of the last txg, whole: none of its blocks was overwritten, since
//! freed space waits until the txg that freed it is on disk, and for two more where there is enough. After that uberblock the pool is as of this txg.
//!
//! **Growth** (`admin::add`): new vdevs become part of the pool, and of the topology, in the beginning of a txg, and are written to from the next
//! one on, whether or not the pool is in use.
//!
//! **Opening** a pool that exists (`open::existing`) is an import, read-only, that finds out whether it may be written to (`open::writable`), and
//! a second one over devices that are this process's alone; the space accounts are read, and the next txg begins. Its first sync writes
//! labels that name the host and process that have the pool.
//!
//! **Missing devices.** A pool is written while each top-level vdev can make up for what it has lost. If a leaf misses a block of a txg,
//! the txg is entered into its DTL in the same txg (`dtl`). A device that cannot be flushed, or did not accept the labels or the
//! uberblock, has missed the whole txg. If more is lost than the redundancy can make up for, the sync fails; in a pool with a background
//! sync it waits instead (the pool is suspended, [`crate::pool`]). A leaf that has missed something is still written, and is not counted
//! on: a pool is not opened for writing while a device is missing that alone has what others missed, since going on without it is for a
//! person to decide. A device that goes away later is treated like any missing device: blocks that only it has cannot be read until it
//! returns, and writing meanwhile does not destroy them.
//!
//! **Shared blocks** (`refcount`): a killed block may be cloned or deduplicated. The BRT and DDT are updated with the datasets' part of
//! the txg, before the first pass.
//!
//! **Several txgs at once** ([`crate::pool`]): others change datasets in later txgs while one is synced.
//!
//! **Background jobs** ([`crate::JobStatus`]): long work goes on for a slice in each txg (`jobs`).
//!
//! **Deferred frees** (`sync_bplist`): Cenote defers no frees, because its passes converge by rewriting in place; the deferred frees that
//! OpenZFS left are freed in the first txgs ([`crate::jobs`]).

mod audit;
pub(crate) mod blocks;
mod changes;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod devices;
mod dtl;
mod errlog;
pub(crate) mod features;
mod free;
mod held;
pub(crate) mod history;
mod hold;
pub(crate) mod late;
pub(crate) mod leaf_work;
pub(crate) mod log_room;
pub(crate) mod mos;
pub(crate) mod multihost;
pub(crate) mod obsolete;
mod phases;
mod preload;
pub(crate) mod rebuild;
pub(crate) mod removed;
pub(crate) mod rooms;
mod scan;
pub(crate) mod space;
pub(crate) mod space_maps;
pub(crate) mod troubles;
mod txg;
pub(crate) mod usable;
pub(crate) mod vdev_changes;
pub(crate) mod vdev_config;
mod verify;

use std::sync::Arc;

use cenote_format::ids::{Guid, Txg};
use cenote_taskq::{Handle, Instant, boxed};
use cenote_vdev::tree::VdevTree;
use cenote_zil::{Logs, ZilTunables};

use crate::SpaError;
use crate::config::PoolState;
use crate::failmode::FailMode;
use crate::inuse::InUse;
use crate::jobs::{JobStatus, Jobs};
use crate::sync::late::LateTasks;
use blocks::Blocks;
pub use clock::{Clock, Host};
use devices::Devices;
use mos::Mos;
pub use phases::Phase;
use rooms::InTxg;
pub use scan::ScrubSince;

/// Copies of the MOS's blocks: as many as there can be.
pub(crate) const MOS_COPIES: u8 = 3;

/// The state that the sync of a txg owns: all of a pool that is open for writing, except the contents of its datasets.
pub struct Syncer {
    pub(crate) handle: Handle,
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) host: Host,
    /// Stands in labels as long as the pool is open.
    pub(crate) owner_mark: Option<u64>,
    pub(crate) clock: Clock,
    /// Devices, labels and uberblocks.
    pub(crate) devices: Devices,
    /// Allocator, references and frees.
    pub(crate) blocks: Blocks,
    /// The MOS and the layers in it.
    pub(crate) mos: Mos,
    /// Work that goes on for a slice in each txg.
    pub(crate) jobs: Jobs,
    /// Intent logs.
    pub(crate) zil: Zil,
    /// Changes that are made when the data of their txg is written.
    pub(crate) late: Arc<LateTasks>,
    /// Datasets that this process uses.
    pub(crate) in_use: Arc<InUse>,
    /// The txg that changes go to.
    pub(crate) txg: Txg,
    pub(crate) state: PoolState,
    /// The property of this name.
    pub(crate) failmode: FailMode,
    /// How many passes the last txg took.
    pub(crate) passes: u32,
    /// How long the phases of the last txg took.
    pub(crate) phases: Vec<(Phase, std::time::Duration)>,
    /// Notes of the import, each a sentence.
    pub(crate) notes: Vec<String>,
    /// Others change datasets meanwhile, and were told that they did: so quotas were seen to when changes came in (otherwise a
    /// txg that exceeds one is not written at all), and nothing is opened whose txg might be refused.
    pub(crate) is_live: bool,
    /// The pool itself was changed in the txg that is next to be synced.
    pub(crate) is_changed: bool,
}

/// Intent logs of a pool.
#[derive(Default)]
pub(crate) struct Zil {
    /// Those of datasets in use; none before the pool has its handle.
    pub(crate) logs: Option<Logs>,
    pub(crate) tunables: ZilTunables,
}

/// A pool that was opened or made, as far as the two differ.
pub(crate) struct Opened {
    pub(crate) handle: Handle,
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) host: Host,
    pub(crate) clock: Clock,
    pub(crate) devices: Devices,
    pub(crate) blocks: Blocks,
    pub(crate) mos: Mos,
    pub(crate) jobs: Jobs,
    pub(crate) txg: Txg,
    pub(crate) failmode: FailMode,
    pub(crate) notes: Vec<String>,
}

impl Syncer {
    /// A pool in the txg after its last, of which nobody but the caller knows yet.
    pub(crate) fn new(opened: Opened) -> Self {
        let Opened { handle, name, guid, host, clock, devices, blocks, mos, jobs, txg, failmode, notes } = opened;
        Self {
            handle,
            name,
            guid,
            host,
            owner_mark: None,
            clock,
            devices,
            blocks,
            mos,
            jobs,
            zil: Zil::default(),
            late: Arc::default(),
            in_use: Arc::default(),
            txg,
            state: PoolState::Active,
            failmode,
            passes: 0,
            phases: Vec::new(),
            notes,
            is_live: false,
            is_changed: false,
        }
    }

    /// The rooms, for changes of its txg.
    pub(crate) fn in_txg(&mut self) -> InTxg<'_> {
        self.in_txg_with_jobs().0
    }

    /// The rooms, for changes of its txg, and the jobs beside them.
    pub(crate) fn in_txg_with_jobs(&mut self) -> (InTxg<'_>, &mut Jobs) {
        let Self { handle, clock, txg, mos, blocks, devices, jobs, .. } = self;
        (InTxg { handle, clock: *clock, txg: *txg, mos, blocks, devices }, jobs)
    }

    /// Background jobs that have work left.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.jobs.statuses(self.handle.now())
    }

    /// Blocks that a slice of a job frees at most (`zfs_async_block_max_blocks`; default 100 000).
    pub fn set_async_block_max_blocks(&mut self, blocks: u64) {
        self.jobs.blocks_max = blocks.max(1);
    }

    /// True if a background job goes on with the next txg.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.jobs.go_on() || self.expansion_may_go_on()
    }

    /// True if blocks of what was destroyed are being freed.
    #[must_use]
    pub fn is_freeing(&self) -> bool {
        self.jobs.is_freeing()
    }

    /// True while workers are at work: a scrub, of errors too, or a resilver is under way and not paused, or a leaf is initialized, trimmed or rebuilt.
    #[must_use]
    pub fn is_scanned(&self) -> bool {
        let (scan, errors) = (&self.jobs.scan, &self.jobs.error_scrub);
        let is_scan = scan.is_running() && !scan.is_paused() || errors.is_running() && !errors.is_paused();
        is_scan || self.jobs.leaf_work.is_any_active() || self.jobs.rebuild.is_active()
    }

    /// True while workers of this process are at work, as [`Self::is_scanned`] says: a scan that an earlier process has left has none until somebody attends
    /// to it, and work on leaves has none before txgs are written in the background.
    #[must_use]
    pub fn is_attended(&self) -> bool {
        let (scan, errors) = (&self.jobs.scan, &self.jobs.error_scrub);
        let is_scan = scan.is_running() && !scan.is_paused() || errors.is_running() && !errors.is_paused();
        let is_of_leaves = self.jobs.leaf_work.is_any_active() || self.jobs.rebuild.is_active();
        (is_scan && scan.seat().is_attended()) || (is_of_leaves && self.is_live)
    }

    /// Whether blocks that OpenZFS has put off freeing are still to be freed: so for the first txgs, if it left any.
    #[must_use]
    pub const fn has_deferred_frees(&self) -> bool {
        self.jobs.deferred.is_left()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes of the import: a device that has missed txgs, a missing log, ... Each a sentence.
    #[must_use]
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The guid.
    #[must_use]
    pub(crate) const fn guid(&self) -> Guid {
        self.guid
    }

    /// The txg that changes go to.
    #[must_use]
    pub const fn txg(&self) -> Txg {
        self.txg
    }

    /// Now, in seconds since 1970, as it is written down.
    #[must_use]
    pub fn time_s(&self) -> u64 {
        self.clock.now_s(&self.handle)
    }

    /// The runtime's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.handle.now()
    }

    /// The vdevs.
    #[must_use]
    pub(crate) fn tree(&self) -> &Arc<VdevTree> {
        &self.devices.tree
    }

    /// How many passes the last txg took.
    #[must_use]
    pub(crate) const fn passes(&self) -> u32 {
        self.passes
    }

    /// How long the phases of the last txg took.
    pub(crate) fn take_phases(&mut self) -> Vec<(Phase, std::time::Duration)> {
        std::mem::take(&mut self.phases)
    }

    /// Times a phase of a sync that began then.
    pub(crate) fn time(&mut self, phase: Phase, begun: cenote_taskq::Instant) -> cenote_taskq::Instant {
        let now = self.handle.now();
        self.phases.push((phase, now - begun));
        now
    }

    /// How much of the pool itself was changed: the same number twice if nothing was in between.
    pub(crate) fn change_count(&self) -> (u64, u64) {
        (self.mos.objset.change_count(), self.blocks.given_up)
    }

    /// Writes the last txg, which says on disk what the pool is from then on, and closes it.
    ///
    /// # Errors
    /// As [`Syncer::sync`].
    #[boxed]
    pub(crate) async fn end(mut self, state: PoolState) -> Result<Txg, SpaError> {
        assert_ne!(state, PoolState::Active, "the last txg says that nobody has the pool");
        self.state = state;
        self.devices.config_changed = true;
        let result = self.sync().await;
        self.blocks.writer.dmu().detached().close().await;
        result
    }
}

impl Drop for Syncer {
    /// Lets go of everything, without a word to the devices: what is not synced is lost.
    fn drop(&mut self) {
        self.devices.multihost.abandon();
    }
}
