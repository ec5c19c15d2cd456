//! Attaching a device to another one of a pool in use, replacing one by another, and detaching one.
//!
//! # Theory
//!
//! **Need.** A disk gets a mirror, a mirror a further leg, a failing disk a successor, and a leg is wanted elsewhere: while the pool is read and
//! written. No block may have fewer copies than before at any moment, and a power cut leaves the old vdevs or the new ones.
//!
//! **Structures.** `sync::vdev_changes` shows the trees. A new leaf has, in the configuration: `create_txg` of the old one, `resilver_txg`, its table,
//! and a dirty time log of all txgs up to [`DTL_TXGS`] after the present one.
//!
//! **Life of an attachment** (`attach`, `replace`, and a spare in use).
//! ```text
//! plan     between two txgs   is it possible? guids; the tree that the pool would have
//! label    in no txg          the new disk gets labels of txg 0 and an empty ring: nothing is found by them. A spare keeps its labels
//! enter    txg T, beginning   MOS: table, log of all txgs. The topology with the new leaf is swapped in, with that log
//! write    T and later        blocks go to all children. Reads of a txg in the log go to the others
//! commit   T, end             flush; labels 0 and 2 of all devices, the new one too; uberblock; labels 1 and 3
//! resilver later              the log gets empty. A `replacing` loses its old child then ([`Pool::finish_replacing`]); after a rebuild,
//!                             when a scrub has verified the copies, too (`sync::verify`)
//! ```
//! **Life of a detachment.**
//! ```text
//! check    in the slot, txg T   do the others have all that it has?
//! leave    T, beginning         as a device that goes offline (`admin::offline`): I/O that has begun is waited for, and the check is made again
//! enter    T, beginning         MOS: its table and log are freed; the configuration is without it
//! commit   T, end               labels and uberblock of the others
//! label    after T              it gets labels of txg 0 and an empty ring, and is free; a spare gets a spare's labels
//! ```
//! **Invariants.** 1. A leaf has a valid label for a place only if a configuration that has it there is on disk, or is about to be: labels of txg
//! 0 before T, labels of T within its commit. 2. Labels of a device that was detached are overwritten after T is on disk, never before. 3. The
//! new leaf is relied on for no block that it was not written: its log has all txgs up to now and some more, since blocks of intent logs and of
//! direct writes of the next txgs may have been written before it was there. 4. A plan is entered only into the pool that it was made for.
//!
//! **Crash.** Until T's uberblock is on a device the pool is the old one: its configuration names a new leaf nowhere, and a device that is being
//! detached has all blocks, as nothing of T is needed. After it the pool is the new one. The new leaf of T may have its label and miss the
//! uberblock, or the other way round: its log says that it lacks everything. A device that was detached, and has its old labels since the power
//! went before the last step, names a vdev that the configuration does not have.
//!
//! **Rejected.** *Overwriting the labels of a detached device first*, as OpenZFS does: after a power cut the pool lacks a leg that it needs. *A log of
//! exactly the txgs before T*: see invariant 3; three txgs more cost a resilver nothing.

use std::collections::BTreeSet;

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{Guid, Txg};
use cenote_format::nvlist::NvList;
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::{Rng, boxed};
use cenote_vdev::commit::{LeafCommit, initialize};
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::tree::VdevTree;

use crate::admin::examine::Which;
use crate::admin::offline::{no_replicas, no_such_device};
use crate::jobs::rebuild::RebuildPlan;
use crate::open::spares_l2cache::{AuxKind, remove_listed, spare_label};
use crate::open::vdevs::{DiskSpec, ashift_of, refuse};
use crate::pool::Pool;
use crate::small::{shrinks_draid, too_small};
use crate::sync::Syncer;
use crate::sync::vdev_config::RootVdev;
use crate::{FoundAuxiliary, FoundLeaf, PoolState, Refusal, SpaError};

/// A new leaf lacks all txgs before this many after the present one (`TXG_CONCURRENT_STATES`).
pub(super) const DTL_TXGS: u64 = 3;

