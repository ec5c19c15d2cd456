//! The bookkeeping of one cache device: which blocks it has, where the next one goes, and what is written over then. No I/O.
//!
//! ```text
//!   start                 hand      evict                                  end
//!   |--- newer blocks ----|  void   |--- older blocks ------------ oldest ---|      not the first sweep
//!   |--- blocks ----------|            nothing yet                           |      the first sweep
//! ```
//! Blocks are written at the hand, and logged in a log block when there are enough of them. Before that, room is made: what lies up to `evict` is
//! forgotten first, so nobody is sent to a place that is being written. A block is found once it is written ([`Ring::publish`]).
//!
//! **In memory.** An entry has 32 bytes, and 8 to 26 more in the index. Entries are in the order of their places, the oldest first; the index has
//! their numbers.

use std::collections::VecDeque;

use cenote_arc::{BlockKey, Index};
use cenote_format::l2arc::{CachedBlock, LogPointer};
use cenote_taskq::mutant::{self, Mutant};

/// Numbers of entries in the index: numbers of all entries ever, modulo this.
const NUMBERS: u64 = 1 << 31;

/// The fixed measures of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Where blocks begin.
    pub(crate) start_bytes: u64,
    /// Where they end.
    pub(crate) end_bytes: u64,
    /// The unit of places.
    pub(crate) sector_bytes: u64,
    /// Blocks of a log block; 0: the device is too small for logs.
    pub(crate) log_entries: usize,
}

impl Geometry {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.end_bytes - self.start_bytes
    }

    /// Bytes that a block takes.
    pub(crate) const fn taken(&self, size_bytes: u64) -> u64 {
        size_bytes.next_multiple_of(self.sector_bytes)
    }

    /// Bytes from `at` forward to the hand, within the ring.
    fn back(&self, hand_bytes: u64, at_bytes: u64) -> u64 {
        (hand_bytes + self.len_bytes() - at_bytes) % self.len_bytes()
    }
}

/// A block on the device.
struct Entry {
    place_bytes: u64,
    birth_txg: u64,
    /// On the device.
    offset_bytes: u64,
    vdev: u32,
    psize_sectors: u16,
    /// It is in the index.
    is_found: bool,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    const fn key(&self) -> BlockKey {
        BlockKey { vdev: self.vdev, offset_bytes: self.place_bytes, birth_txg: self.birth_txg }
    }

    const fn psize_bytes(&self) -> u64 {
        self.psize_sectors as u64 * 512
    }
}

fn hash_of(key: BlockKey) -> u64 {
    match mutant::is(Mutant::L2arcStale) {
        true => BlockKey { birth_txg: 0, ..key }.hash(),
        false => key.hash(),
    }
}

fn is_same(one: BlockKey, other: BlockKey) -> bool {
    one == other || (mutant::is(Mutant::L2arcStale) && BlockKey { birth_txg: other.birth_txg, ..one } == other)
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset_bytes: u64,
    pub(crate) psize_bytes: u64,
}

pub(crate) struct Ring {
    pub(crate) geometry: Geometry,
    hand_bytes: u64,
    evict_bytes: u64,
    is_first: bool,
    entries: VecDeque<Entry>,
    /// The number of the first of them.
    first_number: u64,
    index: Index,
    /// Blocks that are in no log block yet.
    open: Vec<CachedBlock>,
    /// Log blocks, the newest first.
    logs: VecDeque<LogPointer>,
    /// Bytes on the device: of blocks that are found, and of log blocks.
    blocks_bytes: u64,
    logs_bytes: u64,
    /// Bytes of the logical and physical blocks that are found.
    psize_bytes: u64,
}

/// The state of a ring before a batch was placed.
pub(crate) struct Before {
    number: u64,
    logs: usize,
}

