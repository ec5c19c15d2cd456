//! The pool's allocator: all vdevs, classes and logs, and a txg's way through them.
//!
//! One value, no clock, no thread, no I/O: calls in the same order give the same places. The caller holds the lock.

mod checkpoint;
mod freed;
mod hold;
mod load;
mod place;
mod sync;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_vdev::config::AllocationClass;

use crate::check::{CheckError, ExtentCheck};
use crate::class::{Class, ClassKind, Member, Share};
use crate::group::{AllocError, Extent, VdevSetup, VdevSpaces, Which};
use crate::kept::Kept;
use crate::metaslab::Replayed;
use crate::work::Gathered;
use crate::{
    FoundLog, Keep, LogSpace, Metaslab, MetaslabId, SizeRange, SpaceError, TXG_SIZE, Tunables, TxgWork, VdevMaps,
    Violation,
};
pub use checkpoint::KeptTail;

/// The pool's features that decide how space maps are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceFeatures {
    /// `com.delphix:spacemap_v2`: two-word entries.
    pub spacemap_v2: bool,
    /// `com.delphix:log_spacemap`, which needs the former. Without it each txg appends to each metaslab's own map.
    pub log_spacemap: bool,
}

/// A request for space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The allocation class.
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
}

/// The metaslabs that a txg flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// As many as keep the logs within their limits.
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

/// Space that keeps a vdev from being removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evacuation {
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes freed that may not be used yet.
    pub deferred_bytes: u64,
    /// Those of them that only wait for pinned txgs.
    pub kept_bytes: u64,
    /// A txg that is not on disk changes it.
    pub is_dirty: bool,
}

impl Evacuation {
    /// Nothing does.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.allocated_bytes == 0 && self.deferred_bytes == 0 && !self.is_dirty
    }
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
    /// The work since the last txg was done.
    gathered: Gathered,
    /// The work of the last txg.
    work: TxgWork,
    /// Space that became free.
    freed: freed::Freed,
    check: Option<ExtentCheck>,
}

/// A metaslab without anything in it, loaded, that waits for the end of a txg.
fn fresh(maps: &VdevMaps, index: u64) -> Result<Metaslab, SpaceError> {
    let id = MetaslabId { vdev: maps.vdev, index };
    let mut metaslab = Metaslab::new(id, maps.metaslab_range(index), maps.ashift);
    let loading = metaslab.begin_load()?;
    metaslab.end_load(loading)?;
    Ok(metaslab)
}

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SIZE as u64) as usize
}

