//! Splitting a pool of mirrors: one leg of each becomes a pool of its own, with all that the first one has, while that is in use.
//!
//! # Theory
//!
//! **Need.** A copy of a pool is wanted elsewhere, or as it is now, and the legs of its mirrors are just that. The first pool goes on meanwhile, with what is
//! left of its mirrors.
//!
//! **Structures**, as OpenZFS has them. While it goes on the first pool's configuration has `splitcfg`, a list with the guids of the legs by top-level
//! vdev. The new pool's labels and configuration have `split_guid`, the first pool's guid.
//!
//! **Life.**
//! ```text
//! quiet    some txgs           all that came before is on disk; intent logs leave log devices, which the new pool does not get
//! leave    txg T, beginning    the legs are used no more, as devices that go offline (`admin::offline`): T - 1 is the last txg that they have, and have all of
//! commit   T, end              the configuration has `splitcfg`; the legs are in the dirty time logs from T on
//! make     after T             the legs alone are opened as of T - 1, and written with txg T of the new pool: mirrors become their legs, log devices
//!                              holes; spares, cache devices and unclaimed intent logs go; name, guid, `split_guid`; exported
//! part     later txg           the first pool's configuration is without the legs, and without `splitcfg`
//! ```
//! **The decision** is the new pool's first uberblock. Labels 0 and 2 of all legs are the new pool's before it, and 1 and 3 the first one's after it. A label
//! counts from the uberblock on that its txg has ([`mod@crate::find`]), as where a pool gets another guid. So the legs are the first pool's until then, and the
//! new one's after that.
//!
//! **Invariants.** 1. No leg is written for the new pool before T is on disk. 2. A leg that is split off is needed by no sibling, and lacks nothing. 3. The
//! first pool gives up a leg only when the new pool is on disk: here, or by whoever finds it at an opening ([`Syncer::settle_split`]).
//!
//! **Crash.** Before T the pool is whole. After it whoever opens the first pool sees `splitcfg`: if the legs are another pool's by their labels, it parts
//! with them; if all are there as its own, the mark goes, and the legs make up for what they have missed since T. If some are not there nothing is
//! decided, and the mark stays.
//!
//! **A failure** of the new pool's txg has the legs come back in the same way. What it wrote is in space that was free in T - 1, and in the first pool's next
//! txg the legs get their labels again.
//!
//! **OpenZFS** takes a leg for split off if its newest label says so, without a look for uberblocks. So where the power went between these labels and the uberblock,
//! Cenote should be the first to open the pool.
//!
//! **Rejected.** *Labels of both pools in one step*: no disk writes two places at once. *The new pool from a copy of the configuration*, as OpenZFS does
//! it: as a pool with missing devices it is opened by what opens pools, and what the others had in the MOS is freed by what detaches devices.

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Class, Rng, boxed};
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::tree::VdevState;

use crate::admin::examine::Which;
use crate::admin::offline::{no_replicas, no_such_device};
use crate::config::{PoolState, SPLIT_GUID};
use crate::open::existing::{WriteOptions, open_split};
use crate::open::spares_l2cache::{AuxKind, remove_listed};
use crate::open::vdevs::refuse;
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::sync::vdev_changes::LeafUse;
use crate::sync::vdev_config::{RootVdev, set};
use crate::{FoundLeaf, FoundPool, ImportOptions, PropertyValue, Refusal, SpaError};

/// The mark of a pool that is being split, and its list of guids (`ZPOOL_CONFIG_SPLIT`, `ZPOOL_CONFIG_SPLIT_LIST`).
const MARK: &str = "splitcfg";
const LIST: &str = "guid_list";

/// How a pool is split.
#[derive(Clone, Debug, Default)]
pub struct SplitOptions {
    /// The new pool's name.
    pub name: String,
    /// The legs that it gets; the last one of each mirror that has none among them.
    pub legs: Vec<Guid>,
    /// Properties of the new pool.
    pub properties: Vec<(String, PropertyValue)>,
    /// The cache's limit, and tunables, with which the new pool is opened until it is written.
    pub import: ImportOptions,
    /// The seed of the new pool's guid; drawn by the machine if not given.
    pub seed: Option<u64>,
}

