//! The pool: memory between two buffers.
//!
//! ```text
//!   Buf --drop--> the thread's own store --full--> shared, warm --over the limit--> shared, cold (no pages)
//!   Buf <--take-- the thread's own store <-empty-- shared, warm <------ none ------ cold <-- none -- a new mapping
//! ```
//!
//! Memory is in classes. Up to 3.5 KiB they are the multiples of 512, cut from *slabs* of 16 KiB; a slab whose pieces are
//! all back is a run of 16 KiB like another. From 4 KiB to 16 MiB they are quarter steps between powers of two, so at most
//! a fifth is wasted; each is whole pages, and so any one of them can go back to the kernel alone. A larger buffer is
//! mapped exactly and not kept: no block of a pool is larger.
//!
//! Limits: the shared store keeps at most the pool's limit warm, a thread at most a share of it ([`set_buffer_pool_limit_bytes`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::pages::{PAGE_BYTES, Run, out_of_memory};
use super::{ALIGNMENT_BYTES, SMALL_ALIGNMENT_BYTES};

const CLASS_SIZE_MAX_BYTES: usize = 16 << 20;
const SMALL_CLASS_COUNT: usize = ALIGNMENT_BYTES / SMALL_ALIGNMENT_BYTES - 1;
const CLASS_COUNT: usize = SMALL_CLASS_COUNT + 44;
const SLAB_BYTES: usize = 16 << 10;

/// Addresses are asked of the kernel in stretches of at least this. They take memory only as they are touched.
const STRETCH_MIN_BYTES: usize = 4 << 20;

/// A thread keeps at most this much of its own, and at most this many of a class, before it gives to the shared store.
/// Chosen by eye: a queue depth of 32 at 4 KiB, or a few large blocks.
const LOCAL_LIMIT_MAX_BYTES: usize = 4 << 20;
const LOCAL_COUNT_MAX: usize = 64;
/// The limits of a batch that moves between a thread's store and the shared one, so that few moves take the lock.
const BATCH_COUNT_MAX: usize = 16;
const BATCH_SIZE_MAX_BYTES: usize = 256 << 10;

static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);
static POOLED_BYTES: AtomicUsize = AtomicUsize::new(0);
static POOL_LIMIT_BYTES: AtomicUsize = AtomicUsize::new(64 << 20);
static LOCAL_LIMIT_BYTES: AtomicUsize = AtomicUsize::new(LOCAL_LIMIT_MAX_BYTES);
/// The lower bound for the limit.
static POOL_FLOOR_BYTES: AtomicUsize = AtomicUsize::new(0);
static DEPOTS: [Mutex<Depot>; CLASS_COUNT] = [const { Mutex::new(Depot::new()) }; CLASS_COUNT];

/// Runs in each class's shared store, so that a thread that looks for some need not take every lock.
static WARM_COUNTS: [AtomicUsize; CLASS_COUNT] = [const { AtomicUsize::new(0) }; CLASS_COUNT];

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::new(Local::default());
}

/// The memory of this process's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufStats {
    /// Bytes of memory in live buffers and blocks (capacity, not length) and in the pool. Counted when memory is taken
    /// from the kernel or goes back to it, so what a thread keeps for reuse is part of it.
    pub allocated_bytes: u64,
    /// Bytes waiting in the shared pool for reuse.
    pub pooled_bytes: u64,
}

/// The memory that this process's buffers hold now.
pub fn stats() -> BufStats {
    BufStats {
        allocated_bytes: ALLOCATED_BYTES.load(Ordering::Relaxed),
        pooled_bytes: POOLED_BYTES.load(Ordering::Relaxed) as u64,
    }
}

/// Bounds the memory kept for reuse to `limit_bytes` (default 64 MiB) in the shared pool and an eighth of that, or 4 MiB if
/// that is less, for each thread that uses buffers. Any excess in the shared pool goes back to the kernel now.
pub fn set_buffer_pool_limit_bytes(limit_bytes: usize) {
    let limit_bytes = limit_bytes.max(POOL_FLOOR_BYTES.load(Ordering::Relaxed));
    POOL_LIMIT_BYTES.store(limit_bytes, Ordering::Relaxed);
    LOCAL_LIMIT_BYTES.store((limit_bytes / 8).min(LOCAL_LIMIT_MAX_BYTES), Ordering::Relaxed);
    trim(CLASS_COUNT, limit_bytes);
}

