//! `zstream redup`: a deduplicated stream (`zfs send -D` of OpenZFS before 2.0) with all its blocks.
//!
//! # Need
//!
//! A WRITE_BYREF record names an earlier block, by the guid of its stream, its object and its offset in that. The new stream has a WRITE there,
//! so the block must be found again: the stream must be a file.
//!
//! # Structures
//!
//! OpenZFS records the place of every WRITE in a hash table that grows with the stream. But WRITE records of one stream are in rising order of
//! object and offset, so the file is its own index. We *mark* the first WRITE record of each stream, and each that is at least a *stride* of
//! records (of any kind) after the previous mark ([`Index`]). Records are read again from the last mark at or before the wanted place. When
//! there are [`MARKS_MAX`] marks, the stride doubles, and marks nearer than that are dropped.
//!
//! # Invariants
//!
//! 1. Marks take at most 32 MiB ([`MARKS_MAX`] of 32 bytes), and as much again while their list grows; streams of a package with at least one
//!    block up to [`STREAMS_MAX`] of 64 bytes.
//! 2. A block of the stream is less than two strides of records after its mark: less than one after a dropped mark, which was less than one
//!    after the mark before. If streams follow each other there is at most one mark per stride, so the stride remains 16 up to 16 million
//!    records. No sender interleaves many streams; if one does, each stream has its marks and the stride grows as many times faster.
//! 3. The record found has the guid, object and offset that were asked for: if the file was changed meanwhile, the result is an error or other
//!    contents of the same block, never another block.
//!
//! # Rejected
//!
//! A table on disk: the stream already is one. Streams out of order are refused instead; no sender writes them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Read, Write};

use cenote_format::Endian;
use cenote_format::ids::Guid;
use cenote_format::stream::{Body, Features, Record, Write as WriteRecord, WriteByRef};

use super::{Place, RecordWriter, RewriteError, pass, reader};

/// The maximum number of marks.
pub(crate) const MARKS_MAX: usize = 1 << 20;
/// The maximum number of streams of a package with blocks.
const STREAMS_MAX: usize = 1 << 18;
/// The initial stride: the least number of records between two marks of a stream.
const STRIDE_FIRST: u64 = 16;

/// A stream that can be read at any offset, repeatedly.
pub trait ReadAt {
    /// Fills `target` from this offset. It is an error if the file ends first.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, target: &mut [u8], offset_bytes: u64) -> io::Result<()>;
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redupped {
    /// Records of the stream.
    pub records: u64,
    /// WRITE_BYREF records among them.
    pub by_ref: u64,
    /// Bytes of memory of the index at the end.
    pub index_bytes: u64,
}

/// A WRITE record's place and offset in the file.
#[derive(Clone, Copy, Debug)]
struct Sample {
    place: Place,
    at: u64,
}

/// A marked WRITE record.
#[derive(Clone, Copy, Debug)]
struct Mark {
    sample: Sample,
    /// The record's number in the file.
    record: u64,
}

/// The WRITE records of one stream. At least the first is marked.
struct Source {
    marks: Vec<Mark>,
    last: Place,
}

/// The marks by which the WRITE records of a file are found.
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

    /// Adds a WRITE record: its number among all records, and its offset.
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
        // The first mark of each stream remains, so there may be as many as streams.
        while self.marks > self.marks_max.max(self.sources.len()) {
            self.thin();
        }
        assert!(self.marks <= self.marks_max.max(self.sources.len()), "marks are bounded (invariant 1)");
        debug_assert!(self.sources.len() <= STREAMS_MAX, "streams of a package are bounded (invariant 1)");
        Ok(())
    }

    /// Doubles the stride, and drops the marks that are nearer than that to the one before.
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
            debug_assert!(!source.marks.is_empty(), "the first mark of each stream remains");
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

/// Finds earlier blocks again.
struct Finder<'a, F> {
    file: &'a F,
    endian: Endian,
    /// The record found last, since the one after it is often wanted next.
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

    /// The record that `wanted` refers to, and its block. `here` is the offset of the referring record.
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
        assert!(from.place <= place && from.at < here, "a mark precedes the block that is looked for (invariant 2)");
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

/// Writes a stream with each WRITE_BYREF record replaced by the WRITE record that it refers to. `input` is the stream from its beginning, and
/// `file` the same stream, to read it again.
///
/// # Errors
/// The stream is invalid, refers to blocks that it does not have, cannot be read again, or the new one cannot be written.
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
