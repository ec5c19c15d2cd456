//! Files and block devices of the machine.
//!
//! A file is used directly or through the page cache, one or the other for as long as it is open. Both at once would meet in one
//! page: a direct write beside a cached one of the same page may be undone when the page is written back, neighbours included.
//!
//! Through the page cache a write may be smaller than a sector of what lies below. The kernel then writes whole pages: the
//! neighbours' bytes again as they were, and in whole sectors, each of which is written or is not. So a cut leaves them as they
//! were, unless the storage damages a sector that it was writing; that is what an ashift of the sector's size is for, and new
//! vdevs have it. A block device is never used in units below its sector: it would be the driver that reads and writes back.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::Io;
use super::claim::{Claim, claim, open_alone};
use crate::buf::{ALIGNMENT_BYTES, Block, Buf};
use crate::lock::AsyncMutex;
use crate::open_options::{Direct, OpenOptions, check_aligned, is_aligned};

/// An open file or block device.
pub(crate) struct FileDevice {
    file: Arc<File>,
    /// Offsets and lengths must be multiples of this; 1 when the page cache takes any.
    granularity: usize,
    /// It can grow while it is open.
    size_bytes: AtomicU64,
    sector_bytes: u32,
    physical_sector_bytes: u32,
    rotational: bool,
    writable: bool,
    is_block: bool,
    /// A file with a name: what it has when that is gone nobody finds again.
    is_named: bool,
    path: PathBuf,
    /// Keeps others out as long as this is open.
    _claim: Option<Claim>,
    io: Arc<Io>,
    /// Held by a stable write and by a flush through the page cache: the kernel tells a failed write-back to the first caller that syncs the
    /// file, which may be another one than the writer of those bytes. So one syncs at a time, after its own write.
    sync_turn: AsyncMutex<()>,
}

/// `alone`: the number of the block device that is to be this process's alone.
fn open_flags(path: &Path, flags: OFlags, alone: Option<u64>) -> io::Result<File> {
    match alone {
        Some(device) => open_alone(path, flags, device),
        None => Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)),
    }
}

/// The granularity at which direct I/O on `file` succeeds, or `None` when none does. The kernel says so (since 6.1); where it
/// does not, trying is what works on every file system, but for holes, which some read in any unit.
fn direct_granularity(file: &File, sector_bytes: u32, is_block: bool) -> Option<usize> {
    if is_block {
        return Some(sector_bytes as usize);
    }
    if let Ok(told) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        let units = [told.stx_dio_offset_align, told.stx_dio_mem_align].map(|unit| unit as usize);
        let fits = |unit: &usize| unit.is_power_of_two() && *unit <= ALIGNMENT_BYTES;
        return units.iter().all(fits).then(|| units[0].max(units[1]).max(512));
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
        let (mut chosen, mut direct_unit) = (None, 512);
        if let Some(file) = direct {
            match direct_granularity(&file, sector(&file), is_block) {
                Some(granularity) => {
                    direct_unit = granularity;
                    let is_too_coarse = !is_block
                        && options.write
                        && options.direct == Direct::Auto
                        && options.unit_bytes != 0
                        && granularity > options.unit_bytes as usize;
                    if !is_too_coarse {
                        chosen = Some((file, granularity));
                    }
                }
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
        let physical = match is_block {
            true => rustix::fs::ioctl_blkpbszget(&file).unwrap_or(512),
            false => u32::try_from(direct_unit).unwrap_or(512),
        };
        Ok(FileDevice {
            sector_bytes: sector(&file),
            physical_sector_bytes: physical.max(sector(&file)),
            rotational: is_block && is_rotational(&metadata),
            file: Arc::new(file),
            granularity,
            size_bytes: AtomicU64::new(size_bytes),
            is_block,
            writable: options.write,
            is_named: opened.is_file() && opened.nlink() > 0,
            path,
            _claim: claim,
            io,
            sync_turn: AsyncMutex::default(),
        })
    }

    pub(crate) async fn read(&self, offset_bytes: u64, mut buf: Buf) -> (io::Result<()>, Buf) {
        let len = buf.len();
        if len == 0 {
            return (Ok(()), buf);
        }
        if is_aligned(self.granularity, offset_bytes, len) {
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

    pub(crate) async fn write(&self, offset_bytes: u64, block: Block, is_stable: bool) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the device is open read-only"));
        }
        if block.is_empty() {
            return Ok(());
        }
        check_aligned(self.granularity, offset_bytes, block.len())?;
        if is_stable {
            self.check_named()?;
        }
        if self.granularity == 1 {
            let _turn = if is_stable { Some(self.sync_turn.lock().await) } else { None };
            return self.io.write(&self.file, offset_bytes, block, is_stable).await;
        }
        let block = match block.as_ptr().align_offset(self.granularity.max(512)) {
            0 => block,
            _ => Block::copied_from(&block),
        };
        self.io.write(&self.file, offset_bytes, block, is_stable).await
    }

    /// Refuses to call anything stable in a file that was removed, or cut: the kernel goes on with both as if nothing were, and whoever was
    /// told that the data is safe finds no file when this process has ended.
    fn check_named(&self) -> io::Result<()> {
        if !self.is_named {
            return Ok(());
        }
        let now = self.file.metadata()?;
        if now.nlink() == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the file was removed while it was in use"));
        }
        if now.len() < self.size_bytes() {
            let (had, has) = (self.size_bytes(), now.len());
            let what = format!("the file was made shorter while it was in use: it had {had} bytes, and has {has}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(())
    }

    /// See [`crate::Device::check_present`]. A block device is the same if its number is.
    pub(crate) fn check_present(&self) -> io::Result<()> {
        self.check_named()?;
        let there = match std::fs::metadata(&self.path) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_named => return Ok(()),
            Err(error) => return Err(error),
        };
        let own = self.file.metadata()?;
        let is_same = match own.file_type().is_block_device() {
            true => there.file_type().is_block_device() && there.rdev() == own.rdev(),
            false => (there.dev(), there.ino()) == (own.dev(), own.ino()),
        };
        match is_same {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "its path names another device now")),
        }
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        self.check_named()?;
        let _turn = if self.granularity == 1 { Some(self.sync_turn.lock().await) } else { None };
        self.io.flush(&self.file).await
    }

    /// See [`crate::Device::discard`]. A block device is asked by the same call as a file.
    pub(crate) async fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the device is open read-only"));
        }
        if len_bytes == 0 {
            return Ok(());
        }
        let file = Arc::clone(&self.file);
        let hole = move || {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&*file, flags, offset_bytes, len_bytes) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
                done => Ok(done?),
            }
        };
        self.io.blocking(hole).await
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Its size now, where it has grown: it may be used so far from then on.
    pub(crate) fn look_at_size(&self) -> io::Result<u64> {
        let now = match self.is_block {
            true => rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?,
            false => self.file.metadata()?.len(),
        };
        self.size_bytes.fetch_max(now, Ordering::AcqRel);
        Ok(self.size_bytes())
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub(crate) fn physical_sector_bytes(&self) -> u32 {
        self.physical_sector_bytes
    }

    pub(crate) fn is_rotational(&self) -> bool {
        self.rotational
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
