//! Mounting by the system call, for users with the privilege.
//!
//! The kernel knows the type of a file system's server by a subtype: `fuse.cenote`. It is part of the type that is mounted, and no
//! option. For other users fusermount3 mounts (the binding's module `helper`).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::options::MountOptions;

/// The type of our mounts, in the table of mounts and in `/etc/fstab`.
pub(crate) const TYPE: &str = "fuse.cenote";
const DEVICE: &str = "/dev/fuse";

/// The flags of a mount that the kernel obeys by itself.
pub(crate) fn flags(options: &MountOptions, is_read_only: bool) -> MountFlags {
    let wanted = [
        (is_read_only, MountFlags::RDONLY),
        (!options.dev, MountFlags::NODEV),
        (!options.suid, MountFlags::NOSUID),
        (!options.exec, MountFlags::NOEXEC),
        (options.access_times == Some(cenote_zpl::AccessTimes::Never), MountFlags::NOATIME),
        (options.synchronous, MountFlags::SYNCHRONOUS),
    ];
    wanted.into_iter().filter(|(is_wanted, _)| *is_wanted).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}

/// Mounts a connection to the kernel, and returns it; `None` if fusermount3 has to do it.
///
/// # Errors
/// There is no FUSE here, or the kernel refuses the place.
pub(crate) fn mount(
    mountpoint: &Path,
    name: &str,
    options: &MountOptions,
    is_writable: bool,
) -> io::Result<Option<OwnedFd>> {
    if options.auto_unmount {
        return Ok(None);
    }
    let device = match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error),
    };
    let mode = std::fs::metadata(mountpoint)?.mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode={mode:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    // The session decides which other users have access; the kernel has one option for all of them.
    if options.lets_in_others(rustix::process::geteuid().is_root()) {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    match rustix::mount::mount(name, mountpoint, TYPE, flags(options, !is_writable), Some(data.as_c_str())) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
