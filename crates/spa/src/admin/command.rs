//! The line of a command in the pool's history, which comes with the first change that is made for the command.
//!
//! OpenZFS writes the line in a txg after that of the change, so a crash between the two leaves a change of which the history does not say who made
//! it. Here a handle of the pool has the command ([`Pool::recording`](crate::Pool::recording)), and the task that makes its first change writes the line too.
//!
//! **Invariants.** 1. A command has one line. 2. A line is on disk with the first change, and a refused change has none. A command that fails after
//! its first change has its line: it has changed the pool.
//!
//! **Rejected.** *A line with the last change*: no change knows that it is the last one.

use cenote_taskq::boxed;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};

use crate::error::SpaError;
use crate::sync::Syncer;

/// A command whose line is in the history once.
pub(crate) struct Command {
    line: String,
    user: u64,
    is_recorded: AtomicBool,
}

impl Command {
    pub(crate) fn new(line: &str, user: u64) -> Self {
        Self { line: line.to_owned(), user, is_recorded: AtomicBool::new(false) }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::Acquire)
    }

    /// Records it, in the slot, unless it is recorded.
    #[boxed]
    pub(crate) async fn record(&self, syncer: &mut Syncer) -> Result<(), SpaError> {
        match self.is_recorded.swap(true, Ordering::AcqRel) {
            true => Ok(()),
            false => syncer.record_command(&self.line, self.user).await,
        }
    }
}
