//! The ZAP ("ZFS attribute processor"): an object that maps names, or arrays of 64-bit words, to arrays of integers.
//! Directories, property lists, the pool's own directory, dedup tables: nearly everything with a name is one.
//!
//! A ZAP has one of two shapes, told apart by the first word of the object's block 0:
//!
//! ```text
//! micro   block 0: header and 64-byte entries, one 64-bit value each           [`MicroZap`], [`MicroZapEdit`]
//! fat     block 0: header, and (while small) the pointer table in its 2nd half [`FatHeader`]
//!         other blocks: pointer table blocks once it outgrew block 0           [`FatHeader::pointer_place`]
//!                       leaves: hash table and 24-byte chunks                  [`Leaf`], [`LeafEdit`]
//!
//!  name ──[`ZapHasher`]──> 64-bit hash ──top `shift` bits──> pointer table ──> leaf block ──next bits──> hash chain
//! ```
//!
//! Extendible hashing: every leaf holds the entries whose hash begins with the leaf's prefix; a full leaf splits in two
//! on the next bit, and when a leaf already uses as many bits as the table has, the table doubles first.
//!
//! A fat ZAP starts with block 1 as its only leaf and never goes back to micro. All of a fat ZAP's blocks have one size,
//! a power of two. Integers of headers, tables and chunk fields are in the block's byte order; the *contents* of names
//! and values are stored as big-endian integers always, so they need no swapping.

mod hash;
mod header;
mod leaf;
mod leaf_edit;
mod micro;
mod value;

pub use hash::{CRC64_POLY, ZapHasher};
pub use header::{EMBEDDED_TABLE_SHIFT_LESS, FatHeader, PointerPlace, PointerTable, double_pointers, hash_index};
pub(crate) use leaf::LeafGeometry;
pub use leaf::{CHUNK_SIZE_BYTES, Leaf, LeafEntry, LeafFlags, LeafHeader};
pub use leaf_edit::{LeafEdit, ZapEditError};
pub use micro::{MICRO_ENTRY_SIZE_BYTES, MICRO_NAME_MAX_BYTES, MicroEntry, MicroSlot, MicroZap, MicroZapEdit};
pub use value::{ZapKey, ZapKeyBuf, ZapValue};

use crate::endian::{Endian, Fields};
use crate::error::{FormatError, FormatErrorKind};

/// The first word of a leaf block.
pub const BLOCK_TYPE_LEAF: u64 = 1 << 63;
/// The first word of a fat ZAP's block 0.
pub const BLOCK_TYPE_HEADER: u64 = (1 << 63) + 1;
/// The first word of a micro ZAP's only block.
pub const BLOCK_TYPE_MICRO: u64 = (1 << 63) + 3;
/// The second word of a fat ZAP's block 0.
pub const HEADER_MAGIC: u64 = 0x2_F52A_B2AB;
/// `lh_magic` of a leaf.
pub const LEAF_MAGIC: u32 = 0x02AB_1EAF;

/// The longest name with its terminating zero, in most ZAPs.
pub const NAME_MAX_BYTES: usize = 256;
/// The longest name with its terminating zero, in directories once `longname` is active; also our bound on reading.
pub const LONG_NAME_MAX_BYTES: usize = 1024;
/// The most bytes of one value.
pub const VALUE_MAX_BYTES: usize = 8192;
/// The block shift OpenZFS gives to new fat ZAPs (16 KiB).
pub const DEFAULT_BLOCK_SHIFT: u32 = 14;

bitflags::bitflags! {
    /// `zap_flags` of a fat ZAP's header. A micro ZAP has none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ZapFlags: u64 {
        /// 48 instead of 28 bits of the hash are used.
        const HASH64 = 1 << 0;
        /// Keys are arrays of 64-bit words, not names.
        const UINT64_KEY = 1 << 1;
        /// The key's first word is the hash.
        const PRE_HASHED_KEY = 1 << 2;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// `normflags`: how names are normalised before hashing and matching.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct NormFlags: u64 {
        /// Fold to upper case.
        const TO_UPPER = 0x0000_0002;
        /// Fold to lower case.
        const TO_LOWER = 0x0000_0004;
        /// Canonical decomposition.
        const CANON_DECOMP = 0x0000_0010;
        /// Compatibility decomposition.
        const COMPAT_DECOMP = 0x0000_0020;
        /// Canonical composition.
        const CANON_COMP = 0x0000_0040;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

/// The kind of a ZAP, from its block 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZapShape {
    /// One block of 64-byte entries.
    Micro,
    /// A header with a pointer table, and leaves.
    Fat,
}

impl ZapShape {
    /// Tells the shape from block 0.
    pub fn of(block: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new("zap", block, 16, endian)?;
        match fields.u64(0)? {
            BLOCK_TYPE_MICRO => Ok(Self::Micro),
            BLOCK_TYPE_HEADER => Ok(Self::Fat),
            found => Err(fields.error(0, FormatErrorKind::BadMagic { found, expected: BLOCK_TYPE_MICRO })),
        }
    }
}

/// The name under which a number is an entry (deadlists, clones, log space maps, ...): hexadecimal without leading zeros.
#[must_use]
pub fn int_key_name(number: u64) -> String {
    format!("{number:x}")
}

/// The number whose name this is.
#[must_use]
pub fn int_key(name: &[u8]) -> Option<u64> {
    let digits = name.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(name).ok().filter(|text| digits && !text.is_empty())?;
    u64::from_str_radix(text, 16).ok()
}
