//! Reading archives: ustar, GNU's and pax, with sparse files, extended attributes and access control lists.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cenote_zpl::bulk::{MODE_DIR, MODE_FILE, MODE_SYMLINK, NodeSpec};
use tar::EntryType;

use super::entries::{BLOCK_BYTES, Entries, Entry, PARTS_MAX, shown};
use super::tree::{Extents, FileTree};
use crate::archive::acl;
use crate::error::{Context as _, Result, malformed, too_large, unsupported};

/// The maximum size of a sparse file's map, in bytes.
const MAP_MAX_BYTES: u64 = 64 << 20;

/// Extended attributes with access control lists, and the records for them.
const ACLS: [(&str, &str); 2] =
    [("SCHILY.acl.access", "system.posix_acl_access"), ("SCHILY.acl.default", "system.posix_acl_default")];
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

/// The treatment of names that remove files in layers of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// They are ordinary names.
    Ignore,
    /// `.wh.NAME` removes NAME, and `.wh..wh..opq` everything in its directory, from the layers below.
    Apply,
}

/// Adds all entries of an archive to a tree.
///
/// # Errors
/// It is not an archive, or contains something that cannot be stored; the message names the entry.
pub(crate) fn add_archive(tree: &mut FileTree, file: File, whiteouts: Whiteouts) -> Result<()> {
    if whiteouts == Whiteouts::Apply {
        // Whiteouts apply to the state before this layer, in any position; but not to files behind a link that this layer replaces by a
        // directory.
        let mut entries = Entries::of(&file)?;
        while let Some(entry) = entries.next()? {
            if entry.header.entry_type().is_dir() {
                tree.replace_link(&entry.path)?;
            }
        }
        let mut entries = Entries::of(&file)?;
        while let Some(entry) = entries.next()? {
            apply_whiteout(tree, &entry.path)?;
        }
    }
    let archive = Arc::new(file);
    let mut entries = Entries::of(&archive)?;
    while let Some(entry) = entries.next()? {
        if whiteouts == Whiteouts::Apply && last_name(&entry.path).starts_with(b".wh.") {
            continue;
        }
        let added = add_entry(tree, &entry, &archive);
        added.with_context(|| format!("'{}' in the archive, before byte {}", shown(&entry.path), entries.at()))?;
    }
    Ok(())
}

fn last_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn apply_whiteout(tree: &mut FileTree, path: &[u8]) -> Result<()> {
    let name = last_name(path);
    let Some(gone) = name.strip_prefix(b".wh.") else { return Ok(()) };
    let above = &path[..path.len() - name.len()];
    match gone {
        b".wh..opq" => tree.clear(above),
        // Marks of the file system with which layers were made.
        gone if gone.starts_with(b".wh.") => Ok(()),
        // Without a name, the directory itself would be removed.
        b"" | b"." | b".." => {
            Err(malformed(format!("'{}' in the archive removes nothing that has a name", shown(path))))
        }
        gone => tree.remove(&[above, gone].concat()),
    }
}

/// An entry's pax records, as far as they are used.
struct Records<'a>(&'a super::entries::Records);

impl Records<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.0.get(key.as_bytes())?).ok()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }

    /// Seconds with a fraction, possibly before 1970, as seconds and nanoseconds.
    fn time(&self, key: &str) -> Option<[u64; 2]> {
        let text = self.text(key)?;
        let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let (whole, nanoseconds): (i64, u64) = (seconds.parse().ok()?, digits.parse().ok()?);
        // The fraction counts upwards from the lower second.
        Some(match text.starts_with('-') && nanoseconds > 0 {
            true => [whole.checked_sub(1)?.cast_unsigned(), 1_000_000_000 - nanoseconds],
            false => [whole.cast_unsigned(), nanoseconds],
        })
    }

    /// Extended attributes, including access control lists, sorted by name.
    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = BTreeMap::new();
        for (name, value) in self.0.below(XATTR_PREFIX) {
            found.insert(unescaped(name), value.clone());
        }
        for (record, name) in ACLS {
            if let Some(text) = self.text(record) {
                found.insert(name.as_bytes().to_vec(), acl::bytes(text)?);
            }
        }
        check_xattrs(&found)?;
        Ok(found.into_iter().collect())
    }
}

