//! OpenZFS's `zdb` as a judge beside Cenote's own `verify`: a misreading of the format that reader and writer share passes the one
//! and not the other.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use cenote_taskq::sim::disk::Image;
use cenote_testkit::zdb::{BlockStatistics, Devices, program, run};

use crate::machine::DISK_BYTES;

/// The pool's name.
const POOL: &str = "written";
/// Bytes at the end of what `zdb` wrote that are shown.
const SHOWN_BYTES_MAX: usize = 1500;

/// Whether there is a `zdb`.
#[must_use]
pub fn is_there() -> bool {
    program("zdb").is_some()
}

/// Writes a simulation's devices to sparse files, in a folder that holds nothing else.
fn exported(images: &[Image]) -> Result<(tempfile::TempDir, Vec<PathBuf>)> {
    let dir = tempfile::tempdir().context("a folder for images")?;
    let mut files = Vec::new();
    for (at, image) in images.iter().enumerate() {
        let path = dir.path().join(format!("disk{at}"));
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        file.set_len(DISK_BYTES)?;
        for (offset_bytes, page) in image.pages() {
            file.seek(SeekFrom::Start(offset_bytes))?;
            file.write_all(page)?;
        }
        files.push(path);
    }
    Ok((dir, files))
}

/// Has `zdb -bcc` read every block of the pool on these devices and compare the space maps with them.
///
/// # Errors
/// It cannot be run, or it finds fault.
pub fn judge(images: &[Image]) -> Result<()> {
    let (_dir, files) = exported(images)?;
    let told = run(&Devices::of(&files)?, &["-bcc"], POOL)?;
    let is_whole = BlockStatistics::parse(&told.text).is_some_and(|statistics| statistics.leak_free);
    if told.status != Some(0) || !is_whole {
        let from = told.text.ceil_char_boundary(told.text.len().saturating_sub(SHOWN_BYTES_MAX));
        bail!("zdb -bcc: status {:?}: {}", told.status, &told.text[from..]);
    }
    Ok(())
}
