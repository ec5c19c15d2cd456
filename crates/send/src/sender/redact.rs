//! The blocks of a snapshot that no longer exist in any of a set of later snapshots: `zfs redact` lists these.
//!
//! # Need
//!
//! In a clone, secret data was replaced. A stream of the clone's origin without the secrets must leave out the blocks that the clone does not
//! refer to; given several clones, those that none refers to.
//!
//! # Structures
//!
//! ```text
//!   walk of a clone since the snapshot ─► Changed: ranges of (object, block) ─┐
//!   walk of another clone              ─► Changed                            ─┼─► Common: ranges in all ─► runs of blocks that the snapshot has
//!                                                                            ─┘
//! ```
//! Ranges are in rising order and do not overlap, so the intersection takes one range of each clone at a time. Memory does not depend on
//! the size of the datasets: a walk per clone, and one block of dnodes of the snapshot.
//!
//! # A range is
//!
//! a block that was written since, or punched; all of an object that was removed, or will be (in the delete queue); the blocks after the end of
//! an object that was shortened; all blocks of one whose block size changed; the numbers that another object's larger dnode covers.
//!
//! OpenZFS (up to 2.4) looks only at blocks within the clone's tree. If a shorter file took the number of a removed longer one, OpenZFS does not
//! list the rest of the removed file. Cenote does: the manual says which blocks are redacted, and this is the purpose of redaction.
//!
//! # Rejected
//!
//! Comparing the pointers of both trees: a block that was rewritten with the same contents would count as unchanged, unlike in OpenZFS, and
//! increments from a redacted snapshot send all blocks born since.

use std::collections::VecDeque;

use cenote_dmu::{Objset, Zap};
use cenote_dsl::{Dataset, Dsl};
use cenote_format::dnode::{DnodePhys, SLOT_BYTES};
use cenote_format::dsl::RedactBlock;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_format::zap::int_key_name;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_taskq::boxed;

use super::error::SenderError;
use super::source::Source;
use super::walk::{Change, Place, Walk, WalkOptions};

/// A block of an object. Block 0 of the next object marks the end of an object.
pub type Point = (u64, u64);

/// The point of a complete list.
pub const COMPLETE: Point = (u64::MAX, u64::MAX);

/// Blocks of one entry at most.
const RUN_MAX: u64 = 1 << 47;

/// Points from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: Point,
    end: Point,
}

/// The walk's current object in a clone.
struct Current {
    object: u64,
    /// The number after those that its dnode takes.
    end: u64,
    /// The first block from which on all old contents are gone.
    tail: u64,
    /// Its blocks are ignored.
    is_passed: bool,
}

/// The blocks that a clone has changed, in ranges.
struct Changed {
    walk: Walk,
    origin: Objset,
    delete_queue: Option<Zap>,
    current: Option<Current>,
    ready: VecDeque<Range>,
    /// The end of the last range.
    end: Point,
}

impl Changed {
    async fn open(dsl: &Dsl, origin: &Source, clone: Dataset, from: Point) -> Result<Self, SenderError> {
        let clone = Source::open(dsl, clone, false).await?;
        let options = WalkOptions {
            since: origin.dataset.phys.creation_txg,
            from: (from.0 > 0).then_some(Place { object: from.0, block: from.1 }),
            is_raw: false,
            is_encrypted: clone.is_encrypted,
            skips_unreadable: false,
        };
        let delete_queue = match clone.objset_type {
            ObjsetType::Zfs => delete_queue(&clone.objset).await?,
            _ => None,
        };
        let walk = Walk::new(clone.name().into(), clone.objset.clone(), options);
        let (origin, ready) = (origin.objset.clone(), VecDeque::new());
        Ok(Self { walk, origin, delete_queue, current: None, ready, end: (0, 0) })
    }

    async fn next(&mut self) -> Result<Option<Range>, SenderError> {
        loop {
            if let Some(range) = self.ready.pop_front() {
                return Ok(Some(range));
            }
            match self.walk.next().await? {
                Some(change) => self.take(change).await?,
                None if self.current.is_some() => self.leave(),
                None => return Ok(None),
            }
        }
    }

