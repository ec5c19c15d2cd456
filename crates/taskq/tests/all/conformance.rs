//! The promises of every runtime, checked on each of them: rings, threads and the simulation.
//!
//! There is one body of claims. A claim is a function over a [`World`], which is a runtime and a way to make a disk with
//! given content; the macro runs it in every world. Intended differences between worlds (time, schedule, faults) are
//! tested elsewhere.
#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{
    AsyncMutex, AsyncRwLock, Block, Buf, Class, Device, Direct, Event, IoChoice, JoinError, JoinSet, Notify,
    OpenOptions, Runtime, RuntimeOptions, Semaphore, both, for_each_concurrent, give_way, join_all, map_concurrent,
    oneshot, race, yield_now,
};

struct World {
    runtime: Runtime,
    folder: tempfile::TempDir,
}

impl World {
    fn real(io: IoChoice, workers: usize) -> World {
        let options = RuntimeOptions { workers: Some(workers), io };
        World { runtime: Runtime::real(options).expect("a runtime"), folder: tempfile::tempdir().expect("a folder") }
    }

    fn simulated(seed: u64) -> World {
        World { runtime: Runtime::simulated(seed), folder: tempfile::tempdir().expect("a folder") }
    }

    /// A disk with this content, in this world's manner.
    fn disk(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        match self.runtime.sim() {
            Some(sim) => {
                let base = Some(Block::from(content.to_vec()));
                let options = SimDiskOptions { size_bytes: content.len() as u64, base, ..Default::default() };
                sim.add_disk(&self.runtime.handle(), path.clone(), options);
            }
            None => std::fs::write(&path, content).expect("a written file"),
        }
        path
    }

