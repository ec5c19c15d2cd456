//! Making and changing block pointers.

use super::{
    BIRTH_LOGICAL, BIRTH_PHYSICAL, Blkptr, CHECKSUM, DVAS_PER_BLKPTR, Dva, EMBEDDED_PAYLOAD_BYTES, FILL,
    MIN_BLOCK_BYTES, MIN_BLOCK_SHIFT, PROP, is_payload_word,
};
use crate::dmu_type::DmuType;
use crate::endian::Endian;
use crate::enums::{Checksum, Compress};
use crate::ids::Txg;

pub(super) const fn with_field(word: u64, shift: u32, bits: u32, value: u64) -> u64 {
    let mask = ((1 << bits) - 1) << shift;
    (word & !mask) | ((value << shift) & mask)
}

/// Making and changing block pointers. Values that do not fit their field are defects of ours and panic.
impl Blkptr {
    /// A hole of a given place in a tree, as punching or truncating leaves it when holes have births.
    #[must_use]
    pub fn hole_with_birth(object_type: DmuType, level: u8, lsize_bytes: u64, birth: Txg) -> Self {
        let mut bp = Self::HOLE;
        bp.set_dmu_type(object_type);
        bp.set_level(level);
        bp.set_lsize_bytes(lsize_bytes);
        bp.set_births(birth, birth);
        bp
    }

    /// An embedded block pointer. `payload` is compressed with `compress` and unpacks to `lsize_bytes`.
    #[must_use]
    pub fn embedded(
        object_type: DmuType,
        level: u8,
        compress: Compress,
        lsize_bytes: u64,
        payload: &[u8],
        birth: Txg,
        order: Endian,
    ) -> Self {
        assert!((1..=EMBEDDED_PAYLOAD_BYTES).contains(&payload.len()), "payload of 1 to 112 bytes");
        assert!((1..=1 << 25).contains(&lsize_bytes), "lsize in 25 bits");
        let mut bp = Self::HOLE;
        let mut bytes = [0; EMBEDDED_PAYLOAD_BYTES];
        bytes[..payload.len()].copy_from_slice(payload);
        let words = bp.words.iter_mut().enumerate().filter(|(index, _)| is_payload_word(*index));
        for (chunk, (_, word)) in bytes.as_chunks::<8>().0.iter().zip(words) {
            *word = u64::from_le_bytes(*chunk);
        }
        let mut prop = with_field(0, 0, 25, lsize_bytes - 1);
        prop = with_field(prop, 25, 7, payload.len() as u64 - 1);
        bp.words[PROP] = with_field(prop, 39, 1, 1);
        bp.words[BIRTH_LOGICAL] = birth.0;
        bp.set_dmu_type(object_type);
        bp.set_level(level);
        bp.set_compress(compress);
        bp.set_byte_order(order);
        bp
    }

    /// The pointer of a data block of `lsize_bytes` that was left out of a redacted stream. Compression and byte order stay zero, as OpenZFS
    /// has them: there are no bytes that they could be about.
    #[must_use]
    pub fn redacted(object_type: DmuType, lsize_bytes: u64, birth: Txg) -> Self {
        assert!((1..=1 << 25).contains(&lsize_bytes), "lsize in 25 bits");
        let mut bp = Self::HOLE;
        bp.words[PROP] = with_field(with_field(with_field(0, 0, 25, lsize_bytes - 1), 39, 1, 1), 40, 8, 2);
        bp.words[BIRTH_LOGICAL] = birth.0;
        bp.set_dmu_type(object_type);
        bp
    }

    /// Sets or clears a DVA.
    pub fn set_dva(&mut self, index: usize, dva: Option<Dva>) {
        assert!(index < DVAS_PER_BLKPTR && !self.is_embedded());
        let words = dva.map_or([0, 0], Dva::words);
        self.words[index * 2..index * 2 + 2].copy_from_slice(&words);
    }

    fn set_prop(&mut self, shift: u32, bits: u32, value: u64) {
        assert!(value < 1 << bits, "block pointer field of {bits} bits at {shift} cannot hold {value}");
        self.words[PROP] = with_field(self.words[PROP], shift, bits, value);
    }

