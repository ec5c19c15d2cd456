//! Files that are packed, and the containers that they are packed into: tar, ar and zip.
//!
//! The same files always pack to the same bytes: entries stand in the order of their names, belong to root and have one time, and
//! nothing of this system is kept.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};

/// The levels at which files are packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    /// Of gzip and of deflate.
    pub(crate) gzip: u32,
    /// Of zstd.
    pub(crate) zstd: i32,
}

impl Levels {
    /// Small, in a minute.
    pub(crate) const SMALL: Self = Self { gzip: 9, zstd: 15 };
    /// In no time.
    pub(crate) const FAST: Self = Self { gzip: 1, zstd: 1 };

    /// Packed with gzip.
    pub(crate) fn gzip(self, content: &[u8]) -> Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(self.gzip));
        encoder.write_all(content)?;
        Ok(encoder.finish()?)
    }

    /// Packed with zstd.
    pub(crate) fn zstd(self, content: &[u8]) -> Result<Vec<u8>> {
        Ok(zstd::bulk::compress(content, self.zstd)?)
    }
}

/// Something that is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A file and its permission bits.
    File(Vec<u8>, u32),
    /// A symbolic link and its target.
    Link(String),
}

/// Files by their paths, without a slash before them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(pub(crate) BTreeMap<String, Item>);

impl Tree {
    /// A file that everybody reads.
    pub(crate) fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), Item::File(content.into(), 0o644));
    }

    /// A file that everybody runs.
    pub(crate) fn program(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), Item::File(content.into(), 0o755));
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.0.insert(path.to_owned(), Item::Link(target.to_owned()));
    }

    /// The size of all files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let size = |item: &Item| if let Item::File(content, _) = item { content.len() as u64 } else { 0 };
        self.0.values().map(size).sum()
    }

    /// As tar, below a folder (`.` for none), with the folders that there are.
    pub(crate) fn tar(&self, top: &str, seconds: u64) -> Result<Vec<u8>> {
        let mut folders = vec![String::new()];
        for path in self.0.keys() {
            folders.extend(path.match_indices('/').map(|(at, _)| path[..at].to_owned()));
        }
        let mut all: BTreeMap<String, Option<&Item>> = folders.into_iter().map(|folder| (folder, None)).collect();
        all.extend(self.0.iter().map(|(path, item)| (path.clone(), Some(item))));
        let mut builder = tar::Builder::new(Vec::new());
        for (path, item) in all {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(seconds);
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_size(0);
            let name = format!("{top}/{path}");
            match item {
                None => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(0o755);
                    let name = format!("{}/", name.trim_end_matches('/'));
                    named(&mut builder, &mut header, &name, &[])?;
                }
                Some(Item::File(content, mode)) => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    named(&mut builder, &mut header, &name, content)?;
                }
                Some(Item::Link(target)) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_link_name(target)?;
                    named(&mut builder, &mut header, &name, &[])?;
                }
            }
        }
        Ok(builder.into_inner()?)
    }

    /// As zip, with the files alone.
    pub(crate) fn zip(&self, levels: Levels) -> Result<Vec<u8>> {
        let (mut out, mut directory, mut count) = (Vec::new(), Vec::new(), 0_u16);
        for (path, item) in &self.0 {
            let Item::File(content, mode) = item else { continue };
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(levels.gzip));
            encoder.write_all(content)?;
            let packed = encoder.finish()?;
            let mut crc = Crc::new();
            crc.update(content);
            let mut common = Vec::new();
            // Version 2.0, no flags, deflated, midnight of 1980-01-01.
            for word in [20_u16, 0, 8, 0, 0x21] {
                common.extend(word.to_le_bytes());
            }
            for word in [crc.sum(), length(packed.len())?, length(content.len())?] {
                common.extend(word.to_le_bytes());
            }
            common.extend(u16::try_from(path.len())?.to_le_bytes());
            common.extend(0_u16.to_le_bytes());
            let offset = length(out.len())?;
            out.extend(b"PK\x03\x04");
            out.extend(&common);
            out.extend(path.as_bytes());
            out.extend(&packed);
            directory.extend(b"PK\x01\x02");
            // Made on Unix, whose permission bits are in the upper half of the attributes.
            directory.extend(0x0314_u16.to_le_bytes());
            directory.extend(&common);
            directory.extend([0; 6]);
            directory.extend(((0o100_000 | mode) << 16).to_le_bytes());
            directory.extend(offset.to_le_bytes());
            directory.extend(path.as_bytes());
            count = count.checked_add(1).context("too many files for a zip")?;
        }
        let start = length(out.len())?;
        out.extend(&directory);
        out.extend(b"PK\x05\x06\0\0\0\0");
        out.extend(count.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(length(directory.len())?.to_le_bytes());
        out.extend(start.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        Ok(out)
    }
}

fn named(builder: &mut tar::Builder<Vec<u8>>, header: &mut tar::Header, name: &str, content: &[u8]) -> Result<()> {
    // The crate drops a leading `./`, which Debian's packages have.
    let bytes = name.as_bytes();
    let field = &mut header.as_gnu_mut().context("a GNU header")?.name;
    ensure!(bytes.len() < field.len(), "{name} is too long a name");
    field[..bytes.len()].copy_from_slice(bytes);
    header.set_cksum();
    Ok(builder.append(header, content)?)
}

fn length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).context("too large for a zip")
}

/// Members as `ar` has them.
pub(crate) fn ar(members: &[(&str, &[u8])], seconds: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in members {
        out.extend(format!("{name:<16}{seconds:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 100_644, content.len()).bytes());
        out.extend(*content);
        if content.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.program("bin/a", "content of a");
        tree.link("lib/b", "../bin/a");
        tree.file("top", vec![7; 100_000]);
        tree
    }

    #[test]
    fn a_tar_has_folders_before_what_is_in_them_and_nobody_s_names() {
        let bytes = tree().tar(".", 1_700_000_000).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut names = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            assert_eq!((entry.header().uid().unwrap(), entry.header().mtime().unwrap()), (0, 1_700_000_000));
            names.push(String::from_utf8(entry.path_bytes().into_owned()).unwrap());
        }
        assert_eq!(names, ["./", "./bin/", "./bin/a", "./lib/", "./lib/b", "./top"]);
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        assert_eq!(tree().tar("x", 5).unwrap(), tree().tar("x", 5).unwrap());
        assert_eq!(tree().zip(Levels::FAST).unwrap(), tree().zip(Levels::FAST).unwrap());
    }

    #[test]
    fn an_ar_pads_members_to_even_lengths() {
        let bytes = ar(&[("one", b"123"), ("two", b"4")], 9);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.len(), 8 + 60 + 4 + 60 + 2);
        assert!(text.starts_with("!<arch>\none             9           0     0     100644  3         `\n123\ntwo"));
    }
}
