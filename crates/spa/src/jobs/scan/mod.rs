//! Scrub and resilver: all blocks are read in all their copies, and bad copies are written again.
//!
//! # Theory
//!
//! **Need.** A copy that has rotted is found before the other one rots too. A device that was away, or is new, gets what it lacks. Both are one job,
//! as in OpenZFS: a *scan* goes through all blocks that were born after `min_txg` and up to `max_txg`. A scrub reads all of them; a
//! resilver only those that some leaf has missed.
//!
//! **On disk.** The entry `scan` of the MOS's directory ([`ScanPhys`]), with the place in OpenZFS's form ([`place`]), so each of the two continues the
//! other's scan.
//!
//! **The worker** walks, gathers blocks and reads them in the order of their places ([`ScanOrder`]), and repairs (`cenote_scan`). It gets a [`ScanTask`] with
//! [`ScanWork::Blocks`] from the [`ScanSeat`], and reports when all is read that it has come to: so the place never runs ahead of the checks.
//!
//! **Life of a scan.** `start` writes the state and an empty queue → the seat has a task → reports; the slice adds their counts, and keeps their place in memory →
//! the place is written every [`KEPT_AFTER`], and in each txg that changes datasets, or is the pool's last → the last report says that all is visited: the
//! slice writes the end, and the syncer shortens the DTLs (`crate::sync::scan`).
//!
//! **Invariants.**
//! 1. The datasets that the entry names exist in the same txg: a txg that changed any writes the place anew. (OpenZFS does not import a pool whose scan names a
//!    dataset that is gone.) If the MOS's objects cannot be listed, the scan is written as at its beginning, which names none.
//! 2. What the place on disk says is visited was visited, and its repairs are stable when the txg is. What a resilver could not write again is not behind it.
//! 3. Nothing is shortened in a DTL but by a scan that went from a txg before all that was missed to its end.
//!
//! **Rejected.** *A cursor of our own beside OpenZFS's*: two truths, of which one does not know what the other's owner did.

mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::{Objset, Zap};
use cenote_format::dsl::{ScanFlags, ScanFunction, ScanPhys, ScanState, pool_directory};
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg};
use cenote_format::zap::ZapValue;
use cenote_kstat::Settings;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Instant, Notify, boxed};
use cenote_vdev::dtl::Dtl;
use cenote_zio::Bookmark;

use super::{Job, Progress};
use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::tunables::ScanTunables;
pub use place::{ScanPlace, TreeHistory, WalkedTree};

/// The place is written this long after the last time. A crash costs so much of the work.
const KEPT_AFTER: Duration = Duration::from_secs(30);

/// Txgs after the last that a scan may be of (`TXG_CONCURRENT_STATES`, and the one that syncs).
const TXGS_TO_COME: u64 = 4;

/// The task of a worker.
#[derive(Clone, Debug)]
pub struct ScanTask {
    /// Reports of another round are dropped.
    pub round: u64,
    /// The work.
    pub work: ScanWork,
}

/// The work that a worker is to do.
#[derive(Clone, Debug)]
pub enum ScanWork {
    /// A scrub or resilver.
    Blocks(ScanRange),
    /// The blocks of the error log, from this cursor on.
    Errors {
        /// A place among the log's datasets.
        cursor: u64,
    },
}

/// The blocks of a scrub or resilver.
#[derive(Clone, Debug)]
pub struct ScanRange {
    /// Scrub or resilver.
    pub function: ScanFunction,
    /// Blocks born after this txg are visited,
    pub min_txg: Txg,
    /// up to this one.
    pub max_txg: Txg,
    /// Where it begins.
    pub place: ScanPlace,
}

