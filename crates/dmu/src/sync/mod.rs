//! Writing objects, txg by txg.
//!
//! # Theory
//!
//! **Need.** Files, directories and the pool's own tables change all the time, many of them at once; a change must never be on disk in
//! part. So changes are collected in memory by txg, and each txg is written as a whole, into free space, from the data blocks up to one
//! root. A change must not wait for a sync, and a sync must use all cores and all devices.
//!
//! **In memory.**
//! ```text
//! Writer     pipeline, allocator: what objsets are written with
//! Objset     objects in use, by number; which of them each txg has changed; the root on disk
//! Object     newest dnode ─► layer of txg 12 ─► layer of txg 11 ─► dnode on disk ─► tree on disk
//!              a layer: dnode, data blocks written, ranges freed, spill block
//! ```
//! A layer corresponds to OpenZFS's dirty records of one dnode and its dbufs in one txg. It holds reference-counted buffers of the
//! changed blocks only. A buffer that has another holder (a reader, the ARC, an earlier txg's layer) is copied before it is changed, so
//! the syncing txg and the open txg do not affect each other. A block that was only read has no state here: it is in the ARC.
//!
//! **Life of a write.**
//! 1. The caller holds the open txg (a [`Tx`](crate::tx::Tx), OpenZFS's assigned `dmu_tx`), so the txg is not quiesced while the caller
//!    changes objects.
//! 2. [`Object::write`](crate::Object::write) locks the range of blocks (`object/range_lock`), reads what it does not overwrite, makes new blocks and
//!    puts them into the layer of the txg. Others change other blocks meanwhile.
//! 3. The txg is quiesced: no [`Tx`](crate::tx::Tx) holds it, its layers are final. Later changes go to the next txg.
//! 4. [`Writer::sync`] cuts what has changed into stretches of objects whose dnodes stand side by side (`stretch`): the work for each
//!    object is done one stretch at a time, on all cores. The tree of each object is set up, and the indirect blocks above changed blocks
//!    are read.
//! 5. The trees are written level by level: batches of blocks (`level`) are compressed and checksummed on all cores, get their DVAs in
//!    order, get their block pointers on all cores, where the replaced blocks are counted too (`place`, `killed`), and are written in the
//!    background, adjacent blocks in one request (`stores`). A block pointer is complete once its DVAs are allocated, so the level above
//!    need not wait for devices. A block that was already written for the intent log (`object/logged`, `WR_INDIRECT`) keeps its pointer
//!    and is only counted. Stretches whose objects have changed only in their dnodes skip this step.
//! 6. Each stretch counts the blocks that its trees have lost, updates the usage of owners if the objset has user accounting
//!    (`userquota`), and puts its dnodes into the blocks of the meta-dnode. The results of the stretches are merged in the order of
//!    objects; the accounting objects are updated and written like other objects. The meta-dnode is written likewise, then the root
//!    block. [`Writer::sync`] is two halves: [`Writer::begin`] returns when every block is allocated and its write is issued,
//!    [`Storing::finish`] when the devices have completed the writes. Then the new trees replace the layers, stretch by stretch, unused
//!    objects are dropped from the objset's table, shard by shard, and memory is freed in a background task.
//! 7. The caller gets the new root block pointer and the list of *killed* blocks, which the new tree no longer references. It stores the
//!    root in the parent (the DSL dataset, or for the MOS the uberblock) and frees the killed blocks or puts them into a deadlist.
//!
//! **Passes.** The MOS contains the accounting of the space that writing the MOS itself takes, so it is written in passes until nothing
//! changes. From the second pass on, a block that this txg has written is rewritten in place if its size is unchanged
//! (`zfs_sync_pass_rewrite`); from the eighth on, nothing is compressed (`zfs_sync_pass_dont_compress`), so sizes and allocations no
//! longer change.
//!
//! **Caching.** Written metadata (indirect blocks, blocks of dnodes, ZAPs) is inserted into the ARC when its DVAs are allocated, since
//! the next txg usually changes it again. The replaced blocks are evicted when the new tree is on disk. Data is treated in the same way
//! if `primarycache` allows it (`caching`).
//!
//! **Invariants.**
//! 1. A layer of a txg that is quiesced is not changed, but by the sync itself (accounts, the MOS).
//! 2. The DVAs of a block depend on the changes only, not on the number of cores, the devices' speed or the clock.
//! 3. Each block that a tree loses is reported once, and each block that it gains is counted once: used bytes of a dnode are those of its
//!    blocks.
//! 4. The block of an object is written by one store at a time: a pass ends when its stores have. The cached copy of a block that is
//!    written in place again has the bytes that were written last.
//! 5. Work on all cores touches one stretch or one batch only, or adds to sums; results are combined in the order of objects. So equal
//!    changes give equal bytes, whichever core was first.
//! 6. The range locks of an object are taken by all its users before they hold a txg, or by all of them after. So a task never waits for
//!    a range lock while it holds a txg that the lock's owner waits for.
//!
//! **Crash.** Nothing of a txg belongs to the pool before its uberblock is written. Blocks written before go to space that is free in the
//! txg on disk.
//!
//! **Rejected.** *A dbuf for each block with a list of dirty records*: the list's head is shared by all txgs and needs a lock for each
//! access; layers need one where a txg is taken out. *Writing as soon as a block is full*: its place would depend on the schedule, and
//! blocks that change twice in a txg would be written twice. *One task for each object that goes up on its own*: as wide, but allocation
//! would depend on the schedule, and equal input would not give equal bytes.
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
//! get the same places however many cores there are and whichever is done first. Pointers, accounts and the list of killed blocks follow
//! from the allocation. All this is computed on all cores again (`place`), and entered into the trees in order.

