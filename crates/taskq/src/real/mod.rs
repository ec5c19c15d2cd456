//! The runtime on the machine's threads, clock and devices.

pub(crate) mod claim;
pub(crate) mod file;
pub(crate) mod holder;
pub(crate) mod idle;
mod io;
mod os;
pub(crate) mod park;
mod pool;
mod registry;
mod ring;
mod worker;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crossbeam_deque::{Injector, Stealer};
use crossbeam_utils::CachePadded;

use self::file::FileDevice;
use self::idle::{Called, Idle};
pub(crate) use self::io::Io;
use self::pool::Pool;
use self::registry::Registry;
pub(crate) use self::worker::Home;
use self::worker::{Guest, LEVELS, ParkedWorker};
use crate::device::Device;
use crate::handle::{
    Class, Core, Handle, IoChoice, IoMode, Join, JoinError, RuntimeOptions, enter, set_thread_shard, thread_shard,
};
use crate::oneshot;
use crate::open_options::OpenOptions;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::task::{Job, Reason, Runnable, Schedule, Task, panic_text};
use crate::time::{Instant, TimerKey};

/// How long a worker's thread has nothing to do before it ends. As the pools' threads; chosen by eye.
const LINGER: Duration = Duration::from_secs(10);

/// The real runtime's shared part.
pub(crate) struct Real {
    /// Tells this runtime's threads from another's.
    id: u64,
    start: std::time::Instant,
    idle: Idle,
    /// For tasks from threads that are no workers: a set for each worker, which looks there first. Such threads go by turns
    /// to one of them, so that few of them write the same cache lines.
    shared: Box<[CachePadded<[Injector<Runnable>; LEVELS]>]>,
    stealers: Box<[[Stealer<Runnable>; LEVELS]]>,
    /// Where each worker's latest thread is reached.
    homes: Box<[Mutex<Option<Arc<Home>>>]>,
    /// Of workers without a thread.
    parked: Box<[Mutex<Option<ParkedWorker>>]>,
    /// How long a thread has nothing to do before it ends.
    linger: Duration,
    /// Workers whose ring was refused although the first one was granted.
    refused: AtomicUsize,
    entrance: std::sync::OnceLock<std::sync::Weak<Entrance>>,
    tasks: Registry,
    stopped: AtomicBool,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    guests: Mutex<Vec<Guest>>,
    mode: std::sync::OnceLock<IoMode>,
    ring: bool,
    io: Arc<Io>,
    cpu: Arc<Pool>,
}

/// The way to a runtime that a handle holds.
///
/// A task needs a way to the queues as well. If each counted its hold on the runtime in one place, every dispatch and every
/// end on every core would write that place; so there is a ticket for each worker, and a task holds that of the thread that
/// made it.
pub(crate) struct Entrance {
    real: Arc<Real>,
    tickets: Box<[Arc<Ticket>]>,
}

/// Alone on its cache lines.
#[repr(align(128))]
pub(crate) struct Ticket(Arc<Real>);

impl std::ops::Deref for Entrance {
    type Target = Real;

    fn deref(&self) -> &Real {
        &self.real
    }
}

impl Entrance {
    /// The schedule for a task that the calling thread makes.
    pub(crate) fn ticket(&self) -> Arc<Ticket> {
        Arc::clone(&self.tickets[thread_shard() % self.tickets.len()])
    }
}

impl Real {
    /// No front end's thread waits for a device itself now, and one may.
    pub(crate) fn has_free_waiter(&self) -> bool {
        self.io.waiter.is_free()
    }

    pub(crate) fn start(options: RuntimeOptions) -> std::io::Result<Arc<Entrance>> {
        Real::start_where(options, LINGER, || ring::Ring::new(false).map(drop))
    }

