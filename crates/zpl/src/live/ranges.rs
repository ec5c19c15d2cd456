//! Locks on ranges of a file's bytes: readers share, writers are alone where they write.
//!
//! A lock that was asked for later waits for those before it that it overlaps (unless both are readers'), whether they are
//! held or waiting themselves, so nobody is passed for ever.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;

#[derive(Debug)]
struct Wish {
    range: Range<u64>,
    is_shared: bool,
}

impl Wish {
    fn conflicts(&self, other: &Self) -> bool {
        !(self.is_shared && other.is_shared) && self.range.start < other.range.end && other.range.start < self.range.end
    }
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Held and wished for, by the order of asking.
    wishes: BTreeMap<u64, Wish>,
}

/// A file's range locks.
#[derive(Debug)]
pub(super) struct RangeLocks {
    state: Mutex<State>,
    released: Notify,
}

/// A range, held (or waited for) until this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    turn: u64,
}

impl RangeLocks {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::default()), released: Notify::new() }
    }

    /// A range for reading.
    pub(super) async fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, true).await
    }

    /// A range for writing.
    pub(super) async fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, false).await
    }

    async fn lock(&self, range: Range<u64>, is_shared: bool) -> RangeGuard<'_> {
        let turn = {
            let mut state = self.state.lock();
            let turn = state.next;
            state.next += 1;
            state.wishes.insert(turn, Wish { range, is_shared });
            turn
        };
        // Dropped in the middle of waiting, it takes the wish back.
        let guard = RangeGuard { locks: self, turn };
        loop {
            let released = self.released.wait();
            if self.is_free(turn) {
                return guard;
            }
            released.await;
        }
    }

    fn is_free(&self, turn: u64) -> bool {
        let state = self.state.lock();
        let Some(wish) = state.wishes.get(&turn) else { return true };
        !state.wishes.range(..turn).any(|(_, before)| before.conflicts(wish))
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.locks.state.lock().wishes.remove(&self.turn);
        self.locks.released.all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cenote_taskq::{Class, Rng, Runtime};

    use super::*;

    /// Many tasks lock ranges at random and note in a table who is where; nobody meets a writer.
    #[test]
    fn writers_are_alone_in_their_ranges_and_all_come_to_an_end() {
        for seed in 0..20 {
            let runtime = Runtime::simulated(seed);
            let handle = runtime.handle();
            runtime.block_on(async {
                let locks = Arc::new(RangeLocks::new());
                let users = Arc::new(Mutex::new([(0_i32, 0_i32); 64]));
                let mut joins = Vec::new();
                for task in 0..24 {
                    let (locks, users, timer) = (locks.clone(), users.clone(), handle.clone());
                    joins.push(handle.spawn(Class::Issue, async move {
                        let mut rng = Rng::new(seed * 1000 + task);
                        for _ in 0..20 {
                            let start = rng.below(60);
                            let range = start..start + 1 + rng.below(64 - start);
                            let is_shared = rng.chance(1, 2);
                            let guard = locks.lock(range.clone(), is_shared).await;
                            let add = |sign: i32| {
                                let mut users = users.lock();
                                for at in range.clone() {
                                    let (readers, writers) = &mut users[at as usize];
                                    *(if is_shared { &mut *readers } else { &mut *writers }) += sign;
                                    assert!(*writers == 0 || (*writers == 1 && *readers == 0));
                                }
                            };
                            add(1);
                            timer.sleep(std::time::Duration::from_micros(rng.below(50))).await;
                            add(-1);
                            drop(guard);
                        }
                    }));
                }
                for join in joins {
                    join.await.unwrap();
                }
                assert!(locks.state.lock().wishes.is_empty());
            });
        }
    }

    #[test]
    fn a_wish_that_is_given_up_stands_in_nobodys_way() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        runtime.block_on(async {
            let locks = RangeLocks::new();
            let held = locks.write(0..10).await;
            let short = std::time::Duration::from_millis(1);
            assert!(handle.timeout(short, locks.write(5..15)).await.is_none());
            let other = handle.timeout(short, locks.read(12..20)).await;
            assert!(other.is_some());
            drop(held);
            let _all = locks.write(0..12).await;
        });
    }
}
