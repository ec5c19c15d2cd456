//! The properties of a dataset that concern its file system.

use cenote_dmu::tx::SyncMode;
use cenote_dsl::{Dir, Dsl, DslError};

use crate::{AccessTimes, FileSystemOptions, XattrMode};

/// The smallest and the largest `recordsize`.
const RECORD_BYTES_MIN: u64 = 512;
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// The extended attributes that hold POSIX access control lists, and how names of system attributes begin.
const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const SYSTEM: &[u8] = b"system.";

/// The properties of a dataset that concern its file system, and a mount of it.
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// How files are made and changed.
    pub files: FileSystemOptions,
    /// Whether `user.` and `trusted.` attributes are there (`xattr`).
    pub has_xattrs: bool,
    /// When changes are waited for (`sync`).
    pub sync: SyncMode,
    /// Changes that are waited for are logged for the throughput of the pool, and not for their latency (`logbias`).
    pub is_for_throughput: bool,
    /// Whether snapshots are shown in a directory `.zfs` (`snapdir`).
    pub snapdir: Snapdir,
    /// The operations that are forbidden in a mount.
    pub forbidden: Forbidden,
}

/// The property `snapdir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snapdir {
    /// `.zfs` is listed.
    Visible,
    /// `.zfs` is not listed, but can be looked up by name.
    #[default]
    Hidden,
    /// There is no `.zfs`.
    Disabled,
}

/// Rights that a dataset's properties take from its mount, whatever the mount options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forbidden {
    /// Devices are not opened (`devices=off`).
    pub dev: bool,
    /// Set-user-id and set-group-id do not count (`setuid=off`).
    pub suid: bool,
    /// Programs are not run (`exec=off`).
    pub exec: bool,
    /// Nothing is changed (`readonly=on`).
    pub write: bool,
}

impl Forbidden {
    /// The rights that either of the two takes.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            dev: self.dev || other.dev,
            suid: self.suid || other.suid,
            exec: self.exec || other.exec,
            write: self.write || other.write,
        }
    }
}

impl Default for Properties {
    fn default() -> Self {
        Self::of(|_| None)
    }
}

impl Properties {
    /// The properties that count here.
    pub const NAMES: [&str; 13] = [
        "recordsize",
        "xattr",
        "aclmode",
        "acltype",
        "atime",
        "relatime",
        "sync",
        "logbias",
        "snapdir",
        "devices",
        "setuid",
        "exec",
        "readonly",
    ];

    /// By the numbers that properties are stored as; `None` where a property has its default. What `dnodesize` and large records come
    /// to depends on the pool's features, so the caller that opens it for changing sets that (`cenote_spa`'s `FileSizes`).
    #[must_use]
    pub fn of(number: impl Fn(&str) -> Option<u64>) -> Self {
        let usual = FileSystemOptions::default();
        let record = number("recordsize")
            .filter(|size| (RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(size) && size.is_power_of_two());
        let files = FileSystemOptions {
            record_bytes: record.map_or(usual.record_bytes, |size| size as u32),
            xattrs: if number("xattr") == Some(1) { XattrMode::Dir } else { XattrMode::Sa },
            dnode_slots: usual.dnode_slots,
            acl_is_discarded: number("aclmode").unwrap_or(0) == 0,
            has_posix_acls: number("acltype") == Some(1),
            access_times: match (number("atime"), number("relatime")) {
                (Some(0), _) => AccessTimes::Never,
                (_, Some(0)) => AccessTimes::Always,
                _ => AccessTimes::Relative,
            },
        };
        Self {
            files,
            has_xattrs: number("xattr") != Some(0),
            sync: SyncMode::of_number(number("sync").unwrap_or(0)),
            is_for_throughput: number("logbias") == Some(cenote_zil::LOGBIAS_THROUGHPUT),
            snapdir: match number("snapdir") {
                Some(1) => Snapdir::Visible,
                Some(2) => Snapdir::Disabled,
                _ => Snapdir::Hidden,
            },
            forbidden: Forbidden {
                dev: number("devices") == Some(0),
                suid: number("setuid") == Some(0),
                exec: number("exec") == Some(0),
                write: number("readonly") == Some(1),
            },
        }
    }

    /// True if users see extended attributes of this name: not those of users if `xattr=off`, and access control lists only if `acltype=posix`.
    #[must_use]
    pub fn has_xattr(&self, name: &[u8]) -> bool {
        if name.starts_with(SYSTEM) {
            return self.files.has_posix_acls && ACL_NAMES.contains(&name);
        }
        self.has_xattrs || !(name.starts_with(b"user.") || name.starts_with(b"trusted."))
    }

    /// Those of a directory of datasets, inherited ones too.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn read(dsl: &Dsl, dir: &Dir) -> Result<Self, DslError> {
        let found = dsl.properties(dir, |name| Self::NAMES.contains(&name)).await?;
        Ok(Self::of(|name| found.get(name).and_then(|found| found.value.number())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_that_are_not_set_have_the_defaults_of_openzfs() {
        let usual = Properties::default();
        assert_eq!(usual.files.record_bytes, 128 << 10);
        assert_eq!((usual.files.xattrs, usual.has_xattrs), (XattrMode::Sa, true));
        assert_eq!(usual.files.access_times, AccessTimes::Relative);
        assert_eq!((usual.sync, usual.snapdir), (SyncMode::Standard, Snapdir::Hidden));
        assert_eq!(usual.forbidden, Forbidden::default());
    }

    #[test]
    fn numbers_that_are_set_count_and_those_that_cannot_be_do_not() {
        let set = |name: &'static str, number: u64| Properties::of(move |other| (other == name).then_some(number));
        assert_eq!(set("recordsize", 1 << 20).files.record_bytes, 1 << 20);
        for odd in [0, 256, 100_000, 1 << 25] {
            assert_eq!(set("recordsize", odd).files.record_bytes, 128 << 10);
        }
        assert_eq!(set("xattr", 1).files.xattrs, XattrMode::Dir);
        assert!(!set("xattr", 0).has_xattrs);
        assert_eq!(set("atime", 0).files.access_times, AccessTimes::Never);
        assert_eq!(set("relatime", 0).files.access_times, AccessTimes::Always);
        assert_eq!(set("sync", 2).sync, SyncMode::Disabled);
        assert!(set("logbias", 1).is_for_throughput && !Properties::default().is_for_throughput);
        assert!(set("readonly", 1).forbidden.write && set("devices", 0).forbidden.dev);
    }
}
