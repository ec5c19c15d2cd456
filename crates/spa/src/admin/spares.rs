//! Hot spares that stand for failed devices by themselves.
//!
//! # Theory
//!
//! **Need.** A disk fails at night. Until somebody comes its vdev has less redundancy than it should, and a spare lies idle beside it.
//!
//! **Policy**, as OpenZFS's daemon has it (`zed`). A device of a vdev for data gets a spare when it is faulted, by diagnosis or by a person, when it is not
//! there, and when it is degraded for its wrong answers; not when a person has taken it offline, and not below a replacement. Of the spares that are there
//! and free a distributed one of its own draid comes first, then one of the same kind (rotating or not) is preferred, then the smallest that is large enough.
//!
//! **Life.** States of devices are events; the task looks at each change of one, and at the pool when it begins. It attaches the spare as
//! `zpool replace` does (`admin::attach`), and so a resilver begins. When the device is back, or forgiven, it is marked `unspare`, and the end of its
//! resilver sends the spare back ([`Pool::finish_replacing`]); the one who replaces or detaches the device decides otherwise.
//!
//! **Shared spares.** Several pools may list a spare: it has one guid and, while it is free, a label that names no pool, as in OpenZFS. The
//! kernel has a table of them; here processes have to agree. So a free spare is open to be read alone. Who takes it opens it for his process
//! alone, and looks at its label then; a spare in use has the label of a leaf, and stays locked while its pool is open. Who gives it back writes
//! the spare's label, and lets go of the lock.
//!
//! **Invariants.** 1. A spare is taken only if its device is this process's alone and has its label. 2. A vdev has one spare at most: below a `spare` none
//! is asked for. 3. Of a spare that is free no process has the lock for longer than it takes to label it.
//!
//! **Crash.** A spare is part of the pool from the attachment's txg on. A power cut before that leaves it free, and the next opening takes it.

use std::path::PathBuf;

use cenote_format::ids::Guid;
use cenote_format::nvlist::NvList;
use cenote_taskq::{Class, boxed};

use crate::admin::attach::{AttachOptions, NewDevice};
use crate::events::{Event, NewEvents};
use crate::find::{look_at_spare, open_spare, spare_use};
use crate::open::spares_l2cache::AuxKind;
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::{FoundAuxiliary, Refusal, SpaError, SpareUse};

/// A hot spare of the list that no vdev has.
struct Free {
    guid: Guid,
    /// Its recorded path.
    path: PathBuf,
    found: Option<FoundAuxiliary>,
}

fn is_state_change(event: &Event) -> bool {
    event.list.str("class").is_some_and(|class| class.ends_with("statechange"))
}

