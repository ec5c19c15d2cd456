//! A stream looked at without being received.

use std::io::Read;

use cenote_format::ids::Guid;
use cenote_format::stream::{Body, Record};
use cenote_send::{Checks, SendError, StreamReader};

/// The length of the first record of a stream, in bytes.
pub const FIRST_BYTES: usize = Record::SIZE;

/// The guid of the snapshot that a stream is of, by its first record; none of a package, and of what is none.
#[must_use]
pub fn sent_snapshot(first: &[u8]) -> Option<Guid> {
    let record = Record::parse(first, Record::stream_endian(first)?).ok()?;
    match record.body {
        Body::Begin(begin) => Some(begin.to_guid).filter(|guid| guid.0 != 0),
        _ => None,
    }
}

/// Reads a stream to its end and verifies it.
///
/// # Errors
/// It is none, or damaged.
pub fn verify_stream(input: impl Read) -> Result<(), SendError> {
    StreamReader::new(input, Checks::ALL).drain().map(drop)
}
