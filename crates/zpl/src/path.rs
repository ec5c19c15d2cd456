//! Paths inside a file system.

use std::collections::VecDeque;

use cenote_taskq::boxed;

use crate::filesystem::FileSystem;
use crate::{Attributes, FileKind, ZplError};

/// Symbolic links followed for one path: Linux's own limit.
const LINKS_MAX: usize = 40;
/// Parts of a path, with those of the links in it.
const PARTS_MAX: usize = 1 << 16;

/// The parts of a path that mean something: those that are not empty, and not `.`.
pub fn path_parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// A name or path for people: control characters, which could drive a terminal or begin another line, and what is not UTF-8 are
/// escaped.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() { text.extend(character.escape_default()) } else { text.push(character) }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

impl FileSystem {
    /// The attributes of the file at a path from the root directory; symbolic links are not followed.
    ///
    /// # Errors
    /// It leads nowhere.
    #[boxed]
    pub async fn resolve(&self, path: &[u8]) -> Result<Attributes, ZplError> {
        let mut at = self.root();
        for part in path_parts(path) {
            at = match part {
                b".." => self.attributes(at).await?.parent,
                name => self.lookup(at, name).await?,
            };
        }
        self.attributes(at).await
    }

    /// The attributes of the file at a path from the root directory. Symbolic links in the middle of it are followed, and one at its end
    /// if `last_too`. Links stay in the file system: an absolute target, which means a place in the system that the dataset was mounted
    /// in, is an error.
    ///
    /// # Errors
    /// It leads nowhere, out of the file system ([`ZplError::LinkOutside`]) or round in circles ([`ZplError::Loop`]).
    #[boxed]
    pub async fn follow(&self, path: &[u8], last_too: bool) -> Result<Attributes, ZplError> {
        let mut left: VecDeque<Vec<u8>> = path_parts(path).map(<[u8]>::to_vec).collect();
        let mut at = self.attributes(self.root()).await?;
        let mut links = 0;
        while let Some(part) = left.pop_front() {
            let next = match &part[..] {
                b".." => at.parent,
                name => self.lookup(at.object, name).await?,
            };
            let next = self.attributes(next).await?;
            if next.kind != FileKind::Symlink || (left.is_empty() && !last_too) {
                at = next;
                continue;
            }
            let target = self.read_link(next.object).await?;
            links += 1;
            if target.first() == Some(&b'/') {
                return Err(ZplError::LinkOutside(target));
            }
            if links > LINKS_MAX || left.len() + target.len() > PARTS_MAX {
                return Err(ZplError::Loop);
            }
            for part in path_parts(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(part.to_vec());
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(shown(b"a\x1b[31m\xff\n"), "a\\u{1b}[31m\\xff\\n");
        assert_eq!(shown("ä b".as_bytes()), "ä b");
    }

    #[test]
    fn parts_of_paths_are_what_means_something() {
        let parts = |path: &'static [u8]| path_parts(path).collect::<Vec<_>>().join(&b'/');
        assert_eq!(parts(b"//a/./b//"), b"a/b");
        assert_eq!(parts(b"/"), b"");
        assert_eq!(parts(b"../a"), b"../a");
    }
}
