//! A person who has a job done: looks at which stage it stands, and gives the next verb. What a stage is follows from what is on disk alone.

use std::collections::BTreeSet;
use std::path::Path;

use cenote_dmu::Zap;
use cenote_format::dsl::{RebuildPhys, RebuildState, ScanFunction, ScanState, pool_directory};
use cenote_format::ids::{Guid, ObjectId};
use cenote_sim::{Machine, disk};
use cenote_spa::{
    AttachOptions, ImportOptions, LeafAction, LeafWorkKind, NewDevice, Offline, Pool, ScrubSince, SplitOptions, View,
};
use cenote_taskq::Handle;
use cenote_vdev::config::{VdevConfig, VdevKind};

use super::case::{Case, GOING, Work};
use crate::judge::import_options;
use crate::stage::words;

/// The stage of a job that has ended.
pub(super) const ENDED: u32 = 9;

/// The name of the pool that is split off.
pub(super) const COPY: &str = "copy";

/// States of a removal.
const REMOVAL_RUNS: u64 = 1;
const REMOVAL_FINISHED: u64 = 2;
const REMOVAL_CANCELED: u64 = 3;

/// The state of initialize and trim that is the last.
const LEAF_WORK_COMPLETE: u64 = 4;

pub(super) struct Driver<'a> {
    pub(super) handle: &'a Handle,
    pub(super) machine: &'a Machine,
    pub(super) case: &'a Case,
    pub(super) pool: &'a Pool,
}

