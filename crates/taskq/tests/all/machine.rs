//! The promises that only the runtime on the machine makes.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_taskq::{
    Block, Buf, Class, Device, Direct, Handle, IoChoice, JoinError, JoinSet, Notify, OpenOptions, RamDevice, Runtime,
    RuntimeOptions, for_each_concurrent, give_way, oneshot, wait_here, yield_now,
};

fn runtime(workers: usize, io: IoChoice) -> Runtime {
    Runtime::real(RuntimeOptions { workers: Some(workers), io }).expect("a runtime")
}

#[test]
fn threads_serve_when_asked_for_and_say_so() {
    let mode = runtime(1, IoChoice::Threads).handle().io_mode();
    assert!(!mode.ring && mode.explanation.contains("as asked for"));
    assert!(!runtime(1, IoChoice::Auto).handle().io_mode().explanation.is_empty());
}

/// Many tasks from many threads on few workers, waking each other across them: nothing is lost, all end.
#[test]
fn tasks_that_wake_each_other_across_workers_all_end() {
    for workers in [1, 2, 3, 8] {
        let runtime = runtime(workers, IoChoice::Auto);
        let handle = runtime.handle();
        let ended = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (handle, ended) = (handle.clone(), Arc::clone(&ended));
                scope.spawn(move || {
                    let joins: Vec<_> = (0..300u64)
                        .map(|index| {
                            let (inner, ended) = (handle.clone(), Arc::clone(&ended));
                            handle.spawn(Class::Issue, async move {
                                let (sender, receiver) = oneshot::channel();
                                let child = inner.spawn(Class::Background, async move {
                                    yield_now().await;
                                    sender.send(index).is_ok()
                                });
                                assert_eq!(receiver.await, Ok(index));
                                assert_eq!(child.await, Ok(true));
                                ended.fetch_add(1, Ordering::Relaxed);
                            })
                        })
                        .collect();
                    handle.block_on(async {
                        for join in joins {
                            join.await.expect("no panic");
                        }
                    });
                });
            }
        });
        assert_eq!(ended.load(Ordering::Relaxed), 900);
    }
}

/// A worker kept busy by a long computation does not keep the tasks in its queue from the others.
#[test]
fn tasks_behind_a_busy_one_are_stolen() {
    let runtime = runtime(2, IoChoice::Auto);
    let handle = runtime.handle();
    let release = Arc::new(AtomicBool::new(false));
    let (inner, released) = (handle.clone(), Arc::clone(&release));
    let busy = handle.spawn(Class::Issue, async move {
        let children: Vec<_> = (0..20).map(|n| inner.spawn(Class::Issue, async move { n })).collect();
        // Holds its worker until a child, which only another worker can run, has let it go.
        let releaser = inner.spawn(Class::Issue, async move { released.store(true, Ordering::Release) });
        while !release.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        releaser.await.expect("no panic");
        for (n, child) in children.into_iter().enumerate() {
            assert_eq!(child.await, Ok(n));
        }
    });
    runtime.block_on(busy).expect("no panic");
}

#[test]
fn background_work_is_not_starved_by_work_that_never_ends() {
    let runtime = runtime(1, IoChoice::Auto);
    let handle = runtime.handle();
    let done = Arc::new(AtomicBool::new(false));
    for _ in 0..4 {
        let done = Arc::clone(&done);
        drop(handle.spawn(Class::Interrupt, async move {
            while !done.load(Ordering::Acquire) {
                yield_now().await;
            }
        }));
    }
    runtime.block_on(handle.spawn(Class::Background, async {})).expect("no panic");
    done.store(true, Ordering::Release);
}

