//! The intent log's header, which stands in the objset.
//!
//! ```text
//!   0          8            16               144              152     160             168      192
//! +----------+------------+----------------+----------------+-------+---------------+--------+
//! | claim    | replay     | blkptr of the  | claimed block  | flags | claimed record| zero   |
//! | txg      | seq        | first block    | seq            |       | seq           |        |
//! +----------+------------+----------------+----------------+-------+---------------+--------+
//! ```

use crate::blkptr::Blkptr;
use crate::ids::Txg;
use crate::words::word_struct;

word_struct! {
    /// A log header (`zil_header_t`).
    #[derive(Copy, Default)]
    ZilHeader("zil header", 192) {
        /// The txg in which the log's blocks were claimed; 0 before.
        claim_txg: Txg,
        /// The highest sequence number that was replayed.
        replay_seq: u64,
        /// The first block of the chain.
        log: Blkptr,
        /// The highest block sequence number that was claimed.
        claim_block_seq: u64,
        /// [`Self::REPLAY_NEEDED`], [`Self::CLAIM_RECORD_SEQ_VALID`].
        flags: u64,
        /// The highest record sequence number that was claimed.
        claim_record_seq: u64,
    }
}

impl ZilHeader {
    /// Flag: the log holds records to replay (`ZIL_REPLAY_NEEDED`).
    pub const REPLAY_NEEDED: u64 = 1;
    /// Flag: `claim_record_seq` is valid (`ZIL_CLAIM_LR_SEQ_VALID`).
    pub const CLAIM_RECORD_SEQ_VALID: u64 = 2;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::endian::Endian;

    proptest! {
        #[test]
        fn headers_round_trip(words in any::<[u64; 16]>(), numbers in any::<[u64; 5]>()) {
            let header = ZilHeader {
                claim_txg: Txg(numbers[0]),
                replay_seq: numbers[1],
                log: Blkptr::from_words(words),
                claim_block_seq: numbers[2],
                flags: numbers[3],
                claim_record_seq: numbers[4],
            };
            for endian in [Endian::Little, Endian::Big] {
                prop_assert_eq!(ZilHeader::parse(&header.emit(endian), endian).unwrap(), header);
            }
            prop_assert!(ZilHeader::parse(&header.emit(Endian::Little)[..167], Endian::Little).is_err());
        }
    }
}
