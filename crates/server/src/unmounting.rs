//! Unmounting the mounts of `mount`, `serve` and `zfs mount`, and waiting until all data written there is on disk.
//!
//! The kernel's `umount` returns when the mount can no longer be used. The process that served it then writes everything that it has in memory,
//! perhaps hundreds of megabytes. This module waits for that: the process ends and the pool is exported, or, if the process still serves the
//! pool (other mounts of it, its volumes), its open txg is written.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cenote_dsl::name::pool_of;
use cenote_format::ids::Guid;
use cenote_fuse::{MountError, Unmount};
use cenote_host::{CacheFile, Mounted, Mounts, owners, users_of};
use cenote_spa::{FoundPool, PoolState, find};
use cenote_taskq::boxed;

use crate::error::{Result, ServerError, refused};
use crate::{Session, Who, protocol};

/// The interval between checks for the end of a process.
const POLL: Duration = Duration::from_millis(50);
/// The time before waiting is reported.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// The time in which a process begins to end after its last mount. It begins at once, unless another mount namespace has the mount.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Unmounts the mount at a path, or the dataset with a name. With `is_forced` even if it is in use; its users get errors.
#[boxed]
pub async fn unmount(session: &Session, target: &OsStr, is_forced: bool) -> Result<()> {
    let shown = target.display();
    let mounts = protocol::mounts();
    let Some(mount) = mounts.find(target) else {
        return Err(refused(format!("cannot unmount '{shown}': not currently mounted")));
    };
    let unmounted = unmount_one(session, mount, is_forced).await;
    unmounted.map_err(|error| refused(format!("cannot unmount '{shown}': {}", why(mount, &error))))
}

/// Unmounts all mounts by Cenote of the pools that are imported or served, those below others first. False if that failed for some, which was
/// reported.
#[boxed]
pub async fn unmount_all(session: &Session, is_forced: bool) -> bool {
    let mounts = protocol::mounts();
    let mut pools: BTreeSet<String> = protocol::servers().into_iter().map(|(_, who)| who.pool).collect();
    match CacheFile::of_user().and_then(|cache| cache.pools()) {
        Ok(imported) => pools.extend(imported.into_keys()),
        Err(error) => session.warn(error.to_string()),
    }
    let mut ours: Vec<&Mounted> = mounts.ours().filter(|mount| pools.contains(pool_of(&mount.dataset))).collect();
    ours.reverse();
    let mut is_good = true;
    for mount in ours {
        if let Err(error) = unmount_one(session, mount, is_forced).await {
            session.warn(format!("cannot unmount '{}': {}", mount.at.display(), why(mount, &error)));
            is_good = false;
        }
    }
    is_good
}

/// The reason why a mount could not be ended, and its users if it is in use.
fn why(mount: &Mounted, error: &ServerError) -> String {
    let users = if matches!(error, ServerError::Busy) { users_of(&mount.at) } else { Vec::new() };
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    match users.is_empty() {
        true => error.chain(),
        false => format!("{}: {}", error.chain(), users.join(", ")),
    }
}

