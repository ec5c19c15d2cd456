//! The changes of a file system from an earlier state to a later one.
//!
//! The objects that can have changed are those in blocks of dnodes born after the earlier state: that is all that is read of the two, but
//! what is needed to name things. An object that cannot be read is told, and the comparison goes on.

use std::fmt::Display;

use cenote_dmu::{DmuError, DmuErrorKind, Object, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{SLOT_BYTES, dnodes_in_block};
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::zap::int_key_name;
use cenote_format::zpl::{MASTER_NODE, master_node};

use crate::{FileKind, FileSystem, PathFinder, Time, ZplError};

/// The path of a file that was removed and is still in use.
const ON_DELETE_QUEUE: &[u8] = b"(on_delete_queue)";

/// The way in which a file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Its contents or attributes.
    Modified,
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It has this path now.
    Renamed(&'a [u8]),
    /// It has so many more links.
    Links(i128),
}

/// A file that changed.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// How.
    pub change: Change<'a>,
    /// Its path; of one that was renamed, the former.
    pub path: &'a [u8],
    /// Its kind.
    pub kind: FileKind,
    /// The time of its last change.
    pub at: Time,
}

/// The listener of a comparison.
pub trait Differences {
    /// The reason why the found state cannot be used.
    type Error: From<ZplError>;

    /// Told of a file that changed.
    ///
    /// # Errors
    /// It cannot be taken: the comparison ends.
    fn changed(&mut self, changed: &Changed<'_>) -> Result<(), Self::Error>;

    /// Told what could not be compared.
    fn unreadable(&mut self, what: String);
}

/// Compares two states of a file system, given with their names, of which the earlier one is of the txg `since`.
///
/// # Errors
/// A state cannot be read at all, or its differences cannot be taken.
pub async fn diff<D: Differences>(
    (from, earlier): (String, &FileSystem),
    (to, later): (String, &FileSystem),
    since: Txg,
    found: &mut D,
) -> Result<(), D::Error> {
    let (from, to) = (Side::open(from, earlier).await?, Side::open(to, later).await?);
    Diff { found, from, to }.walk(since).await
}

/// The facts of an object.
#[derive(Clone, Copy)]
struct Stats {
    kind: FileKind,
    links: u64,
    generation: u64,
    changed: Time,
}

/// An object on one side. Its attributes may be known where its path is not.
struct Seen {
    stats: Option<Stats>,
    path: Path,
}

enum Path {
    Found(Vec<u8>),
    /// There is no such object, or no name for it in its last parent.
    None,
    /// The object is no file.
    NoFile,
    Failed(ZplError),
}

/// One of the two states.
struct Side {
    name: String,
    filesystem: FileSystem,
    paths: PathFinder,
    shares: Option<ObjectId>,
    unlinked: Option<Zap>,
}

impl Side {
    async fn open(name: String, filesystem: &FileSystem) -> Result<Self, ZplError> {
        let objset = filesystem.objset().clone();
        let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
        let shares = master.find_u64(master_node::SHARES_DIR).await?.map(ObjectId);
        let unlinked = match filesystem.unlinked_set() {
            Some(object) => Some(Zap::open(objset.object(object).await?).await?),
            None => None,
        };
        Ok(Self { name, paths: PathFinder::new(filesystem), filesystem: filesystem.clone(), shares, unlinked })
    }

    async fn look(&mut self, object: ObjectId) -> Seen {
        let nothing = |path| Seen { stats: None, path };
        let dnode = match self.filesystem.dnode(object).await {
            Ok(dnode) => dnode,
            Err(error) => return nothing(path_of_error(error)),
        };
        if !matches!(dnode.phys().bonus_type, DmuType::SA | DmuType::ZNODE) {
            return nothing(Path::NoFile);
        }
        let attributes = match self.filesystem.attributes_of(&dnode).await {
            Ok(attributes) => attributes,
            Err(error) => return nothing(Path::Failed(error)),
        };
        let stats = Stats {
            kind: attributes.kind,
            links: attributes.link_count,
            generation: attributes.generation,
            changed: attributes.changed,
        };
        let path = match self.is_unlinked(object).await {
            Ok(true) => Path::Found(ON_DELETE_QUEUE.to_vec()),
            Ok(false) => match self.paths.path(object).await {
                Ok(path) => Path::Found(path),
                Err(error) => path_of_error(error),
            },
            Err(error) => Path::Failed(error.into()),
        };
        Seen { stats: Some(stats), path }
    }

