//! Redaction: blocks that a stream leaves out by a list, and old blocks that it sends because an earlier stream left them out.
//!
//! Three sources are merged, each in the order of objects and blocks. Where they overlap, the first of them in this table wins; ranges are cut
//! where the winner changes:
//!
//! ```text
//!   the list to redact by      REDACT records
//!   the walk                   changes
//!   the base's list            blocks that receivers do not have: they are looked up and sent
//! ```
//! A block in both lists is left out without a record: receivers lack it already.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_dmu::{DmuErrorKind, Object};
use cenote_dsl::Dsl;
use cenote_format::dsl::RedactBlock;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_taskq::mutant::{self, Mutant};

use super::error::SenderError;
use super::walk::{Change, Place, SPILL, Shape, Walk, corrupt};

/// Entries of a list in one read.
const ENTRIES: u64 = 4096;

/// A redaction list, read from a place on.
pub(super) struct List {
    object: Object,
    count: u64,
    next: u64,
    from: Option<Place>,
    read: VecDeque<RedactBlock>,
    /// The end of the last entry: the object, and the block after it.
    last: (u64, u64),
    /// The snapshots that it redacts for.
    pub(super) snapshots: Vec<u64>,
}

impl List {
    /// The list in an object of the MOS.
    pub(super) async fn open(dsl: &Dsl, id: ObjectId, from: Option<Place>) -> Result<Self, SenderError> {
        let object = dsl.mos().object(id).await?;
        let bonus = dsl.redaction_list(id).await?;
        let snapshots = bonus.snapshots.iter().map(|guid| guid.0).collect();
        if (bonus.last_object, bonus.last_block) != (u64::MAX, u64::MAX) {
            // The stream would include the blocks after its end.
            let what = "a redaction list that is not complete".to_owned();
            return Err(object.error(DmuErrorKind::Corrupt(what)).into());
        }
        let bytes = object.last_block().0.saturating_add(1).saturating_mul(object.block_bytes());
        if bonus.entry_count > bytes / RedactBlock::SIZE_BYTES as u64 {
            let what = format!("{} entries in a redaction list of {bytes} bytes", bonus.entry_count);
            return Err(object.error(DmuErrorKind::Corrupt(what)).into());
        }
        let (read, last) = (VecDeque::new(), (0, 0));
        Ok(Self { object, count: bonus.entry_count, next: 0, from, read, last, snapshots })
    }

    async fn next(&mut self) -> Result<Option<Range>, SenderError> {
        loop {
            while let Some(entry) = self.read.pop_front() {
                let end = entry.block.saturating_add(entry.block_count);
                if (entry.object.0, entry.block) < self.last {
                    let what = "a redaction list that is not in order".into();
                    return Err(self.object.error(DmuErrorKind::Corrupt(what)).into());
                }
                self.last = (entry.object.0, end);
                let mut range =
                    Range { object: entry.object, start: entry.block, end, block_bytes: entry.block_size_bytes };
                if let Some(from) = self.from {
                    if range.object.0 == from.object {
                        range.start = range.start.max(from.block);
                    }
                    if range.object.0 < from.object {
                        continue;
                    }
                }
                if range.start < range.end {
                    return Ok(Some(range));
                }
            }
            if self.next >= self.count {
                return Ok(None);
            }
            let count = ENTRIES.min(self.count - self.next);
            let size = RedactBlock::SIZE_BYTES as u64;
            let bytes = self.object.read(self.next.saturating_mul(size), (count * size) as usize).await?;
            let before = self.read.len();
            debug_assert_eq!(before, 0, "entries are read when those before are passed (invariant 2)");
            for entry in bytes.chunks_exact(RedactBlock::SIZE_BYTES) {
                let entry = RedactBlock::parse(entry, cenote_dmu::ORDER).map_err(|error| self.object.error(error))?;
                self.read.push_back(entry);
            }
            if self.read.len() - before < count as usize {
                let what = format!("{} entries in a redaction list that should have {}", self.next, self.count);
                return Err(self.object.error(DmuErrorKind::Corrupt(what)).into());
            }
            self.next += count;
            assert!(self.next <= self.count, "a list has no entry after its last");
        }
    }
}

/// Blocks of one object.
#[derive(Clone, Copy, Debug)]
struct Range {
    object: ObjectId,
    start: u64,
    end: u64,
    block_bytes: u32,
}

