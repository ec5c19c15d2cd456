//! Files that are open, and bytes that were read.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_dmu::tx::TxError;
use cenote_format::ids::ObjectId;
use cenote_inuse::OpenFiles;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, Class, Join};
use cenote_zpl::ZplError;

use crate::error::{Error, ErrorKind};
use crate::filesystem::{FileSystem, new_node};
use crate::metadata::{FileKind, Metadata};
use crate::open::OpenedFiles;
use crate::raise::Lower as _;

/// Bytes of a file that are read at a time.
const CHUNK_BYTES: usize = 4 << 20;
/// Bytes that are read in one step.
const STEP_BYTES: usize = 8 << 20;

/// Bytes that were read. Cheap to clone: it may be the block that the cache has.
#[derive(Clone, Default)]
pub struct Bytes(Block);

impl Bytes {
    /// Reads in steps.
    pub(crate) async fn gather(
        offset_bytes: u64,
        len: usize,
        read: impl AsyncFn(u64, usize) -> Result<Block, Error>,
    ) -> Result<Self, Error> {
        if len <= STEP_BYTES {
            return read(offset_bytes, len).await.map(Self);
        }
        let mut all = Vec::new();
        while all.len() < len {
            let at = offset_bytes.saturating_add(all.len() as u64);
            let part = read(at, (len - all.len()).min(STEP_BYTES)).await?;
            if part.is_empty() {
                break;
            }
            all.extend_from_slice(&part);
        }
        Ok(Self(all.into()))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

/// An open file. It stays, whatever becomes of its names, until this is dropped. Any number of tasks may read and write it at once. When its
/// dataset is rolled back, calls wait meanwhile; a file that is gone after that is [`Stale`](crate::ErrorKind::Stale).
pub struct File {
    filesystem: FileSystem,
    /// Its number among the open files of the file system.
    key: u64,
    /// Its attributes as they were seen last.
    seen: Mutex<Metadata>,
    path: PathBuf,
}

/// A file, for one call.
struct Entered {
    file: Arc<cenote_zpl::File>,
    opened: Arc<OpenedFiles>,
}

impl Drop for File {
    fn drop(&mut self) {
        self.filesystem.inner.release(self.key);
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FileSystem {
    /// The whole content of a file.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is no file), or it cannot be read: then
    /// [`Error::place`] says which block, where.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let file = self.open(path).await?;
        let mut content = Vec::new();
        loop {
            let part = file.read_at(content.len() as u64, CHUNK_BYTES).await?;
            if part.is_empty() {
                return Ok(content);
            }
            content.extend_from_slice(&part);
        }
    }

    /// Writes a file: it is made, or made empty, and filled.
    ///
    /// # Errors
    /// As [`Self::create`] and [`File::write_at`].
    pub async fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.create(path).await?.write_at(0, content).await
    }

    /// Opens a file that is there, to be read, and to be written where the file system can be changed.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is no file).
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let found = self.find(&at, path, true).await?;
        self.open_object(&at, found.object, path).await
    }

    async fn open_object(&self, at: &OpenedFiles, object: ObjectId, path: &Path) -> Result<File, Error> {
        let file = at.files.open_file(object).await.map_err(|error| self.error(error, path))?;
        File::new(self, at, file, path)
    }

    /// Makes a file, with mode 644, or makes one that is there empty; and opens it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) (of its directory), [`Misuse`](ErrorKind::Misuse), [`NoSpace`](ErrorKind::NoSpace),
    /// [`ReadOnly`](ErrorKind::ReadOnly).
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        loop {
            let at = self.enter().await?;
            let live = self.live(&at)?;
            match self.find(&at, path, true).await {
                Ok(found) => {
                    let file = self.open_object(&at, found.object, path).await?;
                    // The handle enters by itself.
                    drop(at);
                    file.set_len(0).await?;
                    return Ok(file);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let (directory, name) = self.parent(&at, path).await?;
            let new = new_node(&directory, FileKind::File, 0o644);
            match at.files.create_file(directory.object, name, &new).await {
                Ok((file, _)) => {
                    self.commit_if_sync(live).await?;
                    return File::new(self, &at, file, path);
                }
                // Somebody else has made it, unless it is a link that leads nowhere.
                Err(ZplError::Exists) if self.find(&at, path, true).await.is_ok() => {}
                Err(error) => return Err(self.error(error, path)),
            }
        }
    }
}

impl File {
    fn new(filesystem: &FileSystem, at: &OpenedFiles, file: cenote_zpl::File, path: &Path) -> Result<Self, Error> {
        let seen = Metadata::of(&file.attributes().map_err(|error| filesystem.error(error, path))?);
        let key = filesystem.inner.keep(at, file);
        Ok(Self { filesystem: filesystem.clone(), key, seen: Mutex::new(seen), path: path.to_owned() })
    }

    async fn enter(&self) -> Result<Entered, Error> {
        let opened = self.filesystem.inner.enter().await?;
        let file = opened.kept.get(self.key).ok_or_else(|| self.filesystem.inner.stale(&self.path))?;
        Ok(Entered { file, opened })
    }

    fn error(&self, error: ZplError) -> Error {
        self.filesystem.error(error, &self.path)
    }

    /// Its attributes: while its dataset is rolled back, as they were before.
    ///
    /// # Errors
    /// They contradict themselves. [`Stale`](crate::ErrorKind::Stale).
    pub fn metadata(&self) -> Result<Metadata, Error> {
        let Some(opened) = self.filesystem.inner.now() else { return Ok(self.seen.lock().clone()) };
        let file = opened.kept.get(self.key).ok_or_else(|| self.filesystem.inner.stale(&self.path))?;
        let now = Metadata::of(&file.attributes().map_err(|error| self.error(error))?);
        *self.seen.lock() = now.clone();
        Ok(now)
    }

    /// Its length in bytes: as it was before, while its dataset is rolled back or if it is gone.
    #[must_use]
    pub fn len(&self) -> u64 {
        let file = self.filesystem.inner.now().and_then(|opened| opened.kept.get(self.key));
        let mut seen = self.seen.lock();
        if let Some(file) = file {
            seen.len = file.size_bytes();
        }
        seen.len
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `len` bytes at an offset; fewer only at the end of the file.
    ///
    /// # Errors
    /// They cannot be read: [`Error::place`] says which block, where.
    pub async fn read_at(&self, offset_bytes: u64, len: usize) -> Result<Bytes, Error> {
        let entered = self.enter().await?;
        let read = async |at, len| entered.file.read(at, len).await.map_err(|error| self.error(error));
        Bytes::gather(offset_bytes, len, read).await
    }

    /// Writes bytes at an offset; the file becomes longer where they reach beyond its end.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace), [`ReadOnly`](crate::ErrorKind::ReadOnly), [`Denied`](crate::ErrorKind::Denied); or what
    /// stands around them cannot be read.
    pub async fn write_at(&self, offset_bytes: u64, content: impl AsRef<[u8]>) -> Result<(), Error> {
        let entered = self.enter().await?;
        let live = self.filesystem.live(&entered.opened)?;
        entered.file.write(offset_bytes, content.as_ref()).await.map_err(|error| self.error(error))?;
        self.commit_if_sync(&entered, live).await
    }

    /// Gives it another length. Added length is a hole.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub async fn set_len(&self, len_bytes: u64) -> Result<(), Error> {
        let entered = self.enter().await?;
        let live = self.filesystem.live(&entered.opened)?;
        entered.file.truncate(len_bytes).await.map_err(|error| self.error(error))?;
        self.commit_if_sync(&entered, live).await
    }

    /// The first offset at or after this one that is not in a hole; none if there is none.
    ///
    /// # Errors
    /// The file's tree of blocks cannot be read.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, Error> {
        self.enter().await?.file.next_data(offset_bytes).await.map_err(|error| self.error(error))
    }

    /// The first offset at or after this one that is in a hole, or the end; none past the end.
    ///
    /// # Errors
    /// As [`Self::next_data`].
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<Option<u64>, Error> {
        self.enter().await?.file.next_hole(offset_bytes).await.map_err(|error| self.error(error))
    }

    /// Waits until all that was changed of it is on disk, in the intent log at least (`fsync`). With the property `sync=disabled` it does
    /// not wait.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self) -> Result<(), Error> {
        let entered = self.enter().await?;
        let live = self.log_access(&entered).await?;
        live.log().sync(Some(entered.file.id())).await.map_err(|error| error.raise().of_path(&self.path))
    }