/// A device that is put next to one of the pool.
#[derive(Clone, Debug)]
pub enum NewDevice {
    /// A disk that the pool does not have. Its previous contents are lost.
    Disk(DiskSpec),
    /// A hot spare of the pool.
    Spare(Guid),
}

/// A device to be attached to another one.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The device that is there.
    pub old: Guid,
    /// The one that gets all that it has.
    pub new: NewDevice,
    /// The old one goes when the new one has everything.
    pub is_replacing: bool,
    /// It is rebuilt in the order of the vdev, without checksums, instead of resilvered.
    pub is_sequential: bool,
    /// Sectors for which the new device is made; as it says if not given.
    pub ashift: Option<u32>,
    /// The seed of the guids; drawn by the machine if not given.
    pub seed: Option<u64>,
}

/// An attachment that is possible.
pub(super) struct Attachment {
    /// The device, or the raidz that gets a further child.
    pub(super) old: Guid,
    pub(super) guid: Guid,
    /// None of a distributed spare.
    pub(super) disk: Option<Disk>,
    /// The vdev that is put above both, if there is to be one.
    pub(super) above: Option<(&'static str, Guid)>,
    pub(super) leaf: NvList,
    /// The labels that its disk gets first.
    pub(super) label: Option<NvList>,
    /// The pool's vdevs when it was planned.
    pub(super) before: NvList,
    pub(super) is_sequential: bool,
    /// For the pool's history.
    pub(super) event: String,
    /// The new device is a further child of a raidz.
    pub(super) is_expansion: bool,
}

/// Refuses a tree that cannot be made, where nothing has changed yet.
pub(super) fn can_be_opened(config: &VdevConfig) -> Result<(), SpaError> {
    VdevTree::open(config, []).map(drop).map_err(|error| refuse(error.to_string()))
}

/// Refuses a device whose sectors are larger than the vdev's.
pub(super) fn ashift_fits(spec: &DiskSpec, ashift: Option<u32>, top: &VdevConfig) -> Result<(), SpaError> {
    spec.allocatable_bytes()?;
    match ashift_of(std::slice::from_ref(spec), ashift)? > top.ashift {
        true => Err(refuse(
            "new device has a different optimal sector size; use the option '-o ashift=N' to override the optimal size",
        )),
        false => Ok(()),
    }
}

/// A device that is to be attached.
enum NewPlace {
    Disk(DiskSpec),
    /// The spare space of a draid, by its entry in the list of spares.
    Distributed(NvList),
}

impl NewPlace {
    fn path(&self) -> &str {
        match self {
            Self::Disk(spec) => &spec.path,
            Self::Distributed(spare) => spare.str("path").unwrap_or("-"),
        }
    }

    fn disk(&self) -> Option<Disk> {
        match self {
            Self::Disk(spec) => Some(spec.disk.clone()),
            Self::Distributed(_) => None,
        }
    }