/// The next item of a source.
enum Front {
    Redact(Range),
    To(Change),
    From(Range),
}

/// The order of fronts: objects, blocks of dnodes and dnodes before what they have, then blocks.
type Start = (u64, u8, u64);

impl Front {
    fn start(&self) -> Start {
        match self {
            Self::Redact(range) | Self::From(range) => (range.object.0, 2, range.start),
            Self::To(change) => match change {
                // The numbers of the objects in the block.
                Change::Dnodes { block, .. } => (block.saturating_mul(32), 0, 0),
                Change::Object { object, .. } | Change::NoObject { object } => (object.0, 1, 0),
                Change::Data { shape, block, .. } => (shape.object.0, 2, *block),
                Change::Spill { object, .. } => (object.0, 2, SPILL.0),
                Change::Hole { shape, start, .. } if shape.object.0 == 0 => (start.saturating_mul(32), 2, 0),
                Change::Hole { shape, start, .. } => (shape.object.0, 2, *start),
                Change::Redacted { object, start, .. } => (object.0, 2, *start),
            },
        }
    }

    /// Its end, if it is a range that can be divided.
    fn end(&self) -> Option<u64> {
        match self {
            Self::Redact(range) | Self::From(range) => Some(range.end),
            Self::To(Change::Hole { shape, end, .. }) if shape.object.0 != 0 => Some(end.unwrap_or(u64::MAX)),
            Self::To(Change::Redacted { end, .. }) => Some(*end),
            Self::To(Change::Data { block, .. }) => Some(block.saturating_add(1)),
            Self::To(_) => None,
        }
    }

    fn set_start(&mut self, at: u64) {
        match self {
            Self::Redact(range) | Self::From(range) => range.start = at,
            Self::To(Change::Hole { start, .. } | Change::Redacted { start, .. }) => *start = at,
            Self::To(_) => {}
        }
    }

    /// The part of it before `at`.
    fn before(&self, at: u64) -> Self {
        match self {
            Self::Redact(range) => Self::Redact(Range { end: at, ..*range }),
            Self::From(range) => Self::From(Range { end: at, ..*range }),
            Self::To(Change::Hole { shape, start, .. }) => {
                Self::To(Change::Hole { shape: shape.clone(), start: *start, end: Some(at) })
            }
            Self::To(Change::Redacted { object, block_bytes, start, .. }) => {
                Self::To(Change::Redacted { object: *object, block_bytes: *block_bytes, start: *start, end: at })
            }
            Self::To(_) => panic!("only ranges are cut"),
        }
    }
}

/// The sources by rank.
const REDACT: usize = 0;
const TO: usize = 1;
const FROM: usize = 2;

/// The walk, merged with the lists, if any.
pub(super) struct Merge {
    walk: Walk,
    redact: Option<List>,
    from: Option<List>,
    fronts: [Option<Front>; 3],
    is_started: bool,
    /// Old blocks to look up.
    wanted: Option<(Object, Range)>,
}

/// The longest run of a list that a full stream reports although it is a hole, as OpenZFS does: the walk of a full stream includes all other
/// blocks, one by one. OpenZFS's receivers hold a buffer for each redacted block, and ours a pointer, so a longer run is not reported; it is a
/// hole at the receiver, as it is here.
const GAP_BLOCKS_MAX: u64 = 1 << 16;

impl Merge {
    pub(super) fn new(walk: Walk, redact: Option<List>, from: Option<List>) -> Self {
        Self { walk, redact, from, fronts: [None, None, None], is_started: false, wanted: None }
    }

    pub(super) fn walk(&self) -> &Walk {
        &self.walk
    }

