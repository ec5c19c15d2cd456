//! A front end's thread may wait for a device itself.
//!
//! **The need.** A program that syncs a file waits for one small write. If the thread that took its request hands that write to a worker,
//! three more threads wake one after the other: the worker that asks the device, one of the kernel's that flushes it, and the worker that
//! hears of the end. A thread that wakes on an idle core takes tens of microseconds for it, in a virtual machine as long as a third of the
//! write. The thread that took the request has nothing else to do meanwhile.
//!
//! **Life of a write.** [`Group::begin`](crate::Group::begin) polls work on a front end's thread. A write of which the asker knows that
//! nothing else in the same poll should go on beside it (there is one device, and the client waits for it) is wrapped in [`wait_here`].
//! A device of the machine then has it done within the poll, so the whole of a sync is one poll.
//!
//! **Bound.** One thread of a runtime waits so at a time, with a ring of its own, and for two milliseconds at most; after that a thread of the
//! pool takes the ring over, and the request goes on as a task. So a device that hangs holds up nobody, and clients are answered as
//! `failmode` says. The asker looks first whether the thread may wait ([`Handle::may_wait_here`](crate::Handle::may_wait_here)).
//!
//! **Rejected.** *A system call that blocks*: a device that never answers would keep the thread, and with it the end of its mount. *A ring for
//! each such thread*: more than one that waits for the same log gains nothing. *Waiting on workers*: they serve all others.

use std::cell::Cell;
use std::pin::pin;

thread_local! {
    static IS_FRONT: Cell<bool> = const { Cell::new(false) };
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Sets a mark of this thread back when it is dropped.
struct Marked(&'static std::thread::LocalKey<Cell<bool>>, bool);

impl Drop for Marked {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// This thread is a front end's until the result is dropped.
pub(crate) fn enter() -> impl Drop {
    Marked(&IS_FRONT, IS_FRONT.replace(true))
}

/// Whether the calling thread is a front end's, which polls work that it took itself ([`Group::begin`](crate::Group::begin)).
pub(crate) fn is_front() -> bool {
    IS_FRONT.get()
}

/// Whether a device may be waited for within this poll.
pub(crate) fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Runs a future whose stable write ([`Device::write_stable`](crate::Device::write_stable)) may be waited for in a poll, if a front end's
/// thread polls it. For a future that asks one device once.
pub async fn wait_here<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let _marked = Marked(&MAY_WAIT, MAY_WAIT.replace(is_front()));
        future.as_mut().poll(context)
    })
    .await
}
