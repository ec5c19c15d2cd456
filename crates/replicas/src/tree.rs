//! A file system with a plain model: random changes of both.

use anyhow::{Context, Result, anyhow};
use cenote_format::ids::ObjectId;
use cenote_sim::tree::{Kind, Names, Node, Sparse, Tree, look};
use cenote_taskq::Rng;
use cenote_zpl::{Allocation, AttributeChange, Errno, File, FileKind, FileSystem, NewNode, RenameMode};
use cenote_zpl::{XattrMode, XattrSet};

/// Short names that there are in a directory.
const NAMES: u64 = 24;

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

/// The model takes what the file system took.
fn agreed(by_model: std::result::Result<(), Errno>) -> Result<()> {
    by_model.map_err(|errno| anyhow!("the model refuses it: {errno:?}"))
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
                let (at, len) = reach(self.tree.bytes(file).size_bytes(), rng);
                let bytes = content(len, rng);
                self.fs.open_file(file).await?.write(at, &bytes).await.context("write")?;
                self.tree.bytes(file).write(at, &bytes);
                Ok(())
            }
            (12, Some(file)) => {
                let size = self.tree.bytes(file).size_bytes();
                let to = if rng.chance(1, 4) { 0 } else { rng.below(size.min(1 << 40) + 5000) };
                self.fs.open_file(file).await?.truncate(to).await.context("truncate")?;
                self.tree.bytes(file).resize(to);
                Ok(())
            }
            (13 | 14, Some(file)) => {
                let (at, len) = reach(self.tree.bytes(file).size_bytes(), rng);
                let how = if rng.chance(1, 2) { Allocation::Punch } else { Allocation::Zero { keep_size: true } };
                let range = at..at + len as u64;
                self.fs.open_file(file).await?.allocate(how, range.clone()).await.context("punch")?;
                self.tree.bytes(file).clear(range);
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
                    true => Some(self.fs.open_file(file).await?),
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
        let made = self.fs.create(directory, &name, &new).await?;
        self.tree.create(directory, &name, made.object, Node::new(kind, permissions, uid, gid, made.created));
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
                    self.fs.unlink(directory, &name).await?;
                    agreed(self.tree.remove(directory, &name, false))?;
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
            if links {
                self.fs.link(file, directory, &name).await?;
                agreed(self.tree.link(file, directory, &name))?;
            } else {
                let new = NewNode { mode: FileKind::File.mode_bits() | 0o644, ..NewNode::default() };
                let made = self.fs.create(directory, &name, &new).await?;
                let node = Node::new(Kind::File(Sparse::default()), 0o644, 0, 0, made.created);
                self.tree.create(directory, &name, made.object, node);
            }
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
        self.fs.rename(from, &name, to, &target, mode).await?;
        agreed(self.tree.rename(from, &name, to, &target, mode))?;
        Ok(())
    }

    async fn link(&mut self, rng: &mut Rng) -> Result<()> {
        let (file, directory) = (any(&self.tree.files(), rng), any(&self.tree.directories(), rng));
        let (file, directory) = (file.context("a file")?, directory.context("a directory")?);
        let name = name(rng);
        if self.tree.names(directory).contains_key(&name) {
            return Ok(());
        }
        self.fs.link(file, directory, &name).await?;
        agreed(self.tree.link(file, directory, &name))?;
        Ok(())
    }

    async fn remove(&mut self, rng: &mut Rng) -> Result<()> {
        let Some((directory, name, id)) = any(&self.tree.all_names(), rng) else { return Ok(()) };
        let is_directory = self.tree.is_directory(id);
        match is_directory {
            true if !self.tree.names(id).is_empty() => return Ok(()),
            true => self.fs.rmdir(directory, &name).await?,
            false => self.fs.unlink(directory, &name).await?,
        }
        agreed(self.tree.remove(directory, &name, is_directory))?;
        Ok(())
    }

    /// Attributes of files, directories and the root: in the bonus, in a spill block, or in hidden directories.
    async fn xattr(&mut self, rng: &mut Rng) -> Result<()> {
        let holds = |node: &Node| matches!(node.kind, Kind::Directory(_) | Kind::File(_));
        let ids: Vec<ObjectId> = self.tree.nodes.iter().filter(|(_, node)| holds(node)).map(|(id, _)| *id).collect();
        let id = any(&ids, rng).context("the root at least")?;
        let node = self.tree.nodes.get_mut(&id).context("it was just found")?;
        let key = format!("user.k{}", rng.below(6)).into_bytes();
        if node.xattrs.contains_key(&key) && rng.chance(1, 2) {
            self.fs.remove_xattr(id, &key).await?;
            node.xattrs.remove(&key);
            return Ok(());
        }
        let len = match rng.below(6) {
            0 => rng.below(30_000),
            1 | 2 => rng.below(1500),
            _ => 1 + rng.below(90),
        };
        let value = content(len as usize, rng);
        self.fs.set_xattr(id, &key, &value, XattrSet::Any).await?;
        node.xattrs.insert(key, value);
        Ok(())
    }

    async fn attributes(&mut self, rng: &mut Rng) -> Result<()> {
        let ids: Vec<ObjectId> = self.tree.nodes.keys().copied().collect();
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
        self.fs.set_attributes(id, &change).await?;
        Ok(())
    }
}
