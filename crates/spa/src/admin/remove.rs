//! Removing log devices, hot spares and cache devices from a pool, whether or not it is in use.
//!
//! # Theory
//!
//! **Need.** A log device wears out, or is wanted elsewhere. It is removed while the pool is written. No client loses an acknowledged
//! write, and none waits for longer than a txg takes.
//!
//! **Life of a removal** of a log device.
//! ```text
//! stop     between two txgs   the allocator places nothing on it any more
//! leave    each txg           logs with blocks on it are broken off: clients wait for a txg instead. The sync of the txg that has their
//!                             records frees their blocks, and begins new chains elsewhere
//! wait     some txgs          until no byte of it is allocated, nor freed so lately that a crash might want it back
//! enter    txg T, beginning   MOS: space maps, tables and dirty time logs of the vdev are freed; its place in the configuration is a hole.
//!                             The topology and the allocator lose it
//! commit   txg T, end         labels and uberblock of the pool's other devices
//! label    after T            its disks get labels of txg 0 and empty rings, by which nothing is found: they are free for other uses
//! ```
//! *Logs that nobody has in use.* Where bytes stay allocated, all heads are looked at. A crash may have left a chain whose first block nobody
//! wrote: it is freed. A log that waits to be replayed keeps the device in the pool: the removal is refused, and the message names the
//! dataset. Anything that is then still allocated belongs to no log; blocks of nothing else are on log devices. So it is lost space, and goes
//! with the device: a log device that failed may have it, and is removed nevertheless.
//!
//! **Invariants.**
//! 1. A device is entered as removed only when no log has a block on it, of those in use and of those that are only on disk, also where
//!    somebody has the dataset open. In the txg's beginning that is looked at once more.
//! 2. The labels of its disks are overwritten after T is on disk, and never before.
//! 3. The place of a vdev is not given to another: new vdevs come after all places (`vdev::tree::topology`, invariant 4).
//! 4. Where a removal is refused or fails before T the device is used as before.
//!
//! **Crash.** Until T's uberblock is on one disk the pool is the old one, with a log device on which nothing is. After it the device is not
//! the pool's: its old labels name the pool, at a txg before T, and a vdev that the configuration of T does not have.
//!
//! **Readers of earlier txgs** ([`View`](crate::View)) keep what was freed since from being used again, on the log device too. The removal
//! waits for those that are there, but not for long: after that it is refused as busy. Under load every view keeps some log block, also
//! one that lives for a moment, and the caller's own: who asks for a removal lets go of its views first.
//!
//! **Spares and cache devices** hold nothing that the pool needs: their entries in the MOS go. A spare may be other pools' spare too, so the
//! labels stay.
//!
//! **Rejected.** *Rewriting the logs' blocks elsewhere*: a txg has their records sooner. *Taking the trailing hole away*: OpenZFS keeps it too,
//! and ids that come back would mean two things in log space maps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::zap::int_key_name;
use cenote_format::zil::ZilHeader;
use cenote_metaslab::SpaceStore as _;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{boxed, join_all};
use cenote_vdev::commit::{LeafCommit, initialize};
use cenote_vdev::config::{AllocationClass, VdevConfig};
use cenote_zil::Chain;

use crate::open::spares_l2cache::{AuxKind, remove_listed};
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::sync::space::Space;
use crate::{Refusal, SpaError};

/// How long a removal waits for readers of earlier txgs, which may take hours.
const READERS_PATIENCE: Duration = Duration::from_secs(10);
/// Txgs in which a log device gets empty: that of the newest records, one more for the blocks, and those until what is freed may be used.
const LEAVE_TXGS_MAX: u32 = 8;

/// The result of a look at what is to be removed.
enum Found {
    /// A spare or a cache device.
    Auxiliary(AuxKind),
    /// A log device.
    Log(VdevId),
    /// A vdev with blocks of datasets.
    Top(VdevId),
}

