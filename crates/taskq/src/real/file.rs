//! Files and block devices of the machine.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags};

use super::Io;
use super::claim::{Claim, claim, open_alone};
use crate::buf::{ALIGNMENT_BYTES, Block, Buf};
use crate::device::{Direct, OpenOptions};

/// An open file or block device.
pub(crate) struct FileDevice {
    file: Arc<File>,
    /// The same file through the page cache, for the rare write that direct I/O's alignment forbids.
    cached: OnceLock<Arc<File>>,
    /// What offsets and lengths must be multiples of; 1 when the page cache takes any.
    granularity: usize,
    size_bytes: u64,
    sector_bytes: u32,
    rotational: bool,
    writable: bool,
    path: PathBuf,
    /// Keeps others out as long as this is open.
    _claim: Option<Claim>,
    io: Arc<Io>,
}

/// `alone`: the number of the block device that nobody else is to have.
fn open_flags(path: &Path, flags: OFlags, alone: Option<u64>) -> io::Result<File> {
    match alone {
        Some(device) => open_alone(path, flags, device),
        None => Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)),
    }
}

/// The granularity at which direct reads of `file` succeed, or `None` when none does. Asking the kernel by trying is
/// what works on every file system and kernel version.
fn direct_granularity(file: &File, sector_bytes: u32, is_block: bool) -> Option<usize> {
    if is_block {
        return Some(sector_bytes as usize);
    }
    let mut probe = Buf::unfilled(ALIGNMENT_BYTES);
    [512usize, ALIGNMENT_BYTES]
        .into_iter()
        .find(|&granularity| file.read_at(&mut probe[..granularity], granularity as u64).is_ok())
}

fn is_rotational(metadata: &std::fs::Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own; its parent folder is the whole disk.
    ["queue/rotational", "../queue/rotational"]
        .into_iter()
        .find_map(|name| std::fs::read_to_string(Path::new(&device).join(name)).ok())
        .is_some_and(|text| text.trim() == "1")
}

impl FileDevice {
    /// Opens `path`; blocks in system calls. `is_claimed`: it is locked too, with all that is the same storage.
    pub(super) fn open(path: PathBuf, options: OpenOptions, is_claimed: bool, io: Arc<Io>) -> io::Result<FileDevice> {
        let access = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        let metadata = std::fs::metadata(&path)?;
        let is_block = metadata.file_type().is_block_device();
        if !is_block && !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"));
        }
        let alone = (is_block && options.write).then(|| metadata.rdev());
        let direct = match options.direct {
            Direct::Never => None,
            Direct::Auto | Direct::Always => match open_flags(&path, access | OFlags::DIRECT, alone) {
                Ok(file) => Some(file),
                Err(error) if options.direct == Direct::Auto && error.kind() == io::ErrorKind::InvalidInput => None,
                Err(error) => return Err(error),
            },
        };
        let sector = |file: &File| match is_block {
            true => rustix::fs::ioctl_blksszget(file).unwrap_or(512),
            false => 512,
        };
        let mut chosen = None;
        if let Some(file) = direct {
            match direct_granularity(&file, sector(&file), is_block) {
                Some(granularity) => chosen = Some((file, granularity)),
                None if options.direct == Direct::Always => {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file does not allow direct I/O"));
                }
                None => {}
            }
        }
        let (file, granularity) = match chosen {
            Some(chosen) => chosen,
            None => (open_flags(&path, access, alone)?, 1),
        };
        let opened = file.metadata()?;
        if opened.file_type() != metadata.file_type() || opened.rdev() != metadata.rdev() {
            return Err(io::Error::other("it was replaced while it was opened"));
        }
        let claim = if is_claimed { Some(claim(&file)?) } else { None };
        let size_bytes = match is_block {
            true => rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?,
            false => file.metadata()?.len(),
        };
        Ok(FileDevice {
            sector_bytes: sector(&file),
            rotational: is_block && is_rotational(&metadata),
            file: Arc::new(file),
            cached: OnceLock::new(),
            granularity,
            size_bytes,
            writable: options.write,
            path,
            _claim: claim,
            io,
        })
    }

    /// Whether the device takes a request of this shape as it is.
    fn is_aligned(&self, offset_bytes: u64, len: usize) -> bool {
        let mask = self.granularity - 1;
        (offset_bytes as usize | len) & mask == 0
    }

    pub(crate) async fn read(&self, offset_bytes: u64, mut buf: Buf) -> (io::Result<()>, Buf) {
        let len = buf.len();
        if len == 0 {
            return (Ok(()), buf);
        }
        if self.is_aligned(offset_bytes, len) {
            return self.io.read(&self.file, offset_bytes, buf, len).await;
        }
        // Widened to what the device takes, then copied. At a file's ragged end the device returns less than was asked,
        // which is enough.
        let granularity = self.granularity as u64;
        let start = offset_bytes - offset_bytes % granularity;
        let lead = (offset_bytes - start) as usize;
        let wide = Buf::unfilled((lead + len).next_multiple_of(self.granularity));
        let (result, wide) = self.io.read(&self.file, start, wide, lead + len).await;
        if result.is_ok() {
            buf.copy_from_slice(&wide[lead..lead + len]);
        }
        (result, buf)
    }

    pub(crate) async fn write(&self, offset_bytes: u64, block: Block) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the device is open read-only"));
        }
        if block.is_empty() {
            return Ok(());
        }
        if self.granularity == 1 {
            return self.io.write(&self.file, offset_bytes, block).await;
        }
        if !self.is_aligned(offset_bytes, block.len()) {
            // Widening a write would read and write back a neighbour's bytes; the page cache does that without a race.
            return self.io.write(&self.cached()?, offset_bytes, block).await;
        }
        let block = match block.as_ptr().align_offset(self.granularity.max(512)) {
            0 => block,
            _ => Block::copied_from(&block),
        };
        self.io.write(&self.file, offset_bytes, block).await
    }

    fn cached(&self) -> io::Result<Arc<File>> {
        if let Some(file) = self.cached.get() {
            return Ok(Arc::clone(file));
        }
        // The same file, whatever its path leads to by now. Its claim is the first opening's, which a second one would contradict.
        use std::os::fd::AsRawFd;
        let again = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let opened = open_flags(&again, OFlags::RDWR, None).or_else(|_| open_flags(&self.path, OFlags::RDWR, None))?;
        let (first, second) = (self.file.metadata()?, opened.metadata()?);
        let is_same = match first.file_type().is_block_device() {
            true => first.rdev() == second.rdev(),
            false => (first.dev(), first.ino()) == (second.dev(), second.ino()),
        };
        if !is_same {
            return Err(io::Error::other("its path leads to something else by now"));
        }
        let file = Arc::new(opened);
        Ok(Arc::clone(self.cached.get_or_init(|| file)))
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        self.io.flush(&self.file).await
    }

    pub(crate) async fn discard(&self, offset_bytes: u64, size_bytes: u64) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        self.io
            .blocking(move || {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(&file, flags, offset_bytes, size_bytes)?)
            })
            .await
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub(crate) fn is_rotational(&self) -> bool {
        self.rotational
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
