//! Data blocks that the intent log points to: stored while their txg is open, and taken over by its sync as they are.
//!
//! # Theory
//!
//! **Need.** A large write that is asked to be stable would be written twice: into the log, and by the sync of its txg. Instead its block is
//! stored at once in the place where it stays, and the record in the log has the block's pointer (`WR_INDIRECT`; OpenZFS's `dmu_sync`).
//!
//! **States of a block in the layer of its txg.**
//! ```text
//!            log_block, place          stored: as it was captured?                 sync
//!   written ─────────────────► storing ───────── yes ─────────────► logged ──────────────────► in the tree, not written again
//!      ▲                          │ └────────── no, changed ──┐        │ changed, freed, cut off
//!      │                          │                           ▼        ▼
//!      └── not stored: places ◄───┘                        unused  (the layer's list) ───────► freed by that sync, in no account
//!          given back at once
//! ```
//! Only [`LogBlock`] and [`LogStore`] know the state *storing*: the layer gets the result. A writer that changes the block meanwhile need
//! not wait, and changes a copy, since the stored buffer has a reference. So a block is *as it was captured* if the layer has the very same
//! buffer.
//!
//! **Life of one.** [`Objset::log_block`] captures the block as the layer of the txg has it, and keeps the txg open. [`LogBlock::place`] does
//! what the sync would do with it (compression, checksum, copies, class, gangs), but waits for no space. The pointer goes into the record.
//! [`LogStore::store`] writes it; what comes of that is entered into the layer before the txg is let go, so the sync, which begins when
//! nobody holds the txg, finds no block that is being stored. It takes the pointer over: the block is born in the txg, and is counted, kept
//! in the cache and told of as any block that the sync writes. Where the block in the tree has the same content (nopwrite), that stays, and
//! the logged one is unused.
//!
//! **Freeing.** A block that was changed since is freed by the sync of the same txg, once, like a block that another took the place of: its
//! place is not allocated again before that txg and two more are on disk. A block that was not stored has its places given back at once. A
//! block that is a hole, or fits into its pointer, has no place; the sync makes it again.
//!
//! **Invariants.**
//! 1. The pointer of a logged block was born in the txg of its layer, and is of the bytes that the layer has (asserted where the sync takes
//!    it).
//! 2. Each place that is taken here is in exactly one of: a logged block, the list of unused ones, given back.
//! 3. A task that holds the txg waits for devices only: neither for space, nor for range locks, whose holders may wait for a txg.
//!
//! **Crash.** Before the txg is on disk its blocks stand in space that is free in the pool on disk; the log is claimed, and with it the
//! blocks that its records point to. None of their places was allocated again meanwhile, whatever became of the blocks in their txg. After
//! it, the record is not replayed, the block is the tree's, or its place is free.
//!
//! **Rejected.** *A separate, temporary block for a txg that is already syncing*, as OpenZFS writes it (`dmu_sync_late_arrival`): the
//! bytes are written twice either way, so they may as well be copied into the log. *A state "storing" in the layer that the sync waits
//! for*: the hold on the txg has the same effect without a state. *Locking the range while the block is stored*, as OpenZFS does: a
//! writer would wait for the device.

use std::ops::Range;
use std::sync::Arc;

use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Checksum;
use cenote_format::ids::{BlockId, Guid, Txg, VdevId};
use cenote_taskq::BoxFuture;
use cenote_taskq::buf::Block;
use cenote_zio::{
    AllocationRequest, AllocationUnits, Allocator, Bookmark, NoSpace, OutsideExtents, Placed, WritePolicy, ZioError,
};

use super::Object;
use crate::geometry::is_special;
use crate::objset::{BlockKind, Now, Objset};
use crate::tx::Tx;

/// A data block as a txg has it.
struct Captured {
    content: Block,
    kind: DmuType,
    is_uncompressed: bool,
    stored: Option<Blkptr>,
}

impl Object {
    /// A data block as a txg has written it, if it has and did not free it since.
    fn captured(&self, txg: Txg, block: u64) -> Option<Captured> {
        let state = self.shared().state.lock();
        let (_, layer) = state.txgs.iter().find(|(other, _)| *other == txg)?;
        let content = layer.blocks.get(&block).filter(|_| !layer.ready.contains_key(&block))?.clone();
        debug_assert!(!layer.is_freed, "an object that is freed has no blocks");
        // A table of blocks may be behind a change of their size that is being made.
        let is_whole = content.len() == layer.head.data_block_bytes() as usize;
        let stored = layer.logged.get(&block).copied();
        let (kind, is_uncompressed) = (layer.head.object_type, layer.head.compress == 2);
        is_whole.then_some(Captured { content, kind, is_uncompressed, stored })
    }

    /// A block of a txg is stored as it was captured. If it is still like that the sync need not write it.
    fn put_stored(&self, txg: Txg, block: u64, content: &Block, stored: Blkptr) {
        let mut state = self.shared().state.lock();
        let found = state.txgs.iter_mut().find(|(other, _)| *other == txg);
        let (_, layer) = found.expect("a txg that is held open has its layer");
        let is_same = |now: &Block| std::ptr::eq(now.as_ptr(), content.as_ptr()) && now.len() == content.len();
        match layer.blocks.get(&block).is_some_and(is_same) && !layer.logged.contains_key(&block) {
            true => drop(layer.logged.insert(block, stored)),
            // The record that points to it is of use until the txg is on disk.
            false => layer.unused.push(stored),
        }
    }
}

