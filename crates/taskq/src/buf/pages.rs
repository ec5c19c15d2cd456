//! Runs of memory, straight from the kernel and back to it.
//!
//! The general allocator is not made for this: a page-aligned page costs it two, and what it frees in between it keeps.
//! Here a [`Run`] is a piece of an anonymous mapping. It can be split, and, unlike a freed allocation, it can be told to
//! give its pages back while its addresses stay ours ([`Run::decommit`]): then it costs nothing but addresses, and reads
//! as zeros when it is used again. So memory that any buffer leaves is memory that any other buffer, or process, can
//! have, whatever lies beside it.
//!
//! This is one of the crate's modules with unsafe code. The invariants are
//! 1. `start` points at `len` bytes of a private anonymous mapping, readable and writable: all initialised, from the
//!    first by zeros;
//! 2. no two runs overlap, and nothing else points there;
//! 3. a mapping is undone only through a run that is all of it.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The kernel's page here; larger ones on other machines only make a decommit keep more.
pub(super) const PAGE_BYTES: usize = 4096;

/// A piece of memory with one owner. It has no destructor: dropping it leaks it.
pub(super) struct Run {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a Run is the only way to its memory, which has no tie to a thread.
unsafe impl Send for Run {}
// SAFETY: shared access to a Run only reads its bytes.
unsafe impl Sync for Run {}

impl Run {
    /// A new mapping of `len` bytes, which take memory as they are touched. `None` if the kernel refuses.
    pub(super) fn map(len: usize) -> Option<Run> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice takes the place of nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        Some(Run { start: NonNull::new(start.ok()?.cast())?, len })
    }

    /// As [`Run::map`], at a multiple of `alignment` (a power of two).
    pub(super) fn map_aligned(len: usize, alignment: usize) -> Option<Run> {
        let mut run = Run::map(len.checked_add(alignment)?)?;
        let lead = run.address().next_multiple_of(alignment) - run.address();
        // The ends are addresses without memory; they stay behind.
        let _ = run.split_front(lead);
        // A huge page would be memory that nobody asked for, and a decommit would have to break it up.
        // SAFETY: advice about how to back these pages changes no byte of them.
        let _ = unsafe { rustix::mm::madvise(run.start.as_ptr().cast(), run.len, Advice::LinuxNoHugepage) };
        Some(run.split_front(len))
    }

    /// Ends a mapping, of which this run is all.
    pub(super) fn unmap(self) {
        // SAFETY: invariants 2 and 3; the run is consumed.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }

    /// Gives the pages back to the kernel. The run stays, and is zero. False if the kernel will not.
    pub(super) fn decommit(&mut self) -> bool {
        if !(self.address() | self.len).is_multiple_of(PAGE_BYTES) {
            return false;
        }
        // SAFETY: invariants 1 and 2: these pages are this run's alone, which is borrowed exclusively; private anonymous
        // pages read as zeros afterwards.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontNeed) }.is_ok()
    }

    /// The first `len` bytes as a run of their own; this one keeps the rest.
    pub(super) fn split_front(&mut self, len: usize) -> Run {
        assert!(len <= self.len, "a run is split within itself");
        let front = Run { start: self.start, len };
        // SAFETY: `len` is within the run, so within its mapping.
        self.start = unsafe { self.start.add(len) };
        self.len -= len;
        front
    }

    /// Makes a run of `len` bytes whole again, of the pieces that were split from its front and what was left then.
    pub(super) fn join(mut pieces: Vec<Run>, len: usize) -> Run {
        pieces.sort_unstable_by_key(Run::address);
        let mut pieces = pieces.into_iter();
        let first = pieces.next().expect("a run has pieces");
        let end = pieces.fold(first.address() + first.len, |end, piece| {
            assert_eq!(end, piece.address(), "the pieces of a run lie side by side");
            end + piece.len
        });
        assert!(end <= first.address() + len, "no more than was split");
        Run { start: first.start, len }
    }

    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Another name for the same memory, for a holder that takes this one's place.
    pub(super) fn take(&mut self) -> Run {
        let run = Run { start: self.start, len: self.len };
        self.len = 0;
        run
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: invariant 1; the borrow of self keeps the memory ours and unwritten.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: invariants 1 and 2; the exclusive borrow of self makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Ends the process as a failed allocation does.
pub(super) fn out_of_memory(len: usize) -> ! {
    std::alloc::handle_alloc_error(Layout::from_size_align(len, PAGE_BYTES).unwrap_or(Layout::new::<u8>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decommitted_run_is_zero_and_its_neighbours_are_as_they_were() {
        let mut run = Run::map_aligned(5 * PAGE_BYTES, 4 * PAGE_BYTES).expect("mapped");
        assert!(run.address().is_multiple_of(4 * PAGE_BYTES));
        let (mut a, mut b) = (run.split_front(PAGE_BYTES), run.split_front(2 * PAGE_BYTES));
        for (run, fill) in [(&mut a, 1), (&mut b, 2), (&mut run, 3)] {
            run.bytes_mut().fill(fill);
        }
        assert!(b.decommit());
        assert!(a.bytes().iter().all(|&byte| byte == 1));
        assert!(b.bytes().iter().all(|&byte| byte == 0));
        assert!(run.bytes().iter().all(|&byte| byte == 3) && run.len() == 2 * PAGE_BYTES);
        let whole = Run::join(vec![b, run, a], 5 * PAGE_BYTES);
        assert!(whole.len() == 5 * PAGE_BYTES && whole.bytes()[0] == 1 && whole.bytes()[4 * PAGE_BYTES] == 3);
    }

    #[test]
    fn less_than_a_page_is_not_decommitted() {
        let mut run = Run::map(PAGE_BYTES).expect("mapped");
        let mut half = run.split_front(PAGE_BYTES / 2);
        half.bytes_mut().fill(7);
        assert!(!half.decommit() && !run.decommit());
        assert_eq!(half.bytes()[0], 7);
        Run::join(vec![half, run], PAGE_BYTES).unmap();
    }
}