    /// The configuration of its leaf.
    fn leaf(&self, guid: Guid) -> NvList {
        let mut leaf = NvList::new();
        let (kind, whole_disk) = match self {
            Self::Disk(spec) if spec.is_file => ("file", None),
            Self::Disk(_) => ("disk", Some(0_u64)),
            Self::Distributed(_) => ("dspare", Some(1)),
        };
        leaf.push("type", kind);
        leaf.push("id", 0_u64);
        leaf.push("guid", guid.0);
        leaf.push("path", self.path());
        if let Self::Distributed(spare) = self {
            leaf.push("top_guid", spare.u64("top_guid").unwrap_or(0));
            leaf.push("spareid", spare.u64("spareid").unwrap_or(0));
        }
        if let Some(whole_disk) = whole_disk {
            leaf.push("whole_disk", whole_disk);
        }
        leaf
    }
}

fn is_distributed(vdev: &VdevConfig) -> bool {
    matches!(vdev.kind, VdevKind::DraidSpare { .. })
}

fn already_replacing() -> SpaError {
    refuse("already in replacing/spare config; wait for completion or use 'zpool detach'")
}

/// Whether a spare stands for a device, and for no other.
#[must_use]
pub fn stands_for(root: &VdevConfig, spare: Guid, old: Guid) -> bool {
    let mut stands = false;
    root.walk(&mut |vdev| {
        if let (VdevKind::Spare, [first, spares @ ..]) = (&vdev.kind, &vdev.children[..]) {
            stands |= first.guid == old && spares.iter().any(|own| own.guid == spare && own.is_spare);
        }
    });
    stands
}

impl Pool {
    /// Puts a device next to one of the pool, while it is in use: as a further leg of a mirror, or as its successor. When this is done, the
    /// device is part of the pool on disk, as of the returned txg, and lacks everything but what is written from now on.
    ///
    /// Nothing is changed where a spare has that place already.
    ///
    /// # Errors
    /// The device cannot have that place, or cannot be written: the pool is as it was. The pool is closed or suspended.
    #[boxed]
    pub async fn attach_device(&self, options: AttachOptions) -> Result<Txg, SpaError> {
        let (old, is_replacing) = (options.old, options.is_replacing);
        if let NewDevice::Spare(guid) = options.new {
            let stands = self.peek(move |syncer| {
                let stands = is_replacing && stands_for(&syncer.devices.root_vdev.config, guid, old);
                stands.then(|| syncer.txg())
            });
            // Nothing is left to do where a server has taken it by itself.
            if let Some(txg) = stands.await? {
                return Ok(txg);
            }
        }
        let held = match options.new {
            NewDevice::Spare(guid) => self.hold_spare(guid).await?.then_some(guid),
            NewDevice::Disk(_) => None,
        };
        let attached = self.attach_held(options).await;
        if let (Some(guid), Err(_)) = (held, &attached) {
            // The error that came first is the one to be told.
            drop(self.let_spares_go(&[guid]).await);
        }
        attached
    }

    /// The same with a device that is this process's alone.
    async fn attach_held(&self, options: AttachOptions) -> Result<Txg, SpaError> {
        let plan = self.look(move |syncer| Box::pin(async move { syncer.plan_attachment(options).await })).await?;
        if let Some((label, disk)) = plan.label.as_ref().zip(plan.disk.as_ref()) {
            let cannot = |error| refuse(format!("{} cannot be labelled: {error}", disk.path()));
            initialize(disk, label).await.map_err(cannot)?;
        }
        let entered = self.change(move |syncer| Box::pin(async move { syncer.enter_attachment(plan).await })).await;
        let (txg, rebuild) = entered?;
        self.begin_rebuilds(rebuild);
        self.attend_log_leaves();
        Ok(txg)
    }

    /// Takes a leg of a mirror, or a side of a replacement or of a spare in use, out of the pool while it is in use. When this is done its
    /// device is free, or a spare again.
    ///
    /// # Errors
    /// It is no such device, or other devices lack what it has: the pool is as it was. The pool is closed or suspended.
    #[boxed]
    pub async fn detach_device(&self, guid: Guid) -> Result<Txg, SpaError> {
        self.examine_devices(Which::SiblingsOf(guid)).await?;
        let detached = self.change(move |syncer| Box::pin(async move { syncer.enter_detachment(guid).await })).await?;
        self.release(vec![detached]).await
    }

    /// Takes out of the pool what a finished resilver has made dispensable: the old side of replacements, spares whose device is back. Their
    /// number is returned.
    ///
    /// # Errors
    /// The MOS cannot be changed. The pool is closed or suspended.
    #[boxed]
    pub async fn finish_replacing(&self) -> Result<usize, SpaError> {
        let detached = self.change(|syncer| Box::pin(async move { syncer.finish_replacing().await })).await?;
        let count = detached.len();
        if count > 0 {
            self.release(detached).await?;
        }
        Ok(count)
    }

