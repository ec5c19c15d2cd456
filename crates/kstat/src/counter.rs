//! Counters that many threads add to.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_taskq::thread_shard;

/// Threads that add without sharing a cache line.
const SHARDS: usize = 8;

/// One thread's part, alone on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<const N: usize>([AtomicU64; N]);

/// `N` counters that belong together, split by thread.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    shards: Box<[Shard<N>]>,
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard(std::array::from_fn(|_| AtomicU64::new(0)))).collect() }
    }
}

impl<const N: usize> Counters<N> {
    /// Adds to some of them.
    pub fn add(&self, counts: [(usize, u64); 2]) {
        let shard = &self.shards[thread_shard() % SHARDS].0;
        for (which, count) in counts {
            shard[which].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Adds one to one of them.
    pub fn count(&self, which: usize) {
        self.shards[thread_shard() % SHARDS].0[which].fetch_add(1, Ordering::Relaxed);
    }

    /// Their sums.
    #[must_use]
    pub fn sums(&self) -> [u64; N] {
        std::array::from_fn(|which| {
            let parts = self.shards.iter().map(|shard| shard.0[which].load(Ordering::Relaxed));
            parts.fold(0, u64::wrapping_add)
        })
    }
}

/// How often values of each size occurred: bucket `n` counts those from 2^n up to 2^(n+1), as `zpool iostat -w` has them; the last one
/// all that are larger too.
#[derive(Debug)]
pub struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts a value; zero counts as one.
    pub fn add(&self, value: u64) {
        self.0[(value.max(1).ilog2() as usize).min(N - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of all buckets.
    #[must_use]
    pub fn buckets(&self) -> Vec<u64> {
        self.0.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect()
    }
}