    async fn open(&self, path: &std::path::Path, write: bool, direct: Direct) -> Device {
        self.runtime
            .handle()
            .open(path, OpenOptions { write, direct, ..OpenOptions::default() })
            .await
            .expect("an open device")
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
}

macro_rules! claims {
    ($($claim:ident)*) => {
        mod rings { $(#[test] fn $claim() {
            super::$claim(&super::World::real(super::IoChoice::Auto, 2));
            super::$claim(&super::World::real(super::IoChoice::Auto, 1));
        })* }
        mod threads { $(#[test] fn $claim() { super::$claim(&super::World::real(super::IoChoice::Threads, 2)); })* }
        mod simulation { $(#[test] fn $claim() {
            for seed in 0..8 {
                super::$claim(&super::World::simulated(seed));
            }
        })* }
    };
}

claims! {
    a_spawned_task_yields_its_value
    tasks_that_never_wait_hold_up_neither_timers_nor_requests
    many_tasks_all_run
    tasks_spawn_tasks_of_every_class
    a_panic_is_contained_and_told_to_the_joiner
    a_dropped_join_detaches_the_task
    a_closure_off_the_workers_yields_its_value
    a_sleep_takes_at_least_its_time
    sleeps_end_in_the_order_of_their_deadlines
    a_dropped_sleep_is_forgotten
    a_timeout_drops_what_is_late
    a_read_gives_the_bytes_of_its_place
    unaligned_reads_are_served_in_every_mode
    a_read_past_the_end_fails_and_returns_its_buffer
    what_is_written_is_read_back
    what_is_written_to_be_stable_is_read_back
    concurrent_reads_from_tasks_and_from_outside_agree
    a_dropped_read_harms_nothing
    a_read_only_device_refuses_writes
    a_missing_device_is_not_found
    a_closed_group_is_empty_and_stays_so
    a_member_may_fork_while_its_group_closes
    what_is_begun_here_ends_here_or_as_a_task
    a_wait_is_for_those_who_are_in_and_refuses_nobody
    a_cancelled_group_begins_nothing_and_waits_for_what_has_begun
    what_is_dispatched_runs_once_and_a_panic_is_its_own
    an_entry_runs_for_every_dispatch_that_stood_and_never_twice_at_a_time
    a_dropped_entry_runs_what_stands_and_no_more
    a_group_is_waited_for_by_many_at_a_time
    a_oneshot_tells_when_its_sender_left
    an_event_lets_all_go_on
    a_notification_is_not_lost
    a_semaphore_bounds_and_is_fair
    an_async_mutex_excludes_across_awaits
    a_writer_excludes_readers
    concurrency_helpers_keep_order_and_bound
    small_files_are_written_whole_and_listed
    random_bits_are_not_constant
}

fn a_spawned_task_yields_its_value(world: &World) {
    let handle = world.runtime.handle();
    let value = world.runtime.block_on(async { handle.spawn(Class::Issue, async { 42 }).await });
    assert_eq!(value, Ok(42));
}

/// As many tasks as workers find all that they need in memory, until a timer and a read have come through.
fn tasks_that_never_wait_hold_up_neither_timers_nor_requests(world: &World) {
    let handle = world.runtime.handle();
    let path = world.disk("busy", &pattern(4096));
    let is_done = Arc::new(AtomicBool::new(false));
    world.runtime.block_on(async {
        let device = world.open(&path, false, Direct::Auto).await;
        let mut busy = JoinSet::new();
        for _ in 0..2 {
            let is_done = Arc::clone(&is_done);
            busy.push(handle.spawn(Class::Sync, async move {
                let part = async || {
                    while !is_done.load(Ordering::Relaxed) {
                        give_way().await;
                    }
                };
                // As a task of several parts, all of which find what they need in memory.
                both(part(), join_all([part(), part()])).await;
            }));
        }
        let task = handle.clone();
        let through = handle.spawn(Class::Background, async move {
            task.sleep(Duration::from_millis(3)).await;
            let (read, _) = device.read(512, Buf::zeroed(512)).await;
            read.expect("the read succeeds");
            is_done.store(true, Ordering::Relaxed);
        });
        through.await.expect("no panic");
        while let Some(result) = busy.next().await {
            result.expect("no panic");
        }
    });
}

fn many_tasks_all_run(world: &World) {
    let handle = world.runtime.handle();
    let count = Arc::new(AtomicU64::new(0));
    world.runtime.block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..2000 {
            let count = Arc::clone(&count);
            set.push(handle.spawn(Class::Background, async move {
                yield_now().await;
                count.fetch_add(1, Ordering::Relaxed);
            }));
        }
        while let Some(result) = set.next().await {
            result.expect("no panic");
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 2000);
}

fn tasks_spawn_tasks_of_every_class(world: &World) {
    let handle = world.runtime.handle();
    let total = world.runtime.block_on(async {
        let inner = handle.clone();
        let outer = handle.spawn(Class::Sync, async move {
            let classes = [Class::Interrupt, Class::Issue, Class::Sync, Class::Background];
            let joins = classes.map(|class| inner.spawn_front(class, async move { class as u64 + 1 }));
            join_all(joins).await.into_iter().map(|result| result.expect("no panic")).sum::<u64>()
        });
        outer.await
    });
    assert_eq!(total, Ok(10));
}

fn a_panic_is_contained_and_told_to_the_joiner(world: &World) {
    let handle = world.runtime.handle();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (result, off, after) = world.runtime.block_on(async {
        let result = handle
            .spawn(Class::Issue, async {
                if true {
                    panic!("on purpose")
                }
            })
            .await;
        let off = handle
            .spawn_blocking(|| {
                if true {
                    panic!("elsewhere")
                }
            })
            .await;
        (result, off, handle.spawn(Class::Issue, async { 1 }).await)
    });
    std::panic::set_hook(hook);
    assert_eq!(result, Err(JoinError::Panicked("on purpose".into())));
    assert_eq!(off, Err(JoinError::Panicked("elsewhere".into())));
    assert_eq!(after, Ok(1));
}

fn a_dropped_join_detaches_the_task(world: &World) {
    let handle = world.runtime.handle();
    let (sender, receiver) = oneshot::channel();
    let sleeper = handle.clone();
    drop(handle.spawn(Class::Issue, async move {
        sleeper.sleep(Duration::from_millis(1)).await;
        sender.send(7).expect("the receiver waits");
    }));
    assert_eq!(world.runtime.block_on(receiver), Ok(7));
}

fn a_closure_off_the_workers_yields_its_value(world: &World) {
    let handle = world.runtime.handle();
    let results = world.runtime.block_on(async {
        let joins: Vec<_> = (0..50u64).map(|n| handle.spawn_cpu(move || n * n)).collect();
        join_all(joins).await
    });
    assert!(results.into_iter().enumerate().all(|(n, result)| result == Ok((n * n) as u64)));
}

fn a_sleep_takes_at_least_its_time(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let before = handle.now();
        handle.sleep(Duration::from_millis(3)).await;
        assert!(handle.now() - before >= Duration::from_millis(3));
        let task = handle.clone();
        let slept = handle.spawn(Class::Issue, async move {
            let before = task.now();
            task.sleep(Duration::from_millis(3)).await;
            task.now() - before
        });
        assert!(slept.await.expect("no panic") >= Duration::from_millis(3));
    });
}

