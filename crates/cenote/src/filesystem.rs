//! File systems: opening them, and all that goes by paths.

use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_inuse::{OpenFiles, properties_of};
use cenote_zpl::{AttributeChange, Attributes, NewNode, RenameMode, XattrSet, ZplError};

use crate::error::{Error, ErrorKind, Place};
use crate::metadata::{FileKind, Metadata, time_of};
use crate::open::{Files, Open, OpenedFiles};
use crate::pool::{Access, Pool};
use crate::raise::{Lower as _, Raise as _};

/// Has all open file systems and volumes obey their properties as they are now.
pub(crate) async fn refresh(pool: &Pool) -> Result<(), Error> {
    let Access::Write(spa) = &pool.inner.access else { return Ok(()) };
    // Held meanwhile: of two refreshes the later one is obeyed.
    let open = pool.inner.open.lock().await;
    let now = properties_of(spa, open.keys().copied().collect()).await.raised()?;
    open.values().zip(&now).for_each(|(open, properties)| open.obey(properties));
    Ok(())
}

impl Pool {
    /// Opens the file system of a dataset or snapshot.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is a volume), [`Key`](ErrorKind::Key).
    pub async fn filesystem(&self, dataset: &str) -> Result<FileSystem, Error> {
        match self.opened(dataset, false).await? {
            Open::Files(inner) => Ok(FileSystem { pool: self.clone(), inner }),
            Open::Disk(_) => Err(Error::misuse(format!("'{dataset}' is a volume")).of_dataset(dataset)),
        }
    }
}

/// The file system of a dataset or snapshot. Cheap to clone, and any number of tasks may use it at once.
///
/// Paths begin at the root directory of the dataset, with or without a slash. Symbolic links are followed within the dataset. New
/// files and directories belong to the owner and group of their directory.
///
/// ```no_run
/// # async fn example(pool: cenote::Pool) -> Result<(), cenote::Error> {
/// let home = pool.filesystem("tank/home").await?;
/// home.create_dir("/notes").await?;
/// home.write("/notes/today", b"water the plants").await?;
/// home.sync().await?;
/// let mut listing = home.read_dir("/notes").await?;
/// while let Some(entry) = listing.next().await? {
///     println!("{}", entry.name.display());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FileSystem {
    pool: Pool,
    pub(crate) inner: Arc<Files>,
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The space that a file system uses and may still use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Used by what is in it.
    pub used_bytes: u64,
    /// Available to it.
    pub available_bytes: u64,
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The directory and the last name of a path.
fn split(path: &Path) -> Result<(&[u8], &[u8]), Error> {
    let mut whole = bytes(path);
    while let Some(shorter) = whole.strip_suffix(b"/") {
        whole = shorter;
    }
    let (directory, name) = match whole.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&whole[..at], &whole[at + 1..]),
        None => (&whole[..0], whole),
    };
    match name {
        b"" | b"." | b".." => Err(Error::misuse("the path does not end in a name").of_path(path)),
        name => Ok((directory, name)),
    }
}

