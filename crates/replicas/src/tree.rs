//! A file system with a plain model: random changes of both, and what there is.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cenote_format::ids::ObjectId;
use cenote_taskq::Rng;
use cenote_zpl::{Allocation, AttributeChange, Cursor, File, FileKind, FileSystem, NewNode, RenameMode};
use cenote_zpl::{XattrMode, XattrSet};

use crate::bytes::Sparse;

/// Names of a directory read at once.
const NAMES_AT_ONCE: usize = 200;
/// Bytes of a file read at once.
const READ_BYTES: u64 = 1 << 20;
/// Short names that there are in a directory.
const NAMES: u64 = 24;

/// Names of a directory, each with the object that it leads to.
pub type Names = BTreeMap<Vec<u8>, u64>;

/// A node's kind and contents.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "kinds of nodes")]
pub enum Kind {
    Directory(Names),
    File(Sparse),
    Symlink(Vec<u8>),
    /// Kind, and number of a device.
    Special(FileKind, (u32, u32)),
}

/// A node as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    kind: Kind,
    permissions: u32,
    uid: u32,
    gid: u32,
    project: Option<u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A file system as it is to be: nodes by the numbers of their objects, which a replica has too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    root: u64,
    nodes: BTreeMap<u64, Node>,
}

fn any<T: Clone>(of: &[T], rng: &mut Rng) -> Option<T> {
    (!of.is_empty()).then(|| of[rng.below(of.len() as u64) as usize].clone())
}

/// A name that a directory may have: mostly one of a few, which are used again; some are too long for a micro ZAP, some are no text.
fn name(rng: &mut Rng) -> Vec<u8> {
    let number = rng.below(NAMES);
    match rng.below(8) {
        0 => format!("{number}{}", "long".repeat(13 + rng.below(50) as usize)).into_bytes(),
        1 => vec![0xff, 0x80 + number as u8, b' ', 0x01],
        _ => format!("n{number}").into_bytes(),
    }
}

/// Bytes that can be compressed, or not, or are zeros.
#[must_use]
pub fn content(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; len];
    match rng.below(6) {
        0 => {}
        1 => bytes.fill(rng.below(255) as u8 + 1),
        2 => bytes.iter_mut().step_by(97).for_each(|byte| *byte = rng.below(256) as u8),
        3 => {
            let half = len / 2;
            rng.fill(&mut bytes[..half]);
        }
        _ => rng.fill(&mut bytes),
    }
    bytes
}

/// A place and a length: mostly small, some over several blocks of any size, few far behind everything else.
#[must_use]
pub fn reach(size_bytes: u64, rng: &mut Rng) -> (u64, usize) {
    let at = match rng.below(12) {
        0 => size_bytes,
        1 => rng.next_u64() >> (24 + rng.below(20)),
        2 | 3 => 0,
        _ => rng.next_u64() >> (46 + rng.below(10)),
    };
    let len = match rng.below(10) {
        0 => 1 + rng.below(200_000),
        1..=3 => 1 + rng.below(20_000),
        4 => 512 << rng.below(8),
        _ => 1 + rng.below(600),
    };
    (at, len as usize)
}

impl Tree {
    fn directories(&self) -> Vec<u64> {
        let is_directory = |node: &Node| matches!(node.kind, Kind::Directory(_));
        self.nodes.iter().filter(|(_, node)| is_directory(node)).map(|(id, _)| *id).collect()
    }

    fn names(&self, directory: u64) -> &Names {
        match &self.nodes[&directory].kind {
            Kind::Directory(names) => names,
            other => panic!("{directory} is no directory: {other:?}"),
        }
    }

    fn names_mut(&mut self, directory: u64) -> &mut Names {
        match self.nodes.get_mut(&directory).map(|node| &mut node.kind) {
            Some(Kind::Directory(names)) => names,
            other => panic!("{directory} is no directory: {other:?}"),
        }
    }

    /// All names, with the directory of each.
    fn all_names(&self) -> Vec<(u64, Vec<u8>, u64)> {
        let of = |directory: u64| self.names(directory).iter().map(move |(name, id)| (directory, name.clone(), *id));
        self.directories().into_iter().flat_map(of).collect()
    }

    fn files(&self) -> Vec<u64> {
        let is_file = |node: &Node| matches!(node.kind, Kind::File(_));
        self.nodes.iter().filter(|(_, node)| is_file(node)).map(|(id, _)| *id).collect()
    }