/// Sets a lower bound of `floor_bytes` for the limit from now on. For programs that open thousands of small pools one after the other: each
/// pool sets a low limit of its own, and the process would give memory back to the kernel after each and ask for it again.
pub fn set_buffer_pool_floor_bytes(floor_bytes: usize) {
    POOL_FLOOR_BYTES.store(floor_bytes, Ordering::Relaxed);
    raise_buffer_pool_limit_bytes(floor_bytes);
}

/// Has the pool keep at least `limit_bytes`; where it may keep more already nothing changes. For users that free much memory at once and
/// take it again: a txg's blocks come back all at once when it is on disk, to be used for the next.
pub fn raise_buffer_pool_limit_bytes(limit_bytes: usize) {
    let before = POOL_LIMIT_BYTES.fetch_max(limit_bytes, Ordering::Relaxed);
    let local = (limit_bytes.max(before) / 8).min(LOCAL_LIMIT_MAX_BYTES);
    LOCAL_LIMIT_BYTES.store(local, Ordering::Relaxed);
}

/// Bytes of memory that a buffer of `len` bytes takes, its share of a slab's waste included.
pub fn memory_bytes_of(len: usize) -> usize {
    match class(len) {
        Some((class, capacity)) if class < SMALL_CLASS_COUNT => SLAB_BYTES / (SLAB_BYTES / capacity),
        Some((_, capacity)) => capacity,
        None => len.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(usize::MAX),
    }
}

/// The class that holds `len` bytes and its size, or `None` for what is mapped exactly.
fn class(len: usize) -> Option<(usize, usize)> {
    if len > CLASS_SIZE_MAX_BYTES {
        return None;
    }
    let sectors = len.div_ceil(SMALL_ALIGNMENT_BYTES).max(1);
    if sectors <= SMALL_CLASS_COUNT {
        return Some((sectors - 1, sectors * SMALL_ALIGNMENT_BYTES));
    }
    let pages = len.div_ceil(ALIGNMENT_BYTES);
    // Below 4 pages every count is its own class; above, four steps to a doubling.
    if pages <= 4 {
        return Some((SMALL_CLASS_COUNT + pages - 1, pages * ALIGNMENT_BYTES));
    }
    let log = (pages - 1).ilog2() as usize;
    let step = 1usize << (log - 2);
    let steps = pages.div_ceil(step);
    Some((SMALL_CLASS_COUNT + (log - 2) * 4 + steps - 1, steps * step * ALIGNMENT_BYTES))
}

/// A buffer's memory; goes to the pool with its holder.
pub(super) struct Memory(Run);

impl Memory {
    /// Memory for `len` bytes, all of it initialised; the first `len` zero if `zero`.
    pub(super) fn take(len: usize, zero: bool) -> Memory {
        let (run, clean) = match class(len) {
            Some((class, capacity)) => match LOCAL.try_with(|local| local.borrow_mut().take(class, capacity)) {
                Ok(Some(run)) => (run, false),
                _ => draw(class, capacity),
            },
            None => (map_exactly(len.next_multiple_of(ALIGNMENT_BYTES)), true),
        };
        let mut memory = Memory(run);
        if zero && !clean {
            memory.bytes_mut()[..len].fill(0);
        } else if !zero && cfg!(debug_assertions) {
            // Old content must not make a run depend on what ran before it.
            memory.bytes_mut()[..len].fill(0xA5);
        }
        memory
    }

    pub(super) fn capacity(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let run = self.0.take();
        let Some((class, _)) = class(run.len()) else {
            ALLOCATED_BYTES.fetch_sub(run.len() as u64, Ordering::Relaxed);
            return run.unmap();
        };
        // A buffer may be dropped while its thread's own store is being torn down; then it is shared.
        let mut run = Some(run);
        let _ = LOCAL.try_with(|local| {
            if let (Ok(mut local), Some(taken)) = (local.try_borrow_mut(), run.take()) {
                run = local.give(class, taken);
            }
        });
        if let Some(run) = run {
            give(class, run);
        }
    }
}

