//! Translation between the words of FUSE's messages and ours: times, devices, attributes, flags.

use cenote_zpl::{FileKind, Time};

use crate::server::{Caller, Entry, InodeFlags, Stat};
use crate::wire::Header;
use crate::wire::reply;

/// `FS_XFLAG_*` and `FS_*_FL` bits that mean the same.
const XFLAGS: [(u32, u32); 3] = [(0x10, 0x8), (0x20, 0x10), (0x40, 0x80)];
const XFLAG_INHERIT_PROJECT: u32 = 0x200;

/// A time that a caller gave, as files have it.
pub(super) fn zpl_time((seconds, nanoseconds): (i64, u32)) -> Time {
    Time { seconds, nanoseconds: u64::from(nanoseconds) }
}

pub(super) fn caller(header: &Header) -> Caller {
    Caller { uid: header.uid, gid: header.gid, thread: header.pid }
}

/// A time as the kernel takes it. Nanoseconds that are none, as a damaged file may have, are 0.
fn time(time: Time) -> (i64, u32) {
    (time.seconds, u32::try_from(time.nanoseconds).ok().filter(|&part| part < 1_000_000_000).unwrap_or(0))
}

/// A device number as the kernel packs it in 32 bits.
pub(super) fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

pub(super) fn attributes(stat: &Stat) -> reply::Attributes {
    reply::Attributes {
        ino: stat.ino,
        size: stat.size_bytes,
        blocks: stat.blocks,
        accessed: time(stat.accessed),
        modified: time(stat.modified),
        changed: time(stat.changed),
        mode: kind_bits(stat.kind) | stat.permissions & 0o7777,
        links: u32::try_from(stat.link_count).unwrap_or(u32::MAX),
        uid: stat.uid,
        gid: stat.gid,
        device: device(stat.device),
        block_size: stat.block_size_bytes,
    }
}

/// A kind's bits of a mode.
pub(super) fn kind_bits(kind: FileKind) -> u32 {
    kind.mode_bits()
}

/// An entry as the kernel is told of it. Its inode number is its node's, as it always was.
pub(super) fn entry(entry: &Entry, kept: std::time::Duration) -> reply::Entry {
    let attributes = reply::Attributes { ino: entry.node.0, ..attributes(&entry.stat) };
    reply::Entry { node: entry.node.0, generation: entry.generation, kept, attributes }
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
    fn times_that_a_disk_has_are_some_time() {
        let told = |seconds, nanoseconds| time(Time { seconds, nanoseconds });
        assert_eq!(told(-5, 7), (-5, 7));
        assert_eq!(zpl_time((-5, 7)), Time { seconds: -5, nanoseconds: 7 });
        for nanoseconds in [1_000_000_000, u64::MAX] {
            assert_eq!(told(i64::MIN, nanoseconds), (i64::MIN, 0));
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
