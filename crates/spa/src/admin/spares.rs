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
//! the spare's label, and lets go of the lock. A pool that finds no spare looks again as long as a device of its own wants one.
//!
//! **Invariants.** 1. A spare is taken only if its device is this process's alone, and no label on it is that of a leaf of another pool. 2. A vdev has one
//! spare at most: below a `spare` none is asked for. 3. Of a spare that is free no process has the lock for longer than it takes to label it. 4. A spare
//! that is given back is not taken again before it has its labels (`Devices::leaving`): they are written when the pool on disk is without it.
//!
//! **Crash.** A spare is part of the pool from the attachment's txg on. A power cut before that leaves it free, and the next opening takes it. One between
//! the labels of an attachment or a detachment leaves labels of both kinds: they are a matter of the pool that they name ([`crate::auxiliary`]), which
//! labels the spare anew when it is opened and does not have it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_format::nvlist::NvList;
use cenote_taskq::{Class, boxed};
use cenote_vdev::commit::initialize;
use cenote_vdev::leaf::probe_device;

use crate::admin::attach::{AttachOptions, NewDevice};
use crate::auxiliary::{SeenSpare, look_at_spare, spare_on, spare_use};
use crate::events::{Event, NewEvents};
use crate::find::LOCK_PATIENCE;
use crate::open::spares_l2cache::{AuxKind, spare_label};
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::{FoundAuxiliary, Refusal, SpaError, SpareUse};

