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
use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::Txg;

const CLAIM_TXG: usize = 0;
const REPLAY_SEQ: usize = CLAIM_TXG + 8;
const LOG: usize = REPLAY_SEQ + 8;
const CLAIM_BLOCK_SEQ: usize = LOG + Blkptr::SIZE;
const FLAGS: usize = CLAIM_BLOCK_SEQ + 8;
const CLAIM_RECORD_SEQ: usize = FLAGS + 8;

/// A log header (`zil_header_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZilHeader {
    /// The txg in which the log's blocks were claimed; 0 before.
    pub claim_txg: Txg,
    /// The highest sequence number that was replayed.
    pub replay_seq: u64,
    /// The first block of the chain.
    pub log: Blkptr,
    /// The highest block sequence number that was claimed.
    pub claim_block_seq: u64,
    /// [`Self::REPLAY_NEEDED`], [`Self::CLAIM_RECORD_SEQ_VALID`].
    pub flags: u64,
    /// The highest record sequence number that was claimed.
    pub claim_record_seq: u64,
}

impl ZilHeader {
    /// Bytes of a header.
    pub const SIZE: usize = 192;
    /// Flag: the log holds records to replay (`ZIL_REPLAY_NEEDED`).
    pub const REPLAY_NEEDED: u64 = 1;
    /// Flag: `claim_record_seq` is valid (`ZIL_CLAIM_LR_SEQ_VALID`).
    pub const CLAIM_RECORD_SEQ_VALID: u64 = 2;

    /// From the first 192 of `bytes`.
    pub(crate) fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new("zil header", bytes, Self::SIZE, endian)?;
        Ok(Self {
            claim_txg: Txg(fields.u64(CLAIM_TXG)?),
            replay_seq: fields.u64(REPLAY_SEQ)?,
            log: Blkptr::parse(fields.slice(LOG, Blkptr::SIZE)?, endian)?,
            claim_block_seq: fields.u64(CLAIM_BLOCK_SEQ)?,
            flags: fields.u64(FLAGS)?,
            claim_record_seq: fields.u64(CLAIM_RECORD_SEQ)?,
        })
    }

    /// The bytes.
    #[must_use]
    pub(crate) fn emit(&self, endian: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_u64(&mut out, CLAIM_TXG, self.claim_txg.0, endian);
        put_u64(&mut out, REPLAY_SEQ, self.replay_seq, endian);
        out[LOG..LOG + Blkptr::SIZE].copy_from_slice(&self.log.emit(endian));
        put_u64(&mut out, CLAIM_BLOCK_SEQ, self.claim_block_seq, endian);
        put_u64(&mut out, FLAGS, self.flags, endian);
        put_u64(&mut out, CLAIM_RECORD_SEQ, self.claim_record_seq, endian);
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            prop_assert!(ZilHeader::parse(&header.emit(Endian::Little)[..191], Endian::Little).is_err());
        }
    }
}
