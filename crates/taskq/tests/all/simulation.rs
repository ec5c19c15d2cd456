//! The promises that only the simulation makes: the same run from the same seed, a clock that jumps, deadlocks that are
//! reported, and disks that fail, lose and lie on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::sim::model::{Flash, FlashOptions, Rotating, RotatingOptions};
use cenote_taskq::{
    Block, Buf, Class, Device, Either, Handle, JoinSet, OpenOptions, Rng, Runtime, Semaphore, both, join_all, race,
    yield_now,
};

fn disk(runtime: &Runtime, options: SimDiskOptions) -> (Arc<SimDisk>, Device) {
    let handle = runtime.handle();
    let disk = runtime.sim().expect("simulated").add_disk(&handle, "/dev/sim0", options);
    let open = handle.open("/dev/sim0".as_ref(), OpenOptions { write: true, ..Default::default() });
    let device = runtime.block_on(open).expect("registered");
    (disk, device)
}

/// Everything at once: tasks, timers, disks, random numbers, locks. The result: the run's trace hash, its steps and the order of tasks.
fn busy_run(seed: u64) -> (u64, u64, Vec<u64>) {
    let runtime = Runtime::simulated(seed);
    let (_, device) = disk(&runtime, SimDiskOptions::default());
    let handle = runtime.handle();
    let order = Arc::new(cenote_taskq::sync::Mutex::new(Vec::new()));
    let semaphore = Arc::new(Semaphore::new(3));
    runtime.block_on(async {
        let mut set = JoinSet::new();
        for task in 0..20u64 {
            let (handle, device, order) = (handle.clone(), device.clone(), Arc::clone(&order));
            let semaphore = Arc::clone(&semaphore);
            set.push(handle.clone().spawn(Class::Issue, async move {
                for _ in 0..10 {
                    let _permit = semaphore.acquire(1 + task % 2).await;
                    let offset = handle.random_u64() % 1000 * 4096;
                    device.write(offset, Block::from(vec![task as u8; 4096])).await.expect("a write");
                    handle.sleep(Duration::from_nanos(handle.random_u64() % 100_000)).await;
                    order.lock().push(task);
                }
            }));
        }
        while let Some(result) = set.next().await {
            result.expect("no panic");
        }
    });
    let sim = runtime.sim().expect("simulated");
    let order = order.lock().clone();
    (sim.trace_hash(), sim.steps(), order)
}

#[test]
fn one_seed_is_one_run_and_two_seeds_are_two() {
    let first = busy_run(7);
    assert_eq!(first, busy_run(7));
    let others: Vec<_> = (8..16).map(busy_run).collect();
    assert!(others.iter().all(|other| other.0 != first.0 && other.2 != first.2));
}

#[test]
fn a_year_passes_in_no_time() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let year = Duration::from_secs(365 * 86_400);
    runtime.block_on(handle.sleep(year));
    assert!(handle.now().as_ns() >= year.as_nanos() as u64);
    assert!(handle.unix_time() > Duration::from_secs(1_704_067_200) + year);
}

#[test]
fn a_deadlock_is_an_error_that_says_who_waits() {
    let runtime = Runtime::simulated(2);
    let semaphore = Arc::new(Semaphore::new(1));
    let stuck = runtime.try_block_on(async {
        let _held = semaphore.acquire(1).await;
        let other = Arc::clone(&semaphore);
        let join = runtime.handle().spawn(Class::Issue, async move { drop(other.acquire(1).await) });
        join.await
    });
    let deadlock = stuck.expect_err("nothing can go on");
    assert_eq!(deadlock.live_tasks, 1);
    assert!(deadlock.to_string().contains("1 tasks wait"));
    // The runtime is fit for more.
    assert_eq!(runtime.block_on(async { 5 }), 5);
}

#[test]
fn a_run_without_end_is_stopped_at_its_step_limit() {
    let runtime = Runtime::simulated(3);
    runtime.sim().expect("simulated").set_steps_max(10_000);
    let spinning = runtime.try_block_on(async {
        loop {
            yield_now().await;
        }
    });
    let stopped: Result<(), _> = spinning;
    assert!(stopped.expect_err("it never ends").steps > 10_000);
}

