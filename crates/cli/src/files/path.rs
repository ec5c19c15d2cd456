//! Paths inside a dataset: from the command line, and to the terminal.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail};
use cenote_zpl::{Attributes, FileKind, FileSystem};

/// Symbolic links followed for one path: Linux's own limit.
const LINKS_MAX: usize = 40;
/// Parts of a path, with those of the links in it.
const PARTS_MAX: usize = 1 << 16;

/// A path's bytes, without slashes at its ends and without empty parts and `.`.
pub(crate) fn bytes_of(path: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = parts(path.as_bytes()).collect();
    parts.join(&b'/')
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// What `path` leads to; symbolic links in the middle of it are followed, and one at its end if `last_too`. Links stay in
/// the dataset: an absolute target, which means a place in the system that the dataset was mounted in, is an error.
pub(crate) async fn follow(filesystem: &FileSystem, path: &[u8], last_too: bool) -> Result<Attributes> {
    let fail = |error: cenote_zpl::ZplError| anyhow::Error::from(error).context(shown(path, true));
    let mut left: VecDeque<Vec<u8>> = parts(path).map(<[u8]>::to_vec).collect();
    let mut at = filesystem.attributes(filesystem.root()).await.map_err(fail)?;
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        let next = match &part[..] {
            b".." => at.parent,
            name => filesystem.lookup(at.object, name).await.map_err(fail)?,
        };
        let next = filesystem.attributes(next).await.map_err(fail)?;
        if next.kind != FileKind::Symlink || (left.is_empty() && !last_too) {
            at = next;
            continue;
        }
        let target = filesystem.read_link(next.object).await.map_err(fail)?;
        links += 1;
        if target.first() == Some(&b'/') {
            bail!("{}: a link to {}, which is outside of the dataset", shown(path, true), shown(&target, true));
        }
        if links > LINKS_MAX || left.len() + target.len() > PARTS_MAX {
            bail!("{}: too many levels of symbolic links", shown(path, true));
        }
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            left.push_front(part.to_vec());
        }
    }
    Ok(at)
}

/// A name for people. For a terminal, control characters (which could drive it) and what is not UTF-8 are escaped; for a
/// file or a pipe it is what it is, with what is not UTF-8 replaced.
pub(crate) fn shown(name: &[u8], is_terminal: bool) -> String {
    if !is_terminal {
        return String::from_utf8_lossy(name).into_owned();
    }
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&crate::output::escape::one_line(chunk.valid()));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
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

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(shown(b"a\x1b[31m\xff\n", true), "a\\u{1b}[31m\\xff\\n");
        assert_eq!(shown("ä b".as_bytes(), true), "ä b");
    }
}
