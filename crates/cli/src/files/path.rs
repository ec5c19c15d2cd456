//! Paths inside a dataset: from the command line, and to the terminal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, anyhow};
use cenote_zpl::{Attributes, FileSystem, ZplError, path_parts};

/// A path's bytes, without slashes at its ends and without empty parts and `.`.
pub(crate) fn bytes_of(path: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = path_parts(path.as_bytes()).collect();
    parts.join(&b'/')
}

/// What `path` leads to, as [`FileSystem::follow`] says; an error names it.
pub(crate) async fn follow(filesystem: &FileSystem, path: &[u8], last_too: bool) -> Result<Attributes> {
    filesystem.follow(path, last_too).await.map_err(|error| match error {
        ZplError::LinkOutside(target) => {
            anyhow!("{}: a link to {}, which is outside of the dataset", shown(path, true), shown(&target, true))
        }
        ZplError::Loop => anyhow!("{}: {error}", shown(path, true)),
        error => anyhow::Error::from(error).context(shown(path, true)),
    })
}

/// A name for people. For a terminal, control characters (which could drive it) and what is not UTF-8 are escaped; for a
/// file or a pipe it is what it is, with what is not UTF-8 replaced.
pub(crate) fn shown(name: &[u8], is_terminal: bool) -> String {
    if !is_terminal {
        return String::from_utf8_lossy(name).into_owned();
    }
    cenote_zpl::shown(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_means_nothing() {
        assert_eq!(bytes_of(OsStr::new("//a/./b//")), b"a/b");
        assert_eq!(bytes_of(OsStr::new("/")), b"");
        assert_eq!(bytes_of(OsStr::new("../a")), b"../a");
    }
}
