//! A pool that this process has open for writing, and what it serves of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cenote_format::ids::Guid;
use cenote_spa::Pool;

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
}

/// Resolves when the pool's devices fail.
pub(crate) async fn suspended(pool: &Pool) -> anyhow::Error {
    let (reason, _) = pool.failed().await;
    let name = pool.name();
    anyhow::anyhow!(
        "pool '{name}': pool I/O is currently suspended ({reason}); 'zpool clear {name}' once its devices are back"
    )
}
