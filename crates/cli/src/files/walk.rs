//! Walking a directory tree, depth first, with the next entries already being read.

use std::collections::{BTreeMap, VecDeque};

use cenote_format::ids::ObjectId;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Handle, Join};
use cenote_zpl::{Attributes, Cursor, DirEntry, FileKind, FileSystem, ZplError};

use super::ObjectSet;

/// Directories above one another at most. The deepest path that Linux takes in one call has 2048; a tree made step by step
/// may be deeper, and still someone must hold a descriptor a level to copy it.
const DEPTH_MAX: usize = 4096;
/// Directories up to this many entries are walked in the order of their names; larger ones in the stored order.
const SORT_MAX: usize = 1 << 16;
/// Entries asked for at a time.
const BATCH: usize = 1024;
/// Entries whose details are read ahead.
const LOOK_AHEAD: usize = 48;

/// What a walk reads of each entry beside its attributes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// Extended attributes.
    pub(crate) xattrs: bool,
    /// Content of files up to this size.
    pub(crate) content_max_bytes: u64,
    /// Go into directories.
    pub(crate) recurse: bool,
}

/// An entry with its details.
#[derive(Debug)]
pub(crate) struct Node {
    /// The path from where the walk began, which itself is empty.
    pub(crate) path: Vec<u8>,
    /// Levels below where the walk began.
    pub(crate) depth: usize,
    /// Its attributes.
    pub(crate) attributes: Attributes,
    /// Where a link leads.
    pub(crate) target: Option<Vec<u8>>,
    /// Its extended attributes, if wanted.
    pub(crate) xattrs: Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError>,
    /// Its content, if wanted and small. Absent too where it could not be read: whoever reads it again learns why.
    pub(crate) content: Option<Block>,
}

impl Node {
    /// The last part of the path.
    pub(crate) fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }
}

/// What a walk comes upon.
#[derive(Debug)]
pub(crate) enum Visit {
    /// An entry. A directory's entries come next, unless [`Walk::prune`] is called.
    Node(Box<Node>),
    /// The end of the directory that was entered last and not left yet.
    Leave,
    /// Something that could not be read; the walk goes on behind it.
    Problem {
        /// Where.
        path: Vec<u8>,
        /// What is wrong.
        error: ZplError,
    },
}

/// A walk in progress.
pub(crate) struct Walk {
    handle: Handle,
    filesystem: FileSystem,
    wants: Wants,
    levels: Vec<Level>,
    seen: ObjectSet,
    /// The directory handed out last, to be entered next.
    entering: Option<(ObjectId, Vec<u8>)>,
    /// Where to begin, at first.
    start: Option<ObjectId>,
}

struct Level {
    directory: ObjectId,
    path: Vec<u8>,
    listing: Listing,
    names: VecDeque<(Vec<u8>, ObjectId)>,
    pending: VecDeque<Pending>,
}

enum Listing {
    From(Cursor),
    Done,
}

struct Pending {
    path: Vec<u8>,
    details: Join<Result<Details, ZplError>>,
}

struct Details {
    attributes: Attributes,
    target: Option<Vec<u8>>,
    xattrs: Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError>,
    content: Option<Block>,
}

impl Walk {
    /// A walk that begins at `start`, which is its first entry.
    pub(crate) fn new(handle: &Handle, filesystem: &FileSystem, start: ObjectId, wants: Wants) -> Self {
        Self {
            handle: handle.clone(),
            filesystem: filesystem.clone(),
            wants,
            levels: Vec::new(),
            seen: ObjectSet::default(),
            entering: None,
            start: Some(start),
        }
    }

    /// Does not enter the directory that was handed out last; there is no [`Visit::Leave`] for it.
    pub(crate) fn prune(&mut self) {
        self.entering = None;
    }

