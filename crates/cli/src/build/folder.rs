//! A directory of this machine as a source.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
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

/// Adds everything in a folder, in the order of names. `progress` is told of bytes.
pub(crate) async fn add_folder(builder: &mut Builder, root: &Path, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let meta = fs::metadata(root).with_context(|| root.display().to_string())?;
    builder.set_root(node_of(root, &meta)?);
    // Files with several names that were met already, by device and inode.
    let mut linked: HashMap<(u64, u64), ObjectId> = HashMap::new();
    let mut waiting: Vec<(PathBuf, DirectoryId)> = vec![(root.to_owned(), ROOT)];
    while let Some((path, directory)) = waiting.pop() {
        let mut names: Vec<OsString> = fs::read_dir(&path)
            .with_context(|| path.display().to_string())?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<std::io::Result<_>>()
            .with_context(|| path.display().to_string())?;
        names.sort();
        let mut below = Vec::new();
        for name in names {
            let at = path.join(&name);
            let done = add_entry(builder, directory, &at, name.as_bytes(), &mut linked).await;
            match done.with_context(|| at.display().to_string())? {
                Added::Directory(id) => below.push((at, id)),
                Added::Bytes(bytes) => progress(bytes),
            }
        }
        // The first is taken next.
        waiting.extend(below.into_iter().rev());
    }
    Ok(())
}

enum Added {
    Directory(DirectoryId),
    Bytes(u64),
}

async fn add_entry(
    builder: &mut Builder,
    directory: DirectoryId,
    path: &Path,
    name: &[u8],
    linked: &mut HashMap<(u64, u64), ObjectId>,
) -> Result<Added> {
    let meta = fs::symlink_metadata(path)?;
    let mut node = node_of(path, &meta)?;
    let kind = meta.file_type();
    if kind.is_dir() {
        return Ok(Added::Directory(builder.directory(directory, name, node).await?));
    }
    let identity = (meta.dev(), meta.ino());
    if let Some(object) = linked.get(&identity) {
        builder.link(directory, name, *object)?;
        return Ok(Added::Bytes(0));
    }
    if kind.is_symlink() {
        node.target = Some(fs::read_link(path)?.into_os_string().into_vec());
        node.mode = MODE_SYMLINK | 0o777;
    } else if kind.is_file() {
        let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options().read(true).custom_flags(no_follow).open(path)?;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != identity {
            bail!("was replaced while it was read");
        }
        node.size_bytes = opened.len();
        let mut content = FileContent { file, size_bytes: opened.len() };
        let has_links = meta.nlink() > 1;
        let object = builder.file(directory, name, node, has_links, &mut content).await?;
        if has_links {
            linked.insert(identity, object);
        }
        return Ok(Added::Bytes(opened.len()));
    } else if kind.is_block_device() || kind.is_char_device() {
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        if major >= 1 << 12 || minor >= 1 << 20 {
            bail!("not supported yet: device numbers of more than 12 and 20 bits");
        }
        node.rdev = u64::from(major) << 20 | u64::from(minor);
    }
    let has_links = meta.nlink() > 1;
    let object = builder.special(directory, name, node, has_links).await?;
    if has_links {
        linked.insert(identity, object);
    }
    Ok(Added::Bytes(0))
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
        Err(error) => return Err(error).context("extended attributes"),
    };
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; XATTR_MAX_BYTES];
        match lgetxattr(path, name, value.as_mut_slice()) {
            Ok(len) => found.push((name.to_vec(), value[..len].to_vec())),
            // It went meanwhile, or is not for us to see.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error).context("extended attributes"),
        }
    }
    found.sort();
    Ok(found)
}

struct FileContent {
    file: File,
    size_bytes: u64,
}

impl Content for FileContent {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(at),
            Err(Errno::NXIO) => Ok(u64::MAX),
            // A file system that does not know holes.
            Err(Errno::INVAL) => Ok(offset),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        match self.file.read_exact_at(target, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                bail!("became shorter than {} bytes while it was read", self.size_bytes)
            }
            Err(error) => Err(error.into()),
        }
    }
}
