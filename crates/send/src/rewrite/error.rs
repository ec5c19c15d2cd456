//! Errors that end the rewriting of a stream.

use cenote_codec::compress::CompressError;
use cenote_format::ids::{Guid, ObjectId};
use thiserror::Error;

use crate::SendError;

/// The reason why rewriting a stream failed. Offsets count from the beginning of the input stream.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RewriteError {
    /// An error of the input stream.
    #[error(transparent)]
    Stream(#[from] SendError),
    /// The stream is deduplicated: some of its blocks are elsewhere in it.
    #[error("record at offset {offset_bytes}: the stream is deduplicated: 'zstream redup' makes one of it that is not")]
    Deduplicated {
        /// The offset of the record.
        offset_bytes: u64,
    },
    /// A block's compression does not exist.
    #[error(
        "record at offset {offset_bytes}: Invalid compression type in stream: {number} (object {object}, offset {at_bytes})"
    )]
    Compression {
        /// The offset of the record.
        offset_bytes: u64,
        /// The block's object.
        object: ObjectId,
        /// The place in that.
        at_bytes: u64,
        /// The number in the record.
        number: u8,
    },
    /// A block does not decompress.
    #[error("record at offset {offset_bytes}: decompression failed for ino {object} offset {at_bytes}: {source}")]
    Decompress {
        /// The offset of the record.
        offset_bytes: u64,
        /// The block's object.
        object: ObjectId,
        /// The place in that.
        at_bytes: u64,
        /// The fault.
        source: CompressError,
    },
    /// A WRITE_BYREF record refers to a block that is not earlier in the stream.
    #[error(
        "record at offset {offset_bytes}: refers to object {object}, offset {at_bytes} of the stream with guid {:x}, \
         which has no such block before",
        guid.0
    )]
    NoReference {
        /// The offset of the record.
        offset_bytes: u64,
        /// The snapshot whose stream should have the block.
        guid: Guid,
        /// The block's object.
        object: ObjectId,
        /// The place in that.
        at_bytes: u64,
    },
    /// Blocks are not in the order of every sender, which is needed to find them again.
    #[error(
        "record at offset {offset_bytes}: object {object}, offset {at_bytes} comes after a later block: \
         not supported yet: to redup a stream whose blocks are not in order"
    )]
    Order {
        /// The offset of the record.
        offset_bytes: u64,
        /// The block's object.
        object: ObjectId,
        /// The place in that.
        at_bytes: u64,
    },
    /// A package has more streams than the index can hold.
    #[error("record at offset {offset_bytes}: the package has more than {limit} streams with blocks")]
    Streams {
        /// The offset of the record.
        offset_bytes: u64,
        /// The maximum.
        limit: usize,
    },
    /// The file cannot be read again.
    #[error("reading the stream again at offset {offset_bytes}: {source}")]
    Again {
        /// The place.
        offset_bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// Writing failed.
    #[error("writing the stream: {0}")]
    Output(#[source] std::io::Error),
}
