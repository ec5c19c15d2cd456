//! Sequential rebuild: a new leaf of a mirror or draid gets all that is in use, in the order of the vdev, and a scrub checks it afterwards.
//!
//! # Theory
//!
//! **Need.** While a disk is replaced its vdev has less redundancy than it should. A resilver follows the tree of blocks and verifies each; a disk with a
//! head spends most of that time on the way. The order of the vdev is as fast as the slower disk.
//!
//! **On disk**, as OpenZFS has it, so each of the two continues the other's rebuild: 12 words in the ZAP of the top-level vdev ([`RebuildPhys`]), the
//! feature `device_rebuild` counted while it is under way, and `rebuild_txg` in the configuration of the leaf in the place of `resilver_txg`.
//!
//! **Life.** The attachment's txg writes ACTIVE, and the dirty time log of the new leaf has all txgs up to [`RebuildPhys::max_txg`] → the worker
//! (`crate::pool::rebuild`) waits until these are on disk: so whatever is placed while it works is written to the new leaf like to any other → it takes the
//! next ranges in use, with the slot, has them copied (`cenote_vdev::tree`'s `rebuild`), and reports how far it has come → each txg
//! writes the offset → at the end COMPLETE; the dirty time logs of leaves that got everything are emptied, and a scrub begins, since nothing was verified:
//! until its end the devices stay whose places they take (`crate::sync::verify`).
//!
//! **What is copied stays** what it is, though the pool is written: a *pin* of the last txg is held while a piece is copied, so what is freed
//! meanwhile is not used again before. Ranges are those of the last txg on disk: blocks of later ones are written to all legs anyway. A block of an intent log
//! is allocated long before it is written, and then written to all legs: it is left out (`Logs::unwritten`). (OpenZFS closes the metaslab.)
//!
//! **Sources** are leaves that have missed nothing, at the time when the ranges are taken. Where there are too few of them, since another
//! leaf has missed something meanwhile, the rebuild is given up and a resilver begins, which knows the txg of each block.
//!
//! **The end.** A leaf has everything if there was no error, it was there for each piece, and it has missed nothing since the txgs
//! that the rebuild is of (OpenZFS's rule too). Otherwise its log stays, and a resilver begins.
//!
//! **Rules.** A rebuild ends a scrub. While one is under way no scrub and no resilver begins; what leaves lack otherwise waits for its end. Another
//! leaf that is attached to the vdev has it begin anew. It is given up when no leaf that is there lacks anything.
//!
//! **Invariants.** 1. The offset on disk is one up to which all was copied, in the round that is recorded ([`RebuildSeat`]). 2. No log is emptied but at the end.
//! 3. The feature is counted once for each vdev that is ACTIVE.
//!
//! **Crash.** The offset is behind what was copied: some is copied again.
//!
//! **Rejected.** *Closing metaslabs*, as OpenZFS does: in a small pool nothing is left to allocate from, and a txg has to end for each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_dmu::{Objset, Zap};
use cenote_format::dsl::{RebuildPhys, RebuildState};
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::zap::ZapValue;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Instant, boxed};
use cenote_vdev::config::VdevConfig;

use super::{Job, Progress};
use crate::SpaError;
use crate::figures::rebuild_of;
use crate::sync::rooms::InTxg;

/// Txgs after the last that a rebuild may be of (`TXG_CONCURRENT_STATES`, and the one that syncs).
const TXGS_TO_COME: u64 = 4;

/// Why a rebuild comes to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RebuildEnd {
    /// All was copied.
    Done,
    /// It cannot go on, in words.
    Stuck(String),
}

/// The work that a worker has done since its last report.
#[derive(Clone, Debug, Default)]
pub(crate) struct RebuildReport {
    /// All before this offset is rebuilt.
    pub(crate) offset_bytes: u64,
    pub(crate) scanned_bytes: u64,
    pub(crate) rebuilt_bytes: u64,
    pub(crate) error_count: u64,
    /// Targets that did not get everything, or were not there all along.
    pub(crate) failed: BTreeSet<Guid>,
    pub(crate) end: Option<RebuildEnd>,
}

impl RebuildReport {
    fn add(&mut self, later: Self) {
        assert!(self.end.is_none(), "nothing comes after the end");
        assert!(self.offset_bytes <= later.offset_bytes, "a rebuild goes forward");
        self.offset_bytes = later.offset_bytes;
        self.scanned_bytes = self.scanned_bytes.saturating_add(later.scanned_bytes);
        self.rebuilt_bytes = self.rebuilt_bytes.saturating_add(later.rebuilt_bytes);
        self.error_count = self.error_count.saturating_add(later.error_count);
        self.failed.extend(later.failed);
        self.end = later.end;
    }
}

