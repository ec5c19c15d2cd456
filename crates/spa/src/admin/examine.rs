//! Looking again at devices that are in use: is each still there, and is what it has still the pool's?
//!
//! # Theory
//!
//! **Need.** A device can lose its contents while it is open: somebody writes a file system onto it, or deletes the file and makes a new one. Its
//! descriptor works on, so no request fails, and the device counts as one that has everything; whoever then takes its mirror away loses the data.
//! OpenZFS closes and opens each device again, and looks at its label, where a person asks for it (`zpool online`, `clear`, `reopen`). Here the
//! device stays open, and its labels are read through it.
//!
//! **Life of a device that is looked at.**
//! ```text
//! look     outside of the slot   the path names the device that is open; one of its labels says: this device of this pool
//! lose     in the slot, txg T    the topology loses the device, unless others lack what it has ([`Syncer::is_required`]): then it stays, and
//!                                its caller is told
//! miss     from T on             as a device that was not there
//! ```
//! Before a device is given away (`offline`, `detach`), the others of its top-level vdev are looked at: they are to have what it has. One that is not
//! used because of its errors is looked at before it is used again (`clear`): it may have been emptied since.
//!
//! **Invariants.** 1. A device is not lost while a txg is only on it. 2. A device that is lost is closed, so that a new one can be made at its
//! path. 3. Nothing of it is on disk: whoever opens the pool looks for himself.
//!
//! **Rejected.** *Closing and opening a device that works*: requests would wait for it, and a lock is lost for a moment. *A device without its
//! label kept and resilvered*: somebody else may have it now.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_taskq::{boxed, join_all};
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::probe;

use crate::SpaError;
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::sync::devices::forget_diagnosis;

/// Devices looked at, at once.
pub(super) const LOOKS_MAX: usize = 32;
/// A device that has not answered after this long is not judged by its label.
pub(super) const LOOK_PATIENCE: Duration = Duration::from_secs(10);

/// A used device that is not what it was.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// Why, for a person.
    pub(crate) reason: String,
    /// It is used on, since other devices lack what it has.
    pub(crate) is_kept: bool,
}

impl Pool {
    /// Looks at a device that is used: if it is gone, or has another's label, it is not used from now on, unless others lack what it has.
    ///
    /// # Errors
    /// The pool is closed or suspended.
    #[boxed]
    pub async fn examine_device(&self, guid: Guid) -> Result<(), SpaError> {
        self.examine_devices(Which::One(guid)).await.map(drop)
    }

    /// Looks at a device that is used, at those that share a top-level vdev with it, or at all: those that are gone, or have another's label,
    /// are not used from now on.
    ///
    /// # Errors
    /// The pool is closed or suspended.
    #[boxed]
    pub(crate) async fn examine_devices(&self, which: Which) -> Result<BTreeMap<Guid, Lost>, SpaError> {
        let disks: Vec<(Guid, Disk)> = self.peek(move |syncer| syncer.used_disks(which)).await?;
        let pool = self.guid();
        let mut found = BTreeMap::new();
        for some in disks.chunks(LOOKS_MAX) {
            let looks = some.iter().map(|(guid, disk)| async move {
                let seen = self.handle().timeout(LOOK_PATIENCE, look(disk, pool, *guid)).await;
                Some((*guid, seen.flatten()?))
            });
            found.extend(join_all(looks).await.into_iter().flatten());
        }
        let mut lost = BTreeMap::new();
        for (guid, reason) in found {
            let has_left = self.change(move |syncer| Box::pin(async move { syncer.enter_lost(guid).await })).await?;
            lost.insert(guid, Lost { reason, is_kept: !has_left });
        }
        Ok(lost)
    }
}

impl Lost {
    /// Its fate, for a person.
    pub(crate) fn told(&self) -> String {
        match self.is_kept {
            true => format!("{}; no other device has all that it had, and it stays in use", self.reason),
            false => format!(
                "{}, and it is not used: 'zpool replace' has another device in its place, or a new one there",
                self.reason
            ),
        }
    }
}

