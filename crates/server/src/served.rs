//! A pool that this process has open for writing, and its services.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cenote_spa::Pool;
use cenote_taskq::{Event, EventWait, boxed};
use cenote_vdev::tree::{VdevState, VdevStatus};

use crate::{LiveMounts, OpenVolumes, ServerError};

/// A pool that this process has open for writing.
#[derive(Clone)]
pub struct ServedPool {
    /// The pool.
    pub pool: Pool,
    /// Its volumes that clients opened.
    pub volumes: Arc<OpenVolumes>,
    /// Its mounted datasets.
    pub mounts: Arc<LiveMounts>,
    /// The devices from which it was opened, and those added since.
    pub devices: Arc<Mutex<Vec<PathBuf>>>,
    /// Its end.
    pub end: Arc<End>,
}

/// The end of a pool's service in this process.
#[derive(Default)]
pub struct End {
    asked: Event,
    over: Event,
}

impl End {
    /// Requests it.
    pub fn ask(&self) {
        self.asked.set();
    }

    /// Resolves when it is requested.
    pub(crate) fn asked(&self) -> EventWait<'_> {
        self.asked.wait()
    }

    /// True if it is requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_set()
    }

    /// The pool was exported, or could not be.
    pub(crate) fn set_over(&self) {
        self.over.set();
    }

    /// Resolves when the pool was exported, or could not be.
    pub(crate) fn over(&self) -> EventWait<'_> {
        self.over.wait()
    }

    /// True if it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.over.is_set()
    }
}

/// Resolves when the pool's devices fail.
#[boxed]
pub async fn suspended(pool: &Pool) -> ServerError {
    let (reason, _) = pool.failed().await;
    ServerError::Suspended { pool: pool.name().to_owned(), reason: reason.to_string(), others: held_back(pool) }
}

/// Devices that a person has out of use, and why they cannot take the place of those that failed: they lack what was written since.
fn held_back(pool: &Pool) -> String {
    let Some(status) = pool.tree().map(|tree| tree.status()) else { return String::new() };
    let is_held = |leaf: &&VdevStatus| leaf.state == VdevState::Offline && !leaf.missed.is_empty();
    let leaves = status.leaves();
    let told = leaves.iter().copied().filter(is_held);
    let told =
        told.map(|leaf| format!("; '{}' is OFFLINE and cannot stand in: it lacks txgs {}", leaf.name, leaf.missed));
    told.collect()
}
