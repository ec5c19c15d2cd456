//! Stretches: changed objects whose dnodes stand side by side, in whole blocks of dnodes. The work on each object is done a stretch at a
//! time, on any core.
//!
//! ```text
//!   changed objects   3 9 40 41 77 …          400 433 …            in the order of their numbers
//!   dnode blocks      [ 0 ][ 1 ][ 2 ] …  ┆    [12][13] …           a block is one stretch's alone
//!   load              layer ─► tree           … any core
//!   levels            (all stretches together, places in order)    passed by where no object has blocks
//!   finish            what was lost, owners' sums, dnodes into their blocks     … any core
//!   put_synced        the new tree in the layer's place            … any core
//! ```
//! The end of a stretch follows from the numbers alone, and the results of stretches are put together in their order: so the same changes
//! give the same bytes however many cores there are and whichever is done first.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_codec::compress;
use cenote_format::blkptr::{Blkptr, CryptParams};
use cenote_format::dnode::{CORE_BYTES, DnodePhys, SLOT_BYTES};
use cenote_format::enums::Compress;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::needs::Needs;
use cenote_taskq::buf::Buf;
use cenote_taskq::{Class, Join, JoinError};
use cenote_zio::{ORDER, ReadyBlock, ReadyForm, Seal};

use super::killed::Killed;
use super::part::Part;
use super::shared::Shared;
use super::trees::Tree;
use super::userquota::{Accounting, Changes};
use crate::geometry::{SLOTS, is_special};
use crate::object::Object;
use crate::object::layer::Layer;
use crate::objset::Objset;
use crate::{DmuError, DmuErrorKind};

/// Objects of a stretch; more where its last block of dnodes has more.
const OBJECTS: usize = 512;
/// Objects of a stretch whose trees are read ahead of their turn.
const LOADED_MAX: usize = 128;

/// Trees of objects that stand side by side.
pub(super) struct Stretch {
    /// Which objset's part of the sync they are of.
    pub(super) part: usize,
    pub(super) trees: Vec<Tree>,
    /// Those of the trees that have blocks to be written, in order.
    pub(super) busy: Vec<usize>,
    /// Its result, where no object has blocks to be written.
    done: Option<Done>,
}

/// The result of a stretch.
pub(super) struct Done {
    pub(super) part: usize,
    pub(super) killed: Killed,
    pub(super) unused: Vec<Blkptr>,
    pub(super) needs: Needs,
    pub(super) owners: Changes,
    /// Dnodes that stand in the root block.
    pub(super) roots: Vec<(ObjectId, DnodePhys)>,
    pub(super) settled: Settled,
}

/// The dnodes that objects have on disk once all is stored. Readers go on asking layers until then.
pub(super) type Settled = Vec<(Object, Option<DnodePhys>)>;

/// The inputs that all stretches of an objset's part share.
#[derive(Clone)]
pub(super) struct Ways {
    shared: Arc<Shared>,
    objset: Objset,
    part: usize,
    accounting: Option<Accounting>,
    holes_have_births: bool,
    txg: Txg,
}

/// A tree that is being loaded; at once where only its dnode has changed, since handing that over takes longer.
enum Load {
    Done(Box<Tree>),
    Begun(Join<Result<Tree, DmuError>>),
}

impl Stretch {
    /// The meta-dnode alone, whose data are the others.
    pub(super) async fn of_meta(part: usize, of: &Part, txg: Txg) -> Result<Self, DmuError> {
        let meta = of.objset.meta_dnode();
        let mut trees = Vec::new();
        if let Some((dirty, synced)) = meta.take(txg) {
            trees.push(Tree::load(meta, dirty, synced, txg, of.policy.holes_have_births).await?);
        }
        let busy = (0..trees.len()).collect();
        Ok(Self { part, trees, busy, done: None })
    }

    /// The meta-dnode as it is now, if it has changed.
    pub(super) fn into_meta(mut self, shared: &Shared, part: &mut Part) -> Option<DnodePhys> {
        let mut meta = self.trees.pop()?;
        part.needs |= meta.count_killed(shared, &mut part.killed);
        Some(meta.head)
    }

    /// Levels of the highest of the trees that have blocks to be written.
    pub(super) fn levels(&self) -> u8 {
        self.busy.iter().map(|at| self.trees[*at].head.levels).max().unwrap_or(0)
    }

    /// Begins with a level, all below which is written.
    pub(super) fn begin_level(&mut self, level: u8) {
        self.busy.iter().for_each(|at| self.trees[*at].begin_level(level));
    }
}

