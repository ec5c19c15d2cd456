//! Writing objects, txg by txg.
//!
//! # Theory
//!
//! **Need.** Files, directories and the pool's own tables change all the time, many of them at once; on disk there must
//! never be half of it. So changes gather in memory, grouped by txg, and each txg is written as a whole, to free space, from
//! the data up to one root. A change must not wait for that, and the writing must use all cores and all
//! devices.
//!
//! **In memory.**
//! ```text
//! Writer     pipeline, allocator: what objsets are written with
//! Objset     objects in use, by number; which of them each txg has changed; the root on disk
//! Object     newest dnode ─► layer of txg 12 ─► layer of txg 11 ─► dnode on disk ─► tree on disk
//!              a layer: dnode, data blocks written, ranges freed, spill block
//! ```
//! A block is an immutable counted buffer, so a layer costs what has changed, and the txg that is written shares nothing
//! with the one that is filled. There is no state per block that was only read: that is the cache's.
//!
//! **Life of a write.**
//! 1. The caller has a txg that is open, and keeps it open while it changes things.
//! 2. [`Object::write`] locks the range of blocks (`object/range_lock`), reads what it does not overwrite, makes new blocks and
//!    puts them into the layer of the txg. Others change other blocks meanwhile.
//! 3. The txg is quiesced: nobody holds it, its layers are final. Others go on in the next.
//! 4. [`Writer::sync`] loads the indirect blocks above what has changed, then goes up level by level (`sync`): blocks are
//!    taken some at a time (`level`), prepared on all cores, get their places in order, have their pointers made and what they
//!    give up counted on all cores (`place`, `killed`), and are stored in the background, neighbours as one (`stores`). A
//!    block's pointer is known when it is placed, so the level above need not wait for devices.
//!    Where an objset's flags say that it has accounts of owners (`userquota`), what has changed is entered and written too.
//! 5. Dnodes go into the blocks of the meta-dnode, which is written likewise, then the root block. [`Writer::sync`] is two halves:
//!    [`Writer::begin`] ends when everything has its place and is on its way, [`Storing::finish`] when devices have it. Then the
//!    layer gives way to the new tree, and its memory is given back where nobody waits for it.
//! 6. The caller gets the new root and the blocks that are not pointed to any more, and puts the first into the object above
//!    (the dataset, in the end the uberblock) and frees the others.
//!
//! **Passes.** The MOS holds the accounts of the space that its own writing takes, so it is written again, until nothing
//! changes. From the second pass on a block that this txg wrote is written in its own place again if its size is the same,
//! and from the eighth on nothing is compressed: then sizes stay, and so does the space.
//!
//! **What is kept.** Metadata goes into the cache when it gets its place, since the next txg changes it again: indirect blocks,
//! blocks of dnodes, tables. What it replaces goes out when the new tree is stored. Data does not go there: a client that
//! writes much would push out what others read.
//!
//! **Invariants.**
//! 1. A layer of a txg that is quiesced is not changed, but by the sync itself (accounts, the MOS).
//! 2. Which place a block gets follows from the changes alone: not from cores, devices or the clock.
//! 3. What a tree loses is told once, and what it gains is counted once: used bytes of a dnode are those of its blocks.
//! 4. The block of an object is written by one store at a time: a pass ends when its stores have. What the cache has of a block
//!    that is written in place again is what was written last.
//! 5. A range lock that is taken before the txg never waits for one whose holder waits for a txg: the locks of an object are taken
//!    before the txg by all its users, or after it by all.
//!
//! **Crash.** Nothing here is the pool's before the uberblock is. What was written before goes to space that is free in
//! the txg on disk.
//!
//! **Rejected.** *A dbuf for each block with a list of dirty records*: the list's head is shared by all txgs and needs a lock
//! for each access; layers need one where a txg is taken out. *Writing as soon as a block is full*: its place would depend
//! on who came first, and blocks that change twice in a txg would be written twice. *One task for each object that goes up
//! on its own*: as wide, but allocation would depend on the schedule, and equal input would not give equal bytes.
//!
//! **A txg's way up**, from data blocks to the roots of objsets:
//! ```text
//!   all objects of all objsets     prepare (any core)     place (in order)   point (any core)      store (in the background)
//!     level 0 ──────────────────►  compress, sum up  ───►  find places  ───►  pointer, counts ──►  devices
//!     level 1: the pointers of level 0 ──► …
//!     … up to the dnodes
//!   meta-dnodes, likewise: dnodes are their data
//!   root blocks
//! ```
//! The width of a level is that of all trees together. Only allocating is done one after the other, in the order of objset,
//! object, block, and blocks alike at once: it takes no longer than a look into a tree of free space, and the same changes
//! get the same places however many cores there are and whichever is done first. What follows from places (pointers, accounts,
//! what is killed) is found out on any core again (`place`), and entered into the trees in order.

