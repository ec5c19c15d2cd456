//! Block keys, derived from the master key and a block's salt.
//!
//! A salt serves hundreds of millions of blocks, so few are in use at once, and the keyed ciphers are worth keeping. The cache is several
//! small independent ones: the address of the caller's buffer selects one, so cores that decrypt at the same time seldom contend.
//! Deduplicated blocks have a salt each; a new key therefore goes to the end of the row, where the next new one replaces it, and moves to
//! the front only when it is asked for again.

use std::sync::{Arc, Mutex, PoisonError};

use hkdf::Hkdf;
use sha2::Sha512;

use super::cipher::Cipher;
use super::{CryptError, CryptSuite, MASTER_KEY_BYTES_MAX, SALT_BYTES, Secret};

/// Independent caches; about the cores that decrypt at once.
const SHARDS: usize = 16;
/// Keys in each. A key takes about a kilobyte.
const KEYS_PER_SHARD: usize = 16;

type Entry = ([u8; SALT_BYTES], Arc<Cipher>);

/// Derives and keeps block keys.
pub(super) struct DerivedKeys {
    suite: CryptSuite,
    master: Hkdf<Sha512>,
    shards: [Mutex<Vec<Entry>>; SHARDS],
}

impl DerivedKeys {
    /// For this master key.
    pub(super) fn new(suite: CryptSuite, master_key: &[u8]) -> Self {
        Self { suite, master: Hkdf::new(None, master_key), shards: [const { Mutex::new(Vec::new()) }; SHARDS] }
    }

    /// The cipher for a salt. `place` is the address of the caller's buffer.
    pub(super) fn cipher(&self, salt: &[u8; SALT_BYTES], place: usize) -> Result<Arc<Cipher>, CryptError> {
        let shard = &self.shards[((place >> 12) ^ (place >> 17)) % SHARDS];
        {
            let mut entries = shard.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(index) = entries.iter().position(|(has, _)| has == salt) {
                entries[..=index].rotate_right(1);
                return Ok(Arc::clone(&entries[0].1));
            }
        }
        // Not under the lock: a miss costs microseconds.
        let cipher = Arc::new(self.derive(salt)?);
        let mut entries = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() == KEYS_PER_SHARD {
            entries.pop();
        }
        entries.push((*salt, Arc::clone(&cipher)));
        Ok(cipher)
    }

    fn derive(&self, salt: &[u8; SALT_BYTES]) -> Result<Cipher, CryptError> {
        let mut key = Secret::<MASTER_KEY_BYTES_MAX>::zeroed();
        let key = &mut key.0[..self.suite.key_bytes()];
        // HKDF's own salt is empty; what ZFS calls the salt is its info.
        self.master.expand(salt, key).map_err(|_| CryptError::Unsupported("keys longer than HKDF can derive"))?;
        Cipher::new(self.suite, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_in_use_outlives_many_that_are_used_once() {
        let keys = DerivedKeys::new(CryptSuite::Aes128Gcm, &[5; 16]);
        let hot = keys.cipher(b"the salt", 0).unwrap();
        let again = keys.cipher(b"the salt", 0).unwrap();
        assert!(Arc::ptr_eq(&hot, &again));
        for number in 0_u64..1000 {
            keys.cipher(&number.to_le_bytes(), 0).unwrap();
        }
        assert!(Arc::ptr_eq(&hot, &keys.cipher(b"the salt", 0).unwrap()));
        assert_eq!(keys.shards[0].lock().unwrap().len(), KEYS_PER_SHARD);
    }
}
