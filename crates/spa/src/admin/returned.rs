//! Devices that were gone and are back, under any path: a label says which device of which pool it is.
//!
//! A cable is plugged in again, a disk moves to another slot, a system gives it another name. OpenZFS's daemon is told of each new disk and looks for
//! the pool that wants it; here the pool that wants one looks.
//!
//! Hot spares and cache devices are found in the same way. Nothing that is needed is on them, so one that is found is taken, whatever its age, and the
//! pool's list gets the path where it is now.
//!
//! **Invariants.** 1. Only a device that is wanted and not there is taken: not one that a person took offline, nor one that was judged to have failed.
//! 2. A device is taken if it is as new as the pool left it. An older copy of it, such as somebody's backup, would be overwritten: a person may give it
//! by `zpool online`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cenote_format::ids::Guid;
use cenote_taskq::boxed;

use crate::auxiliary::{look_at_spare, open_cache, spare_use};
use crate::find::{LOCK_PATIENCE, find_all};
use crate::open::spares_l2cache::{AuxKind, set_listed_paths};
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::{FoundAuxiliary, PoolState, SpaError, SpareUse};

/// A hot spare that no vdev has, or a cache device.
struct Listed {
    kind: AuxKind,
    guid: Guid,
    /// Its recorded path.
    path: String,
    found: Option<FoundAuxiliary>,
}

impl Listed {
    fn is_gone(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.disk.device().check_present().is_err())
    }
}