/// The legs that a pool of these vdevs is split into: for each place of a top-level vdev the leg, or none where there is no mirror for data.
///
/// # Errors
/// There is something but mirrors, or two legs of one mirror are wanted, one of them twice, or something else.
pub fn legs_of<'a>(vdevs: &'a VdevConfig, wanted: &[Guid]) -> Result<Vec<Option<&'a VdevConfig>>, SpaError> {
    let count = wanted.len();
    let mut wanted: BTreeSet<Guid> = wanted.iter().copied().collect();
    if wanted.len() < count {
        return Err(refuse("Device list must include at most one disk from each mirror: one is named twice"));
    }
    let mut legs = Vec::with_capacity(vdevs.children.len());
    for top in &vdevs.children {
        legs.push(match top.kind {
            VdevKind::Hole | VdevKind::Indirect(_) => None,
            _ if top.class == AllocationClass::Log => None,
            VdevKind::Mirror => {
                let named = top.children.iter().find(|leg| wanted.contains(&leg.guid));
                if let Some(leg) = named {
                    wanted.remove(&leg.guid);
                }
                named.or(top.children.last())
            }
            _ => return Err(refuse("Source pool must be composed only of mirrors")),
        });
    }
    if !wanted.is_empty() {
        let is_leg = |guid| vdevs.children.iter().flat_map(|top| &top.children).any(|leg| leg.guid == guid);
        let rest = if wanted.into_iter().all(is_leg) { "" } else { ", and no spare, log or cache device" };
        return Err(refuse(format!("Device list must include at most one disk from each mirror{rest}")));
    }
    assert_eq!(legs.len(), vdevs.children.len(), "each top-level vdev has its place");
    Ok(legs)
}

/// A leg that the pool does not use any more.
struct Leg {
    found: FoundLeaf,
    /// For the pool's history.
    name: String,
}

/// A split that has begun.
struct Begun {
    /// The first txg that the legs do not have.
    txg: Txg,
    legs: Vec<Leg>,
    how: WriteOptions,
    old: Guid,
    old_name: String,
}

impl Pool {
    /// Makes a pool of one leg of each mirror, which is exported when this is done. What was changed before the call is in both. The legs' guids are
    /// returned: they are part of this pool no more.
    ///
    /// # Errors
    /// The pool has something but mirrors, a leg is not whole, a checkpoint or a removal is in the way, or the new pool cannot be written: the pool is as it
    /// was, and legs that were taken out of it are back. The pool is closed or suspended.
    #[boxed]
    pub async fn split(&self, options: SplitOptions) -> Result<Vec<Guid>, SpaError> {
        // It goes on when the caller goes away: a pool is not left in the middle.
        let pool = self.clone();
        self.handle().spawn(Class::Issue, async move { pool.split_now(options).await }).await?
    }

    async fn split_now(&self, options: SplitOptions) -> Result<Vec<Guid>, SpaError> {
        self.examine_devices(Which::All).await?;
        let logs = self.look(|syncer| Box::pin(async move { syncer.log_devices() })).await?;
        // They are used again when this is dropped.
        let mut stopped = Vec::new();
        for vdev in logs {
            stopped.push(self.empty_log(vdev).await?);
        }
        // The legs are to have what was changed before.
        self.sync().await?;
        let wanted = options.legs.clone();
        let begun = self.change(move |syncer| Box::pin(async move { syncer.begin_split(&wanted).await })).await?;
        drop(stopped);
        self.wait_synced(begun.txg).await?;
        let guids: Vec<Guid> = begun.legs.iter().map(|leg| leg.found.guid).collect();
        match self.make_split(&begun, options).await {
            Ok(()) => {
                let names: Vec<String> = begun.legs.iter().map(|leg| leg.name.clone()).collect();
                let gone = guids.clone();
                drop(begun);
                let parted = self.change(move |syncer| {
                    Box::pin(async move {
                        syncer.part_with(&gone, &names).await?;
                        Ok::<_, SpaError>(syncer.txg)
                    })
                });
                let txg = parted.await?;
                self.wait_synced(txg).await?;
                Ok(guids)
            }
            Err(error) => {
                self.change(move |syncer| Box::pin(async move { syncer.undo_split(begun).await })).await?;
                Err(error)
            }
        }
    }

