//! The intent log (ZIL): log blocks and log records.
//!
//! Every objset has a log of its own: a chain of blocks, each naming the next before that one is written. A chain holds
//! the records of operations that synchronous callers were promised and no txg has made permanent yet; after a crash
//! they are replayed.
//!
//! The header lies in the objset; see [`crate::zil_header`].
//!
//! A log block has a *chain* structure at its beginning (checksum `zilog2`) or, in logs of very old pools, at its end
//! (checksum `zilog`); the records fill the rest:
//!
//! ```text
//!   zilog2                                            zilog
//!   0           184                    used    size   0                 used         size-184        size
//!   +-----------+---------+-----------+----+---+      +---------+------+----+--------+---------------+
//!   | chain     | record  | record    |....|   |      | record  |......|    |        | chain         |
//!   +-----------+---------+-----------+----+---+      +---------+------+----+--------+---------------+
//!
//!   chain:
//!   0        8                      136        144         152                    184
//!   +--------+----------------------+----------+-----------+----------------------+
//!   | pad    | next block (blkptr)  | used     | magic     | embedded checksum    |
//!   +--------+----------------------+----------+-----------+----------------------+
//! ```
//!
//! `used` counts from the block's start in both layouts, so it includes the chain in the first and not in the second.
//! The checksum words of a log block's pointer are not a checksum but an identity: two words of random GUID, the
//! objset, and the block's sequence number. A block continues its predecessor if the pointer it carries to its
//! successor has its own identity with a sequence number one higher; anything else ends the chain, which is how replay
//! knows where the log stopped. The magic word and the embedded checksum (seeded with the identity) are the codec's
//! business.

mod acl;
mod raw;
mod records;
#[cfg(test)]
mod tests;
mod xvattr;

pub use acl::{Ace, AclEntries, FuidDomains};
pub use raw::RawRecord;
pub use records::{
    AclRecord, CloneRange, ClonedPart, Create, CreateKind, Data, LogRecord, Records, Rename, RenameKind, SetAttr,
    SetSaXattr, Tx, Whiteout, Write,
};
pub use xvattr::{Xvattr, XvattrFlags};

pub use crate::zil_header::ZilHeader;

use crate::blkptr::Blkptr;
use crate::endian::{Endian, Fields, put_u64};
use crate::enums::Checksum;
use crate::error::FormatError;

/// Where a log block keeps its chain structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainLayout {
    /// At the beginning; the block may be read and written only as far as it is used. Checksum `zilog2`.
    Head,
    /// At the end. Checksum `zilog`.
    Tail,
}

impl ChainLayout {
    /// The layout that goes with the checksum algorithm of the block's pointer; `None` if it is no log block's.
    #[must_use]
    pub const fn of(checksum: Checksum) -> Option<Self> {
        match checksum {
            Checksum::Zilog2 => Some(Self::Head),
            Checksum::Zilog => Some(Self::Tail),
            _ => None,
        }
    }
}

/// The link of a log block to its successor (`zil_chain_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The block after this one; allocated ahead, so it may never have been written.
    pub next: Blkptr,
    /// Bytes in use, from the block's start.
    pub used_bytes: u64,
    /// The word that marks an embedded checksum ([`crate::eck::MAGIC`]).
    pub magic: u64,
    /// The embedded checksum.
    pub checksum: [u64; 4],
}

const CHAIN: &str = "zil chain";

impl Chain {
    /// Bytes on disk.
    pub const SIZE: usize = 184;
    /// Where the embedded checksum's words lie in it.
    pub const CHECKSUM_OFFSET: usize = 152;

    /// Reads a chain structure.
    pub(crate) fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(CHAIN, bytes, Self::SIZE, endian)?;
        Ok(Self {
            next: Blkptr::parse(fields.slice(8, Blkptr::SIZE)?, endian)?,
            used_bytes: fields.u64(136)?,
            magic: fields.u64(144)?,
            checksum: [fields.u64(152)?, fields.u64(160)?, fields.u64(168)?, fields.u64(176)?],
        })
    }

    /// The structure's bytes.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[8..8 + Blkptr::SIZE].copy_from_slice(&self.next.emit(endian));
        put_u64(&mut out, 136, self.used_bytes, endian);
        put_u64(&mut out, 144, self.magic, endian);
        for (index, word) in self.checksum.iter().enumerate() {
            put_u64(&mut out, Self::CHECKSUM_OFFSET + index * 8, *word, endian);
        }
        out
    }
}

/// A log block, taken apart: the link and the bytes that hold records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBlock<'a> {
    /// The link to the next block.
    pub chain: Chain,
    /// The used part of the record area.
    pub records: &'a [u8],
    endian: Endian,
}

impl<'a> LogBlock<'a> {
    /// The smallest log block; sizes are multiples of it.
    pub const SIZE_MIN: usize = 4096;

    /// Takes a block apart. `block` is all of it as the pointer's logical size says, already verified and, in an
    /// encrypted objset, decrypted.
    pub fn parse(block: &'a [u8], layout: ChainLayout, endian: Endian) -> Result<Self, FormatError> {
        let size = block.len();
        let chain_offset = match layout {
            ChainLayout::Head => 0,
            ChainLayout::Tail => {
                size.checked_sub(Chain::SIZE).ok_or_else(|| FormatError::truncated(CHAIN, Chain::SIZE, size))?
            }
        };
        let chain = Chain::parse(block.get(chain_offset..).unwrap_or_default(), endian)?;
        let (first, end) = match layout {
            ChainLayout::Head => (Chain::SIZE, size),
            ChainLayout::Tail => (0, chain_offset),
        };
        let records = usize::try_from(chain.used_bytes)
            .ok()
            .filter(|used| *used <= end)
            .and_then(|used| block.get(first..used))
            .ok_or_else(|| {
                FormatError::invalid(CHAIN, 136, "used", chain.used_bytes, "within the block's record area")
            })?;
        Ok(Self { chain, records, endian })
    }

    /// Whether this block is the one that `pointer` means and its link continues the chain. A block that fails this
    /// is what the chain's unwritten end looks like, not necessarily damage.
    #[must_use]
    pub fn continues(&self, pointer: &Blkptr) -> bool {
        let identity = pointer.checksum_words();
        let next = self.chain.next.checksum_words();
        next[..3] == identity[..3] && identity[3].checked_add(1) == Some(next[3])
    }

    /// The records in it, in order, as far as they can be read without a key; ends after the first that cannot.
    pub fn raw_records(&self) -> impl Iterator<Item = Result<RawRecord<'a>, FormatError>> + use<'a> {
        let (mut rest, endian) = (self.records, self.endian);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let record = RawRecord::parse(rest, endian);
            rest = record.as_ref().map_or(&[][..], |record| rest.get(record.size_bytes()..).unwrap_or_default());
            Some(record)
        })
    }

    /// The records in it, in order.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::new(self.records, self.endian)
    }
}

/// The words of a log block pointer's checksum field, which are its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBlockId {
    /// Random, drawn when the chain was begun.
    pub guid: [u64; 2],
    /// The objset's id.
    pub objset: u64,
    /// The sequence number; the first is 1.
    pub sequence: u64,
}

impl LogBlockId {
    /// The identity in a pointer to a log block.
    #[must_use]
    pub fn of(pointer: &Blkptr) -> Self {
        let [guid_0, guid_1, objset, sequence] = pointer.checksum_words();
        Self { guid: [guid_0, guid_1], objset, sequence }
    }
}
