//! The side that is written: directories held open, and what is made in them.
//!
//! Everything is made relative to a directory's descriptor, by one name without slashes, and never through a symbolic link:
//! whatever names a pool holds, nothing outside of the target directory is touched.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cenote_zpl::{Attributes, FileKind, Time};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, fsetxattr, futimens, linkat, lsetxattr, makedev, mkdirat, mknodat, openat, statat, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::Errno;

/// A directory of the target.
#[derive(Debug)]
pub(crate) struct TargetDirectory {
    descriptor: OwnedFd,
}

/// What could not be kept of an entry, though the entry itself was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lost {
    /// Owner and group.
    Owner,
    /// The permission bits.
    Mode,
    /// Times.
    Times,
    /// Extended attributes that the target's file system or the user's rights do not allow.
    Xattrs,
    /// Access control lists, likewise.
    Lists,
}

/// Which attributes to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Owner and group.
    pub(crate) owner: bool,
    /// Extended attributes and access control lists.
    pub(crate) xattrs: bool,
}

fn name_of(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

impl TargetDirectory {
    /// Opens the directory that everything goes into; makes it if only it is missing.
    pub(crate) fn root(path: &Path) -> io::Result<Self> {
        match mkdirat(CWD, path, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { descriptor: openat(CWD, path, flags, Mode::empty())? })
    }

    /// Another handle of the same directory.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()? })
    }

    /// Makes the directory `name`, or takes the one that is there.
    pub(crate) fn directory(&self, name: &[u8]) -> io::Result<Self> {
        match mkdirat(&self.descriptor, name_of(name), Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.enter(name)
    }

    /// Opens the directory `name`.
    pub(crate) fn enter(&self, name: &[u8]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { descriptor: openat(&self.descriptor, name_of(name), flags, Mode::empty())? })
    }

    /// What is there under `name`, links not followed.
    pub(crate) fn stat(&self, name: &[u8]) -> Option<Stat> {
        statat(&self.descriptor, name_of(name), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Removes what is there under `name`, unless it is a directory, which is an error.
    fn clear(&self, name: &[u8]) -> io::Result<()> {
        match unlinkat(&self.descriptor, name_of(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes an empty file in place of what is there.
    pub(crate) fn file(&self, name: &[u8]) -> io::Result<File> {
        self.clear(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.descriptor, name_of(name), flags, Mode::from_raw_mode(0o600))?.into())
    }

    /// Makes a symbolic link in place of what is there.
    pub(crate) fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.clear(name)?;
        Ok(symlinkat(name_of(target), &self.descriptor, name_of(name))?)
    }

    /// Makes a device, pipe or socket in place of what is there.
    pub(crate) fn node(&self, name: &[u8], attributes: &Attributes) -> io::Result<()> {
        self.clear(name)?;
        let (kind, device) = match attributes.kind {
            FileKind::Pipe => (FileType::Fifo, 0),
            FileKind::Socket => (FileType::Socket, 0),
            FileKind::CharDevice => (FileType::CharacterDevice, makedev(attributes.device.0, attributes.device.1)),
            FileKind::BlockDevice => (FileType::BlockDevice, makedev(attributes.device.0, attributes.device.1)),
            FileKind::File | FileKind::Directory | FileKind::Symlink => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a special file"));
            }
        };
        Ok(mknodat(&self.descriptor, name_of(name), kind, Mode::from_raw_mode(0o600), device)?)
    }

    /// Makes `name` another link of `first`, a path from `root` made of plain names.
    pub(crate) fn link(&self, name: &[u8], root: &Self, first: &[u8]) -> io::Result<()> {
        let mut parts: Vec<&[u8]> = first.split(|byte| *byte == b'/').collect();
        let last = parts.pop().unwrap_or_default();
        let mut at: Option<Self> = None;
        for part in parts {
            at = Some(at.as_ref().unwrap_or(root).enter(part)?);
        }
        let parent = at.as_ref().unwrap_or(root);
        if let (Some(there), Some(source)) = (self.stat(name), parent.stat(last))
            && there.st_ino == source.st_ino
            && there.st_dev == source.st_dev
        {
            return Ok(());
        }
        self.clear(name)?;
        Ok(linkat(&parent.descriptor, name_of(last), &self.descriptor, name_of(name), AtFlags::empty())?)
    }

    /// Gives the directory itself its attributes.
    pub(crate) fn finish(&self, attributes: &Attributes, xattrs: &Xattrs, keep: Keep) -> Vec<Lost> {
        finish(self.descriptor.as_fd(), attributes, xattrs, keep)
    }

    /// Gives `name`, which cannot be opened (a link, device, pipe or socket), its attributes.
    pub(crate) fn finish_at(&self, name: &[u8], attributes: &Attributes, xattrs: &Xattrs, keep: Keep) -> Vec<Lost> {
        let mut lost = Vec::new();
        let at = name_of(name);
        let (uid, gid) = owner(attributes);
        let is_owned = keep.owner
            && note(&mut lost, Lost::Owner, chownat(&self.descriptor, at, uid, gid, AtFlags::SYMLINK_NOFOLLOW));
        if keep.xattrs {
            // There is no call that takes a directory's descriptor; the kernel's name for the descriptor serves.
            let path = Path::new("/proc/self/fd").join(self.descriptor.as_raw_fd().to_string()).join(at);
            set_xattrs(&mut lost, xattrs, |name, value| lsetxattr(&path, name, value, XattrFlags::empty()));
        }
        if attributes.kind != FileKind::Symlink {
            let mode = mode(attributes, is_owned || !keep.owner);
            note(&mut lost, Lost::Mode, chmodat(&self.descriptor, at, mode, AtFlags::empty()));
        }
        let times = times(attributes);
        note(&mut lost, Lost::Times, utimensat(&self.descriptor, at, &times, AtFlags::SYMLINK_NOFOLLOW));
        lost
    }
}

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Gives an open file or directory its attributes; the times last, since the others change them.
pub(crate) fn finish(target: BorrowedFd<'_>, attributes: &Attributes, xattrs: &Xattrs, keep: Keep) -> Vec<Lost> {
    let mut lost = Vec::new();
    let (uid, gid) = owner(attributes);
    let is_owned = keep.owner && note(&mut lost, Lost::Owner, fchown(target, uid, gid));
    if keep.xattrs {
        set_xattrs(&mut lost, xattrs, |name, value| fsetxattr(target, name, value, XattrFlags::empty()));
    }
    note(&mut lost, Lost::Mode, fchmod(target, mode(attributes, is_owned || !keep.owner)));
    note(&mut lost, Lost::Times, futimens(target, &times(attributes)));
    lost
}

fn note(lost: &mut Vec<Lost>, what: Lost, result: Result<(), Errno>) -> bool {
    if result.is_err() {
        lost.push(what);
    }
    result.is_ok()
}

fn owner(attributes: &Attributes) -> (Option<Uid>, Option<Gid>) {
    // The highest number means "leave it" to the system.
    let is_id = |id: &u32| *id != u32::MAX;
    (Some(attributes.uid).filter(is_id).map(Uid::from_raw), Some(attributes.gid).filter(is_id).map(Gid::from_raw))
}

/// The permission bits; without set-uid and set-gid where the owner that they were meant for is not the owner here.
fn mode(attributes: &Attributes, is_owned: bool) -> Mode {
    let allowed = if is_owned { 0o7777 } else { 0o1777 };
    Mode::from_raw_mode(attributes.permissions & allowed)
}

fn times(attributes: &Attributes) -> Timestamps {
    Timestamps { last_access: timespec(attributes.accessed), last_modification: timespec(attributes.modified) }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).cast_signed() }
}

fn set_xattrs(lost: &mut Vec<Lost>, xattrs: &Xattrs, set: impl Fn(&OsStr, &[u8]) -> Result<(), Errno>) {
    for (name, value) in xattrs {
        let is_list = name.starts_with(b"system.posix_acl_");
        note(lost, if is_list { Lost::Lists } else { Lost::Xattrs }, set(name_of(name), value));
    }
}

/// Whether what is there is this file already: its kind, size and time of last change.
pub(crate) fn is_same(there: &Stat, attributes: &Attributes) -> bool {
    let time = timespec(attributes.modified);
    FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
        && u64::try_from(there.st_size) == Ok(attributes.size_bytes)
        && there.st_mtime == time.tv_sec
        && i128::from(there.st_mtime_nsec) == i128::from(time.tv_nsec)
}
