//! Walking a directory tree, depth first, reading the next entries ahead.
//!
//! A walk's memory is bounded for any pool. Details that are read ahead come out of [`AHEAD_BYTES`], on all levels together; a file's extended
//! attributes beyond [`XATTRS_AHEAD_BYTES`] are read in its turn. At most [`NAMES_MAX`] names, and a few more on each level, are listed but not
//! yet returned. Paths are no longer than [`PATH_MAX_BYTES`].
//!
//! A name that a directory has twice is returned once. Only forged blocks have such a directory; in an archive, a link and then a file with the
//! same name would lead the unpacking program out of its target. Directories of up to [`SORT_MAX`] entries are sorted, so that equal names are
//! neighbours. In a larger one each name is looked up, and only the entry that the look-up finds is returned. In a file system that normalises
//! names or ignores case, a look-up reads the whole directory; so hashes of names are remembered instead, at most [`SEEN_MAX`].

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_format::ids::ObjectId;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Handle, Join, boxed};
use cenote_zpl::{Attributes, CaseSensitivity, Cursor, DirEntry, FileKind, FileSystem, Listed, ZplError};

use crate::ObjectSet;

/// The maximum depth of directories. The deepest path that Linux accepts in one call has 2048; a tree made step by step may be deeper, but to
/// copy it, a descriptor per level must be held.
pub const DEPTH_MAX: usize = 4096;
/// Directories up to this many entries are walked in the order of their names; larger ones in the stored order.
const SORT_MAX: usize = 1 << 16;
/// Entries in one request.
const BATCH: usize = 1024;
/// Entries whose details are read ahead.
const LOOK_AHEAD: usize = 48;
/// Bytes of details that are read ahead at most, on all levels together.
const AHEAD_BYTES: u64 = 64 << 20;
/// Bytes of one entry's extended attributes that are read ahead at most.
const XATTRS_AHEAD_BYTES: usize = 256 << 10;
/// Memory for an entry's details in addition to its path, extended attributes and content.
const DETAILS_BYTES: u64 = 1 << 10;
/// Names listed but not yet returned, on all levels together. Beyond it a directory is listed [`BATCH_MIN`] names at a time.
const NAMES_MAX: usize = 4 * SORT_MAX;
/// Entries in one request while [`NAMES_MAX`] names are waiting.
const BATCH_MIN: usize = 64;
/// Names remembered by their hashes at most, on all levels together: up to 160 MiB.
const SEEN_MAX: usize = 8 << 20;
/// The maximum length of a path, in bytes. Linux accepts no more than 4096 in one call.
pub(crate) const PATH_MAX_BYTES: usize = 32 << 10;

/// Extended attributes by name.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The data that a walk reads for each entry in addition to its attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wants {
    /// Extended attributes.
    pub xattrs: bool,
    /// Content of files up to this size.
    pub content_max_bytes: u64,
    /// Enter directories.
    pub recurse: bool,
}

/// An entry with its details.
#[derive(Debug)]
pub struct Node {
    /// The path from the start of the walk, whose own path is empty.
    pub path: Vec<u8>,
    /// Levels below the start of the walk.
    pub depth: usize,
    /// Its attributes.
    pub attributes: Attributes,
    /// A link's target.
    pub target: Option<Vec<u8>>,
    /// Its extended attributes, if wanted.
    pub xattrs: Result<Xattrs, ZplError>,
    /// Its content, if wanted and small. Also `None` if it could not be read: another read gives the error.
    pub content: Option<Block>,
}

impl Node {
    /// The last part of the path.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }
}

/// A step of a walk.
#[derive(Debug)]
pub enum Visit {
    /// An entry. A directory's entries follow, unless [`Walk::prune`] is called.
    Node(Box<Node>),
    /// The end of the directory that was entered last and not yet left.
    Leave,
    /// An unreadable entry; the walk continues after it.
    Problem {
        /// The place.
        path: Vec<u8>,
        /// The fault.
        error: ZplError,
    },
}

/// A walk in progress.
pub struct Walk {
    handle: Handle,
    filesystem: FileSystem,
    wants: Wants,
    levels: Vec<Level>,
    seen: ObjectSet,
    /// Bytes of details that are read ahead.
    ahead: Arc<AtomicU64>,
    /// Hashes names to remember; its hashes are unpredictable.
    hasher: RandomState,
    /// The directory that was returned last, to be entered next.
    entering: Option<(ObjectId, Vec<u8>)>,
    /// The start, until the first step.
    start: Option<ObjectId>,
}

struct Level {
    directory: ObjectId,
    path: Vec<u8>,
    listing: Listing,
    names: VecDeque<(Vec<u8>, ObjectId)>,
    pending: VecDeque<Pending>,
    /// Entries that are not returned, and the reasons.
    refused: VecDeque<(Vec<u8>, ZplError)>,
    /// Hashes of names in a large directory, if names are normalised or their case is ignored.
    seen: HashSet<u64>,
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
    /// `None` if they are larger than [`XATTRS_AHEAD_BYTES`].
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

/// A share of the memory for reading ahead; returned when dropped.
struct Charge {
    ahead: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// Takes `bytes`: the most that the details of an entry can need, before they are read.
    fn new(ahead: &Arc<AtomicU64>, bytes: u64) -> Self {
        ahead.fetch_add(bytes, Ordering::Relaxed);
        Self { ahead: ahead.clone(), bytes }
    }

