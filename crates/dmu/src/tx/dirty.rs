//! Dirty data: bytes that are changed in memory and not yet on disk.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use cenote_format::ids::Txg;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Handle, Instant, Notify, thread_shard};

use super::kstat::{Event, TxCounts};
use super::tunables::{InForce, TxTunables};
use super::{TXGS, slot};

/// Steps in which shards pass on what has changed, all shards together: this part of the limit.
const STEP_PART: u64 = 256;
/// Nobody has been delayed yet.
const NEVER: u64 = 0;
/// The smallest sector.
const UNIT_BYTES_MIN: u64 = 512;

/// One worker's share, alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// By txg: may be negative, where another worker's bytes were written by this one.
    by_txg: [AtomicI64; TXGS],
    /// Bytes that are not added to the total yet.
    unsaid: AtomicI64,
    /// Bytes that intent logs may have to copy, by txg, and those of them that are not added to their total yet.
    logged: [AtomicI64; TXGS],
    logged_unsaid: AtomicI64,
}

/// How many bytes are dirty, in all and in each txg.
///
/// The total lags behind by a step for each shard: less than a hundredth of the limit.
#[derive(Debug)]
pub struct Dirty {
    handle: Handle,
    tunables: InForce,
    shards: Box<[Shard]>,
    total: AtomicI64,
    /// Of bytes that intent logs may have to copy.
    logged: AtomicI64,
    step: AtomicI64,
    /// The pool allocates so many bytes at a time, or a multiple: the sector of its vdevs.
    unit_bytes: AtomicU64,
    /// The time at which the last delayed change was admitted, in nanoseconds since `start`; the delay of the next one counts from it.
    let_go_ns: AtomicU64,
    start: Instant,
    /// Less is dirty than was, or a txg should be written.
    moved: Notify,
    pub(super) counts: TxCounts,
}

impl Dirty {
    pub(super) fn new(handle: Handle, tunables: TxTunables) -> Self {
        let count = handle.parallelism().max(1).next_power_of_two();
        assert!(tunables.sync_bytes() <= tunables.zfs_dirty_data_max, "a txg is written before changes have to stop");
        Self {
            start: handle.now(),
            handle,
            tunables: InForce::new(tunables),
            shards: (0..count).map(|_| Shard::default()).collect(),
            total: AtomicI64::new(0),
            logged: AtomicI64::new(0),
            step: AtomicI64::new(step(&tunables, count)),
            unit_bytes: AtomicU64::new(UNIT_BYTES_MIN),
            let_go_ns: AtomicU64::new(NEVER),
            moved: Notify::new(),
            counts: TxCounts::default(),
        }
    }

    /// Those in force.
    pub(super) fn tunables(&self) -> TxTunables {
        self.tunables.get()
    }

    /// Obeys others from now on.
    pub(super) fn set_tunables(&self, tunables: TxTunables) {
        self.tunables.set(tunables);
        self.step.store(step(&tunables, self.shards.len()), Ordering::Relaxed);
        self.moved.all();
    }