mod batch;
mod killed;
mod level;
mod part;
mod place;
mod shared;
mod space;
mod stores;
mod trees;
mod userquota;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodePhys, SLOT_BYTES};
use cenote_format::ids::{BlockId, Guid, ObjectId, Txg};
use cenote_format::needs::Needs;
use cenote_format::objset::ObjsetPhys;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Class, Join, Semaphore};
use cenote_zio::{Allocator, Bookmark, ZioError};

pub use self::killed::Killed;
use self::level::{Cursor, Span};
use self::part::Part;
use self::place::{Change, Made, Pointed};
use self::shared::Shared;
pub use self::space::SpaceDelta;
use self::stores::{IN_FLIGHT_MAX_BYTES, Stores};
use self::trees::Tree;
use self::userquota::{Accounting, Changes};
use crate::geometry::{GROUPUSED, PROJECTUSED, SLOTS, USERUSED};
use crate::object::Object;
use crate::objset::{BlockKind, Now, Objset, PASS_REWRITE};
use crate::{Dmu, DmuError, DmuErrorKind};

/// Objects whose trees are loaded ahead of their turn.
const LOADED_MAX: usize = 128;
/// Batches of blocks that are prepared ahead of their turn to be placed.
const PREPARED_MAX: usize = 32;
/// Batches of blocks that have their places and whose pointers are still to be entered.
const POINTED_MAX: usize = 8;

/// What the sync of an objset did.
#[derive(Clone, Debug)]
pub struct Synced {
    /// Its root.
    pub root: Blkptr,
    /// Blocks that are new.
    pub born: SpaceDelta,
    /// Blocks that nothing of this objset points to any more. They are to be freed, or to go to a deadlist.
    pub killed: Killed,
    /// Features that the written blocks need: the dataset has to activate each of them in this txg.
    pub needs: Needs,
}

/// Blocks of objsets that are on their way to devices. Dropped, they are not waited for, and the txg cannot be used.
#[must_use = "blocks are on devices once this has been waited for"]
pub struct Storing {
    stores: Stores,
    txg: Txg,
    /// What objects and objsets are on disk once all is stored. Readers go on asking layers until then.
    objects: Vec<(Object, Option<DnodePhys>)>,
    roots: Vec<(Objset, Blkptr, ObjsetPhys)>,
}

/// Writes objsets. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

/// A tree that is being loaded; at once where only its dnode has changed, since handing that over takes longer.
enum Load {
    Done(Box<Tree>),
    Begun(Join<Result<Tree, DmuError>>),
}

