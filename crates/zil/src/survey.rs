//! The facts that a first walk of a claimed log finds for its replay: what need not be done, and what can be freed on the way.
//!
//! A log of clients that overwrite the same bytes again and again is much longer than what it changes, and may have taken most of the pool.
//! So a write is passed over if later records of the log write all of its bytes: whatever comes in between, the bytes are theirs in the end,
//! and the file reaches at least as far. Of a write by reference (`WR_INDIRECT`) all of the block counts: OpenZFS may have left out a record
//! whose bytes are in a block that an earlier record points to. The log blocks that the replay has passed are freed in the txg that stores its position; a data
//! block goes with the last record that points to it.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_format::zil::{LogRecord, Tx};

use crate::chain::Link;
use crate::position::Position;

/// Pieces of files that are remembered. Writes after that supersede nothing.
const PIECES_MAX: usize = 1 << 17;

/// The last record that has written each piece of a file.
#[derive(Debug, Default)]
struct Written {
    /// From the start of each piece: its end, and the record's number. Pieces are disjoint.
    pieces: BTreeMap<u64, (u64, u64)>,
}

impl Written {
    fn write(&mut self, bytes: &Range<u64>, sequence: u64) {
        let before = self.pieces.range(..bytes.start).next_back().map(|(start, piece)| (*start, *piece));
        if let Some((start, (end, other))) = before
            && end > bytes.start
        {
            self.pieces.insert(start, (bytes.start, other));
            if end > bytes.end {
                self.pieces.insert(bytes.end, (end, other));
            }
        }
        while let Some((start, (end, other))) = self.pieces.range(bytes.clone()).next().map(|(at, piece)| (*at, *piece))
        {
            self.pieces.remove(&start);
            if end > bytes.end {
                self.pieces.insert(bytes.end, (end, other));
            }
        }
        self.pieces.insert(bytes.start, (bytes.end, sequence));
    }

    /// Whether records after this one write all of these bytes.
    fn is_written_after(&self, bytes: &Range<u64>, sequence: u64) -> bool {
        let mut at = bytes.start;
        while at < bytes.end {
            match self.pieces.range(..=at).next_back() {
                Some((_, (end, other))) if *end > at && *other > sequence => at = *end,
                _ => return false,
            }
        }
        true
    }
}

/// See above.
#[derive(Debug, Default)]
pub struct Survey {
    written: BTreeMap<ObjectId, Written>,
    pieces: usize,
    /// The last record of each file that has a size and no bytes (`TX_WRITE2`): they are in a block that an earlier record points to, maybe
    /// behind the end that the file has by then.
    sized: BTreeMap<ObjectId, u64>,
    /// The last record that points to each data block, by the block's first copy.
    last_uses: BTreeMap<(VdevId, u64), u64>,
}

/// The bytes that a record writes.
fn written(record: &LogRecord<'_>) -> Option<(ObjectId, Range<u64>)> {
    let Tx::Write(write) = &record.tx else { return None };
    let end = write.offset_bytes.checked_add(write.length_bytes)?;
    (!write.size_only && write.length_bytes > 0).then_some((write.object, write.offset_bytes..end))
}

/// The bytes of the block that a write by reference points to.
fn bytes_of_block(record: &LogRecord<'_>) -> Option<Range<u64>> {
    let Tx::Write(write) = &record.tx else { return None };
    let block_bytes = write.pointer.lsize_bytes();
    if write.data.is_some() || write.length_bytes >= block_bytes {
        return None;
    }
    let start = write.offset_bytes / block_bytes * block_bytes;
    Some(start..start.saturating_add(block_bytes).max(write.offset_bytes.saturating_add(write.length_bytes)))
}

fn place(pointer: &Blkptr) -> Option<(VdevId, u64)> {
    let is_stored = !pointer.is_hole() && !pointer.is_embedded();
    pointer.dva(0).filter(|_| is_stored).map(|dva| (dva.vdev, dva.offset_bytes))
}

impl Survey {
    /// Takes note of a block's records, in the order of the log.
    pub(crate) fn look(&mut self, link: &Link, position: &Position) {
        let Some(content) = &link.content else { return };
        for record in content.raw_records() {
            if let Ok(Some(pointer)) = record.write_pointer()
                && let Some(place) = place(&pointer)
            {
                self.last_uses.insert(place, record.sequence);
            }
        }
        for record in content.records().filter(|record| position.is_left(record)) {
            if let Tx::Write(write) = &record.tx
                && write.size_only
            {
                self.sized.insert(write.object, record.sequence);
            }
            if let Some((object, bytes)) = written(&record)
                && self.pieces < PIECES_MAX
            {
                let of = self.written.entry(object).or_default();
                let before = of.pieces.len();
                of.write(&bytes, record.sequence);
                self.pieces = self.pieces + of.pieces.len() - before;
            }
        }
    }

    /// Whether a record need not be replayed, since later ones write all that it writes.
    #[must_use]
    pub fn is_superseded(&self, record: &LogRecord<'_>) -> bool {
        let Some((object, bytes)) = written(record) else { return false };
        let bytes = bytes_of_block(record).unwrap_or(bytes);
        self.written.get(&object).is_some_and(|of| of.is_written_after(&bytes, record.sequence))
    }

    /// Whether a record after this one makes the file longer and relies on bytes that are there already.
    #[must_use]
    pub fn is_sized_after(&self, object: ObjectId, sequence: u64) -> bool {
        self.sized.get(&object).is_some_and(|last| *last > sequence)
    }

    /// The blocks that are of no use once a log block's records are replayed: itself, the data blocks that no later record points to, and
    /// what it holds of cloned ranges.
    pub(crate) fn passed(&self, link: &Link, claim_txg: cenote_format::ids::Txg) -> Vec<Blkptr> {
        let mut blocks = vec![link.pointer];
        for record in link.content.iter().flat_map(|content| content.raw_records()) {
            if let Ok(Some(pointer)) = record.write_pointer()
                && pointer.birth() >= claim_txg
                && let Some(place) = place(&pointer)
                && self.last_uses.get(&place) == Some(&record.sequence)
            {
                blocks.push(pointer);
            }
            blocks.extend(record.cloned_blocks().unwrap_or_default());
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_superseded_where_later_ones_have_all_of_its_bytes() {
        let mut file = Written::default();
        for (sequence, bytes) in [(1, 0..100), (2, 50..60), (3, 100..200), (4, 0..30), (5, 20..60)] {
            file.write(&bytes, sequence);
        }
        let is = |bytes: Range<u64>, sequence| file.is_written_after(&bytes, sequence);
        assert!(is(50..60, 2), "by the fifth");
        assert!(is(0..60, 3), "by the fourth and the fifth");
        assert!(!is(0..100, 1), "60 to 100 is its own");
        assert!(!is(100..200, 3), "its own");
        assert!(!is(0..30, 4), "0 to 20 is its own");
        assert!(!is(150..250, 1), "nobody has the end");
        assert_eq!(
            file.pieces.into_iter().collect::<Vec<_>>(),
            [(0, (20, 4)), (20, (60, 5)), (60, (100, 1)), (100, (200, 3))]
        );
    }
}
