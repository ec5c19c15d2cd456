//! The embedded checksum: the last 40 bytes of every structure that checksums itself.
//!
//! ```text
//! 0        8                                       40
//! +--------+---------------------------------------+
//! | magic  | checksum[0] [1] [2] [3]               |
//! +--------+---------------------------------------+
//! ```
//!
//! Labels, boot environment blocks, uberblock slots, gang headers and intent log blocks carry one. The checksum covers the
//! whole structure with these 32 bytes replaced by a verifier that depends on the place: for labels
//! `[device offset, 0, 0, 0]`, for gang headers the first DVA and the birth, for the log the block's chain.

use crate::endian::{Endian, put_u64};
use crate::error::{FormatError, FormatErrorKind};

/// The magic number (`ZEC_MAGIC`).
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// The value of an embedded checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddedChecksum {
    /// The byte order that the magic number showed.
    pub endian: Endian,
    /// The checksum.
    pub words: [u64; 4],
}

impl EmbeddedChecksum {
    /// Bytes of the trailer.
    pub const SIZE: usize = 40;

    /// From a trailer of 40 bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let Some(chunk) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Err(FormatError::truncated("embedded checksum", Self::SIZE, bytes.len()));
        };
        let words = chunk.as_chunks::<8>().0;
        let endian = match u64::from_le_bytes(words[0]) {
            MAGIC => Endian::Little,
            found if found == MAGIC.swap_bytes() => Endian::Big,
            found => {
                let kind = FormatErrorKind::BadMagic { found, expected: MAGIC };
                return Err(FormatError { structure: "embedded checksum", offset: 0, kind });
            }
        };
        Ok(Self { endian, words: std::array::from_fn(|index| endian.u64(words[index + 1])) })
    }

    /// The trailer of `block`: its last 40 bytes.
    pub(crate) fn parse_trailer(block: &[u8]) -> Result<Self, FormatError> {
        let start = Self::offset_in(block.len())
            .ok_or_else(|| FormatError::truncated("embedded checksum", Self::SIZE, block.len()))?;
        Self::parse(&block[start..])
    }

    /// Where the trailer starts in a structure of `size` bytes; `None` if it does not fit.
    #[must_use]
    pub(crate) const fn offset_in(size: usize) -> Option<usize> {
        size.checked_sub(Self::SIZE)
    }

    /// The bytes.
    #[must_use]
    pub(crate) fn emit(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_u64(&mut out, 0, MAGIC, self.endian);
        for (index, word) in self.words.iter().enumerate() {
            put_u64(&mut out, 8 + index * 8, *word, self.endian);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_magic_number_is_accepted() {
        assert!(EmbeddedChecksum::parse(&[0; 40]).is_err());
        assert!(EmbeddedChecksum::parse(&[0; 39]).is_err());
        assert!(EmbeddedChecksum::parse_trailer(&[0; 8]).is_err());
        let eck = EmbeddedChecksum { endian: Endian::Little, words: [1, 2, 3, 4] };
        assert_eq!(eck.emit()[..8], [0x11, 0x7a, 0x0c, 0xb1, 0x7a, 0xda, 0x10, 0x02]);
    }

    proptest! {
        #[test]
        fn any_checksum_round_trips(words in any::<[u64; 4]>(), big: bool) {
            let eck = EmbeddedChecksum { endian: if big { Endian::Big } else { Endian::Little }, words };
            let mut block = vec![0; 512 - 40];
            block.extend(eck.emit());
            prop_assert_eq!(EmbeddedChecksum::parse_trailer(&block).unwrap(), eck);
        }
    }
}
