//! The runtime of the whole engine: executor, timers, devices, groups of detached work, and its simulated twin.
//!
//! # The need
//!
//! A storage engine is mostly waiting: for devices, for locks, for a transaction group to close. It must use every core and keep many
//! requests in flight at every device without a thread for each of them; at export, it must know that no detached task (a prefetch, for
//! example) is still running; and it must be able to run on one thread, from a seed, so that every failure can be reproduced. So
//! everything above this crate is async functions, and everything that could make two runs differ (time, threads, order, random numbers,
//! devices) is reached through a [`Handle`], which is of a real or of a simulated [`Runtime`]. The engine cannot tell which.
//!
//! # In memory
//!
//! ```text
//!   Runtime::real                                    Runtime::simulated(seed)
//!     worker 0..n, each while it has a thread:         one loop:
//!       5 queues (front, interrupt, issue,               runnable tasks, one picked by the seed
//!                 sync, background), stealable           timers; the clock jumps to the next
//!       an io_uring, or none                             simulated disks, whose service is a timer
//!       timers; a parking place                          a hash over all steps of the run
//!     shared: a queue for each level, the idle set,
//!       thread pools (blocking calls, long computations)
//! ```
//!
//! Nothing is on disk; a crash leaves nothing of this crate's.
//!
//! # The life of a task
//!
//! [`Handle::spawn`] makes a task of a future and queues it with the spawning worker, or in a shared queue of its class
//! if the thread is no worker. Usually that worker also runs it, as soon as its current task waits: handing a short task to another core
//! costs more than running it. If many tasks are queued, or recent tasks took long, another worker is woken and steals half of them.
//! While a task waits, the event that it waits for holds its waker; a wake puts the task into the interrupt queue, so that work in
//! progress ends before new work begins. When it is done its output goes to the [`Join`], if anyone kept it. See `task` for the states.
//!
//! Work that needs no future is cheaper: [`Handle::dispatch`] queues a closure, and an [`Entry`], made beforehand, is queued again and
//! again without an allocation. A [`Group`] tells when a set of such work is done.
//!
//! # The life of a device request
//!
//! [`Device::read`] takes a [`Buf`]. On a worker the request becomes an entry in the submission queue of the worker's io_uring. It is
//! submitted when the worker has neither tasks nor completions left, or 16 tasks have run, or 32 entries are queued: one system call then
//! submits all of them, and also sleeps if there is nothing else to do. The ring owns the buffer until the completion is reaped, on the
//! same worker, which hands it back through a oneshot and thereby wakes the task. The future may be dropped at any moment; the ring keeps
//! the buffer until the kernel has completed the request. Without a ring the same request goes to a thread of the pool. Alignment for
//! direct I/O is dealt with in `real/file`.
//!
//! # Invariants
//!
//! 1. A task is in at most one queue, once, and is polled by one thread at a time.
//! 2. A wake is never lost: after it, the task is polled, and that poll sees what was written before the wake.
//! 3. If there is work while a worker sleeps, some worker is searching or has been unparked (`real/idle`), or the work is in the queue of
//!    a running worker that will run it sooner than a woken worker could, judging by its latest tasks.
//! 4. One dispatch unparks at most one worker, holding no lock, and none while one is searching. If no worker sleeps, it starts one that
//!    has no thread. A thread that ends for lack of work first announces that, and then looks for work once more.
//! 5. After [`Group::close`] has returned the group has no member and admits none. [`Group::wait`] waits for every member that was in the
//!    group at the call.
//! 6. Memory that the kernel may write is owned by the ring until the kernel is done with it (`real/ring`).
//! 7. A panic ends its task and nothing else; joining the task reports it.
//! 8. Two simulated runs of one seed take the same steps at the same times.
//!
//! 2 to 5 are checked over all interleavings (`models`, with `--cfg loom`), the primitives over many random ones
//! (`schedules`, with `--cfg shuttle`), and one body of tests holds on rings, threads and the simulation alike
//! (`tests/all/conformance.rs`).
//!
//! # Locks
//!
//! Every lock in here is held for a few instructions and never across an await, a system call or a wake-up; the order
//! does not matter because no two are held together, save a task's own around its poll. From the dispatch of a task to its end, no lock
//! or counter is shared by all workers: references to the runtime and to the group are counted in slots of the worker that created the
//! task, the register (of tasks that wait) is one for each worker, and the idle set is read and only written where a worker falls asleep
//! or is woken.
//!
//! # Rejected alternatives
//!
//! - An executor from a crate: none has classes, a ring for each worker and a seeded twin, and the twin must share
//!   everything above the schedule with the real one.
//! - One ring for all workers: its submission side is one more shared hot lock.
//! - One counter for all detached tasks, or one root (OpenZFS's godfather zio): every prefetch on every core would contend for its cache
//!   line.
//! - Cancelling a task by dropping its [`Join`]: half-done engine work is worse than unwanted engine work.
//! - A last-in slot for the task just woken: that task would wait for the worker's current poll, which may decompress for a millisecond,
//!   and no other worker could steal it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the runtime is where time, threads and files come from"
)]

pub mod buf;
mod combine;
mod device;
mod entry;
mod event;
mod fair;
mod front;
mod group;
mod handle;
mod lock;
#[cfg(all(loom, test))]
mod models;
pub mod mutant;
pub mod oneshot;
mod open_options;
mod range_lock;
mod real;
mod rng;
#[cfg(all(shuttle, test))]
mod schedules;
mod semaphore;
pub mod sim;
pub mod sync;
mod task;
mod time;

pub use buf::{Block, Buf};
pub use cenote_boxed::boxed;
pub use combine::{
    Either, JoinSet, Unordered, both, for_each_concurrent, join_all, map_concurrent, race, try_for_each_concurrent,
    yield_now,
};
pub use device::{BoxFuture, Device, Driver, RamDevice};
pub use entry::Entry;
pub use event::{Event, EventWait, Notify, NotifyWait};
pub use fair::give_way;
pub use front::wait_here;
pub use group::{Group, GroupClosed, Member};
pub use handle::{
    Class, Deadlock, Handle, IoChoice, IoMode, Join, JoinError, Runtime, RuntimeOptions, Stopped, thread_shard,
};
pub use lock::{AsyncMutex, AsyncMutexGuard, AsyncReadGuard, AsyncRwLock, AsyncWriteGuard};
pub use open_options::{Direct, OpenOptions};
pub use range_lock::{RangeGuard, RangeLock, RangeTicket};
pub use real::holder::{Holder, Identity, InUse, locker, unescaped};
pub use rng::Rng;
pub use semaphore::{Acquire, OwnedPermit, Permit, Semaphore};
pub use time::{Instant, Sleep};
