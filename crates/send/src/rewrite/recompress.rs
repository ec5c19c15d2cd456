//! `zstream recompress`: compresses all data blocks with another algorithm.

use std::io::{Read, Write};

use cenote_codec::compress::{CompressError, CompressLevel, ZstdHeader, compress};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Compress;
use cenote_format::ids::ObjectId;
use cenote_format::stream::{Body, Features, Record, Write as WriteRecord};

use super::{RecordWriter, RewriteError, is_plain, reader, refuse_dedup, unpacked};
use crate::StreamItem;

/// Bytes of blocks in one batch.
pub(crate) const BATCH_BYTES: usize = 32 << 20;

/// A block takes whole sectors.
const SECTOR_BYTES: usize = 512;

/// The compression to apply.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The algorithm; [`Compress::Off`] for none.
    pub kind: Compress,
    /// Its level, for zstd alone.
    pub level: CompressLevel,
}

impl Target {
    fn is_off(&self) -> bool {
        is_plain(self.kind.number())
    }

    /// True if the block of this record is to be changed. Metadata is never compressed in streams, and encrypted blocks cannot be.
    fn is_for(&self, write: &WriteRecord, payload: &[u8]) -> bool {
        let is_encrypted = write.sealing.salt != [0; 8];
        let is_metadata = u8::try_from(write.object_type).map_or(true, |number| DmuType(number).is_metadata());
        if is_encrypted || is_metadata || (self.is_off() && is_plain(write.compress)) {
            return false;
        }
        if write.compress != self.kind.number() {
            return true;
        }
        let level = ZstdHeader::parse(payload).map(|header| header.level);
        self.kind == Compress::Zstd && level != Some(self.level.resolved())
    }

    /// The features of a stream of such blocks. Embedded and encrypted blocks do not change, so their features remain.
    fn features(&self, was: Features) -> Features {
        let mut features = was;
        if self.is_off() {
            if !was.contains(Features::RAW) {
                features.remove(Features::COMPRESSED);
            }
            if !was.intersects(Features::RAW | Features::EMBED_DATA) {
                features.remove(Features::LZ4 | Features::ZSTD);
            }
            return features;
        }
        features.insert(Features::COMPRESSED);
        match self.kind {
            Compress::Zstd => features.insert(Features::ZSTD),
            Compress::Lz4 => features.insert(Features::LZ4),
            _ => {}
        }
        features
    }
}

/// A record in a batch. It may have a block to compress.
pub struct Waiting {
    bytes: [u8; Record::SIZE],
    body: Body,
    payload_length: u32,
    payload: Vec<u8>,
    offset_bytes: u64,
    is_work: bool,
    failure: Option<CompressError>,
}

impl Waiting {
    fn of(item: &StreamItem<'_>, is_work: bool) -> Self {
        Self {
            bytes: *item.bytes,
            body: item.decoded.record.body.clone(),
            payload_length: item.decoded.record.payload_length,
            payload: item.payload.to_vec(),
            offset_bytes: item.decoded.offset_bytes,
            is_work,
            failure: None,
        }
    }

    /// True if it has a block to compress.
    #[must_use]
    pub fn is_work(&self) -> bool {
        self.is_work
    }

    /// Compresses the block, if there is one.
    pub(crate) fn work(&mut self, target: &Target) {
        let Body::Write(write) = &mut self.body else { return };
        if self.is_work {
            self.failure = change(write, &mut self.payload, target).err();
        }
    }

    fn error(&self) -> Option<RewriteError> {
        let Body::Write(WriteRecord { object, offset_bytes: at_bytes, .. }) = self.body else { return None };
        let source = self.failure?;
        Some(RewriteError::Decompress { offset_bytes: self.offset_bytes, object, at_bytes, source })
    }
}

