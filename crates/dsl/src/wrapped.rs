//! Objects of wrapped keys: created, shared and released. None of this needs the keys themselves.
//!
//! ```text
//! directory ── crypto_key_obj ──► key object: wrapped keys, refcount, encryption root's directory
//! clones    ── crypto_key_obj ──────┘         one reference for each directory that names it
//! ```
//! A raw stream brings the wrapped keys of its sender. The new dataset becomes its own encryption root, because the user's key may differ from
//! that of the dataset above. A package records the root, which is then moved up; the wrapped keys remain.

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{CryptoKeyPhys, crypto_key, dir_field};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::{Dir, Dsl, DslError};

impl Dsl {
    /// The object of a directory's wrapped keys, and the keys; `None` if it has none.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn wrapped_key(&self, dir: ObjectId) -> Result<Option<(ObjectId, CryptoKeyPhys)>, DslError> {
        match self.object_field(dir, dir_field::CRYPTO_KEY_OBJECT).await? {
            Some(object) => Ok(Some((ObjectId(object), self.key_phys(ObjectId(object)).await?))),
            None => Ok(None),
        }
    }

    /// Gives a new directory its wrapped keys. Returns true if this zapified it.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn create_wrapped_key(&self, txg: Txg, dir: ObjectId, key: &CryptoKeyPhys) -> Result<bool, DslError> {
        assert!(self.object_field(dir, dir_field::CRYPTO_KEY_OBJECT).await?.is_none(), "a directory gets one key");
        let object = Zap::create_object(self.mos(), txg, DmuType::ZAP_METADATA, &[]).await?.id();
        self.put_wrapped(txg, object, key).await?;
        self.put_dataset_field(txg, dir, dir_field::CRYPTO_KEY_OBJECT, &ZapValue::from_u64(object.0)).await
    }

    /// Replaces the wrapped keys of a directory by those of a later stream: the same keys, wrapped by the user's current key.
    ///
    /// # Errors
    /// The directory has none, or the MOS cannot be changed.
    #[boxed]
    pub async fn replace_wrapped_key(&self, txg: Txg, dir: ObjectId, key: &CryptoKeyPhys) -> Result<(), DslError> {
        let what = || DslError::Corrupt { object: dir.0, what: "it has no key".to_owned() };
        let (object, before) = self.wrapped_key(dir).await?.ok_or_else(what)?;
        let kept = CryptoKeyPhys { root_dir: before.root_dir, refcount: before.refcount, ..key.clone() };
        self.put_wrapped(txg, object, &kept).await
    }

    async fn put_wrapped(&self, txg: Txg, object: ObjectId, key: &CryptoKeyPhys) -> Result<(), DslError> {
        let object = self.mos().object(object).await?;
        for (name, value) in key.to_zap() {
            Zap::put_entry(&object, txg, name, Some(&value)).await?;
        }
        Ok(())
    }

    /// Makes the directory of a new clone share the keys of its origin, if that has any. Returns true if this zapified the directory.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn share_wrapped_key(&self, txg: Txg, dir: ObjectId, origin: ObjectId) -> Result<bool, DslError> {
        let Some((object, key)) = self.wrapped_key(origin).await? else { return Ok(false) };
        self.count_wrapped(txg, object, key.refcount.saturating_add(1)).await?;
        self.put_dataset_field(txg, dir, dir_field::CRYPTO_KEY_OBJECT, &ZapValue::from_u64(object.0)).await
    }

    /// Releases the keys of a destroyed directory. The last directory that shares them frees their object.
    pub(crate) async fn release_wrapped_key(&self, txg: Txg, dir: ObjectId) -> Result<(), DslError> {
        let Some((object, key)) = self.wrapped_key(dir).await? else { return Ok(()) };
        if key.refcount > 1 {
            return self.count_wrapped(txg, object, key.refcount - 1).await;
        }
        self.shared.keys.lock().remove(&object);
        self.mos().object(object).await?.free(txg);
        Ok(())
    }

    async fn count_wrapped(&self, txg: Txg, object: ObjectId, refcount: u64) -> Result<(), DslError> {
        let object = self.mos().object(object).await?;
        Ok(Zap::put_entry(&object, txg, crypto_key::REFCOUNT, Some(&ZapValue::from_u64(refcount))).await?)
    }

    /// Changes the encryption root of a directory, and of all below it with the same root. The wrapped keys remain.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn move_encryption_root(&self, txg: Txg, dir: &Dir, to: ObjectId) -> Result<(), DslError> {
        let Some((_, key)) = self.wrapped_key(dir.object).await? else { return Ok(()) };
        let from = key.root_dir;
        for below in self.tree(dir.clone(), true).await? {
            let Some((object, key)) = self.wrapped_key(below.object).await? else { continue };
            if key.root_dir == from {
                let object = self.mos().object(object).await?;
                let value = ZapValue::from_u64(to.0);
                Zap::put_entry(&object, txg, crypto_key::ROOT_DIR_OBJECT, Some(&value)).await?;
            }
        }
        Ok(())
    }
}
