//! The entries of an archive that can be read anywhere: headers, and what stands before them.
//!
//! ```text
//! [x: records of the next entry]  [L: its long name]  [K: its long link]  [header] [more of a sparse map] [content]
//! [g: records of all that follow]
//! ```
//! The library's own iterator is not used: it takes records apart at line ends, which values of attributes may have.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result, bail};
use tar::{EntryType, GnuExtSparseHeader, Header};

/// The unit of an archive.
pub(crate) const BLOCK_BYTES: u64 = 512;
/// Records, names and links before an entry at most, in bytes: an attribute can have 64 KiB, and a file a few of them.
const PREAMBLE_MAX_BYTES: u64 = 16 << 20;
/// Parts of a sparse file at most.
pub(crate) const PARTS_MAX: usize = 1 << 20;

/// Records by their keyword.
pub(crate) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// An entry.
pub(crate) struct Entry {
    pub(crate) header: Header,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) records: Records,
    /// Where its content begins in the archive.
    pub(crate) start: u64,
    /// How long that is.
    pub(crate) size_bytes: u64,
    /// Parts of a sparse file of GNU's old form: where in the file, and how long.
    pub(crate) parts: Vec<[u64; 2]>,
}

/// An archive that is gone through.
pub(crate) struct Entries<'a> {
    file: &'a File,
    at: u64,
    size_bytes: u64,
    global: Records,
    count: u64,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(file: &'a File) -> Result<Self> {
        Ok(Self { file, at: 0, size_bytes: file.metadata()?.len(), global: Records::new(), count: 0 })
    }

    /// The next entry, with all that was said of it before.
    ///
    /// # Errors
    /// The archive is damaged, or none.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let (mut own, mut path, mut link) = (Records::new(), None, None);
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().context("an entry without a size")?;
            match header.entry_type() {
                EntryType::XHeader => own.extend(records(&self.text(size)?)?),
                EntryType::XGlobalHeader => {
                    let records = records(&self.text(size)?)?;
                    self.global.extend(records);
                }
                EntryType::GNULongName => path = Some(without_end(self.text(size)?)),
                EntryType::GNULongLink => link = Some(without_end(self.text(size)?)),
                _ => {
                    let mut records = self.global.clone();
                    records.append(&mut own);
                    return self.entry(header, records, path, link).map(Some);
                }
            }
        }
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        if self.at + BLOCK_BYTES > self.size_bytes {
            // Some writers leave out the end; nothing at all is no archive.
            return if self.count > 0 { Ok(None) } else { bail!("is no tar archive") };
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
                0 => bail!("is no tar archive, or a damaged one"),
                count => bail!("is damaged at byte {}, after {count} entries", self.at - BLOCK_BYTES),
            }
        }
        self.count += 1;
        Ok(Some(header))
    }

    /// The content of an entry that is about another one.
    fn text(&mut self, size_bytes: u64) -> Result<Vec<u8>> {
        if size_bytes > PREAMBLE_MAX_BYTES {
            bail!("has {size_bytes} bytes of names and records before an entry");
        }
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
        let name = || format!("'{}' in the archive", String::from_utf8_lossy(&path));
        let mut size_bytes = header.entry_size().with_context(name)?;
        if let Some(size) = of("size") {
            size_bytes = std::str::from_utf8(&size).ok().and_then(|size| size.parse().ok()).with_context(name)?;
        }
        // Links, directories and devices may have a size, and have no content.
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

    /// The map of a sparse file in its header, and in blocks behind that.
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
                bail!("a sparse file of more than {PARTS_MAX} parts");
            }
            more.sparse().iter().try_for_each(&mut add)?;
            is_extended = more.is_extended();
        }
        Ok(parts)
    }
}

/// A name that ends at its first zero.
fn without_end(mut name: Vec<u8>) -> Vec<u8> {
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(len);
    name
}

/// Takes records apart: `LENGTH KEYWORD=VALUE\n`, the length that of all of it.
fn records(text: &[u8]) -> Result<Records> {
    let mut found = Records::new();
    let mut rest = text;
    // Some writers pad with zeros.
    while rest.first().is_some_and(|byte| *byte != 0) {
        let record = record(rest);
        let (len, key, value) = record.context("a record before an entry of the archive is damaged")?;
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

    #[test]
    fn a_value_may_have_lines_and_equals_signs() {
        let found = records(b"16 a=one\ntwo=3\n\n8 b=xyz\n\0\0").unwrap();
        assert_eq!(found[&b"a"[..]], b"one\ntwo=3\n");
        assert_eq!(found[&b"b"[..]], b"xyz");
    }

    #[test]
    fn damaged_records_are_refused() {
        for text in
            [&b"9"[..], b"9 a=b\n", b"5 ab\n", b"x a=b\n", b"0 a=b\n", b"6 a=bc\n", b"99999999999999999999 a=b\n"]
        {
            assert!(records(text).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn long_names_end_at_a_zero() {
        assert_eq!(without_end(b"name\0".to_vec()), b"name");
        assert_eq!(without_end(b"name".to_vec()), b"name");
    }
}