/// The store of one thread.
#[derive(Default)]
struct Local {
    classes: Vec<Vec<Run>>,
    held_bytes: usize,
}

impl Local {
    fn take(&mut self, class: usize, capacity: usize) -> Option<Run> {
        if self.classes.is_empty() {
            self.classes.resize_with(CLASS_COUNT, Vec::new);
        }
        let kept = &mut self.classes[class];
        if kept.is_empty() && class >= SMALL_CLASS_COUNT {
            let count = (BATCH_SIZE_MAX_BYTES / capacity).min(BATCH_COUNT_MAX);
            let warm = &mut DEPOTS[class].lock().warm;
            kept.extend(warm.drain(warm.len() - count.min(warm.len())..));
            WARM_COUNTS[class].store(warm.len(), Ordering::Relaxed);
            let bytes = kept.len() * capacity;
            POOLED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
            self.held_bytes += bytes;
        }
        let run = kept.pop()?;
        debug_assert_eq!(run.len(), capacity);
        self.held_bytes -= capacity;
        Some(run)
    }

    /// Keeps the run, or gives it back. Runs over the limits go to the shared store, some at a time.
    fn give(&mut self, class: usize, run: Run) -> Option<Run> {
        let capacity = run.len();
        let limit = LOCAL_LIMIT_BYTES.load(Ordering::Relaxed);
        if capacity > limit {
            return Some(run);
        }
        if self.classes.is_empty() {
            self.classes.resize_with(CLASS_COUNT, Vec::new);
        }
        if self.held_bytes + capacity > limit {
            self.shrink(class, (limit / 2).saturating_sub(capacity));
        }
        let kept = &mut self.classes[class];
        if kept.len() >= LOCAL_COUNT_MAX {
            self.held_bytes -= BATCH_COUNT_MAX * capacity;
            kept.drain(..BATCH_COUNT_MAX).for_each(|run| give(class, run));
        }
        self.held_bytes += capacity;
        self.classes[class].push(run);
        None
    }

    /// Gives up memory until no more than `limit_bytes` are held, of other classes than `class` first: this thread uses
    /// that one now.
    fn shrink(&mut self, class: usize, limit_bytes: usize) {
        for other in (0..CLASS_COUNT).filter(|other| *other != class).chain([class]) {
            while self.held_bytes > limit_bytes {
                let Some(run) = self.classes[other].pop() else { break };
                self.held_bytes -= run.len();
                give(other, run);
            }
        }
    }
}

/// A thread that ends leaves what it kept to the others.
impl Drop for Local {
    fn drop(&mut self) {
        for (class, runs) in self.classes.drain(..).enumerate() {
            runs.into_iter().for_each(|run| give(class, run));
        }
    }
}

/// The shared memory of a class.
struct Depot {
    /// With their pages, for classes of whole pages.
    warm: Vec<Run>,
    /// Without pages: zero when they are used again.
    cold: Vec<Run>,
    /// The rest of the newest stretch of addresses.
    fresh: Option<Run>,
    /// For small classes: the free pieces of slabs, those of the lowest address used first so that others become whole.
    slabs: BTreeMap<usize, Vec<Run>>,
}

impl Depot {
    const fn new() -> Depot {
        Depot { warm: Vec::new(), cold: Vec::new(), fresh: None, slabs: BTreeMap::new() }
    }

    fn untouched(&mut self, capacity: usize) -> Run {
        if let Some(run) = self.cold.pop() {
            return run;
        }
        if self.fresh.as_ref().is_none_or(|fresh| fresh.len() < capacity) {
            let stretch = STRETCH_MIN_BYTES.max(4 * capacity) / capacity * capacity;
            let mapped = Run::map_aligned(stretch, SLAB_BYTES).or_else(|| Run::map_aligned(capacity, SLAB_BYTES));
            self.fresh = Some(mapped.unwrap_or_else(|| out_of_memory(capacity)));
        }
        match &mut self.fresh {
            Some(fresh) => fresh.split_front(capacity),
            None => unreachable!("just set"),
        }
    }
}

