//! Sync tasks: changes of the pool and looks at it, made in the slot; and the end of the pool.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{TxError, TxgFailure};
use cenote_format::ids::Txg;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Class, boxed, oneshot};
use thiserror::Error;

use super::shared::{Request, Shared};
use super::syncer_slot::SyncerSlot;
use crate::admin::command::Command;
use crate::config::PoolState;
use crate::sync::Syncer;
use crate::{FailedPool, NamePool, SpaError};

/// How long an export waits for those that read the pool as of a txg.
const VIEWS_END_MAX: Duration = Duration::from_secs(20);
/// Syncs after which an intent log without users is gone: that of its newest record, and one more.
const LOG_SYNCS_MAX: u32 = 3;

/// The message of the error that a change or a look ended with: its caller has the error itself, of a type that only it knows.
#[derive(Debug, Error)]
#[error("{0}")]
struct TaskFailed(String);

/// A change of the pool, or a look at it. It stores its result where its caller finds it.
type BoxedTask = Box<dyn for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<(), TaskFailed>> + Send>;

impl Shared {
    /// A refusal in the pool's name; of a pool that has failed, why it has.
    pub(super) fn fail(&self, error: &TxError) -> SpaError {
        match (error, self.failed.get()) {
            (TxError::Suspended(_), Some(failed)) => SpaError::Failed(failed.clone()),
            _ => SpaError::from(error.clone()).named(&self.name),
        }
    }

    /// Makes a change or a look in a task that goes on when the caller goes away, and gives back the txg that it was made in. Where the
    /// caller goes away before it has begun nothing is done. A change for a command records it.
    pub(super) async fn make<T, E, F>(self: Arc<Self>, command: Option<Arc<Command>>, change: F) -> Result<(Txg, T), E>
    where
        T: Send + 'static,
        E: NamePool + Display + Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, E>> + Send + 'static,
    {
        let left = Arc::new(Mutex::new(None));
        let result = left.clone();
        let erased: BoxedTask = Box::new(move |syncer| {
            Box::pin(async move {
                let made = change(syncer).await.map_err(|error| error.named(&syncer.name));
                let said = made.as_ref().map(drop).map_err(|error| TaskFailed(error.to_string()));
                *result.lock() = Some(made);
                said
            })
        });
        let txg = self.make_erased(erased, command).await?;
        let made = left.lock().take().expect("a change that was made has left its result");
        made.map(|made| (txg, made))
    }

    /// [`Self::make`] without the types of its callers: it is compiled once, not for each of them.
    #[boxed]
    async fn make_erased(self: Arc<Self>, change: BoxedTask, command: Option<Arc<Command>>) -> Result<Txg, SpaError> {
        self.pass().await.map_err(|error| self.fail(&error))?;
        let (sender, answer) = oneshot::channel();
        let request: Request = Box::new(move |shared, slot| {
            Box::pin(async move {
                let made = shared.make_in_slot(slot, change, command).await;
                // The caller may have gone.
                drop(sender.send(made));
            })
        });
        // The caller has it until it begins.
        let request = Arc::new(Mutex::new(Some(request)));
        self.asked.lock().push_back(Arc::downgrade(&request));
        // As many tasks as requests: each does what was asked for first, so requests are done in the order of asking.
        let shared = self.clone();
        self.handle.detach(Class::Sync, async move {
            let mut slot = shared.slot.lock().await;
            let first = shared.asked.lock().pop_front().expect("a task for each request");
            let first = first.upgrade().and_then(|first| first.lock().take());
            if let Some(first) = first {
                first(&shared, &mut slot).await;
            }
        });
        let answer = async { answer.await.unwrap_or(Err(TxError::Closed)) };
        let made = self.unless_refused(answer).await;
        drop(request);
        made.map_err(|error| self.fail(&error))
    }

