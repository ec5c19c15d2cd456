//! Bookmarks and redaction lists.
//!
//! A bookmark is an entry of the dataset's ZAP of bookmarks: an array of 3 words (the original form) or 12, absent words
//! being zero. A redaction list is an object whose data is an array of 32-byte entries, sorted, and whose bonus is
//! [`RedactionListPhys`].

use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::{Guid, ObjectId, Txg};
use crate::words::{bytes_to_words, one_field, word_struct, words_to_bytes};

const WORDS_V1: usize = 3;

bitflags::bitflags! {
    /// `zbm_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BookmarkFlags: u64 {
        /// The `freed_before_next_*` numbers are kept.
        const HAS_FREED_BEFORE_NEXT = 1 << 0;
        /// The snapshot bookmarked was there when this was last written.
        const SNAPSHOT_EXISTS = 1 << 1;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

one_field! { BookmarkFlags as u64: |word| Self::from_bits_retain(word), |value| value.bits(); }

word_struct! {
    /// A bookmark.
    BookmarkPhys("bookmark", 96) {
        /// The snapshot's guid.
        guid: Guid,
        /// The snapshot's txg.
        creation_txg: Txg,
        /// The snapshot's time in seconds.
        creation_time: u64,
        /// The redaction list.
        redaction_list: ObjectId,
        /// Flags.
        flags: BookmarkFlags,
        /// Bytes the snapshot referenced, for `written#`.
        referenced_bytes: u64,
        /// The same before allocation overhead.
        compressed_bytes: u64,
        /// The same before compression.
        uncompressed_bytes: u64,
        /// Bytes of the snapshot's blocks freed before the next snapshot.
        referenced_freed_bytes: u64,
        /// The same before allocation overhead.
        compressed_freed_bytes: u64,
        /// The same before compression.
        uncompressed_freed_bytes: u64,
        /// The snapshot's set of IVs, for raw sends.
        ivset_guid: u64,
    }
}

impl BookmarkPhys {
    /// From the words of a ZAP value: 3 to 12.
    pub fn from_words(words: &[u64]) -> Result<Self, FormatError> {
        let limit = Self::SIZE_BYTES / 8;
        if words.len() < WORDS_V1 {
            return Err(FormatError::truncated("bookmark", WORDS_V1 * 8, words.len() * 8));
        }
        if words.len() > limit {
            return Err(FormatError::limit("bookmark", 0, "words", words.len(), limit));
        }
        let mut bytes = words_to_bytes(words);
        bytes.resize(Self::SIZE_BYTES, 0);
        Self::parse(&bytes, Endian::Little)
    }

    /// The words of the ZAP value: 3 if the rest are zero, as OpenZFS writes them.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        let mut words = bytes_to_words(&self.emit(Endian::Little), Endian::Little);
        if words[WORDS_V1..].iter().all(|word| *word == 0) {
            words.truncate(WORDS_V1);
        }
        words
    }
}

/// The bonus of a redaction list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionListPhys {
    /// Where traversal stopped: the object.
    pub last_object: u64,
    /// Where traversal stopped: the block. All ones in both: the list is complete.
    pub last_block: u64,
    /// Number of entries.
    pub entry_count: u64,
    /// Guids of the snapshots redacted with.
    pub snapshots: Vec<Guid>,
}

impl RedactionListPhys {
    const HEADER_BYTES: usize = 32;

    /// Reads the bonus, which may be larger than the array it holds.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new("redaction list", bonus, Self::HEADER_BYTES, endian)?;
        let count = fields.u64(24)?;
        let room = (bonus.len() - Self::HEADER_BYTES) / 8;
        if count > room as u64 {
            return Err(FormatError::invalid("redaction list", 24, "snapshots", count, "fit in the bonus"));
        }
        let snapshots = (0..count as usize)
            .map(|index| fields.u64(Self::HEADER_BYTES + 8 * index).map(Guid))
            .collect::<Result<_, _>>()?;
        Ok(Self { last_object: fields.u64(0)?, last_block: fields.u64(8)?, entry_count: fields.u64(16)?, snapshots })
    }

    /// Writes the bonus.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> Vec<u8> {
        let mut bonus = vec![0; Self::HEADER_BYTES + 8 * self.snapshots.len()];
        put_u64(&mut bonus, 0, self.last_object, endian);
        put_u64(&mut bonus, 8, self.last_block, endian);
        put_u64(&mut bonus, 16, self.entry_count, endian);
        put_u64(&mut bonus, 24, self.snapshots.len() as u64, endian);
        for (index, guid) in self.snapshots.iter().enumerate() {
            put_u64(&mut bonus, Self::HEADER_BYTES + 8 * index, guid.0, endian);
        }
        bonus
    }
}

/// An entry of a redaction list: consecutive blocks of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedactBlock {
    /// The object.
    pub object: ObjectId,
    /// The first block.
    pub block: u64,
    /// The blocks' size in bytes, a multiple of 512 below 32 MiB.
    pub block_size_bytes: u32,
    /// The number of blocks, from 1 to 2^48.
    pub block_count: u64,
}

impl RedactBlock {
    /// The size of an entry, its last word unused.
    pub const SIZE_BYTES: usize = 32;
    const COUNT_BITS: u32 = 48;

    /// Reads an entry: the third word has the size in sectors in its upper 16 bits and the count, less one, in the rest.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new("redaction list entry", bytes, Self::SIZE_BYTES, endian)?;
        let word = fields.u64(16)?;
        Ok(Self {
            object: ObjectId(fields.u64(0)?),
            block: fields.u64(8)?,
            block_size_bytes: ((word >> Self::COUNT_BITS) as u32) << 9,
            block_count: (word & ((1 << Self::COUNT_BITS) - 1)) + 1,
        })
    }

    /// Writes an entry.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> [u8; Self::SIZE_BYTES] {
        assert_eq!(self.block_size_bytes % 512, 0);
        assert!(self.block_size_bytes >> 9 <= 0xffff);
        let rest = self.block_count.checked_sub(1).expect("an entry has a block at least");
        assert!(rest >> Self::COUNT_BITS == 0);
        let mut bytes = [0; Self::SIZE_BYTES];
        put_u64(&mut bytes, 0, self.object.0, endian);
        put_u64(&mut bytes, 8, self.block, endian);
        let sectors = u64::from(self.block_size_bytes >> 9);
        put_u64(&mut bytes, 16, sectors << Self::COUNT_BITS | rest, endian);
        bytes
    }
}
