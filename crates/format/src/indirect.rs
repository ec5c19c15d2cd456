//! The indirect mapping of a removed top-level vdev, from its offsets to the new places of its data, and the txgs of the
//! copies (births).
//!
//! ```text
//! mapping object's bonus            0            8              16          24 (32)
//!                                   +------------+--------------+-----------+---------------+
//!                                   | max offset | bytes mapped | entries   | counts object |  the last field is absent
//!                                   +------------+--------------+-----------+---------------+  (24 bytes) in old pools
//! mapping object's data: entries    0                     8                   24
//!   sorted by source offset         +---------------------+-------------------+
//!                                   | M| source, 512 B    | DVA of the target |   M: mark of zdb's, else 0
//!                                   +---------------------+-------------------+
//! counts object's data              one u32 for each entry: bytes of it that are obsolete
//!
//! births object's bonus             0       8
//!                                   +-------+
//!                                   | count |
//!                                   +-------+
//! births object's data              0        8            16
//!   sorted by offset                +--------+------------+
//!                                   | offset | copied txg |   all below this offset, and not below the one before, was
//!                                   +--------+------------+   copied in this txg
//! ```
//!
//! The MOS directory's `com.delphix:removing` and `com.delphix:condensing_indirect` are arrays of 64-bit integers:
//! [`Removing`], [`CondensingIndirect`].

use crate::blkptr::{Dva, MIN_BLOCK_SHIFT};
use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::{ObjectId, Txg, VdevId};

/// The mapping's head (`vdev_indirect_mapping_phys_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IndirectMappingPhys {
    /// All entries lie below this offset.
    pub max_offset_bytes: u64,
    /// Bytes that the entries cover.
    pub bytes_mapped: u64,
    /// How many entries the object has.
    pub entry_count: u64,
    /// The object with the obsolete counts; `None` in pools without the feature `obsolete_counts`.
    pub counts_object: Option<ObjectId>,
}

impl IndirectMappingPhys {
    /// Bytes with the counts object.
    pub const SIZE: usize = 32;
    /// Bytes without.
    pub const SIZE_V0: usize = 24;

    /// From the mapping object's bonus buffer.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new("indirect mapping", bonus, Self::SIZE_V0, endian)?;
        let counts_object = if bonus.len() >= Self::SIZE { Some(ObjectId(fields.u64(24)?)) } else { None };
        Ok(Self {
            max_offset_bytes: fields.u64(0)?,
            bytes_mapped: fields.u64(8)?,
            entry_count: fields.u64(16)?,
            counts_object: counts_object.filter(|object| object.0 != 0),
        })
    }

    /// The bytes: 32 with a counts object, else 24.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> Vec<u8> {
        let mut out = vec![0; if self.counts_object.is_some() { Self::SIZE } else { Self::SIZE_V0 }];
        put_u64(&mut out, 0, self.max_offset_bytes, endian);
        put_u64(&mut out, 8, self.bytes_mapped, endian);
        put_u64(&mut out, 16, self.entry_count, endian);
        if let Some(object) = self.counts_object {
            put_u64(&mut out, 24, object.0, endian);
        }
        out
    }
}

/// One piece of a removed vdev (`vdev_indirect_mapping_entry_phys_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndirectMappingEntry {
    /// Where the piece began on the removed vdev.
    pub source_offset_bytes: u64,
    /// Where it lies now. Its `asize_bytes` is the length of the piece on both vdevs.
    pub target: Dva,
}

impl IndirectMappingEntry {
    /// Bytes of an entry.
    pub const SIZE: usize = 24;
    const MARK: u64 = 1 << 63;

