//! Devices: what bytes are read from and written to.
//!
//! A [`Device`] is a file or block device of the machine, a simulated disk, or whatever a [`Driver`] makes of it (memory,
//! a decorator that injects faults). All answer in the same terms: a read fills its whole buffer or fails; a write is
//! done as a whole or fails, and is stable only after a flush that began after it was done, or at once where it is asked to be
//! ([`Device::write_stable`]).
//!
//! **Sectors.** A write is of whole sectors: the device, or its driver, would have to read the rest of one and write it back, and
//! a cut in between damages what was stable before. Others are refused, but for files that are used through the page cache, which
//! takes any. Reads may begin and end anywhere.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use crate::buf::{Block, Buf};
use crate::real::file::FileDevice;

/// A boxed future, where a trait object needs one.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A device implemented outside the runtime's own. Ranges have been checked against [`Driver::size_bytes`] when these
/// are called through a [`Device`].
pub trait Driver: Send + Sync + 'static {
    /// Fills all of `buf` from `offset_bytes`, or fails.
    fn read(&self, offset_bytes: u64, buf: Buf) -> BoxFuture<'_, (io::Result<()>, Buf)>;

    /// As [`Driver::read`] where the answer is there at once, which spares the box: `Err` gives the buffer back
    /// untouched and means "not at once".
    fn read_now(&self, offset_bytes: u64, buf: Buf) -> Result<(io::Result<()>, Buf), Buf> {
        let _ = offset_bytes;
        Err(buf)
    }

    /// Writes all of `block` at `offset_bytes`, or fails.
    fn write(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>>;

    /// As [`Driver::write`]; the block is stable when it is done. It says nothing of other writes. If it fails, what a flush would have
    /// made stable may be lost.
    fn write_stable(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.write(offset_bytes, block).await?;
            self.flush().await
        })
    }

    /// Makes stable all that was written before.
    fn flush(&self) -> BoxFuture<'_, io::Result<()>>;

    /// Tells the device that what a range has is not needed any more (TRIM). What is read there afterwards is anything.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if it can do nothing with that.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> BoxFuture<'_, io::Result<()>> {
        let _ = (offset_bytes, len_bytes);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    /// The device's size.
    fn size_bytes(&self) -> u64;

    /// The smallest unit the device takes: its logical sector. Writes of anything but whole ones are refused.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// The smallest unit the device writes without reading first: its physical sector.
    fn physical_sector_bytes(&self) -> u32 {
        self.sector_bytes()
    }

    /// Whether distance costs time.
    fn is_rotational(&self) -> bool {
        false
    }

    /// Fails if what was opened is not what its path names any more.
    ///
    /// # Errors
    /// Why it is not.
    fn check_present(&self) -> io::Result<()> {
        Ok(())
    }

    /// A name for messages.
    fn path(&self) -> &Path;
}

#[derive(Clone)]
enum Backing {
    File(Arc<FileDevice>),
    Driver(Arc<dyn Driver>),
}

/// An open device. Cloning gives another handle on it; it closes with the last.
#[derive(Clone)]
pub struct Device {
    backing: Backing,
}

fn check_range(size_bytes: u64, offset_bytes: u64, len: usize) -> io::Result<()> {
    match offset_bytes.checked_add(len as u64) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{len} bytes at {offset_bytes} reach past the device's end at {size_bytes}"),
        )),
    }
}

impl Device {
    pub(crate) fn from_file(file: FileDevice) -> Device {
        Device { backing: Backing::File(Arc::new(file)) }
    }

    /// A device that is what `driver` makes of it.
    pub fn from_driver(driver: Arc<dyn Driver>) -> Device {
        Device { backing: Backing::Driver(driver) }
    }

    /// Fills all of `buf` from `offset_bytes`, or fails. The buffer comes back either way; after a failure its content
    /// is unspecified. Dropping the future before it is done loses the buffer, not the device's place in order.
    pub async fn read(&self, offset_bytes: u64, buf: Buf) -> (io::Result<()>, Buf) {
        match &self.backing {
            Backing::File(file) => match check_range(file.size_bytes(), offset_bytes, buf.len()) {
                Ok(()) => file.read(offset_bytes, buf).await,
                Err(error) => (Err(error), buf),
            },
            Backing::Driver(driver) => match check_range(driver.size_bytes(), offset_bytes, buf.len()) {
                Ok(()) => match driver.read_now(offset_bytes, buf) {
                    Ok(done) => done,
                    Err(buf) => driver.read(offset_bytes, buf).await,
                },
                Err(error) => (Err(error), buf),
            },
        }
    }

    /// Writes all of `block` at `offset_bytes`, or fails. It is stable after the next [`Device::flush`].
    pub async fn write(&self, offset_bytes: u64, block: Block) -> io::Result<()> {
        check_range(self.size_bytes(), offset_bytes, block.len())?;
        match &self.backing {
            Backing::File(file) => file.write(offset_bytes, block, false).await,
            Backing::Driver(driver) => driver.write(offset_bytes, block).await,
        }
    }

