//! The runtime on the machine's threads, clock and devices.

pub(crate) mod file;
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

use self::file::FileDevice;
use self::idle::Idle;
pub(crate) use self::io::Io;
use self::pool::Pool;
use self::registry::Registry;
pub(crate) use self::worker::Home;
use self::worker::{Guest, LEVELS, Pushed, Seat};
use crate::device::{Device, OpenOptions};
use crate::handle::{Core, Handle, IoChoice, IoMode, Join, RuntimeOptions, enter, set_thread_shard, thread_shard};
use crate::oneshot;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::task::{Reason, Schedule, Task, panic_text};
use crate::time::{Instant, TimerKey};

/// The real runtime's shared part.
pub(crate) struct Real {
    /// Tells this runtime's threads from another's.
    id: u64,
    start: std::time::Instant,
    idle: Idle,
    /// For tasks from threads that are no workers.
    shared: [Injector<Arc<Task>>; LEVELS],
    stealers: Box<[[Stealer<Arc<Task>>; LEVELS]]>,
    homes: std::sync::OnceLock<Box<[Arc<Home>]>>,
    tasks: Registry,
    stopped: AtomicBool,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    guests: Mutex<Vec<Guest>>,
    mode: std::sync::OnceLock<IoMode>,
    ring: bool,
    io: Arc<Io>,
    cpu: Arc<Pool>,
}

impl Real {
    pub(crate) fn start(options: RuntimeOptions) -> std::io::Result<Arc<Real>> {
        static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        let workers = options.workers.unwrap_or(cores).max(1);
        let refusal = match options.io {
            IoChoice::Threads => None,
            IoChoice::Auto | IoChoice::Ring => ring::Ring::new(false).err(),
        };
        let mode = io::mode(options.io, workers, refusal.as_ref())?;
        let (seats, stealers): (Vec<_>, Vec<_>) = (0..workers).map(Seat::new).unzip();
        let real = Arc::new(Real {
            id,
            start: std::time::Instant::now(),
            idle: Idle::new(workers),
            shared: std::array::from_fn(|_| Injector::new()),
            stealers: stealers.into(),
            homes: std::sync::OnceLock::new(),
            tasks: Registry::new(workers),
            stopped: AtomicBool::new(false),
            threads: Mutex::default(),
            guests: Mutex::default(),
            mode: std::sync::OnceLock::new(),
            ring: mode.ring,
            io: Arc::new(Io { runtime_id: id, pool: Pool::new("cenote-io", io::IO_THREADS_MAX) }),
            cpu: Pool::new("cenote-cpu", cores),
        });
        let (sender, receiver) = std::sync::mpsc::channel();
        for (index, seat) in seats.into_iter().enumerate() {
            let (worker_real, sender) = (Arc::clone(&real), sender.clone());
            let thread = std::thread::Builder::new().name(format!("cenote-{index}")).spawn(move || {
                set_thread_shard(index);
                let settled = worker::settle(seat, worker_real.id, worker_real.ring);
                let _ = sender.send((index, settled.home()));
                drop(sender);
                let _entered = enter(Handle { core: Core::Real(Arc::clone(&worker_real)) });
                settled.work(&worker_real);
            });
            match thread {
                Ok(thread) => real.threads.lock().push(thread),
                // Fewer homes than workers tell below.
                Err(_) => break,
            }
        }
        drop(sender);
        let mut homes: Vec<_> = receiver.into_iter().collect();
        if homes.len() != workers {
            real.stopped.store(true, Ordering::SeqCst);
            homes.iter().for_each(|(_, home)| home.parker.unpark());
            return Err(std::io::Error::other("a worker thread could not be started"));
        }
        homes.sort_by_key(|&(index, _)| index);
        let rings = homes.iter().filter(|(_, home)| home.parker.has_ring()).count();
        let _ = real.mode.set(io::mode_found(mode, rings, workers));
        let _ = real.homes.set(homes.into_iter().map(|(_, home)| home).collect());
        Ok(real)
    }

    fn homes(&self) -> &[Arc<Home>] {
        self.homes.get().map_or(&[], |homes| homes)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether a task is in any queue.
    fn has_work(&self) -> bool {
        self.shared.iter().any(|queue| !queue.is_empty())
            || self.stealers.iter().flatten().any(|queue| !queue.is_empty())
    }

    /// Wakes a sleeping worker, if that is called for.
    fn wake_one(&self) {
        if let Some(index) = self.idle.dispatched()
            && let Some(home) = self.homes().get(index)
        {
            home.parker.unpark();
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        for home in self.homes() {
            home.parker.unpark();
        }
        let this = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A runtime that is dropped by its own worker cannot wait for that one.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != this) {
            let _ = thread.join();
        }
        self.cpu.stop();
        self.io.pool.stop();
        for queue in &self.shared {
            while let Some(task) = worker::until_settled(|| queue.steal()) {
                task.cancel();
            }
        }
        let guests = std::mem::take(&mut *self.guests.lock());
        drop(guests);
        // What is left waits for something that will not come; each may hold the last of what another waits for.
        self.tasks.take_all().into_iter().for_each(|task| task.cancel());
    }

    /// Registers the task that `make` makes of its id.
    pub(crate) fn register(&self, make: impl FnOnce(u64) -> Arc<Task>) -> Arc<Task> {
        self.tasks.insert(thread_shard(), make)
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
            let _ = sender.send(result.map_err(panic_text));
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

    pub(crate) fn unix_time(&self) -> Duration {
        os::unix_time()
    }

    pub(crate) fn random_fill(&self, bytes: &mut [u8]) {
        os::random_fill(bytes);
    }

    pub(crate) async fn open(&self, path: PathBuf, options: OpenOptions) -> std::io::Result<Device> {
        let io = Arc::clone(&self.io);
        self.io.blocking(move || FileDevice::open(path, options, io).map(Device::from_file)).await
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
        self.mode.get().cloned().unwrap_or_else(|| IoMode { ring: false, explanation: String::new() })
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
        let Some(home) = self.homes().first() else { return TimerKey { home: None, deadline, sequence: 0 } };
        let (sequence, earliest) = home.timers.arm(deadline, waker);
        if earliest {
            home.parker.unpark();
        }
        TimerKey { home: Some(Arc::clone(home)), deadline, sequence }
    }

    pub(crate) fn disarm(&self, key: TimerKey) {
        if let Some(home) = key.home {
            home.timers.disarm(key.deadline, key.sequence);
        }
    }
}

impl Schedule for Real {
    fn schedule(&self, task: Arc<Task>, reason: Reason) {
        if self.is_stopped() {
            self.tasks.remove(task.id);
            return task.cancel();
        }
        let level = worker::level(task.class, reason);
        match worker::push_local(self.id, task, level) {
            Pushed::Quietly => {}
            Pushed::Dispatch => self.wake_one(),
            Pushed::Not(task) => {
                self.shared[level].push(task);
                self.wake_one();
            }
        }
    }

    fn finished(&self, task: &Task) {
        self.tasks.remove(task.id);
    }
}
