//! Removing a top-level vdev that has blocks of datasets: how an evacuation begins and ends ([`crate::jobs::evacuation`] has the work between).
//!
//! # Theory
//!
//! **Life of a removal.**
//! ```text
//! check    between two txgs   OpenZFS's conditions: the feature, no stripes, one sector size, room, all devices there
//! stop     between two txgs   the allocator places nothing on the vdev any more
//! leave    some txgs          intent logs leave it; what was placed in txgs before is on disk
//! enter    txg B, beginning   MOS: mapping, births, counts, state; configuration: `removing`. The directory is written anew, so that what leads to the mapping
//!                             is elsewhere
//! copy     B and later        the job
//! end      txg E, beginning   MOS: space maps and tables of the vdev are freed; an indirect vdev is in its place, in configuration, topology and allocator
//! commit   E, end             labels and uberblock of the other devices
//! label    after E            its disks get labels of txg 0 and empty rings: they are free
//! ```
//! **A removal that is cancelled** frees the copies of all that is in use, and the objects; the vdev is used again. One whose reads fail, or that finds no
//! space, is cancelled by itself, as in OpenZFS.
//!
//! **Invariants.** 1. One vdev is evacuated at a time. 2. Its labels are overwritten after E is on disk, and never before. 3. Until E the vdev is whole: it takes
//! repairs, and every block that it had when it began or that was freed since. 4. What is refused before B has changed nothing.
//!
//! **Crash.** Before B the pool is the old one, and the vdev is used. Between B and E the next who opens it goes on. After E the old labels name a vdev that the
//! configuration does not have.
//!
//! **Readers of older txgs**: see `admin::remove`. Here they keep the end waiting, as long as they may read what was freed on the vdev before it was copied.

use std::sync::Arc;

use cenote_dmu::{Object, ObjectSpec, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::indirect::{IndirectMapping, IndirectMappingPhys, Removing};
use cenote_format::nvlist::NvList;
use cenote_format::zap::ZapValue;
use cenote_metaslab::{ClassKind, SpaceStore as _};
use cenote_taskq::{Rng, boxed};
use cenote_vdev::commit::LeafCommit;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_zio::ORDER;

use crate::jobs::evacuation::Running;
use crate::placed::REMOVAL_RUNS;
use crate::pool::Pool;
use crate::space::UNFLUSHED_TXGS;
use crate::sync::Syncer;
use crate::sync::obsolete::{COUNTS_ARE_PRECISE, OBSOLETE_MAP};
use crate::sync::removed::remapped;
use crate::sync::space::Space;
use crate::{Refusal, SpaError};

/// States of a removal (`dsl_scan_state_t`).
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;
/// Blocks of mapping, counts and births (`SPA_OLD_MAXBLOCKSIZE`).
const OBJECT_BLOCK_BYTES: u32 = 128 << 10;
/// Txgs in which intent logs leave the vdev.
const LEAVE_TXGS_MAX: u32 = 8;
/// Txgs after which all that was placed before is on disk (`TXG_CONCURRENT_STATES`).
const PLACED_TXGS: u32 = 3;

/// Fields of a vdev that is being evacuated.
const REMOVING: &str = "removing";
pub(super) const NON_ALLOCATING: &str = "non_allocating";
pub(super) const MAPPING: &str = "com.delphix:indirect_object";
const BIRTHS: &str = "com.delphix:indirect_births";
const PREVIOUS: &str = "com.delphix:prev_indirect_vdev";

/// A vdev on which nothing is placed. It is used again if its evacuation does not begin.
struct Emptied {
    space: Arc<Space>,
    vdev: VdevId,
}

impl Emptied {
    fn stop(space: &Arc<Space>, vdev: VdevId) -> Self {
        space.close(vdev);
        Self { space: space.clone(), vdev }
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        // The caller may go away before it hears that the evacuation has begun.
        if !self.space.removed.is_evacuated(self.vdev) {
            self.space.open(self.vdev);
        }
    }
}

fn invalid_config() -> SpaError {
    SpaError::refused(
        Refusal::Invalid,
        "invalid config; all top-level vdevs must have the same sector size and not be raidz.",
    )
}

impl Pool {
    /// Begins to evacuate a vdev. It goes on in the background, and is over when [`Self::removal`] says so. Returns the txg in which it began.
    pub(super) async fn evacuate(&self, vdev: VdevId, guid: Guid) -> Result<Txg, SpaError> {
        self.peek(move |syncer| syncer.check_evacuation(vdev, guid)).await??;
        let space = self.peek(|syncer| syncer.blocks.space.clone()).await?;
        let emptied = Emptied::stop(&space, vdev);
        if !self.leave_for_evacuation(vdev).await? {
            self.change(move |syncer| Box::pin(async move { syncer.free_idle_logs(vdev).await })).await?;
            if !self.leave_for_evacuation(vdev).await? {
                return Err(SpaError::refused(Refusal::Busy, "intent logs have not left it yet: try again"));
            }
        }
        let begin = self.change(move |syncer| Box::pin(async move { syncer.begin_evacuation(vdev, guid).await }));
        let txg = begin.await?;
        drop(emptied);
        self.wait_synced(txg).await?;
        Ok(txg)
    }

    /// Has intent logs leave a vdev on which nothing is placed. Whether nothing of it is theirs, or of a txg that is not on disk.
    async fn leave_for_evacuation(&self, vdev: VdevId) -> Result<bool, SpaError> {
        for count in 0..LEAVE_TXGS_MAX {
            let left = self.peek(move |syncer| {
                let uses = syncer.zil.logs.as_ref().is_some_and(|logs| logs.leave(vdev));
                !uses && !syncer.blocks.space.with(|allocator| allocator.is_allocating(vdev))
            });
            if left.await? && count >= PLACED_TXGS {
                return Ok(true);
            }
            self.sync().await?;
        }
        Ok(false)
    }

    /// The last removal of a vdev that had blocks of datasets, if there was one.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn removal(&self) -> Result<Option<Removing>, SpaError> {
        self.peek(|syncer| syncer.blocks.removing).await
    }

    /// Gives up the removal that is under way: the vdev is used again.
    ///
    /// # Errors
    /// There is none; or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn cancel_removal(&self) -> Result<(), SpaError> {
        self.change(|syncer| Box::pin(async move { syncer.cancel_evacuation().await })).await
    }
}

