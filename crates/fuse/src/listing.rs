//! Positions in a directory's listing, as one number that is good for ever.
//!
//! ```text
//! 0                                the beginning: `.` comes next
//! 1, 2, 3                          after `.`, after `..`, after `.zfs` (whether it is listed or not)
//! 4 + n                            after the dataset with number n that stands here under a name the directory does not have;
//!                                  in `.zfs/snapshot` 3 + n: after the snapshot whose object is n
//! bit 61 | differentiator | hash   after an entry of the directory's ZAP: 16 and 28 bits
//! bit 62 | differentiator | hash   the same, where the hash is longer: 14 and 48 bits
//! ```
//! A name's hash has 28 bits, at the top of a word; directories that Lustre has made have hashes of 48 bits (`ZAP_FLAG_HASH64`). The number
//! never has the sign bit, so `seekdir` takes it. More than 2^14 names of one long hash have no numbers; nobody can make such a directory
//! but by design.

use cenote_zpl::Cursor;

pub(crate) const AFTER_SELF: u64 = 1;
pub(crate) const AFTER_ABOVE: u64 = 2;
pub(crate) const AFTER_CONTROL: u64 = 3;

/// How a place in a ZAP is packed into a number.
struct Form {
    /// The bit that says so; of higher ones none is set.
    flag: u64,
    hash_bits: u32,
    differentiator_bits: u32,
}

const SHORT: Form = Form { flag: 1 << 61, hash_bits: 28, differentiator_bits: 16 };
const LONG: Form = Form { flag: 1 << 62, hash_bits: 48, differentiator_bits: 14 };

impl Form {
    fn cursor(&self, number: u64) -> Cursor {
        let hash = (number & ((1 << self.hash_bits) - 1)) << (64 - self.hash_bits);
        let differentiator = (number >> self.hash_bits) & ((1 << self.differentiator_bits) - 1);
        Cursor::from_u64((hash | differentiator).wrapping_add(1))
    }

    /// The number of a place, if it has room for that.
    fn number(&self, cursor: Cursor) -> Option<u64> {
        let word = cursor.to_u64().wrapping_sub(1);
        let differentiator = word & 0xffff;
        if differentiator >> self.differentiator_bits != 0 {
            return None;
        }
        let number = self.flag | word >> (64 - self.hash_bits) | differentiator << self.hash_bits;
        (self.cursor(number) == cursor).then_some(number)
    }
}

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
        match [LONG, SHORT].into_iter().find(|form| number & form.flag != 0) {
            Some(form) => Self::Zap(form.cursor(number)),
            None => Self::Head(number),
        }
    }

    /// The number of the place after an entry. `None` if the number would not lead back to it: then a listing could
    /// go round in circles.
    pub(crate) fn number(cursor: Cursor) -> Option<u64> {
        SHORT.number(cursor).or_else(|| LONG.number(cursor))
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

    /// Those of Lustre's directories have 48 bits.
    #[test]
    fn long_hashes_have_positions_too() {
        for word in [0x1234_5678_9abc_0000_u64, 0xffff_ffff_ffff_0001, 0x8000_0000_0001_3fff, 0x0000_0000_0001_0000] {
            let cursor = Cursor::from_u64(word.wrapping_add(1));
            let number = Position::number(cursor).unwrap();
            assert_eq!(Position::of(number), Position::Zap(cursor), "{word:x}");
            assert!(i64::try_from(number).is_ok());
        }
        assert_eq!(Position::number(Cursor::from_u64(0x1234_5678_9abc_4001)), None, "names of one hash without end");
    }
}