/// Cuts changed objects into stretches.
pub(super) fn cut(changed: BTreeSet<ObjectId>) -> Vec<Vec<ObjectId>> {
    let mut stretches = Vec::new();
    let mut open: Vec<ObjectId> = Vec::new();
    for id in changed {
        if open.len() >= OBJECTS && open.last().is_some_and(|last| last.0 / SLOTS != id.0 / SLOTS) {
            stretches.push(std::mem::take(&mut open));
        }
        open.push(id);
    }
    if !open.is_empty() {
        stretches.push(open);
    }
    stretches
}

impl Ways {
    pub(super) fn new(shared: &Arc<Shared>, parts: &[Part], part: usize, txg: Txg) -> Self {
        let Part { objset, policy, .. } = &parts[part];
        Self {
            shared: shared.clone(),
            objset: objset.clone(),
            part,
            accounting: Accounting::of(objset.phys().flags),
            holes_have_births: policy.holes_have_births,
            txg,
        }
    }

    /// Loads the trees of objects. Where they have no blocks to write that is all there is to do, and it is done.
    pub(super) async fn load(self, ids: Vec<ObjectId>) -> Result<Stretch, DmuError> {
        let mut pending = VecDeque::new();
        let mut trees = Vec::with_capacity(ids.len());
        let mut objects = self.objset.loaded(&ids).into_iter();
        loop {
            while pending.len() < LOADED_MAX {
                let Some(object) = objects.next() else { break };
                let Some((dirty, synced)) = object.take(self.txg) else { continue };
                let reads_nothing = dirty.changes_no_block();
                let load = Tree::load(object, dirty, synced, self.txg, self.holes_have_births);
                pending.push_back(match reads_nothing {
                    true => Load::Done(Box::new(load.await?)),
                    false => Load::Begun(self.shared.dmu.handle().spawn(Class::Sync, load)),
                });
            }
            trees.push(match pending.pop_front() {
                Some(Load::Done(tree)) => *tree,
                Some(Load::Begun(join)) => join.await.map_err(|error| self.interrupted(&error))??,
                None => break,
            });
        }
        let busy: Vec<usize> = (0..trees.len()).filter(|at| trees[*at].has_blocks()).collect();
        let stretch = Stretch { part: self.part, trees, busy, done: None };
        if !stretch.busy.is_empty() {
            return Ok(stretch);
        }
        let done = self.finish(stretch).await?;
        Ok(Stretch { part: done.part, trees: Vec::new(), busy: Vec::new(), done: Some(done) })
    }

    /// All blocks of a stretch are written: counts the blocks that its trees have lost, by owner, and puts their dnodes into the blocks of
    /// the meta-dnode.
    pub(super) async fn finish(self, stretch: Stretch) -> Result<Done, DmuError> {
        if let Some(done) = stretch.done {
            return Ok(done);
        }
        let mut done = Done {
            part: stretch.part,
            killed: Killed::default(),
            unused: Vec::new(),
            needs: Needs::default(),
            owners: Changes::default(),
            roots: Vec::new(),
            settled: Vec::with_capacity(stretch.trees.len()),
        };
        let meta = self.objset.meta_dnode();
        let mut open: Option<(u64, Buf)> = None;
        for mut tree in stretch.trees {
            self.count(&mut tree, &mut done)?;
            let id = tree.object.id();
            if is_special(id) {
                done.settled.push((tree.object, Some(tree.head.clone())));
                done.roots.push((id, tree.head));
                continue;
            }
            let (block, slot) = (id.0 / SLOTS, (id.0 % SLOTS) as usize);
            let mut bytes = match open.take() {
                Some((at, bytes)) if at == block => bytes,
                before => {
                    if let Some((at, bytes)) = before {
                        self.put_dnodes(&meta, at, bytes).await?;
                    }
                    let found = meta.block(BlockId(block)).await?;
                    found.map_or_else(|| Buf::zeroed(meta.block_bytes() as usize), |(block, _)| block.into_buf())
                }
            };
            match self.objset.raw() {
                Some(raw) => patch_raw(&mut bytes, slot, &tree, raw.area(self.txg, id).as_deref())?,
                None => patch(&mut bytes, slot, &tree)?,
            }
            open = Some((block, bytes));
            done.settled.push((tree.object, (!tree.is_freed).then_some(tree.head)));
        }
        if let Some((at, bytes)) = open {
            self.put_dnodes(&meta, at, bytes).await?;
        }
        Ok(done)
    }

