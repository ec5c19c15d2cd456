//! A file's attributes: from system attributes or from the older znode.

use cenote_format::ids::ObjectId;
use cenote_format::znode::ZnodeFlags;

/// The kind of a file, from the format bits of its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// From a mode; `None` for bits that name nothing.
    #[must_use]
    pub(crate) const fn of_mode(mode: u64) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::File,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Pipe,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }

    /// The letter that `find -type` and manifests use.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::File => 'f',
            Self::Directory => 'd',
            Self::Symlink => 'l',
            Self::Pipe => 'p',
            Self::Socket => 's',
            Self::CharDevice => 'c',
            Self::BlockDevice => 'b',
        }
    }

    /// The format bits of a mode.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Pipe => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// From the type number of a directory entry (the file format bits of a mode, shifted right by 12).
    #[must_use]
    pub(crate) const fn of_entry_type(number: u8) -> Option<Self> {
        Self::of_mode((number as u64) << 12)
    }
}

/// A time: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999 999 999 in sound datasets.
    pub nanoseconds: u64,
}

impl Time {
    pub(crate) fn of_words(words: [u64; 2]) -> Self {
        Self { seconds: words[0].cast_signed(), nanoseconds: words[1] }
    }
}

/// `z_pflags`: the flags of a file beyond its mode ([`ZnodeFlags`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    const fn has(self, flag: ZnodeFlags) -> bool {
        self.0 & flag.bits() != 0
    }

    /// Whether the object is a file or directory of the extended attribute kind.
    #[must_use]
    pub const fn is_xattr(self) -> bool {
        self.has(ZnodeFlags::XATTR)
    }

    /// Whether the file carries a project id.
    #[must_use]
    pub(crate) const fn has_project(self) -> bool {
        self.has(ZnodeFlags::PROJECT_ID)
    }

    /// The flags that `lsattr` on Linux shows: `FS_IMMUTABLE_FL`, `FS_APPEND_FL`, `FS_NODUMP_FL`.
    #[must_use]
    pub const fn linux_bits(self) -> u32 {
        let mut bits = 0;
        if self.has(ZnodeFlags::IMMUTABLE) {
            bits |= 0x10;
        }
        if self.has(ZnodeFlags::APPEND_ONLY) {
            bits |= 0x20;
        }
        if self.has(ZnodeFlags::NO_DUMP) {
            bits |= 0x40;
        }
        bits
    }

    /// Whether new files of this directory inherit its project.
    #[must_use]
    pub const fn is_project_inherited(self) -> bool {
        self.has(ZnodeFlags::PROJECT_INHERIT)
    }
}

/// The user and group that Linux shows for ids that are not POSIX.
const NOBODY: u32 = 65534;

/// The attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The object number: the inode.
    pub object: ObjectId,
    /// Its kind.
    pub kind: FileKind,
    /// The permission bits, with set-uid, set-gid and sticky.
    pub permissions: u32,
    /// Owner, as Linux shows it.
    pub uid: u32,
    /// Group, as Linux shows it.
    pub gid: u32,
    /// Owner as stored: a POSIX id, or a domain index in the upper half.
    pub fuid_owner: u64,
    /// Group as stored.
    pub fuid_group: u64,
    /// Links.
    pub link_count: u64,
    /// Size in bytes; for a directory the number of entries with `.` and `..`.
    pub size_bytes: u64,
    /// Space taken, in units of 512 bytes, as `stat` shows it.
    pub blocks: u64,
    /// It has changes that are not on disk yet, which its space does not include.
    pub is_changed: bool,
    /// Size of a data block in bytes.
    pub block_size_bytes: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of content.
    pub modified: Time,
    /// Last change of attributes.
    pub changed: Time,
    /// Creation.
    pub created: Time,
    /// The txg of creation, which tells reuses of an object number apart.
    pub generation: u64,
    /// The parent directory.
    pub parent: ObjectId,
    /// Device number (major, minor), for devices.
    pub device: (u32, u32),
    /// Flags.
    pub flags: Flags,
    /// It has an access control list that says more than its mode.
    pub has_acl: bool,
    /// Project, if it carries one.
    pub project: Option<u64>,
    /// The hidden directory of extended attributes, if any.
    pub xattr_directory: Option<ObjectId>,
}

impl Attributes {
    /// The whole mode, with format bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.permissions | self.kind.mode_bits()
    }
}

/// A stored owner or group as Linux shows it: ids with a domain (FUIDs) have no owner on this system.
pub(crate) fn posix_id(fuid: u64) -> u32 {
    u32::try_from(fuid).unwrap_or(NOBODY)
}

/// Splits a device number: as the Linux kernel has it (12 bits of major above 20 of minor), or in the 64-bit form of
/// other systems.
pub(crate) fn device_numbers(raw: u64) -> (u32, u32) {
    if raw >> 32 != 0 {
        return ((raw >> 32) as u32, raw as u32);
    }
    ((raw >> 20) as u32, (raw & 0xf_ffff) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_split_as_the_kernel_packs_them() {
        assert_eq!(device_numbers(0x0010_0005), (1, 5));
        assert_eq!(device_numbers((259 << 20) | 70_000), (259, 70_000));
        assert_eq!(device_numbers((7 << 32) | 9), (7, 9));
    }

    #[test]
    fn ids_with_a_domain_belong_to_nobody() {
        assert_eq!(posix_id(1000), 1000);
        assert_eq!(posix_id(1 << 32 | 5), NOBODY);
    }
}