impl Syncer {
    /// Refuses what OpenZFS refuses (`spa_vdev_remove_top_check`).
    fn check_evacuation(&mut self, vdev: VdevId, guid: Guid) -> Result<(), SpaError> {
        let refuse = |why, what: &str| Err(SpaError::refused(why, what.to_owned()));
        let Some(top) = self.devices.root_vdev.top(vdev).filter(|top| top.guid == guid).cloned() else {
            return refuse(Refusal::NotThere, "no such device in pool");
        };
        if !self.mos.features.has("device_removal") {
            return refuse(
                Refusal::NeedsFeature,
                "pool must be upgraded to support device removal: feature@device_removal is not enabled",
            );
        }
        if top.removing {
            return refuse(Refusal::Busy, "removal for this vdev is already in progress.");
        }
        if self.jobs.evacuation.running.is_some() {
            return refuse(Refusal::Busy, "Pool busy; removal may already be in progress");
        }
        if self.mos.features.count("zpool_checkpoint") > 0 {
            return refuse(Refusal::Busy, "pool has a checkpoint; 'zpool checkpoint -d' discards it");
        }
        self.check_shapes(vdev, &top)?;
        self.check_space(vdev, &top)?;
        self.check_whole(&top)
    }

    /// No stripes, mirrors of devices alone, one sector size.
    fn check_shapes(&self, vdev: VdevId, top: &VdevConfig) -> Result<(), SpaError> {
        let concrete = self.devices.root_vdev.tops().filter(|(_, other)| other.class != AllocationClass::Log);
        for (_, other) in concrete {
            let is_mirror_of_leaves =
                || other.kind == VdevKind::Mirror && other.children.iter().all(|child| child.kind.is_leaf());
            if other.ashift != top.ashift || !(other.kind.is_leaf() || is_mirror_of_leaves()) {
                return Err(invalid_config());
            }
        }
        let mut others = self.devices.root_vdev.tops().filter(|(other, _)| *other != vdev);
        let is_normal = |of: &VdevConfig| of.class == AllocationClass::Normal && !of.non_allocating;
        if is_normal(top) && !others.any(|(_, other)| is_normal(other)) {
            return Err(invalid_config());
        }
        Ok(())
    }