fn sleeps_end_in_the_order_of_their_deadlines(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let order = AsyncMutex::new(Vec::new());
        let now = handle.now();
        for_each_concurrent(8, [30u64, 10, 20, 0], |ms| {
            let (handle, order) = (&handle, &order);
            async move {
                handle.sleep_until(now + Duration::from_millis(ms)).await;
                order.lock().await.push(ms);
            }
        })
        .await;
        assert_eq!(order.into_inner(), [0, 10, 20, 30]);
    });
}

fn a_dropped_sleep_is_forgotten(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let long = handle.sleep(Duration::from_secs(3600));
        race(handle.sleep(Duration::from_millis(1)), long).await;
        assert!(handle.now().as_ns() < 3600 * 1_000_000_000);
    });
}

fn a_timeout_drops_what_is_late(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        assert_eq!(handle.timeout(Duration::from_millis(1), std::future::pending::<()>()).await, None);
        assert_eq!(handle.timeout(Duration::from_secs(100), async { 5 }).await, Some(5));
    });
}

fn a_read_gives_the_bytes_of_its_place(world: &World) {
    let content = pattern(1 << 20);
    let path = world.disk("disk", &content);
    world.runtime.block_on(async {
        let device = world.open(&path, false, Direct::Auto).await;
        assert_eq!(device.size_bytes(), 1 << 20);
        assert_eq!(device.path(), path);
        for (offset, len) in [(0, 4096), (4096, 131_072), (1 << 19, 1 << 19), ((1 << 20) - 4096, 4096)] {
            let (result, buf) = device.read(offset as u64, Buf::zeroed(len)).await;
            result.expect("a read");
            assert!(buf[..] == content[offset..offset + len]);
        }
    });
}

fn unaligned_reads_are_served_in_every_mode(world: &World) {
    let content = pattern(100_003);
    let path = world.disk("ragged", &content);
    world.runtime.block_on(async {
        for direct in [Direct::Auto, Direct::Never] {
            let device = world.open(&path, false, direct).await;
            for (offset, len) in [(1, 1), (511, 2), (513, 5000), (99_000, 1003), (100_002, 1), (0, 100_003), (7, 0)] {
                let (result, buf) = device.read(offset as u64, Buf::zeroed(len)).await;
                result.expect("a read");
                assert!(buf[..] == content[offset..offset + len], "{len} at {offset}");
            }
        }
    });
}

fn a_read_past_the_end_fails_and_returns_its_buffer(world: &World) {
    let path = world.disk("short", &pattern(8192));
    world.runtime.block_on(async {
        let device = world.open(&path, false, Direct::Auto).await;
        for (offset, len) in [(4096u64, 8192), (8192, 1), (u64::MAX, 4096), (u64::MAX - 4095, 4096)] {
            let (result, buf) = device.read(offset, Buf::zeroed(len)).await;
            assert_eq!(result.expect_err("past the end").kind(), std::io::ErrorKind::UnexpectedEof);
            assert_eq!(buf.len(), len);
        }
    });
}

