//! A file system as simple as can be: nodes in a map, operations as POSIX has them.
//!
//! **Need.** A test that changes a file system has to know what it holds then, and what it refused. Tests of files compare each answer with this model,
//! the replica test compares what was sent with what was received, and tests of intent logs what a client saw before a power cut and after it.
//!
//! **Life of a tree.** [`look()`] reads one from a file system, or [`Tree::new`] begins one; each operation of the file system is done to the tree too,
//! which takes it or has the same [`Errno`]; in the end [`look()`] reads what there is, and [`Tree::difference`] says in what it differs.
//!
//! **Invariants.**
//! 1. A node is there while it has a link or is open.
//! 2. `links` of a file is the number of its names; of a directory, two and one for each directory in it, or none once it was removed.
//!
//! **Apart from this stay**, for they are other ideas: the files of the power cuts (`crates/crash`, `model`), a state that is cloned and changed anew for
//! each moment that a crash may have left, so it has few names and contents that follow from a seed; and the histories of the kills
//! (`crates/kills`, `history`), which a search puts into an order that a kernel's answers allow. The code that changes a tree stays with the
//! tests, which differ in the operations that are worth doing.

mod bytes;
mod look;

use std::collections::BTreeMap;

use cenote_format::ids::ObjectId;
use cenote_zpl::{Errno, FileKind, RenameMode, Time};

pub use bytes::Sparse;
pub use look::look;

/// Names of a directory, each with the object that it leads to.
pub type Names = BTreeMap<Vec<u8>, ObjectId>;

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

/// A node as a client sees it, but for the times that change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "attributes of nodes")]
pub struct Node {
    pub kind: Kind,
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    pub project: Option<u64>,
    pub created: Time,
    pub links: u64,
    /// The number of clients that have it open.
    pub opens: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A file system as it is to be: nodes by the numbers of their objects, which a replica has too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: ObjectId,
    /// All nodes.
    pub nodes: BTreeMap<ObjectId, Node>,
}

impl Node {
    /// A node without attributes, with one name.
    #[must_use]
    pub fn new(kind: Kind, permissions: u32, uid: u32, gid: u32, created: Time) -> Self {
        let links = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        Self { kind, permissions, uid, gid, project: None, created, links, opens: 0, xattrs: BTreeMap::new() }
    }

    /// The kind that its attributes tell.
    #[must_use]
    pub const fn file_kind(&self) -> FileKind {
        match self.kind {
            Kind::Directory(_) => FileKind::Directory,
            Kind::File(_) => FileKind::File,
            Kind::Symlink(_) => FileKind::Symlink,
            Kind::Special(kind, _) => kind,
        }
    }

    /// The size that its attributes tell.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Directory(names) => names.len() as u64 + 2,
            Kind::File(bytes) => bytes.size_bytes(),
            Kind::Symlink(target) => target.len() as u64,
            Kind::Special(..) => 0,
        }
    }
}

impl Tree {
    /// A file system with nothing but its root.
    #[must_use]
    pub fn new(root: ObjectId, node: Node) -> Self {
        Self { root, nodes: BTreeMap::from([(root, node)]) }
    }

    /// The node of this number.
    ///
    /// # Panics
    /// There is none.
    pub fn node(&mut self, id: ObjectId) -> &mut Node {
        self.nodes.get_mut(&id).unwrap_or_else(|| panic!("the model has no object {id}"))
    }

    /// The directories.
    #[must_use]
    pub fn directories(&self) -> Vec<ObjectId> {
        self.nodes.keys().copied().filter(|id| self.is_directory(*id)).collect()
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> Vec<ObjectId> {
        let is_file = |node: &Node| matches!(node.kind, Kind::File(_));
        self.nodes.iter().filter(|(_, node)| is_file(node)).map(|(id, _)| *id).collect()
    }

    /// True if it is a directory.
    #[must_use]
    pub fn is_directory(&self, id: ObjectId) -> bool {
        matches!(self.nodes[&id].kind, Kind::Directory(_))
    }

    /// The names of a directory.
    ///
    /// # Panics
    /// It is none.
    #[must_use]
    pub fn names(&self, directory: ObjectId) -> &Names {
        match &self.nodes[&directory].kind {
            Kind::Directory(names) => names,
            other => panic!("{directory} is no directory: {other:?}"),
        }
    }

    fn names_mut(&mut self, directory: ObjectId) -> &mut Names {
        match &mut self.node(directory).kind {
            Kind::Directory(names) => names,
            other => panic!("{directory} is no directory: {other:?}"),
        }
    }

    /// All names, with the directory of each.
    #[must_use]
    pub fn all_names(&self) -> Vec<(ObjectId, Vec<u8>, ObjectId)> {
        let of =
            |directory: ObjectId| self.names(directory).iter().map(move |(name, id)| (directory, name.clone(), *id));
        self.directories().into_iter().flat_map(of).collect()
    }

    /// All paths, in their order. That of the root is empty.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<String, ObjectId> {
        let (mut paths, mut left) = (BTreeMap::new(), vec![(String::new(), self.root)]);
        while let Some((path, id)) = left.pop() {
            if self.is_directory(id) {
                let below =
                    |(name, id): (&Vec<u8>, &ObjectId)| (format!("{path}/{}", String::from_utf8_lossy(name)), *id);
                left.extend(self.names(id).iter().map(below));
            }
            paths.insert(path, id);
        }
        paths
    }

