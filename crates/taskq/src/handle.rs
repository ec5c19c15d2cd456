//! The runtime and the handle through which the engine reaches it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::combine::{Either, race};
use crate::device::Device;
use crate::entry::Entry;
use crate::group::{Group, Member};
use crate::oneshot;
use crate::open_options::OpenOptions;
use crate::real::holder::{Identity, InUse};
use crate::real::{Entrance, Real};
use crate::sim::Sim;
use crate::task::{Job, Reason, Schedule, Task, Work, panic_text};
use crate::time::{Instant, Sleep, TimerKey};

/// How often a device that somebody else has is asked for again.
const CLAIM_RETRY: Duration = Duration::from_millis(20);

/// The kind of work that a task does, which decides which tasks it runs ahead of. Work in progress that something has
/// happened to (a completed I/O, a released lock) runs ahead of all new work, so that it ends and frees what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Completions: short, and others wait for them.
    Interrupt,
    /// Work that somebody waits for: reads, the front ends' requests.
    Issue,
    /// Work of a transaction group's sync.
    Sync,
    /// Work that nobody waits for: prefetch, scrub, trim.
    Background,
}

/// How to make a [`Runtime`] on the machine.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// Worker threads at most; `None` is one for each core this process may use. One is there from the start, the others come
    /// with work and go without it.
    pub workers: Option<usize>,
    /// How device I/O is done.
    pub io: IoChoice,
}

/// How device I/O is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// A ring per worker where the kernel grants one, threads where it does not.
    #[default]
    Auto,
    /// A ring per worker, or no runtime.
    Ring,
    /// Threads that call pread and pwrite.
    Threads,
}

/// How a runtime does its device I/O, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoMode {
    /// Whether it is by io_uring.
    pub ring: bool,
    /// Whether that was wanted and could not be had, or not for all workers.
    pub is_fallback: bool,
    /// One line for a person: what is used, and if it is not the best, why.
    pub explanation: String,
}

#[derive(Clone)]
pub(crate) enum Core {
    Real(Arc<Entrance>),
    Sim(Arc<Sim>),
}

/// A way to the runtime. Cheap to clone; does not keep the runtime's threads alive.
#[derive(Clone)]
pub struct Handle {
    pub(crate) core: Core,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.core {
            Core::Real(_) => "Handle(real)",
            Core::Sim(_) => "Handle(simulated)",
        })
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Handle>> = const { RefCell::new(None) };
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The shard of sharded state that this thread should use, modulo the number of shards: workers have their own, other threads
/// share by turns. It says nothing that an answer may depend on.
pub fn thread_shard() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    SHARD
        .try_with(|shard| {
            if shard.get() == usize::MAX {
                shard.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            }
            shard.get()
        })
        .unwrap_or(0)
}

pub(crate) fn set_thread_shard(index: usize) {
    SHARD.with(|shard| shard.set(index));
}

/// Makes `handle` what [`Handle::current`] gives on this thread, until the result is dropped.
pub(crate) fn enter(handle: Handle) -> Entered {
    Entered { before: CURRENT.with(|current| current.borrow_mut().replace(handle)) }
}

pub(crate) struct Entered {
    before: Option<Handle>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        let _ = CURRENT.try_with(|current| std::mem::replace(&mut *current.borrow_mut(), before));
    }
}

