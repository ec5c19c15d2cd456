//! One object's tree while a txg is written into it: the pointers of the dnode, and of the indirect blocks on the way to
//! what has changed. Nothing else of the tree is read.

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::{Bound, Range};
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodePhys, MAX_BLKPTRS, dnodes_in_block};
use cenote_format::ids::{BlockId, Txg};
use cenote_format::needs::Needs;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Class, boxed};
use cenote_zio::{ORDER, ReadyBlock, ReadyForm};

use super::batch::Room;
use super::killed::Killed;
use super::shared::Shared;
use crate::geometry::levels_for;
use crate::object::Object;
use crate::object::SYNC_TREE_BYTES;
use crate::object::layer::Layer;
use crate::tree::BlockTree;
use crate::{DmuError, DmuErrorKind};

/// An indirect block.
#[derive(Debug)]
struct Indirect {
    children: Vec<Blkptr>,
    is_dirty: bool,
}

/// A tree in the making.
pub(super) struct Tree {
    pub(super) object: Object,
    /// The dnode as it will be; its pointers are the tree's top.
    pub(super) head: DnodePhys,
    /// The dnode that is freed as a whole.
    pub(super) is_freed: bool,
    /// The tree of the dnode as it is on disk, through which blocks are read.
    reader: Option<BlockTree>,
    /// Indirect blocks by level and number; the first level is that of data, and stays empty.
    indirects: Vec<BTreeMap<u64, Indirect>>,
    /// Data blocks to write.
    blocks: Arc<BTreeMap<u64, Block>>,
    /// The data blocks that are stored already, for the intent log.
    logged: BTreeMap<u64, Blkptr>,
    /// The data blocks whose bytes are in their stored form.
    ready: BTreeMap<u64, ReadyForm>,
    /// Blocks that were stored for the intent log and were changed since.
    pub(super) unused: Vec<Blkptr>,
    /// The spill block to write, or to free.
    spill: Option<Option<Block>>,
    spill_form: Option<ReadyForm>,
    coming: Coming,
    /// Blocks that the tree has lost.
    pub(super) killed: Vec<Blkptr>,
    txg: Txg,
    holes_have_births: bool,
}

/// The rest of the level that is being written: blocks that were not taken yet.
#[derive(Default)]
enum Coming {
    #[default]
    Nothing,
    /// Data blocks after one of them.
    Blocks(Arc<BTreeMap<u64, Block>>, Bound<u64>),
    Indirects(btree_map::IntoIter<u64, Indirect>),
}

const _: () = assert!(size_of::<Tree>() <= SYNC_TREE_BYTES);

/// A block of the tree that is to be written.
pub(super) struct Item {
    /// Its number at its level; nothing for the spill block.
    pub(super) block: Option<u64>,
    pub(super) kind: DmuType,
    pub(super) previous: Blkptr,
    pub(super) content: Content,
    /// It is stored already, as it is.
    pub(super) stored: Option<Blkptr>,
}

/// The content of a block. Pointers become bytes where blocks are prepared: on all cores.
pub(super) enum Content {
    Data(Block),
    Ready(ReadyBlock),
    Pointers(Vec<Blkptr>),
}

impl Content {
    pub(super) fn len_bytes(&self) -> usize {
        match self {
            Self::Data(block) => block.len(),
            Self::Ready(ready) => ready.bytes.len(),
            Self::Pointers(pointers) => pointers.len() * Blkptr::SIZE,
        }
    }

    /// Blocks in use below, as the pointer to it says: dnodes in use of a block of dnodes.
    pub(super) fn fill(&self, kind: DmuType) -> u64 {
        match self {
            Self::Pointers(pointers) => pointers.iter().filter(|child| !child.is_hole()).map(Blkptr::fill).sum(),
            Self::Data(block) | Self::Ready(ReadyBlock { bytes: block, .. }) if kind == DmuType::DNODE => {
                dnodes_in_block(block, ORDER).count() as u64
            }
            Self::Data(_) | Self::Ready(_) => 1,
        }
    }

