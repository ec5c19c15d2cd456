//! Locks on ranges of numbers (bytes of a file, blocks of an object): readers share, writers are alone.
//!
//! ```text
//!   held      0──3      7──9                two writers under way
//!   waiting       2────────8   8─9          in order of arrival: the second overlaps the first, so it waits behind it
//! ```
//! A request gets its range when it conflicts neither with a held range nor with an earlier request, so none starves. Two requests conflict
//! where they overlap, unless both are for reading.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::oneshot::{self, Sender};
use crate::sync::Mutex;

/// The locks of one thing.
#[derive(Default)]
pub struct RangeLock {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the next request.
    next: u64,
    /// By the order of asking.
    held: BTreeMap<u64, LockRequest>,
    waiting: BTreeMap<u64, (LockRequest, Sender<()>)>,
}

#[derive(Clone)]
struct LockRequest {
    range: Range<u64>,
    is_shared: bool,
}

impl LockRequest {
    fn conflicts(&self, other: &Self) -> bool {
        !(self.is_shared && other.is_shared) && self.range.start < other.range.end && other.range.start < self.range.end
    }
}

impl State {
    /// Whether a request conflicts with no request before `number`.
    fn is_free(&self, number: u64, request: &LockRequest) -> bool {
        !self.held.values().any(|held| held.conflicts(request))
            && !self.waiting.range(..number).any(|(_, (before, _))| before.conflicts(request))
    }

    /// Grants the requests that only `left` was in the way of.
    fn grant(&mut self, left: &LockRequest) -> Vec<Sender<()>> {
        let stuck = self.waiting.iter().filter(|(_, (request, _))| request.conflicts(left)).map(|(number, _)| *number);
        let mut granted = Vec::new();
        for number in stuck.collect::<Vec<_>>() {
            let is_free = self.waiting.get(&number).is_some_and(|(request, _)| self.is_free(number, request));
            if let Some((request, grant)) = is_free.then(|| self.waiting.remove(&number)).flatten() {
                self.held.insert(number, request);
                granted.push(grant);
            }
        }
        granted
    }
}

/// A place in a [`RangeLock`] without a reference to it, for owners of the locked object.
#[derive(Debug)]
#[must_use = "what is locked is to be released"]
pub struct RangeTicket(u64);

/// A range that is locked until this is dropped.
#[must_use]
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    number: u64,
}

impl RangeGuard<'_> {
    /// Keeps the range locked until [`RangeLock::release`] gets the ticket.
    pub fn into_ticket(self) -> RangeTicket {
        let number = self.number;
        std::mem::forget(self);
        RangeTicket(number)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.leave(self.number);
    }
}

impl RangeLock {
    /// Locks a range together with other readers.
    pub async fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(LockRequest { range, is_shared: true }).await
    }

    /// Locks a range alone.
    pub async fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(LockRequest { range, is_shared: false }).await
    }

    /// Releases a range that [`RangeGuard::into_ticket`] has kept locked.
    pub fn release(&self, ticket: RangeTicket) {
        self.leave(ticket.0);
    }

    async fn lock(&self, request: LockRequest) -> RangeGuard<'_> {
        let (number, granted) = {
            let mut state = self.state.lock();
            let number = state.next;
            state.next += 1;
            if state.is_free(number, &request) {
                state.held.insert(number, request);
                (number, None)
            } else {
                let (grant, granted) = oneshot::channel();
                state.waiting.insert(number, (request, grant));
                (number, Some(granted))
            }
        };
        // If this is dropped while it waits, the guard withdraws the request, or releases the range if it was granted meanwhile.
        let guard = RangeGuard { lock: self, number };
        if let Some(granted) = granted {
            // It is sent, since only the guard takes it out of the queue.
            let _ = granted.await;
        }
        guard
    }

    fn leave(&self, number: u64) {
        let granted = {
            let mut state = self.state.lock();
            let left = state.held.remove(&number).or_else(|| state.waiting.remove(&number).map(|(request, _)| request));
            left.map(|left| state.grant(&left)).unwrap_or_default()
        };
        // A waiter that was dropped meanwhile releases the range itself.
        granted.into_iter().for_each(|grant| _ = grant.send(()));
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{Class, Rng, Runtime};

    /// Many tasks lock ranges at random, some give up, and all note in a table who is where; nobody meets a writer.
    #[test]
    fn writers_are_alone_in_their_ranges_and_all_come_to_an_end() {
        for seed in 0..20 {
            let runtime = Runtime::simulated(seed);
            let handle = runtime.handle();
            runtime.block_on(async {
                let lock = Arc::new(RangeLock::default());
                let users = Arc::new(Mutex::new([(0_i32, 0_i32); 64]));
                let mut joins = Vec::new();
                for task in 0..24 {
                    let (lock, users, timer) = (lock.clone(), users.clone(), handle.clone());
                    joins.push(handle.spawn(Class::Issue, async move {
                        let mut rng = Rng::new(seed * 1000 + task);
                        for _ in 0..20 {
                            let start = rng.below(60);
                            let range = start..start + 1 + rng.below(64 - start);
                            let is_shared = rng.chance(1, 2);
                            let patience =
                                Duration::from_micros(if rng.chance(1, 4) { rng.below(50) } else { 1_000_000 });
                            let request = LockRequest { range: range.clone(), is_shared };
                            let Some(guard) = timer.timeout(patience, lock.lock(request)).await else { continue };
                            let add = |sign: i32| {
                                let mut users = users.lock();
                                for at in range.clone() {
                                    let (readers, writers) = &mut users[at as usize];
                                    *(if is_shared { &mut *readers } else { &mut *writers }) += sign;
                                    assert!(*writers == 0 || (*writers == 1 && *readers == 0));
                                }
                            };
                            add(1);
                            timer.sleep(Duration::from_micros(rng.below(50))).await;
                            add(-1);
                            match rng.chance(1, 2) {
                                true => lock.release(guard.into_ticket()),
                                false => drop(guard),
                            }
                        }
                    }));
                }
                for join in joins {
                    join.await.unwrap();
                }
                let state = lock.state.lock();
                assert!(state.held.is_empty() && state.waiting.is_empty());
            });
        }
    }

    #[test]
    fn a_wish_that_is_given_up_stands_in_nobodys_way() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        runtime.block_on(async {
            let lock = RangeLock::default();
            let held = lock.write(0..10).await;
            let short = Duration::from_millis(1);
            assert!(handle.timeout(short, lock.write(5..15)).await.is_none());
            let other = handle.timeout(short, lock.read(12..20)).await;
            assert!(other.is_some());
            drop(held);
            let _all = lock.write(0..12).await;
        });
    }
}
