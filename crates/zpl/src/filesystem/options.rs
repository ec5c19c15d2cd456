//! How a file system is changed: what its dataset's properties say.

/// How a file system is changed: what its dataset's properties say.
#[derive(Clone, Copy, Debug)]
pub struct FileSystemOptions {
    /// Bytes of a block of files that are larger (`recordsize`): a power of two.
    pub record_bytes: u32,
    /// Where new extended attributes go (`xattr`).
    pub xattrs: XattrMode,
    /// Slots of new dnodes (`dnodesize`).
    pub dnode_slots: u8,
    /// Changing the mode of a file discards an access control list that says more than a mode (`aclmode=discard`).
    /// Otherwise that is refused.
    pub acl_is_discarded: bool,
    /// New files take over the default POSIX access control list of their directory (`acltype=posix`).
    pub has_posix_acls: bool,
    /// When reading a file changes its access time (`atime`, `relatime`).
    pub access_times: AccessTimes,
}

/// Where extended attributes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// In an attribute of the file (`xattr=sa`), as far as they fit.
    #[default]
    Sa,
    /// As files in a hidden directory (`xattr=dir`).
    Dir,
}

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never (`atime=off`).
    Never,
    /// Where the file was changed since it was last read, and once a day (`relatime=on`).
    #[default]
    Relative,
    /// Always (`relatime=off`).
    Always,
}

impl Default for FileSystemOptions {
    fn default() -> Self {
        Self {
            record_bytes: 128 << 10,
            xattrs: XattrMode::default(),
            dnode_slots: 1,
            acl_is_discarded: true,
            has_posix_acls: false,
            access_times: AccessTimes::default(),
        }
    }
}
