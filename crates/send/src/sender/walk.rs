//! The changes of a dataset since a txg, in the order of objects and offsets: a walk over the block tree that skips older blocks.
//!
//! ```text
//!   pointers of the meta-dnode ─► indirect blocks ─► a block of dnodes ─► dnode ─► its pointers ─► indirect blocks ─► data
//!                                                                          └─► spill block
//! ```
//! The walk is a stack of places, one for each level, so it holds one block per level in memory, for a dataset of any size. It prefetches the
//! next blocks of pointers and dnodes.

use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_format::Endian;
use cenote_format::blkptr::{Blkptr, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES};
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodePhys, DnodeView, SLOT_BYTES};
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_taskq::Class;
use cenote_taskq::buf::Block;
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::ZioError;

use super::error::SenderError;

/// The block number of a spill block in bookmarks.
pub(super) const SPILL: BlockId = BlockId(u64::MAX - 1);
/// Blocks of pointers or dnodes that a walk prefetches.
const AHEAD: usize = 32;

/// The place at which a walk begins: everything before it was sent already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) object: u64,
    pub(super) block: u64,
}

/// The shape of an object's tree.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) object: ObjectId,
    pub(super) object_type: DmuType,
    pub(super) block_bytes: u32,
    pub(super) last_block: u64,
    indirect_bytes: u64,
    /// Pointers in an indirect block, as a power of two.
    shift: u32,
}

impl Shape {
    pub(super) fn new(object: ObjectId, dnode: &DnodePhys) -> Self {
        Self {
            object,
            object_type: dnode.object_type,
            block_bytes: dnode.data_block_bytes(),
            last_block: dnode.max_block_id,
            indirect_bytes: 1 << dnode.indirect_block_shift,
            shift: dnode.blkptrs_per_indirect_shift(),
        }
    }
}

/// A dnode, and its place in its block.
#[derive(Clone)]
pub(super) struct Dnode {
    block: Block,
    start: usize,
    pub(super) order: Endian,
    pub(super) phys: Arc<DnodePhys>,
}

impl Dnode {
    /// The bytes of all its slots.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.block[self.start..self.start + self.slots() * SLOT_BYTES]
    }

    pub(super) fn slots(&self) -> usize {
        usize::from(self.phys.extra_slots) + 1
    }
}

/// A change.
pub(super) enum Change {
    /// A block of dnodes was written; its dnodes follow.
    Dnodes { bp: Blkptr, block: u64 },
    /// A dnode that may have changed.
    Object { object: ObjectId, dnode: Dnode },
    /// No dnode is in this slot.
    NoObject { object: ObjectId },
    /// A block of data.
    Data { shape: Arc<Shape>, block: u64, bp: Blkptr },
    /// The spill block of an object.
    Spill { object: ObjectId, bp: Blkptr },
    /// Data blocks that are holes, before `end`; `None`: up to the last number. For object 0: blocks of dnodes.
    Hole { shape: Arc<Shape>, start: u64, end: Option<u64> },
    /// Data blocks that the sender does not have, or must not send.
    Redacted { object: ObjectId, block_bytes: u32, start: u64, end: u64 },
}

enum Step {
    /// Pointers of a dnode, the next one first.
    Roots { shape: Arc<Shape>, dnode: Arc<DnodePhys>, next: usize },
    /// Pointers of an indirect block. `level`: that of the blocks that they point to.
    Pointers { shape: Arc<Shape>, bytes: Block, order: Endian, level: u8, first: u64, next: usize, ahead: usize },
    /// Slots of a block of dnodes.
    Slots { bytes: Block, order: Endian, first: u64, next: usize },
    /// An object's spill block.
    Spill { shape: Arc<Shape>, bp: Blkptr },
}

/// The options of a walk.
#[derive(Clone, Copy)]
pub(super) struct WalkOptions {
    /// Blocks born up to this txg are skipped.
    pub(super) since: Txg,
    pub(super) from: Option<Place>,
    /// Blocks of dnodes remain encrypted.
    pub(super) is_raw: bool,
    /// All blocks must be encrypted or authenticated.
    pub(super) is_encrypted: bool,
    /// Blocks below an unreadable one are skipped; otherwise it is an error.
    pub(super) skips_unreadable: bool,
}

