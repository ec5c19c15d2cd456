//! Notes of which process of this system has which pool: open for writing, or mounted to be read.
//!
//! # Theory
//!
//! **Need.** A pool that was not exported is opened again without `-f` only where its last user is known to be gone
//! (`cenote_spa`'s `owner` has the rule). A process that is killed can say nothing, so the note is made before, and the kernel shows
//! that the process is gone.
//!
//! **On disk.** Beside the cache file, `owners/GUID-MARK`, a file for each opening: JSON with the process, the boot and the machine. The
//! process keeps it locked; the kernel gives the lock back when the process has ended, however it ended, and not before what it
//! asked of the machine is done. The mark stands in the pool's labels too, so a note is about those labels and no others.
//!
//! **Life.** Made and locked under another name, then renamed, so that no other process meets it unlocked. Removed when the pool is
//! exported. One that is left is looked at by the next opening: its process is gone if nobody has it locked, or if it is of an
//! earlier boot of this machine. It goes when that opening ends, or with the next.
//!
//! *Readers.* A process that shows a pool read-only for as long as somebody looks (`cenote mount`, `serve`) has a note as well, `GUID-rMARK`.
//! No label names it, and it says nothing of who may write. Both kinds list the pool's devices: while the lock is there nobody makes
//! another pool of them ([`crate::imported::imported`]).
//!
//! **Invariants.** 1. A note is there, and locked, before its mark is in a label. 2. A note that is locked is never removed by another
//! process. 3. A note that cannot be read, is of another machine, or lies where another user could have put it proves nothing.
//!
//! **Rejected.** *The process's number, and whether it lives*: numbers are used again, and mean other processes in a container. *A note
//! for each pool*: an opening that fails would have overwritten what proves that the one before is over. *`/run`*: it forgets at a
//! reboot what would prove that all processes are gone.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use cenote_format::ids::Guid;
use cenote_spa::{FoundPool, ImportOptions, PoolState};
use cenote_taskq::sync::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::HostError;
use crate::cachefile::{CacheFile, Entry, this_boot};
use crate::disks::device_paths;
use crate::error::At as _;
use crate::folders::{make_own_folder, own_folder};

type Result<T> = std::result::Result<T, HostError>;

/// Bytes of a note at most.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// The notes of this process, which are locked as long as they are here.
static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

struct Held {
    guid: Guid,
    path: PathBuf,
    _lock: File,
}

/// The content of a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    version: u32,
    pool: String,
    process: u32,
    /// The pool's devices. Notes of earlier versions have none.
    #[serde(default)]
    devices: Vec<PathBuf>,
    /// The kernel's number of this boot.
    boot: String,
    /// The machine's own number, and its name; empty where it has none.
    machine: String,
    host: String,
}

/// The system as notes name it.
#[derive(Clone, Debug)]
struct System {
    boot: String,
    machine: String,
    host: String,
}

impl System {
    fn here() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            boot: this_boot(),
            machine: text("/etc/machine-id"),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }
}

fn folder() -> Result<PathBuf> {
    Ok(CacheFile::of_user()?.dir().join("owners"))
}

/// A process that has a pool, as its note says.
pub(crate) struct Having {
    pub(crate) pool: String,
    pub(crate) guid: Guid,
    pub(crate) process: u32,
    pub(crate) devices: Vec<PathBuf>,
}

/// The processes of this system that have pools and live.
pub(crate) fn living() -> Vec<Having> {
    let Ok(folder) = folder() else { return Vec::new() };
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| having(&entry.path())).collect()
}

/// The mark with which this process has a pool open for writing.
#[must_use]
pub fn own_mark(guid: Guid) -> Option<u64> {
    let held = HELD.lock();
    let path = &held.iter().find(|held| held.guid == guid)?.path;
    u64::from_str_radix(path.file_name()?.to_str()?.split_once('-')?.1, 16).ok()
}

/// Whether a note says that a pool is open for writing, or was not exported by its last user.
#[must_use]
pub fn is_noted(guid: Guid) -> bool {
    let Ok(folder) = folder() else { return false };
    let (prefix, readers) = (format!("{:016x}-", guid.0), format!("{:016x}-r", guid.0));
    std::fs::read_dir(&folder).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(&prefix) && !name.starts_with(&readers)
    })
}

