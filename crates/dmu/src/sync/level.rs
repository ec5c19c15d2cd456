//! The blocks of one level, some at a time: from the trees that hold them to where they are prepared.
//!
//! The syncing task only takes blocks out of the trees and gives them places. How each is written is decided where it is prepared, on any
//! core. A batch goes from one tree into the next, so small files fill one together:
//!
//! ```text
//!   trees   a: 0 1 2 3 4 5     b: 0    c: 0 1
//!   batches [ a 0 1 2 3 ] [ a 4 5, b 0, c 0 ] [ c 1 ]       a span for each tree in a batch
//! ```

use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_zio::{AllocationUnits, Bookmark, Prepared, PreparedBatch, WritePolicy, Zio};

use super::batch::{BATCH_BLOCKS_MAX, Room};
use super::part::Part;
use super::place::Made;
use super::stores::Cleaned;
use super::stretch::Stretch;
use super::trees::Item;
use crate::caching::Kinds;
use crate::geometry::is_special;
use crate::objset::{BlockKind, Now, ObjsetPolicy};

/// Blocks of one tree that follow each other in a batch.
pub(super) struct Span {
    pub(super) stretch: usize,
    pub(super) tree: usize,
    pub(super) count: usize,
    /// Data that is dirty until it is stored.
    pub(super) cleaned: Option<Cleaned>,
}

/// The properties of a tree that decide how its blocks are written.
struct How {
    policy: ObjsetPolicy,
    objset: ObjsetId,
    object: ObjectId,
    is_uncompressed: bool,
    protects: bool,
    count: usize,
}

/// Blocks that are prepared together.
pub(super) struct Batch {
    level: u8,
    now: Now,
    hows: Vec<How>,
    items: Vec<Item>,
}

/// Where in the trees of all stretches the next batch begins: in which stretch, and at which of its trees that have blocks.
pub(super) struct Cursor {
    level: u8,
    now: Now,
    stretch: usize,
    busy: usize,
}

impl Cursor {
    pub(super) const fn new(level: u8, now: Now) -> Self {
        Self { level, now, stretch: 0, busy: 0 }
    }

    /// The next batch; none where there is nothing left.
    pub(super) fn next(&mut self, parts: &[Part], stretches: &mut [Stretch]) -> Option<(Vec<Span>, Batch)> {
        let (mut spans, mut room) = (Vec::new(), Room::default());
        let items = Vec::with_capacity(BATCH_BLOCKS_MAX);
        let mut batch = Batch { level: self.level, now: self.now, hows: Vec::new(), items };
        while let Some(stretch) = stretches.get_mut(self.stretch) {
            let Some(at) = stretch.busy.get(self.busy).copied() else {
                (self.stretch, self.busy) = (self.stretch + 1, 0);
                continue;
            };
            let tree = &mut stretch.trees[at];
            let before = batch.items.len();
            tree.take_items(self.level, &mut room, &mut batch.items);
            let taken = &mut batch.items[before..];
            if !taken.is_empty() {
                let (part, object, count) = (&parts[stretch.part], tree.object.id(), taken.len());
                let how = How {
                    policy: part.policy,
                    objset: part.objset.id(),
                    object,
                    protects: part.objset.is_raw(),
                    is_uncompressed: self.level == 0 && tree.head.compress == 2,
                    count,
                };
                for item in taken.iter_mut().filter(|item| item.stored.is_some()) {
                    let policy = how.policy_of(item, self.level, self.now);
                    // The tree keeps the block that it has. The other was needed by the log alone, as long as this txg is not on disk.
                    if let Some(logged) = item.stored.filter(|logged| policy.keeps_previous(logged)) {
                        tree.unused.push(logged);
                        item.stored = Some(item.previous);
                    }
                }
                let is_data = self.level == 0 && object.0 != 0 && !is_special(object);
                let cleaned = part.objset.dirty().filter(|_| is_data).map(|dirty| {
                    let data = taken.iter().filter(|item| item.block.is_some());
                    Cleaned::new(dirty, self.now.txg, data.map(|item| item.content.len_bytes()).sum())
                });
                spans.push(Span { stretch: self.stretch, tree: at, count, cleaned });
                batch.hows.push(how);
            }
            if room.is_full() {
                break;
            }
            self.busy += 1;
        }
        (!spans.is_empty()).then_some((spans, batch))
    }
}

impl Batch {
    /// Compresses and sums up all blocks.
    pub(super) fn prepare(self, zio: &Zio, units: AllocationUnits) -> Made {
        let count = self.items.len();
        let (mut blocks, mut batch) = (Vec::with_capacity(count), PreparedBatch::with_capacity(count));
        let mut items = self.items.into_iter();
        for how in self.hows {
            for item in items.by_ref().take(how.count) {
                let policy = how.policy_of(&item, self.level, self.now);
                let kept = self.level > 0 || item.kind.is_metadata() || how.policy.caching.primary == Kinds::All;
                let stored = item.stored.map(Prepared::stored);
                let (prepared, content) = match item.content.into_block() {
                    Ok(content) => (stored.map_or_else(|| zio.prepare(units, &content, &policy), Ok), Some(content)),
                    // A block that came ready was not unpacked to be kept.
                    Err(ready) => (zio.prepare_ready(units, &ready, &policy), None),
                };
                batch.push(prepared, policy);
                blocks.push((item.block, content.filter(|_| kept)));
            }
        }
        Made { blocks, batch }
    }
}

impl How {
    fn policy_of(&self, item: &Item, level: u8, now: Now) -> WritePolicy {
        let bookmark = Bookmark {
            objset: self.objset,
            object: self.object,
            level: i8::try_from(level).unwrap_or(i8::MAX),
            block: BlockId(item.block.unwrap_or(0)),
        };
        let fill = item.content.fill(item.kind);
        let (uncompressed, protects) = (self.is_uncompressed, self.protects);
        let block = BlockKind { kind: item.kind, level, fill, uncompressed, protects };
        self.policy.of_block(block, bookmark, item.previous, now)
    }
}
