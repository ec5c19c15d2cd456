//! Sequential rebuild, where it touches devices: it begins with a new leaf, takes ranges in use, and its end empties dirty time logs.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::dsl::{RebuildPhys, RebuildState, ScanFunction};
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_metaslab::AllocError;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::dtl::Dtl;
use cenote_zio::Keeper;

use crate::jobs::rebuild::{EndedRebuild, RebuildPlan};
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

/// Ranges that are planned at once.
const RANGES_MAX: usize = 1024;

/// The ranges that a worker copies next.
pub(crate) struct RebuildRanges {
    pub(crate) ranges: Vec<Range<u64>>,
    /// All before this offset is in the ranges, was before, or need not be copied.
    pub(crate) end_bytes: u64,
    /// Nothing comes after them.
    pub(crate) is_last: bool,
    /// Those that get them.
    pub(crate) targets: Arc<BTreeSet<Guid>>,
    /// Keeps all that is in them what it is.
    pub(crate) hold: Box<dyn Send>,
}

/// Why there are none.
pub(crate) enum NoRanges {
    /// They are to be asked for again.
    Later,
    /// Nothing can be copied.
    Stuck(String),
}

impl Syncer {
    /// Refuses a rebuild that cannot be.
    ///
    /// # Errors
    /// As they say.
    pub(crate) fn check_rebuild(&self, top: &VdevConfig, parent: &VdevConfig) -> Result<(), SpaError> {
        let is_lone = parent.kind == VdevKind::Root;
        if !is_lone
            && !matches!(top.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare | VdevKind::Draid { .. })
        {
            let what = "only mirror and dRAID vdevs support sequential reconstruction";
            return Err(SpaError::refused(Refusal::Invalid, what));
        }
        if !self.mos.features.has("device_rebuild") || top.top_zap.0 == 0 {
            return Err(SpaError::unsupported(
                "sequential reconstruction in a pool without the feature device_rebuild; without -s it is resilvered",
            ));
        }
        let is_resilvered = self.jobs.scan.phys().is_some_and(|phys| phys.function == ScanFunction::RESILVER)
            && self.jobs.scan.is_running();
        match is_resilvered || self.jobs.scan.is_resilver_wanted {
            true => Err(SpaError::refused(
                Refusal::Busy,
                "currently resilvering; use 'zpool wait -t resilver' to wait for its end",
            )),
            false => Ok(()),
        }
    }

    /// Refuses what cannot be while a vdev is rebuilt.
    ///
    /// # Errors
    /// One is.
    pub(crate) fn refuse_rebuild(&self) -> Result<(), SpaError> {
        match self.jobs.rebuild.is_active() {
            true => Err(SpaError::refused(Refusal::Busy, "currently sequentially resilvering")),
            false => Ok(()),
        }
    }

    /// Begins to rebuild a vdev in the open txg: what its leaves that are there lack by now.
    pub(crate) async fn start_rebuild(&mut self, vdev: VdevId) -> Result<RebuildPlan, SpaError> {
        let targets = self.devices.tree.rebuild_targets(vdev);
        let missed = targets.iter().filter_map(|guid| self.devices.root_vdev.missed.get(guid));
        let ranges = missed.filter_map(|missed| Some((missed.ranges().first()?.start, missed.ranges().last()?.end)));
        let range = ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        let (first, end) = range.expect("a rebuild begins with a leaf that lacks something");
        // As `zpool scrub -s` would.
        if self.jobs.scan.is_running() || self.jobs.error_scrub.is_running() {
            self.stop_scan().await?;
        }
        let top = self.devices.root_vdev.tops().find(|(id, _)| *id == vdev).map(|(_, top)| (top.top_zap, top.guid));
        let (table, guid) = top.expect("a vdev that is rebuilt is there");
        let estimated_bytes = self.blocks.space.with(|allocator| allocator.evacuation(vdev).allocated_bytes);
        let phys = RebuildPhys {
            state: RebuildState::ACTIVE,
            min_txg: Txg(first.saturating_sub(1)),
            max_txg: Txg(end),
            start_time: self.time_s(),
            estimated_bytes,
            ..RebuildPhys::default()
        };
        let word = if self.jobs.rebuild.is_of(vdev) { "reset" } else { "started" };
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        let plan = jobs.rebuild.start(&mut rooms, vdev, table, phys).await?;
        self.record_event("rebuild", &format!("vdev_id={vdev} vdev_guid={guid} {word}"), None).await?;
        if word == "started" {
            self.blocks.space.events.rebuild("resilver_start", guid);
        }
        Ok(plan)
    }

