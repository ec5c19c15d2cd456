//! Taking devices of a pool in use offline, and online again.
//!
//! # Theory
//!
//! **Need.** A disk is pulled for an hour, or is to be looked at. The pool is written without it meanwhile, and knows what the disk lacks when it
//! is back. A device that alone has something is not given away.
//!
//! **Life of a device that goes offline.**
//! ```text
//! check    in the slot, txg T   do the others have all that it has? ([`Syncer::is_required`])
//! leave    T, beginning         the topology without its device is swapped in. I/O that has begun before is waited for, and the check is made
//!                               once more: a block of an intent log may be on this device alone by now
//! record   T, end               `offline` (or `faulted`) in the configuration, and T in its dirty time log: labels of the others, uberblock
//! miss     from T on            each txg is in its log (`sync::dtl`)
//! ```
//! With `-t` the state is in memory alone: the next import uses the device.
//!
//! **And online.** Its device is opened by the caller's task, by its path, and known by its label. In the slot the topology gets it, with all txgs of
//! its log from the first read on, and with those after its newest uberblock: it may be an older copy of what was taken away. It is written from
//! that txg on. What it lacks is the work of a resilver. A spare that stands for it goes then (`unspare`, [`Pool::finish_replacing`]).
//!
//! **Invariants.** 1. Without the device no txg is in the outage of its top-level vdev, when the topology loses it and after all I/O in the one
//! before. 2. A leaf that is not used has no disk in [`RootVdev`], so each txg is noted as missed. 3. A leaf
//! that comes back is not relied on for what it has missed.
//!
//! **Crash.** Until T's uberblock is on a device, the pool is the one in which the device is used, and it has all blocks of that pool: T's blocks
//! are in free space. After it the configuration says that it is not used, and its labels are older than those of the others.
//!
//! **Rejected.** *Keeping the device open*: a disk that was pulled and put back is another one to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::boxed;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::dtl::Dtl;
use cenote_vdev::tree::{LeafState, VdevState, VdevStatus};

use crate::admin::examine::Which;
use crate::admin::remove::Stopped;
use crate::find::open_leaf;
use crate::open::spares_l2cache::AuxKind;
use crate::pool::Pool;
use crate::small::too_small;
use crate::sync::Syncer;
use crate::sync::vdev_changes::LeafUse;
use crate::sync::vdev_config::RootVdev;
use crate::{FoundLeaf, Refusal, SpaError};

/// How long I/O that began before a change of the vdevs is waited for.
const IO_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked at.
const IO_POLL: Duration = Duration::from_micros(200);

/// How a device is taken offline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offline {
    /// Until the pool is closed (`-t`).
    pub is_temporary: bool,
    /// As if it had failed (`-f`).
    pub is_fault: bool,
}

/// The state of a device that was taken online.
#[derive(Clone, Debug)]
pub struct Onlined {
    /// It is used if this is online or degraded.
    pub state: VdevState,
    /// The txgs that it lacks until it is resilvered.
    pub missed: Dtl,
    /// Why its device was not opened.
    pub reason: Option<String>,
}

/// OpenZFS's words for a device that alone has something.
pub(crate) fn no_replicas() -> SpaError {
    SpaError::refused(Refusal::Busy, "no valid replicas")
}

pub(crate) fn no_such_device() -> SpaError {
    SpaError::refused(Refusal::NotThere, "no such device in pool")
}

/// The verb that has a device used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Clear,
    Online,
}

impl Again {
    /// The event that tells of it.
    pub(crate) const fn event(self) -> &'static str {
        match self {
            Self::Clear => "vdev_clear",
            Self::Online => "vdev_online",
        }
    }
}

impl Pool {
    /// Takes a device out of use. When this is done the pool on disk says so, unless it is temporary.
    ///
    /// # Errors
    /// It is no device of the pool, or other devices lack what it has: the pool is as it was. The pool is closed or suspended.
    #[boxed]
    pub async fn offline_device(&self, guid: Guid, how: Offline) -> Result<Txg, SpaError> {
        if !how.is_fault && self.offline_cache(guid).await {
            return self.peek(|syncer| syncer.txg()).await;
        }
        self.examine_devices(Which::SiblingsOf(guid)).await?;
        // A log device that no other one mirrors: what is on it goes elsewhere first.
        let log = self.look(move |syncer| Box::pin(async move { syncer.log_that_goes(guid).await })).await?;
        let _stopped = match log {
            Some(vdev) => Some(self.empty_log(vdev).await?),
            None => None,
        };
        self.change(move |syncer| Box::pin(async move { syncer.enter_offline(guid, how).await })).await
    }