    /// Writes the new pool.
    async fn make_split(&self, begun: &Begun, options: SplitOptions) -> Result<(), SpaError> {
        let mut found = FoundPool::of_leaves(begun.old, []);
        for leg in &begun.legs {
            let again = leg.found.looked_at_again(begun.old).await;
            let what = || SpaError::devices(format!("the labels of {} cannot be read", leg.name));
            found.leaves.insert(leg.found.guid, again.ok_or_else(what)?);
        }
        let SplitOptions { name, properties, import, seed, .. } = options;
        // The other legs, and log devices, are missing.
        let import = ImportOptions { force: true, missing_log: true, new_name: Some(name), ..import };
        let mut made = open_split(self.handle(), found, &import, begun.how.clone()).await?;
        assert_eq!(made.txg, begun.txg, "the legs have all txgs up to the last before");
        let mut rng = Rng::new(seed.unwrap_or_else(|| self.handle().random_u64()));
        made.become_split(Guid(rng.next_u64() | 1), begun).await?;
        for (name, value) in &properties {
            made.set_pool_property(name, Some(value)).await?;
        }
        made.end(PoolState::Exported).await.map(drop)
    }
}

impl Syncer {
    /// The log devices.
    fn log_devices(&self) -> Result<Vec<VdevId>, SpaError> {
        self.check_no_checkpoint()?;
        let tops = self.devices.root_vdev.tops();
        Ok(tops.filter(|(_, top)| top.class == AllocationClass::Log).map(|(vdev, _)| vdev).collect())
    }

    /// Has the legs used no more, and marks the pool, in the open txg.
    async fn begin_split(&mut self, wanted: &[Guid]) -> Result<Begun, SpaError> {
        self.check_no_checkpoint()?;
        let (txg, before) = (self.txg, self.devices.root_vdev.clone());
        if self.jobs.evacuation.running.is_some() {
            return Err(SpaError::refused(Refusal::Busy, "device removal is in progress"));
        }
        if self.devices.old_config.has(MARK) {
            let what = "a split has begun and is not decided, since its devices are not there: detach them first";
            return Err(SpaError::refused(Refusal::Busy, what));
        }
        let places = legs_of(&before.config, wanted)?;
        let status = self.devices.tree.status();
        let is_whole = |guid: Guid| {
            let leaf = status.leaves().into_iter().find(|leaf| leaf.guid == guid).map(|leaf| leaf.state);
            let lacks = |missed: &std::collections::BTreeMap<Guid, Dtl>| {
                missed.get(&guid).is_some_and(|missed| !missed.is_empty())
            };
            leaf == Some(VdevState::Online) && !lacks(&before.missed) && !lacks(&before.unnoted)
        };
        let mut legs = Vec::new();
        for leg in places.iter().flatten() {
            let (name, guid) = (leg.display_name(), leg.guid);
            if !matches!(leg.kind, VdevKind::Disk | VdevKind::File) {
                return Err(refuse(format!("{name} is no device: wait until its replacement or spare is done")));
            }
            if !is_whole(guid) || self.is_required(guid) {
                return Err(match is_whole(guid) {
                    true => no_replicas(),
                    false => SpaError::refused(Refusal::Busy, format!("{name} is not whole: resilver it first")),
                });
            }
            let found = self.devices.found.leaves.get(&guid).zip(before.disks.get(&guid));
            let Some((found, disk)) = found else { return Err(no_such_device()) };
            legs.push(Leg { found: FoundLeaf { disk: Disk::clone(disk), ..found.clone() }, name });
        }
        if legs.is_empty() {
            return Err(refuse("Source pool must be composed only of mirrors"));
        }
        let list = places.iter().map(|leg| leg.map_or(0, |leg| leg.guid.0)).collect();
        let mut left = Vec::new();
        for leg in &legs {
            let guid = leg.found.guid;
            let (vdev, _) = before.top_of(guid).expect("a leg is below a top-level vdev");
            let mut next = self.devices.root_vdev.clone();
            next.set_use(guid, LeafUse::Offline, true)?;
            next.disks.remove(&guid);
            if let Err(error) = self.change_without(guid, vdev, next).await {
                // Those that went before lack nothing yet but what logs have written.
                self.take_back(left, txg).await?;
                return Err(error);
            }
            left.push(leg.found.clone());
        }
        let mut mark = NvList::new();
        mark.push(LIST, NvValue::Uint64Array(list));
        if !mutant::is(Mutant::SplitUnmarked) {
            set(&mut self.devices.old_config, MARK, mark);
        }
        self.note_missed(txg, 1, legs.iter().map(|leg| leg.found.guid)).await?;
        self.vdevs_changed().await?;
        let how = WriteOptions { clock: self.clock, host: self.host.clone(), check: false };
        Ok(Begun { txg, legs, how, old: self.guid, old_name: self.name.clone() })
    }

