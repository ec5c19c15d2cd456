//! A tree of files, built from archives before any file is written: later entries replace earlier ones, and files are written in the order of
//! names, not of the archive.
//!
//! Attributes are in memory, a few hundred bytes per file, all within one [`Budget`]; contents remain in the archives.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cenote_format::ids::ObjectId;
use cenote_zpl::bulk::{MODE_DIR, MODE_FILE, MODE_KIND, MODE_SYMLINK, NodeSpec};

use super::entries::{Budget, shown};
use super::{Builder, Content, DirectoryId, ROOT};
use crate::error::{Context as _, Result, malformed, too_large};
use crate::walk::DEPTH_MAX;

/// Memory for a node in addition to its name, attributes and extents: the node itself, and its share of its directory's map.
const NODE_BYTES: u64 = size_of::<Node>() as u64 + 96;
/// Memory for the first entry of a directory: the map's smallest allocation has room for eleven.
const DIRECTORY_BYTES: u64 = 400;
/// Memory for an extended attribute in addition to its bytes.
const XATTR_BYTES: u64 = 96;

/// The maximum number of symbolic links on the way to a file, as in Linux.
const LINKS_MAX: usize = 40;
/// The maximum number of names in all these links' targets: Linux allows a path of some 2000.
const LINKED_PARTS_MAX: usize = 4096;

/// The places of a file's bytes: ranges of the file, each with an offset in an archive. The rest is holes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    archive: Option<Arc<File>>,
    /// In order and disjoint: a range of the file, and its offset in the archive.
    ranges: Vec<(Range<u64>, u64)>,
}

impl Extents {
    /// A file's bytes in an archive. Ranges are in order and disjoint.
    pub(crate) const fn new(archive: Arc<File>, ranges: Vec<(Range<u64>, u64)>) -> Self {
        Self { archive: Some(archive), ranges }
    }
}

impl Content for Extents {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        let next = self.ranges.partition_point(|(range, _)| range.end <= offset);
        Ok(self.ranges.get(next).map_or(u64::MAX, |(range, _)| range.start.max(offset)))
    }

    fn read(&mut self, offset: u64, target: &mut [u8]) -> Result<()> {
        target.fill(0);
        let end = offset + target.len() as u64;
        let first = self.ranges.partition_point(|(range, _)| range.end <= offset);
        for (range, at) in self.ranges[first..].iter().take_while(|(range, _)| range.start < end) {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            let place = &mut target[(from - offset) as usize..(to - offset) as usize];
            let archive = self.archive.as_ref().context("content without an archive")?;
            archive.read_exact_at(place, at + (from - range.start)).context("the archive is cut short")?;
        }
        Ok(())
    }
}

/// A node: a directory with its entries, or a file.
struct Node {
    spec: NodeSpec,
    content: Extents,
    children: BTreeMap<Vec<u8>, usize>,
    /// The number of its names.
    links: u32,
}

impl Node {
    fn is_directory(&self) -> bool {
        self.spec.mode & MODE_KIND == MODE_DIR
    }
}

/// Memory for attributes and extents.
fn cost(spec: &NodeSpec, content: &Extents) -> u64 {
    let xattrs: u64 = spec.xattrs.iter().map(|(name, value)| (name.len() + value.len()) as u64 + XATTR_BYTES).sum();
    let target = spec.target.as_ref().map_or(0, Vec::len) as u64;
    xattrs + target + size_of_val(&content.ranges[..]) as u64
}

/// A tree of files in memory.
pub struct FileTree {
    nodes: Vec<Node>,
    /// An entry gave the root's attributes.
    has_root: bool,
    budget: Budget,
}

/// The components of a file's name in an archive: without `.`, leading slashes and doubled ones.
///
/// # Errors
/// It leads out of the tree.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) {
        return Err(malformed(format!("'{}' leads out of the archive", shown(path))));
    }
    if parts.len() > DEPTH_MAX {
        return Err(too_large(format!("'{}' is nested too deeply", shown(path))));
    }
    Ok(parts)
}

