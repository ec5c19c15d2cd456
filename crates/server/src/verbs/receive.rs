//! `zfs receive`, with its effects on users of this process.

use std::io::Read;

use cenote_admin::receive::{Caller, ReceiveError, ReceiveOutcome, ReceiveRequest, SuspendError, Told};
use cenote_dsl::name::is_at_or_below;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::error::Result;
use crate::{Session, SuspendedDataset};

/// Receives a stream, or a package of them. Users of this process's datasets wait while these change, and mounts release those to be destroyed.
pub async fn receive<R: Read>(
    session: &Session,
    pool: &Pool,
    input: R,
    request: &ReceiveRequest,
    tell: &mut (dyn FnMut(Told) + Send + Sync),
) -> Result<ReceiveOutcome, ReceiveError> {
    let mut users = Users { session, pool, is_forced: request.is_forced, tell, released: Vec::new(), suspended: None };
    let received = cenote_admin::receive::receive(pool, input, request, &mut users).await;
    let mut changed = users.released;
    // Earlier streams of a package are received even if a later one is refused; and datasets that left their mounts return.
    if let Ok(outcome) = &received {
        changed.extend(outcome.datasets.iter().cloned());
    }
    session.datasets_changed(&changed).await;
    received
}

/// The users of datasets that are received into.
struct Users<'a> {
    session: &'a Session,
    pool: &'a Pool,
    is_forced: bool,
    tell: &'a mut (dyn FnMut(Told) + Send + Sync),
    /// Datasets that mounts were asked to release.
    released: Vec<String>,
    suspended: Option<SuspendedDataset>,
}

impl Users<'_> {
    async fn suspend_users(&mut self, dataset: &str, written: &str) -> Result<()> {
        // Snapshots are destroyed only with -F.
        self.session.let_go(|held| held.dir.name == dataset && (self.is_forced || !held.is_snapshot())).await?;
        self.suspended = Some(self.session.suspend_users(dataset, written).await?);
        // The receive is compared with users' changes on disk.
        self.pool.sync().await?;
        Ok(())
    }
}

impl Caller for Users<'_> {
    fn told(&mut self, told: Told) {
        (self.tell)(told);
    }

    fn has_users_wait(&self) -> bool {
        self.session.served().is_some()
    }

    #[boxed]
    async fn suspend(&mut self, dataset: &str, written: &str) -> Result<(), SuspendError> {
        let suspended = self.suspend_users(dataset, written).await;
        suspended.map_err(|error| SuspendError { dataset: dataset.to_owned(), source: Box::new(error) })
    }

    #[boxed]
    async fn resume(&mut self) {
        if let Some(suspended) = self.suspended.take()
            && let Err(error) = suspended.resume().await
        {
            self.session.warn(error.chain());
        }
    }

    #[boxed]
    async fn lets_go(&mut self, dataset: &str) {
        self.released.push(dataset.to_owned());
        // A dataset in use is refused later, in OpenZFS's words.
        let _ = self.session.release(&self.released[self.released.len() - 1..], "receive").await;
        let _ = self.session.let_go(|held| is_at_or_below(&held.dir.name, dataset)).await;
    }
}
