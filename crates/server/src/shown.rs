//! Read-only mounts of a pool that is about to change.
//!
//! A read-only mount shows its pool as of one txg. Its process only reads: it holds nothing of the pool. So anyone who may read a pool's devices
//! can mount it read-only, and a stopped process does not prevent writing. Blocks that the pool frees later may be reused, and then such a mount
//! reads other data, which checksums detect.
//!
//! So a command that opens a pool for writing reports where the pool is mounted read-only, and refuses to destroy a dataset that such a mount
//! shows, because the dataset is in use. With its first error, the mount itself reports that its state may be gone.
//!
//! *Rejected*: a mount that follows the pool from txg to txg. It would have to tell the kernel every difference between two txgs, and open files
//! would change under their readers; `--rw` gives a mount that is always current. *A lock that readers hold*: a server that writes would wait
//! for readers, or readers would be cut off anyway.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::PoisonError;

use cenote_dsl::name::{is_at_or_below, pool_of};
use cenote_fuse::is_nested_root;
use cenote_host::{Mounted, Mounts, device_paths, users_of};
use cenote_taskq::boxed;

use crate::error::{Result, refused};
use crate::{Session, protocol};

/// The maximum number of mount points that a message names.
const NAMED_MAX: usize = 5;

/// The read-only mounts of a pool whose processes see an earlier state, by the system's table. Another pool may have the same name.
fn named(pool: &str) -> Vec<Mounted> {
    let of_pool = |mount: &Mounted| !mount.is_writable() && pool_of(&mount.dataset) == pool;
    let mounts: Vec<Mounted> = Mounts::read().into_ours().filter(of_pool).collect();
    if mounts.is_empty() {
        return mounts;
    }
    // Mounts that the process with the pool shows read-only are always current.
    let served: Vec<_> = protocol::servers().into_iter().flat_map(|(_, who)| who.mounts).collect();
    mounts.into_iter().filter(|mount| !served.iter().any(|(_, at)| *at == mount.at)).collect()
}

/// True if another process has one of these devices open.
fn is_read(devices: &[PathBuf]) -> bool {
    let users = |device: &PathBuf| fs::canonicalize(device).map(|device| users_of(&device)).unwrap_or_default();
    devices.iter().flat_map(users).any(|user| user.pid != std::process::id())
}

/// Reports where a pool that was opened for writing, from these devices, is mounted read-only.
pub(crate) fn tell(session: &Session, pool: &str, devices: &[PathBuf]) {
    // A snapshot does not change.
    let mut mounts = named(pool);
    mounts.retain(|mount| !mount.dataset.contains('@'));
    if mounts.is_empty() || !is_read(devices) {
        return;
    }
    let places =
        mounts.iter().take(NAMED_MAX).map(|mount| mount.at.display().to_string()).collect::<Vec<_>>().join(", ");
    let rest = if mounts.len() > NAMED_MAX { ", ..." } else { "" };
    session.warn(format!(
        "pool '{pool}' is mounted read-only at {places}{rest}, where it stays as it was then: what changes now is not seen there, and may \
         end in errors there; unmount it and mount it again"
    ));
}

/// Fails if a read-only mount shows one of these datasets, one below them or one of these snapshots.
#[boxed]
pub(crate) async fn check_unshown(session: &Session, names: &[String], verb: &str) -> Result<()> {
    let Some(first) = names.first() else { return Ok(()) };
    let pool = pool_of(first);
    let mounts = named(pool);
    if mounts.is_empty() {
        return Ok(());
    }
    let devices = match session.served_pool() {
        Some(of) => of.devices.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        None => device_paths(&session.locate(pool).await?.0)?,
    };
    if !is_read(&devices) {
        return Ok(());
    }
    for name in names {
        if let Some(mount) = mounts.iter().find(|mount| shows(mount, name)) {
            return Err(refused(format!(
                "cannot {verb} '{name}': dataset is busy: a read-only mount shows it at {} ('cenote unmount' ends that)",
                mount.at.display()
            )));
        }
    }
    Ok(())
}

fn shows(mount: &Mounted, name: &str) -> bool {
    let (dataset, snapshot) = match mount.dataset.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (&*mount.dataset, None),
    };
    if let Some((of, named)) = name.split_once('@') {
        return of == dataset && snapshot == Some(named);
    }
    if is_at_or_below(dataset, name) {
        return true;
    }
    // The mount of an ancestor shows it at the path of its name, or at its mount point, which is the same unless that was set.
    let Some(rest) = name.strip_prefix(dataset).and_then(|rest| rest.strip_prefix('/')) else { return false };
    snapshot.is_none() && fs::symlink_metadata(mount.at.join(rest)).is_ok_and(|found| is_nested_root(found.ino()))
}