/// A hot spare of the list that no vdev has.
struct Free {
    guid: Guid,
    /// Its recorded path.
    path: PathBuf,
    found: Option<FoundAuxiliary>,
    /// Its entry in the list.
    listed: NvList,
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
        let (mut changed, mut mislabelled) = (Vec::new(), Vec::new());
        for Free { guid, path, found, .. } in spares {
            let place = found.as_ref().map_or(path, |found| found.disk.device().path().to_owned());
            let now = look_at_spare(self.handle(), &place, guid, self.guid()).await.filter(|seen| seen.user.is_none());
            mislabelled.extend(now.as_ref().filter(|seen| seen.is_mislabelled).map(|_| (guid, place)));
            if now.is_some() != found.is_some() {
                changed.push((guid, now.map(|seen| seen.found)));
            }
        }
        if changed.is_empty() && mislabelled.is_empty() {
            return Ok(());
        }
        self.set_auxiliaries(changed).await?;
        // Readers see it with the next root; and the root that the pool was opened at is that on disk from then on.
        self.sync().await?;
        for (guid, place) in mislabelled {
            self.change(move |syncer| Box::pin(async move { syncer.label_free_spare(guid, &place).await })).await?;
        }
        Ok(())
    }

    /// Has these spares and cache devices be there, or not.
    pub(crate) async fn set_auxiliaries(&self, changed: Vec<(Guid, Option<FoundAuxiliary>)>) -> Result<(), SpaError> {
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
        let refused = |what: String| SpaError::refused(Refusal::Busy, what);
        let (spares, is_leaving) = self
            .look(move |syncer| {
                let is_leaving = syncer.devices.leaving.contains(&guid);
                Box::pin(async move { Ok::<_, SpaError>((syncer.free_spares().await?, is_leaving)) })
            })
            .await?;
        if is_leaving {
            return Err(refused("the spare is being given back: try again".to_owned()));
        }
        let Some(Free { path, found, .. }) = spares.into_iter().find(|spare| spare.guid == guid) else {
            return Ok(false);
        };
        let place = found.map_or_else(|| path.clone(), |found| found.disk.device().path().to_owned());
        let opened = self.handle().open_alone(&place, LOCK_PATIENCE).await.ok();
        let seen = match &opened {
            Some(device) => spare_on(&probe_device(device).await, guid, self.guid()),
            None => None,
        };
        let Some(SeenSpare { found: spare, user: None, .. }) = seen else {
            let path = path.display();
            return Err(match spare_use(self.handle(), &place, guid, self.guid()).await {
                SpareUse::UsedBy(pool) => refused(format!("the spare {path} is in use by pool '{pool}'")),
                SpareUse::Free => refused(format!("another process has the spare {path}: try again")),
                SpareUse::Gone => SpaError::refused(Refusal::NotThere, format!("the spare {path} is not there")),
            });
        };
        assert_eq!(spare.guid, guid, "a spare is taken that has its label (invariant 1)");
        self.set_auxiliaries(vec![(guid, Some(spare))]).await?;
        Ok(true)
    }

    /// Lets go of the devices of spares that are free, and have their labels: others may take them.
    pub(crate) async fn let_spares_go(&self, guids: &[Guid]) -> Result<(), SpaError> {
        let spares = self.look(|syncer| Box::pin(async move { syncer.unused_spares().await })).await?;
        let mut changed = Vec::new();
        for Free { guid, path, found, .. } in spares.into_iter().filter(|spare| guids.contains(&spare.guid)) {
            let place = found.map_or(path, |found| found.disk.device().path().to_owned());
            let now = look_at_spare(self.handle(), &place, guid, self.guid()).await.filter(|seen| seen.user.is_none());
            changed.push((guid, now.map(|seen| seen.found)));
        }
        if changed.is_empty() {
            return Ok(());
        }
        let left: Vec<Guid> = changed.iter().map(|(guid, _)| *guid).collect();
        assert!(left.iter().all(|guid| guids.contains(guid)), "what is let go of was asked for");
        self.set_auxiliaries(changed).await?;
        self.peek(move |syncer| syncer.devices.leaving.retain(|guid| !left.contains(guid))).await?;
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
            // A power cut may have left some without their labels, which other pools wait for.
            if let Some(pool) = pool.upgrade()
                && let Err(error) = pool.look_at_spares().await
            {
                pool.trouble(format!("hot spares cannot be looked at: {error}"));
            }
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

    /// Gives a spare that is free the labels of one, in place of those of a leaf of this pool. The pool on disk is without it.
    async fn label_free_spare(&mut self, guid: Guid, place: &Path) -> Result<(), SpaError> {
        let spares = self.free_spares().await?;
        let Some(spare) = spares.into_iter().find(|spare| spare.guid == guid) else { return Ok(()) };
        // Another process may be about to take it, or this one.
        let Ok(device) = self.handle.open_alone(place, Duration::ZERO).await else { return Ok(()) };
        let seen = spare_on(&probe_device(&device).await, guid, self.guid());
        let Some(SeenSpare { found, user: None, is_mislabelled: true }) = seen else { return Ok(()) };
        assert!(self.devices.root_vdev.vdev(guid).is_none(), "a leaf keeps its labels");
        if let Err(error) = initialize(&found.disk, &spare_label(&spare.listed)).await {
            let what = format!("the spare {} could not be labelled as a free one: {error}", place.display());
            self.blocks.space.troubles.tell(what);
        }
        Ok(())
    }

    /// The hot spares that no vdev has; no distributed ones, and none that is being given back.
    async fn free_spares(&self) -> Result<Vec<Free>, SpaError> {
        let mut free = self.unused_spares().await?;
        free.retain(|spare| !self.devices.leaving.contains(&spare.guid));
        let is_leaf = |guid| self.devices.root_vdev.vdev(guid).is_some();
        assert!(free.iter().all(|spare| !is_leaf(spare.guid)), "a spare that is free is no leaf");
        Ok(free)
    }

    /// The same, with those that are being given back.
    async fn unused_spares(&self) -> Result<Vec<Free>, SpaError> {
        let listed = self.listed(AuxKind::Spare).await?;
        let free = listed.iter().filter(|spare| spare.str("type") != Some("dspare")).filter_map(|spare| {
            let guid = spare.u64("guid").map(Guid)?;
            let path = PathBuf::from(spare.str("path")?);
            let found = self.devices.found.auxiliaries.get(&guid).cloned();
            self.devices.root_vdev.vdev(guid).is_none().then(|| Free { guid, path, found, listed: spare.clone() })
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