/// Decompresses a block, and compresses it as in `target` if that makes it smaller.
fn change(write: &mut WriteRecord, payload: &mut Vec<u8>, target: &Target) -> Result<(), CompressError> {
    let kind = if is_plain(write.compress) { Compress::Off } else { known(write.compress)? };
    if kind != Compress::Off || payload.len() as u64 != write.logical_bytes {
        *payload = unpacked(write, kind, payload)?;
    }
    (write.compress, write.compressed_bytes) = (0, 0);
    if target.is_off() {
        return Ok(());
    }
    let Some(mut packed) = compress(target.kind, target.level, payload, payload.len()) else { return Ok(()) };
    packed.resize(packed.len().next_multiple_of(SECTOR_BYTES), 0);
    if packed.len() < payload.len() {
        (write.compress, write.compressed_bytes) = (target.kind.number(), packed.len() as u64);
        *payload = packed;
    }
    debug_assert_eq!(write.payload_bytes(), payload.len() as u64, "a record says how long its block is (invariant 2)");
    Ok(())
}

fn known(number: u8) -> Result<Compress, CompressError> {
    Compress::from_number(number).ok_or(CompressError::NotAnAlgorithm(Compress::Inherit))
}

/// Writes a stream whose data blocks are compressed as in `target`, if that makes them smaller. Metadata, embedded and encrypted blocks do not
/// change, nor do blocks that are compressed so already. `spread` calls [`Waiting::work`] for each record of a batch, with any number of
/// threads.
///
/// # Errors
/// The stream is invalid or deduplicated, a block does not decompress, or the new stream cannot be written.
pub fn recompress(
    input: impl Read,
    out: impl Write,
    target: &Target,
    spread: &dyn Fn(&mut [Waiting], &Target),
) -> Result<(), RewriteError> {
    let (mut reader, mut out) = (reader(input), RecordWriter::new(out));
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    let work = |batch: &mut [Waiting]| spread(batch, target);
    while let Some(item) = reader.next_item()? {
        refuse_dedup(&item)?;
        let body = &item.decoded.record.body;
        let work_bytes = match body {
            Body::Write(write) if target.is_for(write, item.payload) => {
                refuse_unknown(write.object, write, item.decoded.offset_bytes)?;
                // A record that is too long is refused before it is decompressed.
                item.payload.len().max(usize::try_from(write.logical_bytes).unwrap_or(usize::MAX).min(BATCH_BYTES))
            }
            Body::Begin(begin) => {
                // The batch is empty: BEGIN is first or follows an END.
                let mut begin = begin.clone();
                begin.features = target.features(begin.features);
                flush(&mut batch, &mut out, &work)?;
                batch_bytes = 0;
                out.begin(item.bytes, &Body::Begin(begin), item.payload)?;
                continue;
            }
            _ => 0,
        };
        batch.push(Waiting::of(&item, work_bytes > 0));
        batch_bytes += size_of::<Waiting>() + work_bytes.max(item.payload.len());
        if batch_bytes >= BATCH_BYTES {
            flush(&mut batch, &mut out, &work)?;
            batch_bytes = 0;
        }
        debug_assert!(batch_bytes < BATCH_BYTES, "a batch is written when it is full (invariant 3)");
    }
    flush(&mut batch, &mut out, &work)?;
    out.finish()
}

fn refuse_unknown(object: ObjectId, write: &WriteRecord, offset_bytes: u64) -> Result<(), RewriteError> {
    match Compress::from_number(write.compress) {
        Some(_) => Ok(()),
        None => Err(RewriteError::Compression {
            offset_bytes,
            object,
            at_bytes: write.offset_bytes,
            number: write.compress,
        }),
    }
}

/// Processes the batch, and writes it in order.
fn flush(
    batch: &mut Vec<Waiting>,
    out: &mut RecordWriter<impl Write>,
    work: &dyn Fn(&mut [Waiting]),
) -> Result<(), RewriteError> {
    work(batch);
    for waiting in batch.drain(..) {
        if let Some(error) = waiting.error() {
            return Err(error);
        }
        match &waiting.body {
            body if waiting.is_work => out.record(waiting.payload_length, body, &waiting.payload)?,
            body => out.raw(&waiting.bytes, body, &waiting.payload)?,
        }
    }
    Ok(())
}

/// Processes a batch in the calling thread.
pub fn in_turn(batch: &mut [Waiting], target: &Target) {
    batch.iter_mut().for_each(|waiting| waiting.work(target));
}
