//! The task queue of 2012 and its three repairs, as the document describes them: one lock, one list of waiting threads.
//!
//! ```text
//!   original     a dispatch wakes all that wait, under the lock; a thread joins and leaves the list under the lock, each round
//!   + exclusive  a dispatch wakes one
//!   + lazily     a thread joins and leaves the list only when there is no work, and outside the lock
//!   + after      the wake-up happens after the lock is dropped
//! ```
//!
//! The list has a lock of its own, as wait queues in the kernel have. Here the cost of spinning and sleeping at a mutex is
//! that of the standard library's, so the order of the rows carries over, not their sizes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Which repairs are in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    exclusive: bool,
    lazy: bool,
    after: bool,
}

/// The document's rows, with its figures: lock hold time in µs, wall time in s.
pub(super) const VARIANTS: [(Variant, f64, f64); 4] = [
    (Variant { name: "original", exclusive: false, lazy: false, after: false }, 39_117_614.0, 41.72),
    (Variant { name: "+ exclusive waiters", exclusive: true, lazy: false, after: false }, 31_871_484.0, 34.2),
    (
        Variant { name: "+ waits only without work, outside", exclusive: true, lazy: true, after: false },
        13_794_304.0,
        16.17,
    ),
    (Variant { name: "+ wakes outside", exclusive: true, lazy: true, after: true }, 1_589_172.0, 16.61),
];

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiter {
    woken: AtomicBool,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Work>,
    stopping: bool,
}

struct Shared {
    variant: Variant,
    state: Mutex<State>,
    waiting: Mutex<VecDeque<(Arc<Waiter>, Thread)>>,
    held_ns: AtomicU64,
    /// Whether it is noted for how long the lock is held. That costs two clock readings and a shared counter each time, so a run in
    /// which wall time is measured does without, as ours does.
    notes_hold: bool,
}

/// A lock that notes for how long it was held, if that is asked for.
struct Held<'a> {
    state: Option<MutexGuard<'a, State>>,
    since: Option<Instant>,
    held_ns: &'a AtomicU64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let span = self.since.map(|since| since.elapsed());
        drop(self.state.take());
        if let Some(span) = span {
            self.held_ns.fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

impl Held<'_> {
    fn state(&mut self) -> &mut State {
        // Present until the drop.
        self.state.as_mut().map_or_else(|| unreachable!("the lock is held"), |state| &mut **state)
    }
}

impl Shared {
    fn lock(&self) -> Held<'_> {
        let state = Some(self.state.lock().unwrap_or_else(PoisonError::into_inner));
        Held { state, since: self.notes_hold.then(Instant::now), held_ns: &self.held_ns }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Arc<Waiter>, Thread)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, waiter: &Arc<Waiter>) {
        waiter.woken.store(false, Ordering::SeqCst);
        self.waiting().push_back((Arc::clone(waiter), std::thread::current()));
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        self.waiting().retain(|(other, _)| !Arc::ptr_eq(other, waiter));
    }

    fn wake(&self) {
        let waiting = self.waiting();
        if self.variant.exclusive {
            // A waiter that was woken already does not count again.
            if let Some((waiter, thread)) = waiting.iter().find(|(waiter, _)| !waiter.woken.load(Ordering::SeqCst)) {
                waiter.woken.store(true, Ordering::SeqCst);
                thread.unpark();
            }
        } else {
            for (waiter, thread) in waiting.iter() {
                waiter.woken.store(true, Ordering::SeqCst);
                thread.unpark();
            }
        }
    }

    fn dispatch(&self, work: Work) {
        let mut held = self.lock();
        held.state().pending.push_back(work);
        if self.variant.after {
            drop(held);
            self.wake();
        } else {
            self.wake();
        }
    }

    fn sleep(&self, waiter: &Waiter) {
        while !waiter.woken.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }

    /// Runs items until the stop; how many.
    fn run(&self) -> u64 {
        let mut ran = 0;
        let waiter = Arc::new(Waiter::default());
        loop {
            let work = if self.variant.lazy { self.take_lazily(&waiter) } else { self.take_eagerly(&waiter) };
            match work {
                Some(work) => {
                    work();
                    ran += 1;
                }
                None => return ran,
            }
        }
    }

    /// On the list before looking, off it after, all under the lock.
    fn take_eagerly(&self, waiter: &Arc<Waiter>) -> Option<Work> {
        let mut held = self.lock();
        loop {
            self.join(waiter);
            let work = held.state().pending.pop_front();
            if work.is_some() || held.state().stopping {
                self.leave(waiter);
                return work;
            }
            drop(held);
            self.sleep(waiter);
            held = self.lock();
            self.leave(waiter);
        }
    }

    fn take_lazily(&self, waiter: &Arc<Waiter>) -> Option<Work> {
        loop {
            let mut held = self.lock();
            let work = held.state().pending.pop_front();
            if work.is_some() || held.state().stopping {
                return work;
            }
            drop(held);
            self.join(waiter);
            // Between the look and the list something may have come.
            let mut held = self.lock();
            let nothing = held.state().pending.is_empty() && !held.state().stopping;
            drop(held);
            if nothing {
                self.sleep(waiter);
            }
            self.leave(waiter);
        }
    }
}

/// The wall time of a run in which nothing else is measured.
pub(super) fn wall(variant: Variant, threads: u64, producers: u64, items: u64) -> Duration {
    measure(variant, threads, producers, items, false).0
}

/// The time for which a run held the lock, in a run of its own.
pub(super) fn hold(variant: Variant, threads: u64, producers: u64, items: u64) -> Duration {
    measure(variant, threads, producers, items, true).1
}

fn measure(variant: Variant, threads: u64, producers: u64, items: u64, notes_hold: bool) -> (Duration, Duration) {
    let (state, waiting, held_ns) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
    let shared = Arc::new(Shared { variant, state, waiting, held_ns, notes_hold });
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.run())
        })
        .collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                for _ in 0..items / producers {
                    shared.dispatch(Box::new(|| ()));
                }
            });
        }
    });
    let mut held = shared.lock();
    held.state().stopping = true;
    drop(held);
    // A stop drains: workers end only when nothing is pending.
    let all = || {
        shared.waiting().iter().for_each(|(waiter, thread)| {
            waiter.woken.store(true, Ordering::SeqCst);
            thread.unpark();
        })
    };
    let mut ran = 0;
    for worker in workers {
        while !worker.is_finished() {
            all();
            std::thread::sleep(Duration::from_micros(200));
        }
        ran += worker.join().unwrap_or(0);
    }
    let wall = start.elapsed();
    assert_eq!(ran, items / producers * producers, "every item ran once");
    (wall, Duration::from_nanos(shared.held_ns.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_runs_every_item() {
        for (variant, ..) in VARIANTS {
            assert!(hold(variant, 3, 4, 1000) > Duration::ZERO, "{}", variant.name);
            let (_, held) = measure(variant, 3, 4, 1000, false);
            assert_eq!(held, Duration::ZERO, "{}: a run that is timed as a whole notes nothing else", variant.name);
        }
    }
}
