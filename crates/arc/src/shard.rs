//! One shard: table, lists, eviction.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;
use hashbrown::HashTable;

use crate::BlockKey;
use crate::list::{Linked, Links, List, NIL};

/// Ghosts kept at most, per shard: bounds the memory of keys when blocks are small.
const GHOSTS_MAX: usize = 1 << 16;

/// What the cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups that found the block.
    pub hits: u64,
    /// Look-ups that joined a load in flight.
    pub joined: u64,
    /// Look-ups that had to load.
    pub misses: u64,
    /// Misses whose key was still remembered as a ghost.
    pub ghost_hits: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Bytes held.
    pub size_bytes: u64,
    /// Bytes that may be held.
    pub limit_bytes: u64,
    /// Bytes held that were used once.
    pub recent_bytes: u64,
    /// Bytes held that were used again.
    pub frequent_bytes: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.joined += other.joined;
        self.misses += other.misses;
        self.ghost_hits += other.ghost_hits;
        self.evictions += other.evictions;
        self.size_bytes += other.size_bytes;
        self.limit_bytes += other.limit_bytes;
        self.recent_bytes += other.recent_bytes;
        self.frequent_bytes += other.frequent_bytes;
    }
}

/// A load in flight and who waits for it.
pub(crate) struct Load<E> {
    state: Mutex<LoadState<E>>,
}

struct LoadState<E> {
    /// `None` while running; `Some(None)` when the loader was dropped.
    outcome: Option<Option<Result<Block, E>>>,
    waiters: Vec<Waker>,
}

