//! Keys of encrypted datasets.
//!
//! A key is given when a pool is opened ([`OpenOptions::key`](crate::OpenOptions::key)) or later ([`Pool::load_key`]), and is kept until it is
//! unloaded ([`Pool::unload_key`]) or the pool is closed. This is the place of the changes of keys to come: what a caller can do instead is in the error.

use cenote_dsl::DslError;

use crate::dataset::{Dataset, Reach};
use crate::error::{Error, ErrorKind, Place};
use crate::pool::{Access, Pool};
use crate::raise::Raise as _;

/// The key of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyStatus {
    /// The dataset is not encrypted.
    None,
    /// It is loaded: the dataset can be read.
    Available,
    /// It is missing.
    Unavailable,
}

impl Dataset {
    /// The status of its key (`keystatus`).
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound): it was destroyed or renamed.
    pub async fn key_status(&self) -> Result<KeyStatus, Error> {
        let own = self.name().to_owned();
        let found =
            self.pool().look(move |dsl| Box::pin(async move { Ok(dsl.encryption(&dsl.dir(&own).await?).await?) }));
        Ok(match found.await? {
            None => KeyStatus::None,
            Some(encryption) if encryption.is_loaded => KeyStatus::Available,
            Some(_) => KeyStatus::Unavailable,
        })
    }

    /// Changes its key, as `zfs change-key`. Not supported yet.
    ///
    /// # Errors
    /// [`NotSupported`](ErrorKind::NotSupported), with what to do instead.
    pub async fn change_key(&self, key: &[u8]) -> Result<(), Error> {
        let _ = key;
        let what = "changing a key; use 'zfs change-key' of OpenZFS";
        Err(unsupported(self.name(), what))
    }
}

impl Pool {
    /// Forgets the key of an encrypted dataset and of all that share it, as `zfs unload-key`.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy): one of them, or a snapshot of one, is open; the message says who uses it. [`Key`](ErrorKind::Key): the key is not
    /// loaded.
    pub async fn unload_key(&self, dataset: &str) -> Result<(), Error> {
        let unloaded = match &self.inner.access {
            Access::Write(pool) => {
                Self::close_unused(&mut *self.inner.open.lock().await).await;
                pool.unload_key(dataset).await.raised()
            }
            Access::Read(view) => {
                let dsl = view.dsl();
                let root = async { dsl.encryption(&dsl.dir(dataset).await?).await };
                let root = root.await.raised()?.map(|encryption| encryption.root);
                let root = root.ok_or_else(|| DslError::NotEncrypted(dataset.to_owned())).raised()?;
                self.let_go(&root, Reach::AllBelow, "its key cannot be unloaded").await?;
                dsl.unload_key(dataset).await.raised()
            }
        };
        unloaded.map(drop).map_err(|error| error.of_dataset(dataset))
    }
}

fn unsupported(dataset: &str, what: &str) -> Error {
    Error::new(ErrorKind::NotSupported, Place::default(), format!("not supported yet: {what}")).of_dataset(dataset)
}