/// The processes that show a pool read-only.
#[must_use]
pub fn readers(guid: Guid) -> Vec<u32> {
    let Ok(folder) = folder() else { return Vec::new() };
    let prefix = format!("{:016x}-r", guid.0);
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let of_readers = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    of_readers.filter_map(|entry| having(&entry.path())).map(|having| having.process).collect()
}

fn having(path: &Path) -> Option<Having> {
    let guid = path.file_name()?.to_str()?.split_once('-').filter(|_| path.extension().is_none())?.0;
    let guid = Guid(u64::from_str_radix(guid, 16).ok()?);
    let file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    let note = read_note(&file)?;
    Some(Having { pool: note.pool, guid, process: note.process, devices: note.devices })
}

fn read_note(file: &File) -> Option<Note> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok().filter(|note: &Note| note.version == 1)
}

/// Notes that this process shows a pool read-only, from these devices, until the note is dropped.
pub fn begin_reading(pool: &str, guid: Guid, devices: Vec<PathBuf>) -> Result<Reading> {
    let folder = folder()?;
    make_own_folder(&folder)?;
    remove_unlocked(&folder, &format!("{:016x}-r", guid.0), None);
    let path = folder.join(format!("{:016x}-r{:016x}", guid.0, new_mark(&folder)?));
    let lock = make(&path, &Note::new(pool, devices))?;
    Ok(Reading { path, _lock: lock })
}

/// A note that this process shows a pool read-only. Removed when dropped.
#[derive(Debug)]
pub struct Reading {
    path: PathBuf,
    _lock: File,
}

impl Drop for Reading {
    fn drop(&mut self) {
        // A note that stays is not locked, and is removed with the next.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn new_mark(folder: &Path) -> Result<u64> {
    let mut mark = [0; 8];
    rustix::rand::getrandom(&mut mark[..], rustix::rand::GetRandomFlags::empty()).at(folder)?;
    Ok(u64::from_le_bytes(mark))
}

impl Note {
    fn new(pool: &str, devices: Vec<PathBuf>) -> Self {
        let here = System::here();
        Self {
            version: 1,
            pool: pool.to_owned(),
            process: std::process::id(),
            devices,
            boot: here.boot,
            machine: here.machine,
            host: here.host,
        }
    }
}

fn name_of(guid: Guid, mark: u64) -> String {
    format!("{:016x}-{mark:016x}", guid.0)
}

/// Adds to `how` what is known of the last user of a pool that was not exported. The text says why that one is gone.
pub fn note_gone_owner(found: &FoundPool, how: &mut ImportOptions) -> Option<String> {
    let mark = found.owner_mark().filter(|_| found.state() == PoolState::Active)?;
    let folder = folder().ok()?;
    own_folder(&folder).ok()?;
    let why = why_gone(&folder.join(name_of(found.guid, mark)), &System::here())?;
    how.gone_marks.push(mark);
    // So its signs of life need not be watched for.
    how.owner_is_gone = true;
    Some(why)
}

/// Why the process of a note is known to be gone, if it is.
fn why_gone(path: &Path, here: &System) -> Option<String> {
    let file = File::open(path).ok()?;
    let note = read_note(&file)?;
    if note.boot == here.boot && !note.boot.is_empty() {
        // The lock is the same kernel's.
        return flock(&file, FlockOperation::NonBlockingLockShared)
            .is_ok()
            .then(|| format!("process {} of this system, which had it, is gone", note.process));
    }
    let is_this_machine = !note.machine.is_empty() && note.machine == here.machine && note.host == here.host;
    (is_this_machine && !note.boot.is_empty() && !here.boot.is_empty())
        .then(|| "this system, which had it, was started anew since".to_owned())
}

/// Notes that this process is about to open a pool for writing; the mark is for its labels.
pub fn begin(found: &FoundPool) -> Result<u64> {
    let folder = folder()?;
    make_own_folder(&folder)?;
    remove_left(&folder, found.guid, found.owner_mark());
    let mark = new_mark(&folder)?;
    let held = folder.join(name_of(found.guid, mark));
    let note = Note::new(found.name(), device_paths(found)?);
    let lock = make(&held, &note)?;
    HELD.lock().push(Held { guid: found.guid, path: held, _lock: lock });
    Ok(mark)
}

fn make(path: &Path, note: &Note) -> Result<File> {
    let new = path.with_extension("new");
    let mut file = File::options().write(true).create_new(true).open(&new).at(&new)?;
    let mut fill = || -> Result<()> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).at(&new)?;
        let text = serde_json::to_vec(note).map_err(std::io::Error::from).at(&new)?;
        file.write_all(&text).at(&new)?;
        // It has to outlast what the labels outlast.
        file.sync_all().at(&new)?;
        std::fs::rename(&new, path).at(path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).at(folder)
    };
    match fill() {
        Ok(()) => Ok(file),
        Err(error) => {
            let _ = std::fs::remove_file(&new);
            Err(error)
        }
    }
}

