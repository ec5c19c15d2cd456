//! All names of a tree as one object of the search: the node that each name leads to, and the node of each descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash};
use std::rc::Rc;

use super::events::{Answer, Call, Entry, Handle, How, Kind, Operation, Tree};
use super::search::{Object, Role};

/// A node of the model. Nodes of the first tree have small numbers; others have numbers made from those of the operations that made them.
pub(super) type Id = u64;

/// The folder that all share.
const TOP: Id = 0;
const FIRST_MADE: Id = 1 << 32;

#[derive(Clone, Debug, Hash)]
enum Node {
    Directory { names: Rc<BTreeMap<String, Id>>, parent: Option<Id>, is_removed: bool },
    File { links: u64 },
    Symlink { target: Rc<str> },
}

/// The visible state of names alone: each path, what it is, and which names are of one file.
type Shape = Vec<(String, Shown)>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Directory,
    Symlink(String),
    /// The first path of the file.
    File(String),
}

/// A state whose names are those that were found after the kill.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Match {
    /// The number of changes of names before it.
    position: u64,
    /// The file of each path.
    pub(super) files: BTreeMap<String, Id>,
}

/// The names, and the promises about them.
#[derive(Clone)]
pub(super) struct Names {
    nodes: BTreeMap<Id, Node>,
    /// The node that each open led to.
    handles: Rc<BTreeMap<usize, Id>>,
    /// Changes of names so far.
    position: u64,
    /// The number of these changes that are promised.
    floor: u64,
    /// Syncs under way, with the changes before their calls.
    syncs: BTreeMap<usize, u64>,
    found: Option<Rc<Shape>>,
    matches: Vec<Rc<Match>>,
}

/// The result of an operation that only observes names.
#[derive(Clone, Hash)]
pub(super) enum Seen {
    /// The whole answer at one moment, or not.
    Whole(bool),
    /// An `ESTALE` is explained if the name's file was removed or replaced meanwhile. The kernel repeats the look-up once if the server says
    /// that the file is gone; after a second time it returns the error.
    Stale { last: Option<Id>, is_seen: bool },
    /// For each node that the answer may be about: whether it had that number of links.
    Stat(BTreeMap<Id, bool>),
    List {
        /// Names of the answer that have not been there yet.
        unseen: BTreeSet<(String, Kind)>,
        /// Names that the answer lacks although they have been there all the time so far.
        always: BTreeSet<String>,
    },
}

impl Names {
    /// Begins with the tree `before`. States whose names are those of `after` are noted.
    pub(super) fn new(before: &Tree, after: Option<&Tree>) -> Result<Self, String> {
        let top = Node::Directory { names: Rc::default(), parent: None, is_removed: false };
        let mut this = Self {
            nodes: BTreeMap::from([(TOP, top)]),
            handles: Rc::default(),
            position: 0,
            floor: 0,
            syncs: BTreeMap::new(),
            found: after.map(|tree| Rc::new(shape_of(tree))),
            matches: Vec::new(),
        };
        let mut ids = BTreeMap::from([("", TOP)]);
        let mut inodes = BTreeMap::new();
        for (at, (path, entry)) in before.iter().enumerate() {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = *ids.get(above).ok_or_else(|| format!("{path:?} is in no directory"))?;
            let mut id = at as Id + 1;
            let node = match entry {
                Entry::Directory { .. } => {
                    ids.insert(path, id);
                    Node::Directory { names: Rc::default(), parent: Some(parent), is_removed: false }
                }
                Entry::Symlink { target } => Node::Symlink { target: target.as_str().into() },
                Entry::File(found) => {
                    id = *inodes.entry(found.inode).or_insert(id);
                    Node::File { links: found.links }
                }
            };
            this.nodes.insert(id, node);
            this.enter(parent, name, Some(id));
        }
        this.compare();
        Ok(this)
    }

    pub(super) fn matches(&self) -> &[Rc<Match>] {
        &self.matches
    }

    pub(super) const fn handles(&self) -> &Rc<BTreeMap<usize, Id>> {
        &self.handles
    }

    pub(super) const fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn is_file(&self, id: Id) -> bool {
        matches!(self.nodes.get(&id), Some(Node::File { .. }))
    }

    /// The file that a path leads to.
    pub(super) fn files(&self) -> BTreeMap<String, Id> {
        self.walk().into_iter().filter(|(_, id)| self.is_file(*id)).collect()
    }

