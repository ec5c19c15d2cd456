//! Attributes of files.

use std::time::{Duration, SystemTime};

use cenote_zpl::{Attributes, Time};

/// The kind of an object in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    pub(crate) fn of(kind: cenote_zpl::FileKind) -> Self {
        match kind {
            cenote_zpl::FileKind::File => Self::File,
            cenote_zpl::FileKind::Directory => Self::Directory,
            cenote_zpl::FileKind::Symlink => Self::Symlink,
            cenote_zpl::FileKind::Pipe => Self::Pipe,
            cenote_zpl::FileKind::Socket => Self::Socket,
            cenote_zpl::FileKind::CharDevice => Self::CharDevice,
            cenote_zpl::FileKind::BlockDevice => Self::BlockDevice,
        }
    }

    pub(crate) const fn mode_bits(self) -> u32 {
        match self {
            Self::File => cenote_zpl::FileKind::File,
            Self::Directory => cenote_zpl::FileKind::Directory,
            Self::Symlink => cenote_zpl::FileKind::Symlink,
            Self::Pipe => cenote_zpl::FileKind::Pipe,
            Self::Socket => cenote_zpl::FileKind::Socket,
            Self::CharDevice => cenote_zpl::FileKind::CharDevice,
            Self::BlockDevice => cenote_zpl::FileKind::BlockDevice,
        }
        .mode_bits()
    }
}

/// Attributes of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Its number in the dataset: the inode.
    pub object: u64,
    /// The txg in which it was made, which tells reuses of a number apart.
    pub generation: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, with set-uid, set-gid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has.
    pub links: u64,
    /// Length in bytes; of a directory, its entries with `.` and `..`.
    pub len: u64,
    /// Space that it takes, in bytes, without what is not on disk yet.
    pub allocated_bytes: u64,
    /// Last access.
    pub accessed: SystemTime,
    /// Last change of content.
    pub modified: SystemTime,
    /// Last change of attributes.
    pub changed: SystemTime,
    /// Creation.
    pub created: SystemTime,
}

impl Metadata {
    pub(crate) fn of(attributes: &Attributes) -> Self {
        Self {
            object: attributes.object.0,
            generation: attributes.generation,
            kind: FileKind::of(attributes.kind),
            mode: attributes.permissions,
            uid: attributes.uid,
            gid: attributes.gid,
            links: attributes.link_count,
            len: attributes.size_bytes,
            allocated_bytes: attributes.blocks.saturating_mul(512),
            accessed: system_time(attributes.accessed),
            modified: system_time(attributes.modified),
            changed: system_time(attributes.changed),
            created: system_time(attributes.created),
        }
    }
}

/// A stored time; 1970 where this system has no such time.
pub(crate) fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(seconds),
        false => SystemTime::UNIX_EPOCH.checked_add(seconds),
    };
    let part = Duration::from_nanos(time.nanoseconds.min(999_999_999));
    whole.and_then(|whole| whole.checked_add(part)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A time in seconds since 1970; 1970 where this system has no such time.
pub(crate) fn seconds(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(crate) fn time_of(time: SystemTime) -> Time {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Time { seconds: after.as_secs().cast_signed(), nanoseconds: u64::from(after.subsec_nanos()) },
        Err(before) => {
            let before = before.duration();
            let nanos = before.subsec_nanos();
            let seconds = before.as_secs() + u64::from(nanos > 0);
            let nanoseconds = if nanos > 0 { 1_000_000_000 - u64::from(nanos) } else { 0 };
            Time { seconds: 0_i64.checked_sub_unsigned(seconds).unwrap_or(i64::MIN), nanoseconds }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were() {
        for (seconds, nanoseconds) in
            [(0, 0), (1_700_000_000, 5), (-1, 0), (-1, 999_999_999), (-5, 1), (i64::MIN, 0), (i64::MAX, 0)]
        {
            let time = Time { seconds, nanoseconds };
            assert_eq!(time_of(system_time(time)), time);
        }
    }
}
