//! Waiting until what was changed is stable.

use std::sync::Arc;

use cenote_format::ids::{ObjectId, Txg};

use cenote_taskq::mutant::{self, Mutant};

use super::blocks::Phase;
use super::{LogWriter, WaitFor};
use crate::itx::Goal;
use crate::kstat::Event;

/// The next step of a client that waits.
enum Step {
    Done,
    /// The changes that it waits for are not issued yet.
    Issue,
    Wait,
}

impl LogWriter {
    /// Asks for all that was changed so far of an object, or of all, to be stable.
    pub(crate) fn ask(&self, object: Option<ObjectId>) -> Goal {
        self.count(Event::Commit);
        let mut queue = self.queue.lock();
        queue.async_to_sync(object);
        queue.goal_of(object)
    }

    /// Has what was asked for be on its way soon, without waiting for it. A goal that takes a txg is left to [`Self::wait_for`].
    pub(crate) fn begin(self: &Arc<Self>, goal: Goal) {
        if let Ok(Step::Issue) = self.step(goal) {
            self.want_issued(goal.number);
        }
    }

    /// Waits until what was asked for is stable.
    ///
    /// # Errors
    /// It has to wait for a txg.
    pub(crate) async fn wait_for(self: &Arc<Self>, goal: Goal) -> Result<(), WaitFor> {
        let _waits = self.clients.one_waits();
        loop {
            let passed = self.waiting.until(goal.number);
            match self.step(goal).inspect_err(|_| self.count(Event::Error))? {
                Step::Done => return Ok(()),
                Step::Issue => self.want_issued(goal.number),
                Step::Wait => self.joined(),
            }
            passed.wait().await;
        }
    }

    fn step(&self, goal: Goal) -> Result<Step, WaitFor> {
        let (unlogged, synced) = {
            let queue = self.queue.lock();
            (queue.unlogged(), queue.synced_txg())
        };
        if let Some(txg) = unlogged {
            return Err(WaitFor(txg.max(goal.txg)));
        }
        if goal.txg <= synced {
            return Ok(Step::Done);
        }
        let blocks = self.blocks.lock();
        if blocks.stable >= goal.number {
            return Ok(Step::Done);
        }
        if mutant::is(Mutant::LogAcksIssued) && blocks.issued >= goal.number {
            return Ok(Step::Done);
        }
        Ok(match (blocks.phase, blocks.issued >= goal.number) {
            (_, true) => Step::Wait,
            (Phase::Ready, false) => Step::Issue,
            (_, false) => return Err(WaitFor(goal.txg)),
        })
    }

    /// The log cannot have what was taken from it, nor what may depend on that: txgs have to be on disk.
    pub(super) fn give_up(&self, until: Txg) {
        self.queue.lock().not_logged(until);
        self.waiting.all();
    }
}