    /// The number of paths in which this differs from what was found, and a description of the differences.
    pub(super) fn difference(&self) -> (usize, String) {
        let (mine, found) = (self.shape(), self.found.as_deref().cloned().unwrap_or_default());
        let mut words = Vec::new();
        for (path, shown) in &mine {
            match found.iter().find(|other| other.0 == *path) {
                None => words.push(format!("{path} is not there, which should be {shown:?}")),
                Some((_, other)) if other != shown => {
                    words.push(format!("{path} is {other:?} and should be {shown:?}"))
                }
                Some(_) => {}
            }
        }
        for (path, shown) in &found {
            if !mine.iter().any(|other| other.0 == *path) {
                words.push(format!("{path} is there, {shown:?}, and should not be"));
            }
        }
        (words.len(), words.join("; "))
    }

    fn walk(&self) -> Vec<(String, Id)> {
        let mut paths = Vec::new();
        let mut todo = vec![(String::new(), TOP)];
        while let Some((above, id)) = todo.pop() {
            let Some(Node::Directory { names, .. }) = self.nodes.get(&id) else { continue };
            for (name, id) in names.iter() {
                let path = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
                paths.push((path.clone(), *id));
                todo.push((path, *id));
            }
        }
        paths.sort();
        paths
    }

    fn shape(&self) -> Shape {
        let mut first: BTreeMap<Id, String> = BTreeMap::new();
        let shown = |(path, id): (String, Id)| {
            let shown = match &self.nodes[&id] {
                Node::Directory { .. } => Shown::Directory,
                Node::Symlink { target } => Shown::Symlink(target.to_string()),
                Node::File { .. } => Shown::File(first.entry(id).or_insert_with(|| path.clone()).clone()),
            };
            (path, shown)
        };
        self.walk().into_iter().map(shown).collect()
    }

    /// Notes the state if its names are those found after the kill.
    fn compare(&mut self) {
        if self.found.as_deref().is_some_and(|found| *found == self.shape()) {
            self.matches.push(Rc::new(Match { position: self.position, files: self.files() }));
        }
    }

    fn node(&self, handle: Handle) -> Id {
        // An open that failed or has no answer has no node, and no operation uses its handle.
        handle.map_or(TOP, |at| self.handles.get(&at).copied().unwrap_or(Id::MAX))
    }

    /// The names in a directory; `None` if it was removed, or the node is no directory.
    fn names(&self, handle: Handle) -> Option<&BTreeMap<String, Id>> {
        match self.nodes.get(&self.node(handle))? {
            Node::Directory { names, is_removed: false, .. } => Some(names),
            _ => None,
        }
    }

    fn named(&self, dir: Handle, name: &str) -> Option<Id> {
        self.names(dir)?.get(name).copied()
    }

    fn kind(&self, id: Id) -> Option<Kind> {
        Some(match self.nodes.get(&id)? {
            Node::Directory { .. } => Kind::Directory,
            Node::File { .. } => Kind::File,
            Node::Symlink { .. } => Kind::Symlink,
        })
    }

    /// The number of links; `None` for a removed directory, whose number is not promised.
    fn links(&self, id: Id) -> Option<u64> {
        match self.nodes.get(&id)? {
            Node::Directory { is_removed: true, .. } => None,
            Node::Directory { names, .. } => {
                let below = names.values().filter(|id| self.kind(**id) == Some(Kind::Directory)).count();
                Some(2 + below as u64)
            }
            Node::File { links } => Some(*links),
            Node::Symlink { .. } => Some(1),
        }
    }

    /// Whether a directory is, or is above, another.
    fn is_above(&self, id: Id, mut below: Id) -> bool {
        loop {
            if id == below {
                return true;
            }
            match self.nodes.get(&below) {
                Some(Node::Directory { parent: Some(parent), .. }) => below = *parent,
                _ => return false,
            }
        }
    }

    fn is_empty(&self, id: Id) -> bool {
        matches!(self.nodes.get(&id), Some(Node::Directory { names, .. }) if names.is_empty())
    }

    fn enter(&mut self, dir: Id, name: &str, id: Option<Id>) {
        if let Some(Node::Directory { names, .. }) = self.nodes.get_mut(&dir) {
            match id {
                Some(id) => Rc::make_mut(names).insert(name.to_owned(), id),
                None => Rc::make_mut(names).remove(name),
            };
        }
        if let Some(Node::Directory { parent, .. }) = id.and_then(|id| self.nodes.get_mut(&id)) {
            *parent = Some(dir);
        }
    }

