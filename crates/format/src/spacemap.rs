//! Space maps: logs of allocations and frees, one for each metaslab, dirty-time log, checkpoint and so on.
//!
//! The object's bonus holds its summary:
//!
//! ```text
//!  0  object number (unused since long)    16  allocated bytes (signed)    64  histogram: 32 counts of free runs
//!  8  length of the log in bytes           24  5 words unused                  by power of two (not in the oldest pools)
//! ```
//!
//! and its data is an array of 64-bit words:
//!
//! ```text
//! debug      10 | action 2 | sync pass 10 | txg 50
//! one-word   0  | offset 47 | type 1 | run - 1 15
//! two-word   11 | unused 2 | run - 1 36 | vdev 24,   then   type 1 | offset 63
//! ```
//!
//! Offsets and runs count units of the vdev's ashift from the map's start; type 0 is an allocation, 1 a free. A debug
//! entry stands before each batch and tells its txg; one of all zeros pads a block so that no two-word entry crosses a
//! block's end. Two-word entries need `com.delphix:spacemap_v2`; with a vdev number they form log space maps, which hold
//! one txg's changes of all metaslabs of all vdevs.

use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::{Txg, VdevId};
use crate::words::DiskField;

const STRUCTURE: &str = "space map";
const OFFSET_LENGTH: usize = 8;
const OFFSET_ALLOCATED: usize = 16;
const OFFSET_HISTOGRAM: usize = 64;

/// Number of buckets of the histogram.
pub const HISTOGRAM_BUCKETS: usize = 32;
/// Bonus size in pools without histograms.
pub const SPACE_MAP_SIZE_V0_BYTES: usize = 24;
/// Bonus size with histogram.
pub const SPACE_MAP_SIZE_BYTES: usize = OFFSET_HISTOGRAM + 8 * HISTOGRAM_BUCKETS;

const OFFSET_BITS: u32 = 47;
const RUN_BITS: u32 = 15;
const RUN2_BITS: u32 = 36;
const VDEV_BITS: u32 = 24;
const PASS_BITS: u32 = 10;
const TXG_BITS: u32 = 50;
const PREFIX_DEBUG: u64 = 0b10;
const PREFIX_TWO_WORDS: u64 = 0b11;

/// The longest run of a one-word entry, in units.
pub const RUN_MAX: u64 = 1 << RUN_BITS;
/// The longest run of a two-word entry, in units.
pub const RUN2_MAX: u64 = 1 << RUN2_BITS;

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The summary in the bonus area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceMapPhys {
    /// The object's own number, in pools that wrote it.
    pub object: u64,
    /// Length of the log in bytes.
    pub length_bytes: u64,
    /// Bytes allocated according to the log.
    pub allocated_bytes: i64,
    /// Counts of free runs by size: bucket `i` those of at least `2^i` units and less than twice that. `None` in pools
    /// that did not store it.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

impl SpaceMapPhys {
    /// Reads a bonus area of any of its sizes: 24 bytes, or more without a whole histogram, or 320.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, bonus, SPACE_MAP_SIZE_V0_BYTES, endian)?;
        let length_bytes = fields.u64(OFFSET_LENGTH)?;
        if !length_bytes.is_multiple_of(8) {
            return Err(FormatError::invalid(STRUCTURE, OFFSET_LENGTH, "length", length_bytes, "whole words"));
        }
        let has_histogram = bonus.len() >= SPACE_MAP_SIZE_BYTES;
        let histogram = has_histogram.then(|| DiskField::read(&fields, OFFSET_HISTOGRAM)).transpose()?;
        Ok(Self {
            object: fields.u64(0)?,
            length_bytes,
            allocated_bytes: fields.u64(OFFSET_ALLOCATED)? as i64,
            histogram,
        })
    }

    /// The bonus area: 24 bytes without, 320 with a histogram.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> Vec<u8> {
        let size = if self.histogram.is_some() { SPACE_MAP_SIZE_BYTES } else { SPACE_MAP_SIZE_V0_BYTES };
        let mut bonus = vec![0; size];
        put_u64(&mut bonus, 0, self.object, endian);
        put_u64(&mut bonus, OFFSET_LENGTH, self.length_bytes, endian);
        put_u64(&mut bonus, OFFSET_ALLOCATED, self.allocated_bytes as u64, endian);
        if let Some(histogram) = &self.histogram {
            histogram.write(&mut bonus, OFFSET_HISTOGRAM, endian);
        }
        bonus
    }
}

