//! The dedup tables: for each checksum algorithm, the blocks that were written with dedup.
//!
//! ```text
//! key     (5 words)   checksum (4), then: bits 0-15 logical sectors - 1, 16-31 physical sectors - 1,
//!                     32-38 compression, 39 encrypted
//! value   traditional (256 bytes): 4 times [ 3 DVAs (6 words), reference count, birth txg ], one for each number of copies
//!         flat (72 bytes):         3 DVAs, reference count, birth txg, time of the first reference in its class (seconds)
//! ```
//!
//! A table is a ZAP with keys of words (64-bit hashes; prehashed where the checksum is strong), one for each class
//! (`ditto`, `duplicate`, `unique`). A ZAP value is bytes: one that says how the rest is packed, then the value:
//!
//! ```text
//! bit 7   the words are little-endian
//! bits 0-6  compression: 14 zle, else stored as it is
//! ```
//!
//! With the feature `fast_dedup` (flat values) changes go to a log first: an object whose bonus is [`DdtLogHeader`] and
//! whose blocks hold records one after another, each of a word (bits 0-7 type, 8-23 length in bytes, 48-55 table type,
//! 56-63 class), a key and a value. A record of type 0 ends the block.

use crate::blkptr::{Blkptr, Dva};
use crate::dmu_type::DmuType;
use crate::endian::{Endian, Fields, put_u64};
use crate::enums::Checksum;
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::Txg;
use crate::words::{DiskField, fixed_struct, word_struct, words_to_bytes};

/// Classes of tables, and the names that their objects' names end in.
pub const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
/// Types of tables, likewise.
pub const TYPES: [&str; 1] = ["zap"];
/// Names in the directory of a checksum's dedup objects.
pub mod directory {
    /// The version: 0 traditional, 1 with a directory.
    pub const VERSION: &str = "version";
    /// Flags: 1 flat values, 2 log.
    pub const FLAGS: &str = "flags";
}

const COMPRESS_LITTLE_ENDIAN: u8 = 0x80;
const COMPRESS_MASK: u8 = 0x7f;

fixed_struct! {
    /// A key.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    DdtKey {
        /// The block's checksum.
        0 checksum: [u64; 4],
        /// The properties, packed.
        32 properties: u64,
    }
}

impl DdtKey {
    /// Number of words.
    pub const WORDS: usize = 5;
    /// The properties that stand in a block pointer in the same place: sizes and compression.
    const SHARED_PROPERTIES: u64 = (1 << 39) - 1;

    /// The key of a block; the checksum's algorithm says in which table.
    #[must_use]
    pub fn of(bp: &Blkptr) -> Self {
        Self::new(bp.checksum_words(), bp.lsize_bytes(), bp.psize_bytes(), bp.compress_number(), bp.uses_crypt())
    }

    /// From the words of a ZAP key.
    pub fn from_words(words: &[u64]) -> Result<Self, FormatError> {
        let [a, b, c, d, properties] = *words else {
            return Err(FormatError::truncated("ddt key", Self::WORDS * 8, words.len() * 8));
        };
        Ok(Self { checksum: [a, b, c, d], properties })
    }

    /// Packs the properties. Sizes are multiples of 512 up to 32 MiB, not 0.
    #[must_use]
    pub fn new(checksum: [u64; 4], lsize_bytes: u64, psize_bytes: u64, compress: u8, encrypted: bool) -> Self {
        let sectors = |bytes: u64| (bytes >> 9).saturating_sub(1) & 0xffff;
        let properties = sectors(lsize_bytes)
            | sectors(psize_bytes) << 16
            | u64::from(compress & COMPRESS_MASK) << 32
            | u64::from(encrypted) << 39;
        Self { checksum, properties }
    }

    /// The words of a ZAP key.
    #[must_use]
    pub fn words(&self) -> [u64; Self::WORDS] {
        let [a, b, c, d] = self.checksum;
        [a, b, c, d, self.properties]
    }

    /// Logical size.
    #[must_use]
    pub const fn lsize_bytes(&self) -> u64 {
        ((self.properties & 0xffff) + 1) << 9
    }

    /// Physical size.
    #[must_use]
    pub const fn psize_bytes(&self) -> u64 {
        (((self.properties >> 16) & 0xffff) + 1) << 9
    }

    /// The compression's number.
    #[must_use]
    pub const fn compress_number(&self) -> u8 {
        (self.properties >> 32) as u8 & COMPRESS_MASK
    }