    /// Removes one name of a node.
    fn drop_name(&mut self, id: Id) {
        match self.nodes.get_mut(&id) {
            Some(Node::File { links }) => *links -= 1,
            Some(Node::Directory { is_removed, .. }) => *is_removed = true,
            Some(Node::Symlink { .. }) | None => {}
        }
    }

    /// The error that a call meets now, as Linux has it.
    fn error(&self, call: &Call) -> Option<&'static str> {
        let is = |id: Option<Id>, kind| id.and_then(|id| self.kind(id)) == Some(kind);
        match call {
            Call::Open { dir, name, create, exclusive, .. } => {
                let there = self.named(*dir, name);
                match there {
                    None => (!create || self.names(*dir).is_none()).then_some("ENOENT"),
                    Some(_) if *create && *exclusive => Some("EEXIST"),
                    there if is(there, Kind::Symlink) => Some("ELOOP"),
                    there if is(there, Kind::Directory) => Some("EISDIR"),
                    Some(_) => None,
                }
            }
            Call::OpenDirectory { dir, name } => match self.named(*dir, name) {
                None => Some("ENOENT"),
                there => (!is(there, Kind::Directory)).then_some("ENOTDIR"),
            },
            Call::MakeDirectory { dir, name } | Call::Symlink { dir, name, .. } => match self.named(*dir, name) {
                Some(_) => Some("EEXIST"),
                None => self.names(*dir).is_none().then_some("ENOENT"),
            },
            Call::RemoveDirectory { dir, name } => match self.named(*dir, name) {
                None => Some("ENOENT"),
                there if !is(there, Kind::Directory) => Some("ENOTDIR"),
                Some(id) => (!self.is_empty(id)).then_some("ENOTEMPTY"),
            },
            Call::Unlink { dir, name } => match self.named(*dir, name) {
                None => Some("ENOENT"),
                there => is(there, Kind::Directory).then_some("EISDIR"),
            },
            Call::ReadLink { dir, name } => match self.named(*dir, name) {
                None => Some("ENOENT"),
                there => (!is(there, Kind::Symlink)).then_some("EINVAL"),
            },
            Call::Link { file, dir, name } => {
                if self.named(*dir, name).is_some() {
                    return Some("EEXIST");
                }
                let has_names = self.links(self.node(Some(*file))).is_some_and(|links| links > 0);
                (!has_names || self.names(*dir).is_none()).then_some("ENOENT")
            }
            Call::Rename { dir, name, to_dir, to_name, how } => {
                self.rename_error((*dir, name), (*to_dir, to_name), *how)
            }
            Call::StatName { dir, name } => self.named(*dir, name).is_none().then_some("ENOENT"),
            Call::List { dir } => self.names(*dir).is_none().then_some("ENOENT"),
            _ => None,
        }
    }

    fn rename_error(
        &self,
        (dir, name): (Handle, &str),
        (to_dir, to_name): (Handle, &str),
        how: How,
    ) -> Option<&'static str> {
        let Some(source) = self.named(dir, name) else { return Some("ENOENT") };
        let (from, to) = (self.node(dir), self.node(to_dir));
        if self.names(to_dir).is_none() {
            return Some("ENOENT");
        }
        let target = self.named(to_dir, to_name);
        match (how, target) {
            (How::NoReplace, Some(_)) => return Some("EEXIST"),
            (How::Exchange, None) => return Some("ENOENT"),
            _ => {}
        }
        let is_directory = |id| self.kind(id) == Some(Kind::Directory);
        // Linux makes these checks only if the two directories differ.
        if from != to && is_directory(source) && self.is_above(source, to) {
            return Some("EINVAL");
        }
        let target = target?;
        if from != to && is_directory(target) && self.is_above(target, from) {
            return Some(if how == How::Exchange { "EINVAL" } else { "ENOTEMPTY" });
        }
        if source == target || how == How::Exchange {
            return None;
        }
        match (is_directory(source), is_directory(target)) {
            (true, false) => Some("ENOTDIR"),
            (false, true) => Some("EISDIR"),
            (true, true) => (!self.is_empty(target)).then_some("ENOTEMPTY"),
            (false, false) => None,
        }
    }

    /// Makes a change; the caller has checked that it meets no error.
    fn apply(&mut self, at: usize, call: &Call) {
        let made = FIRST_MADE + at as Id;
        let before = self.position;
        match call {
            Call::Open { dir, name, .. } => {
                let there = self.named(*dir, name);
                if there.is_none() {
                    self.nodes.insert(made, Node::File { links: 1 });
                    self.enter(self.node(*dir), name, Some(made));
                    self.position += 1;
                }
                Rc::make_mut(&mut self.handles).insert(at, there.unwrap_or(made));
            }
            Call::OpenDirectory { dir, name } => {
                if let Some(id) = self.named(*dir, name) {
                    Rc::make_mut(&mut self.handles).insert(at, id);
                }
            }
            Call::MakeDirectory { dir, name } => {
                let node = Node::Directory { names: Rc::default(), parent: None, is_removed: false };
                self.nodes.insert(made, node);
                self.enter(self.node(*dir), name, Some(made));
                self.position += 1;
            }
            Call::Symlink { dir, name, target } => {
                self.nodes.insert(made, Node::Symlink { target: target.as_str().into() });
                self.enter(self.node(*dir), name, Some(made));
                self.position += 1;
            }
            Call::RemoveDirectory { dir, name } | Call::Unlink { dir, name } => {
                if let Some(id) = self.named(*dir, name) {
                    self.enter(self.node(*dir), name, None);
                    self.drop_name(id);
                    self.position += 1;
                }
            }
            Call::Link { file, dir, name } => {
                let id = self.node(Some(*file));
                if let Some(Node::File { links }) = self.nodes.get_mut(&id) {
                    *links += 1;
                    self.enter(self.node(*dir), name, Some(id));
                    self.position += 1;
                }
            }
            Call::Rename { dir, name, to_dir, to_name, how } => {
                let (from, to) = (self.node(*dir), self.node(*to_dir));
                let (source, target) = (self.named(*dir, name), self.named(*to_dir, to_name));
                // Renaming one name of a file over another name of it changes nothing.
                if source != target {
                    self.enter(to, to_name, source);
                    if *how == How::Exchange {
                        self.enter(from, name, target);
                    } else {
                        self.enter(from, name, None);
                        if let Some(target) = target {
                            self.drop_name(target);
                        }
                    }
                    self.position += 1;
                }
            }
            _ => {}
        }
        if self.position != before {
            self.compare();
        }
    }
}

