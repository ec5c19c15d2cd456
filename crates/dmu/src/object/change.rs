//! Changing an object: into the layer of a txg that the caller holds open.

use std::ops::Range;
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodeFlags, DnodePhys, bonus_capacity_bytes};
use cenote_format::ids::{BlockId, Txg};
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::ReadyForm;

use super::layer::{Layer, State};
use super::range_lock::RangeGuard;
use super::{Object, Shared, dirty_cost};
use crate::geometry::{BLOCK_MAX_BYTES, is_special};
use crate::{DmuError, DmuErrorKind};

/// The bytes that a bonus of this size takes, with the pointers beside it.
fn bonus_bytes_needed(head: &DnodePhys, bonus_bytes: usize) -> usize {
    let pointers = (usize::from(head.blkptr_count) - 1) * Blkptr::SIZE;
    let spill = if head.flags.contains(DnodeFlags::SPILL_BLKPTR) { Blkptr::SIZE } else { 0 };
    bonus_bytes + pointers + spill
}

impl Object {
    fn change<T>(&self, txg: Txg, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, bonus_bytes) = {
            let mut state = self.shared().state.lock();
            (change(&mut state), state.head.bonus.len())
        };
        let neighbours = self.shared().changes.mark(txg, self.id());
        if let Some((before, after)) = neighbours
            && self.shared().changes.dirty().is_some()
        {
            const PARTS_BYTES: usize = size_of::<Shared>() + size_of::<(Txg, Layer)>();
            let cost = dirty_cost::object_bytes(PARTS_BYTES, bonus_bytes);
            self.count_dirty(txg, cost + dirty_cost::dnode_block_bytes(self.id().0, before, after));
        }
        changed
    }

    /// Counts bytes that have become dirty, or are not any more. The meta-dnode and accounts are the sync's own.
    fn count_dirty(&self, txg: Txg, bytes: i64) {
        if mutant::is(Mutant::DirtyUncounted) {
            return;
        }
        if let Some(dirty) = self.shared().changes.dirty()
            && self.id().0 != 0
            && !is_special(self.id())
        {
            dirty.change(txg, bytes);
        }
    }

    /// Marks it as changed, though nothing is.
    pub(crate) fn touch(&self, txg: Txg) {
        self.change(txg, |state| {
            state.layer(txg);
        });
    }

    /// Changes its fields, those of its tree left out.
    fn change_head(&self, txg: Txg, change: impl Fn(&mut DnodePhys)) {
        self.change(txg, |state| {
            change(Arc::make_mut(&mut state.head));
            change(&mut state.layer(txg).head);
        });
    }

    /// Replaces the bonus. Nothing happens if it is the same.
    ///
    /// # Errors
    /// It does not fit.
    pub fn set_bonus(&self, txg: Txg, bonus: &[u8]) -> Result<(), DmuError> {
        let head = self.phys();
        if *head.bonus == *bonus {
            return Ok(());
        }
        if bonus_bytes_needed(&head, bonus.len()) > bonus_capacity_bytes(head.slots()) {
            return Err(self.error(DmuErrorKind::NoRoom(bonus.len())));
        }
        self.change_head(txg, |head| head.bonus = bonus.into());
        Ok(())
    }

    /// Replaces the bonus by one that may be of another kind. Its pointers stay as many as they are.
    ///
    /// # Errors
    /// It does not fit beside them.
    pub fn replace_bonus(&self, txg: Txg, kind: DmuType, bonus: &[u8]) -> Result<(), DmuError> {
        let head = self.phys();
        if head.bonus_type == kind {
            return self.set_bonus(txg, bonus);
        }
        if bonus_bytes_needed(&head, bonus.len()) > bonus_capacity_bytes(head.slots()) {
            return Err(self.error(DmuErrorKind::NoRoom(bonus.len())));
        }
        self.change_head(txg, |head| (head.bonus_type, head.bonus) = (kind, bonus.into()));
        Ok(())
    }

    /// Changes the numbers of the checksum and the compression that the dnode names: 0 for those of the dataset.
    pub fn set_transforms(&self, txg: Txg, checksum: u8, compress: u8) {
        let head = self.phys();
        if (head.checksum, head.compress) != (checksum, compress) {
            self.change_head(txg, |head| (head.checksum, head.compress) = (checksum, compress));
        }
    }

    /// Has its tree be no less high than this, and its last block have this number, also where there is no such block: as a raw stream says.
    /// There is no block behind it.
    pub fn set_shape(&self, txg: Txg, levels: u8, last_block: u64) {
        self.change(txg, |state| state.set_last(txg, |_| last_block));
        self.change_head(txg, |head| head.levels = levels);
    }

    /// Changes what the object's data is taken for.
    pub fn set_kind(&self, txg: Txg, kind: DmuType) {
        self.change_head(txg, |head| head.object_type = kind);
    }

    /// Sets flags.
    pub fn set_flags(&self, txg: Txg, flags: DnodeFlags) {
        self.change_head(txg, |head| head.flags |= flags);
    }

    /// Whether the bonus leaves room for a pointer to a spill block.
    #[must_use]
    pub fn has_room_for_spill(&self) -> bool {
        let head = self.phys();
        let pointer = if head.flags.contains(DnodeFlags::SPILL_BLKPTR) { 0 } else { Blkptr::SIZE };
        bonus_bytes_needed(&head, head.bonus.len()) + pointer <= bonus_capacity_bytes(head.slots())
    }

    /// Writes the spill block, or frees it. The bonus must leave room for its pointer.
    pub fn set_spill(&self, txg: Txg, spill: Option<Block>) {
        let has = spill.is_some();
        assert!(spill.as_ref().is_none_or(|spill| !spill.is_empty()), "a spill block has something in it");
        let bytes = spill.as_ref().map_or(0, |spill| spill.len()) as i64;
        let replaced = self.change(txg, |state| {
            let head = Arc::make_mut(&mut state.head);
            head.flags.set(DnodeFlags::SPILL_BLKPTR, has);
            debug_assert!(
                bonus_bytes_needed(head, head.bonus.len()) <= bonus_capacity_bytes(head.slots()),
                "the bonus leaves room for the spill block's pointer"
            );
            let layer = state.layer(txg);
            layer.head.flags.set(DnodeFlags::SPILL_BLKPTR, has);
            layer.spill_form = None;
            layer.spill.replace(spill).flatten().map_or(0, |spill| spill.len()) as i64
        });
        self.count_dirty(txg, bytes - replaced);
    }

    /// Replaces a whole data block. Its length is the object's block size. Where others may change it too the caller has
    /// its range locked.
    pub fn write_block(&self, txg: Txg, block: u64, data: Block) {
        self.put_block(txg, block, data, None);
    }

    /// Puts a data block into the layer of a txg; `form` where its bytes are as they are stored.
    pub(super) fn put_block(&self, txg: Txg, block: u64, data: Block, form: Option<ReadyForm>) {
        let bytes = data.len() as i64;
        let unit_bytes = self.shared().changes.dirty().map_or(1, |dirty| dirty.unit_bytes());
        let more = self.change(txg, |state| {
            let len = form.map_or(data.len(), |form| form.logical_bytes as usize);
            assert_eq!(len, state.head.data_block_bytes() as usize, "a block has the size of its object's");
            state.set_last(txg, |last| last.max(block));
            let layer = state.layer(txg);
            layer.changes(block);
            if let Some(form) = form {
                layer.ready.insert(block, form);
            }
            if let Some(replaced) = Arc::make_mut(&mut layer.blocks).insert(block, data) {
                return bytes - replaced.len() as i64;
            }
            let before = layer.blocks.range(..block).next_back().map(|(at, _)| *at);
            let after = layer.blocks.range(block + 1..).next().map(|(at, _)| *at);
            let pad = dirty_cost::pad_bytes(bytes as usize, unit_bytes);
            bytes + pad + dirty_cost::indirect_bytes(&layer.head, block, before, after)
        });
        self.count_dirty(txg, more);
    }

    /// Writes bytes into a block at `start`. `kept` is its newest content, or nothing where it is a hole, and nobody else changes the
    /// block meanwhile. The block is changed in place if this txg has it already and its buffer has no other holder; otherwise the rest of
    /// it is copied.
    pub fn write_part(&self, txg: Txg, block: u64, start: usize, bytes: &[u8], kept: Option<Block>) {
        let size = self.block_bytes() as usize;
        assert!(start + bytes.len() <= size, "a part of a block lies in it");
        let put = |mut buf: Buf| {
            buf[start..start + bytes.len()].copy_from_slice(bytes);
            buf.freeze()
        };
        let kept = self.change(txg, |state| {
            // A table that the sync has belongs to a quiesced txg: there is nothing to change in place.
            let layer = state.layer(txg);
            if layer.ready.contains_key(&block) {
                // Its bytes are not those of the block.
                return Err(kept);
            }
            layer.changes(block);
            let at = Arc::get_mut(&mut layer.blocks).and_then(|blocks| blocks.get_mut(&block));
            let Some(at) = at.filter(|at| at.len() == size) else { return Err(kept) };
            // The caller's is the same memory.
            drop(kept);
            match std::mem::take(at).try_into_buf() {
                Ok(buf) => {
                    *at = put(buf);
                    Ok(())
                }
                Err(shared) => {
                    *at = shared.clone();
                    Err(Some(shared))
                }
            }
        });
        let Err(kept) = kept else { return };
        let buf = kept.map_or_else(|| Buf::zeroed(size), |kept| Buf::copied_from(&kept));
        self.write_block(txg, block, put(buf));
    }

    /// Locks the range of all blocks that a range of bytes touches.
    pub async fn lock_bytes(&self, offset_bytes: u64, len_bytes: u64) -> RangeGuard {
        loop {
            let size = self.block_bytes();
            let end = offset_bytes.saturating_add(len_bytes).div_ceil(size);
            let blocks = if len_bytes == 0 { 0..0 } else { offset_bytes / size..end };
            let range = self.lock_range(blocks).await;
            // Blocks may have got another size, which takes the lock of them all.
            if self.block_bytes() == size {
                return range;
            }
        }
    }

    /// Writes bytes; the object grows where they reach behind its last block. Locks the range itself, with the txg held:
    /// only for objects where no lock is held while a txg is waited for.
    ///
    /// # Errors
    /// No object reaches so far: the offset comes from something that counts wrongly. Or what is there cannot be read.
    pub async fn write(&self, txg: Txg, offset_bytes: u64, bytes: &[u8]) -> Result<(), DmuError> {
        if offset_bytes.checked_add(bytes.len() as u64).is_none() {
            let what = format!("a write of {} bytes at {offset_bytes}, where no object reaches", bytes.len());
            return Err(self.error(DmuErrorKind::Corrupt(what)));
        }
        let range = self.lock_bytes(offset_bytes, bytes.len() as u64).await;
        self.write_in(&range, txg, offset_bytes, bytes).await
    }

    /// Writes bytes into blocks whose range the caller has locked. Whole blocks are copied once, of others the rest is read.
    pub async fn write_in(
        &self,
        range: &RangeGuard,
        txg: Txg,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), DmuError> {
        assert!(range.object().is_same(self), "the range that is locked is this object's");
        let size = self.block_bytes();
        let mut rest = bytes;
        let mut at = offset_bytes;
        while !rest.is_empty() {
            let (block, start) = (at / size, (at % size) as usize);
            assert!(range.blocks().contains(&block), "what is written lies in the range that is locked");
            let len = (size as usize - start).min(rest.len());
            if len as u64 == size {
                self.write_block(txg, block, Block::copied_from(&rest[..len]));
            } else {
                let kept = self.block(BlockId(block)).await?.map(|(kept, _)| kept);
                self.write_part(txg, block, start, &rest[..len], kept);
            }
            rest = &rest[len..];
            at += len as u64;
        }
        Ok(())
    }

    /// Makes a range of bytes zeros, in blocks whose range the caller has locked: whole blocks are freed, and of others a part is
    /// cleared where there is data.
    #[boxed]
    pub async fn clear_in(&self, range: &RangeGuard, txg: Txg, bytes: Range<u64>) -> Result<(), DmuError> {
        assert!(range.object().is_same(self), "the range that is locked is this object's");
        let size = self.block_bytes();
        let whole = bytes.start.div_ceil(size)..bytes.end / size;
        if whole.start > whole.end {
            // Within one block.
            return self.clear_part(range, txg, bytes).await;
        }
        self.clear_part(range, txg, bytes.start..whole.start * size).await?;
        self.clear_part(range, txg, whole.end * size..bytes.end).await?;
        assert!(
            whole.is_empty() || (range.blocks().start <= whole.start && whole.end <= range.blocks().end),
            "what is freed lies in the range that is locked"
        );
        self.free_blocks(txg, whole);
        Ok(())
    }

    async fn clear_part(&self, range: &RangeGuard, txg: Txg, bytes: Range<u64>) -> Result<(), DmuError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let size = self.block_bytes();
        let (block, start) = (bytes.start / size, (bytes.start % size) as usize);
        assert!(range.blocks().contains(&block), "what is cleared lies in the range that is locked");
        debug_assert_eq!(block, (bytes.end - 1) / size, "a part lies in one block");
        if let Some((data, _)) = self.block(BlockId(block)).await? {
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
            let layer = state.layer(txg);
            // The caller counts the other indirect blocks of a larger range ([`crate::Objset::count_frees`]).
            let (before, after) = layer.neighbours(blocks.start);
            let cost =
                dirty_cost::indirect_bytes(&layer.head, blocks.start.min(layer.head.max_block_id), before, after);
            let undone = layer.free(blocks);
            cost - undone as i64
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
        let undone = self.change(txg, |state| state.layer(txg).free_all());
        self.count_dirty(txg, -(undone as i64));
    }

    /// Changes the size of data blocks, while there is one at most; what it holds is kept.
    ///
    /// # Errors
    /// There are more blocks, or the size is none that blocks have.
    #[boxed]
    pub async fn set_block_bytes(&self, txg: Txg, bytes: u32) -> Result<(), DmuError> {
        let head = self.phys();
        if head.data_block_bytes() == bytes {
            return Ok(());
        }
        let _range = self.lock_range(0..u64::MAX).await;
        let head = self.phys();
        if head.data_block_bytes() == bytes {
            return Ok(());
        }
        let is_sized = bytes > 0 && bytes.is_multiple_of(512) && bytes <= BLOCK_MAX_BYTES;
        if head.max_block_id > 0 || !is_sized {
            return Err(self.error(DmuErrorKind::WrongType(format!("its blocks cannot have {bytes} bytes"))));
        }
        let content = self.block(BlockId(0)).await?;
        self.change_head(txg, |head| head.data_block_sectors = (bytes >> 9) as u16);
        if let Some((content, _)) = content {
            let mut grown = Buf::zeroed(bytes as usize);
            let len = content.len().min(grown.len());
            grown[..len].copy_from_slice(&content[..len]);
            self.write_block(txg, 0, grown.freeze());
        }
        Ok(())
    }
}