    /// For tests that play a resilver: a device has made up for all that it has missed up to now.
    ///
    /// # Errors
    /// The MOS cannot be changed. The pool is closed or suspended.
    #[doc(hidden)]
    #[boxed]
    pub async fn mended(&self, guid: Guid) -> Result<(), SpaError> {
        let mend = self.change(move |syncer| {
            Box::pin(async move {
                let txg = syncer.txg;
                syncer.mend_dtl(txg, guid, txg).await
            })
        });
        mend.await
    }

    /// Gives devices that were detached the labels of free ones, once the pool on disk is without them.
    pub(crate) async fn release(&self, detached: Vec<Detached>) -> Result<Txg, SpaError> {
        let txg = detached.iter().map(|detached| detached.txg).max().unwrap_or(Txg(0));
        self.wait_synced(txg).await?;
        let leaves: Vec<LeafCommit> = detached.into_iter().filter_map(|detached| detached.leaf).collect();
        self.clear(&leaves).await?;
        let guids: Vec<Guid> = leaves.iter().map(|leaf| leaf.guid).collect();
        drop(leaves);
        self.let_spares_go(&guids).await?;
        Ok(txg)
    }
}

/// Txgs that leaves of log vdevs lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLeaves {
    /// Some that are in use lack what their siblings hold.
    Lack,
    /// None that is in use lacks anything, and some are attached ones, or replace others.
    AreNew,
    /// Nothing is to be done for them.
    Whole,
}

/// A device that the pool of a txg does not have any more, with the labels that it gets when that is on disk.
pub(crate) struct Detached {
    txg: Txg,
    leaf: Option<LeafCommit>,
}