    /// From the first 24 of `bytes`.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let name = "indirect mapping entry";
        let fields = Fields::new(name, bytes, Self::SIZE, endian)?;
        let sectors = fields.u64(0)? & !Self::MARK;
        if sectors > u64::MAX >> MIN_BLOCK_SHIFT {
            return Err(FormatError::invalid(name, 0, "source offset", sectors, "an offset of 64 bits"));
        }
        let source_offset_bytes = sectors << MIN_BLOCK_SHIFT;
        let target = Dva::from_words([fields.u64(8)?, fields.u64(16)?])
            .filter(|dva| !dva.gang)
            .ok_or_else(|| FormatError::malformed(name, 8, "target is not a plain DVA"))?;
        if source_offset_bytes.checked_add(target.asize_bytes).is_none() {
            return Err(FormatError::invalid(name, 0, "source offset", source_offset_bytes, "an end of 64 bits"));
        }
        Ok(Self { source_offset_bytes, target })
    }

    /// The bytes.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let [word0, word1] = self.target.words();
        put_u64(&mut out, 0, self.source_offset_bytes >> MIN_BLOCK_SHIFT, endian);
        put_u64(&mut out, 8, word0, endian);
        put_u64(&mut out, 16, word1, endian);
        out
    }

    /// Where the piece ended on the removed vdev.
    #[must_use]
    pub const fn source_end_bytes(&self) -> u64 {
        self.source_offset_bytes + self.target.asize_bytes
    }
}

/// A mapping in memory: entries in ascending order that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectMapping {
    entries: Vec<IndirectMappingEntry>,
}

impl IndirectMapping {
    /// From the mapping object's data, of which `phys` says how many entries count.
    pub fn parse(phys: &IndirectMappingPhys, data: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let name = "indirect mapping";
        let have = data.len() / IndirectMappingEntry::SIZE;
        let count = usize::try_from(phys.entry_count).ok().filter(|count| *count <= have).ok_or_else(|| {
            FormatError::invalid(name, 16, "vimp_num_entries", phys.entry_count, "no more than the object holds")
        })?;
        let mut entries: Vec<IndirectMappingEntry> = Vec::with_capacity(count);
        for (index, bytes) in data.chunks_exact(IndirectMappingEntry::SIZE).take(count).enumerate() {
            let entry = IndirectMappingEntry::parse(bytes, endian)?;
            if entries.last().is_some_and(|last| last.source_end_bytes() > entry.source_offset_bytes) {
                return Err(FormatError::malformed(name, index * IndirectMappingEntry::SIZE, "entries out of order"));
            }
            if entry.source_end_bytes() > phys.max_offset_bytes {
                let offset = index * IndirectMappingEntry::SIZE;
                return Err(FormatError::malformed(name, offset, "entry beyond vimp_max_offset"));
            }
            entries.push(entry);
        }
        Ok(Self { entries })
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[IndirectMappingEntry] {
        &self.entries
    }

    /// The mapping with one entry more, behind those that it has.
    ///
    /// # Panics
    /// If the entry is empty, or begins before the last one's end.
    pub fn push(&mut self, entry: IndirectMappingEntry) {
        assert!(entry.target.asize_bytes > 0, "an entry of a mapping maps something");
        let end = self.entries.last().map_or(0, IndirectMappingEntry::source_end_bytes);
        assert!(end <= entry.source_offset_bytes, "a mapping grows in the order of offsets");
        self.entries.push(entry);
    }

    /// The index of the entry that holds `offset_bytes`, if there is one.
    #[must_use]
    pub(crate) fn index_of(&self, offset_bytes: u64) -> Option<usize> {
        let index = self.entries.partition_point(|entry| entry.source_end_bytes() <= offset_bytes);
        self.entries.get(index).filter(|entry| entry.source_offset_bytes <= offset_bytes).map(|_| index)
    }

    /// Where a range of the removed vdev lies now: pieces in order. `None` if any byte of it is not mapped.
    #[must_use]
    pub fn remap(&self, offset_bytes: u64, size_bytes: u64) -> Option<Vec<Dva>> {
        let end = offset_bytes.checked_add(size_bytes)?;
        let mut pieces = Vec::new();
        let mut at = offset_bytes;
        let mut index = self.index_of(at)?;
        while at < end {
            let entry = self.entries.get(index).filter(|entry| entry.source_offset_bytes <= at)?;
            let skip = at - entry.source_offset_bytes;
            let take = (end - at).min(entry.target.asize_bytes - skip);
            let offset_bytes = entry.target.offset_bytes.checked_add(skip)?;
            pieces.push(Dva { offset_bytes, asize_bytes: take, ..entry.target });
            at += take;
            index += 1;
        }
        Some(pieces)
    }
}

/// The obsolete counts: for each entry of the mapping, how many bytes of it no block uses any more.
///
/// # Errors
/// There are fewer.
pub fn parse_obsolete_counts(data: &[u8], entries: usize, endian: Endian) -> Result<Vec<u32>, FormatError> {
    let need = entries.saturating_mul(4);
    let fields = Fields::new("obsolete counts", data, need, endian)?;
    let (chunks, _) = fields.slice(0, need)?.as_chunks::<4>();
    Ok(chunks.iter().map(|chunk| endian.u32(*chunk)).collect())
}

/// One step of the copying of a removed vdev (`vdev_indirect_birth_entry_phys_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IndirectBirth {
    /// All below this offset that no earlier entry covers ...
    pub offset_bytes: u64,
    /// ... was copied in this txg.
    pub physical_birth: Txg,
}

