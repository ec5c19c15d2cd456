//! Mounting, and ending a mount.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_inuse::{OpenError, Report};
use cenote_spa::View;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Event, Group, Handle, boxed};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use thiserror::Error;

use crate::binding;
use crate::kernel_mount;
use crate::options::{MountOptions, Transport};
use crate::top_mount::device_at;
use crate::tree::Tree;

const DEVICE: &str = "/dev/fuse";
/// The system's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The program that mounts for users without the privilege.
pub(crate) const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// The time in which the kernel ends the session of a mount without users. It does so at once; the rest is for slow machines.
const END_TIME_MAX: Duration = Duration::from_secs(2);

/// Why a mount, or its end, failed. The messages say what a person can do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// The dataset cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// There is no FUSE here.
    #[error(
        "cannot mount: {DEVICE} is missing. Load the kernel module ('modprobe fuse'); in a container, start that with '--device {DEVICE}'"
    )]
    NoDevice,
    /// FUSE is there and may not be used.
    #[error(
        "cannot mount at '{}': not permitted: {reason}. {DEVICE} must be readable and writable; mounting takes root \
         (in a container, '--cap-add SYS_ADMIN') or the program fusermount3 (package fuse3)",
        mountpoint.display()
    )]
    NotPermitted {
        /// Where.
        mountpoint: PathBuf,
        /// The system's error message.
        reason: String,
    },
    /// The place is not one to mount at.
    #[error("cannot mount at '{}': {reason}", mountpoint.display())]
    BadPlace {
        /// Where.
        mountpoint: PathBuf,
        /// The fault found in the place.
        reason: String,
    },
    /// Files of the mount are in use.
    #[error("cannot unmount '{}': it is in use", .0.display())]
    Busy(PathBuf),
    /// Anything else.
    #[error("cannot {verb} '{}': {error}", mountpoint.display())]
    Io {
        /// Mount or unmount.
        verb: &'static str,
        /// Where.
        mountpoint: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// How a mount is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Not while anybody uses it.
    Unused,
    /// It disappears at once. Programs that use it can go on as long as this process lives.
    Detach,
}

/// The state of a mount after it was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It has no users any more, and all its requests are done.
    Ended,
    /// It is gone from this mount namespace. Programs that had it in use, and other mount namespaces (containers, `unshare -m`) that
    /// were made while it was there, still have it until [`MountHandle::close`], and get errors after it.
    Detached,
}

/// A mount. Dropping it detaches it, if it is still mounted: a later mount at its place is not touched.
pub struct MountHandle {
    mountpoint: PathBuf,
    /// Its device, by which it is told from others at its place; none where the kernel's table did not show it.
    device: Option<String>,
    handle: Handle,
    state: Arc<State>,
    group: Group,
    tree: Tree,
    uses_io_uring: bool,
}

#[derive(Default)]
struct State {
    ended: Event,
    /// It was unmounted from this mount namespace. Its session may go on.
    is_unmounted: AtomicBool,
    error: Mutex<Option<io::Error>>,
}

/// Mounts `dataset` (`pool/fs` or `pool/fs@snapshot`) of a pool as of a txg at `mountpoint`, which must be a directory. `report` is told
/// the causes of errors that clients see as an errno.
///
/// # Errors
/// As [`mount_tree`], or the dataset cannot be opened.
#[boxed]
pub async fn mount(
    handle: &Handle,
    pool: &View,
    dataset: &str,
    mountpoint: &Path,
    options: &MountOptions,
    report: Report,
) -> Result<MountHandle, MountError> {
    // Nothing is opened for a place where nothing can be mounted.
    place(handle, mountpoint).await?;
    let tree = Tree::open(pool, dataset, options.tree(report)).await?;
    mount_tree(handle, tree, mountpoint, options).await
}