/// Devices to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All that are used.
    All,
    /// This one.
    One(Guid),
    /// The others of its top-level vdev.
    SiblingsOf(Guid),
    /// This one, or all, if it is not used because of its errors, and may be used again.
    Condemned(Option<Guid>),
}

/// Why a device is not what it was, if so.
async fn look(disk: &Disk, pool: Guid, guid: Guid) -> Option<String> {
    if let Err(error) = disk.device().check_present() {
        return Some(format!("{}: {error}", disk.path()));
    }
    let report = probe(disk).await;
    let is_own = |config: &cenote_format::nvlist::NvList| {
        (config.u64("pool_guid"), config.u64("guid")) == (Some(pool.0), Some(guid.0))
    };
    let is_there = report.labels.iter().filter_map(|label| label.config.as_ref().ok()).any(|config| is_own(config));
    // A device that does not answer is another matter.
    let is_read = report.labels.iter().all(|label| label.bytes.is_some());
    (is_read && !is_there)
        .then(|| format!("{}: its label is not that of this device of the pool any more", disk.path()))
}

impl Syncer {
    pub(crate) fn used_disks(&self, which: Which) -> Vec<(Guid, Disk)> {
        let root_vdev = &self.devices.root_vdev;
        let top_of = |guid| root_vdev.top_of(guid).map(|(vdev, _)| vdev);
        let is_meant = |guid: Guid| match which {
            Which::All => true,
            Which::One(one) => guid == one,
            Which::SiblingsOf(of) => guid != of && top_of(guid) == top_of(of),
            Which::Condemned(one) => self.devices.is_condemned(guid) && one.is_none_or(|one| one == guid),
        };
        let condemned = self.devices.found.leaves.iter().filter(|(guid, _)| self.devices.is_condemned(**guid));
        let disks = root_vdev.disks.iter().chain(condemned.map(|(guid, found)| (guid, &found.disk)));
        disks.filter(|(guid, _)| is_meant(**guid)).map(|(guid, disk)| (*guid, disk.clone())).collect()
    }

    /// A device that fails its requests since it is not there any more has not failed: the pool does without it until it is back. The reason, for a
    /// person; none where it is there, or others lack what it has.
    ///
    /// # Errors
    /// The pool has failed.
    pub(crate) async fn lose_if_gone(&mut self, guid: Guid) -> Result<Option<String>, SpaError> {
        let Some(disk) = self.devices.root_vdev.disks.get(&guid).cloned() else { return Ok(None) };
        if disk.device().check_present().is_ok() || !self.enter_lost(guid).await? {
            return Ok(None);
        }
        assert!(self.absent().contains(&guid), "a device that is gone is wanted still");
        Ok(Some(format!("device {} is gone; it is used again once it is back, under any path", disk.path())))
    }

    /// Has the pool do without a device that is gone. `false` if it cannot.
    pub(super) async fn enter_lost(&mut self, guid: Guid) -> Result<bool, SpaError> {
        let (_, vdev, _) = self.device(guid).await?;
        let is_condemned = self.devices.is_condemned(guid);
        if !is_condemned && !self.devices.root_vdev.disks.contains_key(&guid) {
            return Ok(true);
        }
        if !is_condemned && self.is_required(guid) {
            return Ok(false);
        }
        let mut next = self.devices.root_vdev.clone();
        if is_condemned {
            forget_diagnosis(&mut next, guid)?;
        }
        next.lose_leaf(guid)?;
        next.disks.remove(&guid);
        self.change_without(guid, vdev, next).await?;
        self.note_missed(self.txg, 1, [guid]).await?;
        self.devices.config_changed |= is_condemned;
        assert!(
            !self.devices.root_vdev.disks.contains_key(&guid),
            "a device that is lost is not written (invariant 1)"
        );
        Ok(true)
    }
}
