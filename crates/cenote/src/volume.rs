//! Volumes.

use std::fmt;
use std::sync::Arc;

use cenote_zvol::VolumeError;
use cenote_zvol::live::{Clear, LiveVolume, LiveVolumeError};

use crate::error::Error;
use crate::file::Bytes;
use crate::open::{Disk, Open, OpenedDisk};
use crate::pool::Pool;
use crate::raise::Lower as _;

/// A volume, or a snapshot of one: a block device's bytes. Cheap to clone, and any number of tasks may use it at once.
///
/// ```no_run
/// # async fn example(pool: cenote::Pool) -> Result<(), cenote::Error> {
/// let disk = pool.create_volume("tank/disk", 64 << 20, &[]).await?.volume().await?;
/// disk.write_at(4096, b"hello").await?;
/// disk.flush().await?;
/// assert_eq!(&disk.read_at(4096, 5).await?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Disk>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("name", &self.inner.name()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Opens a volume, or a snapshot of one.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Misuse`](crate::ErrorKind::Misuse) (it is a file system),
    /// [`Key`](crate::ErrorKind::Key).
    pub async fn volume(&self, dataset: &str) -> Result<Volume, Error> {
        match self.opened(dataset, true).await? {
            Open::Disk(inner) => Ok(Volume { inner }),
            Open::Files(_) => Err(Error::misuse(format!("'{dataset}' is no volume")).of_dataset(dataset)),
        }
    }
}

impl Volume {
    /// The name of the dataset or snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    async fn enter(&self) -> Result<Arc<OpenedDisk>, Error> {
        self.inner.enter().await
    }

    fn live<'a>(&self, opened: &'a OpenedDisk) -> Result<&'a LiveVolume, Error> {
        opened.live().ok_or_else(|| self.error(LiveVolumeError::ReadOnly))
    }

    fn error(&self, error: LiveVolumeError) -> Error {
        error.raise().of_dataset(self.inner.name())
    }

    /// True if nothing can be changed: a snapshot, a pool that is open read-only, a volume with `readonly=on`, or one that is being rolled back.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inner.now().is_none_or(|opened| opened.live().is_none_or(LiveVolume::is_read_only))
    }

    /// Its size in bytes: what `volsize` is now, or what a rollback has left.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.sizes().0
    }

    /// The size of its blocks in bytes: writes of whole blocks read nothing.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.inner.sizes().1
    }

    /// So many bytes at an offset.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse) (they do not lie within it); or they cannot be read: [`Error::place`] says which block, where.
    pub async fn read_at(&self, offset_bytes: u64, len: usize) -> Result<Bytes, Error> {
        let opened = self.enter().await?;
        let (end, size_bytes) = (offset_bytes.saturating_add(len as u64), opened.volume().size_bytes());
        if end > size_bytes {
            let error = VolumeError::BeyondEnd { bytes: offset_bytes..end, size_bytes };
            return Err(self.error(error.into()));
        }
        let read = async |at, len| {
            opened.volume().read(at, len).await.map_err(|error| self.error(VolumeError::from(error).into()))
        };
        let read = Bytes::gather(offset_bytes, len, read).await?;
        if let Some(live) = opened.live() {
            live.count_read(read.len() as u64);
        }
        Ok(read)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse) (they do not lie within it), [`NoSpace`](crate::ErrorKind::NoSpace),
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly).
    pub async fn write_at(&self, offset_bytes: u64, content: impl AsRef<[u8]>) -> Result<(), Error> {
        let opened = self.enter().await?;
        let live = self.live(&opened)?;
        live.write(offset_bytes, content.as_ref()).await.map_err(|error| self.error(error))?;
        live.commit_if_sync(false).await.map_err(|error| self.error(error))
    }

    /// Frees a range, which reads as zeros then. Parts of blocks at its ends stay as they are.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub async fn trim(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Error> {
        let opened = self.enter().await?;
        let live = self.live(&opened)?;
        live.clear(offset_bytes, len_bytes, Clear::Discarded).await.map_err(|error| self.error(error))?;
        live.commit_if_sync(false).await.map_err(|error| self.error(error))
    }

    /// Waits until all that was written is on disk, in the intent log at least. With the property `sync=disabled` it does not wait.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn flush(&self) -> Result<(), Error> {
        match self.enter().await?.live() {
            Some(live) => live.flush().await.map_err(|error| self.error(error)),
            None => Ok(()),
        }
    }
}