impl FileSystem {
    /// The name of the dataset or snapshot that was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// True if nothing can be changed: a snapshot, a pool that is open read-only, a dataset with `readonly=on`, or one that is being rolled back.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inner.now().is_none_or(|opened| self.live(&opened).is_err())
    }

    /// Enters the file system, for one call.
    pub(crate) async fn enter(&self) -> Result<Arc<OpenedFiles>, Error> {
        self.inner.enter().await
    }

    pub(crate) fn live<'a>(&self, at: &'a OpenedFiles) -> Result<&'a OpenFiles, Error> {
        let live = at.live().filter(|live| !live.is_read_only());
        live.ok_or_else(|| ZplError::ReadOnly.raise().of_dataset(self.name()))
    }

    /// An error of this file system.
    pub(crate) fn error(&self, error: ZplError, path: &Path) -> Error {
        error.raise().of_dataset(self.name()).of_path(path)
    }

    pub(crate) async fn find(&self, at: &OpenedFiles, path: &Path, follows: bool) -> Result<Attributes, Error> {
        let found = at.files.follow(bytes(path), follows).await;
        found.map_err(|error| self.error(error, path))
    }

    /// The directory that the last name of a path stands in, and the name.
    pub(crate) async fn parent<'a>(&self, at: &OpenedFiles, path: &'a Path) -> Result<(Attributes, &'a [u8]), Error> {
        let (directory, name) = split(path)?;
        let found = at.files.follow(directory, true).await;
        Ok((found.map_err(|error| self.error(error, path))?, name))
    }

    /// The end of a change: on disk where the property `sync` asks for it.
    pub(crate) async fn commit_if_sync(&self, live: &OpenFiles) -> Result<(), Error> {
        live.log().commit_if_sync(false, None).await.map_err(|error| error.raise().of_dataset(self.name()))
    }

    /// The object that a path leads to.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), or it cannot be read.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        Ok(Metadata::of(&self.find(&*self.enter().await?, path.as_ref(), true).await?))
    }

    /// The same, of a symbolic link itself.
    ///
    /// # Errors
    /// As [`Self::metadata`].
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        Ok(Metadata::of(&self.find(&*self.enter().await?, path.as_ref(), false).await?))
    }

    async fn make(&self, path: &Path, new: impl FnOnce(&Attributes) -> NewNode) -> Result<(), Error> {
        let at = self.enter().await?;
        let live = self.live(&at)?;
        let (directory, name) = self.parent(&at, path).await?;
        let made = at.files.create(directory.object, name, &new(&directory)).await;
        made.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// Makes a directory, with mode 755.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Exists`](ErrorKind::Exists).
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.make(path.as_ref(), |directory| new_node(directory, FileKind::Directory, 0o755)).await
    }

    /// Makes a directory, and those above it that are missing. One that is there is left as it is.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        for at in path.ancestors().filter(|at| !at.as_os_str().is_empty()) {
            match self.metadata(at).await {
                Ok(found) if found.kind == FileKind::Directory => break,
                Ok(_) => return Err(self.error(ZplError::NotDirectory, at)),
                Err(error) if error.kind() == ErrorKind::NotFound => missing.push(at),
                Err(error) => return Err(error),
            }
        }
        for at in missing.into_iter().rev() {
            match self.create_dir(at).await {
                Err(error) if error.kind() == ErrorKind::Exists => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Makes a symbolic link at `path`.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Exists`](ErrorKind::Exists).
    pub async fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let target = bytes(target.as_ref()).to_vec();
        let new =
            |directory: &Attributes| NewNode { target: Some(target), ..new_node(directory, FileKind::Symlink, 0o777) };
        self.make(path.as_ref(), new).await
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Exists`](ErrorKind::Exists); the file is a directory.
    pub async fn hard_link(&self, file: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let live = self.live(&at)?;
        let found = self.find(&at, file.as_ref(), false).await?;
        let (directory, name) = self.parent(&at, path).await?;
        let linked = at.files.link(found.object, directory.object, name).await;
        linked.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is none).
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let found = self.find(&at, path, false).await?;
        let target = at.files.read_link(found.object).await.map_err(|error| self.error(error, path))?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(target)))
    }

    /// Removes a name of a file, link, device, pipe or socket. A file that is open stays readable and writable.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is a directory), [`Denied`](ErrorKind::Denied),
    /// [`ReadOnly`](ErrorKind::ReadOnly).
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let live = self.live(&at)?;
        let (directory, name) = self.parent(&at, path).await?;
        at.files.unlink(directory.object, name).await.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Self::remove_file`]; [`Exists`](ErrorKind::Exists): it has entries.
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let live = self.live(&at)?;
        let (directory, name) = self.parent(&at, path).await?;
        at.files.rmdir(directory.object, name).await.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// Gives a file or directory another path. A file or directory that is there is replaced, if it may be.
    ///
    /// # Errors
    /// As POSIX has them.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let (at, from, to) = (self.enter().await?, from.as_ref(), to.as_ref());
        let live = self.live(&at)?;
        let (old, old_name) = self.parent(&at, from).await?;
        let (new, new_name) = self.parent(&at, to).await?;
        let renamed = at.files.rename(old.object, old_name, new.object, new_name, RenameMode::Replace).await;
        renamed.map_err(|error| self.error(error, from))?;
        self.commit_if_sync(live).await
    }

    async fn change(&self, path: &Path, change: AttributeChange) -> Result<(), Error> {
        let at = self.enter().await?;
        let live = self.live(&at)?;
        let found = self.find(&at, path, true).await?;
        let changed = at.files.set_attributes(found.object, &change).await;
        changed.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// Sets the permission bits, with set-uid, set-gid and sticky.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Denied`](ErrorKind::Denied), [`ReadOnly`](ErrorKind::ReadOnly).
    pub async fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        let permissions = Some(mode & 0o7777);
        self.change(path.as_ref(), AttributeChange { permissions, ..AttributeChange::default() }).await
    }

    /// Sets owner and group.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    pub async fn set_owner(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<(), Error> {
        let change = AttributeChange { uid: Some(uid), gid: Some(gid), ..AttributeChange::default() };
        self.change(path.as_ref(), change).await
    }

    /// Sets the time of the last change of content.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    pub async fn set_modified(&self, path: impl AsRef<Path>, time: std::time::SystemTime) -> Result<(), Error> {
        let change = AttributeChange { modified: Some(time_of(time)), ..AttributeChange::default() };
        self.change(path.as_ref(), change).await
    }

    /// Refuses an extended attribute that the properties `xattr` and `acltype` exclude.
    fn check_xattr(&self, path: &Path, name: &str) -> Result<(), Error> {
        if self.inner.properties().has_xattr(name.as_bytes()) {
            return Ok(());
        }
        let what = format!("extended attributes such as '{name}' are off (properties 'xattr' and 'acltype')");
        Err(Error::new(ErrorKind::NotSupported, Place::default(), what).of_dataset(self.name()).of_path(path))
    }

    /// The names of extended attributes, such as `user.mime_type`.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), or they cannot be read.
    pub async fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>, Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let found = self.find(&at, path, true).await?;
        let mut names = at.files.xattr_names(found.object).await.map_err(|error| self.error(error, path))?;
        let properties = self.inner.properties();
        names.retain(|name| properties.has_xattr(name));
        Ok(names)
    }

    /// An extended attribute; none if there is none of this name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) (of the path), [`NotSupported`](ErrorKind::NotSupported) (the property `xattr` is off), or it cannot be
    /// read.
    pub async fn xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        self.check_xattr(path, name)?;
        let found = self.find(&at, path, true).await?;
        match at.files.xattr(found.object, name.as_bytes()).await {
            Ok(value) => Ok(Some(value)),
            Err(ZplError::NoXattr) => Ok(None),
            Err(error) => Err(self.error(error, path)),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) (of the path), [`Misuse`](ErrorKind::Misuse) (it is too large),
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`NotSupported`](ErrorKind::NotSupported) (the property `xattr` is off).
    pub async fn set_xattr(&self, path: impl AsRef<Path>, name: &str, value: &[u8]) -> Result<(), Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let live = self.live(&at)?;
        self.check_xattr(path, name)?;
        let found = self.find(&at, path, true).await?;
        let set = at.files.set_xattr(found.object, name.as_bytes(), value, XattrSet::Any).await;
        set.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), also where there is none of this name; otherwise as [`Self::set_xattr`].
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<(), Error> {
        let (at, path) = (self.enter().await?, path.as_ref());
        let live = self.live(&at)?;
        self.check_xattr(path, name)?;
        let found = self.find(&at, path, true).await?;
        let removed = at.files.remove_xattr(found.object, name.as_bytes()).await;
        removed.map_err(|error| self.error(error, path))?;
        self.commit_if_sync(live).await
    }

    /// Waits until all that was changed in it is on disk, in the intent log at least. With the property `sync=disabled` it does not wait.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self) -> Result<(), Error> {
        let at = self.enter().await?;
        let Some(live) = at.live() else { return Ok(()) };
        live.log().sync(None).await.map_err(|error| error.raise().of_dataset(self.name()))
    }

    /// The error that keeps the space of removed files from being freed, if there is one. It is tried again, so none is told once that
    /// worked. What is not freed is freed by the next user of the file system.
    #[must_use]
    pub fn freeing_error(&self) -> Option<Error> {
        let error = self.inner.now()?.live()?.freeing_error()?;
        let mut place = Place::default();
        let kind = error.kind(&mut place);
        Some(Error::new(kind, place, format!("freeing what was removed: {error}")).of_dataset(self.name()))
    }

    /// The space that it uses and may still use, as of the last txg. None where it is not changed through this handle: see
    /// [`Dataset`](crate::Dataset).
    #[must_use]
    pub fn space(&self) -> Option<Space> {
        let space = self.inner.now()?.live()?.head().space();
        Some(Space { used_bytes: space.referenced_bytes, available_bytes: space.available_bytes })
    }
}

/// A node that belongs to the owner of its directory.
pub(crate) fn new_node(directory: &Attributes, kind: FileKind, permissions: u32) -> NewNode {
    let mode = kind.mode_bits() | permissions;
    NewNode { mode, uid: directory.uid, gid: directory.gid, ..NewNode::default() }
}