/// The work that a worker has done since its last report.
#[derive(Clone, Debug, Default)]
pub struct ScanReport {
    /// Bytes of blocks visited, all copies.
    pub examined_bytes: u64,
    /// Bytes of blocks outside of the range of txgs, or that need nothing.
    pub skipped_bytes: u64,
    /// Bytes written again.
    pub processed_bytes: u64,
    /// Blocks that no copy is good of.
    pub error_count: u64,
    /// The txgs of blocks that could not be written again, by leaf.
    pub unrepaired: BTreeMap<Guid, Dtl>,
    /// The txgs of blocks of which something is bad and nothing was written: their place was not kept, or their vdev cannot be repaired now.
    pub unmended: Dtl,
}

impl ScanReport {
    /// Adds a later report.
    pub fn add(&mut self, later: Self) {
        self.examined_bytes = self.examined_bytes.saturating_add(later.examined_bytes);
        self.skipped_bytes = self.skipped_bytes.saturating_add(later.skipped_bytes);
        self.processed_bytes = self.processed_bytes.saturating_add(later.processed_bytes);
        self.error_count = self.error_count.saturating_add(later.error_count);
        for (guid, txgs) in later.unrepaired {
            self.unrepaired.entry(guid).or_default().absorb(&txgs);
        }
        self.unmended.absorb(&later.unmended);
    }
}

/// The part of the error log that a worker has done since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// Blocks read.
    pub examined_count: u64,
    /// Those that no copy is good of.
    pub error_count: u64,
    /// How far it is.
    pub cursor: u64,
}

/// How a worker sorts blocks by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOrder {
    /// Memory for blocks that are gathered to be sorted; 0 to read each as the worker comes to it.
    pub memory_bytes: u64,
    /// The longest time before what was gathered is read.
    pub patience: Duration,
    /// The worker stands still when it has reported so many bytes; for tests.
    pub issue_bytes_max: Option<u64>,
}

impl Default for ScanOrder {
    fn default() -> Self {
        Self::new(&ScanTunables::default(), 64 << 20)
    }
}

impl ScanOrder {
    /// By the tunables, beside a cache of so many bytes.
    pub(crate) fn new(tunables: &ScanTunables, cache_bytes: u64) -> Self {
        let memory_bytes = (cache_bytes.saturating_mul(4) / tunables.zfs_scan_mem_lim_fact).max(1 << 20);
        Self {
            memory_bytes: if tunables.zfs_scan_legacy { 0 } else { memory_bytes },
            patience: Duration::from_secs(tunables.zfs_scan_checkpoint_intval),
            issue_bytes_max: Some(tunables.zfs_scan_issue_bytes_max).filter(|bytes| *bytes > 0),
        }
    }
}

/// The part of a scan that its worker does in one go: since the pool was opened, or the scan was begun or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanPass {
    /// The time at which it began, seconds since 1970.
    pub start_s: u64,
    /// Bytes of blocks that were visited before, all copies.
    pub examined_bytes: u64,
    /// Those of them that needed nothing.
    pub skipped_bytes: u64,
}

/// The work of a worker since its last report, and the scan as of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreported {
    /// The pass that goes on. None if no worker has begun one.
    pub pass: Option<ScanPass>,
    /// With all that was reported: the record on disk is written now and then. None before the first report of a round.
    pub scan: Option<ScanPhys>,
    /// Bytes of blocks that it has come to and gathered, all copies.
    pub gathered_bytes: u64,
    /// Those of them that it has read.
    pub read_bytes: u64,
    /// Those that it has written again.
    pub processed_bytes: u64,
}

/// How far a worker is.
#[derive(Clone, Debug)]
enum Reached {
    /// Up to here.
    Place(ScanPlace),
    /// All is visited.
    End,
}

#[derive(Default)]
struct Seat {
    /// The last that was given out.
    round: u64,
    task: Option<ScanTask>,
    /// The report of the round's worker that no slice has taken yet.
    report: Option<(ScanReport, Reached)>,
    /// The same of the error log.
    errors: Option<ErrorReport>,
    unreported: Unreported,
    /// Bytes of blocks that were visited before this round, and those that were skipped.
    before_bytes: (u64, u64),
    /// Those bytes that the report has, which no slice has taken yet.
    told_bytes: u64,
    told_processed_bytes: u64,
    order: ScanOrder,
    /// A worker has taken its place here, for as long as the pool is open.
    is_attended: bool,
    is_closed: bool,
}

