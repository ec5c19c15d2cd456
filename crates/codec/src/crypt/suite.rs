//! The `encryption` property's values, and which object types are encrypted.

use cenote_format::dmu_type::DmuType;

/// A cipher, its key length and its mode (`enum zio_encrypt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CryptSuite {
    /// AES-128 in CCM.
    Aes128Ccm = 3,
    /// AES-192 in CCM.
    Aes192Ccm = 4,
    /// AES-256 in CCM.
    Aes256Ccm = 5,
    /// AES-128 in GCM.
    Aes128Gcm = 6,
    /// AES-192 in GCM.
    Aes192Gcm = 7,
    /// AES-256 in GCM; what `on` means.
    Aes256Gcm = 8,
}

impl CryptSuite {
    /// Every suite, in the order of the numbers.
    pub const ALL: [Self; 6] =
        [Self::Aes128Ccm, Self::Aes192Ccm, Self::Aes256Ccm, Self::Aes128Gcm, Self::Aes192Gcm, Self::Aes256Gcm];

    /// What `encryption=on` means.
    pub const ON: Self = Self::Aes256Gcm;

    /// The suite with this number; `None` for inherit, on, off (0 to 2) and unknown numbers.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.number() == number)
    }

    /// The number on disk.
    #[must_use]
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The property's text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// The suite of this name; `on` is the default one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "on" {
            return Some(Self::ON);
        }
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }

    /// Length of the master key and of the block keys.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    /// The suite of the same mode with a 256-bit key: the one that wraps keys.
    pub(super) const fn wrapping(self) -> Self {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => Self::Aes256Ccm,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => Self::Aes256Gcm,
        }
    }
}

/// Whether blocks and bonus buffers of a type (`dmu_object_type_t`) are encrypted in an encrypted dataset, rather than
/// only authenticated.
#[must_use]
pub fn object_type_is_encrypted(object_type: u8) -> bool {
    DmuType(object_type).is_encrypted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_map_both_ways() {
        for suite in CryptSuite::ALL {
            assert_eq!(CryptSuite::from_number(suite.number()), Some(suite));
            assert_eq!(CryptSuite::from_name(suite.name()), Some(suite));
        }
        assert_eq!(CryptSuite::from_name("on"), Some(CryptSuite::Aes256Gcm));
        for number in [0, 1, 2, 9, 256 + 8, u64::MAX] {
            assert_eq!(CryptSuite::from_number(number), None);
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