    /// Starts where asking for a ring comes to what `probe` says.
    fn start_where(
        options: RuntimeOptions,
        linger: Duration,
        probe: impl FnOnce() -> std::io::Result<()>,
    ) -> std::io::Result<Arc<Entrance>> {
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        let workers = options.workers.unwrap_or(cores).max(1);
        let refusal = match options.io {
            IoChoice::Threads => None,
            IoChoice::Auto | IoChoice::Ring => probe().err(),
        };
        let mode = io::mode(options.io, workers, refusal.as_ref())?;
        let (parked, stealers): (Vec<_>, Vec<_>) = (0..workers).map(ParkedWorker::new).unzip();
        let real = Arc::new(Real {
            id,
            start: std::time::Instant::now(),
            idle: Idle::new(workers),
            shared: (0..workers).map(|_| CachePadded::new(std::array::from_fn(|_| Injector::new()))).collect(),
            stealers: stealers.into(),
            homes: (0..workers).map(|_| Mutex::new(None)).collect(),
            parked: parked.into_iter().map(|parked| Mutex::new(Some(parked))).collect(),
            linger,
            refused: AtomicUsize::new(0),
            entrance: std::sync::OnceLock::new(),
            tasks: Registry::new(workers),
            stopped: AtomicBool::new(false),
            threads: Mutex::default(),
            guests: Mutex::default(),
            mode: std::sync::OnceLock::new(),
            ring: mode.ring,
            io: Arc::new(Io {
                runtime_id: id,
                pool: Pool::new("cenote-io", io::IO_THREADS_MAX),
                waiter: io::Waiter::new(mode.ring),
            }),
            cpu: Pool::new("cenote-cpu", cores),
        });
        let tickets = (0..workers).map(|_| Arc::new(Ticket(Arc::clone(&real)))).collect();
        let entrance = Arc::new(Entrance { real: Arc::clone(&real), tickets });
        let _ = real.entrance.set(Arc::downgrade(&entrance));
        let (sender, receiver) = std::sync::mpsc::channel();
        if !real.start_worker(0, Some(sender)) || receiver.recv().is_err() {
            return Err(std::io::Error::other("a worker thread could not be started"));
        }
        let rings = workers - real.refused.load(Ordering::Acquire);
        let mode = if rings < workers { io::mode_found(mode, 0, workers) } else { mode };
        let _ = real.mode.set(mode);
        Ok(entrance)
    }

    /// Gives a worker a thread; tells when it is settled. False if there can be none.
    fn start_worker(&self, index: usize, told: Option<std::sync::mpsc::Sender<()>>) -> bool {
        let Some(entrance) = self.entrance.get().and_then(std::sync::Weak::upgrade) else { return false };
        // A stop either finds the thread in the list, or is seen here.
        let mut threads = self.threads.lock();
        if self.is_stopped() {
            return false;
        }
        let thread = std::thread::Builder::new().name(format!("cenote-{index}")).spawn(move || {
            set_thread_shard(index);
            let _entered = enter(Handle { core: Core::Real(Arc::clone(&entrance)) });
            entrance.real.serve(index, told);
        });
        let Ok(thread) = thread else { return false };
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        true
    }

    /// The life of a worker's thread.
    fn serve(&self, index: usize, mut told: Option<std::sync::mpsc::Sender<()>>) {
        let mut parked = self.parked[index].lock().take();
        // A dispatch started it, but for the first.
        let mut searching = index > 0;
        while let Some(taken) = parked {
            let settled = worker::attach(taken, self.id, self.ring);
            let home = settled.home();
            if self.ring && !home.parker.has_ring() {
                self.refused.fetch_add(1, Ordering::AcqRel);
            }
            *self.homes[index].lock() = Some(home);
            if let Some(told) = told.take() {
                let _ = told.send(());
            }
            let Some(left) = settled.work(self, std::mem::take(&mut searching)) else { return };
            *self.parked[index].lock() = Some(left);
            self.idle.depart(index);
            // This thread must still do the work that came before others could see that it goes.
            let stays = self.has_work() && self.idle.take_back(index);
            parked = if stays { self.parked[index].lock().take() } else { None };
        }
    }

    fn home(&self, index: usize) -> Option<Arc<Home>> {
        self.homes.get(index)?.lock().clone()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether a task is in any queue.
    fn has_work(&self) -> bool {
        self.shared.iter().flat_map(|shard| shard.iter()).any(|queue| !queue.is_empty())
            || self.stealers.iter().flatten().any(|queue| !queue.is_empty())
    }

    /// Wakes a sleeping worker or starts an absent one, if that is called for.
    fn wake_one(&self) {
        loop {
            match self.idle.dispatched() {
                None => return,
                Some(Called::Sleeper(index)) => {
                    if let Some(home) = self.home(index) {
                        home.parker.unpark();
                    }
                    return;
                }
                Some(Called::Absent(index)) => {
                    if self.start_worker(index, None) {
                        return;
                    }
                    self.idle.not_started();
                }
            }
        }
    }

    /// Passes on what the calling thread has asked of devices, if it has a ring.
    pub(crate) fn submit(&self) {
        worker::submit(self.id);
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        for index in 0..self.homes.len() {
            if let Some(home) = self.home(index) {
                home.parker.unpark();
            }
        }
        let this = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A runtime that is dropped by its own worker cannot wait for that one.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != this) {
            let _ = thread.join();
        }
        self.cpu.stop();
        self.io.pool.stop();
        self.cancel_shared();
        let guests = std::mem::take(&mut *self.guests.lock());
        drop(guests);
        // The tasks left wait for events that will not come; each may hold the last reference to an object that another waits for.
        self.tasks.take_all().into_iter().for_each(|task| {
            let _ = task.cancel();
        });
    }

