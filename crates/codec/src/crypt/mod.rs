//! Native encryption: the primitives that turn a dataset's blocks into ciphertext and back, and that authenticate them.
//!
//! # Theory
//!
//! **Need.** An encrypted dataset must be readable and tamper-evident with its key, and it must still be possible to scrub, claim and send
//! it without the key. So user data is encrypted and authenticated, structure is only authenticated, and what changes between pools
//! (places, physical sizes of upper levels) is neither.
//!
//! **Keys.**
//!
//! ```text
//! passphrase --PBKDF2-HMAC-SHA1--> wrapping key (32 bytes; or given raw, or as 64 hex digits)
//!   wrapping key --AES-256, the suite's mode--> master key (16, 24 or 32 bytes) and HMAC key (64 bytes)
//!     master key --HKDF-SHA512, info = block's 8-byte salt--> block key
//! ```
//!
//! **Blocks of an encrypted dataset** and how each is protected:
//!
//! | block | protection | where the MAC is |
//! |---|---|---|
//! | level 0, encrypted type | AES-GCM or AES-CCM over all of it, no extra data | block pointer, checksum words 2 and 3 |
//! | level 0, dnodes | the same, over bonus buffers of encrypted types; the rest is extra data | block pointer |
//! | intent log | the same, over record bodies; headers and block pointers are extra data | the block's own header |
//! | level 0, other types | HMAC-SHA512 of the stored bytes, cut to 16 bytes | block pointer |
//! | level 1 and up | SHA-512 (no key) over MACs and portable fields of its block pointers, cut to 16 bytes | block pointer |
//! | objset | two HMACs: over what a raw send carries, and over local accounting | inside the objset |
//!
//! All but the objset and indirect blocks work on bytes as stored, so a block verifies in either byte order. The fields of block pointers
//! and of an objset that MACs cover are put in one order first.
//!
//! **Contract.** No input makes a function here panic, hang or allocate more than a small multiple of its length.
//! Secrets are wiped when dropped and have no `Debug`. MACs are compared in constant time. After a failure the block's
//! bytes are unspecified and must not be used.
//!
//! **Versions.** Key format 0 (before OpenZFS 0.8.0) authenticated fewer fields; it can be read and rewrapped, and this
//! crate makes version 1 only.

mod block;
mod cipher;
mod derived;
mod key;
mod objset;
mod params;
mod pointers;
mod suite;
mod wrapping;

use thiserror::Error;

pub use cenote_format::dsl::{CryptSuite, KeyFormat};

pub use block::BlockLayout;
pub use key::{DatasetKey, WrappedKey};
pub use params::BlockParams;
pub(crate) use params::{IV_BYTES, MAC_BYTES, SALT_BYTES};
pub use pointers::{indirect_mac, verify_indirect_mac};
pub(crate) use suite::{KEY_VERSION, MASTER_KEY_BYTES_MAX, object_type_is_encrypted};
pub use wrapping::{
    PASSPHRASE_BYTES_MAX, PASSPHRASE_BYTES_MIN, PBKDF2_ITERATIONS_DEFAULT, PBKDF2_ITERATIONS_MIN, WrappingKey,
};

/// Why a block or a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CryptError {
    /// The MAC is not that of these bytes: they were altered, or the key is another dataset's.
    #[error("the block fails authentication")]
    Authentication,
    /// The wrapping key does not open the dataset's key.
    #[error("the key is not the one this dataset was encrypted with")]
    WrongKey,
    /// Key material of the wrong length.
    #[error("{format} key of {found} bytes, expected {expected}")]
    KeyLength {
        /// The format of the material.
        format: &'static str,
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// Key material that is not hexadecimal.
    #[error("a hex key holds a character that is no hexadecimal digit")]
    NotHex,
    /// A key derivation with a nonsensical or hostile cost.
    #[error("{found} iterations of PBKDF2; between 1 and {limit} are accepted")]
    Iterations {
        /// Iterations asked for.
        found: u64,
        /// The most we do.
        limit: u64,
    },
    /// Bytes whose structure cannot be walked to see what is encrypted.
    #[error("{structure}: {rule}")]
    Malformed {
        /// The structure.
        structure: &'static str,
        /// The rule broken.
        rule: &'static str,
    },
    /// More data than the cipher's mode can take under one nonce (CCM: one byte less than 16 MiB).
    #[error("{0} bytes are too many for the cipher's mode")]
    TooLong(usize),
    /// Valid in principle, but not something this version knows.
    #[error("not supported yet: {0}")]
    Unsupported(&'static str),
}

/// Bytes that are wiped when dropped. On the heap, so that moving it leaves no copies behind.
struct Secret<const N: usize>(Box<[u8; N]>);

impl<const N: usize> Secret<N> {
    fn zeroed() -> Self {
        Self(Box::new([0; N]))
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut *self.0);
    }
}
