//! A file system as simple as can be: nodes in a map, operations as POSIX has them.

use std::collections::BTreeMap;

use cenote_format::ids::ObjectId;
use cenote_zpl::{Errno, FileKind, RenameMode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: FileKind,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u64,
    pub(super) content: Vec<u8>,
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) entries: BTreeMap<Vec<u8>, ObjectId>,
    pub(super) opens: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) nodes: BTreeMap<ObjectId, Node>,
}

type Result<T> = std::result::Result<T, Errno>;

impl Node {
    pub(super) fn new(kind: FileKind, permissions: u32, uid: u32, gid: u32) -> Self {
        Self {
            kind,
            permissions,
            uid,
            gid,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            content: Vec::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            opens: 0,
        }
    }

    pub(super) fn size(&self) -> u64 {
        match self.kind {
            FileKind::Directory => self.entries.len() as u64 + 2,
            FileKind::Symlink => self.target.len() as u64,
            _ => self.content.len() as u64,
        }
    }
}

impl Model {
    pub(super) fn new(root: ObjectId) -> Self {
        let node = Node::new(FileKind::Directory, 0o755, 0, 0);
        Self { nodes: BTreeMap::from([(root, node)]) }
    }

    pub(super) fn node(&mut self, id: ObjectId) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    fn is_directory(&self, id: ObjectId) -> bool {
        self.nodes[&id].kind == FileKind::Directory
    }

    /// Whether a name can be made there.
    pub(super) fn may_create(&self, parent: ObjectId, name: &[u8]) -> Result<()> {
        if self.nodes[&parent].entries.contains_key(name) { Err(Errno::Exists) } else { Ok(()) }
    }

    pub(super) fn create(&mut self, parent: ObjectId, name: &[u8], id: ObjectId, mut node: Node) {
        let above = self.node(parent);
        if above.permissions & 0o2000 != 0 {
            node.gid = above.gid;
            if node.kind == FileKind::Directory {
                node.permissions |= 0o2000;
            }
        }
        above.links += u64::from(node.kind == FileKind::Directory);
        above.entries.insert(name.to_vec(), id);
        assert!(self.nodes.insert(id, node).is_none());
    }

    pub(super) fn link(&mut self, id: ObjectId, parent: ObjectId, name: &[u8]) -> Result<()> {
        if self.is_directory(id) {
            return Err(Errno::NotPermitted);
        }
        if self.nodes[&id].links == 0 {
            return Err(Errno::NoEntry);
        }
        self.may_create(parent, name)?;
        self.node(parent).entries.insert(name.to_vec(), id);
        self.node(id).links += 1;
        Ok(())
    }

    /// Drops nodes that are neither named nor open.
    pub(super) fn forget(&mut self, id: ObjectId) {
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

    pub(super) fn remove(&mut self, parent: ObjectId, name: &[u8], directory: bool) -> Result<()> {
        let id = *self.nodes[&parent].entries.get(name).ok_or(Errno::NoEntry)?;
        match (directory, self.is_directory(id)) {
            (true, false) => return Err(Errno::NotDirectory),
            (false, true) => return Err(Errno::IsDirectory),
            (true, true) if !self.nodes[&id].entries.is_empty() => return Err(Errno::NotEmpty),
            _ => {}
        }
        let above = self.node(parent);
        above.entries.remove(name);
        above.links -= u64::from(directory);
        self.drop_name(id);
        Ok(())
    }

    /// Whether `below` is `above` or lies below it.
    fn is_below(&self, below: ObjectId, above: ObjectId) -> bool {
        below == above
            || self.nodes[&above]
                .entries
                .values()
                .any(|child| self.is_directory(*child) && self.is_below(below, *child))
    }

    pub(super) fn rename(
        &mut self,
        from: ObjectId,
        from_name: &[u8],
        to: ObjectId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let id = *self.nodes[&from].entries.get(from_name).ok_or(Errno::NoEntry)?;
        let over = self.nodes[&to].entries.get(to_name).copied();
        match (mode, over) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            (_, Some(over)) if over == id => return Ok(()),
            _ => {}
        }
        let is_directory = self.is_directory(id);
        if is_directory && self.is_below(to, id) {
            return Err(Errno::Invalid);
        }
        if mode == RenameMode::Exchange {
            let over = over.unwrap();
            let over_is_directory = self.is_directory(over);
            if over_is_directory && self.is_below(from, over) {
                return Err(Errno::Invalid);
            }
            self.node(from).entries.insert(from_name.to_vec(), over);
            self.node(to).entries.insert(to_name.to_vec(), id);
            let (one, other) = (u64::from(is_directory), u64::from(over_is_directory));
            self.node(from).links = self.node(from).links + other - one;
            self.node(to).links = self.node(to).links + one - other;
            return Ok(());
        }
        if let Some(over) = over {
            match (is_directory, self.is_directory(over)) {
                (true, false) => return Err(Errno::NotDirectory),
                (false, true) => return Err(Errno::IsDirectory),
                (true, true) if !self.nodes[&over].entries.is_empty() => return Err(Errno::NotEmpty),
                _ => {}
            }
        }
        self.node(from).entries.remove(from_name);
        self.node(from).links -= u64::from(is_directory);
        self.node(to).entries.insert(to_name.to_vec(), id);
        self.node(to).links += u64::from(is_directory);
        if let Some(over) = over {
            self.node(to).links -= u64::from(self.is_directory(over));
            self.drop_name(over);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, id: ObjectId, offset: usize, bytes: &[u8]) {
        let content = &mut self.node(id).content;
        if bytes.is_empty() {
            return;
        }
        if content.len() < offset + bytes.len() {
            content.resize(offset + bytes.len(), 0);
        }
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn punch(&mut self, id: ObjectId, start: usize, end: usize) {
        let content = &mut self.node(id).content;
        let end = end.min(content.len());
        if start < end {
            content[start..end].fill(0);
        }
    }
}
