//! Headers of pax archives (POSIX.1-2001): a ustar header, preceded by a file of records for data that do not fit in it.
//!
//! ```text
//! [x header: 512] [records, padded to 512]      only where needed
//! [header: 512]   [content, padded to 512]
//! record: LENGTH ' ' KEYWORD '=' VALUE '\n'     LENGTH is decimal and counts itself
//! ```
//!
//! In addition to the standard's keywords: `SCHILY.xattr.NAME` for extended attributes (`%` and `=` in names as `%25` and `%3D`, as GNU tar
//! writes and reads them), `SCHILY.acl.access` and `SCHILY.acl.default`, and GNU's sparse format 1.0.

use std::collections::BTreeMap;

use cenote_zpl::{Attributes, FileKind, Time};
use tar::{EntryType, Header};

use super::acl;

/// The unit of an archive.
pub(crate) const BLOCK_BYTES: u64 = 512;
/// The largest number in a header's size field, in octal.
const SIZE_MAX: u64 = 0o77_777_777_777;
/// The largest number in an id's field.
const ID_MAX: u32 = 0o7_777_777;
/// Space for a name in a header, and for a link's target.
const NAME_BYTES: usize = 100;
/// The prefix under which old programs, which do not know sparse files, store one.
const SPARSE_PREFIX: &[u8] = b"GNUSparseFile.0/";

/// An entry's header and its attributes.
pub(crate) struct Entry<'a> {
    /// The name in the archive; a directory's ends with a slash.
    pub name: &'a [u8],
    /// The target of a symbolic link, or the earlier name of the file for a hard link.
    pub target: Option<&'a [u8]>,
    /// True for a hard link.
    pub is_hard_link: bool,
    /// The attributes.
    pub attributes: &'a Attributes,
    /// Extended attributes.
    pub xattrs: &'a BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of content that follow: for a sparse file, those of its map and data.
    pub size_bytes: u64,
    /// The full size of a sparse file.
    pub sparse_size_bytes: Option<u64>,
}

/// The header of an entry, with the records before it, as the bytes that begin it in the archive. `None` for a socket, for which archives have
/// no type.
pub(crate) fn header(entry: &Entry<'_>) -> Option<Vec<u8>> {
    let attributes = entry.attributes;
    let kind = match attributes.kind {
        _ if entry.is_hard_link => EntryType::Link,
        FileKind::File => EntryType::Regular,
        FileKind::Directory => EntryType::Directory,
        FileKind::Symlink => EntryType::Symlink,
        FileKind::Pipe => EntryType::Fifo,
        FileKind::CharDevice => EntryType::Char,
        FileKind::BlockDevice => EntryType::Block,
        FileKind::Socket => return None,
    };
    let mut records = Records::default();
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(attributes.permissions);
    for (keyword, id) in [("uid", attributes.uid), ("gid", attributes.gid)] {
        if id > ID_MAX {
            records.push(keyword, id.to_string().as_bytes());
        }
    }
    header.set_uid(u64::from(if attributes.uid > ID_MAX { 0 } else { attributes.uid }));
    header.set_gid(u64::from(if attributes.gid > ID_MAX { 0 } else { attributes.gid }));
    if entry.size_bytes > SIZE_MAX {
        records.push("size", entry.size_bytes.to_string().as_bytes());
    }
    header.set_size(if entry.size_bytes > SIZE_MAX { 0 } else { entry.size_bytes });
    times(&mut header, &mut records, attributes);
    if matches!(kind, EntryType::Char | EntryType::Block) {
        let (major, minor) = attributes.device;
        if major <= ID_MAX && minor <= ID_MAX {
            // A ustar header has these fields.
            let _ = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
        } else {
            records.push("SCHILY.devmajor", major.to_string().as_bytes());
            records.push("SCHILY.devminor", minor.to_string().as_bytes());
        }
    }
    names(&mut header, &mut records, entry);
    if !entry.is_hard_link {
        xattrs(&mut records, entry.xattrs);
    }
    header.set_cksum();
    let mut bytes = records.into_blocks(entry.name);
    bytes.extend_from_slice(header.as_bytes());
    Some(bytes)
}

fn times(header: &mut Header, records: &mut Records, attributes: &Attributes) {
    let modified = attributes.modified;
    let whole = u64::try_from(modified.seconds).unwrap_or(0);
    header.set_mtime(whole.min(SIZE_MAX));
    if modified.nanoseconds != 0 || modified.seconds < 0 || whole > SIZE_MAX {
        records.push("mtime", time(modified).as_bytes());
    }
    records.push("atime", time(attributes.accessed).as_bytes());
    records.push("ctime", time(attributes.changed).as_bytes());
}

