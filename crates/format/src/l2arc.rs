//! Cache devices (OpenZFS's persistent L2ARC): the header of a device, and the log blocks that say which blocks it has.
//!
//! ```text
//!   0      4 MiB     +sector                                                     end of the device's space
//!   +------+---------+---------------------------------------------------------------+----------+
//!   |labels| header  | blocks | log | blocks | log |  (free)  | blocks | log | blocks | 2 labels |
//!   +------+---------+---------------------------------------------------------------+----------+
//!               │ two newest      ▲              ▲  ▲ hand     ▲ evict
//!               └─────────────────┴──────────────┘
//!   header, 512 bytes: words 0 magic, 1 version, 2 pool guid, 3 device guid, 4 entries of a log block, 5 evict, 6 flags, 7 start, 8 end,
//!   9..17 and 17..25 pointers to the newest log blocks, 25 bytes and 26 number of log blocks, 27 time and 28 state of the last trim.
//!   Its checksum (`label`, for offset 4 MiB) is in the last 40 bytes of the device's first sector behind the labels.
//!   pointer, 8 words: 0 offset, 1 bytes of the blocks it tells of, 2 offset of the first of these, 3 properties, 4..8 checksum (fletcher4)
//!   log block, 64 KiB: word 0 magic, 1..9 pointer to the log block before the one before, 16.. entries of 8 words; stored with lz4
//!   entry: words 0, 1 DVA, 2 birth txg, 3 properties, 4 offset, 5 level of compression
//!   properties: 16 bits logical and 16 bits physical size in sectors of 512 bytes, less one; 7 bits compression, 1 bit prefetched;
//!   8 bits checksum; 8 bits contents (1 data, 2 metadata); 1 bit encrypted or authenticated; 4 bits list of the ARC
//! ```
//! Log blocks form two chains, each of every other one, so that two can be read at a time. Offsets count from the beginning of the device.

use crate::blkptr::Dva;
use crate::endian::Endian;
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::{Guid, Txg};
use crate::words::{DiskField as _, fixed_struct, word_struct};

/// The magic number of a header: "ZFSCACHE".
const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// The magic number of a log block: "LOGBLKHD".
const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// The version of header and log blocks.
pub const VERSION: u64 = 1;
/// Entries of a log block at most.
pub const LOG_ENTRIES_MAX: usize = 1022;
/// Bytes of a log block before compression.
pub const LOG_BYTES: usize = ENTRIES_OFFSET + LOG_ENTRIES_MAX * ENTRY_BYTES;
/// Where a log block's entries begin.
const ENTRIES_OFFSET: usize = 128;
/// Bytes of an entry, its unused words included.
const ENTRY_BYTES: usize = 64;
/// A flag of the header: the device is filled for the first time.
pub const FIRST_SWEEP: u64 = 1;
/// The unit of sizes.
const SECTOR_SHIFT: u32 = 9;

const _: () = assert!(LOG_BYTES == 64 << 10);

/// A field of a word.
const fn bits(word: u64, at: u32, len: u32) -> u64 {
    (word >> at) & ((1 << len) - 1)
}

/// A size in the field of 16 bits at `at`.
const fn size_of_prop(word: u64, at: u32) -> u64 {
    (bits(word, at, 16) + 1) << SECTOR_SHIFT
}

fn size_to_prop(size_bytes: u64, at: u32) -> u64 {
    assert!(size_bytes > 0 && size_bytes.is_multiple_of(1 << SECTOR_SHIFT), "a size is in sectors");
    let sectors = (size_bytes >> SECTOR_SHIFT) - 1;
    assert!(sectors < 1 << 16, "a size fits its field");
    sectors << at
}

fixed_struct! {
    /// A pointer to a log block (`l2arc_log_blkptr`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    LogPointer {
        /// Where the log block is, in bytes from the device's beginning; 0: nowhere.
        0 offset_bytes: u64,
        /// Bytes on the device of the blocks that it tells of.
        8 payload_bytes: u64,
        /// Where the first of them is, in bytes.
        16 payload_start_bytes: u64,
        /// Sizes and algorithms: [`LogPointer::size_bytes`], [`LogPointer::compress_number`].
        24 properties: u64,
        /// The checksum of the log block as it is stored (fletcher4).
        32 checksum: [u64; 4],
    }
}

impl LogPointer {
    /// The properties of a log block that takes `size_bytes` on the device, with numbers of compression and checksum.
    ///
    /// # Panics
    /// The size is no multiple of 512 bytes, or more than 32 MiB.
    #[must_use]
    pub fn properties_of(size_bytes: u64, compress: u8, checksum: u8) -> u64 {
        assert!(compress < 1 << 7, "an algorithm's number fits its field");
        size_to_prop(LOG_BYTES as u64, 0)
            | size_to_prop(size_bytes, 16)
            | u64::from(compress) << 32
            | u64::from(checksum) << 40
    }

