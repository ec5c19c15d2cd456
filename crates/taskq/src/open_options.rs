//! The ways to open a device, and the units in which it is then written.

use std::io;

/// Whether to bypass the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the file allows it.
    #[default]
    Auto,
    /// Or fail to open.
    Always,
    /// Through the page cache.
    Never,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// For writing too. Without it the file is opened read-only, and stays so. A block device is then this opener's alone
    /// (`O_EXCL`): the error is of the kind [`io::ErrorKind::ResourceBusy`], and holds an [`InUse`](crate::InUse), where the kernel or
    /// another opener has it, its whole disk or a partition of it.
    pub write: bool,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// The smallest unit in which it will be written, where that is known: a power of two. With [`Direct::Auto`] a file whose
    /// direct I/O takes larger units only is then used through the page cache, all of it and from the beginning; otherwise writes
    /// of less than direct I/O takes are refused. 0: whatever direct I/O takes.
    pub unit_bytes: u32,
}

/// A request of this shape is of whole units, a power of two each.
pub(crate) const fn is_aligned(unit_bytes: usize, offset_bytes: u64, len: usize) -> bool {
    (offset_bytes | len as u64) & (unit_bytes as u64 - 1) == 0
}

/// Refuses a write that is not of whole units.
pub(crate) fn check_aligned(unit_bytes: usize, offset_bytes: u64, len: usize) -> io::Result<()> {
    if is_aligned(unit_bytes, offset_bytes, len) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("a write of {len} bytes at {offset_bytes} is not of whole sectors of {unit_bytes} bytes"),
    ))
}
