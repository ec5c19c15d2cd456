//! `queue-peers taskq -t PRODUCERS --workers WORKERS --tasks ITEMS`: empty items through tokio, rayon and OpenZFS's taskq.
//!
//! A line of JSON for each, in the words that `cenote-lab taskq --peer` reads. The same shape as ours: producers are tasks of
//! the runtime itself, each dispatches its share of empty items, and all have run at the end. Tokio's producers let others run
//! after every 256 items, as ours do; without that its queue of one worker overflows into the shared one. Of OpenZFS's (see
//! `openzfs.c`) a line more has producers that are threads, as ours has.
//!
//! OpenZFS's queue is the one of the system's libzpool. Where that was not there when this was built, a line says so:
//! `{"label": ..., "left_out": REASON}`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Processor time of the process, of threads that have ended too.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
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

/// OpenZFS's queue, by a program of its own: what it links starts threads and ends the process when it is unhappy.
fn openzfs(producers: u64, workers: usize, items: u64) {
    let left_out = |why: &str| println!("{{\"label\":\"OpenZFS\",\"left_out\":\"{}\"}}", why.replace(['"', '\\'], "'"));
    let Some(program) = option_env!("OPENZFS") else {
        return left_out(option_env!("WITHOUT_OPENZFS").unwrap_or("it was not built"));
    };
    let arguments = [producers, workers as u64, items].map(|value| value.to_string());
    match std::process::Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => print!("{}", String::from_utf8_lossy(&output.stdout)),
        Ok(output) => left_out(&format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => left_out(&error.to_string()),
    }
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
    openzfs(producers, workers, items);
    Ok(())
}
