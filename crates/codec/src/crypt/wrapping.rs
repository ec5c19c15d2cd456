//! The key that wraps a dataset's key: from raw bytes, hexadecimal text or a passphrase.

use cenote_format::dsl::KeyFormat;
use sha1::Sha1;

use super::{CryptError, Secret};

/// Length of a wrapping key, whatever the suite.
pub(crate) const WRAPPING_KEY_BYTES: usize = 32;
/// Shortest passphrase that a new key may have. Existing ones may be shorter.
pub const PASSPHRASE_BYTES_MIN: usize = 8;
/// Longest passphrase that a new key may have.
pub const PASSPHRASE_BYTES_MAX: usize = 512;
/// Iterations of a new key unless `pbkdf2iters` says otherwise.
pub const PBKDF2_ITERATIONS_DEFAULT: u64 = 350_000;
/// Fewest iterations of a new key.
pub const PBKDF2_ITERATIONS_MIN: u64 = 100_000;
/// Most iterations we do. The number comes from the pool, and a hostile one must not stop us for days; chosen by eye as
/// a few minutes of one core, hundreds of times what people use.
pub(crate) const PBKDF2_ITERATIONS_MAX: u64 = 200_000_000;

/// The user's key. Wiped when dropped.
pub struct WrappingKey(Secret<WRAPPING_KEY_BYTES>);

impl WrappingKey {
    /// From what a key file or prompt gave: for hex and passphrase its first line, for raw all of it. `salt` and
    /// `iterations` (the properties `pbkdf2salt` and `pbkdf2iters`) matter for passphrases alone.
    pub fn from_material(format: KeyFormat, material: &[u8], salt: u64, iterations: u64) -> Result<Self, CryptError> {
        let first_line = || material.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match format {
            KeyFormat::Raw => Self::from_raw(material),
            KeyFormat::Hex => Self::from_hex(first_line()),
            KeyFormat::Passphrase => Self::from_passphrase(first_line(), salt, iterations),
        }
    }

    /// From 32 bytes.
    pub fn from_raw(material: &[u8]) -> Result<Self, CryptError> {
        let expected = WRAPPING_KEY_BYTES;
        if material.len() != expected {
            return Err(CryptError::KeyLength { format: "raw", found: material.len(), expected });
        }
        let mut key = Secret::zeroed();
        key.0.copy_from_slice(material);
        Ok(Self(key))
    }

    /// From 64 hexadecimal digits of either case.
    fn from_hex(digits: &[u8]) -> Result<Self, CryptError> {
        let expected = 2 * WRAPPING_KEY_BYTES;
        if digits.len() != expected {
            return Err(CryptError::KeyLength { format: "hex", found: digits.len(), expected });
        }
        let value = |digit: u8| char::from(digit).to_digit(16).ok_or(CryptError::NotHex);
        let mut key = Secret::<WRAPPING_KEY_BYTES>::zeroed();
        for (byte, [high, low]) in key.0.iter_mut().zip(digits.as_chunks().0) {
            *byte = (value(*high)? << 4 | value(*low)?) as u8;
        }
        Ok(Self(key))
    }

    /// From a passphrase, which ends at its first zero byte. Slow on purpose: not for an executor's thread.
    fn from_passphrase(passphrase: &[u8], salt: u64, iterations: u64) -> Result<Self, CryptError> {
        let rounds = u32::try_from(iterations)
            .ok()
            .filter(|_| (1..=PBKDF2_ITERATIONS_MAX).contains(&iterations))
            .ok_or(CryptError::Iterations { found: iterations, limit: PBKDF2_ITERATIONS_MAX })?;
        let passphrase = passphrase.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut key = Secret::<WRAPPING_KEY_BYTES>::zeroed();
        pbkdf2::pbkdf2_hmac::<Sha1>(passphrase, &salt.to_le_bytes(), rounds, &mut *key.0);
        Ok(Self(key))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &*self.0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON: &[u8] = &[
        0x1e, 0xc9, 0x43, 0x1e, 0xd2, 0xc5, 0x89, 0x8e, 0xb3, 0x3d, 0x37, 0xba, 0xa7, 0x31, 0x6c, 0x2b, 0x10, 0x10,
        0x9c, 0x67, 0x4e, 0x69, 0xf9, 0xf1, 0x42, 0xd3, 0x0f, 0xe5, 0xde, 0xc2, 0x7b, 0xc1,
    ];

    #[test]
    fn the_three_formats_give_keys() {
        let raw = WrappingKey::from_raw(&[0xab; 32]).unwrap();
        let hex = WrappingKey::from_material(KeyFormat::Hex, "aB".repeat(32).as_bytes(), 0, 0).unwrap();
        assert_eq!(raw.bytes(), hex.bytes());
        let line = "ab".repeat(32) + "\nmore";
        assert_eq!(WrappingKey::from_material(KeyFormat::Hex, line.as_bytes(), 0, 0).unwrap().bytes(), raw.bytes());
        // Of the published vectors for PBKDF2-HMAC-SHA1 (RFC 6070) the first part of the case with salt "saltSALT..."
        // does not fit an 8-byte salt; this value was computed with Python's hashlib.
        let salt = u64::from_le_bytes(*b"saltSALT");
        let derived = WrappingKey::from_material(KeyFormat::Passphrase, b"password\n", salt, 4096).unwrap();
        assert_eq!(derived.bytes(), PYTHON);
        assert_eq!(WrappingKey::from_passphrase(b"password\0tail", salt, 4096).unwrap().bytes(), PYTHON);
    }

    #[test]
    fn bad_material_is_refused() {
        let error = |result: Result<WrappingKey, CryptError>| result.err();
        assert!(matches!(error(WrappingKey::from_raw(&[0; 31])), Some(CryptError::KeyLength { .. })));
        assert!(matches!(error(WrappingKey::from_raw(&[0; 33])), Some(CryptError::KeyLength { .. })));
        assert!(matches!(error(WrappingKey::from_hex(&[b'0'; 63])), Some(CryptError::KeyLength { .. })));
        assert_eq!(error(WrappingKey::from_hex(&[b'g'; 64])), Some(CryptError::NotHex));
        for iterations in [0, PBKDF2_ITERATIONS_MAX + 1, u64::MAX] {
            assert!(matches!(
                error(WrappingKey::from_passphrase(b"password", 0, iterations)),
                Some(CryptError::Iterations { .. })
            ));
        }
    }
}