    /// Writes all of `block` at `offset_bytes`, or fails. It is stable when this is done: a device with FUA writes it through its cache, of
    /// another one the kernel flushes the cache behind the write (`RWF_DSYNC`). That is one request and one answer, where a write and a flush
    /// are two. It says nothing of other writes. If it fails, what a flush would have made stable may be lost.
    pub async fn write_stable(&self, offset_bytes: u64, block: Block) -> io::Result<()> {
        check_range(self.size_bytes(), offset_bytes, block.len())?;
        match &self.backing {
            Backing::File(file) => file.write(offset_bytes, block, true).await,
            Backing::Driver(driver) => driver.write_stable(offset_bytes, block).await,
        }
    }

    /// Makes stable every write that was done before this began.
    pub async fn flush(&self) -> io::Result<()> {
        match &self.backing {
            Backing::File(file) => file.flush().await,
            Backing::Driver(driver) => driver.flush().await,
        }
    }

    /// Tells the device that what a range has is not needed any more: TRIM of a disk, a hole in a file. What is read there afterwards is anything.
    /// The range is of whole sectors.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the device, or the file's file system, can do nothing with that.
    pub async fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset_bytes, usize::try_from(len_bytes).unwrap_or(usize::MAX))?;
        match &self.backing {
            Backing::File(file) => file.discard(offset_bytes, len_bytes).await,
            Backing::Driver(driver) => driver.discard(offset_bytes, len_bytes).await,
        }
    }

    /// The device's size.
    pub fn size_bytes(&self) -> u64 {
        match &self.backing {
            Backing::File(file) => file.size_bytes(),
            Backing::Driver(driver) => driver.size_bytes(),
        }
    }

    /// Its size now. A file or a block device that has grown while it was open may be used so far from then on.
    ///
    /// # Errors
    /// The system's.
    pub fn look_at_size(&self) -> io::Result<u64> {
        match &self.backing {
            Backing::File(file) => file.look_at_size(),
            Backing::Driver(driver) => Ok(driver.size_bytes()),
        }
    }

    /// The smallest unit the device takes: the logical sector of a block device. 512 for a file, which the page cache writes
    /// in any units.
    pub fn sector_bytes(&self) -> u32 {
        match &self.backing {
            Backing::File(file) => file.sector_bytes(),
            Backing::Driver(driver) => driver.sector_bytes(),
        }
    }

    /// The smallest unit the device writes without reading first: the physical sector of a block device, and for a file the unit
    /// of direct I/O. At least [`Device::sector_bytes`].
    pub fn physical_sector_bytes(&self) -> u32 {
        match &self.backing {
            Backing::File(file) => file.physical_sector_bytes(),
            Backing::Driver(driver) => driver.physical_sector_bytes(),
        }
    }

    /// Whether distance costs time.
    pub fn is_rotational(&self) -> bool {
        match &self.backing {
            Backing::File(file) => file.is_rotational(),
            Backing::Driver(driver) => driver.is_rotational(),
        }
    }

    /// Fails if what was opened was removed or cut since, or if its path names something else now: whoever opens the path gets another
    /// device than this. What was renamed, so that its path names nothing, is still there.
    ///
    /// # Errors
    /// Why it is not there.
    pub fn check_present(&self) -> io::Result<()> {
        match &self.backing {
            Backing::File(file) => file.check_present(),
            Backing::Driver(driver) => driver.check_present(),
        }
    }

    /// Where it was opened, or the driver's name for it.
    pub fn path(&self) -> &Path {
        match &self.backing {
            Backing::File(file) => file.path(),
            Backing::Driver(driver) => driver.path(),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.path().display())
    }
}

/// A device in memory.
pub struct RamDevice {
    name: PathBuf,
    bytes: crate::sync::RwLock<Vec<u8>>,
    size_bytes: u64,
}

impl RamDevice {
    /// A device whose content is `bytes`.
    pub fn new(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Arc<RamDevice> {
        let size_bytes = bytes.len() as u64;
        Arc::new(RamDevice { name: name.into(), bytes: crate::sync::RwLock::new(bytes), size_bytes })
    }

    fn range(&self, offset_bytes: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
        check_range(self.size_bytes, offset_bytes, len)?;
        let start = offset_bytes as usize;
        Ok(start..start + len)
    }
}

impl Driver for RamDevice {
    fn read(&self, offset_bytes: u64, buf: Buf) -> BoxFuture<'_, (io::Result<()>, Buf)> {
        Box::pin(async move { self.read_now(offset_bytes, buf).unwrap_or_else(|buf| (Ok(()), buf)) })
    }

    fn read_now(&self, offset_bytes: u64, mut buf: Buf) -> Result<(io::Result<()>, Buf), Buf> {
        Ok(match self.range(offset_bytes, buf.len()) {
            Ok(range) => {
                buf.copy_from_slice(&self.bytes.read()[range]);
                (Ok(()), buf)
            }
            Err(error) => (Err(error), buf),
        })
    }

    fn write(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let range = self.range(offset_bytes, block.len())?;
            self.bytes.write()[range].copy_from_slice(&block);
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let range = self.range(offset_bytes, usize::try_from(len_bytes).unwrap_or(usize::MAX))?;
            self.bytes.write()[range].fill(0);
            Ok(())
        })
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn path(&self) -> &Path {
        &self.name
    }
}
