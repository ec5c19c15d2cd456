//! Labels taken off a device, so that it belongs to no pool: `zpool labelclear`.

use std::io::ErrorKind;
use std::path::Path;

use cenote_spa::{LOCK_PATIENCE, PoolState};
use cenote_taskq::{Handle, OpenOptions, boxed};
use cenote_vdev::commit::clear;
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::probe;

use crate::HostError;
use crate::inuse::{refuse_imported, refuse_kernels};

/// Takes all labels off a device or file, and leaves what is no label as it is; `force`: also of one that is part of a pool that is not destroyed.
///
/// # Errors
/// It cannot be opened, somebody has it, or it has no label; or it is part of such a pool.
#[boxed]
pub async fn clear_labels(handle: &Handle, path: &Path, force: bool) -> Result<(), HostError> {
    let name = path.display();
    let failed = |what: &str, error: &dyn std::fmt::Display| HostError::InUse(format!("{what} {name}: {error}"));
    let opened = handle.open(path, OpenOptions::default()).await;
    let device = opened.map_err(|error| failed("failed to open", &error))?;
    let report = probe(&Disk::whole(device)).await;
    refuse_kernels(handle, path, &report).await?;
    let copy = refuse_imported(handle, path, &report).await?;
    let device = handle.open_alone(path, LOCK_PATIENCE).await.map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => HostError::InUse(format!("cannot clear '{name}': {error}")),
        _ => failed("failed to open", &error),
    })?;
    let disk = Disk::whole(device);
    let report = probe(&disk).await;
    let no_label = || HostError::InUse(format!("failed to check state for {name}: no label found"));
    let config = report.best_config().ok_or_else(no_label)?;
    let what = match PoolState::from_number(config.u64("state").unwrap_or(0)) {
        PoolState::Destroyed => None,
        PoolState::Active => Some("a member (ACTIVE) of"),
        PoolState::Exported => Some("a member of exported"),
        // Their labels name no pool, and none that is imported has them.
        PoolState::Spare | PoolState::L2Cache => None,
        PoolState::Other(_) => Some("in an unknown way part of"),
    };
    if let Some(copy) = copy.filter(|_| !force) {
        return Err(HostError::InUse(format!("use '-f' to override the following error:\n{copy}")));
    }
    // A label of no txg: the device was removed from the pool.
    let has_left = config.u64("txg") == Some(0);
    if let Some(what) = what.filter(|_| !force && !has_left) {
        let pool = config.str("name").unwrap_or("?");
        let text = format!("use '-f' to override the following error:\n{name} is {what} pool \"{pool}\"");
        return Err(HostError::InUse(text));
    }
    clear(&disk, &report).await.map_err(|error| failed("failed to clear label for", &error))
}
