//! The blocks of a destroyed dataset, in the order in which they are freed.
//!
//! The order is that of OpenZFS's walk, since either may go on where the other stopped: a block comes after all below it, objects by
//! number, an object's blocks by position and its spill block last, the accounts of owners after all objects, the objset's block at the
//! end. A stop is a block of level 0 that is not freed yet, though all that comes before it is. (Source: the behaviour of
//! `traverse_dataset_destroyed` in dmu_traverse.c, 2.3; `cenote_scan` reads such stops.)
//!
//! Memory is one path of the tree: the pointers of a block for each level.

use std::collections::VecDeque;

use cenote_dmu::{Dmu, GROUPUSED, PROJECTUSED, USERUSED};
use cenote_format::FormatError;
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::{DnodePhys, dnodes_in_block};
use cenote_format::dsl::ZBookmark;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::objset::ObjsetPhys;
use cenote_taskq::buf::Block;
use cenote_zio::{Bookmark, ReadContext, ZioError};
use thiserror::Error;

/// The objset of a destroyed dataset in bookmarks (`ZB_DESTROYED_OBJSET`).
const DESTROYED: ObjsetId = ObjsetId(u64::MAX);
/// The number of a spill block in bookmarks (`DMU_SPILL_BLKID`).
const SPILL_BLOCK: u64 = u64::MAX - 1;
/// Objects in a block of the meta-dnode.
const OBJECTS_PER_BLOCK: u64 = 32;
/// Blocks on one path at most, with the objset's own: the levels of the meta-dnode, and those of an object.
const PATH_MAX: usize = 2 + 2 * 12;
/// Blocks that are loaded before the walk comes to them.
const AHEAD: usize = 16;

/// Blocks to be freed next.
pub(super) struct Group {
    pub(super) blocks: Vec<Blkptr>,
    /// The first of them as a stop, if it can be one.
    pub(super) stop: Option<ZBookmark>,
}

/// A block that cannot be read.
pub(super) struct Unreadable {
    /// A stop from which nothing is left out.
    pub(super) stop: ZBookmark,
    pub(super) error: DoomedError,
}

/// Why a block of a destroyed dataset cannot be used.
#[derive(Clone, Debug, Error)]
pub(super) enum DoomedError {
    /// It cannot be read.
    #[error(transparent)]
    Zio(#[from] ZioError),
    /// It has an objset or dnodes that are not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The first block below it has no number.
    #[error("a tree that reaches further than any")]
    TooFar,
    /// A block pointer in it is of another level than the one below.
    #[error("a tree whose levels do not go down")]
    WrongLevel,
}

/// A pointer in an object's tree.
#[derive(Clone, Copy)]
struct Place {
    level: u8,
    /// The block's number at its level.
    block: u64,
    bp: Blkptr,
}

/// The children of one block that are still to be walked.
struct Frame {
    object: u64,
    /// Pointers in an indirect block of the object, as a power of two.
    shift: u32,
    pointers: VecDeque<Place>,
    /// In place of pointers: objects.
    dnodes: VecDeque<(u64, DnodePhys)>,
    /// The block itself, which comes after.
    own: Option<Place>,
    /// Of `pointers`, those that are being loaded.
    ahead: usize,
}

/// The walk.
pub(super) struct Doomed {
    dmu: Dmu,
    /// Blocks born in this txg or before belong to an earlier snapshot.
    born_after: Txg,
    resume: Option<(u64, u64)>,
    root: Option<Blkptr>,
    stack: Vec<Frame>,
    /// Nothing has been handed out since the walk began at its stop.
    is_fresh: bool,
}

impl Doomed {
    /// The blocks of the objset at `root` that were born after a txg, from a stop on.
    pub(super) fn new(dmu: Dmu, root: Blkptr, born_after: Txg, stop: ZBookmark) -> Self {
        let resume = (stop != ZBookmark::default()).then_some((stop.object.0, stop.block));
        Self { dmu, born_after, resume, root: Some(root), stack: Vec::new(), is_fresh: true }
    }

    /// The next blocks; `None` at the end.
    ///
    /// # Errors
    /// A block on the way cannot be read, or is none of such a tree.
    pub(super) async fn next(&mut self) -> Result<Option<Group>, Unreadable> {
        let found = self.walk().await;
        if self.is_fresh
            && let (Err(unreadable), Some((object, block))) = (found.as_ref(), self.resume)
        {
            // It is usually above the stop, and the blocks before the stop are freed.
            let stop = ZBookmark { objset: DESTROYED, object: ObjectId(object), level: 0, block };
            return Err(Unreadable { stop, error: unreadable.error.clone() });
        }
        self.is_fresh &= !matches!(found, Ok(Some(_)));
        if let Ok(Some(group)) = &found {
            assert!(!group.blocks.is_empty(), "a group has a block");
            debug_assert!(group.blocks.iter().all(|bp| self.is_ours(bp)), "no block that a snapshot has is given up");
        }
        found
    }

