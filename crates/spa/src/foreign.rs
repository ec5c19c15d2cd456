//! Signatures of other software on a device: file systems, partition tables, swap, LVM.

use std::io;

use cenote_format::foreign::{Foreign, HEAD_BYTES, TAIL_BYTES, probe};
use cenote_taskq::{Buf, Device, boxed};

/// Signatures other than ZFS labels in a device's first and last bytes.
///
/// # Errors
/// The device's.
#[boxed]
pub async fn foreign(device: &Device) -> io::Result<Vec<Foreign>> {
    let size_bytes = device.size_bytes();
    let len_of = |most: usize| usize::try_from(size_bytes).map_or(most, |size| size.min(most));
    let (result, head) = device.read(0, Buf::zeroed(len_of(HEAD_BYTES))).await;
    result?;
    let len = len_of(TAIL_BYTES);
    let (result, tail) = device.read(size_bytes - len as u64, Buf::zeroed(len)).await;
    result?;
    Ok(probe(&head, &tail, size_bytes))
}
