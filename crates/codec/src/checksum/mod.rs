//! Block checksums: four 64-bit words over a block's bytes, by any of the algorithms a block pointer can name.
//!
//! # How the words relate to byte order
//!
//! A block pointer stores four 64-bit words in the order of the host that wrote it. The block's data, too, has the order
//! of the host that wrote it (a bit of the pointer tells which). The words below are *values*, read from the pointer in
//! its order; `order` is always the order of the data:
//!
//! ```text
//! algorithm            words from                                             depends on the data's order
//! off, noparity        zeros                                                  no
//! fletcher2            sums over 64-bit integers read in the data's order     yes: in what is summed
//! fletcher4            sums over 32-bit integers read in the data's order     yes: in what is summed
//! sha256               the digest as four big-endian integers, always         no (a rule older than the others)
//! sha512 (/256),       the digest's first 32 bytes as four integers in the    yes: in how the digest is cut into
//! skein, edonr, blake3 data's order                                                words
//! ```
//!
//! So a pool moved between hosts of unlike order verifies without rewriting. (OpenZFS 2.3 cannot read an Edon-R block of the other order:
//! it swaps words it never set. This code computes the words of the writing host.)
//!
//! # Salt
//!
//! Skein, Edon-R and BLAKE3 are keyed by 32 random bytes that the pool keeps in its MOS directory, so that nobody can
//! prepare colliding blocks without reading the pool. [`Salt`] holds the three hash states after absorbing the salt; a
//! block's checksum starts from a copy.
//!
//! # Checksums inside the block
//!
//! Labels, gang headers and intent log blocks cannot have their checksum in a parent; see [`embedded`].

pub mod edonr;
pub mod embedded;
pub mod fletcher;
pub(crate) mod lanes;
pub mod skein;
mod threefish;
pub(crate) mod words;

use cenote_format::Endian;
use cenote_format::enums::Checksum;
use sha2::{Digest, Sha256, Sha512_256};

use self::words::words;
pub use self::words::{Words, truncate_for_mac};

/// Why a block's checksum could not be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChecksumError {
    /// The bytes do not sum to what was expected.
    #[error("checksum mismatch: expected {expected:016x?}, the data has {actual:016x?}")]
    Mismatch {
        /// The words of the pointer or trailer.
        expected: Words,
        /// The words computed from the bytes.
        actual: Words,
    },
    /// The algorithm is none that [`compute`] knows: a property-only value or one embedded in its block.
    #[error("{0} is not a checksum of a whole block")]
    NotComputable(Checksum),
    /// The algorithm needs the pool's salt, which is not known yet.
    #[error("{0} needs the pool's salt, which is not known yet")]
    NoSalt(Checksum),
    /// The block is too short, of an impossible length, or lacks the magic number that an embedded checksum needs.
    #[error("no embedded checksum trailer: {0}")]
    Trailer(&'static str),
}

/// A pool's checksum salt, absorbed by each salted algorithm, ready for use.
///
/// Its `Debug` shows nothing of the salt: an attacker who knows it can search for collisions.
#[derive(Clone)]
pub struct Salt(Option<Box<Templates>>);

#[derive(Clone)]
struct Templates {
    skein: skein::SkeinMac,
    edonr: edonr::EdonR512,
    blake3: blake3::Hasher,
}

impl Salt {
    /// The salt's length in the MOS directory.
    pub const SIZE: usize = 32;

    /// Prepares the templates of a pool's salt.
    #[must_use]
    pub fn new(salt: &[u8; Self::SIZE]) -> Self {
        // Edon-R has no key input. ZFS fills one whole 128-byte block with H(salt) followed by H(H(salt)) and lets the
        // hash absorb it first.
        let first = edonr::EdonR512::digest(salt);
        let second = edonr::EdonR512::digest(&first);
        let mut edonr = edonr::EdonR512::new();
        edonr.update(&first);
        edonr.update(&second);
        Self(Some(Box::new(Templates {
            skein: skein::SkeinMac::new(salt),
            edonr,
            blake3: blake3::Hasher::new_keyed(salt),
        })))
    }

    /// No salt, as before the MOS is read: salted algorithms cannot be computed.
    #[must_use]
    pub const fn unknown() -> Self {
        Self(None)
    }

    /// Whether the salt is known.
    #[must_use]
    const fn is_known(&self) -> bool {
        self.0.is_some()
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_known() { "Salt(known)" } else { "Salt(unknown)" })
    }
}