    async fn walk(&mut self) -> Result<Option<Group>, Unreadable> {
        if let Some(root) = self.root.take() {
            self.begin(root).await?;
        }
        loop {
            assert!(self.stack.len() <= PATH_MAX, "a walk keeps one path of the tree");
            let Some(frame) = self.stack.last_mut() else { return Ok(None) };
            if let Some((object, dnode)) = frame.dnodes.pop_front() {
                let is_past = object != 0 && self.resume.is_some_and(|(at, _)| object < at);
                if !is_past {
                    self.stack.push(Frame::of_dnode(object, &dnode));
                }
                continue;
            }
            let Some(place) = frame.pointers.front().copied() else {
                let frame = self.stack.pop();
                if let Some((object, own)) = frame.and_then(|frame| Some((frame.object, frame.own?))) {
                    return Ok(Some(Group { stop: stop_at(object, &own), blocks: vec![own.bp] }));
                }
                continue;
            };
            let (object, shift) = (frame.object, frame.shift);
            if place.level == 0 && object != 0 {
                // All that follow are of level 0 too: the lowest pointers of a dnode, and its spill block.
                let data: Vec<Place> = frame.pointers.drain(..).collect();
                debug_assert!(data.iter().all(|place| place.level == 0), "levels go down to the data at once");
                let data: Vec<Place> = data.into_iter().filter(|place| self.is_wanted(object, shift, place)).collect();
                if let Some(first) = data.first() {
                    let stop = stop_at(object, first);
                    return Ok(Some(Group { blocks: data.into_iter().map(|place| place.bp).collect(), stop }));
                }
                continue;
            }
            frame.pointers.pop_front();
            frame.ahead = frame.ahead.saturating_sub(1);
            if !self.is_wanted(object, shift, &place) {
                continue;
            }
            if place.level == 0 && self.resume == Some((0, place.block)) {
                // All of its objects are gone.
                return Ok(Some(Group { blocks: vec![place.bp], stop: stop_at(0, &place) }));
            }
            self.prefetch();
            let block = self.read(object, shift, &place).await?;
            let below = Frame::below(object, shift, place, &block);
            self.stack.push(below.map_err(|error| unreadable(object, shift, &place, error))?);
        }
    }

    /// Reads the objset's block, which comes last.
    async fn begin(&mut self, root: Blkptr) -> Result<(), Unreadable> {
        if !self.is_ours(&root) {
            return Ok(());
        }
        let fail = |error: DoomedError| Unreadable { stop: ZBookmark::default(), error };
        let context = ReadContext::new(Bookmark::objset(DESTROYED), None);
        let block = self.dmu.read(&root, context).await.map_err(|error| fail(error.into()))?;
        let phys = ObjsetPhys::parse(&block, root.byte_order()).map_err(|error| fail(error.into()))?;
        let mut dnodes = VecDeque::from([(0, phys.meta_dnode)]);
        let accounts =
            [(PROJECTUSED, phys.projectused_dnode), (GROUPUSED, phys.groupused_dnode), (USERUSED, phys.userused_dnode)];
        dnodes.extend(accounts.into_iter().filter_map(|(id, dnode)| Some((id.0, dnode?))));
        // Of no level that a stop can have.
        let own = Some(Place { level: u8::MAX, block: 0, bp: root });
        self.stack.push(Frame { object: 0, shift: 0, pointers: VecDeque::new(), dnodes, own, ahead: 0 });
        Ok(())
    }

    fn is_ours(&self, bp: &Blkptr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.logical_birth() > self.born_after
    }

    /// True for a block that is to be freed, or has blocks below it that are.
    fn is_wanted(&self, object: u64, shift: u32, place: &Place) -> bool {
        self.is_ours(&place.bp) && !self.resume.is_some_and(|resume| is_past(resume, object, shift, place))
    }

    async fn read(&self, object: u64, shift: u32, place: &Place) -> Result<Block, Unreadable> {
        let level = i8::try_from(place.level).unwrap_or(i8::MAX);
        let at = Bookmark { objset: DESTROYED, object: ObjectId(object), level, block: BlockId(place.block) };
        let read = self.dmu.read_structure(&place.bp, ReadContext::new(at, None)).await;
        read.map_err(|error| unreadable(object, shift, place, error.into()))
    }

