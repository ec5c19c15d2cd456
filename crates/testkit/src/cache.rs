//! Unpacked files, kept between runs.
//!
//! A folder appears under its final name by one rename, after every file in it has been written and its hash compared.
//! Two processes may unpack the same theme at once: the second rename fails because the folder is there, and the loser's
//! copy is dropped.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::manifest::{File, hex};

/// Zeros in whole chunks of this size become holes. 64 KiB is small enough to find nearly all of a pool's empty space.
const CHUNK_BYTES: usize = 64 << 10;

/// Unpacks a `.zst` file whole into memory.
pub(crate) fn unpack_bytes(path: &Path) -> Result<Vec<u8>> {
    let packed = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    zstd::decode_all(packed).with_context(|| format!("cannot unpack {}", path.display()))
}

/// Unpacks a `.zst` file into a sparse file and returns its size and SHA-256.
pub(crate) fn unpack_file(source: &Path, target: &Path) -> Result<(u64, String)> {
    let packed = fs::File::open(source).with_context(|| format!("cannot open {}", source.display()))?;
    let mut reader = zstd::Decoder::new(packed).with_context(|| format!("cannot unpack {}", source.display()))?;
    let mut out = fs::File::create(target).with_context(|| format!("cannot create {}", target.display()))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let mut size_bytes = 0u64;
    loop {
        let filled = fill(&mut reader, &mut chunk).with_context(|| format!("cannot unpack {}", source.display()))?;
        if filled == 0 {
            break;
        }
        let data = &chunk[..filled];
        hash.update(data);
        if data.iter().all(|byte| *byte == 0) {
            out.seek(SeekFrom::Current(filled as i64))?;
        } else {
            out.write_all(data)?;
        }
        size_bytes += filled as u64;
    }
    out.set_len(size_bytes)?;
    Ok((size_bytes, hex(&hash.finalize())))
}

/// Reads until the chunk is full or the stream ends.
fn fill(reader: &mut impl Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match reader.read(&mut chunk[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// The folder that holds all of `files`, unpacked from `source_dir/NAME.zst`; made if it is not there yet.
pub(crate) fn unpacked_dir(name: &str, source_dir: &Path, files: &[File]) -> Result<PathBuf> {
    let base = target_dir().join("golden");
    let mut key = Sha256::new();
    for file in files {
        key.update(file.file.as_bytes());
        key.update(file.sha256.as_bytes());
    }
    let key = hex(&key.finalize());
    let dir = base.join(format!("{name}-{}", &key[..16]));
    if dir.is_dir() {
        return Ok(dir);
    }
    fs::create_dir_all(&base).with_context(|| format!("cannot create {}", base.display()))?;
    let work = tempfile::Builder::new().prefix(".unpack-").tempdir_in(&base)?;
    for file in files {
        let target = work.path().join(&file.file);
        let (size_bytes, sha256) = unpack_file(&source_dir.join(format!("{}.zst", file.file)), &target)?;
        if size_bytes != file.size_bytes || sha256 != file.sha256 {
            bail!("{}/{} is not what its manifest says", source_dir.display(), file.file);
        }
        let mut permissions = fs::metadata(&target)?.permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&target, permissions)?;
    }
    let work = work.keep();
    if let Err(error) = fs::rename(&work, &dir) {
        let _ = fs::remove_dir_all(&work);
        if !dir.is_dir() {
            return Err(error).with_context(|| format!("cannot make {}", dir.display()));
        }
    }
    Ok(dir)
}

/// The build's target folder: what Cargo was told, else the repository's own.
fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => {
            let dir = PathBuf::from(dir);
            if dir.is_absolute() { dir } else { crate::repository_root().join(dir) }
        }
        None => crate::repository_root().join("target"),
    }
}
