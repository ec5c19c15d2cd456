//! The pool's space: the allocator of `metaslab` behind the trait of `zio`, and its maps among the objects of the MOS.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use cenote_dmu::{ObjectSpec, Objset, Zap};
use cenote_format::blkptr::Dva;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{BlockId, ObjectId, Txg, VdevId};
use cenote_format::spacemap::{HISTOGRAM_BUCKETS, SpaceMapPhys};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_metaslab::{
    AllocError, Allocator, ClassKind, Extent, Keep, LoadStep, MetaslabId, Request, SizeRange, SizeRule, SpaceStore,
    VdevMaps, VdevSetup,
};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Handle};
use cenote_zio::{AllocationRequest, AllocationUnits, NoSpace};

use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::tree::VdevTree;

use crate::SpaError;
use crate::pins::{KEPT_SHARE_MAX, Pins};
use crate::space::UNFLUSHED_TXGS;
use crate::sync::changes::{Change, ChangeList};
use crate::sync::troubles::Troubles;
use crate::sync::{Clock, Syncer};

/// Indirect blocks of space maps, as a power of two (`space_map_ibs`).
const INDIRECT_SHIFT: u8 = 14;
/// Loads that one allocation asks for at most: more is a defect.
const LOADS_MAX: usize = 1 << 16;
/// After so long a metaslab whose map could not be read is tried again.
const TRY_AGAIN_MS: u64 = 60_000;

/// What the allocator has to know of a top-level vdev: blocks are laid out as those of the txg `now` are.
pub(crate) fn vdev_setup(
    tree: &Arc<VdevTree>,
    top: &VdevConfig,
    maps: VdevMaps,
    now: Txg,
    is_rotational: bool,
) -> VdevSetup {
    let (sized, vdev) = (tree.clone(), maps.vdev);
    let size_rule: SizeRule = Arc::new(move |psize| {
        sized.psize_to_asize(vdev, psize, now).unwrap_or_else(|| psize.next_multiple_of(1 << 16))
    });
    let data_disks = match top.kind {
        VdevKind::Raidz { parity, .. } => (top.children.len() as u64).saturating_sub(parity).max(1),
        VdevKind::Draid { data, .. } => data.max(1),
        _ => 1,
    };
    VdevSetup { maps, rotational: is_rotational, data_disks, size_rule }
}

/// The allocator, shared by the sync and by those who write blocks.
pub(crate) struct Space {
    handle: Handle,
    clock: Clock,
    units: AllocationUnits,
    allocator: Mutex<Allocator>,
    /// Whether the allocator keeps a second book; those who store need not take the lock where it keeps none.
    is_checked: bool,
    /// Bytes of special vdevs that small blocks of files may still take before the next txg.
    small_left_bytes: AtomicU64,
    /// What space maps are read from.
    mos: OnceLock<Objset>,
    /// The tree whose suspension allocations wait for when there is no space.
    tree: OnceLock<Weak<VdevTree>>,
    pub(crate) troubles: Arc<Troubles>,
    /// Txgs whose blocks are kept.
    pub(crate) pins: Arc<Pins>,
}

impl Space {
    pub(crate) fn new(handle: Handle, clock: Clock, units: AllocationUnits, allocator: Allocator) -> Self {
        let this = Self {
            handle,
            clock,
            units,
            is_checked: allocator.is_checked(),
            allocator: Mutex::new(allocator),
            small_left_bytes: AtomicU64::new(0),
            mos: OnceLock::new(),
            tree: OnceLock::new(),
            troubles: Arc::default(),
            pins: Arc::default(),
        };
        this.measure_special();
        this
    }