    /// Bytes that the log block takes on the device.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        size_of_prop(self.properties, 16)
    }

    /// The number of its compression.
    #[must_use]
    pub const fn compress_number(&self) -> u8 {
        bits(self.properties, 32, 7) as u8
    }
}

word_struct! {
    /// The header of a cache device (`l2arc_dev_hdr_phys`), without its checksum.
    #[derive(Default)]
    CacheHeader("cache device header", 472) {
        /// The magic number.
        magic: u64,
        /// [`VERSION`].
        version: u64,
        /// The pool.
        pool_guid: Guid,
        /// The device.
        device_guid: Guid,
        /// Entries of each log block; 0: there are none.
        log_entries: u64,
        /// All that is ahead of the last log block up to here is void.
        evict_bytes: u64,
        /// [`FIRST_SWEEP`].
        flags: u64,
        /// Where blocks begin.
        start_bytes: u64,
        /// Where they end.
        end_bytes: u64,
        /// The newest log block, and the one before.
        newest: [LogPointer; 2],
        /// Bytes that all log blocks take.
        logs_bytes: u64,
        /// How many there are.
        logs: u64,
        /// When the device was trimmed, in seconds since 1970.
        trim_time_s: u64,
        /// How far that came.
        trim_state: u64,
    }
}

impl CacheHeader {
    /// Reads the header from the first 472 bytes, in the order that its magic number tells. The checksum is not looked at.
    ///
    /// # Errors
    /// Too few bytes, or another magic number.
    pub fn parse_any(bytes: &[u8]) -> Result<Self, FormatError> {
        Self::parse(bytes, order_of("cache device header", bytes, HEADER_MAGIC)?)
    }

    /// Puts the header into the beginning of a sector; the checksum is the caller's.
    ///
    /// # Panics
    /// The sector is shorter than 512 bytes.
    pub fn emit_into(&self, sector: &mut [u8]) {
        let fields = Self { magic: HEADER_MAGIC, version: VERSION, ..self.clone() };
        sector[..Self::SIZE_BYTES].copy_from_slice(&fields.emit(Endian::Little));
    }
}

fn order_of(structure: &'static str, bytes: &[u8], magic: u64) -> Result<Endian, FormatError> {
    let Some(word) = bytes.first_chunk::<8>() else { return Err(FormatError::truncated(structure, 8, bytes.len())) };
    match u64::from_le_bytes(*word) {
        found if found == magic => Ok(Endian::Little),
        found if found == magic.swap_bytes() => Ok(Endian::Big),
        found => Err(FormatError { structure, offset: 0, kind: FormatErrorKind::BadMagic { found, expected: magic } }),
    }
}

/// A block on a cache device (`l2arc_log_ent_phys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedBlock {
    /// The first copy in the pool.
    pub dva: Dva,
    /// The txg in which that was written.
    pub birth: Txg,
    /// Bytes of the logical block.
    pub lsize_bytes: u64,
    /// Bytes of the physical block, as it is in the pool.
    pub psize_bytes: u64,
    /// The number of its compression.
    pub compress: u8,
    /// It is metadata, not contents of files or volumes.
    pub is_metadata: bool,
    /// It is encrypted or authenticated.
    pub is_protected: bool,
    /// Where it is, in bytes from the device's beginning.
    pub offset_bytes: u64,
}

/// `ARC_STATE_MRU`: the list of the ARC that a block was on.
const ARC_STATE_RECENT: u64 = 1;

impl CachedBlock {
    fn emit_at(&self, bytes: &mut [u8], at: usize) {
        let properties = size_to_prop(self.lsize_bytes, 0)
            | size_to_prop(self.psize_bytes, 16)
            | u64::from(self.compress) << 32
            | (1 + u64::from(self.is_metadata)) << 48
            | u64::from(self.is_protected) << 56
            | ARC_STATE_RECENT << 57;
        let dva = self.dva.words();
        let words = [dva[0], dva[1], self.birth.0, properties, self.offset_bytes];
        words.write(bytes, at, Endian::Little);
    }

    fn of_words(words: [u64; 5]) -> Option<Self> {
        let properties = words[3];
        Some(Self {
            dva: Dva::from_words([words[0], words[1]])?,
            birth: Txg(words[2]),
            lsize_bytes: size_of_prop(properties, 0),
            psize_bytes: size_of_prop(properties, 16),
            compress: bits(properties, 32, 7) as u8,
            is_metadata: bits(properties, 48, 8) == 2,
            is_protected: bits(properties, 56, 1) != 0,
            offset_bytes: words[4],
        })
    }
}

/// A log block (`l2arc_log_blk_phys`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBlock {
    /// The log block before the one before.
    pub previous: LogPointer,
    /// The blocks that it tells of, in the order of writing; those whose places cannot be are left out.
    pub blocks: Vec<CachedBlock>,
}

