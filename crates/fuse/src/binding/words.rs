//! What the words of FUSE's messages mean in ours, and ours in theirs: errors, nodes, kinds, times, devices, attributes, flags.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cenote_zpl::{FileKind, Time};
use fuser::{FileAttr, FileType, INodeNo, Request};

use crate::server::{Caller, Entry, Errno, InodeFlags, NodeId, Stat};

/// `FS_XFLAG_*` and `FS_*_FL` bits that mean the same.
const XFLAGS: [(u32, u32); 3] = [(0x10, 0x8), (0x20, 0x10), (0x40, 0x80)];
const XFLAG_INHERIT_PROJECT: u32 = 0x200;

/// A time of the system's as files have it.
pub(super) fn zpl_time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: u64::from(since.subsec_nanos()),
        },
        Err(error) => {
            // Nanoseconds count forwards, before 1970 too.
            let before = error.duration();
            let nanoseconds = (1_000_000_000 - u64::from(before.subsec_nanos())) % 1_000_000_000;
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX).saturating_neg();
            Time { seconds: seconds.saturating_sub(i64::from(nanoseconds > 0)), nanoseconds }
        }
    }
}

pub(super) fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

pub(super) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid() }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Pipe => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// A time that the system can express; what it cannot is 1970.
pub(super) fn system_time(time: Time) -> SystemTime {
    let nanoseconds = u32::try_from(time.nanoseconds).unwrap_or(0).min(999_999_999);
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let at = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(u64::from(nanoseconds)))).unwrap_or(UNIX_EPOCH)
}

/// A device number as the kernel packs it in 32 bits.
pub(super) fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

pub(super) fn attr(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino),
        size: stat.size_bytes,
        blocks: stat.blocks,
        atime: system_time(stat.accessed),
        mtime: system_time(stat.modified),
        ctime: system_time(stat.changed),
        crtime: system_time(stat.created),
        kind: file_type(stat.kind),
        perm: (stat.permissions & 0o7777) as u16,
        nlink: u32::try_from(stat.link_count).unwrap_or(u32::MAX),
        uid: stat.uid,
        gid: stat.gid,
        rdev: device(stat.device),
        blksize: stat.block_size_bytes,
        flags: 0,
    }
}

/// The attributes of an entry: its inode number is its node id, which is how `fuser` tells the kernel of the node.
pub(super) fn entry_attr(entry: &Entry) -> FileAttr {
    FileAttr { ino: INodeNo(entry.node.0), ..attr(&entry.stat) }
}

/// What says that there is no node: node id 0.
pub(super) fn no_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// `struct fsxattr`: flags, extent size, extents, project, copy-on-write extent size, padding.
pub(super) fn fsxattr(flags: InodeFlags) -> [u8; 28] {
    let mut xflags = if flags.inherits_project { XFLAG_INHERIT_PROJECT } else { 0 };
    for (flag, xflag) in XFLAGS {
        xflags |= if flags.bits & flag != 0 { xflag } else { 0 };
    }
    let mut out = [0; 28];
    out[..4].copy_from_slice(&to_kernel(xflags));
    out[12..16].copy_from_slice(&to_kernel(flags.project));
    out
}

/// The kernel's own order of bytes, which is this machine's.
#[allow(clippy::host_endian_bytes, reason = "a message to this machine's kernel, not to a disk")]
pub(super) fn to_kernel(word: u32) -> [u8; 4] {
    word.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_before_and_after_1970() {
        let time = |seconds, nanoseconds| system_time(Time { seconds, nanoseconds });
        assert_eq!(time(5, 7), UNIX_EPOCH + Duration::new(5, 7));
        for (seconds, nanoseconds) in [(5, 7), (0, 0), (-5, 7), (-1, 999_999_999)] {
            assert_eq!(zpl_time(time(seconds, nanoseconds)), Time { seconds, nanoseconds });
        }
        assert_eq!(time(-5, 7), UNIX_EPOCH - Duration::new(5, 0) + Duration::from_nanos(7));
        // Whatever a disk says, there is some time.
        for seconds in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
            for nanoseconds in [0, 999_999_999, u64::MAX] {
                time(seconds, nanoseconds);
            }
        }
    }

    #[test]
    fn device_numbers_are_packed_as_the_kernel_unpacks_them() {
        // Linux's new_decode_dev.
        let decode = |dev: u32| ((dev & 0xf_ff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xf_ff00));
        for pair in [(1, 3), (8, 0x12345), (0xfff, 0xf_ffff), (259, 70_000)] {
            assert_eq!(decode(device(pair)), pair);
        }
    }

    #[test]
    fn flags_are_told_in_both_of_linuxs_tongues() {
        let flags = InodeFlags { bits: 0x10 | 0x40, project: 77, inherits_project: true };
        let out = fsxattr(flags);
        assert_eq!(out[..4], to_kernel(0x8 | 0x80 | 0x200));
        assert_eq!(out[12..16], to_kernel(77));
    }
}