/// The births of a removed vdev.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectBirths {
    entries: Vec<IndirectBirth>,
}

impl IndirectBirths {
    /// Bytes of an entry.
    pub const ENTRY_SIZE: usize = 16;

    /// The bytes of one entry: all below this offset, and not below the entry before, was copied in this txg.
    #[must_use]
    pub fn entry_bytes(offset_bytes: u64, copied: Txg, endian: Endian) -> [u8; Self::ENTRY_SIZE] {
        let mut out = [0; Self::ENTRY_SIZE];
        put_u64(&mut out, 0, offset_bytes, endian);
        put_u64(&mut out, 8, copied.0, endian);
        out
    }

    /// From the count and the births object's data.
    pub(crate) fn parse(count: u64, data: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let name = "indirect births";
        let have = data.len() / Self::ENTRY_SIZE;
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= have)
            .ok_or_else(|| FormatError::invalid(name, 0, "vib_count", count, "no more than the object holds"))?;
        let mut entries: Vec<IndirectBirth> = Vec::with_capacity(count);
        for (index, bytes) in data.chunks_exact(Self::ENTRY_SIZE).take(count).enumerate() {
            let fields = Fields::new(name, bytes, Self::ENTRY_SIZE, endian)?;
            let entry = IndirectBirth { offset_bytes: fields.u64(0)?, physical_birth: Txg(fields.u64(8)?) };
            if entries.last().is_some_and(|last| last.offset_bytes >= entry.offset_bytes) {
                return Err(FormatError::malformed(name, index * Self::ENTRY_SIZE, "entries out of order"));
            }
            entries.push(entry);
        }
        Ok(Self { entries })
    }

    /// The bytes of the births object's data.
    #[must_use]
    pub(crate) fn emit(&self, endian: Endian) -> Vec<u8> {
        let words = self.entries.iter().flat_map(|entry| [entry.offset_bytes, entry.physical_birth.0]);
        words.flat_map(|word| endian.bytes64(word)).collect()
    }

    /// The entries.
    #[must_use]
    pub(crate) fn entries(&self) -> &[IndirectBirth] {
        &self.entries
    }

    /// When what was at `offset_bytes` was copied.
    #[must_use]
    pub(crate) fn birth_of(&self, offset_bytes: u64) -> Option<Txg> {
        let index = self.entries.partition_point(|entry| entry.offset_bytes <= offset_bytes);
        self.entries.get(index).map(|entry| entry.physical_birth)
    }
}

const NO_VDEV: u64 = u64::MAX;

const fn vdev_or_none(number: u64) -> Option<VdevId> {
    if number < 1 << 24 { Some(VdevId(number as u32)) } else { None }
}

