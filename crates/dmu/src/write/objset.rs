//! An objset that is written: its objects in memory, which of them each txg has changed, and its root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{BLOCK_BYTES, DnodePhys, SLOT_SHIFT, dnodes_in_block};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::objset::{MAC_BYTES, ObjsetFlags, ObjsetPhys, ObjsetVersion};
use cenote_format::zil_header::ZilHeader;
use cenote_taskq::sync::Mutex;

use super::numbers::{Numbers, SLOTS, bits};
use super::object::{INDIRECT_SHIFT, Object, ObjectSpec};
use super::policy::ObjsetPolicy;
use crate::objset::Objset;
use crate::tx::Dirty;
use crate::{Dmu, DmuError, DmuErrorKind, KeyAccess};

/// The meta object set.
const MOS: ObjsetId = ObjsetId(0);
/// Numbers of objects have 48 bits.
const OBJECT_MAX: u64 = 1 << 48;
/// Pointers of the meta-dnode that are looked at for free numbers at a time.
const LOOKS_MAX: usize = 1 << 10;
/// Objects in memory at which unused ones are first let go.
const OBJECTS_MIN: usize = 1 << 10;
/// A block of the meta-dnode is looked into where it has no more objects than this.
const CROWD_MAX: u64 = SLOTS / 4 * 3;

/// Frees of a txg may take this part of `zfs_dirty_data_max` at most.
const FREES_PART: u64 = 8;
/// Memory of a freed block until its txg is on disk: its pointer in the indirect block and in the list of freed blocks, its entry in
/// the sorted list that the allocator gets, in a metaslab's ranges and in a space map.
const FREED_BYTES: u64 = 512;

/// The numbers under which the accounting objects of an objset are known; their dnodes stand in the root block.
pub const USERUSED: ObjectId = ObjectId(u64::MAX);
/// See [`USERUSED`].
pub const GROUPUSED: ObjectId = ObjectId(u64::MAX - 1);
/// See [`USERUSED`].
pub const PROJECTUSED: ObjectId = ObjectId(u64::MAX - 2);

/// An objset that can be written. Cheap to clone. It is closed with its last clone: its objects, which refer to it, are let go then,
/// and nothing can be done with those that are still used elsewhere.
#[derive(Clone)]
pub struct ObjsetMut {
    shared: Arc<Shared>,
    /// None in its objects, or they and it would keep each other in memory, and with them the pool's devices.
    _owner: Option<Arc<Owner>>,
}

/// What all clones of an objset share, and none of its objects.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.0.state.lock().objects);
        drop(objects);
    }
}

struct Shared {
    dmu: Dmu,
    id: ObjsetId,
    /// What blocks on disk are read through.
    reader: Objset,
    state: Mutex<State>,
    /// Where bytes that are dirty are counted.
    dirty: OnceLock<Arc<Dirty>>,
    /// Changes so far.
    changes: AtomicU64,
}

struct State {
    policy: ObjsetPolicy,
    objects: BTreeMap<ObjectId, Object>,
    /// Number of objects at which unused ones are let go, though no txg ends.
    full_at: usize,
    dirty: BTreeMap<Txg, BTreeSet<ObjectId>>,
    numbers: Numbers,
    /// How often objects have been forgotten: what was read from disk before may be out of date after.
    forgotten: u64,
    root: Blkptr,
    /// All of the root block but its dnodes.
    phys: ObjsetPhys,
}

impl State {
    /// Lets go of unused objects before they are more than the used ones: where everything is only read no txg ends.
    fn make_room(&mut self) {
        if self.objects.len() < self.full_at {
            return;
        }
        // An object that is freed on disk is let go at the end of a txg, which gives its number to others.
        let is_kept =
            |id: &ObjectId, object: &Object| id.0 == 0 || is_special(*id) || !object.is_idle() || object.is_gone();
        self.objects.retain(|id, object| is_kept(id, object));
        self.forgotten += 1;
        self.full_at = (self.objects.len() * 2).max(OBJECTS_MIN);
    }
}

