//! Where a scan is: the datasets that are still to be visited, and the next block.
//!
//! **On disk** it is OpenZFS's form: `bookmark` is the next block of the dataset at hand, and `queue` a ZAP of datasets that wait (number to the txg
//! that their blocks are younger than). OpenZFS visits the MOS, and then a dataset after the snapshot before it; when one is done, those that come after it (the next
//! snapshot or head, and clones) are put into the queue. So what is not visited yet is the dataset at hand, the queue, and all that comes after one of these.
//! A bookmark of zeros is the beginning.
//!
//! OpenZFS reads the blocks of deduplication tables before all others, by a cursor of its own (`ddt_bookmark`), and leaves them out of datasets up to a
//! class of tables. Cenote reads them where datasets have them. So beside a bookmark of ours no class is left out, and that cursor is at its end.
//!
//! **In memory** it is what the walk has: trees that were walked, each found again by its deadlist, whatever dataset has it by then.
//!
//! **Invariant.** None of the dataset at hand and those of the queue comes after another one of them: OpenZFS panics where it is to put a dataset into the
//! queue that is there already. So only the first datasets of a line that are left are written; those after them are visited again, if they were.
//! A walk visits a dataset after the snapshot before it, so that this loses nothing, but where datasets change their places.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{DmuError, Object, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DslDatasetPhys, ScanPhys, ZBookmark};
use cenote_format::ids::{BlockId, Guid, ObjectId, ObjsetId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_zio::Bookmark;

/// Datasets of a queue, and clones of a snapshot, at most: more is not credible.
const ENTRIES_MAX: usize = 1 << 24;
/// Objects from here on hold the space that users have; a walk does not stop in them, and OpenZFS's does not either.
const ACCOUNTING_OBJECTS: u64 = u64::MAX - 2;
/// The lowest class of deduplication tables (`DDT_CLASS_DITTO`), in which no pool has blocks.
const DITTO_CLASS: u64 = 0;

/// How a dataset's tree is found again at a later txg: a snapshot takes over the deadlist of its head, and a tree that changes its dataset takes its
/// deadlist along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHistory {
    /// Its deadlist.
    pub deadlist: ObjectId,
    /// The directory of its dataset.
    pub dir: ObjectId,
    /// The guid of its dataset.
    pub guid: Guid,
    /// The txg in which a snapshot was taken; none of a head.
    pub taken: Option<Txg>,
}

/// A tree that was walked: all of its blocks that were born after `born_after`, as they were at `txg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedTree {
    /// How it is found again.
    pub history: TreeHistory,
    /// Blocks born up to this txg belong to an older snapshot.
    pub born_after: Txg,
    /// The txg of the view in which it was walked.
    pub txg: Txg,
}

impl WalkedTree {
    /// Whether a tree of a later view is this one, maybe with later changes.
    #[must_use]
    pub fn is_of(&self, later: &TreeHistory) -> bool {
        let is_same = later.guid == self.history.guid;
        let is_its_snapshot = later.dir == self.history.dir && later.taken.is_some_and(|taken| taken > self.txg);
        later.deadlist == self.history.deadlist && later.deadlist.0 != 0 && (is_same || is_its_snapshot)
    }

    /// Whether a dataset has nothing left to be visited: it is this tree, and no snapshot before it was destroyed since.
    fn covers(&self, dataset: &DatasetTree) -> bool {
        self.is_of(&dataset.history) && self.born_after <= dataset.born_after
    }
}

/// How far a scan has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPlace {
    /// The next block: of level 0, or the root of its tree.
    pub next: Bookmark,
    /// The tree with the next block; none of the MOS, and where it is gone.
    pub current: Option<WalkedTree>,
    /// The trees that were walked whole.
    pub walked: Vec<WalkedTree>,
}

impl ScanPlace {
    /// The beginning: the MOS, and then all datasets.
    #[must_use]
    pub fn start() -> Self {
        Self { next: Bookmark::objset(ObjsetId(0)), current: None, walked: Vec::new() }
    }

    /// True where the walk is in the MOS.
    #[must_use]
    pub const fn is_in_mos(&self) -> bool {
        self.next.objset.0 == 0
    }

    /// True for a place that can be written down: both OpenZFS and Cenote go on from there.
    #[must_use]
    pub(crate) const fn can_be_kept(&self) -> bool {
        self.next.object.0 < ACCOUNTING_OBJECTS && (self.next.level == 0 || self.next.level == Bookmark::LEVEL_OBJSET)
    }