#[test]
fn dropping_the_runtime_drops_what_its_tasks_hold() {
    let held = Arc::new(());
    let runtime = Runtime::simulated(4);
    for _ in 0..5 {
        let mine = Arc::clone(&held);
        drop(runtime.handle().spawn(Class::Background, async move {
            std::future::pending::<()>().await;
            drop(mine);
        }));
    }
    runtime.block_on(runtime.handle().sleep(Duration::from_secs(1)));
    assert_eq!(Arc::strong_count(&held), 6);
    drop(runtime);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn many_schedules_are_tried() {
    // Two tasks that each take three steps: over some seeds every order of their steps comes up.
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let runtime = Runtime::simulated(seed);
        let order = Arc::new(cenote_taskq::sync::Mutex::new(Vec::new()));
        runtime.block_on(join_all([0, 1].map(|task| {
            let order = Arc::clone(&order);
            runtime.handle().spawn(Class::Issue, async move {
                for _ in 0..3 {
                    order.lock().push(task);
                    yield_now().await;
                }
            })
        })));
        orders.insert(order.lock().clone());
    }
    assert_eq!(orders.len(), 20, "six over three");
}

#[test]
fn a_base_is_shared_until_written() {
    let runtime = Runtime::simulated(5);
    let base = Block::from((0..10_000u32).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let options = SimDiskOptions { base: Some(base.clone()), size_bytes: 1 << 40, ..Default::default() };
    let (disk, device) = disk(&runtime, options);
    runtime.block_on(async {
        device.write(4608, Block::from(vec![255; 512])).await.expect("a write");
        let (result, buf) = device.read(4598, Buf::unfilled(5500)).await;
        result.expect("a read");
        assert_eq!(buf[..10], base[4598..4608]);
        assert_eq!(buf[10..522], [255; 512]);
        assert_eq!(buf[522..5402], base[5120..10_000]);
        assert!(buf[5402..].iter().all(|&byte| byte == 0));
        let (result, _) = device.read((1 << 40) - 512, Buf::unfilled(512)).await;
        result.expect("a read at the end of a large disk");
    });
    assert_eq!(disk.counts().reads, 2);
    assert_eq!(disk.counts().written_bytes, 512);
}

#[test]
fn faults_happen_as_asked() {
    let runtime = Runtime::simulated(6);
    let (disk, device) = disk(&runtime, SimDiskOptions::default());
    let handle = runtime.handle();
    runtime.block_on(async {
        device.write(0, Block::from(vec![1; 8192])).await.expect("a write");
        let read = async |fault: Fault| {
            disk.set_faults(move |request, _| if request.kind == RequestKind::Read { fault } else { Fault::None });
            device.read(0, Buf::zeroed(4096)).await
        };
        let (result, _) = read(Fault::Error(std::io::ErrorKind::TimedOut)).await;
        assert_eq!(result.expect_err("asked for").kind(), std::io::ErrorKind::TimedOut);
        let (result, buf) = read(Fault::Corrupt).await;
        result.expect("silent");
        let flipped: u32 = buf.iter().map(|&byte| (byte ^ 1).count_ones()).sum();
        assert_eq!(flipped, 8, "one bit in each of eight sectors");
        assert!(read(Fault::Short).await.0.is_err());
        let (result, buf) = read(Fault::Misdirected(1 << 20)).await;
        result.expect("silent");
        assert!(buf.iter().all(|&byte| byte == 0));
        let before = handle.now();
        read(Fault::Delay(Duration::from_secs(9))).await.0.expect("slow");
        assert!(handle.now() - before >= Duration::from_secs(9));
        assert!(handle.timeout(Duration::from_secs(60), read(Fault::Hang)).await.is_none());
        disk.set_faults(|request, _| if request.kind == RequestKind::Write { Fault::Lost } else { Fault::None });
        device.write(0, Block::from(vec![2; 512])).await.expect("acknowledged");
        assert_eq!(disk.peek(0, 1), [1]);
    });
    disk.set_faults(|_, _| Fault::Hang);
    assert!(runtime.try_block_on(device.flush()).is_err());
}

#[test]
fn a_flushed_write_survives_every_crash_and_an_unflushed_one_may_not() {
    let mut lost = 0;
    let mut torn = 0;
    for seed in 0..60 {
        let runtime = Runtime::simulated(seed);
        let (disk, device) = disk(&runtime, SimDiskOptions::default());
        runtime.block_on(async {
            device.write(0, Block::from(vec![1; 4096])).await.expect("a write");
            device.flush().await.expect("a flush");
            device.write(0, Block::from(vec![2; 2048])).await.expect("a write");
            device.write(8192, Block::from(vec![3; 4096])).await.expect("a write");
        });
        disk.crash(Crash::Random);
        assert!(runtime.block_on(device.flush()).is_err(), "it is off");
        disk.power_on();
        let first = disk.peek(0, 4096);
        assert!(first[..2048].iter().all(|&byte| byte == 1 || byte == 2) && first[2048..] == [1; 2048]);
        assert!(first.chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])), "sectors are whole");
        lost += u32::from(first[0] == 1 && first[512] == 1);
        torn += u32::from(disk.peek(8192, 4096).contains(&0) && disk.peek(8192, 4096).contains(&3));
    }
    assert!(lost > 5 && lost < 55 && torn > 5, "{lost} lost, {torn} torn");
}

