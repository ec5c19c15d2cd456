//! The contents of a stream, in numbers.

use cenote_format::stream::{Record, RecordKind};

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindAccount {
    /// How many.
    pub records: u64,
    /// Their payloads, as the records state them.
    pub payload_bytes: u64,
}

/// All records of a stream or package so far.
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

    /// Records of one kind.
    #[must_use]
    pub fn kind(&self, kind: RecordKind) -> KindAccount {
        self.kinds[kind as usize]
    }

    /// Records of all kinds.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.records).sum()
    }

    /// Payloads of all records.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.payload_bytes).sum()
    }

    /// The records themselves.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        self.records() * Record::SIZE as u64
    }
}
