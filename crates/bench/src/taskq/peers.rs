//! The same items through tokio and rayon, with as many workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Took, workers};
use crate::clock::Watch;

/// Waits until as many items have run.
fn wait_for(done: &AtomicU64, items: u64) {
    while done.load(Ordering::Acquire) < items {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Producers are tasks; every item is a task.
pub(super) fn tokio(producers: u64, items: u64) -> Result<Took> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers()).build()?;
    let done = Arc::new(AtomicU64::new(0));
    let (watch, start) = (Watch::start(), Instant::now());
    for _ in 0..producers {
        let done = Arc::clone(&done);
        drop(runtime.spawn(async move {
            for index in 0..items / producers {
                let done = Arc::clone(&done);
                drop(tokio::spawn(async move {
                    done.fetch_add(1, Ordering::Release);
                }));
                if index % 256 == 255 {
                    tokio::task::yield_now().await;
                }
            }
        }));
    }
    wait_for(&done, items / producers * producers);
    Ok(Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s })
}

/// Producers are jobs; every item is a job.
pub(super) fn rayon(producers: u64, items: u64) -> Result<Took> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(workers()).build()?;
    let (watch, start) = (Watch::start(), Instant::now());
    pool.scope(|scope| {
        for _ in 0..producers {
            scope.spawn(move |scope| {
                for _ in 0..items / producers {
                    scope.spawn(|_| {});
                }
            });
        }
    });
    Ok(Took { wall: start.elapsed(), cpu_s: watch.took().cpu_s })
}