/// Goal: a torn write on a medium with larger sectors than it shows can take neighbours with it, and nothing beyond them.
#[test]
fn a_torn_write_leaves_garbage_in_whole_sectors_of_the_medium() {
    let (mut old, mut new, mut neither) = (0, 0, 0);
    for seed in 0..60 {
        let runtime = Runtime::simulated(seed);
        let options = SimDiskOptions { physical_sector_bytes: 4096, ..SimDiskOptions::default() };
        let (disk, device) = disk(&runtime, options);
        runtime.block_on(async {
            device.write(0, Block::from(vec![1; 12288])).await.expect("a write");
            device.flush().await.expect("a flush");
            device.write(4096 + 512, Block::from(vec![2; 512])).await.expect("a write");
        });
        disk.crash(Crash::Garbage);
        disk.power_on();
        assert!(disk.peek(0, 4096) == [1; 4096] && disk.peek(8192, 4096) == [1; 4096], "other sectors stay");
        let middle = disk.peek(4096, 4096);
        let is_kept = middle[..512] == [1; 512] && middle[1024..] == [1; 3072];
        match (is_kept, &middle[512..1024]) {
            (true, written) if written == [1; 512] => old += 1,
            (true, written) if written == [2; 512] => new += 1,
            _ => neither += 1,
        }
    }
    assert!(old > 5 && new > 5 && neither > 3, "{old} as before, {new} as written, {neither} neither");
}

/// Goal: what was under way when the power went can reach the medium afterwards, whole. Method: slow writes, a disk of a second
/// simulation with what the first has left.
#[test]
fn a_late_write_lands_when_the_power_is_back() {
    let (mut late_ones, mut lost) = (0, 0);
    for seed in 0..40 {
        let runtime = Runtime::simulated(seed);
        let latency = Latency { write: Duration::from_secs(1), ..Default::default() };
        let (disk, device) = disk(&runtime, SimDiskOptions { latency, ..Default::default() });
        let handle = runtime.handle();
        let write = handle.spawn(Class::Sync, async move { device.write(4096, Block::from(vec![9; 512])).await });
        let late = runtime.block_on(async {
            handle.sleep(Duration::from_millis(10)).await;
            let late = disk.crash_with_late(Crash::LoseAll);
            assert!(write.await.expect("no panic").is_err(), "nobody is told that it was written");
            late
        });
        assert_eq!(disk.peek(4096, 1), [0]);
        let mut image = disk.image();
        disk.land(&late);
        image.land(&late);
        let mut there = [0];
        image.read(4096, &mut there);
        assert_eq!(disk.peek(4096, 1), there);
        assert_eq!(there[0] == 9, late.len() == 1);
        (late_ones, lost) = (late_ones + late.len(), lost + usize::from(late.is_empty()));
    }
    assert!(late_ones > 5 && lost > 5, "{late_ones} late, {lost} lost");
}

#[test]
fn requests_under_way_fail_when_the_power_goes() {
    let runtime = Runtime::simulated(8);
    let latency = Latency { write: Duration::from_secs(1), ..Default::default() };
    let (disk, device) = disk(&runtime, SimDiskOptions { latency, ..Default::default() });
    let handle = runtime.handle();
    let write = handle.spawn(Class::Sync, async move { device.write(0, Block::from(vec![9; 512])).await });
    runtime.block_on(async {
        handle.sleep(Duration::from_millis(10)).await;
        disk.crash(Crash::KeepAll);
        disk.power_on();
        assert!(write.await.expect("no panic").is_err());
    });
    assert_eq!(disk.peek(0, 1), [0]);
}

