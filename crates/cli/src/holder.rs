//! Which process has a pool's image files for itself, by the locks on them.
//!
//! A process that writes a pool has its image files locked (`cenote_taskq::Handle::open_alone`) until all is written and the pool is
//! exported. So a lock says that what is on disk is not the last word, also where the process takes no commands. Block devices are
//! not locked but opened exclusively, which nobody can ask about without opening them so himself: there only a process's socket
//! tells.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock, major, minor};
use rustix::io::Errno;

/// Letters of a process's command line that are shown.
const LINE_CHARS_MAX: usize = 120;

/// A process that has a device for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its number, where this process may know it.
    pub(crate) pid: Option<u32>,
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
pub(crate) fn of<'a>(devices: impl IntoIterator<Item = &'a Path>) -> Option<Holder> {
    devices.into_iter().find_map(of_device)
}

fn of_device(path: &Path) -> Option<Holder> {
    let found = fs::metadata(path).ok()?;
    // What is neither may block whoever opens it.
    if !found.is_file() && !found.file_type().is_block_device() {
        return None;
    }
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    is_locked(&file).then(|| Holder { pid: locker(&file) }).filter(|holder| holder.pid != Some(std::process::id()))
}

/// Whether anybody has it. That is asked by a lock that others can share, for a moment; who wants it alone meanwhile asks again.
fn is_locked(file: &File) -> bool {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(file, FlockOperation::Unlock);
            false
        }
        Err(error) => error == Errno::WOULDBLOCK,
    }
}

/// Whose lock it is, by the kernel's list.
fn locker(file: &File) -> Option<u32> {
    let found = file.metadata().ok()?;
    let (major, minor) = (major(found.dev()), minor(found.dev()));
    parse(&fs::read_to_string("/proc/locks").ok()?, &format!("{major:02x}:{minor:02x}:{}", found.ino()))
}

/// `1: FLOCK  ADVISORY  WRITE 1234 fe:01:567 0 EOF`.
fn parse(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, "WRITE", pid, at, ..] if at == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// What a process was called with, shortened.
pub(crate) fn command_line(pid: u32) -> Option<String> {
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
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:567 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 12 fe:01:567 0 EOF\n\
                     2: FLOCK  ADVISORY  READ  13 fe:01:567 0 EOF\n3: FLOCK  ADVISORY  WRITE 14 fe:01:567 0 EOF\n";
        assert_eq!(parse(locks, "fe:01:567"), Some(14));
        assert_eq!(parse(locks, "fe:01:56"), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(of([file.path()]), None);
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_locked(&File::open(file.path()).unwrap()));
        // Our own is nobody else's.
        assert_eq!(of([file.path(), Path::new("/dev/null")]), None);
    }
}
