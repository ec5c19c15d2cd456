//! A program in a mount namespace of its own, as containers have: it keeps all mounts that were there when it began.

use std::io::{Read, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program. It ends when this is dropped.
#[derive(Debug)]
pub struct Elsewhere(Child);

impl Elsewhere {
    /// Begins it, and returns when its namespace is made. Takes root and the program `unshare` (util-linux).
    ///
    /// # Errors
    /// It did not begin.
    pub fn new() -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"]);
        let mut begun = Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        if let Some(stdout) = &mut begun.0.stdout {
            stdout.read_exact(&mut [0])?;
        }
        Ok(begun)
    }

    /// An absolute path as the program sees it.
    #[must_use]
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.0.id());
        Path::new(&root).join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
