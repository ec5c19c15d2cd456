//! A leaf's storage: a device, or one partition of it.

use std::fmt;
use std::io;
use std::sync::Arc;

use cenote_taskq::Device;
use cenote_taskq::buf::{Block, Buf};

use crate::partition::Partition;

/// A device or a partition of one. Cloning gives another handle on it.
#[derive(Clone)]
pub struct Disk {
    device: Device,
    start_bytes: u64,
    size_bytes: u64,
    path: Arc<str>,
}

impl Disk {
    /// All of a device.
    #[must_use]
    pub fn whole(device: Device) -> Self {
        let path = device.path().to_string_lossy().into();
        Self { start_bytes: 0, size_bytes: device.size_bytes(), device, path }
    }

    /// The part of a device that a partition table names; its path is the device's with the partition's number.
    #[must_use]
    pub fn partition(device: Device, partition: &Partition) -> Self {
        let whole = device.size_bytes();
        let start_bytes = partition.start_bytes.min(whole);
        let path = format!("{}#{}", device.path().display(), partition.number).into();
        Self { start_bytes, size_bytes: partition.size_bytes.min(whole - start_bytes), device, path }
    }

    /// Where it is, for messages.
    #[must_use]
    pub const fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// Its size.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The device below.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Where on the device this begins: 0, or the partition's start.
    #[must_use]
    pub const fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// Fills all of `buf` from `address_bytes`, or fails.
    pub async fn read(&self, address_bytes: u64, buf: Buf) -> (io::Result<()>, Buf) {
        if address_bytes.checked_add(buf.len() as u64).is_none_or(|end| end > self.size_bytes) {
            return (Err(io::ErrorKind::UnexpectedEof.into()), buf);
        }
        self.device.read(self.start_bytes + address_bytes, buf).await
    }

    /// Writes all of `block` at `address_bytes`, or fails. It is stable after the next [`Disk::flush`].
    ///
    /// # Errors
    /// The device's; also where the disk was opened read-only, or the range lies outside it.
    pub async fn write(&self, address_bytes: u64, block: Block) -> io::Result<()> {
        if address_bytes.checked_add(block.len() as u64).is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.device.write(self.start_bytes + address_bytes, block).await
    }

    /// Makes stable every write that was done before this began.
    ///
    /// # Errors
    /// The device's.
    pub async fn flush(&self) -> io::Result<()> {
        self.device.flush().await
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({}, {} bytes at {})", self.path, self.size_bytes, self.start_bytes)
    }
}
