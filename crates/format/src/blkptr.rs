//! Block pointers: where a block lies, how to check it, how to unpack it, and when it was born.
//!
//! Sixteen 64-bit words in the writer's byte order. Bit 63 is on the left.
//!
//! ```text
//!       63    56 55          32 31    24 23               0
//!      +--------+--------------+--------+------------------+
//!    0 |   pad  |   vdev       |  grid  | asize, 512 B     |   DVA[0]
//!    1 |G|            offset, 512 B units                  |
//!      +--------+--------------+--------+------------------+
//!  2,3 |                    DVA[1]                         |
//!      +---------------------------------------------------+
//!  4,5 | DVA[2]            or: salt, first 8 bytes of IV   |   (encrypted: salt, IV)
//!      +---+-----+--------+--------+-+-------+------+------+
//!    6 |BDX|level|  type  |checksum|E|compr. |psize |lsize |   prop: 1+1+1+5+8+8+1+7+16+16 bits
//!      +---+-----+--------+--------+-+-------+------+------+
//!    7 |R|                    zero                         |   prop2
//!    8 |                      zero                         |
//!    9 |       physical birth txg; 0: as the logical       |
//!   10 |                logical birth txg                  |
//!   11 | fill count      or: last 4 bytes of IV, 32b fill  |
//!      +---------------------------------------------------+
//!   12 |                   checksum[0]                     |
//!   13 |                   checksum[1]                     |
//!   14 |                   checksum[2] or MAC[0]           |
//!   15 |                   checksum[3] or MAC[1]           |
//!      +---------------------------------------------------+
//!
//!  embedded (E set): words 0..=5, 7..=9 and 11..=15 hold up to 112 payload bytes, low byte of each word first;
//!    6 |BDX|level|  type  | etype  |1|compr. |psz-1|lsz-1  |   1+1+1+5+8+8+1+7+7+25 bits, sizes in bytes
//! ```
//!
//! `B` set: written little-endian; `D` dedup; `X` encrypted, authenticated or MAC checksum; `G` gang; `R` rewritten.
//! `lsize` and `psize` are stored in units of 512 bytes, less one.
//!
//! Parsing only loads the words: a block pointer that makes no sense is still a value, so that a damaged one does not
//! take its neighbours with it. Before following one, call [`Blkptr::verify`].

use std::fmt;

mod build;
mod display;
#[cfg(test)]
mod tests;

use crate::dmu_type::DmuType;
use crate::endian::Endian;
use crate::enums::{Checksum, Compress};
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::{Txg, VdevId};

const WORDS: usize = 16;
const PROP: usize = 6;
const PROP2: usize = 7;
const BIRTH_PHYSICAL: usize = 9;
const BIRTH_LOGICAL: usize = 10;
const FILL: usize = 11;
const CHECKSUM: usize = 12;

/// The unit of sizes and offsets (`SPA_MINBLOCKSHIFT`).
pub const MIN_BLOCK_SHIFT: u32 = 9;
/// The smallest block: 512 bytes.
pub const MIN_BLOCK_BYTES: u64 = 1 << MIN_BLOCK_SHIFT;
/// The largest block: 16 MiB (`SPA_MAXBLOCKSIZE`).
pub const MAX_BLOCK_BYTES: u64 = 1 << 24;
/// Bytes that fit into an embedded block pointer.
pub const EMBEDDED_PAYLOAD_BYTES: usize = 112;
/// DVAs of a block pointer.
pub const DVAS_PER_BLKPTR: usize = 3;

const fn field(word: u64, shift: u32, bits: u32) -> u64 {
    (word >> shift) & ((1 << bits) - 1)
}

/// A data virtual address: a place on a top-level vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dva {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Offset in bytes from the start of the vdev's allocatable space, that is, not counting the front labels and boot
    /// area ([`crate::label::START_BYTES`]). A multiple of 512, below 2^63 times 512 (wrapping is refused by `parse`).
    pub offset_bytes: u64,
    /// Bytes allocated there, with parity and padding; for a gang block, with everything that hangs below it.
    pub asize_bytes: u64,
    /// The block there is a gang header.
    pub gang: bool,
}