#[derive(Default)]
struct SeatState {
    /// The last that was given out.
    round: u64,
    /// The round of each vdev's rebuild.
    wanted: BTreeMap<VdevId, u64>,
    reports: BTreeMap<VdevId, RebuildReport>,
    is_closed: bool,
}

/// Where workers of rebuilds and the sync meet. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RebuildSeat(Arc<Mutex<SeatState>>);

impl RebuildSeat {
    /// Begins a round of a vdev's rebuild; an older one ends.
    fn begin(&self, vdev: VdevId) -> u64 {
        let mut state = self.0.lock();
        state.round += 1;
        let round = state.round;
        state.wanted.insert(vdev, round);
        state.reports.remove(&vdev);
        round
    }

    fn end(&self, vdev: VdevId) {
        let mut state = self.0.lock();
        state.wanted.remove(&vdev);
        state.reports.remove(&vdev);
    }

    /// The worker of this round is to go on.
    pub(crate) fn is_wanted(&self, vdev: VdevId, round: u64) -> bool {
        let state = self.0.lock();
        !state.is_closed && state.wanted.get(&vdev) == Some(&round)
    }

    /// Takes a report of this round. What it says is copied has been taken by devices.
    pub(crate) fn report(&self, vdev: VdevId, round: u64, report: RebuildReport) {
        let mut state = self.0.lock();
        if state.wanted.get(&vdev) != Some(&round) {
            return;
        }
        match state.reports.get_mut(&vdev) {
            Some(before) => before.add(report),
            None => drop(state.reports.insert(vdev, report)),
        }
    }

    fn take(&self, vdev: VdevId) -> Option<RebuildReport> {
        self.0.lock().reports.remove(&vdev)
    }

    /// The pool ends: so do the workers.
    pub(crate) fn close(&self) {
        self.0.lock().is_closed = true;
    }
}

/// A rebuild that is under way.
struct Running {
    phys: RebuildPhys,
    round: u64,
    table: ObjectId,
    /// Targets that cannot be whole at the end.
    failed: BTreeSet<Guid>,
    /// Milliseconds that earlier rounds took, and the beginning of this one.
    before_ms: u64,
    begun: Instant,
}

/// A rebuild whose worker is to be begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RebuildPlan {
    pub(crate) vdev: VdevId,
    pub(crate) round: u64,
    pub(crate) phys: RebuildPhys,
}

/// A rebuild that a txg has ended.
pub(crate) struct EndedRebuild {
    pub(crate) vdev: VdevId,
    pub(crate) phys: RebuildPhys,
    pub(crate) failed: BTreeSet<Guid>,
    /// Why it was given up.
    pub(crate) reason: Option<String>,
}

/// The rebuilds of a pool.
#[derive(Default)]
pub(crate) struct Rebuild {
    running: BTreeMap<VdevId, Running>,
    pub(crate) seat: RebuildSeat,
    progress: Progress,
}

impl Rebuild {
    /// Those that another process, or OpenZFS, has begun.
    #[boxed]
    pub(crate) async fn open(mos: &Objset, tops: &[VdevConfig], (txg, now): (Txg, Instant)) -> Self {
        let mut this = Self::default();
        for (vdev, top) in (0..).map(VdevId).zip(tops) {
            if let Some(mut phys) = rebuild_of(mos, top).await.filter(|phys| phys.state == RebuildState::ACTIVE) {
                // A leaf that is new lacks some txgs to come; no rebuild is of later ones.
                phys.max_txg = phys.max_txg.min(Txg(txg.0.saturating_add(TXGS_TO_COME)));
                this.put(vdev, top.top_zap, phys, now);
            }
        }
        this
    }

    fn put(&mut self, vdev: VdevId, table: ObjectId, phys: RebuildPhys, now: Instant) {
        assert_eq!(phys.state, RebuildState::ACTIVE, "a rebuild that is under way is recorded as active");
        let round = self.seat.begin(vdev);
        let running = Running { phys, round, table, failed: BTreeSet::new(), before_ms: phys.scan_time_ms, begun: now };
        self.running.insert(vdev, running);
        self.note();
    }

    fn note(&mut self) {
        let left = |running: &Running| running.phys.estimated_bytes.saturating_sub(running.phys.scanned_bytes);
        self.progress.left_bytes = self.running.values().map(left).sum();
    }

    /// Some vdev is being rebuilt.
    pub(crate) fn is_active(&self) -> bool {
        !self.running.is_empty()
    }

