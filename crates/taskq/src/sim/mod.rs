//! The simulated twin: the same futures on one thread, with a schedule drawn from a seed, a virtual clock and simulated
//! disks.
//!
//! A step picks one of the runnable tasks by the seed and polls it once. When none is runnable the clock jumps to the
//! next timer (a disk's service time is a timer too). When there is none of those either, nothing can happen any more:
//! that is a [`Deadlock`], reported with the time and the step. Everything that could make a run differ from another of
//! the same seed comes from here: the order, the clock, random numbers, devices. [`Sim::trace_hash`] sums up the run so
//! far, so two runs can be compared by one number.

pub mod disk;
pub mod fingerprint;
pub mod history;
mod medium;
pub mod model;
mod touched;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use self::disk::{SimDisk, SimDiskOptions};
use crate::device::Device;
use crate::fair;
use crate::handle::Deadlock;
use crate::open_options::OpenOptions;
use crate::rng::Rng;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::task::{Reason, Schedule, Task};
use crate::time::{Instant, TimerKey};

/// Where the virtual calendar begins: 2024-01-01, so that times look like times.
const UNIX_TIME_AT_START: Duration = Duration::from_secs(1_704_067_200);

/// The longest delay a poll adds to the clock, so that code that measures time measures some. Chosen by eye.
const STEP_TIME_MAX_NS: u64 = 2000;

struct State {
    now: Instant,
    rng: Rng,
    runnable: Vec<Arc<Task>>,
    main_runnable: bool,
    timers: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
    /// Every task not done. One that nothing can wake any more (its request hangs) is not done, and what it holds stays
    /// held, as on the machine.
    live: BTreeMap<u64, Arc<Task>>,
    steps: u64,
    steps_max: u64,
    step_time_max_ns: u64,
    trace_hash: u64,
    stopped: bool,
    disks: BTreeMap<PathBuf, Arc<SimDisk>>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

/// A simulation. Reached by [`Runtime::sim`](crate::Runtime::sim) and [`Handle::sim`](crate::Handle::sim).
pub struct Sim {
    state: Mutex<State>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(f, "Sim(now {:?}, step {})", state.now, state.steps)
    }
}

/// Wakes the main future of a `block_on`.
struct MainWaker {
    sim: Weak<Sim>,
    woken: AtomicBool,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel)
            && let Some(sim) = self.sim.upgrade()
        {
            sim.state.lock().main_runnable = true;
        }
    }
}

enum Step {
    Main,
    Task(Arc<Task>),
    Timers(Vec<Waker>),
    Deadlock(Deadlock),
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Sim {
        Sim {
            state: Mutex::new(State {
                now: Instant::default(),
                rng: Rng::new(seed),
                runnable: Vec::new(),
                main_runnable: false,
                timers: BTreeMap::new(),
                next_id: 0,
                live: BTreeMap::new(),
                steps: 0,
                steps_max: u64::MAX,
                step_time_max_ns: STEP_TIME_MAX_NS,
                trace_hash: seed,
                stopped: false,
                disks: BTreeMap::new(),
                files: BTreeMap::new(),
            }),
        }
    }

    /// A number that two runs share when they took the same steps at the same times.
    pub fn trace_hash(&self) -> u64 {
        self.state.lock().trace_hash
    }

    /// Polls so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Calls the run deadlocked after `steps_max` polls: finds tasks that wake each other without end.
    pub fn set_steps_max(&self, steps_max: u64) {
        self.state.lock().steps_max = steps_max;
    }