/// Whether space was taken or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceMapType {
    /// Allocated.
    Alloc,
    /// Freed.
    Free,
}

impl SpaceMapType {
    const fn from_bit(bit: u64) -> Self {
        if bit & 1 == 0 { Self::Alloc } else { Self::Free }
    }

    const fn bit(self) -> u64 {
        self as u64
    }
}

/// One range in units of the map's shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceMapEntry {
    /// Taken or given back.
    pub kind: SpaceMapType,
    /// The vdev field, which only two-word entries have. It means something in log space maps alone: elsewhere OpenZFS
    /// leaves 0 there.
    pub vdev: Option<VdevId>,
    /// First unit, counted from the map's start.
    pub offset_units: u64,
    /// Number of units; not 0.
    pub run_units: u64,
}

impl SpaceMapEntry {
    /// The range in bytes, as start and end, of a map of units of `2^shift` bytes that covers `size_bytes` from
    /// `start_bytes`. Fails if it does not lie within.
    pub fn range_bytes(&self, start_bytes: u64, size_bytes: u64, shift: u32) -> Result<(u64, u64), FormatError> {
        let outside = || {
            let rule = "within the space map's range";
            FormatError::invalid(STRUCTURE, 0, "entry offset", self.offset_units, rule)
        };
        let scale = |units: u64| {
            let bytes = units.checked_shl(shift)?;
            (bytes >> shift == units).then_some(bytes)
        };
        let offset = scale(self.offset_units).ok_or_else(outside)?;
        let run = scale(self.run_units).ok_or_else(outside)?;
        if offset.checked_add(run).is_none_or(|end| end > size_bytes) {
            return Err(outside());
        }
        let start = start_bytes.checked_add(offset).ok_or_else(outside)?;
        Ok((start, start.checked_add(run).ok_or_else(outside)?))
    }
}

/// One record of a space map, decoded from its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceMapRecord {
    /// The entries that follow are of this txg. All zero: padding.
    Debug {
        /// The action of the batch (0 allocate, 1 free), in pools that record it.
        action: u8,
        /// The sync pass.
        sync_pass: u16,
        /// The txg's lower 50 bits.
        txg: Txg,
    },
    /// A range.
    Entry(SpaceMapEntry),
}

impl SpaceMapRecord {
    /// The word that pads a block before a two-word entry.
    pub(crate) const PADDING: Self = Self::Debug { action: 0, sync_pass: 0, txg: Txg(0) };

    /// The words of this record: one, or two if the entry names a vdev or needs the room.
    ///
    /// Fails if a number is too large even for two words. The caller knows whether the pool has `spacemap_v2`; see
    /// [`SpaceMapWriter`].
    pub fn words(&self) -> Result<(u64, Option<u64>), FormatError> {
        match *self {
            Self::Debug { action, sync_pass, txg } => {
                let word = PREFIX_DEBUG << 62
                    | (u64::from(action) & 3) << 60
                    | (u64::from(sync_pass) & low(PASS_BITS)) << TXG_BITS
                    | txg.0 & low(TXG_BITS);
                Ok((word, None))
            }
            Self::Entry(entry) => {
                if entry.run_units == 0 {
                    return Err(FormatError::invalid(STRUCTURE, 0, "run", 0, "not zero"));
                }
                let run = entry.run_units - 1;
                let fits_one = entry.vdev.is_none() && run < RUN_MAX && entry.offset_units <= low(OFFSET_BITS);
                if fits_one {
                    let word = entry.offset_units << (RUN_BITS + 1) | entry.kind.bit() << RUN_BITS | run;
                    return Ok((word, None));
                }
                if run >= RUN2_MAX {
                    return Err(FormatError::invalid(STRUCTURE, 0, "run", entry.run_units, "at most 2^36 units"));
                }
                if entry.offset_units > low(63) {
                    let rule = "below 2^63 units";
                    return Err(FormatError::invalid(STRUCTURE, 0, "offset", entry.offset_units, rule));
                }
                let vdev = match entry.vdev {
                    Some(vdev) if u64::from(vdev.0) > low(VDEV_BITS) => {
                        let rule = "a vdev id has 24 bits";
                        return Err(FormatError::invalid(STRUCTURE, 0, "vdev", u64::from(vdev.0), rule));
                    }
                    Some(vdev) => u64::from(vdev.0),
                    // OpenZFS stores 0 when there is no vdev: 2^24 (`SM_NO_VDEVID`) cut to 24 bits.
                    None => 0,
                };
                let first = PREFIX_TWO_WORDS << 62 | run << VDEV_BITS | vdev;
                Ok((first, Some(entry.kind.bit() << 63 | entry.offset_units)))
            }
        }
    }
}

