//! Evacuation: the blocks of a top-level vdev are copied to the others, and the vdev goes.
//!
//! # Theory
//!
//! **Need.** A disk, or a mirror, is wanted elsewhere, or was added by mistake. Its blocks have to be on the others then; and block pointers, of which some
//! are in snapshots, cannot be changed.
//!
//! **On disk**, as OpenZFS has it, so each of the two continues the other's removal:
//! ```text
//! directory  com.delphix:removing        state, vdev, when it began and ended, bytes to copy, bytes copied or freed since
//! vdev       removing, non_allocating, com.delphix:indirect_object, com.delphix:indirect_births      in configuration and labels
//! mapping    one entry for each piece that was copied, in the order of offsets; its header says how far it goes
//! counts     of each entry, bytes that nobody needed when it was copied (feature obsolete_counts)
//! births     for each txg with copies, how far they went in it
//! table      com.delphix:obsolete_counts_are_precise, com.delphix:indirect_obsolete_sm                in the vdev's ZAP
//! ```
//! In the end the vdev is *indirect*: no device, and a mapping ([`crate::sync::removed`]).
//!
//! **Life of a piece.** The slice of a txg *plans*: it takes the next ranges in use, up to `zfs_remove_max_copy_bytes`, and has a task *read* them from the vdev's devices,
//! beside the sync. The slice of a later txg *places* what was read: it looks once more which of it is in use, takes space on other vdevs, and enters
//! the entries into the mapping, all as changes of its txg. The copies are *written* beside that sync, and are there before the txg's flush. From the next txg on
//! a free of the range frees the copy too.
//!
//! **Frees** (`sync::removed`) of what is not mapped yet: the range is not in use any more when it is placed. Of what is mapped: the copy is freed. A range
//! is mapped for all frees of the txg whose slice has placed it, since slices come first in a sync. So nothing is in between.
//!
//! **Legs that differ.** Who has only ranges does not know which leg of a mirror is right. So where legs have different bytes in a range in use, nothing is
//! placed: a scrub of all blocks begins, which knows the blocks and writes bad copies again, and the range is read once more after it. What differs then
//! belongs to no block that can be made good (a block of a log that is allocated and was not written, one with no good copy), and is copied side by side. So a
//! removal has one scrub at most while the pool is open, and none if its legs are the same. A scrub that gives way to a resilver begins anew; one that is
//! paused has the removal wait, and one that a person gives up has it go on. Nothing of this is on disk: after a crash legs are compared again.
//!
//! **Ranges.** A piece may span gaps of `vdev_removal_max_span` that are not in use: fewer entries, longer reads. The gaps are freed in the copy, at once, and counted
//! as obsolete. Where no space is left in one piece, the piece is cut.
//!
//! **The end.** When nothing is left to be copied and all copies are on disk, the syncer makes the vdev indirect, in the beginning of a txg
//! (`admin::evacuate`). What a view of an older txg may read there, and was freed before it was copied, is in no mapping: the end waits for such views.
//!
//! **Invariants.**
//! 1. Nothing is allocated on the vdev since before the first range was planned; so what is read does not change, but for repairs.
//! 2. The mapping covers what is in use below its end, whenever a txg's slices are over (asserted where a free finds no entry).
//! 3. Bytes copied and bytes freed before they were copied come to the bytes that were in use at the beginning, at the end (asserted there).
//! 4. The objects by which a mapping is found are on other vdevs: the directory is written anew when the evacuation begins.
//!
//! **Crash.** Space of copies, entries, births and counts are of one txg. After a crash the next slice plans from the mapping's end on. What was read
//! is read again.
//!
//! **Rejected.** *Copying in the slice*: the txg would wait for the reads. *Reading through checksums*: who has only ranges does not know the
//! blocks. *Copying legs that differ side by side at once* (OpenZFS): a vdev that is no mirror takes one of them, and the rot of one leg is of another then.
//! *An open txg held while data is
//! copied, as OpenZFS does*: clients would wait for that txg.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_format::blkptr::Dva;
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::indirect::{IndirectBirths, IndirectMapping, IndirectMappingEntry, IndirectMappingPhys, Removing};
use cenote_metaslab::{AllocError, ClassKind, Extent, Request, SizeRange};
use cenote_taskq::buf::Block;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{BoxFuture, Class, Join, boxed};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::error::VdevError;
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::{VdevTree, WriteContext};
use cenote_zio::ORDER;

