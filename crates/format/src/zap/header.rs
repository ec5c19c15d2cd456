//! A fat ZAP's block 0 and its pointer table.
//!
//! ```text
//!  0  block type 0x8000000000000001      56  first never-used block
//!  8  magic 0x2F52AB2AB                   64  number of leaves
//! 16  table: first block (0: embedded)   72  number of entries
//! 24  table: number of blocks            80  salt
//! 32  table: shift                       88  normflags
//! 40  table: first block of larger copy  96  flags
//! 48  table: blocks copied so far       104  unused to the middle of the block
//!
//! block/2 ..  the embedded table: 2^(block shift - 4) block numbers of 64 bits
//! ```
//!
//! The table has `2^shift` entries, each the block number of the leaf for the hashes that begin with its index. It lives
//! in block 0 until it outgrows it, then in blocks of its own, each doubling of which happens in steps: a copy of twice
//! the size is made block by block over many transactions, and until the last block is copied the *old* table is the one
//! to read. Writers keep both up to date, so a reader never needs the copy.

use super::{BLOCK_TYPE_HEADER, HEADER_MAGIC, NormFlags, ZapFlags, ZapHasher};
use crate::endian::{Endian, Fields, put_u64};
use crate::error::{FormatError, FormatErrorKind};
use crate::words::{DiskField, fixed_struct};

const STRUCTURE: &str = "zap header";
const OFFSET_MAGIC: usize = 8;
const OFFSET_TABLE: usize = 16;
const OFFSET_WORDS: usize = OFFSET_TABLE + PointerTable::BYTES;
const HEADER_SIZE_BYTES: usize = OFFSET_WORDS + 48;

/// The embedded table's shift is the block's shift less this: half the block, 8 bytes an entry.
pub const EMBEDDED_TABLE_SHIFT_LESS: u32 = 4;

/// The smallest block a fat ZAP can have so that the header does not reach into the embedded table.
const BLOCK_SHIFT_MIN: u32 = 9;
/// The largest block of any object.
const BLOCK_SHIFT_MAX: u32 = 24;

fixed_struct! {
    /// The pointer table's place and state.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    PointerTable {
        /// First block of an external table; 0 while embedded.
        0 block: u64,
        /// Number of blocks of an external table; 0 while embedded.
        8 block_count: u64,
        /// Bits of the hash that index it.
        16 shift: u64,
        /// First block of the larger copy in the making; 0 if none.
        24 next_block: u64,
        /// How many of the old table's blocks have been copied.
        32 blocks_copied: u64,
    }
}

/// A fat ZAP's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatHeader {
    /// The base-2 logarithm of the ZAP's block size, which is the size of block 0.
    pub block_shift: u32,
    /// The pointer table.
    pub table: PointerTable,
    /// The first block that was never used.
    pub free_block: u64,
    /// Number of leaves.
    pub leaf_count: u64,
    /// Number of entries.
    pub entry_count: u64,
    /// The salt of the hash.
    pub salt: u64,
    /// How names are normalised.
    pub norm_flags: NormFlags,
    /// Kind of keys and hash.
    pub flags: ZapFlags,
}

/// Where the block number of a hash's leaf is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerPlace {
    /// In block 0, at this offset.
    Embedded {
        /// Offset in bytes.
        offset: usize,
    },
    /// In another block of the object.
    External {
        /// The block's number.
        block: u64,
        /// Offset in bytes within it.
        offset: usize,
    },
}

/// The index of `hash` in a table of `2^shift` entries.
#[must_use]
pub const fn hash_index(hash: u64, shift: u32) -> u64 {
    if shift == 0 { 0 } else { hash >> (64 - shift) }
}

/// Fills `target`, twice as long as `source`, with each pointer of `source` twice: the table after doubling.
/// Both hold 64-bit words; the order does not matter as long as it is the same. Panics if the lengths do not fit.
pub fn double_pointers(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len() * 2, target.len());
    for (word, pair) in source.chunks_exact(8).zip(target.chunks_exact_mut(16)) {
        pair[..8].copy_from_slice(word);
        pair[8..].copy_from_slice(word);
    }
}

impl FatHeader {
    /// The header of a new fat ZAP: an embedded table all of whose pointers name block 1, the only leaf.
    #[must_use]
    pub fn new(block_shift: u32, salt: u64, norm_flags: NormFlags, flags: ZapFlags) -> Self {
        assert!((BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&block_shift));
        assert_ne!(salt, 0);
        Self {
            block_shift,
            table: PointerTable {
                shift: u64::from(block_shift - EMBEDDED_TABLE_SHIFT_LESS),
                ..PointerTable::default()
            },
            free_block: 2,
            leaf_count: 1,
            entry_count: 0,
            salt,
            norm_flags,
            flags,
        }
    }

