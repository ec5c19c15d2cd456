//! A scrub of the blocks that the error log names: `zpool scrub -e`.
//!
//! # Theory
//!
//! **Need.** Files were restored or a cable was changed, and a person wants to know what is damaged still, without reading all of the pool.
//!
//! **On disk.** The entry `error_scrub` of the MOS's directory ([`ErrorScrubPhys`]), in OpenZFS's form, so each of the two continues the other's. The cursor is
//! a place in the ZAP of the log's datasets: those before it are done. It is there only with the feature `head_errlog`, as in OpenZFS.
//!
//! **The worker** (`cenote_scan`) gets a task from the pool's [`ScanSeat`], which scans have too: of all three, scrub, resilver and this, there is one at a time. It
//! reports after each dataset.
//!
//! **The log.** While it runs, errors go to the log of the scrub, and the log that it reads does not change but by what is dropped. At its end the two are
//! swapped: what was found well is gone, and what is bad was noted again (`crate::sync::errlog`).
//!
//! **Crash.** The cursor is of what was reported, whose errors the same txg enters. A dataset that was not done is read again.

use cenote_dmu::Zap;
use cenote_format::dsl::{ErrorScrubPhys, ScanFunction, ScanState, pool_directory};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};

use super::scan::{ScanSeat, ScanWork};
use super::{Job, Progress};
use crate::SpaError;
use crate::sync::rooms::InTxg;

/// The job.
pub(crate) struct ErrorScrub {
    phys: Option<ErrorScrubPhys>,
    seat: ScanSeat,
    progress: Progress,
    /// It stands still, whoever had it begin.
    is_held: bool,
}

impl ErrorScrub {
    /// Of a pool that had none.
    pub(crate) fn new(seat: &ScanSeat) -> Self {
        Self { phys: None, seat: seat.clone(), progress: Progress::default(), is_held: false }
    }

    /// As the pool has it. `is_scanned`: a scan has the seat, and ends this.
    #[boxed]
    pub(crate) async fn open(directory: &Zap, seat: &ScanSeat, is_scanned: bool) -> Result<Self, SpaError> {
        let value = directory.lookup(pool_directory::ERROR_SCRUB.as_bytes()).await?;
        let words: Vec<u64> = value.iter().flat_map(|value| value.integers()).collect();
        let mut phys = ErrorScrubPhys::from_words(&words).ok();
        if let Some(phys) = phys.as_mut().filter(|phys| is_scanned && phys.state == ScanState::ERROR_SCRUBBING) {
            phys.state = ScanState::CANCELED;
        }
        let scrub = Self { phys, ..Self::new(seat) };
        if scrub.is_running() {
            scrub.put();
        }
        Ok(scrub)
    }

    /// True while there is one that has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.phys.is_some_and(|phys| phys.state == ScanState::ERROR_SCRUBBING)
    }

    /// True if a person has it wait.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_running() && self.phys.is_some_and(|phys| phys.paused_flags != 0)
    }

    /// The one that is under way or paused, or the last.
    pub(crate) const fn phys(&self) -> Option<&ErrorScrubPhys> {
        self.phys.as_ref()
    }

    /// Has it stand still, or go on (`zfs_scan_suspend_progress`).
    pub(crate) fn hold(&mut self, is_held: bool) {
        if std::mem::replace(&mut self.is_held, is_held) != is_held && self.is_running() {
            self.take_report();
            self.put();
        }
    }

    fn put(&self) {
        let work = self.phys.filter(|_| self.is_running() && !self.is_paused() && !self.is_held);
        self.seat.put(work.map(|phys| ScanWork::Errors { cursor: phys.cursor }), (0, 0));
    }

    /// Begins one of so many blocks.
    pub(crate) async fn start(&mut self, rooms: &mut InTxg<'_>, count: u64) -> Result<(), SpaError> {
        assert!(!self.is_running(), "a pool has one scrub of errors at a time");
        self.phys = Some(ErrorScrubPhys {
            function: ScanFunction::ERROR_SCRUB,
            state: ScanState::ERROR_SCRUBBING,
            start_time: rooms.time_s(),
            to_examine_count: count,
            ..ErrorScrubPhys::default()
        });
        self.progress = Progress::default();
        self.put();
        self.write(rooms).await
    }

    /// Has it wait, or go on.
    pub(crate) async fn pause(&mut self, rooms: &mut InTxg<'_>, is_paused: bool) -> Result<(), SpaError> {
        self.take_report();
        if let Some(phys) = &mut self.phys {
            phys.paused_flags = u64::from(is_paused);
        }
        self.put();
        self.write(rooms).await
    }

    /// Adds what was reported. True if all is done.
    fn take_report(&mut self) -> bool {
        let Some(report) = self.seat.take_errors() else { return false };
        let Some(phys) = &mut self.phys else { return false };
        phys.examined_count = phys.examined_count.saturating_add(report.examined_count);
        phys.to_examine_count = phys.to_examine_count.saturating_sub(report.examined_count);
        phys.error_count = phys.error_count.saturating_add(report.error_count);
        phys.cursor = report.cursor;
        report.cursor == Zap::CURSOR_END
    }

    /// Takes the worker's report in the sync of a txg. True if it has ended.
    pub(crate) async fn settle(&mut self, rooms: &mut InTxg<'_>) -> Result<bool, SpaError> {
        if !self.is_running() {
            return Ok(false);
        }
        let before = self.phys;
        if self.take_report() {
            self.end(rooms, true).await?;
            return Ok(true);
        }
        if self.phys != before {
            self.write(rooms).await?;
        }
        Ok(false)
    }

    /// Ends it: done, or given up.
    pub(crate) async fn end(&mut self, rooms: &mut InTxg<'_>, is_complete: bool) -> Result<(), SpaError> {
        let end_time = rooms.time_s();
        let phys = self.phys.as_mut().expect("a scrub of errors that ends was begun");
        phys.state = if is_complete { ScanState::FINISHED } else { ScanState::CANCELED };
        (phys.end_time, phys.paused_flags) = (end_time, 0);
        self.put();
        self.write(rooms).await
    }

    /// A scan begins, and there is nothing to be said of this any more.
    pub(crate) async fn clear(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        assert!(!self.is_running(), "a scrub of errors that is under way is ended first");
        if self.phys.is_none_or(|phys| phys == ErrorScrubPhys::default()) {
            return Ok(());
        }
        self.phys = Some(ErrorScrubPhys::default());
        self.write(rooms).await
    }

    async fn write(&self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        let Some(mut phys) = self.phys else { return Ok(()) };
        if mutant::is(Mutant::ErrorCursorAhead) {
            phys.cursor = Zap::CURSOR_END;
        }
        let value = ZapValue::from_u64s(&phys.words());
        Ok(Zap::put_entry(&rooms.mos.directory, rooms.txg, pool_directory::ERROR_SCRUB, Some(&value)).await?)
    }
}

impl Job for ErrorScrub {
    fn name(&self) -> &'static str {
        "error scrub"
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