    /// The bytes that the pool allocates at a time.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        if mutant::is(Mutant::SectorsUncounted) {
            return UNIT_BYTES_MIN;
        }
        self.unit_bytes.load(Ordering::Relaxed)
    }

    /// Counts a smaller block as this much from now on: at the opening of a pool, and when a vdev with larger sectors is added.
    pub fn set_unit_bytes(&self, bytes: u64) {
        assert!(bytes.is_power_of_two() && bytes >= UNIT_BYTES_MIN, "a sector is a power of two");
        self.unit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts what a change has made dirty in its txg; less than nothing if it has taken something back.
    pub(crate) fn change(&self, txg: Txg, bytes: i64) {
        if bytes == 0 {
            return;
        }
        let shard = &self.shards[thread_shard() & (self.shards.len() - 1)];
        shard.by_txg[slot(txg)].fetch_add(bytes, Ordering::Relaxed);
        let unsaid = shard.unsaid.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if unsaid.abs() >= self.step.load(Ordering::Relaxed) {
            // Another thread of this shard may have said some of it meanwhile.
            let unsaid = shard.unsaid.swap(0, Ordering::Relaxed);
            let before = self.total.fetch_add(unsaid, Ordering::Relaxed);
            let sync = self.tunables().sync_bytes() as i64;
            if unsaid < 0 || (before < sync && before + unsaid >= sync) {
                self.moved.all();
            }
        }
    }

    /// Counts a write of which an intent log may have to copy the bytes (OpenZFS's `dsl_pool_wrlog_count`).
    pub fn wrote_for_log(&self, txg: Txg, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let shard = &self.shards[thread_shard() & (self.shards.len() - 1)];
        shard.logged[slot(txg)].fetch_add(bytes, Ordering::Relaxed);
        let unsaid = shard.logged_unsaid.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if unsaid >= self.step.load(Ordering::Relaxed) {
            let unsaid = shard.logged_unsaid.swap(0, Ordering::Relaxed);
            let before = self.logged.fetch_add(unsaid, Ordering::Relaxed);
            let sync = self.tunables().wrlog_sync_bytes() as i64;
            if before <= sync && before + unsaid > sync {
                self.moved.all();
            }
        }
    }

    fn logged_bytes(&self) -> u64 {
        self.logged.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes dirty in all, to within the steps of the shards.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes dirty in a txg.
    #[must_use]
    pub fn txg_bytes(&self, txg: Txg) -> u64 {
        self.shards.iter().map(|shard| shard.by_txg[slot(txg)].load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    /// Bytes that may be dirty.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.tunables().zfs_dirty_data_max
    }

    /// The txg is on disk: nothing of it is dirty.
    pub(super) fn synced(&self, txg: Txg) {
        let mut left = 0;
        for shard in &self.shards {
            left += shard.by_txg[slot(txg)].swap(0, Ordering::Relaxed);
        }
        self.total.fetch_sub(left, Ordering::Relaxed);
        let logged: i64 = self.shards.iter().map(|shard| shard.logged[slot(txg)].swap(0, Ordering::Relaxed)).sum();
        self.logged.fetch_sub(logged, Ordering::Relaxed);
        self.moved.all();
    }

    /// Whether so much is dirty, or intent logs may have to copy so much of the open txg, that a txg should be written.
    pub(super) fn wants_sync(&self, open: Txg) -> bool {
        let tunables = self.tunables();
        let logged = || self.shards.iter().map(|shard| shard.logged[slot(open)].load(Ordering::Relaxed)).sum::<i64>();
        let logged_max = tunables.wrlog_sync_bytes();
        self.total_bytes() >= tunables.sync_bytes()
            || self.logged_bytes() > logged_max && logged().max(0) as u64 > logged_max
    }

    /// Wakes all changes that wait for room, to check again.
    pub(super) fn wake(&self) {
        self.moved.all();
    }

    /// Resolves when [`Dirty::wants_sync`] may have become true.
    pub(super) fn moved(&self) -> cenote_taskq::NotifyWait<'_> {
        self.moved.wait()
    }

    /// Waits as long as it takes for a change to come in: a delay where much is dirty; with too much, until there is less.
    /// Gives up when `is_over` says so.
    pub(super) async fn admit(&self, is_over: impl Fn() -> bool) {
        for round in 0.. {
            let moved = self.moved.wait();
            if self.total_bytes() < self.max_bytes() || is_over() {
                break;
            }
            if round == 0 {
                self.counts.count(Event::OverMax);
            }
            moved.await;
        }
        let (tunables, logged) = (self.tunables(), self.logged_bytes());
        let (delay, wrlog_delay) = (tunables.delay(self.total_bytes()), tunables.wrlog_delay(logged));
        if !delay.is_zero() {
            self.counts.count(Event::Delay);
        }
        if !wrlog_delay.is_zero() {
            self.counts.count(Event::WrlogDelay);
        }
        let delay = delay.max(wrlog_delay);
        if delay.is_zero() {
            return;
        }
        // Delayed changes are admitted one after the other, one delay apart. So the delay sets their rate, however many there are.
        let (now, delay_ns) = (self.handle.now() - self.start, delay.as_nanos() as u64);
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut last = self.let_go_ns.load(Ordering::Relaxed);
        let until_ns = loop {
            let until = now_ns.max(last).saturating_add(delay_ns);
            match self.let_go_ns.compare_exchange_weak(last, until, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break until,
                Err(other) => last = other,
            }
        };
        self.handle.sleep(std::time::Duration::from_nanos(until_ns - now_ns)).await;
    }
}

/// The most bytes that a shard may count without adding them to the total.
fn step(tunables: &TxTunables, shards: usize) -> i64 {
    let step = (tunables.zfs_dirty_data_max / STEP_PART / shards as u64).max(1);
    i64::try_from(step).unwrap_or(i64::MAX)
}
