//! A bptree: destroyed datasets whose blocks are being freed in the background.
//!
//! The bonus counts; the data is an array of entries of 168 bytes, of which those from `begin` to `end` are live: a root
//! block pointer (16 words), the txg before which blocks belong to someone else, and where the traversal stopped (4 words).

use crate::blkptr::Blkptr;
use crate::dsl::ZBookmark;
use crate::ids::Txg;
use crate::words::word_struct;

word_struct! {
    /// The bonus.
    BptreePhys("bptree", 40) {
        /// The first live entry.
        begin: u64,
        /// The entry after the last.
        end: u64,
        /// Bytes on disk still to free.
        used_bytes: u64,
        /// The same before overhead.
        compressed_bytes: u64,
        /// The same before compression.
        uncompressed_bytes: u64,
    }
}

word_struct! {
    /// An entry.
    BptreeEntry("bptree entry", 168) {
        /// The root of the tree.
        bp: Blkptr,
        /// Only blocks born after this are to be freed.
        birth_txg: Txg,
        /// Where the traversal stopped; all zeros at the start.
        bookmark: ZBookmark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endian::Endian;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_round_trip(bytes in proptest::collection::vec(any::<u8>(), 168), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let entry = BptreeEntry::parse(&bytes, endian).unwrap();
            prop_assert_eq!(&entry.emit(endian)[..], &bytes[..]);
            let phys = BptreePhys::parse(&bytes, endian).unwrap();
            prop_assert_eq!(&phys.emit(endian)[..], &bytes[..40]);
            prop_assert!(BptreeEntry::parse(&bytes[1..], endian).is_err());
        }
    }
}
