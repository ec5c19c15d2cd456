//! Snapshots: changes of the pool that the sync makes after the data of its txg is written.
//!
//! **Need.** A snapshot contains everything that was written before the request. The newest of these changes may be in the open txg, one
//! or two txgs after the syncing one; the head's root block contains them only when the data of that txg has been written.
//!
//! **Life of a snapshot.** The request holds the open txg and waits for the sync of that txg. The sync checks and takes the snapshot
//! after the datasets are written and before the first pass writes the MOS. A snapshot that cannot be taken in that txg waits for the
//! next one.
//!
//! **Invariants.** 1. No dataset is dirty in the txg when one is made. 2. One that is refused has changed nothing.

use cenote_format::ids::Txg;
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;

use crate::SpaError;
use crate::sync::Syncer;

/// A change that waits for its txg.
pub(crate) trait LateTask: Send {
    /// Makes it, or refuses it and tells its owner. False where it has to wait for the next txg.
    #[boxed]
    async fn run(&mut self, syncer: &mut Syncer) -> Result<bool, SpaError>;
}

/// Those that wait, each with the txg in whose sync it can be made first.
#[derive(Default)]
pub(crate) struct LateTasks(Mutex<Vec<(Txg, Box<dyn LateTask>)>>);

impl LateTasks {
    /// One more. The txg has to be held open by the caller.
    pub(crate) fn push(&self, from: Txg, task: Box<dyn LateTask>) {
        self.0.lock().push((from, task));
    }

    /// True if any wait.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.0.lock().is_empty()
    }

    fn take(&self, txg: Txg) -> Vec<Box<dyn LateTask>> {
        let mut all = self.0.lock();
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut *all).into_iter().partition(|(from, _)| *from <= txg);
        *all = later;
        now.into_iter().map(|(_, task)| task).collect()
    }
}

impl Syncer {
    /// Makes those whose txg it is, in the order of asking.
    /// True if there were any.
    pub(super) async fn make_late(&mut self, txg: Txg) -> Result<bool, SpaError> {
        let mut are_any = false;
        for mut task in self.late.clone().take(txg) {
            debug_assert!(
                self.mos.dsl.heads().iter().all(|head| !head.objset.is_dirty(txg)),
                "what is made late finds all data of its txg written"
            );
            are_any = true;
            let before = self.change_count();
            let is_done = task.run(self).await?;
            if !is_done {
                assert_eq!(self.change_count(), before, "what waits for the next txg has changed nothing");
                self.late.push(Txg(txg.0 + 1), task);
            }
        }
        Ok(are_any)
    }
}