    fn check_space(&self, vdev: VdevId, top: &VdevConfig) -> Result<(), SpaError> {
        let (available, needed) = match top.class {
            AllocationClass::Normal if top.non_allocating => return Ok(()),
            AllocationClass::Normal => {
                let free = self.blocks.space.with(|allocator| {
                    let (size, allocated, _) = allocator.class_figures(ClassKind::Normal);
                    size.saturating_sub(allocated)
                });
                let usable = self.usable();
                (free.saturating_sub(usable.slop_bytes), top.asize_bytes)
            }
            _ => self.blocks.space.with(|allocator| {
                let (size, allocated, _) = allocator.class_figures(ClassKind::Normal);
                (size.saturating_sub(allocated), allocator.evacuation(vdev).allocated_bytes)
            }),
        };
        match available < needed {
            true => Err(SpaError::refused(Refusal::NoSpace, "out of space")),
            false => Ok(()),
        }
    }

    /// All of its devices are there, and lack nothing.
    fn check_whole(&self, top: &VdevConfig) -> Result<(), SpaError> {
        for leaf in top.leaves() {
            let lacks = |missed: &std::collections::BTreeMap<Guid, cenote_vdev::dtl::Dtl>| {
                missed.get(&leaf.guid).is_some_and(|missed| !missed.is_empty())
            };
            let root_vdev = &self.devices.root_vdev;
            if lacks(&root_vdev.missed) || lacks(&root_vdev.unnoted) || !root_vdev.disks.contains_key(&leaf.guid) {
                let name = leaf.display_name();
                return Err(SpaError::refused(
                    Refusal::Busy,
                    format!("{name} does not have all of its data: it has to be back, and resilvered, first"),
                ));
            }
        }
        Ok(())
    }

    /// An object of numbers, empty.
    pub(super) fn number_object(&self, kind: DmuType, bonus: Vec<u8>) -> Result<Object, SpaError> {
        let spec = ObjectSpec::new(kind, OBJECT_BLOCK_BYTES);
        let spec = if bonus.is_empty() { spec } else { spec.with_bonus(DmuType::UINT64_METADATA, bonus) };
        Ok(self.mos.objset.create_object(self.txg, &spec)?)
    }

