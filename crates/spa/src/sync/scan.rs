//! Scrub and resilver, where they touch devices: what leaves lack decides which scan begins, and the end of one shortens dirty time logs.
//!
//! **A resilver is needed** while a leaf that can be written has a DTL. It begins when somebody says that a leaf has come
//! (`Scan::is_resilver_wanted`: the pool was opened, a device came back or is new), and not because a DTL is there: one whose blocks could not be
//! written again would be scanned for ever. A resilver that is under way and covers all that is missed goes on; otherwise it begins anew with what
//! is missed now. It ends a scrub. What was missed while it went on is scanned for after it, as soon as a txg has got through to all: a device that fails
//! each txg would be scanned for in each.
//!
//! **The end.** All that a leaf has missed before the scan's `max_txg` is there again, but for what could not be written: that stays in its DTL. A scan
//! of which another process did a part does not know that; then, and only if it had errors, nothing is shortened. Neither is it of a leaf that was not written all along.
//! The DTL is written in the txg that ends the scan, whose flush makes the last repairs stable.

use std::collections::BTreeSet;

use cenote_dmu::Zap;
use cenote_format::dsl::{ScanFunction, pool_directory};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::dtl::Dtl;

use crate::config::PoolState;
use crate::jobs::scan::EndedScan;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// The txgs that leaves which can be written have missed: after the first, up to the second.
    pub(crate) fn resilver_range(&self) -> Option<(Txg, Txg)> {
        let missed = self.devices.root_vdev.missed.iter();
        let ranges = missed.filter(|(guid, _)| self.can_be_resilvered(**guid)).filter_map(|(_, missed)| {
            let ranges = missed.ranges();
            Some((ranges.first()?.start, ranges.last()?.end))
        });
        let (first, end) = ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))?;
        Some((Txg(first.saturating_sub(1)), Txg(end)))
    }

    /// A leaf that is there, can be written, and is no log device: there is nothing to be scanned of those.
    fn can_be_resilvered(&self, guid: Guid) -> bool {
        self.devices.root_vdev.disks.contains_key(&guid)
            && self.devices.tree.is_leaf_online(guid)
            && !self.devices.root_vdev.is_of_log(guid)
    }

    /// Begins a scrub in the open txg.
    ///
    /// # Errors
    /// There is a scan, or the MOS cannot be changed.
    pub(crate) async fn start_scrub(&mut self) -> Result<(), SpaError> {
        if let Some(phys) = self.jobs.scan.phys().filter(|_| self.jobs.scan.is_running()) {
            if self.jobs.scan.is_paused() {
                return self.pause_scrub(false).await;
            }
            let what = if phys.function == ScanFunction::RESILVER { "resilvering" } else { "scrubbing" };
            return Err(SpaError::refused(
                Refusal::Busy,
                format!("currently {what}; use 'zpool scrub -s' to cancel scrub"),
            ));
        }
        self.start_scan(ScanFunction::SCRUB, (Txg(0), self.txg)).await
    }

    async fn start_scan(&mut self, function: ScanFunction, range: (Txg, Txg)) -> Result<(), SpaError> {
        let to_examine_bytes = {
            let vdevs: Vec<_> = self.devices.root_vdev.tops().map(|(vdev, _)| vdev).collect();
            self.blocks
                .space
                .with(|allocator| vdevs.iter().map(|vdev| allocator.evacuation(*vdev).allocated_bytes).sum())
        };
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.scan.start(&mut rooms, function, range, to_examine_bytes).await?;
        let text = format!("func={} mintxg={} maxtxg={}", function.0, range.0, range.1);
        self.record_event("scan setup", &text, None).await
    }

    /// Has the scrub wait, or go on.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn pause_scrub(&mut self, is_paused: bool) -> Result<(), SpaError> {
        let is_scrub = self.jobs.scan.phys().is_some_and(|phys| phys.function == ScanFunction::SCRUB);
        if !self.jobs.scan.is_running() || !is_scrub {
            return Err(SpaError::refused(Refusal::NotThere, "there is no active scrub"));
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.scan.pause(&mut rooms, is_paused).await
    }

    /// Gives the scrub or resilver up.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn stop_scan(&mut self) -> Result<(), SpaError> {
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        match jobs.scan.stop(&mut rooms).await? {
            Some(ended) => self.end_scan(ended).await,
            None => Err(SpaError::refused(Refusal::NotThere, "there is no active scrub")),
        }
    }

    /// True if a leaf that could be resilvered has missed a part of the last txg: it would miss the next scan's repairs too.
    fn is_failing(&self) -> bool {
        let last = Txg(self.txg.0 - 1);
        self.devices.root_vdev.behind(last).any(|guid| self.can_be_resilvered(guid))
    }

    /// Begins a resilver where one is needed and none covers it.
    async fn resilver_if_needed(&mut self) -> Result<(), SpaError> {
        let is_steady = !self.is_failing();
        let scan = &mut self.jobs.scan;
        let is_more = scan.is_more_missed && is_steady;
        if !std::mem::take(&mut scan.is_resilver_wanted) && !is_more {
            return Ok(());
        }
        scan.is_more_missed = false;
        let Some((min_txg, max_txg)) = self.resilver_range() else { return Ok(()) };
        if let Some(phys) = self.jobs.scan.phys().filter(|_| self.jobs.scan.is_running()) {
            let covers = phys.min_txg <= min_txg && max_txg <= phys.max_txg;
            if covers && phys.function == ScanFunction::RESILVER {
                return Ok(());
            }
            self.stop_scan().await?;
        }
        self.start_scan(ScanFunction::RESILVER, (min_txg, max_txg)).await
    }

    /// Takes what the scan's worker has done, when the txg's changes of datasets are made. `has_changed`: there may be some.
    pub(super) async fn settle_scan(&mut self, has_changed: bool) -> Result<(), SpaError> {
        let is_last = self.state != PoolState::Active;
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        if let Some(ended) = jobs.scan.settle(&mut rooms, has_changed || is_last).await? {
            self.end_scan(ended).await?;
        }
        if is_last { Ok(()) } else { self.resilver_if_needed().await }
    }

    async fn end_scan(&mut self, ended: EndedScan) -> Result<(), SpaError> {
        let EndedScan { phys, is_complete, .. } = &ended;
        if *is_complete || mutant::is(Mutant::DtlCleared) {
            self.shorten_dtls(&ended).await?;
            // Leaves may have missed more meanwhile; each scan is of later txgs.
            self.jobs.scan.is_more_missed |= self.resilver_range().is_some_and(|(_, end)| end > phys.max_txg);
        }
        if *is_complete && phys.function == ScanFunction::SCRUB {
            let value = ZapValue::from_u64(phys.max_txg.0);
            Zap::put_entry(&self.mos.directory, self.txg, pool_directory::LAST_SCRUBBED_TXG, Some(&value)).await?;
        }
        let name = if *is_complete { "scan done" } else { "scan aborted, restarting" };
        let name = if *is_complete || self.jobs.scan.is_resilver_wanted { name } else { "scan cancelled" };
        let text = format!("func={} errors={}", phys.function.0, phys.error_count);
        self.record_event(name, &text, None).await
    }

    /// Takes out of the DTLs what the scan has made good.
    async fn shorten_dtls(&mut self, ended: &EndedScan) -> Result<(), SpaError> {
        let EndedScan { phys, unrepaired, .. } = ended;
        let txg = self.txg;
        if unrepaired.is_none() && phys.error_count > 0 {
            return Ok(());
        }
        let guids: Vec<Guid> = self.devices.root_vdev.missed.keys().copied().collect();
        for guid in guids.into_iter().filter(|guid| self.can_be_resilvered(*guid)).collect::<BTreeSet<_>>() {
            let missed = &self.devices.root_vdev.missed[&guid];
            // Not all that it lacks was scanned for.
            let is_covered = missed.ranges().first().is_none_or(|first| phys.min_txg.0 < first.start);
            if !is_covered {
                continue;
            }
            let mut left = missed.clone();
            left.remove(0..phys.max_txg.0);
            if let Some(unrepaired) = unrepaired {
                left.absorb(&unrepaired.of(guid, missed));
            }
            assert!(left.ranges().last().is_none_or(|last| last.end <= txg.0 + 1), "a leaf has missed no txg to come");
            self.replace_dtl(txg, guid, left).await?;
        }
        Ok(())
    }

    /// Has a leaf lack these txgs, and no others.
    async fn replace_dtl(&mut self, txg: Txg, guid: Guid, left: Dtl) -> Result<(), SpaError> {
        let leaf = self.devices.root_vdev.config.leaves().into_iter().find(|leaf| leaf.guid == guid);
        let dtl = leaf.map_or(ObjectId(0), |leaf| leaf.dtl);
        self.devices.tree.set_dtl(guid, left.clone());
        match left.is_empty() {
            true => self.devices.root_vdev.missed.remove(&guid),
            false => self.devices.root_vdev.missed.insert(guid, left),
        };
        if dtl == ObjectId(0) { Ok(()) } else { self.write_dtl(txg, 1, guid, dtl).await }
    }
}
