//! The runtime's calls of the operating system besides devices: folders, small files, time, random numbers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) fn unix_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

pub(super) fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(super) fn random_fill(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => bytes = &mut bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            // A kernel without random numbers cannot make keys; there is nothing to go on with.
            Err(error) => panic!("the kernel gives no random numbers: {error}"),
        }
    }
}

pub(super) fn list_directory(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

pub(super) fn read_file(path: &Path, size_max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(size_max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > size_max_bytes {
        let text = format!("the file is longer than {size_max_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(bytes)
}

/// Writes beside the file and renames, so that a reader, also one after a crash, sees the old content or the new.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut nonce = [0; 8];
    random_fill(&mut nonce);
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{:016x}.tmp", u64::from_le_bytes(nonce)));
    let temporary = PathBuf::from(name);
    let write = || {
        let mut file = File::options().write(true).create_new(true).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(".".as_ref()))?.sync_all()
    };
    let written = write();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
