//! Files of a dataset by their paths, and their bytes.
//!
//! All verbs for files take a dataset, then paths in it: two words, because a dataset's name may contain everything that a path may, including
//! `:` and spaces. A leading slash of a path has no meaning. A name below a dataset in the tree of names (`tank/home/alice`) is another dataset
//! and is not entered: its mount point is an empty directory here.
//!
//! **Rejected.** `DATASET:PATH` in one word (a colon is legal in dataset names), and following links out of the dataset (the target of `/etc`
//! depends on where it would be mounted).

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use cenote_dmu::{DataStream, Run};
use cenote_dsl::DslError;
use cenote_format::enums::ObjsetType;
use cenote_props::WrongUse;
use cenote_spa::View;
use cenote_taskq::boxed;
use cenote_zpl::{ZplError, path_parts};
use cenote_zvol::Volume;

pub use cenote_dsl::Dataset;
pub use cenote_format::ids::ObjectId;
pub use cenote_zpl::{Attributes, FileKind, FileSystem};

use crate::copy::Source;
use crate::error::{Context as _, Result, bad_name, malformed};

/// Bytes of reads in flight.
const WINDOW_BYTES: u64 = 8 << 20;
/// Zeros for one write of a hole.
const ZEROS: &[u8] = &[0; 64 << 10];

/// A path's bytes, without slashes at its ends, empty parts and `.`.
#[must_use]
pub fn bytes_of(path: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = path_parts(path.as_bytes()).collect();
    parts.join(&b'/')
}

/// A name for people. On a terminal, control characters (which could drive it) and invalid UTF-8 are escaped; for a file or a pipe only invalid
/// UTF-8 is replaced.
#[must_use]
pub fn shown(name: &[u8], is_terminal: bool) -> String {
    match is_terminal {
        true => cenote_zpl::shown(name),
        false => String::from_utf8_lossy(name).into_owned(),
    }
}

/// The file to which `path` leads, by the rules of [`FileSystem::follow`]; an error names it.
///
/// # Errors
/// It does not exist, leads in a circle or out of the dataset, or cannot be read.
#[boxed]
pub async fn follow(filesystem: &FileSystem, path: &[u8], last_too: bool) -> Result<Attributes> {
    filesystem.follow(path, last_too).await.map_err(|error| match error {
        ZplError::LinkOutside(target) => {
            let (path, target) = (shown(path, true), shown(&target, true));
            bad_name(format!("{path}: a link to {target}, which is outside of the dataset"))
        }
        ZplError::Loop => bad_name(format!("{}: {error}", shown(path, true))),
        error => crate::ImageError::In { place: shown(path, true), source: Box::new(error.into()) },
    })
}

/// The file system of a dataset.
///
/// # Errors
/// It is a volume, or its key is not loaded; or it cannot be read.
#[boxed]
pub async fn filesystem(pool: &View, dataset: &Dataset) -> Result<FileSystem> {
    let name = dataset.name();
    check_key(pool, dataset).await?;
    let objset = pool.dsl().open(dataset).await?.ok_or_else(|| malformed(format!("'{name}' has no contents")))?;
    if objset.phys().objset_type() == Some(ObjsetType::Zvol) {
        return Err(bad_name(format!("'{name}' is a volume and has no files; 'cenote cat {name}' gives its bytes")));
    }
    Ok(FileSystem::open(objset).await?)
}

/// Refuses a dataset whose key is required but not loaded.
async fn check_key(pool: &View, dataset: &Dataset) -> Result<()> {
    if pool.dsl().encryption(&dataset.dir).await?.is_some_and(|encryption| !encryption.is_loaded) {
        let (name, dir) = (dataset.name(), &dataset.dir.name);
        return Err(DslError::KeyNotLoaded(name.clone()))
            .context(format!("'{name}' is encrypted and its key is not loaded; give it with --key {dir}=FILE"));
    }
    Ok(())
}

/// The bytes of a file or volume, in order.
pub struct Bytes {
    stream: DataStream,
    /// Their number.
    pub size_bytes: u64,
}

impl Bytes {
    /// The bytes of a volume, or of a snapshot of one.
    ///
    /// # Errors
    /// It is a file system, but no file is named; its key is not loaded; or it cannot be read.
    #[boxed]
    pub async fn of_volume(pool: &View, dataset: &Dataset) -> Result<Self> {
        let name = dataset.name();
        if pool.dsl().kind(dataset).await? != ObjsetType::Zvol {
            return Err(WrongUse::new(format!("'{name}' is not a volume: name the files to write")).into());
        }
        check_key(pool, dataset).await?;
        let objset = pool.dsl().open(dataset).await?.context("the volume has no contents")?;
        let volume = Volume::open(&objset).await.map_err(|error| malformed(error.to_string()))?;
        Ok(Self { size_bytes: volume.size_bytes(), stream: volume.stream(WINDOW_BYTES) })
    }

    /// The bytes of the file to which a path leads.
    #[boxed]
    pub async fn of_file(filesystem: &FileSystem, path: &[u8]) -> Result<Self> {
        let attributes = follow(filesystem, path, true).await?;
        let file = filesystem.open_file(attributes.object).await.with_context(|| shown(path, true))?;
        Ok(Self { size_bytes: attributes.size_bytes, stream: file.stream(WINDOW_BYTES) })
    }

    /// Writes them, with zeros for holes. `done` gets the number of bytes written since its last call.
    ///
    /// # Errors
    /// A block cannot be read, or `sink` fails.
    pub async fn write(mut self, sink: &mut dyn Write, done: &mut dyn FnMut(u64)) -> Result<()> {
        while let Some(run) = self.stream.next().await? {
            match run {
                Run::Data { block, .. } => {
                    sink.write_all(&block[..])?;
                    done(block.len() as u64);
                }
                Run::Hole { len_bytes, .. } => {
                    let mut left = len_bytes;
                    while left > 0 {
                        let len = left.min(ZEROS.len() as u64);
                        sink.write_all(&ZEROS[..len as usize])?;
                        left -= len;
                    }
                    done(len_bytes);
                }
            }
        }
        Ok(())
    }
}

/// The source of a copy at a path: the contents of a directory if the path is empty or ends in `/.` or `..`.
#[boxed]
pub async fn copy_source(filesystem: &FileSystem, path: &OsStr) -> Result<Source> {
    let bytes = bytes_of(path);
    let attributes = follow(filesystem, &bytes, false).await?;
    let last = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_contents = last.is_empty() || last == b".." || path.as_bytes().ends_with(b"/.");
    Ok(Source { object: attributes.object, name: (!is_contents).then(|| last.to_vec()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_means_nothing() {
        assert_eq!(bytes_of(OsStr::new("//a/./b//")), b"a/b");
        assert_eq!(bytes_of(OsStr::new("/")), b"");
        assert_eq!(bytes_of(OsStr::new("../a")), b"../a");
    }
}