fn what_is_written_to_be_stable_is_read_back(world: &World) {
    let mut content = pattern(64 << 10);
    let path = world.disk("stable", &content);
    world.runtime.block_on(async {
        for direct in [Direct::Auto, Direct::Never] {
            let device = world.open(&path, true, direct).await;
            for (offset, len) in [(0, 4096), (4096, 16_384), (61_440, 4096)] {
                let news: Vec<u8> = pattern(len).into_iter().map(|byte| byte.wrapping_add(offset as u8 + 1)).collect();
                device.write_stable(offset as u64, Block::from(news.clone())).await.expect("a write");
                content[offset..offset + len].copy_from_slice(&news);
            }
            assert!(device.write_stable(64 << 10, Block::from(vec![1; 4096])).await.is_err(), "past the end");
            let (read, bytes) = device.read(0, Buf::zeroed(content.len())).await;
            assert!(read.is_ok() && bytes[..] == content);
        }
        let device = world.open(&path, false, Direct::Auto).await;
        assert!(device.write_stable(0, Block::from(vec![1; 4096])).await.is_err(), "read-only");
    });
}

fn what_is_written_is_read_back(world: &World) {
    let mut content = pattern(256 << 10);
    let path = world.disk("writable", &content);
    world.runtime.block_on(async {
        let device = world.open(&path, true, Direct::Auto).await;
        let news = Block::from(pattern(200_000).into_iter().rev().collect::<Vec<_>>());
        for (offset, len) in [(0, 4096), (8192, 65_536), (102_400, 8192), (131_072, 4096), (200_704, 61_440)] {
            // A slice of a slice: neither aligned in memory nor the whole of anything.
            let part = news.slice(5..5 + len);
            content[offset..offset + len].copy_from_slice(&part);
            device.write(offset as u64, part).await.expect("a write");
        }
        device.flush().await.expect("a flush");
        let (result, buf) = device.read(0, Buf::zeroed(content.len())).await;
        result.expect("a read");
        assert!(buf[..] == content[..]);
        assert!(device.write(content.len() as u64 - 512, Block::from(vec![0; 1024])).await.is_err());
        // Not of whole sectors.
        if world.runtime.sim().is_some() {
            assert!(device.write(512, Block::from(vec![0; 100])).await.is_err());
            assert!(device.write(100, Block::from(vec![0; 512])).await.is_err());
        }
    });
    if world.runtime.sim().is_none() {
        assert!(std::fs::read(&path).expect("the file") == content);
    }
}

fn concurrent_reads_from_tasks_and_from_outside_agree(world: &World) {
    let content = Arc::new(pattern(4 << 20));
    let path = world.disk("busy", &content);
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let device = world.open(&path, false, Direct::Auto).await;
        let mut tasks = JoinSet::new();
        for task in 0..16u64 {
            let (device, content, random) = (device.clone(), Arc::clone(&content), handle.clone());
            tasks.push(handle.spawn(Class::Issue, async move {
                for_each_concurrent(16, 0..64u64, |_| async {
                    let offset = (random.random_u64() % 1000) as usize * 4096;
                    let (result, buf) = device.read(offset as u64, Buf::unfilled(4096 + task as usize * 512)).await;
                    result.expect("a read");
                    assert!(buf[..] == content[offset..offset + buf.len()]);
                })
                .await;
            }));
        }
        for_each_concurrent(40, 0..400usize, |index| {
            let (device, content) = (&device, &content);
            async move {
                let (result, buf) = device.read(index as u64 * 8192, Buf::unfilled(8192)).await;
                result.expect("a read");
                assert!(buf[..] == content[index * 8192..][..8192]);
            }
        })
        .await;
        while let Some(result) = tasks.next().await {
            result.expect("no panic");
        }
    });
}

fn a_dropped_read_harms_nothing(world: &World) {
    let content = pattern(1 << 20);
    let path = world.disk("dropped", &content);
    world.runtime.block_on(async {
        let device = world.open(&path, false, Direct::Auto).await;
        for index in 0..200u64 {
            // The read begins and loses the race against a future that is done at once.
            let read = device.read(index * 4096, Buf::unfilled(4096));
            race(read, yield_now()).await;
        }
        let (result, buf) = device.read(0, Buf::unfilled(1 << 20)).await;
        result.expect("a read");
        assert!(buf[..] == content[..]);
    });
}

fn a_read_only_device_refuses_writes(world: &World) {
    let content = pattern(8192);
    let path = world.disk("read-only", &content);
    world.runtime.block_on(async {
        let device = world.open(&path, false, Direct::Auto).await;
        assert!(device.write(0, Block::from(vec![1; 4096])).await.is_err());
        assert!(device.write(1, Block::from(vec![1; 3])).await.is_err());
        let (result, buf) = device.read(0, Buf::zeroed(8192)).await;
        result.expect("a read");
        assert!(buf[..] == content[..]);
    });
}

