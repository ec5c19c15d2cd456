//! Which process has a pool's image files for itself, by the locks on them.
//!
//! A process that writes a pool has its image files locked (`cenote_taskq::Handle::open_alone`) until all is written and the pool is
//! exported. So a lock says that what is on disk is not the last word, also where the process takes no commands. Block devices are
//! not locked but opened exclusively, which shows only to a process that tries the same: there only the holder's socket tells.
//!
//! `cenote_taskq::Handle::in_use` answers more, and takes the device for itself while it does: that is for devices which are about to
//! be written. This is for readers: the question is a shared lock, taken for a moment.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Characters of a process's command line that are shown.
const LINE_CHARS_MAX: usize = 120;

/// A process that has a device for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number, where this process may know it.
    pub pid: Option<u32>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else { return f.write_str("another process") };
        write!(f, "process {pid}")?;
        match command_line(pid) {
            Some(line) => write!(f, " ({line})"),
            None => Ok(()),
        }
    }
}

/// Another process that has one of these devices for itself.
#[must_use]
pub fn of<'a>(devices: impl IntoIterator<Item = &'a Path>) -> Option<Holder> {
    devices.into_iter().find_map(of_device)
}

fn of_device(path: &Path) -> Option<Holder> {
    let found = fs::metadata(path).ok()?;
    // Opening a pipe or a terminal may block.
    if !found.is_file() && !found.file_type().is_block_device() {
        return None;
    }
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    is_locked(&file)
        .then(|| Holder { pid: cenote_taskq::locker(&found) })
        .filter(|holder| holder.pid != Some(std::process::id()))
}

/// True where a process has the file locked exclusively. The question is a shared lock: a process that wants the file alone at that moment
/// tries again (`cenote_spa::LOCK_PATIENCE`).
fn is_locked(file: &File) -> bool {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(file, FlockOperation::Unlock);
            false
        }
        Err(error) => error == Errno::WOULDBLOCK,
    }
}

/// A process's command line, shortened.
fn command_line(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<String> = bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .enumerate()
        .map(|(index, word)| {
            let word = String::from_utf8_lossy(word);
            // The program's name without its folder.
            let word = if index == 0 { word.rsplit('/').next().unwrap_or_default() } else { &word };
            word.chars().flat_map(char::escape_debug).collect()
        })
        .collect();
    let line = words.join(" ");
    let short: String = line.chars().take(LINE_CHARS_MAX).collect();
    let more = if short.len() < line.len() { " ..." } else { "" };
    (!line.is_empty()).then(|| format!("{short}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_and_its_process_known() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(of([file.path()]), None);
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_locked(&File::open(file.path()).unwrap()));
        // Our own is nobody else's.
        assert_eq!(of([file.path(), Path::new("/dev/null")]), None);
    }
}
