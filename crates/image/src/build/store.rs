//! Files of an image by their names: in a directory with a layout, or in an archive of one (`docker save`, `podman save`,
//! `skopeo copy ... oci-archive:`).
//!
//! The maker of an image is not trusted. Directories are held open, and files in them must be regular, not links. An archive's links lead only
//! to other entries of the archive, and only an archive with few entries is examined as an image.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use tar::EntryType;

use super::entries::{Entries, shown};
use super::part::Part;
use super::spool;
use crate::error::{Context as _, Result, malformed};

/// The maximum number of entries in an image's archive: a directory, a configuration and a layer for each of some thousand layers.
const ENTRIES_MAX: usize = 1 << 14;
/// The maximum length of a chain of links in an archive.
const LINKS_MAX: usize = 8;

/// An entry of an archive.
pub(crate) enum Item {
    File {
        start: u64,
        size_bytes: u64,
    },
    /// The name of another entry.
    Link(Vec<u8>),
}

/// The files of an image.
pub(crate) enum Store {
    /// A directory with a layout, and that of its blobs.
    Directory { root: File, blobs: File },
    /// An archive.
    Archive { file: File, items: BTreeMap<Vec<u8>, Item> },
}

impl Store {
    /// Opens a directory with a layout.
    pub(crate) fn directory(dir: &Path) -> Result<Self> {
        let root = File::open(dir)?;
        let enter = |at: &File, name: &str| -> Result<File> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat(at, name, flags, Mode::empty()).map_err(std::io::Error::from);
            Ok(opened.with_context(|| format!("the directory '{name}' of the layout"))?.into())
        };
        let blobs = enter(&enter(&root, "blobs")?, "sha256")?;
        Ok(Self::Directory { root, blobs })
    }

    /// Reads a seekable archive; `None` if it has too many entries for an image.
    pub(crate) fn archive(file: &File) -> Result<Option<Self>> {
        let mut items = BTreeMap::new();
        let mut entries = Entries::of(file)?;
        let mut count = 0;
        while let Some(entry) = entries.next()? {
            count += 1;
            if count > ENTRIES_MAX {
                return Ok(None);
            }
            let Some(name) = plain(b"", &entry.path) else { continue };
            let item = match entry.header.entry_type() {
                EntryType::Regular | EntryType::Continuous if !entry.path.ends_with(b"/") => {
                    Item::File { start: entry.start, size_bytes: entry.size_bytes }
                }
                EntryType::Symlink => match entry.link.as_ref().and_then(|link| plain(above(&name), link)) {
                    Some(to) => Item::Link(to),
                    None => continue,
                },
                EntryType::Link => match entry.link.as_ref().and_then(|link| plain(b"", link)) {
                    Some(to) => Item::Link(to),
                    None => continue,
                },
                _ => continue,
            };
            // As in unpacking, the last entry with a name counts.
            items.insert(name, item);
        }
        Ok(Some(Self::Archive { file: file.try_clone()?, items }))
    }

    /// True if it has a file with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.open(name).is_ok()
    }

    /// The file with this name.
    pub(crate) fn open(&self, name: &str) -> Result<Part> {
        match self {
            Self::Directory { root, blobs } => {
                let file = match name.strip_prefix("blobs/sha256/") {
                    Some(blob) => spool::regular(blobs, blob)?,
                    None => spool::regular(root, name)?,
                };
                let size_bytes = file.metadata()?.len();
                Ok(Part { file, start: 0, size_bytes })
            }
            Self::Archive { file, items } => {
                let mut at = plain(b"", name.as_bytes()).with_context(|| format!("'{name}' is no name of a file"))?;
                for _ in 0..LINKS_MAX {
                    match items.get(&at) {
                        Some(Item::File { start, size_bytes }) => {
                            return Ok(Part { file: file.try_clone()?, start: *start, size_bytes: *size_bytes });
                        }
                        Some(Item::Link(to)) => at = to.clone(),
                        None => return Err(malformed(format!("'{}' is not in the archive", shown(&at)))),
                    }
                }
                Err(malformed(format!("links of the archive lead from '{name}' to links without end")))
            }
        }
    }
}

/// The parent directory of a normalised name.
fn above(name: &[u8]) -> &[u8] {
    name.iter().rposition(|byte| *byte == b'/').map_or(&[], |at| &name[..at])
}

/// A name relative to a directory of the archive, without `.`, `..` and doubled slashes; `None` if it leads out, or is the root.
fn plain(from: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in from.split(|byte| *byte == b'/').chain(name.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_an_archive_stay_in_it() {
        let name = |from: &str, name: &str| {
            plain(from.as_bytes(), name.as_bytes()).map(|name| String::from_utf8(name).unwrap())
        };
        assert_eq!(name("", "./a//b/./c").as_deref(), Some("a/b/c"));
        assert_eq!(name("id", "../hash.tar").as_deref(), Some("hash.tar"));
        assert_eq!(name("id", "/hash.tar").as_deref(), Some("id/hash.tar"));
        for out in ["..", "../..", "a/../..", "", "."] {
            assert_eq!(name("", out), None, "{out}");
        }
    }
}