/// Refuses attributes that could not be read back.
fn check_xattrs(found: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
    let total: usize = found.iter().map(|(name, value)| name.len() + value.len()).sum();
    if found.len() > cenote_zpl::XATTR_NAMES_MAX || total > cenote_zpl::XATTRS_MAX_BYTES {
        return Err(too_large(format!(
            "{} extended attributes of {total} bytes, more than a file can have",
            found.len()
        )));
    }
    if let Some((name, value)) = found.iter().find(|(_, value)| value.len() > cenote_zpl::XATTR_VALUE_MAX_BYTES) {
        return Err(too_large(format!(
            "the extended attribute {} has {} bytes, more than one can have",
            shown(name),
            value.len()
        )));
    }
    Ok(())
}

/// A name with `%25` and `%3D` for `%` and `=`, as GNU tar writes it.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut target = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let (byte, len) = match after {
            [b'2', b'5', ..] if *first == b'%' => (b'%', 3),
            [b'3', b'D' | b'd', ..] if *first == b'%' => (b'=', 3),
            _ => (*first, 1),
        };
        target.push(byte);
        rest = &rest[len..];
    }
    target
}

/// A number in a header; a blank field is 0.
fn or_blank<T: Default>(field: &[u8], number: std::io::Result<T>) -> std::io::Result<T> {
    let is_blank = field.iter().all(|byte| matches!(byte, 0 | b' '));
    if is_blank { Ok(T::default()) } else { number }
}

fn add_entry(tree: &mut FileTree, entry: &Entry, archive: &Arc<File>) -> Result<()> {
    let records = Records(&entry.records);
    let (header, path) = (&entry.header, &entry.path);
    let kind = header.entry_type();
    let fields = header.as_old();
    let id = |key: &str, field: &[u8], number: std::io::Result<u64>| match records.number(key) {
        Some(id) => Ok(id),
        None => or_blank(field, number),
    };
    let mut spec = NodeSpec {
        mode: or_blank(&fields.mode, header.mode())? & 0o7777,
        uid: id("uid", &fields.uid, header.uid())?,
        gid: id("gid", &fields.gid, header.gid())?,
        mtime: match records.time("mtime") {
            Some(time) => time,
            None => [or_blank(&fields.mtime, header.mtime())?, 0],
        },
        atime: records.time("atime").unwrap_or_default(),
        xattrs: records.xattrs()?,
        ..NodeSpec::default()
    };
    let link = || entry.link.clone().filter(|link| !link.is_empty()).context("a link without a target");
    let mut content = Extents::default();
    let mut name = None;
    spec.mode |= match kind {
        EntryType::Directory => MODE_DIR,
        EntryType::Link => return tree.link(path, &link()?),
        EntryType::Symlink => {
            spec.target = Some(link()?);
            MODE_SYMLINK
        }
        EntryType::Char | EntryType::Block => {
            let (major, minor) = (header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
            if major >= 1 << 12 || minor >= 1 << 20 {
                return Err(unsupported("device numbers of more than 12 and 20 bits"));
            }
            spec.rdev = u64::from(major) << 20 | u64::from(minor);
            if kind == EntryType::Char { 0o020_000 } else { 0o060_000 }
        }
        EntryType::Fifo => 0o010_000,
        EntryType::GNUSparse => {
            spec.size_bytes = header.as_gnu().context("a sparse file without a size")?.real_size()?;
            content = extents(archive, &entry.parts, spec.size_bytes, entry.start)?;
            MODE_FILE
        }
        // Old archives store directories as files with a slash at the end.
        EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => MODE_DIR,
        EntryType::Regular | EntryType::Continuous => {
            (content, spec.size_bytes, name) = file_content(entry, &records, archive)?;
            MODE_FILE
        }
        other => return Err(unsupported(format!("an entry of the type {:?}", char::from(other.as_byte())))),
    };
    tree.put(name.as_ref().unwrap_or(path), spec, content)
}

/// A regular file's content and size, and its real name if the archive's is a substitute.
fn file_content(entry: &Entry, records: &Records<'_>, archive: &Arc<File>) -> Result<(Extents, u64, Option<Vec<u8>>)> {
    let name = entry.records.get(b"GNU.sparse.name").cloned();
    if records.number("GNU.sparse.major") == Some(1) {
        let size = records.number("GNU.sparse.realsize").context("a sparse file without a size")?;
        let (map, map_bytes) = sparse_map(archive, entry.start, entry.size_bytes)?;
        return Ok((extents(archive, &map, size, entry.start + map_bytes)?, size, name));
    }
    if let Some(map) = records.text("GNU.sparse.map") {
        let size = records.number("GNU.sparse.size").context("a sparse file without a size")?;
        let numbers: Option<Vec<u64>> =
            map.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().ok()).collect();
        let numbers = numbers.context("a sparse file's map")?;
        let map: Vec<[u64; 2]> = numbers.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        return Ok((extents(archive, &map, size, entry.start)?, size, name));
    }
    if entry.records.get(b"GNU.sparse.offset").is_some() {
        return Err(unsupported("sparse files of GNU's form 0.0"));
    }
    let size = entry.size_bytes;
    let ranges = if size == 0 { Vec::new() } else { vec![(0..size, entry.start)] };
    Ok((Extents::new(archive.clone(), ranges), size, None))
}

