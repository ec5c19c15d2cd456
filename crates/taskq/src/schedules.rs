//! The asynchronous primitives, run under many random schedules of threads.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p cenote-taskq --release --lib schedules`. Shuttle decides at every
//! lock and atomic who goes on; a wake-up that is lost shows as its deadlock.

use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::thread;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{
    AsyncMutex, AsyncRwLock, Event, JoinError, Notify, Runtime, Semaphore, Unordered, oneshot, race, yield_now,
};

const SCHEDULES: usize = 3000;

#[test]
fn a_oneshot_delivers_or_says_that_it_will_not() {
    shuttle::check_random(
        || {
            let (sender, receiver) = oneshot::channel();
            let keeper = thread::spawn(move || sender.send(5).is_ok());
            assert_eq!(block_on(receiver), Ok(5));
            assert!(keeper.join().expect("no panic"));
            let (sender, receiver) = oneshot::channel::<u8>();
            let leaver = thread::spawn(move || drop(sender));
            assert_eq!(block_on(receiver), Err(oneshot::Closed));
            leaver.join().expect("no panic");
        },
        SCHEDULES,
    );
}

#[test]
fn a_semaphore_never_gives_out_more_than_it_has() {
    shuttle::check_random(
        || {
            let semaphore = Arc::new(Semaphore::new(2));
            let out = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..4u64)
                .map(|index| {
                    let (semaphore, out) = (Arc::clone(&semaphore), Arc::clone(&out));
                    thread::spawn(move || {
                        block_on(async {
                            let count = 1 + index % 2;
                            if index == 3 {
                                // One gives up, granted or not.
                                race(semaphore.acquire(1), yield_now()).await;
                            }
                            let permit = semaphore.acquire(count).await;
                            assert!(out.fetch_add(count, Ordering::SeqCst) + count <= 2);
                            yield_now().await;
                            out.fetch_sub(count, Ordering::SeqCst);
                            drop(permit);
                        });
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert_eq!(semaphore.free(), 2);
        },
        SCHEDULES,
    );
}

#[test]
fn async_locks_exclude() {
    shuttle::check_random(
        || {
            let mutex = Arc::new(AsyncMutex::new(0));
            let lock = Arc::new(AsyncRwLock::new((0, 0)));
            let threads: Vec<_> = (0..3)
                .map(|index| {
                    let (mutex, lock) = (Arc::clone(&mutex), Arc::clone(&lock));
                    thread::spawn(move || {
                        block_on(async {
                            {
                                let mut value = mutex.lock().await;
                                let before = *value;
                                yield_now().await;
                                *value = before + 1;
                            }
                            if index == 0 {
                                let mut pair = lock.write().await;
                                pair.0 += 1;
                                yield_now().await;
                                pair.1 += 1;
                            } else {
                                let pair = lock.read().await;
                                yield_now().await;
                                assert_eq!(pair.0, pair.1);
                            }
                        });
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert_eq!(block_on(async { *mutex.lock().await }), 3);
        },
        SCHEDULES,
    );
}

#[test]
fn notifications_are_not_lost_between_threads() {
    shuttle::check_random(
        || {
            let (there, back) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let event = Arc::new(Event::new());
            let echo = {
                let (there, back, event) = (Arc::clone(&there), Arc::clone(&back), Arc::clone(&event));
                thread::spawn(move || {
                    block_on(async {
                        for _ in 0..3 {
                            there.wait().await;
                            back.one();
                        }
                        event.wait().await;
                    });
                })
            };
            block_on(async {
                for _ in 0..3 {
                    there.one();
                    back.wait().await;
                }
            });
            event.set();
            echo.join().expect("no panic");
        },
        SCHEDULES,
    );
}

#[test]
fn a_group_closes_exactly_when_it_is_empty() {
    shuttle::check_random(
        || {
            let runtime = Runtime::simulated(0);
            let group = runtime.handle().group();
            let inside = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (group, inside) = (group.clone(), Arc::clone(&inside));
                    thread::spawn(move || {
                        let Ok(member) = group.enter() else { return };
                        inside.fetch_add(1, Ordering::SeqCst);
                        let child = member.fork();
                        drop(member);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(child);
                    })
                })
                .collect();
            block_on(group.close());
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            assert!(group.enter().is_err());
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        },
        SCHEDULES,
    );
}

#[test]
fn a_set_of_futures_misses_no_wake() {
    shuttle::check_random(
        || {
            let mut set = Unordered::new();
            let mut threads = Vec::new();
            for index in 0..4 {
                let (sender, receiver) = oneshot::channel();
                threads.push(thread::spawn(move || sender.send(index).is_ok()));
                set.push(receiver);
            }
            let mut got = block_on(async {
                let mut got = Vec::new();
                while let Some(result) = set.next().await {
                    got.push(result.expect("sent"));
                }
                got
            });
            got.sort_unstable();
            assert_eq!(got, [0, 1, 2, 3]);
            threads.into_iter().for_each(|thread| assert!(thread.join().expect("no panic")));
        },
        SCHEDULES,
    );
}

/// The simulation itself holds no schedule of ours; this only shows that it runs under the checker's locks.
#[test]
fn a_simulation_runs_under_the_checker() {
    shuttle::check_random(
        || {
            let runtime = Runtime::simulated(1);
            let handle = runtime.handle();
            let result: Result<u8, JoinError> =
                runtime.block_on(async { handle.spawn(crate::Class::Issue, async { 3 }).await });
            assert_eq!(result, Ok(3));
        },
        50,
    );
}