    /// Whether the block is encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.properties >> 39 & 1 == 1
    }
}

fixed_struct! {
    /// One set of copies of a block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    DdtCopies {
        /// The words of three DVAs. An encrypted block's third pair is no DVA but its salt and the upper words of its IV, as
        /// in a block pointer.
        0 dva_words: [[u64; 2]; 3],
        /// How often the block is referenced.
        48 reference_count: u64,
        /// The txg in which it was written.
        56 physical_birth: Txg,
    }
}

impl DdtCopies {
    /// Where the copies are; `key` tells whether the block is encrypted.
    pub fn dvas(&self, key: &DdtKey) -> impl Iterator<Item = Dva> + use<> {
        let count = if key.is_encrypted() { 2 } else { 3 };
        self.dva_words.into_iter().take(count).filter_map(Dva::from_words)
    }

    /// Whether a pointer means this set: its first copy is the same, of the same birth. The entry of a block may be one of
    /// later data of the same checksum, where the block's own was pruned.
    #[must_use]
    pub fn are_of(&self, bp: &Blkptr) -> bool {
        let [first, ..] = self.dva_words;
        self.physical_birth.0 != 0 && bp.words()[..2] == first && bp.physical_birth() == self.physical_birth
    }

    /// A pointer to all copies, for freeing them: it has no dedup bit.
    #[must_use]
    pub fn blkptr(&self, key: &DdtKey, checksum: Checksum) -> Blkptr {
        let mut words = *Blkptr::HOLE.words();
        for (at, copy) in words.chunks_exact_mut(2).zip(&self.dva_words) {
            at.copy_from_slice(copy);
        }
        words[6] = key.properties & DdtKey::SHARED_PROPERTIES;
        let mut bp = Blkptr::from_words(words);
        bp.set_checksum(checksum);
        bp.set_dmu_type(DmuType::DEDUP);
        bp.set_crypt(key.is_encrypted());
        bp.set_byte_order(Endian::Little);
        bp.set_births(self.physical_birth, self.physical_birth);
        bp.set_checksum_words(key.checksum);
        bp
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DdtPhys {
    /// One set for each value of `copies`: index 0 for the old "ditto" copies, then 1 to 3.
    Traditional(Box<[DdtCopies; 4]>),
    /// One set.
    Flat {
        /// The copies.
        copies: DdtCopies,
        /// When the block entered its class, in seconds.
        class_start: u64,
    },
}

impl DdtPhys {
    /// Size of the traditional form.
    pub const TRADITIONAL_SIZE_BYTES: usize = 256;
    /// Size of the flat form.
    pub const FLAT_SIZE_BYTES: usize = 72;

    /// Reads a value; its length tells the form.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new("ddt entry", bytes, Self::FLAT_SIZE_BYTES, endian)?;
        match bytes.len() {
            Self::FLAT_SIZE_BYTES => {
                Ok(Self::Flat { copies: DiskField::read(&fields, 0)?, class_start: fields.u64(64)? })
            }
            Self::TRADITIONAL_SIZE_BYTES => Ok(Self::Traditional(Box::new(DiskField::read(&fields, 0)?))),
            other => Err(FormatError::invalid("ddt entry", 0, "size", other as u64, "72 or 256 bytes")),
        }
    }

    /// Writes a value.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> Vec<u8> {
        let mut bytes = vec![0; Self::TRADITIONAL_SIZE_BYTES];
        match self {
            Self::Traditional(copies) => copies.write(&mut bytes, 0, endian),
            Self::Flat { copies, class_start } => {
                copies.write(&mut bytes, 0, endian);
                put_u64(&mut bytes, 64, *class_start, endian);
                bytes.truncate(Self::FLAT_SIZE_BYTES);
            }
        }
        bytes
    }

    /// The reference counts added up.
    #[must_use]
    pub(crate) fn reference_count(&self) -> u64 {
        match self {
            Self::Traditional(copies) => {
                copies.iter().fold(0_u64, |sum, copy| sum.saturating_add(copy.reference_count))
            }
            Self::Flat { copies, .. } => copies.reference_count,
        }
    }
}

/// How the value of a table's ZAP entry is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdtPacked<'a> {
    /// The compression's number; 14 is zle, and what has no decompressor is stored as it is.
    pub compress_number: u8,
    /// The order of the words once decompressed.
    pub endian: Endian,
    /// The rest.
    pub payload: &'a [u8],
}

