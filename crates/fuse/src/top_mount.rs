//! The mount that a path leads to, in the kernel's table. A path does not say whose the mount is: another process may have mounted over it, or
//! after it was unmounted by somebody else. The device number does: the kernel gives each FUSE connection its own, as long as any mount
//! namespace has it.

use std::path::Path;

use cenote_taskq::unescaped;

/// The device (major:minor, as text) of the uppermost mount at a path of this mount namespace; none where nothing is mounted there, or the table
/// cannot be read.
pub(crate) fn device_at(mountpoint: &Path) -> Option<String> {
    device_in(&std::fs::read("/proc/self/mountinfo").ok()?, mountpoint)
}

/// The last line counts: a later mount covers the earlier ones.
fn device_in(table: &[u8], mountpoint: &Path) -> Option<String> {
    let lines = table.split(|byte| *byte == b'\n').rev();
    let mut devices = lines.filter_map(|line| {
        // Number, parent, device, root, place.
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = fields.next()?;
        let place = unescaped(fields.nth(1)?);
        (place == mountpoint).then(|| String::from_utf8_lossy(device).into_owned())
    });
    devices.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_mount_counts() {
        let table = b"30 1 0:40 / /a\\040b rw - fuse.cenote p rw\n31 1 0:41 / /c rw - fuse.cenote q rw\n\
            32 30 0:42 / /a\\040b rw - fuse.cenote r rw\n\n - \n1 2\n";
        assert_eq!(device_in(table, Path::new("/a b")).as_deref(), Some("0:42"));
        assert_eq!(device_in(table, Path::new("/c")).as_deref(), Some("0:41"));
        assert_eq!(device_in(table, Path::new("/a")), None);
    }
}