mod batch;
mod killed;
mod level;
mod part;
mod place;
mod shared;
mod space;
mod stores;
mod stretch;
mod trees;
mod userquota;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::DnodePhys;
use cenote_format::enums::Compress;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg};
use cenote_format::needs::Needs;
use cenote_format::objset::ObjsetPhys;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Handle, Join, Semaphore, boxed};
use cenote_zio::{Allocator, Bookmark, ZioError};

pub use self::killed::Killed;
use self::level::{Cursor, Span};
use self::part::Part;
use self::place::{Made, Pointed, SpanDelta};
use self::shared::Shared;
pub use self::space::SpaceDelta;
use self::stores::{IN_FLIGHT_MAX_BYTES, Stores};
use self::stretch::{Settled, Stretch, Ways};
use self::userquota::Changes;
use crate::geometry::{GROUPUSED, PROJECTUSED, USERUSED};
use crate::objset::{BlockKind, Now, Objset, PASS_REWRITE};
use crate::{Dmu, DmuError, DmuErrorKind};

/// Stretches of objects that are under way at once.
const STRETCHES_MAX: usize = 64;
/// Batches of blocks that are prepared ahead of their turn to be placed.
const PREPARED_MAX: usize = 32;
/// Batches of blocks that have their places and whose pointers are still to be entered.
const POINTED_MAX: usize = 8;

/// The result of the sync of an objset.
#[derive(Clone, Debug)]
pub struct Synced {
    /// Its root.
    pub root: Blkptr,
    /// Blocks that are new.
    pub born: SpaceDelta,
    /// Those that take space, of an objset for which they were to be listed.
    pub new: Vec<Blkptr>,
    /// Blocks that nothing of this objset points to any more. They are to be freed, or to go to a deadlist.
    pub killed: Killed,
    /// Blocks that were written for the intent log (`WR_INDIRECT`) and have been changed since, so they are in no dataset's space
    /// accounting. They are freed in this txg like killed blocks, and not earlier, since a log that is claimed after a crash may point to
    /// them.
    pub unused: Vec<Blkptr>,
    /// Features that the written blocks need: the dataset has to activate each of them in this txg.
    pub needs: Needs,
}

/// The writes in flight of a sync. If it is dropped, nobody waits for them, and the txg must not be committed.
#[must_use = "blocks are on devices once this has been waited for"]
pub struct Storing {
    stores: Stores,
    txg: Txg,
    /// The dnodes and roots that objects and objsets have on disk once all is stored.
    objects: Vec<Settled>,
    metas: Settled,
    roots: Vec<(Objset, Blkptr, ObjsetPhys)>,
}