    /// The bytes of a file.
    ///
    /// # Panics
    /// It is none.
    pub fn bytes(&mut self, file: ObjectId) -> &mut Sparse {
        match &mut self.node(file).kind {
            Kind::File(bytes) => bytes,
            other => panic!("{file} is no file: {other:?}"),
        }
    }

    /// True if a directory is another one, or is in it.
    #[must_use]
    pub fn is_within(&self, directory: ObjectId, above: ObjectId) -> bool {
        directory == above
            || self.names(above).values().any(|id| self.is_directory(*id) && self.is_within(directory, *id))
    }

    /// Asks if a name can be made.
    ///
    /// # Errors
    /// It cannot.
    pub fn may_create(&self, parent: ObjectId, name: &[u8]) -> Result<(), Errno> {
        if self.names(parent).contains_key(name) { Err(Errno::Exists) } else { Ok(()) }
    }

    /// Makes a node, which can be made.
    ///
    /// # Panics
    /// There is one of this number.
    pub fn create(&mut self, parent: ObjectId, name: &[u8], id: ObjectId, mut node: Node) {
        let is_directory = matches!(node.kind, Kind::Directory(_));
        let above = self.node(parent);
        if above.permissions & 0o2000 != 0 {
            node.gid = above.gid;
            if is_directory {
                node.permissions |= 0o2000;
            }
        }
        above.links += u64::from(is_directory);
        self.names_mut(parent).insert(name.to_vec(), id);
        assert!(self.nodes.insert(id, node).is_none(), "object {id} was made twice");
    }

    /// Gives a node one more name.
    ///
    /// # Errors
    /// As `link`.
    pub fn link(&mut self, id: ObjectId, parent: ObjectId, name: &[u8]) -> Result<(), Errno> {
        if self.is_directory(id) {
            return Err(Errno::NotPermitted);
        }
        if self.nodes[&id].links == 0 {
            return Err(Errno::NoEntry);
        }
        self.may_create(parent, name)?;
        self.names_mut(parent).insert(name.to_vec(), id);
        self.node(id).links += 1;
        Ok(())
    }

    /// A client has a node open.
    pub fn opened(&mut self, id: ObjectId) {
        self.node(id).opens += 1;
    }

    /// A client has closed a node.
    pub fn closed(&mut self, id: ObjectId) {
        self.node(id).opens -= 1;
        self.forget(id);
    }

    fn forget(&mut self, id: ObjectId) {
        if self.nodes[&id].links == 0 && self.nodes[&id].opens == 0 {
            self.nodes.remove(&id);
        }
    }

    fn drop_name(&mut self, id: ObjectId) {
        let is_directory = self.is_directory(id);
        let node = self.node(id);
        node.links = if is_directory { 0 } else { node.links - 1 };
        self.forget(id);
    }

    /// Removes a directory, or another node.
    ///
    /// # Errors
    /// As `rmdir` and `unlink`.
    pub fn remove(&mut self, parent: ObjectId, name: &[u8], directory: bool) -> Result<(), Errno> {
        let id = *self.names(parent).get(name).ok_or(Errno::NoEntry)?;
        match (directory, self.is_directory(id)) {
            (true, false) => return Err(Errno::NotDirectory),
            (false, true) => return Err(Errno::IsDirectory),
            (true, true) if !self.names(id).is_empty() => return Err(Errno::NotEmpty),
            _ => {}
        }
        self.names_mut(parent).remove(name);
        self.node(parent).links -= u64::from(directory);
        self.drop_name(id);
        Ok(())
    }

    /// Renames or exchanges.
    ///
    /// # Errors
    /// As `renameat2`.
    pub fn rename(
        &mut self,
        from: ObjectId,
        from_name: &[u8],
        to: ObjectId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let id = *self.names(from).get(from_name).ok_or(Errno::NoEntry)?;
        let over = self.names(to).get(to_name).copied();
        match (mode, over) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            (_, Some(over)) if over == id => return Ok(()),
            _ => {}
        }
        let is_directory = self.is_directory(id);
        if is_directory && self.is_within(to, id) {
            return Err(Errno::Invalid);
        }
        if let (RenameMode::Exchange, Some(over)) = (mode, over) {
            let over_is_directory = self.is_directory(over);
            if over_is_directory && self.is_within(from, over) {
                return Err(Errno::Invalid);
            }
            self.names_mut(from).insert(from_name.to_vec(), over);
            self.names_mut(to).insert(to_name.to_vec(), id);
            let (one, other) = (u64::from(is_directory), u64::from(over_is_directory));
            self.node(from).links = self.node(from).links + other - one;
            self.node(to).links = self.node(to).links + one - other;
            return Ok(());
        }
        if let Some(over) = over {
            match (is_directory, self.is_directory(over)) {
                (true, false) => return Err(Errno::NotDirectory),
                (false, true) => return Err(Errno::IsDirectory),
                (true, true) if !self.names(over).is_empty() => return Err(Errno::NotEmpty),
                _ => {}
            }
        }
        self.names_mut(from).remove(from_name);
        self.node(from).links -= u64::from(is_directory);
        self.names_mut(to).insert(to_name.to_vec(), id);
        self.node(to).links += u64::from(is_directory);
        if let Some(over) = over {
            self.node(to).links -= u64::from(self.is_directory(over));
            self.drop_name(over);
        }
        Ok(())
    }

    /// In a few words, the first difference from what is there; `self` is what is to be.
    #[must_use]
    pub fn difference(&self, there: &Self) -> Option<String> {
        if self == there {
            return None;
        }
        let ids: Vec<ObjectId> = self.nodes.keys().chain(there.nodes.keys()).copied().collect();
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