/// Where a pool's scan and the worker that walks for it meet. Cheap to clone.
#[derive(Clone, Default)]
pub struct ScanSeat(Arc<(Mutex<Seat>, Notify)>);

impl ScanSeat {
    /// A worker takes its place, and does tasks from now on. False if there is one already.
    #[must_use]
    pub fn attend(&self) -> bool {
        !std::mem::replace(&mut self.0.0.lock().is_attended, true)
    }

    /// True if there is a worker.
    pub(crate) fn is_attended(&self) -> bool {
        self.0.0.lock().is_attended
    }

    /// A task of a later round than `after`, as soon as there is one. None when the pool is closed.
    #[boxed]
    pub async fn next(&self, after: u64) -> Option<ScanTask> {
        loop {
            let changed = self.0.1.wait();
            {
                let seat = self.0.0.lock();
                if seat.is_closed {
                    return None;
                }
                if let Some(task) = seat.task.as_ref().filter(|task| task.round > after) {
                    return Some(task.clone());
                }
            }
            changed.await;
        }
    }

    /// True while a task of this round is wanted.
    #[must_use]
    pub fn is_wanted(&self, round: u64) -> bool {
        let seat = self.0.0.lock();
        !seat.is_closed && seat.task.as_ref().is_some_and(|task| task.round == round)
    }

    /// Says that the worker begins a round, at this time since 1970.
    pub fn begins(&self, round: u64, start_s: u64) {
        let mut seat = self.0.0.lock();
        if seat.task.as_ref().is_some_and(|task| task.round == round) {
            let (examined_bytes, skipped_bytes) = seat.before_bytes;
            seat.unreported.pass = Some(ScanPass { start_s, examined_bytes, skipped_bytes });
        }
    }

    /// Reports what was done, and how far all is done: to a place, or (none) to the end. Repairs have to be written by then.
    pub fn report(&self, round: u64, report: ScanReport, place: Option<ScanPlace>) {
        let mut seat = self.0.0.lock();
        if seat.task.as_ref().is_none_or(|task| task.round != round) {
            return;
        }
        let (before, reached) = seat.report.take().unzip();
        assert!(seat.told_bytes <= seat.unreported.read_bytes, "reports are of ever more bytes");
        assert!(!matches!(reached, Some(Reached::End)), "nothing comes after the end");
        let mut sum: ScanReport = before.unwrap_or_default();
        sum.add(report);
        (seat.told_bytes, seat.told_processed_bytes) = (seat.unreported.read_bytes, seat.unreported.processed_bytes);
        seat.report = Some((sum, place.map_or(Reached::End, Reached::Place)));
    }

    /// The order in which the worker reads.
    #[must_use]
    pub fn order(&self) -> ScanOrder {
        self.0.0.lock().order
    }

    pub(crate) fn set_order(&self, order: ScanOrder) {
        self.0.0.lock().order = order;
    }

    /// Says how many bytes of blocks the worker has come to that it has not reported.
    pub fn gathers(&self, round: u64, bytes: u64) {
        let mut seat = self.0.0.lock();
        if seat.task.as_ref().is_some_and(|task| task.round == round) {
            seat.unreported.gathered_bytes = bytes;
        }
    }

    /// Says that it has read so many bytes of them more, and written so many again.
    pub fn reads(&self, round: u64, bytes: u64, processed_bytes: u64) {
        let mut seat = self.0.0.lock();
        if seat.task.as_ref().is_some_and(|task| task.round == round) {
            seat.unreported.read_bytes = seat.unreported.read_bytes.saturating_add(bytes);
            seat.unreported.processed_bytes = seat.unreported.processed_bytes.saturating_add(processed_bytes);
        }
    }