    /// Writes a block of dnodes. Of an objset that is written raw it has the seal that came with its objects, or that which it had.
    async fn put_dnodes(&self, meta: &Object, at: u64, bytes: Buf) -> Result<(), DmuError> {
        let bytes = bytes.freeze();
        let Some(raw) = self.objset.raw() else {
            meta.write_block(self.txg, at, bytes);
            return Ok(());
        };
        let seal = match raw.seal(self.txg, at) {
            Some(seal) => seal,
            None => {
                let before = meta.pointer(0, BlockId(at)).await?;
                let params = before.crypt_params().filter(|_| !before.is_hole());
                let seal =
                    params.map(|CryptParams { salt_bytes: salt, iv, mac, .. }| Seal { order: ORDER, salt, iv, mac });
                let what = || meta.error(DmuErrorKind::Corrupt(format!("dnodes of block {at} that have no seal")));
                match compress::is_all_zero(&bytes) {
                    true => seal.unwrap_or(Seal { order: ORDER, salt: [0; 8], iv: [0; 12], mac: [0; 16] }),
                    false => seal.ok_or_else(what)?,
                }
            }
        };
        let form = ReadyForm {
            compress: Compress::Off,
            logical_bytes: bytes.len() as u32,
            seal: Some(seal),
            is_redacted: false,
        };
        meta.write_ready(self.txg, at, ReadyBlock { bytes, form });
        Ok(())
    }

    fn interrupted(&self, error: &JoinError) -> DmuError {
        DmuError::new(self.objset.id(), ObjectId(0), DmuErrorKind::Interrupted(error.to_string()))
    }

    fn count(&self, tree: &mut Tree, done: &mut Done) -> Result<(), DmuError> {
        done.needs |= tree.count_killed(&self.shared, &mut done.killed);
        done.unused.append(&mut tree.unused);
        if let Some(accounting) = self.accounting.filter(|_| !is_special(tree.object.id())) {
            accounting.count(tree, &mut done.owners).map_err(|kind| tree.object.error(kind))?;
        }
        Ok(())
    }
}

/// Puts a dnode into its slots of a block.
fn patch(bytes: &mut Buf, slot: usize, tree: &Tree) -> Result<(), DmuError> {
    let start = slot * SLOT_BYTES;
    let target = bytes.get_mut(start..start + tree.head.slots() * SLOT_BYTES);
    let target = target.ok_or_else(|| tree.object.error(DmuErrorKind::Corrupt("a dnode beyond its block".into())))?;
    if tree.is_freed {
        target.fill(0);
    } else {
        target.copy_from_slice(&tree.head.emit());
    }
    Ok(())
}

/// The same in an objset that is written raw: what stands behind the bonus, up to the pointer to a spill block, is `area`, or as it was.
fn patch_raw(bytes: &mut Buf, slot: usize, tree: &Tree, area: Option<&[u8]>) -> Result<(), DmuError> {
    let start = slot * SLOT_BYTES;
    let head = &tree.head;
    let before = bytes.get(start..start + head.slots() * SLOT_BYTES).map(<[u8]>::to_vec);
    patch(bytes, slot, tree)?;
    let Some(before) = before.filter(|_| !tree.is_freed) else { return Ok(()) };
    let first = CORE_BYTES + usize::from(head.blkptr_count) * Blkptr::SIZE;
    let end = before.len() - head.spill.map_or(0, |_| Blkptr::SIZE);
    let tail = first + head.bonus.len()..end;
    let target = &mut bytes[start..start + before.len()];
    match area {
        Some(area) => {
            let len = area.len().min(end - first);
            target[first..first + len].copy_from_slice(&area[..len]);
        }
        None => target[tail.clone()].copy_from_slice(&before[tail]),
    }
    Ok(())
}

/// All of a stretch is on disk: its objects' new trees take the place of their layers, which come back.
pub(super) fn put_synced(settled: Settled, txg: Txg) -> Vec<Layer> {
    settled.into_iter().filter_map(|(object, synced)| object.put_synced(txg, synced)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However changed objects lie, stretches have them all in order, no block of dnodes is in two, and none is small but the last.
        #[test]
        fn a_block_of_dnodes_is_one_stretchs_alone(runs in prop::collection::vec((1_u64..5000, 1_u64..900), 0..12)) {
            let mut changed = BTreeSet::new();
            let mut at = 0;
            for (gap, count) in runs {
                changed.extend((at + gap..at + gap + count).map(ObjectId));
                at += gap + count;
            }
            let stretches = cut(changed.clone());
            prop_assert_eq!(stretches.concat(), changed.into_iter().collect::<Vec<_>>());
            for pair in stretches.windows(2) {
                let (last, first) = (pair[0][pair[0].len() - 1], pair[1][0]);
                prop_assert!(last.0 / SLOTS < first.0 / SLOTS);
                prop_assert!((OBJECTS..OBJECTS + SLOTS as usize).contains(&pair[0].len()));
            }
        }
    }
}
