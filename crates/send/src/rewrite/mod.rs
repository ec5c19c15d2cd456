//! Streams made of streams: `zstream decompress`, `recompress`, `redup` and `drop_record`.
//!
//! # Need
//!
//! A stream that lies in a backup cannot be sent again. Its blocks may be marked with the wrong compression (bug #12762 of
//! OpenZFS), it may be larger than it need be, or have WRITE_BYREF records, which no OpenZFS since 2.0 receives.
//!
//! # Life of a record
//!
//! [`StreamReader`] reads and verifies it; the verb changes it, or does not; `RecordWriter` gives it the sums of the new stream and
//! writes it. A record that is not changed keeps every byte but the sums, so a stream in which nothing is changed comes out as it was.
//!
//! # Invariants
//!
//! 1. Nothing is written that was not verified: a record whose own sum is wrong ends the work.
//! 2. The new stream's sums are right, also where an old sender left those of the records out.
//! 3. Memory: two payloads for most verbs. `recompress` works on batches of up to [`BATCH_BYTES`] of blocks, counted by the larger of what a
//!    block has now and what it unpacks to, and holds each block twice at most. `redup` keeps an index of bounded size (see [`mod@redup`]).
//! 4. The end of the input between two records is no error, though END is missing: a stream saved by `zfs send -S` is like that,
//!    and its receiver knows. Within a record it is one.
//!
//! # Rejected
//!
//! OpenZFS 2.3 leaves the feature flags of BEGIN as they are and compresses metadata too, which later receivers refuse. As
//! OpenZFS 2.4 does, `recompress` sets the flags that go with the blocks, and leaves metadata alone.

mod decompress;
mod drop;
mod error;
mod recompress;
pub mod redup;
#[cfg(test)]
mod tests;
mod writer;

use std::io::{Read, Write};

use cenote_codec::compress::{CompressError, decompress as unpack};
use cenote_format::enums::Compress;
use cenote_format::stream::{BLOCK_PAYLOAD_BYTES_MAX, Body, Features, Write as WriteRecord};

use crate::{Checks, StreamItem, StreamReader};

pub use decompress::{Decompressed, decompress};
pub use drop::drop_records;
pub use error::RewriteError;
pub use recompress::{BATCH_BYTES, Target, Waiting, in_turn, recompress};
pub use redup::redup;
use writer::RecordWriter;

/// A place in a stream by which verbs name records: object and offset in it, in bytes.
pub type Place = (u64, u64);

/// A reader that verifies all, and lets a stream end between two records.
fn reader<R: Read>(input: R) -> StreamReader<R> {
    StreamReader::new(input, Checks::ALL).may_end_early()
}

/// Refuses deduplicated streams, whose blocks are elsewhere.
fn refuse_dedup(item: &StreamItem<'_>) -> Result<(), RewriteError> {
    let is_dedup = match &item.decoded.record.body {
        Body::Begin(begin) => begin.features.intersects(Features::DEDUP | Features::DEDUPPROPS),
        Body::WriteByRef(_) => true,
        _ => false,
    };
    if is_dedup { Err(RewriteError::Deduplicated { offset_bytes: item.decoded.offset_bytes }) } else { Ok(()) }
}

/// Writes a record as it is.
fn pass(out: &mut RecordWriter<impl Write>, item: &StreamItem<'_>) -> Result<(), RewriteError> {
    out.raw(item.bytes, &item.decoded.record.body, item.payload)
}

/// Whether a number in a record says that the block is as it was written by its user.
fn is_plain(compress: u8) -> bool {
    let kind = Compress::from_number(compress);
    matches!(kind, Some(Compress::Inherit | Compress::On | Compress::Off | Compress::Empty))
}

/// Unpacks the block of a record; what has more than a block of OpenZFS can have is not even tried.
fn unpacked(write: &WriteRecord, kind: Compress, payload: &[u8]) -> Result<Vec<u8>, CompressError> {
    if write.logical_bytes > BLOCK_PAYLOAD_BYTES_MAX {
        let (found_bytes, expected_bytes) = (BLOCK_PAYLOAD_BYTES_MAX, write.logical_bytes);
        return Err(CompressError::WrongSize { algorithm: "record", found_bytes, expected_bytes });
    }
    let mut block = vec![0; write.logical_bytes as usize];
    unpack(kind, payload, &mut block)?;
    Ok(block)
}