    fn bytes_mut(&mut self, file: u64) -> &mut Sparse {
        match self.nodes.get_mut(&file).map(|node| &mut node.kind) {
            Some(Kind::File(bytes)) => bytes,
            other => panic!("{file} is no file: {other:?}"),
        }
    }

    fn is_directory(&self, id: u64) -> bool {
        matches!(self.nodes[&id].kind, Kind::Directory(_))
    }

    /// Whether a directory is another one, or lies in it.
    fn is_within(&self, directory: u64, above: u64) -> bool {
        directory == above
            || self.names(above).values().any(|id| self.is_directory(*id) && self.is_within(directory, *id))
    }

    /// Forgets what has no name.
    fn forget(&mut self, id: u64) {
        let is_named =
            self.directories().iter().any(|directory| self.names(*directory).values().any(|other| *other == id));
        if !is_named {
            self.nodes.remove(&id);
        }
    }

    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// In a few words, the first difference from what is there; `self` is what is to be.
    #[must_use]
    pub fn difference(&self, there: &Self) -> Option<String> {
        if self == there {
            return None;
        }
        let ids: Vec<u64> = self.nodes.keys().chain(there.nodes.keys()).copied().collect();
        for id in ids {
            let (wanted, found) = match (self.nodes.get(&id), there.nodes.get(&id)) {
                (Some(wanted), Some(found)) if wanted == found => continue,
                (Some(wanted), Some(found)) => (wanted, found),
                (Some(_), None) => return Some(format!("object {id} has no name there")),
                (None, Some(_)) => return Some(format!("object {id} should have no name")),
                (None, None) => continue,
            };
            let what = match (&wanted.kind, &found.kind) {
                (Kind::File(wanted), Kind::File(found)) if wanted != found => format!(
                    "bytes from {:?} on, of {} and {} bytes",
                    wanted.first_difference(found),
                    wanted.size_bytes(),
                    found.size_bytes()
                ),
                (Kind::Directory(wanted), Kind::Directory(found)) if wanted != found => {
                    let other = |one: &Names, two: &Names| {
                        one.iter().find(|(name, id)| two.get(*name) != Some(id)).map(|(name, id)| (name.clone(), *id))
                    };
                    format!("names: {:?} in place of {:?}", other(found, wanted), other(wanted, found))
                }
                _ if wanted.xattrs != found.xattrs => format!(
                    "attributes {:?} in place of {:?}",
                    found.xattrs.iter().map(|(name, value)| (name.len(), value.len())).collect::<Vec<_>>(),
                    wanted.xattrs.iter().map(|(name, value)| (name.len(), value.len())).collect::<Vec<_>>()
                ),
                _ => format!("{found:?} in place of {wanted:?}"),
            };
            return Some(format!("object {id}: {what}"));
        }
        Some("the root directory has another number".to_owned())
    }
}

/// A file system that is changed, and its model.
pub struct Files {
    /// The file system.
    pub fs: FileSystem,
    /// Its model.
    pub tree: Tree,
    /// A file that stays open, so that it is in the delete queue if it loses its names.
    held: Option<File>,
}

