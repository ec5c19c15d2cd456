//! A bounded number of reads in flight, taken in order.

use std::collections::VecDeque;

use cenote_taskq::{Join, JoinError};

/// Reads of one object in flight at most. Enough to keep many devices busy; what a hostile size of range over size of
/// block comes to must not decide how many tasks there are.
pub(crate) const READS_MAX: usize = 128;

/// A read that was begun.
pub(crate) enum Begun<T> {
    /// It is over: nothing had to be waited for.
    Done(T),
    /// A task is at it.
    Task(Join<T>),
}

impl<T: Send + 'static> Begun<T> {
    /// Waits for it.
    pub(crate) async fn join(self) -> Result<T, JoinError> {
        match self {
            Self::Done(done) => Ok(done),
            Self::Task(task) => task.await,
        }
    }
}

/// Begins a read for each key, up to `limit` before their results are taken; `take` gets the results in the keys' order.
/// An error of either ends everything; tasks that were started then run on unused.
pub(crate) async fn in_order<K: Copy, T: Send + 'static, E>(
    keys: impl Iterator<Item = K>,
    limit: usize,
    mut begin: impl FnMut(K) -> Result<Begun<T>, E>,
    mut take: impl FnMut(K, Result<T, JoinError>) -> Result<(), E>,
) -> Result<(), E> {
    let mut keys = keys.fuse();
    let mut pending = VecDeque::new();
    loop {
        while pending.len() < limit.max(1) {
            let Some(key) = keys.next() else { break };
            pending.push_back((key, begin(key)?));
        }
        let Some((key, begun)) = pending.pop_front() else { return Ok(()) };
        take(key, begun.join().await)?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use cenote_taskq::{Class, Runtime};

    use super::*;

    #[test]
    fn no_more_than_the_limit_are_in_flight_and_results_come_in_order() {
        for (count, limit) in [(0, 3), (2, 3), (100, 1), (100, 7), (5, 0)] {
            let runtime = Runtime::simulated(1);
            let handle = runtime.handle();
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut taken = Vec::new();
            let start = |key: u64| {
                let in_flight = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(in_flight, Ordering::SeqCst);
                let (handle, now) = (handle.clone(), now.clone());
                Ok(Begun::Task(handle.clone().spawn(Class::Issue, async move {
                    // Later ones are done sooner.
                    handle.sleep(Duration::from_millis(1000 - key)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    key
                })))
            };
            let take = |key: u64, result: Result<u64, JoinError>| {
                assert_eq!(result.unwrap(), key);
                taken.push(key);
                Ok::<(), ()>(())
            };
            runtime.block_on(in_order(0..count, limit, start, take)).unwrap();
            assert_eq!(taken, (0..count).collect::<Vec<_>>());
            assert_eq!(most.load(Ordering::SeqCst), limit.max(1).min(count as usize));
        }
    }

    #[test]
    fn reads_that_are_over_at_once_are_taken_in_order_too() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let begin = |key: u64| {
            let begun = match key % 3 {
                0 => Begun::Task(handle.spawn(Class::Issue, async move { key })),
                _ => Begun::Done(key),
            };
            Ok(begun)
        };
        let mut taken = Vec::new();
        let take = |key: u64, result: Result<u64, JoinError>| {
            assert_eq!(result.unwrap(), key);
            taken.push(key);
            Ok::<(), ()>(())
        };
        runtime.block_on(in_order(0..50, 4, begin, take)).unwrap();
        assert_eq!(taken, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_ends_it_and_nothing_more_is_started() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let mut started = 0;
        let start = |key: u64| {
            started += 1;
            Ok(Begun::Task(handle.spawn(Class::Issue, async move { key })))
        };
        let take = |key: u64, _| if key == 10 { Err("enough") } else { Ok(()) };
        assert_eq!(runtime.block_on(in_order(0..1_000_000_000_000, 4, start, take)), Err("enough"));
        assert_eq!(started, 14);
    }
}