fn a_missing_device_is_not_found(world: &World) {
    let path = world.folder.path().join("absent");
    let result = world.runtime.block_on(world.runtime.handle().open(&path, OpenOptions::default()));
    assert_eq!(result.expect_err("no such device").kind(), std::io::ErrorKind::NotFound);
}

fn a_closed_group_is_empty_and_stays_so(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let group = handle.group();
        let begun = Arc::new(AtomicU64::new(0));
        let ended = Arc::new(AtomicU64::new(0));
        // Tasks race with the close to add detached work.
        let mut spawners = JoinSet::new();
        for _ in 0..8 {
            let (group, handle) = (group.clone(), handle.clone());
            let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
            spawners.push(handle.clone().spawn(Class::Issue, async move {
                loop {
                    let (handle, begun, ended) = (handle.clone(), Arc::clone(&begun), Arc::clone(&ended));
                    let work = async move {
                        begun.fetch_add(1, Ordering::SeqCst);
                        handle.sleep(Duration::from_micros(50)).await;
                        ended.fetch_add(1, Ordering::SeqCst);
                    };
                    match group.spawn(Class::Background, work) {
                        Ok(join) => drop(join),
                        Err(_) => return,
                    }
                    yield_now().await;
                }
            }));
        }
        handle.sleep(Duration::from_millis(2)).await;
        group.close().await;
        let after = (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert_eq!(after.0, after.1);
        assert_eq!(group.members(), 0);
        assert!(group.enter().is_err());
        while let Some(result) = spawners.next().await {
            result.expect("no panic");
        }
        handle.sleep(Duration::from_millis(1)).await;
        assert_eq!(begun.load(Ordering::SeqCst), after.0);
        group.close().await;
    });
}

fn a_member_may_fork_while_its_group_closes(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let group = handle.group();
        let member = group.enter().expect("open");
        let (closing, task) = (group.clone(), handle.clone());
        let closed = handle.spawn(Class::Issue, async move { closing.close().await });
        while !group.is_closed() {
            yield_now().await;
        }
        let child = member.fork();
        drop(member);
        task.sleep(Duration::from_millis(1)).await;
        assert_eq!(group.members(), 1);
        drop(child);
        closed.await.expect("no panic");
    });
}

fn what_is_begun_here_ends_here_or_as_a_task(world: &World) {
    let handle = world.runtime.handle();
    let group = handle.group();
    let done = Arc::new(AtomicU64::new(0));
    let count = |more: u64| {
        let done = Arc::clone(&done);
        async move {
            done.fetch_add(more, Ordering::SeqCst);
        }
    };
    // Outside all tasks, as a front end's thread is.
    group.begin(Class::Issue, count(1)).unwrap();
    assert_eq!((done.load(Ordering::SeqCst), group.members()), (1, 0), "done at once, and out of the group");
    let (gate, wait) = oneshot::channel::<()>();
    let after = count(10);
    group
        .begin(Class::Issue, async move {
            wait.await.unwrap();
            yield_now().await;
            after.await;
        })
        .unwrap();
    let lost = Arc::new(());
    let left = Arc::downgrade(&lost);
    group
        .begin(Class::Issue, async move {
            let _lost = lost;
            panic!("told to nobody");
        })
        .unwrap();
    assert!(left.upgrade().is_none(), "a panic drops what there was");
    assert_eq!((done.load(Ordering::SeqCst), group.members()), (1, 1));
    world.runtime.block_on(async {
        gate.send(()).unwrap();
        group.close().await;
    });
    assert_eq!(done.load(Ordering::SeqCst), 11, "a close waits for what was begun");
    assert!(group.begin(Class::Issue, count(100)).is_err());
    assert_eq!(done.load(Ordering::SeqCst), 11);
}

