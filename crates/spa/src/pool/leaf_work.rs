//! Initialize and trim of a pool in use: control, and the workers' beginning.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_format::ids::Guid;
use cenote_taskq::{Class, boxed};

use super::Pool;
use super::shared::Shared;
use crate::SpaError;
use crate::jobs::leaf::{LeafWorkKind, Worker, work};
use crate::sync::leaf_work::{LeafAction, LeafPlan};

impl Pool {
    /// Begins, suspends or ends work on the free space of a leaf. When this is done the pool on disk says so; the work goes on in the background.
    ///
    /// # Errors
    /// It is no device that is in use, or there is (no) such work already; the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn change_leaf_work(&self, leaf: Guid, kind: LeafWorkKind, action: LeafAction) -> Result<(), SpaError> {
        let plan = self
            .change(move |syncer| Box::pin(async move { syncer.change_leaf_work(leaf, kind, action).await }))
            .await?;
        plan.into_iter().for_each(|plan| self.shared.begin_worker(plan));
        Ok(())
    }
}

impl Shared {
    /// Goes on with the work on leaves that is recorded as active.
    pub(super) fn resume_leaf_work(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.handle.detach(Class::Issue, async move {
            let Some(shared) = shared.upgrade() else { return };
            let plans = shared.clone().make(None, |syncer| Box::pin(async move { syncer.active_leaf_work().await }));
            match plans.await {
                Ok((_, plans)) => plans.into_iter().for_each(|plan| shared.begin_worker(plan)),
                Err(error) => {
                    shared
                        .troubles
                        .tell(format!("whether devices are to be initialized or trimmed cannot be read: {error}"));
                }
            }
        });
    }

    fn begin_worker(self: &Arc<Self>, plan: LeafPlan) {
        let shared = Arc::downgrade(self);
        let LeafPlan { key, vdev, record, round, space, seat } = plan;
        let want_txg = Arc::new(move || {
            if let Some(shared) = shared.upgrade().filter(|shared| shared.is_background.load(Ordering::Acquire)) {
                shared.want_txg();
            }
        });
        let worker = Worker {
            handle: self.handle.clone(),
            tree: self.tree.clone(),
            space,
            seat,
            key,
            round,
            vdev,
            from_bytes: record.offset_bytes,
            rate_bytes: record.rate_bytes,
            want_txg,
        };
        self.handle.detach(Class::Background, work(worker));
    }
}
