//! The parts of `cenote demo`: a pool made by OpenZFS, OpenZFS's account of its contents, and work on a pool of our own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::TxTunables;
use cenote_format::ids::Txg;
use cenote_spa::{Pool, View};
use cenote_taskq::{Handle, Rng, boxed};
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use serde_json::Value;

use crate::error::{Context as _, Result};
use crate::manifest::manifest;

/// The pool: a mirror of three files, made by OpenZFS 2.3.2. It is part of the program, so that the demo needs nothing else.
pub const POOL: &str = "venxanix0";
const IMAGES: [(&str, &[u8]); 3] = [
    ("a.img", include_bytes!("../../../testdata/golden/mirror3/a.img.zst")),
    ("b.img", include_bytes!("../../../testdata/golden/mirror3/b.img.zst")),
    ("c.img", include_bytes!("../../../testdata/golden/mirror3/c.img.zst")),
];
/// OpenZFS's account of its contents.
const MANIFEST: &[u8] = include_bytes!("../../../testdata/golden/mirror3/manifest.json.zst");

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The file that is written and overwritten.
pub const WRITTEN: &str = "written";
/// Its size in bytes.
pub const WRITTEN_BYTES: u64 = 8 << 20;
/// The number of random overwrites, in pieces of 4 KiB.
pub const OVERWRITES: u64 = 2000;
const OVERWRITE_BYTES: u64 = 4096;

/// Decompresses the pool's images into a folder. Returns their names and sizes in bytes.
pub fn unpack_images(folder: &Path) -> Result<Vec<(&'static str, u64)>> {
    let unpack = |(name, packed): (&'static str, &[u8])| {
        let mut bytes = zstd::Decoder::new(packed)?;
        let mut file = File::create_new(folder.join(name))?;
        Ok((name, io::copy(&mut bytes, &mut file)?))
    };
    IMAGES.into_iter().map(unpack).collect()
}

/// A comparison of the contents read with OpenZFS's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files and directories that are equal.
    pub equal: u64,
    /// Files and directories in OpenZFS's account.
    pub entries: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
}

/// Hashes every file of the pool and compares it with OpenZFS's account.
pub async fn compare(handle: &Handle, pool: &View) -> Result<Compared> {
    let mut ours = Vec::new();
    manifest(handle, pool, &mut ours).await?;
    let ours: Value = serde_json::from_slice(&ours)?;
    let theirs: Value = serde_json::from_slice(&zstd::decode_all(MANIFEST)?)?;
    let mut compared = Compared::default();
    let datasets = theirs["sections"][0]["datasets"].as_object().context("the demo's manifest has no datasets")?;
    for (name, dataset) in datasets {
        for entry in dataset["entries"].as_array().into_iter().flatten() {
            let mut found = ours["datasets"][name]["entries"].as_array().into_iter().flatten();
            compared.entries += 1;
            compared.equal += u64::from(found.any(|found| found == entry));
            compared.bytes += entry["size"].as_u64().filter(|_| entry["type"] == "f").unwrap_or(0);
        }
    }
    assert!(compared.entries > 0, "the demo's manifest has entries");
    Ok(compared)
}

/// The result of overwriting a file at random.
pub struct Overwritten {
    /// Its final contents.
    pub content: Vec<u8>,
    /// The time until its first contents were on disk.
    pub first: Duration,
    /// The time of the overwrites until all were on disk.
    pub later: Duration,
    /// Transaction groups that were written.
    pub txgs: usize,
    /// The last of them.
    pub last: Txg,
}