impl Syncer {
    /// Finds out whether a device can have a place; changes nothing.
    async fn plan_attachment(&self, options: AttachOptions) -> Result<Attachment, SpaError> {
        self.check_no_checkpoint()?;
        let AttachOptions { old: old_guid, new, is_replacing, is_sequential, ashift, seed } = options;
        let own = u32::try_from(self.number_property("ashift").await?).ok().filter(|ashift| *ashift != 0);
        let ashift = ashift.or(own);
        let root_vdev = &self.devices.root_vdev;
        let Some(((ancestors, old), (_, top))) = root_vdev.vdev(old_guid).zip(root_vdev.top_of(old_guid)) else {
            return Err(self.device(old_guid).await.err().unwrap_or_else(no_such_device));
        };
        let parent = ancestors.last().expect("a vdev is below the root");
        let is_expansion = matches!(old.kind, VdevKind::Raidz { .. }) && !is_replacing;
        // A distributed spare whose device was detached can be replaced, too.
        let is_replaceable = is_replacing && is_distributed(old);
        if !is_expansion && !is_replaceable && !matches!(old.kind, VdevKind::Disk | VdevKind::File) {
            return Err(match is_replacing {
                true => refuse("cannot replace this type of vdev: name a device"),
                false => refuse("can only attach to mirrors and top-level disks"),
            });
        }
        let mut rng = Rng::new(seed.unwrap_or_else(|| self.handle.random_u64()));
        let mut new_guid = || Guid(rng.next_u64() | 1);
        let (place, guid, is_spare) = match new {
            NewDevice::Disk(spec) => (NewPlace::Disk(spec), new_guid(), false),
            NewDevice::Spare(guid) => (self.spare(guid).await?, guid, true),
        };
        let path = place.path().to_owned();
        let is_new = root_vdev.vdev(guid).is_none();
        if !is_new || self.jobs.evacuation.running.is_some() {
            let what = format!("{path} is busy, or device removal is in progress");
            return Err(SpaError::refused(Refusal::Busy, what));
        }
        if is_expansion {
            if is_sequential {
                // Refused in the words for every raidz: an expansion rebuilds nothing.
                self.check_rebuild(top, top)?;
            }
            return match place {
                NewPlace::Disk(spec) if !is_spare => self.plan_expansion(old_guid, guid, spec, ashift).await,
                _ => Err(refuse("can only attach to mirrors and top-level disks")),
            };
        }
        if is_spare && top.class != AllocationClass::Normal {
            return Err(refuse(format!("cannot replace a {} with a spare", top.class.name().unwrap_or("log"))));
        }
        if let NewPlace::Distributed(spare) = &place
            && spare.u64("top_guid") != Some(top.guid.0)
        {
            let what = "dRAID spares can only replace child devices in their parent's dRAID vdev";
            return Err(SpaError::refused(Refusal::Invalid, what));
        }
        let kind = match (is_replacing, is_spare) {
            (false, false) if matches!(parent.kind, VdevKind::Mirror | VdevKind::Root) => VdevKind::Mirror,
            (false, _) => return Err(refuse("can only attach to mirrors and top-level disks")),
            (true, _) if parent.kind == VdevKind::Spare && old.is_spare != is_spare => return Err(already_replacing()),
            // It would never end: what stands below the old side is no device that can go.
            (true, true) if parent.kind == VdevKind::Replacing => return Err(already_replacing()),
            (true, true) => VdevKind::Spare,
            (true, false) => VdevKind::Replacing,
        };
        match is_sequential {
            true => self.check_rebuild(top, parent)?,
            false => self.refuse_rebuild()?,
        }
        if let NewPlace::Disk(spec) = &place {
            ashift_fits(spec, ashift, top)?;
        }
        let above = (parent.kind != kind).then(|| (kind.name(), new_guid()));
        let mut leaf = place.leaf(guid);
        if is_spare {
            leaf.push("is_spare", 1_u64);
        }
        leaf.push("create_txg", old.create_txg.0);
        let mut next = root_vdev.clone();
        let disk = place.disk();
        next.attach(old_guid, above, &leaf, disk.clone())?;
        let disks = disk.iter().map(|disk| (guid, disk.clone())).collect();
        let is_small = disk.as_ref().is_some_and(|disk| shrinks_draid(top, disk));
        if is_small || too_small(&next.config, &disks).contains_key(&guid) {
            return Err(SpaError::refused(Refusal::NoSpace, "device is too small"));
        }
        can_be_opened(&next.config)?;
        let mut labels = self.leaf_commits_of(&next, Txg(0), true);
        labels.retain(|leaf| leaf.guid == guid);
        assert_eq!(labels.len(), usize::from(disk.is_some()), "a new disk gets labels");
        let (verb, joint) = match (is_replacing, is_spare) {
            (true, true) => ("spare in", "for"),
            (true, false) => ("replace", "for"),
            (false, _) => ("attach", "to"),
        };
        let event = format!("{verb} vdev={path} {joint} vdev={}", old.display_name());
        Ok(Attachment {
            old: old_guid,
            guid,
            disk,
            above,
            leaf,
            label: labels.pop().and_then(|leaf| leaf.config).filter(|_| !is_spare),
            before: root_vdev.tree().clone(),
            is_sequential,
            event,
            is_expansion: false,
        })
    }

    /// A hot spare of the pool that is not in use.
    async fn spare(&self, guid: Guid) -> Result<NewPlace, SpaError> {
        let listed = self.listed(AuxKind::Spare).await?;
        let Some(listed) = listed.iter().find(|device| device.u64("guid") == Some(guid.0)) else {
            return Err(no_such_device());
        };
        let path = listed.str("path").unwrap_or("-").to_owned();
        if self.devices.root_vdev.vdev(guid).is_some() {
            let what = format!("{path} is busy, or device removal is in progress");
            return Err(SpaError::refused(Refusal::Busy, what));
        }
        if listed.str("type") == Some("dspare") {
            return Ok(NewPlace::Distributed(listed.clone()));
        }
        match self.devices.found.auxiliaries.get(&guid) {
            Some(found) => {
                let is_file = listed.str("type") == Some("file");
                Ok(NewPlace::Disk(DiskSpec { disk: found.disk.clone(), path, is_file }))
            }
            None => Err(SpaError::refused(Refusal::NotThere, format!("the spare {path} is not there"))),
        }
    }

