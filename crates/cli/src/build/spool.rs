//! Streams as files that can be read anywhere: what is compressed, or comes through a pipe, is kept in a file without a name
//! until the end.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

/// Bytes that tell how a stream is compressed.
const MAGIC_BYTES: usize = 6;
/// Copied at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// How a stream is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

fn packing_of(magic: &[u8]) -> Result<Packing> {
    Ok(match magic {
        [0x1f, 0x8b, ..] => Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            bail!("not supported yet: xz; unpack it: 'xz -dc FILE | cenote build --from -'")
        }
        [b'B', b'Z', b'h', ..] => {
            bail!("not supported yet: bzip2; unpack it: 'bzip2 -dc FILE | cenote build --from -'")
        }
        _ => Packing::Plain,
    })
}

/// A stream with its first bytes looked at.
fn peeked<R: Read>(mut source: R) -> Result<(Packing, impl Read)> {
    let mut magic = Vec::new();
    source.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut magic)?;
    Ok((packing_of(&magic)?, Cursor::new(magic).chain(source)))
}

/// The bytes of an archive: the file itself, or what it is unpacked. `progress` is told of bytes that are kept.
pub(crate) fn archive(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<File> {
    if path.as_os_str() == "-" {
        return unpacked(std::io::stdin().lock(), progress);
    }
    let mut file = File::open(path)?;
    let is_file = file.metadata()?.is_file();
    let mut magic = Vec::new();
    if is_file {
        (&file).take(MAGIC_BYTES as u64).read_to_end(&mut magic)?;
        file.seek(SeekFrom::Start(0))?;
        if packing_of(&magic)? == Packing::Plain {
            return Ok(file);
        }
    }
    unpacked(file, progress)
}

/// The same of a blob whose SHA-256 and size are known, which are checked.
pub(crate) fn blob(path: &Path, sha256: &[u8], size_bytes: u64, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let mut file = File::open(path)?;
    let found = file.metadata()?.len();
    if found != size_bytes {
        bail!("has {found} bytes, and should have {size_bytes}");
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = file.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        hash.update(&buffer[..len]);
    }
    if hash.finalize().as_slice() != sha256 {
        bail!("is damaged: its SHA-256 is not its name");
    }
    archive(path, progress)
}

fn unpacked(source: impl Read, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let (packing, source) = peeked(source)?;
    let source = BufReader::with_capacity(CHUNK_BYTES, source);
    let file = match packing {
        Packing::Plain => keep(source, progress),
        Packing::Gzip => keep(MultiGzDecoder::new(source), progress),
        Packing::Zstd => keep(zstd::Decoder::with_buffer(source)?, progress),
    };
    file.context("while it was unpacked")
}

fn keep(mut source: impl Read, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let mut file = tempfile::tempfile().context("no file to unpack it into (TMPDIR says where)")?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = source.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        file.write_all(&buffer[..len])?;
        progress(len as u64);
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
