//! Unmounting what `mount`, `serve` and `zfs mount` show, and waiting until what was written there is on disk.
//!
//! The kernel's `umount` returns when nobody can use a mount any more. The process that served it then writes what it has in memory,
//! which may be hundreds of megabytes. Here the end of that is what is waited for: the process ends and the pool is exported, or,
//! where it goes on serving the pool (other mounts of it, its volumes), its open txg is written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use cenote_fuse::{MountError, Unmount};
use cenote_host::{Mounted, Mounts};
use cenote_server::{Who, protocol};
use cenote_spa::{PoolState, find};

use crate::context::Context;

/// How often it is looked whether a process has ended.
const POLL: Duration = Duration::from_millis(50);
/// How long nothing is said of waiting.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// The time in which a process whose last mount is gone begins to end. It begins at once, unless another mount namespace has the mount.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Unmounts what is mounted at a path, or the dataset of a name. With `is_forced` also what is in use; its users get errors.
pub(crate) async fn unmount(context: &Context, target: &str, is_forced: bool) -> Result<()> {
    let mounts = Mounts::read();
    let Some(mount) = mounts.find(target) else { bail!("cannot unmount '{target}': not currently mounted") };
    unmount_one(context, mount, is_forced).await.map_err(|error| anyhow!("cannot unmount '{target}': {error:#}"))
}

/// Unmounts all that Cenote has mounted; what is mounted below others goes first. False where that failed for some, which was told.
pub(crate) async fn unmount_all(context: &Context, is_forced: bool) -> bool {
    let mounts = Mounts::read();
    let mut ours: Vec<&Mounted> = mounts.ours().collect();
    ours.reverse();
    let mut is_good = true;
    for mount in ours {
        if let Err(error) = unmount_one(context, mount, is_forced).await {
            context.err(format!("cannot unmount '{}': {error:#}", mount.at.display()));
            is_good = false;
        }
    }
    is_good
}

/// The mount is in use.
#[derive(Debug)]
pub(crate) struct Busy;

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("pool or dataset is busy")
    }
}

impl std::error::Error for Busy {}

/// Unmounts a dataset, with `is_forced` also where it is in use, and waits until what was written there is on disk.
///
/// # Errors
/// [`Busy`]; all others say what a person can do.
pub(crate) async fn unmount_one(context: &Context, mount: &Mounted, is_forced: bool) -> Result<()> {
    ensure!(mount.is_ours(), "it is the kernel's, whose own tools unmount it");
    let server = server_of(mount);
    let at = mount.at.clone();
    match &server {
        // It finishes what is on its way, and lets go of what is in use.
        Some((socket, _)) if is_forced => {
            let at = at.to_str().ok_or_else(|| anyhow!("its mount point is not UTF-8"))?;
            let request = context.program()?.request(&["cenote", "unmount", "--force", "--", at])?;
            ensure!(protocol::send(socket, &request, None, context.output())? == 0, "its process did not unmount it");
        }
        _ => {
            let how = if is_forced { Unmount::Detach } else { Unmount::Unused };
            match context.handle().spawn_blocking(move || cenote_fuse::unmount(&at, how)).await? {
                Err(MountError::Busy(_)) => return Err(Busy.into()),
                ended => ended?,
            }
        }
    }
    match server {
        Some((socket, who)) => await_written(context, &socket, &who, mount).await,
        // It was bound to a second place, and its mount goes on.
        None if Mounts::read().ours().any(|other| other.dataset == mount.dataset && other.at != mount.at) => Ok(()),
        None if mount.is_writable() => bail!(
            "it is unmounted, but whether its process has written everything is not known: no process takes commands for it at a place \
             that is known here. If the process was killed, what programs had not synced may be lost; if it takes commands at a place of \
             its own, CENOTE_CONTROL names that"
        ),
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

/// Waits until a server has on disk what was written in a mount that has ended: it writes that, or ends with its last mount.
pub(crate) async fn await_written(context: &Context, socket: &Path, who: &Who, mount: &Mounted) -> Result<()> {
    let same = || protocol::who(socket).ok().filter(|now| now.pid == who.pid);
    let goes_on =
        |now: &Who| !now.is_ending && (!now.ends_with_mounts || now.mounts.iter().any(|other| !is_it(other, mount)));
    let begun = context.handle().now();
    let mut is_told = false;
    // It answers until the pool is exported, or could not be.
    while let Some(now) = same() {
        if goes_on(&now) {
            if Context::sync_server(socket) {
                return Ok(());
            }
            // Its last mount may have ended meanwhile.
            ensure!(
                !same().is_some_and(|now| goes_on(&now)),
                "it is unmounted, but its process did not say that all is written"
            );
            continue;
        }
        let waited = context.handle().now() - begun;
        ensure!(
            now.is_ending || waited < BEGIN_TIME_MAX,
            "it is unmounted here, but another mount namespace (a container, 'unshare -m') still shows it, and process {} goes on for \
             its users: 'kill {}' ends it with everything written",
            who.pid,
            who.pid
        );
        if now.is_ending && waited >= TELL_AFTER && !std::mem::replace(&mut is_told, true) {
            context.err(format!("waiting for process {}, which writes what it has in memory", who.pid));
        }
        context.handle().sleep(POLL).await;
    }
    let (pools, _) = find(context.handle(), &who.devices).await;
    let state = pools.iter().find(|pool| pool.guid.0 == who.guid).map(|pool| pool.state());
    // By then another process may have opened it again, which found it exported.
    let devices: Vec<&Path> = who.devices.iter().map(PathBuf::as_path).collect();
    ensure!(
        state == Some(PoolState::Exported) || cenote_host::holder::of(devices).is_some(),
        "its process {} ended without exporting the pool '{}': what was written last may be missing; its messages say why",
        who.pid,
        who.pool
    );
    Ok(())
}