use super::{Job, Progress, SLICE, Slice};
use crate::SpaError;
use crate::indirect;
use crate::sync::removed::Evacuated;
use crate::sync::rooms::InTxg;
use crate::tunables::RemovalTunables;

/// Pieces of a batch at most.
const PIECES_MAX: usize = 1024;
/// Metaslabs that are loaded for one piece at most: more is a defect.
const TRIES_MAX: usize = 1 << 16;
/// Bytes of one read or write.
const IO_BYTES: u64 = 1 << 20;

/// A part of a piece, with the different contents that the vdev's leaves have.
struct Part {
    range: Range<u64>,
    contents: Vec<Block>,
}

/// A piece as it was read.
struct Piece {
    range: Range<u64>,
    parts: Vec<Part>,
}

type Read = Result<Vec<Piece>, VdevError>;

/// The knowledge of legs that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Legs {
    /// They were the same so far.
    #[default]
    Same,
    /// They differ at this offset of the vdev: a scrub is to begin.
    Differ(u64),
    /// It is under way.
    Scrubbed(u64),
    /// It has ended, or a person has given it up: what differs is copied.
    Settled,
}

/// An evacuation that is under way.
pub(crate) struct Running {
    pub(crate) vdev: VdevId,
    pub(crate) mapping_object: ObjectId,
    pub(crate) births_object: ObjectId,
    pub(crate) phys: IndirectMappingPhys,
    /// All below is mapped, was read, or is not in use.
    planned_bytes: u64,
    reading: Option<Join<Read>>,
    /// Nothing is left to be copied.
    is_copied: bool,
    pub(crate) legs: Legs,
    /// The reason for which it has to be given up.
    pub(crate) failed: Option<String>,
}

/// The job, as it is while the pool is open.
#[derive(Default)]
pub(crate) struct Evacuation {
    pub(crate) running: Option<Running>,
    pub(crate) tunables: RemovalTunables,
    progress: Progress,
}

impl Evacuation {
    /// Whether it is this vdev that is evacuated now.
    pub(crate) fn is_of(&self, vdev: VdevId) -> bool {
        self.running.as_ref().is_some_and(|running| running.vdev == vdev)
    }
}

impl Running {
    /// One that begins, with an empty mapping.
    pub(crate) fn new(
        vdev: VdevId,
        mapping_object: ObjectId,
        births_object: ObjectId,
        phys: IndirectMappingPhys,
    ) -> Self {
        let planned_bytes = phys.max_offset_bytes;
        Self {
            vdev,
            mapping_object,
            births_object,
            phys,
            planned_bytes,
            reading: None,
            is_copied: false,
            legs: Legs::default(),
            failed: None,
        }
    }

    /// One that another process, or OpenZFS, has begun, and its mapping so far.
    pub(crate) async fn open(
        mos: &Objset,
        vdev: VdevId,
        mapping_object: ObjectId,
        births_object: ObjectId,
    ) -> Result<(Self, IndirectMapping), SpaError> {
        let phys = mos.object(mapping_object).await?.bonus(IndirectMappingPhys::parse)?;
        let mapping = indirect::load(mos, mapping_object).await?;
        Ok((Self::new(vdev, mapping_object, births_object, phys), mapping))
    }

    /// How far the vdev is mapped.
    pub(crate) const fn evacuated(&self) -> Evacuated {
        Evacuated { vdev: self.vdev, mapped_bytes: self.phys.max_offset_bytes }
    }

    /// All that was in use has a copy.
    pub(crate) const fn is_copied(&self) -> bool {
        self.is_copied
    }

