//! Writing a tree as a pax archive, in one pass, with bounded memory.
//!
//! An entry is its header, content and padding; records before the header have the data that do not fit in it ([`pax`]). The walk reads
//! attributes, extended attributes and small files ahead; large files are streamed with a window of reads in flight. Only the names of files
//! with several links are remembered, until the last of their links has been written.
//!
//! A header states the length of the content, so an unreadable block is replaced by zeros, and the report names it.

pub mod acl;
mod pax;

use std::collections::BTreeMap;
use std::io::Write;

use cenote_dmu::Run;
use cenote_format::ids::ObjectId;
use cenote_taskq::Handle;
use cenote_zpl::{File, FileKind, FileSystem};

use crate::Progress;
use crate::content::{Content, Piece};
use crate::error::Result;
use crate::walk::{Node, Visit, Walk, Wants};
use pax::{BLOCK_BYTES, Entry};

/// Bytes of reads in flight for a large file.
const WINDOW_BYTES: u64 = 16 << 20;
/// Files up to this size are read ahead as a whole.
const SMALL_BYTES: u64 = 128 << 10;
/// The length of an archive is a multiple of this, as tape drives once required and readers still expect.
const RECORD_BYTES: u64 = 20 * BLOCK_BYTES;
/// A file with smaller holes in total is not written as sparse.
const HOLES_MIN_BYTES: u64 = 64 << 10;
/// The maximum number of segments of a sparse file; one with more is written in full.
const SEGMENTS_MAX: usize = 1 << 20;
/// Zeros for one write.
const ZEROS: &[u8] = &[0; 64 << 10];

/// The form of holes and attributes in the archive.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Write holes as GNU's sparse files, not as zeros.
    pub sparse: bool,
    /// Write extended attributes and access control lists.
    pub xattrs: bool,
}

/// An archive being written.
pub struct Archive<'a> {
    handle: &'a Handle,
    filesystem: &'a FileSystem,
    options: Options,
    sink: &'a mut dyn Write,
    progress: &'a dyn Progress,
    /// Called for each problem, with one line.
    report: &'a mut dyn FnMut(&[u8], &str),
    written_bytes: u64,
    links: BTreeMap<ObjectId, Links>,
    /// Files with access control lists that archives cannot hold.
    pub foreign_lists: u64,
    /// Sockets, which archives cannot hold.
    pub sockets: u64,
}

/// A file with several links.
struct Links {
    name: Vec<u8>,
    left: u64,
}

impl<'a> Archive<'a> {
    /// An archive of files of `filesystem`, written to `sink`.
    pub fn new(
        handle: &'a Handle,
        filesystem: &'a FileSystem,
        options: Options,
        sink: &'a mut dyn Write,
        progress: &'a dyn Progress,
        report: &'a mut dyn FnMut(&[u8], &str),
    ) -> Self {
        let links = BTreeMap::new();
        let (written_bytes, foreign_lists, sockets) = (0, 0, 0);
        Self { handle, filesystem, options, sink, progress, report, written_bytes, links, foreign_lists, sockets }
    }

