//! The lock-free protocols, explored over all interleavings.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p cenote-taskq --release --lib models`. Each model is small on purpose:
//! loom tries every order of every atomic step, and two or three threads are enough to show what can go wrong.

use std::task::{Wake, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::group::Shards;
use crate::handle::Class;
use crate::real::idle::{Called, Idle};
use crate::sync::Mutex;
use crate::task::{Reason, Schedule, Task};

fn model(bound: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(check);
}

/// A worker as it goes about sleeping: its queue is a counter, its parker a count of tokens.
fn work_once(idle: &Idle, work: &AtomicUsize, unparked: &[AtomicUsize], worker: usize, woken: bool) -> bool {
    let mut searching = woken || idle.try_search();
    loop {
        let taken = work.load(Ordering::Acquire) > 0
            && work.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1)).is_ok();
        if taken {
            if searching && idle.found() && work.load(Ordering::Acquire) > 0 {
                wake(idle, unparked);
            }
            return true;
        }
        let look_again = idle.enter(worker, std::mem::take(&mut searching));
        if look_again && work.load(Ordering::Acquire) > 0 {
            searching = idle.leave(worker);
            continue;
        }
        // Parked. Only a token ends it; what the model checks is that there is one when there is work.
        return false;
    }
}

/// All workers have threads.
fn all_present(workers: usize) -> Idle {
    let idle = Idle::new(workers);
    (1..workers).for_each(|worker| assert!(idle.take_back(worker)));
    idle
}

fn wake(idle: &Idle, unparked: &[AtomicUsize]) {
    // A worker that is started has a token too: it looks for work.
    if let Some(Called::Sleeper(worker) | Called::Absent(worker)) = idle.dispatched() {
        unparked[worker].fetch_add(1, Ordering::AcqRel);
    }
}

/// A worker that is left asleep while there is work must have been unparked.
fn no_work_is_left_to_sleepers(dispatches: usize, workers: usize) {
    let idle = Arc::new(all_present(workers));
    let work = Arc::new(AtomicUsize::new(0));
    let unparked: Arc<Vec<AtomicUsize>> = Arc::new((0..workers).map(|_| AtomicUsize::new(0)).collect());
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let (idle, work, unparked) = (Arc::clone(&idle), Arc::clone(&work), Arc::clone(&unparked));
            thread::spawn(move || work_once(&idle, &work, &unparked, worker, false))
        })
        .collect();
    for _ in 0..dispatches {
        work.fetch_add(1, Ordering::AcqRel);
        wake(&idle, &unparked);
    }
    let worked: Vec<bool> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    let tokens: usize = unparked.iter().map(|count| count.load(Ordering::Acquire)).sum();
    let awake = worked.iter().filter(|&&worked| worked).count();
    // A worker that took an item goes round again and would find the rest; if none did, someone must have a token.
    assert!(work.load(Ordering::Acquire) == 0 || awake + tokens > 0, "work is left and everyone sleeps");
}

#[test]
fn a_dispatch_to_one_sleepy_worker_is_never_missed() {
    model(4, || no_work_is_left_to_sleepers(1, 1));
}

#[test]
fn two_dispatches_to_two_sleepy_workers_are_never_missed() {
    model(2, || no_work_is_left_to_sleepers(2, 2));
}

/// Two dispatchers and a worker that goes to sleep: the case where one dispatcher relies on the other's search.
#[test]
fn a_dispatcher_that_relies_on_another_is_not_let_down() {
    model(4, || {
        let idle = Arc::new(all_present(2));
        let work = Arc::new(AtomicUsize::new(0));
        let unparked: Arc<Vec<AtomicUsize>> = Arc::new((0..2).map(|_| AtomicUsize::new(0)).collect());
        let other = {
            let (idle, work, unparked) = (Arc::clone(&idle), Arc::clone(&work), Arc::clone(&unparked));
            thread::spawn(move || {
                work.fetch_add(1, Ordering::AcqRel);
                wake(&idle, &unparked);
            })
        };
        let worker = {
            let (idle, work, unparked) = (Arc::clone(&idle), Arc::clone(&work), Arc::clone(&unparked));
            thread::spawn(move || {
                // It sleeps, wakes by itself (a completion, a timer), and is about to sleep again: a dispatcher may have
                // claimed the search in between and have found nobody.
                idle.enter(0, false);
                let woken = idle.leave(0);
                work_once(&idle, &work, &unparked, 0, woken)
            })
        };
        work.fetch_add(1, Ordering::AcqRel);
        wake(&idle, &unparked);
        other.join().expect("no panic");
        let worked = worker.join().expect("no panic");
        let tokens = unparked[0].load(Ordering::Acquire);
        assert!(worked || tokens > 0, "work is left and the worker sleeps");
    });
}

