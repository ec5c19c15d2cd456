//! The stream's state machine, without I/O.

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_format::Endian;
use cenote_format::stream::{Body, HeaderKind, Record, RecordKind};

use crate::account::Account;
use crate::error::SendError;

/// The checks that a decoder makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// The checksum in each record is that of the bytes before it.
    pub record_checksums: bool,
    /// The order of records is valid, and END has the stream's checksum and snapshot.
    pub structure: bool,
}

impl Checks {
    /// All checks, as a receiver needs them.
    pub const ALL: Self = Self { record_checksums: true, structure: true };
}

/// The decoder's position in the order of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Nothing read yet.
    Start,
    /// After a package's BEGIN: its END must follow.
    PackageList,
    /// In a package, between streams.
    Package,
    /// Within a stream.
    Stream { in_package: bool, to_guid: u64 },
    /// After the last END.
    Done,
}

/// A record and what the decoder knows about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedRecord {
    /// The record.
    pub record: Record,
    /// Its offset in the stream.
    pub offset_bytes: u64,
    /// Bytes of payload that the caller must pass next.
    pub payload_bytes: u64,
    /// The checksum of everything before this record since the last END, which an END record must state. Zeros if checksums are not verified.
    pub checksum_before: [u64; 4],
}

/// Decodes a stream from pieces that the caller obtains: a record of [`Record::SIZE`] bytes, then its payload.
#[derive(Debug)]
pub struct StreamDecoder {
    checks: Checks,
    endian: Option<Endian>,
    sum: Fletcher4,
    position: Position,
    offset_bytes: u64,
    payload_rest_bytes: u64,
    account: Account,
}

impl StreamDecoder {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub fn new(checks: Checks) -> Self {
        Self {
            checks,
            endian: None,
            sum: Fletcher4::new(),
            position: Position::Start,
            offset_bytes: 0,
            payload_rest_bytes: 0,
            account: Account::default(),
        }
    }

    /// The sender's byte order, known after the first record.
    #[must_use]
    pub fn endian(&self) -> Option<Endian> {
        self.endian
    }

    /// The account of the records so far.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Takes a record. The whole payload of the previous one must have been passed.
    pub fn record(&mut self, bytes: &[u8; Record::SIZE]) -> Result<DecodedRecord, SendError> {
        assert_eq!(self.payload_rest_bytes, 0, "a record was fed before the previous one's payload");
        let offset_bytes = self.offset_bytes;
        let endian = match self.endian {
            Some(endian) => endian,
            None => Record::stream_endian(bytes).ok_or(SendError::NotAStream)?,
        };
        self.endian = Some(endian);
        let format = |source| SendError::Format { offset_bytes, source };
        let checksum_before = self.sum.finish();
        if self.checks.record_checksums {
            self.verify_record_checksum(bytes, endian)?;
        }
        self.offset_bytes += Record::SIZE as u64;
        self.account.stream_bytes += Record::SIZE as u64;
        let record = Record::parse(bytes, endian).map_err(format)?;
        let payload_bytes = record.payload_bytes().map_err(format)?;
        if self.checks.structure {
            self.advance(&record, offset_bytes, &checksum_before)?;
        }
        if record.body.kind() == RecordKind::End {
            self.sum = Fletcher4::new();
        }
        self.account.add(record.body.kind(), payload_bytes);
        self.payload_rest_bytes = payload_bytes;
        assert!(
            !self.checks.structure || self.position != Position::Start,
            "a record that is returned has its place in the order (invariant 2)"
        );
        debug_assert_eq!(self.account.stream_bytes, self.offset_bytes, "each byte that was taken is counted");
        Ok(DecodedRecord { record, offset_bytes, payload_bytes, checksum_before })
    }

    /// Takes a piece of the current record's payload. Each piece but the last has a multiple of four bytes.
    pub fn payload(&mut self, piece: &[u8]) {
        let length = piece.len() as u64;
        assert!(length <= self.payload_rest_bytes, "more payload was fed than the record has");
        self.payload_rest_bytes -= length;
        assert!(length.is_multiple_of(4) || self.payload_rest_bytes == 0, "payload was fed in pieces that split words");
        if let (true, Some(endian)) = (self.checks.record_checksums, self.endian) {
            self.sum.update(piece, endian);
        }
        self.offset_bytes += length;
        self.account.stream_bytes += length;
        debug_assert_eq!(self.account.stream_bytes, self.offset_bytes, "each byte that was taken is counted");
    }

    /// True if the stream may end here.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.position == Position::Done && self.payload_rest_bytes == 0
    }

    fn verify_record_checksum(&mut self, bytes: &[u8; Record::SIZE], endian: Endian) -> Result<(), SendError> {
        let (covered, stated) = bytes.split_at(Record::CHECKSUM_OFFSET);
        self.sum.update(covered, endian);
        let expected = self.sum.finish();
        self.sum.update(stated, endian);
        let mut found = [0; 4];
        for (word, chunk) in found.iter_mut().zip(stated.as_chunks().0) {
            *word = endian.u64(*chunk);
        }
        // In BEGIN these bytes are the end of the name: zeros unless the name is absurdly long.
        if found != [0; 4] && found != expected {
            return Err(SendError::Checksum { offset_bytes: self.offset_bytes, expected, found });
        }
        Ok(())
    }

    fn advance(&mut self, record: &Record, offset_bytes: u64, sum: &[u64; 4]) -> Result<(), SendError> {
        let kind = record.body.kind();
        let order = |rule| Err(SendError::Order { offset_bytes, kind, rule });
        self.position = match (self.position, &record.body) {
            (Position::Start, Body::Begin(begin)) => match begin.header {
                HeaderKind::Substream => Position::Stream { in_package: false, to_guid: begin.to_guid.0 },
                HeaderKind::Compound => Position::PackageList,
                HeaderKind::Unknown(_) => return order("with a header type that is neither stream nor package"),
            },
            (Position::Start, _) => return order("before BEGIN"),
            (Position::PackageList, Body::End(_)) => Position::Package,
            (Position::PackageList, _) => return order("where a package's list must end"),
            (Position::Package, Body::Begin(begin)) => match begin.header {
                HeaderKind::Substream => Position::Stream { in_package: true, to_guid: begin.to_guid.0 },
                _ => return order("of a package within a package"),
            },
            (Position::Package, Body::End(_)) => Position::Done,
            (Position::Package, _) => return order("between the streams of a package"),
            (Position::Stream { .. }, Body::Begin(_)) => return order("within a stream"),
            (Position::Stream { in_package, to_guid }, Body::End(end)) => {
                if end.to_guid.0 != to_guid {
                    return order("for another snapshot than BEGIN names");
                }
                if in_package { Position::Package } else { Position::Done }
            }
            (stream @ Position::Stream { .. }, _) => stream,
            (Position::Done, _) => return order("after the end of the stream"),
        };
        match &record.body {
            // The END of a package covers nothing: the sum starts anew after each END, and is zero here.
            Body::End(end) if self.checks.record_checksums && end.stream_checksum != *sum => {
                Err(SendError::Checksum { offset_bytes, expected: *sum, found: end.stream_checksum })
            }
            _ => Ok(()),
        }
    }
}