    async fn is_unlinked(&self, object: ObjectId) -> Result<bool, DmuError> {
        match &self.unlinked {
            Some(queue) => Ok(queue.lookup(int_key_name(object.0).as_bytes()).await?.is_some()),
            None => Ok(false),
        }
    }
}

fn path_of_error(error: ZplError) -> Path {
    match error {
        ZplError::NoEntry => Path::None,
        ZplError::Dmu(error) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Path::None,
        other => Path::Failed(other),
    }
}

struct Diff<'a, D> {
    found: &'a mut D,
    from: Side,
    to: Side,
}

impl<D: Differences> Diff<'_, D> {
    fn fail(&mut self, what: impl Display) {
        self.found.unreadable(what.to_string());
    }

    fn tell(&mut self, change: Change<'_>, path: &[u8], stats: &Stats) -> Result<(), D::Error> {
        self.found.changed(&Changed { change, path, kind: stats.kind, at: stats.changed })
    }

    /// Goes through the blocks of dnodes of the later side that are younger than `since`, in order, holes too: what the
    /// earlier side has there is gone.
    async fn walk(&mut self, since: Txg) -> Result<(), D::Error> {
        let meta = self.to.filesystem.objset().meta_dnode();
        let phys = meta.phys();
        let shift = phys.blkptrs_per_indirect_shift();
        let slots = meta.block_bytes() / SLOT_BYTES as u64;
        let top = phys.levels.saturating_sub(1);
        let mut left: Vec<(Blkptr, u8, u64)> =
            phys.blkptrs().iter().enumerate().rev().map(|(index, bp)| (*bp, top, index as u64)).collect();
        while let Some((bp, level, block)) = left.pop() {
            if bp.is_hole() {
                // Holes from before they had births say nothing of their age: the earlier side is asked in any case.
                let span = slots.saturating_mul(1_u64.checked_shl(u32::from(level) * shift).unwrap_or(u64::MAX));
                let first = block.saturating_mul(span);
                self.freed(first, first.saturating_add(span)).await?;
                continue;
            }
            if bp.birth() <= since {
                continue;
            }
            if level == 0 {
                self.dnodes(&meta, BlockId(block), slots).await?;
                continue;
            }
            let context = meta.context(level, BlockId(block));
            let is_sound = bp.level() == level;
            match meta.dmu().read(&bp, context).await {
                Ok(bytes) if is_sound => {
                    let base = block.saturating_mul(bytes.len() as u64 / Blkptr::SIZE as u64);
                    let below: Vec<_> = Blkptr::array(&bytes, bp.byte_order())
                        .enumerate()
                        .map(|(index, bp)| (bp, level - 1, base.saturating_add(index as u64)))
                        .collect();
                    left.extend(below.into_iter().rev());
                }
                Ok(_) => self.fail(format_args!(
                    "{}: a pointer of level {} at level {level}",
                    self.to.name.clone(),
                    bp.level()
                )),
                Err(error) => {
                    let name = self.to.name.clone();
                    self.fail(format_args!("{name}: {error}; changes of the objects below are not shown"));
                }
            }
        }
        Ok(())
    }

    async fn dnodes(&mut self, meta: &Object, block: BlockId, slots: u64) -> Result<(), D::Error> {
        let first = block.0.saturating_mul(slots);
        let (bytes, order) = match meta.block(block).await {
            Ok(Some(found)) => found,
            Ok(None) => return self.freed(first, first.saturating_add(slots)).await,
            Err(error) => {
                let name = self.to.name.clone();
                self.fail(format_args!("{name}: {error}; changes of its objects are not shown"));
                return Ok(());
            }
        };
        let mut at = 0;
        for (slot, dnode) in dnodes_in_block(&bytes, order) {
            let slot = slot as u64;
            let start = first.saturating_add(slot);
            self.freed(first.saturating_add(at), start).await?;
            let object = ObjectId(start);
            match dnode {
                Ok(view) => {
                    at = slot + view.slots() as u64;
                    if object.0 != 0 {
                        self.used(object).await?;
                    }
                }
                Err(error) => {
                    at = slot + 1;
                    let name = self.to.name.clone();
                    self.fail(format_args!("{name} object {object}: {error}"));
                }
            }
        }
        self.freed(first.saturating_add(at), first.saturating_add(slots)).await
    }

    /// The objects that the earlier side has at `start..end` are gone.
    async fn freed(&mut self, start: u64, end: u64) -> Result<(), D::Error> {
        let objset = self.from.filesystem.objset().clone();
        let mut next = ObjectId(start.max(1));
        while next.0 < end {
            let batch = match objset.next_objects(next).await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(error) => {
                    let name = self.from.name.clone();
                    self.fail(format_args!("{name}: {error}; what was removed there is not shown"));
                    break;
                }
            };
            for (object, _) in batch.objects.iter().filter(|(object, _)| object.0 < end) {
                if Some(*object) == self.from.shares {
                    continue;
                }
                let seen = self.from.look(*object).await;
                match (seen.path, seen.stats) {
                    (Path::Found(path), Some(stats)) if path != ON_DELETE_QUEUE => {
                        self.tell(Change::Removed, &path, &stats)?;
                    }
                    (Path::Failed(error), _) => self.unknown(*object, false, &error),
                    _ => {}
                }
            }
            next = batch.next;
        }
        Ok(())
    }

    fn unknown(&mut self, object: ObjectId, is_to: bool, error: &ZplError) {
        let name = if is_to { &self.to.name } else { &self.from.name }.clone();
        self.fail(format_args!("Unable to determine path or stats for object {object} in {name}: {error}"));
    }

    /// An object that the later side has.
    async fn used(&mut self, object: ObjectId) -> Result<(), D::Error> {
        if Some(object) == self.to.shares {
            return Ok(());
        }
        let (from, to) = (self.from.look(object).await, self.to.look(object).await);
        let mut is_told = false;
        for (side, is_to) in [(&from, false), (&to, true)] {
            if let Path::Failed(error) = &side.path
                && !is_told
            {
                self.unknown(object, is_to, error);
                is_told = true;
            }
        }
        let is_dir = |side: &Seen| side.stats.is_some_and(|stats| stats.kind == FileKind::Directory);
        let links = |side: &Seen| side.stats.map_or(0, |stats| stats.links);
        let change = if is_dir(&from) || is_dir(&to) || links(&from) == 0 || links(&to) == 0 {
            0
        } else {
            i128::from(links(&to)) - i128::from(links(&from))
        };
        match (from, to) {
            (Seen { path: Path::Found(from), stats: Some(old) }, Seen { path: Path::Found(to), stats: Some(new) }) => {
                if old.generation != new.generation || old.kind != new.kind {
                    self.tell(Change::Removed, &from, &old)?;
                    return self.tell(Change::Added, &to, &new);
                }
                if old.changed == new.changed {
                    return Ok(());
                }
                match change {
                    0 if from == to => self.tell(Change::Modified, &from, &new),
                    0 => self.tell(Change::Renamed(&to), &from, &new),
                    _ => self.tell(Change::Links(change), if change > 0 { &from } else { &to }, &new),
                }
            }
            (_, Seen { path: Path::Found(path), stats: Some(stats) }) => match change {
                0 => self.tell(Change::Added, &path, &stats),
                _ => self.tell(Change::Links(change), &path, &stats),
            },
            (Seen { path: Path::Found(path), stats: Some(stats) }, _) => match change {
                0 => self.tell(Change::Removed, &path, &stats),
                _ => self.tell(Change::Links(change), &path, &stats),
            },
            _ => Ok(()),
        }
    }
}