    /// Cancels what is in the shared queues, once no worker comes for it any more.
    fn cancel_shared(&self) {
        for queue in self.shared.iter().flat_map(|shard| shard.iter()) {
            while let Some(item) = worker::until_no_retry(|| queue.steal()) {
                item.cancel();
            }
        }
    }

    /// Queues a job; `false`, and it is dropped, if the runtime has stopped.
    #[inline(always)]
    pub(crate) fn queue_job(&self, class: Class, reason: Reason, job: Job) -> bool {
        self.queue(Runnable::Job(job), worker::level(class, reason))
    }

    /// Queues `item`, or drops it undone if the runtime has stopped: whether it was queued.
    #[inline(always)]
    fn queue(&self, item: Runnable, level: usize) -> bool {
        if self.is_stopped() {
            item.cancel();
            return false;
        }
        match worker::at_work(self) {
            Some(local) => {
                if local.push(self, item, level) {
                    self.wake_one();
                }
            }
            None => self.queue_shared(item, level),
        }
        true
    }

    #[inline(never)]
    fn queue_shared(&self, item: Runnable, level: usize) {
        self.shared[thread_shard() % self.shared.len()][level].push(item);
        self.wake_one();
        // A stop empties these queues after it has said that it is one. Either it finds the item, or we find it.
        fence(Ordering::SeqCst);
        if self.is_stopped() {
            self.cancel_shared();
        }
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let guest = self.guests.lock().pop();
        let guest = guest.unwrap_or_else(|| Guest::new(self.ring));
        let (output, guest) = guest.block_on(self, future);
        self.guests.lock().push(guest);
        output
    }

    fn pooled<T, W>(pool: &Arc<Pool>, work: W) -> Join<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        pool.submit(Box::new(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let _ = sender.send(result.map_err(|payload| JoinError::Panicked(panic_text(payload))));
        }));
        Join::new(receiver)
    }

    pub(crate) fn spawn_cpu<T, W>(&self, work: W) -> Join<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        Self::pooled(&self.cpu, work)
    }

    pub(crate) fn spawn_blocking<T, W>(&self, work: W) -> Join<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        Self::pooled(&self.io.pool, work)
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_ns(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn thread_cpu_time(&self) -> Duration {
        os::thread_cpu_time()
    }

    pub(crate) fn unix_time(&self) -> Duration {
        os::unix_time()
    }

    pub(crate) fn random_fill(&self, bytes: &mut [u8]) {
        os::random_fill(bytes);
    }

    /// `is_claimed`: it is this process's alone, with everything that is the same storage.
    pub(crate) async fn open(&self, path: PathBuf, options: OpenOptions, is_claimed: bool) -> std::io::Result<Device> {
        let io = Arc::clone(&self.io);
        self.io.blocking(move || FileDevice::open(path, options, is_claimed, io).map(Device::from_file)).await
    }

    pub(crate) async fn partition_node(&self, path: PathBuf, start_bytes: u64, size_bytes: u64) -> Option<PathBuf> {
        let found = self.io.blocking(move || Ok(claim::partition_node(&path, start_bytes, size_bytes))).await;
        found.ok().flatten()
    }

    pub(crate) async fn in_use(&self, path: PathBuf) -> std::io::Result<Option<holder::InUse>> {
        self.io.blocking(move || claim::in_use(&path)).await
    }

    pub(crate) async fn identity(&self, path: PathBuf) -> Option<holder::Identity> {
        self.io.blocking(move || Ok(claim::identity(&path))).await.ok().flatten()
    }

    pub(crate) async fn list_directory(&self, path: PathBuf) -> std::io::Result<Vec<PathBuf>> {
        self.io.blocking(move || os::list_directory(&path)).await
    }

    pub(crate) async fn read_file(&self, path: PathBuf, size_max_bytes: usize) -> std::io::Result<Vec<u8>> {
        self.io.blocking(move || os::read_file(&path, size_max_bytes)).await
    }

    pub(crate) async fn write_file(&self, path: PathBuf, bytes: Vec<u8>) -> std::io::Result<()> {
        self.io.blocking(move || os::write_file(&path, &bytes)).await
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.stealers.len()
    }

    pub(crate) fn io_mode(&self) -> IoMode {
        self.mode.get().cloned().unwrap_or_else(|| IoMode {
            ring: false,
            is_fallback: false,
            explanation: String::new(),
        })
    }

    pub(crate) fn arm(&self, deadline: Instant, waker: Waker) -> TimerKey {
        match worker::local_home(self.id) {
            Some(home) => {
                let (sequence, _) = home.timers.arm(deadline, waker);
                TimerKey { home: Some(home), deadline, sequence }
            }
            None => self.arm_at_worker(deadline, waker),
        }
    }

    /// Arms a timer on behalf of a thread that will not be there to fire it.
    fn arm_at_worker(&self, deadline: Instant, waker: Waker) -> TimerKey {
        let Some(home) = self.home(0) else { return TimerKey { home: None, deadline, sequence: 0 } };
        let (sequence, earliest) = home.timers.arm(deadline, waker);
        if earliest {
            home.parker.unpark();
        }
        TimerKey { home: Some(home), deadline, sequence }
    }

    pub(crate) fn disarm(&self, key: TimerKey) {
        if let Some(home) = key.home {
            home.timers.disarm(key.deadline, key.sequence);
        }
    }
}