    /// The next ranges in use, as pieces that are read.
    async fn plan(&mut self, rooms: &InTxg<'_>, tunables: &RemovalTunables) -> Result<Vec<Range<u64>>, SpaError> {
        let mut pieces: Vec<Range<u64>> = Vec::new();
        let mut left_bytes = tunables.zfs_remove_max_copy_bytes;
        while pieces.len() < PIECES_MAX && left_bytes > 0 {
            let Some(piece) = self.next_piece(rooms, tunables, left_bytes).await? else {
                self.is_copied = pieces.is_empty();
                break;
            };
            debug_assert!(self.planned_bytes <= piece.start && piece.start < piece.end, "pieces are in order");
            left_bytes -= (piece.end - piece.start).min(left_bytes);
            self.planned_bytes = piece.end;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// The next piece: ranges in use of one metaslab, with no more than short gaps between them.
    async fn next_piece(
        &self,
        rooms: &InTxg<'_>,
        tunables: &RemovalTunables,
        limit_bytes: u64,
    ) -> Result<Option<Range<u64>>, SpaError> {
        let top = rooms.top(self.vdev)?;
        let (metaslab_shift, sector) = (top.metaslab_shift, 1_u64 << top.ashift);
        let Some(first) = rooms.next_in_use(self.vdev, self.planned_bytes).await? else { return Ok(None) };
        let max_bytes = tunables.zfs_remove_max_segment.min(limit_bytes).max(sector) & !(sector - 1);
        let mut piece = first.start..first.end.min(first.start + max_bytes);
        if piece.end < first.end {
            return Ok(Some(piece));
        }
        while let Some(next) = rooms.next_in_use(self.vdev, piece.end).await? {
            let is_near =
                next.start - piece.end <= tunables.vdev_removal_max_span && next.end - piece.start <= max_bytes;
            if !is_near || next.start >> metaslab_shift != piece.start >> metaslab_shift {
                break;
            }
            piece.end = next.end;
        }
        Ok(Some(piece))
    }

    /// Has the next ranges read, beside what the sync does.
    async fn begin_reading(&mut self, rooms: &InTxg<'_>, tunables: &RemovalTunables) -> Result<(), SpaError> {
        let pieces = self.plan(rooms, tunables).await?;
        if pieces.is_empty() {
            return Ok(());
        }
        let (tree, vdev) = (rooms.devices.tree.clone(), self.vdev);
        self.reading = Some(rooms.handle.spawn(Class::Background, async move { read(&tree, vdev, pieces).await }));
        Ok(())
    }

    /// Places what was read, as changes of the txg. Returns the bytes that were copied.
    async fn place(&mut self, rooms: &mut InTxg<'_>, pieces: Vec<Piece>) -> Result<u64, SpaError> {
        let mut entries = Entries::default();
        for piece in pieces {
            let mut at = piece.range.start;
            while let Some(part) = self.next_to_copy(rooms, at..piece.range.end).await? {
                let Some((copied, target)) = self.take_space(rooms, part).await? else {
                    self.failed = Some("there is not enough space left on the other vdevs".to_owned());
                    return self.enter(rooms, entries).await;
                };
                at = copied.last().map_or(piece.range.end, |last| last.end);
                self.copy(rooms, &piece, &copied, target, &mut entries)?;
            }
        }
        self.enter(rooms, entries).await
    }

    /// The ranges in use within a piece that is left.
    async fn next_to_copy(&self, rooms: &InTxg<'_>, within: Range<u64>) -> Result<Option<Vec<Range<u64>>>, SpaError> {
        let (mut ranges, mut at) = (Vec::new(), within.start);
        while at < within.end {
            let Some(next) = rooms.next_in_use(self.vdev, at).await?.filter(|next| next.start < within.end) else {
                break;
            };
            at = next.end.min(within.end);
            ranges.push(next.start..at);
        }
        Ok((!ranges.is_empty()).then_some(ranges))
    }

    /// Takes space for the first of some ranges, with the gaps between them: for all, or for as many as there is room for in one piece. The ranges, and
    /// the place; none where there is no space for a sector.
    async fn take_space(
        &self,
        rooms: &InTxg<'_>,
        mut ranges: Vec<Range<u64>>,
    ) -> Result<Option<(Vec<Range<u64>>, Extent)>, SpaError> {
        let top = rooms.top(self.vdev)?;
        let (sector, own) = (1_u64 << top.ashift, top.class);
        loop {
            let start = ranges[0].start;
            let size = ranges[ranges.len() - 1].end - start;
            debug_assert!(size.is_multiple_of(sector), "what is in use is whole sectors");
            if let Some(extent) = rooms.place_copy(own, size).await? {
                assert_eq!(extent.asize_bytes, size, "a copy takes what the original took");
                assert_ne!(extent.vdev, self.vdev, "nothing is placed on a vdev that is evacuated");
                return Ok(Some((ranges, extent)));
            }
            if size <= sector {
                return Ok(None);
            }
            // Half of it: up to the end of a range, or within the first.
            let half = (size / 2).next_multiple_of(sector).min(size - sector);
            let fitting = ranges.iter().take_while(|range| range.end - start <= half).count();
            ranges.truncate(fitting.max(1));
            ranges[0].end = ranges[0].end.min(start + half.max(sector)).max(start + sector);
            if fitting > 0 {
                continue;
            }
            debug_assert!(ranges.len() == 1, "a range that is cut is the only one");
        }
    }

    /// Begins to write a copy, and notes its entry.
    fn copy(
        &self,
        rooms: &mut InTxg<'_>,
        piece: &Piece,
        copied: &[Range<u64>],
        target: Extent,
        entries: &mut Entries,
    ) -> Result<(), SpaError> {
        let txg = rooms.txg;
        let start = copied[0].start;
        let in_target = |range: Range<u64>| Extent {
            vdev: target.vdev,
            offset_bytes: target.offset_bytes + (range.start - start),
            asize_bytes: range.end - range.start,
        };
        let gaps: Vec<Extent> = copied.windows(2).map(|pair| in_target(pair[0].end..pair[1].start)).collect();
        let gap_bytes: u64 = gaps.iter().map(|gap| gap.asize_bytes).sum();
        rooms.blocks.space.with(|allocator| gaps.iter().try_for_each(|gap| allocator.free(txg, gap)))?;
        let dva =
            Dva { vdev: target.vdev, offset_bytes: target.offset_bytes, asize_bytes: target.asize_bytes, gang: false };
        entries.mapped.push((IndirectMappingEntry { source_offset_bytes: start, target: dva }, gap_bytes));
        entries.copied_bytes += target.asize_bytes - gap_bytes;
        let mut writes = Vec::new();
        for part in &piece.parts {
            let range = part.range.start.max(start)..part.range.end.min(start + target.asize_bytes);
            if range.is_empty() {
                continue;
            }
            let bytes = (range.start - part.range.start) as usize..(range.end - part.range.start) as usize;
            let contents: Vec<Block> = part.contents.iter().map(|content| content.slice(bytes.clone())).collect();
            writes.push((in_target(range), contents));
        }
        debug_assert_eq!(
            writes.iter().map(|(extent, _)| extent.asize_bytes).sum::<u64>(),
            target.asize_bytes,
            "all of a copy is written"
        );
        if mutant::is(Mutant::EvacuationUncopied) && txg.0.is_multiple_of(4) {
            writes.clear();
        }
        let tree = Arc::clone(&rooms.devices.tree);
        let work = async move { write(&tree, txg, writes).await };
        rooms.blocks.copies.push(rooms.handle.spawn(Class::Sync, work));
        Ok(())
    }

    /// Enters what was copied into mapping, counts and births.
    async fn enter(&mut self, rooms: &mut InTxg<'_>, entries: Entries) -> Result<u64, SpaError> {
        let Entries { mapped, copied_bytes } = entries;
        let Some((last, _)) = mapped.last() else { return Ok(0) };
        let (txg, mos) = (rooms.txg, rooms.mos.objset.clone());
        let end = last.source_end_bytes();
        let mut mapping = Arc::unwrap_or_clone(rooms.blocks.space.removed.mappings.take(self.vdev));
        let count = self.phys.entry_count;
        let (mut words, mut counts) = (Vec::new(), Vec::new());
        let is_lossy = mutant::is(Mutant::MappingEntryLost) && mapped.len() > 1;
        for (index, (entry, gap_bytes)) in mapped.iter().enumerate() {
            mapping.push(*entry);
            if is_lossy && index == 0 {
                continue;
            }
            words.extend(entry.emit(ORDER));
            counts.extend(ORDER.bytes32(u32::try_from(*gap_bytes).unwrap_or(u32::MAX)));
            self.phys.bytes_mapped += entry.target.asize_bytes;
            self.phys.entry_count += 1;
        }
        self.phys.max_offset_bytes = end;
        rooms.blocks.space.removed.mappings.put(self.vdev, Arc::new(mapping));
        let object = mos.object(self.mapping_object).await?;
        object.write(txg, count * IndirectMappingEntry::SIZE as u64, &words).await?;
        object.set_bonus(txg, &self.phys.emit(ORDER))?;
        if let Some(counted) = self.phys.counts_object {
            mos.object(counted).await?.write(txg, count * 4, &counts).await?;
        }
        let births = mos.object(self.births_object).await?;
        let steps = births.bonus_word().unwrap_or(0);
        let step = IndirectBirths::entry_bytes(end, txg, ORDER);
        births.write(txg, steps * IndirectBirths::ENTRY_SIZE as u64, &step).await?;
        births.set_bonus(txg, &ORDER.bytes64(steps + 1))?;
        rooms.blocks.space.removed.set_evacuated(Some(self.evacuated()));
        if let Some(removing) = &mut rooms.blocks.removing {
            removing.copied_bytes += copied_bytes;
        }
        rooms.save_removing().await?;
        Ok(copied_bytes)
    }

    /// The first place in use where legs differ.
    async fn difference(&self, rooms: &InTxg<'_>, pieces: &[Piece]) -> Result<Option<u64>, SpaError> {
        for part in pieces.iter().flat_map(|piece| &piece.parts) {
            let Some((first, others)) = part.contents.split_first().filter(|(_, others)| !others.is_empty()) else {
                continue;
            };
            for range in self.next_to_copy(rooms, part.range.clone()).await?.unwrap_or_default() {
                let bytes = (range.start - part.range.start) as usize..(range.end - part.range.start) as usize;
                if others.iter().any(|other| other[bytes.clone()] != first[bytes.clone()]) {
                    return Ok(Some(range.start));
                }
            }
        }
        Ok(None)
    }

    /// The reason for which nothing is copied now.
    fn waits_for(&self) -> Option<String> {
        let (Legs::Differ(at) | Legs::Scrubbed(at)) = self.legs else { return None };
        Some(format!("waits for a scrub, since devices of vdev {} differ at {at:#x}", self.vdev.0))
    }

    async fn go_on(&mut self, rooms: &mut InTxg<'_>, tunables: &RemovalTunables) -> Result<u64, SpaError> {
        let mut copied_bytes = 0;
        if self.waits_for().is_some() {
            return Ok(0);
        }
        if let Some(mut reading) = self.reading.take() {
            let Some(read) = rooms.handle.timeout(SLICE, &mut reading).await else {
                // The devices are slow: the next txg looks again.
                self.reading = Some(reading);
                return Ok(0);
            };
            match read? {
                Ok(pieces) if self.legs == Legs::Same && !mutant::is(Mutant::EvacuationUncompared) => {
                    match (self.difference(rooms, &pieces).await?, pieces.first()) {
                        (Some(at), Some(first)) => {
                            self.planned_bytes = first.range.start;
                            self.legs = Legs::Differ(at);
                            return Ok(0);
                        }
                        _ => copied_bytes = self.place(rooms, pieces).await?,
                    }
                }
                Ok(pieces) => copied_bytes = self.place(rooms, pieces).await?,
                Err(error) => self.failed = Some(error.to_string()),
            }
        }
        if self.failed.is_none() && !self.is_copied {
            self.begin_reading(rooms, tunables).await?;
        }
        Ok(copied_bytes)
    }
}

/// Entries of a txg, each with the bytes of its gaps.
#[derive(Default)]
struct Entries {
    mapped: Vec<(IndirectMappingEntry, u64)>,
    copied_bytes: u64,
}

/// Reads ranges, one after the other.
async fn read(tree: &VdevTree, vdev: VdevId, ranges: Vec<Range<u64>>) -> Read {
    let mut pieces = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + IO_BYTES);
            parts.push(Part { range: at..end, contents: tree.read_each(vdev, at, end - at).await? });
            at = end;
        }
        pieces.push(Piece { range, parts });
    }
    Ok(pieces)
}