impl Files {
    /// Begins with what there is.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn new(fs: FileSystem) -> Result<Self> {
        let tree = look(&fs).await?;
        Ok(Self { fs, tree, held: None })
    }

    /// Some changes at random.
    ///
    /// # Errors
    /// One is refused.
    pub async fn change(&mut self, rng: &mut Rng) -> Result<()> {
        for _ in 0..2 + rng.below(16) {
            self.step(rng).await?;
        }
        Ok(())
    }

    async fn step(&mut self, rng: &mut Rng) -> Result<()> {
        let file = any(&self.tree.files(), rng);
        match (rng.below(26), file) {
            (0..=4, _) | (_, None) => self.create(rng).await.context("create"),
            (5..=11, Some(file)) => {
                let (at, len) = reach(self.tree.bytes_mut(file).size_bytes(), rng);
                let bytes = content(len, rng);
                self.fs.open_file(ObjectId(file)).await?.write(at, &bytes).await.context("write")?;
                self.tree.bytes_mut(file).write(at, &bytes);
                Ok(())
            }
            (12, Some(file)) => {
                let size = self.tree.bytes_mut(file).size_bytes();
                let to = if rng.chance(1, 4) { 0 } else { rng.below(size.min(1 << 40) + 5000) };
                self.fs.open_file(ObjectId(file)).await?.truncate(to).await.context("truncate")?;
                self.tree.bytes_mut(file).resize(to);
                Ok(())
            }
            (13 | 14, Some(file)) => {
                let (at, len) = reach(self.tree.bytes_mut(file).size_bytes(), rng);
                let how = if rng.chance(1, 2) { Allocation::Punch } else { Allocation::Zero { keep_size: true } };
                let range = at..at + len as u64;
                self.fs.open_file(ObjectId(file)).await?.allocate(how, range.clone()).await.context("punch")?;
                self.tree.bytes_mut(file).clear(range);
                Ok(())
            }
            (15, _) => self.rename(rng).await.context("rename"),
            (16, Some(_)) => self.link(rng).await.context("link"),
            (17 | 18, _) => self.remove(rng).await.context("remove"),
            (19 | 20, _) => self.xattr(rng).await.context("xattr"),
            (21, _) => self.attributes(rng).await.context("attributes"),
            (22 | 23, _) => {
                self.set_options(rng);
                Ok(())
            }
            (24, Some(file)) => {
                self.held = match rng.chance(1, 2) {
                    true => Some(self.fs.open_file(ObjectId(file)).await?),
                    false => None,
                };
                self.fs.reap().await.context("reap")?;
                Ok(())
            }
            (_, Some(_)) => self.crowd(rng).await.context("many names"),
        }
    }

    /// Block size, dnode size and the place of extended attributes of what is written from now on.
    fn set_options(&self, rng: &mut Rng) {
        let mut options = self.fs.options();
        options.record_bytes = 512 << rng.below(12);
        options.dnode_slots = [1, 1, 2, 4, 8, 16][rng.below(6) as usize];
        options.xattrs = if rng.chance(1, 3) { XattrMode::Dir } else { XattrMode::Sa };
        self.fs.set_options(options);
    }

    async fn create(&mut self, rng: &mut Rng) -> Result<()> {
        let directory = any(&self.tree.directories(), rng).context("a directory")?;
        let name = name(rng);
        if self.tree.names(directory).contains_key(&name) {
            return Ok(());
        }
        let (uid, gid, permissions) = (rng.below(4) as u32, rng.below(3) as u32 * 100, 0o600 | rng.below(0o200) as u32);
        let (kind, mode) = match rng.below(12) {
            0 | 1 => (Kind::Directory(Names::new()), FileKind::Directory),
            2 => {
                let most = if rng.chance(1, 3) { 4000 } else { 60 };
                let target = vec![b't'; 1 + rng.below(most) as usize];
                (Kind::Symlink(target), FileKind::Symlink)
            }
            3 => {
                let kind = [FileKind::Pipe, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice]
                    [rng.below(4) as usize];
                let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
                let device = if is_device { (rng.below(1 << 12) as u32, rng.below(1 << 20) as u32) } else { (0, 0) };
                (Kind::Special(kind, device), kind)
            }
            _ => (Kind::File(Sparse::default()), FileKind::File),
        };
        let mut new = NewNode { mode: mode.mode_bits() | permissions, uid, gid, ..NewNode::default() };
        match &kind {
            Kind::Symlink(target) => new.target = Some(target.clone()),
            Kind::Special(_, device) => new.device = *device,
            Kind::Directory(_) | Kind::File(_) => {}
        }
        let made = self.fs.create(ObjectId(directory), &name, &new).await?;
        let id = made.object.0;
        self.tree.names_mut(directory).insert(name, id);
        self.tree.nodes.insert(id, Node { kind, permissions, uid, gid, project: None, xattrs: BTreeMap::new() });
        Ok(())
    }

    /// Many names in one directory, or most of them gone again.
    async fn crowd(&mut self, rng: &mut Rng) -> Result<()> {
        let directory = any(&self.tree.directories(), rng).context("a directory")?;
        let long = if rng.chance(1, 2) { "x".repeat(60) } else { String::new() };
        let crowd: Vec<Vec<u8>> =
            (0..10 + rng.below(50)).map(|number| format!("crowd{number}{long}").into_bytes()).collect();
        if rng.chance(1, 3) {
            for name in crowd {
                if let Some(id) = self.tree.names(directory).get(&name).copied()
                    && !self.tree.is_directory(id)
                {
                    self.fs.unlink(ObjectId(directory), &name).await?;
                    self.tree.names_mut(directory).remove(&name);
                    self.tree.forget(id);
                }
            }
            return Ok(());
        }
        let links = rng.chance(1, 2);
        let file = any(&self.tree.files(), rng).context("a file")?;
        for name in crowd {
            if self.tree.names(directory).contains_key(&name) {
                continue;
            }
            let id = if links {
                self.fs.link(ObjectId(file), ObjectId(directory), &name).await?;
                file
            } else {
                let new = NewNode { mode: FileKind::File.mode_bits() | 0o644, ..NewNode::default() };
                let id = self.fs.create(ObjectId(directory), &name, &new).await?.object.0;
                let kind = Kind::File(Sparse::default());
                let node = Node { kind, permissions: 0o644, uid: 0, gid: 0, project: None, xattrs: BTreeMap::new() };
                self.tree.nodes.insert(id, node);
                id
            };
            self.tree.names_mut(directory).insert(name, id);
        }
        Ok(())
    }

    async fn rename(&mut self, rng: &mut Rng) -> Result<()> {
        let Some((from, name, id)) = any(&self.tree.all_names(), rng) else { return Ok(()) };
        let to = any(&self.tree.directories(), rng).context("a directory")?;
        let is_directory = self.tree.is_directory(id);
        if is_directory && self.tree.is_within(to, id) {
            return Ok(());
        }
        let target = self::name(rng);
        let other = self.tree.names(to).get(&target).copied();
        let mut mode = RenameMode::Replace;
        if let Some(other) = other {
            let is_other_directory = self.tree.is_directory(other);
            let may_exchange = !(is_other_directory && self.tree.is_within(from, other)) && other != id;
            if may_exchange && rng.chance(1, 2) {
                mode = RenameMode::Exchange;
            } else if other == id
                || is_directory != is_other_directory
                || is_other_directory && !self.tree.names(other).is_empty()
            {
                return Ok(());
            }
        }
        self.fs.rename(ObjectId(from), &name, ObjectId(to), &target, mode).await?;
        self.tree.names_mut(from).remove(&name);
        self.tree.names_mut(to).insert(target, id);
        match (mode, other) {
            (RenameMode::Exchange, Some(other)) => drop(self.tree.names_mut(from).insert(name, other)),
            (_, Some(other)) => self.tree.forget(other),
            (_, None) => {}
        }
        Ok(())
    }

    async fn link(&mut self, rng: &mut Rng) -> Result<()> {
        let (file, directory) = (any(&self.tree.files(), rng), any(&self.tree.directories(), rng));
        let (file, directory) = (file.context("a file")?, directory.context("a directory")?);
        let name = name(rng);
        if self.tree.names(directory).contains_key(&name) {
            return Ok(());
        }
        self.fs.link(ObjectId(file), ObjectId(directory), &name).await?;
        self.tree.names_mut(directory).insert(name, file);
        Ok(())
    }

    async fn remove(&mut self, rng: &mut Rng) -> Result<()> {
        let Some((directory, name, id)) = any(&self.tree.all_names(), rng) else { return Ok(()) };
        match self.tree.is_directory(id) {
            true if !self.tree.names(id).is_empty() => return Ok(()),
            true => self.fs.rmdir(ObjectId(directory), &name).await?,
            false => self.fs.unlink(ObjectId(directory), &name).await?,
        }
        self.tree.names_mut(directory).remove(&name);
        self.tree.forget(id);
        Ok(())
    }

    /// Attributes of files, directories and the root: in the bonus, in a spill block, or in hidden directories.
    async fn xattr(&mut self, rng: &mut Rng) -> Result<()> {
        let holds = |node: &Node| matches!(node.kind, Kind::Directory(_) | Kind::File(_));
        let ids: Vec<u64> = self.tree.nodes.iter().filter(|(_, node)| holds(node)).map(|(id, _)| *id).collect();
        let id = any(&ids, rng).context("the root at least")?;
        let node = self.tree.nodes.get_mut(&id).context("it was just found")?;
        let key = format!("user.k{}", rng.below(6)).into_bytes();
        if node.xattrs.contains_key(&key) && rng.chance(1, 2) {
            self.fs.remove_xattr(ObjectId(id), &key).await?;
            node.xattrs.remove(&key);
            return Ok(());
        }
        let len = match rng.below(6) {
            0 => rng.below(30_000),
            1 | 2 => rng.below(1500),
            _ => 1 + rng.below(90),
        };
        let value = content(len as usize, rng);
        self.fs.set_xattr(ObjectId(id), &key, &value, XattrSet::Any).await?;
        node.xattrs.insert(key, value);
        Ok(())
    }

    async fn attributes(&mut self, rng: &mut Rng) -> Result<()> {
        let ids: Vec<u64> = self.tree.nodes.keys().copied().collect();
        let id = any(&ids, rng).context("the root at least")?;
        let node = self.tree.nodes.get_mut(&id).context("it was just found")?;
        let mut change = AttributeChange::default();
        match rng.below(4) {
            0 => {
                node.permissions = rng.below(0o1000) as u32;
                change.permissions = Some(node.permissions);
            }
            // Its attributes get another layout.
            1 if matches!(node.kind, Kind::File(_)) => {
                node.project = Some(1 + rng.below(3));
                change.project = node.project;
            }
            _ => {
                (node.uid, node.gid) = (rng.below(70_000) as u32, rng.below(5) as u32);
                (change.uid, change.gid) = (Some(node.uid), Some(node.gid));
            }
        }
        self.fs.set_attributes(ObjectId(id), &change).await?;
        Ok(())
    }
}

