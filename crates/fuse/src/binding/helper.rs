//! Mounting by fusermount3, for users without the privilege to mount.

use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::mount::HELPERS;
use cenote_zpl::AccessTimes;

use crate::options::MountOptions;

/// The signal for fusermount3 to unmount: the connection to it ends, with this process at the latest.
pub(crate) struct Watch(#[allow(dead_code, reason = "it is there to be closed")] UnixStream);

/// Has fusermount3 mount. Returns the connection to the kernel and, with `auto_unmount`, the socket that keeps the mount.
///
/// # Errors
/// There is no fusermount3 ([`io::ErrorKind::NotFound`]), or it refuses: its words are the error's.
pub(crate) fn mount(
    mountpoint: &Path,
    name: &str,
    options: &MountOptions,
    is_writable: bool,
) -> io::Result<(OwnedFd, Option<Watch>)> {
    let (ours, its) = UnixStream::pair()?;
    let mut child = start(mountpoint, &words(name, options, is_writable), &its)?;
    drop(its);
    let device = match receive(&ours) {
        Ok(device) => device,
        Err(error) => {
            drop(ours);
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut said);
            }
            let _ = child.wait();
            return Err(if said.trim().is_empty() { error } else { io::Error::other(said) });
        }
    };
    if options.auto_unmount {
        // It lives as long as the mount.
        return Ok((device, Some(Watch(ours))));
    }
    drop(ours);
    let _ = child.wait();
    Ok((device, None))
}

/// Starts the helper. The socket is its standard input: no other descriptor is handed down, so none leaks to other programs that are
/// started meanwhile.
fn start(mountpoint: &Path, words: &str, socket: &UnixStream) -> io::Result<Child> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg("-o").arg(words).arg("--").arg(mountpoint).env("_FUSE_COMMFD", "0");
        command.stdin(OwnedFd::from(socket.try_clone()?)).stdout(Stdio::null()).stderr(Stdio::piped());
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The mount options in fusermount3's words.
fn words(name: &str, options: &MountOptions, is_writable: bool) -> String {
    // Commas and backslashes would end the option.
    let name: String = name.chars().map(|c| if matches!(c, ',' | '\\') { '_' } else { c }).collect();
    let choose = |set, yes, no| if set { yes } else { no };
    let mut words = vec![
        choose(is_writable, "rw", "ro"),
        choose(options.dev, "dev", "nodev"),
        choose(options.suid, "suid", "nosuid"),
        choose(options.exec, "exec", "noexec"),
        "subtype=cenote",
    ];
    let more = [
        (!is_writable || options.access_times == Some(AccessTimes::Never), "noatime"),
        (options.default_permissions, "default_permissions"),
        (options.auto_unmount, "auto_unmount"),
        // The kernel has one option for all users other than the owner; the binding decides which of them have access.
        (options.lets_in_others(rustix::process::geteuid().is_root()), "allow_other"),
    ];
    words.extend(more.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, word)| word));
    format!("fsname={name},{}", words.join(","))
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    received?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    descriptors.flatten().next().ok_or_else(|| io::Error::other("fusermount3 mounted nothing"))
}