/// Writes copies. Returns the leaves that have missed one.
async fn write(tree: &VdevTree, txg: Txg, writes: Vec<(Extent, Vec<Block>)>) -> Result<Vec<Guid>, SpaError> {
    let mut missed = Vec::new();
    let context = WriteContext { class: QueueClass::Scrub, ..WriteContext::new(txg) };
    for (extent, contents) in writes {
        let first = contents.first().expect("what was read has contents");
        let written = tree.write(extent.vdev, extent.offset_bytes, first, context).await.map_err(SpaError::devices)?;
        missed.extend(written.missed);
        if contents.len() > 1 {
            tree.write_each(extent.vdev, extent.offset_bytes, &contents, context).await;
        }
    }
    Ok(missed)
}

impl InTxg<'_> {
    /// The first range in use of a vdev from an offset on.
    pub(crate) async fn next_in_use(&self, vdev: VdevId, from: u64) -> Result<Option<Range<u64>>, SpaError> {
        loop {
            match self.blocks.space.with(|allocator| allocator.next_in_use(vdev, from)) {
                Err(AllocError::NeedsLoad(id)) => {
                    let loaded = self.blocks.space.load(id, self.txg).await;
                    loaded.map_err(|error| SpaError::contradiction(format!("a vdev that is removed: {error}")))?;
                }
                found => return Ok(found?),
            }
        }
    }

    /// Takes space for a copy, of the vdev's own class or of that of all data. None where there is none in one piece.
    async fn place_copy(&self, own: AllocationClass, size_bytes: u64) -> Result<Option<Extent>, SpaError> {
        let own = match own {
            AllocationClass::Special => Some(ClassKind::Special),
            AllocationClass::Dedup => Some(ClassKind::Dedup),
            AllocationClass::Normal | AllocationClass::Log => None,
        };
        for class in own.into_iter().chain([ClassKind::Normal]) {
            let request = Request {
                class,
                psize: SizeRange::exactly(size_bytes),
                copies: 1,
                txg: self.txg,
                allocator: 0,
                near: Vec::new(),
                // Looks everywhere, also where it is nearly full.
                is_gang: true,
                is_log: false,
                now_ms: self.blocks.space.now_ms(),
            };
            for _ in 0..TRIES_MAX {
                match self.blocks.space.with(|allocator| allocator.allocate(&request)) {
                    Ok(extents) => return Ok(extents.first().copied()),
                    Err(AllocError::NeedsLoad(id)) => {
                        if let Err(error) = self.blocks.space.load(id, self.txg).await
                            && self.blocks.space.give_up(id, &error).is_err()
                        {
                            break;
                        }
                    }
                    // It is asked for again.
                    Err(AllocError::ForcedGang) => {}
                    Err(_) => break,
                }
            }
        }
        Ok(None)
    }
}

