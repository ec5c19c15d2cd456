//! Streams that are unpacked into a directory or an archive: what is replaced, and what remains after a failure.
//!
//! An existing directory is replaced as a whole: the new one is made next to it, and then the two are exchanged ([`exchange`]). A kept pool
//! records which directory was unpacked from it ([`ReceiveNote`]); no other directory is replaced unless it is empty. An archive is made next to
//! the existing one, and takes its name when it is complete ([`ArchiveTarget`]).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cenote_dsl::Dataset;
use cenote_format::ids::Guid;
use cenote_spa::{PropertyValue, View};
use cenote_taskq::boxed;
use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs, syncfs};
use tempfile::NamedTempFile;

use crate::error::{Context as _, Result, bad_name};

/// The property of the pool's root dataset, which no stream reaches, that records which directory was unpacked: its inode, that of the one
/// before, and its path.
pub const NOTE: &str = "cenote:unpacked";
/// Bytes of an archive gathered for one write.
const BUFFER_BYTES: usize = 1 << 20;

/// A path without links in it; its last part need not exist.
///
/// # Errors
/// This process has no working directory.
pub fn resolved(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if let Ok(there) = path.canonicalize() {
        return Ok(there);
    }
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    Ok(folder.zip(path.file_name()).map(|(folder, name)| folder.join(name)).unwrap_or(path))
}

/// Bytes that are free for this user in the file system of a folder.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let room = statvfs(folder)?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

/// Writes everything of the file system with this folder to its disks.
///
/// # Errors
/// The system's error, even for earlier writes.
pub fn sync_filesystem(folder: &File) -> io::Result<()> {
    Ok(syncfs(folder)?)
}

/// The newest snapshot of the received dataset, and the names of datasets below it, which are left out.
///
/// # Errors
/// There is no snapshot, or the pool cannot be read.
#[boxed]
pub async fn last_snapshot(view: &View, dataset: &str) -> Result<(Dataset, Vec<String>)> {
    let head = view.dsl().dataset(dataset).await?;
    let below = view.dsl().tree(head.dir.clone(), false).await?;
    let below = below.iter().filter(|dir| dir.name != dataset);
    let left_out = below.map(|dir| dir.name.trim_start_matches(dataset).trim_start_matches('/').to_owned()).collect();
    let snapshots = view.dsl().snapshots(&head).await?;
    let last = snapshots.into_iter().max_by_key(|snapshot| snapshot.phys.creation_txg);
    Ok((last.context("no snapshot was received")?, left_out))
}

/// The record in a kept pool.
pub struct ReceiveNote {
    /// The name and the guid of the newest snapshot.
    pub newest: Option<(String, Guid)>,
    /// The property [`NOTE`].
    note: Option<String>,
}

impl ReceiveNote {
    /// Reads it from an open pool, with the dataset into which streams are received.
    #[boxed]
    pub async fn read(view: &View, dataset: &str) -> Result<Self> {
        let dsl = view.dsl();
        let newest = match dsl.dataset(dataset).await {
            Ok(head) => dsl.snapshots(&head).await?.into_iter().max_by_key(|snapshot| snapshot.phys.creation_txg),
            // If the first stream was refused, there may be none.
            Err(_) => None,
        };
        let newest = newest.map(|snapshot| (snapshot.name(), snapshot.phys.guid));
        let note = dsl.property(&dsl.dataset(view.name()).await?.dir, NOTE, false).await?;
        let note = note.and_then(|property| property.value.text().map(str::to_owned));
        Ok(Self { newest, note })
    }

    /// The value of [`NOTE`] for a directory: its inode, that of the one before, and its path.
    pub fn note(to: &Path, inodes: [u64; 2]) -> PropertyValue {
        PropertyValue::Text(format!("{} {} {to:?}", inodes[0], inodes[1]))
    }

    /// True if the directory is the one that was unpacked from this pool.
    pub fn is_of(&self, to: &Path) -> Result<bool> {
        let inode = fs::metadata(to)?.ino().to_string();
        let mut words = self.note.as_deref().unwrap_or_default().splitn(3, ' ');
        let inodes = [words.next(), words.next()];
        Ok(inodes.contains(&Some(&inode)) && words.next() == Some(&format!("{to:?}")))
    }
}

/// True if the folder is empty or does not exist.
pub fn is_free(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| folder.display()),
    }
}

/// Exchanges two directories. A user needs the right to write in each, since their parents change.
///
/// # Errors
/// They are not on one file system, or this user may not write in them. Then neither has moved.
pub fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    const OWNER_MAY_WRITE: u32 = 0o200;
    let mut changed = Vec::new();
    for place in [new, old] {
        let before = fs::metadata(place)?.permissions();
        if before.mode() & OWNER_MAY_WRITE == 0 {
            fs::set_permissions(place, fs::Permissions::from_mode(before.mode() | OWNER_MAY_WRITE))?;
            changed.push((place, before));
        }
    }
    let exchanged = renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE).map_err(io::Error::from);
    for (place, before) in changed {
        let place = match (&exchanged, place == new) {
            (Err(_), _) => place,
            (Ok(()), true) => old,
            // It was removed.
            (Ok(()), false) => continue,
        };
        fs::set_permissions(place, before)?;
    }
    exchanged
}

/// The target of a new archive.
pub struct ArchiveTarget {
    sink: Box<dyn Write>,
    /// The new file, and the path whose file it will replace.
    beside: Option<(NamedTempFile, PathBuf)>,
    is_there: bool,
}

impl ArchiveTarget {
    /// A stream.
    pub fn of(sink: Box<dyn Write>) -> Self {
        Self { sink, beside: None, is_there: false }
    }

    /// A file, or an existing pipe or device.
    ///
    /// # Errors
    /// It cannot be written, or no file can be made next to it.
    pub fn at(to: &Path) -> Result<Self> {
        let is_there = fs::metadata(to);
        if is_there.as_ref().is_ok_and(|there| !there.is_file()) {
            // A pipe or a device.
            let file = File::options().write(true).open(to).with_context(|| to.display())?;
            return Ok(Self::of(Box::new(BufWriter::with_capacity(BUFFER_BYTES, file))));
        }
        // It contains files that only their owners may read, so only its owner may read it.
        let parent = to.parent().unwrap_or(Path::new("/"));
        let file = tempfile::Builder::new().prefix(".cenote-receive-").tempfile_in(parent);
        let file = file.with_context(|| to.display())?;
        let sink = Box::new(BufWriter::with_capacity(BUFFER_BYTES, file.as_file().try_clone()?));
        Ok(Self { sink, beside: Some((file, to.to_owned())), is_there: is_there.is_ok() })
    }

    /// The sink to write to.
    pub fn sink(&mut self) -> &mut dyn Write {
        &mut *self.sink
    }

    /// Moves it to its place, after everything was written and flushed. An incomplete one does not replace an existing one.
    ///
    /// # Errors
    /// The existing one remains, or the new one cannot be written.
    pub fn finish(self, is_whole: bool) -> Result<()> {
        let Some((file, to)) = self.beside else { return Ok(()) };
        if !is_whole && self.is_there {
            return Err(bad_name(format!("'{}' is left as it was, since not all could be read", to.display())));
        }
        file.as_file().sync_all()?;
        file.persist(&to).map_err(|error| io::Error::other(error.to_string())).with_context(|| to.display())?;
        Ok(())
    }
}
