//! A directory of this machine as a source.
//!
//! A directory may change while it is read, and this cannot be prevented. The result is then that of GNU tar:
//!
//! | event | contents of the pool | status |
//! |---|---|---|
//! | a file is written meanwhile | the data that was read | 1 |
//! | … and is shortened | zeros in place of the removed part | 1 |
//! | … and is extended | as much as it had when it was opened | 1 |
//! | a name is removed after its directory was listed | nothing of it | 1 |
//! | a directory is removed before it is listed | an empty directory | 1 |
//! | names are added to a directory that was listed | nothing of them | 1 |
//! | another file replaces one before it is read | the new file | 0, or 1 if this repeats |
//! | … a directory before it is listed | an empty directory | 1 |
//! | a device or file of the pool being written | nothing of it | 0 |
//! | something cannot be read | no pool | 1 |
//!
//! Each event is reported in a line. In the last case tar continues; but that an image lacks a file would be discovered too late.
//!
//! The directories may belong to another user than the reader. So everything is found by its name in a directory that is held open, no link is
//! followed (except if the root's path is one), and a directory is listed only if it is the one that was examined: a link that replaced it leads
//! nowhere. Of nested directories the deepest [`OPEN_MAX`] are held open; those above are reopened as `..`, and compared. Directories are nested
//! at most [`DEPTH_MAX`] deep, with paths of at most [`PATH_MAX_BYTES`], the limits of the verbs that read a pool's files.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cenote_format::ids::ObjectId;
use cenote_zpl::bulk::{MODE_SYMLINK, NodeSpec};
use rustix::fs::{Dir, Mode, OFlags, SeekFrom, fgetxattr, flistxattr, getxattr, listxattr, openat, readlinkat, seek};
use rustix::io::Errno;

use super::entries::shown;
use super::{Builder, Content, DirectoryId, ROOT};
use crate::error::{Context as _, Result, too_large, unsupported};
use crate::walk::{DEPTH_MAX, PATH_MAX_BYTES};

/// The maximum size of an extended attribute's value: Linux's limit.
const XATTR_MAX_BYTES: usize = 64 << 10;
/// The maximum number of attempts to read a name whose file is replaced meanwhile. Chosen by eye.
const TRIES_MAX: usize = 5;
/// Nested directories held open, at most.
const OPEN_MAX: usize = 64;

/// A report while a directory is read.
pub enum Event<'a> {
    /// Bytes of a file were read.
    Bytes(u64),
    /// Something changed: its path, and the consequence.
    Changed(&'a Path, &'static str),
    /// A file or device of the pool being written was found and left out.
    Own(&'a Path),
}

/// A directory being read.
pub struct Folder<'a> {
    builder: &'a mut Builder,
    tell: &'a mut dyn FnMut(Event<'_>),
    /// Device and inode of the files that the pool is written to.
    own: Vec<(u64, u64)>,
    /// Files with several names that were already met, by device and inode.
    linked: HashMap<(u64, u64), ObjectId>,
}

impl<'a> Folder<'a> {
    /// Before reading. The files and devices at the paths `own` are left out.
    pub fn new(builder: &'a mut Builder, own: &[PathBuf], tell: &'a mut dyn FnMut(Event<'_>)) -> Self {
        let own = own.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| identity(&meta)).collect();
        Self { builder, tell, own, linked: HashMap::new() }
    }

    fn changed(&mut self, path: &Path, what: &'static str) {
        self.builder.counts.changed += 1;
        (self.tell)(Event::Changed(path, what));
    }

