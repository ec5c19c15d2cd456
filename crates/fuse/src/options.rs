//! Mount options, as `-o` names them.

use cenote_inuse::Report;
use cenote_zpl::{AccessTimes, Forbidden};

use crate::layout::Layout;
use crate::tree::TreeOptions;

/// The users that may use a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Of a mount that root makes: all users, as far as permissions allow, as with any other file system; of others the user who mounted
    /// it. If permissions are not checked ([`MountOptions::default_permissions`]), root's mounts are for root.
    #[default]
    Usual,
    /// The user who mounted it.
    Owner,
    /// The user who mounted it, and root.
    RootAndOwner,
    /// All users, as far as permissions allow.
    All,
}

/// The way that requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By io_uring where the system has that switched on (`/sys/module/fuse/parameters/enable_uring`, off unless root sets it), but not
    /// with `auto_unmount`; else by the device.
    #[default]
    Best,
    /// The same, and a note where it is not to be had.
    IoUring,
    /// By the device.
    Device,
}

/// How a tree is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Which datasets are shown besides the mounted one.
    pub layout: Layout,
    /// The users that may use it.
    pub access: Access,
    /// Whether the kernel checks permission bits and ACLs.
    pub default_permissions: bool,
    /// Whether devices can be opened.
    pub dev: bool,
    /// Whether set-user-id and set-group-id count.
    pub suid: bool,
    /// Whether programs can be run.
    pub exec: bool,
    /// Whether there are extended attributes of users (`user.` and `trusted.`), whatever the property `xattr` says.
    pub xattrs: Option<bool>,
    /// When reading a file changes its access time, whatever the dataset's properties say.
    pub access_times: Option<AccessTimes>,
    /// Whether each write is on disk before it is answered.
    pub synchronous: bool,
    /// Whether fusermount3 unmounts when this process ends in whatever way. Needs `allow_other` or `allow_root`.
    pub auto_unmount: bool,
    /// The way that requests come.
    pub transport: Transport,
    /// Threads that take requests from the kernel and serve what waits for nothing: as many as there are processors, by default, and
    /// from 2 to 16.
    pub threads: usize,
    /// How far the kernel reads ahead, in KiB; 0 leaves it as it is. Only root can set it.
    pub read_ahead_kib: u32,
}

#[allow(clippy::disallowed_methods, reason = "the binding's threads are real ones")]
fn threads_by_default() -> usize {
    std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 16))
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            access: Access::default(),
            default_permissions: true,
            dev: false,
            suid: false,
            exec: true,
            xattrs: None,
            access_times: None,
            synchronous: false,
            auto_unmount: false,
            transport: Transport::default(),
            threads: threads_by_default(),
            read_ahead_kib: 1024,
        }
    }
}

/// A mount option that cannot be had. The text names the option, and says what there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Its value is no number, or too large.
    #[error("mount option '{word}': not a number up to {max}")]
    NotANumber {
        /// The option with its value.
        word: String,
        /// The largest number that it takes.
        max: u32,
    },
    /// `rw`, which an option alone does not switch on.
    #[error("mount option 'rw': not here; 'cenote mount --rw DATASET FOLDER' mounts for writing")]
    Written,
    /// There is no such option, or it has no such value.
    #[error(
        "mount option '{0}' is not known; there are: ro, [no]allow_other, allow_root, auto_unmount, [no_]default_permissions, [no]dev, \
         [no]suid, [no]exec, [no]xattr, [no]atime, relatime, strictatime, [a]sync, [no_]io_uring, threads=N, read_ahead=KIB, \
         layout=mountpoints|names|alone"
    )]
    Unknown(String),
}

impl MountOptions {
    /// The same options without forbidden rights.
    #[must_use]
    pub fn without(&self, forbidden: Forbidden) -> Self {
        Self {
            dev: self.dev && !forbidden.dev,
            suid: self.suid && !forbidden.suid,
            exec: self.exec && !forbidden.exec,
            ..self.clone()
        }
    }

    /// Whether the kernel lets in other users than the one who mounts, `is_root` or not.
    #[must_use]
    pub(crate) fn lets_in_others(&self, is_root: bool) -> bool {
        match self.access {
            Access::Usual => is_root && self.default_permissions,
            Access::Owner => false,
            Access::RootAndOwner | Access::All => true,
        }
    }