impl Allocator {
    /// An allocator without vdevs. `check`: keep an [`ExtentCheck`] too.
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
            freed: freed::Freed::default(),
            check: check.then(ExtentCheck::new),
        }
    }

    /// Adds a vdev that has never been used. In a pool that is being created its space can be used at once, else after the
    /// next txg.
    pub fn add_vdev(&mut self, setup: VdevSetup, is_creation: bool) -> Result<(), SpaceError> {
        let maps = &setup.maps;
        let metaslabs = (0..maps.metaslab_count())
            .map(|index| {
                let mut metaslab = fresh(maps, index)?;
                if is_creation {
                    metaslab.sync_done(Txg(0), &Keep::USUAL, None)?;
                }
                Ok(metaslab)
            })
            .collect::<Result<Vec<_>, SpaceError>>()?;
        self.join(setup, metaslabs)
    }

    /// A vdev has got so many bytes: the metaslabs that it has room for now come behind the others, and can be used after the next txg.
    ///
    /// # Errors
    /// There is no such vdev.
    pub fn grow_vdev(&mut self, id: VdevId, asize_bytes: u64) -> Result<(), SpaceError> {
        let none = SpaceError::NoMetaslab(MetaslabId { vdev: id, index: 0 });
        let vdev = self.vdevs.get_mut(&id).ok_or(none)?;
        assert!(asize_bytes >= vdev.setup.maps.asize_bytes, "a vdev does not shrink");
        vdev.setup.maps.asize_bytes = asize_bytes;
        let maps = vdev.setup.maps.clone();
        for index in vdev.metaslabs.len() as u64..maps.metaslab_count() {
            vdev.push(fresh(&maps, index)?);
            vdev.weigh(index, &self.tunables)?;
        }
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind));
        Ok(())
    }

    /// Adds a vdev of a pool that is being opened, with its metaslabs. Then come the logs ([`crate::open()`]), then
    /// [`Self::opened`].
    pub(crate) fn open_vdev(
        &mut self,
        setup: VdevSetup,
        metaslabs: Vec<Metaslab>,
        kept: Kept,
    ) -> Result<(), SpaceError> {
        let id = setup.maps.vdev;
        self.join(setup, metaslabs)?;
        self.vdevs.get_mut(&id).expect("a vdev that has joined is there").kept = kept;
        Ok(())
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
        let before = self.vdevs.insert(id, vdev);
        assert!(before.is_none(), "a vdev is added once");
        for (kind, which) in members {
            if let Some(class) = self.classes.get_mut(&kind) {
                class.join(Member { vdev: id, which });
            }
            self.balance(kind);
        }
        Ok(())
    }

    /// Sets the unflushed changes of a metaslab, replayed from the logs at import.
    pub(crate) fn replayed(&mut self, replayed: Replayed) -> Result<(), SpaceError> {
        let vdev = self.vdevs.get_mut(&replayed.id.vdev).ok_or(SpaceError::NoMetaslab(replayed.id))?;
        vdev.metaslab(replayed.id.index)?.set_replayed(replayed);
        Ok(())
    }

    /// All vdevs and logs are there: weighs and balances.
    pub(crate) fn opened(&mut self, found: &[FoundLog]) -> Result<(), SpaceError> {
        let metaslabs = || self.vdevs.values().flat_map(|vdev| &vdev.metaslabs);
        let memory = metaslabs().map(Metaslab::unflushed_memory_bytes).sum();
        let entries = metaslabs().map(|metaslab| (metaslab.id(), metaslab.unflushed_txg(), metaslab.is_unflushed()));
        self.logs = LogSpace::open_pool(found, entries, memory, &self.tunables);
        for vdev in self.vdevs.values_mut() {
            for index in 0..vdev.metaslabs.len() as u64 {
                vdev.weigh(index, &self.tunables)?;
            }
        }
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind));
        Ok(())
    }

    /// Adds the extents that were in use when the pool was opened to the `ExtentCheck`.
    pub fn check_opened(
        &mut self,
        vdev: VdevId,
        mut allocated: impl Iterator<Item = Range<u64>>,
    ) -> Result<(), CheckError> {
        let Some(check) = &mut self.check else { return Ok(()) };
        allocated.try_for_each(|range| check.allocated(vdev, range))
    }

    /// Takes a vdev out of use, or back in: faulted, or leaving. Whether it was in use.
    pub fn set_allocatable(&mut self, vdev: VdevId, is_allocatable: bool) -> bool {
        let vdev = self.vdevs.get_mut(&vdev);
        vdev.is_some_and(|vdev| std::mem::replace(&mut vdev.is_allocatable, is_allocatable))
    }

    /// Has nothing be placed on a vdev because a person wants so (`allocating=off`), or ends that. What is there stays, and can be freed. It is
    /// no part of its class's figures meanwhile. Whether it was so before.
    pub fn set_passive(&mut self, vdev: VdevId, is_passive: bool) -> bool {
        let vdev = self.vdevs.get_mut(&vdev);
        vdev.is_some_and(|vdev| std::mem::replace(&mut vdev.is_passive, is_passive))
    }

    /// Says how many bytes of a vdev that is being evacuated are still to be copied: so much of the other vdevs' free space is spoken for.
    pub fn set_left_to_copy(&mut self, vdev: VdevId, bytes: Option<u64>) {
        if let Some(vdev) = self.vdevs.get_mut(&vdev) {
            debug_assert!(bytes.is_none() || !vdev.is_allocatable, "nothing is placed on a vdev that is evacuated");
            vdev.left_to_copy_bytes = bytes;
        }
    }

    /// Whether some allocation on a vdev is of a txg that is not on disk.
    #[must_use]
    pub fn is_allocating(&self, vdev: VdevId) -> bool {
        let metaslabs = self.vdevs.get(&vdev).into_iter().flat_map(|vdev| &vdev.metaslabs);
        metaslabs.into_iter().any(Metaslab::is_allocating)
    }

    /// The first range from `from` on that a vdev's blocks are in, of one metaslab: as they are when the frees of the txg that syncs are done.
    ///
    /// # Errors
    /// A metaslab has to be loaded first.
    pub fn next_in_use(&self, vdev: VdevId, from: u64) -> Result<Option<Range<u64>>, AllocError> {
        self.next_by(vdev, from, Metaslab::next_in_use)
    }

    /// The first range from an offset on that the last txg on disk uses, within one metaslab. While no txg is being synced: then what later txgs have
    /// allocated is known.
    ///
    /// # Errors
    /// A metaslab has to be loaded first.
    pub fn next_on_disk(&self, vdev: VdevId, from: u64) -> Result<Option<Range<u64>>, AllocError> {
        self.next_by(vdev, from, Metaslab::next_on_disk)
    }

    fn next_by(
        &self,
        vdev: VdevId,
        from: u64,
        next: impl Fn(&Metaslab, u64) -> Option<Range<u64>>,
    ) -> Result<Option<Range<u64>>, AllocError> {
        let metaslabs = self.vdevs.get(&vdev).into_iter().flat_map(|vdev| &vdev.metaslabs);
        for metaslab in metaslabs.filter(|metaslab| metaslab.range().end > from) {
            // One that never had a block has no map, and needs no load.
            if metaslab.map().is_none() && metaslab.allocated_bytes() == 0 {
                continue;
            }
            if !metaslab.is_loaded() {
                return Err(AllocError::NeedsLoad(metaslab.id()));
            }
            if let Some(range) = next(metaslab, from) {
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    /// The first range from `from` on that a block may be in that anybody can read, of one metaslab: all that cannot be allocated now. `is_given_up`: so of
    /// metaslabs that are not loaded, as a whole.
    ///
    /// # Errors
    /// A metaslab has to be loaded first.
    pub fn next_taken(&self, vdev: VdevId, from: u64, is_given_up: bool) -> Result<Option<Range<u64>>, AllocError> {
        let metaslabs = self.vdevs.get(&vdev).into_iter().flat_map(|vdev| &vdev.metaslabs);
        for metaslab in metaslabs.filter(|metaslab| metaslab.range().end > from) {
            if !metaslab.is_loaded() {
                // One that never had a block has no map, and needs no load.
                if metaslab.map().is_none() && metaslab.allocated_bytes() == 0 {
                    continue;
                }
                if !is_given_up {
                    return Err(AllocError::NeedsLoad(metaslab.id()));
                }
            }
            if let Some(range) = metaslab.next_taken(from) {
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    /// Whether a vdev has nothing but intent logs.
    #[must_use]
    pub fn is_log_device(&self, vdev: VdevId) -> bool {
        self.vdevs.get(&vdev).is_some_and(|vdev| vdev.setup.maps.class == AllocationClass::Log)
    }

    /// Whether there is such a vdev.
    #[must_use]
    pub fn has_log_devices(&self) -> bool {
        self.vdevs.keys().any(|vdev| self.is_log_device(*vdev))
    }

    /// The space of a vdev that is in use, as of the last txg that was synced.
    #[must_use]
    pub fn evacuation(&self, id: VdevId) -> Evacuation {
        let metaslabs = self.vdevs.get(&id).into_iter().flat_map(|vdev| &vdev.metaslabs);
        let is_dirty = self.dirty.iter().flatten().any(|metaslab| metaslab.vdev == id);
        metaslabs.fold(Evacuation { is_dirty, ..Evacuation::default() }, |mut sum, metaslab| {
            sum.allocated_bytes += metaslab.allocated_bytes();
            sum.deferred_bytes += metaslab.deferred_bytes();
            sum.kept_bytes += metaslab.kept_bytes();
            sum
        })
    }

    /// The space maps of a vdev's metaslabs.
    pub fn maps_of(&self, id: VdevId) -> impl Iterator<Item = ObjectId> {
        let metaslabs = self.vdevs.get(&id).into_iter().flat_map(|vdev| &vdev.metaslabs);
        metaslabs.filter_map(|metaslab| metaslab.map()).map(|map| map.object)
    }

    /// Forgets a vdev that is removed. Its allocations are dropped.
    pub fn remove_vdev(&mut self, id: VdevId) {
        let Some(vdev) = self.vdevs.remove(&id) else { return };
        if let Some(check) = &mut self.check {
            check.forget(id);
        }
        for metaslab in &vdev.metaslabs {
            self.logs.forget(metaslab.id(), metaslab.unflushed_txg());
            self.logs.account_memory(metaslab.unflushed_memory_bytes(), 0);
        }
        self.classes.values_mut().for_each(|class| class.leave(id));
        self.dirty.iter_mut().for_each(|dirty| dirty.retain(|metaslab| metaslab.vdev != id));
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind));
    }

    /// A metaslab.
    #[must_use]
    pub fn metaslab(&self, id: MetaslabId) -> Option<&Metaslab> {
        self.vdevs.get(&id.vdev)?.metaslabs.get(usize::try_from(id.index).ok()?)
    }

    /// Whether a metaslab of a main vdev is set aside for intent logs.
    #[must_use]
    pub fn is_for_logs(&self, id: MetaslabId) -> bool {
        self.vdevs.get(&id.vdev).is_some_and(|vdev| vdev.embedded == Some(id.index))
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

    /// The numbers; changes take effect at once, limits that depend on them with the next txg.
    pub fn tunables(&mut self) -> &mut Tunables {
        &mut self.tunables
    }

    /// Size, bytes allocated (as of what was synced) and bytes deferred of a class. How much of what is free is *slop*, and
    /// so kept back, is the caller's to say.
    #[must_use]
    pub fn class_figures(&self, kind: ClassKind) -> (u64, u64, u64) {
        let Some(class) = self.classes.get(&kind) else { return (0, 0, 0) };
        class.ring.iter().fold((0, 0, 0), |sum, member| {
            let (size, allocated, deferred) = sum;
            // Of a vdev that is evacuated nothing can be used, and what is to be copied needs space elsewhere.
            if let Some(left) = self.vdevs.get(&member.vdev).and_then(|vdev| vdev.left_to_copy_bytes) {
                let left = if member.which == Which::Main { left } else { 0 };
                return (size, allocated + left, deferred);
            }
            if self.vdevs.get(&member.vdev).is_some_and(|vdev| vdev.is_passive) {
                return sum;
            }
            self.members_metaslabs(*member).fold(sum, |(size, allocated, deferred), metaslab| {
                let (all, used, waiting) =
                    (metaslab.size_bytes(), metaslab.allocated_bytes(), metaslab.deferred_bytes());
                (size + all, allocated + used, deferred + waiting)
            })
        })
    }

    /// Bytes freed that only wait for pinned txgs, and all bytes that are not allocated, these among them.
    #[must_use]
    pub fn kept_figures(&self) -> (u64, u64) {
        self.metaslabs().fold((0, 0), |(kept, free), metaslab| {
            let unallocated = metaslab.size_bytes().saturating_sub(metaslab.allocated_bytes());
            (kept + metaslab.kept_bytes(), free + unallocated)
        })
    }

    fn members_metaslabs(&self, member: Member) -> impl Iterator<Item = &Metaslab> {
        let vdev = self.vdevs.get(&member.vdev);
        let embedded = vdev.and_then(|vdev| vdev.embedded);
        let all = vdev.into_iter().flat_map(|vdev| &vdev.metaslabs);
        all.filter(move |metaslab| (embedded == Some(metaslab.id().index)) == (member.which == Which::Embedded))
    }

    fn balance(&mut self, kind: ClassKind) {
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
        let aliquots = Class::balance(&shares, &self.tunables);
        assert_eq!(aliquots.len(), ring.len(), "each group of a class has its turn");
        for ((member, aliquot), strained) in ring.iter().zip(aliquots).zip(strained) {
            let Some(vdev) = self.vdevs.get_mut(&member.vdev) else { continue };
            let group = vdev.group_mut(member.which);
            group.aliquot = aliquot;
            group.is_shunned = strained && !all_strained;
        }
    }

    /// Whether a txg has anything to enter into space maps and logs.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        !self.dirty[slot(txg)].is_empty()
    }

    /// Whether the `ExtentCheck` is kept.
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.check.is_some()
    }

    /// Checks every metaslab and the logs, and compares them with the `ExtentCheck` where it is kept. Expensive; between txgs.
    ///
    /// # Errors
    /// The first violation.
    pub fn verify(&self) -> Result<(), Violation> {
        self.logs.verify()?;
        for metaslab in self.metaslabs() {
            metaslab.verify()?;
        }
        let memory_bytes: u64 = self.metaslabs().map(Metaslab::unflushed_memory_bytes).sum();
        let accounted_bytes = self.logs.memory_bytes();
        if memory_bytes != accounted_bytes {
            return Err(Violation::Memory { memory_bytes, accounted_bytes });
        }
        Ok(())
    }
}