impl FileTree {
    /// An empty root. Directories without an entry get the same attributes: owner root, mode 755, modified in 1970.
    pub(crate) fn new(budget: Budget) -> Self {
        let root = Self::directory_node();
        Self { nodes: vec![root], has_root: false, budget }
    }

    fn directory_node() -> Node {
        let spec = NodeSpec { mode: MODE_DIR | 0o755, ..NodeSpec::default() };
        Node { spec, content: Extents::default(), children: BTreeMap::new(), links: 1 }
    }

    /// The node to which a path leads, following symbolic links except for the last name.
    fn find(&mut self, parts: &[&[u8]]) -> Result<Option<usize>> {
        let Some((name, above)) = parts.split_last() else { return Ok(Some(0)) };
        let directory = self.directory(above, false)?;
        Ok(directory.and_then(|directory| self.nodes[directory].children.get(*name).copied()))
    }

    /// The directory to which a path leads, created if missing.
    fn make_directories(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let directory = self.directory(parts, true)?;
        directory.with_context(|| format!("'{}' leads to no directory", shown(&parts.join(&b'/'))))
    }

    /// The directory to which a path leads; with `is_made`, missing ones are created. Symbolic links on the way are followed within the tree, as
    /// by a process with the tree as its root: layers of images have files below names that an earlier layer made links, such as
    /// `lib -> usr/lib`.
    fn directory(&mut self, parts: &[&[u8]], is_made: bool) -> Result<Option<usize>> {
        // The directories on the way from the root, and the names still to be looked up, the next one last.
        let mut way = vec![0];
        let mut left: Vec<Vec<u8>> = parts.iter().rev().map(|part| part.to_vec()).collect();
        let (mut links, mut linked_parts) = (0, 0);
        while let Some(part) = left.pop() {
            if part == b".." {
                // The parent of the root is the root.
                way.truncate((way.len() - 1).max(1));
                continue;
            }
            let at = way.last().copied().unwrap_or(0);
            let child = match self.nodes[at].children.get(&part) {
                Some(child) => *child,
                None if is_made => self.enter(at, &part, Self::directory_node())?,
                None => return Ok(None),
            };
            let node = &self.nodes[child];
            match &node.spec.target {
                _ if node.is_directory() => way.push(child),
                Some(target) if node.spec.mode & MODE_KIND == MODE_SYMLINK => {
                    let names = target.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
                    let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
                    links += 1;
                    linked_parts += names.len();
                    if links > LINKS_MAX || linked_parts > LINKED_PARTS_MAX {
                        let path = shown(&parts.join(&b'/'));
                        return Err(malformed(format!("too many symbolic links on the way to '{path}'")));
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    left.extend(names.into_iter().rev());
                }
                _ if is_made => {
                    let what = format!("'{}' is a file, and another entry is to be in it", shown(&part));
                    return Err(malformed(what));
                }
                _ => return Ok(None),
            }
            if way.len() > DEPTH_MAX {
                return Err(too_large(format!("'{}' is nested too deeply", shown(&parts.join(&b'/')))));
            }
        }
        Ok(way.last().copied())
    }

    fn enter(&mut self, directory: usize, name: &[u8], node: Node) -> Result<usize> {
        let map_bytes = if self.nodes[directory].children.is_empty() { DIRECTORY_BYTES } else { 0 };
        self.budget.take(NODE_BYTES + map_bytes + name.len() as u64 + cost(&node.spec, &node.content))?;
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.nodes[directory].children.insert(name.to_vec(), id);
        Ok(id)
    }

    fn forget(&mut self, directory: usize, name: &[u8]) {
        if let Some(id) = self.nodes[directory].children.remove(name) {
            // The entries in it are removed too, since they are now unreachable.
            self.nodes[id].links -= 1;
            let mut below: Vec<usize> = std::mem::take(&mut self.nodes[id].children).into_values().collect();
            while let Some(id) = below.pop() {
                self.nodes[id].links -= 1;
                below.extend(std::mem::take(&mut self.nodes[id].children).into_values());
            }
        }
    }

    /// Puts a node at a path. A directory replaces only the attributes of an existing directory; anything else replaces what was there.
    ///
    /// # Errors
    /// The path leads out of the tree or through a file.
    pub(crate) fn put(&mut self, path: &[u8], spec: NodeSpec, content: Extents) -> Result<()> {
        let parts = components(path)?;
        let is_directory = spec.mode & MODE_KIND == MODE_DIR;
        let Some((name, above)) = parts.split_last() else {
            if !is_directory {
                return Err(malformed("the root is no directory"));
            }
            self.budget.take(cost(&spec, &content))?;
            self.nodes[0].spec = spec;
            self.has_root = true;
            return Ok(());
        };
        let parent = self.make_directories(above)?;
        if let Some(there) = self.nodes[parent].children.get(*name).copied()
            && is_directory
            && self.nodes[there].is_directory()
        {
            self.budget.take(cost(&spec, &content))?;
            self.nodes[there].spec = spec;
            return Ok(());
        }
        self.forget(parent, name);
        self.enter(parent, name, Node { spec, content, children: BTreeMap::new(), links: 1 })?;
        Ok(())
    }

    /// Gives the file to which `target` leads another name.
    ///
    /// # Errors
    /// There is no such file.
    pub(crate) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let from = self.find(&components(target)?)?.filter(|node| !self.nodes[*node].is_directory());
        let from = from.with_context(|| format!("a hard link to '{}', which is not there", shown(target)))?;
        let parts = components(path)?;
        let Some((name, above)) = parts.split_last() else { return Err(malformed("the root cannot be a link")) };
        let parent = self.make_directories(above)?;
        if self.nodes[parent].children.get(*name) == Some(&from) {
            return Ok(());
        }
        self.budget.take(XATTR_BYTES + name.len() as u64)?;
        self.forget(parent, name);
        self.nodes[parent].children.insert(name.to_vec(), from);
        self.nodes[from].links += 1;
        Ok(())
    }

