//! Devices of pools that this system has.
//!
//! # Theory
//!
//! **Need.** A pool is imported as long as it is noted in the cache file; most of that time no process has its devices, and its labels say
//! "exported", since each command leaves them so. So neither locks nor labels protect an imported pool from `zpool create` and `zpool
//! labelclear`: the note has to.
//!
//! **Rule.** A device is in use, and `-f` does not help, if its label is of a pool that is noted in this user's cache file or in root's, or
//! that a living process has, also to show it read-only. The label's guid decides, not the path: devices move, and have many names.
//! ```text
//! label of the device                        the pool is had here     the device is
//! a vdev of the pool                         yes                      in use
//! a vdev that the pool does not have         yes                      as its label says (it was removed while it was away)
//! the same vdev, another file has it         yes                      a copy: with -f
//! of txg 0, or of a destroyed pool           -                        free; not where the destroyed pool was imported
//! a spare or cache device in the pool's list yes                      in use
//! a spare or cache device in no such list    -                        free: its label names no pool, and no block is on it
//! ```
//! **Copies** are told by their inodes, of regular files alone. Two block devices may be two ways to one disk.
//!
//! **Rejected.** *Labels that say "active" while a pool is imported*: each command would leave a pool that no other system opens without
//! `-f`. *Asking other users' cache files*: nobody can list them.

use std::path::{Path, PathBuf};

use cenote_format::ids::Guid;
use cenote_spa::{FoundPool, ImportOptions, PoolState, find, import};
use cenote_taskq::{Handle, Identity, boxed};
use cenote_vdev::leaf::LabelReport;

use crate::cachefile::CacheFile;
use crate::{HostError, owners};

/// The use of a device by a pool that this system has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The pool's name here.
    pub pool: String,
    /// Its part in the pool.
    pub role: Role,
    /// The process that has the pool, where it is not noted as imported.
    pub process: Option<u32>,
}

/// The part of a device in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of its vdevs.
    Member,
    /// As this device, which is the one that is used.
    CopyOf(PathBuf),
    /// A hot spare.
    Spare,
    /// A cache device.
    Cache,
    /// A spare or cache device, maybe: the pool does not let itself be read.
    Unknown,
}

/// A pool that is had here.
struct Had {
    name: String,
    guid: Guid,
    devices: Vec<PathBuf>,
    process: Option<u32>,
    /// It was imported although it was destroyed.
    is_destroyed: bool,
}

fn all_had() -> Result<Vec<Had>, HostError> {
    let noted = CacheFile::of_all()?.into_iter().map(|(name, entry)| Had {
        name,
        guid: Guid(entry.guid),
        devices: entry.paths,
        process: None,
        is_destroyed: entry.destroyed,
    });
    let living = owners::living().into_iter().map(|having| Had {
        name: having.pool,
        guid: having.guid,
        devices: having.devices,
        process: Some(having.process),
        is_destroyed: true,
    });
    Ok(noted.chain(living).collect())
}

/// The pool of this system that has the device at `path`, which has this label.
#[boxed]
pub(crate) async fn imported(handle: &Handle, path: &Path, label: &LabelReport) -> Result<Option<Imported>, HostError> {
    let Some(config) = label.best_config() else { return Ok(None) };
    let state = PoolState::from_number(config.u64("state").unwrap_or(u64::MAX));
    let Some(guid) = label.guid() else { return Ok(None) };
    if matches!(state, PoolState::Spare | PoolState::L2Cache) {
        return auxiliary(handle, guid, state).await;
    }
    let Some(of) = label.pool_guid() else { return Ok(None) };
    // Removed from the pool, or never a part of it.
    if config.u64("txg") == Some(0) {
        return Ok(None);
    }
    for had in all_had()?.into_iter().filter(|had| had.guid == of) {
        if state == PoolState::Destroyed && !had.is_destroyed {
            continue;
        }
        let (pools, _) = find(handle, &had.devices).await;
        let found = pools.into_iter().find(|found| found.guid == of);
        let role = match found {
            Some(found) => match member(handle, path, guid, &found).await {
                Some(role) => role,
                None => continue,
            },
            // They have moved: this may be one of them.
            None => Role::Member,
        };
        return Ok(Some(Imported { pool: had.name, role, process: had.process }));
    }
    Ok(None)
}

/// The part in a pool of a device with the label of its leaf `guid`.
async fn member(handle: &Handle, path: &Path, guid: Guid, found: &FoundPool) -> Option<Role> {
    // A tree that cannot be put together has it for all we know.
    let is_in_tree = found.vdevs().map_or(true, |tree| tree.leaves().iter().any(|leaf| leaf.guid == guid));
    if !is_in_tree {
        return None;
    }
    let used = found.leaves.get(&guid).map(|leaf| leaf.disk.device().path().to_owned());
    let Some(used) = used else { return Some(Role::Member) };
    let (here, there) = (handle.identity(path).await, handle.identity(&used).await);
    match (here, there) {
        (Some(here @ Identity::Inode { .. }), Some(there @ Identity::Inode { .. })) if here != there => {
            Some(Role::CopyOf(used))
        }
        _ => Some(Role::Member),
    }
}

/// The pool that lists a spare or cache device.
async fn auxiliary(handle: &Handle, guid: Guid, state: PoolState) -> Result<Option<Imported>, HostError> {
    for had in all_had()? {
        let (pools, _) = find(handle, &had.devices).await;
        let Some(found) = pools.into_iter().find(|found| found.guid == had.guid) else { continue };
        let is_near = found.auxiliaries.contains_key(&guid);
        // Only its list is read, whoever has it and whatever state it is in.
        let options = ImportOptions {
            force: true,
            destroyed: true,
            missing_log: true,
            missing_tops: true,
            skip_activity_check: true,
            ..ImportOptions::default()
        };
        let listed = match import(handle, found, &options).await {
            Ok(pool) => {
                let listed = pool.auxiliary_guids().await;
                pool.close().await;
                listed
            }
            Err(error) => Err(error),
        };
        let role = match listed {
            Ok(listed) if !listed.contains(&guid) => continue,
            Ok(_) if state == PoolState::Spare => Role::Spare,
            Ok(_) => Role::Cache,
            // It was found among the devices of a pool that does not let itself be read.
            Err(_) if is_near => Role::Unknown,
            Err(_) => continue,
        };
        return Ok(Some(Imported { pool: had.name, role, process: had.process }));
    }
    Ok(None)
}
