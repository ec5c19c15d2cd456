//! The checkpoint of a pool: `zpool checkpoint`.

use cenote_spa::{Pool, SpaError};
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};
use crate::scan::{Activity, wait};

/// A pool whose state is to be kept, or not any more.
#[derive(Clone, Debug, Default)]
pub struct CheckpointRequest {
    /// The pool.
    pub pool: String,
    /// Give the checkpoint up (`-d`).
    pub is_discard: bool,
    /// Wait until what only it had is free (`-w`).
    pub waits: bool,
}

impl Request for CheckpointRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        let made = match self.is_discard {
            true => pool.discard_checkpoint().await,
            false => pool.take_checkpoint().await.map(drop),
        };
        match made {
            Err(SpaError::Refused { what, .. }) => Err(AdminError::Said(match self.is_discard {
                true => format!("cannot discard checkpoint in '{}': {what}", self.pool),
                false => format!("cannot checkpoint '{}': {what}", self.pool),
            })),
            Err(error) => Err(error.into()),
            Ok(()) if self.waits && users.keep_pool() => wait(pool, &[Activity::Discard]).await,
            Ok(()) => Ok(()),
        }
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zpool checkpoint").flag(self.is_discard, "-d").flag(self.waits, "-w");
        Some(line.word(&self.pool))
    }

    fn is_long(&self) -> bool {
        true
    }

    fn works_on(&self, (): &()) -> Option<&'static str> {
        self.is_discard.then_some("discarding")
    }
}
