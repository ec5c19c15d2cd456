//! A bpobj: an object that is a list of block pointers, with others as its children. Deadlists, livelists and the pool's
//! free list are made of them.
//!
//! The data is an array of block pointers; the bonus grew with time:
//!
//! ```text
//!  0  number of block pointers           32  object with the array of children (u64 each)
//!  8  bytes on disk                      40  number of children                      (since version 18)
//! 16  bytes before overhead              48  number of block pointers that are frees (livelists)
//! 24  bytes before compression  (since version 14)
//! ```
//!
//! Children may have children; a reader keeps its own list of what is left to visit, and visits each object once, since
//! the numbers are disk bytes. In a livelist the lowest bit of the pointer's fill count, otherwise 0 there, marks a free.

use crate::blkptr::Blkptr;
use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::ObjectId;

const STRUCTURE: &str = "bpobj";

/// The bonus of a bpobj. Fields that the version at hand does not have are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BpobjPhys {
    /// Number of block pointers in the object.
    pub blkptr_count: u64,
    /// Bytes on disk, children included.
    pub bytes: u64,
    /// Bytes before overhead, and before compression.
    pub compressed: Option<[u64; 2]>,
    /// Object with the children's numbers, and how many.
    pub children: Option<(ObjectId, u64)>,
    /// How many of the block pointers are frees.
    pub freed_count: Option<u64>,
}

impl BpobjPhys {
    /// Size of the first version.
    pub const SIZE_V0_BYTES: usize = 16;
    /// Size with compressed sizes.
    pub const SIZE_V1_BYTES: usize = 32;
    /// Size with children.
    pub const SIZE_V2_BYTES: usize = 48;
    /// Size with frees.
    pub const SIZE_V3_BYTES: usize = 56;

    /// Reads a bonus of any of the sizes.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, bonus, Self::SIZE_V0_BYTES, endian)?;
        let len = bonus.len();
        let mut phys = Self { blkptr_count: fields.u64(0)?, bytes: fields.u64(8)?, ..Self::default() };
        if len >= Self::SIZE_V1_BYTES {
            phys.compressed = Some([fields.u64(16)?, fields.u64(24)?]);
        }
        if len >= Self::SIZE_V2_BYTES {
            phys.children = Some((ObjectId(fields.u64(32)?), fields.u64(40)?));
        }
        if len >= Self::SIZE_V3_BYTES {
            phys.freed_count = Some(fields.u64(48)?);
        }
        Ok(phys)
    }

    /// Writes the bonus at the size that its fields need.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> Vec<u8> {
        let size = match self {
            Self { freed_count: Some(_), .. } => Self::SIZE_V3_BYTES,
            Self { children: Some(_), .. } => Self::SIZE_V2_BYTES,
            Self { compressed: Some(_), .. } => Self::SIZE_V1_BYTES,
            _ => Self::SIZE_V0_BYTES,
        };
        let mut bonus = vec![0; size];
        put_u64(&mut bonus, 0, self.blkptr_count, endian);
        put_u64(&mut bonus, 8, self.bytes, endian);
        if size >= Self::SIZE_V1_BYTES {
            let [compressed, uncompressed] = self.compressed.unwrap_or_default();
            put_u64(&mut bonus, 16, compressed, endian);
            put_u64(&mut bonus, 24, uncompressed, endian);
        }
        if size >= Self::SIZE_V2_BYTES {
            let (object, count) = self.children.unwrap_or_default();
            put_u64(&mut bonus, 32, object.0, endian);
            put_u64(&mut bonus, 40, count, endian);
        }
        if size >= Self::SIZE_V3_BYTES {
            put_u64(&mut bonus, 48, self.freed_count.unwrap_or_default(), endian);
        }
        bonus
    }

    /// Whether it has neither block pointers nor children.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blkptr_count == 0 && self.children.is_none_or(|(_, count)| count == 0)
    }
}

/// The block pointers in a block of a bpobj's data (or any run of whole ones); a rest shorter than one is dropped.
pub fn blkptrs(data: &[u8], endian: Endian) -> impl Iterator<Item = Blkptr> + '_ {
    data.as_chunks::<{ Blkptr::SIZE }>().0.iter().map(move |bytes| Blkptr::from_array(bytes, endian))
}

/// The children's numbers in a block of the children's array.
pub fn children(data: &[u8], endian: Endian) -> impl Iterator<Item = ObjectId> + '_ {
    data.as_chunks::<8>().0.iter().map(move |bytes| ObjectId(endian.u64(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_size_of_bonus_round_trips(words in any::<[u64; 7]>(), version in 0_usize..4, big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let phys = BpobjPhys {
                blkptr_count: words[0],
                bytes: words[1],
                compressed: (version > 0).then_some([words[2], words[3]]),
                children: (version > 1).then_some((ObjectId(words[4]), words[5])),
                freed_count: (version > 2).then_some(words[6]),
            };
            let bonus = phys.emit(endian);
            prop_assert_eq!(bonus.len(), [16, 32, 48, 56][version]);
            prop_assert_eq!(BpobjPhys::parse(&bonus, endian).unwrap(), phys);
        }
    }

    #[test]
    fn data_is_read_by_whole_items() {
        assert_eq!(blkptrs(&[0; 300], Endian::Little).count(), 2);
        assert_eq!(children(&[1; 17], Endian::Big).count(), 2);
        assert!(BpobjPhys::parse(&[0; 15], Endian::Big).is_err());
    }
}
