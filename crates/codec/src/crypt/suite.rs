//! Keys and suites: lengths and version of a key, the suite that wraps it, and the object types that are encrypted.

use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::CryptSuite;

/// Longest master key; the stored one is padded to it.
pub(crate) const MASTER_KEY_BYTES_MAX: usize = 32;
/// Length of the HMAC key.
pub(crate) const HMAC_KEY_BYTES: usize = 64;
/// The key format made today.
pub(crate) const KEY_VERSION: u64 = 1;

/// The suite of the same mode with a 256-bit key: the one that wraps keys.
pub(super) const fn wrapping_suite(suite: CryptSuite) -> CryptSuite {
    match suite {
        CryptSuite::Aes128Ccm | CryptSuite::Aes192Ccm | CryptSuite::Aes256Ccm => CryptSuite::Aes256Ccm,
        CryptSuite::Aes128Gcm | CryptSuite::Aes192Gcm | CryptSuite::Aes256Gcm => CryptSuite::Aes256Gcm,
    }
}

/// Whether blocks and bonus buffers of a type (`dmu_object_type_t`) are encrypted in an encrypted dataset, rather than
/// only authenticated.
#[must_use]
pub(crate) fn object_type_is_encrypted(object_type: u8) -> bool {
    DmuType(object_type).is_encrypted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_wrapped_by_the_longest_key_of_their_mode() {
        for suite in CryptSuite::ALL {
            let wrapping = wrapping_suite(*suite);
            assert_eq!(wrapping.key_bytes(), 32);
            assert_eq!(wrapping.name().ends_with("gcm"), suite.name().ends_with("gcm"));
        }
    }

    #[test]
    fn user_data_is_encrypted_and_structure_is_not() {
        for (object_type, encrypted) in
            [(9, true), (10, true), (11, false), (19, true), (20, true), (21, false), (44, true)]
        {
            assert_eq!(object_type_is_encrypted(object_type), encrypted, "{object_type}");
        }
        assert!(!object_type_is_encrypted(0x80 | 0x40));
        assert!(object_type_is_encrypted(0x80 | 0x40 | 0x20));
        assert!(!object_type_is_encrypted(0));
        assert!(!object_type_is_encrypted(0x7f));
    }
}
