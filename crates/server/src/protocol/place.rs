//! The places of sockets for commands, and the checks of a listener.
//!
//! A client gives its whole request to the listening process, and prints the answer; a server removes a socket that an earlier server left. So a
//! client checks the owners of the folder and of the listener, and a server removes only a socket that has no listener.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::error::{Context as _, Result, ServerError};

/// Write permission for a folder's group and for all users.
const OTHERS_WRITE: u32 = 0o022;
/// Only owners can remove and rename files in the folder.
const STICKY: u32 = 0o1000;

/// The maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket at which this process listens. Dropping this removes the socket, if it still exists.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Place {
    /// Listens at `path`, for this user and root only. Missing folders above it are created.
    ///
    /// # Errors
    /// Something other than a dead socket is there, or clients would not trust a listener in that folder.
    pub(crate) fn listen(path: &Path) -> Result<(Self, UnixListener)> {
        let dir = folder(path);
        if !dir.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| dir.display().to_string())?;
        }
        check_folder(path)?;
        remove_dead(path)?;
        // The mode is set before the socket has a name: a later change by name could hit another file.
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        let made = fs::symlink_metadata(path)?;
        Ok((Self { path: path.to_owned(), identity: (made.dev(), made.ino()) }, socket.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_ours =
            |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_ours(&self.path) {
            let _ = fs::remove_file(&self.path);
            return;
        }
        // It has another name since the pool has another guid.
        let entries = fs::read_dir(folder(&self.path)).into_iter().flatten().flatten();
        if let Some(moved) = entries.map(|entry| entry.path()).find(|path| is_ours(path)) {
            let _ = fs::remove_file(moved);
        }
    }
}

/// Connects to a server that is this user's or root's.
///
/// # Errors
/// There is no listener, or a third user can write the folder or is at the other end.
pub(crate) fn connect(path: &Path) -> Result<UnixStream> {
    check_folder(path)?;
    let stream = UnixStream::connect(path)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        let what = format!("it is of user {}, who is neither you nor root: it is told nothing", peer.as_raw());
        return Err(ServerError::Untrusted(what));
    }
    Ok(stream)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a folder in which a third user can replace the socket at `path`. In a sticky folder others can only add sockets of their own, which
/// peer credentials reveal.
fn check_folder(path: &Path) -> Result<()> {
    let dir = folder(path);
    let found = fs::metadata(dir).with_context(|| dir.display().to_string())?;
    let shown = dir.display();
    if found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
        let what = format!("its folder '{shown}' is user {}'s, who is neither you nor root", found.uid());
        return Err(ServerError::Untrusted(what));
    }
    if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
        let mode = found.mode() & 0o777;
        let what = format!("its folder '{shown}' can be written by others (mode {mode:03o}): 'chmod go-w {shown}'");
        return Err(ServerError::Untrusted(what));
    }
    Ok(())
}

/// Removes a socket without a listener. Anything else remains.
fn remove_dead(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServerError::Occupied("something is there that is no socket; it stays"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ServerError::Occupied("another server does")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(error) => Err(error).context("a socket is there that cannot be asked whether anybody listens"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_socket_at_which_nobody_listens_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/socket");
        let (place, listener) = Place::listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Place::listen(&path).unwrap_err().to_string().contains("another server"));
        connect(&path).unwrap();
        drop(listener);
        // As a killed server would leave it.
        std::mem::forget(place);
        let (place, _listener) = Place::listen(&path).unwrap();
        // Removed and replaced by another file, which this server may not remove.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "data").unwrap();
        drop(place);
        assert!(Place::listen(&path).unwrap_err().to_string().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Place::listen(&link).is_err());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (_place, _listener) = Place::listen(&path).unwrap();
        let allow = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o777, 0o770, 0o722] {
            allow(mode);
            assert!(connect(&path).unwrap_err().to_string().contains("written by others"), "{mode:o}");
        }
        for mode in [0o1777, 0o755] {
            allow(mode);
            connect(&path).unwrap();
        }
    }
}
