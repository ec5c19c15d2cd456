//! The open state of an objset: its objects in memory, which of them each txg has changed, and its root on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::DnodePhys;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::objset::{ObjsetFlags, ObjsetPhys};
use cenote_format::zil_header::ZilHeader;
use cenote_taskq::sync::Mutex;

use super::object_alloc::Numbers;
use super::policy::ObjsetPolicy;
use super::seals::Raw;
use super::stats::ObjsetStats;
use super::table::{SHARDS, Table};
use super::{Content, Objset};
use crate::changes::Changes;
use crate::geometry::{OBJECT_MAX, SLOTS, is_special};
use crate::object::{Object, ObjectSpec};
use crate::reader::Reader;
use crate::tx::Dirty;
use crate::{DmuError, DmuErrorKind};

/// The meta object set.
pub(super) const MOS: ObjsetId = ObjsetId(0);
/// Objects in memory from which on the end of a txg looks at them on all cores.
const SWEPT_ALONE_MAX: usize = 1 << 11;

/// Frees of a txg may take this part of `zfs_dirty_data_max` at most.
const FREES_PART: u64 = 8;
/// Memory of a freed block until its txg is on disk: its pointer in the indirect block and in the list of freed blocks, its entry in
/// the sorted list that the allocator gets, in a metaslab's ranges and in a space map.
const FREED_BYTES: u64 = 512;

pub(super) struct Open {
    pub(super) table: Table,
    /// Taken after a shard of the table, where both are.
    pub(super) state: Mutex<State>,
    pub(super) changes: Arc<Changes>,
    /// The part of an objset that is written without its key.
    pub(super) raw: Option<Raw>,
    pub(super) stats: Arc<ObjsetStats>,
}

pub(super) struct State {
    policy: ObjsetPolicy,
    pub(super) numbers: Numbers,
    root: Blkptr,
    /// All of the root block but its dnodes.
    pub(super) phys: Arc<ObjsetPhys>,
    /// Intent log headers of txgs that are not on disk.
    logs: BTreeMap<Txg, ZilHeader>,
}

impl Open {
    pub(super) fn new(
        reader: &Reader,
        root: Blkptr,
        phys: ObjsetPhys,
        policy: ObjsetPolicy,
        next: u64,
        raw: Option<Raw>,
    ) -> Self {
        let state = State { policy, numbers: Numbers::new(next), root, phys: Arc::new(phys), logs: BTreeMap::new() };
        Self {
            table: Table::new(),
            state: Mutex::new(state),
            changes: Arc::new(Changes::new(reader.clone())),
            stats: Arc::default(),
            raw,
        }
    }

    pub(super) fn root(&self) -> Blkptr {
        self.state.lock().root
    }

    pub(super) fn phys(&self) -> Arc<ObjsetPhys> {
        self.state.lock().phys.clone()
    }

    pub(super) fn meta(&self) -> Object {
        self.table.of(ObjectId(0)).objects[&ObjectId(0)].clone()
    }
}

impl State {
    /// The intent log's header as of a txg.
    fn zil_header(&self, txg: Txg) -> ZilHeader {
        self.logs.range(..=txg).next_back().map_or(self.phys.zil_header, |(_, header)| *header)
    }
}

impl Objset {
    pub(super) fn add(&self, id: ObjectId, head: DnodePhys, synced: Option<DnodePhys>) -> Object {
        let object = Object::open(&self.open_state().changes, id, head, synced);
        let before = self.open_state().table.of(id).objects.insert(id, object.clone());
        assert!(before.is_none(), "a new object takes no other's place");
        object
    }

    /// How its blocks are written.
    #[must_use]
    pub fn policy(&self) -> ObjsetPolicy {
        self.open_state().state.lock().policy
    }

    /// Changes how its blocks are written, from the next sync on, and how they are cached, from now on.
    pub fn set_policy(&self, policy: ObjsetPolicy) {
        self.open_state().state.lock().policy = policy;
        self.set_caching(policy.caching);
    }