    /// Sets out to load the next blocks that the walk will read.
    fn prefetch(&mut self) {
        let born_after = self.born_after;
        let Some(frame) = self.stack.last_mut() else { return };
        assert!(frame.ahead <= frame.pointers.len(), "blocks are loaded ahead that are still to come");
        while frame.ahead < AHEAD.min(frame.pointers.len()) {
            let place = frame.pointers[frame.ahead];
            frame.ahead += 1;
            if place.bp.is_hole() || place.bp.logical_birth() <= born_after || (place.level == 0 && frame.object != 0) {
                continue;
            }
            let dmu = self.dmu.clone();
            let loaded = self.dmu.detached().detach(cenote_taskq::Class::Background, async move {
                dmu.prefetch(&place.bp, ReadContext::new(Bookmark::objset(DESTROYED), None)).await;
            });
            // The pool is being exported.
            if loaded.is_err() {
                return;
            }
        }
    }
}

impl Frame {
    fn of_dnode(object: u64, dnode: &DnodePhys) -> Self {
        let level = dnode.levels.saturating_sub(1);
        let tops = (0..).zip(dnode.blkptrs()).map(|(block, bp)| Place { level, block, bp: *bp });
        let spill = dnode.spill.map(|bp| Place { level: 0, block: SPILL_BLOCK, bp });
        let pointers = tops.chain(spill).collect();
        Self {
            object,
            shift: dnode.blkptrs_per_indirect_shift(),
            pointers,
            dnodes: VecDeque::new(),
            own: None,
            ahead: 0,
        }
    }

    /// The frame of the children of a block with these bytes: block pointers, or dnodes.
    fn below(object: u64, shift: u32, own: Place, bytes: &Block) -> Result<Self, DoomedError> {
        let order = own.bp.byte_order();
        let mut frame =
            Self { object, shift, pointers: VecDeque::new(), dnodes: VecDeque::new(), own: Some(own), ahead: 0 };
        if own.level > 0 {
            let level = own.level - 1;
            let first = own.block.checked_shl(shift).filter(|first| first >> shift == own.block);
            let first = first.ok_or(DoomedError::TooFar)?;
            for (block, bp) in (first..).zip(Blkptr::array(bytes, order)) {
                if !bp.is_hole() && bp.level() != level {
                    return Err(DoomedError::WrongLevel);
                }
                frame.pointers.push_back(Place { level, block, bp });
            }
        } else {
            for (slot, dnode) in dnodes_in_block(bytes, order) {
                let dnode = dnode?.to_value();
                let object = own.block.saturating_mul(OBJECTS_PER_BLOCK).saturating_add(slot as u64);
                if object != 0 {
                    frame.dnodes.push_back((object, dnode));
                }
            }
        }
        Ok(frame)
    }
}

fn stop_at(object: u64, place: &Place) -> Option<ZBookmark> {
    let stop = ZBookmark { objset: DESTROYED, object: ObjectId(object), level: 0, block: place.block };
    // All zeros would be the start; and the walk ends soon where it is among the accounts.
    (place.level == 0 && stop_is_of_objects(object) && (object, place.block) != (0, 0)).then_some(stop)
}

const fn stop_is_of_objects(object: u64) -> bool {
    object < PROJECTUSED.0
}

/// The error for a block that cannot be read, with the first block below it as the stop.
fn unreadable(object: u64, shift: u32, place: &Place, error: DoomedError) -> Unreadable {
    let first = place.block.checked_shl(u32::from(place.level) * shift).unwrap_or(u64::MAX);
    let (object, block) = match object {
        0 => (first.saturating_mul(OBJECTS_PER_BLOCK).max(1), 0),
        object => (object, first),
    };
    Unreadable { stop: ZBookmark { objset: DESTROYED, object: ObjectId(object), level: 0, block }, error }
}

/// True if a block and all below it come before a stop.
fn is_past((object, block): (u64, u64), at: u64, shift: u32, place: &Place) -> bool {
    let span = 1_u64.checked_shl(u32::from(place.level) * shift).unwrap_or(u64::MAX);
    let end = place.block.saturating_add(1).saturating_mul(span);
    match (at, object) {
        // Both are in the meta-dnode: the block at the stop is freed with the stop.
        (0, 0) => place.block.saturating_mul(span).saturating_add(span) <= block,
        // A block of the meta-dnode, and a stop in an object: past if all objects of the block are before it.
        (0, object) => end.saturating_mul(OBJECTS_PER_BLOCK) <= object,
        // A block of an object, and a stop in the meta-dnode: the objects of the block at the stop are freed.
        (at, 0) => at < block.saturating_add(1).saturating_mul(OBJECTS_PER_BLOCK),
        (at, object) if at == object => end <= block,
        (at, object) => at < object,
    }
}
