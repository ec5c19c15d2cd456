//! Indirect writes: the block of a large write is stored where it stays, and its record has the block's pointer (`WR_INDIRECT`).
//!
//! # Theory
//!
//! **Need.** Data that is copied into the log is written twice: in the log block and by the sync of its txg. For a small write that is
//! cheaper than a separate request to the devices; a large write would cost twice its bandwidth.
//!
//! **Which writes** (`zil_write_state` of OpenZFS), decided when the write is made:
//! ```text
//! logbias=throughput                                                  all
//! a log device is there                                               none: it is faster than the pool
//! special devices, as fast as a log (zil_special_is_slog)             of those below, whose blocks go there themselves
//! otherwise                                                           zfs_immediate_write_sz (32 KiB) or more, and where somebody
//!                                                                     waits for this write half a block at least: the next write may be
//!                                                                     of the same block, which would be written whole each time
//! ```
//! A record is of bytes within one block; a longer write is cut at block boundaries, and adjacent writes without a sync in between become
//! one.
//!
//! **Life of one**, in a burst (`writer::issue`, `writer::prepared`). Tasks that run a few blocks ahead of the filling of records capture each block as its
//! txg has it and allocate its DVAs ([`cenote_dmu::LogBlock`]). The write of the data block continues while its record is put into a log
//! block and that log block is written; the devices are flushed when both are written ([`crate::log_io::LogIo::write`]), and only then
//! clients are answered. That flush is for the devices of both ([`crate::data::Data`]).
//!
//! **Exceptions.** A write is copied into the log if its txg is no longer open, if its txg no longer has the block (it was freed), if no
//! space can be allocated at once, or if the dataset has `checksum=off`. If a burst would copy more than 4 MiB, the writes are not
//! logged, and the client waits for their txg.
//!
//! **Errors.** A block that is not stored breaks the log off at the log block that points to it, as if that had not been written. The
//! txg's sync writes the data itself, elsewhere.
//!
//! **Invariants.** 1. No log block is stable before what its records point to is. 2. Memory for the blocks that are being stored is
//! reserved before any lock or txg is held ([`crate::data::STORING_MAX_BYTES`]).
//!
//! **Crash.** Where the block of a record cannot be read the log ends before that record, which was not acknowledged.
//!
//! **Rejected.** *A record of the size alone* (`TX_WRITE2`) for the second write of a block that is stored already: the pointer once more says
//! the same, and stands for itself. *Storing a block when it is written*: it may be changed again before any client syncs it.

use std::ops::Range;

use cenote_dmu::LogBlock;
use cenote_dmu::tx::Transactions;
use cenote_format::ids::Txg;

/// The properties of a write that decide how it is logged.
#[derive(Clone, Copy, Debug)]
pub struct WriteShape {
    /// Bytes of the object's blocks.
    pub block_bytes: u64,
    /// Blocks of the object are small up to so many bytes, and go to special devices (`special_small_blocks`); 0 if none do.
    pub small_bytes: u32,
    /// Somebody waits for this very write.
    pub is_awaited: bool,
}

/// The txg in which a block may be stored.
pub struct LogTxg<'a> {
    pub(crate) txgs: &'a Transactions,
    pub(crate) txg: Txg,
}

impl LogTxg<'_> {
    /// The block of an object that has these bytes as the txg has it; `None` where the txg is not open any more, or the block is not to be
    /// had. The caller may have locked its range.
    #[must_use]
    pub fn block(
        &self,
        objset: &cenote_dmu::Objset,
        object: &cenote_dmu::Object,
        bytes: &Range<u64>,
    ) -> Option<LogBlock> {
        let tx = self.txgs.enter().ok().filter(|tx| tx.txg() == self.txg)?;
        objset.log_block(object, bytes.start, tx).filter(|block| bytes.end <= block.bytes().end)
    }
}

/// The parts of a write, each within one block.
pub(crate) fn parts(bytes: &Range<u64>, block_bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut at, end, block_bytes) = (bytes.start, bytes.end, block_bytes.max(1));
    std::iter::from_fn(move || {
        let next = (at / block_bytes + 1).saturating_mul(block_bytes).min(end);
        (at < end).then(|| std::mem::replace(&mut at, next)..next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_in_one_block() {
        let of = |bytes: Range<u64>, block_bytes| parts(&bytes, block_bytes).collect::<Vec<_>>();
        assert_eq!(of(0..10, 4), [0..4, 4..8, 8..10]);
        assert_eq!(of(5..6, 4), std::slice::from_ref(&(5..6)));
        assert_eq!(of(6..8, 4), std::slice::from_ref(&(6..8)));
        assert_eq!(of(3..9, 1536), std::slice::from_ref(&(3..9)));
        assert_eq!(of(7..7, 4), []);
        assert_eq!(of(u64::MAX - 3..u64::MAX, 4), std::slice::from_ref(&(u64::MAX - 3..u64::MAX)));
    }
}
