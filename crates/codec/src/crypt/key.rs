//! A dataset's key: wrapped as it lies in the pool, and open in memory.
//!
//! The wrapped form is a ZAP object that the dataset's directory names, with these entries, which
//! [`WrappedKey`] mirrors:
//!
//! ```text
//! DSL_CRYPTO_SUITE    u64       DSL_CRYPTO_IV             12 bytes
//! DSL_CRYPTO_GUID     u64       DSL_CRYPTO_MAC            16 bytes
//! DSL_CRYPTO_VERSION  u64       DSL_CRYPTO_MASTER_KEY_1   32 bytes, ciphertext in the first 16, 24 or 32
//!                               DSL_CRYPTO_HMAC_KEY_1     64 bytes
//! ```
//!
//! Master key and HMAC key are one message, in this order; GUID, suite and version are its extra data (in version 0 the
//! GUID alone), as little-endian words.

use std::sync::{Mutex, PoisonError};

use cenote_format::Endian;
use cenote_format::ids::Guid;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha512;
use subtle::ConstantTimeEq;

use super::block::{self, BlockLayout};
use super::cipher::Cipher;
use super::derived::DerivedKeys;
use super::suite::{HMAC_KEY_BYTES, KEY_VERSION, MASTER_KEY_BYTES_MAX, wrapping_suite};
use super::{BlockParams, CryptError, CryptSuite, IV_BYTES, MAC_BYTES, SALT_BYTES, Secret, WrappingKey};

/// Blocks written under one salt before the next is drawn. With random 96-bit nonces this keeps the chance of a
/// repetition below one in a trillion; the number is OpenZFS's (`zfs_key_max_salt_uses`).
pub(crate) const SALT_USES_MAX: u64 = 400_000_000;

/// A dataset's key as the pool stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// The cipher of the dataset's blocks.
    pub suite: CryptSuite,
    /// Identifies the key; a raw send carries it.
    pub guid: Guid,
    /// Format of what it protects.
    pub version: u64,
    /// Nonce of the wrapping.
    pub iv: [u8; IV_BYTES],
    /// MAC of the wrapping.
    pub mac: [u8; MAC_BYTES],
    /// Encrypted master key.
    pub master_key: [u8; MASTER_KEY_BYTES_MAX],
    /// Encrypted HMAC key.
    pub hmac_key: [u8; HMAC_KEY_BYTES],
}

impl WrappedKey {
    /// Opens it, or fails with [`CryptError::WrongKey`].
    pub fn unwrap(&self, wrapping: &WrappingKey) -> Result<DatasetKey, CryptError> {
        let extra = wrapping_extra(self.suite, self.guid, self.version)?;
        let master_len = self.suite.key_bytes();
        let mut message = Secret::<{ MASTER_KEY_BYTES_MAX + HMAC_KEY_BYTES }>::zeroed();
        let message = &mut message.0[..master_len + HMAC_KEY_BYTES];
        message[..master_len].copy_from_slice(&self.master_key[..master_len]);
        message[master_len..].copy_from_slice(&self.hmac_key);
        Cipher::new(wrapping_suite(self.suite), wrapping.bytes())?.open(&self.iv, &extra, message, &self.mac).map_err(
            |error| match error {
                CryptError::Authentication => CryptError::WrongKey,
                error => error,
            },
        )?;
        let (mut master_key, mut hmac_key) = (Secret::zeroed(), Secret::zeroed());
        master_key.0[..master_len].copy_from_slice(&message[..master_len]);
        hmac_key.0.copy_from_slice(&message[master_len..]);
        DatasetKey::new(self.suite, self.guid, self.version, master_key, hmac_key)
    }
}