impl LogBlock {
    /// Reads the log block, of which `entries` are used, in the order that its magic number tells.
    ///
    /// # Errors
    /// Too few bytes, or another magic number.
    pub fn parse(bytes: &[u8], entries: usize) -> Result<Self, FormatError> {
        const NAME: &str = "cache device log block";
        let endian = order_of(NAME, bytes, LOG_MAGIC)?;
        let fields = crate::endian::Fields::new(NAME, bytes, LOG_BYTES, endian)?;
        let previous = LogPointer::read(&fields, 8)?;
        let mut blocks = Vec::with_capacity(entries.min(LOG_ENTRIES_MAX));
        for index in 0..entries.min(LOG_ENTRIES_MAX) {
            let words = <[u64; 5]>::read(&fields, ENTRIES_OFFSET + index * ENTRY_BYTES)?;
            blocks.extend(CachedBlock::of_words(words));
        }
        Ok(Self { previous, blocks })
    }

    /// The bytes, before compression.
    ///
    /// # Panics
    /// There are more than [`LOG_ENTRIES_MAX`] blocks, or a size that no block has.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        assert!(self.blocks.len() <= LOG_ENTRIES_MAX, "a log block has room for its entries");
        let mut bytes = vec![0; LOG_BYTES];
        LOG_MAGIC.write(&mut bytes, 0, Endian::Little);
        self.previous.write(&mut bytes, 8, Endian::Little);
        for (index, block) in self.blocks.iter().enumerate() {
            block.emit_at(&mut bytes, ENTRIES_OFFSET + index * ENTRY_BYTES);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::VdevId;

    fn block(seed: u64) -> CachedBlock {
        CachedBlock {
            dva: Dva {
                vdev: VdevId((seed % 7) as u32),
                offset_bytes: (seed % (1 << 40)) << 9,
                asize_bytes: (seed % 8191 + 1) << 9,
                gang: seed.is_multiple_of(5),
            },
            birth: Txg(seed >> 3),
            lsize_bytes: (seed % 32768 + 1) << 9,
            psize_bytes: (seed % 1000 + 1) << 9,
            compress: (seed % 17) as u8,
            is_metadata: seed.is_multiple_of(2),
            is_protected: seed.is_multiple_of(3),
            offset_bytes: (seed % (1 << 54)) << 9,
        }
    }

    /// All words of a structure, turned round: as a machine of the other order writes it.
    fn turned(bytes: &[u8]) -> Vec<u8> {
        bytes.as_chunks::<8>().0.iter().flat_map(|word| word.iter().rev().copied()).collect()
    }

    #[test]
    fn places_are_those_of_the_original() {
        let header = CacheHeader { logs: 7, trim_state: 9, ..CacheHeader::default() };
        let mut sector = vec![0; 512];
        header.emit_into(&mut sector);
        assert_eq!(&sector[..8], b"EHCACSFZ");
        assert_eq!((sector[26 * 8], sector[28 * 8]), (7, 9));
        let log = LogBlock { previous: LogPointer::default(), blocks: vec![block(3)] };
        let bytes = log.emit();
        assert_eq!((bytes.len(), &bytes[..8]), (65536, &b"DHKLBGOL"[..]));
    }

    proptest! {
        #[test]
        fn headers_and_log_blocks_round_trip_in_both_orders(seeds in prop::collection::vec(any::<u64>(), 0..40)) {
            let pointer = LogPointer {
                offset_bytes: 1 << 30,
                payload_bytes: 1 << 20,
                payload_start_bytes: 5 << 20,
                properties: LogPointer::properties_of(4096, 15, 7),
                checksum: [1, 2, 3, u64::MAX],
            };
            prop_assert_eq!((pointer.size_bytes(), pointer.compress_number()), (4096, 15));
            let log = LogBlock { previous: pointer, blocks: seeds.iter().copied().map(block).collect() };
            let bytes = log.emit();
            prop_assert_eq!(LogBlock::parse(&bytes, seeds.len()).unwrap(), log.clone());
            prop_assert_eq!(LogBlock::parse(&turned(&bytes), seeds.len()).unwrap(), log);
            let header = CacheHeader {
                pool_guid: Guid(5),
                newest: [pointer, LogPointer::default()],
                evict_bytes: 1 << 33,
                ..CacheHeader::default()
            };
            let mut sector = vec![0; 4096];
            header.emit_into(&mut sector);
            let read = CacheHeader::parse_any(&sector).unwrap();
            prop_assert_eq!((read.newest, read.pool_guid, read.evict_bytes), (header.newest, header.pool_guid, 1 << 33));
            prop_assert_eq!(CacheHeader::parse_any(&turned(&sector)).unwrap(), read);
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..700), entries in 0_usize..3000) {
            let _ = CacheHeader::parse_any(&bytes);
            let mut log = LogBlock { previous: LogPointer::default(), blocks: Vec::new() }.emit();
            log[8..8 + bytes.len()].copy_from_slice(&bytes);
            prop_assert!(LogBlock::parse(&log, entries).unwrap().blocks.len() <= LOG_ENTRIES_MAX);
            let _ = LogBlock::parse(&bytes, entries);
        }
    }
}
