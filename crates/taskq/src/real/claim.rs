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
//! * of a block device, to the backing file of its loop device, also where the loop device is below device-mapper or md. The
//!   file is claimed as if it had been named itself, but shared where the claimed device may be only a part of it (a partition, a
//!   logical volume), so that its neighbours stay free. Locks of files can be shared; a backing *device* is one claim's alone;
//! * of a file or block device, to every loop device over it and over those. Each is opened with `O_EXCL` and kept: a user of one,
//!   or of one of its partitions, refuses the claim.
//!
//! **Life.** [`claim`] takes everything, or releases what it took and names the user of the rest ([`InUse`]). The claim ends when
//! its files are closed, also by the end of the process, however it comes.
//!
//! **Limits.** A loop device that is set up over a file or device *after* the claim finds no lock that it would respect; another
//! Cenote on it does. A backing file that lies in another mount namespace has no path here; then its loop device alone is claimed.
//!
//! **Rejected.** *`flock` of block devices*: it belongs to the node's inode, and the kernel's users do not take it. *Leases*: the
//! next opener breaks them. *A file of locks by device number*: programs that do not know of it go on.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::holder::{Holder, Identity, InUse, Machine};

/// Layers of devices below or above one another that are followed.
const LAYERS_MAX: u32 = 8;

/// Files that are open for no other purpose than to keep others out.
#[derive(Debug, Default)]
pub(super) struct Claim {
    held: Vec<File>,
    /// Storage that is claimed already.
    seen: BTreeSet<Identity>,
}

/// Opens a block device for this process alone: an error of the kind [`io::ErrorKind::ResourceBusy`] holds an [`InUse`].
pub(super) fn open_alone(path: &Path, flags: OFlags, device: u64) -> io::Result<File> {
    match rustix::fs::open(path, flags | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::BUSY) => Err(Machine::here().user_of_device(device).into_error()),
        Err(error) => Err(error.into()),
    }
}

/// Claims everything that is the same storage as `file`, which is open already, a block device with `O_EXCL`.
pub(super) fn claim(file: &File) -> io::Result<Claim> {
    let (mut claim, machine) = (Claim::default(), Machine::here());
    match Identity::of(&file.metadata()?) {
        Identity::Device(device) => {
            claim.seen.insert(Identity::Device(device));
            claim.device(&machine, device, false, LAYERS_MAX)?;
        }
        Identity::Inode { .. } => claim.file(&machine, file, None, false)?,
    }
    Ok(claim)
}

/// The user of a file or block device, or of anything that is the same storage, so that this process could not have it alone now.
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

impl Claim {
    /// Locks a regular file and the loop devices over it that are not claimed already. `from`: its path, where a loop device leads here.
    /// `is_shared`: claims of other parts of the file may exist at the same time.
    fn file(&mut self, machine: &Machine, file: &File, from: Option<&Path>, is_shared: bool) -> io::Result<()> {
        let metadata = file.metadata()?;
        if !self.seen.insert(Identity::of(&metadata)) {
            return Ok(());
        }
        let lock = match is_shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(file, lock) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(machine.user_of_file(&metadata).through(from).into_error()),
            Err(error) => return Err(error.into()),
        }
        if machine.is_swap(&metadata) {
            return Err(InUse { by: Holder::Swap, through: None }.through(from).into_error());
        }
        self.above(machine, &[Identity::of(&metadata)], LAYERS_MAX)
    }

    /// Claims the loop devices over files and devices, and those over these in turn.
    fn above(&mut self, machine: &Machine, below: &[Identity], layers: u32) -> io::Result<()> {
        if layers == 0 {
            return Ok(());
        }
        for (node, device) in machine.loops_over(below) {
            if self.seen.insert(Identity::Device(device)) {
                self.hold(machine, &node, device)?;
                self.above(machine, &machine.storage(device), layers - 1)?;
            }
        }
        Ok(())
    }

    /// Claims what lies below and above a block device, which is claimed itself. `is_shared`: others may have other parts of it.
    fn device(&mut self, machine: &Machine, device: u64, is_shared: bool, layers: u32) -> io::Result<()> {
        if layers == 0 {
            return Ok(());
        }
        // A partition keeps the whole disk from everybody else already, and from us.
        self.seen.extend(machine.disk(device).map(Identity::Device));
        self.above(machine, &machine.storage(device), layers)?;
        for lower in machine.slaves(device) {
            self.device(machine, lower, true, layers - 1)?;
        }
        let Some(path) = machine.backing_file(device) else { return Ok(()) };
        let is_shared = is_shared || machine.is_partition(device);
        let Ok(metadata) = std::fs::metadata(&path) else { return Ok(()) };
        if let Identity::Device(lower) = Identity::of(&metadata) {
            if self.seen.insert(Identity::Device(lower)) {
                self.hold(machine, &path, lower)?;
                self.device(machine, lower, is_shared, layers - 1)?;
            }
        } else if metadata.is_file() {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
            let file = match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(file) => File::from(file),
                // Another opener of the file will then find that the loop device is taken.
                Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.file(machine, &file, Some(&path), is_shared)?;
            self.held.push(file);
        }
        Ok(())
    }

    /// Keeps others from a device that shares the claimed storage.
    fn hold(&mut self, machine: &Machine, node: &Path, device: u64) -> io::Result<()> {
        let user = match open_alone(node, OFlags::RDONLY, device) {
            Ok(held) => {
                self.held.push(held);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => InUse::of(&error),
            // A process that may not open it, or has no node of it, may still see that it is in use; and it may be gone by now.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
                    let user = machine.user_of_device(device);
                    if !user.by.is_lasting() {
                        return Ok(());
                    }
                    user
                }
                _ => return Err(error),
            },
        };
        Err(user.through(Some(node)).into_error())
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
    (metadata.is_file() || metadata.file_type().is_block_device()).then(|| Identity::of(&metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two device-mapper devices over one loop device over an image, as sysfs shows logical volumes.
    #[test]
    fn volumes_on_one_image_leave_each_other_free_and_keep_others_from_the_image() {
        let temp = tempfile::tempdir().expect("a folder");
        let image = temp.path().join("image");
        std::fs::write(&image, "").expect("written");
        let put = |path: &str, content: &str| {
            let path = temp.path().join("sys").join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, content).expect("written");
        };
        put("dev/block/7:0/dev", "7:0\n");
        put("dev/block/7:0/loop/backing_file", &format!("{}\n", image.display()));
        for volume in ["252:0", "252:1"] {
            put(&format!("dev/block/{volume}/dev"), volume);
            put(&format!("dev/block/{volume}/slaves/loop0/dev"), "7:0\n");
        }
        let machine = Machine::at(temp.path());
        let volume = |minor| {
            let mut claim = Claim::default();
            claim.device(&machine, rustix::fs::makedev(252, minor), false, LAYERS_MAX).map(|()| claim)
        };
        let whole = || {
            let file = File::open(&image)?;
            Claim::default().file(&machine, &file, None, false).map(|()| file)
        };
        let both = (volume(0).expect("free"), volume(1).expect("a volume leaves its neighbour free"));
        assert_eq!(whole().expect_err("its volumes are in use").kind(), io::ErrorKind::ResourceBusy);
        drop(both);
        let held = whole().expect("free");
        assert_eq!(volume(1).expect_err("its image is in use").kind(), io::ErrorKind::ResourceBusy);
        drop(held);
    }
}
