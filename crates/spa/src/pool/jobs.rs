//! Background jobs of an open pool: which there are, and a person's control of them.

use std::sync::atomic::Ordering;

use cenote_kstat::{Settings, Tunable, When};
use cenote_taskq::boxed;

use super::Pool;
use crate::SpaError;
use crate::jobs::JobStatus;

impl Pool {
    /// Background jobs that have work left, as of the last txg.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        let mut jobs = self.shared.jobs.lock().clone();
        let read_bytes = self.shared.scan.unreported().read_bytes;
        for scan in jobs.iter_mut().filter(|job| matches!(job.name, "scrub" | "resilver")) {
            scan.done_bytes = scan.done_bytes.saturating_add(read_bytes);
            scan.left_bytes = scan.left_bytes.saturating_sub(read_bytes);
        }
        jobs
    }

    /// Has a background job wait until it is resumed, or the pool is opened again. `name` as in [`JobStatus::name`].
    ///
    /// # Errors
    /// There is no such job; or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn pause_job(&self, name: &str) -> Result<(), SpaError> {
        self.set_job_paused(name, true).await
    }

    /// Has a paused background job go on with the next txg.
    ///
    /// # Errors
    /// As [`Self::pause_job`].
    #[boxed]
    pub async fn resume_job(&self, name: &str) -> Result<(), SpaError> {
        self.set_job_paused(name, false).await
    }

    async fn set_job_paused(&self, name: &str, is_paused: bool) -> Result<(), SpaError> {
        let name = name.to_owned();
        let set = self.look(move |syncer| {
            Box::pin(async move {
                syncer.jobs.set_paused(&name, is_paused)?;
                Ok::<_, SpaError>((syncer.jobs(), syncer.has_work()))
            })
        });
        let (jobs, has_work) = set.await?;
        *self.shared.jobs.lock() = jobs;
        // The end of a txg asks for the next one, and none may be under way.
        if has_work && self.shared.is_background.load(Ordering::Acquire) {
            self.shared.want_txg();
        }
        Ok(())
    }

    /// Gives tunables that count live ([`When::Live`]) other values, until the pool is closed.
    ///
    /// # Errors
    /// One counts only when a pool is opened, and nothing is changed; or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn tune(&self, settings: Settings) -> Result<(), SpaError> {
        let is_given = |tunable: &&Tunable| settings.given(tunable.name).is_some();
        if let Some(late) = settings.tunables().filter(is_given).find(|tunable| tunable.when != When::Live) {
            return Err(SpaError::unsupported(format!(
                "the tunable {} of a pool in use: it counts when a pool is opened ('--tunable')",
                late.name
            )));
        }
        let tuned = self.look(move |syncer| {
            Box::pin(async move {
                syncer.jobs.tune(&settings);
                syncer.blocks.space.events.tune(&settings);
                Ok::<_, SpaError>(syncer.has_work())
            })
        });
        // As where a job is resumed.
        if tuned.await? && self.shared.is_background.load(Ordering::Acquire) {
            self.shared.want_txg();
        }
        Ok(())
    }

    /// Has a background job give up what is left of its work.
    ///
    /// # Errors
    /// There is no such job, or its work cannot be given up (freeing); or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn cancel_job(&self, name: &str) -> Result<(), SpaError> {
        let name = name.to_owned();
        let cancel = self.change(move |syncer| {
            Box::pin(async move {
                let (mut rooms, jobs) = syncer.in_txg_with_jobs();
                jobs.cancel(&name, &mut rooms).await
            })
        });
        cancel.await
    }
}