/// Writes objsets. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
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

    /// Writes the changes of a txg in these objsets, which must not change meanwhile, and waits until all is on devices
    /// (not yet stable): [`Self::begin`] and [`Storing::finish`]. Returns the leaves that have missed a block, too.
    ///
    /// # Errors
    /// As those two.
    #[boxed]
    pub async fn sync(&self, objsets: &[Objset], txg: Txg, pass: u32) -> Result<(Vec<Synced>, Vec<Guid>), DmuError> {
        let (synced, storing) = self.begin(objsets, &BTreeSet::new(), txg, pass).await?;
        Ok((synced, storing.finish().await?))
    }

    /// Gives places to the changes of a txg in these objsets, and begins to write them. Until all is stored the objsets must not be changed
    /// in this txg. `pass` counts from 1; from the second on blocks of this txg are written in place. New blocks of the objsets in `listed` come
    /// back one by one.
    ///
    /// # Errors
    /// No space, or a device failure that the vdevs cannot make up for: the txg cannot be written.
    #[boxed]
    pub async fn begin(
        &self,
        objsets: &[Objset],
        listed: &BTreeSet<ObjsetId>,
        txg: Txg,
        pass: u32,
    ) -> Result<(Vec<Synced>, Storing), DmuError> {
        // A block that a later pass writes in place is no new block.
        assert!(listed.is_empty() || pass == 1, "new blocks are listed of what is written once in a txg");
        let now = Now { txg, pass };
        let mut stores = Stores::new(&self.shared.dmu, &self.shared.allocator, &self.shared.in_flight);
        let mut parts: Vec<Part> = objsets
            .iter()
            .map(|objset| Part {
                objset: objset.clone(),
                policy: objset.policy(),
                born: SpaceDelta::default(),
                lists_new: listed.contains(&objset.id()),
                new: Vec::new(),
                killed: Killed::default(),
                unused: Vec::new(),
                needs: Needs::of_objset(objset.phys().flags),
            })
            .collect();
        let changed: Vec<_> = (0..parts.len()).map(|part| (part, parts[part].objset.take_changed(txg))).collect();
        let mut roots: Vec<BTreeMap<ObjectId, DnodePhys>> = vec![BTreeMap::new(); parts.len()];
        let mut settled = Vec::new();
        let owners = self.write_objects(&mut parts, changed, now, &mut stores, &mut roots, &mut settled).await?;
        let mut accounts = Vec::new();
        for (part, owners) in owners.into_iter().enumerate() {
            if owners.enter(&parts[part].objset, txg).await? {
                accounts.push((part, parts[part].objset.take_changed(txg)));
            }
        }
        self.write_objects(&mut parts, accounts, now, &mut stores, &mut roots, &mut settled).await?;
        let mut metas: Vec<Stretch> = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            metas.push(Stretch::of_meta(at, part, txg).await?);
        }
        self.write_levels(&mut parts, &mut metas, now, &mut stores).await?;
        let (mut settled_metas, mut pointers) = (Vec::new(), Vec::with_capacity(parts.len()));
        for (at, meta) in metas.into_iter().enumerate() {
            let meta = meta.into_meta(&self.shared, &mut parts[at]);
            let dnodes = std::mem::take(&mut roots[at]);
            if let Some(meta) = &meta {
                settled_metas.push((parts[at].objset.meta_dnode(), Some(meta.clone())));
            }
            pointers.push(self.write_root(&mut parts[at], meta, dnodes, now, &mut stores).await?);
        }
        stores.send().await;
        let mut synced = Vec::with_capacity(parts.len());
        let mut roots = Vec::with_capacity(parts.len());
        for (part, (root, phys)) in parts.into_iter().zip(pointers) {
            let Part { objset, born, new, killed, unused, needs, .. } = part;
            synced.push(Synced { root, born, new, killed, unused, needs });
            roots.push((objset, root, phys));
        }
        Ok((synced, Storing { stores, txg, objects: settled, metas: settled_metas, roots }))
    }

    /// Writes objects, all but the blocks that their dnodes stand in. Returns the changes of `userused@` and the like for each objset.
    async fn write_objects(
        &self,
        parts: &mut [Part],
        changed: Vec<(usize, BTreeSet<ObjectId>)>,
        now: Now,
        stores: &mut Stores,
        roots: &mut [BTreeMap<ObjectId, DnodePhys>],
        settled: &mut Vec<Settled>,
    ) -> Result<Vec<Changes>, DmuError> {
        let ways: Vec<Ways> = (0..parts.len()).map(|at| Ways::new(&self.shared, parts, at, now.txg)).collect();
        let cut = changed.into_iter().flat_map(|(part, ids)| stretch::cut(ids).into_iter().map(move |ids| (part, ids)));
        let cut: Vec<_> = cut.collect();
        let mut stretches =
            on_all_cores(self.shared.dmu.handle(), cut, |(part, ids)| ways[part].clone().load(ids)).await?;
        self.write_levels(parts, &mut stretches, now, stores).await?;
        let done =
            on_all_cores(self.shared.dmu.handle(), stretches, |stretch| ways[stretch.part].clone().finish(stretch))
                .await?;
        let mut owners: Vec<Changes> = parts.iter().map(|_| Changes::default()).collect();
        for done in done {
            let part = &mut parts[done.part];
            part.killed.append(done.killed);
            part.unused.extend(done.unused);
            part.needs |= done.needs;
            owners[done.part].append(done.owners);
            roots[done.part].extend(done.roots);
            settled.push(done.settled);
        }
        Ok(owners)
    }

    /// Writes the blocks of all trees, level by level.
    async fn write_levels(
        &self,
        parts: &mut [Part],
        stretches: &mut [Stretch],
        now: Now,
        stores: &mut Stores,
    ) -> Result<(), DmuError> {
        let top = stretches.iter().map(Stretch::levels).max().unwrap_or(0);
        for level in 0..top {
            self.write_level(parts, stretches, level, now, stores).await?;
        }
        Ok(())
    }

    /// Writes the blocks of one level: prepared in parallel, placed in order, pointed to in parallel, stored in the background.
    async fn write_level(
        &self,
        parts: &mut [Part],
        stretches: &mut [Stretch],
        level: u8,
        now: Now,
        stores: &mut Stores,
    ) -> Result<(), DmuError> {
        stretches.iter_mut().for_each(|stretch| stretch.begin_level(level));
        let mut cursor = Cursor::new(level, now);
        let mut pending: VecDeque<(Vec<Span>, Join<Made>)> = VecDeque::new();
        let mut pointing: VecDeque<(Vec<Span>, Join<Pointed>)> = VecDeque::new();
        let (zio, allocator) = (self.shared.dmu.zio(), self.shared.allocator.as_ref());
        loop {
            while pending.len() < PREPARED_MAX
                && let Some((spans, batch)) = cursor.next(parts, stretches)
            {
                let (zio, units) = (zio.clone(), allocator.units());
                let made = async move { batch.prepare(&zio, units) };
                pending.push_back((spans, self.shared.dmu.handle().spawn(Class::Sync, made)));
            }
            let Some((spans, join)) = pending.pop_front() else { break };
            let Some(first) = spans.first() else { continue };
            let made = joined(parts[stretches[first.stretch].part].objset.id(), join).await?;
            let places = zio.find_places(allocator, &made.batch).await;
            let (shared, forgets) = (self.shared.clone(), now.pass >= PASS_REWRITE);
            let lists_new = |span: &Span| parts[stretches[span.stretch].part].lists_new;
            let counts: Vec<(usize, bool)> = spans.iter().map(|span| (span.count, lists_new(span))).collect();
            let point = async move { made.point(&shared, &counts, places, forgets) };
            pointing.push_back((spans, self.shared.dmu.handle().spawn(Class::Sync, point)));
            if pointing.len() >= POINTED_MAX
                && let Some((spans, join)) = pointing.pop_front()
            {
                enter(parts, stretches, level, spans, join, stores).await?;
            }
        }
        for (spans, join) in pointing {
            enter(parts, stretches, level, spans, join, stores).await?;
        }
        Ok(())
    }

    /// Writes an objset's root block; returns its pointer and its fields.
    async fn write_root(
        &self,
        part: &mut Part,
        meta: Option<DnodePhys>,
        mut dnodes: BTreeMap<ObjectId, DnodePhys>,
        now: Now,
        stores: &mut Stores,
    ) -> Result<(Blkptr, ObjsetPhys), DmuError> {
        let objset = part.objset.clone();
        let mut phys = objset.phys_of(now.txg);
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
        // OpenZFS never compresses the root block of an encrypted objset, and authenticates its plain bytes.
        let protects = objset.is_raw() || previous.uses_crypt();
        let block = BlockKind { kind: DmuType::OBJSET, level: 0, fill, uncompressed: protects, protects };
        let policy = part.policy.of_block(block, Bookmark::objset(objset.id()), previous, now);
        if previous.uses_crypt() && !objset.is_raw() {
            // Only the intent log's header has changed, which the MACs do not cover, so they stay valid.
            let before = ObjsetPhys { zil_header: phys.zil_header, ..(*objset.phys()).clone() };
            assert_eq!(phys, before, "nothing but the intent log's header changes without the key");
        }
        let prepared = self.shared.dmu.zio().prepare(self.shared.allocator.units(), &Block::from(phys.emit()), &policy);
        let prepared = prepared.map_err(fail)?;
        let placed = self.shared.dmu.zio().place(self.shared.allocator.as_ref(), prepared, &policy).await;
        let mut placed = placed.map_err(fail)?;
        placed.bp.set_crypt(protects);
        assert!(
            !protects || placed.bp.compress() == Some(Compress::Off),
            "an encrypted objset's root is not compressed"
        );
        let root = placed.bp;
        let mut change = SpanDelta::default();
        change.count(&self.shared, &policy, &root, part.lists_new);
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
        let Self { stores, txg, objects, metas, roots } = self;
        let dmu = stores.dmu().clone();
        let fail = |kind| DmuError::new(cenote_format::ids::ObjsetId(0), ObjectId(0), kind);
        let (missed, replaced) = stores.finish().await.map_err(fail)?;
        let handle = dmu.handle().clone();
        let settling = |settled| {
            let handle = handle.clone();
            async move {
                let gone = stretch::put_synced(settled, txg);
                // Freeing a txg's memory takes a while and needs no waiter; if the dispatch is refused, it is freed here.
                let _ = handle.dispatch(Class::Sync, move || drop(gone));
                Ok(())
            }
        };
        on_all_cores(&handle, objects, settling).await?;
        drop(stretch::put_synced(metas, txg));
        let mut sweeps = Vec::with_capacity(roots.len());
        for (objset, root, phys) in roots {
            objset.put_synced(txg, root, phys);
            sweeps.extend(objset.sweeps().into_iter().map(|shards| (objset.clone(), shards)));
        }
        let sweep = |(objset, shards): (Objset, _)| async move {
            objset.sweep(txg, shards);
            Ok(())
        };
        on_all_cores(&handle, sweeps, sweep).await?;
        // A block that a snapshot still has will be read again.
        let _ = handle.dispatch(Class::Sync, move || replaced.iter().for_each(|bp| dmu.forget(bp)));
        Ok(missed)
    }
}

