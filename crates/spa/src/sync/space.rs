//! The pool's allocator: implements `zio`'s trait [`Allocator`](cenote_zio::Allocator) with `metaslab`, and stores the space maps as
//! objects of the MOS.

use crate::SpaError;
use crate::events::Events;
use crate::figures::slop_bytes;
use crate::indirect::Mappings;
use crate::pins::{KEPT_SHARE_MAX, Pins};
use crate::sync::clock::Clock;
use crate::sync::log_room::LogRoom;
use crate::sync::removed::Removed;
use crate::sync::troubles::Troubles;
use cenote_dmu::{DmuError, Objset};
use cenote_format::blkptr::Dva;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{BlockId, Txg, VdevId};
use cenote_metaslab::{
    AllocError, Allocator, ClassKind, Extent, Keep, LoadStep, MetaslabId, Request, SizeRange, SizeRule, SpaceError,
    VdevMaps, VdevSetup,
};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Handle, boxed};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::tree::VdevTree;
use cenote_zio::{AllocationRequest, AllocationUnits, NoSpace, OutsideExtents};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use thiserror::Error;

/// Places that are freed under one lock of the allocator.
pub(super) const FREED_AT_ONCE: usize = 4096;
/// Loads that one allocation asks for at most: more is a defect.
const LOADS_MAX: usize = 1 << 16;
/// With less left than one part in so many of the space that is kept back, freed space can be used when its txg is on disk.
const SHORT_PART: u64 = 4;
/// The time after which a metaslab whose space map could not be read is tried again.
const TRY_AGAIN_MS: u64 = 60_000;

/// The parameters of a top-level vdev for the allocator.
pub(crate) fn vdev_setup(tree: &Arc<VdevTree>, top: &VdevConfig, maps: VdevMaps, is_rotational: bool) -> VdevSetup {
    let (sized, vdev) = (tree.clone(), maps.vdev);
    // By the birth: a raidz that is expanded lays later blocks out in another way.
    let size_rule: SizeRule = Arc::new(move |psize, birth| {
        sized.psize_to_asize(vdev, psize, birth).unwrap_or_else(|| psize.next_multiple_of(1 << 16))
    });
    let data_disks = match top.kind {
        VdevKind::Raidz { parity, .. } => (top.children.len() as u64).saturating_sub(parity).max(1),
        VdevKind::Draid { data, .. } => data.max(1),
        _ => 1,
    };
    VdevSetup { maps, rotational: is_rotational, data_disks, size_rule }
}

/// Why a metaslab is not loaded.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    /// The MOS, which has the space maps, is not open yet.
    #[error("space maps cannot be read yet")]
    NoMos,
    /// Its space map cannot be read.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// Its space map contradicts what else is known.
    #[error(transparent)]
    Space(#[from] SpaceError),
}

/// Log devices on which nothing is placed, and why.
#[derive(Default)]
struct LogDevices {
    failed: BTreeSet<VdevId>,
    leaving: BTreeSet<VdevId>,
}

/// The allocator, shared by the sync and by tasks that write blocks.
pub(crate) struct Space {
    handle: Handle,
    clock: Clock,
    units: AllocationUnits,
    allocator: Mutex<Allocator>,
    /// Whether the allocator keeps an `ExtentCheck`; without one, storing a block need not take the lock.
    is_checked: bool,
    /// Bytes of special vdevs that small blocks of files may still take before the next txg.
    small_left_bytes: AtomicU64,
    /// Main space that intent logs may still take, with the data that is stored for them.
    log_room: Mutex<LogRoom>,
    /// The pool has a log device (SLOG).
    has_log_devices: AtomicBool,
    /// Log devices on which nothing is placed.
    log_devices: Mutex<LogDevices>,
    /// The pool has a special vdev.
    has_special_devices: AtomicBool,
    /// The MOS, from which space maps are read.
    mos: OnceLock<Objset>,
    /// The tree whose suspension allocations wait for when there is no space.
    tree: OnceLock<Weak<VdevTree>>,
    pub(crate) troubles: Arc<Troubles>,
    /// The pool's events.
    pub(crate) events: Arc<Events>,
    /// The tunables of cache devices, if they were given.
    pub(crate) cache_tunables: OnceLock<cenote_l2arc::Tunables>,
    /// The tunables of trimming, if they were given.
    pub(crate) trim_tunables: OnceLock<crate::tunables::TrimTunables>,
    /// Begins to trim by itself, in a pool that is written in the background.
    pub(crate) trim_begins: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Txgs whose blocks are kept.
    pub(crate) pins: Arc<Pins>,
    /// Vdevs that are gone, whose blocks are elsewhere.
    pub(crate) removed: Removed,
}

