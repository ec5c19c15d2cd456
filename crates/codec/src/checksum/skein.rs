//! Skein-512-256 as a MAC: the Unique Block Iteration chain over Threefish-512.
//!
//! ```text
//! zeros ── UBI(key: the salt) ── UBI(config: "SHA3", version 1, 256 bits out, no tree) ── [template]
//! template ── UBI(message: the block) ── UBI(output: counter 0) ── first 32 bytes
//!
//! UBI: for each 64-byte piece M: G = Threefish(key G, tweak, M) ^ M
//! tweak: bits 0-95 bytes taken so far incl. this piece, 120-125 type, 126 first, 127 final
//! ```
//!
//! Source: "The Skein Hash Function Family", version 1.3.

use super::threefish;

const BLOCK_SIZE: usize = 64;
const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// The kind of input that a UBI chain absorbs; the numbers are the tweak's type field.
#[derive(Clone, Copy)]
enum Type {
    Key = 0,
    Config = 4,
    Message = 48,
    Output = 63,
}

/// The MAC's state after absorbing key and configuration.
#[derive(Clone)]
pub(crate) struct SkeinMac {
    chain: [u64; 8],
}

impl SkeinMac {
    /// Prepares a MAC of 256 bits under `key`.
    #[must_use]
    pub(crate) fn new(key: &[u8]) -> Self {
        const OUTPUT_BITS: u64 = 256;
        // "SHA3" then version 1, as the specification's schema identifier; then the output length; then zeros.
        let mut config = [0; 32];
        config[..4].copy_from_slice(b"SHA3");
        config[4] = 1;
        config[8..16].copy_from_slice(&OUTPUT_BITS.to_le_bytes());
        let keyed = ubi([0; 8], Type::Key, key);
        Self { chain: ubi(keyed, Type::Config, &config) }
    }

    /// The MAC of `message`.
    #[must_use]
    pub(crate) fn digest(&self, message: &[u8]) -> [u8; 32] {
        let chain = ubi(self.chain, Type::Message, message);
        let output = ubi(chain, Type::Output, &[0; 8]);
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(output) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

/// Absorbs `message` (all of it: first and final piece flags included) into `chain`.
fn ubi(mut chain: [u64; 8], kind: Type, message: &[u8]) -> [u64; 8] {
    let type_bits = (kind as u64) << 56;
    // The empty message still has one (empty, padded) piece.
    let piece_count = message.len().div_ceil(BLOCK_SIZE).max(1);
    let (whole, rest) = message.as_chunks::<BLOCK_SIZE>();
    let mut last = [0; BLOCK_SIZE];
    last[..rest.len()].copy_from_slice(rest);
    for index in 0..piece_count {
        let (piece, taken) = match whole.get(index) {
            Some(piece) => (piece, (index + 1) * BLOCK_SIZE),
            None => (&last, message.len()),
        };
        let first = if index == 0 { FIRST } else { 0 };
        let last = if index + 1 == piece_count { FINAL } else { 0 };
        let tweak = [taken as u64, type_bits | first | last];
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(piece.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let encrypted = threefish::encrypt(&chain, tweak, &words);
        for ((next, cipher), plain) in chain.iter_mut().zip(encrypted).zip(words) {
            *next = cipher ^ plain;
        }
    }
    chain
}