impl<E: Clone> Load<E> {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(LoadState { outcome: None, waiters: Vec::new() }) })
    }

    pub(crate) fn complete(&self, outcome: Option<Result<Block, E>>) {
        let waiters = {
            let mut state = self.state.lock();
            state.outcome = Some(outcome);
            std::mem::take(&mut state.waiters)
        };
        for waiter in waiters {
            waiter.wake();
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Block, E>>> {
        let mut state = self.state.lock();
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                if !state.waiters.iter().any(|waker| waker.will_wake(context.waker())) {
                    state.waiters.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

/// What a look-up found.
pub(crate) enum Begin<E> {
    Hit(Block),
    Wait(Arc<Load<E>>),
    Load(Arc<Load<E>>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Recent,
    Frequent,
    GhostRecent,
    GhostFrequent,
    /// On no list: a load runs. The flag says whether a ghost was hit (the block goes to `Frequent`).
    Loading {
        again: bool,
    },
}

struct Entry<E> {
    key: BlockKey,
    hash: u64,
    place: Place,
    size_bytes: usize,
    block: Option<Block>,
    load: Option<Arc<Load<E>>>,
    links: Links,
}

impl<E> Linked for Entry<E> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

pub(crate) struct Shard<E> {
    table: HashTable<u32>,
    slab: Vec<Entry<E>>,
    free: Vec<u32>,
    recent: List,
    frequent: List,
    ghost_recent: List,
    ghost_frequent: List,
    /// Bytes wanted for `recent`; the rest of the limit is for `frequent`.
    target_recent: usize,
    limit_bytes: usize,
    stats: Stats,
}

impl<E: Clone> Shard<E> {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            table: HashTable::new(),
            slab: Vec::new(),
            free: Vec::new(),
            recent: List::EMPTY,
            frequent: List::EMPTY,
            ghost_recent: List::EMPTY,
            ghost_frequent: List::EMPTY,
            target_recent: limit_bytes / 2,
            limit_bytes,
            stats: Stats::default(),
        }
    }

    fn find(&self, key: BlockKey, hash: u64) -> Option<u32> {
        self.table.find(hash, |&index| self.slab[index as usize].key == key).copied()
    }

    pub(crate) fn get(&mut self, key: BlockKey, hash: u64) -> Option<Block> {
        let index = self.find(key, hash)?;
        self.touch(index)
    }

    /// A use of a resident entry: it belongs to the frequent ones now.
    fn touch(&mut self, index: u32) -> Option<Block> {
        let entry = &self.slab[index as usize];
        let block = entry.block.clone()?;
        let (place, size_bytes) = (entry.place, entry.size_bytes);
        self.stats.hits += 1;
        self.list(place).unlink_in(index, size_bytes);
        self.slab[index as usize].place = Place::Frequent;
        self.list(Place::Frequent).push_in(index, size_bytes);
        Some(block)
    }

    pub(crate) fn begin(&mut self, key: BlockKey, hash: u64) -> Begin<E> {
        let Some(index) = self.find(key, hash) else {
            self.stats.misses += 1;
            let load = Load::new();
            self.insert(Entry {
                key,
                hash,
                place: Place::Loading { again: false },
                size_bytes: 0,
                block: None,
                load: Some(load.clone()),
                links: Links::UNLINKED,
            });
            return Begin::Load(load);
        };
        match self.slab[index as usize].place {
            Place::Recent | Place::Frequent => match self.touch(index) {
                Some(block) => Begin::Hit(block),
                None => unreachable!("a resident entry has its block"),
            },
            Place::Loading { .. } => {
                self.stats.joined += 1;
                match &self.slab[index as usize].load {
                    Some(load) => Begin::Wait(load.clone()),
                    None => unreachable!("a loading entry has its load"),
                }
            }
            ghost @ (Place::GhostRecent | Place::GhostFrequent) => {
                self.stats.misses += 1;
                self.stats.ghost_hits += 1;
                self.adapt(ghost, self.slab[index as usize].size_bytes);
                let size_bytes = self.slab[index as usize].size_bytes;
                self.list(ghost).unlink_in(index, size_bytes);
                let load = Load::new();
                let entry = &mut self.slab[index as usize];
                entry.place = Place::Loading { again: true };
                entry.size_bytes = 0;
                entry.load = Some(load.clone());
                Begin::Load(load)
            }
        }
    }

    /// Moves the target after a ghost hit: by the block's size, scaled by how much smaller the hit ghost list is.
    fn adapt(&mut self, ghost: Place, size_bytes: usize) {
        let (recent, frequent) = (self.ghost_recent.size_bytes.max(1), self.ghost_frequent.size_bytes.max(1));
        if ghost == Place::GhostRecent {
            let step = size_bytes.saturating_mul((frequent / recent).max(1));
            self.target_recent = self.target_recent.saturating_add(step).min(self.limit_bytes);
        } else {
            let step = size_bytes.saturating_mul((recent / frequent).max(1));
            self.target_recent = self.target_recent.saturating_sub(step);
        }
    }

    /// Ends the load: keeps the block, or removes the entry when there is none.
    pub(crate) fn finish(&mut self, key: BlockKey, hash: u64, load: &Arc<Load<E>>, block: Option<&Block>) {
        let Some(index) = self.find(key, hash) else { return };
        let entry = &mut self.slab[index as usize];
        // The entry may have been removed and loaded anew meanwhile; only the loader it names may finish it.
        let Place::Loading { again } = entry.place else { return };
        if !entry.load.as_ref().is_some_and(|own| Arc::ptr_eq(own, load)) {
            return;
        }
        entry.load = None;
        match block {
            Some(block) if block.len() <= self.limit_bytes / 2 => {
                let size_bytes = block.len();
                entry.block = Some(block.clone());
                entry.size_bytes = size_bytes;
                entry.place = if again { Place::Frequent } else { Place::Recent };
                let place = entry.place;
                self.list(place).push_in(index, size_bytes);
                self.evict();
            }
            _ => self.discard(index),
        }
    }

    pub(crate) fn remove(&mut self, key: BlockKey, hash: u64) {
        let Some(index) = self.find(key, hash) else { return };
        let (place, size_bytes) = (self.slab[index as usize].place, self.slab[index as usize].size_bytes);
        if !matches!(place, Place::Loading { .. }) {
            self.list(place).unlink_in(index, size_bytes);
        }
        self.discard(index);
    }

    pub(crate) fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
        self.target_recent = self.target_recent.min(limit_bytes);
        self.evict();
    }

    pub(crate) fn stats(&self) -> Stats {
        let (recent, frequent) = (self.recent.size_bytes as u64, self.frequent.size_bytes as u64);
        Stats {
            size_bytes: recent + frequent,
            limit_bytes: self.limit_bytes as u64,
            recent_bytes: recent,
            frequent_bytes: frequent,
            ..self.stats
        }
    }

    fn insert(&mut self, entry: Entry<E>) {
        let hash = entry.hash;
        let index = match self.free.pop() {
            Some(index) => {
                self.slab[index as usize] = entry;
                index
            }
            None => {
                self.slab.push(entry);
                (self.slab.len() - 1) as u32
            }
        };
        let slab = &self.slab;
        self.table.insert_unique(hash, index, |&other| slab[other as usize].hash);
    }

    /// Takes an entry that is on no list out of the table.
    fn discard(&mut self, index: u32) {
        let hash = self.slab[index as usize].hash;
        if let Ok(found) = self.table.find_entry(hash, |&other| other == index) {
            found.remove();
        }
        let entry = &mut self.slab[index as usize];
        entry.block = None;
        entry.load = None;
        entry.size_bytes = 0;
        self.free.push(index);
    }

    /// Brings the bytes held under the limit and the ghosts under theirs.
    fn evict(&mut self) {
        while self.recent.size_bytes + self.frequent.size_bytes > self.limit_bytes {
            let from_recent =
                self.recent.count > 0 && (self.recent.size_bytes > self.target_recent || self.frequent.count == 0);
            let (place, ghost) =
                if from_recent { (Place::Recent, Place::GhostRecent) } else { (Place::Frequent, Place::GhostFrequent) };
            let index = self.list(place).list.tail();
            if index == NIL {
                break;
            }
            let size_bytes = self.slab[index as usize].size_bytes;
            self.list(place).unlink_in(index, size_bytes);
            let entry = &mut self.slab[index as usize];
            entry.block = None;
            entry.place = ghost;
            self.list(ghost).push_in(index, size_bytes);
            self.stats.evictions += 1;
        }
        // Each ghost list stands for at most what the other resident side leaves of the limit.
        self.trim_ghosts(Place::GhostRecent, self.limit_bytes.saturating_sub(self.recent.size_bytes));
        self.trim_ghosts(Place::GhostFrequent, self.limit_bytes.saturating_sub(self.frequent.size_bytes));
    }

    fn trim_ghosts(&mut self, place: Place, limit_bytes: usize) {
        loop {
            let list = *self.list(place).list;
            if list.size_bytes <= limit_bytes && list.count <= GHOSTS_MAX {
                return;
            }
            let index = list.tail();
            if index == NIL {
                return;
            }
            let size_bytes = self.slab[index as usize].size_bytes;
            self.list(place).unlink_in(index, size_bytes);
            self.discard(index);
        }
    }

    fn list(&mut self, place: Place) -> ListIn<'_, E> {
        let list = match place {
            Place::Recent => &mut self.recent,
            Place::Frequent => &mut self.frequent,
            Place::GhostRecent => &mut self.ghost_recent,
            Place::GhostFrequent => &mut self.ghost_frequent,
            Place::Loading { .. } => unreachable!("a loading entry is on no list"),
        };
        ListIn { list, slab: &mut self.slab }
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let resident = |place: Place| {
            self.slab
                .iter()
                .enumerate()
                .filter(|(i, e)| e.place == place && !self.free.contains(&(*i as u32)))
                .map(|(_, e)| e.size_bytes)
                .sum::<usize>()
        };
        assert_eq!(resident(Place::Recent), self.recent.size_bytes);
        assert_eq!(resident(Place::Frequent), self.frequent.size_bytes);
        assert_eq!(resident(Place::GhostRecent), self.ghost_recent.size_bytes);
        assert_eq!(resident(Place::GhostFrequent), self.ghost_frequent.size_bytes);
        assert!(self.recent.size_bytes + self.frequent.size_bytes <= self.limit_bytes);
        assert_eq!(self.table.len() + self.free.len(), self.slab.len());
    }
}

/// A list together with the slab that its links live in.
struct ListIn<'a, E> {
    list: &'a mut List,
    slab: &'a mut [Entry<E>],
}

impl<E> ListIn<'_, E> {
    fn push_in(self, index: u32, size_bytes: usize) {
        self.list.push_front(self.slab, index, size_bytes);
    }

    fn unlink_in(self, index: u32, size_bytes: usize) {
        self.list.unlink(self.slab, index, size_bytes);
    }
}