/// The checksum of a whole block, or `None` for what has none: `inherit`, `on`, the embedded kinds, and salted kinds
/// while the salt is unknown. `off` and `noparity` sum to zeros, and pointers written with them hold zeros.
#[must_use]
pub fn compute(kind: Checksum, data: &[u8], order: Endian, salt: &Salt) -> Option<Words> {
    Some(match kind {
        Checksum::Off | Checksum::NoParity => [0; 4],
        Checksum::Fletcher2 => fletcher::fletcher2(data, order),
        Checksum::Fletcher4 => fletcher::fletcher4(data, order),
        Checksum::Sha256 => sha256(data),
        Checksum::Sha512 => words(&Sha512_256::digest(data).into(), order),
        Checksum::Skein => words(&salt.0.as_ref()?.skein.digest(data), order),
        Checksum::Edonr => {
            let mut state = salt.0.as_ref()?.edonr.clone();
            state.update(data);
            let digest = state.finish();
            let mut head = [0; 32];
            head.copy_from_slice(&digest[..32]);
            words(&head, order)
        }
        Checksum::Blake3 => {
            let mut state = salt.0.as_ref()?.blake3.clone();
            state.update(data);
            words(state.finalize().as_bytes(), order)
        }
        Checksum::Inherit
        | Checksum::On
        | Checksum::Label
        | Checksum::GangHeader
        | Checksum::Zilog
        | Checksum::Zilog2 => return None,
    })
}

/// Whether a block sums to `expected`. `encrypted` is true for blocks whose pointer's last two words hold the MAC of
/// the ciphertext (every encrypted block but an objset's): then only the folded first two words are compared.
pub fn verify(
    kind: Checksum,
    data: &[u8],
    order: Endian,
    salt: &Salt,
    expected: &Words,
    encrypted: bool,
) -> Result<(), ChecksumError> {
    let actual = compute(kind, data, order, salt).ok_or(if kind.is_salted() {
        ChecksumError::NoSalt(kind)
    } else {
        ChecksumError::NotComputable(kind)
    })?;
    compare(kind, *expected, actual, encrypted)
}

fn compare(kind: Checksum, mut expected: Words, mut actual: Words, encrypted: bool) -> Result<(), ChecksumError> {
    if encrypted {
        actual = truncate_for_mac(kind, actual);
        expected[2] = 0;
        expected[3] = 0;
    }
    if expected == actual { Ok(()) } else { Err(ChecksumError::Mismatch { expected, actual }) }
}

/// SHA-256 as ZFS stores it: big-endian words on every host.
fn sha256(data: &[u8]) -> Words {
    words(&Sha256::digest(data).into(), Endian::Big)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> [u8; 32] {
        let mut out = [0; 32];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
        }
        out
    }

    #[test]
    fn sha256_words_are_big_endian_whatever_the_order() {
        let expected = words(&hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), Endian::Big);
        for order in [Endian::Little, Endian::Big] {
            assert_eq!(compute(Checksum::Sha256, b"abc", order, &Salt::unknown()), Some(expected));
        }
    }

    #[test]
    fn sha512_is_the_256_bit_variant_cut_in_data_order() {
        // FIPS 180-4, SHA-512/256 of "abc".
        let digest = hex("53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23");
        for order in [Endian::Little, Endian::Big] {
            assert_eq!(compute(Checksum::Sha512, b"abc", order, &Salt::unknown()), Some(words(&digest, order)));
        }
    }

    #[test]
    fn salted_kinds_need_the_salt_and_depend_on_it() {
        let (one, two) = (Salt::new(&[1; 32]), Salt::new(&[2; 32]));
        for kind in [Checksum::Skein, Checksum::Edonr, Checksum::Blake3] {
            let data = [7; 4096];
            assert_eq!(compute(kind, &data, Endian::Little, &Salt::unknown()), None);
            assert_eq!(
                verify(kind, &data, Endian::Little, &Salt::unknown(), &[0; 4], false),
                Err(ChecksumError::NoSalt(kind))
            );
            let sum = compute(kind, &data, Endian::Little, &one).unwrap();
            assert_ne!(Some(sum), compute(kind, &data, Endian::Little, &two));
            assert_eq!(sum.map(u64::swap_bytes), compute(kind, &data, Endian::Big, &one).unwrap());
            assert_eq!(verify(kind, &data, Endian::Little, &one, &sum, false), Ok(()));
            assert!(verify(kind, &data[..4095], Endian::Little, &one, &sum, false).is_err());
        }
    }

    #[test]
    fn property_values_and_embedded_kinds_have_no_whole_block_sum() {
        let salt = Salt::new(&[0; 32]);
        for kind in Checksum::ALL {
            let expected = !(kind.is_embedded() || matches!(kind, Checksum::Inherit | Checksum::On));
            assert_eq!(compute(*kind, &[0; 512], Endian::Little, &salt).is_some(), expected, "{kind}");
        }
    }

    #[test]
    fn an_encrypted_blocks_mac_words_are_not_compared() {
        let salt = Salt::new(&[9; 32]);
        let data: Vec<u8> = (0..4096).map(|i| (i * 7) as u8).collect();
        for kind in [Checksum::Fletcher4, Checksum::Edonr, Checksum::Sha256, Checksum::Blake3] {
            let full = compute(kind, &data, Endian::Little, &salt).unwrap();
            let mut stored = truncate_for_mac(kind, full);
            stored[2] = 0x1234;
            stored[3] = 0x5678;
            assert_eq!(verify(kind, &data, Endian::Little, &salt, &stored, true), Ok(()));
            assert!(verify(kind, &data, Endian::Little, &salt, &stored, false).is_err());
            stored[1] ^= 1;
            assert!(verify(kind, &data, Endian::Little, &salt, &stored, true).is_err());
        }
    }
}