#[test]
fn dropping_a_runtime_ends_its_threads_and_cancels_its_tasks() {
    let held = Arc::new(());
    let runtime = runtime(2, IoChoice::Auto);
    let handle = runtime.handle();
    let (mine, sleeper) = (Arc::clone(&held), handle.clone());
    let join = handle.spawn(Class::Issue, async move {
        sleeper.sleep(Duration::from_secs(3600)).await;
        drop(mine);
    });
    // A task that waits for what it holds itself: nothing outside can reach either.
    let (mine, notify) = (Arc::clone(&held), Arc::new(Notify::new()));
    drop(handle.spawn(Class::Background, async move {
        loop {
            notify.wait().await;
            assert_eq!(Arc::strong_count(&mine), 0);
        }
    }));
    runtime.block_on(handle.spawn(Class::Background, async {})).expect("no panic");
    drop(runtime);
    // The handle is still there; what it spawns is refused, and not kept.
    let mine = Arc::clone(&held);
    let refused = handle.spawn(Class::Issue, async move { drop(mine) });
    let other = self::runtime(1, IoChoice::Threads);
    assert_eq!(other.block_on(refused), Err(JoinError::Stopped));
    assert_eq!(other.block_on(join), Err(JoinError::Stopped));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_stopped_runtime_refuses_dispatches_and_keeps_nothing_of_them() {
    let held = Arc::new(());
    let runtime = runtime(2, IoChoice::Auto);
    let handle = runtime.handle();
    let mine = Arc::clone(&held);
    let entry = handle.entry(Class::Issue, move || assert!(Arc::strong_count(&mine) > 0));
    assert_eq!(entry.dispatch(), Ok(true));
    let group = handle.group();
    // Threads that are no workers dispatch all through the stop: each item runs or is dropped, and none is kept.
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stopped.load(Ordering::Acquire) {
                    let (mine, also) = (Arc::clone(&held), Arc::clone(&held));
                    let _ = handle.dispatch(Class::Issue, move || drop(mine));
                    let _ = group.dispatch(Class::Background, move || drop(also));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        drop(runtime);
        stopped.store(true, Ordering::Release);
    });
    assert!(handle.dispatch(Class::Issue, || ()).is_err());
    assert!(handle.dispatch_front(Class::Issue, || ()).is_err());
    assert!(entry.dispatch().is_err());
    drop(entry);
    assert_eq!(group.members(), 0, "what was dropped undone has left its group");
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_device_serves_threads_that_are_not_the_runtimes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, vec![3; 1 << 20]).expect("written");
    let runtime = runtime(2, IoChoice::Auto);
    let options = OpenOptions::default();
    let device = runtime.block_on(runtime.handle().open(&path, options)).expect("open");
    // Another runtime's threads, which have rings that are not this device's runtime's.
    let other = self::runtime(1, IoChoice::Auto);
    let read = async |device: &Device| {
        let (result, buf) = device.read(8192, Buf::zeroed(4096)).await;
        result.expect("a read");
        assert!(buf[..] == [3; 4096]);
    };
    other.block_on(read(&device));
    let task_device = device.clone();
    other
        .block_on(other.handle().spawn(Class::Issue, async move {
            let (result, buf) = task_device.read(0, Buf::zeroed(4096)).await;
            result.map(|()| buf.len())
        }))
        .expect("no panic")
        .expect("a read");
}

#[test]
fn direct_writes_are_of_whole_sectors_and_the_page_cache_sees_them() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, vec![1; 1 << 20]).expect("written");
    let runtime = runtime(1, IoChoice::Auto);
    let options = OpenOptions { write: true, direct: Direct::Always, ..OpenOptions::default() };
    let Ok(device) = runtime.block_on(runtime.handle().open(&path, options)) else {
        eprintln!("this file system has no direct I/O");
        return;
    };
    runtime.block_on(async {
        device.write(4096, Block::from(vec![2; 8192])).await.expect("a write");
        device.write(0, Block::from(vec![4; 4096])).await.expect("a write");
        // One that is not would have to go by way of the page cache, and meet the others there.
        let error = device.write(5000, Block::from(vec![3; 100])).await.expect_err("a ragged write");
        assert!(error.to_string().contains("not of whole sectors"), "{error}");
        device.flush().await.expect("a flush");
        let (result, buf) = device.read(0, Buf::zeroed(16384)).await;
        result.expect("a read");
        let expected = [&[4; 4096][..], &[2; 8192], &[1; 4096]].concat();
        assert!(buf[..] == expected[..]);
    });
    let content = std::fs::read(&path).expect("the file");
    assert!(content.len() == 1 << 20 && content[..4096] == [4; 4096] && content[4096..12288] == [2; 8192]);
}

/// A file that is written in units below what its direct I/O takes is never used both ways: all of it goes through the page cache.
#[test]
fn a_file_written_in_smaller_units_goes_through_the_page_cache_as_a_whole() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, vec![1; 1 << 20]).expect("written");
    let runtime = runtime(1, IoChoice::Auto);
    let open = |unit_bytes| {
        let options = OpenOptions { write: true, unit_bytes, ..OpenOptions::default() };
        runtime.block_on(runtime.handle().open(&path, options)).expect("an open device")
    };
    let unit = open(0).physical_sector_bytes();
    assert!(unit >= 512 && unit.is_power_of_two(), "{unit}");
    // Below any unit of direct I/O.
    let device = open(64);
    assert_eq!((device.sector_bytes(), device.physical_sector_bytes()), (512, unit));
    runtime.block_on(async {
        device.write(64, Block::from(vec![5; 64])).await.expect("a write");
        device.write(8192, Block::from(vec![6; 4096])).await.expect("a write");
        device.flush().await.expect("a flush");
        let (result, buf) = device.read(0, Buf::zeroed(256)).await;
        result.expect("a read");
        assert!(buf[..] == [[1; 64], [5; 64], [1; 64], [1; 64]].concat()[..]);
    });
    let content = std::fs::read(&path).expect("the file");
    assert!(content[64..128] == [5; 64] && content[8192..12288] == [6; 4096] && content[12288] == 1);
}

#[test]
fn long_computations_do_not_hold_up_the_workers() {
    let runtime = runtime(1, IoChoice::Auto);
    let handle = runtime.handle();
    let release = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&release);
    let long = handle.spawn_cpu(move || {
        while !released.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        9
    });
    let quick = handle.spawn(Class::Issue, async move { release.store(true, Ordering::Release) });
    assert_eq!(runtime.block_on(quick), Ok(()));
    assert_eq!(runtime.block_on(long), Ok(9));
}