    async fn take(&mut self, change: Change) -> Result<(), SenderError> {
        match change {
            Change::Dnodes { .. } | Change::Spill { .. } => {}
            Change::NoObject { object } => {
                self.leave();
                self.push((object.0, 0), (object.0.saturating_add(1), 0));
            }
            Change::Object { object, dnode } => {
                self.leave();
                let end = object.0.saturating_add(dnode.slots() as u64);
                self.current = Some(self.enter(object, end, &dnode.phys).await?);
            }
            Change::Data { shape, block, .. } => self.push_blocks(shape.object, block, block.saturating_add(1)),
            Change::Redacted { object, start, end, .. } => self.push_blocks(object, start, end),
            Change::Hole { shape, start, end } if shape.object.0 == 0 => {
                self.leave();
                let slots = u64::from(shape.block_bytes) / SLOT_BYTES as u64;
                let number = |block: u64| block.saturating_mul(slots);
                self.push((number(start).max(1), 0), (end.map_or(u64::MAX, number), 0));
            }
            Change::Hole { shape, start, end } => self.push_blocks(shape.object, start, end.unwrap_or(u64::MAX)),
        }
        Ok(())
    }

    /// Begins an object of the clone, whose blocks follow.
    async fn enter(&self, object: ObjectId, end: u64, phys: &DnodePhys) -> Result<Current, SenderError> {
        let mut current =
            Current { object: object.0, end, tail: phys.max_block_id.saturating_add(1), is_passed: false };
        let was = match self.origin.object(object).await {
            Ok(was) => was.phys(),
            Err(error) if error.is_absent() => {
                current.is_passed = true;
                return Ok(current);
            }
            Err(error) => return Err(error.into()),
        };
        current.is_passed = was.object_type.is_metadata();
        let is_removed = match &self.delete_queue {
            Some(queue) => queue.lookup(int_key_name(object.0).as_bytes()).await?.is_some(),
            None => false,
        };
        if is_removed || was.data_block_bytes() != phys.data_block_bytes() {
            current.tail = 0;
        }
        Ok(current)
    }

    /// Ends an object: adds the blocks that it no longer has.
    fn leave(&mut self) {
        let Some(Current { object, end, tail, is_passed }) = self.current.take() else { return };
        let start = if is_passed { (object.saturating_add(1), 0) } else { (object, tail) };
        self.push(start, (end, 0));
    }

    fn push_blocks(&mut self, object: ObjectId, start: u64, end: u64) {
        // The blocks from the tail on are listed together, in order.
        match &self.current {
            Some(current) if current.object == object.0 && !current.is_passed => {
                let tail = current.tail;
                self.push((object.0, start.min(tail)), (object.0, end.min(tail)));
            }
            _ => {}
        }
    }

    fn push(&mut self, start: Point, end: Point) {
        let start = start.max(self.end);
        if start < end {
            self.ready.push_back(Range { start, end });
            self.end = end;
        }
    }
}

/// The list of objects to remove after their last user closes them; `None` if it is empty.
async fn delete_queue(objset: &Objset) -> Result<Option<Zap>, SenderError> {
    let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
    let Some(queue) = master.lookup(master_node::UNLINKED_SET.as_bytes()).await? else { return Ok(None) };
    let Some(queue) = queue.as_u64() else { return Ok(None) };
    let queue = Zap::open(objset.object(ObjectId(queue)).await?).await?;
    Ok((queue.entry_count()? > 0).then_some(queue))
}

/// The blocks that every clone has changed.
struct Common {
    sources: Vec<Changed>,
    fronts: Vec<Option<Range>>,
}

impl Common {
    async fn next(&mut self) -> Result<Option<Range>, SenderError> {
        loop {
            for (source, front) in self.sources.iter_mut().zip(&mut self.fronts) {
                if front.is_none() {
                    *front = source.next().await?;
                }
            }
            let Some(fronts) = self.fronts.iter().copied().collect::<Option<Vec<Range>>>() else { return Ok(None) };
            let start = fronts.iter().map(|range| range.start).max();
            let end = fronts.iter().map(|range| range.end).min();
            let (Some(start), Some(end)) = (start, end) else { return Ok(None) };
            for front in &mut self.fronts {
                front.take_if(|range| range.end <= end);
            }
            if start < end {
                return Ok(Some(Range { start, end }));
            }
        }
    }
}

/// An object of the snapshot.
#[derive(Clone, Copy)]
struct Listed {
    object: ObjectId,
    block_bytes: u32,
    last_block: u64,
    is_data: bool,
}