    /// Makes the beginning of an evacuation part of the open txg.
    async fn begin_evacuation(&mut self, vdev: VdevId, guid: Guid) -> Result<Txg, SpaError> {
        // Looked at once more: the vdev counts as closed by now.
        self.check_shapes(vdev, &self.devices.root_vdev.top(vdev).cloned().ok_or_else(invalid_config)?)?;
        let Some(top) = self.devices.root_vdev.top(vdev).filter(|top| top.guid == guid).cloned() else {
            return Err(SpaError::refused(Refusal::NotThere, "no such device in pool"));
        };
        self.check_whole(&top)?;
        self.check_no_checkpoint()?;
        let is_used = self.zil.logs.as_ref().is_some_and(|logs| logs.use_vdev(vdev));
        let is_allocating = self.blocks.space.with(|allocator| allocator.is_allocating(vdev));
        let is_open = self.blocks.space.with(|allocator| allocator.set_allocatable(vdev, false));
        if is_open {
            // The one who asked has gone away, and the vdev was used again.
            self.blocks.space.open(vdev);
        }
        if self.jobs.evacuation.running.is_some() || is_used || is_allocating || is_open {
            return Err(SpaError::refused(Refusal::Busy, "Pool busy; removal may already be in progress"));
        }
        let (txg, has_counts) = (self.txg, self.mos.features.has("obsolete_counts"));
        let mut phys = IndirectMappingPhys::default();
        self.mos.features.change("device_removal", 1);
        if has_counts {
            let table = self.mos.objset.object(top.top_zap).await?;
            Zap::put_entry(&table, txg, COUNTS_ARE_PRECISE, Some(&ZapValue::from_u64(1))).await?;
            phys.counts_object = Some(self.number_object(DmuType::UINT32_METADATA, Vec::new())?.id());
            // Of the table's entry, and of the counts.
            self.mos.features.change("obsolete_counts", 2);
        }
        let mapping = self.number_object(DmuType::UINT64_METADATA, phys.emit(ORDER))?.id();
        let births = self.number_object(DmuType::UINT64_METADATA, vec![0; 8])?.id();
        let to_copy_bytes = self.in_use_bytes(vdev).await?;
        let removing = Removing {
            state: REMOVAL_RUNS,
            removing_vdev: Some(vdev),
            prev_indirect_vdev: self.blocks.removing.and_then(|before| before.prev_indirect_vdev),
            start_time_s: self.time_s(),
            end_time_s: 0,
            to_copy_bytes,
            copied_bytes: 0,
        };
        self.blocks.removing = Some(removing);
        self.in_txg().save_removing().await?;
        self.rewrite_directory().await?;
        for (name, value) in [(REMOVING, 1), (NON_ALLOCATING, 1), (MAPPING, mapping.0), (BIRTHS, births.0)] {
            self.devices.root_vdev.set_field(guid, name, value)?;
        }
        self.devices.config_changed = true;
        let running = Running::new(vdev, mapping, births, phys);
        self.blocks.space.removed.mappings.put(vdev, Arc::new(IndirectMapping::default()));
        self.blocks.space.removed.set_evacuated(Some(running.evacuated()));
        self.blocks.space.with(|allocator| allocator.set_left_to_copy(vdev, Some(to_copy_bytes)));
        self.jobs.evacuation.begin(running, &removing);
        let path = top.path.as_deref().unwrap_or("-").to_owned();
        self.record_event("vdev remove started", &format!("{} vdev {vdev} {path}", self.name), None).await?;
        Ok(txg)
    }

    /// Bytes of a vdev that blocks are in.
    async fn in_use_bytes(&mut self, vdev: VdevId) -> Result<u64, SpaError> {
        let rooms = self.in_txg();
        let (mut bytes, mut at) = (0, 0);
        while let Some(range) = rooms.next_in_use(vdev, at).await? {
            bytes += range.end - range.start;
            at = range.end;
        }
        Ok(bytes)
    }

    /// Writes all of the directory anew, so that it is on vdevs that take blocks.
    async fn rewrite_directory(&self) -> Result<(), SpaError> {
        let directory = &self.mos.directory;
        let block_bytes = directory.block_bytes();
        for block in 0..=directory.last_block().0 {
            let bytes = directory.read(block * block_bytes, block_bytes as usize).await?;
            directory.write(self.txg, block * block_bytes, &bytes).await?;
        }
        Ok(())
    }

    /// Ends an evacuation whose copies are all on disk, or that cannot go on. At the beginning of a txg's sync, after the slices of jobs.
    pub(crate) async fn settle_evacuation(&mut self) -> Result<(), SpaError> {
        let Some(running) = &self.jobs.evacuation.running else { return Ok(()) };
        let vdev = running.vdev;
        if let Some(reason) = &running.failed {
            let name = self.devices.root_vdev.top(vdev).map(VdevConfig::display_name).unwrap_or_default();
            self.blocks.space.troubles.tell(format!("the removal of {name} is cancelled: {reason}"));
            return self.cancel_evacuation().await;
        }
        if !running.is_copied() || !self.blocks.copies.is_empty() {
            return Ok(());
        }
        let left = self.blocks.space.with(|allocator| allocator.evacuation(vdev));
        if left.kept_bytes > 0 || (left.deferred_bytes > 0 && !self.blocks.space.pins.txgs(false).is_empty()) {
            // A view of an older txg may read what was freed there.
            self.handle.sleep(crate::jobs::SLICE).await;
            return Ok(());
        }
        self.end_evacuation(vdev).await
    }