/// The map before a sparse file's data: the number of parts, then an offset and a length for each, one number per line; then padding. Returns
/// the length of all this too.
fn sparse_map(archive: &File, start: u64, size_bytes: u64) -> Result<(Vec<[u64; 2]>, u64)> {
    let mut read_bytes = 0;
    let mut block = [0; BLOCK_BYTES as usize];
    let mut at = block.len();
    let mut number = || -> Result<u64> {
        let mut value = 0_u64;
        loop {
            if at == block.len() {
                if read_bytes >= MAP_MAX_BYTES.min(size_bytes) {
                    return Err(malformed("a sparse file's map does not end"));
                }
                archive.read_exact_at(&mut block, start + read_bytes).context("a sparse file's map is cut short")?;
                (at, read_bytes) = (0, read_bytes + BLOCK_BYTES);
            }
            let byte = block[at];
            at += 1;
            match byte {
                b'\n' => return Ok(value),
                b'0'..=b'9' => {
                    let next = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(byte - b'0')));
                    value = next.context("a sparse file's map has a number that is too large")?;
                }
                _ => return Err(malformed("a sparse file's map has something else than numbers")),
            }
        }
    };
    let count = number()?;
    if count > PARTS_MAX as u64 {
        return Err(too_large(format!("a sparse file of more than {PARTS_MAX} parts")));
    }
    let map: Vec<[u64; 2]> = (0..count).map(|_| Ok([number()?, number()?])).collect::<Result<_>>()?;
    Ok((map, read_bytes))
}

/// The extents of a sparse file, whose parts follow each other in the archive from `start` on.
fn extents(archive: &Arc<File>, map: &[[u64; 2]], size: u64, start: u64) -> Result<Extents> {
    let mut ranges = Vec::new();
    let (mut at, mut behind) = (start, 0);
    for [offset, len] in map.iter().copied().filter(|[_, len]| *len > 0) {
        let end = offset.checked_add(len).filter(|end| *end <= size && offset >= behind);
        let end = end.context("a sparse file's parts overlap, or reach behind its end")?;
        ranges.push((offset..end, at));
        (at, behind) = (at.saturating_add(len), end);
    }
    Ok(Extents::new(archive.clone(), ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_lose_their_escapes() {
        assert_eq!(unescaped(b"user.a%3Db%25c%"), b"user.a=b%c%");
    }

    #[test]
    fn times_before_1970_are_counted_from_below() {
        let time = |text: &str| Records(&[(b"mtime".to_vec(), text.as_bytes().to_vec())].into()).time("mtime");
        assert_eq!(time("12.5"), Some([12, 500_000_000]));
        assert_eq!(time("-1.25"), Some([(-2_i64).cast_unsigned(), 750_000_000]));
        assert_eq!(time("-9223372036854775808.5"), None);
        assert_eq!(time("-3"), Some([(-3_i64).cast_unsigned(), 0]));
        assert_eq!(time("x"), None);
    }

    fn map_of(bytes: &[u8]) -> Result<(Vec<[u64; 2]>, u64)> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        sparse_map(&file, 0, bytes.len() as u64)
    }

    #[test]
    fn a_sparse_map_ends_at_a_block() {
        let mut bytes = b"2\n0\n512\n1024\n512\n".to_vec();
        bytes.resize(512, 0);
        bytes.extend([7; 1024]);
        assert_eq!(map_of(&bytes).unwrap(), (vec![[0, 512], [1024, 512]], 512));
        assert!(map_of(b"1\nx").is_err());
        assert!(map_of(&b"99999999999\n".repeat(100)).is_err());
        assert!(map_of(&[b'9'; 512]).is_err());
        assert!(map_of(&b"100\n1\n".repeat(128)[..512]).is_err());
    }

    #[test]
    fn parts_that_overlap_are_refused() {
        let archive = Arc::new(tempfile::tempfile().unwrap());
        assert!(extents(&archive, &[[0, 10], [5, 10]], 100, 0).is_err());
        assert!(extents(&archive, &[[0, u64::MAX], [5, 10]], 100, 0).is_err());
        assert!(extents(&archive, &[[0, 10], [90, 10]], 100, 0).is_ok());
    }
}