/// The blocks of a snapshot that none of the others has, in runs.
pub struct Redaction {
    objset: Objset,
    common: Common,
    range: Option<Range>,
    from: Point,
    /// Objects of a block of dnodes, and the number after them.
    objects: VecDeque<Listed>,
    next_object: Option<ObjectId>,
    /// The run that the next blocks may extend.
    pending: Option<RedactBlock>,
}

impl Redaction {
    /// The redaction of a snapshot by later ones. The caller prevents all of them from being destroyed. Blocks before `from` are left out.
    ///
    /// # Errors
    /// One of them cannot be read, or its key is not loaded.
    #[boxed]
    pub async fn open(dsl: &Dsl, snapshot: Dataset, others: Vec<Dataset>, from: Point) -> Result<Self, SenderError> {
        let origin = Source::open(dsl, snapshot, false).await?;
        let mut sources = Vec::with_capacity(others.len());
        for other in others {
            sources.push(Changed::open(dsl, &origin, other, from).await?);
        }
        let fronts = vec![None; sources.len()];
        let common = Common { sources, fronts };
        let (objects, next_object) = (VecDeque::new(), Some(ObjectId(from.0.max(1))));
        Ok(Self { objset: origin.objset, common, range: None, from, objects, next_object, pending: None })
    }

    /// The next run of blocks; `None` after the last.
    ///
    /// # Errors
    /// A dataset cannot be read.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<RedactBlock>, SenderError> {
        loop {
            let Some(run) = self.piece().await? else { return Ok(self.pending.take()) };
            match &mut self.pending {
                Some(pending)
                    if pending.object == run.object
                        && pending.block + pending.block_count == run.block
                        && pending.block_count + run.block_count <= RUN_MAX =>
                {
                    pending.block_count += run.block_count;
                }
                _ => {
                    if let Some(done) = self.pending.replace(run) {
                        return Ok(Some(done));
                    }
                }
            }
        }
    }

    /// The point from which on no block has been returned yet.
    #[must_use]
    pub fn point(&self) -> Point {
        self.pending.map_or(COMPLETE, |run| (run.object.0, run.block))
    }

    /// The next object's blocks in the current range.
    async fn piece(&mut self) -> Result<Option<RedactBlock>, SenderError> {
        loop {
            let range = match self.range {
                Some(range) => range,
                None => match self.common.next().await? {
                    Some(range) => Range { start: range.start.max(self.from), ..range },
                    None => return Ok(None),
                },
            };
            self.range = Some(range).filter(|range| range.start < range.end);
            if self.range.is_none() {
                continue;
            }
            // If the snapshot has no more objects, nothing else can be redacted.
            let Some(listed) = self.object_from(ObjectId(range.start.0)).await? else { return Ok(None) };
            let object = listed.object.0;
            if (object, 0) >= range.end {
                self.range = None;
                continue;
            }
            let blocks = listed.last_block.saturating_add(1);
            let start = if object == range.start.0 { range.start.1 } else { 0 };
            let end = if object == range.end.0 { range.end.1.min(blocks) } else { blocks };
            if !listed.is_data || start >= end {
                self.range = Some(Range { start: (object.saturating_add(1), 0), ..range });
                continue;
            }
            let end = end.min(start.saturating_add(RUN_MAX));
            self.range = Some(Range { start: (object, end), ..range });
            let block_size_bytes = listed.block_bytes;
            return Ok(Some(RedactBlock {
                object: listed.object,
                block: start,
                block_size_bytes,
                block_count: end - start,
            }));
        }
    }

    /// The first object of the snapshot with this number or a higher one. Numbers must not fall from call to call.
    async fn object_from(&mut self, from: ObjectId) -> Result<Option<Listed>, SenderError> {
        loop {
            while let Some(first) = self.objects.front() {
                if first.object >= from {
                    return Ok(Some(*first));
                }
                self.objects.pop_front();
            }
            let Some(next) = self.next_object else { return Ok(None) };
            let Some(found) = self.objset.next_objects(next.max(from)).await? else {
                self.next_object = None;
                return Ok(None);
            };
            for (object, opened) in found.objects {
                let phys = opened?.phys();
                self.objects.push_back(Listed {
                    object,
                    block_bytes: phys.data_block_bytes(),
                    last_block: phys.max_block_id,
                    is_data: !phys.object_type.is_metadata(),
                });
            }
            self.next_object = Some(found.next);
        }
    }
}
