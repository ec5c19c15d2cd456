//! Which of the files in a folder can be a disk.

use std::path::Path;

/// Names in `/dev` that are never disks, and of which some do things when they are opened.
const NO_DISKS: [&str; 12] =
    ["watchdog", "tty", "vcs", "hpet", "core", "fd", "std", "console", "ptmx", "kmsg", "mem", "random"];

/// Whether a path may be a disk or an image of one, by its name and kind.
pub(crate) fn is_disk(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let in_dev = path.parent() == Some(Path::new("/dev"));
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    if in_dev && NO_DISKS.iter().any(|prefix| name.starts_with(prefix)) {
        return false;
    }
    // What is neither a file nor a block device (a pipe, a socket, a terminal) may block whoever opens it.
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
}