    /// What comes next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Visit> {
        if let Some(start) = self.start.take() {
            let details = details(self.filesystem.clone(), start, self.wants).await;
            return Some(self.hand_out(Vec::new(), details));
        }
        if let Some((directory, path)) = self.entering.take() {
            if let Some(what) = self.refuses(directory) {
                self.entering = None;
                // The user has been told of the directory and expects to be told of its end.
                self.levels.push(Level::empty(directory, path.clone()));
                return Some(Visit::Problem { path, error: ZplError::Corrupt { object: directory.0, what } });
            }
            self.levels.push(Level { listing: Listing::From(Cursor::START), ..Level::empty(directory, path) });
        }
        let level = self.levels.last_mut()?;
        if let Err(error) = level.fill(&self.filesystem).await {
            return Some(Visit::Problem { path: level.path.clone(), error });
        }
        level.read_ahead(&self.handle, &self.filesystem, self.wants);
        let Some(Pending { path, details }) = level.pending.pop_front() else {
            self.levels.pop();
            return Some(Visit::Leave);
        };
        let details = details.await.unwrap_or_else(|error| {
            Err(ZplError::Corrupt { object: 0, what: format!("the read did not come to an end: {error}") })
        });
        Some(self.hand_out(path, details))
    }

    fn refuses(&mut self, directory: ObjectId) -> Option<String> {
        if self.levels.len() >= DEPTH_MAX {
            return Some(format!("deeper than {DEPTH_MAX} directories"));
        }
        let is_new = self.seen.insert(directory.0);
        (!is_new).then(|| "a directory that is linked twice, or holds itself".to_owned())
    }

    fn hand_out(&mut self, path: Vec<u8>, details: Result<Details, ZplError>) -> Visit {
        let Details { attributes, target, xattrs, content } = match details {
            Ok(details) => details,
            Err(error) => return Visit::Problem { path, error },
        };
        let is_first = self.levels.is_empty();
        if attributes.kind == FileKind::Directory && (self.wants.recurse || is_first) {
            self.entering = Some((attributes.object, path.clone()));
        }
        Visit::Node(Box::new(Node { path, depth: self.levels.len(), attributes, target, xattrs, content }))
    }
}

impl Level {
    fn empty(directory: ObjectId, path: Vec<u8>) -> Self {
        Self { directory, path, listing: Listing::Done, names: VecDeque::new(), pending: VecDeque::new() }
    }

    /// Lists on when the names run out. What was listed before an error is kept.
    async fn fill(&mut self, filesystem: &FileSystem) -> Result<(), ZplError> {
        let Listing::From(mut at) = self.listing else { return Ok(()) };
        if !self.names.is_empty() {
            return Ok(());
        }
        let is_first = at == Cursor::START;
        let goal = if is_first { SORT_MAX } else { BATCH };
        let mut found: Vec<DirEntry> = Vec::new();
        let mut result = Ok(());
        self.listing = Listing::Done;
        while found.len() < goal {
            match filesystem.list(self.directory, at, BATCH).await {
                Ok(batch) => {
                    let Some(last) = batch.last() else { break };
                    at = last.next;
                    found.extend(batch);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if found.len() >= goal {
            self.listing = Listing::From(at);
        } else if is_first {
            found.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.names.extend(found.into_iter().map(|entry| (entry.name, entry.object)));
        result
    }

    fn read_ahead(&mut self, handle: &Handle, filesystem: &FileSystem, wants: Wants) {
        while self.pending.len() < LOOK_AHEAD
            && let Some((name, object)) = self.names.pop_front()
        {
            let path = if self.path.is_empty() { name } else { [&self.path[..], b"/", &name].concat() };
            let details = handle.spawn(Class::Issue, details(filesystem.clone(), object, wants));
            self.pending.push_back(Pending { path, details });
        }
    }
}

async fn details(filesystem: FileSystem, object: ObjectId, wants: Wants) -> Result<Details, ZplError> {
    let attributes = filesystem.attributes(object).await?;
    let target = match attributes.kind {
        FileKind::Symlink => Some(filesystem.read_link(object).await?),
        _ => None,
    };
    let xattrs = if wants.xattrs { filesystem.xattrs(object).await } else { Ok(BTreeMap::new()) };
    let mut content = None;
    if attributes.kind == FileKind::File && attributes.size_bytes <= wants.content_max_bytes {
        content = match filesystem.open_file(object).await {
            Ok(file) => file.read(0, attributes.size_bytes as usize).await.ok(),
            Err(_) => None,
        };
    }
    Ok(Details { attributes, target, xattrs, content })
}