fn a_wait_is_for_those_who_are_in_and_refuses_nobody(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let group = handle.group();
        for _ in 0..3 {
            group.wait().await;
            let early = Arc::new(AtomicU64::new(0));
            for _ in 0..20 {
                let (task, early) = (handle.clone(), Arc::clone(&early));
                let work = async move {
                    task.sleep(Duration::from_micros(300)).await;
                    early.fetch_add(1, Ordering::SeqCst);
                };
                group.detach(Class::Background, work).expect("open");
            }
            // Newcomers without end, so that the group is never empty, do not hold the wait up.
            let stop = Arc::new(AtomicU64::new(0));
            let (inner, stopped, task) = (group.clone(), Arc::clone(&stop), handle.clone());
            let comer = handle.spawn(Class::Issue, async move {
                while stopped.load(Ordering::SeqCst) == 0 {
                    let sleeper = task.clone();
                    let work = async move { sleeper.sleep(Duration::from_micros(200)).await };
                    inner.detach(Class::Issue, work).expect("open");
                    task.sleep(Duration::from_micros(50)).await;
                }
            });
            let member = group.enter().expect("open");
            let waiting = group.clone();
            let waited = handle.spawn(Class::Issue, async move { waiting.wait().await });
            drop(member);
            handle.timeout(Duration::from_secs(60), waited).await.expect("the wait ends").expect("no panic");
            // Some of the newcomers may have come before the wait began; the first twenty all have.
            assert_eq!(early.load(Ordering::SeqCst), 20);
            stop.store(1, Ordering::SeqCst);
            comer.await.expect("no panic");
            assert!(!group.is_closed());
        }
        group.close().await;
    });
}

fn a_group_is_waited_for_by_many_at_a_time(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let group = handle.group();
        let mut set = JoinSet::new();
        for index in 0..30u64 {
            let (group, task) = (group.clone(), handle.clone());
            set.push(handle.spawn(Class::Issue, async move {
                let done = Arc::new(AtomicU64::new(0));
                for _ in 0..5 {
                    let (sleeper, done) = (task.clone(), Arc::clone(&done));
                    let work = async move {
                        sleeper.sleep(Duration::from_micros(index * 7)).await;
                        done.fetch_add(1, Ordering::SeqCst);
                    };
                    group.detach(Class::Background, work).expect("open");
                }
                group.wait().await;
                assert_eq!(done.load(Ordering::SeqCst), 5);
            }));
        }
        while let Some(result) = set.next().await {
            result.expect("no panic");
        }
        assert_eq!(group.members(), 0);
    });
}

fn a_cancelled_group_begins_nothing_and_waits_for_what_has_begun(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let group = handle.group();
        let (begun, release) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let ended = Arc::new(AtomicU64::new(0));
        let (says, waits, ends) = (Arc::clone(&begun), Arc::clone(&release), Arc::clone(&ended));
        let running = group.spawn(Class::Issue, async move {
            says.set();
            waits.wait().await;
            ends.fetch_add(1, Ordering::SeqCst);
        });
        begun.wait().await;
        let (cancelling, inner, letting) = (group.clone(), group.clone(), Arc::clone(&release));
        let ran = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ran);
        // Work that a task queues and then cancels before it waits cannot have begun on its own worker; on another it can.
        let cancelled = handle.spawn(Class::Interrupt, async move {
            let mut joins = Vec::new();
            for _ in 0..10 {
                let counted = Arc::clone(&counted);
                let work = async move { counted.fetch_add(1, Ordering::SeqCst) };
                joins.push(inner.spawn(Class::Background, work).expect("open"));
            }
            let closing = both(cancelling.cancel(), async {
                let mut given_up = 0;
                for join in joins {
                    given_up += u64::from(join.await == Err(JoinError::Stopped));
                }
                letting.set();
                given_up
            });
            closing.await.1
        });
        let given_up = cancelled.await.expect("no panic");
        assert_eq!(given_up + ran.load(Ordering::SeqCst), 10);
        assert_eq!(ended.load(Ordering::SeqCst), 1, "what had begun was waited for");
        running.expect("open").await.expect("no panic");
        assert!(group.dispatch(Class::Issue, || ()).is_err());
    });
}

