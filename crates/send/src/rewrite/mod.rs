//! Rewriting streams: `zstream decompress`, `recompress`, `redup` and `drop_record`.
//!
//! # Need
//!
//! A stream in a backup cannot be sent again. Its blocks may be marked with the wrong compression (bug #12762 of OpenZFS), it may be larger than
//! necessary, or have WRITE_BYREF records, which no OpenZFS since 2.0 receives.
//!
//! # Life of a record
//!
//! [`StreamReader`] reads and verifies it; the verb may change it; `RecordWriter` gives it the checksums of the new stream and writes it. Of a
//! record that is not changed only the checksums may change, so a stream without changes is copied exactly.
//!
//! # Invariants
//!
//! 1. Nothing is written that was not verified: a record with a wrong checksum ends the rewrite.
//! 2. The new stream's checksums are right, even if an old sender left those of the records out.
//! 3. Memory: two payloads for most verbs. `recompress` works on batches of up to [`BATCH_BYTES`](recompress::BATCH_BYTES) of blocks, counted by the larger of a block's
//!    present and decompressed sizes, and holds each block twice at most. `redup` keeps an index of bounded size (see [`mod@redup`]).
//! 4. The end of the input between two records is not an error, even without END: a stream saved by `zfs send -S` ends so, and its receiver
//!    knows. Within a record it is an error.
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
pub use recompress::{Target, Waiting, in_turn, recompress};
pub use redup::redup;
use writer::RecordWriter;

/// A place in a stream by which verbs identify records: object and byte offset in it.
pub type Place = (u64, u64);

/// A reader that verifies everything, and lets a stream end between two records.
fn reader<R: Read>(input: R) -> StreamReader<R> {
    StreamReader::new(input, Checks::ALL).may_end_early()
}

/// Refuses deduplicated streams, whose blocks are elsewhere in them.
fn refuse_dedup(item: &StreamItem<'_>) -> Result<(), RewriteError> {
    let is_dedup = match &item.decoded.record.body {
        Body::Begin(begin) => begin.features.intersects(Features::DEDUP | Features::DEDUPPROPS),
        Body::WriteByRef(_) => true,
        _ => false,
    };
    if is_dedup { Err(RewriteError::Deduplicated { offset_bytes: item.decoded.offset_bytes }) } else { Ok(()) }
}

/// Writes a record unchanged.
fn pass(out: &mut RecordWriter<impl Write>, item: &StreamItem<'_>) -> Result<(), RewriteError> {
    out.raw(item.bytes, &item.decoded.record.body, item.payload)
}

/// True if a number in a record means that the block is not compressed.
fn is_plain(compress: u8) -> bool {
    let kind = Compress::from_number(compress);
    matches!(kind, Some(Compress::Inherit | Compress::On | Compress::Off | Compress::Empty))
}

/// Decompresses the block of a record. A block larger than OpenZFS's largest is refused first.
fn unpacked(write: &WriteRecord, kind: Compress, payload: &[u8]) -> Result<Vec<u8>, CompressError> {
    if write.logical_bytes > BLOCK_PAYLOAD_BYTES_MAX {
        let (found_bytes, expected_bytes) = (BLOCK_PAYLOAD_BYTES_MAX, write.logical_bytes);
        return Err(CompressError::WrongSize { algorithm: "record", found_bytes, expected_bytes });
    }
    let mut block = vec![0; write.logical_bytes as usize];
    unpack(kind, payload, &mut block)?;
    Ok(block)
}