/// Mounts a tree at `mountpoint`, which must be a directory. No option allows what the properties of its datasets forbid. One process
/// can have any number of mounts of any number of pools. Where it fails the tree is closed.
#[boxed]
pub async fn mount_tree(
    handle: &Handle,
    tree: Tree,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<MountHandle, MountError> {
    let mounted = mounted(handle, tree.clone(), mountpoint, &options.without(tree.forbidden())).await;
    if mounted.is_err() {
        tree.close().await;
    }
    mounted
}

async fn place(handle: &Handle, mountpoint: &Path) -> Result<PathBuf, MountError> {
    let mountpoint = mountpoint.to_owned();
    blocking(handle, move || check_place(&mountpoint)).await
}

async fn mounted(
    handle: &Handle,
    tree: Tree,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<MountHandle, MountError> {
    let mountpoint = place(handle, mountpoint).await?;
    let group = handle.group();
    let (mounted, device) = {
        let (server, group) = (Arc::new(tree.clone()), group.clone());
        let (at, name, options) = (mountpoint.clone(), tree.dataset(), options.clone());
        blocking(handle, move || {
            let before = device_at(&at);
            let mounted = binding::mount(server, group, &at, &name, &options).map_err(|error| explain(&at, error))?;
            Ok((mounted, device_at(&at).filter(|device| before.as_ref() != Some(device))))
        })
        .await?
    };
    let state = Arc::new(State::default());
    let uses_io_uring = mounted.uses_io_uring();
    if options.transport == Transport::IoUring && !uses_io_uring {
        let reason = if options.auto_unmount { "not with auto_unmount" } else { SWITCH };
        tree.note(format!(
            "{}: requests come by {DEVICE}, since there is no io_uring for it ({reason})",
            tree.dataset()
        ));
    }
    let served = {
        let state = Arc::clone(&state);
        move || {
            // A panic of the binding ends the session as an error does.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mounted.serve()));
            let result = result.unwrap_or_else(|_| Err(io::Error::other("the session panicked")));
            *state.error.lock() = result.err();
            state.ended.set();
        }
    };
    // The session waits for the kernel as long as the mount lives, so it has a thread of its own.
    let spawned = std::thread::Builder::new().name("fuse-session".to_owned()).spawn(served);
    let mount = MountHandle { mountpoint, device, handle: handle.clone(), state, group, tree, uses_io_uring };
    if let Err(error) = spawned {
        mount.state.ended.set();
        return Err(MountError::Io { verb: "mount", mountpoint: mount.mountpoint.clone(), error });
    }
    if options.read_ahead_kib > 0 {
        let (at, kib) = (mount.mountpoint.clone(), options.read_ahead_kib);
        // Only root can, and only where /sys is writable; without it reads are smaller, and that is all.
        drop(handle.spawn_blocking(move || set_read_ahead(&at, kib)).await);
    }
    Ok(mount)
}

async fn blocking<T: Send + 'static>(
    handle: &Handle,
    work: impl FnOnce() -> Result<T, MountError> + Send + 'static,
) -> Result<T, MountError> {
    handle.spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(MountError::Io { verb: "mount", mountpoint: PathBuf::new(), error: io::Error::other(error.to_string()) })
    })
}

/// The place's canonical path, if it is one to mount at.
fn check_place(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let bad = |reason: String| MountError::BadPlace { mountpoint: mountpoint.to_owned(), reason };
    match std::fs::metadata(mountpoint) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(bad("not a directory".to_owned())),
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let at = mountpoint.display();
            return Err(bad(format!(
                "a mount is there whose process has gone; 'fusermount3 -u {at}' (or 'umount {at}') removes it"
            )));
        }
        Err(error) => return Err(bad(plain(&error))),
    }
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoDevice);
    }
    mountpoint.canonicalize().map_err(|error| bad(plain(&error)))
}

/// The system's words without the number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.clone(), |(words, _)| words.to_owned())
}

/// The [`MountError`] for a system error of mounting.
fn explain(mountpoint: &Path, error: io::Error) -> MountError {
    let mountpoint = mountpoint.to_owned();
    let text = error.to_string().trim().to_owned();
    let lower = text.to_lowercase();
    // The system call's errors are kinds; those of fusermount3 are words.
    if error.kind() == io::ErrorKind::PermissionDenied
        || ["permission denied", "operation not permitted", "only allowed if"].iter().any(|words| lower.contains(words))
    {
        return MountError::NotPermitted { mountpoint, reason: plain(&io::Error::other(text)) };
    }
    if error.kind() == io::ErrorKind::NotFound {
        let reason = "root's mount was refused, and fusermount3 is not installed".to_owned();
        return MountError::NotPermitted { mountpoint, reason };
    }
    MountError::Io { verb: "mount", mountpoint, error }
}

fn set_read_ahead(mountpoint: &Path, kib: u32) {
    // Not the root directory's: that would ask the session that is just starting, which is fine, but needs no path walk.
    let Ok(stat) = rustix::fs::stat(mountpoint) else { return };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string());
}

impl MountHandle {
    /// Where it is.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the requests come by io_uring, else by the device.
    #[must_use]
    pub fn uses_io_uring(&self) -> bool {
        self.uses_io_uring
    }

    /// Resolves when the mount has ended, by [`MountHandle::unmount`] or by anybody else.
    #[boxed]
    pub async fn ended(&self) -> Result<(), MountError> {
        self.state.ended.wait().await;
        self.close().await;
        match self.state.error.lock().take() {
            None => Ok(()),
            Some(error) => Err(MountError::Io { verb: "serve", mountpoint: self.mountpoint.clone(), error }),
        }
    }

    /// Finishes the requests that were made and answers none any more, also of programs that still use a detached mount; then closes all
    /// files. Call this before exporting the pool.
    #[boxed]
    pub async fn close(&self) {
        // Of a detached mount: what programs have changed by mappings would be lost.
        if !self.has_ended() {
            self.tree.hand_over().await;
        }
        self.group.close().await;
        self.tree.close().await;
    }

