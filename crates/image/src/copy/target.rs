//! The target side: directories held open, and the files made in them.
//!
//! Everything is made relative to a directory's descriptor, by one name without slashes, and never through a symbolic link: with any names in
//! the pool, nothing outside of the target directory is touched.
//!
//! **The target may belong to another user**, who renames, removes and links in it while it is filled (homes restored to `/home`). So a name is
//! used only once, to make a file. The file under that name is then opened, compared with the one that was made (kind, device number, owner,
//! number of links, permission bits), and changed only through that descriptor. If it differs, it keeps its attributes ([`Lost::NotMade`]).
//! `chmod` and `setxattr` have no call for descriptors that were opened without permission to read; the kernel's path of the descriptor
//! (`/proc/self/fd/N`) leads to the same file even if it was renamed, and to a symbolic link itself.
//!
//! **Privileges** are kept only on request ([`Privileged`]): set-id bits, devices, capabilities. Set-id bits and capabilities are never set on a
//! file whose owner could not be set.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cenote_zpl::{Attributes, FileKind, Time};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, fsetxattr, fstat, futimens, linkat, makedev, mkdirat, mknodat, openat, setxattr, statat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The maximum bytes of a directory's attributes, without those of the namespace `user`, that are held until it is finished: access control
/// lists and labels, for which Linux allows 64 KiB each.
const LATE_MAX_BYTES: usize = 128 << 10;
/// Permission bits of a file until it is finished.
const UNFINISHED: u32 = 0o600;
/// Permission bits of a directory until it is finished.
const UNFINISHED_DIRECTORY: u32 = 0o700;

/// A directory of the target.
#[derive(Debug)]
pub(crate) struct TargetDirectory {
    descriptor: OwnedFd,
    /// This copy made it; otherwise it existed before.
    is_made: bool,
    /// Its owner when it was opened.
    owner: Uid,
}

/// A link, device, pipe or socket that was made, held by a descriptor that can neither read nor write.
#[derive(Debug)]
pub(crate) struct Special {
    descriptor: OwnedFd,
    /// It is the file that was made, as far as can be compared.
    is_made: bool,
}

/// The identity of a file under any name: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    /// The identity of a file with this status.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }

    /// The identity of an open file.
    pub(crate) fn of_file(file: &File) -> Option<Self> {
        Some(Self::of(&fstat(file).ok()?))
    }
}

/// An attribute of an entry that could not be kept, or was not requested. Usually the entry itself was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
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
    /// All attributes: the file under the name is not, or no longer, the one that was made.
    NotMade,
    /// All attributes of a directory that existed before and belongs to another user.
    Directory,
    /// Set-user-id and set-group-id bits, without `--privileged`.
    SetId,
    /// Attributes of the namespaces `trusted` and `security`, without `--privileged`.
    PrivilegedXattrs,
    /// The entry itself: a device, without `--privileged`.
    Device,
}

/// The contents of a pool that give privileges on this system. They are left out unless requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileged {
    /// Set-user-id and set-group-id bits. On a directory the set-group-id bit gives no rights, and is always kept.
    pub set_id: bool,
    /// Block and character devices.
    pub devices: bool,
    /// Extended attributes of the namespaces `trusted` and `security`, including file capabilities.
    pub xattrs: bool,
}

/// The attributes to keep.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Owner and group.
    pub owner: bool,
    /// Extended attributes and access control lists.
    pub xattrs: bool,
    /// Privileges on this system.
    pub privileged: Privileged,
}