    /// Has intent logs leave a log device, on which nothing is placed from then on until the result is dropped.
    pub(crate) async fn empty_log(&self, vdev: VdevId) -> Result<Stopped, SpaError> {
        let space = self.peek(|syncer| syncer.blocks.space.clone()).await?;
        let stopped = Stopped::begin(&space, vdev);
        let stopped = stopped.ok_or_else(|| SpaError::refused(Refusal::Busy, "the log device is being removed"))?;
        if !self.leave(vdev).await? {
            self.change(move |syncer| Box::pin(async move { syncer.free_idle_logs(vdev).await })).await?;
            if !self.leave(vdev).await? {
                let what = "intent logs have not left the log device yet: try again";
                return Err(SpaError::refused(Refusal::Busy, what));
            }
        }
        Ok(stopped)
    }

    /// Takes a device into use again that is offline, faulted or was not there, if it is at its recorded path or one of `paths`. When this is
    /// done the pool on disk says so.
    ///
    /// # Errors
    /// It is no device of the pool. The pool is closed or suspended.
    #[boxed]
    pub async fn online_device(&self, guid: Guid, paths: Vec<PathBuf>) -> Result<Onlined, SpaError> {
        self.use_again(guid, paths, Again::Online).await
    }

    /// As [`Self::online_device`], for either verb.
    #[boxed]
    async fn use_again(&self, guid: Guid, paths: Vec<PathBuf>, verb: Again) -> Result<Onlined, SpaError> {
        if self.online_cache(guid).await {
            return Ok(Onlined { state: VdevState::Online, missed: Dtl::new(), reason: None });
        }
        let mut lost = self.examine_devices(Which::One(guid)).await?;
        if let Some(lost) = lost.remove(&guid).filter(|lost| lost.is_kept) {
            return Err(SpaError::refused(Refusal::Busy, lost.told()));
        }
        self.pardon_for(Some(guid), verb).await?;
        self.open_again(guid, paths, Some(verb)).await
    }

    /// Opens a device that is not used, if it is to be found. If it is used from then on, that is told for this verb.
    async fn open_again(&self, guid: Guid, paths: Vec<PathBuf>, verb: Option<Again>) -> Result<Onlined, SpaError> {
        let Plan { ashift, own, is_open, is_out } =
            self.look(move |syncer| Box::pin(async move { syncer.plan_online(guid).await })).await?;
        let mut found = None;
        if !is_open {
            let mut paths: Vec<PathBuf> = own.into_iter().chain(paths).collect();
            paths.dedup();
            match open_leaf(self.handle(), self.guid(), guid, ashift, &paths).await {
                // Nothing is different: it was wanted before, and not there.
                Err(reason) if !is_out => {
                    return Ok(Onlined { state: VdevState::Unavailable, missed: Dtl::new(), reason: Some(reason) });
                }
                opened => found = Some(opened),
            }
        }
        let onlined =
            self.change(move |syncer| Box::pin(async move { syncer.enter_online(guid, found).await })).await?;
        if let Some(verb) = verb.filter(|_| onlined.state.is_readable() && (is_out || !is_open)) {
            self.events().of_device(verb.event(), guid);
        }
        self.attend_log_leaves();
        Ok(onlined)
    }

    /// As [`Self::pardon`], for either verb. Each device that is used again is told of once.
    #[boxed]
    pub(crate) async fn pardon_for(&self, leaf: Option<Guid>, verb: Again) -> Result<(), SpaError> {
        self.events().forget_errors(leaf);
        self.look_at_devices(Which::Condemned(leaf), verb).await?;
        let pardoned = self.look(move |syncer| {
            Box::pin(async move {
                let states = syncer.devices.tree.leaf_states();
                let pardoned = syncer.devices.pardon(leaf)?;
                syncer.jobs.scan.is_resilver_wanted |= !pardoned.is_empty();
                for leaf in pardoned.iter().filter(|leaf| states.contains(&(**leaf, LeafState::Faulted))) {
                    syncer.jobs.scan.leaf_is_back(*leaf);
                }
                let absent = syncer.absent();
                // One that is closed is online when it is open; it is cleared by now.
                let is_told = |leaf: &&Guid| verb == Again::Clear || !absent.contains(leaf);
                for leaf in pardoned.iter().filter(is_told) {
                    syncer.blocks.space.events.of_device(verb.event(), *leaf);
                }
                Ok::<_, SpaError>((pardoned, absent))
            })
        });
        let (pardoned, absent) = pardoned.await?;
        if pardoned.is_empty() {
            return Ok(());
        }
        for closed in pardoned.into_iter().filter(|leaf| absent.contains(leaf)) {
            self.open_again(closed, Vec::new(), Some(verb).filter(|verb| *verb == Again::Online)).await?;
        }
        self.sync().await?;
        self.finish_replacing().await?;
        Ok(())
    }