    /// Replaces a symbolic link at a path, if there is one, by an empty directory.
    ///
    /// # Errors
    /// The path leads out of the tree.
    pub(crate) fn replace_link(&mut self, path: &[u8]) -> Result<()> {
        let found = self.find(&components(path)?)?;
        match found.is_some_and(|node| self.nodes[node].spec.mode & MODE_KIND == MODE_SYMLINK) {
            true => self.put(path, Self::directory_node().spec, Extents::default()),
            false => Ok(()),
        }
    }

    /// Removes the node at a path, if there is one.
    ///
    /// # Errors
    /// The path leads out of the tree.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Result<()> {
        let parts = components(path)?;
        if let Some((name, above)) = parts.split_last()
            && let Some(parent) = self.directory(above, false)?
        {
            self.forget(parent, name);
        }
        Ok(())
    }

    /// Removes everything in a directory, if it exists.
    ///
    /// # Errors
    /// The path leads out of the tree.
    pub(crate) fn clear(&mut self, path: &[u8]) -> Result<()> {
        let Some(directory) = self.directory(&components(path)?, false)? else { return Ok(()) };
        let names: Vec<Vec<u8>> = self.nodes[directory].children.keys().cloned().collect();
        names.iter().for_each(|name| self.forget(directory, name));
        Ok(())
    }

    /// Bytes of all files' data.
    pub fn data_bytes(&self) -> u64 {
        let alive = self.nodes.iter().filter(|node| node.links > 0);
        alive.flat_map(|node| &node.content.ranges).map(|(range, _)| range.end - range.start).sum()
    }

    /// Writes the whole tree, in the order of names. `progress` gets the bytes written.
    pub async fn add_to(mut self, builder: &mut Builder, progress: &mut dyn FnMut(u64)) -> Result<()> {
        if self.has_root {
            builder.set_root(self.nodes[0].spec.clone());
        }
        let mut linked: BTreeMap<usize, ObjectId> = BTreeMap::new();
        let mut waiting: Vec<(usize, DirectoryId)> = vec![(0, ROOT)];
        while let Some((directory, target)) = waiting.pop() {
            let mut below = Vec::new();
            for (name, id) in std::mem::take(&mut self.nodes[directory].children) {
                let bytes = self.add_node(builder, target, &name, id, &mut linked, &mut below).await;
                progress(bytes.with_context(|| shown(&name))?);
            }
            // Reversed: the first is taken next.
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }

    async fn add_node(
        &mut self,
        builder: &mut Builder,
        parent: DirectoryId,
        name: &[u8],
        id: usize,
        linked: &mut BTreeMap<usize, ObjectId>,
        below: &mut Vec<(usize, DirectoryId)>,
    ) -> Result<u64> {
        if let Some(object) = linked.get(&id) {
            builder.link(parent, name, *object)?;
            return Ok(0);
        }
        let node = &mut self.nodes[id];
        let spec = node.spec.clone();
        if node.is_directory() {
            below.push((id, builder.directory(parent, name, spec).await?));
            return Ok(0);
        }
        let has_links = node.links > 1;
        if node.spec.mode & MODE_KIND != MODE_FILE {
            let object = builder.special(parent, name, spec, has_links).await?;
            linked.extend(has_links.then_some((id, object)));
            return Ok(0);
        }
        let size_bytes = spec.size_bytes;
        let object = builder.file(parent, name, spec, has_links, &mut node.content).await?;
        linked.extend(has_links.then_some((id, object)));
        Ok(size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> NodeSpec {
        NodeSpec { mode: MODE_FILE | 0o644, ..NodeSpec::default() }
    }

    fn directory() -> NodeSpec {
        NodeSpec { mode: MODE_DIR | 0o700, ..NodeSpec::default() }
    }

    fn put(tree: &mut FileTree, path: &str, spec: NodeSpec) {
        tree.put(path.as_bytes(), spec, Extents::default()).unwrap();
    }

    fn mode(tree: &mut FileTree, path: &str) -> Option<u32> {
        let node = tree.find(&components(path.as_bytes()).unwrap()).unwrap()?;
        Some(tree.nodes[node].spec.mode)
    }

    #[test]
    fn directories_that_nobody_names_are_made_and_described_later() {
        let mut tree = FileTree::new(Budget::new(Budget::DEFAULT_BYTES));
        put(&mut tree, "./a/b/c", file());
        assert_eq!(mode(&mut tree, "a/b"), Some(MODE_DIR | 0o755));
        put(&mut tree, "/a//b/", directory());
        assert_eq!(mode(&mut tree, "a/b"), Some(MODE_DIR | 0o700));
        assert!(mode(&mut tree, "a/b/c").is_some());
    }

    #[test]
    fn what_comes_later_takes_the_place_of_what_was_there() {
        let mut tree = FileTree::new(Budget::new(Budget::DEFAULT_BYTES));
        put(&mut tree, "a/b", file());
        put(&mut tree, "a", file());
        assert_eq!(mode(&mut tree, "a"), Some(MODE_FILE | 0o644));
        assert_eq!(mode(&mut tree, "a/b"), None);
        assert!(tree.put(b"a/b", file(), Extents::default()).is_err());
    }

    #[test]
    fn a_link_outlives_the_name_that_it_was_made_from() {
        let mut tree = FileTree::new(Budget::new(Budget::DEFAULT_BYTES));
        put(&mut tree, "one", file());
        tree.link(b"two", b"one").unwrap();
        tree.remove(b"one").unwrap();
        let two = tree.find(&[b"two"]).unwrap().unwrap();
        assert_eq!((tree.nodes[two].links, mode(&mut tree, "one")), (1, None));
        assert!(tree.link(b"three", b"one").is_err());
    }

    fn symlink(tree: &mut FileTree, path: &str, target: &str) {
        let spec = NodeSpec { mode: MODE_SYMLINK | 0o777, target: Some(target.into()), ..NodeSpec::default() };
        put(tree, path, spec);
    }

    #[test]
    fn a_file_below_a_link_to_a_directory_is_put_there_and_never_out_of_the_tree() {
        let mut tree = FileTree::new(Budget::new(Budget::DEFAULT_BYTES));
        put(&mut tree, "usr/lib/a", file());
        for (path, target) in [
            ("lib", "usr/lib"),
            ("abs", "/usr/./lib/"),
            ("usr/up", "../../../usr/lib"),
            ("twice", "lib"),
            ("new", "made/here"),
            ("tofile", "usr/lib/a"),
            ("round", "about"),
            ("about", "round"),
        ] {
            symlink(&mut tree, path, target);
        }
        for (at, name) in ["lib", "abs", "usr/up", "twice"].iter().enumerate() {
            put(&mut tree, &format!("{name}/{at}"), file());
            assert!(mode(&mut tree, &format!("usr/lib/{at}")).is_some(), "{name}");
            assert_eq!(mode(&mut tree, name).unwrap() & MODE_KIND, MODE_SYMLINK, "{name}");
        }
        put(&mut tree, "new/x", file());
        assert!(mode(&mut tree, "made/here/x").is_some(), "a link that leads nowhere yet");
        for (path, why) in [("tofile/x", "is a file"), ("round/x", "too many symbolic links")] {
            let error = tree.put(path.as_bytes(), file(), Extents::default()).unwrap_err().to_string();
            assert!(error.contains(why), "{path}: {error}");
        }
        // Other links, and removals by layers.
        tree.link(b"lib/again", b"abs/0").unwrap();
        assert!(mode(&mut tree, "usr/lib/again").is_some());
        tree.remove(b"lib/0").unwrap();
        assert_eq!(mode(&mut tree, "usr/lib/0"), None);
        tree.clear(b"twice").unwrap();
        assert_eq!(mode(&mut tree, "usr/lib/a"), None);
        tree.remove(b"lib").unwrap();
        assert!(mode(&mut tree, "lib").is_none() && mode(&mut tree, "usr/lib").is_some(), "the link itself goes");
        // After a directory has replaced a link, files behind the link are not affected.
        tree.replace_link(b"twice").unwrap();
        tree.replace_link(b"usr").unwrap();
        assert_eq!(mode(&mut tree, "twice").unwrap() & MODE_KIND, MODE_DIR);
        put(&mut tree, "abs", directory());
        put(&mut tree, "abs/x", file());
        assert!(mode(&mut tree, "usr/lib/x").is_none());
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let mut tree = FileTree::new(Budget::new(Budget::DEFAULT_BYTES));
        for path in ["../a", "a/../../b", "a/.."] {
            assert!(tree.put(path.as_bytes(), file(), Extents::default()).is_err(), "{path}");
            assert!(tree.remove(path.as_bytes()).is_err(), "{path}");
        }
    }

    /// Goal: memory is bounded for any names. Method: a path of many components is a node for each.
    #[test]
    fn nodes_attributes_and_links_come_out_of_one_budget() {
        let mut tree = FileTree::new(Budget::new(1 << 20));
        let deep = b"a/".repeat(4000);
        let error = tree.put(&deep, directory(), Extents::default()).unwrap_err();
        assert!(error.to_string().contains("1M"), "{error}");
        assert!(tree.nodes.len() < 4000);

        let mut tree = FileTree::new(Budget::new(1 << 20));
        let spec = NodeSpec { xattrs: vec![(b"user.a".to_vec(), vec![0; 60_000])], ..file() };
        let results = (0..100).map(|at| tree.put(format!("f{at}").as_bytes(), spec.clone(), Extents::default()));
        assert_eq!(results.filter(Result::is_ok).count(), (1 << 20) / 60_500);
        // The same directory, described repeatedly.
        let mut tree = FileTree::new(Budget::new(1 << 20));
        let spec = NodeSpec { xattrs: vec![(b"user.a".to_vec(), vec![0; 60_000])], ..directory() };
        assert!((0..100).any(|_| tree.put(b"d", spec.clone(), Extents::default()).is_err()));
    }

    #[test]
    fn holes_between_extents_read_as_zeros() {
        use std::io::Write;
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(b"0123456789").unwrap();
        let mut content = Extents::new(Arc::new(archive), vec![(2..4, 5), (8..10, 0)]);
        let mut found = [9; 12];
        content.read(0, &mut found).unwrap();
        assert_eq!(&found, b"\0\x0056\0\0\0\x0001\0\0");
        assert_eq!([0, 3, 4, 10].map(|at| content.next_data(at).unwrap()), [2, 3, 8, u64::MAX]);
    }
}
