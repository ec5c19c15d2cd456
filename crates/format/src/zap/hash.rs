//! The hash that places an entry: CRC-64 (ECMA-182 polynomial, reflected) over the name's bytes without the terminating
//! zero, begun with the ZAP's salt, cut to its top 28 or 48 bits.

use super::{ZapFlags, ZapKey};

/// The reflected polynomial.
pub const CRC64_POLY: u64 = 0xC96C_5795_D787_0F42;

const TABLE: [u64; 256] = build_table();

const fn build_table() -> [u64; 256] {
    let mut table = [0_u64; 256];
    let mut index = 0;
    while index < 256 {
        let mut word = index as u64;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { (word >> 1) ^ CRC64_POLY } else { word >> 1 };
            bit += 1;
        }
        table[index] = word;
        index += 1;
    }
    table
}

/// The CRC's table, by byte; other structures (SA layouts) hash with it too.
#[must_use]
#[cfg(test)]
pub(crate) fn crc64_table() -> &'static [u64; 256] {
    &TABLE
}

fn step(hash: u64, byte: u8) -> u64 {
    (hash >> 8) ^ TABLE[usize::from(hash as u8 ^ byte)]
}

/// Hashes keys of one ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapHasher {
    salt: u64,
    flags: ZapFlags,
}

impl ZapHasher {
    /// For the ZAP with this salt and flags (none for a micro ZAP).
    #[must_use]
    pub const fn new(salt: u64, flags: ZapFlags) -> Self {
        Self { salt, flags }
    }

    /// How many of the hash's top bits are in use.
    #[must_use]
    pub const fn bits(&self) -> u32 {
        if self.flags.contains(ZapFlags::HASH64) { 48 } else { 28 }
    }

    fn cut(&self, hash: u64) -> u64 {
        hash & !((1_u64 << (64 - self.bits())) - 1)
    }

    /// The hash of a name (already normalised, if this ZAP normalises; without the terminating zero).
    #[must_use]
    pub fn name(&self, name: &[u8]) -> u64 {
        self.cut(name.iter().fold(self.salt, |hash, byte| step(hash, *byte)))
    }

    /// The hash of a key of words.
    #[must_use]
    pub(crate) fn words(&self, words: &[u64]) -> u64 {
        if self.flags.contains(ZapFlags::PRE_HASHED_KEY) {
            return self.cut(words.first().copied().unwrap_or(0));
        }
        let hash = words.iter().flat_map(|word| word.to_le_bytes()).fold(self.salt, step);
        self.cut(hash)
    }

    /// The hash of either kind of key.
    #[must_use]
    pub fn key(&self, key: ZapKey<'_>) -> u64 {
        match key {
            ZapKey::Name(name) => self.name(name),
            ZapKey::Words(words) => self.words(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_reflected_ecma_table() {
        assert_eq!(crc64_table()[128], CRC64_POLY);
        // The check value of CRC-64/XZ (same polynomial, all ones in and out) over "123456789".
        let crc = b"123456789".iter().fold(u64::MAX, |hash, byte| step(hash, *byte));
        assert_eq!(!crc, 0x995D_C9BB_DF19_39FA);
    }

    #[test]
    fn only_the_top_bits_are_kept_and_prehashed_keys_pass_through() {
        let hasher = ZapHasher::new(1, ZapFlags::empty());
        assert_eq!(hasher.name(b"config") & ((1 << 36) - 1), 0);
        let wide = ZapHasher::new(1, ZapFlags::HASH64 | ZapFlags::UINT64_KEY);
        assert_eq!(wide.words(&[1, 2]) & 0xffff, 0);
        assert_eq!(wide.name(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]), wide.words(&[1, 2]));
        let pre = ZapHasher::new(1, ZapFlags::HASH64 | ZapFlags::UINT64_KEY | ZapFlags::PRE_HASHED_KEY);
        assert_eq!(pre.words(&[0x1234_5678_9abc_def0, 7]), 0x1234_5678_9abc_0000);
    }
}
