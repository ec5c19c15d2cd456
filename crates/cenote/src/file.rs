//! Files that are open, and bytes that were read.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use cenote_format::ids::ObjectId;
use cenote_inuse::OpenFiles;
use cenote_taskq::Block;
use cenote_zpl::ZplError;

use crate::error::{Error, ErrorKind};
use crate::filesystem::{FileSystem, new_node};
use crate::metadata::{FileKind, Metadata};
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

/// An open file. It stays, whatever becomes of its names, until this is dropped. Any number of tasks may read and write it at once.
pub struct File {
    filesystem: FileSystem,
    /// Until it is dropped.
    file: Option<cenote_zpl::File>,
    path: PathBuf,
}

impl Drop for File {
    fn drop(&mut self) {
        if let (Some(live), Some(file)) = (self.filesystem.inner.live(), self.file.take()) {
            live.release(file);
        }
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
        let path = path.as_ref();
        let found = self.find(path, true).await?;
        self.open_object(found.object, path).await
    }

    async fn open_object(&self, object: ObjectId, path: &Path) -> Result<File, Error> {
        let file = self.inner.files.open_file(object).await.map_err(|error| self.error(error, path))?;
        Ok(File::new(self.clone(), file, path))
    }

    /// Makes a file, with mode 644, or makes one that is there empty; and opens it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) (of its directory), [`Misuse`](ErrorKind::Misuse), [`NoSpace`](ErrorKind::NoSpace),
    /// [`ReadOnly`](ErrorKind::ReadOnly).
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let live = self.live()?;
        loop {
            match self.find(path, true).await {
                Ok(found) => {
                    let file = self.open_object(found.object, path).await?;
                    file.set_len(0).await?;
                    return Ok(file);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let (directory, name) = self.parent(path).await?;
            let new = new_node(&directory, FileKind::File, 0o644);
            match self.inner.files.create_file(directory.object, name, &new).await {
                Ok((file, _)) => {
                    self.commit_if_sync(live).await?;
                    return Ok(File::new(self.clone(), file, path));
                }
                // Somebody else has made it, unless it is a link that leads nowhere.
                Err(ZplError::Exists) if self.find(path, true).await.is_ok() => {}
                Err(error) => return Err(self.error(error, path)),
            }
        }
    }
}

impl File {
    fn new(filesystem: FileSystem, file: cenote_zpl::File, path: &Path) -> Self {
        Self { filesystem, file: Some(file), path: path.to_owned() }
    }

    fn file(&self) -> &cenote_zpl::File {
        self.file.as_ref().expect("a file is there until it is dropped")
    }

    fn error(&self, error: ZplError) -> Error {
        self.filesystem.error(error, &self.path)
    }

    /// Its attributes.
    ///
    /// # Errors
    /// They contradict themselves.
    pub fn metadata(&self) -> Result<Metadata, Error> {
        Ok(Metadata::of(&self.file().attributes().map_err(|error| self.error(error))?))
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file().size_bytes()
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
        let read = async |at, len| self.file().read(at, len).await.map_err(|error| self.error(error));
        Bytes::gather(offset_bytes, len, read).await
    }

    /// Writes bytes at an offset; the file becomes longer where they reach beyond its end.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace), [`ReadOnly`](crate::ErrorKind::ReadOnly), [`Denied`](crate::ErrorKind::Denied); or what
    /// stands around them cannot be read.
    pub async fn write_at(&self, offset_bytes: u64, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.filesystem.live()?;
        self.file().write(offset_bytes, content.as_ref()).await.map_err(|error| self.error(error))?;
        self.commit_if_sync().await
    }

    /// Gives it another length. Added length is a hole.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub async fn set_len(&self, len_bytes: u64) -> Result<(), Error> {
        self.filesystem.live()?;
        self.file().truncate(len_bytes).await.map_err(|error| self.error(error))?;
        self.commit_if_sync().await
    }

    /// The first offset at or after this one that is not in a hole; none if there is none.
    ///
    /// # Errors
    /// The file's tree of blocks cannot be read.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, Error> {
        self.file().next_data(offset_bytes).await.map_err(|error| self.error(error))
    }

    /// The first offset at or after this one that is in a hole, or the end; none past the end.
    ///
    /// # Errors
    /// As [`Self::next_data`].
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<Option<u64>, Error> {
        self.file().next_hole(offset_bytes).await.map_err(|error| self.error(error))
    }

    /// Waits until all that was changed of it is on disk, in the intent log at least (`fsync`). With the property `sync=disabled` it does
    /// not wait.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self) -> Result<(), Error> {
        let live = self.log_access().await?;
        live.log().sync(Some(self.file().id())).await.map_err(|error| error.raise().of_path(&self.path))
    }

    /// Asks for everything written so far to be stable and does not wait for it: an asynchronous `fsync`. The writes that the ticket is for
    /// are on their way at once; nothing is promised before [`SyncTicket::wait`] returns.
    ///
    /// # Errors
    /// The pool is open for reading only, or the time of the last access could not be changed.
    pub async fn begin_sync(&self) -> Result<SyncTicket, Error> {
        let live = self.log_access().await?;
        Ok(SyncTicket { ticket: live.log().ticket(Some(self.file().id())), path: self.path.clone() })
    }

    /// Notes the time of the last access, unless `readonly` forbids that: what was changed before is made stable all the same.
    async fn log_access(&self) -> Result<&OpenFiles, Error> {
        let Some(live) = self.filesystem.inner.live() else { return self.filesystem.live() };
        if !live.is_read_only() {
            self.file().write_atime().await.map_err(|error| self.error(error))?;
        }
        Ok(live)
    }

    async fn commit_if_sync(&self) -> Result<(), Error> {
        let live = self.filesystem.live()?;
        live.log()
            .commit_if_sync(false, Some(self.file().id()))
            .await
            .map_err(|error| error.raise().of_path(&self.path))
    }
}

/// The commit that [`File::begin_sync`] asked for. A ticket that is dropped takes nothing back.
#[derive(Debug)]
#[must_use = "nothing is promised before the ticket was waited for"]
pub struct SyncTicket {
    ticket: cenote_zil::Ticket,
    path: PathBuf,
}

impl SyncTicket {
    /// Waits until all that was written before [`File::begin_sync`] is stable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn wait(self) -> Result<(), Error> {
        let Self { ticket, path } = self;
        ticket.wait().await.map_err(|error| error.raise().of_path(&path))
    }
}