impl Evacuation {
    /// As it is when a pool is opened with a vdev that is being evacuated.
    pub(crate) fn open(running: Running, removing: &Removing) -> Self {
        let mut this = Self { running: Some(running), ..Self::default() };
        this.note(removing);
        this
    }

    /// Whether legs differ, and a scrub is to begin.
    pub(crate) fn wants_scrub(&self) -> bool {
        self.running.as_ref().is_some_and(|running| matches!(running.legs, Legs::Differ(_)))
    }

    /// The scrub that was wanted has begun, or it has ended: `is_settled` where legs are as good as they get, or a person says so.
    pub(crate) fn scrub_is(&mut self, is_under_way: bool, is_settled: bool) {
        let Some(running) = &mut self.running else { return };
        running.legs = match running.legs {
            Legs::Differ(at) if is_under_way => Legs::Scrubbed(at),
            Legs::Differ(_) | Legs::Scrubbed(_) if is_settled => Legs::Settled,
            Legs::Scrubbed(at) if !is_under_way => Legs::Differ(at),
            legs => legs,
        };
        self.progress.stalled = running.waits_for();
    }

    fn note(&mut self, removing: &Removing) {
        self.progress.left_bytes = removing.to_copy_bytes.saturating_sub(removing.copied_bytes);
    }