    /// Returns all but `bytes`, once the details are read and their size is known.
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
    pub fn new(handle: &Handle, filesystem: &FileSystem, start: ObjectId, wants: Wants) -> Self {
        Self {
            handle: handle.clone(),
            filesystem: filesystem.clone(),
            wants,
            levels: Vec::new(),
            seen: ObjectSet::default(),
            ahead: Arc::default(),
            hasher: RandomState::new(),
            entering: None,
            start: Some(start),
        }
    }

    /// Skips the directory that was returned last; there is no [`Visit::Leave`] for it.
    pub fn prune(&mut self) {
        self.entering = None;
    }

    /// The next step; `None` at the end.
    #[boxed]
    pub async fn next(&mut self) -> Option<Visit> {
        if let Some(start) = self.start.take() {
            let details = details(self.filesystem.clone(), start, self.wants).await;
            return Some(self.hand_out(Vec::new(), details).await);
        }
        if let Some((directory, path)) = self.entering.take() {
            if let Some(what) = self.refuses(directory, &path) {
                self.entering = None;
                // The caller got the directory and expects its end.
                self.levels.push(Level::empty(directory, path.clone()));
                return Some(Visit::Problem { path, error: ZplError::Corrupt { object: directory.0, what } });
            }
            self.levels.push(Level { listing: Listing::From(Cursor::START), ..Level::empty(directory, path) });
        }
        if self.levels.last()?.is_to_be_listed() {
            let sum = |count: fn(&Level) -> usize| self.levels.iter().map(count).sum::<usize>();
            let is_room = sum(|level| level.names.len()) < NAMES_MAX;
            let is_memory = sum(|level| level.seen.len()) < SEEN_MAX;
            let level = self.levels.last_mut()?;
            if let Err(error) = level.fill(&self.filesystem, &self.hasher, is_room, is_memory).await {
                return Some(Visit::Problem { path: level.path.clone(), error });
            }
        }
        let level = self.levels.last_mut()?;
        if let Some((name, error)) = level.refused.pop_front() {
            return Some(Visit::Problem { path: joined(&level.path, name), error });
        }
        level.read_ahead(&self.handle, &self.filesystem, self.wants, &self.ahead);
        let Some(Pending { path, details }) = level.pending.pop_front() else {
            self.levels.pop();
            return Some(Visit::Leave);
        };
        let details = match details.await {
            // From here on their memory belongs to the caller.
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
        Self {
            directory,
            path,
            listing: Listing::Done,
            names: VecDeque::new(),
            pending: VecDeque::new(),
            refused: VecDeque::new(),
            seen: HashSet::new(),
        }
    }

    /// True if no listed names are left, and the directory has more to list.
    fn is_to_be_listed(&self) -> bool {
        self.names.is_empty() && matches!(self.listing, Listing::From(_))
    }

    /// Continues the listing: up to [`SORT_MAX`] names at first and [`BATCH`] later, or [`BATCH_MIN`] without `is_room`. Names that were listed
    /// before an error are kept. With `is_memory`, hashes of names may be remembered.
    async fn fill(
        &mut self,
        filesystem: &FileSystem,
        hasher: &RandomState,
        is_room: bool,
        is_memory: bool,
    ) -> Result<(), ZplError> {
        let Listing::From(mut at) = self.listing else { return Ok(()) };
        let is_first = at == Cursor::START;
        let batch = if is_room { BATCH } else { BATCH_MIN };
        let goal = if is_first && is_room { SORT_MAX } else { batch };
        let mut found: Vec<DirEntry> = Vec::new();
        let mut result = Ok(());
        self.listing = Listing::Done;
        while found.len() < goal {
            match filesystem.list_with_odd(self.directory, at, batch).await {
                Ok(Listed { entries, odd }) => {
                    // One unreadable entry does not hide the others.
                    result = odd.map_or(result, Err);
                    let Some(last) = entries.last() else { break };
                    at = last.next;
                    found.extend(entries);
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
            self.sort(found);
            return result;
        }
        let is_folded = filesystem.case_sensitivity() != CaseSensitivity::Sensitive || filesystem.normalisation() != 0;
        for DirEntry { name, object, .. } in found {
            let refused = if is_folded {
                let hash = hasher.hash_one(&name);
                let is_new = if is_memory { self.seen.insert(hash) } else { !self.seen.contains(&hash) };
                (!is_new).then(|| twice(self.directory))
            } else {
                match filesystem.lookup(self.directory, &name).await {
                    Ok(there) => (there != object).then(|| twice(self.directory)),
                    Err(error) => Some(error),
                }
            };
            match refused {
                Some(error) => self.refused.push_back((name, error)),
                None => self.names.push_back((name, object)),
            }
        }
        result
    }

    /// Takes all entries of a directory, in the order of their names.
    fn sort(&mut self, mut found: Vec<DirEntry>) {
        found.sort_by(|a, b| (&a.name, a.object).cmp(&(&b.name, b.object)));
        for DirEntry { name, object, .. } in found {
            if self.names.back().is_some_and(|(before, _)| *before == name) {
                self.refused.push_back((name, twice(self.directory)));
            } else {
                self.names.push_back((name, object));
            }
        }
    }

    fn read_ahead(&mut self, handle: &Handle, filesystem: &FileSystem, wants: Wants, ahead: &Arc<AtomicU64>) {
        let xattrs = if wants.xattrs { XATTRS_AHEAD_BYTES as u64 } else { 0 };
        while self.pending.len() < LOOK_AHEAD
            && let Some((name, object)) = self.names.pop_front()
        {
            let own = DETAILS_BYTES + (self.path.len() + name.len()) as u64;
            let worst = own + xattrs + wants.content_max_bytes;
            // The next entry to return must be read in any case.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cenote_admin::NewPool;
    use cenote_dmu::Zap;
    use cenote_format::ids::BlockId;
    use cenote_format::zap::ZapValue;
    use cenote_format::zpl::{MASTER_NODE, master_node};
    use cenote_taskq::buf::Buf;
    use cenote_taskq::{Runtime, RuntimeOptions};
    use cenote_zpl::bulk::{MODE_FILE, NewEntry, NodeSpec};

    use super::*;
    use crate::testpool;

    /// Replaces every `from` in a directory's blocks by `to`, of the same length. The hashes on disk remain those of the old names.
    async fn forge(new: &NewPool, from: &[u8], to: &[u8]) {
        let directory = &new.root.0;
        for at in 0.. {
            let Some((block, _)) = directory.block(BlockId(at)).await.unwrap() else { break };
            let mut bytes = block.to_vec();
            while let Some(place) = bytes.windows(from.len()).position(|bytes| bytes == from) {
                bytes[place..place + to.len()].copy_from_slice(to);
            }
            directory.write_block(new.pool.txg(), at, Buf::copied_from(&bytes).freeze());
        }
    }

    /// Goal: no two entries with the same name are returned, however many a directory has. Method: half of the names are forged to equal those
    /// of the other half, with other files. Would go wrong if the last part of a large directory were not compared with the parts before it.
    #[test]
    fn a_name_that_a_directory_has_twice_is_handed_out_once() {
        const NAMES: usize = SORT_MAX / 2 + 300;
        for (count, is_folded) in [(20, false), (NAMES, false), (NAMES, true)] {
            let dir = tempfile::tempdir().unwrap();
            let image = dir.path().join("image");
            let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
            let handle = runtime.handle();
            let (names, refused) = runtime.block_on(async {
                let mut new = testpool::make(&handle, &image, 256 << 20).await;
                let (txg, root) = (new.pool.txg(), new.root.0.id());
                let mut entries = Vec::new();
                for prefix in ["first", "other"] {
                    let node = NodeSpec { mode: MODE_FILE | 0o644, parent: root, links: 1, ..NodeSpec::default() };
                    let file = new.files.new_node(txg, node.mode, 0).unwrap();
                    new.files.set_attributes(txg, &file, &node).await.unwrap();
                    let (object, mode) = (file.id(), node.mode);
                    entries.extend((0..count).map(|at| NewEntry {
                        name: format!("{prefix}{at:06}").into_bytes(),
                        object,
                        mode,
                    }));
                }
                new.files.write_entries(txg, &new.root.0, &entries).await.unwrap();
                forge(&new, b"other", b"first").await;
                if is_folded {
                    let master = new.files.objset().object(MASTER_NODE).await.unwrap();
                    let insensitive = ZapValue::from_u64(1);
                    Zap::put_entry(&master, txg, master_node::CASE_SENSITIVITY, Some(&insensitive)).await.unwrap();
                }
                let NewPool { pool, mut files, root: (directory, node) } = new;
                files.set_attributes(txg, &directory, &node).await.unwrap();
                pool.export().await.unwrap();

                let view = testpool::open(&handle, &image).await;
                let dataset = view.dsl().dataset("test").await.unwrap();
                let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
                let filesystem = FileSystem::open(objset).await.unwrap();
                let wants = Wants { recurse: true, ..Wants::default() };
                let root = filesystem.root();
                let mut walk = Walk::new(&handle, &filesystem, root, wants);
                let (mut names, mut refused) = (Vec::new(), 0);
                while let Some(visit) = walk.next().await {
                    match visit {
                        Visit::Node(node) if node.depth > 0 => names.push(node.path),
                        Visit::Problem { error, .. } => {
                            assert!(error.to_string().contains("this name twice"), "{error}");
                            refused += 1;
                        }
                        _ => {}
                    }
                }
                (names, refused)
            });
            assert_eq!((names.len(), refused), (count, count), "folded: {is_folded}");
            assert_eq!(names.into_iter().collect::<BTreeSet<_>>().len(), count);
        }
    }
}
