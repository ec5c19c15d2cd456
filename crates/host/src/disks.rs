//! Files and devices where pools are looked for.

use std::path::{Path, PathBuf};

use cenote_spa::{FoundPool, SpaError, View};
use cenote_taskq::{Handle, boxed};

use crate::HostError;
use crate::error::At as _;

/// The folders that devices are looked for in when no path is named.
pub const DEFAULT_DIRS: [&str; 2] = ["/dev/disk/by-id", "/dev"];

/// Names in `/dev` that are never disks, and of which some do things when they are opened.
const NO_DISKS: [&str; 12] =
    ["watchdog", "tty", "vcs", "hpet", "core", "fd", "std", "console", "ptmx", "kmsg", "mem", "random"];

/// Whether a path may be a disk or an image of one, by its name and kind.
#[must_use]
pub(crate) fn is_disk(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let in_dev = path.parent() == Some(Path::new("/dev"));
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    if in_dev && NO_DISKS.iter().any(|prefix| name.starts_with(prefix)) {
        return false;
    }
    // A node that is neither a file nor a block device (a pipe, a socket, a terminal) may block whoever opens it.
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
}

/// The files and devices to probe: the named ones, with those in named folders; else those of `ZPOOL_IMPORT_PATH`, else those of the
/// usual places.
///
/// # Errors
/// A named path is not there, or cannot be listed.
#[boxed]
pub async fn search(handle: &Handle, named: &[PathBuf]) -> Result<Vec<PathBuf>, HostError> {
    let mut named = named.to_vec();
    if named.is_empty() {
        let variable = std::env::var_os("ZPOOL_IMPORT_PATH").filter(|value| !value.is_empty());
        named = variable.map(|value| std::env::split_paths(&value).collect()).unwrap_or_default();
    }
    if !named.is_empty() {
        let mut paths = Vec::new();
        for path in named {
            // Labels name devices by their whole paths.
            let path = std::path::absolute(&path).at(&path)?;
            if path.is_dir() {
                let listed = handle.list_directory(&path).await.at(&path)?;
                paths.extend(listed.into_iter().filter(|path| is_disk(path)));
            } else if path.exists() {
                paths.push(path);
            } else {
                return Err(HostError::NoSuchPath(path));
            }
        }
        return Ok(paths);
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    for dir in DEFAULT_DIRS {
        paths.extend(handle.list_directory(Path::new(dir)).await.unwrap_or_default());
    }
    paths.retain(|path| is_disk(path));
    Ok(paths)
}

/// The devices of a pool's vdevs. Partitions are found through what they are on. Spares and cache devices are not among them: their labels
/// do not say whose they are.
pub fn device_paths(found: &FoundPool) -> Result<Vec<PathBuf>, HostError> {
    absolute(found.leaves.values().map(|leaf| leaf.disk.device().path()))
}

/// The devices of an open pool, with its spares and cache devices.
///
/// # Errors
/// A device's path is empty, or the pool's lists cannot be read.
#[boxed]
pub async fn all_device_paths(pool: &View) -> Result<Vec<PathBuf>, HostError> {
    let own = pool.auxiliary_guids().await?;
    let found = pool.found();
    let auxiliaries = found.auxiliaries.values().filter(|auxiliary| own.contains(&auxiliary.guid));
    let disks = found.leaves.values().map(|leaf| &leaf.disk).chain(auxiliaries.map(|auxiliary| &auxiliary.disk));
    absolute(disks.map(|disk| disk.device().path()))
}

/// Whole paths, each once.
fn absolute<'a>(all: impl Iterator<Item = &'a Path>) -> Result<Vec<PathBuf>, HostError> {
    let mut paths = Vec::new();
    for path in all {
        let path = std::path::absolute(path).at(path)?;
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The one pool of that name or guid.
///
/// # Errors
/// There is none ([`HostError::NoSuchPool`]), or several have the name ([`SpaError::Ambiguous`]).
pub fn choose(mut pools: Vec<FoundPool>, name: &str) -> Result<FoundPool, HostError> {
    if let Some(index) = pools.iter().position(|found| name.parse() == Ok(found.guid.0)) {
        return Ok(pools.swap_remove(index));
    }
    pools.retain(|found| found.name() == name);
    if pools.len() > 1 {
        let guids = pools.iter().map(|found| found.guid.0).collect();
        return Err(SpaError::Ambiguous { name: name.to_owned(), guids }.into());
    }
    pools.pop().ok_or_else(|| HostError::NoSuchPool(name.to_owned()))
}