impl ObjsetMut {
    /// A new objset, without objects.
    #[must_use]
    pub fn create(dmu: Dmu, id: ObjsetId, kind: ObjsetType, policy: ObjsetPolicy) -> Self {
        let mut meta = ObjectSpec::new(DmuType::DNODE, BLOCK_BYTES as u32);
        meta.indirect_shift = INDIRECT_SHIFT;
        let mut meta = meta.dnode().expect("a meta-dnode is a dnode");
        if kind != ObjsetType::Meta {
            // As high as it will ever be, so that its growth never moves what is there.
            meta.levels = levels_for(&meta, OBJECT_MAX >> (BLOCK_BYTES.ilog2() - SLOT_SHIFT));
        }
        let phys = ObjsetPhys {
            version: ObjsetVersion::V3,
            meta_dnode: meta.clone(),
            zil_header: ZilHeader::default(),
            type_number: u64::from(kind.number()),
            flags: ObjsetFlags::empty(),
            portable_mac: [0; MAC_BYTES],
            local_mac: [0; MAC_BYTES],
            userused_dnode: None,
            groupused_dnode: None,
            projectused_dnode: None,
        };
        let this = Self::new(dmu, id, Blkptr::HOLE, phys, policy, 1);
        this.add(ObjectId(0), meta, None);
        this
    }

    /// An objset that is on disk.
    pub async fn open(dmu: Dmu, id: ObjsetId, root: Blkptr, policy: ObjsetPolicy) -> Result<Self, DmuError> {
        let reader = Objset::open(dmu.clone(), id, root, KeyAccess::None).await?;
        let phys = reader.phys().clone();
        if phys.endian() != cenote_zio::ORDER {
            let what = "changing objsets that a big-endian machine wrote";
            return Err(DmuError::new(id, ObjectId(0), DmuErrorKind::Unsupported(what.into())));
        }
        let next = phys.meta_dnode.max_block_id.saturating_add(1).saturating_mul(SLOTS);
        let this = Self::new(dmu, id, root, phys.clone(), policy, next);
        this.add(ObjectId(0), phys.meta_dnode.clone(), Some(phys.meta_dnode));
        let special =
            [(USERUSED, phys.userused_dnode), (GROUPUSED, phys.groupused_dnode), (PROJECTUSED, phys.projectused_dnode)];
        for (id, dnode) in special {
            if let Some(dnode) = dnode {
                this.add(id, dnode.clone(), Some(dnode));
            }
        }
        Ok(this)
    }

    fn new(dmu: Dmu, id: ObjsetId, root: Blkptr, phys: ObjsetPhys, policy: ObjsetPolicy, next: u64) -> Self {
        let reader = Objset::from_parts(dmu.clone(), id, root, phys.clone());
        let (objects, dirty) = (BTreeMap::new(), BTreeMap::new());
        let numbers = Numbers::new(next);
        let state =
            Mutex::new(State { policy, objects, full_at: OBJECTS_MIN, dirty, numbers, forgotten: 0, root, phys });
        let (dirty, changes) = (OnceLock::new(), AtomicU64::new(0));
        let shared = Arc::new(Shared { dmu, id, reader, state, dirty, changes });
        Self { _owner: Some(Arc::new(Owner(Arc::clone(&shared)))), shared }
    }

    fn add(&self, id: ObjectId, head: DnodePhys, synced: Option<DnodePhys>) -> Object {
        let object = Object::new(self, id, head, synced);
        self.shared.state.lock().objects.insert(id, object.clone());
        object
    }

    /// Its number: its dataset's object in the MOS, 0 for the MOS.
    #[must_use]
    pub fn id(&self) -> ObjsetId {
        self.shared.id
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        &self.shared.dmu
    }

    pub(super) fn reader(&self) -> Objset {
        self.shared.reader.clone()
    }

    /// How its blocks are written.
    #[must_use]
    pub fn policy(&self) -> ObjsetPolicy {
        self.shared.state.lock().policy
    }

    /// Changes how its blocks are written, from the next sync on.
    pub fn set_policy(&self, policy: ObjsetPolicy) {
        self.shared.state.lock().policy = policy;
    }

    /// Its root on disk; a hole before the first sync.
    #[must_use]
    pub fn root(&self) -> Blkptr {
        self.shared.state.lock().root
    }

    /// The root block's fields that are not dnodes.
    #[must_use]
    pub fn phys(&self) -> ObjsetPhys {
        self.shared.state.lock().phys.clone()
    }

    /// Changes the root block's flags.
    pub fn set_flags(&self, txg: Txg, flags: ObjsetFlags) {
        self.shared.state.lock().phys.flags |= flags;
        self.mark(txg, ObjectId(0));
        self.meta().touch(txg);
    }

    pub(super) fn meta(&self) -> Object {
        self.shared.state.lock().objects[&ObjectId(0)].clone()
    }

    /// Counts changes of this objset there, as dirty until they are written. Once for an objset.
    pub fn count_dirty(&self, dirty: &Arc<Dirty>) {
        let _ = self.shared.dirty.set(dirty.clone());
    }

