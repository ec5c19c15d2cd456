//! Threads that work in one folder, and note each call before it and each answer after it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, XattrFlags};

use super::events::{Answer, Call, Entry, Found, Handle, How, Kind, Operation, Tree, bytes_of};
use crate::numbers::Numbers;

pub(super) const CLIENTS: usize = 5;
/// Operations of a client at most, between two kills.
const OPERATIONS_MAX: usize = 90;
const FILES: [&str; 5] = ["a", "b", "c", "d", "e"];
const DIRECTORIES: [&str; 3] = ["x", "y", "z"];
pub(super) const KEYS: [&str; 3] = ["k0", "k1", "k2"];
/// Descriptors of files, and of directories, that a client has at once.
const HANDLES: usize = 3;
/// Directories are made down to here; renames may bring them deeper.
const DEPTH_MAX: usize = 2;
const SIZE_MAX: u64 = 96 << 10;
const END_TIME_MAX: Duration = Duration::from_secs(60);

/// The pace of the clients until the next kill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Between two operations of a client, at most, in microseconds.
    pub(super) pause_us: u64,
    /// The percentage of the planned syncs that are made.
    pub(super) syncs: u64,
}

/// The operations of a client, by their numbers.
type Noted = Vec<(usize, Operation)>;

/// Clients at work.
pub(super) struct Workers {
    clients: Vec<JoinHandle<Noted>>,
    shared: Arc<Shared>,
}

struct Shared {
    started: Instant,
    next: AtomicUsize,
    answered: AtomicUsize,
    /// The number of clients that have lost their file system.
    gone: AtomicUsize,
}

impl Workers {
    pub(super) fn start(folder: &Path, seed: u64, pace: Pace) -> Result<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            next: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
        });
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let top = File::open(folder)?;
            let shared = shared.clone();
            let numbers = Numbers(seed.wrapping_add(client as u64));
            clients.push(std::thread::spawn(move || {
                Worker { client, shared, numbers, pace, dirs: vec![(None, top, 0)], files: Vec::new() }.work()
            }));
        }
        Ok(Self { clients, shared })
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.shared.started.elapsed().as_nanos() as u64
    }

    pub(super) fn answered(&self) -> usize {
        self.shared.answered.load(Relaxed)
    }

    /// Whether a client has lost its file system, or failed.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.gone.load(SeqCst) > 0
    }

    /// Waits until all have ended, and takes what they noted, in the order of their calls.
    pub(super) fn finish(self) -> Result<Vec<Operation>> {
        let deadline = Instant::now() + END_TIME_MAX;
        while self.clients.iter().any(|client| !client.is_finished()) {
            ensure!(Instant::now() < deadline, "a client still waits for an answer {END_TIME_MAX:?} after the kill");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut all = BTreeMap::new();
        for client in self.clients {
            let mine = client.join().map_err(|_| anyhow::anyhow!("a client has panicked"))?;
            all.extend(mine);
        }
        ensure!(all.keys().copied().eq(0..all.len()), "the clients' operations are not numbered one by one");
        Ok(all.into_values().collect())
    }
}

struct Worker {
    client: usize,
    shared: Arc<Shared>,
    numbers: Numbers,
    pace: Pace,
    dirs: Vec<(Handle, File, usize)>,
    files: Vec<(usize, File)>,
}

/// The file that a call has opened.
type Opened = Option<File>;

impl Worker {
    fn work(mut self) -> Noted {
        let mut mine = Vec::new();
        while mine.len() < OPERATIONS_MAX {
            if self.pace.pause_us > 0 {
                std::thread::sleep(Duration::from_micros(self.numbers.below(self.pace.pause_us)));
            }
            let call = self.choose();
            let at = self.shared.next.fetch_add(1, SeqCst);
            let called_ns = self.shared.started.elapsed().as_nanos() as u64;
            let result = self.perform(&call);
            let answered_ns = self.shared.started.elapsed().as_nanos() as u64;
            let (answer, opened) = result.unwrap_or_else(|error| (Answer::Error(name_of(error)), None));
            let is_gone = matches!(&answer, Answer::Error(error) if error == "ENOTCONN" || error == "ECONNABORTED");
            let depth = match &call {
                Call::OpenDirectory { dir, .. } => self.depth(*dir) + 1,
                _ => 0,
            };
            match (&call, opened) {
                (Call::OpenDirectory { .. }, Some(file)) => self.dirs.push((Some(at), file, depth)),
                (_, Some(file)) => self.files.push((at, file)),
                _ => {}
            }
            mine.push((at, Operation { client: self.client, call, called_ns, answered_ns, answer }));
            if is_gone {
                self.shared.gone.fetch_add(1, SeqCst);
                break;
            }
            self.shared.answered.fetch_add(1, Relaxed);
            if self.dirs.len() > HANDLES {
                let at = 1 + self.below(HANDLES as u64);
                self.dirs.remove(at);
            }
            if self.files.len() > HANDLES {
                let at = self.below(HANDLES as u64);
                self.files.remove(at);
            }
        }
        mine
    }