    /// The block's bytes; or those that are stored, where they are ready.
    pub(super) fn into_block(self) -> Result<Block, ReadyBlock> {
        Ok(match self {
            Self::Data(block) => block,
            Self::Ready(ready) => return Err(ready),
            Self::Pointers(pointers) => {
                let mut buf = Buf::unfilled(pointers.len() * Blkptr::SIZE);
                for (pointer, target) in pointers.iter().zip(buf.chunks_exact_mut(Blkptr::SIZE)) {
                    target.copy_from_slice(&pointer.emit(ORDER));
                }
                buf.freeze()
            }
        })
    }
}

/// Indirect blocks that are read at once.
const READS_MAX: usize = 32;

impl Tree {
    /// The tree of an object with a txg's changes, its indirect blocks read as far as they matter.
    pub(super) async fn load(
        object: Object,
        layer: Layer,
        synced: Option<Arc<DnodePhys>>,
        txg: Txg,
        holes_have_births: bool,
    ) -> Result<Self, DmuError> {
        let mut head = layer.head;
        // A tree is no less high than its dnode wants it.
        let least_levels = head.levels;
        head.used = 0;
        head.levels = 1;
        head.blkptrs = [Blkptr::HOLE; MAX_BLKPTRS];
        head.spill = None;
        if let Some(synced) = &synced {
            (head.used, head.levels, head.blkptrs, head.spill) =
                (synced.used, synced.levels, synced.blkptrs, synced.spill);
            head.indirect_block_shift = synced.indirect_block_shift;
        } else {
            // The meta-dnode of a data set begins at its full height.
            head.levels = head.levels.max(object.phys().levels);
        }
        let reader = synced.map(|synced| object.tree_of(synced));
        let mut tree = Self {
            object,
            is_freed: layer.is_freed,
            reader,
            indirects: Vec::new(),
            blocks: layer.blocks,
            logged: layer.logged,
            ready: layer.ready,
            unused: layer.unused,
            spill: layer.spill,
            spill_form: layer.spill_form,
            coming: Coming::Nothing,
            killed: Vec::new(),
            txg,
            holes_have_births,
            head,
        };
        tree.indirects.resize_with(usize::from(tree.head.levels), BTreeMap::new);
        debug_assert!(
            tree.logged.keys().all(|block| tree.blocks.contains_key(block)),
            "what is stored is to be written"
        );
        if tree.is_freed {
            tree.blocks = Arc::default();
            tree.ready.clear();
            tree.free_range(0..u64::MAX).await?;
            tree.spill = Some(None);
        } else {
            for range in layer.freed {
                tree.free_range(range).await?;
            }
        }
        if tree.blocks.is_empty() && matches!(tree.spill, Some(None)) {
            // It is not written, and no block comes before it.
            tree.take_spill();
        }
        tree.grow(least_levels);
        tree.open_paths().await?;
        Ok(tree)
    }