impl Dva {
    /// From the two words of a DVA; `None` if empty (no bytes allocated) or if the offset exceeds 64 bits of bytes.
    #[must_use]
    pub(crate) const fn from_words(words: [u64; 2]) -> Option<Self> {
        let asize_bytes = field(words[0], 0, 24) << MIN_BLOCK_SHIFT;
        let sectors = field(words[1], 0, 63);
        if asize_bytes == 0 || sectors > u64::MAX >> MIN_BLOCK_SHIFT {
            return None;
        }
        Some(Self {
            vdev: VdevId(field(words[0], 32, 24) as u32),
            offset_bytes: sectors << MIN_BLOCK_SHIFT,
            asize_bytes,
            gang: words[1] >> 63 != 0,
        })
    }

    /// The two words.
    ///
    /// # Panics
    /// If a field does not fit or is not a multiple of 512 bytes.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        assert!(self.vdev.0 < 1 << 24, "vdev id exceeds 24 bits");
        assert!(self.offset_bytes.is_multiple_of(MIN_BLOCK_BYTES), "offset is not a multiple of 512");
        assert!(self.asize_bytes.is_multiple_of(MIN_BLOCK_BYTES), "asize is not a multiple of 512");
        assert!(self.asize_bytes >> MIN_BLOCK_SHIFT < 1 << 24, "asize exceeds 24 bits of sectors");
        [
            (self.vdev.0 as u64) << 32 | self.asize_bytes >> MIN_BLOCK_SHIFT,
            (self.gang as u64) << 63 | self.offset_bytes >> MIN_BLOCK_SHIFT,
        ]
    }
}

impl fmt::Display for Dva {
    /// `vdev:offset:asize`, the last two in hex bytes, as zdb writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:x}:{:x}", self.vdev, self.offset_bytes, self.asize_bytes)
    }
}

/// The kind of a block pointer, on which a read decides first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlkptrKind {
    /// No block: zeros. May still carry a birth txg, a level, a type and a size.
    Hole,
    /// The data lies in the block pointer.
    Embedded,
    /// The data was left out of a redacted send stream.
    Redacted,
    /// An embedded form that no version defines.
    EmbeddedUnknown(u8),
    /// A gang header, whose children hold the data.
    Gang,
    /// An ordinary block.
    Normal,
}

/// The payload of an embedded block pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedPayload {
    bytes: [u8; EMBEDDED_PAYLOAD_BYTES],
    len: u8,
}

impl EmbeddedPayload {
    /// The bytes as stored (compressed if [`Blkptr::compress`] says so).
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::ops::Deref for EmbeddedPayload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for EmbeddedPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EmbeddedPayload").field(&self.as_bytes()).finish()
    }
}

/// The parameters for the decryption of a block, from its block pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CryptParams {
    /// The salt as a number.
    pub salt: u64,
    /// The salt as bytes, in the byte order of the block pointer: the form that goes into the key derivation.
    pub salt_bytes: [u8; 8],
    /// The initialisation vector.
    pub iv: [u8; 12],
    /// The message authentication code. Meaningless for intent log blocks, which carry theirs inside.
    pub mac: [u8; 16],
}

/// A block pointer: a compact value whose accessors are shifts and masks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Blkptr {
    words: [u64; WORDS],
}

impl Blkptr {
    /// Bytes of a block pointer.
    pub const SIZE: usize = 128;
    /// Binary logarithm of [`Self::SIZE`].
    pub const SHIFT: u32 = 7;
    /// The hole that was never written: all zeros.
    pub const HOLE: Self = Self { words: [0; WORDS] };