impl Writer {
    /// A writer that takes space from `allocator`.
    #[must_use]
    pub fn new(dmu: Dmu, allocator: Arc<dyn Allocator>) -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX_BYTES));
        Self { shared: Arc::new(Shared::new(dmu, allocator, in_flight)) }
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        &self.shared.dmu
    }

    /// Bytes of a block as datasets count them.
    #[must_use]
    pub fn space_of(&self, bp: &Blkptr) -> SpaceDelta {
        self.shared.space_of(bp)
    }

    /// Writes what a txg has changed of these objsets, which nobody changes meanwhile, and waits until it is on devices
    /// (not yet stable): [`Self::begin`] and [`Storing::finish`]. Leaves that have missed a block come back too.
    ///
    /// # Errors
    /// As those two.
    pub async fn sync(&self, objsets: &[Objset], txg: Txg, pass: u32) -> Result<(Vec<Synced>, Vec<Guid>), DmuError> {
        let (synced, storing) = self.begin(objsets, txg, pass).await?;
        Ok((synced, storing.finish().await?))
    }

    /// Gives places to what a txg has changed of these objsets, which nobody changes in it until all is stored, and begins to
    /// write it. `pass` counts from 1; from the second on blocks of this txg are written in place.
    ///
    /// # Errors
    /// No space, or a device failure that the vdevs cannot make up for: the txg cannot be written.
    pub async fn begin(&self, objsets: &[Objset], txg: Txg, pass: u32) -> Result<(Vec<Synced>, Storing), DmuError> {
        let now = Now { txg, pass };
        let mut stores = Stores::new(&self.shared.dmu, &self.shared.allocator, &self.shared.in_flight);
        let mut parts: Vec<Part> = objsets
            .iter()
            .map(|objset| Part {
                objset: objset.clone(),
                policy: objset.policy(),
                born: SpaceDelta::default(),
                killed: Killed::default(),
                needs: Needs::of_objset(objset.phys().flags),
            })
            .collect();
        let objects = parts.iter().map(|part| part.objset.take_dirty(txg)).collect();
        let mut trees = self.write_trees(&mut parts, objects, now, &mut stores).await?;
        if let Some(accounts) = count_owners(&parts, &mut trees, txg).await? {
            let accounts = self.write_trees(&mut parts, accounts, now, &mut stores).await?;
            trees.iter_mut().zip(accounts).for_each(|(trees, more)| trees.extend(more));
        }
        let mut roots: Vec<BTreeMap<ObjectId, DnodePhys>> = vec![BTreeMap::new(); parts.len()];
        let mut settled = Vec::new();
        for (part, trees) in trees.into_iter().enumerate() {
            let objset = &parts[part].objset;
            patch_dnodes(objset, trees, txg, &mut roots[part], &mut settled).await?;
        }
        let metas = parts.iter().map(|part| vec![part.objset.meta_dnode()]).collect();
        let metas = self.write_trees(&mut parts, metas, now, &mut stores).await?;
        let mut pointers = Vec::with_capacity(parts.len());
        for (at, mut meta) in metas.into_iter().enumerate() {
            let meta = meta.pop().map(|tree| tree.head);
            let dnodes = std::mem::take(&mut roots[at]);
            if let Some(meta) = &meta {
                settled.push((parts[at].objset.meta_dnode(), Some(meta.clone())));
            }
            pointers.push(self.write_root(&mut parts[at], meta, dnodes, now, &mut stores).await?);
        }
        stores.send().await;
        let mut synced = Vec::with_capacity(parts.len());
        let mut roots = Vec::with_capacity(parts.len());
        for (part, (root, phys)) in parts.into_iter().zip(pointers) {
            synced.push(Synced { root, born: part.born, killed: part.killed, needs: part.needs });
            roots.push((part.objset, root, phys));
        }
        Ok((synced, Storing { stores, txg, objects: settled, roots }))
    }

    /// Writes the trees of objects, and counts them into their objsets' parts.
    async fn write_trees(
        &self,
        parts: &mut [Part],
        objects: Vec<Vec<Object>>,
        now: Now,
        stores: &mut Stores,
    ) -> Result<Vec<Vec<Tree>>, DmuError> {
        let mut trees = Vec::with_capacity(objects.len());
        for (part, objects) in parts.iter().zip(objects) {
            trees.push(self.load_trees(part, objects, now.txg).await?);
        }
        let top = trees.iter().flatten().map(|tree| tree.head.levels).max().unwrap_or(0);
        for level in 0..top {
            self.write_level(parts, &mut trees, level, now, stores).await?;
        }
        for (part, trees) in parts.iter_mut().zip(&mut trees) {
            for tree in trees {
                let mut used = 0;
                for bp in std::mem::take(&mut tree.killed) {
                    let space = self.space_of(&bp);
                    used -= space.used_bytes;
                    part.killed.push(bp, space);
                }
                tree.head.used = tree.head.used.saturating_add_signed(used);
                if !tree.is_freed {
                    part.needs |= Needs::of_slots(tree.head.slots());
                }
            }
        }
        Ok(trees)
    }

    async fn load_trees(&self, part: &Part, objects: Vec<Object>, txg: Txg) -> Result<Vec<Tree>, DmuError> {
        let mut pending = VecDeque::new();
        let mut trees = Vec::with_capacity(objects.len());
        let mut objects = objects.into_iter();
        loop {
            while pending.len() < LOADED_MAX {
                let Some(object) = objects.next() else { break };
                let Some((dirty, synced)) = object.take(txg) else { continue };
                let reads_nothing = dirty.changes_no_block();
                let load = Tree::load(object, dirty, synced, txg, part.policy.holes_have_births);
                pending.push_back(match reads_nothing {
                    true => Load::Done(Box::new(load.await?)),
                    false => Load::Begun(self.shared.dmu.handle().spawn(Class::Sync, load)),
                });
            }
            trees.push(match pending.pop_front() {
                Some(Load::Done(tree)) => *tree,
                Some(Load::Begun(join)) => joined(&part.objset, join).await??,
                None => return Ok(trees),
            });
        }
    }

    /// Writes the blocks of one level: prepared in parallel, placed in order, pointed to in parallel, stored in the background.
    async fn write_level(
        &self,
        parts: &mut [Part],
        trees: &mut [Vec<Tree>],
        level: u8,
        now: Now,
        stores: &mut Stores,
    ) -> Result<(), DmuError> {
        trees.iter_mut().flatten().for_each(|tree| tree.begin_level(level));
        let mut cursor = Cursor::new(level, now);
        let mut pending: VecDeque<(Vec<Span>, Join<Made>)> = VecDeque::new();
        let mut pointing: VecDeque<(Vec<Span>, Join<Pointed>)> = VecDeque::new();
        let (zio, allocator) = (self.shared.dmu.zio(), self.shared.allocator.as_ref());
        loop {
            while pending.len() < PREPARED_MAX
                && let Some((spans, batch)) = cursor.next(parts, trees)
            {
                let (zio, units) = (zio.clone(), allocator.units());
                let made = async move { batch.prepare(&zio, units) };
                pending.push_back((spans, self.shared.dmu.handle().spawn(Class::Sync, made)));
            }
            let Some((spans, join)) = pending.pop_front() else { break };
            let Some(first) = spans.first() else { continue };
            let made = joined(&parts[first.part].objset, join).await?;
            let places = zio.find_places(allocator, &made.batch).await;
            let (shared, forgets) = (self.shared.clone(), now.pass >= PASS_REWRITE);
            let counts: Vec<usize> = spans.iter().map(|span| span.count).collect();
            let point = async move { made.point(&shared, &counts, places, forgets) };
            pointing.push_back((spans, self.shared.dmu.handle().spawn(Class::Sync, point)));
            if pointing.len() >= POINTED_MAX
                && let Some((spans, join)) = pointing.pop_front()
            {
                enter(parts, trees, level, spans, join, stores).await?;
            }
        }
        for (spans, join) in pointing {
            enter(parts, trees, level, spans, join, stores).await?;
        }
        Ok(())
    }

    /// Writes an objset's root block; its pointer and its fields come back.
    async fn write_root(
        &self,
        part: &mut Part,
        meta: Option<DnodePhys>,
        mut dnodes: BTreeMap<ObjectId, DnodePhys>,
        now: Now,
        stores: &mut Stores,
    ) -> Result<(Blkptr, ObjsetPhys), DmuError> {
        let objset = part.objset.clone();
        let mut phys = (*objset.phys()).clone();
        if let Some(meta) = meta {
            phys.meta_dnode = meta;
        }
        for (id, slot) in [
            (USERUSED, &mut phys.userused_dnode),
            (GROUPUSED, &mut phys.groupused_dnode),
            (PROJECTUSED, &mut phys.projectused_dnode),
        ] {
            if let Some(dnode) = dnodes.remove(&id) {
                *slot = Some(dnode);
            }
        }
        let fail = |error: ZioError| DmuError::new(objset.id(), ObjectId(0), error);
        let previous = objset.root();
        let fill = phys.meta_dnode.blkptrs().iter().map(|bp| if bp.is_hole() { 0 } else { bp.fill() }).sum();
        let block = BlockKind { kind: DmuType::OBJSET, level: 0, fill, uncompressed: false };
        let policy = part.policy.of_block(block, Bookmark::objset(objset.id()), previous, now);
        let prepared = self.shared.dmu.zio().prepare(self.shared.allocator.units(), &Block::from(phys.emit()), &policy);
        let prepared = prepared.map_err(fail)?;
        let placed = self.shared.dmu.zio().place(self.shared.allocator.as_ref(), prepared, &policy).await;
        let placed = placed.map_err(fail)?;
        let root = placed.bp;
        let mut change = Change::default();
        change.count(&self.shared, &policy, &root);
        part.take(change);
        if now.pass >= PASS_REWRITE {
            self.shared.dmu.forget(&root);
        }
        stores.take(vec![placed], None).await;
        Ok((root, phys))
    }
}