    pub(super) async fn next(&mut self) -> Result<Option<Change>, SenderError> {
        if self.redact.is_none() && self.from.is_none() {
            return self.walk.next().await;
        }
        if !std::mem::replace(&mut self.is_started, true) {
            for source in [REDACT, TO, FROM] {
                self.pull(source).await?;
            }
        }
        loop {
            if let Some(change) = self.wanted_change().await? {
                return Ok(Some(change));
            }
            match self.merged().await? {
                None => return Ok(None),
                Some((_, true)) => {}
                Some((Front::To(change), false)) => return Ok(Some(change)),
                Some((Front::Redact(range), false)) => {
                    let Range { object, start, end, block_bytes } = range;
                    if self.walk.is_whole() && end - start > GAP_BLOCKS_MAX {
                        continue;
                    }
                    return Ok(Some(Change::Redacted { object, block_bytes, start, end }));
                }
                Some((Front::From(range), false)) => match self.walk.objset().object(range.object).await {
                    // The change for its number already tells that an object was removed.
                    Err(error) if error.is_absent() => {}
                    Err(error) => return Err(error.into()),
                    Ok(object) => {
                        let more = u64::from(!mutant::is(Mutant::SendRedactedShort));
                        let end = range.end.min(object.last_block().0.saturating_add(more));
                        self.wanted = Some((object, Range { end, ..range }));
                    }
                },
            }
        }
    }

    async fn pull(&mut self, source: usize) -> Result<(), SenderError> {
        self.fronts[source] = match source {
            REDACT => match &mut self.redact {
                Some(list) => list.next().await?.map(Front::Redact),
                None => None,
            },
            TO => self.walk.next().await?.map(Front::To),
            _ => match &mut self.from {
                Some(list) => list.next().await?.map(Front::From),
                None => None,
            },
        };
        Ok(())
    }

    /// The next piece of all sources, and true if both lists contain it.
    async fn merged(&mut self) -> Result<Option<(Front, bool)>, SenderError> {
        let starts = [0, 1, 2].map(|source| self.fronts[source].as_ref().map(Front::start));
        let Some(first) = starts.iter().flatten().min().copied() else { return Ok(None) };
        let is_in = starts.map(|start| start == Some(first));
        let source = is_in.iter().position(|is_in| *is_in).expect("the least start is one of them");
        let front = self.fronts[source].take().expect("it has a start");
        let is_in_both = is_in[REDACT] && is_in[FROM];
        let Some(mut end) = front.end() else {
            self.pull(source).await?;
            return Ok(Some((front, is_in_both)));
        };
        for (other, start) in starts.iter().enumerate().filter(|(other, _)| *other != source) {
            let Some((object, 2, at)) = *start else { continue };
            if object == first.0 {
                let other_end = self.fronts[other].as_ref().and_then(Front::end);
                end = if is_in[other] { end.min(other_end.unwrap_or(end)) } else { end.min(at) };
            }
        }
        if end <= first.2 {
            return Err(corrupt(self.walk.dataset(), ObjectId(first.0), "a block beyond all offsets"));
        }
        for other in [REDACT, TO, FROM] {
            if other == source || !is_in[other] {
                continue;
            }
            let shorter = self.fronts[other].as_mut().expect("it has a start");
            if shorter.end().is_some_and(|at| at <= end) {
                self.pull(other).await?;
            } else {
                shorter.set_start(end);
            }
        }
        if front.end() == Some(end) {
            self.pull(source).await?;
            return Ok(Some((front, is_in_both)));
        }
        let piece = front.before(end);
        let mut rest = front;
        rest.set_start(end);
        self.fronts[source] = Some(rest);
        Ok(Some((piece, is_in_both)))
    }

    /// The change for the next of the old blocks to look up.
    async fn wanted_change(&mut self) -> Result<Option<Change>, SenderError> {
        let Some((object, range)) = &mut self.wanted else { return Ok(None) };
        if range.start >= range.end {
            self.wanted = None;
            return Ok(None);
        }
        let shape = Arc::new(Shape::new(object.id(), &object.phys()));
        let start = range.start;
        let bp = object.pointer(0, BlockId(start)).await?;
        if bp.is_redacted() {
            range.start += 1;
            let (object, block_bytes) = (shape.object, shape.block_bytes);
            return Ok(Some(Change::Redacted { object, block_bytes, start, end: start + 1 }));
        }
        if !bp.is_hole() {
            if bp.lsize_bytes() != u64::from(shape.block_bytes) && !bp.is_embedded() {
                return Err(corrupt(self.walk.dataset(), shape.object, "blocks of several sizes"));
            }
            range.start += 1;
            return Ok(Some(Change::Data { shape, block: start, bp }));
        }
        let next = object.next_data_block(BlockId(start)).await?;
        range.start = next.map_or(range.end, |block| block.0.clamp(start + 1, range.end));
        Ok(Some(Change::Hole { shape, start, end: Some(range.start) }))
    }
}
