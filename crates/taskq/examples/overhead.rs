//! The cost of the runtime itself: nanoseconds for a spawn, a wake-up, a timer, a device request.
//!
//! `cargo run --release -p cenote-taskq --example overhead [FILE]`; with FILE (some hundred MB), device reads too.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Instant;

use cenote_taskq::{
    Buf, Class, Device, Direct, IoChoice, JoinSet, OpenOptions, RamDevice, Runtime, RuntimeOptions,
    for_each_concurrent, oneshot, yield_now,
};

/// Time passed and processor time used: on a busy machine only the second says much.
struct Watch {
    start: Instant,
    processor_ns: u64,
}

fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Watch {
    fn now() -> Watch {
        Watch { start: Instant::now(), processor_ns: processor_ns() }
    }
}

fn report(what: &str, count: u64, watch: Watch) {
    let used = (processor_ns() - watch.processor_ns) as f64 / count as f64;
    let passed = watch.start.elapsed().as_nanos() as f64 / count as f64;
    println!("{what:<52} {passed:>9.1} ns each, {used:>9.1} ns of processor");
}

async fn read_all(device: &Device, count: u64, depth: usize) {
    let blocks = device.size_bytes() / 4096;
    for_each_concurrent(depth, 0..count, |index| async move {
        let place = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks;
        let (result, _) = device.read(place * 4096, Buf::unfilled(4096)).await;
        result.expect("a read");
    })
    .await;
}

fn run(name: &str, options: RuntimeOptions, file: Option<&str>) {
    println!("-- {name}");
    let runtime = Runtime::real(options).expect("a runtime");
    let handle = runtime.handle();
    println!("{}", handle.io_mode().explanation);
    let count = 1_000_000;

    let spawner = handle.clone();
    let start = Watch::now();
    let _ = runtime.block_on(handle.spawn(Class::Issue, async move {
        let mut set = JoinSet::new();
        for _ in 0..count {
            set.push(spawner.spawn(Class::Issue, async {}));
            if set.len() >= 1000 {
                while set.next().await.is_some() {}
            }
        }
        while set.next().await.is_some() {}
    }));
    report("spawn and join, from a task", count, start);

    // As `cenote-lab taskq` does it: so many producers, each of which lets others run after 256 items.
    for producers in [2, 256] {
        for how in 0..3 {
            let group = handle.group();
            let start = Watch::now();
            runtime.block_on(async {
                let mut set = JoinSet::new();
                for _ in 0..producers {
                    let (group, inner) = (group.clone(), handle.clone());
                    set.push(handle.spawn(Class::Issue, async move {
                        let entries: Vec<_> = (0..256).map(|_| inner.entry(Class::Issue, || ())).collect();
                        for index in 0..count / producers {
                            match how {
                                0 => drop(group.dispatch(Class::Issue, || ())),
                                1 => drop(group.detach(Class::Issue, async {})),
                                _ => drop(entries[index as usize % 256].dispatch()),
                            }
                            if index % 256 == 255 {
                                yield_now().await;
                            }
                        }
                    }));
                }
                while set.next().await.is_some() {}
                group.close().await;
            });
            let what = ["a closure", "a future", "an entry"][how];
            report(&format!("dispatch {what}, {producers} producers"), count, start);
        }
    }

    let start = Watch::now();
    let _ = runtime.block_on(handle.spawn(Class::Issue, async move {
        for _ in 0..count {
            yield_now().await;
        }
    }));
    report("yield", count, start);

    let inner = handle.clone();
    let start = Watch::now();
    let _ = runtime.block_on(handle.spawn(Class::Issue, async move {
        for _ in 0..count / 10 {
            let (sender, receiver) = oneshot::channel();
            drop(inner.spawn(Class::Issue, async move { sender.send(()).is_ok() }));
            let _ = receiver.await;
        }
    }));
    report("spawn a task and wait for its oneshot", count / 10, start);

    let ram = Device::from_driver(RamDevice::new("ram", vec![7; 64 << 20]));
    let task_device = ram.clone();
    let start = Watch::now();
    let _ = runtime.block_on(handle.spawn(Class::Issue, async move {
        let blocks = task_device.size_bytes() / 4096;
        for index in 0..count {
            let place = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks;
            let (result, _) = task_device.read(place * 4096, Buf::unfilled(4096)).await;
            result.expect("a read");
        }
    }));
    report("read 4 KiB of memory, one after another", count, start);

    let Some(file) = file else { return };
    for direct in [Direct::Never, Direct::Always] {
        let options = OpenOptions { direct, ..OpenOptions::default() };
        let Ok(device) = runtime.block_on(handle.open(file.as_ref(), options)) else { continue };
        runtime.block_on(read_all(&device, device.size_bytes() / 4096, 64));
        for (depth, count) in [(1, 50_000), (32, 400_000)] {
            let task_device = device.clone();
            let start = Watch::now();
            let _ = runtime.block_on(handle.spawn(Class::Issue, async move {
                read_all(&task_device, count, depth).await;
            }));
            report(&format!("read 4 KiB of the file, {direct:?} direct, depth {depth}"), count, start);
        }
        let device = Arc::new(device);
        let (tasks, each) = (64u64, 8000u64);
        let start = Watch::now();
        runtime.block_on(async {
            let mut set = JoinSet::new();
            for task in 0..tasks {
                let device = Arc::clone(&device);
                set.push(handle.spawn(Class::Issue, async move {
                    let blocks = device.size_bytes() / 4096;
                    for index in 0..each {
                        let place = (index + task * each).wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks;
                        let (result, _) = device.read(place * 4096, Buf::unfilled(4096)).await;
                        result.expect("a read");
                    }
                }));
            }
            while set.next().await.is_some() {}
        });
        report(&format!("read 4 KiB of the file, {direct:?} direct, {tasks} tasks"), tasks * each, start);
    }
}

fn main() {
    let file = std::env::args().nth(1);
    for (workers, io) in [(1, IoChoice::Auto), (2, IoChoice::Auto), (2, IoChoice::Threads)] {
        let options = RuntimeOptions { workers: Some(workers), io };
        run(&format!("{workers} workers, {io:?}"), options, file.as_deref());
    }
}
