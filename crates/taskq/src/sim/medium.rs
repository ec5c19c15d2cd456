//! The content of a simulated disk, and what a crash keeps of it.
//!
//! Content is a map of pages over an optional base, so a disk of terabytes costs what was written to it, and many disks
//! may share one image. A crash keeps a set of writes that is drawn from a seed: any subset of the unflushed writes in any
//! order, each whole, missing, or torn at a sector. A device's medium may have larger sectors than it shows: then a torn write can
//! take a sector's neighbours with it.
//!
//! Four things happen to a medium ([`Event`]), and nothing else: so a list of them is all that is needed to have it again as of any
//! moment (the module [`history`](super::history)).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::buf::Block;
use crate::rng::Rng;

pub(super) const PAGE_BYTES: u64 = 4096;

/// How a crash treats what was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// All of it is lost.
    LoseAll,
    /// All of it survives; what was in flight does not.
    KeepAll,
    /// All of it survives, and so does what was in flight.
    KeepMore,
    /// Each write survives, is lost or is torn at a sector, by the seed, and survivors land in any order.
    Random,
    /// As `Random`, but each write is torn.
    Torn,
    /// As `Random`, but each sector of the medium that a torn write touches is as before, as written, or bytes that are neither.
    Garbage,
}

impl Crash {
    pub(super) const fn is_random(self) -> bool {
        matches!(self, Self::Random | Self::Torn | Self::Garbage)
    }
}

/// A write of a block.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) offset_bytes: u64,
    pub(super) block: Block,
}

/// Writes that were under way when the power went and reach the medium when it is back: what a disk behind a network does, whose
/// own power stayed on.
#[derive(Clone, Default)]
pub struct Late(pub(super) Vec<Write>);

impl Late {
    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Late({} writes)", self.0.len())
    }
}

/// A disk's content at one moment: pages over a base, both shared with other images.
#[derive(Clone, Default)]
pub struct Image {
    base: Block,
    pages: BTreeMap<u64, Arc<[u8]>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} pages over {} bytes)", self.pages.len(), self.base.len())
    }
}

impl Image {
    /// A base, of which nothing was written over.
    pub(super) const fn over(base: Block) -> Self {
        Self { base, pages: BTreeMap::new() }
    }

    pub(super) const fn base(&self) -> &Block {
        &self.base
    }

    /// The pages that were written, by their numbers.
    pub(super) fn page_refs(&self) -> impl Iterator<Item = (u64, &Arc<[u8]>)> {
        self.pages.iter().map(|(index, page)| (*index, page))
    }

    fn page(&self, index: u64) -> Option<&[u8]> {
        self.pages.get(&index).map(|page| &page[..]).or_else(|| base_page(&self.base, index))
    }

    /// Whether both have the same bytes in a page.
    pub(super) fn has_same_page(&self, other: &Self, index: u64) -> bool {
        if let (Some(one), Some(two)) = (self.pages.get(&index), other.pages.get(&index))
            && Arc::ptr_eq(one, two)
        {
            return true;
        }
        let (one, two) = (self.page(index).unwrap_or(&[]), other.page(index).unwrap_or(&[]));
        let shared = one.len().min(two.len());
        one[..shared] == two[..shared] && one[shared..].iter().chain(&two[shared..]).all(|byte| *byte == 0)
    }

    /// Fills `target` from `offset_bytes`; zeros where nothing was written.
    pub fn read(&self, offset_bytes: u64, target: &mut [u8]) {
        if self.pages.is_empty() && self.base.is_empty() {
            return target.fill(0);
        }
        let mut done = 0;
        while done < target.len() {
            let at = offset_bytes + done as u64;
            let within = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - within).min(target.len() - done);
            let part = &mut target[done..done + count];
            let page = self.page(at / PAGE_BYTES).unwrap_or(&[]);
            let have = page.len().saturating_sub(within).min(count);
            part[..have].copy_from_slice(&page[within.min(page.len())..][..have]);
            part[have..].fill(0);
            done += count;
        }
    }

    /// Writes `source` at `offset_bytes`.
    pub fn write(&mut self, offset_bytes: u64, source: &[u8]) {
        let mut done = 0;
        while done < source.len() {
            let at = offset_bytes + done as u64;
            let within = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - within).min(source.len() - done);
            let (index, part) = (at / PAGE_BYTES, &source[done..done + count]);
            done += count;
            if count == PAGE_BYTES as usize
                && part.iter().all(|byte| *byte == 0)
                && base_page(&self.base, index).is_none()
            {
                // As if nobody had written it: a discard of a large drive takes no memory.
                self.pages.remove(&index);
                continue;
            }
            let mut page = [0; PAGE_BYTES as usize];
            if count < PAGE_BYTES as usize {
                let old = self.page(index).unwrap_or(&[]);
                page[..old.len()].copy_from_slice(old);
            }
            page[within..within + count].copy_from_slice(part);
            self.pages.insert(index, Arc::from(&page[..]));
        }
    }
}