impl Storing {
    /// Waits until all is on devices (not yet stable), and lets readers find it there. Leaves that have missed a block come
    /// back.
    ///
    /// # Errors
    /// A device failure that the vdevs cannot make up for: the txg cannot be written.
    pub async fn finish(self) -> Result<Vec<Guid>, DmuError> {
        let Self { stores, txg, objects, roots } = self;
        let dmu = stores.dmu().clone();
        let fail = |kind| DmuError::new(cenote_format::ids::ObjsetId(0), ObjectId(0), kind);
        let (missed, replaced) = stores.finish().await.map_err(fail)?;
        let gone: Vec<_> = objects.into_iter().filter_map(|(object, synced)| object.put_synced(txg, synced)).collect();
        for (objset, root, phys) in roots {
            objset.put_synced(txg, root, phys);
        }
        // Giving back a txg's memory takes a while, and nobody waits for it; refused, it is dropped here. What a snapshot has
        // still is read again.
        let handle = dmu.handle().clone();
        let _ = handle.dispatch(Class::Sync, move || {
            replaced.iter().for_each(|bp| dmu.forget(bp));
            drop(gone);
        });
        Ok(missed)
    }
}

/// Enters blocks of a level whose pointers are complete into their trees, and begins to store them.
async fn enter(
    parts: &mut [Part],
    trees: &mut [Vec<Tree>],
    level: u8,
    spans: Vec<Span>,
    join: Join<Pointed>,
    stores: &mut Stores,
) -> Result<(), DmuError> {
    let Some(first) = spans.first() else { return Ok(()) };
    let pointed = joined(&parts[first.part].objset, join).await?;
    if let Some((span, error)) = pointed.error {
        return Err(trees[spans[span].part][spans[span].tree].object.error(error));
    }
    let mut pointers = &pointed.pointers[..];
    for (span, change) in spans.iter().zip(pointed.changes) {
        let used_bytes = parts[span.part].take(change);
        let tree = &mut trees[span.part][span.tree];
        let (own, rest) = pointers.split_at(span.count.min(pointers.len()));
        tree.head.used = tree.head.used.saturating_add_signed(used_bytes);
        tree.put_all(level, own);
        pointers = rest;
    }
    stores.replaced.extend(pointed.replaced);
    stores.take(pointed.placed, spans.into_iter().filter_map(|span| span.cleaned)).await;
    Ok(())
}