impl Schedule for Ticket {
    fn schedule(&self, task: Arc<Task>, reason: Reason) {
        let real = &self.0;
        if real.is_stopped() {
            if let Some(place) = task.cancel() {
                real.tasks.remove(place);
            }
            return;
        }
        let level = worker::level(task.class, reason);
        let _ = real.queue(Runnable::Task(task), level);
    }

    fn waits(&self, task: &Arc<Task>) -> u64 {
        self.0.tasks.insert(thread_shard(), Arc::clone(task))
    }

    fn finished(&self, _task: &Task, place: Option<u64>) {
        if let Some(place) = place {
            self.0.tasks.remove(place);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::buf::Buf;

    /// Where the kernel refuses a ring, whatever its reason, the same reads come through threads, and one line says why.
    #[test]
    fn a_runtime_that_is_refused_a_ring_reads_all_the_same_and_says_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let content: Vec<u8> = (0..64 << 10).map(|index: u32| (index / 3) as u8).collect();
        std::fs::write(&path, &content).expect("written");
        for (errno, words) in [(1, "forbidden"), (38, "no io_uring"), (12, "memlock")] {
            let refused = || Err(std::io::Error::from_raw_os_error(errno));
            let options = RuntimeOptions { workers: Some(2), io: IoChoice::Auto };
            let real = Real::start_where(options.clone(), LINGER, refused).expect("threads serve");
            let mode = real.io_mode();
            assert!(mode.is_fallback && !mode.ring);
            assert!(mode.explanation.contains(words) && mode.explanation.lines().count() == 1, "{}", mode.explanation);
            let handle = Handle { core: Core::Real(Arc::clone(&real)) };
            let read = async {
                let device = handle.open(&path, OpenOptions::default()).await?;
                let (result, buf) = device.read(4096, Buf::unfilled(8192)).await;
                result.map(|()| buf)
            };
            let buf = real.block_on(read).expect("a read");
            assert!(buf[..] == content[4096..4096 + 8192]);
            real.stop();
            let only_rings = RuntimeOptions { io: IoChoice::Ring, ..options };
            assert!(Real::start_where(only_rings, LINGER, refused).is_err(), "a ring was asked for");
        }
    }

    fn threads(real: &Real) -> usize {
        real.threads.lock().iter().filter(|thread| !thread.is_finished()).count()
    }

    /// Items that each wait for all the others end only if each has a thread of its own, so workers are started up to the most;
    /// when there is nothing to do they end, all but the first, and the next items find them again.
    #[test]
    fn workers_come_with_work_up_to_the_most_and_go_without() {
        for io in [IoChoice::Auto, IoChoice::Threads] {
            let options = RuntimeOptions { workers: Some(4), io };
            let probe = || ring::Ring::new(false).map(drop);
            let real = Real::start_where(options, Duration::from_millis(1), probe).expect("a runtime");
            let handle = Handle { core: Core::Real(Arc::clone(&real)) };
            assert_eq!(threads(&real), 1, "one is enough to wait");
            for _ in 0..10 {
                let all = Arc::new(std::sync::Barrier::new(4));
                let group = handle.group();
                for _ in 0..4 {
                    let all = Arc::clone(&all);
                    group.dispatch(Class::Issue, move || _ = all.wait()).expect("open");
                }
                real.block_on(group.close());
                while threads(&real) > 1 {
                    std::thread::yield_now();
                }
            }
            real.stop();
        }
    }

    /// Threads end and are started while items come from everywhere: none is lost.
    #[test]
    fn no_item_is_lost_while_workers_come_and_go() {
        let options = RuntimeOptions { workers: Some(3), io: IoChoice::Auto };
        let probe = || ring::Ring::new(false).map(drop);
        let real = Real::start_where(options, Duration::ZERO, probe).expect("a runtime");
        let handle = Handle { core: Core::Real(Arc::clone(&real)) };
        for round in 0..100_u32 {
            let group = handle.group();
            for index in 0..4 {
                let inner = group.clone();
                let spread = move || {
                    for _ in 0..(round + index) % 19 {
                        inner.dispatch(Class::Issue, std::thread::yield_now).expect("open");
                    }
                };
                group.dispatch(Class::Issue, spread).expect("open");
            }
            // Items that spread others enter before they leave, so there is a member until all is done.
            while group.members() > 0 {
                real.block_on(group.wait());
            }
            real.block_on(group.close());
        }
        real.stop();
    }
}
