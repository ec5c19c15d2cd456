//! Gang headers: a block of block pointers that stands in for a block that found no place in one piece.
//!
//! ```text
//! 0          128        256        384               size-40          size
//! +----------+----------+----------+-------- - - ----+----------------+
//! | blkptr 0 | blkptr 1 | blkptr 2 | zero or more    | embedded       |     size 512: 3 block pointers and 88 zeros;
//! |          |          |          | blkptrs         | checksum       |     with the feature dynamic_gang_header
//! +----------+----------+----------+-------- - - ----+----------------+     up to a sector of the vdev
//! ```
//!
//! The children's data, in order, make up the data of the gang block; children may be gangs themselves. Unused block
//! pointers are holes. The header is in the byte order of the block pointer that points at it.

use crate::blkptr::Blkptr;
use crate::eck::EmbeddedChecksum;
use crate::endian::Endian;
use crate::error::FormatError;

const NAME: &str = "gang header";

/// Bytes of the classic gang header.
pub const MIN_BYTES: usize = 512;
/// Bytes of the largest gang header: the largest sector (ashift 16).
pub const MAX_BYTES: usize = 1 << 16;

/// How many block pointers fit a gang header of `size` bytes.
#[must_use]
pub const fn blkptr_count(size: usize) -> usize {
    size.saturating_sub(EmbeddedChecksum::SIZE) / Blkptr::SIZE
}

/// A gang header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangHeader {
    /// The block pointers, holes included.
    pub blkptrs: Vec<Blkptr>,
    /// The checksum at the end; its verifier is made of the first DVA and the birth of the block pointer that points here.
    pub checksum: EmbeddedChecksum,
}

impl GangHeader {
    /// From a whole header of 512 bytes or a larger power of two.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        if bytes.len() < MIN_BYTES {
            return Err(FormatError::truncated(NAME, MIN_BYTES, bytes.len()));
        }
        if bytes.len() > MAX_BYTES || !bytes.len().is_power_of_two() {
            let rule = "a power of two of 512 bytes to 64 KiB";
            return Err(FormatError::invalid(NAME, 0, "size", bytes.len() as u64, rule));
        }
        let checksum = EmbeddedChecksum::parse_trailer(bytes)?;
        if checksum.endian != endian {
            let offset = bytes.len() - EmbeddedChecksum::SIZE;
            return Err(FormatError::malformed(NAME, offset, "byte order differs from the block pointer's"));
        }
        let blkptrs = Blkptr::array(bytes, endian).take(blkptr_count(bytes.len())).collect();
        Ok(Self { blkptrs, checksum })
    }

    /// The bytes of a header of `size` bytes.
    ///
    /// # Panics
    /// If the block pointers do not fit.
    #[must_use]
    pub fn emit(&self, size: usize) -> Vec<u8> {
        assert!(self.blkptrs.len() <= blkptr_count(size), "too many block pointers");
        let mut out: Vec<u8> = self.blkptrs.iter().flat_map(|bp| bp.emit(self.checksum.endian)).collect();
        out.resize(size - EmbeddedChecksum::SIZE, 0);
        out.extend(self.checksum.emit());
        out
    }

    /// The children that hold data.
    pub fn children(&self) -> impl Iterator<Item = &Blkptr> {
        self.blkptrs.iter().filter(|bp| !bp.is_hole())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_classic_header_has_three_block_pointers() {
        assert_eq!([512, 1024, 4096, 65536].map(blkptr_count), [3, 7, 31, 511]);
        assert!(GangHeader::parse(&[0; 512], Endian::Little).is_err());
        assert!(GangHeader::parse(&[0; 511], Endian::Little).is_err());
        assert!(GangHeader::parse(&[0; 768], Endian::Little).is_err());
    }

    #[test]
    fn the_byte_order_must_be_that_of_the_block_pointer() {
        let header = GangHeader {
            blkptrs: vec![Blkptr::HOLE; 3],
            checksum: EmbeddedChecksum { endian: Endian::Big, words: [0; 4] },
        };
        let bytes = header.emit(512);
        assert_eq!(GangHeader::parse(&bytes, Endian::Big).unwrap(), header);
        assert!(GangHeader::parse(&bytes, Endian::Little).is_err());
        assert_eq!(header.children().count(), 0);
    }

    proptest! {
        #[test]
        fn headers_of_all_sizes_round_trip(shift in 9usize..=12, big: bool, words in any::<[u64; 16]>(), sum in any::<[u64; 4]>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let size = 1 << shift;
            let mut blkptrs = vec![Blkptr::from_words(words); blkptr_count(size)];
            blkptrs[1] = Blkptr::HOLE;
            let header = GangHeader { blkptrs, checksum: EmbeddedChecksum { endian, words: sum } };
            let bytes = header.emit(size);
            prop_assert_eq!(bytes.len(), size);
            prop_assert_eq!(GangHeader::parse(&bytes, endian).unwrap(), header);
        }
    }
}