/// Enters blocks of a level whose pointers are complete into their trees, and begins to store them.
async fn enter(
    parts: &mut [Part],
    stretches: &mut [Stretch],
    level: u8,
    spans: Vec<Span>,
    join: Join<Pointed>,
    stores: &mut Stores,
) -> Result<(), DmuError> {
    let Some(first) = spans.first() else { return Ok(()) };
    let pointed = joined(parts[stretches[first.stretch].part].objset.id(), join).await?;
    if let Some((span, error)) = pointed.error {
        return Err(stretches[spans[span].stretch].trees[spans[span].tree].object.error(error));
    }
    let mut pointers = &pointed.pointers[..];
    for (span, change) in spans.iter().zip(pointed.changes) {
        let stretch = &mut stretches[span.stretch];
        let used_bytes = parts[stretch.part].take(change);
        let tree = &mut stretch.trees[span.tree];
        let (own, rest) = pointers.split_at(span.count.min(pointers.len()));
        tree.head.used = tree.head.used.saturating_add_signed(used_bytes);
        tree.put_all(level, own);
        pointers = rest;
    }
    stores.replaced.extend(pointed.replaced);
    stores.take(pointed.placed, spans.into_iter().filter_map(|span| span.cleaned)).await;
    Ok(())
}

/// Does `work` with each item, on any core, and returns the results in the items' order. A single item is done on this task.
async fn on_all_cores<I, T, F>(handle: &Handle, items: Vec<I>, work: impl Fn(I) -> F) -> Result<Vec<T>, DmuError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, DmuError>> + Send + 'static,
{
    let is_alone = items.len() == 1;
    let (mut pending, mut done) = (VecDeque::new(), Vec::with_capacity(items.len()));
    let mut items = items.into_iter();
    loop {
        while pending.len() < STRETCHES_MAX
            && let Some(item) = items.next()
        {
            match is_alone {
                true => done.push(work(item).await?),
                false => pending.push_back(handle.spawn(Class::Sync, work(item))),
            }
        }
        let Some(join) = pending.pop_front() else { return Ok(done) };
        done.push(joined(ObjsetId(0), join).await??);
    }
}

async fn joined<T>(objset: ObjsetId, join: Join<T>) -> Result<T, DmuError> {
    let interrupted = |error: cenote_taskq::JoinError| DmuErrorKind::Interrupted(error.to_string());
    join.await.map_err(|error| DmuError::new(objset, ObjectId(0), interrupted(error)))
}
