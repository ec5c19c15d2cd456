//! The pool's allocator: all vdevs, classes and logs, and a txg's way through them.
//!
//! One value, no clock, no thread, no I/O: calls in the same order give the same places. Who calls it holds the lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cenote_format::ids::{Txg, VdevId};
use cenote_vdev::config::AllocationClass;
use thiserror::Error;

use crate::check::{CheckError, ExtentCheck};
use crate::class::{Attempt, Class, ClassKind, Member, Quota, Share};
use crate::group::{Group, Search, VdevSetup, VdevSpaces, Which};
use crate::map::Batch;
use crate::replay::Replayed;
use crate::work::Gathered;
use crate::{
    FoundLog, LoadStep, Loading, LogSpace, Metaslab, MetaslabId, MetaslabWork, SizeRange, SpaceError, SpaceStore,
    SyncTarget, TXG_SIZE, Tunables, TxgWork,
};

/// What the pool's features allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceFeatures {
    /// `com.delphix:spacemap_v2`: two-word entries.
    pub spacemap_v2: bool,
    /// `com.delphix:log_spacemap`, which needs the former. Without it each txg appends to each metaslab's own map.
    pub log_spacemap: bool,
}

/// A place on a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Where, in the vdev's allocatable space.
    pub offset_bytes: u64,
    /// How much, parity and padding included.
    pub asize_bytes: u64,
}

impl Extent {
    /// The range of the vdev.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.asize_bytes
    }
}

/// A wish for space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose space.
    pub class: ClassKind,
    /// Physical bytes of the block, at least and at most. They differ for blocks that take what there is.
    pub psize: SizeRange,
    /// Copies: 1 to 3.
    pub copies: usize,
    /// The txg that the block belongs to.
    pub txg: Txg,
    /// Which allocator: callers that spread over several do not meet.
    pub allocator: usize,
    /// For the parts of a gang block: where the header is, so that both stay on the same vdevs.
    pub near: Vec<Extent>,
    /// Header or part of a gang block: look everywhere.
    pub is_gang: bool,
    /// A block of the intent log: look everywhere.
    pub is_log: bool,
    /// Now, in milliseconds from any origin.
    pub now_ms: u64,
    /// Whether the pool writes as fast as it can, so that fast vdevs may take more than their share.
    pub is_busy: bool,
}

/// Why there is no space.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocError {
    /// A metaslab has to be loaded first; then ask again. Nothing was taken.
    #[error("vdev {} metaslab {} is not loaded", .0.vdev, .0.index)]
    NeedsLoad(MetaslabId),
    /// Nothing fits. A smaller request may: no larger than the longest free run that is known.
    #[error("no space for a block: the longest free run known has {largest_bytes} bytes")]
    NoSpace {
        /// The longest free run of the class's loaded metaslabs, as allocated bytes: what parts of a gang block can have.
        largest_bytes: u64,
    },
    /// The class has no vdev.
    #[error("no vdev serves this class")]
    NoVdev,
    /// A defect was found.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The second book disagrees.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// What to flush beyond the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// What keeps the logs within their limits.
    #[default]
    Paced,
    /// Everything that was unflushed at this txg, some each txg: `zpool condense`.
    Requested {
        /// Up to which txg.
        until: Txg,
        /// Metaslabs that were dirty when it was asked for.
        total: u64,
    },
    /// Everything, now: at export.
    Everything,
}

/// The allocator of a pool.
#[derive(Clone, Debug)]
pub struct Allocator {
    tunables: Tunables,
    features: SpaceFeatures,
    vdevs: BTreeMap<VdevId, VdevSpaces>,
    classes: BTreeMap<ClassKind, Class>,
    logs: LogSpace,
    /// Metaslabs to sync, by txg.
    dirty: [BTreeSet<MetaslabId>; TXG_SIZE],
    /// The pass of the txg that syncs; 0 between txgs.
    pass: u16,
    flush_mode: FlushMode,
    /// Counts up to a hundred, by the share of blocks to gang on purpose.
    forced: u64,
    /// What was done since the last txg was.
    gathered: Gathered,
    /// What the last txg did.
    work: TxgWork,
    check: Option<ExtentCheck>,
}

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SIZE as u64) as usize
}

