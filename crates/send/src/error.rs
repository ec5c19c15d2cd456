//! Errors of a stream.

use cenote_format::{FormatError, stream::RecordKind};
use thiserror::Error;

/// The reason why a stream is not read on. Offsets count from the stream's beginning.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The input does not begin with a BEGIN record in either byte order.
    #[error("not a send stream (bad magic number)")]
    NotAStream,
    /// A record that breaks the format.
    #[error("record at offset {offset_bytes}: {source}")]
    Format {
        /// The record's offset.
        offset_bytes: u64,
        /// The fault.
        source: FormatError,
    },
    /// A record states a checksum other than that of the bytes before it.
    #[error(
        "record at offset {offset_bytes}: checksum of the stream so far is {}, the record states {}",
        checksum_text(expected),
        checksum_text(found)
    )]
    Checksum {
        /// The record's offset.
        offset_bytes: u64,
        /// The checksum of the bytes that were read.
        expected: [u64; 4],
        /// The checksum that the record states.
        found: [u64; 4],
    },
    /// A record where the order of a stream does not allow one.
    #[error("record at offset {offset_bytes}: {} {rule}", kind.name())]
    Order {
        /// The record's offset.
        offset_bytes: u64,
        /// Its kind.
        kind: RecordKind,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The input ended too soon.
    #[error("the stream ends at offset {offset_bytes}, {expected}")]
    Truncated {
        /// The offset at which the input ended.
        offset_bytes: u64,
        /// The part that is missing.
        expected: &'static str,
    },
    /// Reading failed.
    #[error("reading the stream at offset {offset_bytes}: {source}")]
    Io {
        /// The bytes read before the failure.
        offset_bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// Writing the account of a stream failed.
    #[error("writing: {0}")]
    Output(std::io::Error),
}

/// A checksum as OpenZFS prints it.
pub(crate) fn checksum_text(words: &[u64; 4]) -> String {
    format!("{:x}/{:x}/{:x}/{:x}", words[0], words[1], words[2], words[3])
}