impl Ring {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let Geometry { start_bytes, end_bytes, sector_bytes, .. } = geometry;
        assert!(start_bytes < end_bytes && sector_bytes.is_power_of_two(), "a device has room for blocks");
        assert!(start_bytes.is_multiple_of(sector_bytes), "blocks begin at a sector");
        Self {
            geometry,
            hand_bytes: start_bytes,
            evict_bytes: start_bytes,
            is_first: true,
            entries: VecDeque::new(),
            first_number: NUMBERS,
            index: Index::new(),
            open: Vec::new(),
            logs: VecDeque::new(),
            blocks_bytes: 0,
            logs_bytes: 0,
            psize_bytes: 0,
        }
    }

    /// An empty ring that goes on where an earlier one was.
    pub(crate) fn resumed(geometry: Geometry, hand_bytes: u64, evict_bytes: u64, is_first: bool) -> Self {
        let range = geometry.start_bytes..=geometry.end_bytes;
        assert!(range.contains(&hand_bytes) && range.contains(&evict_bytes), "a ring goes on within its device");
        Self { hand_bytes, evict_bytes, is_first, ..Self::new(geometry) }
    }

    pub(crate) const fn hand_bytes(&self) -> u64 {
        self.hand_bytes
    }

    pub(crate) const fn evict_bytes(&self) -> u64 {
        self.evict_bytes
    }

    pub(crate) const fn is_first(&self) -> bool {
        self.is_first
    }

    pub(crate) fn newest_logs(&self) -> [LogPointer; 2] {
        [0, 1].map(|at| self.logs.get(at).copied().unwrap_or_default())
    }

    /// Log blocks, and bytes that they take.
    pub(crate) fn logs(&self) -> (u64, u64) {
        (self.logs.len() as u64, self.logs_bytes)
    }

    /// Bytes on the device that are in use.
    pub(crate) const fn allocated_bytes(&self) -> u64 {
        self.blocks_bytes + self.logs_bytes
    }

    /// Bytes of the physical blocks that are found, and those that they take.
    pub(crate) const fn blocks_bytes(&self) -> (u64, u64) {
        (self.psize_bytes, self.blocks_bytes)
    }

    /// Memory that this takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.index.memory_bytes()
            + self.open.capacity() * size_of::<CachedBlock>()
            + self.logs.capacity() * size_of::<LogPointer>()
    }

    /// The entry of a key that is found.
    fn position(&self, key: BlockKey) -> Option<(u32, usize)> {
        let at = |index: u32| self.position_of(index);
        let found = self.index.find(hash_of(key), |index| {
            self.entries.get(at(index)).is_some_and(|entry| entry.is_found && is_same(entry.key(), key))
        })?;
        Some((found, at(found)))
    }

    fn position_of(&self, index: u32) -> usize {
        ((u64::from(index) + NUMBERS - self.first_number % NUMBERS) % NUMBERS) as usize
    }

    fn index_of(&self, position: usize) -> u32 {
        ((self.first_number + position as u64) % NUMBERS) as u32
    }

    /// Where the block is.
    pub(crate) fn find(&self, key: BlockKey) -> Option<Place> {
        let (_, position) = self.position(key)?;
        let entry = &self.entries[position];
        Some(Place { offset_bytes: entry.offset_bytes, psize_bytes: entry.psize_bytes() })
    }

    /// Forgets a block.
    pub(crate) fn remove(&mut self, key: BlockKey) {
        let Some((_, position)) = self.position(key) else { return };
        self.hide(position);
    }

    fn hide(&mut self, position: usize) {
        let (index, entry) = (self.index_of(position), &mut self.entries[position]);
        if std::mem::take(&mut entry.is_found) {
            let (key, psize_bytes) = (entry.key(), entry.psize_bytes());
            self.index.remove(hash_of(key), index);
            self.psize_bytes -= psize_bytes;
            self.blocks_bytes -= self.geometry.taken(psize_bytes);
        }
    }

    fn show(&mut self, position: usize) {
        let (index, entry) = (self.index_of(position), &mut self.entries[position]);
        assert!(!entry.is_found, "an entry is shown once");
        entry.is_found = true;
        let (key, psize_bytes) = (entry.key(), entry.psize_bytes());
        self.index.insert(hash_of(key), index);
        self.psize_bytes += psize_bytes;
        self.blocks_bytes += self.geometry.taken(psize_bytes);
    }

    /// Forgets the oldest blocks until this takes so much memory at most.
    pub(crate) fn shrink_to(&mut self, memory_max_bytes: usize) {
        let each = size_of::<Entry>() + 26;
        let keep = memory_max_bytes / each;
        while self.entries.len() > keep {
            self.forget_oldest();
        }
        if self.entries.capacity() > self.entries.len() * 2 + 64 {
            self.entries.shrink_to_fit();
        }
    }

    fn forget_oldest(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        self.hide(0);
        self.entries.pop_front();
        self.first_number += 1;
    }

    /// The bytes of the next batch at most, log blocks included.
    pub(crate) fn batch_bytes(&self, wanted_bytes: u64) -> u64 {
        let logs = match self.geometry.log_entries as u64 {
            0 => 0,
            entries => (wanted_bytes / 512).div_ceil(entries).saturating_mul(cenote_format::l2arc::LOG_BYTES as u64),
        };
        let wanted = wanted_bytes.saturating_add(logs).min(self.geometry.len_bytes() / 4);
        wanted / self.geometry.sector_bytes * self.geometry.sector_bytes
    }

    /// Forgets what lies where the next `bytes` go. True if something that the device's header tells of may be written over.
    pub(crate) fn make_room(&mut self, bytes: u64) -> bool {
        assert!(bytes <= self.geometry.len_bytes() / 2, "a batch is a part of the device");
        let before = (self.evict_bytes, self.is_first);
        if self.hand_bytes + bytes > self.geometry.end_bytes {
            if !self.is_first {
                self.evict(self.hand_bytes..self.geometry.end_bytes);
            }
            self.hand_bytes = self.geometry.start_bytes;
            self.evict_bytes = self.geometry.start_bytes;
            self.is_first = false;
        }
        if !self.is_first {
            self.evict_bytes = self.evict_bytes.max(self.hand_bytes + bytes);
            self.evict(self.hand_bytes..self.evict_bytes);
        }
        assert!(self.hand_bytes + bytes <= self.geometry.end_bytes, "there is room");
        before != (self.evict_bytes, self.is_first)
    }

    fn evict(&mut self, range: std::ops::Range<u64>) {
        let overlaps = |from: u64, to: u64| from < range.end && range.start < to;
        while let Some(oldest) = self.entries.front()
            && overlaps(oldest.offset_bytes, oldest.offset_bytes + self.geometry.taken(oldest.psize_bytes()))
            && !mutant::is(Mutant::L2arcKept)
        {
            self.forget_oldest();
        }
        let (end, start) = (self.geometry.end_bytes, self.geometry.start_bytes);
        let is_void = |log: &LogPointer| {
            let (from, to) = (log.payload_start_bytes, log.offset_bytes + log.size_bytes());
            match from < to {
                true => overlaps(from, to),
                false => overlaps(from, end) || overlaps(start, to),
            }
        };
        while let Some(oldest) = self.logs.back().filter(|log| is_void(log)) {
            self.logs_bytes -= oldest.size_bytes();
            self.logs.pop_back();
        }
        // The oldest block that is not logged is so old that the log block would be void at once.
        if self.open.iter().any(|block| overlaps(block.offset_bytes, block.offset_bytes + 1)) {
            self.open.clear();
        }
    }

    /// The state to go back to if a batch cannot be written.
    pub(crate) fn before(&self) -> Before {
        Before { number: self.first_number + self.entries.len() as u64, logs: self.logs.len() }
    }

    /// Gives a block the place at the hand. It is found once it is published. True if a log block is due.
    pub(crate) fn place(&mut self, mut block: CachedBlock) -> (u64, bool) {
        let offset_bytes = self.hand_bytes;
        let taken = self.geometry.taken(block.psize_bytes);
        assert!(offset_bytes + taken <= self.geometry.end_bytes, "room was made");
        assert!(self.is_first || offset_bytes + taken <= self.evict_bytes, "what is written over was forgotten");
        assert!((self.entries.len() as u64) < NUMBERS - 1, "entries have numbers of their own");
        let psize_sectors = u16::try_from(block.psize_bytes / 512).expect("a block has 16 MiB at most");
        let (vdev, place_bytes, birth_txg) = (block.dva.vdev.0, block.dva.offset_bytes, block.birth.0);
        let entry = Entry { place_bytes, birth_txg, offset_bytes, vdev, psize_sectors, is_found: false };
        self.entries.push_back(entry);
        self.hand_bytes += taken;
        if self.geometry.log_entries > 0 {
            block.offset_bytes = offset_bytes;
            self.open.push(block);
        }
        (offset_bytes, self.geometry.log_entries > 0 && self.open.len() == self.geometry.log_entries)
    }

    /// The blocks of the log block that is due, and the log block before the one before.
    pub(crate) fn take_open(&mut self) -> (Vec<CachedBlock>, LogPointer) {
        assert_eq!(self.open.len(), self.geometry.log_entries, "a log block is full");
        (std::mem::take(&mut self.open), self.newest_logs()[1])
    }

    /// Gives a log block, of `size_bytes`, the place at the hand.
    pub(crate) fn place_log(&mut self, log: &mut LogPointer) {
        log.offset_bytes = self.hand_bytes;
        self.hand_bytes += log.size_bytes();
        assert!(self.hand_bytes <= self.geometry.end_bytes, "room was made for log blocks too");
        self.logs_bytes += log.size_bytes();
        self.logs.push_front(*log);
    }

    /// The blocks that were placed since are written. Blocks that are here already stay where they are found.
    pub(crate) fn publish(&mut self, since: &Before) {
        let first = since.number.saturating_sub(self.first_number) as usize;
        for position in first..self.entries.len() {
            if self.position(self.entries[position].key()).is_none() {
                self.show(position);
            }
        }
    }

    /// The blocks that were placed since could not be written.
    pub(crate) fn unplace(&mut self, since: &Before) {
        let kept = since.number.saturating_sub(self.first_number) as usize;
        self.entries.truncate(kept);
        while self.logs.len() > since.logs {
            self.logs_bytes -= self.logs.pop_front().map_or(0, |log| log.size_bytes());
        }
        self.open.clear();
    }

    /// Bytes behind the hand that may be used at all: without those that are void.
    fn reach_bytes(&self) -> u64 {
        let Geometry { start_bytes, end_bytes, .. } = self.geometry;
        let void = match self.evict_bytes >= self.hand_bytes {
            true => self.evict_bytes - self.hand_bytes,
            false => (end_bytes - self.hand_bytes) + (self.evict_bytes - start_bytes),
        };
        match self.is_first {
            true => self.hand_bytes - start_bytes,
            false => self.geometry.len_bytes() - void,
        }
    }

    /// Whether a log block that was found on the device can be one of those that end `cursor_bytes` behind the hand or further: where its
    /// blocks begin, in bytes behind the hand. It strictly grows, so a chain has an end.
    pub(crate) fn reaches(&self, cursor_bytes: u64, log: &LogPointer) -> Option<u64> {
        let Geometry { start_bytes, end_bytes, sector_bytes, .. } = self.geometry;
        let size = log.size_bytes();
        if log.offset_bytes < start_bytes || log.payload_start_bytes < start_bytes {
            return None;
        }
        let end = log.offset_bytes.checked_add(size).filter(|end| *end <= end_bytes)?;
        let is_whole = |bytes: u64| bytes.is_multiple_of(sector_bytes);
        if !is_whole(log.offset_bytes) || !is_whole(log.payload_start_bytes) || log.payload_start_bytes >= end_bytes {
            return None;
        }
        let (to, from) =
            (self.geometry.back(self.hand_bytes, end), self.geometry.back(self.hand_bytes, log.payload_start_bytes));
        (to >= cursor_bytes && from > to && from - to >= size && from <= self.reach_bytes()).then_some(from)
    }

    /// Enters a log block that was found on the device, older than all that are known, with its blocks. How many of them are new.
    pub(crate) fn restore(&mut self, log: &LogPointer, blocks: &[CachedBlock]) -> usize {
        let hand = self.hand_bytes;
        let mut cursor = self.geometry.back(hand, log.offset_bytes);
        let limit = self.geometry.back(hand, log.payload_start_bytes);
        let mut restored = 0;
        for block in blocks.iter().rev() {
            let taken = self.geometry.taken(block.psize_bytes);
            let range = self.geometry.start_bytes..self.geometry.end_bytes;
            let end = block.offset_bytes.checked_add(taken).filter(|end| *end <= range.end);
            let Some(end) = end.filter(|_| range.contains(&block.offset_bytes)) else { continue };
            let from = self.geometry.back(hand, block.offset_bytes);
            let to = self.geometry.back(hand, end);
            let is_whole = block.offset_bytes.is_multiple_of(self.geometry.sector_bytes);
            let psize_sectors = u16::try_from(block.psize_bytes / 512);
            let (Ok(psize_sectors), true) = (psize_sectors, is_whole && to >= cursor && from > to && from <= limit)
            else {
                continue;
            };
            cursor = from;
            let (vdev, place_bytes, birth_txg) = (block.dva.vdev.0, block.dva.offset_bytes, block.birth.0);
            let entry = Entry {
                place_bytes,
                birth_txg,
                offset_bytes: block.offset_bytes,
                vdev,
                psize_sectors,
                is_found: false,
            };
            let is_known = self.position(entry.key()).is_some();
            assert!((self.entries.len() as u64) < NUMBERS - 1, "entries have numbers of their own");
            self.first_number -= 1;
            self.entries.push_front(entry);
            if !is_known {
                self.show(0);
                restored += 1;
            }
        }
        self.logs_bytes += log.size_bytes();
        self.logs.push_back(*log);
        restored
    }

    /// All that must hold.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let geometry = &self.geometry;
        assert!((geometry.start_bytes..=geometry.end_bytes).contains(&self.hand_bytes));
        let mut cursor = 0;
        let (mut psize, mut taken) = (0, 0);
        for entry in self.entries.iter().rev() {
            let end = entry.offset_bytes + geometry.taken(entry.psize_bytes());
            assert!(entry.offset_bytes >= geometry.start_bytes && end <= geometry.end_bytes);
            let (to, from) = (geometry.back(self.hand_bytes, end), geometry.back(self.hand_bytes, entry.offset_bytes));
            assert!(to >= cursor && from > to && from <= self.reach_bytes().max(from.min(geometry.len_bytes())));
            cursor = from;
            if entry.is_found {
                psize += entry.psize_bytes();
                taken += geometry.taken(entry.psize_bytes());
                assert_eq!(self.find(entry.key()).map(|place| place.offset_bytes), Some(entry.offset_bytes));
            }
        }
        assert_eq!((psize, taken), (self.psize_bytes, self.blocks_bytes));
        assert_eq!(self.logs.iter().map(LogPointer::size_bytes).sum::<u64>(), self.logs_bytes);
        assert!(self.open.len() <= geometry.log_entries);
    }
}