    /// The next ranges in use of a vdev that is rebuilt, from an offset on, kept as they are. With the slot, so between two txgs.
    pub(crate) async fn rebuild_ranges(&mut self, vdev: VdevId, from: u64) -> Result<RebuildRanges, NoRanges> {
        let tunables = self.jobs.scan.tunables;
        let is_at_limit = tunables.zfs_scan_issue_bytes_max > 0 && from >= tunables.zfs_scan_issue_bytes_max;
        if tunables.zfs_scan_suspend_progress || is_at_limit {
            return Err(NoRanges::Later);
        }
        let space = self.blocks.space.clone();
        // First the pin, then the look: what is in use now is not used for anything else from now on.
        let pin = self.devices.synced.and_then(|last| space.pins.pin(last.txg, true)).ok_or(NoRanges::Later)?;
        let hold = Keeper::hold(pin).ok_or(NoRanges::Later)?;
        let targets = self.devices.tree.rebuild_targets(vdev);
        if targets.is_empty() {
            // The next txg sees that too, and ends it.
            return Err(NoRanges::Later);
        }
        if !self.devices.tree.has_rebuild_sources(vdev) {
            return Err(NoRanges::Stuck("other devices have missed something too".to_owned()));
        }
        let mut unwritten: Vec<Range<u64>> = Vec::new();
        for block in self.zil.logs.iter().flat_map(|logs| logs.unwritten()) {
            let dvas = block.dvas().filter(|dva| dva.vdev == vdev);
            unwritten.extend(dvas.map(|dva| dva.offset_bytes..dva.offset_bytes + dva.asize_bytes));
        }
        unwritten.sort_unstable_by_key(|range| range.start);
        let (mut ranges, mut at, mut left_bytes, mut is_last) =
            (Vec::new(), from, self.jobs.scan.tunables.zfs_rebuild_vdev_limit, false);
        while ranges.len() < RANGES_MAX && left_bytes > 0 {
            let next = loop {
                match space.with(|allocator| allocator.next_on_disk(vdev, at)) {
                    Ok(next) => break next,
                    Err(AllocError::NeedsLoad(id)) => {
                        if let Err(error) = space.load(id, self.txg).await {
                            return Err(NoRanges::Stuck(format!("its space cannot be read: {error}")));
                        }
                    }
                    Err(error) => return Err(NoRanges::Stuck(error.to_string())),
                }
            };
            let Some(next) = next else {
                is_last = true;
                break;
            };
            let end = next.end.min(next.start + self.whole_rows(vdev, left_bytes));
            left_bytes = left_bytes.saturating_sub(end - next.start);
            let mut from = next.start;
            for log in unwritten.iter().filter(|log| log.start < end && next.start < log.end) {
                ranges.push(from..log.start.max(from));
                from = from.max(log.end);
            }
            ranges.push(from.min(end)..end);
            ranges.retain(|range| !range.is_empty());
            at = end;
        }
        debug_assert!(ranges.is_sorted_by(|one, next| one.end <= next.start), "ranges are in the order of the vdev");
        Ok(RebuildRanges { ranges, end_bytes: at, is_last, targets: Arc::new(targets), hold })
    }

    /// As many bytes as pieces come to, at least one.
    fn whole_rows(&self, vdev: VdevId, bytes: u64) -> u64 {
        let unit = self.devices.tree.rebuild_unit(vdev).unwrap_or(1 << 20);
        bytes.next_multiple_of(unit)
    }

    /// Takes what workers of rebuilds have done, in the sync of a txg.
    pub(super) async fn settle_rebuilds(&mut self) -> Result<(), SpaError> {
        if !self.jobs.rebuild.is_active() {
            return Ok(());
        }
        let tops: Vec<VdevId> = self.devices.root_vdev.tops().map(|(vdev, _)| vdev).collect();
        let lacking = |vdev: &VdevId| !self.devices.tree.rebuild_targets(*vdev).is_empty();
        let has_targets: BTreeSet<VdevId> = tops.into_iter().filter(lacking).collect();
        let (mut rooms, jobs) = self.in_txg_with_jobs();
        for ended in jobs.rebuild.settle(&mut rooms, &has_targets).await? {
            self.end_rebuild(ended).await?;
        }
        Ok(())
    }

    async fn end_rebuild(&mut self, ended: EndedRebuild) -> Result<(), SpaError> {
        let EndedRebuild { vdev, phys, failed, reason } = ended;
        let is_complete = phys.state == RebuildState::COMPLETE;
        let Some((name, guid, leaves)) = self.devices.root_vdev.tops().find(|(id, _)| *id == vdev).map(|(_, top)| {
            let leaves: Vec<Guid> = top.leaves().into_iter().map(|leaf| leaf.guid).collect();
            (top.display_name(), top.guid, leaves)
        }) else {
            return Ok(());
        };
        if is_complete && phys.error_count == 0 {
            let targets = self.devices.tree.rebuild_targets(vdev);
            for leaf in leaves.into_iter().filter(|leaf| targets.contains(leaf) && !failed.contains(leaf)) {
                let missed = self.devices.root_vdev.missed.get(&leaf).cloned().unwrap_or_default();
                let is_covered = missed.ranges().first().is_none_or(|first| phys.min_txg.0 < first.start)
                    && missed.ranges().last().is_none_or(|last| last.end <= phys.max_txg.0);
                if is_covered {
                    self.replace_dtl(self.txg, leaf, Dtl::new()).await?;
                    if !self.is_unverified(leaf) {
                        self.devices.root_vdev.clear_field(leaf, "rebuild_txg")?;
                    }
                    self.devices.config_changed = true;
                }
            }
        }
        let word = if is_complete { "complete" } else { "canceled" };
        self.record_event("rebuild", &format!("vdev_id={vdev} vdev_guid={guid} {word}"), None).await?;
        self.blocks.space.events.rebuild("resilver_finish", guid);
        if let Some(reason) = reason {
            let what =
                format!("the sequential rebuild of {name} is given up, and its devices are resilvered: {reason}");
            self.blocks.space.troubles.tell(what);
        }
        if self.jobs.rebuild.is_active() {
            return Ok(());
        }
        // A resilver does what is left, and verifies all that it reads; otherwise a scrub does that.
        if self.resilver_range().is_some() {
            self.jobs.scan.is_resilver_wanted = true;
        } else if is_complete && self.jobs.scan.tunables.zfs_rebuild_scrub_enabled {
            self.start_scan(ScanFunction::SCRUB, (Txg(0), self.txg)).await?;
        }
        Ok(())
    }

    /// The vdevs that are being rebuilt, with what their workers need.
    pub(crate) fn rebuild_plans(&self) -> Vec<RebuildPlan> {
        self.jobs.rebuild.plans()
    }

    /// A vdev is being rebuilt.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.jobs.rebuild.is_active()
    }
}
