//! The entries of a seekable archive: headers, and the data before them.
//!
//! ```text
//! [x: records of the next entry]  [L: its long name]  [K: its long link]  [header] [more of a sparse map] [content]
//! [g: records of all that follow]
//! ```
//! The library's own iterator is not used: it splits records at line ends, which attribute values may contain.
//!
//! A compressed archive of some kilobytes can contain gigabytes of records and names. So there is a bound for the records and names before one
//! entry ([`PREAMBLE_MAX_BYTES`]), all entries share the global records, and the memory kept for entries comes out of one [`Budget`].

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tar::{EntryType, GnuExtSparseHeader, Header};

use crate::error::{Context as _, Result, malformed, too_large};

/// The unit of an archive.
pub(crate) const BLOCK_BYTES: u64 = 512;
/// The maximum memory for all records, names and links before one entry, in bytes: twice the extended attributes that a file may have
/// ([`cenote_zpl::XATTRS_MAX_BYTES`]), since their names and the records themselves need memory too.
const PREAMBLE_MAX_BYTES: u64 = 2 * cenote_zpl::XATTRS_MAX_BYTES as u64;
/// Memory for a record in addition to its bytes: its share of a map's node, and two allocations.
const RECORD_BYTES: u64 = 128;
/// The maximum number of parts of a sparse file.
pub(crate) const PARTS_MAX: usize = 1 << 20;

/// The remaining memory for the entries of a source: their names, attributes and nodes. Nothing is returned, since everything is kept until the
/// source is written.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    /// The default: some 800 000 files with names of ordinary length.
    pub const DEFAULT_BYTES: u64 = 512 << 20;

    /// A budget of `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        Self { left: limit, limit }
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        let left = self.left.checked_sub(bytes).ok_or_else(|| {
            let limit = cenote_props::number::nicebytes(self.limit);
            too_large(format!(
                "names, records and attributes need more than {limit} of memory (--archive-memory sets that)"
            ))
        })?;
        self.left = left;
        Ok(())
    }
}

type RecordMap = BTreeMap<Vec<u8>, Vec<u8>>;

/// Records by their keyword: an entry's own, and the global ones, which are shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    own: RecordMap,
    global: Arc<RecordMap>,
}

impl Records {
    /// The value of a keyword.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.own.get(key).or_else(|| self.global.get(key))
    }

    /// The records whose keywords begin with `prefix`, without it. Of two with the same keyword, the last counts.
    pub(crate) fn below<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a Vec<u8>)> {
        let of = move |records: &'a RecordMap| {
            let from = records.range(prefix.to_vec()..);
            from.map_while(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
        };
        of(&self.global).chain(of(&self.own))
    }
}

#[cfg(test)]
impl From<[(Vec<u8>, Vec<u8>); 1]> for Records {
    fn from(own: [(Vec<u8>, Vec<u8>); 1]) -> Self {
        Self { own: own.into(), global: Arc::default() }
    }
}

/// Memory for a record.
fn cost(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + RECORD_BYTES
}

/// A name for a message, truncated if it is very long.
pub(super) fn shown(path: &[u8]) -> String {
    const SHOWN_MAX_BYTES: usize = 200;
    let text = cenote_zpl::shown(&path[..path.len().min(SHOWN_MAX_BYTES)]);
    if path.len() > SHOWN_MAX_BYTES { format!("{text}…") } else { text }
}

/// An entry.
pub(crate) struct Entry {
    pub header: Header,
    pub path: Vec<u8>,
    pub link: Option<Vec<u8>>,
    pub records: Records,
    /// The offset of its content in the archive.
    pub start: u64,
    /// The size of its content in the archive.
    pub size_bytes: u64,
    /// Parts of a sparse file in GNU's old format: offset in the file, and length.
    pub parts: Vec<[u64; 2]>,
}