    /// Finds out how much small blocks of files may take of special vdevs: all but what is kept for metadata.
    fn measure_special(&self) {
        let left = self.with(|allocator| {
            let (size, allocated, _) = allocator.class_figures(ClassKind::Special);
            let kept_pct = allocator.tunables().zfs_special_class_metadata_reserve_pct.min(100);
            (size / 100 * (100 - kept_pct)).saturating_sub(allocated)
        });
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
        let _ = self.mos.set(mos.clone());
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
    fn now_ms(&self) -> u64 {
        match self.clock {
            Clock::Now => u64::try_from(self.handle.unix_time().as_millis()).unwrap_or(u64::MAX),
            Clock::Fixed(_) => 0,
        }
    }

    /// Works with the allocator; never across a wait.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Allocator) -> T) -> T {
        work(&mut self.allocator.lock())
    }

    /// The txg is on disk.
    pub(crate) fn sync_done(&self, txg: Txg) -> Result<(), String> {
        let now_ms = self.now_ms();
        self.with(|allocator| allocator.try_again(now_ms, TRY_AGAIN_MS));
        let (kept, free) = self.with(|allocator| allocator.kept_figures());
        let pins = self.pins.txgs(kept > free / KEPT_SHARE_MAX);
        let keep = Keep { may_defer: true, pins: &pins };
        self.with(|allocator| allocator.sync_done(txg, &keep, now_ms)).map(drop).map_err(|error| error.to_string())?;
        self.measure_special();
        Ok(())
    }

    /// What is asked for a block; the class is still to be filled in.
    fn wish(&self, request: &AllocationRequest) -> Request {
        Request {
            class: ClassKind::Normal,
            psize: SizeRange::exactly(request.psize_bytes),
            copies: usize::from(request.copies),
            txg: request.txg,
            allocator: 0,
            near: Vec::new(),
            is_gang: false,
            is_log: false,
            now_ms: self.now_ms(),
            is_busy: false,
        }
    }

    fn take_special(&self, bytes: u64) {
        // Places are given one after the other, so nobody comes in between.
        let left = self.small_left_bytes.load(Ordering::Relaxed);
        self.small_left_bytes.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }

    async fn load(&self, id: MetaslabId, txg: Txg) -> Result<(), String> {
        let mos = self.mos.get().ok_or("space maps cannot be read yet")?;
        let mut loading = self.with(|allocator| allocator.begin_load(id)).map_err(|error| error.to_string())?;
        loop {
            let now_ms = self.now_ms();
            let step = self.with(|allocator| allocator.end_load(id, loading, txg, now_ms));
            match step.map_err(|error| error.to_string())? {
                LoadStep::Done => {
                    self.troubles.readable(id);
                    return Ok(());
                }
                LoadStep::More { loading: mut next, object, offset_bytes, len_bytes } => {
                    let map = mos.object(object).await.map_err(|error| error.to_string())?;
                    let bytes = map.read(offset_bytes, len_bytes as usize).await.map_err(|error| error.to_string())?;
                    next.feed(&bytes, cenote_zio::ORDER).map_err(|error| error.to_string())?;
                    loading = *next;
                }
            }
        }
    }
}

impl Space {
    /// Passes over a metaslab whose map cannot be read.
    fn give_up(&self, id: MetaslabId, reason: String) -> Result<(), NoSpace> {
        let now_ms = self.now_ms();
        self.troubles.unreadable(id, reason);
        self.with(|allocator| allocator.give_up_load(id, now_ms)).map_err(|_| NoSpace::Full)
    }

    /// Finds out whether the maps that the next first pass appends to can be: their last blocks are read.
    async fn check_maps(&self) -> Result<(), NoSpace> {
        let Some(mos) = self.mos.get() else { return Ok(()) };
        for (id, object, length_bytes) in self.with(|allocator| allocator.flushed_next()) {
            let checked = async {
                let map = mos.object(object).await?;
                map.block(BlockId(length_bytes / map.block_bytes().max(1))).await
            };
            if let Err(error) = checked.await {
                self.give_up(id, error.to_string())?;
            }
        }
        Ok(())
    }

