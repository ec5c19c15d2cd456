//! The trees of blocks that a walk goes through, and their intent logs.
//!
//! **A tree over time.** A view has its trees in an order: the MOS, the datasets by object number, the destroyed datasets. In a view of the same
//! txg a tree has the same number. In a view of a later txg it must be found again, and a dataset's object does not tell: a snapshot that was taken
//! meanwhile has the blocks that its head had, and a receive or a rollback gives a head another tree. Its *deadlist* tells: a
//! snapshot takes over the deadlist of its head, and a tree that changes its dataset takes its deadlist along. (An object number that was freed may
//! come again, so directory, guid and txg have to fit too.) A tree that is not found again by this is walked anew, which costs time alone.

use std::cmp::Ordering;
use std::sync::Arc;

use cenote_codec::crypt::DatasetKey;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::objset::ObjsetPhys;
use cenote_format::zil_header::ZilHeader;
use cenote_spa::View;
pub(crate) use cenote_spa::{TreeHistory, WalkedTree};
use cenote_vdev::queue::QueueClass;
use cenote_zil::Chain;
use cenote_zio::{Bookmark, ReadContext};

use crate::resume::Resume;
use crate::visit::{Item, Origin, Start};

/// Blocks of one intent log at most: a chain that long took more than a txg to write.
const LOG_BLOCKS_MAX: usize = 1 << 20;
/// Datasets that cannot be read, each of which is told of.
const TOLD_MAX: usize = 1000;
/// The objset of destroyed datasets in bookmarks (`ZB_DESTROYED_OBJSET`).
pub(crate) const DESTROYED: ObjsetId = ObjsetId(u64::MAX);

/// A tree of blocks.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) bp: Blkptr,
    pub(crate) objset: ObjsetId,
    pub(crate) key: Option<Arc<DatasetKey>>,
    /// Blocks born up to this txg belong to an older snapshot.
    pub(crate) born_after: Txg,
    /// How far a destroyed dataset's blocks are freed.
    pub(crate) resume: Option<Resume>,
    /// How a dataset's tree is found again; none of the MOS and of destroyed datasets.
    pub(crate) history: Option<TreeHistory>,
    /// A head's intent log is in use; what a snapshot's header says of one is history.
    pub(crate) has_log: bool,
}

impl Tree {
    fn mos(pool: &View) -> Self {
        let (bp, objset) = (pool.mos().root(), ObjsetId(0));
        Self { bp, objset, key: None, born_after: Txg(0), resume: None, history: None, has_log: false }
    }

    /// The rest of a destroyed dataset.
    pub(crate) fn destroyed(bp: Blkptr, born_after: Txg, resume: Option<Resume>) -> Self {
        Self { bp, objset: DESTROYED, key: None, born_after, resume, history: None, has_log: false }
    }

    /// Whether it has blocks of its own. Where nothing was written since the snapshot all blocks, the root included, are the snapshot's.
    pub(crate) fn has_blocks(&self) -> bool {
        self.bp.birth() > self.born_after
    }

    /// Its root, to be walked from `start`.
    pub(crate) fn item(&self, tree: usize, start: Start, max_txg: Option<Txg>, keeps_known: bool) -> Item {
        debug_assert!(!self.bp.is_hole(), "a tree has a root");
        let origin = Origin {
            tree,
            objset: self.objset,
            key: self.key.clone(),
            min_txg: self.born_after,
            max_txg,
            resume: self.resume,
            start,
            keeps_known,
            has_stops: true,
        };
        Item::root(self.bp, origin)
    }
}

/// The trees of a view, and what could not be read of them.
pub(crate) struct Listing {
    pub(crate) trees: Vec<Tree>,
    /// Datasets that cannot be read.
    pub(crate) problems: Vec<String>,
    /// Objects that are not valid, and so may be datasets. A walk of the MOS reports them too.
    pub(crate) invalid: Vec<String>,
    /// Why it ends before the last dataset, if it does. Those after it are not destroyed: they are not known.
    pub(crate) cut_off: Option<String>,
}

/// Adds to what is told of, up to a bound.
fn tell(texts: &mut Vec<String>, text: String) {
    match texts.len().cmp(&TOLD_MAX) {
        Ordering::Less => texts.push(text),
        Ordering::Equal => texts.push("and more datasets that cannot be read".into()),
        Ordering::Greater => {}
    }
}

