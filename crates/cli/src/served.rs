//! A pool that this process has open for writing, and what it serves of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cenote_format::ids::Guid;
use cenote_spa::Pool;
use cenote_taskq::{Event, EventWait};

use crate::livemounts::LiveMounts;
use crate::volumes::OpenVolumes;

/// A pool that this process has open for writing.
#[derive(Clone)]
pub(crate) struct ServedPool {
    /// The pool.
    pub(crate) pool: Pool,
    /// Its volumes that clients have opened.
    pub(crate) volumes: Arc<OpenVolumes>,
    /// Its datasets that are mounted.
    pub(crate) mounts: Arc<LiveMounts>,
    /// Its guid.
    pub(crate) guid: Guid,
    /// The devices that it was opened from, and those that were added since.
    pub(crate) devices: Arc<Mutex<Vec<PathBuf>>>,
    /// Its end.
    pub(crate) end: Arc<End>,
}

/// The end of a pool's service in this process.
#[derive(Default)]
pub(crate) struct End {
    asked: Event,
    over: Event,
}

impl End {
    /// Asks for it.
    pub(crate) fn ask(&self) {
        self.asked.set();
    }

    /// Resolves when it is asked for.
    pub(crate) fn asked(&self) -> EventWait<'_> {
        self.asked.wait()
    }

    /// Whether it is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_set()
    }

    /// The pool is exported, or could not be.
    pub(crate) fn set_over(&self) {
        self.over.set();
    }

    /// Resolves when the pool is exported, or could not be.
    pub(crate) fn over(&self) -> EventWait<'_> {
        self.over.wait()
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.over.is_set()
    }
}

/// Resolves when the pool's devices fail.
pub(crate) async fn suspended(pool: &Pool) -> anyhow::Error {
    let (reason, _) = pool.failed().await;
    let name = pool.name();
    anyhow::anyhow!(
        "pool '{name}': pool I/O is currently suspended ({reason}); 'zpool clear {name}' once its devices are back"
    )
}