    /// Adds everything in it, in the order of names.
    pub async fn add(mut self, root: &Path) -> Result<()> {
        let from = || root.display().to_string();
        let handle = File::open(root).with_context(from)?;
        let meta = handle.metadata().with_context(from)?;
        let mut node = node_of(&meta);
        node.xattrs = xattrs(&handle).with_context(from)?;
        self.builder.set_root(node);
        let mut levels = vec![self.list(handle, meta, root.to_owned(), ROOT).await?];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some(Below { name, meta, id }) = level.below.pop_front() else {
                let level = levels.pop();
                if let (Some(level), Some(above)) = (level, levels.last_mut()) {
                    self.reopen(above, &level);
                }
                continue;
            };
            let path = level.path.join(&name);
            if depth > DEPTH_MAX || path.as_os_str().len() > PATH_MAX_BYTES {
                return Err(too_large(format!("'{}' is nested too deeply", shown(path.as_os_str().as_bytes()))));
            }
            // Without the handle of a directory, those in it cannot be found either.
            let handle = level.handle.as_ref().map(|handle| enter(handle, &name));
            let handle = match handle.unwrap_or_else(|| Err(ErrorKind::NotFound.into())) {
                Ok(handle) => handle,
                Err(error) if is_gone(&error) || is_other_kind(&error) => {
                    self.changed(&path, "went before it was listed: empty");
                    continue;
                }
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            };
            if identity(&handle.metadata()?) != identity(&meta) {
                self.changed(&path, "was replaced before it was listed: empty");
                continue;
            }
            let level = self.list(handle, meta, path, id).await?;
            levels.push(level);
            if let Some(far) = levels.len().checked_sub(OPEN_MAX + 1) {
                levels[far].handle = None;
            }
        }
    }

    /// Adds the entries of a directory. The contents of directories in it are added later.
    async fn list(&mut self, handle: File, meta: Metadata, path: PathBuf, id: DirectoryId) -> Result<Level> {
        let mut names = list(&handle).with_context(|| path.display().to_string())?;
        names.sort();
        let mut below = VecDeque::new();
        for name in names {
            let at = path.join(&name);
            let added = self.entry(id, &handle, &at, &name).await;
            if let Some((meta, id)) = added.with_context(|| at.display().to_string())? {
                below.push_back(Below { name, meta, id });
            }
        }
        if !handle.metadata().is_ok_and(|after| is_same(&meta, &after)) {
            self.changed(&path, "changed while it was read");
        }
        Ok(Level { handle: Some(handle), identity: identity(&meta), path, below })
    }

    /// Reopens a directory through one in it, if it was too far up to be held open.
    fn reopen(&mut self, above: &mut Level, level: &Level) {
        if above.handle.is_some() {
            return;
        }
        let handle = level.handle.as_ref().and_then(|handle| enter(handle, OsStr::new("..")).ok());
        above.handle = handle.filter(|handle| handle.metadata().is_ok_and(|meta| identity(&meta) == above.identity));
        if above.handle.is_none() && above.below.is_empty() {
            // Its own entries were all read, but the directories above are found through it.
            self.changed(&above.path.clone(), "was moved while it was read");
        }
    }

    /// Adds a name of a directory. If it is a directory itself, returns it, so that its contents are added later.
    async fn entry(
        &mut self,
        directory: DirectoryId,
        parent: &File,
        path: &Path,
        name: &OsStr,
    ) -> Result<Option<(Metadata, DirectoryId)>> {
        for _ in 0..TRIES_MAX {
            let found = match Found::look(parent, name) {
                Ok(found) => found,
                Err(error) if is_gone(&error) => break,
                Err(error) => return Err(error.into()),
            };
            if self.own.contains(&identity(&found.meta)) {
                (self.tell)(Event::Own(path));
                return Ok(None);
            }
            if let Some(object) = self.linked.get(&identity(&found.meta)) {
                self.builder.link(directory, name.as_bytes(), *object)?;
                return Ok(None);
            }
            let source = match found.open(parent, name) {
                Ok(Some(source)) => source,
                // Another file has its place.
                Ok(None) => continue,
                Err(error) if error.io().is_some_and(is_gone) => continue,
                Err(error) => return Err(error),
            };
            return self.source(directory, path, name.as_bytes(), found.meta, source).await;
        }
        let what = match Found::look(parent, name) {
            Err(_) => "went before it was read: left out",
            Ok(_) => "was replaced again and again: left out",
        };
        self.changed(path, what);
        Ok(None)
    }

    async fn source(
        &mut self,
        directory: DirectoryId,
        path: &Path,
        name: &[u8],
        meta: Metadata,
        source: Source,
    ) -> Result<Option<(Metadata, DirectoryId)>> {
        let Source { mut node, file } = source;
        if meta.is_dir() {
            let id = self.builder.directory(directory, name, node).await?;
            return Ok(Some((meta, id)));
        }
        let has_links = meta.nlink() > 1;
        let object = if let Some(file) = file {
            node.size_bytes = file.metadata()?.len();
            let size_bytes = node.size_bytes;
            let mut content = FileContent { file, is_shorter: false };
            let object = self.builder.file(directory, name, node, has_links, &mut content).await?;
            if content.is_shorter {
                self.changed(path, "became shorter while it was read: zeros in place of what went");
            } else if !is_same(&meta, &content.file.metadata()?) {
                self.changed(path, "changed while it was read");
            }
            (self.tell)(Event::Bytes(size_bytes));
            object
        } else {
            self.builder.special(directory, name, node, has_links).await?
        };
        if has_links {
            self.linked.insert(identity(&meta), object);
        }
        Ok(None)
    }
}

