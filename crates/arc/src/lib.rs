//! The adaptive replacement cache of verified blocks.
//!
//! # Theory
//!
//! **Need.** Metadata (indirect blocks, dnode blocks, ZAP leaves) is read over and over; file data often is not. A cache
//! must keep what is used often through a scan of what is used once, must hold its memory limit whatever the sizes of
//! blocks are (512 bytes to 16 MiB), must start at most one read of a block at a time, and must cost well under a
//! microsecond on a hit from any number of cores.
//!
//! **In memory.** The cache is split into shards by a hash of the block's identity; a shard is one short mutex around a
//! hash table, a slab of entries and four lists: `T1` (seen once), `T2` (seen again), and the ghosts `B1`, `B2` of what
//! they evicted, which hold keys but no bytes. Within a shard this is the ARC of Megiddo and Modha with byte sizes in
//! place of page counts: a hit in `B1` grows the target of `T1`, a hit in `B2` shrinks it.
//!
//! **Identity.** A block on disk never changes while it is referenced, and its place is reused only with a later birth
//! txg, so (vdev, offset, birth txg) names its content for ever. Nothing needs to be invalidated in a pool that is only
//! read; a writer drops the key of what it frees.
//!
//! **Life of a block.** [`Cache::get_or_load`] looks in the table. Present: the entry moves to the head of `T2` and a
//! counted reference is returned. Absent: the caller becomes the *loader*: a `Loading` entry is left in the table, the
//! lock is released, the read runs. Who comes meanwhile finds the loading entry and waits on it. The loader's result goes
//! to all waiters, and on success into `T1` (or `T2` if a ghost was hit). A loader that is dropped half-way (a cancelled
//! request) withdraws its entry, and one of the waiters becomes the loader.
//!
//! **Invariants.**
//! 1. At most one load of a key runs at a time.
//! 2. The bytes held by a shard never exceed its limit after an operation; a block larger than half a shard's limit is
//!    passed through and not kept.
//! 3. No lock is held across an await, and no caller's code (load, waker) runs under a shard's lock.
//! 4. Ghosts are bounded by the limit in the bytes that they stand for and by a count.
//!
//! Blocks handed out stay valid after eviction, since they are counted references; what clients hold is their memory,
//! not the cache's.
//!
//! **Crash.** Nothing to leave behind.
//!
//! **Rejected.** One global list (the lock and the cache line that OpenZFS spent years splitting); caching compressed
//! bytes (saves memory, costs a decompression on each hit; indirect blocks are hit thousands of times); sampling
//! eviction (no scan resistance without a second queue).

mod list;
mod shard;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;

pub use shard::Stats;
use shard::{Begin, Load, Shard};

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
    fn hash(self) -> u64 {
        // Two rounds of multiply-and-fold: enough spread for tables and shards, a nanosecond or two.
        let a = (self.offset_bytes ^ (u64::from(self.vdev) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let b = (a ^ (a >> 29) ^ self.birth_txg).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        b ^ (b >> 32)
    }
}

/// The smallest memory limit that is accepted, in bytes.
pub const LIMIT_MIN_BYTES: usize = 1 << 20;
/// A shard is not made smaller than this, so that large records still fit into one.
const SHARD_MIN_BYTES: usize = 64 << 20;
const SHARDS_MAX: usize = 64;

/// A cache of blocks, whose loads fail with `E`.
pub struct Cache<E> {
    shards: Box<[Mutex<Shard<E>>]>,
    mask: u64,
}

impl<E: Clone> Cache<E> {
    /// A cache that holds at most `limit_bytes` of blocks (at least [`LIMIT_MIN_BYTES`]).
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let limit_bytes = limit_bytes.max(LIMIT_MIN_BYTES);
        let wanted = (limit_bytes / SHARD_MIN_BYTES).clamp(1, SHARDS_MAX);
        let count = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let shards: Box<[_]> = (0..count).map(|_| Mutex::new(Shard::new(limit_bytes / count))).collect();
        Self { mask: count as u64 - 1, shards }
    }

    /// The block of `key`: from the cache, from a load already in flight, or from `load`, which is then called once.
    ///
    /// Cancel safe: dropping the future withdraws its load and lets a waiter take over.
    pub async fn get_or_load<F, Fut>(&self, key: BlockKey, load: F) -> Result<Block, E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Block, E>>,
    {
        let hash = key.hash();
        loop {
            let begin = self.shard(hash).lock().begin(key, hash);
            match begin {
                Begin::Hit(block) => return Ok(block),
                Begin::Wait(wait) => match (Waiting { load: wait }).await {
                    Some(result) => return result,
                    None => continue, // the loader was cancelled: try to become it
                },
                Begin::Load(ticket) => {
                    let mut guard = LoadGuard { cache: self, key, hash, load: Some(ticket) };
                    let result = load().await;
                    guard.finish(result.clone());
                    return result;
                }
            }
        }
    }

    /// The block if it is here now; counts as a use.
    #[must_use]
    pub fn get(&self, key: BlockKey) -> Option<Block> {
        let hash = key.hash();
        self.shard(hash).lock().get(key, hash)
    }

    /// Forgets the block, if it is here.
    pub fn remove(&self, key: BlockKey) {
        let hash = key.hash();
        self.shard(hash).lock().remove(key, hash);
    }

    /// Changes the memory limit, evicting at once what no longer fits.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        let each = limit_bytes.max(LIMIT_MIN_BYTES) / self.shards.len();
        for shard in &self.shards {
            shard.lock().set_limit(each);
        }
    }

    /// Sums over all shards.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut total = Stats::default();
        for shard in &self.shards {
            total.add(&shard.lock().stats());
        }
        total
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard<E>> {
        &self.shards[((hash >> 48) & self.mask) as usize]
    }
}

/// Withdraws the loading entry if the load does not come to an end.
struct LoadGuard<'a, E: Clone> {
    cache: &'a Cache<E>,
    key: BlockKey,
    hash: u64,
    load: Option<Arc<Load<E>>>,
}

impl<E: Clone> LoadGuard<'_, E> {
    fn finish(&mut self, result: Result<Block, E>) {
        if let Some(load) = self.load.take() {
            self.cache.shard(self.hash).lock().finish(self.key, self.hash, &load, result.as_ref().ok());
            load.complete(Some(result));
        }
    }
}

impl<E: Clone> Drop for LoadGuard<'_, E> {
    fn drop(&mut self) {
        if let Some(load) = self.load.take() {
            self.cache.shard(self.hash).lock().finish(self.key, self.hash, &load, None);
            load.complete(None);
        }
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