    /// Has legs used again that were not from a txg on.
    async fn take_back(&mut self, legs: Vec<FoundLeaf>, since: Txg) -> Result<(), SpaError> {
        for found in legs {
            let (guid, disk) = (found.guid, found.disk.clone());
            // Blocks of intent logs of the next txg may have been written without it.
            let (lacks, noted) = (Dtl::of(since.0..self.txg.0 + 2), Dtl::of(since.0..self.txg.0 + 1));
            let mut next = self.devices.root_vdev.clone();
            next.set_use(guid, LeafUse::Online, false)?;
            next.disks.insert(guid, disk.clone());
            next.labels.insert(guid, found.config.as_ref().clone());
            let paused = self.devices.tree.pause_mends().await;
            self.devices.tree.change_with(&next.config, [(guid, disk)], [(guid, &lacks)])?;
            drop(paused);
            self.devices.root_vdev = next;
            self.devices.found.leaves.insert(guid, FoundLeaf { uberblocks: Vec::new(), ..found });
            // Noted by the sync: a refusal changes nothing of the MOS.
            self.devices.root_vdev.unnoted.entry(guid).or_default().absorb(&noted);
        }
        self.jobs.scan.is_resilver_wanted = true;
        Ok(())
    }

    /// Has the pool be as it was before the split, whose legs have missed what came since.
    async fn undo_split(&mut self, begun: Begun) -> Result<(), SpaError> {
        self.devices.old_config.remove(MARK);
        self.take_back(begun.legs.into_iter().map(|leg| leg.found).collect(), begun.txg).await?;
        self.vdevs_changed().await
    }

