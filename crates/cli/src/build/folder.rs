//! A directory of this machine as a source.
//!
//! A directory may change while it is read, and nothing can keep it from that. What is done then is what GNU tar does:
//!
//! | what happens | what the pool has | status |
//! |---|---|---|
//! | a file is written to meanwhile | what was read | 1 |
//! | … and becomes shorter | zeros in place of what went | 1 |
//! | … and becomes longer | as much as there was when it was opened | 1 |
//! | a name goes after its directory was listed | nothing of it | 1 |
//! | a directory goes before it is listed | an empty directory | 1 |
//! | names come to a directory that was listed | nothing of them | 1 |
//! | something takes the place of what was to be read | what is there now | 0, and 1 where that goes on |
//! | a device or file of the pool that is written | nothing of it | 0 |
//! | something cannot be read | no pool | 1 |
//!
//! Each is told in a line. The last is where tar goes on: an image that lacks a file because of a permission would be found out
//! too late.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cenote_format::ids::ObjectId;
use cenote_zpl::write::{MODE_DIR, MODE_SYMLINK, NodeSpec};
use rustix::fs::{OFlags, SeekFrom, lgetxattr, llistxattr, seek};
use rustix::io::Errno;

use super::{Builder, Content, DirectoryId, ROOT};

/// An extended attribute's value at most: what Linux allows.
const XATTR_MAX_BYTES: usize = 64 << 10;
/// How often something is looked at again in whose place something else was put. Chosen by eye.
const TRIES_MAX: usize = 5;

/// What is told while a directory is read.
pub(crate) enum Event<'a> {
    /// Bytes of a file were read.
    Bytes(u64),
    /// Something was not as it had been: what, and what has become of it.
    Changed(&'a Path, &'static str),
    /// Something of the pool that is written was found and left out.
    Own(&'a Path),
}

/// A directory that is read.
pub(crate) struct Folder<'a> {
    builder: &'a mut Builder,
    tell: &'a mut dyn FnMut(Event<'_>),
    /// Device and inode of what the pool is written to.
    own: Vec<(u64, u64)>,
    /// Files with several names that were met already, by device and inode.
    linked: HashMap<(u64, u64), ObjectId>,
}

impl<'a> Folder<'a> {
    /// Nothing read yet. What is at the paths `own` is left out.
    pub(crate) fn new(builder: &'a mut Builder, own: &[PathBuf], tell: &'a mut dyn FnMut(Event<'_>)) -> Self {
        let own = own.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| identity(&meta)).collect();
        Self { builder, tell, own, linked: HashMap::new() }
    }

    fn changed(&mut self, path: &Path, what: &'static str) {
        self.builder.counts.changed += 1;
        (self.tell)(Event::Changed(path, what));
    }