    async fn make_in_slot(
        &self,
        slot: &mut SyncerSlot,
        change: BoxedTask,
        command: Option<Arc<Command>>,
    ) -> Result<Txg, TxError> {
        let syncer = slot.syncer()?;
        let (txg, before) = (syncer.txg(), syncer.change_count());
        let mut result = change(syncer).await;
        if let Some(command) = command
            && result.is_ok()
            && syncer.change_count() != before
        {
            result = command.record(syncer).await.map_err(|error| TaskFailed(error.to_string()));
        }
        assert_eq!(syncer.txg(), txg, "a change of the pool is made in one txg");
        let (mos_before, _) = before;
        debug_assert!(
            syncer.change_count().0 == mos_before || syncer.mos.objset.is_dirty(txg),
            "a change of the pool is one of the open txg"
        );
        let is_changed = syncer.change_count() != before;
        syncer.is_changed |= is_changed;
        // A failure without a trace is a refusal, and that is all.
        if is_changed && let Err(error) = &result {
            self.fail_slot(slot, error);
        }
        Ok(txg)
    }

    /// Takes the syncer out of its slot for good.
    pub(super) fn fail_slot(&self, slot: &mut SyncerSlot, error: &dyn Display) {
        let (name, guid, synced) = (self.name.clone(), *self.guid.lock(), self.txgs.synced_txg());
        let why = error.to_string();
        debug_assert!(matches!(slot, SyncerSlot::Syncer(_)), "what fails had the slot");
        // Before anybody is told.
        self.failed.get_or_init(|| FailedPool { name, guid, synced, why: why.as_str().into() });
        *slot = SyncerSlot::Failed;
        self.withdraw();
        self.txgs.fail(TxgFailure::Unwritten { reason: why });
    }

    /// Offers nothing to readers any more.
    fn withdraw(&self) {
        let root = self.root.lock().take();
        let dsl = self.dsl.lock().take();
        self.events.close();
        let logs = self.logs.lock().take();
        drop((root, dsl, logs));
    }

    /// The last handle has gone: what is not on disk is lost.
    pub(super) fn give_up(&self) {
        self.scan.close();
        self.caches.shut();
        self.leaf_work.close();
        self.rebuild.close();
        self.txgs.fail(TxgFailure::LetGo);
        self.withdraw();
        // A task that has the slot lets go of it, and then the pool's tasks end, and all goes with them.
        if let Some(mut slot) = self.slot.try_lock()
            && matches!(*slot, SyncerSlot::Syncer(_))
        {
            *slot = SyncerSlot::Closed;
        }
    }

    /// See [`Pool::wait_logs_freed`](super::Pool::wait_logs_freed): a block goes in the sync after that of the txg which has it.
    pub(super) async fn wait_logs_freed(&self) -> Result<(), TxError> {
        let logs = self.logs.lock().clone();
        let Some(logs) = logs.filter(|logs| !logs.is_empty()) else { return Ok(()) };
        for _ in 0..LOG_SYNCS_MAX {
            let arrived = async {
                logs.arrived().await;
                Ok(())
            };
            self.unless_refused(arrived).await?;
            if !logs.has_unused() {
                break;
            }
            self.unless_refused(self.txgs.sync()).await?;
        }
        Ok(())
    }

    /// Lets no change in any more, and writes the last txg, which says on disk what the pool is from then on.
    #[boxed]
    pub(super) async fn end(&self, state: PoolState) -> Result<(), SpaError> {
        self.scan.close();
        self.leaf_work.close();
        self.rebuild.close();
        self.caches.close().await;
        // If this fails, the next steps fail too.
        drop(self.wait_logs_freed().await);
        self.txgs.close();
        // Their devices are to be let go. Those that read on for long have them until they are done.
        let _ = self.handle.timeout(VIEWS_END_MAX, self.pins.close()).await;
        let closed = || self.fail(&TxError::Closed);
        let join = self.sync.lock().take().ok_or_else(closed)?;
        let last = join.await.map_err(|_| closed())?;
        let mut slot = self.slot.lock().await;
        slot.syncer().map_err(|error| self.fail(&error))?;
        let SyncerSlot::Syncer(syncer) = std::mem::replace(&mut *slot, SyncerSlot::Closed) else {
            return Err(closed());
        };
        assert!(last.is_none_or(|last| last == syncer.txg()), "the last txg is the one that the syncer is at");
        self.events.sysevent(if state == PoolState::Destroyed { "pool_destroy" } else { "pool_export" }, None);
        self.withdraw();
        let result = syncer.end(state).await;
        if let Some(last) = last {
            self.txgs.done(last, result.as_ref().map(drop).map_err(TxgFailure::unwritten));
        }
        result.map(drop).map_err(|error| error.named(&self.name))
    }
}