impl Space {
    /// Obeys `autotrim` from now on.
    pub(crate) fn set_autotrim(&self, is_on: bool) {
        self.with(|allocator| allocator.note_freed(is_on));
        if let Some(begin) = self.trim_begins.get().filter(|_| is_on) {
            begin();
        }
    }

    pub(crate) fn new(
        handle: Handle,
        clock: Clock,
        units: AllocationUnits,
        allocator: Allocator,
        mappings: Arc<Mappings>,
    ) -> Self {
        assert!(units.min_bytes.is_power_of_two(), "space is given in sectors");
        let allocator_has_logs = allocator.has_log_devices();
        let this = Self {
            handle,
            clock,
            units,
            is_checked: allocator.is_checked(),
            allocator: Mutex::new(allocator),
            small_left_bytes: AtomicU64::new(0),
            log_room: Mutex::default(),
            has_log_devices: AtomicBool::new(allocator_has_logs),
            log_devices: Mutex::default(),
            has_special_devices: AtomicBool::new(false),
            mos: OnceLock::new(),
            tree: OnceLock::new(),
            troubles: Arc::default(),
            events: Arc::default(),
            cache_tunables: OnceLock::new(),
            trim_tunables: OnceLock::new(),
            trim_begins: OnceLock::new(),
            pins: Arc::default(),
            removed: Removed::new(mappings),
        };
        this.measure();
        let (available, slop) = this.available_and_slop();
        this.log_room.lock().open(available, slop);
        this
    }

    /// Bytes of main space that can be allocated now, and those that are kept back, as the vdevs count them.
    fn available_and_slop(&self) -> (u64, u64) {
        let (embedded, ..) = self.with(|allocator| allocator.class_figures(ClassKind::EmbeddedLog));
        let (size, allocated, deferred) = self.with(|allocator| allocator.class_figures(ClassKind::Normal));
        (size.saturating_sub(allocated).saturating_sub(deferred), slop_bytes(size, embedded))
    }

    /// Main space that intent logs may still take, and the account of it.
    pub(crate) const fn log_room(&self) -> &Mutex<LogRoom> {
        &self.log_room
    }

    /// Finds out how much small blocks of files may take of special vdevs: all but what is kept for metadata.
    fn measure(&self) {
        let (size, left) = self.with(|allocator| {
            let (size, allocated, _) = allocator.class_figures(ClassKind::Special);
            let kept_pct = allocator.tunables().zfs_special_class_metadata_reserve_pct.min(100);
            (size, (size / 100 * (100 - kept_pct)).saturating_sub(allocated))
        });
        self.has_special_devices.store(size > 0, Ordering::Relaxed);
        self.small_left_bytes.store(left, Ordering::Relaxed);
    }

    /// Which class a block belongs to.
    fn class_of(&self, request: &AllocationRequest) -> ClassKind {
        let kind = request.object_type;
        if kind == DmuType::INTENT_LOG {
            return ClassKind::Log;
        }
        let (indirect, tables) = self.with(|allocator| {
            let tunables = allocator.tunables();
            (tunables.zfs_user_indirect_is_special, tunables.zfs_ddt_data_is_special)
        });
        if kind == DmuType::DDT_ZAP {
            let is_theirs = tables || self.with(|allocator| allocator.class_figures(ClassKind::Dedup).0 > 0);
            return if is_theirs { ClassKind::Dedup } else { ClassKind::Normal };
        }
        let is_small = request.block_bytes <= u64::from(request.small_block_bytes);
        if kind.is_metadata()
            || (indirect && request.level > 0)
            || (is_small && self.small_left_bytes.load(Ordering::Relaxed) > 0)
        {
            return ClassKind::Special;
        }
        ClassKind::Normal
    }