    /// The scan as of the last report.
    fn counted(&self, scan: ScanPhys) {
        self.0.0.lock().unreported.scan = Some(scan);
    }

    /// The work since the last report.
    pub(crate) fn unreported(&self) -> Unreported {
        self.0.0.lock().unreported
    }

    /// Reports what was done of the error log.
    pub fn report_errors(&self, round: u64, report: ErrorReport) {
        let mut seat = self.0.0.lock();
        if seat.task.as_ref().is_none_or(|task| task.round != round) {
            return;
        }
        let before = seat.errors.take();
        assert!(before.is_none_or(|before| before.cursor != Zap::CURSOR_END), "nothing comes after the end");
        let (examined, errors) = before.map_or((0, 0), |before| (before.examined_count, before.error_count));
        let (examined_count, error_count) = (examined + report.examined_count, errors + report.error_count);
        seat.errors = Some(ErrorReport { examined_count, error_count, ..report });
    }

    /// Ends the task that there is, and puts up another one. `before_bytes`: bytes of blocks that were visited, and those that were skipped.
    pub(super) fn put(&self, work: Option<ScanWork>, before_bytes: (u64, u64)) {
        let mut seat = self.0.0.lock();
        seat.round += 1;
        let round = seat.round;
        seat.task = work.map(|work| ScanTask { round, work });
        (seat.report, seat.errors, seat.before_bytes) = (None, None, before_bytes);
        (seat.unreported, seat.told_bytes, seat.told_processed_bytes) = (Unreported::default(), 0, 0);
        drop(seat);
        self.0.1.all();
    }

    fn take(&self) -> Option<(ScanReport, Reached)> {
        let mut seat = self.0.0.lock();
        let told_bytes = std::mem::take(&mut seat.told_bytes);
        assert!(told_bytes <= seat.unreported.read_bytes, "a report is of bytes that were read");
        seat.unreported.read_bytes -= told_bytes;
        seat.unreported.processed_bytes -= std::mem::take(&mut seat.told_processed_bytes);
        seat.report.take()
    }

    pub(super) fn take_errors(&self) -> Option<ErrorReport> {
        self.0.0.lock().errors.take()
    }

    /// The pool is closed: workers end.
    pub(crate) fn close(&self) {
        self.0.0.lock().is_closed = true;
        self.0.1.all();
    }
}

/// A scan that has ended.
#[derive(Clone, Debug)]
pub(crate) struct EndedScan {
    pub(crate) phys: ScanPhys,
    /// All was visited; it was given up otherwise.
    pub(crate) is_complete: bool,
    /// The txgs of blocks that could not be written again; none where an earlier process met errors, and nobody knows of which txgs.
    pub(crate) unrepaired: Option<Unrepaired>,
    /// Leaves that came back while it went on: it may have passed them over before.
    pub(crate) back: BTreeSet<Guid>,
    /// An earlier process had a part of it, and nobody knows of the leaves that were away then but by what they have missed since.
    pub(crate) is_resumed: bool,
}

/// The txgs of blocks that could not be written again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unrepaired {
    /// By leaf.
    pub(crate) leaves: BTreeMap<Guid, Dtl>,
    /// Of whatever leaf lacks them.
    pub(crate) any: Dtl,
}

impl Unrepaired {
    fn is_empty(&self) -> bool {
        self.any.is_empty() && self.leaves.values().all(Dtl::is_empty)
    }

    /// Those that a leaf lacks which has missed these.
    pub(crate) fn of(&self, guid: Guid, missed: &Dtl) -> Dtl {
        let mut all = self.leaves.get(&guid).cloned().unwrap_or_default();
        for range in self.any.ranges() {
            let mut shared = missed.clone();
            shared.remove(0..range.start);
            shared.remove(range.end..u64::MAX);
            all.absorb(&shared);
        }
        all
    }
}

