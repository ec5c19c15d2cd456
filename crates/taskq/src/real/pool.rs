//! Threads for what blocks or takes long: system calls without a ring, and long computations.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// How long a thread waits for work before it ends.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

/// Threads that come with demand, up to a bound, and go without it.
pub(crate) struct Pool {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State>,
    work: Condvar,
    /// Threads that ended; stopping the pool joins them.
    ended: Condvar,
}

impl Pool {
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Arc<Pool> {
        Arc::new(Pool {
            name,
            threads_max: threads_max.max(1),
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            ended: Condvar::new(),
        })
    }

    /// Queues `job`; `false`, and the job is dropped, once the pool is stopped.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> bool {
        let mut state = self.state.lock();
        if state.stopped {
            return false;
        }
        state.jobs.push_back(job);
        // A thread that was woken counts as idle until it runs, and its job as queued, so this is one thread for one job.
        if state.idle >= state.jobs.len() {
            drop(state);
            self.work.notify_one();
        } else if state.threads < self.threads_max {
            state.threads += 1;
            drop(state);
            let pool = Arc::clone(self);
            let spawned = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || pool.serve());
            if spawned.is_err() {
                let mut state = self.state.lock();
                state.threads -= 1;
                if state.threads == 0 {
                    // Nobody will ever come for it: better slow than never.
                    let jobs = std::mem::take(&mut state.jobs);
                    drop(state);
                    jobs.into_iter().for_each(|job| job());
                }
            }
        }
        true
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            if state.stopped {
                break;
            }
            state.idle += 1;
            let (locked, timed_out) = self.work.wait_for(state, IDLE_TIME_MAX);
            state = locked;
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }

    /// Refuses new jobs, finishes those queued, and waits for the threads to end.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.work.notify_all();
        while state.threads > 0 {
            state = self.ended.wait(state);
        }
    }
}
