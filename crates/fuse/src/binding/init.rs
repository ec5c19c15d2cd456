//! How a connection begins: the kernel says what it can do, and is told what of that is wanted.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::device::Device;
use super::ring::Ring;
use super::{BACKGROUND_MAX, TRANSFER_MAX_BYTES};
use crate::server::Errno;
use crate::wire::Operation;
use crate::wire::reply as body;

/// Pages of the largest transfer, at the smallest size of a page.
const TRANSFER_MAX_PAGES: u16 = 256;
/// The oldest minor version (Linux 4.20): older ones have shorter structures, or smaller transfers.
const MINOR_MIN: u32 = 28;

// The flags that are agreed on: those of INIT (`FUSE_*`).
const ASYNC_READ: u64 = 1 << 0;
/// File handles lead to nodes that the kernel has forgotten: it looks `.` up in them.
const EXPORT_SUPPORT: u64 = 1 << 4;
const BIG_WRITES: u64 = 1 << 5;
/// The maker of the file knows whether an access control list takes the mask's place.
const DONT_MASK: u64 = 1 << 6;
const DO_READDIRPLUS: u64 = 1 << 13;
const READDIRPLUS_AUTO: u64 = 1 << 14;
const ASYNC_DIO: u64 = 1 << 15;
pub(super) const NO_OPEN_SUPPORT: u64 = 1 << 17;
const PARALLEL_DIROPS: u64 = 1 << 18;
const POSIX_ACL: u64 = 1 << 20;
const MAX_PAGES: u64 = 1 << 22;
const CACHE_SYMLINKS: u64 = 1 << 23;
pub(super) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
/// Set-ids are taken away here where a write or a new owner takes them. Else the kernel asks before every write whether the file
/// has any right to lose, which is a second request.
const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
const EXT: u64 = 1 << 30;
/// Requests come by a ring for each CPU. Offered where the system allows it.
const OVER_IO_URING: u64 = 1 << 41;

/// Wanted of every mount; a kernel without one does without.
const WANTED: u64 = ASYNC_READ
    | EXPORT_SUPPORT
    | BIG_WRITES
    | DO_READDIRPLUS
    | READDIRPLUS_AUTO
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | POSIX_ACL
    | MAX_PAGES
    | CACHE_SYMLINKS
    | EXPLICIT_INVAL_DATA
    | EXT;
/// Wanted where files are changed.
const WANTED_TO_CHANGE: u64 = DONT_MASK | HANDLE_KILLPRIV_V2;

/// Answers the first request, which says what the kernel can do, and with that what it offers. A ring comes back where one is wanted and
/// was agreed on.
pub(super) fn shake_hands(device: &Arc<OwnedFd>, is_writable: bool, io_uring: bool) -> io::Result<(u64, Option<Ring>)> {
    let mut reader = Device::new(Arc::clone(device));
    loop {
        let Some((_, operation, reply)) = reader.next()? else { return Err(io::ErrorKind::NotConnected.into()) };
        let Operation::Init { major, minor, read_ahead_max, flags } = operation else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if major < body::VERSION.0 || (major == body::VERSION.0 && minor < MINOR_MIN) {
            reply.error(Errno::PROTO);
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("FUSE {major}.{minor} is too old")));
        }
        let wanted = WANTED | if is_writable { WANTED_TO_CHANGE } else { 0 };
        let ring = if io_uring && flags & OVER_IO_URING != 0 { Ring::new(device) } else { None };
        let wanted = wanted | if ring.is_some() { OVER_IO_URING } else { 0 };
        let agreed = body::Init {
            flags: flags & wanted,
            read_ahead_max,
            background_max: BACKGROUND_MAX,
            congestion: BACKGROUND_MAX / 4 * 3,
            write_max: TRANSFER_MAX_BYTES,
            pages_max: TRANSFER_MAX_PAGES,
        };
        reply.body(&body::init(&agreed));
        // A kernel of a newer kind asks again in the version that it was told.
        if major == body::VERSION.0 {
            return Ok((flags, ring));
        }
    }
}
