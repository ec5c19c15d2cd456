//! Walking a directory tree, depth first, with the next entries already being read.
//!
//! Whatever a pool holds, a walk's memory has a bound. Details that are read ahead come out of [`AHEAD_BYTES`], on all levels
//! together; extended attributes of a file beyond [`XATTRS_AHEAD_BYTES`] are read when its turn comes. Names that are listed and
//! not handed out yet are no more than [`NAMES_MAX`] and a few on each level. Paths are no longer than [`PATH_MAX_BYTES`].
//!
//! A name that a directory has twice (which only a hand that made the blocks can do) is handed out once: a link, and then a file of
//! the same name, would lead who unpacks an archive out of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
/// Details that are read ahead, on all levels together, in bytes.
const AHEAD_BYTES: u64 = 64 << 20;
/// Extended attributes of one entry that are read ahead, in bytes.
const XATTRS_AHEAD_BYTES: usize = 256 << 10;
/// What an entry's details take beside its path, its attributes and its content.
const DETAILS_BYTES: u64 = 1 << 10;
/// Names that were listed on all levels together; a directory beyond is listed [`BATCH_MIN`] at a time.
const NAMES_MAX: usize = 4 * SORT_MAX;
/// Entries asked for at a time where so many are waiting.
const BATCH_MIN: usize = 64;
/// The length of a path at most, in bytes. Linux takes no more than 4096 in one call.
const PATH_MAX_BYTES: usize = 32 << 10;

/// Extended attributes by name.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

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
    pub(crate) xattrs: Result<Xattrs, ZplError>,
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
    /// Bytes of details that are read ahead.
    ahead: Arc<AtomicU64>,
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
    /// Entries that are not handed out, and why.
    refused: VecDeque<(Vec<u8>, ZplError)>,
}

enum Listing {
    From(Cursor),
    Done,
}

struct Pending {
    path: Vec<u8>,
    details: Join<(Result<Details, ZplError>, Charge)>,
}

struct Details {
    attributes: Attributes,
    target: Option<Vec<u8>>,
    /// None where they are too many to be read ahead.
    xattrs: Result<Option<Xattrs>, ZplError>,
    content: Option<Block>,
}

impl Details {
    fn bytes(&self) -> u64 {
        let xattrs = self.xattrs.as_ref().ok().and_then(Option::as_ref);
        let xattrs: usize = xattrs.into_iter().flatten().map(|(name, value)| name.len() + value.len()).sum();
        let others = self.target.as_ref().map_or(0, Vec::len) + self.content.as_ref().map_or(0, |block| block.len());
        (xattrs + others) as u64
    }
}

/// A share of what may be read ahead; given back when dropped.
struct Charge {
    ahead: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// As much as the details of an entry may take until they are there.
    fn new(ahead: &Arc<AtomicU64>, bytes: u64) -> Self {
        ahead.fetch_add(bytes, Ordering::Relaxed);
        Self { ahead: ahead.clone(), bytes }
    }