    pub(crate) fn set_mos(&self, mos: &Objset) {
        assert!(self.mos.set(mos.clone()).is_ok(), "space maps are read from one MOS");
    }

    /// From now on an allocation that finds no space suspends the pool and waits, if this tree suspends pools.
    pub(crate) fn set_tree(&self, tree: &Arc<VdevTree>) {
        let _ = self.tree.set(Arc::downgrade(tree));
    }

    /// Suspends the pool for a reason other than a device, and waits. Returns `true` when the pool goes on; `false` if pools are
    /// not suspended, or this one was given up.
    pub(crate) async fn suspend(&self, reason: String) -> bool {
        let Some(tree) = self.tree.get().and_then(Weak::upgrade) else { return false };
        let Some(suspension) = tree.suspension() else { return false };
        suspension.suspend(reason);
        suspension.passed().await.is_ok()
    }

    /// Milliseconds, from any origin. They decide on when a metaslab that is not used is unloaded, and so on places: where
    /// the clock is fixed they stand still.
    pub(crate) fn now_ms(&self) -> u64 {
        match self.clock {
            Clock::Now => u64::try_from(self.handle.unix_time().as_millis()).unwrap_or(u64::MAX),
            Clock::Fixed(_) => 0,
        }
    }

    /// A vdev was added that has nothing but intent logs.
    pub(crate) fn log_device_added(&self) {
        self.has_log_devices.store(true, Ordering::Relaxed);
    }

    /// A log device is to be removed: nothing is placed on it. False if it is being removed already.
    pub(crate) fn log_device_leaves(&self, vdev: VdevId) -> bool {
        let is_first = self.log_devices.lock().leaving.insert(vdev);
        self.with(|allocator| allocator.set_allocatable(vdev, false));
        is_first
    }

    /// Its removal has ended. If it is still there it is used again, unless it has failed.
    pub(crate) fn log_device_stays(&self, vdev: VdevId) {
        let mut devices = self.log_devices.lock();
        if devices.leaving.remove(&vdev) && !devices.failed.contains(&vdev) {
            self.with(|allocator| allocator.set_allocatable(vdev, true));
        }
    }

    /// It was taken offline: nothing is placed on it until it [is online](Self::log_device_is_on).
    pub(crate) fn log_device_is_off(&self, vdev: VdevId) {
        self.log_devices.lock().failed.insert(vdev);
        self.with(|allocator| allocator.set_allocatable(vdev, false));
    }

    /// It was taken online: it is used again unless it is being removed, also where the pool was opened without it.
    pub(crate) fn log_device_is_on(&self, vdev: VdevId) {
        let mut devices = self.log_devices.lock();
        devices.failed.remove(&vdev);
        if !devices.leaving.contains(&vdev) {
            self.with(|allocator| allocator.set_allocatable(vdev, true));
        }
    }

    /// Log devices that have failed, or are offline.
    pub(crate) fn failed_log_devices(&self) -> Vec<VdevId> {
        self.log_devices.lock().failed.iter().copied().collect()
    }

    /// A vdev is to be evacuated: nothing is placed on it.
    pub(crate) fn close(&self, vdev: VdevId) {
        self.with(|allocator| {
            allocator.set_allocatable(vdev, false);
            let allocated_bytes = allocator.evacuation(vdev).allocated_bytes;
            allocator.set_left_to_copy(vdev, Some(allocated_bytes));
        });
        self.measure();
    }

    /// A person wants nothing to be placed on a vdev, or wants that again.
    pub(crate) fn set_passive(&self, vdev: VdevId, is_passive: bool) {
        self.with(|allocator| allocator.set_passive(vdev, is_passive));
        self.measure();
    }

    /// It is used again.
    pub(crate) fn open(&self, vdev: VdevId) {
        self.with(|allocator| {
            allocator.set_left_to_copy(vdev, None);
            allocator.set_allocatable(vdev, true);
        });
        self.measure();
    }

    /// A log device that has failed is tried again.
    pub(crate) fn log_device_is_back(&self, vdev: VdevId) {
        let mut devices = self.log_devices.lock();
        if devices.failed.remove(&vdev) && !devices.leaving.contains(&vdev) {
            self.with(|allocator| allocator.set_allocatable(vdev, true));
        }
    }