    /// Parts with legs that are another pool's now: they are in the configuration no more, and what the MOS has of them is freed.
    async fn part_with(&mut self, legs: &[Guid], names: &[String]) -> Result<(), SpaError> {
        let txg = self.txg;
        let mut next = self.devices.root_vdev.clone();
        let (mut maps, mut zaps) = (Vec::new(), Vec::new());
        for guid in legs {
            if !next.can_part_with(*guid) {
                continue;
            }
            let Some((_, leaf)) = next.vdev(*guid) else { continue };
            maps.push(leaf.dtl);
            zaps.push(leaf.leaf_zap);
            next.detach(*guid)?;
        }
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&next.config, [])?;
        drop(paused);
        self.devices.root_vdev = next;
        self.devices.found.leaves.retain(|guid, _| !legs.contains(guid));
        self.devices.old_config.remove(MARK);
        self.free_objects(txg, maps, zaps, None).await?;
        for name in names {
            self.record_event("detach", &format!("vdev={name}"), None).await?;
        }
        debug_assert!(legs.iter().all(|guid| !self.devices.root_vdev.can_part_with(*guid)), "a leg is of one pool");
        self.vdevs_changed().await
    }

    /// Has a pool that was opened of one leg of each mirror be a pool of its own, in its first txg.
    async fn become_split(&mut self, guid: Guid, begun: &Begun) -> Result<(), SpaError> {
        let txg = self.txg;
        assert!(self.devices.synced.is_none(), "a pool is split off in its first txg");
        self.give_up_logs().await?;
        for vdev in self.log_devices()? {
            let log = self.devices.root_vdev.top(vdev).expect("a log device has its place").guid;
            self.enter_removal(vdev, log, true).await?;
        }
        let legs: BTreeSet<Guid> = begun.legs.iter().map(|leg| leg.found.guid).collect();
        let mut next = self.devices.root_vdev.clone();
        let others = next.keep_legs(&legs)?;
        next.set_guid(guid)?;
        next.labels.values_mut().for_each(|label| set(label, SPLIT_GUID, begun.old.0));
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&next.config, [])?;
        drop(paused);
        self.devices.root_vdev = next;
        (self.guid, self.devices.found.guid) = (guid, guid);
        set(&mut self.devices.old_config, SPLIT_GUID, begun.old.0);
        self.devices.old_config.remove(MARK);
        let (maps, zaps) = others.iter().map(|leaf| (leaf.dtl, leaf.leaf_zap)).unzip();
        self.free_objects(txg, maps, zaps, None).await?;
        for kind in [AuxKind::Spare, AuxKind::Cache] {
            for device in self.listed(kind).await? {
                let guid = Guid(device.u64("guid").unwrap_or(0));
                remove_listed(&self.mos.objset, &self.mos.directory, txg, kind, guid).await?;
            }
        }
        self.record_event("split", &format!("from pool {}", begun.old_name), None).await?;
        assert_eq!(self.txg, txg, "a pool is split off in one txg");
        self.vdevs_changed().await
    }

    /// Ends a split that a crash has interrupted, at the opening of the first pool.
    pub(crate) async fn settle_split(&mut self) -> Result<(), SpaError> {
        let list = self.devices.old_config.list(MARK).map(|mark| mark.u64s(LIST).unwrap_or_default().to_vec());
        let Some(list) = list else { return Ok(()) };
        let legs = list.into_iter().map(Guid).filter(|guid| self.devices.root_vdev.can_part_with(*guid));
        let legs: Vec<Guid> = legs.collect();
        let found = &self.devices.found;
        if legs.iter().any(|guid| found.split_off.contains(guid)) {
            let name = |guid: &Guid| self.devices.root_vdev.vdev(*guid).map(|(_, leaf)| leaf.display_name());
            let names: Vec<String> = legs.iter().filter_map(name).collect();
            self.notes.push(format!("a split that was interrupted is done: {} are another pool's", names.join(", ")));
            return self.part_with(&legs, &names).await;
        }
        if legs.iter().all(|guid| found.leaves.contains_key(guid)) {
            self.notes.push("a split that was interrupted is undone: all devices are this pool's".to_owned());
            self.devices.old_config.remove(MARK);
            return self.vdevs_changed().await;
        }
        self.notes.push("a split was interrupted, and its devices are not there: nothing is decided".to_owned());
        Ok(())
    }
}

impl RootVdev {
    /// True for a leaf of the pool that a mirror can be without.
    fn can_part_with(&self, guid: Guid) -> bool {
        let leaf = self.vdev(guid);
        leaf.is_some_and(|(above, leaf)| {
            let mirror = above.last().filter(|above| above.kind == VdevKind::Mirror && above.children.len() > 1);
            leaf.kind.is_leaf() && mirror.is_some()
        })
    }
}