/// Allocates without waiting for space.
struct AtOnce<'a>(&'a dyn Allocator);

impl Allocator for AtOnce<'_> {
    fn units(&self) -> AllocationUnits {
        self.0.units()
    }

    fn allocate(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        self.0.allocate_at_once(request)
    }

    fn is_log_device(&self, vdev: VdevId) -> bool {
        self.0.is_log_device(vdev)
    }

    fn release(&self, dva: Dva, txg: Txg) {
        self.0.release(dva, txg);
    }

    fn check_write(&self, dva: Dva) -> Result<(), OutsideExtents> {
        self.0.check_write(dva)
    }
}

/// A data block that the intent log is to point to, as a txg has it. The txg is held open.
#[must_use]
pub struct LogBlock {
    object: Object,
    block: u64,
    content: Block,
    policy: WritePolicy,
    stored: Option<Blkptr>,
    tx: Tx,
}

impl Objset {
    /// The block of an object that a byte lies in, as the txg that is held has written it. `None` where it has not, or where no log can point
    /// to it: without a checksum nobody could tell after a crash whether it was stored.
    pub fn log_block(&self, object: &Object, offset_bytes: u64, tx: Tx) -> Option<LogBlock> {
        let txg = tx.txg();
        let block = offset_bytes / object.block_bytes().max(1);
        if is_special(object.id()) || self.root().uses_crypt() {
            return None;
        }
        let Captured { content, kind, is_uncompressed, stored } = object.captured(txg, block)?;
        if offset_bytes / content.len().max(1) as u64 != block {
            // Its size has changed in between.
            return None;
        }
        let bookmark = Bookmark { objset: self.id(), object: object.id(), level: 0, block: BlockId(block) };
        let how = BlockKind { kind, level: 0, fill: 1, uncompressed: is_uncompressed, protects: false };
        // The block that it replaces is not known before the sync.
        let mut policy = self.policy().of_block(how, bookmark, Blkptr::HOLE, Now { txg, pass: 1 });
        policy.nopwrite = false;
        let is_verified = !matches!(policy.checksum, Checksum::Off | Checksum::NoParity);
        is_verified.then(|| LogBlock { object: object.clone(), block, content, policy, stored, tx })
    }
}

impl LogBlock {
    /// The bytes of the object that it has.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        let size = self.content.len() as u64;
        self.block * size..(self.block + 1) * size
    }

    /// Gives it its place. Returns its pointer, and the block that is still to be stored: nothing of a hole, of a block that fits into its
    /// pointer, or of one that is stored already.
    ///
    /// # Errors
    /// There is no space for it now.
    pub async fn place(self, allocator: &Arc<dyn Allocator>) -> Result<(Blkptr, Option<LogStore>), ZioError> {
        if let Some(stored) = self.stored {
            return Ok((stored, None));
        }
        let zio = self.object.dmu().zio();
        let prepared = zio.prepare(allocator.units(), &self.content, &self.policy)?;
        let placed = zio.place(&AtOnce(allocator.as_ref()), prepared, &self.policy).await?;
        let mut pointer = placed.bp;
        if placed.pending_bytes() == 0 {
            if pointer.is_hole() {
                // A replay has to know how much of the object it is.
                pointer.set_lsize_bytes(self.content.len() as u64);
            }
            return Ok((pointer, None));
        }
        let taken = placed.taken().to_vec();
        let (allocator, placed) = (allocator.clone(), Some(placed));
        Ok((pointer, Some(LogStore { block: self, allocator, placed, pointer, taken })))
    }
}

/// A block of [`LogBlock`] that has its place. Dropped without being stored, it gives that back.
#[must_use]
pub struct LogStore {
    /// Dropped last: the txg is not written before it is known what has become of the block.
    block: LogBlock,
    allocator: Arc<dyn Allocator>,
    placed: Option<Placed>,
    pointer: Blkptr,
    /// Its places, until they are handed over.
    taken: Vec<Dva>,
}

impl LogStore {
    /// Stores it; it is stable when its devices have been flushed after that. `missed` is told, before the txg can be written, which leaves
    /// should have it and have not.
    ///
    /// # Errors
    /// Too few devices took it. The sync of its txg writes it then, in another place.
    pub async fn store(mut self, missed: impl FnOnce(Txg, Vec<Guid>) + Send) -> Result<(), ZioError> {
        let txg = self.block.tx.txg();
        let Some(placed) = self.placed.take() else { return Ok(()) };
        let leaves = self.block.object.dmu().zio().store(self.allocator.as_ref(), placed).await?;
        missed(txg, leaves);
        self.taken.clear();
        self.block.object.put_stored(txg, self.block.block, &self.block.content, self.pointer);
        Ok(())
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        let txg = self.block.tx.txg();
        self.taken.iter().for_each(|dva| self.allocator.release(*dva, txg));
    }
}