    /// Asks for everything written so far to be stable and does not wait for it: an asynchronous `fsync`. The writes that the ticket is for
    /// are on their way at once; nothing is promised before [`SyncTicket::wait`] returns.
    ///
    /// # Errors
    /// The pool is open for reading only, or the time of the last access could not be changed.
    pub async fn begin_sync(&self) -> Result<SyncTicket, Error> {
        let entered = self.enter().await?;
        let ticket = self.log_access(&entered).await?.log().ticket(Some(entered.file.id()));
        // In a task: a ticket that nobody waits for must not keep its dataset from being suspended.
        let committed = self.filesystem.inner.runtime().spawn(Class::Issue, async move {
            let committed = ticket.wait().await;
            drop(entered);
            committed
        });
        Ok(SyncTicket { committed, path: self.path.clone() })
    }

    /// Notes the time of the last access, unless `readonly` forbids that: what was changed before is made stable all the same.
    async fn log_access<'a>(&self, entered: &'a Entered) -> Result<&'a OpenFiles, Error> {
        let Some(live) = entered.opened.live() else { return self.filesystem.live(&entered.opened) };
        if !live.is_read_only() {
            entered.file.write_atime().await.map_err(|error| self.error(error))?;
        }
        Ok(live)
    }

    async fn commit_if_sync(&self, entered: &Entered, live: &OpenFiles) -> Result<(), Error> {
        let committed = live.log().commit_if_sync(false, Some(entered.file.id())).await;
        committed.map_err(|error| error.raise().of_path(&self.path))
    }
}

/// The commit that [`File::begin_sync`] asked for. A ticket that is dropped takes nothing back.
#[must_use = "nothing is promised before the ticket was waited for"]
pub struct SyncTicket {
    committed: Join<Result<(), TxError>>,
    path: PathBuf,
}

impl fmt::Debug for SyncTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncTicket").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SyncTicket {
    /// Waits until all that was written before [`File::begin_sync`] is stable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn wait(self) -> Result<(), Error> {
        let Self { committed, path } = self;
        let committed = committed.await.unwrap_or(Err(TxError::Closed));
        committed.map_err(|error| error.raise().of_path(&path))
    }
}