/// Enters into the accounts of objsets what has changed; the accounts are objects that are to be written then, if there are.
async fn count_owners(parts: &[Part], trees: &mut [Vec<Tree>], txg: Txg) -> Result<Option<Vec<Vec<Object>>>, DmuError> {
    let mut all = Vec::with_capacity(parts.len());
    for (part, trees) in parts.iter().zip(trees) {
        let mut changed = Vec::new();
        if let Some(accounting) = Accounting::of(part.objset.phys().flags) {
            let mut changes = Changes::default();
            for tree in trees.iter_mut().filter(|tree| ![USERUSED, GROUPUSED, PROJECTUSED].contains(&tree.object.id()))
            {
                accounting.count(tree, &mut changes).map_err(|kind| tree.object.error(kind))?;
            }
            changes.enter(&part.objset, txg).await?;
            changed = part.objset.take_dirty(txg);
        }
        all.push(changed);
    }
    Ok(all.iter().any(|changed| !changed.is_empty()).then_some(all))
}

async fn joined<T>(objset: &Objset, join: Join<T>) -> Result<T, DmuError> {
    let interrupted = |error: cenote_taskq::JoinError| DmuErrorKind::Interrupted(error.to_string());
    join.await.map_err(|error| DmuError::new(objset.id(), ObjectId(0), interrupted(error)))
}

