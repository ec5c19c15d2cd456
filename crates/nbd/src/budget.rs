//! The requests and data that connections may have in flight: each by itself, and all of a server together.

use std::sync::Arc;

use cenote_taskq::sync::{Condvar, Mutex};

use crate::limits;

/// Data of the requests of all connections. Reader threads wait in it, in the order in which they came, and others give back: a
/// client that keeps what it has is ended by its deadline, so no wait is for ever.
#[derive(Debug)]
pub(crate) struct SharedBudget {
    limit: u64,
    used: Mutex<Used>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    bytes: u64,
    peak_bytes: u64,
    /// Requests that have come, and that have had their turn.
    came: u64,
    served: u64,
}

impl SharedBudget {
    /// Room for so many bytes.
    #[must_use]
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: Mutex::new(Used::default()), changed: Condvar::new() }
    }

    /// Takes bytes, waiting for its turn and for room. Any number fits while nothing else is taken.
    fn take(&self, bytes: u64) {
        let mut used = self.used.lock();
        let turn = used.came;
        used.came += 1;
        // Without turns small requests would pass a large one for ever.
        while used.served != turn || (used.bytes > 0 && used.bytes.saturating_add(bytes) > self.limit) {
            used = self.changed.wait(used);
        }
        used.served += 1;
        used.bytes += bytes;
        used.peak_bytes = used.peak_bytes.max(used.bytes);
        assert!(used.served <= used.came, "a turn is of a request that has come");
        assert!(
            used.bytes <= self.limit.max(bytes),
            "all connections hold so much data at most, or one request (invariant 2)"
        );
        if used.came > used.served {
            self.changed.notify_all();
        }
    }

    fn give_back(&self, bytes: u64) {
        let mut used = self.used.lock();
        debug_assert!(used.bytes >= bytes, "data that is given back was taken (invariant 2)");
        used.bytes -= bytes;
        drop(used);
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
        assert!(
            bytes <= limits::IN_FLIGHT_BYTES,
            "a request's data was checked before it takes its share (invariant 3)"
        );
        let mut in_flight = self.in_flight.lock();
        while in_flight.requests > 0
            && (in_flight.requests >= limits::IN_FLIGHT_REQUESTS
                || in_flight.bytes.saturating_add(bytes) > limits::IN_FLIGHT_BYTES)
        {
            in_flight = self.changed.wait(in_flight);
        }
        in_flight.requests += 1;
        in_flight.bytes += bytes;
        assert!(
            in_flight.requests <= limits::IN_FLIGHT_REQUESTS,
            "a connection holds so many requests at most (invariant 2)"
        );
        assert!(in_flight.bytes <= limits::IN_FLIGHT_BYTES, "a connection holds so much data at most (invariant 2)");
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
        assert_eq!(in_flight.bytes, 0, "where no request is in flight no data is (invariant 2)");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a large request has its turn. Method: a small one comes that would fit at once. Would go wrong if room went to the
    /// first that fits.
    #[test]
    fn a_small_request_does_not_pass_a_large_one_that_waits() {
        let budget = SharedBudget::new(10);
        budget.take(8);
        std::thread::scope(|scope| {
            for (bytes, came) in [(5, 2), (2, 3)] {
                scope.spawn({
                    let budget = &budget;
                    move || budget.take(bytes)
                });
                // Counted and found waiting under one lock.
                while budget.used.lock().came < came {
                    std::thread::yield_now();
                }
                assert_eq!(budget.used.lock().bytes, 8);
            }
            budget.give_back(8);
        });
        assert_eq!(budget.used.lock().bytes, 7);
        assert_eq!(budget.peak_bytes(), 8);
    }
}