impl Pool {
    /// Finds out which hot spares are there: one whose device is gone, or has another label, cannot be taken any more; one that is back can.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn look_at_spares(&self) -> Result<(), SpaError> {
        let spares = self.look(|syncer| Box::pin(async move { syncer.free_spares().await })).await?;
        let mut changed = Vec::new();
        for Free { guid, path, found } in spares {
            let place = found.as_ref().map_or(path, |found| found.disk.device().path().to_owned());
            let now = look_at_spare(self.handle(), &place, guid).await;
            assert!(now.as_ref().is_none_or(|now| now.guid == guid), "a spare is known by its guid");
            if now.is_some() != found.is_some() {
                changed.push((guid, now));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.set_spares(changed).await?;
        // Readers see it with the next root.
        self.sync().await.map(drop)
    }

    /// Has these spares be there, or not.
    async fn set_spares(&self, changed: Vec<(Guid, Option<FoundAuxiliary>)>) -> Result<(), SpaError> {
        self.peek(move |syncer| {
            let mut found = (*syncer.devices.found.auxiliaries).clone();
            for (guid, spare) in changed {
                match spare {
                    Some(spare) => drop(found.insert(guid, spare)),
                    None => drop(found.remove(&guid)),
                }
            }
            syncer.devices.found.auxiliaries = found.into();
        })
        .await
    }

    /// Has a free spare's device be this process's alone: it is about to be taken. False for what is no such spare.
    ///
    /// # Errors
    /// Its device is not there, or another pool has taken it.
    pub(crate) async fn hold_spare(&self, guid: Guid) -> Result<bool, SpaError> {
        let spares = self.look(|syncer| Box::pin(async move { syncer.free_spares().await })).await?;
        let Some(Free { path, found, .. }) = spares.into_iter().find(|spare| spare.guid == guid) else {
            return Ok(false);
        };
        let place = found.map_or_else(|| path.clone(), |found| found.disk.device().path().to_owned());
        let Some(spare) = open_spare(self.handle(), &place, guid).await else {
            let what = match spare_use(self.handle(), &place, guid).await {
                SpareUse::UsedBy(pool) => format!("the spare {} is in use by pool '{pool}'", path.display()),
                SpareUse::Free => format!("another process has the spare {}: try again", path.display()),
                SpareUse::Gone => format!("the spare {} is not there", path.display()),
            };
            return Err(SpaError::refused(Refusal::NotThere, what));
        };
        assert_eq!(spare.guid, guid, "a spare is taken that has its label (invariant 1)");
        self.set_spares(vec![(guid, Some(spare))]).await?;
        Ok(true)
    }

    /// Lets go of the devices of spares that are free: others may take them.
    pub(crate) async fn let_spares_go(&self, guids: &[Guid]) -> Result<(), SpaError> {
        let spares = self.look(|syncer| Box::pin(async move { syncer.free_spares().await })).await?;
        let mut changed = Vec::new();
        for Free { guid, path, found } in spares.into_iter().filter(|spare| guids.contains(&spare.guid)) {
            let place = found.map_or(path, |found| found.disk.device().path().to_owned());
            changed.push((guid, look_at_spare(self.handle(), &place, guid).await));
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.set_spares(changed).await?;
        // The last root has the devices as they were.
        self.sync().await.map(drop)
    }

    /// Has hot spares stand for devices that have failed or are not there. Those that do now are returned.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn use_spares(&self) -> Result<Vec<Guid>, SpaError> {
        let mut used = Vec::new();
        let failed = self.peek(|syncer| syncer.devices.wants_spare()).await?;
        if failed.is_empty() {
            return Ok(used);
        }
        self.look_at_spares().await?;
        for old in failed {
            if let Some(spare) = self.use_own_spare(old).await? {
                used.push(spare);
                continue;
            }
            let spares = self.look(move |syncer| Box::pin(async move { syncer.spares_for(old).await })).await?;
            for spare in spares {
                let new = NewDevice::Spare(spare);
                let options =
                    AttachOptions { old, new, is_replacing: true, is_sequential: false, ashift: None, seed: None };
                match self.attach_device(options).await {
                    Ok(_) => {
                        used.push(spare);
                        break;
                    }
                    // Another may do.
                    Err(SpaError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(used)
    }

    /// Has a distributed spare of its draid stand for a device: it is rebuilt, as OpenZFS's daemon has it, or resilvered where that cannot be now.
    async fn use_own_spare(&self, old: Guid) -> Result<Option<Guid>, SpaError> {
        let spares = self.look(move |syncer| Box::pin(async move { syncer.own_spares(old).await })).await?;
        for (spare, is_sequential) in spares.into_iter().flat_map(|spare| [(spare, true), (spare, false)]) {
            let new = NewDevice::Spare(spare);
            let options = AttachOptions { old, new, is_replacing: true, is_sequential, ashift: None, seed: None };
            match self.attach_device(options).await {
                Ok(_) => return Ok(Some(spare)),
                Err(error) if error.is_unsupported() || matches!(error, SpaError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Has hot spares used from now on as devices fail, for as long as the pool is open.
    pub fn take_spares(&self) {
        let (pool, events) = (self.downgrade(), self.events().clone());
        self.handle().detach(Class::Background, async move {
            let mut seen = 0;
            loop {
                let Some(pool) = pool.upgrade() else { return };
                if let Err(error) = pool.use_spares().await {
                    pool.trouble(format!("hot spares are not used: {error}"));
                }
                drop(pool);
                loop {
                    let NewEvents { dropped, events: new } = events.wait_after(seen).await;
                    let Some(last) = new.last() else { return };
                    seen = last.eid;
                    if dropped > 0 || new.iter().any(|event| is_state_change(event)) {
                        break;
                    }
                }
            }
        });
    }
}

impl Syncer {
    /// The distributed spares of a device's draid that no vdev has.
    async fn own_spares(&self, old: Guid) -> Result<Vec<Guid>, SpaError> {
        let Some(top) = self.devices.root_vdev.top_of(old).map(|(_, top)| top.guid) else { return Ok(Vec::new()) };
        let listed = self.listed(AuxKind::Spare).await?;
        let is_own = |spare: &&NvList| spare.str("type") == Some("dspare") && spare.u64("top_guid") == Some(top.0);
        let own = listed.iter().filter(is_own).filter_map(|spare| spare.u64("guid").map(Guid));
        Ok(own.filter(|guid| self.devices.root_vdev.vdev(*guid).is_none()).collect())
    }

    /// The hot spares that no vdev has; no distributed ones.
    async fn free_spares(&self) -> Result<Vec<Free>, SpaError> {
        let listed = self.listed(AuxKind::Spare).await?;
        let free = listed.iter().filter(|spare| spare.str("type") != Some("dspare")).filter_map(|spare| {
            let guid = spare.u64("guid").map(Guid)?;
            let path = PathBuf::from(spare.str("path")?);
            let found = self.devices.found.auxiliaries.get(&guid).cloned();
            self.devices.root_vdev.vdev(guid).is_none().then_some(Free { guid, path, found })
        });
        Ok(free.collect())
    }

    /// The spares that may stand for a device, best first.
    async fn spares_for(&self, old: Guid) -> Result<Vec<Guid>, SpaError> {
        let top = self.devices.root_vdev.top_of(old).map(|(_, top)| top.leaves());
        let disks = top.iter().flatten().filter_map(|leaf| self.devices.root_vdev.disks.get(&leaf.guid));
        let is_rotational = disks.into_iter().any(|disk| disk.device().is_rotational());
        let mut spares: Vec<_> = self.free_spares().await?.into_iter().filter_map(|spare| spare.found).collect();
        spares.sort_by_key(|spare| {
            let device = spare.disk.device();
            (device.is_rotational() != is_rotational, spare.disk.size_bytes())
        });
        Ok(spares.into_iter().map(|spare| spare.guid).collect())
    }
}