fn vdev_number(vdev: Option<VdevId>) -> u64 {
    vdev.map_or(NO_VDEV, |vdev| vdev.0.into())
}

/// The state of device removal (`spa_removing_phys_t`, `com.delphix:removing` in the MOS directory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Removing {
    /// 0 none, 1 running, 2 finished, 3 cancelled.
    pub state: u64,
    /// The vdev whose removal was last attempted.
    pub removing_vdev: Option<VdevId>,
    /// The vdev that was last removed; the others follow through `prev_indirect_vdev` of their configurations.
    pub prev_indirect_vdev: Option<VdevId>,
    /// When it began, in seconds since 1970.
    pub start_time_s: u64,
    /// When it ended.
    pub end_time_s: u64,
    /// Bytes to copy.
    pub to_copy_bytes: u64,
    /// Bytes copied or freed since.
    pub copied_bytes: u64,
}

impl Removing {
    /// How many integers the array has.
    pub const WORDS: usize = 7;

    /// From the array.
    #[must_use]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [state, removing, prev, start_time_s, end_time_s, to_copy_bytes, copied_bytes] = words;
        Self {
            state,
            removing_vdev: vdev_or_none(removing),
            prev_indirect_vdev: vdev_or_none(prev),
            start_time_s,
            end_time_s,
            to_copy_bytes,
            copied_bytes,
        }
    }

    /// The array.
    #[must_use]
    pub fn words(&self) -> [u64; Self::WORDS] {
        [
            self.state,
            vdev_number(self.removing_vdev),
            vdev_number(self.prev_indirect_vdev),
            self.start_time_s,
            self.end_time_s,
            self.to_copy_bytes,
            self.copied_bytes,
        ]
    }
}

/// A rewriting of a mapping without its obsolete entries (`spa_condensing_indirect_phys_t`,
/// `com.delphix:condensing_indirect` in the MOS directory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CondensingIndirect {
    /// The vdev.
    pub vdev: u64,
    /// The obsolete space map that is being worked in.
    pub prev_obsolete_sm_object: ObjectId,
    /// The new mapping.
    pub next_mapping_object: ObjectId,
}

impl CondensingIndirect {
    /// How many integers the array has.
    pub const WORDS: usize = 3;

    /// From the array.
    #[must_use]
    pub const fn from_words([vdev, sm, next]: [u64; Self::WORDS]) -> Self {
        Self { vdev, prev_obsolete_sm_object: ObjectId(sm), next_mapping_object: ObjectId(next) }
    }