    /// Whether the mount has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.ended.is_set()
    }

    /// Ends the mount. Returns when it is gone from this mount namespace. With [`Unmount::Unused`] the kernel then ends the session,
    /// unless another mount namespace has the mount too, which no system call would tell: so the end is waited for only
    /// [`END_TIME_MAX`], and the requests that were made are finished in any case.
    #[boxed]
    pub async fn unmount(&self, how: Unmount) -> Result<Unmounted, MountError> {
        if self.has_ended() {
            return Ok(Unmounted::Ended);
        }
        if self.state.is_unmounted.load(Ordering::SeqCst) {
            return Ok(Unmounted::Detached);
        }
        let (mountpoint, device) = (self.mountpoint.clone(), self.device.clone());
        blocking(&self.handle, move || match is_another(&mountpoint, device.as_deref()) {
            true => Ok(()),
            false => unmount(&mountpoint, how),
        })
        .await?;
        self.state.is_unmounted.store(true, Ordering::SeqCst);
        if how == Unmount::Detach {
            return Ok(Unmounted::Detached);
        }
        match self.handle.timeout(END_TIME_MAX, self.ended()).await {
            Some(ended) => ended.map(|()| Unmounted::Ended),
            None => {
                self.close().await;
                Ok(Unmounted::Detached)
            }
        }
    }
}

impl Drop for MountHandle {
    fn drop(&mut self) {
        let is_unmounted = self.has_ended() || self.state.is_unmounted.load(Ordering::SeqCst);
        if !is_unmounted && !is_another(&self.mountpoint, self.device.as_deref()) {
            let _ = unmount(&self.mountpoint, Unmount::Detach);
        }
    }
}

impl std::fmt::Debug for MountHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MountHandle at {}", self.mountpoint.display())
    }
}

/// Whether the mount that a path leads to is not the one with this device: that one was unmounted by somebody else (another mount namespace
/// may have it still) or is covered.
fn is_another(mountpoint: &Path, device: Option<&str>) -> bool {
    device.is_some_and(|device| device_at(mountpoint).as_deref() != Some(device))
}

/// Changes a mount's options `dev`, `suid`, `exec` and `ro`. Open files stay open. Only root can; the kernel refuses `ro` while files
/// are open for writing.
pub fn remount(mountpoint: &Path, options: &MountOptions, is_read_only: bool) -> io::Result<()> {
    let flags = MountFlags::BIND | kernel_mount::flags(options, is_read_only);
    Ok(rustix::mount::mount_remount(mountpoint, flags, "")?)
}

/// Changes the options of a file system for all of its mounts, as `mount -o remount` does; what is written is written first. Only root
/// can; the kernel refuses `is_read_only` while files are open for writing.
pub fn change_mount(mountpoint: &Path, options: &MountOptions, is_read_only: bool) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(mountpoint, kernel_mount::flags(options, is_read_only), "")?)
}

/// Unmounts a folder by the system call, or by fusermount3 for users who may not. It is no error if nothing is mounted there.
/// Blocks as long as the process that serves the mount takes.
///
/// # Errors
/// [`MountError::Busy`] where it is in use and `how` minds that; else the system's error.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let flags = match how {
        Unmount::Unused => UnmountFlags::NOFOLLOW,
        Unmount::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    let error = match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => return Err(MountError::Busy(mountpoint.to_owned())),
        // Not mounted any more.
        Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
        Err(Errno::PERM) => match unmount_by_helper(mountpoint, how) {
            Ok(text) if text.is_empty() => return Ok(()),
            Ok(text) if text.to_lowercase().contains("busy") => return Err(MountError::Busy(mountpoint.to_owned())),
            Ok(text) => io::Error::other(text),
            Err(error) => error,
        },
        Err(error) => error.into(),
    };
    Err(MountError::Io { verb: "unmount", mountpoint: mountpoint.to_owned(), error })
}

/// The messages of fusermount3; empty if it succeeded.
fn unmount_by_helper(mountpoint: &Path, how: Unmount) -> io::Result<String> {
    let mut last = io::Error::other("fusermount3 is not installed");
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg("-u");
        if how == Unmount::Detach {
            command.arg("-z");
        }
        match command.arg("--").arg(mountpoint).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(String::new()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Ok(if text.is_empty() { format!("{helper} failed") } else { text });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_not_there_or_no_directory_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = check_place(&missing).unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("No such file"), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(check_place(&file).unwrap_err().to_string().ends_with("not a directory"));
    }

    #[test]
    fn refusals_say_what_can_be_done() {
        let at = Path::new("/mnt");
        let refused = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        for error in [io::Error::from(io::ErrorKind::PermissionDenied), io::Error::other(refused)] {
            let text = explain(at, error).to_string();
            assert!(text.contains("fusermount3 (package fuse3)") && text.contains("/mnt"), "{text}");
        }
        assert!(matches!(explain(at, io::ErrorKind::NotFound.into()), MountError::NotPermitted { .. }));
        assert!(matches!(explain(at, io::Error::other("odd")), MountError::Io { .. }));
    }
}
