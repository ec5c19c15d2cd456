//! The property `autoreplace`: a new device in the place of one that is gone replaces it by itself.
//!
//! A place is a path: that of a slot (`/dev/disk/by-path`), of a partition, of a file. A device there is new if it has nothing on it; one with a file
//! system, a partition table or the label of any pool is left alone, as `zpool replace` without `-f` leaves it.

use std::path::{Path, PathBuf};

use cenote_host::inuse::refuse_used;
use cenote_host::layout::parse_layout_in;
use cenote_spa::{AttachOptions, DiskSpec, LOCK_PATIENCE, NewDevice, Pool, SpaError};
use cenote_vdev::disk::Disk;
use cenote_vdev::tree::VdevStatus;

use crate::error::Result;

/// Replaces devices that are not there by new ones at their paths, if the property is on. Their paths.
///
/// # Errors
/// The pool is closed, suspended, or has failed.
pub(crate) async fn replace_absent(pool: &Pool) -> Result<Vec<String>> {
    let mut replaced = Vec::new();
    let absent = pool.absent_devices().await?;
    if absent.is_empty() || pool.number_property("autoreplace").await? == 0 {
        return Ok(replaced);
    }
    for (old, path) in absent {
        let Ok(layout) = parse_layout_in(Path::new("/"), std::slice::from_ref(&path)) else { continue };
        let is_free = PathBuf::from(&path).exists() && refuse_used(pool.handle(), &layout, false).await.is_ok();
        if !is_free || is_back(pool, old).await? {
            continue;
        }
        let Ok(device) = pool.handle().open_alone(Path::new(&path), LOCK_PATIENCE).await else { continue };
        let is_file = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
        let disk = DiskSpec { disk: Disk::whole(device), path: path.clone(), is_file };
        let options = AttachOptions {
            old,
            new: NewDevice::Disk(disk),
            is_replacing: true,
            is_sequential: false,
            ashift: None,
            seed: None,
        };
        match pool.attach_device(options).await {
            Ok(_) => replaced.push(path),
            // It is too small, or its sectors are too large.
            Err(SpaError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(replaced)
}

/// The old device itself may be there again.
async fn is_back(pool: &Pool, old: cenote_format::ids::Guid) -> Result<bool> {
    let onlined = pool.online_device(old, Vec::new()).await?;
    let is_used = |status: &VdevStatus| status.leaves().iter().any(|leaf| leaf.guid == old && leaf.state.is_readable());
    Ok(onlined.state.is_readable() || pool.devices().as_ref().is_some_and(is_used))
}