    /// How much each poll adds to the clock at most, drawn from the seed; zero for times that come from device models alone.
    pub fn set_step_time_max(&self, time: Duration) {
        self.state.lock().step_time_max_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Registers a disk that [`Handle::open`](crate::Handle::open) finds at `path`. One that was there is replaced.
    pub fn add_disk(&self, handle: &crate::Handle, path: impl Into<PathBuf>, options: SimDiskOptions) -> Arc<SimDisk> {
        let path = path.into();
        let seed = self.state.lock().rng.next_u64();
        let disk = SimDisk::new(handle.clone(), path.clone(), options, seed);
        self.state.lock().disks.insert(path, Arc::clone(&disk));
        disk
    }

    /// The disk registered at `path`.
    pub fn disk(&self, path: &Path) -> Option<Arc<SimDisk>> {
        self.state.lock().disks.get(path).cloned()
    }

    pub(crate) fn now(&self) -> Instant {
        self.state.lock().now
    }

    pub(crate) fn unix_time(&self) -> Duration {
        UNIX_TIME_AT_START + Duration::from_nanos(self.now().as_ns())
    }

    pub(crate) fn random_fill(&self, bytes: &mut [u8]) {
        self.state.lock().rng.fill(bytes);
    }

    pub(crate) fn next_task_id(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_id += 1;
        state.next_id
    }

    pub(crate) fn spawn(&self, task: Arc<Task>, reason: Reason) {
        if self.keep(&task) {
            self.schedule(task, reason);
        }
    }

    /// Takes note of a task that does not run yet. A task that comes when all has been stopped, from a destructor, is dropped: it
    /// and the simulation would keep each other in memory. Whether it is kept.
    pub(crate) fn keep(&self, task: &Arc<Task>) -> bool {
        let is_stopped = {
            let mut state = self.state.lock();
            if !state.stopped {
                state.live.insert(task.id, Arc::clone(task));
            }
            state.stopped
        };
        if is_stopped {
            let _ = task.cancel();
        }
        !is_stopped
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    pub(crate) fn arm(&self, deadline: Instant, waker: Waker) -> TimerKey {
        let mut state = self.state.lock();
        state.next_id += 1;
        let sequence = state.next_id;
        state.timers.insert((deadline, sequence), waker);
        TimerKey { home: None, deadline, sequence }
    }

    pub(crate) fn disarm(&self, key: TimerKey) {
        let waker = self.state.lock().timers.remove(&(key.deadline, key.sequence));
        drop(waker);
    }

    pub(crate) fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Device> {
        match self.disk(path) {
            Some(disk) => Ok(disk.device(options.write)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(crate) fn list_directory(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.state.lock();
        let inside = |entry: &&PathBuf| entry.parent() == Some(path);
        let mut paths: Vec<_> = state.disks.keys().chain(state.files.keys()).filter(inside).cloned().collect();
        paths.sort();
        Ok(paths)
    }

    pub(crate) fn read_file(&self, path: &Path, size_max_bytes: usize) -> io::Result<Vec<u8>> {
        match self.state.lock().files.get(path) {
            Some(bytes) if bytes.len() <= size_max_bytes => Ok(bytes.clone()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the file is longer than {size_max_bytes} bytes"),
            )),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(crate) fn write_file(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        self.state.lock().files.insert(path.to_owned(), bytes);
        Ok(())
    }

    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> Result<F::Output, Deadlock> {
        let main = Arc::new(MainWaker { sim: Arc::downgrade(self), woken: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&main));
        self.state.lock().main_runnable = true;
        let mut future = pin!(future);
        let _simulated = fair::simulated();
        loop {
            let step = self.state.lock().next_step();
            fair::begin();
            match step {
                Step::Main => {
                    main.woken.store(false, Ordering::Release);
                    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return Ok(output);
                    }
                }
                Step::Task(task) => task.run(),
                Step::Timers(wakers) => wakers.into_iter().for_each(Waker::wake),
                Step::Deadlock(deadlock) => return Err(deadlock),
            }
        }
    }

    pub(crate) fn stop(&self) {
        let (live, runnable, timers, disks) = {
            let mut state = self.state.lock();
            state.stopped = true;
            (
                std::mem::take(&mut state.live),
                std::mem::take(&mut state.runnable),
                std::mem::take(&mut state.timers),
                std::mem::take(&mut state.disks),
            )
        };
        live.into_values().for_each(|task| {
            let _ = task.cancel();
        });
        drop((runnable, timers, disks));
    }
}

impl State {
    fn note(&mut self, word: u64) {
        // FNV's prime over words: enough to tell runs apart, and the same everywhere.
        self.trace_hash = (self.trace_hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
    }

    fn next_step(&mut self) -> Step {
        if self.runnable.is_empty() && !self.main_runnable {
            let Some((&(deadline, _), _)) = self.timers.first_key_value() else {
                return Step::Deadlock(self.deadlock());
            };
            self.now = self.now.max(deadline);
        }
        // Timers fire as soon as the clock has reached them, whatever else could run.
        // One by one: splitting the map would count what is left of it, at each step.
        let now = self.now;
        let mut due = Vec::new();
        while let Some(timer) = self.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            due.push(timer.remove());
        }
        if !due.is_empty() {
            return Step::Timers(due);
        }
        self.steps += 1;
        if self.steps > self.steps_max {
            return Step::Deadlock(self.deadlock());
        }
        let choices = self.runnable.len() + usize::from(self.main_runnable);
        let choice = self.rng.below(choices as u64) as usize;
        let step_ns = self.rng.below(self.step_time_max_ns.max(1));
        self.now = self.now + Duration::from_nanos(step_ns);
        let now_ns = self.now.as_ns();
        self.note(now_ns);
        if choice == self.runnable.len() {
            self.main_runnable = false;
            self.note(0);
            return Step::Main;
        }
        let task = self.runnable.swap_remove(choice);
        self.note(task.id);
        Step::Task(task)
    }

    fn deadlock(&self) -> Deadlock {
        Deadlock { now: self.now, steps: self.steps, live_tasks: self.live.len() }
    }
}

impl Schedule for Sim {
    fn schedule(&self, task: Arc<Task>, _reason: Reason) {
        let mut state = self.state.lock();
        if state.stopped {
            drop(state);
            let _ = task.cancel();
        } else {
            state.runnable.push(task);
        }
    }

    /// Every task is known from the start.
    fn waits(&self, task: &Arc<Task>) -> u64 {
        task.id
    }

    fn finished(&self, task: &Task, _place: Option<u64>) {
        self.state.lock().live.remove(&task.id);
    }
}