fn what_is_dispatched_runs_once_and_a_panic_is_its_own(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let (group, count) = (handle.group(), Arc::new(AtomicU64::new(0)));
        for index in 0..500 {
            let (inner, counted) = (Arc::clone(&count), Arc::clone(&count));
            group
                .dispatch(Class::Background, move || {
                    inner.fetch_add(1, Ordering::SeqCst);
                    assert!(index % 100 != 7, "on purpose");
                })
                .expect("open");
            handle.dispatch_front(Class::Issue, move || _ = counted.fetch_add(0, Ordering::SeqCst)).expect("running");
        }
        group.close().await;
        assert_eq!(count.load(Ordering::SeqCst), 500);
    });
}

fn an_entry_runs_for_every_dispatch_that_stood_and_never_twice_at_a_time(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let (runs, inside) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (ran, within) = (Arc::clone(&runs), Arc::clone(&inside));
        let entry = handle.entry(Class::Issue, move || {
            assert_eq!(within.fetch_add(1, Ordering::SeqCst), 0, "two runs at a time");
            within.fetch_sub(1, Ordering::SeqCst);
            assert!(ran.fetch_add(1, Ordering::SeqCst) != 3, "on purpose, once");
        });
        let mut stood = 0;
        for index in 0..400 {
            let dispatched = if index % 3 == 0 { entry.dispatch_front() } else { entry.dispatch() };
            stood += u64::from(dispatched.expect("running"));
            if index % 5 == 0 {
                yield_now().await;
            }
        }
        while runs.load(Ordering::SeqCst) < stood {
            handle.sleep(Duration::from_micros(20)).await;
        }
        handle.sleep(Duration::from_millis(1)).await;
        assert_eq!(runs.load(Ordering::SeqCst), stood);
        assert!(stood >= 1);
    });
}

fn a_dropped_entry_runs_what_stands_and_no_more(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let held = Arc::new(AtomicU64::new(0));
        let ran = Arc::clone(&held);
        let entry = handle.entry(Class::Sync, move || _ = ran.fetch_add(1, Ordering::SeqCst));
        assert_eq!(entry.dispatch(), Ok(true));
        drop(entry);
        let unused = Arc::clone(&held);
        drop(handle.entry(Class::Sync, move || _ = unused.fetch_add(100, Ordering::SeqCst)));
        while Arc::strong_count(&held) > 1 {
            handle.sleep(Duration::from_micros(20)).await;
        }
        assert_eq!(held.load(Ordering::SeqCst), 1);
    });
}

fn a_oneshot_tells_when_its_sender_left(world: &World) {
    world.runtime.block_on(async {
        let (sender, receiver) = oneshot::channel::<u8>();
        drop(world.runtime.handle().spawn(Class::Issue, async move { drop(sender) }));
        assert_eq!(receiver.await, Err(oneshot::Closed));
        let (sender, receiver) = oneshot::channel();
        drop(receiver);
        assert!(sender.is_abandoned());
        assert_eq!(sender.send(1), Err(1));
    });
}

fn an_event_lets_all_go_on(world: &World) {
    let handle = world.runtime.handle();
    let event = Arc::new(Event::new());
    world.runtime.block_on(async {
        let joins: Vec<_> = (0..20)
            .map(|_| {
                let event = Arc::clone(&event);
                handle.spawn(Class::Issue, async move { event.wait().await })
            })
            .collect();
        yield_now().await;
        event.set();
        assert!(join_all(joins).await.iter().all(Result::is_ok));
        event.wait().await;
    });
}

fn a_notification_is_not_lost(world: &World) {
    let handle = world.runtime.handle();
    let (there, back) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    world.runtime.block_on(async {
        let (there2, back2) = (Arc::clone(&there), Arc::clone(&back));
        let echo = handle.spawn(Class::Issue, async move {
            for _ in 0..500 {
                there2.wait().await;
                back2.one();
            }
        });
        for _ in 0..500 {
            there.one();
            back.wait().await;
        }
        echo.await.expect("no panic");
        // One that met a waiter on its way out goes to the next.
        let gone = there.wait();
        let stays = there.wait();
        there.one();
        drop(gone);
        stays.await;
    });
}