/// Reads all of a file system.
///
/// # Errors
/// It cannot be read, or contradicts itself.
pub async fn look(fs: &FileSystem) -> Result<Tree> {
    let mut tree = Tree { root: fs.root().0, nodes: BTreeMap::new() };
    let mut pending = vec![fs.root()];
    let (mut links, mut counted) = (BTreeMap::new(), BTreeMap::new());
    while let Some(id) = pending.pop() {
        let attributes = fs.attributes(id).await.with_context(|| format!("object {id}"))?;
        let kind = match attributes.kind {
            FileKind::Directory => {
                let mut names = Names::new();
                let mut cursor = Cursor::default();
                loop {
                    let entries = fs.list(id, cursor, NAMES_AT_ONCE).await?;
                    let Some(last) = entries.last() else { break };
                    cursor = last.next;
                    for entry in entries {
                        *links.entry(entry.object.0).or_insert(0) += 1;
                        if links[&entry.object.0] == 1 {
                            pending.push(entry.object);
                        }
                        ensure!(names.insert(entry.name, entry.object.0).is_none(), "directory {id} has a name twice");
                    }
                }
                let size = attributes.size_bytes;
                ensure!(size == names.len() as u64 + 2, "directory {id} has {} names and counts {size}", names.len());
                Kind::Directory(names)
            }
            FileKind::File => Kind::File(bytes(fs, id).await.with_context(|| format!("object {id}"))?),
            FileKind::Symlink => Kind::Symlink(fs.read_link(id).await?),
            other => Kind::Special(other, attributes.device),
        };
        if !matches!(kind, Kind::Directory(_)) {
            counted.insert(id.0, attributes.link_count);
        }
        let (permissions, uid, gid) = (attributes.permissions, attributes.uid, attributes.gid);
        let project = attributes.project.filter(|project| *project != 0);
        let xattrs = fs.xattrs(id).await?;
        tree.nodes.insert(id.0, Node { kind, permissions, uid, gid, project, xattrs });
    }
    for (id, count) in counted {
        ensure!(links.get(&id) == Some(&count), "object {id} has {:?} names and counts {count}", links.get(&id));
    }
    Ok(tree)
}

async fn bytes(fs: &FileSystem, id: ObjectId) -> Result<Sparse> {
    let file = fs.open_file(id).await?;
    let size = file.size_bytes();
    let mut bytes = Sparse::zeros(size);
    let mut at = 0;
    while let Some(data) = file.next_data(at).await?.filter(|data| *data < size) {
        let end = file.next_hole(data).await?.unwrap_or(size).min(size);
        ensure!(end > data, "data that is none at {data}");
        at = data;
        while at < end {
            let read = file.read(at, (end - at).min(READ_BYTES) as usize).await?;
            bytes.write(at, &read);
            at += read.len() as u64;
        }
    }
    Ok(bytes)
}