    /// Blocks that one txg should free at most, by what they hold in memory; no limit where nothing is counted.
    #[must_use]
    pub fn frees_max(&self) -> Option<u64> {
        self.dirty().map(|dirty| dirty.max_bytes() / FREES_PART / FREED_BYTES)
    }

    pub(super) fn dirty(&self) -> Option<&Arc<Dirty>> {
        self.shared.dirty.get()
    }

    /// A number that grows with every change, whatever the txg: who sees the same twice knows that nothing was changed.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Notes that a txg changes an object. At the txg's first change of it the neighbours among its changed objects come back.
    pub(super) fn mark(&self, txg: Txg, id: ObjectId) -> Option<(Option<u64>, Option<u64>)> {
        self.shared.changes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.shared.state.lock();
        let changed = state.dirty.entry(txg).or_default();
        changed.insert(id).then(|| neighbours(changed, id))
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
        self.shared.state.lock().dirty.get(&txg).is_some_and(|dirty| !dirty.is_empty())
    }

    /// Makes an object.
    ///
    /// # Errors
    /// What is asked for is no object.
    pub fn create_object(&self, txg: Txg, spec: &ObjectSpec) -> Result<Object, DmuError> {
        let id = self.shared.state.lock().numbers.take(txg, u64::from(spec.slots.clamp(1, SLOTS as u8)));
        self.create_at(txg, id, spec)
    }

    /// Makes an object with a given number, which is not in use.
    ///
    /// # Errors
    /// What is asked for is no object, or the number is taken.
    pub fn create_at(&self, txg: Txg, id: ObjectId, spec: &ObjectSpec) -> Result<Object, DmuError> {
        let fail = |kind: DmuErrorKind| DmuError::new(self.id(), id, kind);
        let head = spec.dnode().map_err(fail)?;
        let is_special = is_special(id);
        {
            let mut state = self.shared.state.lock();
            if state.objects.contains_key(&id) || (id.0 >= OBJECT_MAX && !is_special) {
                return Err(fail(DmuErrorKind::WrongType("its number is taken".into())));
            }
            if !is_special {
                state.numbers.claim(id, u64::from(spec.slots.clamp(1, SLOTS as u8)));
            }
        }
        let object = self.add(id, head, None);
        object.touch(txg);
        Ok(object)
    }

    /// An object by its number.
    pub async fn object(&self, id: ObjectId) -> Result<Object, DmuError> {
        loop {
            let (found, forgotten) = {
                let state = self.shared.state.lock();
                (state.objects.get(&id).cloned(), state.forgotten)
            };
            if let Some(object) = found {
                if object.is_freed() {
                    return Err(DmuError::new(self.id(), id, DmuErrorKind::NoSuchObject));
                }
                return Ok(object);
            }
            let phys = self.find(id).await?;
            let mut state = self.shared.state.lock();
            // Someone may have come first, changed it, and let it go again after a sync: the dnode is an old one then.
            if !state.objects.contains_key(&id) && state.forgotten != forgotten {
                continue;
            }
            state.make_room();
            let made = || Object::new(self, id, phys.clone(), Some(phys));
            return Ok(state.objects.entry(id).or_insert_with(made).clone());
        }
    }

    /// Objects in memory: those in use, those with changes that are not on disk, and at most as many unused ones, or a thousand.
    #[must_use]
    pub fn loaded_count(&self) -> usize {
        self.shared.state.lock().objects.len()
    }

    /// An object's dnode, from the block of the meta-dnode that it stands in.
    async fn find(&self, id: ObjectId) -> Result<DnodePhys, DmuError> {
        let fail = |kind: DmuErrorKind| DmuError::new(self.id(), id, kind);
        let (block, slot) = (id.0 / SLOTS, (id.0 % SLOTS) as usize);
        let Some(bytes) = self.meta().block(block).await? else { return Err(fail(DmuErrorKind::NoSuchObject)) };
        let found = cenote_format::dnode::dnodes_in_block(&bytes, cenote_zio::ORDER).find(|(at, _)| *at == slot);
        let (_, dnode) = found.ok_or_else(|| fail(DmuErrorKind::NoSuchObject))?;
        Ok(dnode.map_err(|error| fail(error.into()))?.to_value())
    }

    /// Whether an object is in use in memory; those that stand in the root block always are.
    pub(super) fn has(&self, id: ObjectId) -> bool {
        self.shared.state.lock().objects.contains_key(&id)
    }

    /// Takes the objects that a txg has changed, in the order of their numbers, the meta-dnode left out.
    pub(super) fn take_dirty(&self, txg: Txg) -> Vec<Object> {
        let mut state = self.shared.state.lock();
        let mut ids = state.dirty.remove(&txg).unwrap_or_default();
        ids.remove(&ObjectId(0));
        ids.iter().filter_map(|id| state.objects.get(id).cloned()).collect()
    }

