//! Page-aligned buffers, unique ([`Buf`]) and shared ([`Block`]).
//!
//! Every byte that moves between a device and a front end lives in one of these. A [`Buf`] is owned by one holder and
//! writable; [`Buf::freeze`] makes it a [`Block`], which is read-only, cheap to clone and cheap to slice, without a
//! copy. Memory is aligned to a page so that `O_DIRECT` accepts it, comes in size classes, and returns to a bounded
//! process-wide pool when its last holder lets go, which spares the kernel's page faults on the I/O path.
//!
//! This is one of the crate's modules with unsafe code: it owns raw allocations. The invariants are
//! 1. `Buf::memory` points at `capacity` bytes, all initialised, allocated with `layout(capacity)`;
//! 2. exactly one `Buf` or one pool entry holds an allocation at any time;
//! 3. `len <= capacity`.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use pool::Memory;

/// Alignment of every buffer's memory and the granularity of its capacity: the page, which no device's sector exceeds
/// in practice.
pub const ALIGNMENT_BYTES: usize = 4096;

/// An owned, writable, page-aligned buffer.
pub struct Buf {
    memory: Memory,
    len: usize,
}

impl Buf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        Buf { memory: Memory::take(len, true), len }
    }

    /// A buffer of `len` bytes of unspecified content, for a reader that will fill all of it: spares the clearing.
    pub fn unfilled(len: usize) -> Buf {
        Buf { memory: Memory::take(len, false), len }
    }

    /// A buffer with a copy of `bytes`.
    pub fn copied_from(bytes: &[u8]) -> Buf {
        let mut buf = Buf::unfilled(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long the buffer can become without new memory.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Shortens the buffer to `len`, or leaves it if it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer read-only and shareable, without a copy.
    pub fn freeze(self) -> Block {
        let end = self.len;
        Block { owner: Owner::Shared(Arc::new(Content::Buf(self))), start: 0, end }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// What a shared block's bytes lie in.
enum Content {
    Buf(Buf),
    Vec(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Buf(buf) => buf,
            Content::Vec(vec) => vec,
        }
    }
}

#[derive(Clone)]
enum Owner {
    Shared(Arc<Content>),
    Static(&'static [u8]),
}

/// A shared, read-only range of bytes. Cloning and slicing copy no bytes.
#[derive(Clone)]
pub struct Block {
    owner: Owner,
    start: usize,
    end: usize,
}

impl Block {
    /// A block of no bytes.
    pub const fn empty() -> Block {
        Block { owner: Owner::Static(&[]), start: 0, end: 0 }
    }

    /// A block over bytes that live for ever.
    pub const fn from_static(bytes: &'static [u8]) -> Block {
        Block { owner: Owner::Static(bytes), start: 0, end: bytes.len() }
    }

    /// A block with a copy of `bytes`.
    pub fn copied_from(bytes: &[u8]) -> Block {
        Buf::copied_from(bytes).freeze()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The part of this block in `range`, sharing its memory.
    ///
    /// # Panics
    /// When the range does not lie inside the block, as slicing does. [`Block::try_slice`] reports it instead.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Block {
        self.try_slice(range).expect("a slice lies inside its block")
    }

    /// The part of this block in `range`, or `None` when the range does not lie inside it.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<Block> {
        let from = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&at) => at.checked_add(1)?,
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        if from > to || to > self.len() {
            return None;
        }
        Some(Block { owner: self.owner.clone(), start: self.start + from, end: self.start + to })
    }

    /// The buffer back, when this block is its only holder and covers all of it; otherwise the block unchanged.
    pub fn try_into_buf(self) -> Result<Buf, Block> {
        let Block { owner, start, end } = self;
        match owner {
            Owner::Shared(shared) if start == 0 && end == shared.bytes().len() => match Arc::try_unwrap(shared) {
                Ok(Content::Buf(buf)) => Ok(buf),
                Ok(content) => Err(Block { owner: Owner::Shared(Arc::new(content)), start, end }),
                Err(shared) => Err(Block { owner: Owner::Shared(shared), start, end }),
            },
            owner => Err(Block { owner, start, end }),
        }
    }

    /// An owned, writable buffer of these bytes: the block's own if nobody else holds it, a copy otherwise.
    pub fn into_buf(self) -> Buf {
        self.try_into_buf().unwrap_or_else(|block| Buf::copied_from(&block))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::Shared(shared) => &shared.bytes()[self.start..self.end],
            Owner::Static(bytes) => &bytes[self.start..self.end],
        }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Block {
    fn default() -> Block {
        Block::empty()
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        let end = bytes.len();
        Block { owner: Owner::Shared(Arc::new(Content::Vec(bytes))), start: 0, end }
    }
}

impl From<Buf> for Block {
    fn from(buf: Buf) -> Block {
        buf.freeze()
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        **self == **other
    }
}

impl Eq for Block {}

impl PartialEq<[u8]> for Block {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

pub use pool::{BufStats, set_pool_limit_bytes, stats};

/// The pool of raw memory.
mod pool {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::*;

    /// Classes are quarter steps between powers of two from 4 KiB to 16 MiB, so at most a fifth is wasted. What is
    /// larger is allocated exactly and not kept: no block of a pool is larger.
    const CLASS_SIZE_MAX_BYTES: usize = 16 << 20;
    const CLASS_COUNT: usize = 44;

    /// A thread keeps at most this much of its own, and at most this many of a class, before it gives to the shared
    /// pool. Chosen by eye: a queue depth of 32 at 4 KiB, or a few large blocks.
    const LOCAL_LIMIT_BYTES: usize = 4 << 20;
    const LOCAL_COUNT_MAX: usize = 32;

    static OUTSTANDING_BYTES: AtomicU64 = AtomicU64::new(0);
    static POOLED_BYTES: AtomicUsize = AtomicUsize::new(0);
    static POOL_LIMIT_BYTES: AtomicUsize = AtomicUsize::new(64 << 20);
    static SHARED: [parking_lot::Mutex<Vec<Memory>>; CLASS_COUNT] =
        [const { parking_lot::Mutex::new(Vec::new()) }; CLASS_COUNT];

    thread_local! {
        static LOCAL: RefCell<Local> = RefCell::new(Local::default());
    }

    #[derive(Default)]
    struct Local {
        classes: Vec<Vec<Memory>>,
        held_bytes: usize,
    }

    /// What the buffers of this process hold.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufStats {
        /// Bytes of memory in live buffers and blocks (capacity, not length), large and unpooled ones included. Counted
        /// when memory enters or leaves the allocator, so what a thread keeps for reuse is part of it.
        pub allocated_bytes: u64,
        /// Bytes waiting in the shared pool for reuse.
        pub pooled_bytes: u64,
    }

    /// What the buffers of this process hold now.
    pub fn stats() -> BufStats {
        BufStats {
            allocated_bytes: OUTSTANDING_BYTES.load(Ordering::Relaxed),
            pooled_bytes: POOLED_BYTES.load(Ordering::Relaxed) as u64,
        }
    }

    /// Bounds the shared pool to `limit_bytes` (default 64 MiB). What it holds above that is freed as it is passed.
    pub fn set_pool_limit_bytes(limit_bytes: usize) {
        POOL_LIMIT_BYTES.store(limit_bytes, Ordering::Relaxed);
    }

    /// The class that holds `len` bytes and its size, or `None` for what is allocated exactly.
    pub(super) fn class(len: usize) -> Option<(usize, usize)> {
        if len > CLASS_SIZE_MAX_BYTES {
            return None;
        }
        let pages = len.div_ceil(ALIGNMENT_BYTES).max(1);
        // Below 4 pages every count is its own class; above, four steps to a doubling.
        if pages <= 4 {
            return Some((pages - 1, pages * ALIGNMENT_BYTES));
        }
        let log = (pages - 1).ilog2() as usize;
        let step = 1usize << (log - 2);
        let steps = pages.div_ceil(step);
        Some(((log - 2) * 4 + steps - 1, steps * step * ALIGNMENT_BYTES))
    }

    /// One raw allocation: see the module's invariants.
    pub(super) struct Memory {
        start: NonNull<u8>,
        capacity: usize,
    }

    // SAFETY: a Memory is the only holder of its allocation, which has no tie to a thread.
    unsafe impl Send for Memory {}
    // SAFETY: shared access to a Memory only reads its bytes.
    unsafe impl Sync for Memory {}

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT_BYTES).expect("a buffer's size is far from the address space's")
    }

    impl Memory {
        pub(super) fn take(len: usize, zero: bool) -> Memory {
            let Some((class, capacity)) = class(len) else {
                return Memory::allocate(len.next_multiple_of(ALIGNMENT_BYTES));
            };
            let reused =
                LOCAL.try_with(|local| local.borrow_mut().take(class, capacity)).ok().flatten().or_else(|| {
                    let memory = SHARED[class].try_lock()?.pop()?;
                    POOLED_BYTES.fetch_sub(memory.capacity, Ordering::Relaxed);
                    Some(memory)
                });
            match reused {
                Some(mut memory) => {
                    if zero {
                        memory.bytes_mut()[..len].fill(0);
                    } else if cfg!(debug_assertions) {
                        // Old content must not make a run depend on what ran before it.
                        memory.bytes_mut()[..len].fill(0xA5);
                    }
                    memory
                }
                None => Memory::allocate(capacity),
            }
        }

        fn allocate(capacity: usize) -> Memory {
            let layout = layout(capacity.max(ALIGNMENT_BYTES));
            // SAFETY: the layout's size is not zero.
            let start = unsafe { std::alloc::alloc_zeroed(layout) };
            let Some(start) = NonNull::new(start) else { std::alloc::handle_alloc_error(layout) };
            OUTSTANDING_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
            Memory { start, capacity: layout.size() }
        }

        pub(super) fn capacity(&self) -> usize {
            self.capacity
        }

        pub(super) fn bytes(&self) -> &[u8] {
            // SAFETY: invariant 1; the borrow of self keeps the allocation alive and unwritten.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
        }

        pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: invariants 1 and 2; the exclusive borrow of self makes this the only access.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
        }

        /// Takes this memory out for a pool, leaving nothing to free behind.
        fn steal(&mut self) -> Memory {
            let memory = Memory { start: self.start, capacity: self.capacity };
            self.capacity = 0;
            memory
        }

        fn release(&mut self) {
            if self.capacity == 0 {
                return;
            }
            OUTSTANDING_BYTES.fetch_sub(self.capacity as u64, Ordering::Relaxed);
            // SAFETY: invariants 1 and 2: allocated with this layout, and this is the only holder, at its end.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout(self.capacity)) };
            self.capacity = 0;
        }
    }

    impl Local {
        fn take(&mut self, class: usize, capacity: usize) -> Option<Memory> {
            let memory = self.classes.get_mut(class)?.pop()?;
            debug_assert_eq!(memory.capacity, capacity);
            self.held_bytes -= memory.capacity;
            Some(memory)
        }

        fn give(&mut self, class: usize, memory: Memory) -> Result<(), Memory> {
            if self.held_bytes + memory.capacity > LOCAL_LIMIT_BYTES {
                return Err(memory);
            }
            if self.classes.is_empty() {
                self.classes.resize_with(CLASS_COUNT, Vec::new);
            }
            let Some(kept) = self.classes.get_mut(class) else { return Err(memory) };
            if kept.len() >= LOCAL_COUNT_MAX {
                return Err(memory);
            }
            self.held_bytes += memory.capacity;
            kept.push(memory);
            Ok(())
        }
    }

    /// A thread that ends frees what it kept: `Pooled` memory is released, not given to a pool again.
    impl Drop for Local {
        fn drop(&mut self) {
            for mut memory in self.classes.drain(..).flatten() {
                memory.release();
            }
        }
    }

    fn give_shared(class: usize, mut memory: Memory) {
        let capacity = memory.capacity;
        if POOLED_BYTES.fetch_add(capacity, Ordering::Relaxed) + capacity <= POOL_LIMIT_BYTES.load(Ordering::Relaxed)
            && let Some(mut shared) = SHARED[class].try_lock()
        {
            shared.push(memory);
            return;
        }
        POOLED_BYTES.fetch_sub(capacity, Ordering::Relaxed);
        memory.release();
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            if self.capacity == 0 {
                return;
            }
            match class(self.capacity) {
                Some((class, capacity)) if capacity == self.capacity => {
                    let memory = self.steal();
                    // A buffer may be dropped while its thread's own store is being torn down; then it is shared.
                    let mut memory = Some(memory);
                    let _ = LOCAL.try_with(|local| {
                        if let (Ok(mut local), Some(taken)) = (local.try_borrow_mut(), memory.take()) {
                            memory = local.give(class, taken).err();
                        }
                    });
                    if let Some(memory) = memory {
                        give_shared(class, memory);
                    }
                }
                _ => self.release(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_class_wastes_at_most_a_fifth_and_classes_ascend() {
        let mut last = (0, 0);
        for pages in 1..=4096usize {
            let len = pages * ALIGNMENT_BYTES;
            let (class, capacity) = pool::class(len).expect("within the classes");
            assert!(capacity >= len && (capacity - len) * 5 <= capacity, "{pages} pages in {capacity}");
            assert!((class, capacity) == last || (class == last.0 + 1 || pages == 1) && capacity > last.1);
            assert_eq!(pool::class(capacity), Some((class, capacity)), "a class's own size is of that class");
            last = (class, capacity);
        }
        assert!(last.0 == 43);
        assert_eq!(pool::class(4096 * 4096 + 1), None);
    }

    #[test]
    fn reused_memory_is_clean_when_zeroed() {
        for _ in 0..4 {
            let mut buf = Buf::zeroed(5000);
            assert!(buf.iter().all(|&byte| byte == 0));
            assert_eq!(buf.as_ptr().align_offset(ALIGNMENT_BYTES), 0);
            buf.fill(0xFF);
        }
    }

    #[test]
    fn slices_share_memory_and_the_last_holder_gets_the_buffer_back() {
        let mut buf = Buf::zeroed(8192);
        buf[4096] = 7;
        let block = buf.freeze();
        let part = block.slice(4096..);
        assert_eq!(part[0], 7);
        assert_eq!(part.as_ptr(), block[4096..].as_ptr());
        let block = block.try_into_buf().expect_err("the slice holds it too");
        drop(part);
        assert_eq!(block.try_into_buf().expect("sole holder").len(), 8192);
        assert!(Block::from(vec![1, 2, 3]).try_slice(2..9).is_none());
        assert_eq!(Block::from(vec![1, 2, 3]).slice(1..=1)[..], [2]);
    }

    #[test]
    fn buffers_may_end_on_other_threads_than_they_began() {
        let threads: Vec<_> = (0..3u8)
            .map(|mark| {
                let mut buf = Buf::zeroed(9000);
                buf.fill(mark);
                let block = buf.freeze();
                std::thread::spawn(move || {
                    let other = block.slice(4000..);
                    drop(block);
                    assert!(other.iter().all(|&byte| byte == mark));
                    other
                })
            })
            .collect();
        for (mark, thread) in threads.into_iter().enumerate() {
            let block = thread.join().expect("no panic");
            assert!(block.iter().all(|&byte| byte as usize == mark));
            assert!(Buf::zeroed(9000).iter().all(|&byte| byte == 0));
        }
        let stats = stats();
        assert!(stats.pooled_bytes <= stats.allocated_bytes);
    }

    #[test]
    fn large_buffers_are_exact_and_leave_with_their_holder() {
        let buf = Buf::zeroed((16 << 20) + 1);
        assert_eq!(buf.capacity(), (16 << 20) + 4096);
        drop(buf);
    }
}
