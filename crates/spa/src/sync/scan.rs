//! Scrub and resilver, where they touch devices: what leaves lack decides which scan begins, and the end of one shortens dirty time logs.
//!
//! **A resilver is needed** while a leaf that can be written has a DTL. It begins when somebody says that a leaf has come
//! (`Scan::is_resilver_wanted`: the pool was opened, a device came back or is new), and not because a DTL is there: one whose blocks could not be
//! written again would be scanned for ever. A resilver that is under way and covers all that is missed goes on; otherwise it begins anew with what
//! is missed now. It ends a scrub. What was missed while it went on is scanned for after it, as soon as a txg has got through to all: a device that fails
//! each txg would be scanned for in each.
//!
//! **A device that comes back late** waits, if the resilver that is under way is far (`zfs_resilver_defer_percent`) and the pool has the feature
//! `resilver_defer`: its leaf says `com.datto:resilver_defer` in the configuration of the same txg, so that nothing is taken out of its DTL at the end, by
//! whoever goes on with the scan. Then it has a resilver of its own.
//!
//! **The end.** All that a leaf has missed before the scan's `max_txg` is there again, but for what could not be written: that stays in its DTL. A scan
//! of which another process did a part does not know that; then, and only if it had errors, nothing is shortened. Neither is it of a leaf that was not written all along.
//! The DTL is written in the txg that ends the scan, whose flush makes the last repairs stable.
//!
//! **Errors** that come while a scan, or a scrub of errors, is under way go to the log of the scrub (`errlog_scrub`). The end of a scrub that was everywhere, or of
//! a scrub of errors, puts that in the place of the log: what is not found any more is gone. Otherwise the log gets what the other one has. (OpenZFS swaps the two
//! after each scan, so that one which is given up forgets the errors that it has not come to.)

use std::collections::BTreeSet;

use cenote_dmu::Zap;
use cenote_format::dsl::{ScanFunction, TxgTimes, pool_directory};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::nvlist::NvValue;
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::config::VdevKind;
use cenote_vdev::dtl::Dtl;

use crate::config::PoolState;
use crate::jobs::scan::EndedScan;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

/// A leaf with this field waits for the end of the resilver that is under way.
const RESILVER_DEFER: &str = "com.datto:resilver_defer";