/// A directory whose entries were added, and the directories in it that remain to be listed.
struct Level {
    /// `None` if it is too far up, or can no longer be found.
    handle: Option<File>,
    identity: (u64, u64),
    path: PathBuf,
    below: VecDeque<Below>,
}

/// A directory to list.
struct Below {
    name: OsString,
    meta: Metadata,
    id: DirectoryId,
}

/// The file under a name, held by a descriptor without the right to read, with its metadata.
struct Found {
    handle: File,
    meta: Metadata,
}

/// A file opened for reading, with its attributes.
struct Source {
    node: NodeSpec,
    /// The open file, if it is a regular one.
    file: Option<File>,
}

impl Found {
    fn look(parent: &File, name: &OsStr) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = File::from(openat(parent, name, flags, Mode::empty())?);
        let meta = handle.metadata()?;
        Ok(Self { handle, meta })
    }

    /// Opens what was found; `None` if another file has its place.
    fn open(&self, parent: &File, name: &OsStr) -> Result<Option<Source>> {
        let meta = &self.meta;
        let mut node = node_of(meta);
        let kind = meta.file_type();
        if kind.is_symlink() {
            let target = readlinkat(&self.handle, "", Vec::new()).map_err(std::io::Error::from)?;
            node.target = Some(target.into_bytes());
            node.mode = MODE_SYMLINK | 0o777;
        } else if kind.is_file() || kind.is_dir() {
            // Opening must not wait for a pipe that took its place.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match openat(parent, name, flags, Mode::empty()).map_err(std::io::Error::from) {
                Ok(file) => File::from(file),
                Err(error) if is_other_kind(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if identity(&file.metadata()?) != identity(meta) {
                return Ok(None);
            }
            node.xattrs = xattrs(&file)?;
            return Ok(Some(Source { node, file: Some(file).filter(|_| kind.is_file()) }));
        } else if kind.is_block_device() || kind.is_char_device() {
            let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
            if major >= 1 << 12 || minor >= 1 << 20 {
                return Err(unsupported("device numbers of more than 12 and 20 bits"));
            }
            node.rdev = u64::from(major) << 20 | u64::from(minor);
        }
        if !kind.is_symlink() {
            // A device or pipe is not opened for reading: its attributes are read through the kernel's path of the descriptor.
            let path = Path::new("/proc/self/fd").join(self.handle.as_raw_fd().to_string());
            node.xattrs = xattrs_by(|names| listxattr(&path, names), |name, value| getxattr(&path, name, value))?;
        }
        Ok(Some(Source { node, file: None }))
    }
}

/// Opens a directory in a directory.
fn enter(parent: &File, name: &OsStr) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?.into())
}

fn list(directory: &File) -> std::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    Ok(names)
}

/// The identity of a file or directory, under any name.
fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// True if nothing was changed between two looks.
fn is_same(before: &Metadata, after: &Metadata) -> bool {
    let state = |meta: &Metadata| {
        (identity(meta), meta.len(), [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()])
    };
    state(before) == state(after)
}

/// True if the name no longer exists.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// True if opening failed because this is not a regular file: a symbolic link, a socket, a device without a driver.
fn is_other_kind(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::NXIO | Errno::NODEV))
}

