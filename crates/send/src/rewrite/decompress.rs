//! `zstream decompress`: decompresses given blocks.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use cenote_codec::compress::CompressError;
use cenote_format::enums::Compress;
use cenote_format::stream::Body;

use super::{Place, RecordWriter, RewriteError, pass, reader, refuse_dedup, unpacked};

/// The result for a given record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decompressed {
    /// It is decompressed.
    Unpacked,
    /// It is marked as uncompressed; its block is unchanged.
    Reset,
    /// It is unchanged.
    Failed(CompressError),
}

/// Writes a stream with the blocks of all WRITE records at places of `blocks` decompressed, by the algorithm given for each, not that of the
/// record. With [`Compress::Off`] the record is changed and the block is not. `told` is called for each.
///
/// # Errors
/// The stream is invalid or deduplicated, or the new one cannot be written.
pub fn decompress(
    input: impl Read,
    out: impl Write,
    blocks: &BTreeMap<Place, Compress>,
    mut told: impl FnMut(Place, Decompressed),
) -> Result<(), RewriteError> {
    let (mut reader, mut out) = (reader(input), RecordWriter::new(out));
    while let Some(item) = reader.next_item()? {
        refuse_dedup(&item)?;
        let Body::Write(write) = &item.decoded.record.body else {
            pass(&mut out, &item)?;
            continue;
        };
        let place = (write.object.0, write.offset_bytes);
        let Some(kind) = blocks.get(&place) else {
            pass(&mut out, &item)?;
            continue;
        };
        let length = item.decoded.record.payload_length;
        let mut changed = write.clone();
        (changed.compress, changed.compressed_bytes) = (0, 0);
        if *kind == Compress::Off {
            // The record continues to state the length of its block.
            changed.logical_bytes = item.payload.len() as u64;
            out.record(length, &Body::Write(changed), item.payload)?;
            told(place, Decompressed::Reset);
            continue;
        }
        match unpacked(write, *kind, item.payload) {
            Ok(block) => {
                debug_assert_eq!(block.len() as u64, write.logical_bytes, "a block has its length when it is unpacked");
                out.record(length, &Body::Write(changed), &block)?;
                told(place, Decompressed::Unpacked);
            }
            Err(error) => {
                pass(&mut out, &item)?;
                told(place, Decompressed::Failed(error));
            }
        }
    }
    out.finish()
}