/// Memory of a class from the shared store or the kernel, and whether it is zero.
fn draw(class: usize, capacity: usize) -> (Run, bool) {
    if class >= SMALL_CLASS_COUNT {
        let mut depot = DEPOTS[class].lock();
        if let Some(run) = depot.warm.pop() {
            WARM_COUNTS[class].store(depot.warm.len(), Ordering::Relaxed);
            POOLED_BYTES.fetch_sub(capacity, Ordering::Relaxed);
            return (run, false);
        }
        ALLOCATED_BYTES.fetch_add(capacity as u64, Ordering::Relaxed);
        return (depot.untouched(capacity), true);
    }
    if let Some(run) = take_piece(&mut DEPOTS[class].lock()) {
        return (run, false);
    }
    let (slab_class, _) = self::class(SLAB_BYTES).expect("slabs are of a class");
    let (mut slab, _) = draw(slab_class, SLAB_BYTES);
    let address = slab.address();
    let mut pieces: Vec<Run> = (0..SLAB_BYTES / capacity).map(|_| slab.split_front(capacity)).collect();
    let piece = pieces.pop().expect("a slab has pieces");
    if !pieces.is_empty() {
        DEPOTS[class].lock().slabs.insert(address, pieces);
    }
    (piece, false)
}

fn take_piece(depot: &mut Depot) -> Option<Run> {
    let mut slab = depot.slabs.first_entry()?;
    let piece = slab.get_mut().pop();
    if slab.get().is_empty() {
        slab.remove();
    }
    piece
}

/// Gives memory to the shared store, or to the kernel if that is full.
fn give(class: usize, run: Run) {
    let capacity = run.len();
    if class < SMALL_CLASS_COUNT {
        let address = run.address() & !(SLAB_BYTES - 1);
        let mut depot = DEPOTS[class].lock();
        let pieces = depot.slabs.entry(address).or_default();
        pieces.push(run);
        if pieces.len() < SLAB_BYTES / capacity {
            return;
        }
        let pieces = depot.slabs.remove(&address).unwrap_or_default();
        drop(depot);
        let (slab_class, _) = self::class(SLAB_BYTES).expect("slabs are of a class");
        return give(slab_class, Run::join(pieces, SLAB_BYTES));
    }
    let pooled = POOLED_BYTES.fetch_add(capacity, Ordering::Relaxed) + capacity;
    let mut depot = DEPOTS[class].lock();
    depot.warm.push(run);
    WARM_COUNTS[class].store(depot.warm.len(), Ordering::Relaxed);
    drop(depot);
    let limit = POOL_LIMIT_BYTES.load(Ordering::Relaxed);
    if pooled > limit {
        trim(class, limit);
    }
}

/// Cools shared memory until no more than `limit_bytes` are warm, of other classes than `class` first: what was just
/// given will soon be wanted, what has lain there while it was not may not.
fn trim(class: usize, limit_bytes: usize) {
    for other in (SMALL_CLASS_COUNT..CLASS_COUNT).filter(|other| *other != class).chain([class]) {
        while POOLED_BYTES.load(Ordering::Relaxed) > limit_bytes
            && WARM_COUNTS.get(other).is_some_and(|count| count.load(Ordering::Relaxed) > 0)
        {
            let mut depot = DEPOTS[other].lock();
            if depot.warm.is_empty() {
                break;
            }
            // The one that has lain there longest, or nearly.
            let run = depot.warm.swap_remove(0);
            WARM_COUNTS[other].store(depot.warm.len(), Ordering::Relaxed);
            drop(depot);
            POOLED_BYTES.fetch_sub(run.len(), Ordering::Relaxed);
            cool(other, run);
        }
    }
}

/// Gives a run's pages back to the kernel.
fn cool(class: usize, mut run: Run) {
    if !run.decommit() {
        // It happens where pages are larger than ours. Then the memory stays, and must be cleared for the next holder.
        run.bytes_mut().fill(0);
    }
    ALLOCATED_BYTES.fetch_sub(run.len() as u64, Ordering::Relaxed);
    DEPOTS[class].lock().cold.push(run);
}

fn map_exactly(len: usize) -> Run {
    let run = Run::map(len).unwrap_or_else(|| out_of_memory(len));
    ALLOCATED_BYTES.fetch_add(len as u64, Ordering::Relaxed);
    run
}

