//! Time passed and processor time used.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// The time that some work took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Seconds on the wall.
    pub wall_s: f64,
    /// Processor seconds of all threads of this process.
    pub cpu_s: f64,
}

/// Runs from when it is made.
pub struct Watch {
    start: Instant,
    cpu_s: f64,
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Watch {
    /// One that runs from now on.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now(), cpu_s: cpu_s() }
    }

    /// Time since it was made.
    #[must_use]
    pub fn took(&self) -> Took {
        Took { wall_s: self.start.elapsed().as_secs_f64(), cpu_s: cpu_s() - self.cpu_s }
    }

    /// It has run for less than so many seconds.
    #[must_use]
    pub fn runs_for(&self, seconds: f64) -> bool {
        self.start.elapsed().as_secs_f64() < seconds
    }
}

/// How often threads of this process were taken off a processor so far, of those that there are now; none where the system does not say.
#[must_use]
pub fn context_switches() -> Option<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may be gone by now.
        let Ok(status) = std::fs::read_to_string(task.ok()?.path().join("status")) else { continue };
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
        sum += counts.sum::<u64>();
    }
    Some(sum)
}