/// The blocks that a scrub reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubSince {
    /// All.
    #[default]
    Ever,
    /// Those that were born after the last scrub.
    LastScrub,
    /// Those that were born between two times, in seconds since 1970, by the pool's log of the times of txgs: rather more than less.
    Dates {
        /// From this time on.
        start_s: Option<u64>,
        /// Up to this time.
        end_s: Option<u64>,
    },
}

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
        let is_there = self.devices.root_vdev.disks.contains_key(&guid) && self.devices.tree.is_leaf_online(guid);
        (is_there || self.is_distributed_spare(guid)) && !self.devices.root_vdev.is_of_log(guid)
    }

    /// A distributed spare in use: it has no device of its own, and lies on those of its draid.
    pub(super) fn is_distributed_spare(&self, guid: Guid) -> bool {
        let vdev = self.devices.root_vdev.vdev(guid);
        vdev.is_some_and(|(_, vdev)| matches!(vdev.kind, VdevKind::DraidSpare { .. }))
    }

    /// The leaves on which a leaf's blocks lie: itself, or those of its draid.
    pub(super) fn holders_of(&self, guid: Guid) -> Vec<Guid> {
        match self.devices.root_vdev.top_of(guid).filter(|_| self.is_distributed_spare(guid)) {
            Some((_, top)) => top.leaves().into_iter().map(|leaf| leaf.guid).collect(),
            None => vec![guid],
        }
    }

    /// Begins a scrub in the open txg, of what is newer than `since`; or has one that waits go on.
    ///
    /// # Errors
    /// There is a scan, or the MOS cannot be changed.
    pub(crate) async fn start_scrub(&mut self, since: ScrubSince) -> Result<(), SpaError> {
        if let Some(phys) = self.jobs.scan.phys().filter(|_| self.jobs.scan.is_running()) {
            if self.jobs.scan.is_paused() {
                return self.pause_scrub(false).await;
            }
            return Err(busy(phys.function == ScanFunction::RESILVER));
        }
        self.refuse_rebuild()?;
        self.refuse_error_scrub()?;
        let range = match since {
            ScrubSince::Ever => (Txg(0), self.txg),
            ScrubSince::LastScrub => (self.last_scrubbed().await?.min(Txg(self.txg.0 - 1)), self.txg),
            ScrubSince::Dates { start_s, end_s } => self.txgs_between(start_s, end_s).await?,
        };
        self.start_scan(ScanFunction::SCRUB, range).await
    }

    /// For tests: notes when a txg was written, as OpenZFS 2.4 has it in a pool, in seconds since 1970.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[doc(hidden)]
    #[boxed]
    pub async fn note_times(&mut self, words: &[u64]) -> Result<(), SpaError> {
        let (value, entry) = (ZapValue::from_u64s(words), TxgTimes::ENTRIES[0]);
        Ok(Zap::put_entry(&self.mos.directory, self.txg, entry, Some(&value)).await?)
    }

    /// The txgs that were written between two times: after the first, up to the second.
    async fn txgs_between(&self, start_s: Option<u64>, end_s: Option<u64>) -> Result<(Txg, Txg), SpaError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let mut times = TxgTimes::default();
        for entry in TxgTimes::ENTRIES {
            if let Some(value) = directory.lookup(entry.as_bytes()).await? {
                times.add_words(&value.integers().collect::<Vec<u64>>());
            }
        }
        if times.is_empty() {
            let what = "the pool has no log of the times of its txgs, which OpenZFS keeps from version 2.4 on: 'zpool scrub -C' covers what is \
                        newer than the last scrub, and 'zpool scrub' the whole pool";
            return Err(SpaError::refused(Refusal::NotThere, what));
        }
        let last = start_s.and_then(|start_s| times.before(start_s)).unwrap_or(Txg(0));
        let end = end_s.and_then(|end_s| times.after(end_s)).unwrap_or(self.txg).min(self.txg);
        // One that ends early is none of the whole pool, wherever it begins.
        let min = if end < self.txg { last.max(Txg(1)) } else { last };
        if min >= end {
            return Err(SpaError::refused(Refusal::Invalid, "nothing was written between these dates"));
        }
        Ok((min, end))
    }

    /// The txg up to which the last scrubs have read all.
    async fn last_scrubbed(&self) -> Result<Txg, SpaError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        Ok(Txg(directory.find_u64(pool_directory::LAST_SCRUBBED_TXG).await?.unwrap_or(0)))
    }

    fn refuse_error_scrub(&self) -> Result<(), SpaError> {
        let why = match self.jobs.error_scrub.is_running() {
            true if self.jobs.error_scrub.is_paused() => {
                "error scrub is paused; use 'zpool scrub -e' to resume error scrub"
            }
            true => "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub",
            false => return Ok(()),
        };
        Err(SpaError::refused(Refusal::Busy, why))
    }

    /// Begins a scrub of the blocks that the error log names, `count` of them, in the open txg; or has one that waits go on.
    ///
    /// # Errors
    /// There is another scan, the pool lacks the feature `head_errlog`, or the log is empty.
    pub(crate) async fn start_error_scrub(&mut self, count: u64) -> Result<(), SpaError> {
        if self.jobs.error_scrub.is_paused() {
            return self.pause_error_scrub(false).await;
        }
        self.refuse_error_scrub()?;
        if let Some(phys) = self.jobs.scan.phys().filter(|_| self.jobs.scan.is_running()) {
            return Err(busy(phys.function == ScanFunction::RESILVER));
        }
        self.refuse_rebuild()?;
        if self.mos.features.count("head_errlog") == 0 {
            return Err(SpaError::unsupported(
                "a scrub of errors in a pool without the feature head_errlog; 'zpool scrub' reads all blocks",
            ));
        }
        if count == 0 {
            return Err(SpaError::refused(Refusal::NotThere, "there are no errors in the pool's error log"));
        }
        self.blocks.writer.dmu().zio().data_errors().begin_pass();
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.error_scrub.start(&mut rooms, count).await?;
        self.blocks.space.events.sysevent("errorscrub_start", None);
        let text = format!("func={} mintxg=0 maxtxg={}", ScanFunction::ERROR_SCRUB.0, self.txg);
        self.record_event("error scrub setup", &text, None).await
    }

    async fn pause_error_scrub(&mut self, is_paused: bool) -> Result<(), SpaError> {
        if is_paused && self.jobs.error_scrub.is_paused() {
            return self.refuse_error_scrub();
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.error_scrub.pause(&mut rooms, is_paused).await?;
        let event = if is_paused { "errorscrub_paused" } else { "errorscrub_resume" };
        self.blocks.space.events.sysevent(event, None);
        Ok(())
    }

    /// Ends a scrub of errors: done, or given up.
    async fn end_error_scrub(&mut self, is_complete: bool) -> Result<(), SpaError> {
        self.end_errors(is_complete).await;
        self.blocks.space.events.sysevent(if is_complete { "errorscrub_finish" } else { "errorscrub_abort" }, None);
        let errors = self.jobs.error_scrub.phys().map_or(0, |phys| phys.error_count);
        let name = if is_complete { "error scrub done" } else { "error scrub canceled" };
        self.record_event(name, &format!("errors={errors}"), None).await
    }

    async fn stop_error_scrub(&mut self) -> Result<(), SpaError> {
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.error_scrub.end(&mut rooms, false).await?;
        self.end_error_scrub(false).await
    }

    /// The errors that came are those of a scan that ends in this txg.
    async fn end_errors(&mut self, is_everywhere: bool) {
        let txg = self.txg;
        let mut rooms = self.in_txg();
        rooms.log_errors(txg, pool_directory::ERRLOG_SCRUB).await;
        rooms.end_scan_of_errors(txg, is_everywhere).await;
        self.blocks.writer.dmu().zio().data_errors().end_pass(is_everywhere);
    }

    /// Enters the errors that came since the last txg into the log that they belong to.
    pub(super) async fn log_errors(&mut self, txg: Txg) {
        let is_scanned = self.jobs.scan.is_running() || self.jobs.error_scrub.is_running();
        let entry = if is_scanned { pool_directory::ERRLOG_SCRUB } else { pool_directory::ERRLOG_LAST };
        self.in_txg().log_errors(txg, entry).await;
    }

    pub(super) async fn start_scan(&mut self, function: ScanFunction, range: (Txg, Txg)) -> Result<(), SpaError> {
        let to_examine_bytes = {
            let vdevs: Vec<_> = self.devices.root_vdev.tops().map(|(vdev, _)| vdev).collect();
            self.blocks
                .space
                .with(|allocator| vdevs.iter().map(|vdev| allocator.evacuation(*vdev).allocated_bytes).sum())
        };
        if function == ScanFunction::SCRUB && range.0.0 == 0 {
            self.blocks.writer.dmu().zio().data_errors().begin_pass();
            if mutant::is(Mutant::ErrlogSwappedEarly) {
                self.end_errors(true).await;
            }
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.error_scrub.clear(&mut rooms).await?;
        jobs.scan.start(&mut rooms, function, range, to_examine_bytes).await?;
        let text = format!("func={} mintxg={} maxtxg={}", function.0, range.0, range.1);
        self.record_event("scan setup", &text, None).await
    }

    /// Has the scrub wait, or go on.
    ///
    /// # Errors
    /// There is none, or it waits already.
    pub(crate) async fn pause_scrub(&mut self, is_paused: bool) -> Result<(), SpaError> {
        if self.jobs.error_scrub.is_running() {
            return self.pause_error_scrub(is_paused).await;
        }
        let is_scrub = self.jobs.scan.phys().is_some_and(|phys| phys.function == ScanFunction::SCRUB);
        if !self.jobs.scan.is_running() || !is_scrub {
            return Err(SpaError::refused(Refusal::NotThere, "there is no active scrub"));
        }
        if is_paused && self.jobs.scan.is_paused() {
            return Err(SpaError::refused(Refusal::Busy, "scrub is paused; use 'zpool scrub' to resume scrub"));
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        jobs.scan.pause(&mut rooms, is_paused).await
    }

    /// Gives the scrub or resilver, or the scrub of errors, up.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn stop_scan(&mut self) -> Result<(), SpaError> {
        if self.jobs.error_scrub.is_running() {
            return self.stop_error_scrub().await;
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        match jobs.scan.stop(&mut rooms).await? {
            Some(ended) => self.end_scan(ended).await,
            None => Err(SpaError::refused(Refusal::NotThere, "there is no active scrub")),
        }
    }

    /// Gives the scrub up, or that of errors, as a person asks for.
    ///
    /// # Errors
    /// There is none, or a resilver is under way: nothing would have it begin again (OpenZFS's `spa_scan_stop` refuses it, too).
    pub(crate) async fn stop_scrub(&mut self) -> Result<(), SpaError> {
        let is_resilver = self.jobs.scan.phys().is_some_and(|phys| phys.function == ScanFunction::RESILVER);
        match self.jobs.scan.is_running() && is_resilver {
            true => Err(busy(true)),
            false => {
                self.stop_scan().await?;
                self.give_verification_up()
            }
        }
    }

    /// True if a leaf that could be resilvered has missed a part of the last txg: it would miss the next scan's repairs too.
    fn is_failing(&self) -> bool {
        let last = Txg(self.txg.0 - 1);
        self.devices.root_vdev.behind(last).any(|guid| self.can_be_resilvered(guid))
    }

    /// Begins a resilver where one is needed and none covers it.
    async fn resilver_if_needed(&mut self) -> Result<(), SpaError> {
        // A resilver comes after it, for all that leaves lack by then.
        if self.jobs.rebuild.is_active() {
            return Ok(());
        }
        let is_steady = !self.is_failing();
        let scan = &mut self.jobs.scan;
        let is_more = scan.is_more_missed && is_steady;
        if !std::mem::take(&mut scan.is_resilver_wanted) && !is_more {
            return Ok(());
        }
        scan.is_more_missed = false;
        let Some((min_txg, max_txg)) = self.resilver_range() else { return Ok(()) };
        if let Some(phys) = self.jobs.scan.phys().filter(|_| self.jobs.scan.is_running()) {
            let (phys, is_restart) = (*phys, std::mem::take(&mut self.jobs.scan.is_restart_wanted));
            let covers = phys.min_txg <= min_txg && max_txg <= phys.max_txg;
            if covers && phys.function == ScanFunction::RESILVER && !is_restart {
                // Blocks that it could not write are missed still at its end.
                self.jobs.scan.is_wanted_again = true;
                return Ok(());
            }
            if !is_restart && self.mos.features.has("resilver_defer") && self.jobs.scan.is_far() {
                return self.defer_resilver(phys.min_txg, phys.max_txg);
            }
            self.stop_scan().await?;
        }
        if self.jobs.error_scrub.is_running() {
            self.stop_error_scrub().await?;
        }
        self.start_scan(ScanFunction::RESILVER, (min_txg, max_txg)).await
    }

    /// Has leaves wait that lack more than these txgs.
    fn defer_resilver(&mut self, min_txg: Txg, max_txg: Txg) -> Result<(), SpaError> {
        let root_vdev = &self.devices.root_vdev;
        let is_late = |guid: &Guid| {
            let ranges = root_vdev.missed.get(guid).map_or(&[][..], |missed| missed.ranges());
            let is_before = ranges.first().is_some_and(|first| first.start <= min_txg.0);
            is_before || ranges.last().is_some_and(|last| last.end > max_txg.0)
        };
        let deferred = root_vdev.with_field(RESILVER_DEFER);
        let leaves = root_vdev.config.leaves().into_iter().map(|leaf| leaf.guid);
        let late: Vec<Guid> =
            leaves.filter(|guid| !deferred.contains(guid) && is_late(guid) && self.can_be_resilvered(*guid)).collect();
        if late.is_empty() {
            return Ok(());
        }
        for guid in late {
            self.devices.root_vdev.set_field(guid, RESILVER_DEFER, NvValue::Boolean)?;
        }
        if self.mos.features.count("resilver_defer") == 0 {
            self.mos.features.change("resilver_defer", 1);
        }
        self.devices.config_changed = true;
        Ok(())
    }

    /// No leaf waits any more. True if one did that lacks something.
    fn end_deferral(&mut self) -> Result<bool, SpaError> {
        let deferred = self.devices.root_vdev.with_field(RESILVER_DEFER);
        for guid in &deferred {
            self.devices.root_vdev.clear_field(*guid, RESILVER_DEFER)?;
        }
        if self.mos.features.count("resilver_defer") > 0 {
            self.mos.features.change("resilver_defer", -1);
        }
        self.devices.config_changed |= !deferred.is_empty();
        Ok(!deferred.is_empty() && self.resilver_range().is_some())
    }

    /// Takes what the scan's worker has done, when the txg's changes of datasets are made. `has_changed`: there may be some.
    pub(super) async fn settle_scan(&mut self, has_changed: bool) -> Result<(), SpaError> {
        let is_last = self.state != PoolState::Active;
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        let ended = jobs.scan.settle(&mut rooms, has_changed || is_last).await?;
        let mut has_ended = ended.is_some();
        if let Some(ended) = ended {
            self.end_scan(ended).await?;
        }
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        if jobs.error_scrub.settle(&mut rooms).await? {
            self.end_error_scrub(true).await?;
            has_ended = true;
        }
        if is_last {
            return Ok(());
        }
        self.note_stayed().await?;
        self.resilver_if_needed().await?;
        if has_ended || self.jobs.evacuation.wants_scrub() { self.begin_verification().await } else { Ok(()) }
    }

    /// Notes what leaves lack that were to be taken out of use and stayed. A txg that is to come is noted when it syncs.
    async fn note_stayed(&mut self) -> Result<(), SpaError> {
        for (guid, lacks) in std::mem::take(&mut self.jobs.scan.stayed) {
            let is_later = lacks.ranges().last().is_some_and(|last| last.end > self.txg.0 + 1);
            self.note_dtls(self.txg, 1, [(guid, lacks.before(Txg(self.txg.0 + 1)))].into()).await?;
            match is_later {
                true => drop(self.jobs.scan.stayed.insert(guid, lacks)),
                false => self.jobs.scan.is_resilver_wanted = true,
            }
        }
        Ok(())
    }

    async fn end_scan(&mut self, ended: EndedScan) -> Result<(), SpaError> {
        let EndedScan { phys, is_complete, .. } = &ended;
        if *is_complete || mutant::is(Mutant::DtlCleared) {
            self.shorten_dtls(&ended).await?;
            // Leaves may have missed more meanwhile; each scan is of later txgs.
            self.jobs.scan.is_more_missed |= self.resilver_range().is_some_and(|(_, end)| end > phys.max_txg);
        }
        self.end_verification(&ended).await?;
        let is_scrub = phys.function == ScanFunction::SCRUB;
        self.end_errors(*is_complete && is_scrub && phys.min_txg.0 == 0).await;
        // A scrub of later blocks does not stand for what comes before them.
        if *is_complete && is_scrub && phys.min_txg <= self.last_scrubbed().await? {
            let last = phys.max_txg.max(self.last_scrubbed().await?);
            let value = ZapValue::from_u64(last.0);
            Zap::put_entry(&self.mos.directory, self.txg, pool_directory::LAST_SCRUBBED_TXG, Some(&value)).await?;
        }
        self.jobs.scan.is_resilver_wanted |= std::mem::take(&mut self.jobs.scan.is_wanted_again) && *is_complete;
        if self.end_deferral()? {
            self.jobs.scan.is_resilver_wanted = true;
            self.record_event("starting deferred resilver", &format!("errors={}", phys.error_count), None).await?;
        }
        let name = if *is_complete { "scan done" } else { "scan aborted, restarting" };
        let name = if *is_complete || self.jobs.scan.is_resilver_wanted { name } else { "scan cancelled" };
        let text = format!("func={} errors={}", phys.function.0, phys.error_count);
        self.record_event(name, &text, None).await
    }

    /// Takes out of the DTLs what the scan has made good.
    async fn shorten_dtls(&mut self, ended: &EndedScan) -> Result<(), SpaError> {
        let EndedScan { phys, unrepaired, back, is_resumed, .. } = ended;
        let txg = self.txg;
        let Some(unrepaired) = unrepaired else { return Ok(()) };
        // Copies of an evacuation are led to by no pointer yet. Its end has another resilver begin.
        if self.jobs.evacuation.running.is_some() {
            return Ok(());
        }
        let deferred = self.devices.root_vdev.with_field(RESILVER_DEFER);
        let guids: Vec<Guid> = self.devices.root_vdev.missed.keys().copied().collect();
        for guid in guids.into_iter().filter(|guid| self.can_be_resilvered(*guid)).collect::<BTreeSet<_>>() {
            let missed = &self.devices.root_vdev.missed[&guid];
            // Not all that it lacks was scanned for, or not for all of the scan.
            let is_deferred = deferred.contains(&guid);
            let is_covered = missed.ranges().first().is_none_or(|first| phys.min_txg.0 < first.start);
            // A new leaf lacks what was visited before it came. The scan is for it only if it is of all that the leaf lacks, the txgs to come with it.
            let is_new = self
                .devices
                .root_vdev
                .vdev(guid)
                .is_some_and(|(_, leaf)| leaf.resilver_txg.or(leaf.rebuild_txg).is_some());
            let misses_more = missed.ranges().last().is_some_and(|last| last.end > phys.max_txg.0);
            let is_of_others = (is_new || *is_resumed) && misses_more;
            if !is_covered || is_deferred || is_of_others || back.contains(&guid) {
                continue;
            }
            let mut left = missed.clone();
            left.remove(0..phys.max_txg.0);
            for holder in self.holders_of(guid) {
                left.absorb(&unrepaired.of(holder, missed));
            }
            assert!(left.ranges().last().is_none_or(|last| last.end <= txg.0 + 1), "a leaf has missed no txg to come");
            // All that was to be rebuilt is resilvered, and so verified.
            if left.is_empty() && missed.ranges().first().is_some_and(|first| first.start <= Txg::INITIAL.0) {
                self.devices.root_vdev.clear_field(guid, "rebuild_txg")?;
                self.devices.config_changed = true;
            }
            self.replace_dtl(txg, guid, left).await?;
        }
        Ok(())
    }

    /// Has a leaf lack these txgs, and no others.
    pub(super) async fn replace_dtl(&mut self, txg: Txg, guid: Guid, left: Dtl) -> Result<(), SpaError> {
        let leaf = self.devices.root_vdev.config.leaves().into_iter().find(|leaf| leaf.guid == guid);
        let dtl = leaf.map_or(ObjectId(0), |leaf| leaf.dtl);
        self.devices.tree.set_dtl(guid, left.clone());
        if left.is_empty() {
            self.devices.tree.rebuild_ended(guid);
        }
        match left.is_empty() {
            true => self.devices.root_vdev.missed.remove(&guid),
            false => self.devices.root_vdev.missed.insert(guid, left),
        };
        if dtl == ObjectId(0) { Ok(()) } else { self.write_dtl(txg, 1, guid, dtl).await }
    }
}

fn busy(is_resilver: bool) -> SpaError {
    let what = match is_resilver {
        true => "currently resilvering",
        false => "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
    };
    SpaError::refused(Refusal::Busy, what)
}