    /// From what is on disk. `txg`: that of the MOS.
    pub(super) async fn read(mos: &Objset, phys: &ScanPhys, txg: Txg) -> Result<Self, DmuError> {
        let at = phys.bookmark;
        if at.objset.0 == 0 {
            let start = Self::start();
            let is_inside = at.level == 0 && (at.object.0, at.block) != (0, 0);
            let next = Bookmark { object: at.object, level: 0, block: BlockId(at.block), ..start.next };
            return Ok(if is_inside && next.object.0 < ACCOUNTING_OBJECTS { Self { next, ..start } } else { start });
        }
        let datasets = datasets(mos).await?;
        let mut waiting: Vec<ObjectId> = vec![ObjectId(at.objset.0)];
        if phys.queue.0 != 0 {
            let queue = Zap::open(mos.object(phys.queue).await?).await?;
            let names = queue.entries(ENTRIES_MAX).await?;
            waiting.extend(names.iter().filter_map(|entry| number_of(entry.name())));
        }
        let mut left = BTreeSet::new();
        while let Some(object) = waiting.pop() {
            let Some(dataset) = datasets.get(&object).filter(|_| !left.contains(&object)) else { continue };
            left.insert(object);
            waiting.extend(dataset.next_snapshot);
            if let Some(clones) = dataset.next_clones {
                let clones = Zap::open(mos.object(clones).await?).await?.entries(ENTRIES_MAX).await?;
                waiting.extend(clones.iter().filter_map(|clone| clone.value.as_u64()).map(ObjectId));
            }
        }
        let walked =
            |dataset: &DatasetTree| WalkedTree { history: dataset.history, born_after: dataset.born_after, txg };
        let current = datasets.get(&ObjectId(at.objset.0));
        let root = Bookmark::objset(ObjsetId(at.objset.0));
        let is_inside = at.level == 0 && at.object.0 < ACCOUNTING_OBJECTS;
        let next =
            if is_inside { Bookmark { object: at.object, level: 0, block: BlockId(at.block), ..root } } else { root };
        Ok(Self {
            next,
            current: current.map(walked),
            walked: datasets
                .iter()
                .filter(|(object, _)| !left.contains(object))
                .map(|(_, tree)| walked(tree))
                .collect(),
        })
    }

    /// The words for it in this txg's MOS: the bookmark, the txgs of the dataset at hand, and the queue, if there is one to be.
    pub(super) async fn words(&self, mos: &Objset, phys: &mut ScanPhys) -> Result<Vec<(ObjectId, Txg)>, DmuError> {
        assert!(self.can_be_kept(), "a place that is written down is one that a scan goes on from");
        (phys.current_min_txg, phys.current_max_txg) = (phys.min_txg, phys.max_txg);
        phys.bookmark = ZBookmark::default();
        if self.is_in_mos() {
            if self.next.level == 0 {
                phys.bookmark = ZBookmark { object: self.next.object, block: self.next.block.0, ..phys.bookmark };
            }
            end_tables(phys);
            return Ok(Vec::new());
        }
        let datasets = datasets(mos).await?;
        let walked: BTreeMap<ObjectId, &WalkedTree> =
            self.walked.iter().map(|walked| (walked.history.deadlist, walked)).collect();
        let is_left = |tree: &DatasetTree| {
            !walked.get(&tree.history.deadlist).is_some_and(|walked| walked.covers(tree))
                && tree.has_blocks
                && tree.born_after < phys.max_txg
        };
        let left: BTreeSet<ObjectId> =
            datasets.iter().filter(|(_, tree)| is_left(tree)).map(|(object, _)| *object).collect();
        let firsts = firsts(&datasets, &left);
        let mut queue: Vec<(ObjectId, Txg)> = datasets
            .iter()
            .filter(|(object, _)| firsts.contains(object))
            .map(|(object, tree)| (*object, tree.born_after.max(phys.min_txg)))
            .collect();
        let is_current = |(object, _): &(ObjectId, Txg)| {
            let tree = &datasets[object];
            self.current.is_some_and(|current| current.covers(tree))
        };
        // Where the one at hand is gone, or comes after one that is left, the next begins at its root.
        let (at, next) = match queue.iter().position(is_current) {
            Some(at) => (at, self.next),
            None if queue.is_empty() => return Ok(queue),
            None => (0, Bookmark::objset(ObjsetId(0))),
        };
        let comes_after =
            |(object, _): &(ObjectId, Txg)| datasets[object].before.is_some_and(|it| firsts.contains(&it));
        assert!(!queue.iter().any(comes_after), "none comes after another one of them");
        let (object, min_txg) = queue.swap_remove(at);
        assert!(queue.iter().all(|(other, _)| *other != object), "the dataset at hand is not in the queue");
        let tree = &datasets[&object];
        phys.current_min_txg = min_txg;
        phys.current_max_txg = tree.history.taken.map_or(phys.max_txg, |taken| taken.min(phys.max_txg));
        phys.bookmark = ZBookmark {
            objset: ObjsetId(object.0),
            object: next.object,
            level: i64::from(next.level),
            block: next.block.0,
        };
        end_tables(phys);
        Ok(queue)
    }
}

