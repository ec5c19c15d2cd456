//! Loop devices over image files, which need root.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, until it is dropped.
pub(crate) struct Loop(PathBuf);

impl Loop {
    /// With sectors of so many bytes, or of the usual size. None, with the reason printed, where there are no loop devices; in CI that is
    /// an error.
    pub(crate) fn over(image: &Path, sector_bytes: Option<u32>) -> Option<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).args(sector_bytes.map(|bytes| format!("--sector-size={bytes}")));
        let reason = match command.arg(image).output() {
            Ok(output) if output.status.success() => {
                return Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()));
            }
            Ok(output) => super::said(&output),
            Err(error) => error.to_string(),
        };
        assert!(std::env::var_os("CI").is_none(), "losetup: {reason}");
        eprintln!("left out: no loop devices here (root, losetup): {reason}");
        None
    }

    pub(crate) fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