    /// Makes an attachment part of the open txg.
    async fn enter_attachment(&mut self, plan: Attachment) -> Result<(Txg, Option<RebuildPlan>), SpaError> {
        if *self.devices.root_vdev.tree() != plan.before {
            return Err(SpaError::refused(Refusal::Busy, "the pool's vdevs have changed meanwhile: try again"));
        }
        if plan.is_expansion {
            return Ok((self.begin_expansion(plan).await?, None));
        }
        let (txg, guid) = (self.txg, plan.guid);
        let mut leaf = plan.leaf;
        leaf.push(if plan.is_sequential { "rebuild_txg" } else { "resilver_txg" }, txg.0);
        let all = self.vdev_zaps().await?;
        if let Some(all) = &all {
            let zap = Zap::create_object(&self.mos.objset, txg, DmuType::ZAP_METADATA, &[]).await?.id();
            let value = ZapValue::from_u64(zap.0);
            Zap::put_entry(all, txg, &int_key_name(zap.0), Some(&value)).await?;
            leaf.push("com.delphix:vdev_zap_leaf", zap.0);
        }
        let mut next = self.devices.root_vdev.clone();
        next.attach(plan.old, plan.above, &leaf, plan.disk.clone())?;
        next.move_aside(plan.old, guid)?;
        let missed = Dtl::of(Txg::INITIAL.0..txg.0 + DTL_TXGS);
        let paused = self.devices.tree.pause_mends().await;
        let disks = plan.disk.iter().map(|disk| (guid, disk.clone()));
        self.devices.tree.change_with(&next.config, disks, [(guid, &missed)])?;
        drop(paused);
        self.devices.root_vdev = next;
        self.set_dtl(txg, guid, missed).await?;
        let config = plan.label.unwrap_or_default().into();
        if leaf.has("is_spare") {
            // It is a leaf now, whose disk is let go of when the leaf is lost.
            let mut found = (*self.devices.found.auxiliaries).clone();
            found.remove(&guid);
            self.devices.found.auxiliaries = found.into();
        }
        if let Some(disk) = plan.disk {
            let found = FoundLeaf { guid, disk, config, txg, uberblocks: Vec::new(), bad_labels: 0 };
            self.devices.found.leaves.insert(guid, found);
        }
        self.record_event("vdev attach", &plan.event, None).await?;
        self.vdevs_changed().await?;
        assert!(self.devices.root_vdev.vdev(guid).is_some(), "a device that is attached has its place");
        assert!(!self.devices.found.auxiliaries.contains_key(&guid), "a leaf is not among the free spares");
        self.blocks.space.events.set_vdevs(&self.devices);
        self.blocks.space.events.of_device("vdev_attach", guid);
        let rebuilt = self.devices.root_vdev.top_of(guid).map(|(vdev, _)| vdev).filter(|_| plan.is_sequential);
        let Some(vdev) = rebuilt else {
            self.jobs.scan.is_resilver_wanted = true;
            return Ok((txg, None));
        };
        Ok((txg, Some(self.start_rebuild(vdev).await?)))
    }