    /// The options that a tree obeys.
    #[must_use]
    pub fn tree(&self, report: Report) -> TreeOptions {
        let (layout, access_times, xattrs) = (self.layout, self.access_times, self.xattrs);
        TreeOptions { layout, access_times, xattrs, admin_snapshots: false, report }
    }

    /// Takes up a comma-separated list, as it follows `-o`. On an error the options are partly changed.
    pub fn parse(&mut self, list: &str) -> Result<(), OptionError> {
        list.split(',').filter(|word| !word.is_empty()).try_for_each(|word| self.parse_word(word))
    }

    fn parse_word(&mut self, word: &str) -> Result<(), OptionError> {
        let number = |text: &str, max: u32| match text.parse::<u32>() {
            Ok(number) if number <= max => Ok(number),
            _ => Err(OptionError::NotANumber { word: word.to_owned(), max }),
        };
        match word.split_once('=').unwrap_or((word, "")) {
            ("ro" | "defaults" | "nofail" | "_netdev" | "zfsutil", "") => {}
            ("noatime", "") => self.access_times = Some(AccessTimes::Never),
            ("relatime", "") => self.access_times = Some(AccessTimes::Relative),
            ("strictatime", "") => self.access_times = Some(AccessTimes::Always),
            ("atime", "") => self.access_times = None,
            ("sync", "") => self.synchronous = true,
            ("async", "") => self.synchronous = false,
            ("rw", "") => return Err(OptionError::Written),
            ("allow_other", "") => self.access = Access::All,
            ("noallow_other" | "no_allow_other", "") => self.access = Access::Owner,
            ("xattr" | "saxattr" | "dirxattr", "") => self.xattrs = Some(true),
            ("noxattr", "") => self.xattrs = Some(false),
            ("allow_root", "") => self.access = Access::RootAndOwner,
            ("auto_unmount", "") => self.auto_unmount = true,
            ("default_permissions", "") => self.default_permissions = true,
            ("no_default_permissions", "") => self.default_permissions = false,
            ("dev", "") => self.dev = true,
            ("nodev", "") => self.dev = false,
            ("suid", "") => self.suid = true,
            ("nosuid", "") => self.suid = false,
            ("exec", "") => self.exec = true,
            ("noexec", "") => self.exec = false,
            ("io_uring", "") => self.transport = Transport::IoUring,
            ("no_io_uring", "") => self.transport = Transport::Device,
            ("threads", text) => self.threads = number(text, 64)?.max(1) as usize,
            ("read_ahead", text) => self.read_ahead_kib = number(text, 1 << 16)?,
            ("layout", "mountpoints") => self.layout = Layout::Mountpoints,
            ("layout", "names") => self.layout = Layout::Names,
            ("layout", "alone") => self.layout = Layout::Alone,
            _ => return Err(OptionError::Unknown(word.to_owned())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_from_a_list() {
        let mut options = MountOptions::default();
        options.parse("ro,allow_other,,nosuid,dev,threads=4,layout=names,read_ahead=0").unwrap();
        let expected = MountOptions {
            access: Access::All,
            dev: true,
            threads: 4,
            layout: Layout::Names,
            read_ahead_kib: 0,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
    }

    /// A file system that root mounts is for all users, as any other is; but not where nobody checks what they may do.
    #[test]
    fn roots_mounts_are_for_all_users_where_permissions_are_checked() {
        let others = |list: &str, is_root| {
            let mut options = MountOptions::default();
            options.parse(list).unwrap();
            options.lets_in_others(is_root)
        };
        assert!(others("", true) && !others("", false));
        assert!(!others("no_default_permissions", true) && !others("noallow_other", true));
        assert!(others("allow_other,no_default_permissions", true) && others("allow_other", false));
        assert!(others("allow_root", false));
    }

    #[test]
    fn what_a_dataset_forbids_no_option_allows() {
        let mut options = MountOptions::default();
        options.parse("suid,dev,exec").unwrap();
        let forbidden =
            Forbidden { exec: true, ..Forbidden::default() }.or(Forbidden { dev: true, ..Forbidden::default() });
        let left = options.without(forbidden);
        assert_eq!((left.dev, left.suid, left.exec), (false, true, false));
        assert_eq!(options.without(Forbidden::default()), options);
    }

    #[test]
    fn options_that_are_not_known_or_cannot_be_had_are_named() {
        for word in ["rw", "frobnicate", "threads=x", "threads=1000", "layout=up", "ro=1"] {
            let error = MountOptions::default().parse(word).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