    /// True if there may be blocks to be written.
    pub(super) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty() || self.spill.is_some() || self.indirects.iter().any(|level| !level.is_empty())
    }

    /// Counts the blocks that the tree has lost, and hands them over. Returns the features that the dnode needs.
    pub(super) fn count_killed(&mut self, shared: &Shared, killed: &mut Killed) -> Needs {
        let mut used = 0;
        for bp in std::mem::take(&mut self.killed) {
            let space = shared.space_of(&bp);
            used -= space.used_bytes;
            killed.push(bp, space);
        }
        self.head.used = self.head.used.saturating_add_signed(used);
        if self.is_freed { Needs::default() } else { Needs::of_slots(self.head.slots()) }
    }

    const fn top_level(&self) -> u8 {
        self.head.levels - 1
    }

    fn shift(&self) -> u32 {
        self.head.blkptrs_per_indirect_shift()
    }

    /// Adds levels until the last block has a place, and there are so many. The pointers of the dnode move below a new indirect block.
    fn grow(&mut self, least_levels: u8) {
        let levels = levels_for(&self.head, self.head.max_block_id.saturating_add(1)).max(least_levels);
        while self.head.levels < levels {
            let width = 1_usize << self.shift();
            let mut children = vec![Blkptr::HOLE; width];
            let count = usize::from(self.head.blkptr_count);
            children[..count].copy_from_slice(&self.head.blkptrs[..count]);
            self.head.blkptrs = [Blkptr::HOLE; MAX_BLKPTRS];
            let is_dirty = children.iter().any(|child| !child.is_hole());
            let mut level = BTreeMap::new();
            if is_dirty {
                level.insert(0, Indirect { children, is_dirty });
            }
            self.indirects.push(level);
            self.head.levels += 1;
        }
    }

    /// The pointer to a block whose parent is there.
    fn pointer(&self, level: u8, block: u64) -> Blkptr {
        let (parent, slot) = self.place_of(level, block);
        self.children(level, parent).get(slot).copied().unwrap_or(Blkptr::HOLE)
    }

    /// The number of a block's parent, and the block's place among its children; all of the top level are children of the dnode.
    fn place_of(&self, level: u8, block: u64) -> (u64, usize) {
        if level == self.top_level() {
            return (0, usize::try_from(block).unwrap_or(usize::MAX));
        }
        (block >> self.shift(), (block & ((1 << self.shift()) - 1)) as usize)
    }

    /// The pointers of a parent to blocks of a level; none where it is not there.
    fn children(&self, level: u8, parent: u64) -> &[Blkptr] {
        if level == self.top_level() {
            return &self.head.blkptrs;
        }
        let found = self.indirects.get(usize::from(level) + 1).and_then(|level| level.get(&parent));
        found.map_or(&[], |indirect| &indirect.children)
    }

    /// As [`Self::children`], to be changed: a parent that is not there has holes.
    fn children_mut(&mut self, level: u8, parent: u64) -> &mut [Blkptr] {
        if level == self.top_level() {
            return &mut self.head.blkptrs;
        }
        let width = 1_usize << self.shift();
        let indirect = self.indirects[usize::from(level) + 1]
            .entry(parent)
            .or_insert_with(|| Indirect { children: vec![Blkptr::HOLE; width], is_dirty: true });
        indirect.is_dirty = true;
        &mut indirect.children
    }

    fn set_pointer(&mut self, level: u8, block: u64, bp: Blkptr) {
        let (parent, slot) = self.place_of(level, block);
        if let Some(pointer) = self.children_mut(level, parent).get_mut(slot) {
            *pointer = bp;
        }
    }

    /// Reads the indirect block, whose parent is there, unless it has been. The children of a hole are holes.
    async fn open(&mut self, level: u8, block: u64) -> Result<(), DmuError> {
        if self.indirects[usize::from(level)].contains_key(&block) {
            return Ok(());
        }
        let children = match self.children_on_disk(level, block) {
            Some(reading) => reading.await?,
            None => vec![Blkptr::HOLE; 1_usize << self.shift()],
        };
        self.indirects[usize::from(level)].insert(block, Indirect { children, is_dirty: false });
        Ok(())
    }

    /// Reads what an indirect block holds, whose parent is there; `None` for a hole.
    fn children_on_disk(
        &self,
        level: u8,
        block: u64,
    ) -> Option<impl Future<Output = Result<Vec<Blkptr>, DmuError>> + Send + use<>> {
        let bp = self.pointer(level, block);
        let reader = self.reader.clone().filter(|_| !bp.is_hole())?;
        let (object, width) = (self.object.clone(), 1_usize << self.shift());
        Some(async move {
            let bytes = reader.indirect(&bp, level, BlockId(block)).await?;
            let children: Vec<Blkptr> = Blkptr::array(&bytes, bp.byte_order()).collect();
            if children.len() != width {
                return Err(object.error(DmuErrorKind::Corrupt("an indirect block of another size".into())));
            }
            Ok(children)
        })
    }

    /// Reads the indirect blocks above all data blocks that are written: level by level, those of a level at once, on all cores.
    async fn open_paths(&mut self) -> Result<(), DmuError> {
        let handle = self.object.dmu().handle().clone();
        for level in (1..=self.top_level()).rev() {
            let bits = self.shift() * u32::from(level);
            let above = |block: &u64| block.checked_shr(bits).unwrap_or(0);
            let mut wanted: Vec<u64> = self.blocks.keys().map(above).collect();
            wanted.dedup();
            wanted.retain(|block| !self.indirects[usize::from(level)].contains_key(block));
            let mut wanted = wanted.into_iter();
            let mut reading = VecDeque::new();
            loop {
                while reading.len() < READS_MAX {
                    let Some(block) = wanted.next() else { break };
                    let Some(children) = self.children_on_disk(level, block) else {
                        let children = vec![Blkptr::HOLE; 1_usize << self.shift()];
                        self.indirects[usize::from(level)].insert(block, Indirect { children, is_dirty: false });
                        continue;
                    };
                    reading.push_back((block, handle.spawn(Class::Sync, children)));
                }
                let Some((block, children)) = reading.pop_front() else { break };
                let stopped = |error: cenote_taskq::JoinError| DmuErrorKind::Interrupted(error.to_string());
                let children = children.await.map_err(|error| self.object.error(stopped(error)))??;
                self.indirects[usize::from(level)].insert(block, Indirect { children, is_dirty: false });
            }
        }
        Ok(())
    }

    /// A hole in the place of what was there.
    fn hole(&self, level: u8, previous: &Blkptr) -> Blkptr {
        if !self.holes_have_births || previous.birth() == Txg(0) {
            return Blkptr::HOLE;
        }
        let bytes = if level == 0 { u64::from(self.head.data_block_bytes()) } else { self.indirect_bytes() };
        Blkptr::hole_with_birth(self.head.object_type, level, bytes, self.txg)
    }

    fn indirect_bytes(&self) -> u64 {
        1 << self.head.indirect_block_shift
    }

    /// Frees all data blocks of a range, and the indirect blocks that have nothing left.
    async fn free_range(&mut self, range: Range<u64>) -> Result<(), DmuError> {
        let top = self.top_level();
        for slot in 0..u64::from(self.head.blkptr_count) {
            self.free_below(top, slot, range.clone()).await?;
        }
        Ok(())
    }

    #[boxed]
    async fn free_below(&mut self, level: u8, block: u64, range: Range<u64>) -> Result<(), DmuError> {
        let bits = self.shift() * u32::from(level);
        let first = if block == 0 { 0 } else { block.checked_shl(bits).unwrap_or(u64::MAX) };
        let behind = (block + 1).checked_shl(bits).filter(|end| end >> bits == block + 1).unwrap_or(u64::MAX);
        let bp = self.pointer(level, block);
        if bp.is_hole() || behind <= range.start || first >= range.end {
            return Ok(());
        }
        if level > 0 {
            self.open(level, block).await?;
            for child in 0..1_u64 << self.shift() {
                self.free_below(level - 1, (block << self.shift()) + child, range.clone()).await?;
            }
            let indirect = &self.indirects[usize::from(level)][&block];
            if indirect.children.iter().any(|child| !child.is_hole()) {
                return Ok(());
            }
            self.indirects[usize::from(level)].remove(&block);
        }
        self.killed.push(bp);
        let hole = self.hole(level, &bp);
        self.set_pointer(level, block, hole);
        Ok(())
    }

    /// Begins with a level, all below which is written.
    pub(super) fn begin_level(&mut self, level: u8) {
        self.coming = match level {
            0 => Coming::Blocks(std::mem::take(&mut self.blocks), Bound::Unbounded),
            _ => match self.indirects.get_mut(usize::from(level)) {
                Some(indirects) => Coming::Indirects(std::mem::take(indirects).into_iter()),
                None => Coming::Nothing,
            },
        };
    }

    /// Takes what is to be written at the level, in the order of the blocks' numbers, until there is no room for more.
    pub(super) fn take_items(&mut self, level: u8, room: &mut Room, items: &mut Vec<Item>) {
        let mut coming = std::mem::take(&mut self.coming);
        let is_done = match &mut coming {
            Coming::Nothing => true,
            Coming::Blocks(blocks, after) => self.take_data(blocks, after, room, items),
            Coming::Indirects(indirects) => self.take_indirects(level, indirects, room, items),
        };
        if !is_done {
            self.coming = coming;
        }
    }

    /// Takes indirect blocks; whether there are no more.
    fn take_indirects(
        &mut self,
        level: u8,
        indirects: &mut btree_map::IntoIter<u64, Indirect>,
        room: &mut Room,
        items: &mut Vec<Item>,
    ) -> bool {
        while !room.is_full() {
            let Some((block, indirect)) = indirects.next() else { return true };
            if !indirect.is_dirty {
                continue;
            }
            let previous = self.pointer(level, block);
            if indirect.children.iter().all(Blkptr::is_hole) {
                if !previous.is_hole() {
                    self.killed.push(previous);
                }
                let hole = self.hole(level, &previous);
                self.set_pointer(level, block, hole);
                continue;
            }
            let content = Content::Pointers(indirect.children);
            room.take(content.len_bytes());
            items.push(Item { block: Some(block), kind: self.head.object_type, previous, content, stored: None });
        }
        false
    }

    /// Takes data blocks, and the spill block after the last of them; whether there are no more.
    fn take_data(
        &mut self,
        blocks: &BTreeMap<u64, Block>,
        after: &mut Bound<u64>,
        room: &mut Room,
        items: &mut Vec<Item>,
    ) -> bool {
        let kind = self.head.object_type;
        // Neighbours have one parent.
        let mut open: Option<(u64, &[Blkptr])> = None;
        let mut blocks = blocks.range((*after, Bound::Unbounded));
        while !room.is_full() {
            let Some((block, content)) = blocks.next() else {
                items.extend(self.take_spill().inspect(|item| room.take(item.content.len_bytes())));
                return true;
            };
            *after = Bound::Excluded(*block);
            room.take(content.len());
            let (parent, slot) = self.place_of(0, *block);
            let siblings = match open {
                Some((at, siblings)) if at == parent => siblings,
                _ => self.children(0, parent),
            };
            open = Some((parent, siblings));
            let previous = siblings.get(slot).copied().unwrap_or(Blkptr::HOLE);
            let stored = self.logged.get(block).copied();
            debug_assert!(
                stored.is_none_or(|bp| bp.logical_birth() == self.txg && bp.lsize_bytes() == content.len() as u64),
                "what is stored for the log is of its txg, and as large as it is now"
            );
            let content = match self.ready.get(block) {
                None => Content::Data(content.clone()),
                Some(form) => Content::Ready(ReadyBlock { bytes: content.clone(), form: *form }),
            };
            items.push(Item { block: Some(*block), kind, previous, content, stored });
        }
        false
    }

    fn take_spill(&mut self) -> Option<Item> {
        let spill = self.spill.take()?;
        let previous = self.head.spill.unwrap_or(Blkptr::HOLE);
        let Some(content) = spill else {
            if !previous.is_hole() {
                self.killed.push(previous);
            }
            self.head.spill = None;
            return None;
        };
        let content = match self.spill_form.take() {
            None => Content::Data(content),
            Some(form) => Content::Ready(ReadyBlock { bytes: content, form }),
        };
        Some(Item { block: None, kind: self.head.bonus_type, previous, content, stored: None })
    }

    /// Blocks of a level have their places.
    pub(super) fn put_all(&mut self, level: u8, placed: &[(Option<u64>, Blkptr)]) {
        let mut rest = placed;
        while let [(first, bp), ..] = rest {
            let Some(first) = *first else {
                self.head.spill = Some(*bp);
                rest = &rest[1..];
                continue;
            };
            let (parent, _) = self.place_of(level, first);
            let at = |block: u64| self.place_of(level, block);
            let same = rest.iter().map_while(|(block, _)| block.map(at)).take_while(|(of, _)| *of == parent);
            let slots: Vec<usize> = same.map(|(_, slot)| slot).collect();
            let pointers = self.children_mut(level, parent);
            for (slot, (_, bp)) in slots.iter().zip(rest) {
                if let Some(pointer) = pointers.get_mut(*slot) {
                    *pointer = *bp;
                }
            }
            rest = &rest[slots.len()..];
        }
    }
}