    /// Makes a detachment part of the open txg.
    pub(crate) async fn enter_detachment(&mut self, guid: Guid) -> Result<Detached, SpaError> {
        let root_vdev = &self.devices.root_vdev;
        let Some(((ancestors, leaf), (vdev, _))) = root_vdev.vdev(guid).zip(root_vdev.top_of(guid)) else {
            return Err(self.device(guid).await.err().unwrap_or_else(no_such_device));
        };
        self.check_no_checkpoint()?;
        let parent = ancestors.last().expect("a vdev is below the root");
        if !leaf.kind.is_leaf() || !matches!(parent.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare) {
            return Err(refuse("only applicable to mirror and replacing vdevs"));
        }
        let is_first = parent.children.first().is_some_and(|child| child.guid == guid);
        if self.is_required(guid) {
            return Err(no_replicas());
        }
        let (leaf, txg) = (leaf.clone(), self.txg);
        // A spare whose device goes is a device of the pool from now on; a distributed one stays its draid's, and in use, until it is replaced.
        let last =
            parent.children.last().filter(|last| last.is_spare && matches!(last.kind, VdevKind::Disk | VdevKind::File));
        let kept_spare = last.filter(|_| is_first && parent.kind == VdevKind::Spare).map(|last| last.guid);
        let mut next = root_vdev.clone();
        next.move_back(guid)?;
        next.detach(guid)?;
        if let Some(spare) = kept_spare {
            next.keep_spare(spare)?;
        }
        let spares = self.listed(AuxKind::Spare).await?;
        let spare = spares.iter().find(|device| device.u64("guid") == Some(guid.0));
        let mut labels = self.leaf_commits_of(&self.devices.root_vdev, Txg(0), true);
        labels.retain(|label| label.guid == guid);
        let mut label = labels.pop();
        if let (Some(label), Some(spare)) = (&mut label, spare) {
            label.config = Some(spare_label(spare));
        }
        self.change_without(guid, vdev, next).await?;
        self.blocks.space.events.of_device("vdev_remove", guid);
        if let (Some(label), Some(_)) = (&label, spare) {
            let mut found = (*self.devices.found.auxiliaries).clone();
            let disk = label.disk.clone();
            found.insert(guid, FoundAuxiliary { guid, disk, state: PoolState::Spare });
            self.devices.found.auxiliaries = found.into();
            self.devices.leaving.insert(guid);
        }
        if let Some(spare) = kept_spare {
            remove_listed(&self.mos.objset, &self.mos.directory, txg, AuxKind::Spare, spare).await?;
        }
        self.free_objects(txg, vec![leaf.dtl], vec![leaf.leaf_zap], None).await?;
        assert!(self.devices.root_vdev.vdev(guid).is_none(), "a device that is detached has no place any more");
        self.record_event("detach", &format!("vdev={}", leaf.display_name()), None).await?;
        self.vdevs_changed().await?;
        Ok(Detached { txg, leaf: label })
    }

