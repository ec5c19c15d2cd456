//! Keys of encrypted datasets.
//!
//! Each encrypted directory has an object with its master key, wrapped by a user's key. The keys of directories that inherit encryption are
//! wrapped by the user's key of their *encryption root*. The root's key object also records the form of the user's key (`keyformat`) and, for
//! passphrases, the salt and iteration count. So loading a root's key unwraps the keys of all directories that name it as root. Snapshots use
//! their directory's key, as do clones' origins.

use std::sync::Arc;

use cenote_codec::crypt::{CryptError, DatasetKey, WrappedKey, WrappingKey};
use cenote_dmu::Zap;
use cenote_format::dsl::CryptoKeyPhys;
pub use cenote_format::dsl::KeyFormat;
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;
use zeroize::Zeroizing;

use crate::{Dir, Dsl, DslError};

/// Fields of the key object at most.
const FIELDS_MAX: usize = 64;

/// Key material as a user gives it: a passphrase, hexadecimal digits, or raw bytes. Wiped when dropped.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the material over.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

/// How a directory is encrypted.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// The wrapped key's object.
    pub key_object: ObjectId,
    /// The wrapped key.
    pub phys: CryptoKeyPhys,
    /// The full name of the directory whose user key wraps this one.
    pub root: String,
    /// True if the key is loaded.
    pub is_loaded: bool,
}

impl Dsl {
    /// How a directory is encrypted; `None` if it is not.
    #[boxed]
    pub async fn encryption(&self, dir: &Dir) -> Result<Option<Encryption>, DslError> {
        let Some(key_object) = self.key_object(dir).await? else { return Ok(None) };
        let phys = self.key_phys(key_object).await?;
        let root = self.name_of_ancestor(dir, phys.root_dir).await?;
        Ok(Some(Encryption { key_object, phys, root, is_loaded: self.loaded_key(key_object).is_some() }))
    }

    /// The loaded key of the directory in `object`; `None` if it is not encrypted or its key is not loaded.
    #[boxed]
    pub async fn loaded_key_of_dir(&self, object: ObjectId) -> Result<Option<Arc<DatasetKey>>, DslError> {
        let dir = self.dir_object(object, String::new()).await?;
        Ok(self.key_object(&dir).await?.and_then(|key_object| self.loaded_key(key_object)))
    }

    pub(crate) async fn key_phys(&self, object: ObjectId) -> Result<CryptoKeyPhys, DslError> {
        let zap = Zap::open(self.mos_object(object).await?).await?;
        let fields = zap.entries(FIELDS_MAX).await?;
        CryptoKeyPhys::from_zap(|name| {
            fields.iter().find(|entry| entry.name() == name.as_bytes()).map(|entry| entry.value.clone())
        })
        .map_err(|error| DslError::Format { object: object.0, error })
    }

    /// Loads the key of the dataset `name`: unwraps the key of its encryption root and those of all datasets below with the same root. Returns
    /// the names of the datasets whose keys were loaded. A dataset below whose key is wrapped by another key remains locked: a raw stream brings
    /// the sender's wrapping for one dataset, while the others may still have the previous one.
    ///
    /// # Errors
    /// [`DslError::WrongKey`] if the material is not the root's key; nothing is loaded then.
    #[boxed]
    pub async fn load_key(&self, name: &str, material: Secret) -> Result<Vec<String>, DslError> {
        let dir = self.dir(name).await?;
        let encryption = self.encryption(&dir).await?.ok_or_else(|| DslError::NotEncrypted(name.into()))?;
        let root = self.dir(&encryption.root).await?;
        let wrapping = Arc::new(self.wrapping_key(&root, material).await?);
        let mut loaded = Vec::new();
        for dir in self.tree(root.clone(), true).await? {
            let Some(key_object) = self.key_object(&dir).await? else { continue };
            let phys = self.key_phys(key_object).await?;
            if phys.root_dir != root.object {
                continue;
            }
            let key = match unwrap(&phys, &wrapping) {
                Ok(key) => key,
                Err(CryptError::WrongKey) if dir.object != root.object => continue,
                Err(CryptError::WrongKey) => return Err(DslError::WrongKey(dir.name)),
                Err(other) => {
                    return Err(DslError::BadKeyForm { dataset: dir.name, reason: other.to_string() });
                }
            };
            self.shared.keys.lock().insert(key_object, Arc::new(key));
            loaded.push(dir.name);
        }
        Ok(loaded)
    }

    /// Forgets the keys of a dataset's encryption root and of all datasets below that have the same root. Returns their names. The caller has made
    /// sure that no process uses one of them.
    ///
    /// # Errors
    /// The dataset is not encrypted, or its key is not loaded.
    #[boxed]
    pub async fn unload_key(&self, name: &str) -> Result<Vec<String>, DslError> {
        let encryption = self.encryption(&self.dir(name).await?).await?;
        let root = encryption.ok_or_else(|| DslError::NotEncrypted(name.into()))?.root;
        let root = self.dir(&root).await?;
        let mut unloaded = Vec::new();
        for dir in self.tree(root.clone(), true).await? {
            let Some(key_object) = self.key_object(&dir).await? else { continue };
            if self.key_phys(key_object).await?.root_dir == root.object
                && self.shared.keys.lock().remove(&key_object).is_some()
            {
                unloaded.push(dir.name);
            }
        }
        if unloaded.is_empty() { Err(DslError::KeyNotLoaded(name.into())) } else { Ok(unloaded) }
    }

    /// The form in which the user gives the key of an encryption root.
    #[boxed]
    pub async fn key_format(&self, root: &Dir) -> Result<KeyFormat, DslError> {
        let number = self.key_field(root, "keyformat").await?;
        KeyFormat::from_number(number).ok_or_else(|| DslError::Corrupt {
            object: root.object.0,
            what: format!("'{}' is an encryption root without a key format", root.name),
        })
    }

    /// An encryption property, from the root's key object. 0 if it is not set.
    #[boxed]
    pub async fn key_field(&self, root: &Dir, name: &str) -> Result<u64, DslError> {
        let object = self.key_object(root).await?.ok_or_else(|| DslError::NotEncrypted(root.name.clone()))?;
        Ok(Zap::open(self.mos_object(object).await?).await?.find_u64(name).await?.unwrap_or(0))
    }

    async fn wrapping_key(&self, root: &Dir, material: Secret) -> Result<WrappingKey, DslError> {
        let format = self.key_format(root).await?;
        let salt = self.key_field(root, "pbkdf2salt").await?;
        let iterations = self.key_field(root, "pbkdf2iters").await?;
        // Deriving a key from a passphrase takes a good part of a second, by design.
        let derive = move || WrappingKey::from_material(format, &material.0, salt, iterations);
        let bad = |reason: String| DslError::BadKeyForm { dataset: root.name.clone(), reason };
        let derived = self.dmu().handle().spawn_cpu(derive).await.map_err(|error| bad(error.to_string()))?;
        derived.map_err(|error| bad(error.to_string()))
    }
}

fn unwrap(phys: &CryptoKeyPhys, wrapping: &WrappingKey) -> Result<DatasetKey, CryptError> {
    let wrapped = WrappedKey {
        suite: phys.suite,
        guid: phys.guid,
        version: phys.version,
        iv: phys.iv,
        mac: phys.mac,
        master_key: phys.master_key,
        hmac_key: phys.hmac_key,
    };
    wrapped.unwrap(wrapping)
}