fn a_semaphore_bounds_and_is_fair(world: &World) {
    let handle = world.runtime.handle();
    let semaphore = Arc::new(Semaphore::new(3));
    world.runtime.block_on(async {
        let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut set = JoinSet::new();
        for index in 0..60u64 {
            let semaphore = Arc::clone(&semaphore);
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            set.push(handle.spawn(Class::Issue, async move {
                let count = 1 + index % 3;
                let permit = semaphore.acquire_owned(count).await;
                most.fetch_max(now.fetch_add(count, Ordering::SeqCst) + count, Ordering::SeqCst);
                yield_now().await;
                now.fetch_sub(count, Ordering::SeqCst);
                drop(permit);
            }));
        }
        while let Some(result) = set.next().await {
            result.expect("no panic");
        }
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert_eq!(semaphore.free(), 3);
        // A large request is not overtaken, and one that leaves does not block those behind it.
        let held = semaphore.try_acquire(2).expect("free");
        let mut large = Box::pin(semaphore.acquire(3));
        race(&mut large, yield_now()).await;
        assert!(semaphore.try_acquire(1).is_none());
        let mut small = Box::pin(semaphore.acquire(1));
        race(&mut small, yield_now()).await;
        drop(large);
        drop(small.await);
        drop(held);
        assert_eq!(semaphore.free(), 3);
    });
}

fn an_async_mutex_excludes_across_awaits(world: &World) {
    let handle = world.runtime.handle();
    let total = Arc::new(AsyncMutex::new(0u64));
    world.runtime.block_on(async {
        let joins: Vec<_> = (0..20)
            .map(|_| {
                let total = Arc::clone(&total);
                handle.spawn(Class::Issue, async move {
                    for _ in 0..20 {
                        let mut total = total.lock().await;
                        let before = *total;
                        yield_now().await;
                        *total = before + 1;
                    }
                })
            })
            .collect();
        assert!(join_all(joins).await.iter().all(Result::is_ok));
        assert_eq!(*total.lock().await, 400);
    });
}

fn a_writer_excludes_readers(world: &World) {
    let handle = world.runtime.handle();
    let pair = Arc::new(AsyncRwLock::new((0u64, 0u64)));
    world.runtime.block_on(async {
        let joins: Vec<_> = (0..30)
            .map(|index| {
                let pair = Arc::clone(&pair);
                handle.spawn(Class::Issue, async move {
                    for _ in 0..10 {
                        if index % 5 == 0 {
                            let mut pair = pair.write().await;
                            pair.0 += 1;
                            yield_now().await;
                            pair.1 += 1;
                        } else {
                            let pair = pair.read().await;
                            yield_now().await;
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                })
            })
            .collect();
        assert!(join_all(joins).await.iter().all(Result::is_ok));
        assert_eq!(*pair.read().await, (60, 60));
    });
}

fn concurrency_helpers_keep_order_and_bound(world: &World) {
    let handle = world.runtime.handle();
    world.runtime.block_on(async {
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let outputs = map_concurrent(4, 0..50u64, |n| {
            let (handle, now, most) = (&handle, &now, &most);
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                handle.sleep(Duration::from_micros((50 - n) * 10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                n * 2
            }
        })
        .await;
        assert_eq!(outputs, (0..50).map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), 4);
        let begun = AtomicU64::new(0);
        let result = cenote_taskq::try_for_each_concurrent(3, 0..100u64, |n| {
            begun.fetch_add(1, Ordering::SeqCst);
            async move { if n == 5 { Err(n) } else { Ok(()) } }
        })
        .await;
        assert_eq!(result, Err(5));
        assert!(begun.into_inner() < 12);
    });
}

fn small_files_are_written_whole_and_listed(world: &World) {
    let handle = world.runtime.handle();
    let path = world.folder.path().join("cachefile");
    world.runtime.block_on(async {
        handle.write_file(&path, vec![1; 100]).await.expect("written");
        handle.write_file(&path, vec![2; 10]).await.expect("written again");
        assert_eq!(handle.read_file(&path, 10).await.expect("read"), vec![2; 10]);
        assert!(handle.read_file(&path, 9).await.is_err());
        assert_eq!(handle.list_directory(world.folder.path()).await.expect("listed"), std::slice::from_ref(&path));
    });
}

fn random_bits_are_not_constant(world: &World) {
    let handle = world.runtime.handle();
    assert_ne!(handle.random_u64(), handle.random_u64());
    let mut bytes = [0; 100];
    handle.random_fill(&mut bytes);
    assert!(bytes[92..].iter().any(|&byte| byte != 0));
}
