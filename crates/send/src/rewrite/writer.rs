//! Writes records with the checksums of the new stream.

use std::io::Write;

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_format::Endian;
use cenote_format::stream::{Body, Record};

use super::RewriteError;
use crate::SendError;

/// The offset of the stream's checksum in END.
const END_SUM_OFFSET: usize = 8;
const SUM_BYTES: usize = 32;

/// Writes records of a stream. The first record determines the byte order.
pub(super) struct RecordWriter<W> {
    out: W,
    endian: Option<Endian>,
    sum: Fletcher4,
}

impl<W: Write> RecordWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, endian: None, sum: Fletcher4::new() }
    }

    /// Writes a changed record. Its length field, which readers use only for BEGIN, does not change.
    pub(super) fn record(&mut self, payload_length: u32, body: &Body, payload: &[u8]) -> Result<(), RewriteError> {
        // The first record is BEGIN, which `begin` writes.
        debug_assert!(!matches!(body, Body::Begin(_) | Body::End(_)), "a record that was changed is one of a stream's");
        let endian = self.endian.ok_or(SendError::NotAStream)?;
        let record = Record { payload_length, body: body.clone(), checksum: [0; 4] };
        self.raw(&record.emit(endian), body, payload)
    }

    /// Writes a changed BEGIN.
    pub(super) fn begin(&mut self, was: &[u8; Record::SIZE], body: &Body, payload: &[u8]) -> Result<(), RewriteError> {
        let endian = Record::stream_endian(was).ok_or(SendError::NotAStream)?;
        let payload_length = u32::try_from(payload.len()).expect("the reader bounds the list of BEGIN");
        let record = Record { payload_length, body: body.clone(), checksum: [0; 4] };
        self.raw(&record.emit(endian), body, payload)
    }

    /// Writes a record unchanged, except for the checksums.
    pub(super) fn raw(&mut self, was: &[u8; Record::SIZE], body: &Body, payload: &[u8]) -> Result<(), RewriteError> {
        let mut bytes = *was;
        let endian = match self.endian {
            Some(endian) => endian,
            None => *self.endian.insert(Record::stream_endian(was).ok_or(SendError::NotAStream)?),
        };
        let (is_begin, is_end) = (matches!(body, Body::Begin(_)), matches!(body, Body::End(_)));
        if is_end {
            put(&mut bytes, END_SUM_OFFSET, &self.sum.finish(), endian);
        }
        self.sum.update(&bytes[..Record::CHECKSUM_OFFSET], endian);
        // Senders leave the checksum out of the ENDs of a package and its list.
        let is_unsummed =
            matches!(body, Body::End(end) if end.to_guid.0 == 0) && is_zero(&was[Record::CHECKSUM_OFFSET..]);
        if !is_begin && !is_unsummed {
            put(&mut bytes, Record::CHECKSUM_OFFSET, &self.sum.finish(), endian);
        }
        self.sum.update(&bytes[Record::CHECKSUM_OFFSET..], endian);
        self.sum.update(payload, endian);
        if is_end {
            self.sum = Fletcher4::new();
        }
        self.out.write_all(&bytes).map_err(RewriteError::Output)?;
        self.out.write_all(payload).map_err(RewriteError::Output)
    }

    /// Flushes the output.
    pub(super) fn finish(mut self) -> Result<(), RewriteError> {
        self.out.flush().map_err(RewriteError::Output)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn put(bytes: &mut [u8; Record::SIZE], at: usize, words: &[u64; 4], endian: Endian) {
    let target = &mut bytes[at..at + SUM_BYTES];
    for (target, word) in target.as_chunks_mut().0.iter_mut().zip(words) {
        *target = match endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        };
    }
}