/// The job.
#[derive(Default)]
pub(crate) struct Scan {
    /// As the MOS has it, but for the place.
    phys: Option<ScanPhys>,
    place: Option<ScanPlace>,
    /// The same, as it is written down: that of a resilver stays before the first block that could not be written again, since a pool that is opened again
    /// knows nothing of that block.
    kept_place: Option<ScanPlace>,
    seat: ScanSeat,
    progress: Progress,
    unrepaired: Unrepaired,
    /// It met errors before this process had the pool, which does not know where.
    has_foreign_errors: bool,
    /// An earlier process began it.
    is_resumed: bool,
    /// Leaves that came back since it began.
    back: BTreeSet<Guid>,
    /// When the place was written.
    kept: Option<Instant>,
    /// A leaf has come that may lack something, or may be written again.
    pub(crate) is_resilver_wanted: bool,
    /// The same, while a resilver of all that leaves lack is under way: another one begins after it if they lack something still.
    pub(crate) is_wanted_again: bool,
    /// Leaves that were to be taken out of use and stayed, with the txgs that they may lack a part of: logs were written without them meanwhile.
    pub(crate) stayed: BTreeMap<Guid, Dtl>,
    /// A person wants devices that wait for the end of a resilver to have one now.
    pub(crate) is_restart_wanted: bool,
    pub(crate) tunables: ScanTunables,
    /// Leaves have missed more while the last resilver went on.
    pub(crate) is_more_missed: bool,
}

impl Scan {
    /// As the pool has it. `txg`: that of the MOS.
    #[boxed]
    pub(crate) async fn open(directory: &Zap, mos: &Objset, txg: Txg) -> Result<Self, SpaError> {
        let Some(value) = directory.lookup(pool_directory::SCAN.as_bytes()).await? else { return Ok(Self::default()) };
        let words: Vec<u64> = value.integers().collect();
        let Ok(mut phys) = ScanPhys::from_words(&words) else { return Ok(Self::default()) };
        // A leaf that is new lacks some txgs to come; no scan is of later ones.
        phys.max_txg = phys.max_txg.min(Txg(txg.0.saturating_add(TXGS_TO_COME)));
        let mut scan = Self { phys: Some(phys), ..Self::default() };
        if scan.is_running() {
            // One whose place cannot be read begins anew.
            let place = ScanPlace::read(mos, &phys, txg).await;
            scan.place = Some(place.unwrap_or_else(|_| ScanPlace::start()));
            (scan.kept_place, scan.has_foreign_errors) = (scan.place.clone(), phys.error_count > 0);
            scan.is_resumed = true;
            scan.put();
        }
        Ok(scan)
    }

    /// Has other tunables from now on.
    pub(crate) fn tune(&mut self, settings: &Settings) {
        let was_still = self.tunables.zfs_scan_suspend_progress;
        self.tunables = self.tunables.with(settings);
        if self.is_running() && was_still != self.tunables.zfs_scan_suspend_progress {
            self.take_report();
            self.put();
        }
    }

    /// Where it meets its worker.
    pub(crate) const fn seat(&self) -> &ScanSeat {
        &self.seat
    }

    /// The scan that is under way or paused, or the last.
    pub(crate) const fn phys(&self) -> Option<&ScanPhys> {
        self.phys.as_ref()
    }

    /// A leaf that was not used is used again. It wants a resilver, and the scan that is under way is none for it.
    pub(crate) fn leaf_is_back(&mut self, guid: Guid) {
        self.is_resilver_wanted = true;
        if self.is_running() {
            self.back.insert(guid);
        }
    }