    /// This one is.
    pub(crate) fn is_of(&self, vdev: VdevId) -> bool {
        self.running.contains_key(&vdev)
    }

    /// The workers that there are to be.
    pub(crate) fn plans(&self) -> Vec<RebuildPlan> {
        let plan = |(vdev, running): (&VdevId, &Running)| RebuildPlan {
            vdev: *vdev,
            round: running.round,
            phys: running.phys,
        };
        self.running.iter().map(plan).collect()
    }

    /// One begins in this txg, or begins anew.
    pub(crate) async fn start(
        &mut self,
        rooms: &mut InTxg<'_>,
        vdev: VdevId,
        table: ObjectId,
        phys: RebuildPhys,
    ) -> Result<RebuildPlan, SpaError> {
        assert!(phys.min_txg < phys.max_txg, "a rebuild is of some txgs");
        if !self.is_of(vdev) {
            rooms.mos.features.change("device_rebuild", 1);
        }
        if !self.is_active() {
            self.progress = Progress::default();
        }
        let now = rooms.handle.now();
        self.progress.begun.get_or_insert(now);
        self.put(vdev, table, phys, now);
        write(rooms, table, &phys).await?;
        let running = &self.running[&vdev];
        Ok(RebuildPlan { vdev, round: running.round, phys })
    }

    /// Takes what workers have reported, in the sync of a txg. `has_targets`: a leaf of the vdev that is there lacks something.
    pub(crate) async fn settle(
        &mut self,
        rooms: &mut InTxg<'_>,
        has_targets: &BTreeSet<VdevId>,
    ) -> Result<Vec<EndedRebuild>, SpaError> {
        let mut ended = Vec::new();
        let now = rooms.handle.now();
        for vdev in self.running.keys().copied().collect::<Vec<_>>() {
            let report = self.seat.take(vdev);
            let is_over = !has_targets.contains(&vdev);
            let running = self.running.get_mut(&vdev).expect("it is looked at");
            if report.is_none() && !is_over {
                continue;
            }
            let report = report.unwrap_or_else(|| RebuildReport {
                offset_bytes: running.phys.last_offset_bytes,
                ..RebuildReport::default()
            });
            let phys = &mut running.phys;
            assert!(phys.last_offset_bytes <= report.offset_bytes, "a rebuild goes forward (rebuild, invariant 1)");
            phys.last_offset_bytes = report.offset_bytes;
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut phys.scanned_bytes, report.scanned_bytes);
            add(&mut phys.issued_bytes, report.scanned_bytes);
            add(&mut phys.rebuilt_bytes, report.rebuilt_bytes);
            add(&mut phys.error_count, report.error_count);
            let took = u64::try_from((now - running.begun).as_millis()).unwrap_or(u64::MAX);
            phys.scan_time_ms = running.before_ms.saturating_add(took);
            running.failed.extend(report.failed);
            self.progress.done_bytes = self.progress.done_bytes.saturating_add(report.scanned_bytes);
            let (state, reason) = match report.end {
                Some(RebuildEnd::Done) => (RebuildState::COMPLETE, None),
                _ if is_over => (RebuildState::CANCELED, None),
                Some(RebuildEnd::Stuck(reason)) => (RebuildState::CANCELED, Some(reason)),
                None => (RebuildState::ACTIVE, None),
            };
            phys.state = state;
            if state != RebuildState::ACTIVE {
                phys.end_time = rooms.time_s();
            }
            let (table, phys) = (running.table, *phys);
            write(rooms, table, &phys).await?;
            if state == RebuildState::ACTIVE {
                continue;
            }
            let running = self.running.remove(&vdev).expect("it is looked at");
            self.seat.end(vdev);
            if rooms.mos.features.count("device_rebuild") > 0 {
                rooms.mos.features.change("device_rebuild", -1);
            }
            ended.push(EndedRebuild { vdev, phys, failed: running.failed, reason });
        }
        self.note();
        Ok(ended)
    }
}

async fn write(rooms: &InTxg<'_>, table: ObjectId, phys: &RebuildPhys) -> Result<(), SpaError> {
    let object = rooms.mos.objset.object(table).await?;
    Ok(Zap::put_entry(&object, rooms.txg, RebuildPhys::ENTRY, Some(&ZapValue::from_u64s(&phys.words()))).await?)
}

impl Job for Rebuild {
    fn name(&self) -> &'static str {
        "rebuild"
    }

    fn has_work(&self) -> bool {
        self.is_active()
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn has_worker(&self) -> bool {
        true
    }
}
