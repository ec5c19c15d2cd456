//! Loading blocks of an object before they are asked for.
//!
//! [`Streams`] decides which blocks to prefetch; this module reads them. A reader keeps a [`Zfetch`] for each object that it has open.
//! Its lock is taken only on a miss in the ARC or a hit on a prefetched block. Other hits do not touch it, so prefetch costs nothing for
//! cached data, and a stream that reaches cached blocks pauses until one is missing.
//!
//! Bounds: the blocks that are being loaded for all readers together take at most [`Budget`]'s part of the cache's limit, those that one
//! stream has ahead another part of it. Blocks that are loaded and never read leave the cache by its own rules, and make their stream
//! smaller (`Gone`).

mod streams;

use std::sync::{Arc, OnceLock};

use cenote_arc::Source;
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::BlockId;
use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use cenote_taskq::{Class, for_each_concurrent};

use self::streams::{Found as Noticed, Limits, Met, Plan, Streams};
use crate::tree::{BlockTree, Found};
use crate::{Dmu, DmuError};

/// Loads on their way take at most this part of the cache's limit: one in so many.
const BUDGET_SHARE: u64 = 16;
/// A stream grows to at most this part of the cache's limit: one in so many, ...
const STREAM_SHARE: u64 = 32;
/// ... and to at most so many bytes: a disk array of 10 GB/s with 10 ms of latency needs 100 MB.
const STREAM_MAX_BYTES: u64 = 128 << 20;
/// How far a stream grows that has not been late. Like [`START_BYTES`] as kernels' own readahead goes.
const EASY_BYTES: u64 = 2 << 20;
/// The bytes that a new stream loads.
const START_BYTES: u64 = 128 << 10;
/// One task loads blocks of this many bytes together, so that small blocks do not cost a task each.
const CHUNK_BYTES: u64 = 128 << 10;

/// The bytes that may be in flight for all readers of a pool.
pub(crate) struct Budget {
    cache_limit_bytes: u64,
    loading_bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn of(cache_limit_bytes: u64) -> Self {
        Self { cache_limit_bytes, loading_bytes: AtomicU64::new(0) }
    }

    fn room_bytes(&self) -> u64 {
        (self.cache_limit_bytes / BUDGET_SHARE).saturating_sub(self.loading_bytes.load(Ordering::Relaxed))
    }
}

/// A part of the budget, until it is dropped.
struct Taken {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Taken {
    fn from(budget: &Arc<Budget>, bytes: u64) -> Self {
        budget.loading_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { budget: budget.clone(), bytes }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let before = self.budget.loading_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "what is given back was taken");
    }
}

/// Access pattern of one reader of one object. The reader gives it to each of its reads ([`crate::Object::read_prefetching`]).
pub struct Zfetch {
    state: Mutex<State>,
}

struct State {
    /// Bytes of the object's blocks. A small file's block grows with it, and what was seen of it then tells nothing.
    block_bytes: u64,
    streams: Streams,
}

/// The bounds for an object whose blocks have a size.
fn limits_of(dmu: &Dmu, block_bytes: u64, last: u64) -> Limits {
    let size = block_bytes.max(1);
    let max = (dmu.ahead.cache_limit_bytes / STREAM_SHARE).min(STREAM_MAX_BYTES) / size;
    let blocks = |bytes: u64| (bytes / size).max(2).min(max);
    Limits { distance_min: blocks(START_BYTES), distance_easy: blocks(EASY_BYTES), distance_max: max, last }
}

impl Zfetch {
    /// For a reader of an object with such blocks, which has not read anything yet.
    pub(crate) fn new(dmu: &Dmu, block_bytes: u64, last: BlockId) -> Arc<Self> {
        let limits = limits_of(dmu, block_bytes, last.0);
        Arc::new(Self { state: Mutex::new(State { block_bytes, streams: Streams::new(limits) }) })
    }

    /// Records an access, and starts to load the blocks that it predicts.
    fn access(self: &Arc<Self>, tree: &BlockTree, first: u64, count: u64) -> Noticed {
        let dmu = tree.reader().dmu();
        let (block_bytes, last) = (tree.block_bytes(), tree.last_block().0);
        let room = dmu.ahead.room_bytes() / block_bytes.max(1);
        let found = {
            let mut state = self.state.lock();
            if state.block_bytes != block_bytes {
                *state = State { block_bytes, streams: Streams::new(limits_of(dmu, block_bytes, last)) };
            }
            state.streams.set_last(last);
            state.streams.access(first, count, room)
        };
        if let Some(plan) = found.plan {
            self.load(tree, plan);
        }
        found
    }

