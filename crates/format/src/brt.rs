//! The block reference table: how often a block is referenced beyond the first time, for block cloning.
//!
//! One set of objects a vdev, named `com.fudosecurity:brt:vdev:<id>` in the pool's directory: an object whose bonus is
//! [`BrtVdevPhys`] and whose data is an array of 16-bit counts, one for each region of the vdev (16 MiB), in the byte
//! order that the bonus says; and a ZAP (keys of one word, the block's offset in bytes) with the counts. A count is one
//! 64-bit integer with the feature `com.truenas:block_cloning_endian`, otherwise 8 bytes in the order of the machine that
//! wrote it.

use crate::endian::Endian;
use crate::error::FormatError;
use crate::ids::ObjectId;
use crate::words::word_struct;
use crate::zap::ZapValue;

/// The size of the regions that OpenZFS makes.
pub const REGION_SIZE_BYTES: u64 = 16 << 20;

word_struct! {
    /// The bonus.
    BrtVdevPhys("brt vdev", 56) {
        /// The ZAP of counts.
        entries: ObjectId,
        /// Number of regions.
        region_count: u64,
        /// Byte order of the regions' counts: 0 little, 1 big.
        byte_order: u64,
        /// Number of entries.
        entry_count: u64,
        /// Bytes of a region.
        region_size_bytes: u64,
        /// Bytes of referenced blocks, once each.
        used_bytes: u64,
        /// Bytes saved by sharing them.
        saved_bytes: u64,
    }
}

impl BrtVdevPhys {
    /// The order of the regions' counts.
    pub fn endian(&self) -> Result<Endian, FormatError> {
        match self.byte_order {
            0 => Ok(Endian::Little),
            1 => Ok(Endian::Big),
            other => Err(FormatError::invalid("brt vdev", 16, "byte order", other, "0 or 1")),
        }
    }
}

/// The counts of a run of the regions' array.
pub fn region_counts(data: &[u8], endian: Endian) -> impl Iterator<Item = u16> + '_ {
    data.as_chunks::<2>().0.iter().map(move |bytes| endian.u16(*bytes))
}

/// An entry's count; `endian` is the order of the pool, for the form that depends on it.
pub fn reference_count(value: &ZapValue, endian: Endian) -> Result<u64, FormatError> {
    let bytes = value.as_bytes().and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    match (bytes, value.integer_size(), value.as_u64()) {
        (Some(bytes), _, _) => Ok(endian.u64(bytes)),
        (None, 8, Some(count)) => Ok(count),
        _ => Err(FormatError::malformed("brt entry", 0, "neither one 64-bit integer nor 8 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_bonus_round_trips(bytes in proptest::collection::vec(any::<u8>(), 56), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let phys = BrtVdevPhys::parse(&bytes, endian).unwrap();
            prop_assert_eq!(&phys.emit(endian)[..], &bytes[..]);
        }
    }

    #[test]
    fn both_forms_of_counts_are_read() {
        assert_eq!(reference_count(&ZapValue::from_u64(3), Endian::Big), Ok(3));
        assert_eq!(reference_count(&ZapValue::from_bytes(&[3, 0, 0, 0, 0, 0, 0, 0]), Endian::Little), Ok(3));
        assert_eq!(reference_count(&ZapValue::from_bytes(&[0, 0, 0, 0, 0, 0, 0, 3]), Endian::Big), Ok(3));
        assert!(reference_count(&ZapValue::from_bytes(&[3]), Endian::Little).is_err());
        assert!(reference_count(&ZapValue::from_u16s(&[3]), Endian::Little).is_err());
        assert_eq!(region_counts(&[1, 0, 2, 0, 9], Endian::Little).collect::<Vec<_>>(), [1, 2]);
    }
}
