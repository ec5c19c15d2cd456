//! Condensing: the mapping of a removed vdev is written anew without the entries that nobody needs any more.
//!
//! # Theory
//!
//! **Need.** Blocks of removed vdevs are freed as time goes by. Their entries stay in the mapping, which is in memory while the pool is open, and the record of
//! what is obsolete grows.
//!
//! **On disk**, as OpenZFS has it, so each of the two goes on with the other's work:
//! ```text
//! directory  com.delphix:condensing_indirect    vdev, the obsolete space map up to now, the new mapping
//! vdev's ZAP com.delphix:indirect_obsolete_sm   gone at the beginning: what becomes obsolete from then on is in another one
//! mapping    the new one, with counts of its own; entries as far as its header says
//! ```
//! **Life.**
//! ```text
//! begin    txg B, beginning   where the obsolete part is large enough (`zfs_condense_indirect_obsolete_pct`, ...): the entry of the directory, an empty mapping
//! count    some txgs          the counts of the old mapping, and what the old map says: how much of each entry is obsolete
//! write    some txgs          entries that are not wholly obsolete go to the new mapping, with their counts
//! end      txg E, beginning   the configuration names the new mapping; the old one, its counts and the old map are freed
//! ```
//! **Invariants.** 1. An entry is left out only if all of it was obsolete before B: no block on disk is there, and none will be. 2. Entries and header of the new
//! mapping are written in one txg; it goes on after the last that is there. 3. In memory the mapping stays the old one while somebody reads the pool as of
//! an older txg: a block that was freed since may be asked for by its old place.
//!
//! **Crash.** What is written of the new mapping stands; counts are made anew. Until E the old mapping is the vdev's.
//!
//! **Rejected.** *Condensing in memory alone at each opening*: the record of what is obsolete would be read whole each time.

use std::sync::Arc;

use cenote_format::ids::{ObjectId, VdevId};
use cenote_format::indirect::{
    CondensingIndirect, IndirectMapping, IndirectMappingEntry, IndirectMappingPhys, parse_obsolete_counts,
};
use cenote_format::spacemap::{SpaceMapPhys, SpaceMapRecord, SpaceMapRecords, SpaceMapType};
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::ORDER;

use super::{Job, Progress, Slice};
use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::tunables::CondenseTunables;

/// Bytes of the obsolete map that a slice reads: a multiple of the blocks of all maps.
const MAP_BYTES: u64 = 8 << 20;
/// Entries that a slice writes.
const ENTRIES: usize = 16 << 10;

/// A mapping that is being condensed.
pub(crate) struct Running {
    pub(crate) state: CondensingIndirect,
    pub(crate) vdev: VdevId,
    /// The old mapping.
    mapping: Arc<IndirectMapping>,
    old: IndirectMappingPhys,
    /// The new one, as far as it is written.
    pub(crate) phys: IndirectMappingPhys,
    /// Obsolete bytes of each entry of the old one, while they are counted.
    counts: Vec<u32>,
    /// How far the obsolete map was counted.
    counted_bytes: u64,
    is_counted: bool,
    /// The next entry to be written.
    next: usize,
}

impl Running {
    /// One that has just begun, or that another process or OpenZFS has.
    pub(crate) async fn open(
        rooms: &InTxg<'_>,
        state: CondensingIndirect,
        mapping: Arc<IndirectMapping>,
        old: IndirectMappingPhys,
    ) -> Result<Self, SpaError> {
        let vdev = u32::try_from(state.vdev).map(VdevId);
        let vdev = vdev.map_err(|_| SpaError::contradiction("a vdev that cannot be is condensed"))?;
        if mapping.entries().len() as u64 != old.entry_count {
            return Err(SpaError::contradiction(format!("the mapping of vdev {vdev} is not what its header says")));
        }
        let phys = rooms.mos.objset.object(state.next_mapping_object).await?.bonus(IndirectMappingPhys::parse)?;
        let next = mapping.entries().partition_point(|entry| entry.source_offset_bytes < phys.max_offset_bytes);
        if phys.entry_count > next as u64 {
            return Err(SpaError::contradiction(format!("the new mapping of vdev {vdev} has more than the old one")));
        }
        Ok(Self { state, vdev, mapping, old, phys, counts: Vec::new(), counted_bytes: 0, is_counted: false, next })
    }

    /// All entries are in the new mapping, or need not be.
    pub(crate) fn is_done(&self) -> bool {
        self.next >= self.mapping.entries().len()
    }

    /// Bytes of the old mapping that are still to be looked at.
    fn left_bytes(&self) -> u64 {
        ((self.mapping.entries().len() - self.next) * IndirectMappingEntry::SIZE) as u64
    }

    /// The mapping without what the counts say is obsolete.
    pub(crate) async fn condensed(&self, rooms: &InTxg<'_>) -> Result<IndirectMapping, SpaError> {
        Ok(crate::indirect::load(&rooms.mos.objset, self.state.next_mapping_object).await?)
    }