impl Image {
    /// Late writes reach the medium.
    pub fn land(&mut self, late: &Late) {
        late.0.iter().for_each(|write| self.write(write.offset_bytes, &write.block));
    }

    /// The pages that were written, with their offsets in bytes: for writing them to a sparse file.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(index, page)| (index * PAGE_BYTES, &page[..]))
    }
}

/// The base's part of a page; shorter than a page where the base ends.
fn base_page(base: &Block, index: u64) -> Option<&[u8]> {
    let start = usize::try_from(index.checked_mul(PAGE_BYTES)?).ok()?;
    let end = start.saturating_add(PAGE_BYTES as usize).min(base.len());
    base.get(start..end)
}

/// Sizes that decide how a write can be torn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sectors {
    /// Of a sector as the device shows it.
    pub(super) shown_bytes: u32,
    /// Of a sector of the medium: at least as large.
    pub(super) medium_bytes: u32,
    /// Of the whole disk.
    pub(super) disk_bytes: u64,
}

/// An event of a medium.
#[derive(Clone)]
pub(super) enum Event {
    /// A write is under way.
    Begun { sequence: u64, write: Write },
    /// It is done: in the write cache, or stable where there is none. Nothing if a crash came between.
    Done { sequence: u64 },
    /// A flush is done, which covers the writes that were in the cache when it began.
    Flushed { covered: usize },
    /// A write that was done is stable, and nothing else by that.
    Stable { sequence: u64 },
}

/// A medium with its write cache, and what is on its way to it.
#[derive(Clone)]
pub(super) struct Medium {
    current: Image,
    durable: Image,
    /// Writes that are done, in their order, with their numbers.
    unflushed: Vec<(u64, Write)>,
    in_flight: BTreeMap<u64, Write>,
    sectors: Sectors,
    has_cache: bool,
}

impl Medium {
    pub(super) fn new(image: Image, sectors: Sectors, has_cache: bool) -> Self {
        let (unflushed, in_flight) = (Vec::new(), BTreeMap::new());
        Self { current: image.clone(), durable: image, unflushed, in_flight, sectors, has_cache }
    }

    /// The content that a reader sees.
    pub(super) const fn current(&self) -> &Image {
        &self.current
    }

    pub(super) const fn unflushed_count(&self) -> usize {
        self.unflushed.len()
    }