/// Reads records from the log's bytes: all of it, or any run of whole blocks. Ends after the first error.
#[derive(Clone, Debug)]
pub struct SpaceMapRecords<'a> {
    bytes: &'a [u8],
    endian: Endian,
    offset: usize,
}

impl<'a> SpaceMapRecords<'a> {
    /// Over `bytes`, which the caller has cut to the log's length.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, endian, offset: 0 }
    }

    fn word(&mut self) -> Option<u64> {
        let bytes = self.bytes.get(self.offset..)?.first_chunk::<8>()?;
        self.offset += 8;
        Some(self.endian.u64(*bytes))
    }
}

impl Iterator for SpaceMapRecords<'_> {
    type Item = Result<SpaceMapRecord, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let at = self.offset;
        let Some(word) = self.word() else {
            self.offset = self.bytes.len();
            return Some(Err(FormatError::truncated(STRUCTURE, at.saturating_add(8), self.bytes.len())));
        };
        let record = match word >> 62 {
            PREFIX_DEBUG => SpaceMapRecord::Debug {
                action: (word >> 60) as u8 & 3,
                sync_pass: ((word >> TXG_BITS) & low(PASS_BITS)) as u16,
                txg: Txg(word & low(TXG_BITS)),
            },
            PREFIX_TWO_WORDS => {
                let Some(second) = self.word() else {
                    self.offset = self.bytes.len();
                    let what = "a two-word entry cut in the middle";
                    return Some(Err(FormatError::malformed(STRUCTURE, at, what)));
                };
                SpaceMapRecord::Entry(SpaceMapEntry {
                    kind: SpaceMapType::from_bit(second >> 63),
                    vdev: Some(VdevId((word & low(VDEV_BITS)) as u32)),
                    offset_units: second & low(63),
                    run_units: ((word >> VDEV_BITS) & low(RUN2_BITS)) + 1,
                })
            }
            _ => SpaceMapRecord::Entry(SpaceMapEntry {
                kind: SpaceMapType::from_bit(word >> RUN_BITS),
                vdev: None,
                offset_units: word >> (RUN_BITS + 1),
                run_units: (word & low(RUN_BITS)) + 1,
            }),
        };
        Some(Ok(record))
    }
}

/// Appends records to a log: chooses the form of each, breaks long runs, pads block ends.
#[derive(Clone, Debug)]
pub struct SpaceMapWriter {
    block_size_bytes: usize,
    position_bytes: u64,
    two_words: bool,
    endian: Endian,
    bytes: Vec<u8>,
}

impl SpaceMapWriter {
    /// Begins at `position_bytes`, the present length of the log, in an object with blocks of `block_size_bytes` (a
    /// multiple of 16). `two_words`: whether `spacemap_v2` is active.
    #[must_use]
    pub fn new(position_bytes: u64, block_size_bytes: usize, two_words: bool, endian: Endian) -> Self {
        assert!(block_size_bytes >= 16);
        assert_eq!(block_size_bytes % 16, 0);
        Self { block_size_bytes, position_bytes, two_words, endian, bytes: Vec::new() }
    }

    /// The bytes to write at the position given to [`Self::new`]; the log grows by their length.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The entry that opens a batch.
    pub fn debug(&mut self, kind: SpaceMapType, sync_pass: u16, txg: Txg) {
        let record = SpaceMapRecord::Debug { action: kind.bit() as u8, sync_pass, txg };
        // A debug record is one word whatever its numbers.
        if let Ok((word, _)) = record.words() {
            self.push(word);
        }
    }