#[test]
fn a_service_model_sees_every_request() {
    let runtime = Runtime::simulated(9);
    let (disk, device) = disk(&runtime, SimDiskOptions::default());
    let seen = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&seen);
    disk.set_service_model(move |request, _, _: &mut Rng| {
        count.fetch_add(1, Ordering::Relaxed);
        Duration::from_millis(request.size_bytes)
    });
    let handle = runtime.handle();
    runtime.block_on(async {
        let before = handle.now();
        device.read(0, Buf::zeroed(512)).await.0.expect("a read");
        assert!(handle.now() - before >= Duration::from_millis(512));
        device.flush().await.expect("a flush");
    });
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

#[test]
fn an_image_goes_from_one_simulation_to_another() {
    let image = {
        let runtime = Runtime::simulated(10);
        let (disk, device) = disk(&runtime, SimDiskOptions { base: Some(vec![7; 8192].into()), ..Default::default() });
        runtime.block_on(device.write(4096, Block::from(vec![8; 512]))).expect("a write");
        assert_eq!(disk.unflushed_count(), 1);
        disk.image()
    };
    let runtime = Runtime::simulated(11);
    let (disk, _) = disk(&runtime, SimDiskOptions::default());
    disk.restore(&image);
    disk.crash(Crash::LoseAll);
    assert_eq!(disk.peek(4090, 12), [7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8]);
    assert_eq!(disk.peek(4607, 2), [8, 7]);
    assert_eq!(disk.peek(8192, 1), [0]);
}

/// A stable write makes itself stable and nothing else, and what it has overwritten does not come over it later.
#[test]
fn a_stable_write_is_stable_alone() {
    let runtime = Runtime::simulated(12);
    let (disk, device) = disk(&runtime, SimDiskOptions::default());
    let block = |byte: u8, len| Block::from(vec![byte; len]);
    runtime.block_on(async {
        device.write(0, block(1, 512)).await.expect("a write");
        device.write(8192, block(2, 1024)).await.expect("a write");
        device.write_stable(8704, block(3, 1024)).await.expect("a write");
        assert_eq!(disk.unflushed_count(), 1, "the older write to its place is stable with it");
        device.write(4096, block(4, 512)).await.expect("a write");
        device.flush().await.expect("a flush");
        device.write(0, block(5, 512)).await.expect("a write");
    });
    disk.crash(Crash::LoseAll);
    assert_eq!([0, 4096, 8192, 8704, 9216].map(|at| disk.peek(at, 1)[0]), [1, 4, 2, 3, 3]);
    disk.power_on();
    runtime.block_on(async {
        device.write(0, block(6, 512)).await.expect("a write");
        device.write_stable(512, block(7, 512)).await.expect("a write");
    });
    disk.crash(Crash::LoseAll);
    assert_eq!(disk.peek(0, 1), [1], "nothing was flushed");
    assert_eq!(disk.peek(512, 1), [7]);
    // A write that fails is not stable.
    disk.power_on();
    disk.set_faults(|request, _| match request.kind {
        RequestKind::Flush => Fault::Error(std::io::ErrorKind::BrokenPipe),
        _ => Fault::None,
    });
    assert!(runtime.block_on(device.write_stable(512, block(8, 512))).is_err());
    disk.crash(Crash::LoseAll);
    assert_eq!(disk.peek(512, 1), [7]);
}

