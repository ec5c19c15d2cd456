//! Work that is dispatched again and again, made once.
//!
//! A dispatch that takes memory can fail when memory is short, which is when the engine must be able to free some. So what
//! has to be done then is made beforehand, as an entry of the queue that is only put in its place later. (The queue's own
//! table doubles when it is full, and then keeps its size.)

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use crate::handle::{Class, Handle, Stopped};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::task::{Reason, Task};

/// See [`Handle::entry`]. Each dispatch runs the work once; runs of one entry never overlap. Dropping it lets a dispatch
/// that stands run, and no more.
pub struct Entry {
    handle: Handle,
    flags: Arc<Flags>,
    task: Arc<Task>,
}

struct Flags {
    /// Dispatched, and not yet begun.
    standing: AtomicBool,
    dropped: AtomicBool,
}

impl Entry {
    pub(crate) fn new(handle: &Handle, class: Class, mut work: impl FnMut() + Send + 'static) -> Entry {
        let flags = Arc::new(Flags { standing: AtomicBool::new(false), dropped: AtomicBool::new(false) });
        let seen = Arc::clone(&flags);
        let work = std::future::poll_fn(move |_| {
            // Before the standing one: a dispatch that came before the drop is not missed.
            let dropped = seen.dropped.load(Ordering::SeqCst);
            if seen.standing.swap(false, Ordering::SeqCst) {
                // A run that panics has been one; the entry stays.
                let _ = catch_unwind(AssertUnwindSafe(&mut work));
            }
            if dropped { Poll::Ready(()) } else { Poll::Pending }
        });
        let task = handle.idle_task(class, Box::pin(work));
        Entry { handle: handle.clone(), flags, task }
    }

    /// Queues the work. `Ok(false)` if it stands in the queue already: then the run that comes serves both.
    pub fn dispatch(&self) -> Result<bool, Stopped> {
        self.dispatch_by(Reason::New)
    }

    /// As [`Entry::dispatch`], ahead of everything that is queued.
    pub fn dispatch_front(&self) -> Result<bool, Stopped> {
        self.dispatch_by(Reason::Front)
    }

    fn dispatch_by(&self, reason: Reason) -> Result<bool, Stopped> {
        if self.handle.is_stopped() {
            return Err(Stopped);
        }
        if self.flags.standing.swap(true, Ordering::SeqCst) {
            return Ok(false);
        }
        self.task.dispatch(reason);
        Ok(true)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.flags.dropped.store(true, Ordering::SeqCst);
        self.task.dispatch(Reason::New);
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}
