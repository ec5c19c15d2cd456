//! One shard: table, lists, eviction.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;

use crate::BlockKey;
use crate::index::Index;
use crate::list::{Linked, Links, List, NIL};

/// Ghosts take at most this part of a shard's limit, which bounds the memory of keys when blocks are small.
const GHOSTS_SHARE: usize = 32;
/// Entries that one eviction may pass over (used since the hand last passed, or held by a client) before it takes what
/// comes: bounds the time under the lock.
const REPRIEVES_MAX: u32 = 256;
/// The memory that the general allocator takes for the counted owner of one block.
const OWNER_BYTES: usize = 64;

/// The statistics of the cache.
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
    /// Blocks that were loaded before anyone asked for them.
    pub prefetched: u64,
    /// Of these, blocks that somebody asked for later.
    pub prefetch_used: u64,
    /// Of these, blocks that were evicted before anyone did.
    pub prefetch_wasted: u64,
    /// Bytes of memory that the blocks held keep, by the size of their buffers.
    pub size_bytes: u64,
    /// Bytes of memory that may be held in all: blocks, loads in flight, the cache's own tables.
    pub limit_bytes: u64,
    /// Bytes of memory that loads in flight take.
    pub loading_bytes: u64,
    /// Bytes of memory of the cache's own tables.
    pub overhead_bytes: u64,
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
        self.prefetched += other.prefetched;
        self.prefetch_used += other.prefetch_used;
        self.prefetch_wasted += other.prefetch_wasted;
        self.size_bytes += other.size_bytes;
        self.loading_bytes += other.loading_bytes;
        self.overhead_bytes += other.overhead_bytes;
        self.limit_bytes += other.limit_bytes;
        self.recent_bytes += other.recent_bytes;
        self.frequent_bytes += other.frequent_bytes;
    }
}

/// The waiters for a load in flight. The first of them makes it: most loads have none.
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

/// Where a block that was asked for came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It was here.
    Resident,
    /// It was here, loaded ahead; this was its first use.
    Prefetched,
    /// It was on its way.
    Joined,
    /// It was loaded now.
    Loaded,
}

/// The outcome of a look-up.
pub(crate) enum Begin<E> {
    Hit(Block, Source),
    Wait(Arc<Load<E>>),
    /// The caller is the loader; the number tells its load from a later one of the same key.
    Load(u64),
}

/// Blocks that left the cache, to be dropped when no lock is held: their memory may go back to the kernel.
#[derive(Default)]
pub(crate) struct Evicted {
    first: Option<Block>,
    rest: Vec<Block>,
}

impl Evicted {
    fn push(&mut self, block: Option<Block>) {
        let Some(block) = block else { return };
        match &mut self.first {
            None => self.first = Some(block),
            Some(_) => self.rest.push(block),
        }
    }
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
    /// On no list and not in the table.
    Unused,
}

enum Content<E> {
    None,
    Block(Block),
    Loading { ticket: u64, waiters: Option<Arc<Load<E>>> },
}

/// One cache line.
#[repr(align(64))]
struct Entry<E> {
    key: BlockKey,
    /// Memory in bytes: of the block, of the load while it runs, or that the ghost's block had.
    size_bytes: u32,
    place: Place,
    /// Used since it came here or the hand last passed.
    referenced: bool,
    /// Loaded ahead of use, and not used yet.
    prefetched: bool,
    links: Links,
    content: Content<E>,
}

const _: () = assert!(size_of::<Entry<()>>() == 64);

impl<E> Linked for Entry<E> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

pub(crate) struct Shard<E> {
    limit_bytes: usize,
    /// The target size of `Recent`, in bytes; moved by ghost hits.
    target_recent: usize,
    table: Index,
    slab: Vec<Entry<E>>,
    free: Vec<u32>,
    recent: List,
    frequent: List,
    ghost_recent: List,
    ghost_frequent: List,
    loading_bytes: usize,
    tickets: u64,
    stats: Stats,
}