fn shape_of(tree: &Tree) -> Shape {
    let mut first = BTreeMap::new();
    // Paths have the same order here and in `Names::walk`.
    let shown = |(path, entry): (&String, &Entry)| {
        let shown = match entry {
            Entry::Directory { .. } => Shown::Directory,
            Entry::Symlink { target } => Shown::Symlink(target.clone()),
            Entry::File(found) => Shown::File(first.entry(found.inode).or_insert_with(|| path.clone()).clone()),
        };
        (path.clone(), shown)
    };
    tree.iter().map(shown).collect()
}

impl Object for Names {
    type Seen = Seen;

    fn role(&self, _: usize, operation: &Operation) -> Role {
        let is_error = matches!(operation.answer, Answer::Error(_));
        match &operation.call {
            Call::Open { .. }
            | Call::OpenDirectory { .. }
            | Call::MakeDirectory { .. }
            | Call::RemoveDirectory { .. }
            | Call::Unlink { .. }
            | Call::Symlink { .. }
            | Call::Link { .. }
            | Call::Rename { .. } => match is_error {
                true => Role::Watch,
                false => Role::Change,
            },
            _ if operation.is_unknown() => Role::Nothing,
            Call::ReadLink { .. } | Call::StatName { .. } | Call::List { .. } | Call::Stat { .. } => Role::Watch,
            Call::Sync { .. } => match is_error {
                true => Role::Watch,
                false => Role::Sync,
            },
            _ => Role::Nothing,
        }
    }

    fn change(&self, at: usize, operation: &Operation) -> Option<Self> {
        if self.error(&operation.call).is_some() {
            return None;
        }
        let mut next = self.clone();
        next.apply(at, &operation.call);
        Some(next)
    }