    async fn place(&self, request: &AllocationRequest) -> Result<Vec<Dva>, NoSpace> {
        let mut is_fragmented = false;
        let first = self.class_of(request);
        for class in [first].iter().chain(first.fallbacks()) {
            let wish = Request { class: *class, ..self.wish(request) };
            for _ in 0..LOADS_MAX {
                match self.with(|allocator| allocator.allocate(&wish)) {
                    Ok(extents) => {
                        if *class == ClassKind::Special {
                            let taken = extents.iter().map(|extent| extent.asize_bytes).sum::<u64>();
                            self.take_special(taken);
                        }
                        return Ok(extents.into_iter().map(dva).collect());
                    }
                    Err(AllocError::NeedsLoad(id)) => {
                        // A map that cannot be read keeps its space to itself.
                        if let Err(reason) = self.load(id, request.txg).await {
                            self.give_up(id, reason)?;
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

    fn allocate(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        Box::pin(async move {
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
        })
    }

    fn allocate_some(&self, request: AllocationRequest, count: usize) -> Vec<Dva> {
        let first = self.class_of(&request);
        // Whether small blocks of files are still let onto special vdevs is asked for each of them.
        let is_metered = first == ClassKind::Special && request.block_bytes <= u64::from(request.small_block_bytes);
        if is_metered || first == ClassKind::Log {
            return Vec::new();
        }
        let mut wish = self.wish(&request);
        let mut dvas = Vec::with_capacity(count * usize::from(request.copies));
        let mut left = count as u64;
        self.with(|allocator| {
            for class in [first].iter().chain(first.fallbacks()) {
                wish.class = *class;
                loop {
                    if left == 0 {
                        return;
                    }
                    match allocator.allocate_run(&wish, left) {
                        Ok(extents) => {
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

    fn release(&self, dva: Dva, txg: Txg) {
        // It was handed out in this txg, so it can be given back.
        if let Err(error) = self.with(|allocator| allocator.unallocate(txg, &extent(dva))) {
            self.troubles.tell(format!("a place that was not used, {dva:?}, cannot be given back, and leaks: {error}"));
        }
    }

    fn check_write(&self, dva: Dva) -> Result<(), String> {
        if !self.is_checked {
            return Ok(());
        }
        let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
        self.with(|allocator| allocator.check_write(dva.vdev, range)).map_err(|error| error.to_string())
    }
}

/// Takes changes down, to be made when the allocator's lock is not held.
pub(crate) struct Changes {
    mos: Objset,
    txg: Txg,
    list: ChangeList,
    /// Space maps made.
    made: i64,
}

impl Changes {
    pub(crate) fn new(mos: Objset, txg: Txg) -> Self {
        Self { mos, txg, list: ChangeList::default(), made: 0 }
    }
}

impl SpaceStore for Changes {
    fn create(&mut self, block_size_bytes: u64) -> Result<ObjectId, String> {
        let empty =
            SpaceMapPhys { object: 0, length_bytes: 0, allocated_bytes: 0, histogram: Some([0; HISTOGRAM_BUCKETS]) };
        let block = u32::try_from(block_size_bytes).map_err(|error| error.to_string())?;
        let mut spec = ObjectSpec::new(DmuType::SPACE_MAP, block)
            .with_bonus(DmuType::SPACE_MAP_HEADER, empty.emit(cenote_zio::ORDER));
        spec.indirect_shift = INDIRECT_SHIFT;
        let object = self.mos.create_object(self.txg, &spec).map_err(|error| error.to_string())?;
        self.made += 1;
        Ok(object.id())
    }

    fn write(&mut self, object: ObjectId, offset_bytes: u64, bytes: &[u8]) -> Result<(), String> {
        self.list.write(object, offset_bytes, bytes);
        Ok(())
    }

    fn truncate(&mut self, object: ObjectId) -> Result<(), String> {
        self.list.push(Change::Truncate(object));
        Ok(())
    }

    fn free(&mut self, object: ObjectId) -> Result<(), String> {
        self.made -= 1;
        self.list.push(Change::Free(object));
        Ok(())
    }

    fn set_header(&mut self, object: ObjectId, header: &SpaceMapPhys) -> Result<(), String> {
        self.list.push(Change::Header { object, header: Box::new(header.clone()) });
        Ok(())
    }

    fn set_metaslab_object(&mut self, metaslab: MetaslabId, object: ObjectId) -> Result<(), String> {
        self.list.push(Change::MetaslabObject { metaslab, object });
        Ok(())
    }

    fn set_unflushed_txg(&mut self, metaslab: MetaslabId, txg: Txg) -> Result<(), String> {
        self.list.push(Change::UnflushedTxg { metaslab, txg });
        Ok(())
    }

    fn set_log(&mut self, txg: Txg, object: Option<ObjectId>) -> Result<(), String> {
        self.list.push(Change::Log { txg, object });
        Ok(())
    }
}

impl Syncer {
    /// Turns numbers of space accounting, from now on.
    pub fn tune_space(&mut self, tune: impl FnOnce(&mut cenote_metaslab::Tunables)) {
        self.space.with(|allocator| tune(allocator.tunables()));
    }

    /// What the last txg did to space.
    pub(crate) fn space_work(&self) -> cenote_metaslab::TxgWork {
        self.space.with(|allocator| allocator.work().clone())
    }

    /// Writes what was allocated and freed since the last time into space maps and logs. The first time in a txg some metaslabs
    /// are flushed and condensed too.
    pub(crate) async fn sync_space(&mut self, txg: Txg) -> Result<(), SpaError> {
        self.frees_told().await?;
        let mut changes = Changes::new(self.mos.clone(), txg);
        self.space_pass += 1;
        if self.space_pass == 1 {
            let failed = self.space.check_maps().await;
            failed.map_err(|_| self.fail("a metaslab that is to be flushed is not there"))?;
        }
        let pass = u16::try_from(self.space_pass).unwrap_or(u16::MAX);
        let done = self.space.with(|allocator| allocator.sync(&mut changes, txg, pass));
        done.map_err(|error| self.fail(error))?;
        self.make_changes(changes).await
    }

    /// Ends the txg's log.
    pub(crate) async fn close_space(&mut self, txg: Txg) -> Result<(), SpaError> {
        let mut changes = Changes::new(self.mos.clone(), txg);
        let done = self.space.with(|allocator| allocator.close_txg(&mut changes));
        done.map_err(|error| self.fail(error))?;
        self.make_changes(changes).await
    }

    pub(crate) async fn make_changes(&mut self, changes: Changes) -> Result<(), SpaError> {
        let txg = changes.txg;
        if changes.made != 0 {
            self.features.change("spacemap_histogram", changes.made);
        }
        for change in changes.list.into_changes() {
            self.make_change(txg, change).await?;
        }
        Ok(())
    }

    /// Makes a change. A read that fails suspends the pool, where it can be suspended, and the change is made again.
    async fn make_change(&mut self, txg: Txg, change: Change) -> Result<(), SpaError> {
        if !matches!(change, Change::Write { .. } | Change::Header { .. }) {
            return self.make_change_once(txg, &change).await;
        }
        loop {
            // Both begin with reading, and can be made again.
            let error = match self.make_change_once(txg, &change).await {
                Err(error @ SpaError::Dmu { .. }) => error,
                made => return made,
            };
            if !self.space.suspend(format!("a space map that is to be written cannot be read: {error}")).await {
                return Err(error);
            }
        }
    }

    async fn make_change_once(&mut self, txg: Txg, change: &Change) -> Result<(), SpaError> {
        let mos = self.mos.clone();
        let name = self.name.clone();
        let fail = |error: cenote_dmu::DmuError| SpaError::Dmu { pool: name.clone(), error };
        match change {
            Change::Write { object, offset_bytes, bytes } => {
                let object = mos.object(*object).await.map_err(fail)?;
                object.write(txg, *offset_bytes, bytes).await.map_err(fail)
            }
            Change::Truncate(object) => {
                mos.object(*object).await.map_err(fail)?.truncate(txg);
                Ok(())
            }
            Change::Free(object) => {
                mos.object(*object).await.map_err(fail)?.free(txg);
                Ok(())
            }
            Change::Header { object, header } => {
                let object = mos.object(*object).await.map_err(fail)?;
                object.set_bonus(txg, &header.emit(cenote_zio::ORDER)).map_err(fail)
            }
            Change::MetaslabObject { metaslab, object } => {
                let array = self.top(metaslab.vdev)?.metaslab_array;
                self.put_word(txg, array, metaslab.index, object.0).await
            }
            Change::UnflushedTxg { metaslab, txg: unflushed } => {
                let object = self.unflushed_object(txg, metaslab.vdev).await?;
                self.put_word(txg, object, metaslab.index, unflushed.0).await
            }
            Change::Log { txg: of, object } => {
                let zap = self.log_zap(txg).await?;
                let value = object.as_ref().map(|object| ZapValue::from_u64(object.0));
                let zap = mos.object(zap).await.map_err(fail)?;
                Zap::put_entry(&zap, txg, &int_key_name(of.0), value.as_ref()).await.map_err(fail)
            }
        }
    }

    async fn put_word(&self, txg: Txg, object: ObjectId, index: u64, word: u64) -> Result<(), SpaError> {
        let fail = |error| SpaError::Dmu { pool: self.name.clone(), error };
        let object = self.mos.object(object).await.map_err(fail)?;
        object.write(txg, index * 8, &word.to_le_bytes()).await.map_err(fail)
    }

    /// The object with the metaslabs' unflushed txgs, made if there is none.
    async fn unflushed_object(&mut self, txg: Txg, vdev: VdevId) -> Result<ObjectId, SpaError> {
        if let Some(object) = self.members.unflushed_txgs.get(&vdev) {
            return Ok(*object);
        }
        let name = self.name.clone();
        let fail = |error| SpaError::Dmu { pool: name.clone(), error };
        let spec = ObjectSpec::new(DmuType::UINT64_METADATA, 128 << 10);
        let object = self.mos.create_object(txg, &spec).map_err(fail)?.id();
        let zap = self.mos.object(self.top(vdev)?.top_zap).await.map_err(fail)?;
        Zap::put_entry(&zap, txg, UNFLUSHED_TXGS, Some(&ZapValue::from_u64(object.0))).await.map_err(fail)?;
        self.members.unflushed_txgs.insert(vdev, object);
        Ok(object)
    }

    fn top(&self, vdev: VdevId) -> Result<&VdevConfig, SpaError> {
        self.members.top(vdev).ok_or_else(|| self.fail(format!("there is no vdev {vdev}")))
    }

    /// The ZAP of log space maps, made with the first.
    async fn log_zap(&mut self, txg: Txg) -> Result<ObjectId, SpaError> {
        let name = self.name.clone();
        let fail = |error| SpaError::Dmu { pool: name.clone(), error };
        let mut directory = cenote_dmu::Zap::open(self.directory.clone()).await.map_err(fail)?;
        let found = directory.lookup(pool_directory::LOG_SPACEMAP_ZAP.as_bytes()).await.map_err(fail)?;
        if let Some(object) = found.and_then(|value| value.as_u64()) {
            return Ok(ObjectId(object));
        }
        let zap = Zap::create_object(&self.mos, txg, DmuType::ZAP_METADATA, &[]).await.map_err(fail)?.id();
        directory.insert_u64(pool_directory::LOG_SPACEMAP_ZAP, zap.0).await.map_err(fail)?;
        directory.flush(txg).await.map_err(fail)?;
        self.features.change("log_spacemap", 1);
        Ok(zap)
    }
}
