//! Where one thread waits and others reach it: its parking place and its timers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::time::Instant;

/// One more, as an event descriptor counts: in the host's own order, since it is no disk.
#[allow(clippy::host_endian_bytes)]
pub(super) const EVENT_ONE: [u8; 8] = 1u64.to_ne_bytes();

const EMPTY: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// A token that wakes one thread: unparking before parking makes the park return at once, and unparking a thread that
/// runs costs no system call. The thread sleeps in its ring if it has one (then `event` ends the sleep), or else here.
pub(crate) struct Parker {
    state: AtomicU8,
    event: Option<Arc<OwnedFd>>,
    lock: Mutex<()>,
    condition: Condvar,
}

impl Parker {
    pub(crate) fn new(event: Option<Arc<OwnedFd>>) -> Parker {
        Parker { state: AtomicU8::new(EMPTY), event, lock: Mutex::new(()), condition: Condvar::new() }
    }

    /// Whether the thread sleeps in a ring.
    pub(super) fn has_ring(&self) -> bool {
        self.event.is_some()
    }

    /// Wakes the thread, now or when it next parks.
    pub(crate) fn unpark(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) != PARKED {
            return;
        }
        match &self.event {
            Some(event) => {
                // The counter cannot overflow: the sleeper's read resets it. A failure would be a closed descriptor.
                let _ = rustix::io::write(&**event, &EVENT_ONE);
            }
            None => {
                // Between its look at the state and its wait the sleeper holds the lock.
                drop(self.lock.lock());
                self.condition.notify_one();
            }
        }
    }

    /// Announces a sleep. False if the thread was unparked already, which uses that up.
    pub(crate) fn prepare(&self) -> bool {
        if self.state.compare_exchange(EMPTY, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        self.state.swap(EMPTY, Ordering::AcqRel);
        false
    }

    /// After a sleep that was announced, however it ended.
    pub(crate) fn finish(&self) {
        self.state.swap(EMPTY, Ordering::AcqRel);
    }

    /// Sleeps without a ring, after [`Parker::prepare`] and before [`Parker::finish`].
    pub(crate) fn sleep(&self, limit: Option<Duration>) {
        let mut guard = self.lock.lock();
        while self.state.load(Ordering::Acquire) == PARKED {
            match limit {
                None => guard = self.condition.wait(guard),
                // Once: the caller looks at its timers again whether or not the time is over.
                Some(limit) => {
                    drop(self.condition.wait_for(guard, limit));
                    return;
                }
            }
        }
    }
}

/// The timers of one thread, by deadline and order of arming. Only that thread fires them; any may arm and disarm.
pub(crate) struct Timers {
    armed: Mutex<Armed>,
    /// The earliest deadline, for a look without the lock.
    next_ns: AtomicU64,
}

#[derive(Default)]
struct Armed {
    sequence: u64,
    by_deadline: BTreeMap<(Instant, u64), Waker>,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers { armed: Mutex::new(Armed::default()), next_ns: AtomicU64::new(u64::MAX) }
    }

    /// Arms a timer. Its name, and whether it is now the earliest.
    pub(crate) fn arm(&self, deadline: Instant, waker: Waker) -> (u64, bool) {
        let mut armed = self.armed.lock();
        armed.sequence += 1;
        let sequence = armed.sequence;
        armed.by_deadline.insert((deadline, sequence), waker);
        let earliest = armed.by_deadline.first_key_value().is_some_and(|(key, _)| *key == (deadline, sequence));
        self.note_next(&armed);
        (sequence, earliest)
    }

    pub(crate) fn disarm(&self, deadline: Instant, sequence: u64) {
        let waker = {
            let mut armed = self.armed.lock();
            let waker = armed.by_deadline.remove(&(deadline, sequence));
            self.note_next(&armed);
            waker
        };
        // A waker may be the last hold on a task, whose end may disarm: not under the lock.
        drop(waker);
    }

    fn note_next(&self, armed: &Armed) {
        let next = armed.by_deadline.first_key_value().map_or(u64::MAX, |(&(deadline, _), _)| deadline.as_ns());
        self.next_ns.store(next, Ordering::Release);
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.next_ns.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(Instant::from_ns(ns)),
        }
    }

    /// Takes the wakers of all that are due.
    pub(crate) fn due(&self, now: Instant) -> Vec<Waker> {
        let mut armed = self.armed.lock();
        let later = armed.by_deadline.split_off(&(Instant::from_ns(now.as_ns().saturating_add(1)), 0));
        let due = std::mem::replace(&mut armed.by_deadline, later);
        self.note_next(&armed);
        due.into_values().collect()
    }

    /// Takes all, due or not.
    pub(crate) fn take_all(&self) -> Vec<(Instant, Waker)> {
        let mut armed = self.armed.lock();
        let all = std::mem::take(&mut armed.by_deadline);
        self.note_next(&armed);
        all.into_iter().map(|((deadline, _), waker)| (deadline, waker)).collect()
    }
}