    fn below(&mut self, bound: u64) -> usize {
        self.numbers.below(bound) as usize
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.numbers.below(bound) == 0
    }

    fn depth(&self, handle: Handle) -> usize {
        self.dirs.iter().find(|dir| dir.0 == handle).map_or(0, |dir| dir.2)
    }

    fn dir(&mut self) -> Handle {
        let at = if self.one_in(2) { 0 } else { self.below(self.dirs.len() as u64) };
        self.dirs[at].0
    }

    /// A random name: mostly of the kind that the call is meant for, sometimes of the other kind.
    fn name(&mut self, is_file: bool) -> String {
        let is_file = is_file != self.one_in(12);
        let names: &[&str] = if is_file { &FILES } else { &DIRECTORIES };
        names[self.below(names.len() as u64)].to_owned()
    }

    fn choose(&mut self) -> Call {
        let dir = self.dir();
        let mut roll = self.numbers.below(100);
        let is_sync = roll >= 88;
        if is_sync && self.numbers.below(100) >= self.pace.syncs {
            roll = self.numbers.below(88);
        }
        match roll {
            14..18 => Call::OpenDirectory { dir, name: self.name(false) },
            18..22 => {
                let dir = if self.depth(dir) < DEPTH_MAX { dir } else { None };
                Call::MakeDirectory { dir, name: self.name(false) }
            }
            22..25 => Call::RemoveDirectory { dir, name: self.name(false) },
            25..31 => Call::Unlink { dir, name: self.name(true) },
            31..33 => {
                let target = format!("to-{}", self.below(1000));
                Call::Symlink { dir, name: self.name(true), target }
            }
            33..35 => Call::ReadLink { dir, name: self.name(true) },
            38..48 => {
                let is_file = !self.one_in(4);
                let to_dir = self.dir();
                let how = [How::Replace, How::Replace, How::NoReplace, How::Exchange][self.below(4)];
                Call::Rename { dir, name: self.name(is_file), to_dir, to_name: self.name(is_file), how }
            }
            48..52 => {
                let is_file = self.one_in(2);
                Call::StatName { dir, name: self.name(is_file) }
            }
            52..55 => Call::List { dir },
            98.. => Call::Sync { handle: dir },
            roll => self.choose_of_file(roll, dir),
        }
    }

    fn choose_of_file(&mut self, roll: u64, dir: Handle) -> Call {
        if roll < 14 || self.files.is_empty() {
            let create = !self.one_in(3);
            let (exclusive, append) = (create && self.one_in(4), self.one_in(4));
            return Call::Open { dir, name: self.name(true), create, exclusive, append, dsync: self.one_in(8) };
        }
        let file = self.below(self.files.len() as u64);
        let file = self.files[file].0;
        let key = KEYS[self.below(KEYS.len() as u64)].to_owned();
        let most = if self.one_in(6) { SIZE_MAX / 2 } else { 5000 };
        match roll {
            35..38 => Call::Link { file, dir, name: self.name(true) },
            55..57 => {
                let handle = if self.one_in(3) { dir } else { Some(file) };
                Call::Stat { handle }
            }
            57..70 => {
                let length = 1 + self.numbers.below(most);
                let offset = if self.one_in(2) { 0 } else { self.numbers.below(SIZE_MAX / 2) };
                Call::Write { file, offset, length, salt: self.numbers.below(1 << 48) }
            }
            70..73 => {
                let size = if self.one_in(3) { 0 } else { self.numbers.below(SIZE_MAX / 2) };
                Call::Truncate { file, size }
            }
            73..81 => {
                let offset = if self.one_in(2) { 0 } else { self.numbers.below(SIZE_MAX / 2) };
                Call::Read { file, offset, length: 1 + self.numbers.below(most) }
            }
            81..85 => {
                let value = format!("{}:{}", self.client, self.numbers.below(1 << 40));
                let (create, replace) = (self.one_in(4), self.one_in(4));
                Call::SetAttribute { file, key, value, create: create && !replace, replace }
            }
            85..87 => Call::GetAttribute { file, key },
            87..88 => Call::RemoveAttribute { file, key },
            88..95 => Call::Sync { handle: Some(file) },
            _ => Call::DataSync { file },
        }
    }