/// The extra data of a wrapping.
fn wrapping_extra(suite: CryptSuite, guid: Guid, version: u64) -> Result<Vec<u8>, CryptError> {
    let words = [guid.0, suite.number(), version];
    let count = match version {
        0 => 1,
        KEY_VERSION => 3,
        _ => return Err(CryptError::Unsupported("encryption keys of a version after 1")),
    };
    Ok(words[..count].iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// A dataset's key, open. Shared by all that read or write the dataset and its clones.
pub struct DatasetKey {
    suite: CryptSuite,
    guid: Guid,
    version: u64,
    master_key: Secret<MASTER_KEY_BYTES_MAX>,
    hmac_key: Secret<HMAC_KEY_BYTES>,
    hmac: Hmac<Sha512>,
    derived: DerivedKeys,
    writing: Mutex<Option<WriteSalt>>,
}

/// The salt that new blocks are written with.
struct WriteSalt {
    salt: [u8; SALT_BYTES],
    uses: u64,
}

impl DatasetKey {
    fn new(
        suite: CryptSuite,
        guid: Guid,
        version: u64,
        master_key: Secret<MASTER_KEY_BYTES_MAX>,
        hmac_key: Secret<HMAC_KEY_BYTES>,
    ) -> Result<Self, CryptError> {
        let hmac =
            Hmac::new_from_slice(&*hmac_key.0).map_err(|_| CryptError::Unsupported("HMAC keys of another length"))?;
        let derived = DerivedKeys::new(suite, &master_key.0[..suite.key_bytes()]);
        Ok(Self { suite, guid, version, master_key, hmac_key, hmac, derived, writing: Mutex::new(None) })
    }

    /// A new key for a new dataset, from a cryptographic source of random bytes.
    pub fn generate(suite: CryptSuite, guid: Guid, random: &mut dyn FnMut(&mut [u8])) -> Result<Self, CryptError> {
        let (mut master_key, mut hmac_key) = (Secret::zeroed(), Secret::zeroed());
        random(&mut master_key.0[..suite.key_bytes()]);
        random(&mut *hmac_key.0);
        Self::new(suite, guid, KEY_VERSION, master_key, hmac_key)
    }

    /// Wraps it under another wrapping key, as at creation and when the key is changed. `iv` is random and never reused.
    pub fn wrap(&self, wrapping: &WrappingKey, iv: [u8; IV_BYTES]) -> Result<WrappedKey, CryptError> {
        let extra = wrapping_extra(self.suite, self.guid, self.version)?;
        let master_len = self.suite.key_bytes();
        let mut message = Secret::<{ MASTER_KEY_BYTES_MAX + HMAC_KEY_BYTES }>::zeroed();
        let message = &mut message.0[..master_len + HMAC_KEY_BYTES];
        message[..master_len].copy_from_slice(&self.master_key.0[..master_len]);
        message[master_len..].copy_from_slice(&*self.hmac_key.0);
        let mac = Cipher::new(wrapping_suite(self.suite), wrapping.bytes())?.seal(&iv, &extra, message)?;
        let mut wrapped = WrappedKey {
            suite: self.suite,
            guid: self.guid,
            version: self.version,
            iv,
            mac,
            master_key: [0; MASTER_KEY_BYTES_MAX],
            hmac_key: [0; HMAC_KEY_BYTES],
        };
        wrapped.master_key[..master_len].copy_from_slice(&message[..master_len]);
        wrapped.hmac_key.copy_from_slice(&message[master_len..]);
        Ok(wrapped)
    }

    /// The format of its MACs; 0 must not be written with.
    #[must_use]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Decrypts a block of an encrypted type in place. `order` is the block's own (its pointer's byte-order bit). An
    /// intent log block's MAC is taken from the block, any other's from `params`.
    pub fn decrypt(
        &self,
        layout: BlockLayout,
        order: Endian,
        params: &BlockParams,
        block: &mut [u8],
    ) -> Result<(), CryptError> {
        let cipher = self.derived.cipher(&params.salt, block.as_ptr().addr())?;
        block::open(&cipher, self.version, layout, order, (&params.iv, &params.mac), block)
    }

    /// Encrypts a block in place under this salt and IV, and returns its MAC (which an intent log block then also holds).
    pub fn encrypt(
        &self,
        layout: BlockLayout,
        order: Endian,
        salt: &[u8; SALT_BYTES],
        iv: &[u8; IV_BYTES],
        block: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        if self.version != KEY_VERSION {
            return Err(CryptError::Unsupported("writing with an encryption key of version 0"));
        }
        let cipher = self.derived.cipher(salt, block.as_ptr().addr())?;
        block::seal(&cipher, self.version, layout, order, iv, block)
    }

    /// Salt and IV for a new block: the current salt, replaced after [`SALT_USES_MAX`] blocks, and a random IV.
    pub fn fresh_salt_and_iv(&self, random: &mut dyn FnMut(&mut [u8])) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let mut iv = [0; IV_BYTES];
        random(&mut iv);
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let current = match &mut *writing {
            Some(current) if current.uses < SALT_USES_MAX => current,
            place => {
                let mut salt = [0; SALT_BYTES];
                random(&mut salt);
                place.insert(WriteSalt { salt, uses: 0 })
            }
        };
        current.uses += 1;
        (current.salt, iv)
    }

    /// Salt and IV for a block that is to be deduplicated: they follow from its contents, so that equal blocks of a
    /// clone family become equal ciphertexts.
    #[must_use]
    pub fn dedup_salt_and_iv(&self, plain: &[u8]) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let digest = self.hmac_of(plain);
        let (mut salt, mut iv) = ([0; SALT_BYTES], [0; IV_BYTES]);
        salt.copy_from_slice(&digest[..SALT_BYTES]);
        iv.copy_from_slice(&digest[SALT_BYTES..SALT_BYTES + IV_BYTES]);
        (salt, iv)
    }

    /// The MAC of a block that is authenticated but not encrypted, over its bytes as stored.
    #[must_use]
    pub fn mac(&self, stored: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&self.hmac_of(stored)[..MAC_BYTES]);
        mac
    }

    /// Checks a block that is authenticated but not encrypted.
    pub fn verify_mac(&self, stored: &[u8], mac: &[u8; MAC_BYTES]) -> Result<(), CryptError> {
        if bool::from(self.mac(stored).ct_eq(mac)) { Ok(()) } else { Err(CryptError::Authentication) }
    }

    /// A fresh HMAC state.
    pub(super) fn hmac(&self) -> Hmac<Sha512> {
        self.hmac.clone()
    }

    fn hmac_of(&self, data: &[u8]) -> [u8; 64] {
        let mut hmac = self.hmac();
        hmac.update(data);
        hmac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypt::block::intent_log_mac;

    fn counting() -> impl FnMut(&mut [u8]) {
        let mut next = 0_u8;
        move |bytes| {
            for byte in bytes {
                *byte = next;
                next = next.wrapping_add(1);
            }
        }
    }

    #[test]
    fn a_key_survives_wrapping_in_every_suite_and_both_versions() {
        let wrapping = WrappingKey::from_raw(&[9; 32]).unwrap();
        let other = WrappingKey::from_raw(&[8; 32]).unwrap();
        for &suite in CryptSuite::ALL {
            for version in [0, 1] {
                let mut key = DatasetKey::generate(suite, Guid(77), &mut counting()).unwrap();
                key.version = version;
                let wrapped = key.wrap(&wrapping, [4; IV_BYTES]).unwrap();
                let opened = wrapped.unwrap(&wrapping).unwrap();
                assert_eq!(opened.mac(b"data"), key.mac(b"data"));
                assert!(*opened.master_key.0 == *key.master_key.0);
                assert_eq!(wrapped.unwrap(&other).err(), Some(CryptError::WrongKey));
                // The fields that the extra data protects.
                let mut altered = wrapped.clone();
                altered.guid = Guid(78);
                assert_eq!(altered.unwrap(&wrapping).err(), Some(CryptError::WrongKey));
                let mut altered = wrapped.clone();
                altered.version ^= 1;
                assert_eq!(altered.unwrap(&wrapping).err(), Some(CryptError::WrongKey));
                altered.version = 2;
                assert!(matches!(altered.unwrap(&wrapping).err(), Some(CryptError::Unsupported(_))));
            }
        }
    }

    #[test]
    fn blocks_round_trip_in_every_suite_and_refuse_alteration() {
        for &suite in CryptSuite::ALL {
            let mut random = counting();
            let key = DatasetKey::generate(suite, Guid(1), &mut random).unwrap();
            for len in [0, 1, 512, 4096, 131_072] {
                let plain: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let (salt, iv) = key.fresh_salt_and_iv(&mut random);
                let mut block = plain.clone();
                let mac = key.encrypt(BlockLayout::Normal, Endian::Little, &salt, &iv, &mut block).unwrap();
                let params = BlockParams { salt, iv, mac };
                assert!(len < 16 || block != plain);
                let sealed = block.clone();
                key.decrypt(BlockLayout::Normal, Endian::Little, &params, &mut block).unwrap();
                assert_eq!(block, plain);
                let mut wrong =
                    vec![BlockParams { salt: [0xee; 8], ..params }, BlockParams { iv: [0xee; 12], ..params }];
                wrong.push(BlockParams { mac: [0xee; 16], ..params });
                for wrong in wrong {
                    let result = key.decrypt(BlockLayout::Normal, Endian::Little, &wrong, &mut sealed.clone());
                    assert_eq!(result, Err(CryptError::Authentication));
                }
            }
        }
    }

    #[test]
    fn the_salt_changes_after_its_last_use_and_not_before() {
        let mut random = counting();
        let key = DatasetKey::generate(CryptSuite::Aes256Gcm, Guid(1), &mut random).unwrap();
        let (first, iv) = key.fresh_salt_and_iv(&mut random);
        let (second, other_iv) = key.fresh_salt_and_iv(&mut random);
        assert_eq!(first, second);
        assert_ne!(iv, other_iv);
        key.writing.lock().unwrap().as_mut().unwrap().uses = SALT_USES_MAX - 1;
        assert_eq!(key.fresh_salt_and_iv(&mut random).0, first);
        assert_ne!(key.fresh_salt_and_iv(&mut random).0, first);
    }

    #[test]
    fn equal_blocks_get_equal_parameters_for_dedup() {
        let key = DatasetKey::generate(CryptSuite::Aes256Gcm, Guid(1), &mut counting()).unwrap();
        assert_eq!(key.dedup_salt_and_iv(b"one"), key.dedup_salt_and_iv(b"one"));
        assert_ne!(key.dedup_salt_and_iv(b"one"), key.dedup_salt_and_iv(b"two"));
    }

    #[test]
    fn authenticated_blocks_refuse_alteration() {
        let key = DatasetKey::generate(CryptSuite::Aes128Ccm, Guid(1), &mut counting()).unwrap();
        let mac = key.mac(b"master node");
        key.verify_mac(b"master node", &mac).unwrap();
        assert_eq!(key.verify_mac(b"master mode", &mac), Err(CryptError::Authentication));
    }

    #[test]
    fn an_intent_log_block_holds_its_own_mac() {
        let mut random = counting();
        let key = DatasetKey::generate(CryptSuite::Aes256Gcm, Guid(1), &mut random).unwrap();
        let (salt, iv) = key.fresh_salt_and_iv(&mut random);
        let mut block = vec![0; 512];
        block[136..144].copy_from_slice(&184_u64.to_le_bytes());
        let mac = key.encrypt(BlockLayout::IntentLog, Endian::Little, &salt, &iv, &mut block).unwrap();
        assert_eq!(intent_log_mac(&block), Ok(mac));
        let params = BlockParams { salt, iv, mac: [0; MAC_BYTES] };
        key.decrypt(BlockLayout::IntentLog, Endian::Little, &params, &mut block).unwrap();
    }
}
