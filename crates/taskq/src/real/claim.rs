//! Ownership of files and block devices of the machine.
//!
//! # Theory
//!
//! **Need.** A pool's devices may be written by one process only. Others that could write them are the kernel (a mount, swap,
//! device-mapper, md, the ZFS module) and other processes of ours, and each may come through another name: a second node of
//! the device, its whole disk or a partition of it, a hard link of an image file, or a loop device over the image.
//!
//! **Means.** The kernel has two, and neither alone is enough:
//! ```text
//!                      keeps out the kernel's users     keeps out other processes      named by
//! O_EXCL, block        yes, and is refused by them      that open with O_EXCL too      device number, whole disk and partitions
//! flock,  file         no                               that ask for the lock          inode
//! ```
//! So a block device is opened with `O_EXCL`, which is held as long as the device is open; two nodes are one device to it, and
//! a partition excludes its whole disk both ways. A regular file is locked with `flock`, which hard links share.
//!
//! **Across a loop device** neither reaches. Therefore a claim goes on to what lies below and above:
//! * of a block device, to the backing file of its loop device, also where the loop device is below device-mapper or md: the
//!   file is claimed as if it had been named itself, but shared where the device is a partition, so that its neighbours stay free;
//! * of a file, to every loop device over it, each of which is opened with `O_EXCL` and kept: whatever uses it, or one of its
//!   partitions, refuses the claim.
//!
//! **Life.** [`claim`] takes everything or gives back what it took and says who has the rest ([`InUse`]). The claim ends when
//! its files are closed, also by the end of the process, however it comes.
//!
//! **Limits.** A loop device that is set up over a file *after* the claim finds no lock that it would respect; another Cenote
//! on it does. A backing file that lies in another mount namespace has no path here; then its loop device alone is claimed.
//!
//! **Rejected.** *`flock` of block devices*: it belongs to the node's inode, and the kernel's users do not take it. *Leases*: they
//! are broken by whoever opens the file next. *A file of locks by device number*: it protects from nobody who does not know of it.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::holder::{Holder, InUse, Machine};

/// Layers of devices below one another that are followed.
const LAYERS_MAX: u32 = 8;

/// Files that are open for no other purpose than to keep others out.
#[derive(Debug, Default)]
pub(super) struct Claim {
    held: Vec<File>,
    /// Inodes and device numbers that are claimed already.
    seen: BTreeSet<(bool, u64, u64)>,
}

/// Opens a block device for this process alone: an error of the kind [`io::ErrorKind::ResourceBusy`] holds an [`InUse`].
pub(super) fn open_alone(path: &Path, flags: OFlags, device: u64) -> io::Result<File> {
    match rustix::fs::open(path, flags | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()) {
        Ok(file) => Ok(File::from(file)),
        Err(rustix::io::Errno::BUSY) => Err(Machine::here().user_of_device(device).into_error()),
        Err(error) => Err(error.into()),
    }
}

/// Claims everything that is the same storage as `file`, which is open already, a block device with `O_EXCL`.
pub(super) fn claim(file: &File) -> io::Result<Claim> {
    let mut claim = Claim::default();
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        claim.seen.insert(key(&metadata));
        claim.below(&Machine::here(), metadata.rdev(), LAYERS_MAX)?;
    } else {
        claim.file(&Machine::here(), file, None, false)?;
    }
    Ok(claim)
}

/// Who has a file or block device, or anything that is the same storage, so that this process could not have it alone now.
pub(super) fn in_use(path: &Path) -> io::Result<Option<InUse>> {
    let metadata = std::fs::metadata(path)?;
    let opened = match metadata.file_type().is_block_device() {
        true => open_alone(path, OFlags::RDONLY, metadata.rdev()),
        false if metadata.is_file() => File::open(path),
        false => return Ok(None),
    };
    match opened.and_then(|file| claim(&file)) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(Some(InUse::of(&error))),
        Err(error) => Err(error),
    }
}