#[test]
fn a_memory_device_reads_at_once_from_many_tasks() {
    let runtime = runtime(2, IoChoice::Auto);
    let device = Device::from_driver(RamDevice::new("ram", (0..1 << 20).map(|at| (at >> 12) as u8).collect()));
    runtime.block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..8 {
            let device = device.clone();
            set.push(runtime.handle().spawn(Class::Issue, async move {
                for_each_concurrent(8, 0..256u64, |page| {
                    let device = &device;
                    async move {
                        let (result, buf) = device.read(page * 4096, Buf::unfilled(4096)).await;
                        result.expect("a read");
                        assert!(buf.iter().all(|&byte| byte == page as u8));
                    }
                })
                .await;
            }));
        }
        while let Some(result) = set.next().await {
            result.expect("no panic");
        }
    });
}

#[test]
fn a_worker_that_blocks_on_a_future_is_told_not_to() {
    let runtime = runtime(1, IoChoice::Threads);
    let result = runtime.block_on(runtime.handle().spawn(Class::Issue, async {
        Handle::current().expect("a worker has one").block_on(async {});
    }));
    assert!(matches!(result, Err(JoinError::Panicked(text)) if text.contains("await the future instead")));
}

/// Each poll of a front end's thread counts its calls anew. It once counted those of all its polls together, and after the first that went
/// on for a millisecond each request that read a block waited for a worker.
#[test]
fn a_front_ends_thread_gives_way_only_in_polls_that_go_on_for_long() {
    let runtime = runtime(1, IoChoice::Auto);
    let group = runtime.handle().group();
    // This one goes on until it has given way, and ends as a task.
    let begun = std::time::Instant::now();
    let long = async move {
        while begun.elapsed() < Duration::from_millis(5) {
            give_way().await;
        }
    };
    group.begin(Class::Issue, long).expect("an open group");
    for _ in 0..1000 {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let short = async move {
            give_way().await;
            done.store(true, Ordering::Release);
        };
        group.begin(Class::Issue, short).expect("an open group");
        assert!(is_done.load(Ordering::Acquire), "a short request is done by the thread that took it");
    }
    runtime.block_on(group.close());
}

/// Stable writes of a front end's thread, which waits for them itself or does not: all are done, and tell their end.
#[test]
fn a_front_ends_thread_has_stable_writes_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0; 1 << 20]).expect("a file");
    for io in [IoChoice::Auto, IoChoice::Threads] {
        let runtime = runtime(1, io);
        let group = runtime.handle().group();
        assert!(!runtime.handle().may_wait_here(), "this thread serves nothing now");
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let device = runtime.block_on(runtime.handle().open(&path, options)).expect("a device");
        for (number, waits) in [(1_u8, true), (2, false), (3, true)] {
            let (device, handle, ended) = (device.clone(), runtime.handle(), Arc::new(AtomicU64::new(0)));
            let count = Arc::clone(&ended);
            let write = async move {
                // Later ones may find the ring with a thread that waited for a slow device.
                let has_ring = handle.io_mode().ring;
                assert!(handle.may_wait_here() == has_ring || number > 1, "one thread may, where there are rings");
                let block = Block::copied_from(&[number; 8192]);
                match waits {
                    true => wait_here(device.write_stable(4096, block)).await,
                    false => device.write_stable(4096, block).await,
                }
                .expect("a write");
                count.fetch_add(1, Ordering::AcqRel);
            };
            group.begin(Class::Issue, write).expect("an open group");
            runtime.block_on(group.wait());
            assert_eq!(ended.load(Ordering::Acquire), 1);
            let written = std::fs::read(&path).expect("the file");
            assert_eq!(written[4096..4096 + 8192], [number; 8192]);
            assert!(written[..4096].iter().chain(&written[12288..]).all(|byte| *byte == 0), "and nothing else");
        }
        // Beyond its end, as by the ring.
        let beyond = async move {
            let failed = wait_here(device.write_stable(1 << 20, Block::copied_from(&[0; 4096]))).await;
            assert!(failed.is_err());
        };
        group.begin(Class::Issue, beyond).expect("an open group");
        runtime.block_on(group.close());
    }
}

/// The kernel takes writes and flushes of a file without a name, and of a sparse one that was cut: no program finds again what it was told is
/// safe.
#[test]
fn nothing_is_stable_in_a_file_that_was_removed_or_cut_while_it_was_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime(1, IoChoice::Auto);
    let handle = runtime.handle();
    for is_removed in [true, false] {
        let path = folder.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let data = Block::from(vec![7; 4096]);
        runtime.block_on(async {
            let device = handle.open(&path, OpenOptions { write: true, ..OpenOptions::default() }).await.unwrap();
            device.write_stable(0, data.clone()).await.unwrap();
            device.flush().await.unwrap();
            match is_removed {
                true => std::fs::remove_file(&path).unwrap(),
                false => std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap(),
            }
            let word = if is_removed { "removed" } else { "shorter" };
            let refused = device.write_stable(0, data).await.unwrap_err();
            assert!(refused.to_string().contains(word), "{refused}");
            assert!(device.flush().await.unwrap_err().to_string().contains(word));
        });
    }
}