impl<'a> DdtPacked<'a> {
    /// Parts the first byte from the rest.
    pub fn parse(value: &'a [u8]) -> Result<Self, FormatError> {
        let (first, payload) = value.split_first().ok_or_else(|| FormatError::truncated("ddt entry", 1, 0))?;
        let endian = if first & COMPRESS_LITTLE_ENDIAN == 0 { Endian::Big } else { Endian::Little };
        Ok(Self { compress_number: first & COMPRESS_MASK, endian, payload })
    }

    /// The value to store.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let order = if self.endian == Endian::Little { COMPRESS_LITTLE_ENDIAN } else { 0 };
        let mut value = vec![self.compress_number & COMPRESS_MASK | order];
        value.extend_from_slice(self.payload);
        value
    }
}

word_struct! {
    /// The bonus of a dedup log.
    DdtLogHeader("ddt log", 64) {
        /// Bits 0-7 the version, 1; bits 8-15 flags: 1 being flushed, 2 has a checkpoint.
        info: u64,
        /// Length of the log in bytes.
        length_bytes: u64,
        /// The txg in which it became the active one.
        first_txg: Txg,
        /// Keys up to this one have been flushed.
        checkpoint: DdtKey,
    }
}

impl DdtLogHeader {
    /// The version.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.info as u8
    }

    /// Whether the log is being flushed to the tables.
    #[must_use]
    pub const fn is_flushing(&self) -> bool {
        self.info >> 8 & 1 == 1
    }

    /// The checkpoint, if there is one.
    #[must_use]
    pub fn checkpoint(&self) -> Option<DdtKey> {
        (self.info >> 8 & 2 == 2).then_some(self.checkpoint)
    }
}

/// A record of a dedup log: the latest state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtLogRecord {
    /// Index into [`TYPES`] of the table that has the entry; as many as there are, if none has.
    pub table_type: u8,
    /// Index into [`CLASSES`], likewise.
    pub class: u8,
    /// The key.
    pub key: DdtKey,
    /// The value.
    pub phys: DdtPhys,
}

impl DdtLogRecord {
    const HEADER_BYTES: usize = 8 + 8 * DdtKey::WORDS;
    const TYPE_ENTRY: u64 = 1;

    /// Writes the record.
    #[must_use]
    pub(crate) fn emit(&self, endian: Endian) -> Vec<u8> {
        let phys = self.phys.emit(endian);
        let mut bytes = vec![0; Self::HEADER_BYTES];
        let length = (bytes.len() + phys.len()) as u64;
        let info = Self::TYPE_ENTRY | length << 8 | u64::from(self.table_type) << 48 | u64::from(self.class) << 56;
        put_u64(&mut bytes, 0, info, endian);
        self.key.write(&mut bytes, 8, endian);
        bytes.extend_from_slice(&phys);
        bytes
    }
}

/// Walks the records of one block of a log. Ends after the first error.
#[derive(Clone, Debug)]
pub struct DdtLogRecords<'a> {
    fields: Fields<'a>,
    offset: usize,
}

impl<'a> DdtLogRecords<'a> {
    /// Over a whole block.
    pub fn new(block: &'a [u8], endian: Endian) -> Result<Self, FormatError> {
        Ok(Self { fields: Fields::new("ddt log record", block, 0, endian)?, offset: 0 })
    }

    fn read(&self, info: u64) -> Result<(usize, DdtLogRecord), FormatError> {
        let kind = info & 0xff;
        if kind != DdtLogRecord::TYPE_ENTRY {
            return Err(self.fields.error(self.offset, FormatErrorKind::Unsupported("dedup log record type")));
        }
        let length = (info >> 8 & 0xffff) as usize;
        let body = length.checked_sub(DdtLogRecord::HEADER_BYTES).ok_or_else(|| {
            FormatError::invalid("ddt log record", self.offset, "length", length as u64, "at least 48")
        })?;
        let key = DdtKey::read(&self.fields, self.offset + 8)?;
        let phys = self.fields.slice(self.offset + DdtLogRecord::HEADER_BYTES, body)?;
        let phys = DdtPhys::parse(phys, self.fields.endian())?;
        let record = DdtLogRecord { table_type: (info >> 48) as u8, class: (info >> 56) as u8, key, phys };
        Ok((self.offset + length, record))
    }
}

