//! An object that is written: what txgs that are not on disk yet have made of it, over what is on disk.
//!
//! ```text
//!   newest head ─► (txg 12) head, blocks, freed ─► (txg 11, syncing) head, blocks, freed ─► dnode on disk ─► its tree
//! ```
//! A reader asks from left to right; the first layer that knows of the block answers. A txg's layer is not changed once the
//! txg is quiesced, so its sync needs no lock but the short one that takes the layer out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodeFlags, DnodePhys, MAX_BLKPTRS, bonus_capacity_bytes};
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_zio::ORDER;

use super::held;
use super::objset::{ObjsetMut, is_special};
use super::tree::Tree;
use super::turns::{Turn, Turns};
use crate::dnode::Dnode;
use crate::{DmuError, DmuErrorKind};

/// The usual size of indirect blocks, as a power of two.
pub const INDIRECT_SHIFT: u8 = 17;
/// The largest data block.
const BLOCK_MAX_BYTES: u32 = 16 << 20;

/// What a new object is to be.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    /// What it holds.
    pub kind: DmuType,
    /// Bytes of a data block: a multiple of 512.
    pub block_bytes: u32,
    /// Indirect blocks, as a power of two.
    pub indirect_shift: u8,
    /// What its bonus holds.
    pub bonus_kind: DmuType,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// Slots of 512 bytes for the dnode.
    pub slots: u8,
    /// Its blocks are never compressed, whatever the objset says.
    pub uncompressed: bool,
}

impl ObjectSpec {
    /// An object of this kind with blocks of this size, without a bonus.
    #[must_use]
    pub const fn new(kind: DmuType, block_bytes: u32) -> Self {
        Self {
            kind,
            block_bytes,
            indirect_shift: INDIRECT_SHIFT,
            bonus_kind: DmuType::NONE,
            bonus: Vec::new(),
            slots: 1,
            uncompressed: false,
        }
    }

    /// The same with a bonus.
    #[must_use]
    pub fn with_bonus(self, bonus_kind: DmuType, bonus: Vec<u8>) -> Self {
        Self { bonus_kind, bonus, ..self }
    }

    /// The dnode that it begins as.
    pub(super) fn dnode(&self) -> Result<DnodePhys, DmuErrorKind> {
        let bad = |what: &str| DmuErrorKind::WrongType(format!("a new object: {what}"));
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(512) || self.block_bytes > BLOCK_MAX_BYTES {
            return Err(bad("blocks are multiples of 512 bytes, 16 MiB at most"));
        }
        let room = bonus_capacity_bytes(usize::from(self.slots.max(1)));
        let left = room.checked_sub(self.bonus.len()).ok_or_else(|| bad("the bonus does not fit"))?;
        // System attributes change their size, so they get all the room there is.
        let count = if self.bonus_kind == DmuType::SA { 1 } else { (1 + left / Blkptr::SIZE).min(MAX_BLKPTRS) };
        Ok(DnodePhys {
            object_type: self.kind,
            indirect_block_shift: self.indirect_shift,
            levels: 1,
            blkptr_count: count as u8,
            bonus_type: self.bonus_kind,
            checksum: 0,
            compress: if self.uncompressed { 2 } else { 0 },
            flags: DnodeFlags::USED_BYTES,
            data_block_sectors: (self.block_bytes >> 9) as u16,
            extra_slots: self.slots.max(1) - 1,
            max_block_id: 0,
            used: 0,
            blkptrs: [Blkptr::HOLE; MAX_BLKPTRS],
            bonus: self.bonus.clone().into(),
            spill: None,
            endian: ORDER,
        })
    }
}

/// One txg's changes.
#[derive(Clone, Debug)]
pub(super) struct Dirty {
    /// The dnode as of the end of the txg; its pointers mean nothing.
    pub(super) head: DnodePhys,
    /// Data blocks written. The sync shares them with readers: who changes them while it does has a copy of the table.
    pub(super) blocks: Arc<BTreeMap<u64, Block>>,
    /// Data blocks freed before those were written: in order, apart.
    pub(super) freed: Vec<Range<u64>>,
    /// The spill block: written, or freed.
    pub(super) spill: Option<Option<Block>>,
    /// The object as a whole is freed.
    pub(super) is_freed: bool,
}