    /// Sets the logical size of a block that is not embedded.
    pub fn set_lsize_bytes(&mut self, lsize_bytes: u64) {
        assert!(!self.is_embedded() && lsize_bytes >= MIN_BLOCK_BYTES && lsize_bytes.is_multiple_of(MIN_BLOCK_BYTES));
        self.set_prop(0, 16, (lsize_bytes >> MIN_BLOCK_SHIFT) - 1);
    }

    /// Sets the physical size of a block that is not embedded.
    pub fn set_psize_bytes(&mut self, psize_bytes: u64) {
        assert!(!self.is_embedded() && psize_bytes >= MIN_BLOCK_BYTES && psize_bytes.is_multiple_of(MIN_BLOCK_BYTES));
        self.set_prop(16, 16, (psize_bytes >> MIN_BLOCK_SHIFT) - 1);
    }

    /// Sets the compression.
    pub fn set_compress(&mut self, compress: Compress) {
        self.set_prop(32, 7, compress.number().into());
    }

    /// Sets the checksum algorithm.
    pub fn set_checksum(&mut self, checksum: Checksum) {
        assert!(!self.is_embedded());
        self.set_prop(40, 8, checksum.number().into());
    }

    /// Sets the object type.
    pub fn set_dmu_type(&mut self, object_type: DmuType) {
        self.set_prop(48, 8, object_type.number().into());
    }

    /// Sets the level.
    pub fn set_level(&mut self, level: u8) {
        self.set_prop(56, 5, level.into());
    }

    /// Sets whether the block is encrypted, authenticated or MAC-checksummed.
    pub fn set_crypt(&mut self, crypt: bool) {
        self.set_prop(61, 1, crypt.into());
    }

    /// Sets whether the block is in a dedup table.
    pub fn set_dedup(&mut self, dedup: bool) {
        self.set_prop(62, 1, dedup.into());
    }

    /// Sets the byte order.
    pub fn set_byte_order(&mut self, order: Endian) {
        self.set_prop(63, 1, (order == Endian::Little).into());
    }

    /// Sets both births.
    pub fn set_births(&mut self, logical: Txg, physical: Txg) {
        assert!(!self.is_embedded());
        self.words[BIRTH_LOGICAL] = logical.0;
        self.words[BIRTH_PHYSICAL] = if logical == physical { 0 } else { physical.0 };
    }

    /// Sets the fill count; of an encrypted block, whose type, level and crypt bit must be set before, its low 32 bits.
    pub fn set_fill(&mut self, fill: u64) {
        assert!(!self.is_embedded());
        if self.is_encrypted() {
            assert!(fill <= u64::from(u32::MAX));
            self.words[FILL] = with_field(self.words[FILL], 0, 32, fill);
        } else {
            self.words[FILL] = fill;
        }
    }

    /// Sets the checksum's words.
    pub fn set_checksum_words(&mut self, words: [u64; 4]) {
        assert!(!self.is_embedded());
        self.words[CHECKSUM..].copy_from_slice(&words);
    }

    /// Sets the MAC of a block that is authenticated alone, or is above those that have MACs; its byte order and crypt bit were set before.
    pub fn set_mac(&mut self, mac: [u8; 16]) {
        assert!(self.uses_crypt() && !self.is_encrypted() && !self.is_embedded());
        let order = self.byte_order();
        let word = |bytes: &[u8]| order.u64(std::array::from_fn(|index| bytes[index]));
        self.words[CHECKSUM + 2] = word(&mac[..8]);
        self.words[CHECKSUM + 3] = word(&mac[8..]);
    }

    /// Sets salt, IV and MAC of a block whose type, level, byte order and crypt bit were set before.
    pub fn set_crypt_params(&mut self, salt_bytes: [u8; 8], iv: [u8; 12], mac: [u8; 16]) {
        assert!(self.is_encrypted() && !self.is_embedded());
        let order = self.byte_order();
        let word = |bytes: &[u8]| order.u64(std::array::from_fn(|index| bytes[index]));
        self.words[4] = order.u64(salt_bytes);
        self.words[5] = word(&iv[..8]);
        let iv2 = order.u32([iv[8], iv[9], iv[10], iv[11]]);
        self.words[FILL] = with_field(self.words[FILL], 32, 32, iv2.into());
        self.words[CHECKSUM + 2] = word(&mac[..8]);
        self.words[CHECKSUM + 3] = word(&mac[8..]);
    }
}