/// Has OpenZFS not go through deduplication tables, which it does before the first bookmark alone: unless it has done so, all blocks are datasets'.
fn end_tables(phys: &mut ScanPhys) {
    if phys.bookmark != ZBookmark::default() && !phys.has_walked_tables() {
        phys.ddt_class_max = DITTO_CLASS;
        phys.ddt_bookmark = Default::default();
        phys.ddt_bookmark.class = DITTO_CLASS + 1;
    }
    assert!(phys.bookmark == ZBookmark::default() || phys.has_walked_tables(), "OpenZFS begins with the tables");
}

/// Those that are left and come after no other one that is left.
fn firsts(datasets: &BTreeMap<ObjectId, DatasetTree>, left: &BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
    // A dataset's blocks are younger than those of the snapshot before it, so that comes first here.
    let mut in_line: Vec<_> = datasets.iter().collect();
    in_line.sort_by_key(|(_, tree)| tree.born_after);
    let mut behind = BTreeSet::new();
    for (object, tree) in in_line {
        if tree.before.is_some_and(|before| left.contains(&before) || behind.contains(&before)) {
            behind.insert(*object);
        }
    }
    left.difference(&behind).copied().collect()
}

/// A dataset as a tree of blocks.
struct DatasetTree {
    history: TreeHistory,
    born_after: Txg,
    /// It has blocks of its own. Where nothing was written since the snapshot all are the snapshot's.
    has_blocks: bool,
    before: Option<ObjectId>,
    next_snapshot: Option<ObjectId>,
    next_clones: Option<ObjectId>,
}

/// All datasets, by their objects, as the txg that syncs has them. The MOS lists its objects as of the last txg; snapshots that this one has taken are found
/// beside their heads, and its new heads have nothing that a scan is for.
#[boxed]
async fn datasets(mos: &Objset) -> Result<BTreeMap<ObjectId, DatasetTree>, DmuError> {
    let mut left = Vec::new();
    let mut from = ObjectId(0);
    while let Some(batch) = mos.next_objects(from).await? {
        from = batch.next;
        // One that is not valid is not visited, and a scan tells of its block.
        let listed = batch.objects.into_iter().filter_map(|(object, dnode)| Some((object, dnode.ok()?)));
        left.extend(listed.filter(|(_, dnode)| is_dataset(dnode)).map(|(object, _)| object));
    }
    let mut found = BTreeMap::new();
    while let Some(object) = left.pop() {
        if found.contains_key(&object) {
            continue;
        }
        // One that this txg has destroyed is gone.
        let Ok(dnode) = mos.object(object).await else { continue };
        let Some(phys) =
            Some(&dnode).filter(|dnode| is_dataset(dnode)).and_then(|dnode| dnode.bonus(DslDatasetPhys::parse).ok())
        else {
            continue;
        };
        let some = |object: ObjectId| Some(object).filter(|object| object.0 != 0);
        let (before, next_snapshot) = (some(phys.prev_snapshot), some(phys.next_snapshot));
        left.extend(before.into_iter().chain(next_snapshot));
        let taken = phys.is_snapshot().then_some(phys.creation_txg);
        let history = TreeHistory { deadlist: phys.deadlist, dir: phys.dir, guid: phys.guid, taken };
        let (born_after, next_clones) = (phys.prev_snapshot_txg, some(phys.next_clones));
        let has_blocks = phys.bp.birth() > born_after;
        found.insert(object, DatasetTree { history, born_after, has_blocks, before, next_snapshot, next_clones });
    }
    Ok(found)
}

fn is_dataset(dnode: &Object) -> bool {
    dnode.phys().bonus_type == DmuType::DSL_DATASET
}

/// The queue's key of a dataset: its number in hexadecimal.
fn number_of(name: &[u8]) -> Option<ObjectId> {
    let text = std::str::from_utf8(name).ok()?;
    u64::from_str_radix(text, 16).ok().map(ObjectId)
}

/// Replaces the queue by one with these datasets. Returns its object.
pub(super) async fn write_queue(
    mos: &Objset,
    txg: Txg,
    old: ObjectId,
    datasets: &[(ObjectId, Txg)],
) -> Result<ObjectId, DmuError> {
    free_queue(mos, txg, old).await?;
    let names: Vec<(String, ZapValue)> =
        datasets.iter().map(|(dataset, min_txg)| (format!("{:x}", dataset.0), ZapValue::from_u64(min_txg.0))).collect();
    let entries: Vec<(&str, ZapValue)> = names.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    Ok(Zap::create_object(mos, txg, DmuType::SCAN_QUEUE, &entries).await?.id())
}

/// Frees the queue, if there is one.
pub(super) async fn free_queue(mos: &Objset, txg: Txg, queue: ObjectId) -> Result<(), DmuError> {
    if queue.0 != 0 {
        mos.object(queue).await?.free(txg);
    }
    Ok(())
}