impl Dirty {
    /// Whether the dnode alone has changed.
    pub(super) fn changes_no_block(&self) -> bool {
        !self.is_freed && self.blocks.is_empty() && self.freed.is_empty()
    }

    /// The blocks next to one, on either side, that are written or freed.
    fn neighbours(&self, block: u64) -> (Option<u64>, Option<u64>) {
        let written = self.blocks.range(..block).next_back().map(|(at, _)| *at);
        let at = self.freed.partition_point(|range| range.end <= block);
        let freed = at.checked_sub(1).and_then(|at| self.freed.get(at)).map(|range| range.end - 1);
        let next_written = self.blocks.range(block..).next().map(|(at, _)| *at);
        let next_freed = self.freed.get(at).map(|range| range.start.max(block));
        (written.max(freed), next_written.into_iter().chain(next_freed).min())
    }

    /// The range freed that a block lies in, or the next one.
    fn freed_from(&self, block: u64) -> Option<&Range<u64>> {
        self.freed.get(self.freed.partition_point(|range| range.end <= block))
    }
}

struct State {
    /// The dnode as the newest change left it; its pointers mean nothing.
    head: DnodePhys,
    /// The dnode on disk, and the way to its blocks.
    synced: Option<Dnode>,
    /// Changes that are not on disk, oldest first: three txgs at most.
    txgs: Vec<(Txg, Dirty)>,
    /// The object was freed, and is on disk no more.
    is_gone: bool,
}

impl State {
    fn dirty(&mut self, txg: Txg) -> &mut Dirty {
        let at = match self.txgs.iter().position(|(other, _)| *other >= txg) {
            Some(at) if self.txgs[at].0 == txg => at,
            at => {
                let at = at.unwrap_or(self.txgs.len());
                let dirty = Dirty {
                    head: self.head.clone(),
                    blocks: Arc::default(),
                    freed: Vec::new(),
                    spill: None,
                    is_freed: false,
                };
                self.txgs.insert(at, (txg, dirty));
                at
            }
        };
        &mut self.txgs[at].1
    }

    /// Has the object reach to its block `last`, or no further, from a txg on: those after it were begun without this change.
    fn set_last(&mut self, txg: Txg, last: impl Fn(u64) -> u64) {
        self.dirty(txg);
        let later = self.txgs.iter_mut().filter(|(other, _)| *other >= txg).map(|(_, dirty)| &mut dirty.head);
        for head in later.chain([&mut self.head]) {
            head.max_block_id = last(head.max_block_id);
        }
    }
}

/// What the layers in memory know of a block.
pub(super) enum Known {
    Data(Block),
    Hole,
    /// Nothing: it is as on disk, if anything is.
    OnDisk(Option<Dnode>),
}

/// Blocks that are looked at for one run at most.
const RUN_MAX: u64 = 1 << 16;

/// An object that can be written. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    shared: Arc<Shared>,
}

struct Shared {
    objset: ObjsetMut,
    id: ObjectId,
    state: Mutex<State>,
    turns: Turns,
}

impl Object {
    pub(super) fn new(objset: &ObjsetMut, id: ObjectId, head: DnodePhys, synced: Option<DnodePhys>) -> Self {
        let synced = synced.map(|phys| Dnode::new(objset.reader(), id, phys));
        let state = Mutex::new(State { head, synced, txgs: Vec::new(), is_gone: false });
        Self { shared: Arc::new(Shared { objset: objset.of_object(), id, state, turns: Turns::default() }) }
    }

    pub(super) fn turns(&self) -> &Turns {
        &self.shared.turns
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.shared.id
    }

    /// The objset that it is of.
    #[must_use]
    pub fn objset(&self) -> &ObjsetMut {
        &self.shared.objset
    }

    /// Its fields as of the newest change. The pointers mean nothing here.
    #[must_use]
    pub fn head(&self) -> DnodePhys {
        self.shared.state.lock().head.clone()
    }

    /// Its bonus.
    #[must_use]
    pub fn bonus(&self) -> Vec<u8> {
        self.shared.state.lock().head.bonus.to_vec()
    }

