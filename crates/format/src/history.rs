//! The pool's history: a ring of records in one object, in which the record of the pool's creation is never overwritten.
//!
//! ```text
//! bonus   0  end of the creation record    16  logical offset of the oldest other record    32  records overwritten
//!         8  physical size of the ring     24  logical end
//!
//! data    [creation record][ ring from `create_end` to `ring_end` ............ ]
//! record  0  length (u64, little-endian always)    8  packed name-value list of that length
//! ```
//!
//! Logical offsets only grow; a logical offset from `create_end` on lies at `create_end + (offset - create_end) modulo
//! (ring_end - create_end)`. A record, and even its length, may wrap around the end.

use crate::error::{FormatError, FormatErrorKind};
use crate::words::word_struct;

const STRUCTURE: &str = "history";
/// The longest record that we read. OpenZFS bounds command lines by kilobytes and records by about 128 KiB.
pub const RECORD_MAX_BYTES: u64 = 1 << 20;

word_struct! {
    /// The bonus.
    HistoryPhys("history", 40) {
        /// Where the creation record ends and the ring begins.
        create_end: u64,
        /// Where the ring ends, physically.
        ring_end: u64,
        /// Logical offset of the oldest record in the ring.
        oldest: u64,
        /// Logical end.
        end: u64,
        /// How many records were overwritten.
        lost_count: u64,
    }
}

impl HistoryPhys {
    /// Refuses a bonus whose numbers contradict one another.
    pub fn check(&self) -> Result<(), FormatError> {
        let ring = self.ring_end.checked_sub(self.create_end).filter(|ring| *ring > 0);
        let used = self.end.checked_sub(self.oldest);
        match (ring, used) {
            (Some(ring), Some(used)) if used <= ring && self.oldest >= self.create_end => Ok(()),
            // A new pool's history: nothing written, not even the creation.
            (Some(_), Some(0)) if self.end == 0 => Ok(()),
            _ => Err(FormatError::malformed(STRUCTURE, 0, "offsets that contradict one another")),
        }
    }

    /// The physical offset of a logical one.
    #[must_use]
    pub fn physical(&self, logical: u64) -> u64 {
        match (logical.checked_sub(self.create_end), self.ring_end.checked_sub(self.create_end)) {
            (Some(offset), Some(ring)) if ring > 0 => self.create_end + offset % ring,
            _ => logical,
        }
    }

    /// The physical ranges, as offset and length, that hold the log in the order of time: the creation record, then the
    /// ring from the oldest record to the end, in one piece or two. Empty pieces are left out. Reading these and putting
    /// them together gives the bytes for [`records`].
    pub fn ranges(&self) -> Result<Vec<(u64, u64)>, FormatError> {
        self.check()?;
        let mut ranges = vec![(0, self.create_end)];
        let start = self.physical(self.oldest);
        let used = self.end - self.oldest;
        let first = used.min(self.ring_end - start);
        ranges.push((start, first));
        ranges.push((self.create_end, used - first));
        ranges.retain(|(_, len)| *len > 0);
        Ok(ranges)
    }
}

/// The records in `log`, each the bytes of a packed name-value list. Ends after the first error.
pub fn records(log: &[u8]) -> Records<'_> {
    Records { log, offset: 0 }
}

/// Walks the records of a log.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    log: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<&'a [u8], FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.log.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let at = self.offset;
        self.offset = self.log.len();
        let Some((length, body)) = rest.split_first_chunk::<8>() else {
            return Some(Err(FormatError::truncated(STRUCTURE, at + 8, self.log.len())));
        };
        let length = u64::from_le_bytes(*length);
        if length > RECORD_MAX_BYTES || length == 0 {
            let kind = FormatErrorKind::Limit { what: "record length", value: length, limit: RECORD_MAX_BYTES };
            return Some(Err(FormatError { structure: STRUCTURE, offset: at, kind }));
        }
        let Some(record) = body.get(..length as usize) else {
            return Some(Err(FormatError::truncated(STRUCTURE, at + 8 + length as usize, self.log.len())));
        };
        self.offset = at + 8 + length as usize;
        Some(Ok(record))
    }
}

/// A record ready to write: its length and the packed list.
#[must_use]
pub fn emit_record(packed: &[u8]) -> Vec<u8> {
    let mut record = (packed.len() as u64).to_le_bytes().to_vec();
    record.extend_from_slice(packed);
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endian::Endian;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_bonus_round_trips(bytes in proptest::collection::vec(any::<u8>(), 40), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let phys = HistoryPhys::parse(&bytes, endian).unwrap();
            prop_assert_eq!(&phys.emit(endian)[..], &bytes[..]);
            let _ = phys.ranges();
        }

        #[test]
        fn a_ring_reads_back_in_the_order_of_time(lengths in proptest::collection::vec(1_usize..60, 1..30)) {
            // A small ring, written as the format says, oldest records giving way.
            let create = emit_record(&[0xcc; 10]);
            let ring = 200_u64;
            let mut phys = HistoryPhys {
                create_end: create.len() as u64,
                ring_end: create.len() as u64 + ring,
                oldest: create.len() as u64,
                end: create.len() as u64,
                lost_count: 0,
            };
            let mut disk = vec![0; phys.ring_end as usize];
            disk[..create.len()].copy_from_slice(&create);
            let mut model = std::collections::VecDeque::new();
            for (index, length) in lengths.iter().enumerate() {
                let packed = vec![index as u8; *length];
                let record = emit_record(&packed);
                while ring - (phys.end - phys.oldest) <= record.len() as u64 {
                    let lost: Vec<u8> = model.pop_front().unwrap();
                    phys.oldest += lost.len() as u64 + 8;
                    phys.lost_count += 1;
                }
                for (offset, byte) in record.iter().enumerate() {
                    disk[phys.physical(phys.end + offset as u64) as usize] = *byte;
                }
                phys.end += record.len() as u64;
                model.push_back(packed);
                let log: Vec<u8> = phys.ranges().unwrap().iter()
                    .flat_map(|(offset, len)| disk[*offset as usize..(offset + len) as usize].to_vec()).collect();
                let mut found = records(&log).map(|record| record.unwrap().to_vec());
                prop_assert_eq!(found.next(), Some(vec![0xcc; 10]));
                prop_assert_eq!(found.collect::<Vec<_>>(), Vec::from(model.clone()));
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = records(&bytes).count();
        }
    }

    #[test]
    fn contradicting_offsets_are_refused() {
        let phys = HistoryPhys { create_end: 10, ring_end: 110, oldest: 10, end: 100, lost_count: 0 };
        assert!(phys.check().is_ok());
        assert!(HistoryPhys { end: 111, ..phys.clone() }.check().is_err());
        assert!(HistoryPhys { oldest: 101, ..phys.clone() }.check().is_err());
        assert!(HistoryPhys { ring_end: 10, ..phys.clone() }.check().is_err());
        assert!(HistoryPhys { create_end: 0, ring_end: 110, oldest: 0, end: 0, lost_count: 0 }.check().is_ok());
    }
}