    /// Looks at all devices that are used, and opens those that are not, if they are at their recorded paths now. Returns those that were found.
    ///
    /// # Errors
    /// As [`Self::online_device`].
    #[boxed]
    pub async fn reopen_devices(&self) -> Result<Vec<Guid>, SpaError> {
        self.examine_devices(Which::All).await?;
        let mut found = Vec::new();
        for guid in self.peek(|syncer| syncer.absent()).await? {
            if self.online_device(guid, Vec::new()).await?.state.is_readable() {
                found.push(guid);
            }
        }
        Ok(found)
    }

    /// Sets the error counts of a vdev and of those below it to zero, and takes its devices into use again unless they are offline.
    ///
    /// # Errors
    /// It is no vdev of the pool. The pool is closed or suspended.
    #[boxed]
    pub async fn clear_device(&self, guid: Guid) -> Result<(), SpaError> {
        if self.clear_caches(Some(guid)).await {
            return Ok(());
        }
        let below = self.look(move |syncer| Box::pin(async move { syncer.vdevs_below(guid).await })).await?;
        for vdev in below {
            if vdev.kind.is_leaf() {
                self.examine_devices(Which::One(vdev.guid)).await?;
            }
            let tree = self.tree();
            tree.as_ref().and_then(|tree| tree.error_counts(vdev.guid)).inspect(|counts| counts.clear());
            // A vdev that cannot sit out is refused, and does not.
            let _ = tree.as_ref().map(|tree| tree.set_sit_out(vdev.guid, false));
            let state = tree.as_ref().and_then(|tree| state_of(&tree.status(), vdev.guid));
            let is_used = state.is_some_and(VdevState::is_readable);
            if matches!(vdev.kind, VdevKind::Disk | VdevKind::File) && !vdev.state.offline {
                match is_used {
                    // It may be in use and called ailing.
                    true => self.pardon(Some(vdev.guid)).await?,
                    false => drop(self.use_again(vdev.guid, Vec::new(), Again::Clear).await?),
                }
            }
        }
        Ok(())
    }

