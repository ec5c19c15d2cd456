//! Where sockets for commands stand, and who may be believed at one.
//!
//! A client gives its whole request to whoever listens, and prints what comes back; a server removes what an earlier one left.
//! So a client wants to know whose the folder and the listener are, and a server removes nothing but a socket at which nobody
//! listens.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::Mode;

/// Write permission of a folder's group and of everybody.
const OTHERS_WRITE: u32 = 0o022;
/// Only owners remove and rename what stands in the folder.
const STICKY: u32 = 0o1000;

/// A socket that this process listens at. Removed when dropped, if it is there still.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Place {
    /// Listens at `path`, for this user and root alone. Folders above it are made where they lack.
    ///
    /// # Errors
    /// Something else than a dead socket is there, or clients would not believe who listens in such a folder.
    pub(super) fn listen(path: &Path) -> Result<(Self, UnixListener)> {
        let dir = folder(path);
        if !dir.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| dir.display().to_string())?;
        }
        check_folder(path)?;
        remove_dead(path)?;
        // The mode that it is made with: changed by name afterwards it could be another file's.
        let before = rustix::process::umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = bound?;
        let made = fs::symlink_metadata(path)?;
        Ok((Self { path: path.to_owned(), identity: (made.dev(), made.ino()) }, listener))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to a server that is this user's or root's.
///
/// # Errors
/// Nobody listens, or somebody else may: who could write the folder, or is at the other end.
pub(super) fn connect(path: &Path) -> Result<UnixStream> {
    check_folder(path)?;
    let stream = UnixStream::connect(path)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    ensure!(
        peer.is_root() || peer == rustix::process::geteuid(),
        "it is of user {}, who is neither you nor root: it is told nothing",
        peer.as_raw()
    );
    Ok(stream)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether nobody but this user and root can put a socket at `path`. In a sticky folder others can put one of their own there, which
/// their user gives away, but not take this one away.
fn check_folder(path: &Path) -> Result<()> {
    let dir = folder(path);
    let found = fs::metadata(dir).with_context(|| dir.display().to_string())?;
    let shown = dir.display();
    if found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
        bail!("its folder '{shown}' is user {}'s, who is neither you nor root", found.uid());
    }
    if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
        bail!(
            "its folder '{shown}' can be written by others (mode {:03o}): 'chmod go-w {shown}'",
            found.mode() & 0o777
        );
    }
    Ok(())
}

/// Removes a socket at which nobody listens any more. Anything else stays.
fn remove_dead(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => bail!("something is there that is no socket; it stays"),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another server does"),
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
        // As a killed server leaves it.
        std::mem::forget(place);
        let (place, _listener) = Place::listen(&path).unwrap();
        // Taken away and replaced by something else, which is not this server's to remove.
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
