//! Ranges of files.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Context as _, Result, too_large};

/// A file: a range of a file of this machine.
pub(crate) struct Part {
    pub file: File,
    pub start: u64,
    pub size_bytes: u64,
}

impl Part {
    /// All its bytes, at most `bytes_max`.
    pub(crate) fn document(&self, bytes_max: u64) -> Result<Vec<u8>> {
        if self.size_bytes > bytes_max {
            return Err(too_large("is too large for an index, or larger than its descriptor says"));
        }
        let mut bytes = vec![0; self.size_bytes as usize];
        self.file.read_exact_at(&mut bytes, self.start).context("is cut short")?;
        Ok(bytes)
    }
}