/// Removes notes of a pool whose processes are gone, but the one whose mark its labels have.
fn remove_left(folder: &Path, guid: Guid, kept: Option<u64>) {
    let kept = kept.map(|mark| name_of(guid, mark));
    remove_unlocked(folder, &format!("{:016x}-", guid.0), kept.as_deref());
}

/// Removes notes whose names begin so and whose processes are gone.
fn remove_unlocked(folder: &Path, prefix: &str, kept: Option<&str>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(prefix) || kept == Some(name.as_str()) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // A note that stays is in nobody's way.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A pool that this process has is about to get another guid: its note names that from now on.
pub fn guid_changes(from: Guid, to: Guid) -> Result<()> {
    let mut held = HELD.lock();
    for held in held.iter_mut().filter(|held| held.guid == from) {
        let name = held.path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
        let Some(mark) = name.and_then(|(_, mark)| u64::from_str_radix(mark, 16).ok()) else { continue };
        let path = held.path.with_file_name(name_of(to, mark));
        std::fs::rename(&held.path, &path).at(&path)?;
        (held.guid, held.path) = (to, path);
    }
    drop(held);
    CacheFile::of_user()?.update(|pools| {
        pools.values_mut().filter(|entry| entry.guid == from.0).for_each(|entry| entry.guid = to.0);
        Ok::<_, HostError>(())
    })
}

/// The pool is exported, and its labels are this system's.
pub fn ended(guid: Guid) {
    let mut held = HELD.lock();
    for held in held.extract_if(.., |held| held.guid == guid) {
        // A note that stays is removed with the next opening.
        let _ = std::fs::remove_file(&held.path);
    }
    if let Ok(folder) = folder() {
        remove_left(&folder, guid, None);
    }
    // `zpool import -f` was about the labels that were there then, and is not to force another owner's.
    let Ok(cache) = CacheFile::of_user() else { return };
    let is_it = |entry: &Entry| entry.guid == guid.0 && entry.force;
    if cache.pools().is_ok_and(|pools| pools.values().any(is_it)) {
        // Where the file cannot be changed the pool is as it was for this user.
        let _ = cache.update(|pools| {
            pools.values_mut().filter(|entry| is_it(entry)).for_each(|entry| entry.force = false);
            Ok::<_, HostError>(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(boot: &str) -> System {
        System { boot: boot.into(), machine: "m".into(), host: "h".into() }
    }

    fn note(boot: &str, machine: &str) -> Note {
        let (pool, process) = ("tank".into(), 7);
        Note {
            version: 1,
            pool,
            process,
            devices: Vec::new(),
            boot: boot.into(),
            machine: machine.into(),
            host: "h".into(),
        }
    }

    #[test]
    fn a_process_is_gone_when_its_lock_is_or_its_boot() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("note");
        let held = make(&path, &note("one", "m")).unwrap();
        assert_eq!(why_gone(&path, &system("one")), None, "it lives");
        assert!(why_gone(&path, &system("two")).unwrap().contains("started anew"));
        drop(held);
        assert!(why_gone(&path, &system("one")).unwrap().contains("process 7"));
    }

    #[test]
    fn a_folder_that_others_can_write_is_no_place_for_notes() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("owners");
        make_own_folder(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_own_folder(&folder).is_err() && own_folder(&folder).is_err());
    }

    #[test]
    fn what_proves_nothing_is_no_proof() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("note");
        assert_eq!(why_gone(&path, &system("one")), None, "there is none");
        for (made, here) in
            [(note("two", "x"), "one"), (note("two", ""), "one"), (note("", "m"), "one"), (note("two", "m"), "")]
        {
            std::fs::write(&path, serde_json::to_vec(&made).unwrap()).unwrap();
            assert_eq!(why_gone(&path, &system(here)), None, "{made:?} in boot '{here}'");
        }
        for text in ["", "{", "{\"version\":2}", "[]"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(why_gone(&path, &system("one")), None, "{text}");
        }
    }
}