/// A log device on which nothing is placed. It is used again where it stays.
pub(crate) struct Stopped {
    space: Arc<Space>,
    vdev: VdevId,
}

impl Stopped {
    /// None where it is being removed already.
    pub(crate) fn begin(space: &Arc<Space>, vdev: VdevId) -> Option<Self> {
        space.log_device_leaves(vdev).then(|| Self { space: space.clone(), vdev })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.space.log_device_stays(self.vdev);
    }
}

impl Pool {
    /// Removes a log device, a hot spare or a cache device: it is not part of the pool on disk when this is done, from the txg on that comes
    /// back. Of a vdev with blocks of datasets the evacuation begins in that txg, and goes on in the background ([`Self::removal`]).
    ///
    /// # Errors
    /// There is no such device, what it has cannot be elsewhere, a spare is in use, a log on it waits to be replayed, or somebody reads the pool as of
    /// a txg since which blocks on it were freed: the pool is as it was. The MOS cannot be changed. The pool is closed or suspended.
    #[boxed]
    pub async fn remove_vdev(&self, guid: Guid) -> Result<Txg, SpaError> {
        match self.look(move |syncer| Box::pin(async move { syncer.find_removable(guid).await })).await? {
            Found::Auxiliary(kind) => {
                if kind == AuxKind::Cache {
                    self.leave_cache(guid).await;
                }
                self.change(move |syncer| Box::pin(async move { syncer.enter_unlisted(kind, guid).await })).await
            }
            Found::Log(vdev) => self.remove_log_device(vdev, guid).await,
            Found::Top(vdev) => self.evacuate(vdev, guid).await,
        }
    }

    async fn remove_log_device(&self, vdev: VdevId, guid: Guid) -> Result<Txg, SpaError> {
        let space = self.peek(|syncer| syncer.blocks.space.clone()).await?;
        let Some(stopped) = Stopped::begin(&space, vdev) else {
            return Err(SpaError::refused(Refusal::Busy, "it is being removed already, or taken back into use"));
        };
        let mut is_lost = false;
        if !self.leave_readers_too(vdev).await? {
            self.change(move |syncer| Box::pin(async move { syncer.free_idle_logs(vdev).await })).await?;
            if !self.leave_readers_too(vdev).await? {
                self.peek(move |syncer| syncer.check_lost(vdev)).await??;
                is_lost = true;
            }
        }
        if mutant::is(Mutant::LogDeviceClearedEarly) {
            let leaves = self.peek(move |syncer| syncer.free_labels(vdev)).await?;
            self.clear(&leaves).await?;
        }
        let removal =
            self.change(move |syncer| Box::pin(async move { syncer.enter_removal(vdev, guid, is_lost).await }));
        let (txg, leaves) = removal.await?;
        // The device is removed: dropping this must not put it back into use.
        drop(stopped);
        self.wait_synced(txg).await?;
        self.clear(&leaves).await?;
        Ok(txg)
    }

    /// Overwrites labels. A disk that does not take it has labels that name no vdev of the pool.
    pub(crate) async fn clear(&self, leaves: &[LeafCommit]) -> Result<(), SpaError> {
        let labelled = leaves.iter().map(async |leaf| match &leaf.config {
            Some(config) => initialize(&leaf.disk, config).await.map_err(|error| (leaf.disk.path().to_owned(), error)),
            None => Ok(()),
        });
        for (path, error) in join_all(labelled).await.into_iter().filter_map(Result::err) {
            let what = format!("{path} is not part of the pool any more, but its labels could not be cleared: {error}");
            self.peek(move |syncer| syncer.blocks.space.troubles.tell(what)).await?;
        }
        Ok(())
    }

