//! A stream over blocking input.

use std::io::{self, Read};

use cenote_format::stream::{Body, Record};
use cenote_taskq::buf::{Block, Buf};

use crate::account::Account;
use crate::decoder::{Checks, DecodedRecord, StreamDecoder};
use crate::error::SendError;

/// The longest payload whose memory is allocated before it has arrived.
const BLOCK_MAX_BYTES: u64 = 1 << 20;

/// A record with its payload.
#[derive(Debug)]
pub struct StreamItem<'a> {
    /// The record.
    pub decoded: DecodedRecord,
    /// Its bytes as they arrived.
    pub bytes: &'a [u8; Record::SIZE],
    /// Its payload.
    pub payload: &'a [u8],
    /// The payload as a block, if it is data of a file: it can be kept without a copy.
    pub block: Option<&'a Block>,
}

/// Reads a stream record by record. The payload buffer is reused, so an item is valid until the next one is read.
#[derive(Debug)]
pub struct StreamReader<R> {
    input: R,
    decoder: StreamDecoder,
    bytes: [u8; Record::SIZE],
    payload: Vec<u8>,
    /// The payload of a WRITE that is not too long.
    block: Option<Block>,
    /// True if the input may end between two records, before the last one.
    may_end_early: bool,
}

impl<R: Read> StreamReader<R> {
    /// A reader at the beginning of a stream. Unbuffered input should be wrapped in a `BufReader`.
    pub fn new(input: R, checks: Checks) -> Self {
        let decoder = StreamDecoder::new(checks);
        Self {
            input,
            decoder,
            bytes: [0; Record::SIZE],
            payload: Vec::new(),
            block: None,
            may_end_early: !checks.structure,
        }
    }

    /// Accepts the end of the input after any record: a stream that `zfs send -S` saved ends so.
    #[must_use]
    pub(crate) fn may_end_early(self) -> Self {
        Self { may_end_early: true, ..self }
    }

    /// The decoder, for the byte order and the account so far.
    #[must_use]
    pub fn decoder(&self) -> &StreamDecoder {
        &self.decoder
    }

    /// The next record; `None` at the end of the input, which must be the end of the stream.
    pub fn next_item(&mut self) -> Result<Option<StreamItem<'_>>, SendError> {
        let at = self.decoder.offset_bytes();
        let read =
            read_full(&mut self.input, &mut self.bytes).map_err(|source| SendError::Io { offset_bytes: at, source })?;
        if read < self.bytes.len() {
            return if read == 0 && (self.decoder.is_done() || self.may_end_early) {
                Ok(None)
            } else {
                let expected = if read == 0 { "before the record that ends it" } else { "within a record" };
                Err(SendError::Truncated { offset_bytes: at + read as u64, expected })
            };
        }
        let decoded = self.decoder.record(&self.bytes)?;
        let at = self.decoder.offset_bytes();
        self.block = None;
        let wanted = decoded.payload_bytes;
        let is_block = matches!(decoded.record.body, Body::Write(_)) && (1..=BLOCK_MAX_BYTES).contains(&wanted);
        let read = match is_block {
            true => {
                let mut buf = Buf::unfilled(wanted as usize);
                let read = read_full(&mut self.input, &mut buf);
                self.block = Some(buf.freeze());
                read.map(|read| read as u64)
            }
            false => read_payload(&mut self.input, wanted, &mut self.payload),
        };
        let read = read.map_err(|source| SendError::Io { offset_bytes: at, source })?;
        if read < wanted {
            return Err(SendError::Truncated { offset_bytes: at + read, expected: "within a record's payload" });
        }
        debug_assert!(read == wanted, "no byte of the next record is read with a payload (invariant 1)");
        let block = self.block.as_ref();
        debug_assert!(
            block.is_none() || wanted <= BLOCK_MAX_BYTES,
            "memory for more is taken as bytes arrive (invariant 1)"
        );
        let payload = block.map_or(self.payload.as_slice(), |block| &block[..]);
        assert_eq!(payload.len() as u64, wanted, "a payload that is returned is whole (invariant 3)");
        self.decoder.payload(payload);
        Ok(Some(StreamItem { decoded, bytes: &self.bytes, payload, block }))
    }

    /// Reads the whole stream, for the checks and the account.
    pub fn drain(mut self) -> Result<Account, SendError> {
        while self.next_item()?.is_some() {}
        Ok(self.decoder.account().clone())
    }
}

/// Fills `buffer` as far as the input suffices.
pub(crate) fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a payload into `buffer`, which grows as bytes arrive, not by the length that the record states.
pub(crate) fn read_payload(input: &mut impl Read, payload_bytes: u64, buffer: &mut Vec<u8>) -> io::Result<u64> {
    buffer.clear();
    input.by_ref().take(payload_bytes).read_to_end(buffer)?;
    assert!(buffer.len() as u64 <= payload_bytes, "a payload takes no more memory than its record says (invariant 1)");
    Ok(buffer.len() as u64)
}