    /// A vdev was removed that had nothing but intent logs.
    pub(crate) fn log_device_removed(&self, vdev: VdevId) {
        self.with(|allocator| allocator.remove_vdev(vdev));
        {
            let mut devices = self.log_devices.lock();
            devices.failed.remove(&vdev);
            devices.leaving.remove(&vdev);
        }
        let has_others = self.with(|allocator| allocator.has_log_devices());
        self.has_log_devices.store(has_others, Ordering::Relaxed);
    }

    /// Keeps the places of extents for the checkpoint, wherever they are by now. On removed vdevs their ranges are obsolete for the pool, and not for
    /// the checkpoint, which has its own record of that.
    pub(super) fn keep_places(&self, txg: Txg, extents: impl Iterator<Item = Extent>) -> Result<(), SpaError> {
        let mut places = self.removed.give_up(extents)?;
        places.sort_unstable();
        let mut some = places.chunks(FREED_AT_ONCE);
        Ok(some.try_for_each(|some| self.with(|allocator| allocator.keep(txg, some)))?)
    }

    /// Frees the places of extents, wherever they are by now ([`super::removed`]).
    pub(super) fn give_up_places(&self, txg: Txg, extents: impl Iterator<Item = Extent>) -> Result<(), SpaError> {
        let mut places = self.removed.give_up(extents)?;
        places.sort_unstable();
        self.free_places(txg, &places)
    }

    /// Frees places where they are, in ascending order; some under one lock, since other tasks wait for it too.
    pub(super) fn free_places(&self, txg: Txg, places: &[Extent]) -> Result<(), SpaError> {
        debug_assert!(places.is_sorted(), "neighbours are freed at once");
        let mut some = places.chunks(FREED_AT_ONCE);
        Ok(some.try_for_each(|some| self.with(|allocator| allocator.free_all(txg, some)))?)
    }

    /// Works with the allocator; never across a wait.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Allocator) -> T) -> T {
        work(&mut self.allocator.lock())
    }

    /// The txg is on disk. Returns the metaslabs that will be used next and are not loaded.
    pub(crate) fn sync_done(&self, txg: Txg) -> Result<Vec<MetaslabId>, SpaceError> {
        let now_ms = self.now_ms();
        self.with(|allocator| allocator.try_again(now_ms, TRY_AGAIN_MS));
        let (kept, free) = self.with(|allocator| allocator.kept_figures());
        let pins = self.pins.txgs(kept > free / KEPT_SHARE_MAX);
        assert!(pins.iter().all(|pin| *pin <= txg), "a txg is pinned that is on disk");
        let (available, slop) = self.available_and_slop();
        // A pool that has not enough left for its own txgs cannot wait two of them for each block. As in OpenZFS, and later than there.
        let is_short = available < slop / SHORT_PART;
        let keep = Keep { may_defer: !(is_short && pins.is_empty() && self.pins.release(txg)), pins: &pins };
        let next = self.with(|allocator| allocator.sync_done(txg, &keep, now_ms))?;
        self.measure();
        self.log_room.lock().synced(txg);
        Ok(next)
    }

    /// The allocator's request for a block; the caller still has to set the class.
    fn allocator_request(&self, request: &AllocationRequest) -> Request {
        Request {
            class: ClassKind::Normal,
            psize: SizeRange::exactly(request.psize_bytes),
            copies: usize::from(request.copies),
            txg: request.txg,
            allocator: 0,
            near: Vec::new(),
            is_gang: false,
            is_log: request.object_type == DmuType::INTENT_LOG,
            now_ms: self.now_ms(),
        }
    }

    fn take_special(&self, bytes: u64) {
        // Places are given one after the other, so there is no race.
        let left = self.small_left_bytes.load(Ordering::Relaxed);
        self.small_left_bytes.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }

    pub(crate) async fn load(&self, id: MetaslabId, txg: Txg) -> Result<(), LoadError> {
        let mos = self.mos.get().ok_or(LoadError::NoMos)?;
        let mut loading = self.with(|allocator| allocator.begin_load(id))?;
        loop {
            let now_ms = self.now_ms();
            let step = self.with(|allocator| allocator.end_load(id, loading, txg, now_ms));
            match step? {
                LoadStep::Done => {
                    self.troubles.readable(id);
                    return Ok(());
                }
                LoadStep::More { loading: mut next, object, offset_bytes, len_bytes } => {
                    let map = mos.object(object).await?;
                    let bytes = map.read(offset_bytes, len_bytes as usize).await?;
                    next.feed(&bytes)?;
                    loading = *next;
                }
            }
        }
    }
}

