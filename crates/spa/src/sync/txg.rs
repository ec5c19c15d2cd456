//! A txg's sync: the theory is in the module above.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{SpaceDelta, Synced};
use cenote_dsl::{Livelist, UsedBy};
use cenote_format::dsl::ScanFlags;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg};
use cenote_format::uberblock::Uberblock;
use cenote_taskq::BoxFuture;
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::commit::{Refusal, commit, mend_labels, repeat};

use crate::config::{PoolState, VERSION};
use crate::events::Scan;
use crate::sync::Phase;
use crate::sync::Syncer;
use crate::{PoolError, SpaError};
use cenote_dsl::Head;

/// The maximum number of passes. Two are usual, and four are rare; reaching this many means that the passes do not converge.
pub(super) const PASSES_MAX: u32 = 64;

impl Syncer {
    /// Makes all changes of the open txg durable, and opens the next. The caller ensures that nothing is changed meanwhile.
    ///
    /// # Errors
    /// No space, or devices failed: the pool on disk is as of the txg before, whole. This value cannot be used further.
    pub(crate) fn sync(&mut self) -> BoxFuture<'_, Result<Txg, SpaError>> {
        Box::pin(self.sync_txg())
    }

    async fn sync_txg(&mut self) -> Result<Txg, SpaError> {
        let txg = self.txg;
        assert!(self.blocks.free_tasks.is_empty(), "the allocator knows of all that earlier txgs have freed");
        assert!(self.blocks.mos_delta.is_zero(), "the MOS's own bytes of earlier txgs are in the accounts");
        let before = Txg(txg.0 - 1);
        assert!(self.devices.synced.is_none_or(|last| last.txg == before), "a txg follows the one before");
        assert!(!self.mos.objset.is_dirty(before), "the MOS of the txg before is on disk");
        debug_assert!(
            self.mos.dsl.heads().iter().all(|head| !head.objset.is_dirty(before)),
            "what the txg before has changed is on disk"
        );
        let mut pass = 0;
        self.blocks.space_pass = 0;
        self.phases.clear();
        let begun = self.handle.now();
        // Txgs that the last commit or the import found missing; and leaves that are absent miss this one.
        let unnoted = std::mem::take(&mut self.devices.root_vdev.unnoted);
        self.note_dtls(txg, 1, unnoted).await?;
        self.note_missed(txg, 1, self.devices.root_vdev.lost()).await?;
        self.mend_log_dtls(txg).await?;
        let is_active = self.state == PoolState::Active;
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.deferred.free_some(&mut rooms).await?;
        if is_active {
            jobs.slices(&mut rooms).await?;
            self.settle_evacuation().await?;
            self.settle_condensing().await?;
            self.settle_expansion().await?;
        }
        if self.jobs.discard.take_ended() {
            let what = "finished discarding checkpointed state from the pool";
            self.record_event("spa discard checkpoint", what, None).await?;
        }
        self.sync_logs(txg).await?;
        self.sync_datasets(txg).await?;
        debug_assert!(
            self.mos.dsl.heads().iter().all(|head| !head.objset.is_dirty(txg)),
            "datasets are written once in a txg, before the MOS"
        );
        let has_changed = self.make_late(txg).await?;
        let has_changed = std::mem::take(&mut self.is_changed) || has_changed;
        self.settle_rebuilds().await?;
        self.settle_scan(has_changed).await?;
        self.note_passed_over(txg).await?;
        self.settle_leaf_work().await?;
        self.note_scan();
        self.log_errors(txg).await;
        self.in_txg().save_shared(txg).await?;
        if self.devices.config_changed {
            self.make_root_zap(txg).await?;
            self.write_config(txg).await?;
        }
        self.mos.features.flush(txg).await?;
        self.time(Phase::Datasets, begun);
        loop {
            self.converge(txg, &mut pass).await?;
            let missed = self.copies_done().await?;
            self.note_missed(txg, pass, missed).await?;
            let begun = self.handle.now();
            // A device that could not be flushed may have lost all of the txg.
            let failed =
                if mutant::is(Mutant::BlocksUnflushed) { Ok(Vec::new()) } else { self.devices.tree.flush().await };
            let failed = failed?;
            let failed: BTreeSet<Guid> = failed.into_iter().collect();
            self.time(Phase::Flush, begun);
            // A block that one leaf of a mirror did not take may be one that the other leaf could not flush.
            let mut lost = self.devices.root_vdev.lost();
            lost.extend(self.devices.root_vdev.behind(txg).chain(failed.iter().copied()));
            if self.devices.tree.suspension().is_none()
                && !failed.is_empty()
                && let Some(top) = self.devices.root_vdev.unwritable(&lost)
            {
                return Err(SpaError::devices(format!("too few devices of {} could be flushed", top.display_name())));
            }
            self.note_missed(txg, pass, failed).await?;
            if !self.mos.objset.is_dirty(txg) {
                break;
            }
        }
        self.passes = pass;
        self.in_txg().close_space(txg).await?;
        if self.mos.objset.is_dirty(txg) {
            return Err(SpaError::contradiction(format!("txg {txg} changed after its last pass")));
        }
        assert!(self.blocks.free_tasks.is_empty(), "the allocator knows of all that the txg has freed");
        assert!(self.blocks.mos_delta.is_zero(), "the MOS's own bytes are in the accounts");
        let begun = self.handle.now();
        self.confirm_batch();
        self.commit(txg).await?;
        self.batch_moved(txg);
        self.time(Phase::Commit, begun);
        self.free_devices().await;
        let next = self.blocks.space.sync_done(txg)?;
        if self.is_live {
            self.blocks.preload(txg, next);
        }
        if std::mem::take(&mut self.devices.config_changed) {
            self.blocks.space.events.set_vdevs(&self.devices);
            self.blocks.space.events.sysevent("config_sync", None);
        }
        let headers_only = std::mem::take(&mut self.mos.headers_only);
        self.mos.dsl.retain_heads(|head| !headers_only.contains(&head.dataset));
        self.blocks.given_up_before = self.blocks.given_up;
        self.txg = Txg(txg.0 + 1);
        self.assert_settled(txg);
        Ok(txg)
    }

    /// Tells of a scan that has begun, paused or ended.
    fn note_scan(&self) {
        let scan = self.jobs.scan.phys().map(|phys| Scan {
            function: phys.function,
            state: phys.state,
            is_paused: phys.flags.contains(ScanFlags::SCRUB_PAUSED),
            start_time_s: phys.start_time,
        });
        self.blocks.space.events.scan_is(scan.unwrap_or_default());
    }

    /// Checks that a dataset that has grown, and all directories above it, are within their quotas. Without a background sync no check is
    /// made before the change. As in OpenZFS, an empty dataset may exceed its quota.
    async fn check_quota(&self, dataset: ObjectId) -> Result<(), SpaError> {
        let phys = self.mos.dsl.dataset_phys(dataset).await?;
        let mut at = phys.dir;
        // As deep as directories can be, which charging has checked.
        while at.0 != 0 {
            let dir = self.mos.dsl.dir_phys(at).await?;
            if dir.quota_bytes != 0 && dir.used_bytes > dir.quota_bytes {
                return Err(PoolError::Quota(dir.quota_bytes).into());
            }
            at = dir.parent;
        }
        Ok(())
    }

    /// Writes the MOS and what its writing changes, pass by pass, until nothing changes.
    async fn converge(&mut self, txg: Txg, pass: &mut u32) -> Result<(), SpaError> {
        loop {
            *pass += 1;
            if *pass > PASSES_MAX {
                return Err(SpaError::contradiction(format!("txg {txg} does not converge")));
            }
            assert!(self.blocks.free_tasks.is_empty(), "a pass begins when the allocator knows of all that was freed");
            let begun = self.handle.now();
            let missed = self.sync_mos(txg, *pass).await?;
            let (write, enter) = match *pass {
                1 => (Phase::FirstPass, Phase::Space),
                _ => (Phase::LaterPasses, Phase::LaterPasses),
            };
            let begun = self.time(write, begun);
            self.in_txg().sync_space(txg).await?;
            self.time(enter, begun);
            self.note_missed(txg, *pass, missed).await?;
            self.mos.features.flush(txg).await?;
            if !self.mos.objset.is_dirty(txg) && self.blocks.mos_delta.is_zero() {
                return Ok(());
            }
        }
    }

    /// Waits for the copies of an evacuated vdev's blocks that the txg has. Returns the leaves that have missed one.
    async fn copies_done(&mut self) -> Result<BTreeSet<Guid>, SpaError> {
        let mut missed = BTreeSet::new();
        for copied in std::mem::take(&mut self.blocks.copies) {
            missed.extend(copied.await??);
        }
        Ok(missed)
    }

    /// Writes the datasets that have changed, and enters their roots into the MOS.
    async fn sync_datasets(&mut self, txg: Txg) -> Result<(), SpaError> {
        let dirty: Vec<_> = self.mos.dsl.heads().iter().filter(|head| head.objset.is_dirty(txg)).cloned().collect();
        let objsets: Vec<_> = dirty.iter().map(|head| head.objset.clone()).collect();
        let mut livelists = BTreeMap::new();
        for head in &dirty {
            if let Some(livelist) = self.mos.dsl.livelist(head.dataset).await? {
                livelists.insert(head.objset.id(), livelist);
            }
        }
        let listed = livelists.keys().copied().collect();
        let (synced, storing) = self.blocks.writer.begin(&objsets, &listed, txg, 1).await?;
        let settled = self.finish_datasets(txg, &dirty, synced, &livelists).await;
        // Wait even after an error, so that no write is on its way to devices when the pool is given up.
        let missed = storing.finish().await?;
        settled?;
        self.note_missed(txg, 1, missed).await
    }

    /// Enters datasets' new roots and accounts into the MOS, frees what they gave up, and enters what they took and gave up into space
    /// maps and logs, beside what is on its way to devices: so the first pass writes that with the MOS, and what is left for the
    /// second is what the MOS itself took.
    async fn finish_datasets(
        &mut self,
        txg: Txg,
        dirty: &[Head],
        synced: Vec<Synced>,
        livelists: &BTreeMap<ObjsetId, Livelist>,
    ) -> Result<(), SpaError> {
        assert_eq!(synced.len(), dirty.len(), "each dataset that has changed is written");
        for (head, mut synced) in dirty.iter().zip(synced) {
            let unused = std::mem::take(&mut synced.unused);
            self.use_features(txg, head.dataset, synced.needs).await?;
            let livelist = livelists.get(&head.objset.id()).map(|livelist| (livelist, &self.mos.livelist_limits));
            let settled = self.mos.dsl.synced(txg, head.dataset, synced, livelist).await?;
            self.mos.release_empty_bpobj(txg, settled.replaced_empty).await?;
            self.mos.features.change("livelist", -i64::from(settled.has_lost_livelist));
            if !self.is_live && settled.is_larger {
                self.check_quota(head.dataset).await?;
            }
            self.in_txg().free_killed(txg, settled.freed).await?;
            self.in_txg().free_unused(txg, &unused).await?;
        }
        self.in_txg().frees_done().await?;
        match self.blocks.space.with(|allocator| allocator.is_dirty(txg)) {
            true => self.in_txg().sync_space(txg).await,
            false => Ok(()),
        }
    }

    /// Writes the MOS. The space that this takes and frees is counted in the next pass. Returns the leaves that missed a block.
    async fn sync_mos(&mut self, txg: Txg, pass: u32) -> Result<BTreeSet<Guid>, SpaError> {
        let delta = std::mem::take(&mut self.blocks.mos_delta);
        self.mos.dsl.charge(txg, self.mos.dsl.mos_dir(), UsedBy::Head, delta).await?;
        let objsets = [self.mos.objset.clone()];
        let (synced, missed) = self.blocks.writer.sync(&objsets, txg, pass).await?;
        assert_eq!(synced.len(), 1, "a pass writes the MOS");
        for synced in synced {
            assert_eq!(synced.root.logical_birth(), txg, "each pass gives the MOS a root of the txg");
            assert!(synced.unused.is_empty(), "the MOS has no intent log");
            let mut delta: SpaceDelta = synced.born;
            delta.add(synced.killed.space().negated());
            self.blocks.mos_delta.add(delta);
            self.in_txg().free_killed(txg, synced.killed).await?;
        }
        Ok(missed.into_iter().collect())
    }

    /// Waits until the pool is not suspended and no other host can have it.
    async fn admitted(&mut self) -> Result<(), SpaError> {
        if let Some(suspension) = self.devices.tree.clone().suspension() {
            suspension.passed().await?;
        }
        self.unclaimed().await
    }

    /// Waits until no other host can have the pool.
    async fn unclaimed(&mut self) -> Result<(), SpaError> {
        let tree = self.devices.tree.clone();
        loop {
            let Err(error) = self.devices.multihost.admit().await else { return Ok(()) };
            let Some(suspension) = tree.suspension() else { return Err(SpaError::devices(error)) };
            suspension.suspend_for_multihost(error.to_string());
            suspension.passed().await?;
        }
    }

    /// Makes the txg, which is stable, the pool. Comes back when clients may be told: where devices hung meanwhile, another host may have the
    /// pool, without this txg.
    async fn commit(&mut self, txg: Txg) -> Result<(), SpaError> {
        self.commit_on_leaves(txg).await?;
        if mutant::is(Mutant::LateNotAskedAfterWrite) { Ok(()) } else { self.unclaimed().await }
    }

    async fn commit_on_leaves(&mut self, txg: Txg) -> Result<(), SpaError> {
        if self.state != PoolState::Active {
            self.admitted().await?;
            // Nothing shows that the pool is in use after the txg that says it is not.
            self.devices.multihost.stop().await;
        }
        let leaves = self.leaf_commits(txg, self.devices.config_changed);
        debug_assert!(
            leaves.iter().filter_map(|leaf| leaf.config.as_ref()).all(|label| label.u64("txg") == Some(txg.0)),
            "labels are of the txg whose uberblock comes after them"
        );
        let tree = self.devices.tree.clone();
        // Each step can be done again: the places are the same, and the tree that the bytes lead to.
        loop {
            self.admitted().await?;
            self.devices.ring.is_multihost = self.devices.multihost.is_shown();
            if let Some((uberblock, late)) = self.devices.root_vdev.late.take() {
                assert!(uberblock.txg < txg, "the uberblock that a leaf lacks is older than the one that it gets");
                for (leaf, bytes) in mend_labels(&leaves).await {
                    tree.count_healed(leaf, bytes);
                }
                // Those that do not take it will not take the next one either, and are noted then.
                let late = leaves.iter().filter(|leaf| late.contains(&leaf.guid));
                repeat(late, &uberblock, &self.devices.ring).await;
            }
            let uberblock = self.uberblock(txg);
            assert_eq!(uberblock.rootbp.logical_birth(), txg, "an uberblock leads to the MOS of its txg");
            assert!(self.devices.synced.is_none_or(|last| last.txg < txg), "txgs are committed in order");
            self.devices.multihost.attempt(uberblock);
            match commit(&leaves, &uberblock, &mut self.devices.ring).await {
                Ok(refusals) => {
                    self.devices.multihost.committed(uberblock, &leaves);
                    self.devices.synced = Some(uberblock);
                    for Refusal { guid, error } in refusals {
                        debug_assert!(leaves.iter().any(|leaf| leaf.guid == guid), "a leaf refuses what it was given");
                        tree.missed_commit(guid, txg, &error);
                        self.devices.root_vdev.unnoted.entry(guid).or_default().insert(txg.0..txg.0.saturating_add(1));
                    }
                    return Ok(());
                }
                Err(error) => match tree.suspension().filter(|_| error.is_of_devices()) {
                    Some(suspension) => suspension.suspend(error.to_string()),
                    None if error.is_of_devices() => return Err(SpaError::devices(error)),
                    None => return Err(SpaError::contradiction(error)),
                },
            }
        }
    }

    /// Asserts the state between two txgs, when one is on disk and the next is open.
    fn assert_settled(&self, txg: Txg) {
        assert_eq!(self.devices.synced.map(|last| last.txg), Some(txg), "the txg that was synced is the last on disk");
        assert!(self.passes > 0 && self.blocks.space_pass >= self.passes, "each pass enters what it took and freed");
        assert!(self.devices.root_vdev.late.is_none(), "no leaf lacks the uberblock before the last");
        debug_assert!(
            self.devices.root_vdev.unnoted.values().all(|missed| missed.contains(txg)),
            "a leaf that is to be noted has missed the last commit"
        );
        debug_assert!(
            !self.mos.objset.is_dirty(txg) && !self.mos.objset.is_dirty(self.txg),
            "the next txg has changed nothing yet"
        );
        debug_assert!(
            !self.blocks.space.with(|allocator| allocator.is_dirty(txg)),
            "space maps have all that the txg took"
        );
        let of = |at: Option<&(Phase, std::time::Duration)>| at.map(|(phase, _)| *phase);
        debug_assert_eq!(of(self.phases.first()), Some(Phase::Datasets), "a sync begins with the datasets");
        debug_assert_eq!(of(self.phases.last()), Some(Phase::Commit), "a sync ends with the commit");
    }

    /// The root of a txg that is about to be committed.
    fn uberblock(&self, txg: Txg) -> Uberblock {
        Uberblock {
            endian: cenote_zio::ORDER,
            version: VERSION,
            txg,
            guid_sum: self.devices.root_vdev.guid_sum,
            timestamp_s: self.time_s(),
            rootbp: self.mos.objset.root(),
            software_version: VERSION,
            mmp: Some(self.devices.multihost.fields()),
            checkpoint_txg: Txg(0),
            raidz_reflow: self.devices.raidz_reflow,
        }
    }
}