    /// They are there, and take no more than this.
    fn shrink(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.ahead.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ahead.fetch_sub(self.bytes, Ordering::Relaxed);
    }
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
            ahead: Arc::default(),
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
            return Some(self.hand_out(Vec::new(), details).await);
        }
        if let Some((directory, path)) = self.entering.take() {
            if let Some(what) = self.refuses(directory, &path) {
                self.entering = None;
                // The user has been told of the directory and expects to be told of its end.
                self.levels.push(Level::empty(directory, path.clone()));
                return Some(Visit::Problem { path, error: ZplError::Corrupt { object: directory.0, what } });
            }
            self.levels.push(Level { listing: Listing::From(Cursor::START), ..Level::empty(directory, path) });
        }
        let names: usize = self.levels.iter().map(|level| level.names.len()).sum();
        let level = self.levels.last_mut()?;
        if let Err(error) = level.fill(&self.filesystem, names < NAMES_MAX).await {
            return Some(Visit::Problem { path: level.path.clone(), error });
        }
        if let Some((name, error)) = level.refused.pop_front() {
            return Some(Visit::Problem { path: joined(&level.path, name), error });
        }
        level.read_ahead(&self.handle, &self.filesystem, self.wants, &self.ahead);
        let Some(Pending { path, details }) = level.pending.pop_front() else {
            self.levels.pop();
            return Some(Visit::Leave);
        };
        let details = match details.await {
            // From here on it is the caller's memory.
            Ok((details, _charge)) => details,
            Err(error) => {
                Err(ZplError::Corrupt { object: 0, what: format!("the read did not come to an end: {error}") })
            }
        };
        Some(self.hand_out(path, details).await)
    }

    fn refuses(&mut self, directory: ObjectId, path: &[u8]) -> Option<String> {
        if self.levels.len() >= DEPTH_MAX {
            return Some(format!("deeper than {DEPTH_MAX} directories"));
        }
        if path.len() > PATH_MAX_BYTES {
            return Some(format!("a path of more than {PATH_MAX_BYTES} bytes"));
        }
        let is_new = self.seen.insert(directory.0);
        (!is_new).then(|| "a directory that is linked twice, or holds itself".to_owned())
    }

    async fn hand_out(&mut self, path: Vec<u8>, details: Result<Details, ZplError>) -> Visit {
        let Details { attributes, target, xattrs, content } = match details {
            Ok(details) => details,
            Err(error) => return Visit::Problem { path, error },
        };
        let xattrs = match xattrs {
            Ok(Some(xattrs)) => Ok(xattrs),
            Ok(None) => self.filesystem.xattrs(attributes.object).await,
            Err(error) => Err(error),
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
        let listing = Listing::Done;
        Self { directory, path, listing, names: VecDeque::new(), pending: VecDeque::new(), refused: VecDeque::new() }
    }

    /// Lists on when the names run out, a little only where there is not `is_room` for more. What was listed before an error
    /// is kept.
    async fn fill(&mut self, filesystem: &FileSystem, is_room: bool) -> Result<(), ZplError> {
        let Listing::From(mut at) = self.listing else { return Ok(()) };
        if !self.names.is_empty() {
            return Ok(());
        }
        let is_first = at == Cursor::START;
        let batch = if is_room { BATCH } else { BATCH_MIN };
        let goal = if is_first && is_room { SORT_MAX } else { batch };
        let mut found: Vec<DirEntry> = Vec::new();
        let mut result = Ok(());
        self.listing = Listing::Done;
        while found.len() < goal {
            match filesystem.list(self.directory, at, batch).await {
                Ok(listed) => {
                    let Some(last) = listed.last() else { break };
                    at = last.next;
                    found.extend(listed);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if found.len() >= goal {
            self.listing = Listing::From(at);
            // Of two of a name only one can be found by it. (Where names are folded, that is not so of two different ones.)
            for entry in found {
                match filesystem.lookup(self.directory, &entry.name).await {
                    Ok(object) if object != entry.object => self.refused.push_back((entry.name, twice(self.directory))),
                    _ => self.names.push_back((entry.name, entry.object)),
                }
            }
            return result;
        }
        let mut found: Vec<(Vec<u8>, ObjectId)> = found.into_iter().map(|entry| (entry.name, entry.object)).collect();
        if is_first {
            found.sort();
        }
        for (name, object) in found {
            if self.names.back().is_some_and(|(before, _)| *before == name) {
                self.refused.push_back((name, twice(self.directory)));
            } else {
                self.names.push_back((name, object));
            }
        }
        result
    }

    fn read_ahead(&mut self, handle: &Handle, filesystem: &FileSystem, wants: Wants, ahead: &Arc<AtomicU64>) {
        let xattrs = if wants.xattrs { XATTRS_AHEAD_BYTES as u64 } else { 0 };
        while self.pending.len() < LOOK_AHEAD
            && let Some((name, object)) = self.names.pop_front()
        {
            let own = DETAILS_BYTES + (self.path.len() + name.len()) as u64;
            let worst = own + xattrs + wants.content_max_bytes;
            // The one whose turn it is is read in any case.
            if !self.pending.is_empty() && ahead.load(Ordering::Relaxed) + worst > AHEAD_BYTES {
                self.names.push_front((name, object));
                break;
            }
            let mut charge = Charge::new(ahead, worst);
            let (path, filesystem) = (joined(&self.path, name), filesystem.clone());
            let details = handle.spawn(Class::Issue, async move {
                let details = details(filesystem, object, wants).await;
                charge.shrink(own + details.as_ref().map_or(0, Details::bytes));
                (details, charge)
            });
            self.pending.push_back(Pending { path, details });
        }
    }
}

fn joined(path: &[u8], name: Vec<u8>) -> Vec<u8> {
    if path.is_empty() { name } else { [path, b"/", &name].concat() }
}

fn twice(directory: ObjectId) -> ZplError {
    ZplError::Corrupt { object: directory.0, what: "a directory has this name twice: one of them is left out".into() }
}

async fn details(filesystem: FileSystem, object: ObjectId, wants: Wants) -> Result<Details, ZplError> {
    let attributes = filesystem.attributes(object).await?;
    let target = match attributes.kind {
        FileKind::Symlink => Some(filesystem.read_link(object).await?),
        _ => None,
    };
    let xattrs = match wants.xattrs {
        true => filesystem.xattrs_within(object, XATTRS_AHEAD_BYTES).await,
        false => Ok(Some(BTreeMap::new())),
    };
    let mut content = None;
    if attributes.kind == FileKind::File && attributes.size_bytes <= wants.content_max_bytes {
        content = match filesystem.open_file(object).await {
            Ok(file) => file.read(0, attributes.size_bytes as usize).await.ok(),
            Err(_) => None,
        };
    }
    Ok(Details { attributes, target, xattrs, content })
}
