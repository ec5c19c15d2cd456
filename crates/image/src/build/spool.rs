//! Streams as seekable files: compressed streams and pipes are stored, decompressed, in an unnamed file until the end. The bytes stored for a
//! source have a bound ([`Room`]), since a compressed archive can be a thousand times as large when decompressed.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cenote_props::number::nicebytes;
use flate2::read::MultiGzDecoder;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::part::Part;
use crate::error::{Context as _, Result, malformed, too_large, unsupported};

/// The bytes that reveal a stream's compression.
const MAGIC_BYTES: usize = 6;
/// Bytes copied at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Room for the decompressed bytes of a source, of all its streams together.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    left: u64,
    limit: u64,
}

impl Room {
    /// The limit as a multiple of the pool's size: data that compresses well may be larger than the pool.
    const TIMES_OF_POOL: u64 = 16;
    /// The least limit, even for a small pool.
    const LEAST_BYTES: u64 = 1 << 30;

    /// Room for the source of a pool of `size_bytes`.
    pub fn for_pool(size_bytes: u64) -> Self {
        Self::new(size_bytes.saturating_mul(Self::TIMES_OF_POOL).max(Self::LEAST_BYTES))
    }

    /// Room for `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        Self { left: limit, limit }
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        let left = self.left.checked_sub(bytes).ok_or_else(|| {
            let (limit, times) = (nicebytes(self.limit), Self::TIMES_OF_POOL);
            too_large(format!(
                "is more than {limit} unpacked ({times} times the pool, at least 1G): unpack it, and build from that"
            ))
        });
        self.left = left?;
        Ok(())
    }
}

/// The compression of a stream.
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
            return Err(unsupported("xz; unpack it: 'xz -dc FILE | cenote build --from -'"));
        }
        [b'B', b'Z', b'h', ..] => {
            return Err(unsupported("bzip2; unpack it: 'bzip2 -dc FILE | cenote build --from -'"));
        }
        _ => Packing::Plain,
    })
}

/// A stream's compression, and the whole stream.
fn peeked<R: Read>(mut source: R) -> Result<(Packing, impl Read)> {
    let mut magic = Vec::new();
    source.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut magic)?;
    Ok((packing_of(&magic)?, Cursor::new(magic).chain(source)))
}

/// The bytes of an archive: the file itself, or decompressed. `progress` gets the bytes stored.
pub fn archive(path: &Path, room: &mut Room, progress: &mut dyn FnMut(u64)) -> Result<File> {
    if path.as_os_str() == "-" {
        return unpacked(std::io::stdin().lock(), room, progress);
    }
    archive_of(File::open(path)?, room, progress)
}

fn archive_of(mut file: File, room: &mut Room, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let is_file = file.metadata()?.is_file();
    let mut magic = Vec::new();
    if is_file {
        (&file).take(MAGIC_BYTES as u64).read_to_end(&mut magic)?;
        file.seek(SeekFrom::Start(0))?;
        if packing_of(&magic)? == Packing::Plain {
            return Ok(file);
        }
    }
    unpacked(file, room, progress)
}

/// Opens a regular file by its name in an open directory. It follows no link, and does not wait for the writer of a pipe.
pub(crate) fn regular(directory: &File, name: &str) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, rustix::fs::Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(malformed("is a symbolic link, which is not followed")),
        Err(error) => return Err(std::io::Error::from(error).into()),
    };
    if !file.metadata()?.is_file() {
        return Err(malformed("is no regular file"));
    }
    Ok(file)
}

/// Reads a part of a file from its beginning.
struct Reading<'a> {
    part: &'a Part,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = (buffer.len() as u64).min(self.part.size_bytes - self.at) as usize;
        let len = self.part.file.read_at(&mut buffer[..len], self.part.start + self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// The SHA-256 of a reader's bytes.
fn hash_of(mut source: impl Read) -> Result<Vec<u8>> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = source.read(&mut buffer)?;
        if len == 0 {
            return Ok(hash.finalize().to_vec());
        }
        hash.update(&buffer[..len]);
    }
}

/// The decompressed bytes of a blob, whose SHA-256 and size are checked.
pub(crate) fn blob(
    part: &Part,
    sha256: &[u8],
    size_bytes: u64,
    room: &mut Room,
    progress: &mut dyn FnMut(u64),
) -> Result<File> {
    let found = part.size_bytes;
    if found != size_bytes {
        return Err(malformed(format!("has {found} bytes, and should have {size_bytes}")));
    }
    if hash_of(Reading { part, at: 0 })? != sha256 {
        return Err(malformed("is damaged: its SHA-256 is not its name"));
    }
    of_part(part, room, progress)
}

/// The decompressed bytes of a layer, whose SHA-256 is checked: an image's configuration gives it.
pub(crate) fn layer(part: &Part, sha256: &[u8], room: &mut Room, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let mut file = of_part(part, room, progress)?;
    if hash_of(&file)? != sha256 {
        return Err(malformed("is damaged: its SHA-256 is not the one that the image's configuration gives"));
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn of_part(part: &Part, room: &mut Room, progress: &mut dyn FnMut(u64)) -> Result<File> {
    if part.start == 0 && part.size_bytes == part.file.metadata()?.len() {
        let mut file = part.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        return archive_of(file, room, progress);
    }
    unpacked(Reading { part, at: 0 }, room, progress)
}

fn unpacked(source: impl Read, room: &mut Room, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let (packing, source) = peeked(source)?;
    let source = BufReader::with_capacity(CHUNK_BYTES, source);
    let file = match packing {
        Packing::Plain => keep(source, room, progress),
        Packing::Gzip => keep(MultiGzDecoder::new(source), room, progress),
        Packing::Zstd => keep(zstd::Decoder::with_buffer(source)?, room, progress),
    };
    file.context("while it was unpacked")
}

fn keep(mut source: impl Read, room: &mut Room, progress: &mut dyn FnMut(u64)) -> Result<File> {
    let mut file = tempfile::tempfile().context("no file to unpack it into (TMPDIR says where)")?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = source.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        room.take(len as u64)?;
        file.write_all(&buffer[..len])?;
        progress(len as u64);
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_ends_where_there_is_no_room() {
        let zeros = vec![0; 1 << 20];
        for packed in [zstd::encode_all(&zeros[..], 1).unwrap(), zeros.clone()] {
            let mut room = Room::new(1 << 20);
            unpacked(&packed[..], &mut room, &mut |_| {}).unwrap();
            // All streams of a source share it.
            let error = unpacked(&packed[..], &mut room, &mut |_| {}).unwrap_err();
            assert!(error.root().to_string().contains("is more than 1M unpacked"), "{error}");
        }
    }

    #[test]
    fn only_regular_files_of_the_directory_itself_are_opened() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        symlink("/dev/zero", dir.path().join("zeros")).unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("pipe"), fifo, 0o600.into(), 0).unwrap();
        let directory = File::open(dir.path()).unwrap();
        assert!(regular(&directory, "file").is_ok());
        for name in ["zeros", "link", "sub", "pipe", "none"] {
            assert!(regular(&directory, name).is_err(), "{name}");
        }
    }
}
