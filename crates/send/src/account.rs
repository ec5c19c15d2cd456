//! Counts of a stream's records and bytes.

use cenote_format::stream::{Record, RecordKind};

/// Counts for one kind of record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindAccount {
    /// The number of records.
    pub records: u64,
    /// Bytes of their payloads, as the records state them.
    pub payload_bytes: u64,
}

/// Counts for all records of a stream or package so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    kinds: [KindAccount; RecordKind::ALL.len()],
    /// Bytes of input that were read completely, records and payloads.
    pub stream_bytes: u64,
}

impl Account {
    /// Counts a record.
    pub(crate) fn add(&mut self, kind: RecordKind, payload_bytes: u64) {
        let of_kind = &mut self.kinds[kind as usize];
        of_kind.records += 1;
        of_kind.payload_bytes += payload_bytes;
    }

    /// The counts for one kind of record.
    #[must_use]
    pub fn kind(&self, kind: RecordKind) -> KindAccount {
        self.kinds[kind as usize]
    }

    /// The number of records of all kinds.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.records).sum()
    }

    /// Bytes of the payloads of all records.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.payload_bytes).sum()
    }

    /// Bytes of the records themselves.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        self.records() * Record::SIZE as u64
    }
}