    /// Bytes of a data block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.shared.state.lock().head.data_block_bytes())
    }

    /// The dnode on disk, once there is one.
    #[must_use]
    pub fn synced(&self) -> Option<DnodePhys> {
        self.on_disk().map(|dnode| dnode.phys().clone())
    }

    /// As [`Object::synced`], with the way to its blocks.
    #[must_use]
    pub fn on_disk(&self) -> Option<Dnode> {
        self.shared.state.lock().synced.clone()
    }

    pub(super) fn error(&self, kind: impl Into<DmuErrorKind>) -> DmuError {
        DmuError::new(self.objset().id(), self.id(), kind)
    }

    /// Whether nothing hangs on it: no change that is not on disk, no user but the table.
    pub(super) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1 && self.shared.state.lock().txgs.is_empty()
    }

    /// True if it has changes that are not on disk yet: its space will be another figure then.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        !self.shared.state.lock().txgs.is_empty()
    }

    pub(super) fn is_freed(&self) -> bool {
        self.shared.state.lock().txgs.iter().any(|(_, dirty)| dirty.is_freed)
    }

    /// Whether it was freed, and that is on disk.
    pub(super) fn is_gone(&self) -> bool {
        let state = self.shared.state.lock();
        state.is_gone && state.txgs.is_empty()
    }

    /// Takes a txg's changes out, with the dnode that they are to be applied to.
    pub(super) fn take(&self, txg: Txg) -> Option<(Dirty, Option<DnodePhys>)> {
        let state = self.shared.state.lock();
        let at = state.txgs.iter().position(|(other, _)| *other == txg)?;
        // Readers go on asking this layer until the new tree is there.
        Some((state.txgs[at].1.clone(), state.synced.as_ref().map(|dnode| dnode.phys().clone())))
    }

    /// A txg's changes are on disk (as far as its passes have come): `synced` is what they made of the dnode.
    #[must_use]
    pub(super) fn put_synced(&self, txg: Txg, synced: Option<DnodePhys>) -> Option<Dirty> {
        let synced = synced.map(|phys| Dnode::new(self.objset().reader(), self.id(), phys));
        let mut state = self.shared.state.lock();
        let layer = state.txgs.iter().position(|(other, _)| *other == txg).map(|at| state.txgs.remove(at).1);
        state.is_gone |= synced.is_none();
        state.synced = synced;
        layer
    }

    fn change<T>(&self, txg: Txg, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, bonus_bytes) = {
            let mut state = self.shared.state.lock();
            (change(&mut state), state.head.bonus.len())
        };
        let neighbours = self.objset().mark(txg, self.id());
        if let Some((before, after)) = neighbours
            && self.objset().dirty().is_some()
        {
            const PARTS_BYTES: usize = size_of::<Shared>() + size_of::<(Txg, Dirty)>() + size_of::<Tree>();
            let held = held::object_bytes(PARTS_BYTES, bonus_bytes);
            self.count_dirty(txg, held + held::dnode_block_bytes(self.id().0, before, after));
        }
        changed
    }

    /// Counts bytes that have become dirty, or are not any more. The meta-dnode and accounts are the sync's own.
    fn count_dirty(&self, txg: Txg, bytes: i64) {
        if mutant::is(Mutant::DirtyUncounted) {
            return;
        }
        if let Some(dirty) = self.objset().dirty()
            && self.id().0 != 0
            && !is_special(self.id())
        {
            dirty.change(txg, bytes);
        }
    }

    /// Marks it as changed, though nothing is.
    pub(super) fn touch(&self, txg: Txg) {
        self.change(txg, |state| {
            state.dirty(txg);
        });
    }

    /// Changes its fields, those of its tree left out.
    fn change_head(&self, txg: Txg, change: impl Fn(&mut DnodePhys)) {
        self.change(txg, |state| {
            change(&mut state.head);
            change(&mut state.dirty(txg).head);
        });
    }

    /// Replaces the bonus. Nothing happens if it is the same.
    ///
    /// # Errors
    /// It does not fit.
    pub fn set_bonus(&self, txg: Txg, bonus: &[u8]) -> Result<(), DmuError> {
        let head = self.head();
        if *head.bonus == *bonus {
            return Ok(());
        }
        let pointers = (usize::from(head.blkptr_count) - 1) * Blkptr::SIZE;
        let spill = if head.flags.contains(DnodeFlags::SPILL_BLKPTR) { Blkptr::SIZE } else { 0 };
        if bonus.len() + pointers + spill > bonus_capacity_bytes(head.slots()) {
            return Err(self.error(DmuErrorKind::TooLarge(bonus.len())));
        }
        self.change_head(txg, |head| head.bonus = bonus.into());
        Ok(())
    }

    /// Gives an object that has no data on disk yet a bonus of another kind.
    ///
    /// # Errors
    /// It does not fit, or the object is on disk.
    pub fn set_bonus_kind(&self, txg: Txg, kind: DmuType, bonus: &[u8]) -> Result<(), DmuError> {
        let head = self.head();
        let left = bonus_capacity_bytes(head.slots()).checked_sub(bonus.len());
        let left = left.ok_or_else(|| self.error(DmuErrorKind::TooLarge(bonus.len())))?;
        if self.synced().is_some() || head.max_block_id > 0 {
            return Err(self.error(DmuErrorKind::WrongType("its bonus has its kind for good".into())));
        }
        let count = if kind == DmuType::SA { 1 } else { (1 + left / Blkptr::SIZE).min(MAX_BLKPTRS) };
        self.change_head(txg, |head| {
            (head.bonus_type, head.bonus, head.blkptr_count) = (kind, bonus.into(), count as u8);
        });
        Ok(())
    }

    /// Changes what the object's data is taken for.
    pub fn set_kind(&self, txg: Txg, kind: DmuType) {
        self.change_head(txg, |head| head.object_type = kind);
    }

    /// Sets flags.
    pub fn set_flags(&self, txg: Txg, flags: DnodeFlags) {
        self.change_head(txg, |head| head.flags |= flags);
    }

    /// Writes the spill block, or frees it. The bonus must leave room for its pointer.
    pub fn set_spill(&self, txg: Txg, spill: Option<Block>) {
        let has = spill.is_some();
        let bytes = spill.as_ref().map_or(0, |spill| spill.len()) as i64;
        let replaced = self.change(txg, |state| {
            state.head.flags.set(DnodeFlags::SPILL_BLKPTR, has);
            let dirty = state.dirty(txg);
            dirty.head.flags.set(DnodeFlags::SPILL_BLKPTR, has);
            dirty.spill.replace(spill).flatten().map_or(0, |spill| spill.len()) as i64
        });
        self.count_dirty(txg, bytes - replaced);
    }

    /// The spill block as of the newest change; nothing if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn spill(&self) -> Result<Option<Block>, DmuError> {
        loop {
            let synced = {
                let state = self.shared.state.lock();
                if let Some(spill) = state.txgs.iter().rev().find_map(|(_, dirty)| dirty.spill.clone()) {
                    return Ok(spill);
                }
                state.synced.clone()
            };
            let Some((pointer, synced)) = synced.and_then(|synced| Some((synced.phys().spill?, synced))) else {
                return Ok(None);
            };
            let reader = self.objset().reader();
            let context = reader.context(self.id(), 0, BlockId(u64::MAX));
            match self.objset().dmu().read(&pointer, context).await {
                Ok(block) => return Ok(Some(block)),
                // As for other blocks.
                Err(_) if self.is_replaced(&synced) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
    }

    pub(super) fn known(&self, block: u64) -> Known {
        let state = self.shared.state.lock();
        for (_, dirty) in state.txgs.iter().rev() {
            if let Some(data) = dirty.blocks.get(&block) {
                return Known::Data(data.clone());
            }
            if dirty.freed_from(block).is_some_and(|range| range.start <= block) {
                return Known::Hole;
            }
        }
        Known::OnDisk(state.synced.clone())
    }

    /// What the layers in memory know of a block, and a block before `limit` up to which they know the same of all.
    pub(super) fn known_run(&self, block: u64, limit: u64) -> (Known, u64) {
        let state = self.shared.state.lock();
        // What a newer layer knows ends what an older one does.
        let mut end = limit;
        for (_, dirty) in state.txgs.iter().rev() {
            if let Some(data) = dirty.blocks.get(&block) {
                let most = end.min(block.saturating_add(RUN_MAX));
                let following = dirty.blocks.range(block + 1..most.max(block + 1)).zip(block + 1..);
                let count = following.take_while(|((at, _), expected)| *at == expected).count() as u64;
                return (Known::Data(data.clone()), block + 1 + count);
            }
            end = dirty.blocks.range(block..end.max(block)).next().map_or(end, |(next, _)| *next);
            match dirty.freed_from(block) {
                Some(range) if range.start <= block => return (Known::Hole, end.min(range.end)),
                Some(range) => end = end.min(range.start),
                None => {}
            }
        }
        (Known::OnDisk(state.synced.clone()), end)
    }

    /// Whether a dnode is not the one on disk any more: what it leads to may have been freed, and written over.
    pub(super) fn is_replaced(&self, dnode: &Dnode) -> bool {
        self.shared.state.lock().synced.as_ref().is_none_or(|synced| !synced.is_same(dnode))
    }

    /// Replaces a whole data block. Its length is the object's block size. Where others may change it too the caller has the
    /// turn.
    pub fn write_block(&self, txg: Txg, block: u64, data: Block) {
        debug_assert_eq!(data.len() as u64, self.block_bytes());
        let bytes = data.len() as i64;
        let more = self.change(txg, |state| {
            state.set_last(txg, |last| last.max(block));
            let dirty = state.dirty(txg);
            if let Some(replaced) = Arc::make_mut(&mut dirty.blocks).insert(block, data) {
                return bytes - replaced.len() as i64;
            }
            let before = dirty.blocks.range(..block).next_back().map(|(at, _)| *at);
            let after = dirty.blocks.range(block + 1..).next().map(|(at, _)| *at);
            bytes + held::indirect_bytes(&dirty.head, block, before, after)
        });
        self.count_dirty(txg, more);
    }

    /// Waits for the turn of all blocks that a range of bytes touches.
    pub async fn turn_of_bytes(&self, offset_bytes: u64, len_bytes: u64) -> Turn {
        loop {
            let size = self.block_bytes();
            let end = offset_bytes.saturating_add(len_bytes).div_ceil(size);
            let blocks = if len_bytes == 0 { 0..0 } else { offset_bytes / size..end };
            let turn = self.turn(blocks).await;
            // Blocks may have got another size, for which one has the turn of them all.
            if self.block_bytes() == size {
                return turn;
            }
        }
    }

    /// Writes bytes; the object grows where they reach behind its last block. Takes the turn itself, with the txg held: only
    /// for objects where nobody waits for a txg with a turn.
    pub async fn write(&self, txg: Txg, offset_bytes: u64, bytes: &[u8]) -> Result<(), DmuError> {
        let turn = self.turn_of_bytes(offset_bytes, bytes.len() as u64).await;
        self.write_in(&turn, txg, offset_bytes, bytes).await
    }

    /// Writes bytes into blocks whose turn the caller has. Whole blocks are copied once, of others the rest is read.
    pub async fn write_in(&self, turn: &Turn, txg: Txg, offset_bytes: u64, bytes: &[u8]) -> Result<(), DmuError> {
        let size = self.block_bytes();
        let mut rest = bytes;
        let mut at = offset_bytes;
        while !rest.is_empty() {
            let (block, start) = (at / size, (at % size) as usize);
            debug_assert!(turn.blocks().contains(&block));
            let len = (size as usize - start).min(rest.len());
            let mut buf = if len as u64 == size {
                Buf::unfilled(len)
            } else {
                self.block(block).await?.map_or_else(|| Buf::zeroed(size as usize), Block::into_buf)
            };
            buf[start..start + len].copy_from_slice(&rest[..len]);
            self.write_block(txg, block, buf.freeze());
            rest = &rest[len..];
            at += len as u64;
        }
        Ok(())
    }

    /// Makes a range of bytes zeros, in blocks whose turn the caller has: whole blocks are freed, and of others a part is
    /// cleared where there is data.
    pub async fn clear_in(&self, turn: &Turn, txg: Txg, bytes: Range<u64>) -> Result<(), DmuError> {
        let size = self.block_bytes();
        let whole = bytes.start.div_ceil(size)..bytes.end / size;
        if whole.start > whole.end {
            // Within one block.
            return self.clear_part(turn, txg, bytes).await;
        }
        self.clear_part(turn, txg, bytes.start..whole.start * size).await?;
        self.clear_part(turn, txg, whole.end * size..bytes.end).await?;
        debug_assert!(whole.is_empty() || (turn.blocks().start <= whole.start && whole.end <= turn.blocks().end));
        self.free_blocks(txg, whole);
        Ok(())
    }

    async fn clear_part(&self, turn: &Turn, txg: Txg, bytes: Range<u64>) -> Result<(), DmuError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let size = self.block_bytes();
        let (block, start) = (bytes.start / size, (bytes.start % size) as usize);
        debug_assert!(turn.blocks().contains(&block));
        if let Some(data) = self.block(block).await? {
            let mut buf = data.into_buf();
            buf[start..start + (bytes.end - bytes.start) as usize].fill(0);
            self.write_block(txg, block, buf.freeze());
        }
        Ok(())
    }

    /// Frees whole data blocks: they become holes.
    pub fn free_blocks(&self, txg: Txg, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let more = self.change(txg, |state| {
            let dirty = state.dirty(txg);
            // The caller counts the other indirect blocks of a larger range ([`ObjsetMut::count_frees`]).
            let (before, after) = dirty.neighbours(blocks.start);
            let held = held::indirect_bytes(&dirty.head, blocks.start.min(dirty.head.max_block_id), before, after);
            let written: Vec<u64> = dirty.blocks.range(blocks.clone()).map(|(block, _)| *block).collect();
            let mut undone = 0;
            if !written.is_empty() {
                let table = Arc::make_mut(&mut dirty.blocks);
                undone = written.iter().filter_map(|block| table.remove(block)).map(|data| data.len()).sum();
            }
            let Range { mut start, mut end } = blocks;
            dirty.freed.retain(|other| {
                let apart = other.end < start || end < other.start;
                if !apart {
                    (start, end) = (start.min(other.start), end.max(other.end));
                }
                apart
            });
            let at = dirty.freed.partition_point(|other| other.start < start);
            dirty.freed.insert(at, start..end);
            held - undone as i64
        });
        self.count_dirty(txg, more);
    }

    /// Frees all data; the object stays.
    pub fn truncate(&self, txg: Txg) {
        self.shrink(txg, 0);
    }

    /// Frees all data blocks but the first `block_count`.
    pub fn shrink(&self, txg: Txg, block_count: u64) {
        self.free_blocks(txg, block_count..u64::MAX);
        self.change(txg, |state| state.set_last(txg, |last| last.min(block_count.saturating_sub(1))));
    }

    /// Frees the object.
    pub fn free(&self, txg: Txg) {
        let undone = self.change(txg, |state| {
            let dirty = state.dirty(txg);
            let blocks = std::mem::take(&mut dirty.blocks);
            let spill = dirty.spill.take().flatten();
            let undone: usize = blocks.values().chain(&spill).map(|data| data.len()).sum();
            dirty.is_freed = true;
            undone as i64
        });
        self.count_dirty(txg, -undone);
    }

    /// Changes the size of data blocks, while there is one at most; what it holds is kept.
    ///
    /// # Errors
    /// There are more blocks, or the size is none that blocks have.
    pub async fn set_block_bytes(&self, txg: Txg, bytes: u32) -> Result<(), DmuError> {
        let head = self.head();
        if head.data_block_bytes() == bytes {
            return Ok(());
        }
        let _turn = self.turn(0..u64::MAX).await;
        let head = self.head();
        if head.data_block_bytes() == bytes {
            return Ok(());
        }
        let is_sized = bytes > 0 && bytes.is_multiple_of(512) && bytes <= BLOCK_MAX_BYTES;
        if head.max_block_id > 0 || !is_sized {
            return Err(self.error(DmuErrorKind::WrongType(format!("its blocks cannot have {bytes} bytes"))));
        }
        let content = self.block(0).await?;
        self.change_head(txg, |head| head.data_block_sectors = (bytes >> 9) as u16);
        if let Some(content) = content {
            let mut grown = Buf::zeroed(bytes as usize);
            let len = content.len().min(grown.len());
            grown[..len].copy_from_slice(&content[..len]);
            self.write_block(txg, 0, grown.freeze());
        }
        Ok(())
    }
}
