//! `queue-peers taskq -t PRODUCERS --workers WORKERS --tasks ITEMS`: empty items through tokio and rayon.
//!
//! A line of JSON for each, in the words that `cenote bench taskq --peer` reads. The same shape as ours: producers are tasks of
//! the runtime itself, each dispatches its share of empty items, and all have run at the end. Tokio's producers let others run
//! after every 256 items, as ours do; without that its queue of one worker overflows into the shared one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn cpu_s() -> f64 {
    // utime and stime, in ticks of 10 ms: enough for runs of some tenths of a second.
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let main: f64 = text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let all: f64 = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
        .sum();
    all.max(main) / 1e9
}

fn report(name: &str, items: u64, wall: Duration, cpu_s: f64) {
    let wall_s = wall.as_secs_f64();
    println!(
        "{{\"label\":\"{name}\",\"ops\":{items},\"seconds\":{wall_s:.6},\"iops\":{:.0},\"cpu_user_s\":{cpu_s:.6},\"cpu_sys_s\":0}}",
        items as f64 / wall_s
    );
}

fn tokio(producers: u64, workers: usize, items: u64) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build()?;
    let done = Arc::new(AtomicU64::new(0));
    // The workers' threads live on, so their time before counts out.
    let (start, before) = (Instant::now(), cpu_s());
    for _ in 0..producers {
        let done = Arc::clone(&done);
        drop(runtime.spawn(async move {
            for index in 0..items / producers {
                drop(tokio::spawn(async {}));
                if index % 256 == 255 {
                    tokio::task::yield_now().await;
                }
            }
            done.fetch_add(1, Ordering::Release);
        }));
    }
    while done.load(Ordering::Acquire) < producers || runtime.metrics().num_alive_tasks() > 0 {
        std::thread::sleep(Duration::from_micros(50));
    }
    report("tokio", items / producers * producers, start.elapsed(), cpu_s() - before);
    Ok(())
}

fn rayon(producers: u64, workers: usize, items: u64) -> Result<(), rayon::ThreadPoolBuildError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(workers).build()?;
    let (start, before) = (Instant::now(), cpu_s());
    pool.scope(|scope| {
        for _ in 0..producers {
            scope.spawn(move |scope| {
                for _ in 0..items / producers {
                    scope.spawn(|_| {});
                }
            });
        }
    });
    report("rayon", items / producers * producers, start.elapsed(), cpu_s() - before);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str, otherwise: u64| {
        let place = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(place + 1)?.parse().unwrap_or(otherwise))
    };
    if arguments.get(1).map(String::as_str) != Some("taskq") {
        eprintln!("usage: queue-peers taskq [-t PRODUCERS] [--workers WORKERS] [--tasks ITEMS]");
        std::process::exit(2);
    }
    let producers = value("-t", 2).unwrap_or(2).max(1);
    let workers = value("--workers", 2).unwrap_or(2).max(1) as usize;
    let items = value("--tasks", 200_000).unwrap_or(200_000);
    tokio(producers, workers, items)?;
    rayon(producers, workers, items)?;
    Ok(())
}
