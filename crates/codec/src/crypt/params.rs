//! The encryption parameters in a block pointer.
//!
//! ```text
//! +32   DVA 2, word 0      salt
//! +40   DVA 2, word 1      IV, bytes 0..8
//! +88   fill, high half    IV, bytes 8..12
//! +112  checksum, word 2   MAC, bytes 0..8
//! +120  checksum, word 3   MAC, bytes 8..16
//! ```
//!
//! These are byte strings stored as words. A pointer may be swapped to another order than the one its block was written
//! in (it lies in another block); the strings are then read back through the order that the pointer's own bit names.

use cenote_format::Endian;
use cenote_format::blkptr::CryptParams;
use cenote_format::endian::{put_u32, put_u64};

/// Bytes of a salt.
pub(crate) const SALT_BYTES: usize = 8;
/// Bytes of an IV (nonce).
pub(crate) const IV_BYTES: usize = 12;
/// Bytes of a MAC.
pub(crate) const MAC_BYTES: usize = 16;

/// Bytes of a block pointer.
pub(super) const BLKPTR_BYTES: usize = 128;
const SALT_AT: usize = 32;
const IV_AT: usize = 40;
pub(super) const PROP_AT: usize = 48;
const FILL_AT: usize = 88;
const MAC_AT: usize = 112;

/// Salt, IV and MAC of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockParams {
    /// Selects the block key.
    pub salt: [u8; SALT_BYTES],
    /// The nonce.
    pub iv: [u8; IV_BYTES],
    /// The authentication code. Unused for intent log blocks, which hold their own.
    pub mac: [u8; MAC_BYTES],
}

impl From<CryptParams> for BlockParams {
    fn from(params: CryptParams) -> Self {
        Self { salt: params.salt_bytes, iv: params.iv, mac: params.mac }
    }
}

impl BlockParams {
    /// From the 128 bytes of a block pointer that are in `order`.
    #[must_use]
    pub fn from_blkptr(blkptr: &[u8; BLKPTR_BYTES], order: Endian) -> Self {
        let block_order = block_order(blkptr, order);
        let word = |at| block_order.bytes64(word(blkptr, at, order));
        let mut params = Self { salt: word(SALT_AT), mac: mac(blkptr, order), ..Self::default() };
        params.iv[..8].copy_from_slice(&word(IV_AT));
        let high = (self::word(blkptr, FILL_AT, order) >> 32) as u32;
        params.iv[8..].copy_from_slice(&block_order.bytes32(high));
        params
    }

    /// Puts them in a block pointer in `order`, whose byte-order bit is already right.
    pub fn put_blkptr(&self, blkptr: &mut [u8; BLKPTR_BYTES], order: Endian) {
        let block_order = block_order(blkptr, order);
        let [s @ .., _, _, _, _] = self.iv;
        let [.., i0, i1, i2, i3] = self.iv;
        put_u64(blkptr, SALT_AT, block_order.u64(self.salt), order);
        put_u64(blkptr, IV_AT, block_order.u64(s), order);
        let high_at = if order == Endian::Little { FILL_AT + 4 } else { FILL_AT };
        put_u32(blkptr, high_at, block_order.u32([i0, i1, i2, i3]), order);
        put_mac(blkptr, &self.mac, order);
    }
}

/// The word at a constant offset.
pub(super) fn word(blkptr: &[u8; BLKPTR_BYTES], at: usize, order: Endian) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&blkptr[at..at + 8]);
    order.u64(bytes)
}

/// The order of the block pointed to, from the pointer's highest property bit.
fn block_order(blkptr: &[u8; BLKPTR_BYTES], order: Endian) -> Endian {
    if word(blkptr, PROP_AT, order) >> 63 != 0 { Endian::Little } else { Endian::Big }
}

/// The MAC alone.
pub(super) fn mac(blkptr: &[u8; BLKPTR_BYTES], order: Endian) -> [u8; MAC_BYTES] {
    let block_order = block_order(blkptr, order);
    let mut mac = [0; MAC_BYTES];
    mac[..8].copy_from_slice(&block_order.bytes64(word(blkptr, MAC_AT, order)));
    mac[8..].copy_from_slice(&block_order.bytes64(word(blkptr, MAC_AT + 8, order)));
    mac
}

fn put_mac(blkptr: &mut [u8; BLKPTR_BYTES], mac: &[u8; MAC_BYTES], order: Endian) {
    let block_order = block_order(blkptr, order);
    let [a @ .., _, _, _, _, _, _, _, _] = *mac;
    let [_, _, _, _, _, _, _, _, b @ ..] = *mac;
    put_u64(blkptr, MAC_AT, block_order.u64(a), order);
    put_u64(blkptr, MAC_AT + 8, block_order.u64(b), order);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_every_pair_of_orders() {
        let params = BlockParams { salt: *b"saltsalt", iv: *b"0123456789ab", mac: *b"the mac of block" };
        for order in [Endian::Little, Endian::Big] {
            for bit in [0, 1_u64 << 63] {
                let mut blkptr = [0; BLKPTR_BYTES];
                put_u64(&mut blkptr, PROP_AT, bit, order);
                put_u64(&mut blkptr, FILL_AT, 31, order);
                params.put_blkptr(&mut blkptr, order);
                assert_eq!(BlockParams::from_blkptr(&blkptr, order), params);
                assert_eq!(word(&blkptr, FILL_AT, order) as u32, 31);
                // Swapped word by word, as when its container is read on the other kind of machine.
                for word in blkptr.chunks_exact_mut(8) {
                    word.reverse();
                }
                assert_eq!(BlockParams::from_blkptr(&blkptr, order.swapped()), params);
            }
        }
    }

    #[test]
    fn a_pointer_in_its_blocks_own_order_holds_the_plain_bytes() {
        let mut blkptr = [0; BLKPTR_BYTES];
        put_u64(&mut blkptr, PROP_AT, 1 << 63, Endian::Little);
        BlockParams { salt: *b"saltsalt", ..BlockParams::default() }.put_blkptr(&mut blkptr, Endian::Little);
        assert_eq!(&blkptr[SALT_AT..SALT_AT + 8], b"saltsalt");
    }
}