/// A file's attributes, without extended ones.
fn node_of(meta: &Metadata) -> NodeSpec {
    let seconds = meta.mtime().cast_unsigned();
    let nanoseconds = u64::try_from(meta.mtime_nsec()).unwrap_or(0);
    NodeSpec {
        mode: meta.mode(),
        uid: u64::from(meta.uid()),
        gid: u64::from(meta.gid()),
        mtime: [seconds, nanoseconds],
        ..NodeSpec::default()
    }
}

/// All extended attributes of an open file or directory, in the order of names.
fn xattrs(file: &File) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    xattrs_by(|names| flistxattr(file, names), |name, value| fgetxattr(file, name, value))
}

fn xattrs_by(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0_u8; XATTR_MAX_BYTES];
    let len = match list(&mut names) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(std::io::Error::from(error)).context("extended attributes"),
    };
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; XATTR_MAX_BYTES];
        match get(name, &mut value) {
            Ok(len) => found.push((name.to_vec(), value[..len].to_vec())),
            // It was removed meanwhile, or this user may not see it.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(std::io::Error::from(error)).context("extended attributes"),
        }
    }
    found.sort();
    Ok(found)
}

struct FileContent {
    file: File,
    /// The file was shortened.
    is_shorter: bool,
}

impl Content for FileContent {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(at),
            Err(Errno::NXIO) => {
                // After the end, or in a hole up to it.
                self.is_shorter |= self.file.metadata()?.len() < offset;
                Ok(u64::MAX)
            }
            // The file system does not support holes.
            Err(Errno::INVAL) => Ok(offset),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }

    fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < target.len() {
            match self.file.read_at(&mut target[done..], offset + done as u64) {
                Ok(0) => {
                    self.is_shorter = true;
                    target[done..].fill(0);
                    break;
                }
                Ok(len) => done += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use cenote_taskq::{Runtime, RuntimeOptions};

    use super::*;
    use crate::testpool;

    /// Reads a folder into a pool; `meanwhile` is called with the size of each file read. Returns the reports and the counts.
    fn read_while(root: &Path, meanwhile: &dyn Fn(u64)) -> Result<(Vec<String>, crate::build::Counts)> {
        let image = tempfile::tempdir().unwrap();
        let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
        runtime.block_on(async {
            let new = testpool::make(&runtime.handle(), &image.path().join("image"), 80 << 20).await;
            let mut builder = crate::build::Builder::new(new, None);
            let mut told = Vec::new();
            let mut tell = |event: Event<'_>| match event {
                Event::Bytes(bytes) => meanwhile(bytes),
                Event::Changed(path, what) => {
                    told.push(format!("{}: {what}", path.strip_prefix(root).unwrap().display()));
                }
                Event::Own(path) => told.push(format!("{}: own", path.strip_prefix(root).unwrap().display())),
            };
            let own = [root.join("own")];
            Folder::new(&mut builder, &own, &mut tell).add(root).await?;
            let counts = builder.finish(None).await?;
            Ok((told, counts))
        })
    }

    #[test]
    fn what_goes_or_comes_while_a_directory_is_read_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::write(root.join("a"), [1; 77]).unwrap();
        for name in ["b", "c", "d", "own"] {
            fs::write(root.join(name), b"x").unwrap();
        }
        fs::create_dir_all(root.join("sub/below")).unwrap();
        let meanwhile = |bytes| {
            if bytes == 77 {
                fs::remove_file(root.join("b")).unwrap();
                fs::remove_file(root.join("c")).unwrap();
                fs::create_dir(root.join("c")).unwrap();
                fs::remove_file(root.join("d")).unwrap();
                symlink("a", root.join("d")).unwrap();
                fs::write(root.join("new"), b"unseen").unwrap();
            }
        };
        let (told, counts) = read_while(root, &meanwhile).unwrap();
        let expected =
            ["b: went before it was read: left out", "own: own", ": changed while it was read"].map(str::to_owned);
        assert_eq!(told, expected);
        assert_eq!((counts.files, counts.directories, counts.others, counts.changed), (1, 3, 1, 2));
    }

    #[test]
    fn a_directory_that_goes_before_it_is_listed_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("a/below")).unwrap();
        fs::create_dir(root.join("b")).unwrap();
        fs::write(root.join("b/file"), b"x").unwrap();
        fs::write(root.join("c"), [1; 77]).unwrap();
        let meanwhile = |_| drop(fs::remove_dir_all(root.join("b")));
        let (told, counts) = read_while(root, &meanwhile).unwrap();
        assert_eq!(told, [": changed while it was read", "b: went before it was listed: empty"]);
        assert_eq!((counts.files, counts.directories), (1, 3));
    }

    #[test]
    fn what_is_cut_off_a_file_is_zeros_and_what_is_written_to_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, [7; 10_000]).unwrap();
        let (parent, name) = (File::open(dir.path()).unwrap(), OsStr::new("file"));
        let found = Found::look(&parent, name).unwrap();
        let before = found.meta.clone();
        let Some(Source { file: Some(file), .. }) = found.open(&parent, name).unwrap() else { panic!("no file") };
        assert!(is_same(&before, &file.metadata().unwrap()));
        let mut content = FileContent { file, is_shorter: false };
        let mut found = [1; 10_000];
        content.read(0, &mut found).unwrap();
        assert!(found == [7; 10_000] && !content.is_shorter);
        File::options().write(true).open(&path).unwrap().set_len(4000).unwrap();
        assert!(!is_same(&before, &content.file.metadata().unwrap()));
        content.read(0, &mut found).unwrap();
        assert!(found[..4000] == [7; 4000] && found[4000..] == [0; 6000] && content.is_shorter);
    }

    #[test]
    fn what_takes_a_files_place_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"secret").unwrap();
        let (parent, name) = (File::open(dir.path()).unwrap(), OsStr::new("file"));
        let before = Found::look(&parent, name).unwrap();
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &path).unwrap();
        assert!(before.open(&parent, name).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(before.open(&parent, name).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(before.open(&parent, name).unwrap().is_none());
    }

    /// Goal: root reads only files that its reader was pointed to. Method: while a file next to it is read, a directory is replaced by a link to
    /// one outside, and another by a directory from outside. Would go wrong if the reader returned to directories by path.
    #[test]
    fn a_directory_that_is_swapped_before_it_is_listed_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        for name in ["b", "c"] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::create_dir_all(outside.join(name)).unwrap();
            fs::write(outside.join(name).join("secret"), b"x").unwrap();
        }
        fs::write(root.join("a"), [1; 77]).unwrap();
        fs::write(root.join("z"), [1; 78]).unwrap();
        let meanwhile = |bytes| {
            if bytes == 78 {
                fs::remove_dir(root.join("b")).unwrap();
                symlink(outside.join("b"), root.join("b")).unwrap();
                fs::rename(root.join("c"), root.join("old")).unwrap();
                fs::rename(outside.join("c"), root.join("c")).unwrap();
            }
        };
        let (told, counts) = read_while(&root, &meanwhile).unwrap();
        let expected = [
            ": changed while it was read",
            "b: went before it was listed: empty",
            "c: was replaced before it was listed: empty",
        ];
        assert_eq!(told, expected);
        assert_eq!((counts.files, counts.directories), (2, 2));
    }

    /// Goal: memory is bounded for another user's tree of any depth. Method: a tree with a path longer than any system call takes.
    #[test]
    fn a_tree_whose_paths_are_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = File::open(dir.path()).unwrap();
        let name = "a".repeat(255);
        for _ in 0..=PATH_MAX_BYTES / 256 {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = enter(&at, OsStr::new(&name)).unwrap();
        }
        let error = read_while(dir.path(), &|_| ()).unwrap_err();
        assert!(error.to_string().ends_with("…' is nested too deeply"), "{error}");
    }

    #[test]
    fn a_tree_deeper_than_what_is_held_open_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let mut at = root.clone();
        for _ in 0..OPEN_MAX * 2 {
            at.push("a");
        }
        fs::create_dir_all(&at).unwrap();
        let mut at = root.clone();
        for _ in 0..OPEN_MAX * 2 {
            fs::create_dir(at.join("b")).unwrap();
            fs::write(at.join("b/file"), b"x").unwrap();
            at.push("a");
        }
        let (told, counts) = read_while(&root, &|_| ()).unwrap();
        assert_eq!(told, Vec::<String>::new());
        assert_eq!((counts.files, counts.directories), (OPEN_MAX as u64 * 2, OPEN_MAX as u64 * 4));
    }
}
