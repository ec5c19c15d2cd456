//! `zstream redup`: a deduplicated stream (`zfs send -D` of OpenZFS before 2.0) with all its blocks.
//!
//! # Need
//!
//! A WRITE_BYREF record names a block that came before, by the guid of its stream, its object and its offset in that. The new stream has
//! a WRITE there, so the block must be found again: the stream lies in a file.
//!
//! # Structures
//!
//! OpenZFS remembers the place of every WRITE in a hash table that grows with the stream. But WRITE records of one stream come in
//! rising order of object and offset, so the file is an index of itself. We remember the first WRITE record of each stream, and each that
//! comes a *stride* of records or more, of any kind, after the one that we remembered last ([`Index`]). From the last mark at or before the
//! wanted place the records are read again. When there are [`MARKS_MAX`] marks, the stride doubles, and marks nearer than that go.
//!
//! # Invariants
//!
//! 1. Marks take at most 32 MiB ([`MARKS_MAX`] of 32 bytes), and as much again while their list grows; streams of a package with at least
//!    one block up to [`STREAMS_MAX`] of 64 bytes.
//! 2. A block that is there is less than two strides of records behind its mark: one behind a mark that went, which was less than one
//!    behind that. Where streams come one after the other there is at most a mark a stride, so the stride stays at 16 up to 16 million
//!    records. No sender mixes blocks of many streams; where somebody does, each has its marks and the stride grows as many times faster.
//! 3. The record found has the guid, object and offset that were asked for: a file that was changed meanwhile gives an error or other
//!    contents of the same block, never another block.
//!
//! # Rejected
//!
//! A table on disk: the stream is one. Streams out of order are refused instead; no sender writes them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Read, Write};

use cenote_format::Endian;
use cenote_format::ids::Guid;
use cenote_format::stream::{Body, Features, Record, Write as WriteRecord, WriteByRef};

use super::{Place, RecordWriter, RewriteError, pass, reader};

/// Marks that are kept at most.
pub const MARKS_MAX: usize = 1 << 20;
/// Streams of a package that may have blocks.
pub const STREAMS_MAX: usize = 1 << 18;
/// Records from one mark of a stream to the next, at least, at first.
const STRIDE_FIRST: u64 = 16;

/// A stream that can be read anywhere, again and again.
pub trait ReadAt {
    /// Fills `target` from this offset. The end of the file before that is an error.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, target: &mut [u8], offset_bytes: u64) -> io::Result<()>;
}

/// The account of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redupped {
    /// Records of the stream.
    pub records: u64,
    /// WRITE_BYREF records among them.
    pub by_ref: u64,
    /// Memory that the index took in the end, in bytes.
    pub index_bytes: u64,
}

/// Where a WRITE record is.
#[derive(Clone, Copy, Debug)]
struct Sample {
    place: Place,
    at: u64,
}

/// A WRITE record that is remembered.
#[derive(Clone, Copy, Debug)]
struct Mark {
    sample: Sample,
    /// The record's number in the file.
    record: u64,
}

/// The WRITE records of one stream. There is a mark of the first at least.
struct Source {
    marks: Vec<Mark>,
    last: Place,
}

/// Marks in a file by which its WRITE records are found.
struct Index {
    sources: BTreeMap<u64, Source>,
    marks: usize,
    marks_max: usize,
    stride: u64,
}

impl Index {
    fn new(marks_max: usize) -> Self {
        Self { sources: BTreeMap::new(), marks: 0, marks_max, stride: STRIDE_FIRST }
    }

    fn bytes(&self) -> u64 {
        (self.marks * size_of::<Mark>() + self.sources.len() * size_of::<(u64, Source)>()) as u64
    }

    /// A WRITE record: its number among all records, and where it is.
    fn add(&mut self, write: &WriteRecord, record: u64, at: u64) -> Result<(), RewriteError> {
        let place = (write.object.0, write.offset_bytes);
        let sources = self.sources.len();
        let source = match self.sources.entry(write.to_guid.0) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if sources >= STREAMS_MAX => {
                return Err(RewriteError::Streams { offset_bytes: at, limit: STREAMS_MAX });
            }
            Entry::Vacant(entry) => entry.insert(Source { marks: Vec::new(), last: place }),
        };
        let latest = source.marks.last();
        if latest.is_some() && place <= source.last {
            return Err(RewriteError::Order { offset_bytes: at, object: write.object, at_bytes: write.offset_bytes });
        }
        source.last = place;
        if latest.is_none_or(|latest| record - latest.record >= self.stride) {
            source.marks.push(Mark { sample: Sample { place, at }, record });
            self.marks += 1;
        }
        // The first of each source stays, so there may be as many as sources.
        while self.marks > self.marks_max.max(self.sources.len()) {
            self.thin();
        }
        Ok(())
    }

    /// Doubles the stride, and lets the marks go that are nearer than that to the one before.
    fn thin(&mut self) {
        self.stride = self.stride.saturating_mul(2);
        self.marks = 0;
        for source in self.sources.values_mut() {
            let mut kept: Option<u64> = None;
            source.marks.retain(|mark| {
                let stays = kept.is_none_or(|kept| mark.record - kept >= self.stride);
                if stays {
                    kept = Some(mark.record);
                }
                stays
            });
            source.marks.shrink_to_fit();
            self.marks += source.marks.len();
        }
    }

    /// The last mark at or before a place.
    fn before(&self, guid: Guid, place: Place) -> Option<Sample> {
        let source = self.sources.get(&guid.0)?;
        let after = source.marks.partition_point(|mark| mark.sample.place <= place);
        (place <= source.last).then(|| Some(source.marks.get(after.checked_sub(1)?)?.sample)).flatten()
    }
}