fn name_of(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// The kernel's path of an open descriptor.
fn path_of(descriptor: BorrowedFd<'_>) -> PathBuf {
    Path::new("/proc/self/fd").join(descriptor.as_raw_fd().to_string())
}

/// The permission bits of a mode, without its kind.
fn permissions(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

impl TargetDirectory {
    /// Opens the directory that receives everything. Creates it if its parent exists.
    pub(crate) fn root(path: &Path) -> io::Result<Self> {
        let (is_new, mut flags) = match mkdirat(CWD, path, Mode::from_raw_mode(0o777)) {
            Ok(()) => (true, OFlags::NOFOLLOW),
            Err(Errno::EXIST) => (false, OFlags::empty()),
            Err(error) => return Err(error.into()),
        };
        flags |= OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = openat(CWD, path, flags, Mode::empty())?;
        let owner = Uid::from_raw(fstat(&descriptor)?.st_uid);
        Ok(Self { descriptor, is_made: is_new && owner == geteuid(), owner })
    }

    /// Another handle of the same directory.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()?, is_made: self.is_made, owner: self.owner })
    }

    /// True if this copy made it.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made
    }

    /// Creates the directory `name`, or opens the existing one.
    pub(crate) fn directory(&self, name: &[u8]) -> io::Result<Self> {
        let is_new = match mkdirat(&self.descriptor, name_of(name), Mode::from_raw_mode(UNFINISHED_DIRECTORY)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        step(Step::Made);
        let mut directory = self.enter(name)?;
        let stat = fstat(&directory.descriptor)?;
        directory.is_made =
            is_new && directory.owner == geteuid() && permissions(&stat) & 0o777 & !UNFINISHED_DIRECTORY == 0;
        step(Step::Opened);
        Ok(directory)
    }

    /// Opens the directory `name`.
    fn enter(&self, name: &[u8]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(&self.descriptor, name_of(name), flags, Mode::empty())?;
        let owner = Uid::from_raw(fstat(&descriptor)?.st_uid);
        Ok(Self { descriptor, is_made: false, owner })
    }

    /// The status of the file under `name`, without following links.
    pub(crate) fn stat(&self, name: &[u8]) -> Option<Stat> {
        statat(&self.descriptor, name_of(name), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Removes the file under `name`, if there is one. A directory is an error.
    fn clear(&self, name: &[u8]) -> io::Result<()> {
        match unlinkat(&self.descriptor, name_of(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates an empty file, replacing an existing one.
    pub(crate) fn file(&self, name: &[u8]) -> io::Result<File> {
        self.clear(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.descriptor, name_of(name), flags, Mode::from_raw_mode(UNFINISHED))?.into())
    }

    /// Creates a symbolic link, replacing an existing file.
    pub(crate) fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<Special> {
        self.clear(name)?;
        symlinkat(name_of(target), &self.descriptor, name_of(name))?;
        self.special(name, FileType::Symlink, 0)
    }

    /// Creates a device, pipe or socket, replacing an existing file.
    pub(crate) fn node(&self, name: &[u8], attributes: &Attributes) -> io::Result<Special> {
        let (kind, device) = match attributes.kind {
            FileKind::Pipe => (FileType::Fifo, 0),
            FileKind::Socket => (FileType::Socket, 0),
            FileKind::CharDevice => (FileType::CharacterDevice, makedev(attributes.device.0, attributes.device.1)),
            FileKind::BlockDevice => (FileType::BlockDevice, makedev(attributes.device.0, attributes.device.1)),
            FileKind::File | FileKind::Directory | FileKind::Symlink => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a special file"));
            }
        };
        self.clear(name)?;
        mknodat(&self.descriptor, name_of(name), kind, Mode::from_raw_mode(UNFINISHED), device)?;
        self.special(name, kind, device)
    }

    /// Opens the file under the name, and compares it with the one that was just made.
    fn special(&self, name: &[u8], kind: FileType, device: u64) -> io::Result<Special> {
        step(Step::Made);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(&self.descriptor, name_of(name), flags, Mode::empty())?;
        let stat = fstat(&descriptor)?;
        let is_made = FileType::from_raw_mode(stat.st_mode) == kind
            && (kind == FileType::Symlink || permissions(&stat) & !UNFINISHED == 0)
            && (!matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) || stat.st_rdev == device)
            && Uid::from_raw(stat.st_uid) == geteuid()
            && stat.st_nlink == 1;
        step(Step::Opened);
        Ok(Special { descriptor, is_made })
    }

    /// Makes `name` another link to the file `identity`, which was made under `first`, a path of plain names from `root`.
    ///
    /// # Errors
    /// Another file is there by now, or the target does not support hard links.
    pub(crate) fn link(&self, name: &[u8], root: &Self, first: &[u8], identity: Identity) -> io::Result<()> {
        let mut parts: Vec<&[u8]> = first.split(|byte| *byte == b'/').collect();
        let last = parts.pop().unwrap_or_default();
        let mut at: Option<Self> = None;
        for part in parts {
            at = Some(at.as_ref().unwrap_or(root).enter(part)?);
        }
        let parent = at.as_ref().unwrap_or(root);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = openat(&parent.descriptor, name_of(last), flags, Mode::empty())?;
        if Identity::of(&fstat(&source)?) != identity {
            return Err(io::Error::other("another file has taken the place of the first link"));
        }
        if self.stat(name).is_some_and(|there| Identity::of(&there) == identity) {
            return Ok(());
        }
        self.clear(name)?;
        step(Step::Opened);
        // By the descriptor's path, not the file's: so the file that was compared is linked.
        Ok(linkat(CWD, path_of(source.as_fd()), &self.descriptor, name_of(name), AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Sets the directory's own attributes, unless it existed before and its owner is neither this user nor the one in the pool.
    pub(crate) fn finish(&self, attributes: &Attributes, xattrs: &Xattrs, keep: Keep) -> Vec<Lost> {
        let is_expected = self.is_made
            || self.owner == geteuid()
            || (keep.owner && attributes.uid != u32::MAX && self.owner == Uid::from_raw(attributes.uid));
        if !is_expected {
            return vec![Lost::Directory];
        }
        finish(self.descriptor.as_fd(), attributes, xattrs, keep)
    }
}

/// Sets the attributes of the namespace `user` on a directory that was just made or opened, and returns the others. Those of `user` do not
/// affect files that are made in the directory, and need not be held in memory until it is finished.
pub(crate) fn begin(directory: &TargetDirectory, xattrs: Xattrs, keep: Keep) -> (Xattrs, Vec<Lost>) {
    let is_ours = directory.is_made() || directory.owner == geteuid();
    let (early, late): (Xattrs, Xattrs) =
        xattrs.into_iter().partition(|(name, _)| is_ours && name.starts_with(b"user."));
    let mut lost = Vec::new();
    let set = |name: &OsStr, value: &[u8]| fsetxattr(&directory.descriptor, name, value, XattrFlags::empty());
    set_xattrs(&mut lost, &early, keep, false, set);
    let bytes: usize = late.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > LATE_MAX_BYTES {
        lost.push(Lost::Xattrs);
        return (Xattrs::new(), lost);
    }
    (late, lost)
}

impl Special {
    /// Its device and inode, if it is the file that was made.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Some(Identity::of(&fstat(&self.descriptor).ok()?)).filter(|_| self.is_made)
    }

    /// Sets its attributes, if it is the file that was made.
    pub(crate) fn finish(&self, attributes: &Attributes, xattrs: &Xattrs, keep: Keep) -> Vec<Lost> {
        if !self.is_made {
            return vec![Lost::NotMade];
        }
        let mut lost = Vec::new();
        let path = path_of(self.descriptor.as_fd());
        let (uid, gid) = owner(attributes);
        let is_owned = keep.owner
            && note(&mut lost, Lost::Owner, chownat(&self.descriptor, "", uid, gid, AtFlags::EMPTY_PATH))
            && uid.is_some()
            && gid.is_some();
        set_xattrs(&mut lost, xattrs, keep, is_owned, |name, value| setxattr(&path, name, value, XattrFlags::empty()));
        if attributes.kind != FileKind::Symlink {
            let mode = mode(&mut lost, attributes, keep, is_owned);
            note(&mut lost, Lost::Mode, chmodat(CWD, &path, mode, AtFlags::empty()));
        }
        note(&mut lost, Lost::Times, utimensat(CWD, &path, &times(attributes), AtFlags::empty()));
        lost
    }
}

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Sets the attributes of an open file or directory; the times last, since the others change them.
pub(crate) fn finish(target: BorrowedFd<'_>, attributes: &Attributes, xattrs: &Xattrs, keep: Keep) -> Vec<Lost> {
    let mut lost = Vec::new();
    let (uid, gid) = owner(attributes);
    let is_owned =
        keep.owner && note(&mut lost, Lost::Owner, fchown(target, uid, gid)) && uid.is_some() && gid.is_some();
    set_xattrs(&mut lost, xattrs, keep, is_owned, |name, value| fsetxattr(target, name, value, XattrFlags::empty()));
    let mode = mode(&mut lost, attributes, keep, is_owned);
    note(&mut lost, Lost::Mode, fchmod(target, mode));
    note(&mut lost, Lost::Times, futimens(target, &times(attributes)));
    lost
}

/// The moments at which another user could interfere; the tests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Something was made by its name.
    Made,
    /// It was opened and compared.
    Opened,
}

#[cfg(not(test))]
const fn step(_: Step) {}
#[cfg(test)]
use tests::step;

fn note(lost: &mut Vec<Lost>, what: Lost, result: Result<(), Errno>) -> bool {
    if result.is_err() {
        lost.push(what);
    }
    result.is_ok()
}

fn owner(attributes: &Attributes) -> (Option<Uid>, Option<Gid>) {
    // To the system, the highest number means "leave it".
    let is_id = |id: &u32| *id != u32::MAX;
    (Some(attributes.uid).filter(is_id).map(Uid::from_raw), Some(attributes.gid).filter(is_id).map(Gid::from_raw))
}

/// The permission bits, with set-id bits only if they were requested and the owner could be set.
fn mode(lost: &mut Vec<Lost>, attributes: &Attributes, keep: Keep, is_owned: bool) -> Mode {
    let mut allowed = 0o1777;
    if is_owned && keep.privileged.set_id {
        allowed |= 0o6000;
    } else if is_owned && attributes.kind == FileKind::Directory {
        allowed |= 0o2000;
    }
    if attributes.permissions & !allowed & 0o6000 != 0 {
        lost.push(if keep.privileged.set_id { Lost::Mode } else { Lost::SetId });
    }
    Mode::from_raw_mode(attributes.permissions & allowed)
}

fn times(attributes: &Attributes) -> Timestamps {
    Timestamps { last_access: timespec(attributes.accessed), last_modification: timespec(attributes.modified) }
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).cast_signed() }
}

fn set_xattrs(
    lost: &mut Vec<Lost>,
    xattrs: &Xattrs,
    keep: Keep,
    is_owned: bool,
    set: impl Fn(&OsStr, &[u8]) -> Result<(), Errno>,
) {
    if !keep.xattrs {
        return;
    }
    for (name, value) in xattrs {
        let is_privileged = name.starts_with(b"trusted.") || name.starts_with(b"security.");
        if is_privileged && !keep.privileged.xattrs {
            if !lost.contains(&Lost::PrivilegedXattrs) {
                lost.push(Lost::PrivilegedXattrs);
            }
        } else if is_privileged && !is_owned {
            lost.push(Lost::Xattrs);
        } else {
            let is_list = name.starts_with(b"system.posix_acl_");
            note(lost, if is_list { Lost::Lists } else { Lost::Xattrs }, set(name_of(name), value));
        }
    }
}

/// True if this file already exists: with its kind, size and time of last change.
pub(crate) fn is_same(there: &Stat, attributes: &Attributes) -> bool {
    let time = timespec(attributes.modified);
    FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
        && u64::try_from(there.st_size) == Ok(attributes.size_bytes)
        && there.st_mtime == time.tv_sec
        && i128::from(there.st_mtime_nsec) == i128::from(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

    use cenote_format::ids::ObjectId;
    use cenote_zpl::Flags;

    use super::*;

    /// Another user's id. The tests switch to that user if they run as root.
    const OTHER: u32 = 1001;

    type Deed = Box<dyn FnMut(Step)>;

    thread_local! {
        static DEED: RefCell<Option<Deed>> = const { RefCell::new(None) };
    }

    /// Runs a test's action for this moment.
    pub(super) fn step(step: Step) {
        let deed = DEED.with_borrow_mut(Option::take);
        if let Some(mut deed) = deed {
            deed(step);
            DEED.with_borrow_mut(|slot| *slot = Some(deed));
        }
    }

    /// Runs an action at each of the moments during `work`.
    fn meanwhile<T>(deed: impl FnMut(Step) + 'static, work: impl FnOnce() -> T) -> T {
        DEED.with_borrow_mut(|slot| *slot = Some(Box::new(deed)));
        let result = work();
        DEED.with_borrow_mut(|slot| *slot = None);
        result
    }

    fn attributes(kind: FileKind, permissions: u32) -> Attributes {
        let time = Time { seconds: 1, nanoseconds: 0 };
        Attributes {
            object: ObjectId(7),
            kind,
            permissions,
            uid: geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            fuid_owner: 0,
            fuid_group: 0,
            link_count: 1,
            size_bytes: 0,
            blocks: 0,
            is_changed: false,
            block_size_bytes: 512,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
            generation: 1,
            parent: ObjectId(34),
            device: (1, 1),
            flags: Flags(0),
            has_acl: false,
            project: None,
            xattr_directory: None,
        }
    }

    const ALL: Keep =
        Keep { owner: true, xattrs: true, privileged: Privileged { set_id: true, devices: true, xattrs: true } };
    const PLAIN: Keep =
        Keep { owner: true, xattrs: true, privileged: Privileged { set_id: false, devices: false, xattrs: false } };

    /// A target, in a directory with a file that must not change.
    struct Place {
        dir: tempfile::TempDir,
        target: PathBuf,
        victim: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (target, victim) = (dir.path().join("target"), dir.path().join("victim"));
            fs::create_dir(&target).unwrap();
            fs::write(&victim, b"mine").unwrap();
            fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
            if geteuid().is_root() {
                std::os::unix::fs::chown(&target, Some(OTHER), Some(OTHER)).unwrap();
            }
            Self { dir, target, victim }
        }

        fn open(&self) -> TargetDirectory {
            TargetDirectory::root(&self.target).unwrap()
        }

        fn state(&self) -> (u32, u32, i64, i64) {
            let meta = fs::metadata(&self.victim).unwrap();
            (meta.mode(), meta.uid(), meta.mtime(), meta.ctime_nsec())
        }
    }

    /// Goal: root gives away only what it made. Method: between the steps the name is replaced by a link to a file of root's, or by another
    /// file. Would go wrong if attributes were set by name.
    #[test]
    fn a_name_that_is_swapped_between_the_steps_gives_nobody_anything() {
        let wanted = attributes(FileKind::Pipe, 0o4777);
        for moment in [Step::Made, Step::Opened] {
            for by_link in [true, false] {
                let place = Place::new();
                let directory = place.open();
                let before = place.state();
                let (name, victim, moved) =
                    (place.target.join("pipe"), place.victim.clone(), place.dir.path().join("moved"));
                let deed = move |step| {
                    if step != moment {
                        return;
                    }
                    fs::rename(&name, &moved).unwrap();
                    if by_link {
                        symlink(&victim, &name).unwrap();
                    } else {
                        fs::write(&name, b"#!/bin/sh").unwrap();
                        fs::set_permissions(&name, fs::Permissions::from_mode(0o600)).unwrap();
                        if geteuid().is_root() {
                            std::os::unix::fs::chown(&name, Some(OTHER), Some(OTHER)).unwrap();
                        }
                    }
                };
                let made = meanwhile(deed, || directory.node(b"pipe", &wanted)).unwrap();
                let lost = made.finish(&wanted, &Xattrs::new(), ALL);
                assert_eq!(lost.contains(&Lost::NotMade), moment == Step::Made, "{moment:?}, {lost:?}");
                assert_eq!(place.state(), before, "{moment:?}");
                if !by_link {
                    let meta = fs::metadata(place.target.join("pipe")).unwrap();
                    assert_eq!(meta.mode() & 0o7777, 0o600, "{moment:?}");
                    assert!(!geteuid().is_root() || meta.uid() == OTHER);
                }
                // The pipe that was made was changed, even if it has another name now.
                let pipe = fs::metadata(place.dir.path().join("moved")).unwrap();
                assert!(pipe.file_type().is_fifo());
                assert_eq!(pipe.mode() & 0o7777, if moment == Step::Made { 0o600 } else { 0o4777 });
            }
        }
    }

    #[test]
    fn a_pipe_of_somebody_elses_is_not_taken_for_the_one_that_was_made() {
        if !geteuid().is_root() {
            eprintln!("left out: only root can make what is somebody else's");
            return;
        }
        let place = Place::new();
        let directory = place.open();
        let wanted = attributes(FileKind::Pipe, 0o666);
        let name = place.target.join("pipe");
        let deed = move |step| {
            if step == Step::Made {
                std::os::unix::fs::chown(&name, Some(OTHER), None).unwrap();
            }
        };
        let made = meanwhile(deed, || directory.node(b"pipe", &wanted)).unwrap();
        assert_eq!(made.finish(&wanted, &Xattrs::new(), ALL), [Lost::NotMade]);
        let second = place.target.join("second");
        let link = place.target.join("link");
        let deed = move |step| {
            if step == Step::Made {
                fs::hard_link(&second, &link).unwrap();
            }
        };
        let made = meanwhile(deed, || directory.node(b"second", &wanted)).unwrap();
        assert_eq!(made.finish(&wanted, &Xattrs::new(), ALL), [Lost::NotMade]);
    }

    #[test]
    fn a_link_gets_its_own_attributes_and_not_those_of_where_it_leads() {
        let place = Place::new();
        let directory = place.open();
        let before = place.state();
        let mut wanted = attributes(FileKind::Symlink, 0o777);
        wanted.modified = Time { seconds: 1234, nanoseconds: 5 };
        let target = place.victim.as_os_str().as_bytes();
        let made = directory.symlink(b"link", target).unwrap();
        assert_eq!(made.finish(&wanted, &Xattrs::new(), ALL), []);
        let link = fs::symlink_metadata(place.target.join("link")).unwrap();
        assert!(link.is_symlink());
        assert_eq!((link.mtime(), link.mtime_nsec()), (1234, 5));
        assert_eq!(place.state(), before);
    }

    #[test]
    fn a_directory_that_is_swapped_is_filled_and_keeps_its_attributes() {
        let place = Place::new();
        let directory = place.open();
        let (name, moved) = (place.target.join("sub"), place.dir.path().join("moved"));
        let deed = move |step| {
            if step == Step::Made {
                fs::rename(&name, &moved).unwrap();
                fs::create_dir(&name).unwrap();
                fs::set_permissions(&name, fs::Permissions::from_mode(0o755)).unwrap();
                if geteuid().is_root() {
                    std::os::unix::fs::chown(&name, Some(OTHER), Some(OTHER)).unwrap();
                }
            }
        };
        let sub = meanwhile(deed, || directory.directory(b"sub")).unwrap();
        assert!(!sub.is_made());
        if geteuid().is_root() {
            let lost = sub.finish(&attributes(FileKind::Directory, 0o777), &Xattrs::new(), ALL);
            assert_eq!(lost, [Lost::Directory]);
            let meta = fs::metadata(place.target.join("sub")).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o755, OTHER));
        }
        let (name, victim) = (place.target.join("other"), place.dir.path().to_owned());
        let deed = move |step| {
            if step == Step::Made {
                fs::remove_dir(&name).unwrap();
                symlink(&victim, &name).unwrap();
            }
        };
        assert!(meanwhile(deed, || directory.directory(b"other")).is_err(), "a link was followed");
    }

    /// A directory of a hostile pool may have a name twice: a link first, then a file or directory to be made through it.
    #[test]
    fn a_link_and_then_a_file_of_the_same_name_stays_inside() {
        let place = Place::new();
        let directory = place.open();
        let outside = place.dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let before = place.state();
        drop(directory.symlink(b"x", outside.as_os_str().as_bytes()).unwrap());
        assert!(directory.directory(b"x").is_err());
        drop(directory.symlink(b"y", place.victim.as_os_str().as_bytes()).unwrap());
        std::io::Write::write_all(&mut directory.file(b"y").unwrap(), b"theirs").unwrap();
        assert_eq!(fs::read(&place.victim).unwrap(), b"mine");
        assert_eq!(place.state(), before);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(!fs::symlink_metadata(place.target.join("y")).unwrap().is_symlink());
    }

    #[test]
    fn a_further_link_is_one_of_the_file_that_was_made_or_none() {
        let place = Place::new();
        let directory = place.open();
        let file = directory.file(b"first").unwrap();
        let identity = Identity::of_file(&file).unwrap();
        directory.link(b"second", &directory, b"first", identity).unwrap();
        assert_eq!(Identity::of(&directory.stat(b"second").unwrap()), identity);
        // Replaced before the comparison: no link. Replaced after it: a link to the file that was compared.
        fs::rename(place.target.join("first"), place.target.join("moved")).unwrap();
        symlink(&place.victim, place.target.join("first")).unwrap();
        assert!(directory.link(b"third", &directory, b"first", identity).is_err());
        assert!(directory.stat(b"third").is_none());
        fs::rename(place.target.join("moved"), place.target.join("first")).unwrap();
        let (name, victim) = (place.target.join("first"), place.victim.clone());
        let deed = move |_| {
            fs::remove_file(&name).unwrap();
            symlink(&victim, &name).unwrap();
        };
        meanwhile(deed, || directory.link(b"third", &directory, b"first", identity)).unwrap();
        assert_eq!(Identity::of(&directory.stat(b"third").unwrap()), identity);
    }

    /// The highest number is not an owner: the system takes it for "leave it", and the file would remain root's.
    #[test]
    fn an_owner_that_cannot_be_set_leaves_no_program_set_user_id() {
        let place = Place::new();
        let directory = place.open();
        let file = directory.file(b"program").unwrap();
        let program = Attributes { uid: u32::MAX, ..attributes(FileKind::File, 0o6755) };
        let lost = finish(file.as_fd(), &program, &Xattrs::new(), ALL);
        assert_eq!(lost, [Lost::Mode]);
        assert_eq!(fs::metadata(place.target.join("program")).unwrap().mode() & 0o7777, 0o755);
    }

    #[test]
    fn rights_come_out_only_where_they_are_asked_for() {
        let mut lost = Vec::new();
        let program = attributes(FileKind::File, 0o6755);
        assert_eq!(mode(&mut lost, &program, ALL, true).as_raw_mode(), 0o6755);
        assert_eq!(lost, []);
        assert_eq!(mode(&mut lost, &program, PLAIN, true).as_raw_mode(), 0o755);
        assert_eq!(lost, [Lost::SetId]);
        // Never if the owner is not that of the pool.
        assert_eq!(mode(&mut lost, &program, ALL, false).as_raw_mode(), 0o755);
        assert_eq!(mode(&mut lost, &program, Keep { owner: false, ..PLAIN }, false).as_raw_mode(), 0o755);
        let directory = attributes(FileKind::Directory, 0o3777);
        assert_eq!(mode(&mut Vec::new(), &directory, PLAIN, true).as_raw_mode(), 0o3777);
        assert_eq!(mode(&mut Vec::new(), &directory, PLAIN, false).as_raw_mode(), 0o1777);

        let names: [&[u8]; 4] = [b"user.a", b"trusted.b", b"security.capability", b"security.selinux"];
        let xattrs: Xattrs = names.into_iter().map(|name| (name.to_vec(), b"x".to_vec())).collect();
        let kept = |keep, is_owned| {
            let (set, mut lost) = (RefCell::new(Vec::new()), Vec::new());
            set_xattrs(&mut lost, &xattrs, keep, is_owned, |name, _| {
                set.borrow_mut().push(name.as_bytes().to_vec());
                Ok(())
            });
            (set.into_inner(), lost)
        };
        assert_eq!(kept(PLAIN, true), (vec![b"user.a".to_vec()], vec![Lost::PrivilegedXattrs]));
        assert_eq!(kept(ALL, false).0, [b"user.a"]);
        assert_eq!(kept(ALL, true).0.len(), 4);
    }
}