impl Allocator {
    /// An allocator without vdevs. `check`: keep the [second book](ExtentCheck) too.
    #[must_use]
    pub fn new(features: SpaceFeatures, tunables: Tunables, check: bool) -> Self {
        let allocators = tunables.spa_num_allocators.max(1);
        Self {
            classes: ClassKind::ALL.iter().map(|kind| (*kind, Class::new(*kind, allocators))).collect(),
            tunables,
            features,
            vdevs: BTreeMap::new(),
            logs: LogSpace::new(),
            dirty: std::array::from_fn(|_| BTreeSet::new()),
            pass: 0,
            flush_mode: FlushMode::Paced,
            forced: 0,
            gathered: Gathered::default(),
            work: TxgWork::default(),
            check: check.then(ExtentCheck::new),
        }
    }

    /// Adds a vdev that has never been used. In a pool that is being created its space can be used at once, else after the
    /// next txg.
    pub fn add_vdev(&mut self, setup: VdevSetup, is_creation: bool) -> Result<(), SpaceError> {
        let maps = &setup.maps;
        let metaslabs = (0..maps.metaslab_count())
            .map(|index| {
                let id = MetaslabId { vdev: maps.vdev, index };
                let mut metaslab = Metaslab::new(id, maps.metaslab_range(index), maps.ashift);
                let loading = metaslab.begin_load()?;
                metaslab.end_load(loading)?;
                if is_creation {
                    metaslab.sync_done(Txg(0), true)?;
                }
                Ok(metaslab)
            })
            .collect::<Result<Vec<_>, SpaceError>>()?;
        self.join(setup, metaslabs)
    }

    /// Adds a vdev of a pool that is being opened, with its metaslabs. Then come the logs ([`crate::open()`]), then
    /// [`Self::opened`].
    pub fn open_vdev(&mut self, setup: VdevSetup, metaslabs: Vec<Metaslab>) -> Result<(), SpaceError> {
        self.join(setup, metaslabs)
    }

    fn join(&mut self, setup: VdevSetup, metaslabs: Vec<Metaslab>) -> Result<(), SpaceError> {
        let (id, class) = (setup.maps.vdev, setup.maps.class);
        let kind = match class {
            AllocationClass::Normal => ClassKind::Normal,
            AllocationClass::Log => ClassKind::Log,
            AllocationClass::Special => ClassKind::Special,
            AllocationClass::Dedup => ClassKind::Dedup,
        };
        let mut vdev = VdevSpaces::new(setup, metaslabs, self.tunables.spa_num_allocators.max(1));
        for index in 0..vdev.metaslabs.len() as u64 {
            vdev.weigh(index, &self.tunables)?;
        }
        let mut members = vec![(kind, Which::Main)];
        if kind == ClassKind::Normal {
            vdev.choose_embedded(&self.tunables);
            if vdev.embedded.is_some() {
                members.push((ClassKind::EmbeddedLog, Which::Embedded));
            }
        }
        self.vdevs.insert(id, vdev);
        for (kind, which) in members {
            if let Some(class) = self.classes.get_mut(&kind) {
                class.join(Member { vdev: id, which });
            }
            self.balance(kind, false);
        }
        Ok(())
    }

    /// What the logs change in a metaslab, at import.
    pub(crate) fn replayed(&mut self, replayed: Replayed) -> Result<(), SpaceError> {
        let vdev = self.vdevs.get_mut(&replayed.id.vdev).ok_or(SpaceError::NoMetaslab(replayed.id))?;
        vdev.metaslab(replayed.id.index)?.set_replayed(replayed);
        Ok(())
    }