/// Finds blocks again.
struct Finder<'a, F> {
    file: &'a F,
    endian: Endian,
    /// The record found last: the one after it is often wanted next.
    last: Option<(Guid, Sample)>,
}

impl<F: ReadAt> Finder<'_, F> {
    fn read(&self, target: &mut [u8], offset_bytes: u64) -> Result<(), RewriteError> {
        self.file.read_at(target, offset_bytes).map_err(|source| RewriteError::Again { offset_bytes, source })
    }

    fn record(&self, at: u64) -> Result<Record, RewriteError> {
        let mut bytes = [0; Record::SIZE];
        self.read(&mut bytes, at)?;
        let format = |source| crate::SendError::Format { offset_bytes: at, source };
        Ok(Record::parse(&bytes, self.endian).map_err(format)?)
    }

    /// The record that is referred to, and its block. `here` is where the record is that refers.
    fn find(
        &mut self,
        index: &Index,
        wanted: &WriteByRef,
        here: u64,
    ) -> Result<(u32, WriteRecord, Vec<u8>), RewriteError> {
        let place = (wanted.reference_object.0, wanted.reference_offset_bytes);
        let missing = || RewriteError::NoReference {
            offset_bytes: here,
            guid: wanted.reference_guid,
            object: wanted.reference_object,
            at_bytes: wanted.reference_offset_bytes,
        };
        let mut from = index.before(wanted.reference_guid, place).ok_or_else(missing)?;
        if let Some((guid, last)) = self.last
            && guid == wanted.reference_guid
            && last.place <= place
            && last.place > from.place
        {
            from = last;
        }
        let mut at = from.at;
        while at < here {
            let record = self.record(at)?;
            let format = |source| crate::SendError::Format { offset_bytes: at, source };
            let payload_bytes = record.payload_bytes().map_err(format)?;
            let payload_at = at + Record::SIZE as u64;
            match record.body {
                Body::Write(write) if write.to_guid == wanted.reference_guid => {
                    let found = (write.object.0, write.offset_bytes);
                    if found == place {
                        let mut block = vec![0; payload_bytes as usize];
                        self.read(&mut block, payload_at)?;
                        self.last = Some((wanted.reference_guid, Sample { place, at }));
                        return Ok((record.payload_length, write, block));
                    }
                    if found > place {
                        break;
                    }
                }
                Body::End(_) => break,
                _ => {}
            }
            at = payload_at.saturating_add(payload_bytes);
        }
        Err(missing())
    }
}

/// Writes a stream in which every WRITE_BYREF record is the WRITE record that it stands for. `input` is the stream from its beginning
/// and `file` the same, to be read again.
///
/// # Errors
/// The stream is wrong, refers to blocks that it does not have, cannot be read again, or the new one cannot be written.
pub fn redup(input: impl Read, file: &impl ReadAt, out: impl Write) -> Result<Redupped, RewriteError> {
    redup_with(input, file, out, MARKS_MAX)
}

pub(super) fn redup_with(
    input: impl Read,
    file: &impl ReadAt,
    out: impl Write,
    marks_max: usize,
) -> Result<Redupped, RewriteError> {
    let (mut reader, mut out) = (reader(input), RecordWriter::new(out));
    let mut index = Index::new(marks_max);
    let mut finder = Finder { file, endian: Endian::Little, last: None };
    let mut done = Redupped::default();
    while let Some(item) = reader.next_item()? {
        done.records += 1;
        let at = item.decoded.offset_bytes;
        match &item.decoded.record.body {
            Body::Begin(begin) => {
                finder.endian = Record::stream_endian(item.bytes).unwrap_or(finder.endian);
                let mut begin = begin.clone();
                begin.features.remove(Features::DEDUP | Features::DEDUPPROPS);
                out.begin(item.bytes, &Body::Begin(begin), item.payload)?;
            }
            Body::Write(write) => {
                index.add(write, done.records, at)?;
                pass(&mut out, &item)?;
            }
            Body::WriteByRef(by_ref) => {
                done.by_ref += 1;
                let (length, mut write, block) = finder.find(&index, by_ref, at)?;
                (write.object, write.offset_bytes, write.to_guid) =
                    (by_ref.object, by_ref.offset_bytes, by_ref.to_guid);
                out.record(length, &Body::Write(write), &block)?;
            }
            _ => pass(&mut out, &item)?,
        }
    }
    out.finish()?;
    done.index_bytes = index.bytes();
    Ok(done)
}
