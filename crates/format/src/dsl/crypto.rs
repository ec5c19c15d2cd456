//! The object of a dataset's wrapped keys: a ZAP whose entries have fixed names and sizes ([`crypto_key`]).
//!
//! Every encrypted directory has one; all directories below an encryption root share its wrapping key. How that key is
//! made of what the user gives (`keyformat`, `pbkdf2salt`, `pbkdf2iters`) is said here, though shown as properties; where
//! it is found (`keylocation`) is a property of the root.

use crate::enums::disk_enum;
use crate::error::FormatError;
use crate::ids::{Guid, ObjectId};
use crate::zap::ZapValue;

const STRUCTURE: &str = "crypto key";

/// Names of the entries.
pub mod crypto_key {
    /// The suite: one integer.
    pub const SUITE: &str = "DSL_CRYPTO_SUITE";
    /// The key's id, which is authenticated with it: one integer.
    pub const GUID: &str = "DSL_CRYPTO_GUID";
    /// The IV of the wrapping: 12 bytes.
    pub const IV: &str = "DSL_CRYPTO_IV";
    /// The MAC of the wrapping: 16 bytes.
    pub const MAC: &str = "DSL_CRYPTO_MAC";
    /// The wrapped master key: 32 bytes whatever the suite.
    pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
    /// The wrapped key of the MACs of plain metadata: 64 bytes.
    pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
    /// The encryption root's directory: one integer.
    pub const ROOT_DIR_OBJECT: &str = "DSL_CRYPTO_ROOT_DDOBJ";
    /// How many directories share this object (clones): one integer.
    pub const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
    /// The format's version: one integer, absent in the first.
    pub const VERSION: &str = "DSL_CRYPTO_VERSION";
    /// The format of the user's key: one integer.
    pub const KEY_FORMAT: &str = "keyformat";
    /// PBKDF2's salt: one integer, 0 unless the user gives a passphrase.
    pub const PBKDF2_SALT: &str = "pbkdf2salt";
    /// PBKDF2's iterations: one integer, 0 unless the user gives a passphrase.
    pub const PBKDF2_ITERATIONS: &str = "pbkdf2iters";
}

disk_enum! {
    /// How a dataset is encrypted (`enum zio_encrypt`).
    CryptSuite: u64 {
        /// AES-128-CCM.
        Aes128Ccm = 3, "aes-128-ccm";
        /// AES-192-CCM.
        Aes192Ccm = 4, "aes-192-ccm";
        /// AES-256-CCM.
        Aes256Ccm = 5, "aes-256-ccm";
        /// AES-128-GCM.
        Aes128Gcm = 6, "aes-128-gcm";
        /// AES-192-GCM.
        Aes192Gcm = 7, "aes-192-gcm";
        /// AES-256-GCM.
        Aes256Gcm = 8, "aes-256-gcm";
    }
}

impl CryptSuite {
    /// The suite of `encryption=on`.
    pub const ON: Self = Self::Aes256Gcm;

    /// The suite of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|member| member.name() == name)
    }

    /// The length in bytes of the master key and of the blocks' keys.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }
}

disk_enum! {
    /// The format of the user's key (`keyformat`).
    KeyFormat: u64 {
        /// 32 bytes.
        Raw = 1, "raw";
        /// 64 hexadecimal digits.
        Hex = 2, "hex";
        /// A passphrase, stretched by PBKDF2.
        Passphrase = 3, "passphrase";
    }
}

impl KeyFormat {
    /// The format of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|member| member.name() == name)
    }
}

/// A dataset's wrapped keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CryptoKeyPhys {
    /// The suite.
    pub suite: CryptSuite,
    /// The key's id.
    pub guid: Guid,
    /// The format's version, 0 in the first.
    pub version: u64,
    /// The encryption root's directory; 0 before it is known, in a raw receive.
    pub root_dir: ObjectId,
    /// How many directories share the object.
    pub refcount: u64,
    /// The format of the user's key.
    pub key_format: KeyFormat,
    /// PBKDF2's salt.
    pub pbkdf2_salt: u64,
    /// PBKDF2's iterations.
    pub pbkdf2_iterations: u64,
    /// The IV of the wrapping.
    pub iv: [u8; 12],
    /// The MAC of the wrapping.
    pub mac: [u8; 16],
    /// The wrapped master key; a suite with shorter keys uses the first bytes.
    pub master_key: [u8; 32],
    /// The wrapped HMAC key.
    pub hmac_key: [u8; 64],
}