impl Pool {
    /// Takes back devices that the pool wants and does not have, if they are at one of these paths. Their paths; they lack what they have missed, and
    /// are resilvered.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn take_back(&self, paths: &[PathBuf]) -> Result<Vec<PathBuf>, SpaError> {
        let wanted = self.peek(|syncer| syncer.gone_since()).await?;
        let (pools, _, auxiliaries) = find_all(self.handle(), paths).await;
        let mut taken = self.take_back_auxiliaries(&auxiliaries).await?;
        let found = pools.into_iter().find(|found| found.guid == self.guid());
        let Some(found) = found.filter(|_| !wanted.is_empty()) else { return Ok(taken) };
        for (guid, since) in wanted {
            let Some(leaf) = found.leaves.get(&guid).filter(|leaf| leaf.newest_txg().0 + 1 >= since.0) else {
                continue;
            };
            let path = leaf.disk.device().path().to_owned();
            if self.online_device(guid, vec![path.clone()]).await?.state.is_readable() {
                taken.push(path);
            }
        }
        assert!(taken.len() <= found.leaves.len() + auxiliaries.len(), "each is a device that was found");
        Ok(taken)
    }

    /// Hot spares and cache devices that are not there, with their recorded paths. One that was there until now is let go of. A spare that another pool
    /// has taken is there, and so is a cache device that a person has taken offline.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn absent_auxiliaries(&self) -> Result<Vec<(Guid, String)>, SpaError> {
        let (mut absent, mut lost) = (Vec::new(), Vec::new());
        for listed in self.look(|syncer| Box::pin(async move { syncer.auxiliaries().await })).await? {
            let Listed { kind, guid, ref path, ref found } = listed;
            if kind == AuxKind::Cache && self.is_cache_offline(guid) {
                continue;
            }
            if listed.is_gone() {
                lost.push((guid, None));
                if kind == AuxKind::Cache {
                    self.leave_cache(guid).await;
                    self.trouble(format!(
                        "the cache device {path} is gone; it is used again once it is back, under any path"
                    ));
                }
            } else if found.is_some() {
                continue;
            }
            let is_used = kind == AuxKind::Spare
                && matches!(spare_use(self.handle(), Path::new(path), guid, self.guid()).await, SpareUse::UsedBy(_));
            if !is_used {
                absent.push((guid, path.clone()));
            }
        }
        if !lost.is_empty() {
            self.set_auxiliaries(lost).await?;
            // Readers see it with the next root.
            self.sync().await?;
        }
        Ok(absent)
    }

    /// Has those be there again that were found. Their paths.
    async fn take_back_auxiliaries(&self, found: &BTreeMap<Guid, FoundAuxiliary>) -> Result<Vec<PathBuf>, SpaError> {
        let (mut back, mut paths) = (Vec::new(), Vec::new());
        if found.is_empty() {
            return Ok(paths);
        }
        let absent: Vec<Guid> = self.absent_auxiliaries().await?.into_iter().map(|(guid, _)| guid).collect();
        for seen in absent.iter().filter_map(|guid| found.get(guid)) {
            let (path, guid) = (seen.disk.device().path().to_owned(), seen.guid);
            let again = match seen.state {
                PoolState::Spare => look_at_spare(self.handle(), &path, guid, self.guid())
                    .await
                    .filter(|seen| seen.user.is_none())
                    .map(|seen| seen.found),
                _ => open_cache(self.handle(), &path, guid, LOCK_PATIENCE).await,
            };
            let Some(again) = again else { continue };
            assert_eq!(again.guid, guid, "a device is known by its guid, wherever it is");
            if again.state == PoolState::L2Cache {
                // It was given up.
                self.leave_cache(guid).await;
            }
            back.push((guid, Some(again)));
            paths.push(path);
        }
        if !back.is_empty() {
            self.set_auxiliaries(back).await?;
            self.note_auxiliary_paths().await?;
            self.use_caches().await?;
            self.sync().await?;
        }
        assert!(paths.len() <= absent.len(), "a device is taken back that was not there");
        Ok(paths)
    }

    /// Has the lists of spares and cache devices name the paths at which they are.
    ///
    /// # Errors
    /// The MOS cannot be changed. The pool is closed or suspended.
    #[boxed]
    pub async fn note_auxiliary_paths(&self) -> Result<(), SpaError> {
        let mut moved: BTreeMap<Guid, String> = BTreeMap::new();
        for listed in self.look(|syncer| Box::pin(async move { syncer.auxiliaries().await })).await? {
            // A partition without a node of its own has no path.
            let Some(found) = listed.found.filter(|found| found.disk.start_bytes() == 0) else { continue };
            let now = found.disk.device().path();
            let recorded = Path::new(&listed.path);
            let Some(text) = now.to_str().filter(|_| now != recorded) else { continue };
            // The recorded path may be another name of the same device.
            let (there, here) = (self.handle().identity(recorded).await, self.handle().identity(now).await);
            if here.is_none() || there != here {
                moved.insert(listed.guid, text.to_owned());
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        self.change(move |syncer| Box::pin(async move { syncer.enter_auxiliary_paths(&moved).await })).await
    }
}

impl Syncer {
    /// The hot spares that no vdev has, without distributed ones, and the cache devices.
    async fn auxiliaries(&self) -> Result<Vec<Listed>, SpaError> {
        let mut all = Vec::new();
        for kind in [AuxKind::Spare, AuxKind::Cache] {
            for device in self.listed(kind).await?.iter().filter(|device| device.str("type") != Some("dspare")) {
                let (Some(guid), Some(path)) = (device.u64("guid").map(Guid), device.str("path")) else { continue };
                if self.devices.root_vdev.vdev(guid).is_none() && !self.devices.leaving.contains(&guid) {
                    let found = self.devices.found.auxiliaries.get(&guid).cloned();
                    all.push(Listed { kind, guid, path: path.to_owned(), found });
                }
            }
        }
        Ok(all)
    }

    async fn enter_auxiliary_paths(&mut self, paths: &BTreeMap<Guid, String>) -> Result<(), SpaError> {
        for kind in [AuxKind::Spare, AuxKind::Cache] {
            set_listed_paths(&self.mos.objset, &self.mos.directory, self.txg, kind, paths).await?;
        }
        Ok(())
    }
}