    /// Takes devices into use again that a person has had faulted (`zpool offline -f`): all of them. One that cannot be used is told of.
    ///
    /// # Errors
    /// The pool is closed or suspended.
    #[boxed]
    pub async fn use_faulted_again(&self) -> Result<(), SpaError> {
        for guid in self.peek(|syncer| syncer.devices.faulted_by_person()).await? {
            match self.use_again(guid, Vec::new(), Again::Clear).await {
                Ok(onlined) => onlined.reason.into_iter().for_each(|reason| self.trouble(reason)),
                Err(SpaError::Refused { what, .. }) => self.trouble(what),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A leaf that is to be used again.
struct Plan {
    ashift: u32,
    /// Its recorded path.
    own: Option<PathBuf>,
    is_open: bool,
    /// It is not used by configuration.
    is_out: bool,
}

impl Syncer {
    /// True if the pool cannot do without a leaf: it is all of a top-level vdev, or other leaves have missed what it has (OpenZFS's
    /// `vdev_dtl_required`).
    pub(crate) fn is_required(&self, guid: Guid) -> bool {
        match self.devices.root_vdev.top_of(guid) {
            Some((vdev, top)) => top.guid == guid || self.has_outage(vdev, guid),
            None => true,
        }
    }

    /// True if blocks of some txg may be on none of a top-level vdev's leaves but this one.
    fn has_outage(&self, vdev: VdevId, without: Guid) -> bool {
        !self.devices.tree.outage(vdev, &BTreeSet::from([without])).is_empty()
    }

    /// A device of the pool, and its top-level vdev.
    pub(crate) async fn device(&self, guid: Guid) -> Result<(VdevConfig, VdevId, AllocationClass), SpaError> {
        if let (Some((_, vdev)), Some((id, top))) =
            (self.devices.root_vdev.vdev(guid), self.devices.root_vdev.top_of(guid))
        {
            return match vdev.kind {
                VdevKind::Disk | VdevKind::File => Ok((vdev.clone(), id, top.class)),
                _ => Err(SpaError::refused(Refusal::Invalid, "operation not supported on this type of vdev")),
            };
        }
        for (kind, what) in
            [(AuxKind::Spare, "device is reserved as a hot spare"), (AuxKind::Cache, "device is in use as a cache")]
        {
            if self.listed(kind).await?.iter().any(|device| device.u64("guid") == Some(guid.0)) {
                return Err(SpaError::refused(Refusal::Invalid, what));
            }
        }
        Err(no_such_device())
    }

    /// A vdev of the pool and all below it.
    async fn vdevs_below(&self, guid: Guid) -> Result<Vec<VdevConfig>, SpaError> {
        let Some((_, vdev)) = self.devices.root_vdev.vdev(guid) else {
            return Err(self.device(guid).await.err().unwrap_or_else(no_such_device));
        };
        let mut below = Vec::new();
        vdev.walk(&mut |vdev| below.push(vdev.clone()));
        Ok(below)
    }

    /// The log device that a leaf is of, if the leaf alone has what is on it.
    async fn log_that_goes(&self, guid: Guid) -> Result<Option<VdevId>, SpaError> {
        let (leaf, vdev, class) = self.device(guid).await?;
        let is_out = leaf.state.offline || leaf.state.faulted;
        Ok(Some(vdev).filter(|_| class == AllocationClass::Log && !is_out && self.is_required(guid)))
    }

    /// True for a log device on which nothing is.
    fn is_empty_log(&self, vdev: VdevId) -> bool {
        let is_log = self.devices.root_vdev.top(vdev).is_some_and(|top| top.class == AllocationClass::Log);
        is_log && self.blocks.space.with(|allocator| allocator.evacuation(vdev)).is_done()
    }

    async fn enter_offline(&mut self, guid: Guid, how: Offline) -> Result<Txg, SpaError> {
        let (leaf, vdev, _) = self.device(guid).await?;
        let is_out = leaf.state.offline || leaf.state.faulted;
        let is_required = !is_out && self.is_required(guid);
        if is_required && !self.is_empty_log(vdev) {
            return Err(no_replicas());
        }
        let mut next = self.devices.root_vdev.clone();
        let state = if how.is_fault { LeafUse::Faulted } else { LeafUse::Offline };
        next.set_use(guid, state, how.is_temporary)?;
        next.disks.remove(&guid);
        self.change_without(guid, vdev, next).await?;
        if is_required {
            self.blocks.space.log_device_is_off(vdev);
        }
        self.note_missed(self.txg, 1, [guid]).await?;
        self.vdevs_changed().await?;
        Ok(self.txg)
    }

    /// Has the pool have other vdevs, in which a leaf is not used or is none. If it fails nothing has changed but that the leaf may lack a part of this
    /// txg, and is resilvered.
    pub(crate) async fn change_without(&mut self, guid: Guid, vdev: VdevId, next: RootVdev) -> Result<(), SpaError> {
        let disk = self.devices.root_vdev.disks.get(&guid).cloned();
        let paused = self.devices.tree.pause_mends().await;
        let retired = self.devices.tree.change_with(&next.config, [], [])?;
        drop(paused);
        let until = self.handle.now() + IO_PATIENCE;
        while !retired.has_ended() && self.handle.now() < until {
            self.handle.sleep(IO_POLL).await;
        }
        let refused = match retired.has_ended() {
            false => Some(SpaError::refused(Refusal::Busy, "a device does not answer: try again")),
            // A block of an intent log that no other device took.
            true if disk.is_some() && self.has_outage(vdev, guid) && !self.is_empty_log(vdev) => Some(no_replicas()),
            true => None,
        };
        if let Some(refused) = refused {
            // It lacks what logs have written meanwhile.
            let missed = Dtl::of(self.txg.0..self.txg.0 + 2);
            let is_used = disk.is_some();
            let missed = is_used.then_some((guid, &missed));
            let paused = self.devices.tree.pause_mends().await;
            self.devices.tree.change_with(&self.devices.root_vdev.config, disk.map(|disk| (guid, disk)), missed)?;
            drop(paused);
            if is_used {
                self.jobs.scan.stayed.insert(guid, Dtl::of(self.txg.0..self.txg.0 + 2));
            }
            return Err(refused);
        }
        self.devices.root_vdev = next;
        self.devices.found.leaves.remove(&guid);
        Ok(())
    }

    /// Has the configuration that has changed be part of the open txg.
    pub(crate) async fn vdevs_changed(&mut self) -> Result<(), SpaError> {
        self.devices.config_changed = true;
        self.write_config(self.txg).await
    }

    /// The facts about a leaf that decide if its device is opened, and where.
    async fn plan_online(&self, guid: Guid) -> Result<Plan, SpaError> {
        let (leaf, vdev, _) = self.device(guid).await?;
        Ok(Plan {
            ashift: self.devices.tree.ashift(vdev).unwrap_or(0),
            own: leaf.path.as_deref().map(PathBuf::from),
            is_open: self.devices.root_vdev.disks.contains_key(&guid),
            is_out: leaf.state.offline || leaf.state.faulted,
        })
    }

    /// Devices that are to be used, and are not there.
    pub(crate) fn absent(&self) -> Vec<Guid> {
        let lost = self.devices.root_vdev.lost();
        let leaves = self.devices.root_vdev.config.leaves().into_iter();
        let absent = leaves.filter(|leaf| lost.contains(&leaf.guid) && !leaf.state.offline && !leaf.state.faulted);
        absent.map(|leaf| leaf.guid).collect()
    }

    /// Devices that are wanted and not there, with the first txg that each lacks since it went.
    pub(super) fn gone_since(&self) -> BTreeMap<Guid, Txg> {
        let missed = &self.devices.root_vdev.missed;
        let since = |guid: &Guid| {
            missed.get(guid).and_then(|missed| missed.ranges().last()).map_or(self.txg, |range| Txg(range.start))
        };
        let gone: BTreeMap<Guid, Txg> = self.absent().into_iter().map(|guid| (guid, since(&guid))).collect();
        assert!(
            gone.keys().all(|guid| !self.devices.root_vdev.disks.contains_key(guid)),
            "a device that is not there is not written"
        );
        gone
    }

    async fn enter_online(
        &mut self,
        guid: Guid,
        found: Option<Result<FoundLeaf, String>>,
    ) -> Result<Onlined, SpaError> {
        let (_, vdev, class) = self.device(guid).await?;
        let mut next = self.devices.root_vdev.clone();
        next.set_use(guid, LeafUse::Online, false)?;
        let (found, mut reason) = match found.transpose() {
            Ok(found) => (found.filter(|_| !next.disks.contains_key(&guid)), None),
            Err(reason) => (None, Some(reason)),
        };
        let mut lacks = Dtl::new();
        let mut disk = None;
        if let Some(found) = &found {
            reason = too_small(&next.config, &[(guid, found.disk.clone())].into()).remove(&guid);
            // Its own log is known; an older copy of the device lacks more.
            let newest = found.uberblocks.iter().map(|copy| copy.uberblock.txg.0 + 1).max().unwrap_or(0);
            lacks.insert(newest..self.txg.0);
            disk = Some(found.disk.clone()).filter(|_| reason.is_none());
        }
        let was_used = self.devices.tree.is_leaf_online(guid);
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change_with(&next.config, disk.clone().map(|disk| (guid, disk)), [(guid, &lacks)])?;
        if disk.is_none() && next.disks.contains_key(&guid) {
            // It was given up while it was open.
            if !self.devices.tree.set_leaf_state(guid, LeafState::Online) {
                reason = Some("it hangs: it has not answered yet what it was asked before".to_owned());
            } else if !was_used {
                next.unspare(guid)?;
            }
        }
        drop(paused);
        self.jobs.scan.is_resilver_wanted = true;
        if !was_used {
            self.jobs.scan.leaf_is_back(guid);
        }
        let state = state_of(&self.devices.tree.status(), guid).unwrap_or(VdevState::Unavailable);
        if let Some((disk, found)) = disk.zip(found).filter(|_| state.is_readable()) {
            next.disks.insert(guid, disk);
            next.labels.insert(guid, found.config.as_ref().clone());
            next.unspare(guid)?;
            let found = FoundLeaf { uberblocks: Vec::new(), ..found };
            self.devices.found.leaves.insert(guid, found);
        }
        self.devices.root_vdev = next;
        if class == AllocationClass::Log && state.is_readable() {
            self.blocks.space.log_device_is_on(vdev);
        }
        self.note_dtls(self.txg, 1, [(guid, lacks)].into()).await?;
        self.vdevs_changed().await?;
        let missed = self.devices.root_vdev.missed.get(&guid).cloned().unwrap_or_default();
        Ok(Onlined { state, missed, reason })
    }
}

/// The state of a vdev.
fn state_of(status: &VdevStatus, guid: Guid) -> Option<VdevState> {
    if status.guid == guid {
        return Some(status.state);
    }
    status.children.iter().find_map(|child| state_of(child, guid))
}
