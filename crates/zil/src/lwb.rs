//! Filling a block of the log (an *lwb*, log write block).

use std::ops::Range;

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zil::{Chain, LogBlock, LogRecord, Tx, Write};
use cenote_taskq::buf::Buf;
use cenote_zio::ORDER;

/// The largest log block, which is also the maximum of the tunable `zil_maxblocksize`.
pub(crate) const BLOCK_MAX_BYTES: usize = 128 << 10;
/// Bytes of a write's record without its data.
const WRITE_BYTES: usize = 192;
/// A write of so many bytes is in one record (`zil_max_copied_data` of OpenZFS).
pub(crate) const WHOLE_MAX_BYTES: usize = 7680;
/// Units in which clients expect a write to be atomic: a page where possible, a sector always. A write is split at their borders only.
const PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// Where a record has its sequence number.
const SEQUENCE_AT: usize = 24;

/// The size of a log block for this many bytes of records, rounded up to the format's unit; [`BLOCK_MAX_BYTES`] at most.
pub(crate) const fn block_bytes_for(records_bytes: usize) -> usize {
    let size = records_bytes.saturating_add(Chain::SIZE).next_multiple_of(LogBlock::SIZE_MIN);
    if size > BLOCK_MAX_BYTES { BLOCK_MAX_BYTES } else { size }
}

/// The bytes of a write's records, but for what splitting adds.
pub(crate) const fn write_bytes(len: u64) -> usize {
    WRITE_BYTES + len as usize
}

/// The part of a write that is put into a block whose free room is too small for all of it: it ends at a page border, or else at a sector
/// border. A short write is not split.
fn cut(offset_bytes: u64, len: usize, room: usize) -> usize {
    if len <= WHOLE_MAX_BYTES {
        return 0;
    }
    let to = |unit: u64| {
        let end = (offset_bytes + room as u64) / unit * unit;
        end.saturating_sub(offset_bytes) as usize
    };
    match to(PAGE_BYTES) {
        0 => to(SECTOR_BYTES),
        len => len,
    }
}

/// A block that is being filled.
pub(crate) struct Lwb {
    bytes: Buf,
    used: usize,
    /// The newest txg of a record in it.
    pub(crate) newest: Txg,
    /// The number of the last record in it; 0 before the first.
    last_sequence: u64,
}

impl Lwb {
    /// An empty block of this size.
    pub(crate) fn new(size_bytes: usize) -> Self {
        assert!((LogBlock::SIZE_MIN..=BLOCK_MAX_BYTES).contains(&size_bytes), "log blocks have such sizes");
        Self { bytes: Buf::unfilled(size_bytes), used: Chain::SIZE, newest: Txg(0), last_sequence: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.used == Chain::SIZE
    }

    /// Bytes of the records in it.
    pub(crate) const fn records_bytes(&self) -> usize {
        self.used - Chain::SIZE
    }

    fn room(&self) -> usize {
        self.bytes.len() - self.used
    }

    /// Appends a record if there is room; the sequence number goes into it.
    pub(crate) fn put_record(&mut self, txg: Txg, record: &[u8], sequence: u64) -> bool {
        assert!(record.len().is_multiple_of(8), "a record has whole words");
        if record.len() > self.room() {
            return false;
        }
        assert!(sequence > self.last_sequence, "records rise in sequence along the chain (invariant 2)");
        self.last_sequence = sequence;
        let target = &mut self.bytes[self.used..self.used + record.len()];
        target.copy_from_slice(record);
        target[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&ORDER.bytes64(sequence));
        self.used += record.len();
        self.newest = self.newest.max(txg);
        true
    }

    /// Appends a write record with as many of these bytes as there is room for, and returns their number. A write is split at sector
    /// borders, so that a crash between two log blocks tears no sector; a short write is not split.
    pub(crate) fn put_write(
        &mut self,
        txg: Txg,
        object: ObjectId,
        offset_bytes: u64,
        data: &[u8],
        sequence: u64,
    ) -> usize {
        let room = self.room().saturating_sub(WRITE_BYTES);
        debug_assert!(room.is_multiple_of(8), "a record that is padded to words fits where its bytes do");
        let len = if data.len() <= room { data.len() } else { cut(offset_bytes, data.len(), room) };
        if len == 0 {
            return 0;
        }
        let write = Write {
            object,
            offset_bytes,
            length_bytes: len as u64,
            block_offset: 0,
            pointer: Blkptr::HOLE,
            data: Some(data[..len].into()),
            size_only: false,
        };
        let record = LogRecord { txg, sequence, ignore_case: false, tx: Tx::Write(Box::new(write)) }.emit(ORDER);
        let fits = self.put_record(txg, &record, sequence);
        assert!(fits, "a write that was cut to the room fits");
        len
    }

    /// A `WR_INDIRECT` record: a write whose data is in the block of this pointer. The sequence number is filled in later.
    pub(crate) fn indirect_record(txg: Txg, object: ObjectId, bytes: Range<u64>, pointer: Blkptr) -> Vec<u8> {
        let write = Write {
            object,
            offset_bytes: bytes.start,
            length_bytes: bytes.end - bytes.start,
            block_offset: 0,
            pointer,
            data: None,
            size_only: false,
        };
        let record = LogRecord { txg, sequence: 0, ignore_case: false, tx: Tx::Write(Box::new(write)) }.emit(ORDER);
        debug_assert_eq!(record.len(), WRITE_BYTES, "the record of an indirect write has no data");
        record
    }

    /// The block's bytes with its link, to be sealed: the used part in the format's units, or all of it.
    pub(crate) fn close(mut self, next: Blkptr, is_whole: bool) -> Buf {
        let chain = Chain { next, used_bytes: self.used as u64, magic: 0, checksum: [0; 4] };
        self.bytes[..Chain::SIZE].copy_from_slice(&chain.emit(ORDER));
        if !is_whole {
            self.bytes.truncate(self.used.next_multiple_of(LogBlock::SIZE_MIN));
        }
        self.bytes[self.used..].fill(0);
        assert!(self.bytes.len() >= self.used, "the records of a block are within it");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(lwb: &mut Lwb, offset: u64, len: usize) -> usize {
        let sequence = lwb.last_sequence + 1;
        lwb.put_write(Txg(9), ObjectId(1), offset, &vec![7; len], sequence)
    }

    /// Regression test: after a kill of a server under writes of 64 KiB, replay left half a sector.
    #[test]
    fn a_write_is_cut_where_sectors_end_and_a_short_one_not_at_all() {
        let mut lwb = Lwb::new(32 << 10);
        assert_eq!(put(&mut lwb, 8192, 65536), 28 << 10, "to the end of a page");
        assert_eq!(put(&mut lwb, 512, 65536), 3072, "where no page ends in the room, of a sector");
        let mut lwb = Lwb::new(4 << 10);
        assert_eq!(put(&mut lwb, 4096, 65536), 3584, "where there is no room for a page, of a sector");
        let mut lwb = Lwb::new(4 << 10);
        assert_eq!(put(&mut lwb, 0, 4096), 0);
        assert!(lwb.is_empty());
        assert_eq!(put(&mut lwb, 0, 3000), 3000, "what fits is not cut");
        let mut lwb = Lwb::new(4 << 10);
        assert_eq!(put(&mut lwb, 3, 65536), 3581);
        let mut lwb = Lwb::new(BLOCK_MAX_BYTES);
        assert_eq!(put(&mut lwb, 3, 7600), 7600);
    }
}
