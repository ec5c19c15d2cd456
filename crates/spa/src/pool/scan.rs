//! Scrub and resilver of a pool in use: control, and the seat of the worker.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use cenote_format::dsl::{ErrorScrubPhys, ScanPhys};
use cenote_taskq::boxed;

use super::shared::Shared;
use super::{Owned, Pool};
use crate::jobs::scan::{ScanSeat, Unreported};
use crate::sync::ScrubSince;
use crate::{ImportOptions, SpaError};

/// A handle of a pool that does not keep it open.
#[derive(Clone)]
pub struct WeakPool {
    shared: Weak<Shared>,
    owned: Weak<Owned>,
}

impl WeakPool {
    /// The pool, if somebody has it open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Pool> {
        Some(Pool { shared: self.shared.upgrade()?, _owned: self.owned.upgrade()?, command: None })
    }
}

impl Pool {
    /// A handle that does not keep the pool open.
    #[must_use]
    pub fn downgrade(&self) -> WeakPool {
        WeakPool { shared: Arc::downgrade(&self.shared), owned: Arc::downgrade(&self._owned) }
    }

    /// Where the worker of the pool's scans gets its tasks and reports.
    #[must_use]
    pub fn scan_seat(&self) -> ScanSeat {
        self.shared.scan.clone()
    }

    /// The work of the scrub or resilver that the next report is of.
    #[must_use]
    pub fn scan_unreported(&self) -> Unreported {
        self.shared.scan.unreported()
    }

    /// The worker has something that the next txg is to record.
    pub fn want_scan_recorded(&self) {
        if self.shared.is_background.load(Ordering::Acquire) {
            self.shared.want_txg();
        }
    }

    /// The scrub or resilver that is under way or was the last.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn scan(&self) -> Result<Option<ScanPhys>, SpaError> {
        self.peek(|syncer| syncer.jobs.scan.phys().copied()).await
    }

    /// The scrub of errors that is under way or was the last.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn error_scrub(&self) -> Result<Option<ErrorScrubPhys>, SpaError> {
        self.peek(|syncer| syncer.jobs.error_scrub.phys().copied()).await
    }

    /// Begins a scrub of what is newer than `since`, or goes on with one that waits.
    ///
    /// # Errors
    /// A scrub or resilver is under way; or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn scrub(&self, since: ScrubSince) -> Result<(), SpaError> {
        self.change(move |syncer| Box::pin(syncer.start_scrub(since))).await
    }

    /// Begins a scrub of the blocks that the error log names, or goes on with one that waits.
    ///
    /// # Errors
    /// As [`Self::scrub`]; or the pool lacks the feature `head_errlog`, or the log is empty.
    #[boxed]
    pub async fn scrub_errors(&self) -> Result<(), SpaError> {
        // Errors that were met, and are not in the log yet, get there.
        self.sync().await?;
        let view = self.view(&ImportOptions::default()).await?;
        let count = view.all_logged_errors().await?.len() as u64;
        drop(view);
        self.change(move |syncer| Box::pin(syncer.start_error_scrub(count))).await
    }

    /// Has the scrub wait, on disk too, until [`Self::scrub`], or that of errors until [`Self::scrub_errors`].
    ///
    /// # Errors
    /// There is none; or as [`Self::scrub`].
    #[boxed]
    pub async fn pause_scrub(&self) -> Result<(), SpaError> {
        self.change(|syncer| Box::pin(syncer.pause_scrub(true))).await
    }

    /// Gives the scrub up, or that of errors. A resilver goes on.
    ///
    /// # Errors
    /// There is none, or a resilver is under way; or as [`Self::scrub`].
    #[boxed]
    pub async fn stop_scrub(&self) -> Result<(), SpaError> {
        self.change(|syncer| Box::pin(syncer.stop_scrub())).await?;
        // A device that waited for it to verify a rebuild waits no more.
        self.finish_replacing().await.map(drop)
    }

    /// Gives the scrub up, or the resilver, which begins anew when the pool is opened: what a person asks for is [`Self::stop_scrub`].
    ///
    /// # Errors
    /// There is none; or as [`Self::scrub`].
    #[boxed]
    pub async fn stop_scan(&self) -> Result<(), SpaError> {
        self.change(|syncer| Box::pin(syncer.stop_scan())).await
    }

    /// Begins a resilver if leaves lack something and none is under way, and has devices of log vdevs made whole: as the pool is opened.
    ///
    /// # Errors
    /// As [`Self::resilver`].
    #[boxed]
    pub async fn resilver_if_needed(&self) -> Result<(), SpaError> {
        self.attend_log_leaves();
        let is_needed = self.peek(|syncer| syncer.resilver_range().is_some()).await?;
        if is_needed { self.resilver().await } else { Ok(()) }
    }

    /// The same, and for devices that wait until another resilver ends, which begins anew with them.
    ///
    /// # Errors
    /// As [`Self::resilver`].
    #[boxed]
    pub async fn resilver_all(&self) -> Result<(), SpaError> {
        self.change(|syncer| {
            Box::pin(async move {
                syncer.refuse_rebuild()?;
                let is_deferred = syncer.mos.features.count("resilver_defer") > 0;
                syncer.jobs.scan.is_restart_wanted = is_deferred && syncer.jobs.scan.is_running();
                syncer.jobs.scan.is_resilver_wanted = true;
                Ok::<_, SpaError>(())
            })
        })
        .await
    }

    /// Begins a resilver of what leaves lack, if they lack anything: after a device has come back.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn resilver(&self) -> Result<(), SpaError> {
        self.change(|syncer| {
            Box::pin(async move {
                syncer.jobs.scan.is_resilver_wanted = true;
                Ok::<_, SpaError>(())
            })
        })
        .await
    }
}