    /// One begins.
    pub(crate) fn begin(&mut self, running: Running, removing: &Removing) {
        assert!(self.running.is_none(), "one vdev is evacuated at a time");
        self.progress = Progress::default();
        self.running = Some(running);
        self.note(removing);
    }
}

impl Job for Evacuation {
    fn name(&self) -> &'static str {
        "remove"
    }

    fn has_work(&self) -> bool {
        self.running.is_some()
    }

    fn is_stuck(&self) -> bool {
        self.tunables.zfs_removal_suspend_progress || self.progress.stalled.is_some()
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn cancel<'a>(&'a mut self, _rooms: &'a mut InTxg<'_>) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async { Err(SpaError::unsupported("a removal is cancelled by 'zpool remove -s'")) })
    }

    #[boxed]
    async fn slice(&mut self, rooms: &mut InTxg<'_>, _slice: &mut Slice) -> Result<(), SpaError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let vdev = running.vdev;
        self.progress.done_bytes += running.go_on(rooms, &self.tunables).await?;
        self.progress.stalled = running.waits_for();
        if let Some(removing) = rooms.blocks.removing {
            let left_bytes = removing.to_copy_bytes.saturating_sub(removing.copied_bytes);
            rooms.blocks.space.with(|allocator| allocator.set_left_to_copy(vdev, Some(left_bytes)));
            self.note(&removing);
        }
        Ok(())
    }
}