    /// All vdevs and logs are there: weighs and balances.
    pub fn opened(&mut self, found: &[FoundLog]) -> Result<(), SpaceError> {
        let metaslabs = || self.vdevs.values().flat_map(|vdev| &vdev.metaslabs);
        let memory = metaslabs().map(Metaslab::unflushed_memory_bytes).sum();
        let entries = metaslabs().map(|metaslab| (metaslab.id(), metaslab.unflushed_txg(), metaslab.is_unflushed()));
        self.logs = LogSpace::open_pool(found, entries, memory, &self.tunables);
        for vdev in self.vdevs.values_mut() {
            for index in 0..vdev.metaslabs.len() as u64 {
                vdev.weigh(index, &self.tunables)?;
            }
        }
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind, true));
        Ok(())
    }

    /// Enters what was in use when the pool was opened into the second book.
    pub fn check_opened(
        &mut self,
        vdev: VdevId,
        mut allocated: impl Iterator<Item = Range<u64>>,
    ) -> Result<(), CheckError> {
        let Some(check) = &mut self.check else { return Ok(()) };
        allocated.try_for_each(|range| check.allocated(vdev, range))
    }

    /// Takes a vdev out of use, or back in: faulted, or leaving.
    pub fn set_allocatable(&mut self, vdev: VdevId, is_allocatable: bool) {
        if let Some(vdev) = self.vdevs.get_mut(&vdev) {
            vdev.is_allocatable = is_allocatable;
        }
    }

    /// Forgets a vdev that was removed; nothing of it may be in use.
    pub fn remove_vdev(&mut self, id: VdevId) {
        let Some(vdev) = self.vdevs.remove(&id) else { return };
        for metaslab in &vdev.metaslabs {
            self.logs.forget(metaslab.id(), metaslab.unflushed_txg());
            self.logs.account_memory(metaslab.unflushed_memory_bytes(), 0);
        }
        self.classes.values_mut().for_each(|class| class.leave(id));
        self.dirty.iter_mut().for_each(|dirty| dirty.retain(|metaslab| metaslab.vdev != id));
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind, false));
    }

    /// A metaslab.
    #[must_use]
    pub fn metaslab(&self, id: MetaslabId) -> Option<&Metaslab> {
        self.vdevs.get(&id.vdev)?.metaslabs.get(usize::try_from(id.index).ok()?)
    }

    /// All metaslabs.
    pub fn metaslabs(&self) -> impl Iterator<Item = &Metaslab> {
        self.vdevs.values().flat_map(|vdev| &vdev.metaslabs)
    }

    /// The logs.
    #[must_use]
    pub const fn logs(&self) -> &LogSpace {
        &self.logs
    }

    /// The second book, if it is kept.
    #[must_use]
    pub const fn check(&self) -> Option<&ExtentCheck> {
        self.check.as_ref()
    }

    /// The numbers; changes take effect at once, limits that depend on them with the next txg.
    pub fn tunables(&mut self) -> &mut Tunables {
        &mut self.tunables
    }

    /// Size, bytes allocated (as of what was synced) and bytes deferred of a class. How much of what is free is *slop*, and
    /// so kept back, is the caller's to say.
    #[must_use]
    pub fn class_figures(&self, kind: ClassKind) -> (u64, u64, u64) {
        let Some(class) = self.classes.get(&kind) else { return (0, 0, 0) };
        class.ring.iter().flat_map(|member| self.members_metaslabs(*member)).fold((0, 0, 0), |sum, metaslab| {
            let (size, allocated, deferred) = sum;
            (size + metaslab.size_bytes(), allocated + metaslab.allocated_bytes(), deferred + metaslab.deferred_bytes())
        })
    }

    fn members_metaslabs(&self, member: Member) -> impl Iterator<Item = &Metaslab> {
        let vdev = self.vdevs.get(&member.vdev);
        let embedded = vdev.and_then(|vdev| vdev.embedded);
        let all = vdev.into_iter().flat_map(|vdev| &vdev.metaslabs);
        all.filter(move |metaslab| (embedded == Some(metaslab.id().index)) == (member.which == Which::Embedded))
    }

    fn balance(&mut self, kind: ClassKind, settle: bool) {
        let ring = self.classes.get(&kind).map(|class| class.ring.clone()).unwrap_or_default();
        let mut shares = Vec::with_capacity(ring.len());
        let mut strained = Vec::with_capacity(ring.len());
        for member in &ring {
            let (mut size_bytes, mut allocated_bytes, mut fragmentation, mut rated) = (0, 0, 0, 0);
            for metaslab in self.members_metaslabs(*member) {
                size_bytes += metaslab.size_bytes();
                allocated_bytes += metaslab.allocated_bytes();
                fragmentation += metaslab.fragmentation().unwrap_or(0);
                rated += u64::from(metaslab.fragmentation().is_some());
            }
            let data_disks = self.vdevs.get(&member.vdev).map_or(1, |vdev| vdev.setup.data_disks);
            shares.push(Share { size_bytes, allocated_bytes, data_disks });
            let free_percent = (u128::from(size_bytes - allocated_bytes) * 100).checked_div(u128::from(size_bytes));
            let is_empty_enough = self.tunables.zfs_mg_noalloc_threshold == 0
                || free_percent.unwrap_or(0) > u128::from(self.tunables.zfs_mg_noalloc_threshold);
            let fragmentation = fragmentation.checked_div(rated).unwrap_or(0);
            strained.push(!is_empty_enough || fragmentation > self.tunables.zfs_mg_fragmentation_threshold);
        }
        let all_strained = strained.iter().all(|strained| *strained);
        let Some(class) = self.classes.get_mut(&kind) else { return };
        let quotas = class.balance(&shares, settle, &self.tunables);
        for ((member, quota), strained) in ring.iter().zip(quotas).zip(strained) {
            let Some(vdev) = self.vdevs.get_mut(&member.vdev) else { continue };
            let group = vdev.group_mut(member.which);
            (group.aliquot, group.queue_target) = (quota.aliquot, quota.queue_target);
            group.is_shunned = strained && !all_strained;
        }
    }

    /// Reserves for a block before it is allocated. `None`: the class has enough in flight; ask again when something was
    /// written. Else whether there is room for more. `must`: reserve whatever there is.
    pub fn reserve(
        &mut self,
        class: ClassKind,
        allocator: usize,
        copies: u64,
        psize_bytes: u64,
        must: bool,
    ) -> Option<bool> {
        if !self.tunables.zio_dva_throttle_enabled || matches!(class, ClassKind::Log | ClassKind::EmbeddedLog) {
            return Some(true);
        }
        if self.classes.get_mut(&class)?.note_io_size(psize_bytes) {
            self.balance(class, false);
        }
        self.classes.get_mut(&class)?.reserve(allocator, copies.saturating_mul(psize_bytes), must)
    }

    /// Takes a reservation back. Whether there is room for more.
    pub fn unreserve(&mut self, class: ClassKind, allocator: usize, copies: u64, psize_bytes: u64) -> bool {
        if !self.tunables.zio_dva_throttle_enabled || matches!(class, ClassKind::Log | ClassKind::EmbeddedLog) {
            return true;
        }
        let bytes = copies.saturating_mul(psize_bytes);
        self.classes.get_mut(&class).is_none_or(|class| class.unreserve(allocator, bytes))
    }

    fn group_of(&mut self, extent: &Extent) -> Option<&mut Group> {
        let vdev = self.vdevs.get_mut(&extent.vdev)?;
        let index = extent.offset_bytes >> vdev.setup.maps.metaslab_shift;
        let which = if vdev.embedded == Some(index) { Which::Embedded } else { Which::Main };
        Some(vdev.group_mut(which))
    }

    /// A copy is on its way to its vdev: counts towards the vdev's queue until [`Self::write_ended`].
    pub fn write_began(&mut self, extent: &Extent, allocator: usize, psize_bytes: u64) {
        let queue = self.group_of(extent).and_then(|group| group.queued_bytes.get_mut(allocator));
        if let Some(queue) = queue {
            *queue = queue.saturating_add(psize_bytes);
        }
    }

    /// A copy was written, or failed to be.
    pub fn write_ended(&mut self, extent: &Extent, allocator: usize, psize_bytes: u64) {
        let queue = self.group_of(extent).and_then(|group| group.queued_bytes.get_mut(allocator));
        if let Some(queue) = queue {
            *queue = queue.saturating_sub(psize_bytes);
        }
    }

    /// Before a device write of a block: that it lies in an extent in use. Only in the second book; without it all is well.
    pub fn check_write(&self, vdev: VdevId, range: Range<u64>) -> Result<(), CheckError> {
        self.check.as_ref().map_or(Ok(()), |check| check.write(vdev, range))
    }

    /// Takes space for each copy, on different vdevs where that is possible and else in different metaslabs. Nothing is
    /// taken on error. Other classes are not tried: see [`ClassKind::fallbacks`].
    pub fn allocate(&mut self, request: &Request) -> Result<Vec<Extent>, AllocError> {
        if !request.is_gang && self.force_gang(request.psize.min_bytes) {
            return Err(AllocError::NoSpace { largest_bytes: request.psize.min_bytes / 2 });
        }
        let mut extents: Vec<Extent> = Vec::with_capacity(request.copies);
        for _ in 0..request.copies {
            match self.allocate_copy(request, &extents, 1) {
                Ok(extent) => extents.push(extent),
                Err(error) => {
                    for extent in extents {
                        self.unallocate(request.txg, &extent)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(extents)
    }

    /// Takes places for several blocks alike, each with one copy, as long as they lie side by side: in one search, and where
    /// asking for one after the other would have put them. At least one comes back, at most `count`.
    ///
    /// # Errors
    /// As [`Self::allocate`], of the first block.
    pub fn allocate_run(&mut self, request: &Request, count: u64) -> Result<Vec<Extent>, AllocError> {
        let psize = request.psize.min_bytes;
        let is_simple = request.copies == 1
            && psize == request.psize.max_bytes
            && psize < self.tunables.metaslab_force_ganging
            && !request.is_gang;
        if !is_simple || count <= 1 {
            return self.allocate(request);
        }
        let run = self.allocate_copy(request, &[], count)?;
        let asize_bytes = self.vdevs.get(&run.vdev).map_or(run.asize_bytes, |vdev| (vdev.setup.size_rule)(psize));
        let extents = (run.offset_bytes..run.offset_bytes + run.asize_bytes).step_by(asize_bytes.max(1) as usize);
        Ok(extents.map(|offset_bytes| Extent { vdev: run.vdev, offset_bytes, asize_bytes }).collect())
    }

    /// Blocks of at least a given size, so many of a hundred: for tests of gang blocks.
    fn force_gang(&mut self, psize: u64) -> bool {
        if psize < self.tunables.metaslab_force_ganging {
            return false;
        }
        self.forced += self.tunables.metaslab_force_ganging_pct.min(100);
        let now = self.forced >= 100;
        self.forced %= 100;
        now
    }

    /// Takes space for a copy; where there is one of each block, for up to `count` blocks side by side.
    fn allocate_copy(&mut self, request: &Request, earlier: &[Extent], count: u64) -> Result<Extent, AllocError> {
        let class = self.classes.get(&request.class).ok_or(AllocError::NoVdev)?;
        if class.ring.is_empty() {
            return Err(AllocError::NoVdev);
        }
        let ring = class.ring.clone();
        let place = |vdev: VdevId| ring.iter().position(|member| member.vdev == vdev);
        let near = request.near.get(earlier.len()).and_then(|extent| place(extent.vdev));
        // The next vdev for the next copy: only neighbours share blocks, so that two failures of others lose nothing.
        let next = || earlier.last().and_then(|extent| place(extent.vdev)).map(|place| (place + 1) % ring.len());
        let start = near.or_else(next).unwrap_or_else(|| class.rotor(request.allocator));
        let smallest = ring.iter().filter_map(|member| self.vdevs.get(&member.vdev)).map(|vdev| vdev.setup.maps.ashift);
        let smallest_bytes = 1_u64 << smallest.min().unwrap_or(9);
        let thorough = self.tunables.zfs_metaslab_try_hard_before_gang
            || request.is_gang
            || request.is_log
            || request.psize.min_bytes <= smallest_bytes;
        for try_hard in [false, true] {
            if try_hard && !thorough {
                break;
            }
            for step in 0..ring.len() {
                let number = (start + step) % ring.len();
                let is_turn =
                    self.classes.get(&request.class).is_some_and(|class| class.rotor(request.allocator) == number);
                let count = if is_turn { count.min(self.blocks_left(request, ring[number])) } else { 1 };
                let placed = self.try_member(request, ring[number], earlier, try_hard, count)?;
                if is_turn {
                    let blocks = placed.as_ref().map_or(1, |(_, blocks)| *blocks);
                    (0..blocks).for_each(|_| self.rotate(request, ring[number], placed.is_some()));
                }
                if let Some((extent, _)) = placed {
                    if let Some(check) = &mut self.check {
                        check.allocated(extent.vdev, extent.range())?;
                    }
                    return Ok(extent);
                }
            }
        }
        let metaslabs = ring.iter().flat_map(|member| self.members_metaslabs(*member));
        let largest_bytes = metaslabs.filter_map(Metaslab::largest_bytes).max().unwrap_or(0);
        Err(AllocError::NoSpace { largest_bytes })
    }

    fn blocks_left(&self, request: &Request, member: Member) -> u64 {
        let aliquot = self.vdevs.get(&member.vdev).map_or(0, |vdev| vdev.group(member.which).aliquot);
        let class = self.classes.get(&request.class);
        class.map_or(1, |class| class.blocks_left(request.allocator, request.psize.min_bytes, aliquot))
    }

    fn rotate(&mut self, request: &Request, member: Member, placed: bool) {
        let Some(vdev) = self.vdevs.get(&member.vdev) else { return };
        let group = vdev.group(member.which);
        let quota = Quota { aliquot: group.aliquot, queue_target: group.queue_target };
        let queued = group.queued_bytes.get(request.allocator).copied().unwrap_or(0);
        let attempt = Attempt { psize: request.psize.min_bytes, placed, quota, queued, busy: request.is_busy };
        if let Some(class) = self.classes.get_mut(&request.class) {
            class.rotate(request.allocator, attempt, &self.tunables);
        }
    }

    fn try_member(
        &mut self,
        request: &Request,
        member: Member,
        earlier: &[Extent],
        try_hard: bool,
        count: u64,
    ) -> Result<Option<(Extent, u64)>, AllocError> {
        let keep_active = self.pass > 1;
        let Some(vdev) = self.vdevs.get_mut(&member.vdev) else { return Ok(None) };
        let group = vdev.group(member.which);
        if !vdev.is_allocatable || (!try_hard && !request.is_gang && (group.is_full || group.is_shunned)) {
            return Ok(None);
        }
        let rule = vdev.setup.size_rule.clone();
        let smallest = rule(1 << vdev.setup.maps.ashift);
        let size = SizeRange { min_bytes: rule(request.psize.min_bytes), max_bytes: rule(request.psize.max_bytes) };
        let search = Search {
            size,
            count,
            txg: request.txg,
            now_ms: request.now_ms,
            allocator: request.allocator,
            earlier,
            try_hard,
            keep_active,
        };
        let Some(found) = vdev.allocate(member.which, &search, &self.tunables)? else {
            vdev.group_mut(member.which).is_full |= size.min_bytes <= smallest;
            return Ok(None);
        };
        let index = found.start >> vdev.setup.maps.metaslab_shift;
        self.dirty[slot(request.txg)].insert(MetaslabId { vdev: member.vdev, index });
        let (offset_bytes, asize_bytes) = (found.start, found.end - found.start);
        let blocks = if count > 1 { asize_bytes / size.min_bytes.max(1) } else { 1 };
        Ok(Some((Extent { vdev: member.vdev, offset_bytes, asize_bytes }, blocks)))
    }

    fn owner(&mut self, extent: &Extent) -> Result<(MetaslabId, &mut Metaslab), SpaceError> {
        let id = MetaslabId { vdev: extent.vdev, index: 0 };
        let vdev = self.vdevs.get_mut(&extent.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        let id = MetaslabId { index: extent.offset_bytes >> vdev.setup.maps.metaslab_shift, ..id };
        Ok((id, vdev.metaslab(id.index)?))
    }

    /// Gives back what was allocated in the same txg and never referenced: at once.
    pub fn unallocate(&mut self, txg: Txg, extent: &Extent) -> Result<(), AllocError> {
        let (_, metaslab) = self.owner(extent)?;
        metaslab.unallocate(txg, extent.range())?;
        if let Some(check) = &mut self.check {
            check.unallocated(extent.vdev, extent.range())?;
        }
        Ok(())
    }

    /// Takes a given place: blocks of the intent log, at import.
    pub fn claim(&mut self, txg: Txg, extent: &Extent) -> Result<(), AllocError> {
        let (id, metaslab) = self.owner(extent)?;
        if !metaslab.is_loaded() {
            return Err(AllocError::NeedsLoad(id));
        }
        metaslab.claim(txg, extent.range())?;
        self.dirty[slot(txg)].insert(id);
        if let Some(check) = &mut self.check {
            check.allocated(extent.vdev, extent.range())?;
        }
        Ok(())
    }

    /// Whether the second book is kept.
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.check.is_some()
    }

    /// Frees a place in the txg that syncs.
    pub fn free(&mut self, txg: Txg, extent: &Extent) -> Result<(), AllocError> {
        let (id, metaslab) = self.owner(extent)?;
        metaslab.free(extent.range())?;
        self.dirty[slot(txg)].insert(id);
        if let Some(check) = &mut self.check {
            check.freed(extent.vdev, txg, extent.range())?;
        }
        Ok(())
    }

    /// Begins to load a metaslab; see [`Metaslab::begin_load`].
    pub fn begin_load(&self, id: MetaslabId) -> Result<Loading, SpaceError> {
        self.metaslab(id).ok_or(SpaceError::NoMetaslab(id))?.begin_load()
    }

    /// Ends a load, or says what else to read. Others are unloaded where memory has no room for one more.
    pub fn end_load(
        &mut self,
        id: MetaslabId,
        loading: Loading,
        txg: Txg,
        now_ms: u64,
    ) -> Result<LoadStep, SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        let was_loaded = vdev.metaslab(id.index)?.is_loaded();
        let step = vdev.change(id.index, |metaslab| {
            metaslab.selected = (txg, now_ms);
            metaslab.end_load(loading)
        })??;
        if matches!(step, LoadStep::Done) {
            vdev.weigh(id.index, &self.tunables)?;
            if !was_loaded {
                self.gathered.of(id).is_loaded = true;
            }
            self.fit_memory(Some(txg))?;
        }
        Ok(step)
    }

    /// Memory of loaded metaslabs.
    #[must_use]
    pub fn loaded_memory_bytes(&self) -> u64 {
        self.metaslabs().map(Metaslab::loaded_memory_bytes).sum()
    }

    /// What it may be.
    #[must_use]
    pub fn loaded_memory_bytes_max(&self) -> u64 {
        let size: u64 = self.metaslabs().map(Metaslab::size_bytes).sum();
        self.tunables.loaded_memory_bytes_max(size)
    }

    /// Unloads those chosen longest ago until what is loaded has room. What was chosen in the txg `keep` stays, or three
    /// copies in three metaslabs could unload each other for ever; the end of the txg makes up for it.
    fn fit_memory(&mut self, keep: Option<Txg>) -> Result<(), SpaceError> {
        let (mut memory, max) = (self.loaded_memory_bytes(), self.loaded_memory_bytes_max());
        if memory <= max || self.tunables.metaslab_debug_unload {
            return Ok(());
        }
        let mut oldest: Vec<_> = self
            .metaslabs()
            .filter(|metaslab| metaslab.is_loaded() && Some(metaslab.selected.0) != keep)
            .map(|metaslab| (metaslab.selected, metaslab.id(), metaslab.loaded_memory_bytes()))
            .collect();
        oldest.sort_unstable_by_key(|(selected, id, _)| (*selected, *id));
        for (_, id, bytes) in oldest {
            if memory <= max {
                break;
            }
            if self.unload(id)? {
                memory -= bytes;
            }
        }
        Ok(())
    }

    /// Unloads a metaslab if nothing hangs on it. Whether it did.
    pub fn unload(&mut self, id: MetaslabId) -> Result<bool, SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        let metaslab = vdev.metaslab(id.index)?;
        if !metaslab.is_loaded() || metaslab.is_allocating() || metaslab.is_new() {
            return Ok(false);
        }
        vdev.passivate(id.index, None)?;
        let is_unloaded = vdev.change(id.index, Metaslab::unload)?;
        if is_unloaded {
            self.gathered.of(id).is_unloaded = true;
        }
        Ok(is_unloaded)
    }

    /// Has a metaslab's map rewritten in this txg; it must be loaded.
    pub fn condense(&mut self, id: MetaslabId, txg: Txg) -> Result<(), SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        vdev.metaslab(id.index)?.want_condensed();
        self.dirty[slot(txg)].insert(id);
        Ok(())
    }

    /// Asks for flushes beyond the plan.
    pub fn flush_more(&mut self, mode: FlushMode) {
        self.flush_mode = mode;
    }

    /// Writes the changes of one pass. Passes count from 1 in each txg; writing makes the objects dirty, which allocates
    /// and frees, so the caller goes on until nothing changes.
    pub fn sync(&mut self, store: &mut dyn SpaceStore, txg: Txg, pass: u16) -> Result<(), SpaceError> {
        self.pass = pass;
        let batch = Batch { txg, pass, two_words: self.features.spacemap_v2 };
        if pass == 1 && self.features.log_spacemap && !self.dirty[slot(txg)].is_empty() {
            self.flush(store, batch)?;
        }
        for id in self.dirty[slot(txg)].clone() {
            let Some(vdev) = self.vdevs.get_mut(&id.vdev) else { continue };
            let logs = self.features.log_spacemap.then_some(&mut self.logs);
            let work = MetaslabWork::new(id);
            let mut target = SyncTarget { store: &mut *store, batch, logs, tunables: &self.tunables, work };
            vdev.metaslab(id.index)?.sync(&mut target)?;
            self.gathered.add(&target.work);
        }
        self.logs.put_header(store)
    }

    /// Flushes those flushed longest ago: as many as the plan says, and more while memory is short.
    fn flush(&mut self, store: &mut dyn SpaceStore, batch: Batch) -> Result<(), SpaceError> {
        if self.logs.oldest().is_none() {
            return Ok(());
        }
        self.logs.open(batch.txg, store, &self.tunables)?;
        let planned = self.logs.flushes_wanted(&self.tunables);
        let mut wanted = match self.flush_mode {
            FlushMode::Paced => planned,
            FlushMode::Requested { total, .. } => {
                let share = self.tunables.zfs_min_metaslabs_to_condense_pct.clamp(1, 100);
                planned.max((total.saturating_mul(share) / 100).max(1))
            }
            FlushMode::Everything => u64::MAX,
        };
        while let Some((id, unflushed, is_dirty)) = self.logs.oldest() {
            let past = matches!(self.flush_mode, FlushMode::Requested { until, .. } if unflushed > until);
            if unflushed == batch.txg || past {
                self.flush_mode = FlushMode::Paced;
                break;
            }
            if wanted == 0 && !self.logs.exceeds_memory(&self.tunables) {
                break;
            }
            let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
            let (logs, work) = (Some(&mut self.logs), MetaslabWork::new(id));
            let mut target = SyncTarget { store: &mut *store, batch, logs, tunables: &self.tunables, work };
            let metaslab = vdev.metaslab(id.index)?;
            if is_dirty {
                metaslab.flush(&mut target)?;
                self.gathered.add(&target.work);
                wanted = wanted.saturating_sub(1);
            } else {
                metaslab.skip_flush(&mut target)?;
            }
        }
        self.logs.set_block_limit(&self.tunables);
        Ok(())
    }

    /// The last pass is over; writes what only then is known. Before the uberblock, and without making anything dirty that
    /// is not.
    pub fn close_txg(&mut self, store: &mut dyn SpaceStore) -> Result<(), SpaceError> {
        self.logs.close(store, &self.tunables)
    }

    /// The txg is on disk: deferred frees come back, weights and balance are computed anew, what was not used for long is
    /// unloaded. Without `may_defer` frees come back at once: the caller says so when less than the slop is free.
    /// The metaslabs that should be loaded next come back.
    pub fn sync_done(&mut self, txg: Txg, may_defer: bool, now_ms: u64) -> Result<Vec<MetaslabId>, SpaceError> {
        let mut next = Vec::new();
        for id in std::mem::take(&mut self.dirty[slot(txg)]) {
            let Some(vdev) = self.vdevs.get_mut(&id.vdev) else { continue };
            if vdev.metaslab(id.index)?.sync_done(txg, may_defer)? {
                next.push(id);
            }
            vdev.weigh(id.index, &self.tunables)?;
        }
        // New vdevs come into use with the txg, changed or not.
        for vdev in self.vdevs.values_mut() {
            for index in 0..vdev.metaslabs.len() as u64 {
                if vdev.metaslab(index)?.is_new() {
                    vdev.metaslab(index)?.sync_done(txg, may_defer)?;
                }
            }
            vdev.main.is_full = false;
            vdev.log.is_full = false;
        }
        self.dirty[slot(Txg(txg.0 + 1))].extend(next);
        self.pass = 0;
        if let Some(check) = &mut self.check {
            check.synced(txg, may_defer);
        }
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind, true));
        self.unload_idle(txg, now_ms)?;
        self.fit_memory(None)?;
        self.work = self.gathered.end(&mut self.logs);
        Ok(self.preload())
    }

    fn unload_idle(&mut self, txg: Txg, now_ms: u64) -> Result<(), SpaceError> {
        if self.tunables.metaslab_debug_unload {
            return Ok(());
        }
        let idle: Vec<MetaslabId> = self
            .metaslabs()
            .filter(|metaslab| metaslab.is_loaded())
            .filter(|metaslab| metaslab.activation.is_none() || !self.tunables.metaslab_preload_enabled)
            .filter(|metaslab| {
                let (at, at_ms) = metaslab.selected;
                txg.0 > at.0.saturating_add(self.tunables.metaslab_unload_delay)
                    && now_ms > at_ms.saturating_add(self.tunables.metaslab_unload_delay_ms)
            })
            .map(Metaslab::id)
            .collect();
        for id in idle {
            self.unload(id)?;
        }
        Ok(())
    }

    fn preload(&self) -> Vec<MetaslabId> {
        if !self.tunables.metaslab_preload_enabled {
            return Vec::new();
        }
        let limit = self.tunables.metaslab_preload_limit;
        let groups = self.vdevs.values().flat_map(|vdev| [Which::Main, Which::Embedded].map(|which| (vdev, which)));
        groups.flat_map(|(vdev, which)| vdev.preload(which, limit)).collect()
    }

    /// What the last txg did that is done ([`Self::sync_done`]).
    #[must_use]
    pub const fn work(&self) -> &TxgWork {
        &self.work
    }

    /// Checks every metaslab, the logs, and against the second book where it is kept. Expensive; between txgs.
    ///
    /// # Errors
    /// The first thing that is not so, in words.
    pub fn verify(&self) -> Result<(), String> {
        self.logs.verify()?;
        for metaslab in self.metaslabs() {
            metaslab.verify().map_err(|error| error.to_string())?;
        }
        let memory: u64 = self.metaslabs().map(Metaslab::unflushed_memory_bytes).sum();
        if memory != self.logs.memory_bytes() {
            return Err(format!("unflushed changes take {memory} bytes, {} are accounted", self.logs.memory_bytes()));
        }
        Ok(())
    }
}