    fn watch(&self, at: usize, operation: &Operation) -> Seen {
        let mut seen = match (&operation.call, &operation.answer) {
            (Call::Stat { .. } | Call::StatName { .. }, Answer::Stat { .. }) => Seen::Stat(BTreeMap::new()),
            (Call::List { dir }, Answer::Names(listed)) => {
                let names = self.names(*dir).cloned().unwrap_or_default();
                Seen::List {
                    unseen: listed.iter().map(|(name, kind)| (name.clone(), *kind)).collect(),
                    always: names.into_keys().filter(|name| !listed.contains_key(name)).collect(),
                }
            }
            (Call::Open { dir, name, .. } | Call::StatName { dir, name }, Answer::Error(error))
                if error == "ESTALE" =>
            {
                Seen::Stale { last: self.named(*dir, name), is_seen: false }
            }
            _ => Seen::Whole(false),
        };
        self.look(at, operation, &mut seen);
        seen
    }

    fn look(&self, _: usize, operation: &Operation, seen: &mut Seen) {
        match (seen, &operation.call, &operation.answer) {
            (Seen::Stale { last, is_seen }, Call::Open { dir, name, .. } | Call::StatName { dir, name }, _) => {
                let now = self.named(*dir, name);
                *is_seen |= last.is_some() && now != *last;
                *last = now;
            }
            (Seen::Whole(is_seen), call, Answer::Error(error)) => *is_seen |= self.error(call) == Some(error),
            (Seen::Whole(is_seen), Call::ReadLink { dir, name }, Answer::Text(text)) => {
                let node = self.named(*dir, name).and_then(|id| self.nodes.get(&id));
                *is_seen |= matches!(node, Some(Node::Symlink { target }) if **target == **text);
            }
            (Seen::Stat(seen), call, Answer::Stat { kind, links, .. }) => {
                let id = match call {
                    Call::StatName { dir, name } => self.named(*dir, name),
                    Call::Stat { handle } => Some(self.node(*handle)),
                    _ => None,
                };
                if let Some(id) = id.filter(|id| self.kind(*id) == Some(*kind)) {
                    seen.entry(id).or_insert(false);
                }
                for (id, has_links) in seen {
                    *has_links |= self.links(*id).is_none_or(|there| there == *links);
                }
            }
            (Seen::List { unseen, always }, Call::List { dir }, _) => {
                // A removed directory has no names.
                let names = self.names(*dir).cloned().unwrap_or_default();
                unseen.retain(|(name, kind)| names.get(name).and_then(|id| self.kind(*id)) != Some(*kind));
                always.retain(|name| names.contains_key(name));
            }
            _ => {}
        }
    }

    fn is_seen(_: &Operation, seen: &Seen) -> bool {
        match seen {
            Seen::Whole(is_seen) | Seen::Stale { is_seen, .. } => *is_seen,
            Seen::Stat(seen) => seen.values().any(|has_links| *has_links),
            Seen::List { unseen, always } => unseen.is_empty() && always.is_empty(),
        }
    }

    fn begin_sync(&mut self, at: usize, _: &Operation) {
        self.syncs.insert(at, self.position);
    }

    fn acknowledge(&mut self, at: usize, _: &Operation) {
        if let Some(position) = self.syncs.remove(&at) {
            self.floor = self.floor.max(position);
            self.matches.retain(|found| found.position >= self.floor);
        }
    }

    fn hash(&self, hasher: &mut DefaultHasher) {
        self.nodes.hash(hasher);
        self.handles.hash(hasher);
        (self.position, &self.syncs, &self.matches).hash(hasher);
    }

    fn hash_seen(seen: &Seen, hasher: &mut DefaultHasher) {
        seen.hash(hasher);
    }

    fn expected(&self, _: usize, operation: &Operation) -> String {
        if let Some(error) = self.error(&operation.call) {
            return error.to_owned();
        }
        let stat = |id: Id| match (self.kind(id), self.links(id)) {
            (Some(kind), Some(links)) => format!("{kind:?} with {links} links"),
            (Some(kind), None) => format!("{kind:?}, removed"),
            _ => "nothing".to_owned(),
        };
        match &operation.call {
            Call::List { dir } => {
                let names: Vec<&String> = self.names(*dir).into_iter().flat_map(BTreeMap::keys).collect();
                format!("the names {names:?}")
            }
            Call::StatName { dir, name } => self.named(*dir, name).map(stat).unwrap_or_default(),
            Call::Stat { handle } => stat(self.node(*handle)),
            Call::ReadLink { dir, name } => {
                format!("{:?}", self.named(*dir, name).and_then(|id| self.nodes.get(&id)))
            }
            _ => "success".to_owned(),
        }
    }
}