const _: () = assert!(ALIGNMENT_BYTES == PAGE_BYTES && SLAB_BYTES.is_multiple_of(PAGE_BYTES));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_class_wastes_at_most_a_fifth_and_classes_ascend() {
        let mut last = (0, 0);
        for pages in 1..=4096usize {
            let len = pages * ALIGNMENT_BYTES;
            let (class, capacity) = class(len).expect("within the classes");
            assert!(capacity >= len && (capacity - len) * 5 <= capacity, "{pages} pages in {capacity}");
            assert!((class, capacity) == last || (class == last.0 + 1 || pages == 1) && capacity > last.1);
            assert_eq!(self::class(capacity), Some((class, capacity)), "a class's own size is of that class");
            last = (class, capacity);
        }
        assert_eq!(last.0, CLASS_COUNT - 1);
        assert_eq!(class(4096 * 4096 + 1), None);
        for len in 0..ALIGNMENT_BYTES {
            let (class, capacity) = class(len).expect("within the classes");
            assert!(capacity >= len && capacity < len + SMALL_ALIGNMENT_BYTES + usize::from(len == 0));
            assert_eq!(class < SMALL_CLASS_COUNT, capacity < ALIGNMENT_BYTES);
            let share = memory_bytes_of(len);
            assert!(share >= capacity && share * (SLAB_BYTES / capacity) <= SLAB_BYTES || capacity == ALIGNMENT_BYTES);
        }
    }

    /// Small pieces are cut from slabs, keep to themselves, and make the slab whole again in the end.
    #[test]
    fn a_slab_of_small_pieces_becomes_whole_again() {
        // Not through a thread's store, and of a class that nothing else in this process is likely to use.
        let (class, capacity) = class(3000).expect("a class");
        let mut held: Vec<Run> = (0..57).map(|_| draw(class, capacity).0).collect();
        for (mark, run) in held.iter_mut().enumerate() {
            run.bytes_mut().fill(mark as u8);
        }
        assert!(held.iter().enumerate().all(|(mark, run)| run.bytes().iter().all(|&byte| byte == mark as u8)));
        let slabs =
            |held: &[Run]| held.iter().map(|run| run.address() / SLAB_BYTES).collect::<std::collections::BTreeSet<_>>();
        let touched = slabs(&held);
        assert!(touched.len() <= 57_usize.div_ceil(SLAB_BYTES / capacity) + 1);
        // Every other first, so that slabs are partly free for a while.
        let (odd, even): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(index, _)| index % 2 == 1);
        odd.into_iter().chain(even).for_each(|(_, run)| give(class, run));
        let depot = DEPOTS[class].lock();
        assert!(
            touched.iter().all(|slab| !depot.slabs.contains_key(&(slab * SLAB_BYTES))),
            "a slab was not made whole"
        );
    }

    /// Sequential reads with a small cache: each block that is evicted makes room for the next. A pool that was full of
    /// small memory and refused the large would have every page given to the kernel and taken back.
    #[test]
    fn what_was_given_last_is_kept_before_what_was_not_wanted() {
        let (small, small_bytes) = class(40 << 10).expect("a class");
        let (large, large_bytes) = class(7 << 20).expect("a class");
        let limit = POOL_LIMIT_BYTES.load(Ordering::Relaxed);
        let runs: Vec<_> = (0..2 * limit / small_bytes).map(|_| draw(small, small_bytes).0).collect();
        runs.into_iter().for_each(|run| give(small, run));
        for _ in 0..3 {
            let (run, _) = draw(large, large_bytes);
            give(large, run);
            assert!(WARM_COUNTS[large].load(Ordering::Relaxed) > 0);
        }
    }

    #[test]
    fn what_the_pool_does_not_keep_leaves_the_process() {
        let (class, capacity) = class(9 << 20).expect("a class");
        let (mut run, _) = draw(class, capacity);
        run.bytes_mut().fill(1);
        let address = run.address();
        cool(class, run);
        let (run, clean) = draw(class, capacity);
        assert!(clean && run.address() == address && run.bytes().iter().all(|&byte| byte == 0));
        give(class, run);
    }
}