/// Unmounts a dataset, with `is_forced` even if it is in use, and waits until all data written there is on disk.
///
/// # Errors
/// [`ServerError::Busy`]; all others say what a person can do.
#[boxed]
pub(crate) async fn unmount_one(session: &Session, mount: &Mounted, is_forced: bool) -> Result<()> {
    if !mount.is_ours() {
        return Err(refused("it is the kernel's, whose own tools unmount it"));
    }
    let server = server_of(mount);
    let at = mount.at.clone();
    match &server {
        // The server finishes pending requests, and detaches a mount in use.
        Some((socket, _)) if is_forced => {
            let line = ["cenote", "unmount", "--force", "--"].map(OsStr::new);
            match session.console().ask(socket, &[&line[..], &[at.as_os_str()]].concat()) {
                Ok(0) => {}
                Ok(_) => return Err(refused("its process did not unmount it")),
                // A process that ends with its last mount may end before it has answered. The result shows here, and in the pool.
                Err(_) if Mounts::read().ours().all(|other| other.at != mount.at) => {}
                Err(error) => return Err(error),
            }
        }
        _ => {
            let how = if is_forced { Unmount::Detach } else { Unmount::Unused };
            match session.handle().spawn_blocking(move || cenote_fuse::unmount(&at, how)).await? {
                Err(MountError::Busy(_)) => return Err(ServerError::Busy),
                ended => ended?,
            }
        }
    }
    match server {
        Some((socket, who)) => await_written(session, &socket, &who, mount).await,
        // It was bound to a second place, where its mount continues.
        None if protocol::mounts().ours().any(|other| other.dataset == mount.dataset && other.at != mount.at) => Ok(()),
        None if mount.is_writable() => Err(refused(
            "it is unmounted, but whether its process has written everything is not known: no process takes commands for it at a place \
             that is known here. If the process was killed, what programs had not synced may be lost; if it takes commands at a place of \
             its own, CENOTE_CONTROL names that",
        )),
        None => Ok(()),
    }
}

/// The process that serves a mount for writing, and its socket.
pub(crate) fn server_of(mount: &Mounted) -> Option<(PathBuf, Who)> {
    protocol::servers().into_iter().find(|(_, who)| who.mounts.iter().any(|served| is_it(served, mount)))
}

fn is_it((dataset, at): &(String, PathBuf), mount: &Mounted) -> bool {
    *dataset == mount.dataset && *at == mount.at
}

/// Waits until a server has on disk all data written in a mount that has ended: it syncs, or ends with its last mount.
#[boxed]
pub(crate) async fn await_written(session: &Session, socket: &Path, who: &Who, mount: &Mounted) -> Result<()> {
    let same = || protocol::who(socket).ok().filter(|now| now.pid == who.pid);
    let goes_on =
        |now: &Who| !now.is_ending && (!now.ends_with_mounts || now.mounts.iter().any(|other| !is_it(other, mount)));
    let begun = session.handle().now();
    let mut is_told = false;
    // It answers until the pool was exported, or could not be.
    while let Some(now) = same() {
        if goes_on(&now) {
            if Session::sync_server(socket) {
                return Ok(());
            }
            // Its last mount may have ended meanwhile.
            if same().is_some_and(|now| goes_on(&now)) {
                return Err(refused("it is unmounted, but its process did not say that all is written"));
            }
            continue;
        }
        let waited = session.handle().now() - begun;
        if !now.is_ending && waited >= BEGIN_TIME_MAX {
            return Err(refused(format!(
                "it is unmounted here, but another mount namespace (a container, 'unshare -m') still shows it, and process {} goes on \
                 for its users: 'kill {}' ends it with everything written",
                who.pid, who.pid
            )));
        }
        if now.is_ending && waited >= TELL_AFTER && !std::mem::replace(&mut is_told, true) {
            session.advise(format!("waiting for process {}, which writes what it has in memory", who.pid));
        }
        session.handle().sleep(POLL).await;
    }
    let (pools, _) = find(session.handle(), &who.devices).await;
    let state = pools.iter().find(|pool| pool.guid.0 == who.guid).map(FoundPool::state);
    // Devices that were renamed while it ran are not found where it had them. Its note, beside its socket, goes when the pool is exported.
    let is_noted_here = CacheFile::of_user().is_ok_and(|cache| socket.starts_with(cache.dir()));
    if state.is_none() && is_noted_here && !owners::is_noted(Guid(who.guid)) {
        return Ok(());
    }
    // By then another process may have opened it again, which found it exported.
    let devices: Vec<&Path> = who.devices.iter().map(PathBuf::as_path).collect();
    if state == Some(PoolState::Exported) || cenote_host::holder::of(devices).is_some() {
        return Ok(());
    }
    Err(refused(format!(
        "its process {} ended without exporting the pool '{}': what was written last may be missing; its messages say why",
        who.pid, who.pool
    )))
}
