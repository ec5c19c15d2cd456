//! Devices that cannot be used for a vdev: those in use, and those that hold something.
//!
//! In use (mounted, swap, part of another device, another process's, the kernel's ZFS module's, of a pool that is imported here): never. Merely there (a pool that is not
//! destroyed, a file system, a partition table, …): with `-f` only, in OpenZFS's words.

use std::path::{Path, PathBuf};

use cenote_spa::{KERNEL_POOLS, LOCK_PATIENCE, PoolState, foreign, kernel_pool};
use cenote_taskq::{Handle, OpenOptions, boxed};
use cenote_vdev::leaf::{LabelReport, probe_device};

use crate::HostError;
use crate::error::At as _;
use crate::holder::Holder;
use crate::imported::{Imported, Role, imported};
use crate::layout::Layout;

type Result<T> = std::result::Result<T, HostError>;

/// Refuses devices that are in use, and, unless forced, those that hold something.
#[boxed]
pub async fn refuse_used(handle: &Handle, layout: &Layout, force: bool) -> Result<()> {
    let paths: Vec<PathBuf> = layout.paths().filter(|path| path.exists()).map(Path::to_owned).collect();
    let mut held = Vec::new();
    for path in &paths {
        // A device that cannot be read is refused when it is opened for writing, with the reason.
        let Ok(device) = handle.open(path, OpenOptions::default()).await else { continue };
        let report = probe_device(&device).await;
        for label in report.labelled() {
            refuse_kernels(handle, path, label).await?;
        }
        if let Some(user) = handle.in_use(path, LOCK_PATIENCE).await {
            return Err(HostError::InUse(format!("cannot use '{}': {user}", path.display())));
        }
        let is_spare = layout.spares.contains(path);
        for label in report.labelled() {
            // As in OpenZFS pools may share a spare; by its labels each of them sees whether it is in use.
            if is_spare && is_spare_of_another(handle, path, label).await? {
                continue;
            }
            held.extend(refuse_imported(handle, path, label).await?.or_else(|| member(label)));
        }
        let content = foreign(&device).await.when("read", path)?;
        held.extend(content.iter().map(|found| format!("{} {found}", path.display())));
    }
    match held.is_empty() || force {
        true => Ok(()),
        false => Err(HostError::Overridable(held.join("\n"))),
    }
}

/// Refuses a device of a pool that the kernel's module has, which nothing overrides.
#[boxed]
pub(crate) async fn refuse_kernels(handle: &Handle, path: &Path, label: &LabelReport) -> Result<()> {
    let Some(guid) = label.pool_guid() else { return Ok(()) };
    let path = path.display();
    match kernel_pool(handle, Path::new(KERNEL_POOLS), guid.0, name_of(label)).await {
        None => Ok(()),
        Some((name, _)) => {
            let what = "which the ZFS module of this system's kernel has imported";
            Err(HostError::InUse(format!("{path} is part of active pool '{name}', {what}")))
        }
    }
}

async fn is_spare_of_another(handle: &Handle, path: &Path, label: &LabelReport) -> Result<bool> {
    let role = imported(handle, path, label).await?.map(|imported| imported.role);
    Ok(matches!(role, Some(Role::Spare)))
}

/// Refuses a device of a pool that this system has ([`imported`]), which nothing overrides. A copy of one is described instead.
#[boxed]
pub(crate) async fn refuse_imported(handle: &Handle, path: &Path, label: &LabelReport) -> Result<Option<String>> {
    let Some(Imported { pool, role, process }) = imported(handle, path, label).await? else { return Ok(None) };
    let path = path.display();
    let way_out = match process {
        None => format!("'zpool export {pool}' or 'zpool destroy {pool}' first"),
        process => format!("{} has it", Holder { pid: process }),
    };
    Err(HostError::InUse(match role {
        Role::Member => format!("{path} is part of active pool '{pool}': {way_out}"),
        Role::Spare => {
            format!("{path} is reserved as a hot spare of active pool '{pool}': 'zpool remove {pool} {path}' first")
        }
        Role::Cache => format!("{path} is a cache device of active pool '{pool}': 'zpool remove {pool} {path}' first"),
        Role::Unknown => format!(
            "{path} may be a spare or cache device of active pool '{pool}', which cannot be read: 'zpool export {pool}' first"
        ),
        Role::CopyOf(used) => {
            return Ok(Some(format!("{path} is a copy of {}, which is part of active pool '{pool}'", used.display())));
        }
    }))
}

fn name_of(label: &LabelReport) -> &str {
    label.best_config().and_then(|config| config.str("name")).unwrap_or("?")
}

/// The pool that a device belongs to by its label; none where that pool is destroyed, and for spares and cache devices, whose labels name none:
/// as in OpenZFS only those of imported pools are in anybody's way.
fn member(label: &LabelReport) -> Option<String> {
    let state = PoolState::from_number(label.best_config()?.u64("state")?);
    let (path, name) = (label.disk.path(), name_of(label));
    let has_left = label.best_config()?.u64("txg") == Some(0);
    if has_left {
        // A label of no txg: the device was removed from the pool, or never became a part of it.
        return None;
    }
    Some(match state {
        PoolState::Destroyed | PoolState::Spare | PoolState::L2Cache => return None,
        PoolState::Exported => format!("{path} is part of exported pool '{name}'"),
        PoolState::Active | PoolState::Other(_) => format!("{path} is part of potentially active pool '{name}'"),
    })
}
