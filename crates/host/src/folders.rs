//! Folders that are trusted: this user's or root's, where no other user can put files.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use crate::HostError;
use crate::error::At as _;

type Result<T> = std::result::Result<T, HostError>;

/// As [`own_folder`], for this user alone; made where it is not there.
pub fn make_own_folder(dir: &Path) -> Result<File> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir).map_err(|error| unwritable(dir, error))?;
    own_folder(dir)
}

/// A folder, held open, if nobody else can put something into it that this user would then write or believe.
pub(crate) fn own_folder(dir: &Path) -> Result<File> {
    const STICKY: u32 = 0o1000;
    let folder = File::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }).at(dir)?;
    let found = folder.metadata().at(dir)?;
    let untrusted = |what| Err(HostError::Untrusted { path: dir.to_owned(), what });
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return untrusted(format!(
            "the folder is of user {}, who is neither you nor root; CENOTE_CACHE names another",
            found.uid()
        ));
    }
    // A user's own group often has nobody else in it; root's may.
    let others = if own == 0 { 0o022 } else { 0o002 };
    if found.mode() & others != 0 && found.mode() & STICKY == 0 {
        return untrusted(format!(
            "the folder can be written by others (mode {:03o}): 'chmod go-w' it",
            found.mode() & 0o777
        ));
    }
    Ok(folder)
}

/// The error of a place for notes that this user cannot write to, with the way out.
pub(crate) fn unwritable(path: &Path, error: io::Error) -> HostError {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        PermissionDenied | ReadOnlyFilesystem | NotFound | NotADirectory => HostError::Content {
            path: path.to_owned(),
            what: format!(
                "{error}: no list of imported pools can be kept there; CENOTE_CACHE=FILE names another place"
            ),
        },
        _ => HostError::Io { path: path.to_owned(), error },
    }
}