impl Handle {
    /// The runtime that the calling thread works for.
    pub fn current() -> Option<Handle> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// Starts `future` as a task of its own. The [`Join`] resolves to its output; dropping that detaches the task,
    /// which goes on.
    pub fn spawn<F>(&self, class: Class, future: F) -> Join<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.start(class, Reason::New, future)
    }

    /// As [`Handle::spawn`], ahead of everything that is queued.
    pub fn spawn_front<F>(&self, class: Class, future: F) -> Join<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.start(class, Reason::Front, future)
    }

    /// As [`Handle::spawn`] for a task that nobody will join, which saves the place for what it comes to.
    pub fn detach<F>(&self, class: Class, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.start_task(class, Reason::New, Box::pin(future));
    }

    /// Runs `work` once on some worker, soon: the cheapest way for a small piece of work that waits for nothing and that
    /// nobody waits for. Work that many pieces belong to is a [`Group`], which says when all are done.
    ///
    /// Refused once the runtime has stopped; what stands in a queue when it stops is dropped.
    pub fn dispatch<W>(&self, class: Class, work: W) -> Result<(), Stopped>
    where
        W: FnOnce() + Send + 'static,
    {
        self.dispatch_by(class, Reason::New, work)
    }

    /// As [`Handle::dispatch`], ahead of everything that is queued.
    pub fn dispatch_front<W>(&self, class: Class, work: W) -> Result<(), Stopped>
    where
        W: FnOnce() + Send + 'static,
    {
        self.dispatch_by(class, Reason::Front, work)
    }

    fn dispatch_by<W>(&self, class: Class, reason: Reason, work: W) -> Result<(), Stopped>
    where
        W: FnOnce() + Send + 'static,
    {
        self.dispatch_job(class, reason, Box::new(work))
    }

    fn dispatch_job(&self, class: Class, reason: Reason, job: Job) -> Result<(), Stopped> {
        let queued = match &self.core {
            Core::Real(real) => real.queue_job(class, reason, job),
            Core::Sim(sim) => {
                let running = !sim.is_stopped();
                self.start_task(class, reason, Box::pin(async move { job() }));
                running
            }
        };
        if queued { Ok(()) } else { Err(Stopped) }
    }

    /// Work that can be dispatched again and again, at any time, without taking memory: see [`Entry`].
    pub fn entry<W>(&self, class: Class, work: W) -> Entry
    where
        W: FnMut() + Send + 'static,
    {
        Entry::new(self, class, work)
    }

    /// As [`Handle::spawn`] for a member of a group.
    pub(crate) fn spawn_member<F>(&self, class: Class, member: Member, future: F) -> Join<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let work = async move {
            // The member goes last of all that the task has: an empty group holds nothing.
            if member.is_cancelled() {
                drop((future, sender));
                drop(member);
                return;
            }
            let output = catch_panic(future).await;
            drop(member);
            let _ = sender.send(output);
        };
        self.start_task(class, Reason::New, Box::pin(work));
        Join::new(receiver)
    }

    fn start<F>(&self, class: Class, reason: Reason, future: F) -> Join<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let work = async move {
            let output = catch_panic(future).await;
            let _ = sender.send(output);
        };
        self.start_task(class, reason, Box::pin(work));
        Join::new(receiver)
    }

    /// Compiled once, not for each type of work.
    pub(crate) fn start_task(&self, class: Class, reason: Reason, work: Work) {
        match &self.core {
            Core::Real(real) => {
                let ticket = real.ticket();
                let task = Task::new(0, class, Arc::clone(&ticket) as _, work);
                ticket.schedule(task, reason);
            }
            Core::Sim(sim) => sim.spawn(Task::new(sim.next_task_id(), class, Arc::clone(sim) as _, work), reason),
        }
    }

    /// A task that waits to be dispatched.
    pub(crate) fn idle_task(&self, class: Class, work: Work) -> Arc<Task> {
        match &self.core {
            Core::Real(real) => Task::idle(0, class, real.ticket(), work),
            Core::Sim(sim) => {
                let task = Task::idle(sim.next_task_id(), class, Arc::clone(sim) as _, work);
                sim.keep(&task);
                task
            }
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        match &self.core {
            Core::Real(real) => real.is_stopped(),
            Core::Sim(sim) => sim.is_stopped(),
        }
    }

    /// Runs `work`, which takes the processor for long, where it does not hold up I/O.
    pub fn spawn_cpu<T, W>(&self, work: W) -> Join<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match &self.core {
            Core::Real(real) => real.spawn_cpu(work),
            Core::Sim(_) => self.spawn(Class::Issue, async move { work() }),
        }
    }

    /// Runs `work`, which may block in a system call, off the workers.
    pub fn spawn_blocking<T, W>(&self, work: W) -> Join<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match &self.core {
            Core::Real(real) => real.spawn_blocking(work),
            Core::Sim(_) => self.spawn(Class::Issue, async move { work() }),
        }
    }

    /// Runs `future` on the calling thread, which is none of the runtime's own, until it is done: the way in for a front
    /// end's threads.
    ///
    /// # Panics
    /// On a worker's thread, which would be lost to everyone, and when a simulation comes to a [`Deadlock`].
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _entered = enter(self.clone());
        match &self.core {
            Core::Real(real) => real.block_on(future),
            Core::Sim(sim) => sim.block_on(future).unwrap_or_else(|deadlock| panic!("{deadlock}")),
        }
    }

    /// Resolves after `span`.
    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now() + span)
    }

    /// Resolves at `deadline`.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::new(self.clone(), deadline)
    }

    /// The output of `future`, or `None` if that takes longer than `limit`; then the future is dropped.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        match race(future, self.sleep(limit)).await {
            Either::Left(output) => Some(output),
            Either::Right(()) => None,
        }
    }

    /// Runs a future that is waited for more than other tasks: what it asks of devices is passed on at once. Other requests wait until
    /// their worker has run what there is to run, and then share a system call.
    pub async fn urgently<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            if let (true, Core::Real(real)) = (polled.is_pending(), &self.core) {
                real.submit();
            }
            polled
        })
        .await
    }

    /// Whether the calling thread is a front end's, and may wait for a device itself now ([`wait_here`](crate::wait_here)).
    #[must_use]
    pub fn may_wait_here(&self) -> bool {
        match &self.core {
            Core::Real(real) => crate::front::is_front() && real.has_free_waiter(),
            Core::Sim(_) => false,
        }
    }

    /// The time now on the monotonic clock.
    pub fn now(&self) -> Instant {
        match &self.core {
            Core::Real(real) => real.now(),
            Core::Sim(sim) => sim.now(),
        }
    }

    /// Processor time that the calling thread has used, for measuring; in simulation, which has no processors, time passed.
    pub fn thread_cpu_time(&self) -> Duration {
        match &self.core {
            Core::Real(real) => real.thread_cpu_time(),
            Core::Sim(sim) => Duration::from_nanos(sim.now().as_ns()),
        }
    }

    /// The calendar's time now: the span since 1970 began, UTC. It may go back; never order events by it.
    pub fn unix_time(&self) -> Duration {
        match &self.core {
            Core::Real(real) => real.unix_time(),
            Core::Sim(sim) => sim.unix_time(),
        }
    }

    /// 64 random bits: the kernel's, or the seed's.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random_fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Fills `bytes` with random ones, fit for keys when the runtime is real.
    pub fn random_fill(&self, bytes: &mut [u8]) {
        match &self.core {
            Core::Real(real) => real.random_fill(bytes),
            Core::Sim(sim) => sim.random_fill(bytes),
        }
    }

    /// Opens the file, block device or simulated disk at `path`.
    pub async fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Device> {
        match &self.core {
            Core::Real(real) => real.open(path.to_owned(), options, false).await,
            Core::Sim(sim) => sim.open(path, options),
        }
    }

    /// Opens the file or block device at `path` for writing, for this process alone, for as long as it is open: neither the kernel
    /// nor another process that asks likewise has it or gets it, by whatever name (`real::claim` has the theory). An opener that
    /// may be about to end is waited for, up to `patience`: a process that was killed is gone before what it asked of its devices
    /// is done, and the kernel keeps its locks until then. A simulated disk has no others to fear.
    ///
    /// # Errors
    /// Those of opening; of the kind [`io::ErrorKind::ResourceBusy`], with an [`InUse`] inside, where somebody else has it.
    pub async fn open_alone(&self, path: &Path, patience: Duration) -> io::Result<Device> {
        self.open_alone_in(path, 0, patience).await
    }

    /// The same, to be written in units of `unit_bytes` ([`OpenOptions::unit_bytes`]).
    ///
    /// # Errors
    /// As [`Handle::open_alone`].
    pub async fn open_alone_in(&self, path: &Path, unit_bytes: u32, patience: Duration) -> io::Result<Device> {
        let options = OpenOptions { write: true, unit_bytes, ..OpenOptions::default() };
        let real = match &self.core {
            Core::Real(real) => real,
            Core::Sim(sim) => return sim.open(path, options),
        };
        let until = self.now() + patience;
        loop {
            // From the beginning each time: two that each have a part and wait for the other's would both wait in vain.
            match real.open(path.to_owned(), options, true).await {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && !InUse::of(&error).by.is_lasting()
                        && self.now() < until => {}
                opened => return opened,
            }
            self.sleep(CLAIM_RETRY).await;
        }
    }

    /// The user of the file or block device at `path`, or of anything that is the same storage, for whose sake [`Handle::open_alone`]
    /// would be refused. One that may be about to end is waited for, up to `patience`. None also where that cannot be found out,
    /// and in a simulation. Asking takes the claim for a moment: others that ask meanwhile wait, or find it in use.
    pub async fn in_use(&self, path: &Path, patience: Duration) -> Option<InUse> {
        let Core::Real(real) = &self.core else { return None };
        let until = self.now() + patience;
        loop {
            match real.in_use(path.to_owned()).await {
                Ok(Some(user)) if user.by.is_lasting() || self.now() >= until => return Some(user),
                Ok(Some(_)) => self.sleep(CLAIM_RETRY).await,
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The kernel's own node of the partition of the disk at `path` that has exactly this range. None for what is no block device,
    /// for a partition that the kernel does not know, and in a simulation.
    pub async fn partition_node(&self, path: &Path, start_bytes: u64, size_bytes: u64) -> Option<PathBuf> {
        match &self.core {
            Core::Real(real) => real.partition_node(path.to_owned(), start_bytes, size_bytes).await,
            Core::Sim(_) => None,
        }
    }

    /// The storage that `path` leads to: equal for two nodes of one device, hard links of a file, and an image and its loop device.
    /// None for what is neither a file nor a block device, and in a simulation.
    pub async fn identity(&self, path: &Path) -> Option<Identity> {
        match &self.core {
            Core::Real(real) => real.identity(path.to_owned()).await,
            Core::Sim(_) => None,
        }
    }

    /// The paths in the directory `path`, sorted. In a simulation: the disks registered below it.
    pub async fn list_directory(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        match &self.core {
            Core::Real(real) => real.list_directory(path.to_owned()).await,
            Core::Sim(sim) => sim.list_directory(path),
        }
    }

    /// All of the small file at `path` (a key, a cache file); fails if it is longer than `size_max_bytes`.
    pub async fn read_file(&self, path: &Path, size_max_bytes: usize) -> io::Result<Vec<u8>> {
        match &self.core {
            Core::Real(real) => real.read_file(path.to_owned(), size_max_bytes).await,
            Core::Sim(sim) => sim.read_file(path, size_max_bytes),
        }
    }

    /// Makes `bytes` the content of the small file at `path`, as a whole or not at all, and stable.
    pub async fn write_file(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        match &self.core {
            Core::Real(real) => real.write_file(path.to_owned(), bytes).await,
            Core::Sim(sim) => sim.write_file(path, bytes),
        }
    }

    /// A new group of detached work.
    pub fn group(&self) -> Group {
        Group::new(self.clone())
    }

    /// How many tasks run at once, for the size of sharded state.
    pub fn parallelism(&self) -> usize {
        match &self.core {
            Core::Real(real) => real.worker_count(),
            Core::Sim(_) => 1,
        }
    }

    /// How device I/O is done, and why.
    pub fn io_mode(&self) -> IoMode {
        match &self.core {
            Core::Real(real) => real.io_mode(),
            Core::Sim(_) => IoMode { ring: false, is_fallback: false, explanation: "simulated devices".to_owned() },
        }
    }

    /// The simulation, when this is one.
    pub fn sim(&self) -> Option<&Sim> {
        match &self.core {
            Core::Real(_) => None,
            Core::Sim(sim) => Some(sim),
        }
    }

    pub(crate) fn arm(&self, deadline: Instant, waker: Waker) -> TimerKey {
        match &self.core {
            Core::Real(real) => real.arm(deadline, waker),
            Core::Sim(sim) => sim.arm(deadline, waker),
        }
    }

    pub(crate) fn disarm(&self, key: TimerKey) {
        match &self.core {
            Core::Real(real) => real.disarm(key),
            Core::Sim(sim) => sim.disarm(key),
        }
    }
}

/// The output of a spawned task, to be awaited. Dropping it detaches the task.
#[must_use = "dropping a join detaches its task; say so with drop()"]
pub struct Join<T> {
    /// The output, or the panic.
    receiver: oneshot::Receiver<Result<T, JoinError>>,
}

/// Why a task came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It panicked, which is a defect; the text is the panic's.
    #[error("a task panicked: {0}")]
    Panicked(String),
    /// The runtime went away before it was done, or its group was cancelled before it began.
    #[error("the task was given up: its runtime stopped, or its group was cancelled")]
    Stopped,
}

impl<T> Join<T> {
    pub(crate) fn new(receiver: oneshot::Receiver<Result<T, JoinError>>) -> Join<T> {
        Join { receiver }
    }
}

impl<T> Future for Join<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(context).map(|result| match result {
            Ok(result) => result,
            Err(oneshot::Closed) => Err(JoinError::Stopped),
        })
    }
}