impl Driver<'_> {
    async fn view(&self) -> Result<View, String> {
        self.pool.view(&import_options()).await.map_err(words)
    }

    async fn vdevs(&self) -> Result<VdevConfig, String> {
        Ok(self.view().await?.vdevs().clone())
    }

    fn path(&self, disk: usize) -> &Path {
        &self.machine.paths[disk]
    }

    /// The leaf that a disk is.
    pub(super) async fn device(&self, disk: usize) -> Result<Guid, String> {
        let vdevs = self.vdevs().await?;
        let leaf = self.leaf(&vdevs, disk).ok_or_else(|| format!("{} is no device", self.path(disk).display()))?;
        Ok(leaf.guid)
    }

    fn leaf<'v>(&self, vdevs: &'v VdevConfig, disk: usize) -> Option<&'v VdevConfig> {
        vdevs.leaves().into_iter().find(|leaf| leaf.path.as_deref() == self.path(disk).to_str())
    }

    fn lacks_of(&self, guid: Guid) -> bool {
        let lacks = self.pool.tree().and_then(|tree| tree.lacks_of(guid, &BTreeSet::new()));
        lacks.is_some_and(|lacks| !lacks.is_empty())
    }

    /// Some leaf lacks something.
    pub(super) fn lacks(&self) -> bool {
        let leaves = self.pool.tree().map(|tree| tree.leaf_states()).unwrap_or_default();
        leaves.into_iter().any(|(leaf, _)| self.lacks_of(leaf))
    }

    /// A scan has ended, and none is under way.
    async fn is_scanned(&self) -> Result<bool, String> {
        match self.pool.scan().await.map_err(words)?.map(|scan| scan.state) {
            None | Some(ScanState::SCANNING) => Ok(false),
            Some(ScanState::FINISHED) => Ok(true),
            Some(other) => Err(format!("the scan is in state {other:?}")),
        }
    }

    async fn is_resilvered(&self) -> Result<bool, String> {
        let scan = self.pool.scan().await.map_err(words)?;
        Ok(scan.is_some_and(|scan| scan.function == ScanFunction::RESILVER && scan.state == ScanState::SCANNING))
    }

    async fn has_resilvered(&self) -> Result<bool, String> {
        let scan = self.pool.scan().await.map_err(words)?;
        Ok(scan.is_some_and(|scan| scan.function == ScanFunction::RESILVER && scan.state == ScanState::FINISHED))
    }

    pub(super) async fn removal_state(&self) -> Result<Option<u64>, String> {
        Ok(self.pool.removal().await.map_err(words)?.map(|removal| removal.state))
    }

    async fn number(&self, view: &View, object: ObjectId, entry: &str) -> Result<u64, String> {
        let object = view.mos().object(object).await.map_err(words)?;
        Ok(Zap::open(object).await.map_err(words)?.find_u64(entry).await.map_err(words)?.unwrap_or(0))
    }

    async fn rebuild_state(&self, view: &View) -> Result<Option<RebuildState>, String> {
        let zap = view.mos().object(view.vdevs().children[0].top_zap).await.map_err(words)?;
        let found = Zap::open(zap).await.map_err(words)?.lookup(RebuildPhys::ENTRY.as_bytes()).await.map_err(words)?;
        let words_of = found.map(|value| value.integers().collect::<Vec<u64>>());
        words_of.map(|words_of| RebuildPhys::from_words(&words_of).map(|phys| phys.state)).transpose().map_err(words)
    }

    /// Nothing frees or condenses.
    fn is_idle(&self) -> bool {
        self.pool.jobs().is_empty()
    }

    /// The stage at which the job stands. The last is [`ENDED`].
    pub(super) async fn stage(&self) -> Result<u32, String> {
        let view = self.view().await?;
        let vdevs = view.vdevs();
        let first = &vdevs.children[0];
        Ok(match self.case.work {
            Work::Scrub => match self.pool.scan().await.map_err(words)? {
                None => 0,
                Some(scan) if scan.function == ScanFunction::SCRUB && self.is_scanned().await? => ENDED,
                Some(_) => 1,
            },
            Work::Resilver if self.leaf(vdevs, 1).is_some_and(|leaf| leaf.state.offline) => 0,
            Work::Resilver if self.lacks() || !self.is_scanned().await? => 1,
            Work::Resilver => ENDED,
            Work::Attach if first.children.is_empty() => 0,
            Work::Attach => self.rebuilt(&view).await?,
            Work::Replace { is_sequential } => {
                match (self.leaf(vdevs, 0).is_some(), self.leaf(vdevs, self.case.new_disk()).is_some()) {
                    (true, false) => 0,
                    (true, true) => 1,
                    (false, true) if is_sequential => self.rebuilt(&view).await?,
                    (false, true) if self.lacks() || !self.is_scanned().await? => 2,
                    (false, true) => ENDED,
                    (false, false) => return Err("neither the old disk nor the new one is there".to_owned()),
                }
            }
            Work::Spare => match (self.leaf(vdevs, 1), spare_of(vdevs)) {
                (Some(failed), None) if !failed.state.faulted => 0,
                (Some(_), None) => 1,
                (Some(_), Some(spare)) if self.lacks_of(spare) || !self.is_scanned().await? => 2,
                (Some(_), Some(_)) => 3,
                (None, _) => ENDED,
            },
            Work::OwnSpare => {
                let failed = self.leaf(vdevs, 1).ok_or("a disk is gone")?;
                match (failed.state.faulted, spare_of(vdevs)) {
                    (false, None) if self.rebuild_state(&view).await? == Some(RebuildState::COMPLETE) => ENDED,
                    (false, None) => 0,
                    (true, None) => 1,
                    (true, Some(spare)) if self.lacks_of(spare) || !self.is_scanned().await? => 2,
                    (true, Some(_)) => 3,
                    (false, Some(_)) => 4,
                }
            }
            Work::Removal | Work::CancelledRemoval => match self.removal_state().await? {
                None | Some(0) => 0,
                Some(REMOVAL_RUNS) => 1,
                Some(REMOVAL_FINISHED) if self.case.work == Work::Removal => ENDED,
                Some(REMOVAL_CANCELED) if self.case.work == Work::CancelledRemoval => ENDED,
                other => return Err(format!("the removal is in state {other:?}")),
            },
            Work::Condensing | Work::Destroy => match view.dsl().dataset(GOING).await.is_ok() {
                true => 0,
                false if self.is_idle() => ENDED,
                false => 1,
            },
            Work::Expansion => match first.kind {
                _ if first.children.len() == self.case.new_disk() => 0,
                VdevKind::Raidz { expanding: true, .. } => 1,
                _ if !self.is_scanned().await? => 2,
                _ => ENDED,
            },
            Work::Initialize | Work::Trim => {
                let leaf = self.leaf(vdevs, 1).ok_or("a disk is gone")?;
                let entry = match self.case.work {
                    Work::Initialize => "com.delphix:vdev_initialize_state",
                    _ => "org.zfsonlinux:vdev_trim_state",
                };
                match self.number(&view, leaf.leaf_zap, entry).await? {
                    0 => 0,
                    LEAF_WORK_COMPLETE => ENDED,
                    _ => 1,
                }
            }
            Work::Discard => {
                let counts = view.feature_counts(pool_directory::FEATURES_FOR_WRITE).await.map_err(words)?;
                let entry = view.directory().lookup(pool_directory::CHECKPOINT.as_bytes()).await.map_err(words)?;
                match (entry.is_some(), counts.get("com.delphix:zpool_checkpoint")) {
                    (true, _) => 0,
                    (false, Some(1..)) => 1,
                    _ => ENDED,
                }
            }
            Work::Split if self.leaf(vdevs, 1).is_some() => 0,
            Work::Split => ENDED,
        })
    }

    /// The stage of a rebuild, from 2 on: a scrub comes after it.
    async fn rebuilt(&self, view: &View) -> Result<u32, String> {
        match self.rebuild_state(view).await? {
            Some(RebuildState::COMPLETE) if self.lacks() => {
                Err("it is complete, and a leaf lacks something".to_owned())
            }
            Some(RebuildState::COMPLETE) if self.is_scanned().await? => Ok(ENDED),
            Some(RebuildState::COMPLETE) => Ok(3),
            _ => Ok(2),
        }
    }

    async fn attach(&self, old: Guid, is_replacing: bool, is_sequential: bool) -> Result<(), String> {
        let new = disk(self.handle, self.path(self.case.new_disk())).await.map_err(words)?;
        let options = AttachOptions {
            old,
            new: NewDevice::Disk(new),
            is_replacing,
            is_sequential,
            ashift: Some(12),
            seed: Some(11),
        };
        self.pool.attach_device(options).await.map(drop).map_err(words)
    }

    pub(super) async fn remove_first(&self) -> Result<(), String> {
        let guid = self.vdevs().await?.children[0].guid;
        self.pool.remove_vdev(guid).await.map(drop).map_err(words)
    }

    /// Gives the verb of a stage, if there is one: whether something was done. When that is so it is on disk.
    pub(super) async fn act(&self, stage: u32) -> Result<bool, String> {
        let pool = self.pool;
        // Where a disk has lost its newest uberblock it is resilvered first.
        let is_for_whole = stage == 0 && self.case.work != Work::Resilver;
        if is_for_whole && (self.lacks() || self.is_resilvered().await?) {
            return Ok(false);
        }
        match (self.case.work, stage) {
            (Work::Scrub, 0) => pool.scrub(ScrubSince::Ever).await.map_err(words)?,
            // A resilver has ended it.
            (Work::Scrub, 1) if self.has_resilvered().await? => pool.scrub(ScrubSince::Ever).await.map_err(words)?,
            (Work::Resilver, 0) => {
                pool.online_device(self.device(1).await?, Vec::new()).await.map_err(words)?;
                pool.resilver_if_needed().await.map_err(words)?;
            }
            (Work::Attach, 0) => self.attach(self.device(0).await?, false, true).await?,
            (Work::Replace { is_sequential }, 0) => self.attach(self.device(0).await?, true, is_sequential).await?,
            (Work::Spare | Work::OwnSpare, 0) => {
                let fault = Offline { is_fault: true, ..Offline::default() };
                pool.offline_device(self.device(1).await?, fault).await.map_err(words)?;
            }
            (Work::Spare | Work::OwnSpare, 1) => {
                if pool.use_spares().await.map_err(words)?.is_empty() {
                    return Err("no spare is taken".to_owned());
                }
            }
            (Work::Spare, 3) => drop(pool.detach_device(self.device(1).await?).await.map_err(words)?),
            (Work::OwnSpare, 3) => {
                pool.online_device(self.device(1).await?, Vec::new()).await.map_err(words)?;
                pool.resilver_if_needed().await.map_err(words)?;
                // There may be nothing that it has missed.
                pool.finish_replacing().await.map_err(words)?;
            }
            (Work::Removal | Work::CancelledRemoval, 0) => self.remove_first().await?,
            (Work::CancelledRemoval, 1) => {
                let copied = pool.removal().await.map_err(words)?.map_or(0, |removal| removal.copied_bytes);
                if copied == 0 {
                    return Ok(false);
                }
                pool.cancel_removal().await.map_err(words)?;
            }
            (Work::Condensing | Work::Destroy, 0) => pool.destroy_dataset(GOING).await.map_err(words)?,
            (Work::Expansion, 0) => self.attach(self.vdevs().await?.children[0].guid, false, false).await?,
            (Work::Initialize | Work::Trim, 0) => {
                let kind = match self.case.work {
                    Work::Initialize => LeafWorkKind::Initialize,
                    _ => LeafWorkKind::Trim,
                };
                let start = LeafAction::Start { rate_bytes: 0 };
                pool.change_leaf_work(self.device(1).await?, kind, start).await.map_err(words)?;
            }
            (Work::Discard, 0) => pool.discard_checkpoint().await.map_err(words)?,
            (Work::Split, 0) => {
                let import = ImportOptions { cache_bytes: import_options().cache_bytes, ..ImportOptions::default() };
                let options = SplitOptions { name: COPY.to_owned(), seed: Some(5), import, ..SplitOptions::default() };
                pool.split(options).await.map_err(words)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The spare that stands for something.
fn spare_of(vdevs: &VdevConfig) -> Option<Guid> {
    let mut found = None;
    vdevs.walk(&mut |vdev| {
        if matches!(vdev.kind, VdevKind::Spare) {
            found = vdev.children.last().map(|spare| spare.guid);
        }
    });
    found
}