    /// Puts the indirect vdev in the place of one that was evacuated.
    async fn end_evacuation(&mut self, vdev: VdevId) -> Result<(), SpaError> {
        let txg = self.txg;
        let running = self.jobs.evacuation.running.take().expect("an evacuation that ends is under way");
        let top = self.devices.root_vdev.top(vdev).cloned().expect("a vdev that is evacuated is there");
        let mut removing = self.blocks.removing.expect("an evacuation has its state");
        assert!(!self.blocks.space.with(|allocator| allocator.is_allocating(vdev)), "nothing is placed on it");
        let labels = self.free_labels(vdev);
        self.free_evacuated_objects(vdev, &top).await?;
        let previous = removing.prev_indirect_vdev;
        let guid = Guid(Rng::new(self.handle.random_u64()).next_u64() | 1);
        self.devices.root_vdev.become_indirect(vdev, indirect(vdev, guid, &top, &running, previous))?;
        self.devices.config_changed = true;
        self.blocks.space.removed.set_evacuated(None);
        self.blocks.space.removed.add(vdev);
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&self.devices.root_vdev.config, [])?;
        drop(paused);
        self.blocks.unflushed_txgs.remove(&vdev);
        self.blocks.space.with(|allocator| allocator.remove_vdev(vdev));
        self.devices.found.leaves.retain(|guid, _| labels.iter().all(|leaf| leaf.guid != *guid));
        self.devices.freed_labels = labels;
        removing.prev_indirect_vdev = Some(vdev);
        self.jobs.scan.is_resilver_wanted = true;
        /// A vdev that is not open any more (`VDEV_STATE_CLOSED`).
        const CLOSED: u64 = 1;
        self.blocks.space.events.sysevent("vdev_remove_dev", Some((top.guid, CLOSED)));
        self.close_removal(removing, FINISHED).await?;
        assert!(txg == self.txg, "an evacuation ends in one txg");
        self.record_event("vdev remove completed", &format!("{} vdev {vdev}", self.name), None).await
    }

    async fn close_removal(&mut self, removing: Removing, state: u64) -> Result<(), SpaError> {
        self.blocks.removing = Some(Removing { state, end_time_s: self.time_s(), ..removing });
        self.in_txg().save_removing().await
    }

    /// Frees what the MOS has of an evacuated vdev: all but its own table, and its mapping.
    async fn free_evacuated_objects(&mut self, vdev: VdevId, top: &VdevConfig) -> Result<(), SpaError> {
        let txg = self.txg;
        let mut maps: Vec<ObjectId> = self.blocks.space.with(|allocator| allocator.maps_of(vdev).collect());
        let mut zaps = Vec::new();
        for leaf in top.leaves() {
            maps.push(leaf.dtl);
            zaps.push(leaf.leaf_zap);
        }
        let unflushed = self.blocks.unflushed_txgs.get(&vdev).copied();
        if unflushed.is_some() {
            let table = self.mos.objset.object(top.top_zap).await?;
            Zap::put_entry(&table, txg, UNFLUSHED_TXGS, None).await?;
        }
        let tables = [Some(top.metaslab_array), unflushed].into_iter().flatten();
        self.free_objects(txg, maps, zaps, tables).await
    }

    /// Gives up the evacuation: frees the copies, and has the vdev used again.
    ///
    /// # Errors
    /// There is none; or the MOS cannot be changed.
    pub(crate) async fn cancel_evacuation(&mut self) -> Result<(), SpaError> {
        let Some(running) = self.jobs.evacuation.running.take() else {
            return Err(SpaError::refused(Refusal::NotThere, "there are no removals in progress"));
        };
        let (txg, vdev) = (self.txg, running.vdev);
        let top = self.devices.root_vdev.top(vdev).cloned().expect("a vdev that is evacuated is there");
        let removing = self.blocks.removing.expect("an evacuation has its state");
        self.free_copies(&running).await?;
        self.blocks.space.removed.set_evacuated(None);
        self.blocks.space.removed.mappings.forget(vdev);
        self.blocks.space.removed.forget(vdev);
        self.mos.features.change("device_removal", -1);
        let table = self.mos.objset.object(top.top_zap).await?;
        let entries = Zap::open(table.clone()).await?;
        // It may have been so before, by a person's wish.
        let stays_passive = entries.find_u64("allocating").await? == Some(0);
        if entries.find_u64(COUNTS_ARE_PRECISE).await?.is_some() {
            Zap::put_entry(&table, txg, COUNTS_ARE_PRECISE, None).await?;
            self.mos.features.change("obsolete_counts", -1);
        }
        if let Some(map) = self.in_txg().obsolete_map(vdev).await? {
            let mut changes = self.mos.space_changes(txg);
            changes.free(map.object)?;
            self.in_txg().make_changes(changes).await?;
            Zap::put_entry(&table, txg, OBSOLETE_MAP, None).await?;
            self.mos.features.change("obsolete_counts", -1);
        }
        if running.phys.counts_object.is_some() {
            self.mos.features.change("obsolete_counts", -1);
        }
        let objects = [Some(running.mapping_object), Some(running.births_object), running.phys.counts_object];
        for object in objects.into_iter().flatten() {
            self.mos.objset.object(object).await?.free(txg);
        }
        for name in [REMOVING, MAPPING, BIRTHS] {
            self.devices.root_vdev.clear_field(top.guid, name)?;
        }
        if !stays_passive {
            self.devices.root_vdev.clear_field(top.guid, NON_ALLOCATING)?;
        }
        self.blocks.space.set_passive(vdev, stays_passive);
        self.devices.config_changed = true;
        self.blocks.space.open(vdev);
        self.close_removal(removing, CANCELED).await?;
        let path = top.path.as_deref().unwrap_or("-").to_owned();
        self.record_event("vdev remove canceled", &format!("{} vdev {vdev} {path}", self.name), None).await
    }

    /// Frees the copies of all that is in use of a vdev that is not removed after all.
    async fn free_copies(&mut self, running: &Running) -> Result<(), SpaError> {
        let txg = self.txg;
        let mapping = self.blocks.space.removed.mappings.mapping(running.vdev).map_err(SpaError::contradiction)?;
        let mapped_bytes = running.evacuated().mapped_bytes;
        let mut at = 0;
        while let Some(range) = self.in_txg().next_in_use(running.vdev, at).await? {
            let copied = range.start..range.end.min(mapped_bytes);
            if copied.is_empty() {
                break;
            }
            let copies = remapped(&mapping, &copied)
                .ok_or_else(|| SpaError::contradiction("a range that was copied has no entry in the mapping"))?;
            self.blocks.space.with(|allocator| copies.iter().try_for_each(|copy| allocator.free(txg, copy)))?;
            at = range.end;
        }
        Ok(())
    }

    /// Overwrites the labels of devices that are the pool's no more, when that is on disk.
    pub(crate) async fn free_devices(&mut self) {
        let labels: Vec<LeafCommit> = std::mem::take(&mut self.devices.freed_labels);
        for leaf in labels {
            let Some(config) = &leaf.config else { continue };
            if let Err(error) = cenote_vdev::commit::initialize(&leaf.disk, config).await {
                let path = leaf.disk.path();
                self.blocks.space.troubles.tell(format!(
                    "{path} is not part of the pool any more, but its labels could not be cleared: {error}"
                ));
            }
        }
    }
}

/// The configuration of an indirect vdev, as OpenZFS has it.
fn indirect(vdev: VdevId, guid: Guid, top: &VdevConfig, running: &Running, previous: Option<VdevId>) -> NvList {
    let mut list = NvList::new();
    list.push("type", "indirect");
    list.push("id", u64::from(vdev.0));
    list.push("guid", guid.0);
    list.push("whole_disk", 0_u64);
    list.push("metaslab_array", 0_u64);
    list.push("metaslab_shift", u64::from(top.metaslab_shift));
    list.push("ashift", u64::from(top.ashift));
    list.push("asize", top.asize_bytes);
    list.push("is_log", 0_u64);
    list.push(NON_ALLOCATING, 1_u64);
    list.push(MAPPING, running.mapping_object.0);
    list.push(BIRTHS, running.births_object.0);
    if let Some(previous) = previous {
        list.push(PREVIOUS, u64::from(previous.0));
    }
    list.push("create_txg", top.create_txg.0);
    list.push("com.delphix:vdev_zap_top", top.top_zap.0);
    list
}