    /// Reads block 0. `block` must be the whole block, since its size is the ZAP's block size.
    pub fn parse(block: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, block, HEADER_SIZE_BYTES, endian)?;
        let found = fields.u64(0)?;
        if found != BLOCK_TYPE_HEADER {
            return Err(fields.error(0, FormatErrorKind::BadMagic { found, expected: BLOCK_TYPE_HEADER }));
        }
        let found = fields.u64(OFFSET_MAGIC)?;
        if found != HEADER_MAGIC {
            return Err(fields.error(OFFSET_MAGIC, FormatErrorKind::BadMagic { found, expected: HEADER_MAGIC }));
        }
        let block_shift = block.len().ilog2();
        if !block.len().is_power_of_two() || !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&block_shift) {
            return Err(FormatError::invalid(
                STRUCTURE,
                0,
                "block size",
                block.len() as u64,
                "a power of two from 512 bytes to 16 MiB",
            ));
        }
        let [free_block, leaf_count, entry_count, salt, norm_flags, flags]: [u64; 6] =
            DiskField::read(&fields, OFFSET_WORDS)?;
        let header = Self {
            block_shift,
            table: DiskField::read(&fields, OFFSET_TABLE)?,
            free_block,
            leaf_count,
            entry_count,
            salt,
            norm_flags: NormFlags::from_bits_retain(norm_flags),
            flags: ZapFlags::from_bits_retain(flags),
        };
        header.check_table()?;
        Ok(header)
    }

    fn check_table(&self) -> Result<(), FormatError> {
        let shift = self.table.shift;
        let shift_error = |rule| FormatError::invalid(STRUCTURE, OFFSET_TABLE + 16, "pointer table shift", shift, rule);
        if self.table.block_count == 0 {
            if shift != u64::from(self.block_shift - EMBEDDED_TABLE_SHIFT_LESS) {
                return Err(shift_error("an embedded table fills half the block"));
            }
            return Ok(());
        }
        if shift > u64::from(self.hasher().bits()) {
            return Err(shift_error("no more bits than the hash has"));
        }
        // 2^shift pointers of 8 bytes fill exactly the table's blocks.
        let table_bytes = 8_u128 << shift;
        if table_bytes != u128::from(self.table.block_count) << self.block_shift {
            return Err(shift_error("the table fills its blocks"));
        }
        if self.table.block == 0 || self.table.block.checked_add(self.table.block_count).is_none() {
            return Err(FormatError::invalid(
                STRUCTURE,
                OFFSET_TABLE,
                "pointer table block",
                self.table.block,
                "an external table has a place",
            ));
        }
        Ok(())
    }

    /// Writes the header's fields over the first bytes of block 0; the embedded table is left alone.
    pub fn emit_into(&self, block: &mut [u8], endian: Endian) {
        assert_eq!(block.len(), 1 << self.block_shift);
        [BLOCK_TYPE_HEADER, HEADER_MAGIC].write(block, 0, endian);
        self.table.write(block, OFFSET_TABLE, endian);
        let counts = [self.free_block, self.leaf_count, self.entry_count];
        let (norm_flags, flags) = (self.norm_flags.bits(), self.flags.bits());
        [counts, [self.salt, norm_flags, flags]].write(block, OFFSET_WORDS, endian);
    }

    /// Block 0 of a new ZAP, with every embedded pointer set to block 1.
    #[must_use]
    pub fn emit_new(&self, endian: Endian) -> Vec<u8> {
        let mut block = vec![0; 1 << self.block_shift];
        self.emit_into(&mut block, endian);
        for index in 0..self.embedded_count() {
            put_u64(&mut block, self.embedded_offset(index), 1, endian);
        }
        block
    }

    /// The hash function of this ZAP.
    #[must_use]
    pub fn hasher(&self) -> ZapHasher {
        ZapHasher::new(self.salt, self.flags)
    }

    /// The size of every block of this ZAP.
    #[must_use]
    pub fn block_size_bytes(&self) -> usize {
        1 << self.block_shift
    }

    /// Whether the pointer table is in block 0.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.table.block_count == 0
    }

    /// Number of pointers in the table in force.
    #[must_use]
    pub fn pointer_count(&self) -> u64 {
        1 << self.table.shift
    }

    fn embedded_count(&self) -> usize {
        1 << (self.block_shift - EMBEDDED_TABLE_SHIFT_LESS)
    }

    fn embedded_offset(&self, index: usize) -> usize {
        (1 << (self.block_shift - 1)) + index * 8
    }

    /// Where the pointer with `index` (below [`Self::pointer_count`]) lies.
    #[must_use]
    pub fn index_place(&self, index: u64) -> PointerPlace {
        if self.is_embedded() {
            let offset = self.embedded_offset(index as usize & (self.embedded_count() - 1));
            return PointerPlace::Embedded { offset };
        }
        let per_block_shift = self.block_shift - 3;
        let block = self.table.block.wrapping_add(index >> per_block_shift);
        let offset = (index & ((1 << per_block_shift) - 1)) as usize * 8;
        PointerPlace::External { block, offset }
    }

    /// Where the pointer to the leaf for `hash` lies.
    #[must_use]
    pub fn pointer_place(&self, hash: u64) -> PointerPlace {
        self.index_place(hash_index(hash, self.table.shift as u32))
    }

    /// Reads the pointer at `offset` of `block`, the block that [`Self::pointer_place`] named. 0 means "no leaf" and, like
    /// a number past the blocks ever used, is an error.
    pub fn leaf_block(&self, block: &[u8], offset: usize, endian: Endian) -> Result<u64, FormatError> {
        let fields = Fields::new("zap pointer table", block, 8, endian)?;
        let leaf = fields.u64(offset)?;
        if leaf == 0 || leaf >= self.free_block {
            let rule = "a leaf lies between block 0 and the first block never used";
            return Err(FormatError::invalid("zap pointer table", offset, "leaf block", leaf, rule));
        }
        Ok(leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = FatHeader> {
        (9_u32..18, any::<[u64; 6]>(), 0_u64..8, 0_u32..3).prop_map(|(block_shift, words, flags, grown)| {
            let mut header = FatHeader::new(
                block_shift,
                words[0] | 1,
                NormFlags::from_bits_retain(words[1]),
                ZapFlags::from_bits_retain(flags),
            );
            header.free_block = words[2];
            header.leaf_count = words[3];
            header.entry_count = words[4];
            if grown > 0 {
                let block_count = 1_u64 << (grown - 1);
                header.table = PointerTable {
                    block: (words[5] >> 1) | 1,
                    block_count,
                    shift: u64::from(block_shift - 3 + grown - 1),
                    next_block: 7,
                    blocks_copied: block_count / 2,
                };
            }
            header
        })
    }

    proptest! {
        #[test]
        fn headers_round_trip_in_both_orders(header in any_header()) {
            for endian in [Endian::Little, Endian::Big] {
                let block = header.emit_new(endian);
                prop_assert_eq!(FatHeader::parse(&block, endian).unwrap(), header.clone());
                prop_assert!(FatHeader::parse(&block, endian.swapped()).is_err());
            }
        }
    }

    #[test]
    fn the_embedded_table_is_the_second_half_of_block_0() {
        let header = FatHeader::new(14, 1, NormFlags::empty(), ZapFlags::empty());
        let block = header.emit_new(Endian::Big);
        assert_eq!(header.pointer_place(0), PointerPlace::Embedded { offset: 8192 });
        assert_eq!(header.pointer_place(u64::MAX), PointerPlace::Embedded { offset: 16384 - 8 });
        assert_eq!(header.leaf_block(&block, 16384 - 8, Endian::Big), Ok(1));
        assert!(header.leaf_block(&block, 16384, Endian::Big).is_err());
        assert!(header.leaf_block(&block, 8, Endian::Big).is_err());
    }

    #[test]
    fn an_external_table_is_indexed_by_block_and_offset() {
        let mut header = FatHeader::new(14, 1, NormFlags::empty(), ZapFlags::empty());
        header.table = PointerTable { block: 5, block_count: 2, shift: 12, next_block: 9, blocks_copied: 1 };
        header.check_table().unwrap();
        assert_eq!(header.pointer_place(u64::MAX), PointerPlace::External { block: 6, offset: 16384 - 8 });
        header.table.shift = 13;
        assert!(header.check_table().is_err());
        header.table.shift = u64::MAX;
        assert!(header.check_table().is_err());
    }

    #[test]
    fn doubling_repeats_each_pointer() {
        let mut target = [0; 32];
        let source: Vec<u8> = (0..16).collect();
        double_pointers(&source, &mut target);
        assert_eq!(target[..8], target[8..16]);
        assert_eq!(target[..8], source[..8]);
        assert_eq!(target[16..24], source[8..]);
    }
}
