//! The line of a command in the pool's history, which comes with the first change that is made for the command.
//!
//! OpenZFS writes the line in a txg after that of the change, so a crash between the two leaves a change of which the history does not say who made
//! it. Here a handle of the pool has the command ([`Pool::recording`]), and the task that makes its first change writes the line too.
//!
//! **Invariants.** 1. A command has one line. 2. A line is on disk with the first change, and a refused change has none. A command that fails after
//! its first change has its line: it has changed the pool.
//!
//! **Rejected.** *A line with the last change*: no change knows that it is the last one.

use std::sync::Arc;

use cenote_taskq::boxed;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};

use super::Pool;
use crate::SpaError;
use crate::sync::Syncer;

/// A command whose line is in the history once.
pub(crate) struct Command {
    line: String,
    user: u64,
    is_recorded: AtomicBool,
}

impl Command {
    /// Records it, in the slot, unless it is recorded.
    #[boxed]
    pub(crate) async fn record(&self, syncer: &mut Syncer) -> Result<(), SpaError> {
        match self.is_recorded.swap(true, Ordering::AcqRel) {
            true => Ok(()),
            false => syncer.record_command(&self.line, self.user).await,
        }
    }
}

impl Pool {
    /// A handle for a command: its line is in the pool's history in the txg of the first change that is made by the handle.
    #[must_use]
    pub fn recording(&self, line: &str, user: u64) -> Self {
        let command = Command { line: line.to_owned(), user, is_recorded: AtomicBool::new(false) };
        Self { command: Some(Arc::new(command)), ..self.clone() }
    }

    /// The handle without a command.
    pub(super) fn without_command(&self) -> Self {
        Self { command: None, ..self.clone() }
    }

    /// The handle's command.
    pub(crate) fn command(&self) -> Option<Arc<Command>> {
        self.command.clone()
    }

    fn unrecorded(&self) -> Option<Arc<Command>> {
        self.command.clone().filter(|command| !command.is_recorded.load(Ordering::Acquire))
    }

    /// Records the handle's command now, unless a change has: what it changed was no change of the pool itself.
    ///
    /// # Errors
    /// As [`Pool::change`].
    #[boxed]
    pub async fn record(&self) -> Result<(), SpaError> {
        let Some(command) = self.unrecorded() else { return Ok(()) };
        self.change(move |syncer| Box::pin(async move { command.record(syncer).await })).await
    }

    /// As [`Self::record`], and the caller does not wait: not for devices either, if they fail.
    ///
    /// # Errors
    /// The pool is closed.
    pub fn record_later(&self) -> Result<(), SpaError> {
        let Some(command) = self.unrecorded() else { return Ok(()) };
        let what = "a command cannot be recorded in the pool's history";
        self.change_later(what, move |syncer| Box::pin(async move { command.record(syncer).await }))
    }
}