    /// As [`Self::leave`], and where readers keep what was freed on the vdev, those that are there now are waited for. Who comes later
    /// keeps nothing that was freed before.
    async fn leave_readers_too(&self, vdev: VdevId) -> Result<bool, SpaError> {
        if self.leave(vdev).await? {
            return Ok(true);
        }
        let left = self.peek(move |syncer| syncer.blocks.space.with(|allocator| allocator.evacuation(vdev))).await?;
        if left.kept_bytes == 0 {
            return Ok(false);
        }
        let pins = self.peek(|syncer| syncer.blocks.space.pins.clone()).await?;
        match self.handle().timeout(READERS_PATIENCE, pins.those_gone()).await {
            Some(()) => self.leave(vdev).await,
            None => Ok(false),
        }
    }

    /// Has the logs in use leave a vdev. Whether nothing of it is allocated then.
    pub(crate) async fn leave(&self, vdev: VdevId) -> Result<bool, SpaError> {
        if mutant::is(Mutant::LogDeviceNotLeft) {
            return Ok(true);
        }
        for _ in 0..LEAVE_TXGS_MAX {
            let left = self.peek(move |syncer| {
                let uses = syncer.zil.logs.as_ref().is_some_and(|logs| logs.leave(vdev));
                !uses && syncer.blocks.space.with(|allocator| allocator.evacuation(vdev)).is_done()
            });
            if left.await? {
                return Ok(true);
            }
            self.sync().await?;
        }
        Ok(false)
    }
}

impl Syncer {
    /// Finds a device that can be removed; changes nothing.
    async fn find_removable(&mut self, guid: Guid) -> Result<Found, SpaError> {
        self.check_no_checkpoint()?;
        if let Some((vdev, top)) = self.devices.root_vdev.tops().find(|(_, top)| top.guid == guid) {
            if top.class == AllocationClass::Log {
                return Ok(Found::Log(vdev));
            }
            return Ok(Found::Top(vdev));
        }
        let is_child = self.devices.root_vdev.config.leaves().into_iter().any(|leaf| leaf.guid == guid);
        let is_inner = {
            let mut found = false;
            self.devices.root_vdev.config.walk(&mut |vdev| found |= vdev.guid == guid);
            found
        };
        for kind in [AuxKind::Spare, AuxKind::Cache] {
            let listed = self.listed(kind).await?;
            let Some(device) = listed.iter().find(|device| device.u64("guid") == Some(guid.0)) else { continue };
            if kind == AuxKind::Spare && is_child {
                return Err(SpaError::refused(Refusal::Busy, "the spare is in use"));
            }
            if device.str("type") == Some("dspare") {
                return Err(SpaError::refused(Refusal::Invalid, "dRAID spares cannot be removed"));
            }
            return Ok(Found::Auxiliary(kind));
        }
        match is_inner {
            true => Err(SpaError::refused(Refusal::Invalid, "it is a part of a top-level vdev: name the whole vdev")),
            false => Err(SpaError::refused(Refusal::NotThere, "no such device in pool")),
        }
    }

    /// The entries of the MOS's list of such devices.
    pub(crate) async fn listed(&self, kind: AuxKind) -> Result<Vec<cenote_format::nvlist::NvList>, SpaError> {
        Ok(crate::open::spares_l2cache::listed(&self.mos.objset, &self.mos.directory, kind).await?)
    }

    /// Takes a spare or a cache device out of its list.
    async fn enter_unlisted(&mut self, kind: AuxKind, guid: Guid) -> Result<Txg, SpaError> {
        let txg = self.txg;
        let removed = remove_listed(&self.mos.objset, &self.mos.directory, txg, kind, guid).await;
        let Some(removed) = removed? else {
            return Err(SpaError::refused(Refusal::NotThere, "no such device in pool"));
        };
        self.devices.found.auxiliaries = {
            let mut found = (*self.devices.found.auxiliaries).clone();
            found.remove(&guid);
            found.into()
        };
        let path = removed.str("path").unwrap_or("-").to_owned();
        self.record_event("vdev remove", &format!("{} vdev ({}) {path}", self.name, kind.name()), None).await?;
        Ok(txg)
    }