/// The runtime has stopped and takes no more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime has stopped")]
pub struct Stopped;

/// Runs `future`; an error if it panics. The panic is caught inside the task, before anything of the
/// task's is dropped, so that the joining task sees the panic and not its consequences.
async fn catch_panic<F: Future>(future: F) -> Result<F::Output, JoinError> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(payload) => Poll::Ready(Err(JoinError::Panicked(panic_text(payload)))),
    })
    .await
}

impl<T> std::fmt::Debug for Join<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Join")
    }
}

/// An executor with its threads (real) or its schedule (simulated).
///
/// Dropping it stops it: tasks that are running finish their step, and no task takes another. To wait for detached work, close its
/// [`Group`] first.
pub struct Runtime {
    handle: Handle,
}

/// The simulation cannot go on: nothing can run, no timer is armed, and the main future is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "deadlock at {now:?} after {steps} steps: {live_tasks} tasks wait for something that nothing left can bring about"
)]
pub struct Deadlock {
    /// The virtual time.
    pub now: Instant,
    /// Polls so far.
    pub steps: u64,
    /// Tasks not done, the main future aside.
    pub live_tasks: usize,
}

impl Runtime {
    /// A runtime on this machine's threads and devices.
    pub fn real(options: RuntimeOptions) -> io::Result<Runtime> {
        Ok(Runtime { handle: Handle { core: Core::Real(Real::start(options)?) } })
    }

