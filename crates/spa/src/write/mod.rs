//! A pool that is written: creation, and the loop that makes txgs durable.
//!
//! # Theory
//!
//! **Need.** Everything that changes in a txg becomes the pool at once, or not at all, and what is on disk is always a whole
//! pool, whatever happens to the power.
//!
//! **In memory.**
//! ```text
//! PoolWriter
//!   Members, identity             what labels and the configuration in the MOS are made of
//!   Space (space)                 the allocator of metaslab behind the trait of zio; blocks to free
//!   MOS (Objset), Dsl             changed only by the sync, by one at a time
//!   open heads (Objset)           changed by anyone who holds an open txg
//!   Features                      counts, written when they change
//! ```
//!
//! **Life of a txg's sync** (`sync`).
//! 1. The datasets' objsets are written, all at once. While devices take their blocks their new roots and accounts go into the MOS,
//!    the allocator is told what they gave up (`free`), and all that they took and gave up goes to log space maps and space
//!    maps: where a block goes does not depend on what this txg frees.
//! 2. Pass by pass, until nothing changes: features and configuration, the MOS itself; then what space that took and gave
//!    up goes to log space maps and space maps too, which are objects of the MOS, so it is dirty again. From the second
//!    pass on a block of this txg is rewritten in its place, so each pass changes less; two do where the changes fit behind
//!    what the first has written, else three or four.
//! 3. Every device is flushed.
//! 4. The uberblock is written, and labels where the configuration changed, in an order that leaves a good pool behind
//!    whenever it stops (`cenote_vdev::commit`).
//! 5. Frees of two txgs ago can be used again.
//!
//! **Creation** is a txg like any other: the MOS is filled in memory, the devices get labels that no uberblock goes with,
//! and the first sync makes it a pool.
//!
//! **Invariants.**
//! 1. Before the uberblock of a txg is written, every block that it leads to is stable.
//! 2. No block is written outside an extent that was allocated to it (checked by a second book where it is kept).
//! 3. The sum of live blocks is what space maps say is allocated; so says `zdb`, and `verify`.
//! 4. Given the same devices' sizes, the same changes, seed and time, the same bytes are written.
//!
//! **Crash.** Until step 4 has written its first uberblock the pool is the last txg's, whole: nothing that it leads to was
//! overwritten, since freed space waits for two txgs. After it, it is this txg's.
//!
//! **Growth** (`add`): new vdevs become part of the pool, and of the topology, in the beginning of a txg, and are written to from the next
//! one on, whether or not the pool is in use.
//!
//! **Opening** a pool that exists (`open`) is an import, read-only, that finds out whether it may be written to (`refuse`), and
//! a second one over devices that are this process's alone; the space accounts are read, and the next txg begins. Its first
//! sync writes labels that say who has the pool.
//!
//! **Missing devices.** A pool is written while each top-level vdev can make up for what it has lost. Leaves that miss a
//! block of a txg have it noted in their dirty time logs in the same txg (`missed`); a device that cannot be flushed has
//! missed all of it, and one that did not take the labels or the uberblock, too. Where more is lost a sync fails; that of a pool
//! that is written in the background waits ([`live`]). A leaf that has missed something is still written, and is not counted
//! on: a pool is not opened for writing while a device is missing that alone has what others missed, since going on without it
//! is for a person to decide. One that goes away later is made up for as ever: what is on it alone cannot be read meanwhile,
//! and is lost neither by that nor by what is written.
//!
//! **Shared blocks** (`shared`): what a dataset gives up may be cloned or deduplicated; the tables that count references
//! change with the datasets' part of the txg, before the first pass.
//!
//! **Several txgs at once** ([`live`]): others change datasets in later txgs while one is synced.
//!
//! **Background jobs** ([`JobStatus`]): long work goes on for a slice in each txg (`jobs`).
//!
//! **Deferred frees**: passes converge without, by rewriting in place; those that OpenZFS left are freed in the first txgs
//! (`deferred`).
//!
//! **Not here yet.** The intent log.

mod add;
mod administer;
mod auxiliary;
mod changes;
mod config;
mod create;
mod dataset;
mod deferred;
mod destroy;
mod features;
mod free;
mod history;
mod jobs;
pub mod live;
mod members;
mod missed;
mod multihost;
mod open;
mod refuse;
mod rename;
mod shared;
mod space;
mod sync;
mod troubles;
mod upgrade;
mod usable;
mod vdevs;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::{Object, Objset, Writer};
use cenote_dsl::Dsl;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::needs::Needs;
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::Handle;
use cenote_vdev::ring::Ring;
use cenote_vdev::tree::VdevTree;

pub use add::AddOptions;
pub use auxiliary::AuxSpec;
pub use cenote_dsl::Head;
pub use create::{CreateOptions, create, create_with_metaslabs};
pub use dataset::{FileSizes, PropertyValue};
pub use jobs::JobStatus;
pub use open::{WriteOptions, open};
pub use vdevs::{DiskSpec, TopKind, TopSpec};

