//! Listings of directories.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use cenote_format::ids::ObjectId;
use cenote_zpl::{Attributes, Cursor, ZplError};

use crate::error::Error;
use crate::filesystem::FileSystem;
use crate::metadata::FileKind;

/// Entries that are read at a time.
const BATCH: usize = 256;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name.
    pub name: OsString,
    /// The kind of the object, where the entry says so: those of old datasets do not.
    pub kind: Option<FileKind>,
    /// The number of what it leads to: the inode.
    pub object: u64,
}

/// A listing of a directory. An entry that is there all the time is listed once, whatever comes and goes meanwhile.
pub struct ReadDir {
    filesystem: FileSystem,
    directory: ObjectId,
    /// Distinguishes it from later directories with the same number.
    generation: u64,
    path: PathBuf,
    next: Cursor,
    batch: VecDeque<DirEntry>,
    is_over: bool,
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Lists a directory, in no particular order.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Misuse`](crate::ErrorKind::Misuse) (it is none).
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let found = self.find(&at, path, true).await?;
        if found.kind != cenote_zpl::FileKind::Directory {
            return Err(self.error(ZplError::NotDirectory, path));
        }
        let (filesystem, generation, directory) = (self.clone(), found.generation, found.object);
        let (path, next, batch) = (path.to_owned(), Cursor::START, VecDeque::new());
        Ok(ReadDir { filesystem, directory, generation, path, next, batch, is_over: false })
    }
}

impl ReadDir {
    /// The next entry; none at the end.
    ///
    /// # Errors
    /// The directory cannot be read. [`Stale`](crate::ErrorKind::Stale): it is gone.
    pub async fn next(&mut self) -> Result<Option<DirEntry>, Error> {
        if self.batch.is_empty() && !self.is_over {
            let opened = self.filesystem.inner.enter().await?;
            let is_same = |found: Attributes| found.generation == self.generation;
            if !opened.files.attributes(self.directory).await.is_ok_and(is_same) {
                return Err(self.filesystem.inner.stale(&self.path));
            }
            let listed = opened.files.list(self.directory, self.next, BATCH).await;
            let listed = listed.map_err(|error| self.filesystem.error(error, &self.path))?;
            match listed.last() {
                Some(last) => self.next = last.next,
                None => self.is_over = true,
            }
            self.batch.extend(listed.into_iter().map(|entry| DirEntry {
                name: OsString::from_vec(entry.name),
                kind: entry.kind.map(FileKind::of),
                object: entry.object.0,
            }));
        }
        Ok(self.batch.pop_front())
    }
}