    /// Adds up what is obsolete of each entry: first what the mapping's own counts say, then a part of the map.
    async fn count(&mut self, rooms: &InTxg<'_>) -> Result<(), SpaError> {
        let mos = &rooms.mos.objset;
        if self.counts.is_empty() {
            let entries = self.mapping.entries().len();
            self.counts = match self.old.counts_object {
                Some(object) => {
                    let bytes = mos.object(object).await?.read(0, entries * 4).await?;
                    parse_obsolete_counts(&bytes, entries, ORDER)?
                }
                None => vec![0; entries],
            };
        }
        let map = mos.object(self.state.prev_obsolete_sm_object).await?;
        let length_bytes = map.bonus(SpaceMapPhys::parse)?.length_bytes;
        let end = length_bytes.min(self.counted_bytes + MAP_BYTES.max(map.block_bytes()));
        let bytes = map.read(self.counted_bytes, (end - self.counted_bytes) as usize).await?;
        for record in SpaceMapRecords::new(&bytes, ORDER) {
            let SpaceMapRecord::Entry(entry) = record? else { continue };
            if entry.kind == SpaceMapType::Alloc {
                let end = entry.offset_units.saturating_add(entry.run_units);
                self.add_obsolete(entry.offset_units, end)?;
            }
        }
        self.counted_bytes = end;
        self.is_counted = end == length_bytes;
        Ok(())
    }

    /// A range is obsolete.
    fn add_obsolete(&mut self, start: u64, end: u64) -> Result<(), SpaError> {
        let entries = self.mapping.entries();
        let mut at = entries.partition_point(|entry| entry.source_end_bytes() <= start);
        while let Some(entry) = entries.get(at).filter(|entry| entry.source_offset_bytes < end) {
            let shared = entry.source_end_bytes().min(end) - entry.source_offset_bytes.max(start);
            let count = u64::from(self.counts[at]) + shared;
            if count > entry.target.asize_bytes {
                let what = format!("more of vdev {} is obsolete than there is, at {start:#x}", self.vdev);
                return Err(SpaError::contradiction(what));
            }
            self.counts[at] = u32::try_from(count).unwrap_or(u32::MAX);
            at += 1;
        }
        Ok(())
    }

    /// Writes the next entries, as changes of the txg.
    async fn write(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        let (txg, mos) = (rooms.txg, rooms.mos.objset.clone());
        let before = self.phys.entry_count;
        let (mut words, mut counts) = (Vec::new(), Vec::new());
        let all = self.mapping.entries();
        let end = all.len().min(self.next + ENTRIES);
        for (entry, count) in all[self.next..end].iter().zip(&self.counts[self.next..end]) {
            let is_lost = mutant::is(Mutant::CondensedEntryLost) && u64::from(*count) * 2 > entry.target.asize_bytes;
            if u64::from(*count) >= entry.target.asize_bytes || is_lost {
                continue;
            }
            words.extend(entry.emit(ORDER));
            counts.extend(ORDER.bytes32(*count));
            self.phys.bytes_mapped += entry.target.asize_bytes;
            self.phys.entry_count += 1;
            self.phys.max_offset_bytes = entry.source_end_bytes();
        }
        self.next = end;
        if words.is_empty() {
            return Ok(());
        }
        assert!(self.phys.entry_count <= self.old.entry_count, "a condensed mapping has no more than the old one");
        let object = mos.object(self.state.next_mapping_object).await?;
        object.write(txg, before * IndirectMappingEntry::SIZE as u64, &words).await?;
        object.set_bonus(txg, &self.phys.emit(ORDER))?;
        if let Some(counted) = self.phys.counts_object {
            mos.object(counted).await?.write(txg, before * 4, &counts).await?;
        }
        Ok(())
    }

    /// The objects that go when the new mapping is the vdev's: the old map, and the old counts.
    pub(crate) const fn old_objects(&self) -> (ObjectId, Option<ObjectId>) {
        (self.state.prev_obsolete_sm_object, self.old.counts_object)
    }
}

/// The job, as it is while the pool is open.
#[derive(Default)]
pub(crate) struct Condensing {
    pub(crate) running: Option<Running>,
    /// The pool is being opened, and nobody has looked yet whether one is under way: none is begun in the txgs until then.
    pub(crate) is_unopened: bool,
    pub(crate) tunables: CondenseTunables,
    progress: Progress,
}

impl Condensing {
    /// One begins, or goes on.
    pub(crate) fn begin(&mut self, running: Running) {
        assert!(self.running.is_none(), "one mapping is condensed at a time");
        self.progress = Progress { left_bytes: running.left_bytes(), ..Progress::default() };
        self.running = Some(running);
    }

    /// It stands still until the pool is opened again.
    pub(crate) fn stall(&mut self, rooms: &InTxg<'_>, error: &SpaError) {
        self.progress.stall(rooms, format!("the mapping of a removed vdev is not condensed: {error}"));
    }
}

impl Job for Condensing {
    fn name(&self) -> &'static str {
        "condense"
    }

    fn has_work(&self) -> bool {
        self.running.is_some()
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    #[boxed]
    async fn slice(&mut self, rooms: &mut InTxg<'_>, _: &mut Slice) -> Result<(), SpaError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if running.is_done() {
            return Ok(());
        }
        if !running.is_counted {
            // Nothing is changed by it: what cannot be read, or makes no sense, is left as it is.
            if let Err(error) = running.count(rooms).await {
                self.stall(rooms, &error);
            }
            return Ok(());
        }
        let before = running.left_bytes();
        running.write(rooms).await?;
        self.progress.left_bytes = running.left_bytes();
        self.progress.done_bytes += before - self.progress.left_bytes;
        Ok(())
    }
}
