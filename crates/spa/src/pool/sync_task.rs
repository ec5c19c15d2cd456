//! Sync tasks that are checked before they are made, and sets of them.
//!
//! OpenZFS checks a sync task when it is asked for and again when its txg is synced, because other tasks may come in between. Here a
//! task has the slot from its check to its change, so one check is enough: nothing comes in between.
//!
//! A set is atomic: all of it is checked before the first change is made, and all of it is in one txg. So tasks of one set do not see
//! each other's changes when they are checked; a change that builds on another belongs in the same task.

use std::fmt::Display;

use cenote_taskq::boxed;

use super::Pool;
use crate::NamePool;
use crate::sync::Syncer;

/// A change of the pool in two steps.
pub trait SyncTask: Send + 'static {
    /// The result of the change.
    type Made: Send + 'static;
    /// Why it is refused.
    type Error: NamePool + Display + Send + 'static;

    /// Finds out whether the change can be made of the pool as it is, and keeps what the change needs to know. Nothing that is on disk
    /// may be changed.
    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), Self::Error>;

    /// Makes the change, of which [`Self::check`] has just said that it can be made. An error after the first change fails the pool.
    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<Self::Made, Self::Error>;
}

async fn check<T: SyncTask>(task: &mut T, pool: &mut Syncer) -> Result<(), T::Error> {
    let before = pool.change_count();
    task.check(pool).await?;
    assert_eq!(pool.change_count(), before, "a check changes nothing");
    Ok(())
}

impl Pool {
    /// Checks a task and gives it back: what `-n` shows.
    ///
    /// # Errors
    /// The check's error; or the pool is closed, suspended, or has failed.
    pub async fn check_task<T: SyncTask>(&self, mut task: T) -> Result<T, T::Error> {
        let checked = self.look(move |syncer| {
            Box::pin(async move {
                check(&mut task, syncer).await?;
                Ok(task)
            })
        });
        checked.await
    }

    /// Checks and makes a change. In the background the answer comes when it is on disk, by hand at once.
    ///
    /// # Errors
    /// The task's error; or the pool is closed, suspended, or has failed.
    pub async fn sync_task<T: SyncTask>(&self, task: T) -> Result<T::Made, T::Error> {
        let made = self.sync_tasks(vec![task]).await?;
        Ok(made.into_iter().next().expect("as many are made as are asked for"))
    }

    /// Checks all of these tasks, and then makes all of them in one txg.
    ///
    /// # Errors
    /// The error of the first task that is refused, and then none is made; or the pool is closed, suspended, or has failed.
    pub async fn sync_tasks<T: SyncTask>(&self, mut tasks: Vec<T>) -> Result<Vec<T::Made>, T::Error> {
        let made = self.change(move |syncer| {
            Box::pin(async move {
                for task in &mut tasks {
                    check(task, syncer).await?;
                }
                let mut made = Vec::with_capacity(tasks.len());
                for task in &mut tasks {
                    made.push(task.sync(syncer).await?);
                }
                Ok(made)
            })
        });
        made.await
    }
}
