//! Where threads leave the replies of a ring's queue.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::ThreadId;

use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::AtomicBool;

use super::bound::Bound;
use crate::raw::Entry;

/// Where threads leave replies for a queue's thread to hand in.
pub(super) struct Outbox {
    pub(super) ready: Mutex<Vec<Entry>>,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) thread: ThreadId,
    pub(super) is_ended: AtomicBool,
    pub(super) waiting: Arc<Bound>,
}

impl Outbox {
    pub(super) fn put(&self, entry: Entry) {
        let is_first = {
            let mut ready = self.ready.lock();
            ready.push(entry);
            ready.len() == 1
        };
        // The queue's own thread looks here before it waits, and for the others the first has woken it.
        if is_first && std::thread::current().id() != self.thread {
            self.wake();
        }
    }

    /// The requests of the queue that wait for others.
    pub(super) fn waiting(&self) -> &Arc<Bound> {
        &self.waiting
    }

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &to_eventfd(1));
    }
}

#[allow(clippy::host_endian_bytes, reason = "a message to this machine's kernel, not to a disk")]
fn to_eventfd(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}