    /// Writes `start` and everything below it, under `name` (empty for a dataset's root).
    pub async fn tree(&mut self, start: ObjectId, name: &[u8]) -> Result<()> {
        let wants = Wants { xattrs: self.options.xattrs, content_max_bytes: SMALL_BYTES, recurse: true };
        let mut walk = Walk::new(self.handle, self.filesystem, start, wants);
        while let Some(visit) = walk.next().await {
            match visit {
                Visit::Leave => {}
                Visit::Problem { path, error } => (self.report)(&joined(name, &path), &error.to_string()),
                Visit::Node(node) => {
                    let name = joined(name, &node.path);
                    self.node(&node, name).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends the archive.
    pub fn finish(self) -> Result<()> {
        let end = (self.written_bytes + 2 * BLOCK_BYTES).next_multiple_of(RECORD_BYTES);
        self.sink.write_all(&vec![0; (end - self.written_bytes) as usize])?;
        Ok(self.sink.flush()?)
    }

    async fn node(&mut self, node: &Node, mut name: Vec<u8>) -> Result<()> {
        let attributes = &node.attributes;
        let none = BTreeMap::new();
        let xattrs = match &node.xattrs {
            Ok(xattrs) => xattrs,
            Err(error) => {
                (self.report)(&name, &format!("extended attributes: {error}"));
                &none
            }
        };
        if node.is_directory() {
            name.extend(if name.is_empty() { &b"./"[..] } else { b"/" });
        }
        if attributes.has_acl {
            self.foreign_lists += 1;
        }
        let mut entry = Entry {
            name: &name,
            target: node.target.as_deref(),
            is_hard_link: false,
            attributes,
            xattrs,
            size_bytes: 0,
            sparse_size_bytes: None,
        };
        if !node.is_directory()
            && attributes.link_count > 1
            && let Some(first) = self.linked(node, &name)
        {
            return self.header(&Entry { target: Some(&first), is_hard_link: true, ..entry });
        }
        if attributes.kind != FileKind::File {
            return self.header(&entry);
        }
        entry.size_bytes = attributes.size_bytes;
        if let Some(content) = &node.content {
            self.header(&entry)?;
            self.bytes(content)?;
            return self.pad(attributes.size_bytes);
        }
        let file = match self.filesystem.open_file(attributes.object).await {
            Ok(file) => file,
            Err(error) => {
                (self.report)(&name, &error.to_string());
                return Ok(());
            }
        };
        let segments = if self.options.sparse { segments(&file).await } else { None };
        let Some(segments) = segments else {
            self.header(&entry)?;
            self.content(&name, Content::new(file, WINDOW_BYTES)).await?;
            return self.pad(attributes.size_bytes);
        };
        let map = pax::sparse_map(&segments, attributes.size_bytes);
        let data: u64 = segments.iter().map(|(_, len)| len).sum();
        entry.size_bytes = map.len() as u64 + data;
        entry.sparse_size_bytes = Some(attributes.size_bytes);
        self.header(&entry)?;
        self.write(&map)?;
        for (offset, len) in segments {
            self.content(&name, Content::range(file.clone(), offset..offset + len, WINDOW_BYTES)).await?;
        }
        self.pad(map.len() as u64 + data)
    }

    /// The name of this file's first link, if that is already in the archive.
    fn linked(&mut self, node: &Node, name: &[u8]) -> Option<Vec<u8>> {
        let object = node.attributes.object;
        match self.links.get_mut(&object) {
            Some(links) => {
                links.left = links.left.saturating_sub(1);
                let (first, is_last) = (links.name.clone(), links.left == 0);
                if is_last {
                    self.links.remove(&object);
                }
                Some(first)
            }
            None => {
                self.links.insert(object, Links { name: name.to_vec(), left: node.attributes.link_count - 1 });
                None
            }
        }
    }

    fn header(&mut self, entry: &Entry<'_>) -> Result<()> {
        match pax::header(entry) {
            Some(bytes) => self.write(&bytes),
            None => {
                self.sockets += 1;
                Ok(())
            }
        }
    }

    async fn content(&mut self, name: &[u8], mut content: Content) -> Result<()> {
        while let Some(piece) = content.next().await {
            match piece {
                Piece::Run(Run::Data { block, .. }) => self.bytes(&block)?,
                Piece::Run(Run::Hole { len_bytes, .. }) => self.zeros(len_bytes)?,
                Piece::Damage { offset_bytes, len_bytes, error } => {
                    let what = format!("{len_bytes} bytes at {offset_bytes} are zeros in the archive: {error}");
                    (self.report)(name, &what);
                    self.zeros(len_bytes)?;
                }
            }
        }
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.progress.advance(bytes.len() as u64);
        self.write(bytes)
    }

    fn zeros(&mut self, mut len_bytes: u64) -> Result<()> {
        while len_bytes > 0 {
            let len = len_bytes.min(ZEROS.len() as u64);
            self.bytes(&ZEROS[..len as usize])?;
            len_bytes -= len;
        }
        Ok(())
    }

    /// Pads content of this size to whole blocks.
    fn pad(&mut self, size_bytes: u64) -> Result<()> {
        let rest = size_bytes.next_multiple_of(BLOCK_BYTES) - size_bytes;
        self.write(&ZEROS[..rest as usize])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sink.write_all(bytes)?;
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }
}

fn joined(name: &[u8], path: &[u8]) -> Vec<u8> {
    match (name.is_empty(), path.is_empty()) {
        (true, _) => path.to_vec(),
        (_, true) => name.to_vec(),
        _ => [name, b"/", path].concat(),
    }
}

/// The data segments of a file with holes worth leaving out. `None` for other files, and if the holes cannot be found.
async fn segments(file: &File) -> Option<Vec<(u64, u64)>> {
    let size = file.size_bytes();
    let mut segments = Vec::new();
    let (mut at, mut data) = (0, 0);
    while let Some(start) = file.next_data(at).await.ok()? {
        let end = file.next_hole(start).await.ok()?.unwrap_or(size);
        if segments.len() >= SEGMENTS_MAX || end <= start {
            return None;
        }
        segments.push((start, end - start));
        data += end - start;
        at = end;
    }
    (size - data >= HOLES_MIN_BYTES).then_some(segments)
}