impl Iterator for DdtLogRecords<'_> {
    type Item = Result<DdtLogRecord, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Less than a word left, or a word of type 0, is the end of what was written to the block.
        let info = self.fields.u64(self.offset).ok().filter(|info| info & 0xff != 0)?;
        let result = self.read(info);
        Some(match result {
            Ok((next, record)) => {
                self.offset = next;
                Ok(record)
            }
            Err(error) => {
                self.offset = usize::MAX;
                Err(error)
            }
        })
    }
}

word_struct! {
    /// A bucket of a table's statistics: blocks referenced about `2^n` times.
    DdtStat("ddt statistics", 64) {
        /// Blocks.
        block_count: u64,
        /// Their logical bytes.
        lsize_bytes: u64,
        /// Their physical bytes.
        psize_bytes: u64,
        /// Their bytes on disk.
        dsize_bytes: u64,
        /// References to them.
        reference_count: u64,
        /// Logical bytes, counted once a reference.
        referenced_lsize_bytes: u64,
        /// Physical bytes, likewise.
        referenced_psize_bytes: u64,
        /// Bytes on disk, likewise.
        referenced_dsize_bytes: u64,
    }
}

impl DdtStat {
    /// No blocks, no references.
    pub const NOTHING: Self = Self {
        block_count: 0,
        lsize_bytes: 0,
        psize_bytes: 0,
        dsize_bytes: 0,
        reference_count: 0,
        referenced_lsize_bytes: 0,
        referenced_psize_bytes: 0,
        referenced_dsize_bytes: 0,
    };

    /// Adds what another bucket counts.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    /// Takes away what another bucket counts.
    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, u64::saturating_sub);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        self.block_count = with(self.block_count, other.block_count);
        self.lsize_bytes = with(self.lsize_bytes, other.lsize_bytes);
        self.psize_bytes = with(self.psize_bytes, other.psize_bytes);
        self.dsize_bytes = with(self.dsize_bytes, other.dsize_bytes);
        self.reference_count = with(self.reference_count, other.reference_count);
        self.referenced_lsize_bytes = with(self.referenced_lsize_bytes, other.referenced_lsize_bytes);
        self.referenced_psize_bytes = with(self.referenced_psize_bytes, other.referenced_psize_bytes);
        self.referenced_dsize_bytes = with(self.referenced_dsize_bytes, other.referenced_dsize_bytes);
    }
}

