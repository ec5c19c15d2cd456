//! The idle set: which workers sleep, which search for work, which have no thread, and which one a dispatch wakes or starts.
//!
//! If a dispatch woke every sleeper, or took a lock to wake one, a queue of many small items would be slow. So one dispatch wakes at most
//! one worker, holding no lock, and none while a worker is already searching.
//!
//! ```text
//!   sleeping   one bit for each worker
//!   absent     one bit for each worker that has no thread: none yet, or no more
//!   searching  how many workers look for work, woken or on their own
//!
//!   dispatch:  push work;  fence;  searching > 0? done : searching 0->1; take a sleeper's bit; unpark it,
//!                                          or if there is none an absent one's; start it
//!   searcher:  found work: searching -= 1; the last one, if there is more work, dispatches on behalf of those who
//!              relied on it
//!   sleeper:   set own bit; stop searching; fence; searching == 0 and there is work? go back : park
//!   leaver:    set own absent bit; fence; there is work? take the bit back, and go on unless another has taken it : end
//! ```
//!
//! No wake-up is lost: a dispatcher that skips its wake saw a searcher, which either finds the work, or, on its way to
//! sleep, looks again after it has stopped counting as a searcher. A sleeper that parks because another worker searches relies on the same.
//! The fences order each one's own write (work, bit, count) before its look at the other's.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

const WORD_BITS: usize = u64::BITS as usize;

pub(crate) struct Idle {
    workers: usize,
    searching: CachePadded<AtomicUsize>,
    sleeping: Box<[CachePadded<AtomicU64>]>,
    absent: Box<[CachePadded<AtomicU64>]>,
}

/// The worker that a dispatch wakes or starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// A worker that sleeps: to be unparked.
    Sleeper(usize),
    /// A worker without a thread: to be given one.
    Absent(usize),
}

fn take_bit(words: &[CachePadded<AtomicU64>]) -> Option<usize> {
    for (index, word) in words.iter().enumerate() {
        let mut bits = word.load(Ordering::SeqCst);
        while bits != 0 {
            let bit = bits.trailing_zeros();
            let before = word.fetch_and(!(1 << bit), Ordering::SeqCst);
            if before & (1 << bit) != 0 {
                return Some(index * WORD_BITS + bit as usize);
            }
            bits = before & !(1 << bit);
        }
    }
    None
}

fn any_bit(words: &[CachePadded<AtomicU64>]) -> bool {
    words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}

impl Idle {
    /// For so many workers, of which the first has a thread and the others have none.
    pub(crate) fn new(workers: usize) -> Idle {
        let words = || (0..workers.div_ceil(WORD_BITS)).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        let idle =
            Idle { workers, searching: CachePadded::new(AtomicUsize::new(0)), sleeping: words(), absent: words() };
        for worker in 1..workers {
            idle.absent[worker / WORD_BITS].fetch_or(1 << (worker % WORD_BITS), Ordering::SeqCst);
        }
        idle
    }

    /// To be called after work was pushed: returns the worker to wake or to start, if there is one. It counts as searching from now on.
    pub(crate) fn dispatched(&self) -> Option<Called> {
        fence(Ordering::SeqCst);
        loop {
            if !(any_bit(&self.sleeping) || any_bit(&self.absent))
                || self.searching.load(Ordering::Relaxed) > 0
                || self.searching.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err()
            {
                return None;
            }
            if let Some(worker) = take_bit(&self.sleeping) {
                return Some(Called::Sleeper(worker));
            }
            if let Some(worker) = take_bit(&self.absent) {
                return Some(Called::Absent(worker));
            }
            // The worker woke by itself. Others may have gone to sleep meanwhile, relying on this search.
            self.searching.fetch_sub(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// A worker's thread could not be started. It is not tried again; the other workers do all the work.
    ///
    /// A worker that relied on its search may have gone to sleep, so the caller dispatches again.
    pub(crate) fn not_started(&self) {
        self.searching.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a worker sleeps, searches or could be started; a hint that may be stale.
    pub(crate) fn is_anyone_idle(&self) -> bool {
        self.searching.load(Ordering::Relaxed) > 0 || any_bit(&self.sleeping) || any_bit(&self.absent)
    }

    /// Whether the caller, out of work, may look at others' queues. Half of the workers at most do at one time: more
    /// would only get in each other's way.
    pub(crate) fn try_search(&self) -> bool {
        if 2 * self.searching.load(Ordering::Relaxed) >= self.workers {
            return false;
        }
        self.searching.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// A searcher has found work. Whether it was the last, so that it must dispatch if there is more.
    pub(crate) fn found(&self) -> bool {
        let last = self.searching.fetch_sub(1, Ordering::SeqCst) == 1;
        fence(Ordering::SeqCst);
        last
    }

    /// Enters sleep. Whether the caller must look for work once more before it parks.
    pub(crate) fn enter(&self, worker: usize, was_searching: bool) -> bool {
        self.sleeping[worker / WORD_BITS].fetch_or(1 << (worker % WORD_BITS), Ordering::SeqCst);
        if was_searching {
            self.searching.fetch_sub(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        self.searching.load(Ordering::Relaxed) == 0
    }

    /// Leaves sleep. Whether a dispatcher woke the caller, which then counts as searching.
    pub(crate) fn leave(&self, worker: usize) -> bool {
        let bit = 1 << (worker % WORD_BITS);
        self.sleeping[worker / WORD_BITS].fetch_and(!bit, Ordering::SeqCst) & bit == 0
    }

    /// Gives up the caller's thread; others may start the worker anew from now on. The caller, which is neither asleep nor
    /// searching, looks for work once more, and goes on if there is some and [`Idle::take_back`] lets it.
    pub(crate) fn depart(&self, worker: usize) {
        self.absent[worker / WORD_BITS].fetch_or(1 << (worker % WORD_BITS), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether the worker is still without a thread; then the caller is its thread again.
    pub(crate) fn take_back(&self, worker: usize) -> bool {
        let bit = 1 << (worker % WORD_BITS);
        self.absent[worker / WORD_BITS].fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }
}
