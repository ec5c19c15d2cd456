//! A counting allocator, so that memory out of bounds is seen before it is had.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that one mutation may have allocated at once, beyond what the images take: the cache, blocks in flight, and
/// what a hostile size makes of them.
pub const LIMIT_BYTES: usize = 512 << 20;

static NOW_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The bytes allocated when the trial began.
static GROUND_BYTES: AtomicUsize = AtomicUsize::new(0);
/// No allocation may lead beyond this.
static CEILING_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The seed under trial, for the last words.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Bytes allocated now.
pub fn now_bytes() -> usize {
    NOW_BYTES.load(Ordering::Relaxed)
}

/// The most that was allocated since the last [`begin`], beyond what was then.
pub fn peak_bytes() -> usize {
    PEAK_BYTES.load(Ordering::Relaxed).saturating_sub(GROUND_BYTES.load(Ordering::Relaxed))
}

/// Begins a trial: what is allocated now is its ground. Without [`Counting`] as the program's allocator, nothing is seen.
pub fn begin(seed: u64) {
    let now = now_bytes();
    SEED.store(seed, Ordering::Relaxed);
    GROUND_BYTES.store(now, Ordering::Relaxed);
    PEAK_BYTES.store(now, Ordering::Relaxed);
    CEILING_BYTES.store(now.saturating_add(LIMIT_BYTES), Ordering::Relaxed);
}

/// Ends it.
pub fn end() {
    CEILING_BYTES.store(usize::MAX, Ordering::Relaxed);
}

/// The system's allocator, counted.
pub struct Counting;

impl Counting {
    fn admit(size: usize) {
        let now = NOW_BYTES.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        PEAK_BYTES.fetch_max(now, Ordering::Relaxed);
        if now > CEILING_BYTES.load(Ordering::Relaxed) {
            // The last words allocate too.
            end();
            let seed = SEED.load(Ordering::Relaxed);
            eprintln!("FAILED seed {seed}: memory beyond {LIMIT_BYTES} bytes by an allocation of {size}");
            eprintln!("{}", std::backtrace::Backtrace::force_capture());
            std::process::abort();
        }
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::admit(layout.size());
        // SAFETY: the caller's promises are those that `System` wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::admit(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        NOW_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        Self::admit(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