/// Seconds with nine decimals, without trailing zeros. Before 1970 the whole value is negative, not only its seconds.
fn time(time: Time) -> String {
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds.min(999_999_999));
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (seconds, rest) = (nanoseconds.unsigned_abs() / 1_000_000_000, nanoseconds.unsigned_abs() % 1_000_000_000);
    let text = format!("{sign}{seconds}.{rest:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn names(header: &mut Header, records: &mut Records, entry: &Entry<'_>) {
    let is_text = std::str::from_utf8(entry.name).is_ok()
        && entry.target.is_none_or(|target| std::str::from_utf8(target).is_ok());
    let mut short = entry.name.to_vec();
    if let Some(size) = entry.sparse_size_bytes {
        records.push("GNU.sparse.major", b"1");
        records.push("GNU.sparse.minor", b"0");
        records.push("GNU.sparse.name", entry.name);
        records.push("GNU.sparse.realsize", size.to_string().as_bytes());
        let base = entry.name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        short = [&entry.name[..base], SPARSE_PREFIX, &entry.name[base..]].concat();
    }
    let needs_record = |name: &[u8]| name.len() > NAME_BYTES || !name.is_ascii();
    let long_name = entry.sparse_size_bytes.is_none() && needs_record(entry.name);
    let long_target = entry.target.is_some_and(needs_record);
    if !is_text {
        records.push("hdrcharset", b"BINARY");
    }
    if long_name {
        records.push("path", entry.name);
    }
    if let Some(target) = entry.target.filter(|_| long_target) {
        records.push("linkpath", target);
    }
    let fields = header.as_old_mut();
    fill(&mut fields.name, &short);
    if let Some(target) = entry.target {
        fill(&mut fields.linkname, target);
    }
}

/// Copies as much of a name as fits: readers that know the records ignore it.
fn fill(field: &mut [u8], name: &[u8]) {
    let len = name.len().min(field.len());
    field[..len].copy_from_slice(&name[..len]);
}

fn xattrs(records: &mut Records, xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) {
    for (name, value) in xattrs {
        let list = match &name[..] {
            b"system.posix_acl_access" => Some("SCHILY.acl.access"),
            b"system.posix_acl_default" => Some("SCHILY.acl.default"),
            _ => None,
        };
        match list.zip(acl::text(value)) {
            Some((keyword, text)) => records.push(keyword, text.as_bytes()),
            None => {
                let mut keyword = b"SCHILY.xattr.".to_vec();
                for byte in name {
                    match byte {
                        b'%' => keyword.extend(b"%25"),
                        b'=' => keyword.extend(b"%3D"),
                        other => keyword.push(*other),
                    }
                }
                records.push_bytes(&keyword, value);
            }
        }
    }
}

/// Records being built.
#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
}

impl Records {
    fn push(&mut self, keyword: &str, value: &[u8]) {
        self.push_bytes(keyword.as_bytes(), value);
    }

    fn push_bytes(&mut self, keyword: &[u8], value: &[u8]) {
        // Everything but the digits of the length: including a space, an equals sign and a line feed.
        let rest = keyword.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        self.bytes.extend(len.to_string().as_bytes());
        self.bytes.push(b' ');
        self.bytes.extend(keyword);
        self.bytes.push(b'=');
        self.bytes.extend(value);
        self.bytes.push(b'\n');
    }

    /// The records with their header, in whole blocks; nothing if there are none.
    fn into_blocks(self, name: &[u8]) -> Vec<u8> {
        if self.bytes.is_empty() {
            return Vec::new();
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o644);
        header.set_size(self.bytes.len() as u64);
        let name = name.strip_suffix(b"/").unwrap_or(name);
        let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        fill(&mut header.as_old_mut().name, &[b"PaxHeaders/", &name[base..]].concat());
        header.set_cksum();
        let mut blocks = header.as_bytes().to_vec();
        blocks.extend(&self.bytes);
        pad(&mut blocks);
        blocks
    }
}

/// Pads with zeros to a whole block.
pub(crate) fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
}

/// The map at the beginning of a sparse file's content: the number of data segments, then offset and length of each, one number per line, in
/// whole blocks. For a file that ends in a hole, the map ends with an empty segment, as GNU tar writes it.
pub(crate) fn sparse_map(segments: &[(u64, u64)], size_bytes: u64) -> Vec<u8> {
    let ends_in_hole = segments.last().is_none_or(|(offset, len)| offset + len < size_bytes);
    let count = segments.len() + usize::from(ends_in_hole);
    let mut map = format!("{count}\n").into_bytes();
    for (offset, len) in segments {
        map.extend(format!("{offset}\n{len}\n").as_bytes());
    }
    if ends_in_hole {
        map.extend(format!("{size_bytes}\n0\n").as_bytes());
    }
    pad(&mut map);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        let mut records = Records::default();
        records.push("path", b"x");
        assert_eq!(records.bytes, b"9 path=x\n");
        let mut records = Records::default();
        // The length grows by a digit when it counts itself: 3 + 4 + 91 bytes are 98, and two digits make it 100.
        records.push("path", &[b'y'; 91]);
        assert!(records.bytes.starts_with(b"101 path="));
        assert_eq!(records.bytes.len(), 101);
    }

    #[test]
    fn times_before_1970_are_negative_as_a_whole() {
        let of = |seconds, nanoseconds| time(Time { seconds, nanoseconds });
        assert_eq!(of(1, 500_000_000), "1.5");
        assert_eq!(of(-2, 500_000_000), "-1.5");
        assert_eq!(of(-1, 1), "-0.999999999");
        assert_eq!(of(10, 0), "10");
        assert_eq!(of(0, 0), "0");
    }

    #[test]
    fn a_sparse_map_is_a_number_a_line_in_whole_blocks() {
        let map = sparse_map(&[(0, 512), (4096, 10)], 8192);
        assert_eq!(map.len(), 512);
        assert!(map.starts_with(b"3\n0\n512\n4096\n10\n8192\n0\n\0"));
        assert!(sparse_map(&[(0, 512)], 512).starts_with(b"1\n0\n512\n\0"));
    }
}
