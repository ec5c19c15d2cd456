//! The adaptive replacement cache of verified blocks.
//!
//! # Theory
//!
//! **Need.** Metadata (indirect blocks, dnode blocks, ZAP leaves) is read over and over; file data often is not. A cache must not evict
//! frequently used blocks during a scan of blocks that are used once, must stay within its memory limit for all block sizes (512 bytes to
//! 16 MiB), must start at most one read of a block at a time, and must serve a hit in well under a microsecond, from any number of cores.
//!
//! **In memory.** The cache is split into shards by a hash of the block's identity; a shard is one short mutex around a
//! hash table, a slab of entries and four lists: `T1` (seen once), `T2` (seen again), and the ghosts `B1`, `B2` of what
//! they evicted, which hold keys but no bytes. Within a shard this is ARC (Megiddo and Modha 2003) in the form of CAR
//! (Bansal and Modha 2004) with byte sizes in place of page counts: `T1` and `T2` are clocks. A use only marks its entry;
//! when room is needed the hand of a clock takes what is not marked, and moves what is marked to `T2`. A hit in `B1`
//! grows the target of `T1`, a hit in `B2` shrinks it.
//!
//! **Accounting.** The limit covers memory, not contents: a block counts with its whole buffer; a load in flight counts, with the memory
//! that it will need, from before it allocates; and the cache's own tables count. Buffers that the buffer pool keeps for reuse do not
//! count ([`buffer_pool_bytes`]); whoever creates the cache bounds them separately. A block that a client still holds is evicted only
//! when little else is left, since evicting it frees no memory.
//!
//! **Identity.** A block on disk does not change while it is referenced, and its DVA is reused only with a later birth txg, so (vdev,
//! offset, birth txg) identifies its content. In a pool that is only read, no entry ever has to be invalidated. A sync may insert a block
//! that it writes, so that the next reader need not load it. Sync passes can rewrite such a block in place until its txg is on disk; each
//! rewrite replaces or removes the entry. The sync may also remove replaced blocks, to free memory.
//!
//! **Life of a block.** [`Cache::find_or_load`] looks in the table. Present: the entry is marked and a
//! counted reference is returned. Absent: the caller becomes the *loader*: a `Loading` entry is left in the table, the
//! lock is released, the read runs. Readers that come meanwhile find the loading entry and wait on it. The loader's result goes
//! to all waiters, and on success into `T1` (or `T2` if a ghost was hit). A loader that is dropped half-way (a cancelled
//! request) withdraws its entry, and one of the waiters becomes the loader.
//!
//! **Invariants.**
//! 1. At most one load of a key runs at a time.
//! 2. The memory held by a shard never exceeds its limit after an operation, unless loads in flight alone do; a block
//!    larger than half a shard's limit is passed through and not kept.
//! 3. No lock is held across an await, and no caller's code (load, waker) runs under a shard's lock, nor is memory freed.
//! 4. The evicted blocks that ghosts stand for are bounded by the limit in bytes, and the ghosts themselves by a small part of it.
//!
//! A block stays valid for its holders after eviction, since they have a counted reference; memory that only clients hold is not counted
//! to the cache.
//!
//! **Crash.** Nothing to leave behind.
//!
//! **Loading ahead.** [`Cache::prefetch`] loads what nobody has asked for yet. The first use of such a block does not mark
//! it, so that a file read once, ahead, passes through `T1` as one read on demand does; a block evicted unused is counted
//! and leaves no ghost.
//!
//! **Rejected.** Lists in the order of use, as ARC has them (a hit then writes its entry, both neighbours and the list's
//! head, each in another cache line); one global list (the lock and the cache line that OpenZFS spent years splitting); caching compressed
//! bytes (saves memory, costs a decompression on each hit; indirect blocks are hit thousands of times); sampling
//! eviction (no scan resistance without a second queue).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod index;
mod kstat;
mod list;
mod shard;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;

pub use index::Index;
use shard::{Begin, Evicted, Load, Shard};
pub use shard::{Source, Stats};

/// The identity of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// Top-level vdev of the first copy.
    pub vdev: u32,
    /// Offset of the first copy, in bytes, as DVAs count.
    pub offset_bytes: u64,
    /// The txg in which it was written to that place.
    pub birth_txg: u64,
}

