//! The fields of a block pointer that MACs cover, and the MAC of an indirect block.
//!
//! ```text
//! +0   u64 LE    property word, without what differs between pools
//! +8   16 bytes  MAC of the block pointed to
//! +24  u64       zero (key version 1; absent in version 0)
//! ```

use cenote_format::Endian;
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

use super::params::{BLKPTR_BYTES, PROP_AT, mac, word};
use super::{CryptError, KEY_VERSION, MAC_BYTES};

/// Bits of the property word: compression, byte order, dedup, checksum, physical size, level, embedded.
const COMPRESS_MASK: u64 = 0x7f << 32;
const EMBEDDED_BIT: u64 = 1 << 39;
const CHECKSUM_MASK: u64 = 0xff << 40;
const LEVEL_MASK: u64 = 0x1f << 56;
const DEDUP_BIT: u64 = 1 << 62;
const BYTE_ORDER_BIT: u64 = 1 << 63;
const PSIZE_MASK: u64 = 0xffff << 16;

/// Bytes of a pointer's contribution, and of them without the padding.
pub(super) const ENTRY_BYTES: usize = 32;
const ENTRY_BYTES_V0: usize = 24;

/// A pointer's contribution to a MAC.
pub(super) struct Entry {
    bytes: [u8; ENTRY_BYTES],
    len: usize,
}

impl Entry {
    /// From a pointer in `order`, by the rules of a key's version.
    pub(super) fn new(blkptr: &[u8; BLKPTR_BYTES], order: Endian, version: u64) -> Self {
        let prop = word(blkptr, PROP_AT, order);
        let is_hole = prop & EMBEDDED_BIT == 0 && blkptr[..16] == [0; 16];
        let portable = if version == 0 {
            prop & !(DEDUP_BIT | CHECKSUM_MASK | PSIZE_MASK)
        } else if is_hole {
            // Whether a hole remembers its size and birth depends on a feature that the receiving pool may lack.
            0
        } else if prop & LEVEL_MASK != 0 {
            // A raw send says nothing about indirect blocks, so their storage may differ on the other side.
            prop & !(DEDUP_BIT | CHECKSUM_MASK | PSIZE_MASK | COMPRESS_MASK | BYTE_ORDER_BIT)
        } else {
            prop & !(DEDUP_BIT | CHECKSUM_MASK)
        };
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&portable.to_le_bytes());
        bytes[8..24].copy_from_slice(&mac(blkptr, order));
        Self { bytes, len: if version == 0 { ENTRY_BYTES_V0 } else { ENTRY_BYTES } }
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The MAC of an uncompressed indirect block (level 1 and up) whose pointers are in `order`: a checksum over the MACs
/// below it. No key is needed, so a scrub can verify it too.
#[must_use]
pub fn indirect_mac(block: &[u8], order: Endian) -> [u8; MAC_BYTES] {
    indirect_mac_of_version(block, order, KEY_VERSION)
}

/// Checks an uncompressed indirect block against the MAC in its block pointer. Which version made it is not known here,
/// so both are tried.
pub fn verify_indirect_mac(block: &[u8], order: Endian, mac: &[u8; MAC_BYTES]) -> Result<(), CryptError> {
    let fits = |version| bool::from(indirect_mac_of_version(block, order, version).ct_eq(mac));
    if fits(KEY_VERSION) || fits(0) { Ok(()) } else { Err(CryptError::Authentication) }
}

fn indirect_mac_of_version(block: &[u8], order: Endian, version: u64) -> [u8; MAC_BYTES] {
    let mut hash = Sha512::new();
    for blkptr in block.as_chunks::<BLKPTR_BYTES>().0 {
        hash.update(Entry::new(blkptr, order, version).bytes());
    }
    let mut mac = [0; MAC_BYTES];
    mac.copy_from_slice(&hash.finalize()[..MAC_BYTES]);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::endian::put_u64;

    /// A pointer with this property word and something in its other fields.
    fn blkptr(prop: u64, order: Endian) -> [u8; BLKPTR_BYTES] {
        let mut bytes = [0; BLKPTR_BYTES];
        for at in (0..BLKPTR_BYTES).step_by(8) {
            put_u64(&mut bytes, at, 0x0101_0101_0101_0101 * (at as u64 / 8 + 1), order);
        }
        put_u64(&mut bytes, PROP_AT, prop, order);
        bytes
    }

    #[test]
    fn what_differs_between_pools_does_not_count_and_what_does_not_does() {
        let order = Endian::Little;
        let base = BYTE_ORDER_BIT | 1 << 61 | 19 << 48 | 8 << 40 | 15 << 32 | 7 << 16 | 255;
        let mac_of = |prop| indirect_mac(&blkptr(prop, order), order);
        let level_1 = base | 1 << 56;
        for bit in 0..64 {
            let (flipped, flipped_1) = (base ^ 1 << bit, level_1 ^ 1 << bit);
            let storage = (40..48).contains(&bit) || bit == 62;
            assert_eq!(mac_of(flipped) == mac_of(base), storage, "level 0, bit {bit}");
            if !(56..61).contains(&bit) && bit != 63 {
                let storage = storage || (16..32).contains(&bit) || (32..39).contains(&bit);
                assert_eq!(mac_of(flipped_1) == mac_of(level_1), storage, "level 1, bit {bit}");
            }
        }
    }

    #[test]
    fn a_hole_counts_the_same_with_and_without_its_size() {
        let order = Endian::Big;
        let mut hole = [0; BLKPTR_BYTES];
        let plain = indirect_mac(&hole, order);
        put_u64(&mut hole, PROP_AT, 19 << 48 | 255, order);
        assert_eq!(indirect_mac(&hole, order), plain);
    }

    #[test]
    fn both_orders_and_both_versions_verify() {
        let prop = BYTE_ORDER_BIT | 1 << 61 | 19 << 48 | 255;
        let little = [blkptr(prop, Endian::Little), blkptr(prop | 9, Endian::Little)].concat();
        let big = [blkptr(prop, Endian::Big), blkptr(prop | 9, Endian::Big)].concat();
        let mac = indirect_mac(&little, Endian::Little);
        assert_eq!(indirect_mac(&big, Endian::Big), mac);
        verify_indirect_mac(&little, Endian::Little, &mac).unwrap();
        let old = indirect_mac_of_version(&little, Endian::Little, 0);
        assert_ne!(old, mac);
        verify_indirect_mac(&big, Endian::Big, &old).unwrap();
        assert_eq!(verify_indirect_mac(&big, Endian::Little, &mac), Err(CryptError::Authentication));
    }
}