impl Space {
    /// Passes over a metaslab whose map cannot be read.
    pub(crate) fn give_up(&self, id: MetaslabId, error: &LoadError) -> Result<(), NoSpace> {
        let now_ms = self.now_ms();
        self.troubles.unreadable(id, error.to_string());
        self.with(|allocator| allocator.give_up_load(id, now_ms)).map_err(|_| NoSpace::Full)
    }

    /// Finds out whether the maps that the next first pass appends to can be: their last blocks are read.
    pub(crate) async fn check_maps(&self) -> Result<(), NoSpace> {
        let Some(mos) = self.mos.get() else { return Ok(()) };
        for (id, object, length_bytes) in self.with(|allocator| allocator.flushed_next()) {
            let checked = async {
                let map = mos.object(object).await?;
                map.block(BlockId(length_bytes / map.block_bytes().max(1))).await
            };
            if let Err(error) = checked.await {
                self.give_up(id, &error.into())?;
            }
        }
        Ok(())
    }

    async fn place(&self, request: &AllocationRequest) -> Result<Vec<Dva>, NoSpace> {
        self.place_within(request, false).await
    }

    /// Places a block. `is_for_log`: main space is taken only as far as intent logs may have it.
    async fn place_within(&self, request: &AllocationRequest, is_for_log: bool) -> Result<Vec<Dva>, NoSpace> {
        let mut is_fragmented = false;
        let first = self.class_of(request);
        let is_for_log = is_for_log && !mutant::is(Mutant::LogSpaceUnlimited);
        for class in [first].iter().chain(first.fallbacks()) {
            let is_limited = is_for_log && *class == ClassKind::Normal;
            let bytes = request.psize_bytes.saturating_mul(u64::from(request.copies));
            if is_limited && !self.log_room.lock().has(bytes) {
                return Err(NoSpace::Full);
            }
            let wanted = Request { class: *class, ..self.allocator_request(request) };
            for _ in 0..LOADS_MAX {
                match self.with(|allocator| allocator.allocate(&wanted)) {
                    Ok(extents) => {
                        assert_eq!(extents.len(), wanted.copies, "a block has a place for each of its copies");
                        debug_assert!(
                            extents.iter().all(|extent| extent.asize_bytes >= request.psize_bytes),
                            "a place is as large as its block at least"
                        );
                        let taken = extents.iter().map(|extent| extent.asize_bytes).sum::<u64>();
                        if *class == ClassKind::Special {
                            self.take_special(taken);
                        }
                        if is_limited {
                            self.log_room.lock().take(request.txg, taken);
                        }
                        return Ok(extents.into_iter().map(dva).collect());
                    }
                    Err(AllocError::NeedsLoad(id)) => {
                        // The space of a map that cannot be read is not used.
                        if let Err(error) = self.load(id, request.txg).await {
                            self.give_up(id, &error)?;
                        }
                    }
                    Err(AllocError::NoSpace { largest_bytes }) => {
                        is_fragmented |= largest_bytes >= self.units.min_bytes;
                        break;
                    }
                    // A block of one sector cannot be split; it is asked for again.
                    Err(AllocError::ForcedGang) if request.psize_bytes > self.units.min_bytes => {
                        return Err(NoSpace::Fragmented);
                    }
                    Err(AllocError::ForcedGang) => {}
                    Err(_) => break,
                }
            }
        }
        Err(if is_fragmented { NoSpace::Fragmented } else { NoSpace::Full })
    }
}

pub(crate) const fn extent(dva: Dva) -> Extent {
    Extent { vdev: dva.vdev, offset_bytes: dva.offset_bytes, asize_bytes: dva.asize_bytes }
}

const fn dva(extent: Extent) -> Dva {
    let Extent { vdev, offset_bytes, asize_bytes } = extent;
    Dva { vdev, offset_bytes, asize_bytes, gang: false }
}

impl cenote_zio::Allocator for Space {
    fn units(&self) -> AllocationUnits {
        self.units
    }

