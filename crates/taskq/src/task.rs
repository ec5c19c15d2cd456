//! One task: a future, its place in the schedule, and how its end reaches the task that joins it.
//!
//! ```text
//!            wake                 taken from a queue
//!   Idle ---------> Queued ------------------------> Running ---> Done
//!    ^                ^                               |  | wake
//!    |                +------ poll was pending ----- Notified
//!    +---- poll was pending -------------------------+
//! ```
//!
//! The state alone decides which thread may touch the future: only the one that moved it from Queued to Running. A task is in at most
//! one queue, once. The mutex around the future is therefore never contended; it is there because it is safe Rust's way
//! to say so.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::handle::Class;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const NOTIFIED: u8 = 3;
const DONE: u8 = 4;

/// Why a task is put in a queue, which with its class decides which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It was just spawned.
    New,
    /// It was just spawned, ahead of others.
    Front,
    /// The event that it waited for has happened.
    Woken,
    /// It was woken while it ran, so others go first.
    Yielded,
}

/// Where tasks go to be run.
pub(crate) trait Schedule: Send + Sync {
    fn schedule(&self, task: Arc<Task>, reason: Reason);

    /// The task has been polled and waits, for the first time: no queue will hold it any more. The result is what
    /// [`Schedule::finished`] is told at its end.
    fn waits(&self, task: &Arc<Task>) -> u64;

    /// The task has come to its end, and waited before that if there is a `place`.
    fn finished(&self, task: &Task, place: Option<u64>);
}

/// The future of a task.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work without a future, which is done once it has been called.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// An item of a queue.
pub(crate) enum Runnable {
    Task(Arc<Task>),
    Job(Job),
}

// Two registers hold one.
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Runnable>() <= 16);

impl Runnable {
    #[inline(always)]
    pub(crate) fn run(self) {
        match self {
            Runnable::Task(task) => task.run(),
            // Nobody waits for it, so nobody can be told; the worker goes on.
            Runnable::Job(job) => drop(catch_unwind(AssertUnwindSafe(job))),
        }
    }

    /// Drops the work undone: the runtime is going away.
    pub(crate) fn cancel(self) {
        match self {
            Runnable::Task(task) => {
                let _ = task.cancel();
            }
            Runnable::Job(job) => drop(catch_unwind(AssertUnwindSafe(|| drop(job)))),
        }
    }
}

/// A spawned future.
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) class: Class,
    state: AtomicU8,
    stage: Mutex<Stage>,
    scheduler: Arc<dyn Schedule>,
}

struct Stage {
    /// Absent once done.
    future: Option<Work>,
    /// The place that [`Schedule::waits`] returned. A task that never waits is spared that call.
    place: Option<u64>,
}

impl Task {
    /// A task that is Queued: the caller hands it to the schedule.
    pub(crate) fn new(id: u64, class: Class, scheduler: Arc<dyn Schedule>, future: Work) -> Arc<Task> {
        Task::in_state(QUEUED, id, class, scheduler, future)
    }

    /// A task that is Idle: it is polled when it is woken.
    pub(crate) fn idle(id: u64, class: Class, scheduler: Arc<dyn Schedule>, future: Work) -> Arc<Task> {
        Task::in_state(IDLE, id, class, scheduler, future)
    }

    fn in_state(state: u8, id: u64, class: Class, scheduler: Arc<dyn Schedule>, future: Work) -> Arc<Task> {
        let stage = Mutex::new(Stage { future: Some(future), place: None });
        Arc::new(Task { id, class, state: AtomicU8::new(state), stage, scheduler })
    }

    /// Polls the future once. Called by the thread that took the task from a queue.
    pub(crate) fn run(self: Arc<Task>) {
        // Acquire: what the waker wrote before it woke us is visible to the poll.
        self.state.swap(RUNNING, Ordering::AcqRel);
        let waker = Waker::from(Arc::clone(&self));
        let done = {
            let mut stage = self.stage.lock();
            let Some(future) = stage.future.as_mut() else {
                self.state.store(DONE, Ordering::Release);
                return;
            };
            let mut context = Context::from_waker(&waker);
            // The future catches its own panics, for the joining task; this catches any other.
            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
                Ok(Poll::Pending) => {
                    if stage.place.is_none() {
                        stage.place = Some(self.scheduler.waits(&self));
                    }
                    None
                }
                Ok(Poll::Ready(())) | Err(_) => Some((stage.future.take(), stage.place.take())),
            }
        };
        if let Some((future, place)) = done {
            self.state.store(DONE, Ordering::Release);
            // A destructor that panics must not take the worker with it.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
            self.scheduler.finished(&self, place);
            return;
        }
        if self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Woken while it ran: it goes round again, behind others.
            self.state.swap(QUEUED, Ordering::AcqRel);
            let scheduler = Arc::clone(&self.scheduler);
            scheduler.schedule(self, Reason::Yielded);
        }
    }

    /// Drops the future unrun: the runtime is going away. Returns the value of [`Schedule::waits`].
    pub(crate) fn cancel(&self) -> Option<u64> {
        let (future, place) = {
            let mut stage = self.stage.lock();
            (stage.future.take(), stage.place.take())
        };
        self.state.store(DONE, Ordering::Release);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        place
    }

    /// As a wake, of a task that is to be scheduled for another reason.
    pub(crate) fn dispatch(self: &Arc<Self>, reason: Reason) {
        if self.notify() {
            self.scheduler.schedule(Arc::clone(self), reason);
        }
    }
}

impl Task {
    /// Takes note of a wake. Whether the caller must put the task in a queue.
    ///
    /// Every path writes the state, if only with the value it has: the write is what makes all that the waker did
    /// before visible to the poll that follows, also when that poll is due already.
    fn notify(&self) -> bool {
        let mut seen = self.state.load(Ordering::Relaxed);
        loop {
            let next = match seen {
                IDLE => QUEUED,
                RUNNING => NOTIFIED,
                DONE => return false,
                same => same,
            };
            match self.state.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return seen == IDLE,
                Err(now) => seen = now,
            }
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.notify() {
            let scheduler = Arc::clone(&self.scheduler);
            scheduler.schedule(self, Reason::Woken);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.notify() {
            self.scheduler.schedule(Arc::clone(self), Reason::Woken);
        }
    }
}

/// The words of a panic.
pub(crate) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().map_or_else(|| "no message".to_owned(), |text| (*text).into()),
    }
}