    /// A range, as one or more entries.
    pub fn entry(&mut self, entry: SpaceMapEntry) -> Result<(), FormatError> {
        let needs_two = entry.vdev.is_some() || entry.run_units > RUN_MAX || entry.offset_units > low(OFFSET_BITS);
        let two = needs_two && self.two_words;
        if !two && entry.vdev.is_some() {
            return Err(FormatError::malformed(STRUCTURE, 0, "a vdev needs two-word entries"));
        }
        let run_max = if two { RUN2_MAX } else { RUN_MAX };
        let mut offset_units = entry.offset_units;
        let mut left = entry.run_units;
        while left > 0 {
            let run_units = left.min(run_max);
            let piece = SpaceMapEntry { offset_units, run_units, ..entry };
            self.piece(piece, two)?;
            left -= run_units;
            offset_units = offset_units.checked_add(run_units).ok_or_else(|| {
                FormatError::invalid(STRUCTURE, 0, "offset", entry.offset_units, "the run ends below 2^64")
            })?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: SpaceMapEntry, two: bool) -> Result<(), FormatError> {
        let (first, second) = SpaceMapRecord::Entry(piece).words()?;
        let Some(second) = second else {
            self.push(first);
            return Ok(());
        };
        if !two {
            let rule = "below 2^47 units without spacemap_v2";
            return Err(FormatError::invalid(STRUCTURE, 0, "offset", piece.offset_units, rule));
        }
        let end = self.position_bytes + self.bytes.len() as u64;
        if end % self.block_size_bytes as u64 == self.block_size_bytes as u64 - 8
            && let Ok((padding, _)) = SpaceMapRecord::PADDING.words()
        {
            self.push(padding);
        }
        self.push(first);
        self.push(second);
        Ok(())
    }

    fn push(&mut self, word: u64) {
        self.bytes.extend_from_slice(&self.endian.bytes64(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_entry() -> impl Strategy<Value = SpaceMapEntry> {
        (any::<bool>(), proptest::option::of(0_u32..1 << 24), 0_u32..63, any::<u64>(), 1_u32..38, any::<u64>())
            .prop_map(|(free, vdev, offset_bits, offset, run_bits, run)| SpaceMapEntry {
                kind: if free { SpaceMapType::Free } else { SpaceMapType::Alloc },
                vdev: vdev.map(VdevId),
                offset_units: offset & low(offset_bits.min(62)),
                run_units: (run & low(run_bits)) + 1,
            })
    }

    proptest! {
        #[test]
        fn the_bonus_round_trips(words in any::<[u64; 35]>(), with in any::<bool>(), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut histogram = [0; HISTOGRAM_BUCKETS];
            histogram.copy_from_slice(&words[3..]);
            let phys = SpaceMapPhys {
                object: words[0],
                length_bytes: words[1] & !7,
                allocated_bytes: words[2] as i64,
                histogram: with.then_some(histogram),
            };
            prop_assert_eq!(SpaceMapPhys::parse(&phys.emit(endian), endian).unwrap(), phys);
        }

        #[test]
        fn entries_survive_the_writer_whole_and_within_blocks(
            entries in proptest::collection::vec(any_entry(), 0..40),
            start in 0_u64..64,
            big in any::<bool>(),
        ) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut writer = SpaceMapWriter::new(start * 8, 128, true, endian);
            writer.debug(SpaceMapType::Free, 2, Txg(77));
            for entry in &entries {
                writer.entry(*entry).unwrap();
            }
            let bytes = writer.into_bytes();
            // Put the pieces together again.
            let mut found: Vec<SpaceMapEntry> = Vec::new();
            let mut records = SpaceMapRecords::new(&bytes, endian);
            prop_assert_eq!(
                records.next(),
                Some(Ok(SpaceMapRecord::Debug { action: 1, sync_pass: 2, txg: Txg(77) }))
            );
            let mut expected = entries.iter();
            let mut current = expected.next().copied();
            while let Some(record) = records.next() {
                let SpaceMapRecord::Entry(piece) = record.unwrap() else { continue };
                let want = current.as_mut().unwrap();
                prop_assert_eq!(piece.kind, want.kind);
                prop_assert_eq!(piece.offset_units, want.offset_units);
                prop_assert!(piece.run_units <= want.run_units);
                if let Some(vdev) = want.vdev {
                    prop_assert_eq!(piece.vdev, Some(vdev));
                }
                if piece.vdev.is_some() {
                    // The two words lie in one block.
                    let end = start * 8 + records.offset as u64;
                    prop_assert_eq!((end - 16) / 128, (end - 1) / 128);
                }
                want.offset_units += piece.run_units;
                want.run_units -= piece.run_units;
                if want.run_units == 0 {
                    current = expected.next().copied();
                }
                found.push(piece);
            }
            prop_assert!(current.is_none());
        }

        #[test]
        fn any_words_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), shift in 0_u32..80) {
            for record in SpaceMapRecords::new(&bytes, Endian::Little).flatten() {
                if let SpaceMapRecord::Entry(entry) = record {
                    let _ = entry.range_bytes(1 << 40, 1 << 30, shift);
                }
            }
        }
    }

    #[test]
    fn one_word_is_used_where_it_suffices() {
        let entry = |offset_units, run_units, vdev| {
            SpaceMapRecord::Entry(SpaceMapEntry { kind: SpaceMapType::Free, vdev, offset_units, run_units }).words()
        };
        assert_eq!(entry(3, 5, None).unwrap(), (3 << 16 | 1 << 15 | 4, None));
        assert!(entry(3, RUN_MAX, None).unwrap().1.is_none());
        assert!(entry(3, RUN_MAX + 1, None).unwrap().1.is_some());
        assert!(entry(1 << 47, 1, None).unwrap().1.is_some());
        assert_eq!(entry(3, 5, Some(VdevId(9))).unwrap(), (0b11 << 62 | 4 << 24 | 9, Some(1 << 63 | 3)));
        assert!(entry(3, 0, None).is_err());
        assert!(entry(1 << 63, 1, None).is_err());
        assert!(entry(3, RUN2_MAX + 1, None).is_err());
        assert!(entry(3, 1, Some(VdevId(1 << 24))).is_err());
    }

    #[test]
    fn ranges_outside_the_map_are_errors() {
        let entry = SpaceMapEntry { kind: SpaceMapType::Alloc, vdev: None, offset_units: 6, run_units: 2 };
        assert_eq!(entry.range_bytes(1 << 20, 8 << 12, 12), Ok(((1 << 20) + (6 << 12), (1 << 20) + (8 << 12))));
        assert!(entry.range_bytes(1 << 20, (8 << 12) - 1, 12).is_err());
        assert!(entry.range_bytes(u64::MAX - 5, u64::MAX, 12).is_err());
        assert!(entry.range_bytes(0, u64::MAX, 63).is_err());
        assert!(entry.range_bytes(0, u64::MAX, 64).is_err());
    }

    #[test]
    fn a_log_cut_in_an_entry_is_an_error() {
        let bytes = Endian::Little.bytes64(0b11 << 62);
        let mut records = SpaceMapRecords::new(&bytes, Endian::Little);
        assert!(records.next().unwrap().is_err());
        assert!(records.next().is_none());
        assert!(SpaceMapRecords::new(&bytes[..5], Endian::Little).next().unwrap().is_err());
    }

    #[test]
    fn without_two_words_long_runs_are_broken_up() {
        let mut writer = SpaceMapWriter::new(0, 4096, false, Endian::Little);
        let entry =
            SpaceMapEntry { kind: SpaceMapType::Alloc, vdev: None, offset_units: 0, run_units: 3 * RUN_MAX + 1 };
        writer.entry(entry).unwrap();
        assert!(writer.entry(SpaceMapEntry { vdev: Some(VdevId(0)), ..entry }).is_err());
        assert!(writer.entry(SpaceMapEntry { offset_units: 1 << 47, run_units: 1, ..entry }).is_err());
        assert_eq!(writer.into_bytes().len(), 4 * 8);
    }
}