/// An archive being read.
pub(crate) struct Entries<'a> {
    file: &'a File,
    at: u64,
    size_bytes: u64,
    global: Arc<RecordMap>,
    /// Memory for the global records.
    global_bytes: u64,
    count: u64,
    /// The remaining memory for the names and records of the next entry.
    preamble_left: u64,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(file: &'a File) -> Result<Self> {
        let size_bytes = file.metadata()?.len();
        Ok(Self { file, at: 0, size_bytes, global: Arc::default(), global_bytes: 0, count: 0, preamble_left: 0 })
    }

    /// The next entry, with all records and names before it.
    ///
    /// # Errors
    /// The archive is damaged, or not an archive.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let (mut own, mut path, mut link) = (RecordMap::new(), None, None);
        self.preamble_left = PREAMBLE_MAX_BYTES;
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().context("an entry without a size")?;
            match header.entry_type() {
                EntryType::XHeader => own.extend(self.records(size)?),
                EntryType::XGlobalHeader => {
                    let records = self.records(size)?;
                    let global = Arc::make_mut(&mut self.global);
                    for (key, value) in records {
                        self.global_bytes += cost(&key, &value);
                        if let Some((key, before)) = global.remove_entry(&key) {
                            self.global_bytes -= cost(&key, &before);
                        }
                        global.insert(key, value);
                    }
                    if self.global_bytes > PREAMBLE_MAX_BYTES {
                        return Err(too_large(format!(
                            "has too many records for all entries at byte {} (limit: {PREAMBLE_MAX_BYTES})",
                            self.at
                        )));
                    }
                }
                EntryType::GNULongName => path = Some(without_end(self.text(size)?)),
                EntryType::GNULongLink => link = Some(without_end(self.text(size)?)),
                _ => {
                    let records = Records { own, global: self.global.clone() };
                    return self.entry(header, records, path, link).map(Some);
                }
            }
        }
    }

    fn records(&mut self, size_bytes: u64) -> Result<RecordMap> {
        let text = self.text(size_bytes)?;
        // The limit applies to their memory, not their length in the archive.
        records(&text, &mut || self.say(RECORD_BYTES))
    }

    /// Takes memory for names and records of the next entry.
    fn say(&mut self, bytes: u64) -> Result<()> {
        let left = self.preamble_left.checked_sub(bytes);
        self.preamble_left = left.ok_or_else(|| {
            let at = self.at;
            too_large(format!(
                "has too many names and records before one entry at byte {at} (limit: {PREAMBLE_MAX_BYTES})"
            ))
        })?;
        Ok(())
    }

    /// The offset of the next header.
    pub(crate) const fn at(&self) -> u64 {
        self.at
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        if self.at + BLOCK_BYTES > self.size_bytes {
            // Some writers omit the end; but an empty file is not an archive.
            return if self.count > 0 { Ok(None) } else { return Err(malformed("is no tar archive")) };
        }
        self.file.read_exact_at(header.as_mut_bytes(), self.at)?;
        self.at += BLOCK_BYTES;
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum: u32 = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte }))
            .sum();
        if header.cksum().ok() != Some(sum) {
            match self.count {
                0 => return Err(malformed("is no tar archive, or a damaged one")),
                count => {
                    return Err(malformed(format!(
                        "is damaged at byte {}, after {count} entries",
                        self.at - BLOCK_BYTES
                    )));
                }
            }
        }
        self.count += 1;
        Ok(Some(header))
    }

    /// The content of an entry that describes another one.
    fn text(&mut self, size_bytes: u64) -> Result<Vec<u8>> {
        self.say(size_bytes)?;
        let mut text = vec![0; size_bytes as usize];
        self.file.read_exact_at(&mut text, self.at).context("the archive is cut short")?;
        self.at += size_bytes.next_multiple_of(BLOCK_BYTES);
        Ok(text)
    }

    fn entry(
        &mut self,
        header: Header,
        records: Records,
        path: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
    ) -> Result<Entry> {
        let of = |key: &str| records.get(key.as_bytes()).cloned();
        let path = of("path").or(path).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = of("linkpath").or(link).or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let name = || format!("'{}' in the archive", shown(&path));
        let mut size_bytes = header.entry_size().with_context(name)?;
        if let Some(size) = of("size") {
            size_bytes = std::str::from_utf8(&size).ok().and_then(|size| size.parse().ok()).with_context(name)?;
        }
        // Links, directories and devices may have a size, but never content.
        let kind = header.entry_type();
        if kind.is_hard_link()
            || kind.is_symlink()
            || kind.is_dir()
            || kind.is_character_special()
            || kind.is_block_special()
            || kind.is_fifo()
        {
            size_bytes = 0;
        }
        let parts = if kind.is_gnu_sparse() { self.old_parts(&header).with_context(name)? } else { Vec::new() };
        let start = self.at;
        let end = start.checked_add(size_bytes).filter(|end| *end <= self.size_bytes);
        let end = end.context("the archive is cut short").with_context(name)?;
        self.at = end.next_multiple_of(BLOCK_BYTES);
        Ok(Entry { header, path, link, records, start, size_bytes, parts })
    }

    /// The map of a sparse file, in its header and in the blocks after that.
    fn old_parts(&mut self, header: &Header) -> Result<Vec<[u64; 2]>> {
        let gnu = header.as_gnu().context("a sparse file in an archive that is not GNU's")?;
        let mut parts = Vec::new();
        let mut add = |part: &tar::GnuSparseHeader| -> Result<()> {
            if !part.is_empty() {
                parts.push([part.offset()?, part.length()?]);
            }
            Ok(())
        };
        gnu.sparse.iter().try_for_each(&mut add)?;
        let mut is_extended = gnu.is_extended();
        let mut blocks = 0;
        while is_extended {
            let mut more = GnuExtSparseHeader::new();
            self.file.read_exact_at(more.as_mut_bytes(), self.at).context("the archive is cut short")?;
            self.at += BLOCK_BYTES;
            blocks += 1;
            if blocks > PARTS_MAX / 21 {
                return Err(too_large(format!("a sparse file of more than {PARTS_MAX} parts")));
            }
            more.sparse().iter().try_for_each(&mut add)?;
            is_extended = more.is_extended();
        }
        Ok(parts)
    }
}