/// The MOS, and every dataset that it has as an object.
pub(crate) async fn objsets(pool: &View) -> Listing {
    let mos = pool.mos();
    let (mut problems, mut invalid, mut cut_off) = (Vec::new(), Vec::new(), None);
    let mut trees = vec![Tree::mos(pool)];
    let mut from = ObjectId(0);
    loop {
        let batch = match mos.next_objects(from).await {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                cut_off = Some(format!("looking for datasets: {error}"));
                break;
            }
        };
        from = batch.next;
        for (object, dnode) in batch.objects {
            let dnode = match dnode {
                Ok(dnode) => dnode,
                Err(error) => {
                    tell(&mut invalid, error.to_string());
                    continue;
                }
            };
            if dnode.phys().bonus_type != DmuType::DSL_DATASET {
                continue;
            }
            match dnode.bonus(DslDatasetPhys::parse) {
                Ok(phys) if phys.bp.is_hole() => {}
                Ok(phys) => {
                    let key = pool.dsl().loaded_key_of_dir(phys.dir).await.ok().flatten();
                    let taken = phys.is_snapshot().then_some(phys.creation_txg);
                    let (deadlist, dir, guid) = (phys.deadlist, phys.dir, phys.guid);
                    trees.push(Tree {
                        bp: phys.bp,
                        objset: ObjsetId(object.0),
                        key,
                        born_after: phys.prev_snapshot_txg,
                        resume: None,
                        history: Some(TreeHistory { deadlist, dir, guid, taken }),
                        has_log: !phys.is_snapshot(),
                    });
                }
                Err(error) => tell(&mut problems, format!("dataset object {object}: {error}")),
            }
        }
    }
    debug_assert!(trees.is_sorted_by_key(|tree| tree.objset), "trees are in the order of a cursor");
    Listing { trees, problems, invalid, cut_off }
}

/// The header of a head's intent log.
async fn log_header(pool: &View, head: &Tree) -> Option<ZilHeader> {
    assert!(head.has_log, "a snapshot's log is history");
    let context = ReadContext::new(Bookmark::objset(head.objset), head.key.as_deref()).of_class(QueueClass::Scrub);
    let block = pool.dmu().read(&head.bp, context).await.ok()?;
    Some(ObjsetPhys::parse(&block, head.bp.byte_order()).ok()?.zil_header)
}

/// The log blocks of a head's claimed intent log, and the data blocks that its records point to, as far as they were found. A log that is not
/// claimed is being written: its next block is allocated and is not there, and another may be on some of its devices so far.
pub(crate) async fn claimed_log(pool: &View, head: &Tree) -> Vec<Blkptr> {
    let mut found = Vec::new();
    let Some(header) = log_header(pool, head).await.filter(|header| header.claim_txg.0 != 0) else { return found };
    let mut chain = Chain::new(pool.dmu().zio(), header);
    while let Some(link) = chain.next().await.filter(|link| link.content.is_some()) {
        if found.len() >= LOG_BLOCKS_MAX {
            break;
        }
        found.extend(chain.new_blocks(&link));
    }
    found
}

/// The log blocks of a head's intent log whose space is part of the pool's state, and the data blocks that claimed records
/// point to. A chain simply ends where the next block is not there.
pub(crate) async fn intent_log(pool: &View, head: &Tree) -> Vec<Blkptr> {
    let mut found = Vec::new();
    let Some(header) = log_header(pool, head).await else { return found };
    let is_claimed = header.claim_txg.0 != 0;
    let mut chain = Chain::new(pool.dmu().zio(), header);
    while let Some(link) = chain.next().await {
        if found.len() >= LOG_BLOCKS_MAX || !(is_claimed || link.pointer.birth() <= pool.txg()) {
            break;
        }
        found.extend(chain.new_blocks(&link));
    }
    found
}

/// A bookmark for blocks that belong to no object.
pub(crate) fn loose(level: i8) -> Bookmark {
    Bookmark { objset: DESTROYED, object: ObjectId(0), level, block: BlockId(0) }
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::Guid;

    use super::*;

    #[test]
    fn a_tree_is_found_again_by_its_deadlist() {
        let head = TreeHistory { deadlist: ObjectId(9), dir: ObjectId(5), guid: Guid(1), taken: None };
        let walked = WalkedTree { history: head, born_after: Txg(0), txg: Txg(10) };
        let other = |deadlist, dir, guid, taken: Option<u64>| {
            let (deadlist, dir, guid) = (ObjectId(deadlist), ObjectId(dir), Guid(guid));
            walked.is_of(&TreeHistory { deadlist, dir, guid, taken: taken.map(Txg) })
        };
        assert!(other(9, 5, 1, None), "itself");
        assert!(other(9, 5, 2, Some(11)), "its snapshot, taken later");
        assert!(!other(9, 5, 2, Some(10)), "an older snapshot whose deadlist has the number of one that went");
        assert!(!other(9, 6, 2, Some(11)) && !other(9, 5, 2, None), "another dataset with such a deadlist");
        assert!(!other(8, 5, 1, None), "it has got another tree");
    }
}