    /// A runtime of one thread with a schedule drawn from `seed`, a virtual clock and simulated disks.
    pub fn simulated(seed: u64) -> Runtime {
        Runtime { handle: Handle { core: Core::Sim(Arc::new(Sim::new(seed))) } }
    }

    /// A way to this runtime.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The simulation, when this is one.
    pub fn sim(&self) -> Option<&Sim> {
        self.handle.sim()
    }

    /// Runs `future` on the calling thread until it is done, and spawned tasks meanwhile.
    ///
    /// # Panics
    /// When a simulation comes to a [`Deadlock`]; [`Runtime::try_block_on`] returns it instead.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.try_block_on(future).unwrap_or_else(|deadlock| panic!("{deadlock}"))
    }

    /// As [`Runtime::block_on`]; a simulation's deadlock is an error. A real runtime has none to report.
    pub fn try_block_on<F: Future>(&self, future: F) -> Result<F::Output, Deadlock> {
        let _entered = enter(self.handle.clone());
        match &self.handle.core {
            Core::Real(real) => Ok(real.block_on(future)),
            Core::Sim(sim) => sim.block_on(future),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        match &self.handle.core {
            Core::Real(real) => real.stop(),
            Core::Sim(sim) => sim.stop(),
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runtime of {:?}", self.handle)
    }
}