/// The buckets of a value of `DDT-statistics`, as [`parse_histogram`] reads them.
#[must_use]
pub fn emit_histogram(buckets: &[DdtStat]) -> Vec<u64> {
    let bytes: Vec<u8> = buckets.iter().flat_map(|bucket| bucket.emit(Endian::Little)).collect();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// The 64 buckets in a value of the ZAP `DDT-statistics`, an array of 512 words named as the table's object.
pub fn parse_histogram(words: &[u64]) -> Result<Vec<DdtStat>, FormatError> {
    const WORDS: usize = 512;
    if words.len() != WORDS {
        return Err(FormatError::truncated("ddt statistics", WORDS * 8, words.len() * 8));
    }
    words_to_bytes(words).chunks_exact(DdtStat::SIZE_BYTES).map(|bytes| DdtStat::parse(bytes, Endian::Little)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::Compress;
    use proptest::prelude::*;

    fn any_endian() -> impl Strategy<Value = Endian> {
        any::<bool>().prop_map(|big| if big { Endian::Big } else { Endian::Little })
    }

    proptest! {
        #[test]
        fn values_round_trip(bytes in proptest::collection::vec(any::<u8>(), 256), endian in any_endian(), flat in any::<bool>()) {
            let bytes = &bytes[..if flat { 72 } else { 256 }];
            let phys = DdtPhys::parse(bytes, endian).unwrap();
            prop_assert_eq!(&phys.emit(endian)[..], bytes);
            let again = DdtPhys::parse(&phys.emit(endian.swapped()), endian.swapped()).unwrap();
            prop_assert_eq!(phys, again);
            prop_assert!(DdtPhys::parse(&bytes[1..], endian).is_err());
        }

        #[test]
        fn keys_round_trip(checksum in any::<[u64; 4]>(), lsize in 1_u64..=0x1_0000, psize in 1_u64..=0x1_0000, compress in 0_u8..0x80, encrypted in any::<bool>()) {
            let key = DdtKey::new(checksum, lsize << 9, psize << 9, compress, encrypted);
            prop_assert_eq!(key.lsize_bytes(), lsize << 9);
            prop_assert_eq!(key.psize_bytes(), psize << 9);
            prop_assert_eq!(key.compress_number(), compress);
            prop_assert_eq!(key.is_encrypted(), encrypted);
            prop_assert_eq!(DdtKey::from_words(&key.words()).unwrap(), key);
        }

        #[test]
        fn log_blocks_round_trip(
            seeds in proptest::collection::vec((any::<[u64; 5]>(), any::<[u8; 72]>(), 0_u8..3), 0..8),
            endian in any_endian(),
        ) {
            let records: Vec<_> = seeds.iter().map(|(words, bytes, class)| DdtLogRecord {
                table_type: 0,
                class: *class,
                key: DdtKey::from_words(words).unwrap(),
                phys: DdtPhys::parse(bytes, endian).unwrap(),
            }).collect();
            let mut block: Vec<u8> = records.iter().flat_map(|record| record.emit(endian)).collect();
            for slack in [0, 4, 8, 200] {
                block.resize(seeds.len() * 120 + slack, 0);
                let found: Vec<_> =
                    DdtLogRecords::new(&block, endian).unwrap().map(Result::unwrap).collect();
                prop_assert_eq!(&found, &records);
            }
        }

        #[test]
        fn any_log_block_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(DdtLogRecords::new(&bytes, Endian::Big).unwrap().count() <= 4);
        }
    }

    /// Words as a little-endian machine stores them.
    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_log_of_openzfs_reads_as_zdb_tells_it() {
        // The first records of a log that ztest of OpenZFS 2.3 left: an encrypted block of 512 KiB, another of 256 KiB.
        let block = bytes(&[
            0x0301_0000_0000_7801,
            0xfeba_9c91_55b8_3fa6,
            0x8c33_7970_2442_418c,
            0x9fe8_868d_05f0_6950,
            0xd48f_c11a_f833_5246,
            0x90_0000_03ff,
            0x3_0000_0001,
            0x2_05ee,
            0x4_0000_0001,
            0x2ff,
            0x07c8_9fee_003f_8e80,
            0xde13_2051_c8a3_9e99,
            0,
            0x6b,
            0x6af0_b9a7,
            0x0301_0000_0000_7801,
            0xb347_9989_1742_ef14,
            0xd0da_44e0_b71b_85e8,
            0xcd55_d260_bc91_3d2a,
            0xd878_6daa_e656_9ccd,
            0x90_0000_01ff,
            0x3_0000_0001,
            0x2_07b1,
            0x4_0000_0001,
            0x4bc,
            0xfae0_ca4e_594c_50ca,
            0x975d_f019_8b82_6b8f,
            0,
            0x6c,
            0x6b01_66f3,
            0,
            0,
        ]);
        let records: Vec<_> = DdtLogRecords::new(&block, Endian::Little).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(records.len(), 2);
        let record = &records[0];
        assert_eq!(record.emit(Endian::Little), block[..120]);
        assert_eq!((record.key.lsize_bytes(), record.key.psize_bytes()), (0x80000, 0x200));
        assert_eq!((record.key.compress_number(), record.key.is_encrypted()), (16, true));
        let DdtPhys::Flat { copies, .. } = &record.phys else { panic!("a flat value") };
        assert_eq!((copies.reference_count, copies.physical_birth), (0, Txg(107)));
        let dvas: Vec<_> =
            copies.dvas(&record.key).map(|dva| (dva.vdev.0, dva.offset_bytes, dva.asize_bytes)).collect();
        assert_eq!(dvas, [(3, 0x40b_dc00, 0x200), (4, 0x5_fe00, 0x200)]);
        assert_eq!((usize::from(record.table_type), usize::from(record.class)), (TYPES.len(), CLASSES.len()));
    }

    #[test]
    fn an_entry_leads_to_its_block() {
        let key = DdtKey::new([1, 2, 3, 4], 0x2000, 0x600, Compress::Lz4.number(), false);
        let dva_words = [[0x4_0000_0003, 0x180], [0x1_0000_0003, 0x80], [0, 0]];
        let copies = DdtCopies { dva_words, reference_count: 2, physical_birth: Txg(106) };
        let mut bp = copies.blkptr(&key, Checksum::Sha256);
        assert!(bp.verify().is_ok() && !bp.dedup() && !bp.is_embedded());
        assert_eq!((bp.lsize_bytes(), bp.psize_bytes(), bp.compress()), (0x2000, 0x600, Some(Compress::Lz4)));
        assert_eq!((bp.dvas().count(), bp.level(), bp.checksum()), (2, 0, Some(Checksum::Sha256)));
        assert_eq!(DdtKey::of(&bp), key);
        assert!(copies.are_of(&bp));
        // A clone's logical birth is later.
        bp.set_births(Txg(200), Txg(106));
        assert!(copies.are_of(&bp));
        bp.set_births(Txg(200), Txg(107));
        assert!(!copies.are_of(&bp) && !DdtCopies::default().are_of(&Blkptr::HOLE));
    }

    #[test]
    fn a_flat_entry_of_openzfs_reads_as_zdb_tells_it() {
        let key = DdtKey::from_words(&[
            0x08a7_e077_f129_8557,
            0xb891_3d3f_ce16_af6b,
            0x2eb9_21f2_2ca2_24e3,
            0x3187_5109_dc36_84db,
            0x10_0002_0003,
        ])
        .unwrap();
        assert_eq!((key.lsize_bytes(), key.psize_bytes(), key.compress_number()), (0x800, 0x600, 16));
        let mut value = vec![0x82];
        value.extend(bytes(&[0x4_0000_0003, 0x180, 0, 0, 0, 0, 1, 0x6a, 0x6afb_4ff2]));
        let packed = DdtPacked::parse(&value).unwrap();
        assert_eq!((packed.compress_number, packed.endian), (2, Endian::Little));
        let phys = DdtPhys::parse(packed.payload, packed.endian).unwrap();
        let DdtPhys::Flat { copies, class_start } = &phys else { panic!("a flat value") };
        assert_eq!((copies.reference_count, copies.physical_birth, *class_start), (1, Txg(106), 0x6afb_4ff2));
        let dvas: Vec<_> = copies.dvas(&key).map(|dva| (dva.vdev.0, dva.offset_bytes, dva.asize_bytes)).collect();
        assert_eq!(dvas, [(4, 0x3_0000, 0x600)]);
    }

    /// ZLE as dedup tables use it: a byte below 64 is followed by that many bytes and one; others stand for zeros.
    fn unpack(source: &[u8]) -> Vec<u8> {
        let mut target = Vec::new();
        let mut at = 0;
        while at < source.len() {
            let count = usize::from(source[at]) + 1;
            at += 1;
            if count <= 64 {
                target.extend_from_slice(&source[at..at + count]);
                at += count;
            } else {
                target.resize(target.len() + count - 64, 0);
            }
        }
        target
    }

    #[test]
    fn a_traditional_entry_of_openzfs_unpacks_to_four_sets() {
        let value =
            [0x8e, 0x7f, 0x00, 0x01, 0x46, 0x02, 0xdb, 0x63, 0x09, 0x64, 0x00, 0x01, 0x46, 0x01, 0x07, 0x01, 0xc5];
        let packed = DdtPacked::parse(&value).unwrap();
        assert_eq!((packed.compress_number, packed.endian), (14, Endian::Little));
        let phys = DdtPhys::parse(&unpack(packed.payload), packed.endian).unwrap();
        let DdtPhys::Traditional(sets) = &phys else { panic!("a traditional value") };
        assert_eq!(phys.reference_count(), 1);
        // One copy: the second set, as the first is for what used to be "ditto" copies.
        assert_eq!(sets[1].reference_count, 1);
        let key = DdtKey::new([0; 4], 0x2000, 0x200, 5, false);
        assert_eq!(key.properties, 0x5_0000_000f);
        let dvas: Vec<_> = sets[1].dvas(&key).map(|dva| (dva.vdev.0, dva.asize_bytes)).collect();
        assert_eq!(dvas, [(0, 0x200)]);
        assert!(sets[2..].iter().all(|set| *set == DdtCopies::default()));
    }

    #[test]
    fn packed_values_say_their_order_and_compression() {
        let packed = DdtPacked::parse(&[0x8e, 1, 2]).unwrap();
        assert_eq!(packed, DdtPacked { compress_number: 14, endian: Endian::Little, payload: &[1, 2] });
        assert_eq!(packed.emit(), [0x8e, 1, 2]);
        assert_eq!(DdtPacked::parse(&[2]).unwrap().endian, Endian::Big);
        assert!(DdtPacked::parse(&[]).is_err());
    }

    #[test]
    fn statistics_have_64_buckets() {
        let words: Vec<u64> = (0..512).collect();
        let buckets = parse_histogram(&words).unwrap();
        assert_eq!(buckets.len(), 64);
        assert_eq!(buckets[63].block_count, 504);
        assert_eq!(emit_histogram(&buckets), words);
        assert!(parse_histogram(&words[1..]).is_err());
    }
}