/// Puts written objects' dnodes into the blocks of the meta-dnode, those that stand in the root block into `roots`. What each
/// object is on disk once all is stored goes to `settled`.
async fn patch_dnodes(
    objset: &Objset,
    trees: Vec<Tree>,
    txg: Txg,
    roots: &mut BTreeMap<ObjectId, DnodePhys>,
    settled: &mut Vec<(Object, Option<DnodePhys>)>,
) -> Result<(), DmuError> {
    let meta = objset.meta_dnode();
    let mut open: Option<(u64, Buf)> = None;
    for tree in trees {
        let id = tree.object.id();
        if [USERUSED, GROUPUSED, PROJECTUSED].contains(&id) {
            settled.push((tree.object, Some(tree.head.clone())));
            roots.insert(id, tree.head);
            continue;
        }
        let (block, slot) = (id.0 / SLOTS, (id.0 % SLOTS) as usize);
        if open.as_ref().is_none_or(|(at, _)| *at != block) {
            if let Some((at, bytes)) = open.take() {
                meta.write_block(txg, at, bytes.freeze());
            }
            let size = meta.block_bytes() as usize;
            let bytes =
                meta.block(BlockId(block)).await?.map_or_else(|| Buf::zeroed(size), |(block, _)| block.into_buf());
            open = Some((block, bytes));
        }
        let Some((_, bytes)) = &mut open else { continue };
        let start = slot * SLOT_BYTES;
        let target = bytes.get_mut(start..start + tree.head.slots() * SLOT_BYTES);
        let target =
            target.ok_or_else(|| tree.object.error(DmuErrorKind::Corrupt("a dnode beyond its block".into())))?;
        if tree.is_freed {
            target.fill(0);
        } else {
            target.copy_from_slice(&tree.head.emit());
        }
        settled.push((tree.object, (!tree.is_freed).then_some(tree.head)));
    }
    if let Some((at, bytes)) = open {
        meta.write_block(txg, at, bytes.freeze());
    }
    Ok(())
}