impl CryptoKeyPhys {
    /// Gathers the object's entries; `lookup` finds one by name.
    pub fn from_zap(mut lookup: impl FnMut(&str) -> Option<ZapValue>) -> Result<Self, FormatError> {
        let mut word = |name: &'static str| lookup(name).and_then(|value| value.as_u64());
        let suite = word(crypto_key::SUITE).ok_or_else(|| missing("no suite"))?;
        let guid = word(crypto_key::GUID).ok_or_else(|| missing("no guid"))?;
        let version = word(crypto_key::VERSION).unwrap_or(0);
        let root_dir = word(crypto_key::ROOT_DIR_OBJECT).unwrap_or(0);
        let refcount = word(crypto_key::REFCOUNT).unwrap_or(1);
        let key_format = word(crypto_key::KEY_FORMAT).ok_or_else(|| missing("no keyformat"))?;
        let pbkdf2_salt = word(crypto_key::PBKDF2_SALT).unwrap_or(0);
        let pbkdf2_iterations = word(crypto_key::PBKDF2_ITERATIONS).unwrap_or(0);
        let key_format = KeyFormat::from_number(key_format)
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 0, "keyformat", key_format, "1 to 3"))?;
        let suite = CryptSuite::from_number(suite)
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 0, "suite", suite, "3 to 8"))?;
        Ok(Self {
            suite,
            guid: Guid(guid),
            version,
            root_dir: ObjectId(root_dir),
            refcount,
            key_format,
            pbkdf2_salt,
            pbkdf2_iterations,
            iv: array(&mut lookup, crypto_key::IV, "the IV is not 12 bytes")?,
            mac: array(&mut lookup, crypto_key::MAC, "the MAC is not 16 bytes")?,
            master_key: array(&mut lookup, crypto_key::MASTER_KEY, "the master key is not 32 bytes")?,
            hmac_key: array(&mut lookup, crypto_key::HMAC_KEY, "the HMAC key is not 64 bytes")?,
        })
    }

    /// The entries to write.
    #[must_use]
    pub fn to_zap(&self) -> Vec<(&'static str, ZapValue)> {
        vec![
            (crypto_key::SUITE, ZapValue::from_u64(self.suite.number())),
            (crypto_key::ROOT_DIR_OBJECT, ZapValue::from_u64(self.root_dir.0)),
            (crypto_key::GUID, ZapValue::from_u64(self.guid.0)),
            (crypto_key::IV, ZapValue::from_bytes(&self.iv)),
            (crypto_key::MAC, ZapValue::from_bytes(&self.mac)),
            (crypto_key::MASTER_KEY, ZapValue::from_bytes(&self.master_key)),
            (crypto_key::HMAC_KEY, ZapValue::from_bytes(&self.hmac_key)),
            (crypto_key::REFCOUNT, ZapValue::from_u64(self.refcount)),
            (crypto_key::VERSION, ZapValue::from_u64(self.version)),
            (crypto_key::KEY_FORMAT, ZapValue::from_u64(self.key_format.number())),
            (crypto_key::PBKDF2_SALT, ZapValue::from_u64(self.pbkdf2_salt)),
            (crypto_key::PBKDF2_ITERATIONS, ZapValue::from_u64(self.pbkdf2_iterations)),
        ]
    }
}

fn missing(what: &'static str) -> FormatError {
    FormatError::malformed(STRUCTURE, 0, what)
}

fn array<const N: usize>(
    lookup: &mut impl FnMut(&str) -> Option<ZapValue>,
    name: &'static str,
    what: &'static str,
) -> Result<[u8; N], FormatError> {
    let value = lookup(name).ok_or_else(|| missing(what))?;
    value.as_bytes().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| missing(what))
}