/// A name, truncated at its first zero byte.
fn without_end(mut name: Vec<u8>) -> Vec<u8> {
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(len);
    name
}

/// Splits records: `LENGTH KEYWORD=VALUE\n`, where the length is that of the whole record. `count` is called for each, and may refuse it.
fn records(text: &[u8], count: &mut dyn FnMut() -> Result<()>) -> Result<RecordMap> {
    let mut found = RecordMap::new();
    let mut rest = text;
    // Some writers pad with zeros.
    while rest.first().is_some_and(|byte| *byte != 0) {
        let record = record(rest);
        let (len, key, value) = record.context("a record before an entry of the archive is damaged")?;
        count()?;
        found.insert(key.to_vec(), value.to_vec());
        rest = &rest[len..];
    }
    Ok(found)
}

fn record(text: &[u8]) -> Option<(usize, &[u8], &[u8])> {
    let digits = text.iter().position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    let body = text.get(digits + 1..len)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((len, &body[..equals], &body[equals + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no entry costs more time than its own records, however many global ones there are. Method: the records of a prefix are found in
    /// both maps, an entry's own last, and neighbours of the prefix are not.
    #[test]
    fn records_of_a_prefix_are_found_and_an_entrys_own_count_last() {
        let map = |keys: &[(&str, &str)]| -> RecordMap {
            keys.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
        };
        let records = Records {
            own: map(&[("p.a", "3"), ("q", "4")]),
            global: Arc::new(map(&[("o", "0"), ("p.a", "1"), ("p.b", "2"), ("p/", "5")])),
        };
        let found: Vec<_> = records.below(b"p.").map(|(key, value)| (key, &value[..])).collect();
        assert_eq!(found, [(&b"a"[..], &b"1"[..]), (b"b", b"2"), (b"a", b"3")]);
    }

    #[test]
    fn a_value_may_have_lines_and_equals_signs() {
        let found = records(b"16 a=one\ntwo=3\n\n8 b=xyz\n\0\0", &mut || Ok(())).unwrap();
        assert_eq!(found[&b"a"[..]], b"one\ntwo=3\n");
        assert_eq!(found[&b"b"[..]], b"xyz");
    }

    #[test]
    fn damaged_records_are_refused() {
        for text in
            [&b"9"[..], b"9 a=b\n", b"5 ab\n", b"x a=b\n", b"0 a=b\n", b"6 a=bc\n", b"99999999999999999999 a=b\n"]
        {
            assert!(records(text, &mut || Ok(())).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn long_names_end_at_a_zero() {
        assert_eq!(without_end(b"name\0".to_vec()), b"name");
        assert_eq!(without_end(b"name".to_vec()), b"name");
    }
}
