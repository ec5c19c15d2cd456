//! The state that the handles and the tasks of a pool share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use cenote_dmu::tx::{Account, Transactions};
use cenote_dsl::Dsl;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_l2arc::L2arc;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::AtomicBool;
use cenote_taskq::{AsyncMutex, BoxFuture, Handle, Join};
use cenote_vdev::tree::{Suspension, VdevTree};
use cenote_zil::Logs;

use super::frees::Frees;
use super::heal::Healing;
use super::history::TxgRecord;
use super::kstat::Kstats;
use super::root::Root;
use super::syncer_slot::SyncerSlot;
use super::trimmed::Counts;
use crate::FailedPool;
use crate::events::Events;
use crate::failmode::FailMode;
use crate::inuse::InUse;
use crate::jobs::JobStatus;
use crate::jobs::leaf::Seat;
use crate::jobs::rebuild::RebuildSeat;
use crate::jobs::scan::ScanSeat;
use crate::pins::Pins;
use crate::sync::clock::Clock;
use crate::sync::late::LateTasks;
use crate::sync::multihost::Multihost;
use crate::sync::troubles::Troubles;

/// A change or a look, made by a task that has the slot.
pub(super) type Request = Box<dyn for<'a> FnOnce(&'a Shared, &'a mut SyncerSlot) -> BoxFuture<'a, ()> + Send>;

pub(super) struct Shared {
    pub(super) handle: Handle,
    pub(super) name: String,
    /// `zpool reguid` changes it.
    pub(super) guid: Mutex<Guid>,
    pub(super) clock: Clock,
    pub(super) notes: Vec<String>,
    /// Since the pool is written in the background.
    pub(super) suspension: OnceLock<Arc<Suspension>>,
    pub(super) multihost: Multihost,
    /// As long as the pool is open.
    pub(super) tree: Weak<VdevTree>,
    /// As long as the pool is open.
    pub(super) dsl: Mutex<Option<Dsl>>,
    pub(super) failmode: Mutex<FailMode>,
    pub(super) txgs: Transactions,
    /// Changes that are made when the data of their txg is written.
    pub(super) late: Arc<LateTasks>,
    /// Datasets that this process uses.
    pub(super) in_use: Arc<InUse>,
    /// Intent logs of datasets in use, as long as the pool is open: they have its devices.
    pub(super) logs: Mutex<Option<Logs>>,
    /// Txgs are written in the background; otherwise by hand.
    pub(super) is_background: AtomicBool,
    /// The task for leaves of log vdevs is there.
    pub(super) attends_logs: AtomicBool,
    /// Troubles with its space.
    pub(super) troubles: Arc<Troubles>,
    /// Its events.
    pub(super) events: Arc<Events>,
    /// Frees in the background.
    pub(super) frees: Frees,
    /// Txgs that are read.
    pub(super) pins: Arc<Pins>,
    /// The root of the last txg, for views; none of a pool that is being made, and once the sync has ended.
    pub(super) root: Mutex<Option<Root>>,
    pub(super) healing: Healing,
    pub(super) slot: AsyncMutex<SyncerSlot>,
    /// Changes and looks that wait for the slot, in the order of asking. Their callers have them: what has one in it may have the pool.
    pub(super) asked: Mutex<VecDeque<Weak<Mutex<Option<Request>>>>>,
    /// Why there is no syncer in the slot any more.
    pub(super) failed: OnceLock<FailedPool>,
    pub(super) accounts: Mutex<BTreeMap<ObjectId, Arc<Account>>>,
    pub(super) records: Mutex<VecDeque<TxgRecord>>,
    /// Background jobs with work left, as of the last txg.
    pub(super) jobs: Mutex<Vec<JobStatus>>,
    /// Where the worker of scans meets the sync.
    pub(super) scan: ScanSeat,
    /// Where workers on leaves meet the sync.
    pub(super) leaf_work: Seat,
    /// Where workers of rebuilds meet the sync.
    pub(super) rebuild: RebuildSeat,
    /// Its statistics.
    pub(super) kstats: Kstats,
    /// The second level of its cache.
    pub(super) caches: Arc<L2arc>,
    /// The space that was trimmed by itself.
    pub(super) autotrim: Counts,
    /// The sync, which gives back the last txg, not written yet.
    pub(super) sync: Mutex<Option<Join<Option<Txg>>>>,
}
