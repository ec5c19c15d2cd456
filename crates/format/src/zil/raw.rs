//! Log records without the dataset's key: all that claiming a log and giving it up takes.

use super::records::{IGNORE_CASE, LogRecord, STRUCTURE, number};
use crate::blkptr::Blkptr;
use crate::endian::{Endian, Fields};
use crate::error::FormatError;
use crate::ids::Txg;

/// A record as far as it can be read without the dataset's key: of an encrypted one the common part and block pointers are in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord<'a> {
    number: u64,
    /// The txg that makes the operation permanent.
    pub txg: Txg,
    /// Sequence number within the objset's log.
    pub sequence: u64,
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> RawRecord<'a> {
    /// The offset of a write record's block pointer.
    const WRITE_POINTER: usize = 64;
    /// In a record of a cloned range: the offset of the number of blocks, and that of the first block pointer.
    const CLONED_COUNT: usize = 64;
    const CLONED_POINTERS: usize = 72;

    /// Reads the record at the head of `bytes`, which may hold more after it.
    pub(crate) fn parse(bytes: &'a [u8], endian: Endian) -> Result<Self, FormatError> {
        let header = Fields::new(STRUCTURE, bytes, LogRecord::HEADER_SIZE, endian)?;
        let length = header.u64(8)?;
        let bytes = usize::try_from(length)
            .ok()
            .filter(|len| *len >= LogRecord::HEADER_SIZE)
            .and_then(|len| bytes.get(..len))
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 8, "length", length, "32 up to the block's used part"))?;
        let (number, txg) = (header.u64(0)? & !IGNORE_CASE, Txg(header.u64(16)?));
        Ok(Self { number, txg, sequence: header.u64(24)?, bytes, endian })
    }

    /// Bytes of it.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The block of a write, a hole where the record has the data; `None` of other records.
    ///
    /// # Errors
    /// The record is too short for one.
    pub fn write_pointer(&self) -> Result<Option<Blkptr>, FormatError> {
        if self.number != number::WRITE {
            return Ok(None);
        }
        let fields = Fields::new(STRUCTURE, self.bytes, Self::WRITE_POINTER + Blkptr::SIZE, self.endian)?;
        Blkptr::parse(fields.slice(Self::WRITE_POINTER, Blkptr::SIZE)?, self.endian).map(Some)
    }

    /// The block pointers of a cloned range, holes and embedded ones included; empty for records of other kinds.
    ///
    /// # Errors
    /// The record is too short for the number of pointers that it states.
    pub fn cloned_blocks(&self) -> Result<Vec<Blkptr>, FormatError> {
        if self.number != number::CLONE_RANGE {
            return Ok(Vec::new());
        }
        let fields = Fields::new(STRUCTURE, self.bytes, Self::CLONED_POINTERS, self.endian)?;
        let count = fields.u64(Self::CLONED_COUNT)?;
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(Blkptr::SIZE)).unwrap_or(usize::MAX);
        let pointers = fields.slice(Self::CLONED_POINTERS, len)?;
        pointers.chunks_exact(Blkptr::SIZE).map(|bytes| Blkptr::parse(bytes, self.endian)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ObjectId;
    use crate::zil::{CloneRange, Tx, Write};

    /// A whole record and the raw one agree on what both have.
    #[test]
    fn a_write_shows_its_block() {
        let pointer = Blkptr::from_words([7; 16]);
        for data in [None, Some(vec![1, 2, 3].into())] {
            let write = Write {
                object: ObjectId(9),
                offset_bytes: 512,
                length_bytes: 3,
                block_offset: 0,
                pointer,
                data,
                size_only: false,
            };
            let record = LogRecord { txg: Txg(5), sequence: 77, ignore_case: false, tx: Tx::Write(Box::new(write)) };
            let bytes = record.emit(Endian::Little);
            let raw = RawRecord::parse(&bytes, Endian::Little).unwrap();
            assert_eq!((raw.sequence, raw.size_bytes()), (77, bytes.len()));
            assert!(raw.cloned_blocks().unwrap().is_empty());
            assert_eq!(raw.write_pointer().unwrap(), Some(pointer));
            for end in 0..bytes.len() {
                assert!(RawRecord::parse(&bytes[..end], Endian::Little).is_err(), "{end}");
            }
        }
        let record = LogRecord {
            txg: Txg(5),
            sequence: 78,
            ignore_case: true,
            tx: Tx::Remove { directory: ObjectId(1), name: b"x".into() },
        };
        let bytes = record.emit(Endian::Big);
        let raw = RawRecord::parse(&bytes, Endian::Big).unwrap();
        assert_eq!((raw.sequence, raw.write_pointer().unwrap()), (78, None));
    }

    #[test]
    fn a_cloned_range_shows_its_blocks() {
        for endian in [Endian::Little, Endian::Big] {
            let pointers: Vec<Blkptr> = (0..3).map(|word| Blkptr::from_words([word; 16])).collect();
            let range = CloneRange {
                object: ObjectId(9),
                offset_bytes: 0,
                length_bytes: 3 << 17,
                block_bytes: 1 << 17,
                pointers: pointers.clone(),
            };
            let record = LogRecord { txg: Txg(5), sequence: 7, ignore_case: false, tx: Tx::CloneRange(range) };
            let mut bytes = record.emit(endian);
            let raw = RawRecord::parse(&bytes, endian).unwrap();
            assert_eq!((raw.cloned_blocks().unwrap(), raw.write_pointer().unwrap()), (pointers, None));
            for count in [4, u64::MAX] {
                bytes[64..72].copy_from_slice(&endian.bytes64(count));
                assert!(RawRecord::parse(&bytes, endian).unwrap().cloned_blocks().is_err(), "{count}");
            }
        }
    }
}