    /// Writes that are under way.
    pub(super) fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::Begun { sequence, write } => {
                self.in_flight.insert(sequence, write);
            }
            Event::Done { sequence } => {
                let Some(write) = self.in_flight.remove(&sequence) else { return };
                self.current.write(write.offset_bytes, &write.block);
                if self.has_cache {
                    self.unflushed.push((sequence, write));
                } else {
                    self.durable.write(write.offset_bytes, &write.block);
                }
            }
            Event::Flushed { covered } => {
                // If a concurrent flush took some of them out first, this one takes as many newer ones instead, which a disk may do.
                let covered = covered.min(self.unflushed.len());
                for (_, write) in self.unflushed.drain(..covered) {
                    self.durable.write(write.offset_bytes, &write.block);
                }
            }
            Event::Stable { sequence } => {
                // If a flush came between, the write is stable already.
                let Some(at) = self.unflushed.iter().position(|(number, _)| *number == sequence) else { return };
                let (_, stable) = self.unflushed.remove(at);
                // Older writes to the same place are stable with it: they are not to come over it later.
                let range = |write: &Write| write.offset_bytes..write.offset_bytes + write.block.len() as u64;
                let own = range(&stable);
                let overlaps = |write: &Write| range(write).start < own.end && own.start < range(write).end;
                let older: Vec<_> = self.unflushed.extract_if(..at, |(_, write)| overlaps(write)).collect();
                for write in older.iter().map(|(_, write)| write).chain([&stable]) {
                    self.durable.write(write.offset_bytes, &write.block);
                }
            }
        }
    }

    /// Makes this the content, stable and with nothing unflushed.
    pub(super) fn restore(&mut self, image: &Image) {
        *self = Self::new(image.clone(), self.sectors, self.has_cache);
    }

    /// Changes the stored bytes at once and for good.
    pub(super) fn poke(&mut self, offset_bytes: u64, bytes: &[u8]) {
        self.current.write(offset_bytes, bytes);
        self.durable.write(offset_bytes, bytes);
    }

    /// Takes each write that is under way with even odds.
    pub(super) fn take_late(&mut self, rng: &mut Rng) -> Late {
        let under_way: Vec<u64> = self.in_flight.keys().copied().collect();
        let late: Vec<u64> = under_way.into_iter().filter(|_| rng.chance(1, 2)).collect();
        Late(late.iter().filter_map(|sequence| self.in_flight.remove(sequence)).collect())
    }

    /// Late writes reach the medium, whole and for good.
    pub(super) fn land(&mut self, late: &Late) {
        late.0.iter().for_each(|write| self.poke(write.offset_bytes, &write.block));
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        const ENTRY_BYTES: u64 = 64;
        let pages = (self.current.pages.len() + self.durable.pages.len()) as u64;
        let unflushed: u64 = self.unflushed.iter().map(|(_, write)| write.block.len() as u64).sum();
        pages * (PAGE_BYTES + ENTRY_BYTES) + unflushed
    }

    /// The power goes.
    pub(super) fn crash(&mut self, crash: Crash, rng: &mut Rng) {
        let unflushed: Vec<Write> = std::mem::take(&mut self.unflushed).into_iter().map(|(_, write)| write).collect();
        let in_flight = std::mem::take(&mut self.in_flight);
        let mut survivors: Vec<Write> = match crash {
            Crash::LoseAll => Vec::new(),
            Crash::KeepAll => unflushed,
            Crash::KeepMore | Crash::Random | Crash::Torn | Crash::Garbage => {
                unflushed.into_iter().chain(in_flight.into_values()).collect()
            }
        };
        if crash.is_random() {
            for index in (1..survivors.len()).rev() {
                let other = rng.below(index as u64 + 1) as usize;
                survivors.swap(index, other);
            }
        }
        for write in survivors {
            match (crash.is_random(), crash) {
                (false, _) => self.durable.write(write.offset_bytes, &write.block),
                (true, Crash::Torn) => self.tear(&write, rng),
                (true, crash) => match (rng.below(3), crash) {
                    (0, _) => {}
                    (1, Crash::Garbage) => self.tear_with_garbage(&write, rng),
                    (1, _) => self.tear(&write, rng),
                    _ => self.durable.write(write.offset_bytes, &write.block),
                },
            }
        }
        self.current = self.durable.clone();
    }

    /// Each sector is as before or as written.
    fn tear(&mut self, write: &Write, rng: &mut Rng) {
        let sector_bytes = self.sectors.shown_bytes.max(1) as usize;
        for (index, sector) in write.block.chunks(sector_bytes).enumerate() {
            if rng.chance(1, 2) {
                self.durable.write(write.offset_bytes + (index * sector_bytes) as u64, sector);
            }
        }
    }

    /// Each sector of the medium that is touched is as before, as written, or neither, as a whole.
    fn tear_with_garbage(&mut self, write: &Write, rng: &mut Rng) {
        let unit = u64::from(self.sectors.medium_bytes.max(1));
        let end = write.offset_bytes + write.block.len() as u64;
        let mut at = write.offset_bytes;
        while at < end {
            let next = ((at / unit + 1) * unit).min(end);
            match rng.below(3) {
                0 => {}
                1 => {
                    let part = (at - write.offset_bytes) as usize..(next - write.offset_bytes) as usize;
                    self.durable.write(at, &write.block[part]);
                }
                _ => {
                    let first = at / unit * unit;
                    let mut garbage = vec![0; (unit.min(self.sectors.disk_bytes.saturating_sub(first))) as usize];
                    rng.fill(&mut garbage);
                    self.durable.write(first, &garbage);
                }
            }
            at = next;
        }
    }
}