    fn load(self: &Arc<Self>, tree: &BlockTree, plan: Plan) {
        let dmu = tree.reader().dmu();
        let size = tree.block_bytes().max(1);
        assert!(plan.count > 0 && plan.span > 0, "a plan has something to load");
        let steps_each = (CHUNK_BYTES / size / plan.span).max(1);
        let mut from = 0;
        while from < plan.count {
            let steps = steps_each.min(plan.count - from);
            let Some(first) = plan.first.checked_add_signed(plan.step.saturating_mul(from as i64)) else { return };
            from += steps;
            let part = Plan { first, count: steps, ..plan };
            let beyond = (from == plan.count).then(|| plan.beyond(tree.last_block().0)).flatten();
            let taken = Taken::from(&dmu.ahead, steps.saturating_mul(plan.span).saturating_mul(size));
            let (zfetch, tree) = (Arc::downgrade(self), tree.clone());
            let detached = dmu.detached().detach(Class::Background, async move {
                // A reader that has gone wants nothing more.
                if zfetch.strong_count() == 0 {
                    return;
                }
                for_each_concurrent(usize::MAX, part.blocks(), |block| tree.prefetch(BlockId(block))).await;
                drop(taken);
                if let Some(zfetch) = zfetch.upgrade() {
                    zfetch.state.lock().streams.loaded(part.stream, part.count);
                }
                if let Some(beyond) = beyond.filter(|_| tree.prefetches()) {
                    // The indirect blocks that the next plan goes through. It will meet any error in them.
                    let _ = tree.pointer(0, BlockId(beyond)).await;
                }
            });
            // The pool is being exported.
            if detached.is_err() {
                return;
            }
        }
    }
}

const UNREMARKABLE: u8 = 0;
const LATE: u8 = 1;
const GONE: u8 = 2;

/// One access, watched for what is to be learnt from it.
pub(crate) struct Watch {
    first: u64,
    count: u64,
    found: OnceLock<Noticed>,
    met: AtomicU8,
}

impl Watch {
    pub(crate) fn new(first: u64, count: u64) -> Self {
        assert!(count > 0, "an access reaches a block");
        Self { first, count, found: OnceLock::new(), met: AtomicU8::new(UNREMARKABLE) }
    }

    /// Takes note of the access, at the first of its blocks that was not simply there.
    fn notice(&self, tree: &BlockTree, zfetch: &Arc<Zfetch>) -> Noticed {
        *self.found.get_or_init(|| zfetch.access(tree, self.first, self.count))
    }

    /// Takes note of a block of the access that was in the cache.
    pub(crate) fn met_resident(&self, source: Source, tree: &BlockTree, zfetch: &Arc<Zfetch>) {
        debug_assert!(
            matches!(source, Source::Resident | Source::Prefetched),
            "a block in the cache was not waited for"
        );
        self.meet(source, tree, zfetch);
    }

    /// The data block `block` of `tree`, which is part of the access.
    pub(crate) async fn block(
        &self,
        tree: &BlockTree,
        block: BlockId,
        zfetch: &Arc<Zfetch>,
    ) -> Result<Option<(Block, Endian)>, DmuError> {
        assert!(
            block.0.checked_sub(self.first).is_some_and(|at| at < self.count),
            "a block that is watched is one of the access"
        );
        let on_miss = || {
            self.notice(tree, zfetch);
        };
        let found = tree.find_block(block, on_miss).await?;
        let Some((block, order, source)) = found else { return Ok(None) };
        self.meet(source, tree, zfetch);
        Ok(Some((block, order)))
    }

    /// The data block `block` of `tree`, which is part of the access, and which `pointer` points to.
    pub(crate) async fn load(
        &self,
        tree: &BlockTree,
        block: BlockId,
        pointer: &Blkptr,
        zfetch: &Arc<Zfetch>,
    ) -> Result<Found, DmuError> {
        let on_miss = || {
            self.notice(tree, zfetch);
        };
        let found = tree.load(block, pointer, on_miss).await?;
        self.meet(found.2, tree, zfetch);
        Ok(found)
    }

    /// Takes note of the place that a block of the access came from.
    fn meet(&self, source: Source, tree: &BlockTree, zfetch: &Arc<Zfetch>) {
        let met = match source {
            Source::Resident => UNREMARKABLE,
            Source::Prefetched => {
                self.notice(tree, zfetch);
                UNREMARKABLE
            }
            Source::Joined if self.notice(tree, zfetch).planned => LATE,
            Source::Joined => UNREMARKABLE,
            Source::Loaded => match self.notice(tree, zfetch) {
                Noticed { planned: true, loaded: true, .. } => GONE,
                Noticed { planned: true, .. } => LATE,
                _ => UNREMARKABLE,
            },
        };
        if met != UNREMARKABLE {
            self.met.fetch_max(met, Ordering::Relaxed);
        }
    }

    /// Passes on what was learnt, once, when the access is over.
    pub(crate) fn tell(&self, zfetch: &Zfetch) {
        let met = match self.met.load(Ordering::Relaxed) {
            LATE => Met::Late,
            GONE => Met::Gone,
            _ => return,
        };
        if let Some(stream) = self.found.get().and_then(|found| found.stream) {
            zfetch.state.lock().streams.met(stream, met);
        }
    }
}