    /// Changes the root block's flags.
    pub fn set_flags(&self, txg: Txg, flags: ObjsetFlags) {
        Arc::make_mut(&mut self.open_state().state.lock().phys).flags |= flags;
        self.open_state().changes.mark(txg, ObjectId(0));
        self.meta_dnode().touch(txg);
    }

    /// The intent log's header, with the changes of txgs that are not on disk.
    #[must_use]
    pub fn zil_header(&self) -> ZilHeader {
        match &self.shared.content {
            Content::Frozen { phys, .. } => phys.zil_header,
            Content::Open(open) => open.state.lock().zil_header(Txg(u64::MAX)),
        }
    }

    /// Changes the intent log's header in a txg; later txgs have what it is then.
    pub fn change_zil_header(&self, txg: Txg, change: impl FnOnce(&mut ZilHeader)) {
        {
            let mut state = self.open_state().state.lock();
            assert!(
                state.logs.keys().next_back().is_none_or(|last| *last <= txg),
                "a header changes in the order of txgs"
            );
            let mut header = state.zil_header(txg);
            change(&mut header);
            state.logs.insert(txg, header);
        }
        self.open_state().changes.mark(txg, ObjectId(0));
        self.meta_dnode().touch(txg);
    }

    /// The root block's fields as a txg is to write them, but for dnodes.
    pub(crate) fn phys_of(&self, txg: Txg) -> ObjsetPhys {
        let state = self.open_state().state.lock();
        ObjsetPhys { zil_header: state.zil_header(txg), ..(*state.phys).clone() }
    }

    /// Counts changes of this objset there, as dirty until they are written. Once for an objset.
    pub fn count_dirty(&self, dirty: &Arc<Dirty>) {
        self.open_state().changes.count_dirty(dirty);
    }

    /// Blocks that one txg should free at most, by what they hold in memory; no limit where nothing is counted.
    #[must_use]
    pub fn frees_max(&self) -> Option<u64> {
        self.dirty().map(|dirty| dirty.max_bytes() / FREES_PART / FREED_BYTES)
    }

    pub(crate) fn dirty(&self) -> Option<&Arc<Dirty>> {
        self.open_state().changes.dirty()
    }