/// A file or device as what it is, whatever it is called.
fn key(metadata: &Metadata) -> (bool, u64, u64) {
    match metadata.file_type().is_block_device() {
        true => (true, metadata.rdev(), 0),
        false => (false, metadata.dev(), metadata.ino()),
    }
}

impl Claim {
    /// Locks a regular file and the loop devices over it that are not claimed already. `from`: its path, where a loop device leads
    /// here. `is_shared`: with those who have other parts of it.
    fn file(&mut self, machine: &Machine, file: &File, from: Option<&Path>, is_shared: bool) -> io::Result<()> {
        let metadata = file.metadata()?;
        if !self.seen.insert(key(&metadata)) {
            return Ok(());
        }
        let lock = match is_shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(file, lock) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(machine.user_of_file(&metadata).through(from).into_error());
            }
            Err(error) => return Err(error.into()),
        }
        if machine.is_swap(&metadata) {
            return Err(InUse { by: Holder::Swap, through: None }.through(from).into_error());
        }
        for (node, device) in machine.loops_over(&metadata) {
            if !self.seen.insert((true, device, 0)) {
                continue;
            }
            match open_alone(&node, OFlags::RDONLY, device) {
                Ok(held) => self.held.push(held),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(InUse::of(&error).through(Some(&node)).into_error());
                }
                // A user who may not open it may still see that it is in use.
                Err(_) => {
                    let user = machine.user_of_device(device);
                    if user.by.is_lasting() {
                        return Err(user.through(Some(&node)).into_error());
                    }
                }
            }
        }
        Ok(())
    }

    /// Claims the backing files of loop devices that a device lies on.
    fn below(&mut self, machine: &Machine, device: u64, layers: u32) -> io::Result<()> {
        if layers == 0 {
            return Ok(());
        }
        for lower in machine.slaves(device) {
            self.below(machine, lower, layers - 1)?;
        }
        let Some(path) = machine.backing_file(device) else { return Ok(()) };
        let is_part = machine.is_partition(device);
        // A partition keeps the whole disk from everybody else already, and from us.
        self.seen.extend(machine.disk(device).map(|disk| (true, disk, 0)));
        let Ok(metadata) = std::fs::metadata(&path) else { return Ok(()) };
        if metadata.file_type().is_block_device() {
            if self.seen.insert(key(&metadata)) {
                let opened = open_alone(&path, OFlags::RDONLY, metadata.rdev());
                match opened {
                    Ok(held) => self.held.push(held),
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        return Err(InUse::of(&error).through(Some(&path)).into_error());
                    }
                    // As below.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(error) => return Err(error),
                }
                self.below(machine, metadata.rdev(), layers - 1)?;
            }
        } else if metadata.is_file() {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
            let file = match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(file) => File::from(file),
                // Who opens the file itself will then find that the loop device is taken.
                Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM | rustix::io::Errno::NOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.file(machine, &file, Some(&path), is_part)?;
            self.held.push(file);
        }
        Ok(())
    }
}

/// The kernel's node of the partition of `device` that has exactly this range, if the kernel knows one.
pub(super) fn partition_node(path: &Path, start_bytes: u64, size_bytes: u64) -> Option<PathBuf> {
    let metadata = std::fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    Machine::here().partition_node(metadata.rdev(), start_bytes, size_bytes)
}

/// The same for two paths that are the same file or block device, also where one is a loop device over the other; nothing for
/// what is neither a file nor a block device.
pub(super) fn identity(path: &Path) -> Option<Identity> {
    let machine = Machine::here();
    let mut metadata = std::fs::metadata(path).ok()?;
    for _ in 0..LAYERS_MAX {
        let is_block = metadata.file_type().is_block_device();
        // A partition of a loop device is no other name of the whole image.
        if !is_block || machine.is_partition(metadata.rdev()) {
            break;
        }
        let Some(below) = machine.backing_file(metadata.rdev()) else { break };
        let Ok(below) = std::fs::metadata(below) else { break };
        metadata = below;
    }
    (metadata.is_file() || metadata.file_type().is_block_device()).then(|| Identity(key(&metadata)))
}

/// Which storage a path leads to, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity((bool, u64, u64));