impl<E: Clone> Shard<E> {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            target_recent: 0,
            table: Index::new(),
            slab: Vec::new(),
            free: Vec::new(),
            recent: List::EMPTY,
            frequent: List::EMPTY,
            ghost_recent: List::EMPTY,
            ghost_frequent: List::EMPTY,
            loading_bytes: 0,
            tickets: 0,
            stats: Stats::default(),
        }
    }

    fn find(&self, key: BlockKey, hash: u64) -> Option<u32> {
        self.table.find(hash, |index| self.slab[index as usize].key == key)
    }

    /// Whether the block is resident or on its way.
    pub(crate) fn is_here(&self, key: BlockKey, hash: u64) -> bool {
        self.find(key, hash).is_some_and(|index| !matches!(self.slab[index as usize].content, Content::None))
    }

    pub(crate) fn get(&mut self, key: BlockKey, hash: u64) -> Option<(Block, Source)> {
        let index = self.find(key, hash)?;
        self.touch(index)
    }

    /// A use of a resident entry. Only the entry itself is touched: its place on the lists is looked at when the hand
    /// comes by.
    fn touch(&mut self, index: u32) -> Option<(Block, Source)> {
        let entry = &mut self.slab[index as usize];
        let Content::Block(block) = &entry.content else { return None };
        self.stats.hits += 1;
        // The first use of a block that was loaded ahead is what a load on demand would have been.
        if std::mem::take(&mut entry.prefetched) {
            self.stats.prefetch_used += 1;
            return Some((block.clone(), Source::Prefetched));
        }
        entry.referenced = true;
        Some((block.clone(), Source::Resident))
    }

    /// Looks up `key`. If it is not here the caller becomes its loader, and `memory_bytes` are kept free for the load.
    pub(crate) fn begin(
        &mut self,
        key: BlockKey,
        hash: u64,
        memory_bytes: usize,
        ahead: bool,
        evicted: &mut Evicted,
    ) -> Begin<E> {
        let Some(index) = self.find(key, hash) else {
            let ticket = self.count_miss(ahead);
            let index = self.insert(
                Entry {
                    key,
                    size_bytes: 0,
                    place: Place::Loading { again: false },
                    referenced: false,
                    prefetched: ahead,
                    links: Links::UNLINKED,
                    content: Content::Loading { ticket, waiters: None },
                },
                hash,
            );
            let size_bytes = self.admit(memory_bytes, evicted);
            self.slab[index as usize].size_bytes = size_bytes;
            return Begin::Load(ticket);
        };
        if let Some((block, source)) = self.touch(index) {
            return Begin::Hit(block, source);
        }
        let entry = &mut self.slab[index as usize];
        if let Content::Loading { waiters, .. } = &mut entry.content {
            self.stats.joined += 1;
            if !ahead && std::mem::take(&mut entry.prefetched) {
                self.stats.prefetch_used += 1;
            }
            return Begin::Wait(waiters.get_or_insert_with(Load::new).clone());
        }
        let (ghost, size_bytes) = (entry.place, entry.size_bytes as usize);
        self.stats.ghost_hits += 1;
        self.adapt(ghost, size_bytes);
        self.list(ghost).unlink_in(index, size_bytes);
        let ticket = self.count_miss(ahead);
        let entry = &mut self.slab[index as usize];
        entry.place = Place::Loading { again: !ahead };
        entry.prefetched = ahead;
        entry.content = Content::Loading { ticket, waiters: None };
        entry.size_bytes = 0;
        let size_bytes = self.admit(memory_bytes, evicted);
        self.slab[index as usize].size_bytes = size_bytes;
        Begin::Load(ticket)
    }

    fn count_miss(&mut self, ahead: bool) -> u64 {
        self.stats.misses += 1;
        self.stats.prefetched += u64::from(ahead);
        self.tickets += 1;
        self.tickets
    }

    /// Keeps `memory_bytes` free for a load; nothing for one that would not be kept.
    fn admit(&mut self, memory_bytes: usize, evicted: &mut Evicted) -> u32 {
        let Some(size_bytes) = self.keepable(memory_bytes) else { return 0 };
        self.loading_bytes += memory_bytes;
        self.evict(evicted);
        size_bytes
    }

    fn keepable(&self, memory_bytes: usize) -> Option<u32> {
        u32::try_from(memory_bytes).ok().filter(|_| memory_bytes <= self.limit_bytes / 2)
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

    /// Ends the load: keeps the block, or removes the entry when there is none. The caller wakes the waiters.
    pub(crate) fn finish(
        &mut self,
        key: BlockKey,
        hash: u64,
        own: u64,
        block: Option<&Block>,
        evicted: &mut Evicted,
    ) -> Option<Arc<Load<E>>> {
        let index = self.find(key, hash)?;
        let entry = &mut self.slab[index as usize];
        // The entry may have been removed and loaded anew meanwhile; only the loader it names may finish it.
        let (Place::Loading { again }, Content::Loading { ticket, waiters }) = (entry.place, &mut entry.content) else {
            return None;
        };
        if *ticket != own {
            return None;
        }
        let waiters = waiters.take();
        self.loading_bytes -= entry.size_bytes as usize;
        entry.size_bytes = 0;
        entry.content = Content::None;
        let kept = block.and_then(|block| Some((block, self.keepable(block.memory_bytes())?)));
        let Some((block, size_bytes)) = kept else {
            self.discard(index);
            return waiters;
        };
        let entry = &mut self.slab[index as usize];
        entry.content = Content::Block(block.clone());
        entry.size_bytes = size_bytes;
        entry.place = if again { Place::Frequent } else { Place::Recent };
        let place = entry.place;
        self.list(place).push_in(index, size_bytes as usize);
        self.evict(evicted);
        waiters
    }

    pub(crate) fn remove(&mut self, key: BlockKey, hash: u64, evicted: &mut Evicted) -> Option<Arc<Load<E>>> {
        let index = self.find(key, hash)?;
        let entry = &mut self.slab[index as usize];
        let (place, size_bytes) = (entry.place, entry.size_bytes as usize);
        let waiters = match std::mem::replace(&mut entry.content, Content::None) {
            Content::Loading { waiters, .. } => waiters,
            Content::Block(block) => {
                evicted.push(Some(block));
                None
            }
            Content::None => None,
        };
        match place {
            Place::Loading { .. } => self.loading_bytes -= size_bytes,
            _ => self.list(place).unlink_in(index, size_bytes),
        }
        self.discard(index);
        waiters
    }

    /// Keeps a block under a key whatever there is. The caller wakes the waiters of a load of it.
    pub(crate) fn put(
        &mut self,
        key: BlockKey,
        hash: u64,
        block: &Block,
        evicted: &mut Evicted,
    ) -> Option<Arc<Load<E>>> {
        let waiters = self.remove(key, hash, evicted);
        let Some(size_bytes) = self.keepable(block.memory_bytes()) else { return waiters };
        let (place, content) = (Place::Recent, Content::Block(block.clone()));
        let links = Links::UNLINKED;
        let entry = Entry { key, size_bytes, place, referenced: false, prefetched: false, links, content };
        let index = self.insert(entry, hash);
        self.list(place).push_in(index, size_bytes as usize);
        self.evict(evicted);
        waiters
    }

    pub(crate) fn set_limit(&mut self, limit_bytes: usize, evicted: &mut Evicted) {
        self.limit_bytes = limit_bytes;
        self.target_recent = self.target_recent.min(limit_bytes);
        self.evict(evicted);
    }

    pub(crate) fn stats(&self) -> Stats {
        let (recent, frequent) = (self.recent.size_bytes as u64, self.frequent.size_bytes as u64);
        Stats {
            size_bytes: recent + frequent,
            limit_bytes: self.limit_bytes as u64,
            recent_bytes: recent,
            frequent_bytes: frequent,
            loading_bytes: self.loading_bytes as u64,
            overhead_bytes: self.overhead_bytes() as u64,
            ..self.stats
        }
    }

    /// Memory of the shard's own, in bytes.
    fn overhead_bytes(&self) -> usize {
        let owners = (self.recent.count + self.frequent.count) * OWNER_BYTES;
        self.slab.len() * size_of::<Entry<E>>()
            + self.free.len() * size_of::<u32>()
            + self.table.memory_bytes()
            + owners
    }

    fn insert(&mut self, entry: Entry<E>, hash: u64) -> u32 {
        let index = match self.free.pop() {
            Some(index) => {
                self.slab[index as usize] = entry;
                index
            }
            None => {
                if self.slab.len() == self.slab.capacity() {
                    // By an eighth instead of the usual doubling: what is reserved is counted as if it were not there.
                    self.slab.reserve_exact((self.slab.len() / 8).max(64));
                }
                self.slab.push(entry);
                (self.slab.len() - 1) as u32
            }
        };
        self.table.insert(hash, index);
        index
    }

    /// Takes an entry that is on no list out of the table.
    fn discard(&mut self, index: u32) {
        let entry = &mut self.slab[index as usize];
        entry.content = Content::None;
        entry.place = Place::Unused;
        entry.size_bytes = 0;
        self.table.remove(entry.key.hash(), index);
        self.free.push(index);
    }

    /// Brings all that is held under the limit, and the ghosts under theirs.
    ///
    /// Each resident list is a clock, its tail the hand. A block used since the hand last passed goes (back) to `Frequent`; one that a
    /// client holds goes round once more, since dropping it would free nothing.
    fn evict(&mut self, evicted: &mut Evicted) {
        let mut reprieves = 0;
        while self.recent.size_bytes + self.frequent.size_bytes + self.loading_bytes + self.overhead_bytes()
            > self.limit_bytes
        {
            let from_recent =
                self.recent.count > 0 && (self.recent.size_bytes > self.target_recent || self.frequent.count == 0);
            let (place, ghost) =
                if from_recent { (Place::Recent, Place::GhostRecent) } else { (Place::Frequent, Place::GhostFrequent) };
            let index = self.list(place).list.tail();
            if index == NIL {
                break;
            }
            let entry = &mut self.slab[index as usize];
            let size_bytes = entry.size_bytes as usize;
            let held = matches!(&entry.content, Content::Block(block) if block.is_shared());
            let referenced = std::mem::take(&mut entry.referenced);
            if (referenced || held) && reprieves < REPRIEVES_MAX {
                reprieves += 1;
                let next = if referenced { Place::Frequent } else { place };
                entry.place = next;
                self.list(place).unlink_in(index, size_bytes);
                self.list(next).push_in(index, size_bytes);
                continue;
            }
            if let Content::Block(block) = std::mem::replace(&mut entry.content, Content::None) {
                evicted.push(Some(block));
            }
            let wasted = std::mem::take(&mut entry.prefetched);
            entry.place = ghost;
            self.list(place).unlink_in(index, size_bytes);
            if wasted {
                // Nobody asked for it: remembering it would say that somebody had.
                self.discard(index);
                self.stats.prefetch_wasted += 1;
            } else {
                self.list(ghost).push_in(index, size_bytes);
            }
            self.stats.evictions += 1;
        }
        // Each ghost list stands for at most what the other resident side leaves of the limit.
        let count_max = self.limit_bytes / GHOSTS_SHARE / size_of::<Entry<E>>() / 2;
        self.trim_ghosts(Place::GhostRecent, self.limit_bytes.saturating_sub(self.recent.size_bytes), count_max);
        self.trim_ghosts(Place::GhostFrequent, self.limit_bytes.saturating_sub(self.frequent.size_bytes), count_max);
    }

    fn trim_ghosts(&mut self, place: Place, limit_bytes: usize, count_max: usize) {
        loop {
            let list = *self.list(place).list;
            if list.size_bytes <= limit_bytes && list.count <= count_max {
                return;
            }
            let index = list.tail();
            if index == NIL {
                return;
            }
            let size_bytes = self.slab[index as usize].size_bytes as usize;
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
            Place::Loading { .. } | Place::Unused => unreachable!("it is on no list"),
        };
        ListIn { list, slab: &mut self.slab }
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let sum = |of: fn(Place) -> bool| {
            self.slab.iter().filter(|entry| of(entry.place)).map(|entry| entry.size_bytes as usize).sum::<usize>()
        };
        assert_eq!(sum(|place| place == Place::Recent), self.recent.size_bytes);
        assert_eq!(sum(|place| place == Place::Frequent), self.frequent.size_bytes);
        assert_eq!(sum(|place| place == Place::GhostRecent), self.ghost_recent.size_bytes);
        assert_eq!(sum(|place| place == Place::GhostFrequent), self.ghost_frequent.size_bytes);
        assert_eq!(sum(|place| matches!(place, Place::Loading { .. })), self.loading_bytes);
        let (blocks, overhead) = (self.recent.size_bytes + self.frequent.size_bytes, self.overhead_bytes());
        assert!(blocks + self.loading_bytes + overhead <= self.limit_bytes, "{blocks} + {overhead}");
        assert_eq!(self.table.len() + self.free.len(), self.slab.len());
        for entry in &self.slab {
            let resident = matches!(entry.place, Place::Recent | Place::Frequent);
            assert_eq!(resident, matches!(entry.content, Content::Block(_)));
            let loading = matches!(entry.place, Place::Loading { .. });
            assert_eq!(loading, matches!(entry.content, Content::Loading { .. }));
        }
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