    /// Detaches what is dispensable since new children have everything: for the end of a resilver, and of an import.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    pub(crate) async fn finish_replacing(&mut self) -> Result<Vec<Detached>, SpaError> {
        let mut detached = Vec::new();
        if self.check_no_checkpoint().is_err() {
            return Ok(detached);
        }
        let whole: Vec<Guid> = self
            .devices
            .root_vdev
            .config
            .leaves()
            .into_iter()
            .filter(|leaf| leaf.resilver_txg.or(leaf.rebuild_txg).is_some() && self.has_all(leaf.guid))
            .filter(|leaf| !self.is_unverified(leaf.guid))
            .map(|leaf| leaf.guid)
            .collect();
        for guid in whole {
            self.devices.root_vdev.clear_field(guid, "resilver_txg")?;
            self.devices.root_vdev.clear_field(guid, "rebuild_txg")?;
            self.devices.tree.rebuild_ended(guid);
            self.vdevs_changed().await?;
        }
        while let Some(guids) = self.find_finished() {
            for guid in guids {
                detached.push(self.enter_detachment(guid).await?);
            }
        }
        self.begin_verification().await?;
        Ok(detached)
    }

    /// Txgs that leaves of log vdevs lack which are in use.
    #[must_use]
    pub(crate) fn log_leaves(&self) -> LogLeaves {
        let logs = self.devices.root_vdev.tops().filter(|(_, top)| top.class == AllocationClass::Log);
        let used = logs.flat_map(|(_, top)| top.leaves()).filter(|leaf| self.devices.tree.is_leaf_online(leaf.guid));
        let mut found = LogLeaves::Whole;
        for leaf in used {
            if !self.has_all(leaf.guid) {
                return LogLeaves::Lack;
            }
            if leaf.resilver_txg.or(leaf.rebuild_txg).is_some() {
                found = LogLeaves::AreNew;
            }
        }
        found
    }

    /// True if a vdev is there and lacks nothing.
    pub(crate) fn has_all(&self, guid: Guid) -> bool {
        self.devices.tree.lacks_of(guid, &BTreeSet::new()).is_some_and(|lacks| lacks.is_empty())
    }

    /// True while a device is replaced, or a spare that stands for one does not have everything yet.
    #[must_use]
    pub fn is_replacing(&self) -> bool {
        let mut is_replacing = false;
        self.devices.root_vdev.config.walk(&mut |vdev| {
            is_replacing |= match vdev.kind {
                VdevKind::Replacing => true,
                VdevKind::Spare => {
                    vdev.children.len() > 2 || vdev.children.last().is_some_and(|spare| !self.has_all(spare.guid))
                }
                _ => false,
            };
        });
        is_replacing
    }

    /// A device that is dispensable, and the spare that goes with it.
    fn find_finished(&self) -> Option<Vec<Guid>> {
        let mut found = None;
        self.devices.root_vdev.config.walk(&mut |vdev| {
            // A spare is met before the replacement below it.
            let (Some(first), Some(last)) = (vdev.children.first(), vdev.children.last()) else { return };
            if found.is_some() {
                return;
            }
            let is_done = |old: &VdevConfig, new: &VdevConfig| {
                let is_whole = self.has_all(new.guid) && !self.holds_other_side(new);
                old.kind.is_leaf() && is_whole && !self.is_required(old.guid)
            };
            let is_unspared = |vdev: &VdevConfig| self.devices.root_vdev.has_flag(vdev.guid, "unspare");
            match vdev.kind {
                VdevKind::Replacing if is_done(first, last) => found = Some(vec![first.guid]),
                VdevKind::Spare if is_unspared(last) && is_done(first, last) => found = Some(vec![first.guid]),
                VdevKind::Spare if is_unspared(first) && is_done(last, first) => found = Some(vec![last.guid]),
                // A further spare stands for one that has failed.
                VdevKind::Spare if vdev.children.len() > 2 => {
                    let before = &vdev.children[1];
                    if before.is_spare && last.is_spare && is_done(before, last) {
                        found = Some(vec![before.guid]);
                    }
                }
                // The device of a spare was replaced: the spare is not needed either.
                VdevKind::Spare if first.kind == VdevKind::Replacing && vdev.children.len() == 2 => {
                    if let [old, .., new] = &first.children[..]
                        && is_done(old, new)
                        && last.kind.is_leaf()
                    {
                        found = Some(vec![old.guid, last.guid]);
                    }
                }
                _ => {}
            }
        });
        found
    }
}

impl RootVdev {
    /// Where a device takes the path of the old one, that is named as OpenZFS names it: `PATH/old`.
    fn move_aside(&mut self, old: Guid, new: Guid) -> Result<(), SpaError> {
        let path = |guid| self.vdev(guid).and_then(|(_, vdev)| vdev.path.clone());
        let (old_path, new_path) = (path(old), path(new));
        if let Some(path) = old_path.filter(|path| new_path.as_deref() == Some(path)) {
            self.set_field(old, "path", format!("{path}/old").as_str())?;
            self.clear_field(old, "devid")?;
        }
        Ok(())
    }

    /// Gives a device its path again if the one that took it is about to go.
    fn move_back(&mut self, gone: Guid) -> Result<(), SpaError> {
        let Some((ancestors, leaf)) = self.vdev(gone) else { return Ok(()) };
        let (Some(parent), Some(path)) = (ancestors.last(), leaf.path.clone()) else { return Ok(()) };
        if parent.kind != VdevKind::Replacing || leaf.id == 0 {
            return Ok(());
        }
        let aside = format!("{path}/old");
        let old = parent.children.iter().find(|child| child.path.as_deref() == Some(aside.as_str()));
        match old.map(|old| old.guid) {
            Some(old) => Ok(self.set_field(old, "path", &*path)?),
            None => Ok(()),
        }
    }
}
