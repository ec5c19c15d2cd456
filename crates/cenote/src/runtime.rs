//! The runtime that everything happens in.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cenote_taskq::sim::disk::{Crash, Latency, SimDisk, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Join, RuntimeOptions};

use crate::error::Error;
use crate::raise::Raise as _;

/// An executor with threads and devices, or a simulation of both. Pools that were opened in it are used while it is there.
///
/// Every `async` function of this crate can be called from a program without futures: [`block_on`](Self::block_on) waits for it. Any
/// number of threads may do so at once.
pub struct Runtime {
    runtime: cenote_taskq::Runtime,
    disks: Mutex<Vec<PathBuf>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.runtime.fmt(f)
    }
}

impl Runtime {
    /// On this system's devices, with a worker thread for each core that is allowed, as far as there is work for them.
    ///
    /// # Errors
    /// Threads cannot be had.
    pub fn new() -> Result<Self, Error> {
        Self::of(RuntimeOptions::default())
    }

    /// The same with so many worker threads at most.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_threads(threads: usize) -> Result<Self, Error> {
        Self::of(RuntimeOptions { workers: Some(threads.max(1)), ..RuntimeOptions::default() })
    }

    fn of(options: RuntimeOptions) -> Result<Self, Error> {
        let runtime = cenote_taskq::Runtime::real(options).raised()?;
        Ok(Self { runtime, disks: Mutex::default() })
    }

    /// A simulation on one thread: the clock is virtual, the devices are those of [`add_disk`](Self::add_disk), and the same seed and
    /// calls give the same run.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        Self { runtime: cenote_taskq::Runtime::simulated(seed), disks: Mutex::default() }
    }

    /// Adds a disk of zeros to a simulation. Its requests take some time, and what was not flushed is lost with the power.
    ///
    /// # Panics
    /// The runtime is no simulation.
    pub fn add_disk(&self, path: impl AsRef<Path>, size_bytes: u64) -> SimulatedDisk {
        let sim = self.runtime.sim().expect("disks are added to simulations");
        let latency = Latency {
            write: Duration::from_micros(100),
            flush: Duration::from_micros(400),
            jitter: Duration::from_micros(400),
            ..Latency::default()
        };
        let options = SimDiskOptions { size_bytes, latency, ..SimDiskOptions::default() };
        let path = path.as_ref().to_owned();
        let disk = sim.add_disk(&self.runtime.handle(), &path, options);
        self.disks.lock().push(path);
        SimulatedDisk(disk)
    }

    /// Cuts the power of a simulated machine: all that was in memory is gone, and of what was written to the disks and not flushed, each
    /// write survives, is lost or is torn, as the seed has it. The machine comes back with its disks as they are then; pools are not open
    /// in it. The remaining objects of the old one are of no use any more.
    ///
    /// # Panics
    /// The runtime is no simulation.
    #[must_use]
    pub fn cut_power(self, seed: u64) -> Self {
        let sim = self.runtime.sim().expect("the power of simulations is cut");
        let next = Self::simulated(seed);
        for path in &*self.disks.lock() {
            let Some(disk) = sim.disk(path) else { continue };
            disk.crash(Crash::Random);
            let again = next.add_disk(path, disk.size_bytes());
            again.0.restore(&disk.image());
        }
        next
    }

    /// Runs a future on this thread until it is done.
    ///
    /// # Panics
    /// A simulation waits for something that nothing in it can bring about.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Runs a future beside others.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Task(self.runtime.handle().spawn(Class::Issue, future))
    }

    /// Waits for so long; in a simulation, of its virtual time.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.runtime.handle().sleep(time)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.runtime.handle()
    }

    /// The disks of a simulation.
    pub(crate) fn simulated_disks(&self) -> Option<Vec<PathBuf>> {
        self.runtime.sim().map(|_| self.disks.lock().clone())
    }
}

/// A future that runs beside others. It goes on when this is dropped. To wait for it gives what the future gave.
///
/// # Panics
/// To wait for one that has panicked, or whose runtime is gone, panics.
#[must_use = "a task goes on without it; say so with drop()"]
pub struct Task<T>(Join<T>);

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(context).map(|output| match output {
            Ok(output) => output,
            Err(error) => panic!("{error}"),
        })
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

/// A disk of a simulation.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<SimDisk>);

impl SimulatedDisk {
    /// Cuts the power: requests under way fail. Each write that was not flushed survives, is lost or is torn, as the seed has it.
    pub fn cut_power(&self) {
        self.0.crash(Crash::Random);
    }

    /// Answers requests again.
    pub fn power_on(&self) {
        self.0.power_on();
    }

    /// Overwrites bytes behind the pool's back, as a failing disk does.
    pub fn overwrite(&self, offset_bytes: u64, bytes: &[u8]) {
        self.0.poke(offset_bytes, bytes);
    }
}