    /// The array.
    #[must_use]
    pub const fn words(&self) -> [u64; Self::WORDS] {
        [self.vdev, self.prev_obsolete_sm_object.0, self.next_mapping_object.0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(source: u64, vdev: u32, target: u64, size: u64) -> IndirectMappingEntry {
        let target = Dva { vdev: VdevId(vdev), offset_bytes: target, asize_bytes: size, gang: false };
        IndirectMappingEntry { source_offset_bytes: source, target }
    }

    fn mapping(entries: &[IndirectMappingEntry]) -> Result<IndirectMapping, FormatError> {
        let phys = IndirectMappingPhys {
            max_offset_bytes: 1 << 30,
            entry_count: entries.len() as u64,
            ..IndirectMappingPhys::default()
        };
        let data: Vec<u8> = entries.iter().flat_map(|entry| entry.emit(Endian::Big)).collect();
        IndirectMapping::parse(&phys, &data, Endian::Big)
    }

    #[test]
    fn a_range_is_remapped_piece_by_piece() {
        let map = mapping(&[entry(0x1000, 1, 0x8000, 0x1000), entry(0x2000, 2, 0, 0x800), entry(0x4000, 1, 0, 0x200)])
            .unwrap();
        let dva = |vdev, offset_bytes, asize_bytes| Dva { vdev: VdevId(vdev), offset_bytes, asize_bytes, gang: false };
        assert_eq!(map.remap(0x1200, 0x200), Some(vec![dva(1, 0x8200, 0x200)]));
        assert_eq!(map.remap(0x1e00, 0x400), Some(vec![dva(1, 0x8e00, 0x200), dva(2, 0, 0x200)]));
        assert_eq!(map.remap(0x2600, 0x400), None, "runs into a gap");
        assert_eq!(map.remap(0, 0x200), None);
        assert_eq!(map.remap(0x4000, 0x200), Some(vec![dva(1, 0, 0x200)]));
        assert_eq!(map.remap(u64::MAX, 2), None);
        assert_eq!(map.index_of(0x2800), None);
        assert_eq!(map.index_of(0x41ff), Some(2));
    }

    #[test]
    fn mappings_that_contradict_themselves_are_errors() {
        assert!(mapping(&[entry(0x1000, 1, 0, 0x1000), entry(0x1e00, 1, 0, 0x200)]).is_err());
        assert!(mapping(&[entry(1 << 30, 1, 0, 0x200)]).is_err());
        let phys = IndirectMappingPhys { entry_count: u64::MAX, ..IndirectMappingPhys::default() };
        assert!(IndirectMapping::parse(&phys, &[0; 24], Endian::Little).is_err());
        assert!(IndirectMappingEntry::parse(&[0; 24], Endian::Little).is_err());
        assert!(IndirectMappingEntry::parse(&[0xff; 24], Endian::Little).is_err());
    }

    #[test]
    fn births_are_found_by_the_next_offset() {
        let bytes: Vec<u8> = [100u64, 7, 300, 9].iter().flat_map(|word| word.to_be_bytes()).collect();
        let births = IndirectBirths::parse(2, &bytes, Endian::Big).unwrap();
        assert_eq!(births.emit(Endian::Big), bytes);
        let found = [0, 99, 100, 299, 300].map(|offset| births.birth_of(offset));
        assert_eq!(found, [Some(Txg(7)), Some(Txg(7)), Some(Txg(9)), Some(Txg(9)), None]);
        assert!(IndirectBirths::parse(3, &bytes, Endian::Big).is_err());
        assert!(IndirectBirths::parse(2, &[0; 32], Endian::Big).is_err());
    }

    #[test]
    fn obsolete_counts_are_as_many_as_entries() {
        assert_eq!(parse_obsolete_counts(&[1, 0, 0, 0, 2, 0, 0, 0, 9], 2, Endian::Little).unwrap(), [1, 2]);
        assert!(parse_obsolete_counts(&[0; 7], 2, Endian::Little).is_err());
        assert!(parse_obsolete_counts(&[0; 7], usize::MAX, Endian::Little).is_err());
    }

    #[test]
    fn no_vdev_is_all_ones() {
        let removing = Removing::from_words([2, u64::MAX, 3, 4, 5, 6, 7]);
        assert_eq!((removing.removing_vdev, removing.prev_indirect_vdev), (None, Some(VdevId(3))));
        assert_eq!(removing.words(), [2, u64::MAX, 3, 4, 5, 6, 7]);
        assert_eq!(CondensingIndirect::from_words([1, 2, 3]).words(), [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn heads_and_entries_round_trip(numbers in any::<[u64; 3]>(), counts in proptest::option::of(1u64..), sectors in 0u64..1 << 54, asize in 1u64..1 << 24) {
            for endian in [Endian::Little, Endian::Big] {
                let phys = IndirectMappingPhys {
                    max_offset_bytes: numbers[0],
                    bytes_mapped: numbers[1],
                    entry_count: numbers[2],
                    counts_object: counts.map(ObjectId),
                };
                prop_assert_eq!(IndirectMappingPhys::parse(&phys.emit(endian), endian).unwrap(), phys);
                let entry = entry(sectors << 9, 5, sectors << 8 & !511, asize << 9);
                prop_assert_eq!(IndirectMappingEntry::parse(&entry.emit(endian), endian).unwrap(), entry);
            }
        }
    }
}