    /// Frees the logs on a vdev that nobody has in use.
    pub(super) async fn free_idle_logs(&mut self, vdev: VdevId) -> Result<(), SpaError> {
        let dsl = self.dsl().clone();
        let root = dsl.root_dir().await?;
        let mut freed = Vec::new();
        for dir in dsl.tree(root, true).await? {
            let head = dsl.head(&dir).await?;
            // The blocks of a chain that a log in use has begun are known; one that a crash has left may stand in the header of a dataset that
            // somebody has open, and even replays.
            let owns = |dataset| self.zil.logs.as_ref().is_some_and(|logs| logs.own_chain(dataset));
            let Some(head) = head.filter(|head| !owns(head.object)) else { continue };
            let Some((objset, header)) = self.log_of(&head).await? else { continue };
            let mut chain = Chain::new(objset.dmu().zio(), header);
            let (mut is_there, mut has_records) = (on(&header.log, vdev), false);
            while let Some(link) = chain.next().await {
                is_there |= on(&link.pointer, vdev);
                has_records |= link.content.is_some();
            }
            if !is_there {
                continue;
            }
            if header.claim_txg != Txg(0) || has_records {
                return Err(SpaError::refused(
                    Refusal::Busy,
                    format!(
                        "the intent log of '{}' is on it and was not replayed yet: mount or serve that first",
                        dir.name
                    ),
                ));
            }
            freed.push((dir.name, head.object, objset, header));
        }
        let txg = self.txg;
        // All are known before the first is changed.
        for (name, dataset, objset, header) in freed {
            self.in_txg().free_log(txg, &objset, &header).await?;
            match self.mos.dsl.open_head(dataset) {
                Some(open) => open.objset.change_zil_header(txg, |header| *header = ZilHeader::default()),
                None => self.clear_log_header(&name).await?,
            }
            self.mos.forget_xattr_records(txg, dataset).await?;
        }
        Ok(())
    }

    /// Checks the space that is still allocated on a log device after its idle logs were freed: it is lost, unless a reader keeps it.
    fn check_lost(&mut self, vdev: VdevId) -> Result<(), SpaError> {
        let left = self.blocks.space.with(|allocator| allocator.evacuation(vdev));
        if left.kept_bytes > 0 {
            return Err(SpaError::refused(
                Refusal::Busy,
                "somebody reads the pool as of an earlier txg (a send, a copy or a verification): try again when that is done",
            ));
        }
        if left.deferred_bytes > 0 || left.is_dirty || self.zil.logs.as_ref().is_some_and(|logs| logs.use_vdev(vdev)) {
            return Err(SpaError::refused(Refusal::Busy, "intent logs have not left it yet: try again"));
        }
        if left.allocated_bytes > 0 {
            let bytes = left.allocated_bytes;
            self.blocks
                .space
                .troubles
                .tell(format!("{bytes} bytes of a log device that is removed belonged to no intent log"));
        }
        Ok(())
    }