    /// The descriptor of a handle.
    fn at(&self, handle: Handle) -> std::io::Result<&File> {
        let files = self.files.iter().map(|(at, file)| (Some(*at), file));
        let mut all = self.dirs.iter().map(|(at, file, _)| (*at, file)).chain(files);
        all.find(|(at, _)| *at == handle)
            .map(|(_, file)| file)
            .ok_or_else(|| std::io::Error::other("a handle of nothing"))
    }

    fn perform(&self, call: &Call) -> std::io::Result<(Answer, Opened)> {
        let done = |_| (Answer::Done, None);
        let open = |dir: &Handle, name: &String, flags: OFlags| -> std::io::Result<(Answer, Opened)> {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(self.at(*dir)?, name, flags, Mode::from_raw_mode(0o644))?;
            Ok((Answer::Done, Some(file.into())))
        };
        Ok(match call {
            Call::Open { dir, name, create, exclusive, append, dsync } => {
                let mut flags = OFlags::RDWR;
                flags.set(OFlags::CREATE, *create);
                flags.set(OFlags::EXCL, *exclusive);
                flags.set(OFlags::APPEND, *append);
                flags.set(OFlags::DSYNC, *dsync);
                open(dir, name, flags)?
            }
            Call::OpenDirectory { dir, name } => open(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)?,
            Call::MakeDirectory { dir, name } => {
                rustix::fs::mkdirat(self.at(*dir)?, name, Mode::from_raw_mode(0o755)).map(done)?
            }
            Call::RemoveDirectory { dir, name } => {
                rustix::fs::unlinkat(self.at(*dir)?, name, AtFlags::REMOVEDIR).map(done)?
            }
            Call::Unlink { dir, name } => rustix::fs::unlinkat(self.at(*dir)?, name, AtFlags::empty()).map(done)?,
            Call::Symlink { dir, name, target } => rustix::fs::symlinkat(target, self.at(*dir)?, name).map(done)?,
            Call::ReadLink { dir, name } => {
                let target = rustix::fs::readlinkat(self.at(*dir)?, name, Vec::new())?;
                (Answer::Text(target.to_string_lossy().into_owned()), None)
            }
            Call::Link { file, dir, name } => {
                // Links the open file itself; its name may lead to another file by now.
                let path = format!("/proc/self/fd/{}", self.at(Some(*file))?.as_raw_fd());
                rustix::fs::linkat(CWD, path, self.at(*dir)?, name, AtFlags::SYMLINK_FOLLOW).map(done)?
            }
            Call::Rename { dir, name, to_dir, to_name, how } => {
                let flags = match how {
                    How::Replace => RenameFlags::empty(),
                    How::NoReplace => RenameFlags::NOREPLACE,
                    How::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(self.at(*dir)?, name, self.at(*to_dir)?, to_name, flags).map(done)?
            }
            Call::StatName { dir, name } => {
                (stat_of(&rustix::fs::statat(self.at(*dir)?, name, AtFlags::SYMLINK_NOFOLLOW)?), None)
            }
            Call::Stat { handle } => (stat_of(&rustix::fs::fstat(self.at(*handle)?)?), None),
            Call::List { dir } => {
                let mut names = BTreeMap::new();
                for entry in Dir::read_from(self.at(*dir)?)? {
                    let entry = entry?;
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if name != "." && name != ".." {
                        names.insert(name, kind_of(entry.file_type()));
                    }
                }
                (Answer::Names(names), None)
            }
            Call::Write { file, offset, length, salt } => {
                let count = self.at(Some(*file))?.write_at(&bytes_of(*salt, *length), *offset)?;
                (Answer::Count(count as u64), None)
            }
            Call::Truncate { file, size } => self.at(Some(*file))?.set_len(*size).map(done)?,
            Call::Read { file, offset, length } => {
                let mut bytes = vec![0; *length as usize];
                let count = self.at(Some(*file))?.read_at(&mut bytes, *offset)?;
                bytes.truncate(count);
                (Answer::Bytes(bytes), None)
            }
            Call::SetAttribute { file, key, value, create, replace } => {
                let mut flags = XattrFlags::empty();
                flags.set(XattrFlags::CREATE, *create);
                flags.set(XattrFlags::REPLACE, *replace);
                let file = self.at(Some(*file))?;
                rustix::fs::fsetxattr(file, format!("user.{key}"), value.as_bytes(), flags).map(done)?
            }
            Call::GetAttribute { file, key } => (Answer::Text(attribute(self.at(Some(*file))?, key)?), None),
            Call::RemoveAttribute { file, key } => {
                rustix::fs::fremovexattr(self.at(Some(*file))?, format!("user.{key}")).map(done)?
            }
            // Through libc, so that LD_PRELOAD can replace the functions.
            Call::Sync { handle } => self.at(*handle)?.sync_all().map(done)?,
            Call::DataSync { file } => self.at(Some(*file))?.sync_data().map(done)?,
        })
    }
}

fn attribute(file: &File, key: &str) -> std::io::Result<String> {
    let mut value = vec![0; 256];
    let length = rustix::fs::fgetxattr(file, format!("user.{key}"), &mut value[..])?;
    Ok(String::from_utf8_lossy(&value[..length]).into_owned())
}

fn stat_of(stat: &rustix::fs::Stat) -> Answer {
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
    Answer::Stat { kind, size: stat.st_size as u64, links: stat.st_nlink }
}

const fn kind_of(kind: FileType) -> Kind {
    match kind {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::File,
    }
}

/// The name of an error. Errors without a name here are never explained.
fn name_of(error: std::io::Error) -> String {
    use rustix::io::Errno;
    let Some(errno) = Errno::from_io_error(&error) else { return error.to_string() };
    let name = match errno {
        Errno::NOENT => "ENOENT",
        Errno::EXIST => "EEXIST",
        Errno::ISDIR => "EISDIR",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::LOOP => "ELOOP",
        Errno::INVAL => "EINVAL",
        Errno::NODATA => "ENODATA",
        Errno::NOTCONN => "ENOTCONN",
        Errno::CONNABORTED => "ECONNABORTED",
        Errno::IO => "EIO",
        Errno::NODEV => "ENODEV",
        Errno::INTR => "EINTR",
        Errno::STALE => "ESTALE",
        Errno::NOSPC => "ENOSPC",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::PERM => "EPERM",
        Errno::XDEV => "EXDEV",
        _ => return format!("errno {}", errno.raw_os_error()),
    };
    name.to_owned()
}

/// Reads everything below a folder.
pub(super) fn read_tree(folder: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut todo = vec![String::new()];
    while let Some(above) = todo.pop() {
        let dir = folder.join(&above);
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
            let name = entry?.file_name();
            let name = name.to_str().context("a name in UTF-8")?;
            let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
            let place = folder.join(&path);
            let read = || -> Result<Entry> {
                let stat = fs::symlink_metadata(&place)?;
                Ok(if stat.is_dir() {
                    Entry::Directory { links: stat.nlink() }
                } else if stat.is_symlink() {
                    Entry::Symlink { target: fs::read_link(&place)?.to_string_lossy().into_owned() }
                } else {
                    let mut attributes = BTreeMap::new();
                    let file = File::open(&place)?;
                    for key in KEYS {
                        match attribute(&file, key) {
                            Ok(value) => drop(attributes.insert(key.to_owned(), value)),
                            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODATA.raw_os_error()) => {}
                            Err(error) => return Err(error.into()),
                        }
                    }
                    let bytes = fs::read(&place)?;
                    ensure!(bytes.len() as u64 == stat.len(), "{} bytes, of a size of {}", bytes.len(), stat.len());
                    Entry::File(Found { inode: stat.ino(), links: stat.nlink(), bytes, attributes })
                })
            };
            let entry = read().with_context(|| format!("{} after the kill", place.display()))?;
            if matches!(entry, Entry::Directory { .. }) {
                todo.push(path.clone());
            }
            tree.insert(path, entry);
        }
    }
    Ok(tree)
}
