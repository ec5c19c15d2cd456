//! What a connection may have in flight.

use std::sync::Arc;

use cenote_taskq::sync::{Condvar, Mutex};

use crate::limits;

#[derive(Debug, Default)]
struct InFlight {
    requests: u64,
    bytes: u64,
}

/// Counts requests and their data. The reader thread waits in it, tasks and the writer thread give back.
#[derive(Default)]
pub(crate) struct Budget {
    in_flight: Mutex<InFlight>,
    changed: Condvar,
}

impl Budget {
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
        let mut in_flight = self.budget.in_flight.lock();
        in_flight.requests -= 1;
        in_flight.bytes -= self.bytes;
        drop(in_flight);
        self.budget.changed.notify_all();
    }
}