    /// A txg's changes are written: the root, and the fields that stand in it.
    pub(super) fn put_synced(&self, txg: Txg, root: Blkptr, phys: ObjsetPhys) {
        let mut state = self.shared.state.lock();
        state.dirty.remove(&txg);
        state.root = root;
        // Flags may have been set for a later txg meanwhile.
        let flags = state.phys.flags;
        state.phys = ObjsetPhys { flags, ..phys };
        let State { objects, numbers, .. } = &mut *state;
        objects.retain(|id, object| {
            if id.0 == 0 || is_special(*id) {
                return true;
            }
            // What is freed on disk is no object any more, though someone may still hold it.
            let is_gone = object.is_gone();
            if is_gone && self.shared.id != MOS {
                numbers.give(txg, *id, object.head().slots() as u64);
            }
            !is_gone && !object.is_idle()
        });
        state.forgotten += 1;
    }

    /// Looks for numbers of objects that were freed before this objset was opened, where none are known: a bounded piece of the
    /// meta-dnode, so to be called whenever a new object is to be made.
    ///
    /// # Errors
    /// The meta-dnode cannot be read.
    pub async fn look_for_numbers(&self) -> Result<(), DmuError> {
        for _ in 0..LOOKS_MAX {
            let (block, forgotten) = {
                let mut state = self.shared.state.lock();
                if self.shared.id == MOS || !state.numbers.wants_more() {
                    return Ok(());
                }
                let Some(block) = state.numbers.unseen.next() else { return Ok(()) };
                (block, state.forgotten)
            };
            let Some(on_disk) = self.meta().on_disk() else { return Ok(()) };
            let pointer = on_disk.pointer(0, BlockId(block)).await?;
            if !pointer.is_hole() && pointer.fill() > CROWD_MAX {
                continue;
            }
            let mut free = u32::MAX;
            if let Some(bytes) = self.meta().block(block).await? {
                for (slot, dnode) in dnodes_in_block(&bytes, cenote_zio::ORDER) {
                    // What is damaged is left alone, and so is its block.
                    let Ok(dnode) = dnode else {
                        free = 0;
                        break;
                    };
                    free &= !bits(ObjectId(slot as u64), dnode.slots() as u64);
                }
            }
            let mut state = self.shared.state.lock();
            // What was written and forgotten meanwhile is neither in what was read nor in memory.
            if state.forgotten != forgotten {
                continue;
            }
            let numbers = ObjectId(block * SLOTS)..ObjectId((block + 1) * SLOTS);
            for (id, object) in state.objects.range(numbers) {
                free &= !bits(*id, object.head().slots() as u64);
            }
            if block == 0 {
                free &= !1;
            }
            state.numbers.add(block, free);
        }
        Ok(())
    }

    /// The same for one of its objects, which does not keep it from being closed.
    pub(super) fn of_object(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), _owner: None }
    }
}

pub(super) const fn is_special(id: ObjectId) -> bool {
    id.0 >= PROJECTUSED.0
}

/// The objects on either side of one in a txg's set of changed objects. The meta-dnode and the accounts are none: their dnodes
/// stand in the root block.
fn neighbours(changed: &BTreeSet<ObjectId>, id: ObjectId) -> (Option<u64>, Option<u64>) {
    let is_in_block = |id: &&ObjectId| id.0 != 0 && !is_special(**id);
    let before = changed.range(..id).next_back().filter(is_in_block).map(|id| id.0);
    let after = changed.range(ObjectId(id.0.saturating_add(1))..).next().filter(is_in_block).map(|id| id.0);
    (before, after)
}

/// Levels of a tree that reaches `blocks` data blocks, from the dnode's own pointers on.
pub(super) fn levels_for(dnode: &DnodePhys, blocks: u64) -> u8 {
    let shift = dnode.blkptrs_per_indirect_shift();
    let mut levels = 1_u8;
    let mut reach = u128::from(dnode.blkptr_count);
    while reach < u128::from(blocks) {
        reach <<= shift;
        levels += 1;
    }
    levels.max(dnode.levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meta_dnode_and_accounts_are_nobodys_neighbours() {
        let changed: BTreeSet<ObjectId> = [ObjectId(0), ObjectId(5), ObjectId(9), USERUSED].into();
        assert_eq!(neighbours(&changed, ObjectId(5)), (None, Some(9)));
        assert_eq!(neighbours(&changed, ObjectId(9)), (Some(5), None));
    }
}
