//! Positions in a directory's listing, as one number that is good for ever.
//!
//! ```text
//! 0                                the beginning: `.` comes next
//! 1, 2, 3                          after `.`, after `..`, after `.zfs` (whether it is listed or not)
//! 4 + n                            after the dataset with number n that stands here under a name the directory does not have;
//!                                  in `.zfs/snapshot` 3 + n: after the snapshot whose object is n
//! bit 62 | differentiator | hash   after an entry of the directory's ZAP: 16 and 28 bits
//! ```
//! A name's hash has 28 bits, at the top of a word. The number never has the sign bit, so `seekdir` takes it.

use cenote_zpl::Cursor;

pub(crate) const AFTER_SELF: u64 = 1;
pub(crate) const AFTER_ABOVE: u64 = 2;
pub(crate) const AFTER_CONTROL: u64 = 3;
const IN_ZAP: u64 = 1 << 62;
const HASH_BITS: u32 = 28;
const HASH_SHIFT: u32 = 64 - HASH_BITS;
const DIFFERENTIATOR_BITS: u32 = 16;

/// Where a listing is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Among what stands before the directory's own entries; the number itself.
    Head(u64),
    /// Among the directory's own entries.
    Zap(Cursor),
}

impl Position {
    pub(crate) fn of(number: u64) -> Self {
        if number & IN_ZAP == 0 {
            return Self::Head(number);
        }
        let hash = (number & ((1 << HASH_BITS) - 1)) << HASH_SHIFT;
        let differentiator = (number >> HASH_BITS) & ((1 << DIFFERENTIATOR_BITS) - 1);
        Self::Zap(Cursor::from_u64((hash | differentiator).wrapping_add(1)))
    }

    /// The number of the place after an entry. `None` if the number would not lead back to it: then a listing could
    /// go round in circles, and the directory is corrupt (no directory's ZAP has longer hashes).
    pub(crate) fn number(cursor: Cursor) -> Option<u64> {
        let word = cursor.to_u64().wrapping_sub(1);
        let number = IN_ZAP | word >> HASH_SHIFT | (word & ((1 << DIFFERENTIATOR_BITS) - 1)) << HASH_BITS;
        (Self::of(number) == Self::Zap(cursor)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_the_trip_through_their_number() {
        for word in [0_u64, 5, 0x8000_0000_0000_0000, 0xffff_fff0_0000_ffff, 0x1234_5670_0000_0003] {
            let cursor = Cursor::from_u64(word.wrapping_add(1));
            let number = Position::number(cursor).unwrap();
            assert_eq!(Position::of(number), Position::Zap(cursor), "{word:x}");
            assert!(i64::try_from(number).is_ok());
        }
        assert_eq!(Position::of(AFTER_CONTROL), Position::Head(3));
    }

    #[test]
    fn a_hash_of_more_bits_than_names_have_is_refused() {
        assert_eq!(Position::number(Cursor::from_u64(0x1234_5678_0000_0001)), None);
    }
}