/// A disk with a model answers when the model says, to the nanosecond, and requests wait for each other as on the device.
#[test]
fn a_modelled_disk_takes_the_times_of_its_model() {
    let runtime = Runtime::simulated(3);
    let sim = runtime.sim().expect("simulated");
    sim.set_step_time_max(Duration::ZERO);
    let (disk, device) = disk(&runtime, SimDiskOptions::default());
    let options = FlashOptions { channels: 1, ..FlashOptions::sata() };
    disk.set_model(Flash::new(options));
    let handle = runtime.handle();
    let alone = Duration::from_nanos(94_298);
    runtime.block_on(async {
        let began = handle.now();
        device.read(0, Buf::unfilled(4096)).await.0.expect("a read");
        assert_eq!(handle.now() - began, alone);
        // Two at once: cells one after the other, and the second's transfer while nothing else is in the way.
        let began = handle.now();
        let (first, second) = (device.read(0, Buf::unfilled(4096)), device.read(8192, Buf::unfilled(4096)));
        join_all([first, second]).await;
        assert_eq!(handle.now() - began, alone + options.access);
        // A later request may move the next event: the one that plugs an idle disk waits no longer once there are enough.
        disk.set_model(Rotating::new(RotatingOptions {
            plug_count: 2,
            plug: Duration::from_secs(9),
            ..RotatingOptions::desktop()
        }));
        let began = handle.now();
        let late = async {
            handle.sleep(Duration::from_millis(50)).await;
            device.read(1 << 20, Buf::unfilled(4096)).await
        };
        join_all([Box::pin(device.read(0, Buf::unfilled(4096))) as cenote_taskq::BoxFuture<'_, _>, Box::pin(late)])
            .await;
        let took = handle.now() - began;
        assert!(took > Duration::from_millis(50) && took < Duration::from_millis(100), "{took:?}");
    });
}

/// Faults go with a model as they do without: an error and a delay after the model's time, a hang for ever, and a power cut
/// fails what was under way.
#[test]
fn a_modelled_disk_fails_as_asked() {
    let runtime = Runtime::simulated(4);
    runtime.sim().expect("simulated").set_step_time_max(Duration::ZERO);
    let (disk, device) = disk(&runtime, SimDiskOptions::default());
    disk.set_model(Flash::new(FlashOptions::sata()));
    disk.poke(0, &[7; 4096]);
    let handle = runtime.handle();
    let alone = Duration::from_nanos(94_298);
    runtime.block_on(async {
        disk.set_faults(|request, _| match request.sequence {
            0 => Fault::Error(std::io::ErrorKind::Other),
            1 => Fault::Delay(Duration::from_millis(3)),
            2 => Fault::Hang,
            _ => Fault::None,
        });
        let began = handle.now();
        assert!(device.read(0, Buf::unfilled(4096)).await.0.is_err());
        assert_eq!(handle.now() - began, alone);
        let began = handle.now();
        let (result, bytes) = device.read(0, Buf::unfilled(4096)).await;
        assert!(result.is_ok() && bytes[..] == [7; 4096]);
        assert_eq!(handle.now() - began, alone + Duration::from_millis(3));
        let hung = race(device.read(0, Buf::unfilled(4096)), handle.sleep(Duration::from_secs(1000))).await;
        assert!(matches!(hung, Either::Right(())));
        // One that hangs is in nobody's way.
        let began = handle.now();
        assert!(device.read(0, Buf::unfilled(4096)).await.0.is_ok());
        assert_eq!(handle.now() - began, alone);
        let cut = async {
            handle.sleep(Duration::from_micros(10)).await;
            disk.crash(Crash::LoseAll);
        };
        let (read, ()) = both(device.read(0, Buf::unfilled(4096)), cut).await;
        assert!(read.0.is_err(), "the power went");
        assert!(device.read(0, Buf::unfilled(4096)).await.0.is_err(), "and is off");
        disk.power_on();
        assert!(device.read(0, Buf::unfilled(4096)).await.0.is_ok());
    });
}

#[test]
fn tasks_that_destructors_start_at_the_end_do_not_stay_in_memory() {
    struct Starts(Handle, Option<Arc<()>>);
    impl Drop for Starts {
        fn drop(&mut self) {
            let kept = self.1.take();
            self.0.detach(Class::Issue, async move {
                std::future::pending::<()>().await;
                drop(kept);
            });
        }
    }
    let runtime = Runtime::simulated(3);
    let (handle, kept) = (runtime.handle(), Arc::new(()));
    let starts = Starts(handle.clone(), Some(Arc::clone(&kept)));
    runtime.block_on(async {
        handle.detach(Class::Issue, async move {
            std::future::pending::<()>().await;
            drop(starts);
        });
        handle.sleep(Duration::from_millis(1)).await;
    });
    drop((runtime, handle));
    assert_eq!(Arc::strong_count(&kept), 1, "the task is still there");
}