    #[boxed]
    async fn allocate(&self, request: AllocationRequest) -> Result<Vec<Dva>, NoSpace> {
        loop {
            let is_least = request.psize_bytes <= self.units.min_bytes;
            match self.place(&request).await {
                Err(error) if error == NoSpace::Full || is_least => {
                    let reason = format!(
                        "no space for a block of {} bytes of txg {}, not even in the space that is kept back: a device that \
                             grows can help",
                        request.psize_bytes, request.txg
                    );
                    if !self.suspend(reason).await {
                        return Err(error);
                    }
                    // Metaslabs whose maps could not be read may have space.
                    self.with(|allocator| allocator.try_again(0, 0));
                }
                placed => return placed,
            }
        }
    }

    fn allocate_some(&self, request: AllocationRequest, count: usize) -> Vec<Dva> {
        let first = self.class_of(&request);
        // Whether small blocks of files are still let onto special vdevs is asked for each of them.
        let is_metered = first == ClassKind::Special && request.block_bytes <= u64::from(request.small_block_bytes);
        if is_metered || first == ClassKind::Log {
            return Vec::new();
        }
        let mut wanted = self.allocator_request(&request);
        let mut dvas = Vec::with_capacity(count * usize::from(request.copies));
        let mut left = count as u64;
        self.with(|allocator| {
            for class in [first].iter().chain(first.fallbacks()) {
                wanted.class = *class;
                loop {
                    if left == 0 {
                        return;
                    }
                    match allocator.allocate_run(&wanted, left) {
                        Ok(extents) => {
                            let copies = usize::from(request.copies);
                            assert!(
                                !extents.is_empty() && extents.len().is_multiple_of(copies),
                                "a run has a block, and all copies of each"
                            );
                            left -= extents.len() as u64 / u64::from(request.copies);
                            if *class == ClassKind::Special {
                                self.take_special(extents.iter().map(|extent| extent.asize_bytes).sum());
                            }
                            dvas.extend(extents.into_iter().map(dva));
                        }
                        Err(AllocError::NoVdev) => break,
                        // Something is to be loaded, or the search goes on in another class.
                        Err(_) => return,
                    }
                }
            }
        });
        dvas
    }

    fn allocate_log(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        assert_eq!(request.object_type, DmuType::INTENT_LOG, "a log's space is for its blocks");
        Box::pin(async move { self.place_within(&request, true).await })
    }

    #[boxed]
    async fn allocate_at_once(&self, request: AllocationRequest) -> Result<Vec<Dva>, NoSpace> {
        self.place_within(&request, true).await
    }

    fn replay_space(&self) -> Option<(u64, u64)> {
        let (available, slop) = self.available_and_slop();
        Some((available.saturating_sub(self.log_room.lock().unsynced_bytes()), slop))
    }

    fn logs_want_txg(&self) -> bool {
        self.log_room.lock().wants_txg()
    }

    fn has_log_devices(&self) -> bool {
        self.has_log_devices.load(Ordering::Relaxed)
    }

    fn has_special_devices(&self) -> bool {
        self.has_special_devices.load(Ordering::Relaxed)
    }

    fn is_log_device(&self, vdev: VdevId) -> bool {
        self.has_log_devices() && self.with(|allocator| allocator.is_log_device(vdev))
    }

    fn log_device_failed(&self, vdev: VdevId, why: &str) {
        let is_news = self.log_devices.lock().failed.insert(vdev);
        self.with(|allocator| allocator.set_allocatable(vdev, false));
        if is_news {
            self.troubles.tell(format!(
                "log device {vdev} is not used any more until 'zpool clear', or until the pool is opened again: {why}"
            ));
        }
    }

    fn release(&self, dva: Dva, txg: Txg) {
        // It was handed out in this txg, so it can be given back.
        if let Err(error) = self.with(|allocator| allocator.unallocate(txg, &extent(dva))) {
            self.troubles.tell(format!("a place that was not used, {dva:?}, cannot be given back, and leaks: {error}"));
        }
    }

    fn check_write(&self, dva: Dva) -> Result<(), OutsideExtents> {
        if !self.is_checked {
            return Ok(());
        }
        let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
        self.with(|allocator| allocator.check_write(dva.vdev, range))
    }
}
