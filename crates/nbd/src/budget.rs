//! What connections may have in flight: each by itself, and all of a server together.

use std::sync::Arc;

use cenote_taskq::sync::{Condvar, Mutex};

use crate::limits;

/// Data of the requests of all connections. Reader threads wait in it, and others give back: a client that keeps what it has
/// is ended by its deadline, so no wait is for ever.
#[derive(Debug)]
pub struct SharedBudget {
    limit: u64,
    used: Mutex<Used>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    bytes: u64,
    peak_bytes: u64,
}

impl SharedBudget {
    /// Room for so many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, used: Mutex::new(Used::default()), changed: Condvar::new() }
    }

    /// Takes bytes, waiting for room. Whatever is asked for fits where nothing else is taken.
    fn take(&self, bytes: u64) {
        let mut used = self.used.lock();
        while used.bytes > 0 && used.bytes.saturating_add(bytes) > self.limit {
            used = self.changed.wait(used);
        }
        used.bytes += bytes;
        used.peak_bytes = used.peak_bytes.max(used.bytes);
    }

    fn give_back(&self, bytes: u64) {
        self.used.lock().bytes -= bytes;
        self.changed.notify_all();
    }

    /// The most that was taken at once, in bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.used.lock().peak_bytes
    }
}

impl Default for SharedBudget {
    fn default() -> Self {
        Self::new(limits::SERVER_BYTES)
    }
}

#[derive(Debug, Default)]
struct InFlight {
    requests: u64,
    bytes: u64,
}

/// Counts requests and their data. The reader thread waits in it, tasks and the writer thread give back.
pub(crate) struct Budget {
    in_flight: Mutex<InFlight>,
    changed: Condvar,
    shared: Arc<SharedBudget>,
}

impl Budget {
    /// A connection's, whose data comes out of `shared` too.
    pub(crate) fn new(shared: Arc<SharedBudget>) -> Self {
        Self { in_flight: Mutex::new(InFlight::default()), changed: Condvar::new(), shared }
    }

    /// Takes a request of so many bytes, waiting for room. A single request always fits.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Cost {
        let mut in_flight = self.in_flight.lock();
        while in_flight.requests > 0
            && (in_flight.requests >= limits::IN_FLIGHT_REQUESTS
                || in_flight.bytes.saturating_add(bytes) > limits::IN_FLIGHT_BYTES)
        {
            in_flight = self.changed.wait(in_flight);
        }
        in_flight.requests += 1;
        in_flight.bytes += bytes;
        drop(in_flight);
        if bytes > 0 {
            self.shared.take(bytes);
        }
        Cost { budget: Arc::clone(self), bytes }
    }

    /// Waits until nothing is in flight.
    pub(crate) fn drained(&self) {
        let mut in_flight = self.in_flight.lock();
        while in_flight.requests > 0 {
            in_flight = self.changed.wait(in_flight);
        }
    }
}

/// A request's share; given back when dropped.
pub(crate) struct Cost {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Cost {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.shared.give_back(self.bytes);
        }
        let mut in_flight = self.budget.in_flight.lock();
        in_flight.requests -= 1;
        in_flight.bytes -= self.bytes;
        drop(in_flight);
        self.budget.changed.notify_all();
    }
}