/// A worker's thread ends while work comes: either it sees the work and goes on, or the worker is started anew.
#[test]
fn a_dispatch_to_a_worker_whose_thread_ends_is_never_missed() {
    model(4, || {
        let idle = Arc::new(all_present(2));
        let work = Arc::new(AtomicUsize::new(0));
        let unparked: Arc<Vec<AtomicUsize>> = Arc::new((0..2).map(|_| AtomicUsize::new(0)).collect());
        // The first worker is in a poll that does not end; the second goes.
        let leaver = {
            let (idle, work) = (Arc::clone(&idle), Arc::clone(&work));
            thread::spawn(move || {
                idle.enter(1, false);
                if idle.leave(1) {
                    // Woken: it looks for work, which it finds.
                    return true;
                }
                idle.depart(1);
                work.load(Ordering::Acquire) > 0 && idle.take_back(1)
            })
        };
        work.fetch_add(1, Ordering::AcqRel);
        wake(&idle, &unparked);
        let stays = leaver.join().expect("no panic");
        let started = unparked[1].load(Ordering::Acquire);
        assert!(stays || started > 0, "work is left and nobody comes for it");
    });
}

/// After the closer has seen zero there is no member, and none comes.
#[test]
fn a_closed_group_stays_empty() {
    model(3, || {
        let shards = Arc::new(Shards::new(2));
        let inside = Arc::new(AtomicUsize::new(0));
        let emptied = Arc::new(AtomicUsize::new(0));
        let members: Vec<_> = (0..2)
            .map(|hint| {
                let (shards, inside, emptied) = (Arc::clone(&shards), Arc::clone(&inside), Arc::clone(&emptied));
                thread::spawn(move || {
                    let Some(place) = shards.enter(hint) else { return };
                    inside.fetch_add(1, Ordering::SeqCst);
                    // A child that outlives its parent.
                    shards.fork(place);
                    if shards.leave(place).tell {
                        emptied.fetch_add(1, Ordering::SeqCst);
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if shards.leave(place).tell {
                        emptied.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        shards.close();
        let empty_at_once = shards.members() == 0;
        if empty_at_once {
            assert_eq!(inside.load(Ordering::SeqCst), 0, "a member was missed");
            assert!(shards.enter(0).is_none());
        }
        members.into_iter().for_each(|member| member.join().expect("no panic"));
        assert_eq!(shards.members(), 0);
        // A closer that had to wait is told to look again.
        assert!(empty_at_once || emptied.load(Ordering::SeqCst) > 0, "nobody told the closer");
    });
}

/// Counters are given back once, by whoever is the last to hold them, and nobody is in then.
#[test]
fn counters_are_given_back_once_and_empty() {
    model(3, || {
        let shards = Arc::new(Shards::new(1));
        let given = Arc::new(AtomicUsize::new(0));
        let members: Vec<_> = (0..2)
            .map(|_| {
                let place = shards.enter(0).expect("open");
                let (shards, given) = (Arc::clone(&shards), Arc::clone(&given));
                thread::spawn(move || {
                    shards.fork(place);
                    for _ in 0..2 {
                        if shards.leave(place).unheld {
                            assert_eq!(shards.members(), 0, "given back with a member");
                            given.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        if shards.orphan() {
            assert_eq!(shards.members(), 0, "given back with a member");
            given.fetch_add(1, Ordering::SeqCst);
        }
        members.into_iter().for_each(|member| member.join().expect("no panic"));
        assert_eq!(given.load(Ordering::SeqCst), 1);
    });
}

/// Members that were in before a wait have left when both turns have been seen empty, whatever others do meanwhile; and if the
/// wait had to wait for one, a member tells the waiter.
#[test]
fn a_wait_misses_nobody_who_was_in() {
    model(3, || {
        let shards = Arc::new(Shards::new(1));
        let early = shards.enter(0).expect("open");
        let left = Arc::new(AtomicUsize::new(0));
        let told = Arc::new(AtomicUsize::new(0));
        let leaver = {
            let (shards, left, told) = (Arc::clone(&shards), Arc::clone(&left), Arc::clone(&told));
            thread::spawn(move || {
                left.store(1, Ordering::SeqCst);
                if shards.leave(early).tell {
                    told.store(1, Ordering::SeqCst);
                }
            })
        };
        let comer = {
            let (shards, told) = (Arc::clone(&shards), Arc::clone(&told));
            thread::spawn(move || {
                let place = shards.enter(0).expect("open");
                if shards.leave(place).tell {
                    told.store(1, Ordering::SeqCst);
                }
            })
        };
        let (turn, other) = shards.turns();
        assert_eq!(shards.members_of(other), 0);
        shards.flip();
        shards.set_waited(turn, true);
        let empty_at_once = shards.members_of(turn) == 0;
        if empty_at_once {
            assert_eq!(left.load(Ordering::SeqCst), 1, "a member was missed");
        }
        leaver.join().expect("no panic");
        comer.join().expect("no panic");
        assert_eq!(shards.members(), 0);
        assert!(empty_at_once || told.load(Ordering::SeqCst) == 1, "nobody told the waiter");
    });
}

/// A schedule that runs nothing: it counts.
struct Counting {
    queue: Mutex<Vec<std::sync::Arc<Task>>>,
}

impl Schedule for Counting {
    fn schedule(&self, task: std::sync::Arc<Task>, _reason: Reason) {
        self.queue.lock().push(task);
    }

    fn waits(&self, _task: &std::sync::Arc<Task>) -> u64 {
        0
    }

    fn finished(&self, _task: &Task, _place: Option<u64>) {}
}

/// Wakes race with a poll: the task is queued at most once, and what the waker wrote before is seen by a later poll.
#[test]
fn a_wake_is_neither_lost_nor_doubled() {
    model(3, || {
        let schedule = std::sync::Arc::new(Counting { queue: Mutex::new(Vec::new()) });
        let flags = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let seen = Arc::new(AtomicUsize::new(0));
        let (task_flags, task_seen) = (Arc::clone(&flags), Arc::clone(&seen));
        let future = std::future::poll_fn(move |_| {
            // Relaxed on purpose: the task's own state must order it.
            let both = task_flags.0.load(Ordering::Relaxed) + task_flags.1.load(Ordering::Relaxed);
            task_seen.store(both, Ordering::SeqCst);
            std::task::Poll::Pending
        });
        let task = Task::new(1, Class::Issue, std::sync::Arc::clone(&schedule) as _, Box::pin(future));
        let wakers: Vec<_> = (0..2)
            .map(|index| {
                let (task, flags) = (std::sync::Arc::clone(&task), Arc::clone(&flags));
                thread::spawn(move || {
                    let flag = if index == 0 { &flags.0 } else { &flags.1 };
                    flag.store(1, Ordering::Relaxed);
                    Waker::from(task).wake();
                })
            })
            .collect();
        std::sync::Arc::clone(&task).run();
        wakers.into_iter().for_each(|waker| waker.join().expect("no panic"));
        let queued = std::mem::take(&mut *schedule.queue.lock());
        assert!(queued.len() <= 1, "queued twice");
        for task in queued {
            task.run();
        }
        assert_eq!(seen.load(Ordering::SeqCst), 2, "a wake was lost");
        let _ = task.cancel();
        Wake::wake(task);
    });
}