    /// Adds everything in it, in the order of names.
    pub(crate) async fn add(mut self, root: &Path) -> Result<()> {
        let shown = || root.display().to_string();
        let meta = fs::metadata(root).with_context(shown)?;
        self.builder.set_root(node_of(root, &meta).with_context(shown)?);
        let mut waiting: Vec<(PathBuf, Metadata, DirectoryId)> = vec![(root.to_owned(), meta, ROOT)];
        while let Some((path, meta, directory)) = waiting.pop() {
            let mut names = match list(&path) {
                Ok(names) => names,
                Err(error) if is_gone(&error) && path != root => {
                    self.changed(&path, "went before it was listed: empty");
                    continue;
                }
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            };
            names.sort();
            let mut below = Vec::new();
            for name in names {
                let at = path.join(&name);
                let added = self.entry(directory, &at, name.as_bytes()).await;
                if let Some((meta, id)) = added.with_context(|| at.display().to_string())? {
                    below.push((at, meta, id));
                }
            }
            let after = if path == root { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
            if !after.is_ok_and(|after| is_same(&meta, &after)) {
                self.changed(&path, "changed while it was read");
            }
            // The first is taken next.
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Adds a name of a directory; if it is a directory itself, what is in it is still to be added.
    async fn entry(
        &mut self,
        directory: DirectoryId,
        path: &Path,
        name: &[u8],
    ) -> Result<Option<(Metadata, DirectoryId)>> {
        for _ in 0..TRIES_MAX {
            let meta = match fs::symlink_metadata(path) {
                Ok(meta) => meta,
                Err(error) if is_gone(&error) => break,
                Err(error) => return Err(error.into()),
            };
            if self.own.contains(&identity(&meta)) {
                (self.tell)(Event::Own(path));
                return Ok(None);
            }
            if let Some(object) = self.linked.get(&identity(&meta)) {
                self.builder.link(directory, name, *object)?;
                return Ok(None);
            }
            let source = match Source::open(path, &meta) {
                Ok(Some(source)) => source,
                // Something else is there now.
                Ok(None) => continue,
                Err(error) => match error.downcast_ref::<std::io::Error>() {
                    Some(cause) if is_gone(cause) => continue,
                    _ => return Err(error),
                },
            };
            return self.source(directory, path, name, meta, source).await;
        }
        let what = match fs::symlink_metadata(path) {
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

/// What is to be read of one name.
struct Source {
    node: NodeSpec,
    /// Of a regular file.
    file: Option<File>,
}

impl Source {
    /// Opens what `meta` was read of; nothing where something else is there by now.
    fn open(path: &Path, meta: &Metadata) -> Result<Option<Self>> {
        let mut node = node_of(path, meta)?;
        let kind = meta.file_type();
        if kind.is_symlink() {
            let target = match fs::read_link(path) {
                Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(None),
                target => target?,
            };
            node.target = Some(target.into_os_string().into_vec());
            node.mode = MODE_SYMLINK | 0o777;
        } else if kind.is_file() {
            // A pipe that took its place would be waited for.
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
            let file = match File::options().read(true).custom_flags(flags).open(path) {
                Ok(file) => file,
                Err(error) if is_other_kind(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let is_it = identity(&file.metadata()?) == identity(meta);
            return Ok(is_it.then_some(Self { node, file: Some(file) }));
        } else if kind.is_block_device() || kind.is_char_device() {
            let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
            if major >= 1 << 12 || minor >= 1 << 20 {
                bail!("not supported yet: device numbers of more than 12 and 20 bits");
            }
            node.rdev = u64::from(major) << 20 | u64::from(minor);
        }
        Ok(Some(Self { node, file: None }))
    }
}

fn list(path: &Path) -> std::io::Result<Vec<OsString>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// A file or directory, whatever it is called.
fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Whether nothing was changed between two looks at something.
fn is_same(before: &Metadata, after: &Metadata) -> bool {
    let state = |meta: &Metadata| {
        (identity(meta), meta.len(), [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()])
    };
    state(before) == state(after)
}

/// Whether there is no such name any more.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether an open says that this is no regular file: a symbolic link, a socket, a device without a driver.
fn is_other_kind(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::NXIO | Errno::NODEV))
}

/// What a file has beside content.
fn node_of(path: &Path, meta: &fs::Metadata) -> Result<NodeSpec> {
    let seconds = meta.mtime().cast_unsigned();
    let nanoseconds = u64::try_from(meta.mtime_nsec()).unwrap_or(0);
    let mut node = NodeSpec {
        mode: meta.mode(),
        uid: u64::from(meta.uid()),
        gid: u64::from(meta.gid()),
        mtime: [seconds, nanoseconds],
        ..NodeSpec::default()
    };
    if meta.mode() & 0o170_000 == MODE_DIR || !meta.file_type().is_symlink() {
        node.xattrs = xattrs(path)?;
    }
    Ok(node)
}

/// All extended attributes, in the order of names.
fn xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0_u8; XATTR_MAX_BYTES];
    let len = match llistxattr(path, names.as_mut_slice()) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(std::io::Error::from(error)).context("extended attributes"),
    };
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; XATTR_MAX_BYTES];
        match lgetxattr(path, name, value.as_mut_slice()) {
            Ok(len) => found.push((name.to_vec(), value[..len].to_vec())),
            // It went meanwhile, or is not for us to see.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(std::io::Error::from(error)).context("extended attributes"),
        }
    }
    found.sort();
    Ok(found)
}

struct FileContent {
    file: File,
    /// It has become shorter than it was.
    is_shorter: bool,
}

impl Content for FileContent {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(at),
            Err(Errno::NXIO) => {
                // Behind the end, or a hole up to it.
                self.is_shorter |= self.file.metadata()?.len() < offset;
                Ok(u64::MAX)
            }
            // A file system that does not know holes.
            Err(Errno::INVAL) => Ok(offset),
            Err(error) => Err(error.into()),
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
    use crate::args::{Globals, Search};
    use crate::context::Context;
    use crate::newpool::{NewPool, Wish};
    use crate::output::Output;
    use crate::vdevspec::parse_layout;

    /// Reads a folder into a pool; `meanwhile` is called with the size of each file that was read. What was told.
    fn read_while(root: &Path, meanwhile: &dyn Fn(u64)) -> Result<(Vec<String>, crate::build::Counts)> {
        let image = tempfile::tempdir().unwrap();
        let layout = parse_layout(&[image.path().join("image").to_str().unwrap().to_owned()]).unwrap();
        let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
        let output = Output::to(std::io::sink(), std::io::sink());
        let context = Context::new(runtime.handle(), Globals::default(), Search::default(), output);
        runtime.block_on(async {
            let wish = Wish {
                name: "built",
                layout: &layout,
                pool: &[],
                dataset: &[],
                size: Some(80 << 20),
                seed: Some(1),
                force: false,
                command: String::new(),
            };
            let (new, _made) = NewPool::make(&context, &wish).await?;
            let mut builder = crate::build::Builder::new(context.handle().clone(), new);
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
        let before = fs::symlink_metadata(&path).unwrap();
        let Some(Source { file: Some(file), .. }) = Source::open(&path, &before).unwrap() else { panic!("no file") };
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
        let before = fs::symlink_metadata(&path).unwrap();
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &path).unwrap();
        assert!(Source::open(&path, &before).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(Source::open(&path, &before).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(Source::open(&path, &before).unwrap().is_none());
    }
}