    /// A number that grows with every change, whatever the txg: the same number twice means that nothing was changed in between.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.open_state().changes.count()
    }

    /// Counts blocks that a txg frees as dirty, for their pointers and the indirect blocks that are read to find them.
    /// [`Object::free_blocks`] counts the indirect blocks above the range's first block alone: the caller knows how many blocks are
    /// in use, and counts them here.
    pub fn count_frees(&self, txg: Txg, blocks: u64) {
        if let Some(dirty) = self.dirty() {
            dirty.change(txg, blocks.saturating_mul(FREED_BYTES).min(i64::MAX as u64) as i64);
        }
    }

    /// Whether a txg has changes that are not written.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.open_state().changes.is_dirty(txg)
    }

    /// Makes an object.
    ///
    /// # Errors
    /// The spec does not describe a valid object.
    pub fn create_object(&self, txg: Txg, spec: &ObjectSpec) -> Result<Object, DmuError> {
        let id = self.open_state().state.lock().numbers.take(txg, u64::from(spec.slots.clamp(1, SLOTS as u8)));
        self.create_at(txg, id, spec)
    }

    /// Makes an object with a given number, which is not in use.
    ///
    /// # Errors
    /// The spec does not describe a valid object, or the number is taken.
    pub fn create_at(&self, txg: Txg, id: ObjectId, spec: &ObjectSpec) -> Result<Object, DmuError> {
        let fail = |kind: DmuErrorKind| DmuError::new(self.id(), id, kind);
        let head = spec.dnode().map_err(fail)?;
        let is_special = is_special(id);
        {
            let shard = self.open_state().table.of(id);
            if shard.objects.contains_key(&id) || (id.0 >= OBJECT_MAX && !is_special) {
                return Err(fail(DmuErrorKind::WrongType("its number is taken".into())));
            }
            if !is_special {
                self.open_state().state.lock().numbers.claim(id, u64::from(spec.slots.clamp(1, SLOTS as u8)));
            }
        }
        let object = self.add(id, head, None);
        object.touch(txg);
        Ok(object)
    }

    /// An object of the open state by its number.
    pub(super) async fn open_object(&self, id: ObjectId) -> Result<Object, DmuError> {
        loop {
            let (found, forgotten) = {
                let shard = self.open_state().table.of(id);
                (shard.objects.get(&id).cloned(), shard.forgotten)
            };
            if let Some(object) = found {
                if object.is_freed() {
                    return Err(DmuError::new(self.id(), id, DmuErrorKind::NoSuchObject));
                }
                return Ok(object);
            }
            let phys = self.find_dnode(id).await?;
            let mut shard = self.open_state().table.of(id);
            // Someone may have come first, changed it, and let it go again after a sync: the dnode is an old one then.
            if !shard.objects.contains_key(&id) && shard.forgotten != forgotten {
                continue;
            }
            shard.make_room();
            let made = || Object::open(&self.open_state().changes, id, phys.clone(), Some(phys));
            return Ok(shard.objects.entry(id).or_insert_with(made).clone());
        }
    }

    /// Objects in memory: those in use, those with changes that are not on disk, and at most as many unused ones, or a thousand.
    #[must_use]
    pub fn loaded_count(&self) -> usize {
        self.open_state().table.len()
    }

    /// Whether an object is in use in memory; those that stand in the root block always are.
    pub(crate) fn has(&self, id: ObjectId) -> bool {
        self.open_state().table.of(id).objects.contains_key(&id)
    }

    /// Takes the numbers of the objects that a txg has changed, the meta-dnode's left out.
    pub(crate) fn take_changed(&self, txg: Txg) -> BTreeSet<ObjectId> {
        let mut ids = self.open_state().changes.take(txg);
        ids.remove(&ObjectId(0));
        ids
    }

    /// Those objects of these numbers that are in memory, as all are that have changes.
    pub(crate) fn loaded(&self, ids: &[ObjectId]) -> Vec<Object> {
        let objects = self.open_state().table.all(ids);
        debug_assert_eq!(objects.len(), ids.len(), "an object with changes is in memory");
        objects
    }

    /// A txg's changes are written: the root, and the fields that stand in it.
    pub(crate) fn put_synced(&self, txg: Txg, root: Blkptr, phys: ObjsetPhys) {
        drop(self.open_state().changes.take(txg));
        if let Some(raw) = self.raw() {
            raw.written(txg);
        }
        let mut state = self.open_state().state.lock();
        assert_eq!(root.logical_birth(), txg, "a root is of the txg that has written it");
        state.root = root;
        // Flags may have been set for a later txg meanwhile.
        let flags = state.phys.flags;
        state.logs = state.logs.split_off(&Txg(txg.0 + 1));
        state.phys = Arc::new(ObjsetPhys { flags, ..phys });
    }

    /// Pieces in which unused objects are let go when a txg is on disk, each by [`Self::sweep`], on any core: one where there are few
    /// objects.
    pub(crate) fn sweeps(&self) -> Vec<Range<usize>> {
        match self.loaded_count() > SWEPT_ALONE_MAX {
            true => (0..SHARDS).map(|at| at..at + 1).collect(),
            false => std::iter::once(0..SHARDS).collect(),
        }
    }

    /// Lets go of objects that nobody uses any more; numbers of those that the txg has freed can be given again.
    pub(crate) fn sweep(&self, txg: Txg, shards: Range<usize>) {
        for at in shards {
            let open = self.open_state();
            open.table.shard(at).sweep(txg, |id, object| {
                if self.id() != MOS {
                    open.state.lock().numbers.give(txg, id, object.phys().slots() as u64);
                }
            });
        }
    }
}