/// The walk.
pub(super) struct Walk {
    dataset: Arc<str>,
    objset: Objset,
    options: WalkOptions,
    stack: Vec<Step>,
}

impl Walk {
    /// A walk over the whole of `objset`, which is `dataset`'s.
    pub(super) fn new(dataset: Arc<str>, objset: Objset, options: WalkOptions) -> Self {
        let phys = objset.phys();
        let mut stack = Vec::new();
        // If the root is old, everything is.
        if objset.root().logical_birth() > options.since {
            let dnode = Arc::new(phys.meta_dnode.clone());
            stack.push(Step::Roots { shape: Arc::new(Shape::new(ObjectId(0), &dnode)), dnode, next: 0 });
        }
        Self { dataset, objset, options, stack }
    }

    /// True if it has all blocks, not only those since another snapshot.
    pub(super) fn is_whole(&self) -> bool {
        self.options.since.0 == 0
    }

    pub(super) fn objset(&self) -> &Objset {
        &self.objset
    }

    pub(super) fn dataset(&self) -> &Arc<str> {
        &self.dataset
    }

    /// The next change; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Change>, SenderError> {
        while let Some(step) = self.stack.last_mut() {
            let (shape, level, block, bp) = match step {
                Step::Roots { shape, dnode, next } => {
                    debug_assert!(*next <= dnode.blkptrs().len(), "a dnode's pointers are visited once (invariant 1)");
                    let Some(bp) = dnode.blkptrs().get(*next) else {
                        let spill = dnode.spill.map(|bp| Step::Spill { shape: shape.clone(), bp });
                        self.stack.pop();
                        self.stack.extend(spill);
                        continue;
                    };
                    *next += 1;
                    (shape.clone(), dnode.levels - 1, *next as u64 - 1, *bp)
                }
                Step::Pointers { shape, bytes, order, level, first, next, .. } => {
                    let Some(bp) = bytes.get(*next * Blkptr::SIZE..(*next + 1) * Blkptr::SIZE) else {
                        self.stack.pop();
                        continue;
                    };
                    let bp = Blkptr::parse(bp, *order).map_err(|error| corrupt(&self.dataset, shape.object, error))?;
                    let block = first.saturating_add(*next as u64);
                    *next += 1;
                    let found = (shape.clone(), *level, block, bp);
                    self.prefetch();
                    found
                }
                Step::Slots { .. } => {
                    if let Some(change) = self.slot()? {
                        return Ok(Some(change));
                    }
                    continue;
                }
                Step::Spill { shape, bp } => {
                    let (object, bp) = (shape.object, *bp);
                    self.stack.pop();
                    if bp.logical_birth() > self.options.since && !bp.is_hole() {
                        self.check_crypt(object, &bp)?;
                        return Ok(Some(Change::Spill { object, bp }));
                    }
                    continue;
                }
            };
            if let Some(change) = self.visit(&shape, level, block, bp).await? {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }

    /// Visits a pointer: returns its change, or steps below it.
    async fn visit(
        &mut self,
        shape: &Arc<Shape>,
        level: u8,
        block: u64,
        bp: Blkptr,
    ) -> Result<Option<Change>, SenderError> {
        let corrupt = |what: String| corrupt(&self.dataset, shape.object, what);
        if self.is_before_start(shape, level, block) {
            return Ok(None);
        }
        // A hole without a birth may be older than the births of holes, so it may be new.
        let birth = bp.logical_birth();
        if birth <= self.options.since && birth.0 != 0 {
            return Ok(None);
        }
        self.check_crypt(shape.object, &bp)?;
        let span = 1_u64.checked_shl(u32::from(level) * shape.shift);
        if bp.is_hole() {
            if mutant::is(Mutant::SendHolesDropped) && self.options.since.0 != 0 {
                return Ok(None);
            }
            // Nothing can exist beyond the last number.
            let Some(start) = span.and_then(|span| block.checked_mul(span)) else { return Ok(None) };
            if !shape.object_type.is_metadata() && start > shape.last_block {
                return Ok(None);
            }
            let end = span.and_then(|span| start.checked_add(span));
            debug_assert!(end.is_none_or(|end| end > start), "a hole has blocks");
            return Ok(Some(Change::Hole { shape: shape.clone(), start, end }));
        }
        if bp.is_redacted() {
            if level > 0 || shape.object.0 == 0 {
                return Err(corrupt("a redacted block that is no data".into()));
            }
            let (object, block_bytes) = (shape.object, shape.block_bytes);
            return Ok(Some(Change::Redacted { object, block_bytes, start: block, end: block.saturating_add(1) }));
        }
        if bp.level() != level {
            return Err(corrupt(format!("a pointer of level {} at level {level}", bp.level())));
        }
        if level > 0 {
            if bp.lsize_bytes() != shape.indirect_bytes {
                return Err(corrupt(format!("an indirect block of {} bytes", bp.lsize_bytes())));
            }
            let Some(bytes) = self.read(shape.object, level, block, &bp).await? else { return Ok(None) };
            let first = block.saturating_mul(bytes.len() as u64 / Blkptr::SIZE as u64);
            let (shape, order, level) = (shape.clone(), bp.byte_order(), level - 1);
            self.stack.push(Step::Pointers { shape, bytes, order, level, first, next: 0, ahead: 0 });
            return Ok(None);
        }
        if bp.lsize_bytes() != u64::from(shape.block_bytes) && !bp.is_embedded() {
            return Err(corrupt(format!("a block of {} bytes among those of {}", bp.lsize_bytes(), shape.block_bytes)));
        }
        if block.checked_add(1).and_then(|end| end.checked_mul(shape.block_bytes.into())).is_none() {
            return Err(corrupt(format!("block {block} beyond all offsets")));
        }
        debug_assert_eq!(level, 0, "blocks of pointers are no data");
        if shape.object.0 != 0 {
            return Ok(Some(Change::Data { shape: shape.clone(), block, bp }));
        }
        let Some(bytes) = self.read(shape.object, 0, block, &bp).await? else { return Ok(None) };
        let first = block.saturating_mul(bytes.len() as u64 / SLOT_BYTES as u64);
        self.stack.push(Step::Slots { bytes, order: bp.byte_order(), first, next: 0 });
        self.prefetch();
        Ok(Some(Change::Dnodes { bp, block }))
    }

    /// The next slot of a block of dnodes.
    fn slot(&mut self) -> Result<Option<Change>, SenderError> {
        let Some(Step::Slots { bytes, order, first, next }) = self.stack.last_mut() else {
            panic!("a slot is looked for in a block of dnodes")
        };
        let (slot, order) = (*next, *order);
        if (slot + 1) * SLOT_BYTES > bytes.len() {
            self.stack.pop();
            return Ok(None);
        }
        let object = ObjectId(first.saturating_add(slot as u64));
        let view = DnodeView::in_block(bytes, slot, order).map_err(|error| corrupt(&self.dataset, object, error))?;
        *next += view.map_or(1, |view| view.slots());
        debug_assert!(*next > slot && *next * SLOT_BYTES <= bytes.len(), "a dnode lies within its block");
        // Number 0 is the meta-dnode itself.
        if object.0 == 0 || self.options.from.is_some_and(|from| object.0 < from.object) {
            return Ok(None);
        }
        let Some(view) = view else { return Ok(Some(Change::NoObject { object })) };
        let phys = Arc::new(view.to_value());
        if let Some(spill) = phys.spill.filter(|spill| !spill.is_hole()) {
            check_spill(&self.dataset, object, &spill)?;
        }
        let dnode = Dnode { block: bytes.clone(), start: slot * SLOT_BYTES, order, phys: phys.clone() };
        self.stack.push(Step::Roots { shape: Arc::new(Shape::new(object, &phys)), dnode: phys, next: 0 });
        Ok(Some(Change::Object { object, dnode }))
    }

    /// True if all blocks below a pointer are before the place at which the walk begins.
    fn is_before_start(&self, shape: &Shape, level: u8, block: u64) -> bool {
        let Some(from) = self.options.from else { return false };
        let span = 1_u64.checked_shl(u32::from(level) * shape.shift);
        let Some(end) = span.and_then(|span| block.checked_add(1)?.checked_mul(span)) else { return false };
        if shape.object.0 != 0 {
            return shape.object.0 == from.object && end <= from.block;
        }
        end.checked_mul(u64::from(shape.block_bytes) / SLOT_BYTES as u64).is_some_and(|end| end <= from.object)
    }

    fn check_crypt(&self, object: ObjectId, bp: &Blkptr) -> Result<(), SenderError> {
        if self.options.is_encrypted && !bp.is_hole() && !bp.uses_crypt() {
            return Err(corrupt(
                &self.dataset,
                object,
                "a block of an encrypted dataset that is neither encrypted nor authenticated",
            ));
        }
        Ok(())
    }

    /// Reads a block of pointers or dnodes; `None` if it cannot be read and the walk skips such blocks.
    async fn read(&self, object: ObjectId, level: u8, block: u64, bp: &Blkptr) -> Result<Option<Block>, SenderError> {
        let context = self.objset.context(object, level, BlockId(block));
        let dmu = self.objset.dmu();
        let is_opaque = self.options.is_raw && bp.is_encrypted();
        let read = if is_opaque { dmu.zio().read_physical(bp, context).await } else { dmu.read(bp, context).await };
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) if self.options.skips_unreadable => Ok(None),
            Err(source) => Err(block_error(&self.dataset, source)),
        }
    }

    /// Prefetches the next blocks that the walk will read below its current block of pointers or dnodes.
    fn prefetch(&mut self) {
        let (objset, since) = (&self.objset, self.options.since);
        let load = |object: ObjectId, level: u8, block: u64, bp: Blkptr| {
            if bp.is_hole() || bp.is_redacted() || bp.is_embedded() || bp.logical_birth() <= since {
                return false;
            }
            let objset = objset.clone();
            let loading = async move {
                objset.dmu().prefetch(&bp, objset.context(object, level, BlockId(block))).await;
            };
            // If the pool is being closed, nothing needs to be prefetched.
            let _ = self.objset.dmu().detached().spawn(Class::Issue, loading);
            true
        };
        match self.stack.last_mut() {
            Some(Step::Pointers { shape, bytes, order, level, first, next, ahead }) => {
                let is_tree = *level > 0 || shape.object.0 == 0 && !self.options.is_raw;
                // Prefetching begins when half of the blocks are left, so that devices get several at once.
                if !is_tree || *ahead > *next + AHEAD / 2 {
                    return;
                }
                *ahead = (*ahead).max(*next);
                let mut loaded = 0;
                while loaded < AHEAD
                    && let Some(bp) = bytes.get(*ahead * Blkptr::SIZE..(*ahead + 1) * Blkptr::SIZE)
                {
                    let Ok(bp) = Blkptr::parse(bp, *order) else { return };
                    loaded += usize::from(load(shape.object, *level, first.saturating_add(*ahead as u64), bp));
                    *ahead += 1;
                }
            }
            Some(Step::Slots { bytes, order, first, .. }) => {
                for (slot, dnode) in cenote_format::dnode::dnodes_in_block(bytes, *order) {
                    let Ok(dnode) = dnode else { continue };
                    if dnode.levels() < 2 {
                        continue;
                    }
                    let object = ObjectId(first.saturating_add(slot as u64));
                    for index in 0..dnode.blkptr_count() {
                        if let Some(bp) = dnode.blkptr(index) {
                            load(object, dnode.levels() - 1, index as u64, bp);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Refuses a spill block of a size that a record cannot have.
fn check_spill(dataset: &str, object: ObjectId, bp: &Blkptr) -> Result<(), SenderError> {
    let size = bp.lsize_bytes();
    if bp.level() != 0 || size == 0 || !size.is_multiple_of(MIN_BLOCK_BYTES) || size > MAX_BLOCK_BYTES {
        return Err(corrupt(dataset, object, format!("a spill block of {size} bytes")));
    }
    Ok(())
}

/// An error about a block of `dataset`.
pub(super) fn block_error(dataset: &str, source: ZioError) -> SenderError {
    if source.is_key_missing() {
        return SenderError::KeyNotLoaded(dataset.into());
    }
    SenderError::Block { dataset: dataset.into(), source }
}

/// An error about an object of `dataset` that contradicts itself.
pub(super) fn corrupt(dataset: &str, object: ObjectId, what: impl ToString) -> SenderError {
    SenderError::Corrupt { dataset: dataset.into(), object, what: what.to_string() }
}
