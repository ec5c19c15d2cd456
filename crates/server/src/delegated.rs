//! A writable mount of a pool that another process has: that process mounts it.
//!
//! # Theory
//!
//! **Need.** Only one process can have a pool open for writing. A second `cenote mount --rw` for it, or a second line of `/etc/fstab`, must
//! still mount another dataset, and the command must behave as if it had the mount itself.
//!
//! **Shape.** The command asks the process over its socket ([`crate::protocol`]); the process mounts the dataset and answers. In the background
//! the command then returns. In the foreground it remains until the mount has ended for any reason, and an interrupt to it unmounts the mount.
//! The process keeps no connection for that: the command watches the system's table of mounts, and the process itself, whose death ends the
//! mount without notice.
//!
//! **Invariants.** 1. The mount does not depend on the command: if the command is killed, the mount remains. 2. When a command ends well, all
//! data written in the mount is on disk.
//!
//! **Rejected.** *A connection for the life of the mount*: the process would need a thread for each, and would learn nothing that the table of
//! mounts does not tell.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_host::{Mounted, Mounts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::background::Going;
use crate::error::{Context as _, Result, ServerError, refused};
use crate::unmounting::{await_written, unmount_one};
use crate::{Session, Who, protocol};

/// The interval between checks for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(200);

/// A mount requested from another process.
pub(crate) struct Delegated<'a> {
    /// The dataset.
    pub(crate) dataset: &'a str,
    /// The folder, as given to this process.
    pub(crate) at: &'a Path,
    /// The lists of `-o`.
    pub(crate) options: &'a [String],
}

impl Delegated<'_> {
    /// Asks the process at a socket to mount the dataset, and waits until the mount has ended, unless the command is in the background. False if
    /// that process refused it and reported why.
    ///
    /// # Errors
    /// The process does not see the folder, has ended, or data written in the mount may not be on disk.
    pub(crate) async fn serve(
        &self,
        session: &Session,
        socket: &Path,
        going: &Going,
        signals: Signals,
    ) -> Result<bool> {
        let who = protocol::who(socket)?;
        let (dataset, pid) = (self.dataset, who.pid);
        check_namespace(&who)?;
        let at = self.place()?;
        let text = at.display();
        let options = self.options.iter().flat_map(|list| ["-o", list]);
        let mut line: Vec<&OsStr> = ["cenote", "mount", "--rw"].map(OsStr::new).to_vec();
        line.extend(options.chain(["--", dataset]).map(OsStr::new).chain([at.as_os_str()]));
        if session.console().ask(socket, &line)? != 0 {
            return Ok(false);
        }
        let by = format!("'{dataset}' is mounted at {text} for writing by process {pid}, which has the pool");
        if going.options().background {
            session.console().note(&format!("{by}; 'cenote unmount {text}' to unmount"));
            going.taken_over()?;
            return Ok(true);
        }
        session.console().note(&format!("{by}; {}", going.options().end("unmount")));
        let mount = Taken { dataset, at: &at, socket, who };
        if let Err(error) = going.ready(&**session.console()) {
            mount.unmount(session, false).await?;
            return Err(error);
        }
        let ended = mount.wait(session, signals).await;
        going.ends();
        ended.map(|()| true)
    }

    /// The folder as the process names it. If it cannot be looked up, the process refuses it, with the reason.
    fn place(&self) -> Result<PathBuf> {
        let at = std::path::absolute(self.at).with_context(|| self.at.display())?;
        Ok(fs::canonicalize(&at).unwrap_or(at))
    }
}

/// Refuses a process in another mount namespace.
fn check_namespace(who: &Who) -> Result<()> {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    match (of("self"), of(&who.pid.to_string())) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(refused(format!(
            "pool '{}' is process {}'s, which sees other folders (another mount namespace, as of a container): mount it there",
            who.pool, who.pid
        ))),
        // The process is another user's, for which only root asks, or the kernel is older.
        _ => Ok(()),
    }
}

/// A mount that another process has taken over.
struct Taken<'a> {
    dataset: &'a str,
    at: &'a Path,
    socket: &'a Path,
    who: Who,
}

impl Taken<'_> {
    /// The mount, if it exists.
    fn find(&self, mounts: Mounts) -> Option<Mounted> {
        mounts.into_ours().find(|mount| mount.dataset == self.dataset && mount.at == self.at)
    }

    async fn unmount(&self, session: &Session, is_forced: bool) -> Result<()> {
        match self.find(Mounts::read()) {
            Some(mount) => unmount_one(session, &mount, is_forced).await,
            None => Ok(()),
        }
    }

    /// Waits until it has ended, from outside or by a signal, with everything on disk.
    async fn wait(&self, session: &Session, mut signals: Signals) -> Result<()> {
        let at = self.at.display();
        let pid =
            i32::try_from(self.who.pid).ok().and_then(Pid::from_raw).ok_or_else(|| refused("it has no process"))?;
        let process = Arc::new(pidfd_open(pid, PidfdFlags::empty()).context("the process that has the pool is gone")?);
        let table = Arc::new(File::open("/proc/self/mounts").context("/proc/self/mounts")?);
        let (mut is_second, mut last) = (false, None);
        while let Some(mount) = self.find(Mounts::read()) {
            last = Some(mount);
            let (process, table) = (process.clone(), table.clone());
            let waited = session.handle().spawn_blocking(move || changed(&process, &table)).await?;
            if waited && self.find(Mounts::read()).is_some() {
                return Err(refused(format!(
                    "process {}, which served '{}' at {at}, is gone: what was written last and not synced may be lost",
                    self.who.pid, self.dataset
                )));
            }
            let Some(signal) = signals.pending().next() else { continue };
            match self.unmount(session, is_second || signal != SIGINT).await {
                Ok(()) => return Ok(()),
                Err(ServerError::Busy) => {
                    session
                        .console()
                        .warn(&format!("cannot unmount '{at}': it is in use; interrupt again to detach it"));
                }
                Err(error) => return Err(error),
            }
            is_second = true;
        }
        match last {
            Some(mount) => await_written(session, self.socket, &self.who, &mount).await,
            // It had ended before the first look.
            None => Ok(()),
        }
    }
}

/// Waits a moment for a change of the table of mounts or the end of the process. True if the process has ended.
fn changed(process: &impl std::os::fd::AsFd, table: &File) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(SIGNAL_POLL.subsec_nanos()) };
    let mut watched = [PollFd::new(process, PollFlags::IN), PollFd::new(table, PollFlags::PRI)];
    poll(&mut watched, Some(&timeout)).is_ok_and(|count| count > 0) && !watched[0].revents().is_empty()
}