use crate::config::PoolState;
use crate::{FoundPool, SpaError};
use features::FeatureCounts;
use members::Members;
use shared::SharedBlocks;
use space::Space;

/// Copies of the MOS's blocks: as many as there can be.
const MOS_COPIES: u8 = 3;

/// Where time comes from that is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's, or the simulation's.
    Now,
    /// Always the same, in seconds since 1970: for images that are made again.
    Fixed(u64),
}

/// A pool that is open for writing, by this process alone.
pub struct PoolWriter {
    handle: Handle,
    name: String,
    guid: Guid,
    host: Host,
    /// Stands in labels as long as the pool is open.
    owner_mark: Option<u64>,
    clock: Clock,
    members: Members,
    /// The configuration as it was found: what is not known here stays as it is.
    old_config: NvList,
    /// Where the newest uberblock stands, and the next one goes.
    ring: Ring,
    /// Multihost writes, which show others that the pool is in use.
    multihost: multihost::Multihost,
    /// Where an expansion stood, as uberblocks say.
    raidz_reflow: u64,
    tree: Arc<VdevTree>,
    space: Arc<Space>,
    writer: Writer,
    mos: Objset,
    directory: Object,
    config: Object,
    dsl: Dsl,
    features: FeatureCounts,
    shared: SharedBlocks,
    /// The list of frees that were put off, until it is empty.
    deferred: Option<ObjectId>,
    /// Destroyed datasets that are freed in the background.
    async_destroy: jobs::async_destroy::AsyncDestroy,
    /// Blocks given up since the pool was opened.
    given_up: u64,
    /// What of that the allocator is being told.
    telling: free::Telling,
    /// Features of which it is known that they are noted with a dataset.
    used_features: BTreeMap<ObjectId, Needs>,
    /// The txg that changes go to.
    txg: Txg,
    state: PoolState,
    /// The property of this name.
    failmode: live::FailMode,
    /// The configuration has to be written.
    config_changed: bool,
    /// The MOS's own bytes that are not in the accounts yet.
    mos_delta: cenote_dmu::SpaceDelta,
    passes: u32,
    /// How many times the txg that syncs has entered what it took and freed.
    space_pass: u32,
    /// How long the phases of the last txg took.
    phases: Vec<(live::Phase, std::time::Duration)>,
    /// Notes of the import, each a sentence.
    notes: Vec<String>,
    /// The devices, as they were found when the pool was opened.
    found: FoundPool,
    /// The root that was last written.
    synced: Option<Uberblock>,
    /// Others change datasets meanwhile, and were told that they did: so quotas were seen to when changes came in (otherwise a
    /// txg that exceeds one is not written at all), and nothing is opened whose txg might be refused.
    is_live: bool,
}

/// Who writes the pool.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The host id; 0 if it has none.
    pub id: u64,
    /// The host's name.
    pub name: String,
}

impl PoolWriter {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes of the import: a device that has missed txgs, a missing log, ... Each a sentence.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The guid.
    #[must_use]
    pub const fn guid(&self) -> Guid {
        self.guid
    }

    /// The txg that changes go to.
    #[must_use]
    pub const fn txg(&self) -> Txg {
        self.txg
    }

    /// The root dataset.
    #[must_use]
    pub fn root(&self) -> Option<Head> {
        self.dsl.heads().into_iter().next()
    }

    /// Now, in seconds since 1970, as it is written down.
    #[must_use]
    pub fn time_s(&self) -> u64 {
        match self.clock {
            Clock::Now => self.handle.unix_time().as_secs(),
            Clock::Fixed(time) => time,
        }
    }

    /// The vdevs.
    #[must_use]
    pub fn tree(&self) -> &Arc<VdevTree> {
        &self.tree
    }

    /// How many passes the last txg took.
    #[must_use]
    pub const fn passes(&self) -> u32 {
        self.passes
    }

    /// How long the phases of the last txg took.
    pub(crate) fn take_phases(&mut self) -> Vec<(live::Phase, std::time::Duration)> {
        std::mem::take(&mut self.phases)
    }

    /// Times a phase of a sync that began then.
    fn time(&mut self, phase: live::Phase, begun: cenote_taskq::Instant) -> cenote_taskq::Instant {
        let now = self.handle.now();
        self.phases.push((phase, now - begun));
        now
    }

    fn fail(&self, what: impl std::fmt::Display) -> SpaError {
        SpaError::Write { pool: self.name.clone(), what: what.to_string() }
    }

    /// Writes the last txg, which says that the pool is exported, and closes it.
    ///
    /// # Errors
    /// As [`PoolWriter::sync`].
    pub async fn export(mut self) -> Result<(), SpaError> {
        self.state = PoolState::Exported;
        self.config_changed = true;
        let result = self.sync().await;
        self.writer.dmu().detached().close().await;
        result.map(drop)
    }
}

impl Drop for PoolWriter {
    /// Lets go of everything, without a word to the devices: what is not synced is lost.
    fn drop(&mut self) {
        self.multihost.abandon();
    }
}