    /// From the first 128 of `bytes`. Any 128 bytes parse; see [`Self::verify`].
    #[inline]
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        match bytes.first_chunk::<{ Self::SIZE }>() {
            Some(chunk) => Ok(Self::from_array(chunk, endian)),
            None => Err(FormatError::truncated("blkptr", Self::SIZE, bytes.len())),
        }
    }

    /// From exactly 128 bytes; cannot fail.
    #[inline]
    #[must_use]
    pub fn from_array(bytes: &[u8; Self::SIZE], endian: Endian) -> Self {
        let mut words = [0; WORDS];
        let (chunks, _) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = endian.u64(*chunk);
        }
        Self { words }
    }

    /// The `index`th block pointer of an indirect block (or any array of block pointers).
    #[inline]
    pub(crate) fn nth(block: &[u8], index: usize, endian: Endian) -> Result<Self, FormatError> {
        let start = index.saturating_mul(Self::SIZE);
        Self::parse(block.get(start..).unwrap_or(&[]), endian)
    }

    /// All block pointers of an indirect block; a tail shorter than a block pointer is ignored.
    pub fn array(block: &[u8], endian: Endian) -> impl ExactSizeIterator<Item = Self> + DoubleEndedIterator + '_ {
        let (chunks, _) = block.as_chunks::<{ Self::SIZE }>();
        chunks.iter().map(move |chunk| Self::from_array(chunk, endian))
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn emit(&self, endian: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(&self.words) {
            *chunk = match endian {
                Endian::Little => word.to_le_bytes(),
                Endian::Big => word.to_be_bytes(),
            };
        }
        out
    }

    /// From the sixteen words.
    #[must_use]
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// The sixteen words.
    #[must_use]
    pub(crate) const fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// Checks the rules that hold for every block pointer of every pool (`zfs_blkptr_verify` without the pool): known
    /// type, compression and checksum, sizes within bounds, at least one DVA. To be called before following one.
    pub fn verify(&self) -> Result<(), FormatError> {
        let invalid =
            |field: &'static str, value: u64, rule| Err(FormatError::invalid("blkptr", PROP * 8, field, value, rule));
        if !self.dmu_type().is_valid() {
            return invalid("type", u64::from(self.object_type()), "a known object type");
        }
        if self.compress().is_none() {
            return invalid("compress", self.compress_number().into(), "a known compression");
        }
        if self.lsize_bytes() > MAX_BLOCK_BYTES {
            return invalid("lsize", self.lsize_bytes(), "at most 16 MiB");
        }
        if self.is_embedded() {
            if !matches!(self.kind(), BlkptrKind::Embedded | BlkptrKind::Redacted) {
                return invalid("etype", field(self.words[PROP], 40, 8), "data or redacted");
            }
            if self.embedded_psize_bytes() > EMBEDDED_PAYLOAD_BYTES {
                return invalid("psize", self.embedded_psize_bytes() as u64, "at most 112 bytes");
            }
            return Ok(());
        }
        if self.is_hole() {
            return Ok(());
        }
        if self.checksum().is_none() {
            return invalid("checksum", self.checksum_number().into(), "a known checksum");
        }
        if self.psize_bytes() > MAX_BLOCK_BYTES {
            return invalid("psize", self.psize_bytes(), "at most 16 MiB");
        }
        if self.dva(0).is_none() {
            return Err(FormatError {
                structure: "blkptr",
                offset: 0,
                kind: FormatErrorKind::Malformed("neither a hole nor embedded, but without a first DVA"),
            });
        }
        Ok(())
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> BlkptrKind {
        if self.is_embedded() {
            match field(self.words[PROP], 40, 8) {
                0 => BlkptrKind::Embedded,
                2 => BlkptrKind::Redacted,
                other => BlkptrKind::EmbeddedUnknown(other as u8),
            }
        } else if self.is_hole() {
            BlkptrKind::Hole
        } else if self.is_gang() {
            BlkptrKind::Gang
        } else {
            BlkptrKind::Normal
        }
    }

    /// Whether there is no block: reads give zeros.
    #[inline]
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// Whether it has the embedded form (data, redacted, or unknown).
    #[inline]
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        field(self.words[PROP], 39, 1) != 0
    }

    /// Whether it stands for data left out by a redacted send.
    #[must_use]
    pub const fn is_redacted(&self) -> bool {
        matches!(self.kind(), BlkptrKind::Redacted)
    }

    /// Whether the first DVA is a gang header.
    #[inline]
    #[must_use]
    pub const fn is_gang(&self) -> bool {
        !self.is_embedded() && self.words[1] >> 63 != 0
    }

    /// Whether the dataset's keys protect the block in any of three ways: [`Self::is_encrypted`],
    /// [`Self::is_authenticated`], [`Self::has_indirect_mac`].
    #[inline]
    #[must_use]
    pub const fn uses_crypt(&self) -> bool {
        field(self.words[PROP], 61, 1) != 0
    }

    /// Whether the block is encrypted: level 0 of an encrypted object type.
    #[inline]
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.dmu_type().is_encrypted()
    }

    /// Whether the block is in the clear with a MAC: level 0 of an object type that is not encrypted.
    #[must_use]
    pub const fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.dmu_type().is_encrypted()
    }

    /// Whether the block is an indirect one that carries a checksum over the MACs below.
    #[must_use]
    pub const fn has_indirect_mac(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    /// Whether it is in a dedup table.
    #[must_use]
    pub const fn dedup(&self) -> bool {
        field(self.words[PROP], 62, 1) != 0
    }

    /// The byte order of the block's writer, and so of the block's contents.
    #[inline]
    #[must_use]
    pub const fn byte_order(&self) -> Endian {
        if self.words[PROP] >> 63 != 0 { Endian::Little } else { Endian::Big }
    }

    /// How many DVA places there are: 3, 2 if encrypted, 0 if embedded.
    const fn dva_places(&self) -> usize {
        if self.is_embedded() {
            0
        } else if self.is_encrypted() {
            DVAS_PER_BLKPTR - 1
        } else {
            DVAS_PER_BLKPTR
        }
    }

    /// The DVA at `index`, if there is a valid one.
    #[inline]
    #[must_use]
    pub const fn dva(&self, index: usize) -> Option<Dva> {
        if index >= self.dva_places() {
            return None;
        }
        Dva::from_words([self.words[index * 2], self.words[index * 2 + 1]])
    }

    /// The valid DVAs, in order: the copies of the block.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + use<> {
        let this = *self;
        (0..DVAS_PER_BLKPTR).filter_map(move |index| this.dva(index))
    }

    /// Bytes allocated for all copies.
    #[must_use]
    pub fn asize_bytes(&self) -> u64 {
        self.dvas().map(|dva| dva.asize_bytes).sum()
    }

    /// Bytes of the unpacked block. Of a hole, what reads below it span; 0 if redacted.
    #[inline]
    #[must_use]
    pub const fn lsize_bytes(&self) -> u64 {
        match self.kind() {
            BlkptrKind::Embedded => field(self.words[PROP], 0, 25) + 1,
            BlkptrKind::Redacted | BlkptrKind::EmbeddedUnknown(_) => 0,
            _ => (field(self.words[PROP], 0, 16) + 1) << MIN_BLOCK_SHIFT,
        }
    }

    /// Bytes of the stored block, before parity: what is read and checksummed. 0 if embedded.
    #[inline]
    #[must_use]
    pub const fn psize_bytes(&self) -> u64 {
        if self.is_embedded() { 0 } else { (field(self.words[PROP], 16, 16) + 1) << MIN_BLOCK_SHIFT }
    }

    const fn embedded_psize_bytes(&self) -> usize {
        field(self.words[PROP], 25, 7) as usize + 1
    }

    /// The payload of an embedded block pointer; `None` for other kinds and for a size that cannot be.
    #[must_use]
    pub fn embedded_payload(&self) -> Option<EmbeddedPayload> {
        let len = self.embedded_psize_bytes();
        if self.kind() != BlkptrKind::Embedded || len > EMBEDDED_PAYLOAD_BYTES {
            return None;
        }
        let mut bytes = [0; EMBEDDED_PAYLOAD_BYTES];
        let words = self.words.iter().enumerate().filter(|(index, _)| is_payload_word(*index));
        for (chunk, (_, word)) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        Some(EmbeddedPayload { bytes, len: len as u8 })
    }

    /// The checksum's number. Of an embedded block pointer: none ("off").
    #[must_use]
    pub const fn checksum_number(&self) -> u8 {
        if self.is_embedded() { Checksum::Off.number() } else { field(self.words[PROP], 40, 8) as u8 }
    }

    /// The checksum algorithm, if known.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> Option<Checksum> {
        Checksum::from_number(self.checksum_number())
    }

    /// The compression's number.
    #[must_use]
    pub const fn compress_number(&self) -> u8 {
        field(self.words[PROP], 32, 7) as u8
    }

    /// The compression algorithm, if known.
    #[inline]
    #[must_use]
    pub const fn compress(&self) -> Option<Compress> {
        Compress::from_number(self.compress_number())
    }

    /// The object type's number.
    #[must_use]
    pub const fn object_type(&self) -> u8 {
        field(self.words[PROP], 48, 8) as u8
    }

    /// The object type.
    #[inline]
    #[must_use]
    pub const fn dmu_type(&self) -> DmuType {
        DmuType(self.object_type())
    }

    /// 0 for data, more for indirect blocks.
    #[inline]
    #[must_use]
    pub const fn level(&self) -> u8 {
        field(self.words[PROP], 56, 5) as u8
    }

    /// Whether the block is metadata: indirect, or of a metadata type.
    #[must_use]
    pub const fn is_metadata(&self) -> bool {
        self.level() > 0 || self.dmu_type().is_metadata()
    }

    /// How many level-0 blocks (or, below a meta-dnode, dnodes) that are not holes lie below.
    #[must_use]
    pub const fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            field(self.words[FILL], 0, 32)
        } else {
            self.words[FILL]
        }
    }

    /// As an entry of a livelist: whether it is a free rather than an allocation. The entry is a copy of the pointer whose
    /// word for the fill count is 0 but for this bit, of a pointer with its data inside too.
    #[must_use]
    pub const fn is_livelist_free(&self) -> bool {
        self.words[FILL] & 1 != 0
    }

    /// When what is on disk was written; 0 if embedded. Earlier than the logical birth for deduplicated and cloned
    /// blocks, later for blocks moved by device removal or rewritten.
    #[inline]
    #[must_use]
    pub const fn physical_birth(&self) -> Txg {
        if self.is_embedded() {
            Txg(0)
        } else if self.words[BIRTH_PHYSICAL] != 0 {
            Txg(self.words[BIRTH_PHYSICAL])
        } else {
            Txg(self.words[BIRTH_LOGICAL])
        }
    }

    /// When the user's data last changed.
    #[inline]
    #[must_use]
    pub const fn logical_birth(&self) -> Txg {
        Txg(self.words[BIRTH_LOGICAL])
    }

    /// When the block was allocated, as dead lists and snapshots count: the physical birth if it was rewritten, else the
    /// logical.
    #[must_use]
    pub const fn birth(&self) -> Txg {
        if self.is_rewritten() { self.physical_birth() } else { self.logical_birth() }
    }

    /// Whether `zfs rewrite` moved it without a logical change.
    #[must_use]
    pub(crate) const fn is_rewritten(&self) -> bool {
        !self.is_embedded() && self.words[PROP2] >> 63 != 0
    }

    /// The four words of the checksum. For blocks that use crypt, but not objsets, the last two are the MAC, and the first
    /// two are compared with a shortened checksum: cryptographic ones are cut, of the others the halves are xored.
    #[inline]
    #[must_use]
    pub const fn checksum_words(&self) -> [u64; 4] {
        [self.words[CHECKSUM], self.words[CHECKSUM + 1], self.words[CHECKSUM + 2], self.words[CHECKSUM + 3]]
    }

    /// The parameters for decryption; `None` if not encrypted.
    #[must_use]
    pub fn crypt_params(&self) -> Option<CryptParams> {
        if !self.is_encrypted() || self.is_embedded() {
            return None;
        }
        let order = self.byte_order();
        let mut iv = [0; 12];
        iv[..8].copy_from_slice(&order.bytes64(self.words[5]));
        iv[8..].copy_from_slice(&order.bytes32(field(self.words[FILL], 32, 32) as u32));
        Some(CryptParams { salt: self.words[4], salt_bytes: order.bytes64(self.words[4]), iv, mac: self.mac_bytes() })
    }

    /// The MAC of a block that uses crypt. `None` for others, and for objsets, whose MACs lie inside them.
    #[must_use]
    pub fn mac(&self) -> Option<[u8; 16]> {
        (self.uses_crypt() && !self.is_embedded() && self.dmu_type() != DmuType::OBJSET).then(|| self.mac_bytes())
    }

    fn mac_bytes(&self) -> [u8; 16] {
        let order = self.byte_order();
        let mut mac = [0; 16];
        mac[..8].copy_from_slice(&order.bytes64(self.words[CHECKSUM + 2]));
        mac[8..].copy_from_slice(&order.bytes64(self.words[CHECKSUM + 3]));
        mac
    }
}

const fn is_payload_word(index: usize) -> bool {
    index != PROP && index != BIRTH_LOGICAL
}