/// Creates the file [`WRITTEN`] in the root file system of a pool and overwrites it at random, while txgs are written in the background; then
/// exports the pool.
#[boxed]
pub async fn overwrite(handle: &Handle, pool: Pool) -> Result<Overwritten> {
    let paced = TxTunables { zfs_txg_timeout: 1, zfs_dirty_data_max: 32 << 20, ..TxTunables::default() };
    let pool = pool.start(paced).await;
    let name = pool.name().to_owned();
    let head = pool.open_head(&name).await?;
    let files = FileSystem::open_head(head.objset(), Arc::new(head.clone()), FileSystemOptions::default()).await?;
    let new = NewNode { mode: 0o100_644, ..NewNode::default() };
    let (file, _) = files.create_file(files.root(), WRITTEN.as_bytes(), &new).await?;
    let begun = handle.now();
    let mut rng = Rng::new(1);
    let mut content = vec![0; WRITTEN_BYTES as usize];
    rng.fill(&mut content);
    file.write(0, &content).await?;
    pool.sync().await?;
    let first = handle.now();
    let mut piece = vec![0; OVERWRITE_BYTES as usize];
    for _ in 0..OVERWRITES {
        let at = rng.below(WRITTEN_BYTES - OVERWRITE_BYTES);
        rng.fill(&mut piece);
        file.write(at, &piece).await?;
        content[at as usize..][..piece.len()].copy_from_slice(&piece);
    }
    let last = pool.sync().await?;
    let end = handle.now();
    file.close().await?;
    let txgs = pool.history().len();
    drop((files, head));
    pool.export().await?;
    Ok(Overwritten { content, first: first - begun, later: end - first, txgs, last })
}

/// The content of the file [`WRITTEN`] in a file system.
#[boxed]
pub async fn written(filesystem: &FileSystem) -> Result<Vec<u8>> {
    let file = filesystem.lookup(filesystem.root(), WRITTEN.as_bytes()).await?;
    Ok(filesystem.open_file(file).await?.read(0, WRITTEN_BYTES as usize).await?.to_vec())
}

/// Compares the contents of a folder's files with those in another. Returns the numbers of files, of different ones, and of bytes.
pub fn same_trees(folder: &Path, other: &Path) -> Result<(u64, u64, u64)> {
    let (mut files, mut different, mut bytes) = (0, 0, 0);
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let at = folder.join(&relative);
        for entry in std::fs::read_dir(&at).with_context(|| format!("cannot list {}", at.display()))? {
            let entry = entry?;
            let (kind, relative) = (entry.file_type()?, relative.join(entry.file_name()));
            if kind.is_dir() {
                pending.push(relative);
            } else if kind.is_file() {
                let size = same_contents(&entry.path(), &other.join(&relative))?;
                files += 1;
                different += u64::from(size.is_none());
                bytes += size.unwrap_or(0);
            }
        }
    }
    Ok((files, different, bytes))
}

/// The bytes of data that two files have in common, if they are equal. Holes are not read: a file of holes may be too large for that.
fn same_contents(path: &Path, other: &Path) -> io::Result<Option<u64>> {
    let (file, other) = (File::open(path)?, File::open(other)?);
    let size_bytes = file.metadata()?.len();
    let mut is_same = other.metadata()?.len() == size_bytes;
    let (mut at, mut data_bytes) = (0, 0);
    let (mut ours, mut theirs) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    while is_same && at < size_bytes {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(&file, SeekFrom::Hole(at))?;
        while is_same && at < end {
            let len = CHUNK_BYTES.min(usize::try_from(end - at).unwrap_or(CHUNK_BYTES));
            file.read_exact_at(&mut ours[..len], at)?;
            other.read_exact_at(&mut theirs[..len], at)?;
            is_same = ours[..len] == theirs[..len];
            at += len as u64;
            data_bytes += len as u64;
        }
    }
    Ok(is_same.then_some(data_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_compared_by_the_contents_of_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        for tree in [&one, &other] {
            std::fs::create_dir_all(tree.join("below")).unwrap();
            std::fs::write(tree.join("a"), b"same").unwrap();
            std::fs::write(tree.join("below/b"), b"alike").unwrap();
        }
        assert_eq!(same_trees(&one, &other).unwrap(), (2, 0, 9));
        std::fs::write(other.join("below/b"), b"other").unwrap();
        assert_eq!(same_trees(&one, &other).unwrap(), (2, 1, 4));
    }
}