    /// Makes the removal part of the open txg. Its leaves come back, with the labels that they get when it is on disk.
    /// `is_lost`: what is allocated on it belongs to no log.
    pub(super) async fn enter_removal(
        &mut self,
        vdev: VdevId,
        guid: Guid,
        is_lost: bool,
    ) -> Result<(Txg, Vec<LeafCommit>), SpaError> {
        let txg = self.txg;
        let Some(top) = self.devices.root_vdev.top(vdev).filter(|top| top.guid == guid).cloned() else {
            return Err(SpaError::refused(Refusal::NotThere, "no such device in pool"));
        };
        // Looked at once more, now that nothing comes in between.
        let is_used = self.zil.logs.as_ref().is_some_and(|logs| logs.use_vdev(vdev));
        let is_empty = is_lost || self.blocks.space.with(|allocator| allocator.evacuation(vdev)).is_done();
        if (is_used || !is_empty) && !mutant::is(Mutant::LogDeviceNotLeft) {
            return Err(SpaError::refused(Refusal::Busy, "intent logs have not left it yet: try again"));
        }
        let labels = self.free_labels(vdev);
        self.free_vdev_objects(txg, vdev, &top).await?;
        self.devices.root_vdev.remove(vdev)?;
        self.devices.config_changed = true;
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&self.devices.root_vdev.config, [])?;
        drop(paused);
        self.blocks.unflushed_txgs.remove(&vdev);
        self.blocks.space.log_device_removed(vdev);
        self.devices.found.leaves.retain(|guid, _| labels.iter().all(|leaf| leaf.guid != *guid));
        self.blocks.space.events.of_device("vdev_remove_dev", guid);
        let path = top.path.as_deref().unwrap_or("-").to_owned();
        self.record_event("vdev remove", &format!("{} vdev (log) {path}", self.name), None).await?;
        Ok((txg, labels))
    }

    /// The leaves of a vdev, with labels of no txg, as those of free disks are.
    pub(super) fn free_labels(&mut self, vdev: VdevId) -> Vec<LeafCommit> {
        let top = self.devices.root_vdev.top(vdev);
        let leaves: BTreeSet<Guid> = top.into_iter().flat_map(VdevConfig::leaves).map(|leaf| leaf.guid).collect();
        let mut labels = self.leaf_commits_of(&self.devices.root_vdev, Txg(0), true);
        labels.retain(|leaf| leaves.contains(&leaf.guid));
        labels
    }

    /// Frees what the MOS has of a vdev.
    async fn free_vdev_objects(&mut self, txg: Txg, vdev: VdevId, top: &VdevConfig) -> Result<(), SpaError> {
        let mut maps: Vec<ObjectId> = self.blocks.space.with(|allocator| allocator.maps_of(vdev).collect());
        let mut zaps = vec![top.top_zap];
        for leaf in top.leaves() {
            maps.push(leaf.dtl);
            zaps.push(leaf.leaf_zap);
        }
        let flushed = self.blocks.unflushed_txgs.get(&vdev).copied();
        let tables = [Some(top.metaslab_array), flushed].into_iter().flatten();
        self.free_objects(txg, maps, zaps, tables).await
    }

    /// Frees space maps, vdevs' tables, and other tables, of those that there are.
    pub(crate) async fn free_objects(
        &mut self,
        txg: Txg,
        maps: Vec<ObjectId>,
        zaps: Vec<ObjectId>,
        tables: impl IntoIterator<Item = ObjectId>,
    ) -> Result<(), SpaError> {
        let all = self.vdev_zaps().await?;
        let mut objects = Vec::new();
        // All can be opened before the first is freed: a change that fails half-way fails the pool.
        for object in zaps.iter().copied().chain(tables).filter(|object| *object != ObjectId(0)) {
            objects.push(self.mos.objset.object(object).await?);
        }
        let mut changes = self.mos.space_changes(txg);
        for map in maps.into_iter().filter(|map| *map != ObjectId(0)) {
            changes.free(map)?;
        }
        self.in_txg().make_changes(changes).await?;
        for zap in zaps.iter().filter(|zap| **zap != ObjectId(0)) {
            if let Some(all) = &all {
                Zap::put_entry(all, txg, &int_key_name(zap.0), None).await?;
            }
        }
        for object in objects {
            object.free(txg);
        }
        Ok(())
    }

    /// The list of all vdevs' tables; none in a pool of OpenZFS before 0.7.
    pub(crate) async fn vdev_zaps(&self) -> Result<Option<cenote_dmu::Object>, SpaError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let all = directory.lookup(pool_directory::VDEV_ZAP_MAP.as_bytes()).await?;
        Ok(match all.and_then(|value| value.as_u64()) {
            Some(all) => Some(self.mos.objset.object(ObjectId(all)).await?),
            None => None,
        })
    }
}

/// Whether a copy of a block is on a vdev.
fn on(pointer: &cenote_format::blkptr::Blkptr, vdev: VdevId) -> bool {
    !pointer.is_hole() && pointer.dvas().any(|dva| dva.vdev == vdev)
}