    /// True while there is one that has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.phys.is_some_and(|phys| phys.state == ScanState::SCANNING)
    }

    /// True while a resilver is under way that is too far to begin anew for another device (`zfs_resilver_defer_percent`).
    pub(crate) fn is_far(&self) -> bool {
        let Some(phys) = self.phys.filter(|phys| phys.function == ScanFunction::RESILVER && self.is_running()) else {
            return false;
        };
        let to_read = u128::from(phys.to_examine_bytes.saturating_sub(phys.skipped_bytes));
        let read = u128::from(phys.examined_bytes.saturating_sub(phys.skipped_bytes));
        let percent = u128::from(self.tunables.zfs_resilver_defer_percent);
        !self.tunables.zfs_resilver_disable_defer && read * 100 >= to_read * percent
    }

    /// True if a person has a scrub wait.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_running() && self.phys.is_some_and(|phys| phys.flags.contains(ScanFlags::SCRUB_PAUSED))
    }

    /// Puts up a task, or takes it away.
    fn put(&mut self) {
        let is_wanted = self.is_running() && !self.is_paused() && !self.tunables.zfs_scan_suspend_progress;
        let work = self.phys.filter(|_| is_wanted).map(|phys| {
            ScanWork::Blocks(ScanRange {
                function: phys.function,
                min_txg: phys.min_txg,
                max_txg: phys.max_txg,
                place: self.place.clone().unwrap_or_else(ScanPlace::start),
            })
        });
        self.seat.put(work, self.phys.map_or((0, 0), |phys| (phys.examined_bytes, phys.skipped_bytes)));
    }

    /// Begins a scan of what was born after `min_txg` and up to `max_txg`, in this txg.
    pub(crate) async fn start(
        &mut self,
        rooms: &mut InTxg<'_>,
        function: ScanFunction,
        (min_txg, max_txg): (Txg, Txg),
        to_examine_bytes: u64,
    ) -> Result<(), SpaError> {
        assert!(!self.is_running(), "a pool has one scan at a time");
        assert!(min_txg < max_txg, "a scan is of some txgs");
        let old = self.phys.map_or(ObjectId(0), |phys| phys.queue);
        let queue = place::write_queue(&rooms.mos.objset, rooms.txg, old, &[]).await?;
        self.phys = Some(ScanPhys {
            function,
            state: ScanState::SCANNING,
            queue,
            min_txg,
            max_txg,
            current_min_txg: min_txg,
            current_max_txg: max_txg,
            start_time: rooms.time_s(),
            to_examine_bytes,
            ..ScanPhys::default()
        });
        (self.place, self.kept_place) = (Some(ScanPlace::start()), Some(ScanPlace::start()));
        self.progress = Progress { left_bytes: to_examine_bytes, ..Progress::default() };
        (self.has_foreign_errors, self.kept) = (false, Some(rooms.handle.now()));
        (self.unrepaired, self.is_resumed) = (Unrepaired::default(), false);
        self.back.clear();
        self.put();
        self.write(rooms).await
    }

    /// Has a scrub wait, or go on.
    pub(crate) async fn pause(&mut self, rooms: &mut InTxg<'_>, is_paused: bool) -> Result<(), SpaError> {
        self.take_report();
        if let Some(phys) = &mut self.phys {
            phys.flags.set(ScanFlags::SCRUB_PAUSED, is_paused);
        }
        self.put();
        self.keep(rooms).await
    }

    /// Gives the scan up.
    pub(crate) async fn stop(&mut self, rooms: &mut InTxg<'_>) -> Result<Option<EndedScan>, SpaError> {
        self.take_report();
        if !self.is_running() {
            return Ok(None);
        }
        self.end(rooms, false).await.map(Some)
    }

    /// Adds what was reported. True if all is visited.
    fn take_report(&mut self) -> bool {
        let Some((report, reached)) = self.seat.take() else { return false };
        let Some(phys) = &mut self.phys else { return false };
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut phys.examined_bytes, report.examined_bytes);
        add(&mut phys.skipped_bytes, report.skipped_bytes);
        add(&mut phys.processed_bytes, report.processed_bytes);
        add(&mut phys.error_count, report.error_count);
        self.progress.done_bytes = self.progress.done_bytes.saturating_add(report.examined_bytes);
        self.progress.left_bytes = phys.to_examine_bytes.saturating_sub(phys.examined_bytes);
        for (guid, txgs) in report.unrepaired {
            self.unrepaired.leaves.entry(guid).or_default().absorb(&txgs);
        }
        self.unrepaired.any.absorb(&report.unmended);
        self.seat.counted(*phys);
        match reached {
            Reached::End => true,
            Reached::Place(place) => {
                // One where a scan cannot go on is passed by: the last stays.
                if place.can_be_kept() {
                    if phys.function != ScanFunction::RESILVER || self.unrepaired.is_empty() {
                        self.kept_place = Some(place.clone());
                    }
                    self.place = Some(place);
                }
                false
            }
        }
    }

    /// Takes the worker's report in the sync of a txg, after its changes of datasets. `has_changed`: there were some, or it is the pool's last.
    pub(crate) async fn settle(
        &mut self,
        rooms: &mut InTxg<'_>,
        has_changed: bool,
    ) -> Result<Option<EndedScan>, SpaError> {
        if !self.is_running() {
            return Ok(None);
        }
        let now = rooms.handle.now();
        self.progress.begun.get_or_insert(now);
        if self.take_report() {
            return self.end(rooms, true).await.map(Some);
        }
        let is_due = self.kept.is_none_or(|kept| now - kept >= KEPT_AFTER);
        if has_changed || is_due {
            self.keep(rooms).await?;
        }
        Ok(None)
    }

    async fn end(&mut self, rooms: &mut InTxg<'_>, is_complete: bool) -> Result<EndedScan, SpaError> {
        let time_s = rooms.time_s();
        let phys = self.phys.as_mut().expect("a scan that ends was begun");
        place::free_queue(&rooms.mos.objset, rooms.txg, phys.queue).await?;
        phys.queue = ObjectId(0);
        phys.bookmark = cenote_format::dsl::ZBookmark::default();
        phys.flags.remove(ScanFlags::SCRUB_PAUSED);
        phys.state = if is_complete { ScanState::FINISHED } else { ScanState::CANCELED };
        phys.end_time = time_s;
        let phys = *phys;
        (self.place, self.kept_place) = (None, None);
        self.put();
        self.write(rooms).await?;
        let unrepaired = std::mem::take(&mut self.unrepaired);
        let unrepaired = (!self.has_foreign_errors).then_some(unrepaired);
        let (back, is_resumed) = (std::mem::take(&mut self.back), self.is_resumed);
        Ok(EndedScan { phys, is_complete, unrepaired, back, is_resumed })
    }

    /// Writes the state with the place.
    async fn keep(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        if mutant::is(Mutant::ScanAhead)
            && let Some(place) = &mut self.kept_place
        {
            place.walked.extend(place.current.take());
            place.next = Bookmark::objset(ObjsetId(u64::MAX));
        }
        let (Some(mut phys), Some(place)) = (self.phys, &self.kept_place) else { return Ok(()) };
        let (mos, txg) = (&rooms.mos.objset, rooms.txg);
        let queue = match place.words(mos, &mut phys).await {
            Ok(queue) => queue,
            Err(error) => {
                // From its beginning it names no dataset.
                phys.bookmark = cenote_format::dsl::ZBookmark::default();
                rooms.blocks.space.troubles.tell(format!("how far the scan is cannot be written down: {error}"));
                Vec::new()
            }
        };
        phys.queue = place::write_queue(mos, txg, phys.queue, &queue).await?;
        self.phys = Some(phys);
        self.kept = Some(rooms.handle.now());
        self.write(rooms).await
    }

    async fn write(&self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        let Some(phys) = &self.phys else { return Ok(()) };
        let value = ZapValue::from_u64s(&phys.words());
        Ok(Zap::put_entry(&rooms.mos.directory, rooms.txg, pool_directory::SCAN, Some(&value)).await?)
    }
}

impl Job for Scan {
    fn name(&self) -> &'static str {
        match self.phys.map(|phys| phys.function) {
            Some(ScanFunction::RESILVER) => "resilver",
            _ => "scrub",
        }
    }

    fn has_work(&self) -> bool {
        self.is_running()
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