impl BlockKey {
    /// A hash of it.
    #[must_use]
    pub const fn hash(self) -> u64 {
        // Two rounds of multiply-and-fold: enough spread for tables and shards, a nanosecond or two.
        let a = (self.offset_bytes ^ ((self.vdev as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let b = (a ^ (a >> 29) ^ self.birth_txg).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        b ^ (b >> 32)
    }
}

/// The smallest memory limit that is accepted, in bytes.
pub(crate) const LIMIT_MIN_BYTES: usize = 1 << 20;
/// A shard is not made smaller than this, so that large records still fit into one.
const SHARD_MIN_BYTES: usize = 64 << 20;
const SHARDS_MAX: usize = 64;
/// The part of a cache's limit that the cache leaves for buffers between two uses, in bytes: a 64th, but enough for a few
/// large blocks, since without a place to wait each one's memory goes to the kernel and comes back page by page.
#[must_use]
pub const fn buffer_pool_bytes(limit_bytes: usize) -> usize {
    let share = limit_bytes / 64;
    let enough = if limit_bytes / 8 < POOL_MIN_BYTES { limit_bytes / 8 } else { POOL_MIN_BYTES };
    let bytes = if share < enough { enough } else { share };
    if bytes > POOL_MAX_BYTES { POOL_MAX_BYTES } else { bytes }
}

const POOL_MIN_BYTES: usize = 4 << 20;
/// More than this gains nothing.
const POOL_MAX_BYTES: usize = 64 << 20;

/// The part of a limit that all shards together may use.
fn usable(limit_bytes: usize) -> usize {
    let limit_bytes = limit_bytes.max(LIMIT_MIN_BYTES);
    limit_bytes - buffer_pool_bytes(limit_bytes)
}

/// A shard alone on its cache lines: neighbours' locks are taken by other cores.
#[repr(align(128))]
struct Slot<E>(Mutex<Shard<E>>);

/// A cache of blocks, whose loads fail with `E`.
pub struct Cache<E> {
    shards: Box<[Slot<E>]>,
    mask: u64,
    /// The limit, and the part of it that others have, in bytes.
    limits: Mutex<(usize, usize)>,
}

impl<E: Clone> Cache<E> {
    /// A cache whose blocks, loads and tables take at most `limit_bytes` of memory (at least [`LIMIT_MIN_BYTES`]),
    /// [`buffer_pool_bytes`] left out.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let usable = usable(limit_bytes);
        let wanted = (limit_bytes / SHARD_MIN_BYTES).clamp(1, SHARDS_MAX);
        let count = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let shards: Box<[_]> = (0..count).map(|_| Slot(Mutex::new(Shard::new(usable / count)))).collect();
        Self { mask: count as u64 - 1, shards, limits: Mutex::new((limit_bytes, 0)) }
    }

    /// The block of `key`, and where it came from: the cache, a load already in flight, or `load`, which is then called once. `on_wait` is
    /// called before waiting for a load that another one began. `memory_bytes` is what the load will take: the block's buffer, and others
    /// that it needs meanwhile.
    ///
    /// Cancel safe: dropping the future withdraws its load and lets a waiter take over.
    pub async fn find_or_load<F, Fut>(
        &self,
        key: BlockKey,
        memory_bytes: usize,
        on_wait: impl Fn(),
        load: F,
    ) -> Result<(Block, Source), E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Block, E>>,
    {
        let hash = key.hash();
        loop {
            match self.begin(key, hash, memory_bytes, false) {
                Begin::Hit(block, source) => return Ok((block, source)),
                Begin::Wait(wait) => {
                    on_wait();
                    match (Waiting { load: wait }).await {
                        Some(result) => return Ok((result?, Source::Joined)),
                        None => continue, // the loader was cancelled: try to become it
                    }
                }
                Begin::Load(ticket) => {
                    let mut guard = LoadGuard { cache: self, key, hash, ticket: Some(ticket) };
                    let result = load().await;
                    guard.finish(Some(&result));
                    return Ok((result?, Source::Loaded));
                }
            }
        }
    }

    /// Like [`Cache::find_or_load`], for a prefetch: nothing happens if the block is cached or being loaded. Returns whether a load was
    /// begun and has succeeded.
    pub async fn prefetch<F, Fut>(&self, key: BlockKey, memory_bytes: usize, load: F) -> Result<bool, E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Block, E>>,
    {
        let hash = key.hash();
        if self.shard(hash).lock().is_here(key, hash) {
            return Ok(false);
        }
        // Another task may have used the block meanwhile; then this counts as one use too many, which is harmless.
        let Begin::Load(ticket) = self.begin(key, hash, memory_bytes, true) else { return Ok(false) };
        let mut guard = LoadGuard { cache: self, key, hash, ticket: Some(ticket) };
        let result = load().await;
        guard.finish(Some(&result));
        result.map(|_| true)
    }

    fn begin(&self, key: BlockKey, hash: u64, memory_bytes: usize, ahead: bool) -> Begin<E> {
        let mut evicted = Evicted::default();
        // Dropped in this order: the lock, then what was evicted.
        self.shard(hash).lock().begin(key, hash, memory_bytes, ahead, &mut evicted)
    }

    /// The block if it is here now; counts as a use.
    #[must_use]
    pub fn get(&self, key: BlockKey) -> Option<Block> {
        Some(self.find(key)?.0)
    }

    /// As [`Cache::get`], and where the block came from.
    #[must_use]
    pub fn find(&self, key: BlockKey) -> Option<(Block, Source)> {
        let hash = key.hash();
        self.shard(hash).lock().get(key, hash)
    }

    /// Forgets the block, if it is here.
    pub fn remove(&self, key: BlockKey) {
        let hash = key.hash();
        let mut evicted = Evicted::default();
        let waiters = self.shard(hash).lock().remove(key, hash, &mut evicted);
        if let Some(waiters) = waiters {
            waiters.complete(None);
        }
    }

    /// Inserts a block that is being written, as if it had just been loaded; it replaces an entry with the same key.
    pub fn put(&self, key: BlockKey, block: &Block) {
        let hash = key.hash();
        let mut evicted = Evicted::default();
        let waiters = self.shard(hash).lock().put(key, hash, block, &mut evicted);
        // The waiters look the block up again, and find it.
        if let Some(waiters) = waiters {
            waiters.complete(None);
        }
    }

    /// Changes the memory limit, evicting at once what no longer fits.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limits.lock().0 = limit_bytes;
        self.limits_changed();
    }

    /// Leaves this much of the limit to others: the index of cache devices.
    pub fn set_lent_bytes(&self, lent_bytes: usize) {
        if std::mem::replace(&mut self.limits.lock().1, lent_bytes) != lent_bytes {
            self.limits_changed();
        }
    }

    fn limits_changed(&self) {
        let (limit_bytes, lent_bytes) = *self.limits.lock();
        let each = usable(limit_bytes.saturating_sub(lent_bytes)) / self.shards.len();
        for shard in &self.shards {
            let mut evicted = Evicted::default();
            shard.0.lock().set_limit(each, &mut evicted);
        }
    }

    /// Sums over all shards.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut total = Stats::default();
        for shard in &self.shards {
            total.add(&shard.0.lock().stats());
        }
        total
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard<E>> {
        &self.shards[((hash >> 48) & self.mask) as usize].0
    }
}

/// Withdraws the loading entry if the load does not come to an end.
struct LoadGuard<'a, E: Clone> {
    cache: &'a Cache<E>,
    key: BlockKey,
    hash: u64,
    ticket: Option<u64>,
}

impl<E: Clone> LoadGuard<'_, E> {
    fn finish(&mut self, result: Option<&Result<Block, E>>) {
        let Some(ticket) = self.ticket.take() else { return };
        let block = result.and_then(|result| result.as_ref().ok());
        let mut evicted = Evicted::default();
        let waiters = self.cache.shard(self.hash).lock().finish(self.key, self.hash, ticket, block, &mut evicted);
        if let Some(waiters) = waiters {
            waiters.complete(result.cloned());
        }
    }
}

impl<E: Clone> Drop for LoadGuard<'_, E> {
    fn drop(&mut self) {
        self.finish(None);
    }
}

/// Resolves to the loader's result, or `None` when the loader was dropped.
struct Waiting<E> {
    load: Arc<Load<E>>,
}

impl<E: Clone> Future for Waiting<E> {
    type Output = Option<Result<Block, E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.load.poll(context)
    }
}

#[cfg(test)]
mod tests;
