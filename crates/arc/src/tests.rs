//! The cache against its invariants, and against what clients see.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use cenote_taskq::buf::Block;

use super::*;

impl<E: Clone> Cache<E> {
    /// [`Cache::find_or_load`] for tests that do not ask where the block came from.
    async fn get_or_load<F, Fut>(&self, key: BlockKey, memory_bytes: usize, load: F) -> Result<Block, E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Block, E>>,
    {
        Ok(self.find_or_load(key, memory_bytes, || (), load).await?.0)
    }

    /// True if the block is here or on its way.
    fn contains(&self, key: BlockKey) -> bool {
        let hash = key.hash();
        self.shard(hash).lock().is_here(key, hash)
    }
}

type Failing = Result<Block, &'static str>;

fn key(number: u64) -> BlockKey {
    BlockKey { vdev: 0, offset_bytes: number * 4096, birth_txg: 7 }
}

fn block(len: usize, fill: u8) -> Block {
    Block::from(vec![fill; len])
}

struct NoWake;

impl Wake for NoWake {
    fn wake(self: Arc<Self>) {}
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::new(NoWake))))
}

fn now<F: Future>(future: F) -> F::Output {
    match poll(pin!(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

/// A load that ends when told to.
struct Manual(Arc<Mutex<Option<Failing>>>);

impl Future for Manual {
    type Output = Failing;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Failing> {
        match self.0.lock().take() {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

#[test]
fn a_block_is_loaded_once_and_then_hit() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    assert_eq!(now(cache.get_or_load(key(1), 4096, async || Ok(block(4096, 1)))).unwrap()[0], 1);
    assert_eq!(now(cache.get_or_load(key(1), 4096, async || panic!("loaded twice"))).unwrap()[0], 1);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.size_bytes), (1, 1, 4096));
}

/// A load counts with all it needs before it allocates, so that memory is free when it does.
#[test]
fn room_is_made_before_a_load_runs() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    for number in 0..400 {
        now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
    }
    let full = cache.stats().size_bytes;
    let mut load = Box::pin(cache.get_or_load(key(1000), 256 << 10, std::future::pending::<Failing>));
    assert!(poll(load.as_mut()).is_pending());
    let stats = cache.stats();
    assert_eq!(stats.loading_bytes, 256 << 10);
    assert!(stats.size_bytes + stats.loading_bytes + stats.overhead_bytes <= LIMIT_MIN_BYTES as u64);
    assert!(stats.size_bytes <= full - (200 << 10));
    drop(load);
    assert_eq!(cache.stats().loading_bytes, 0);
    cache.shards[0].0.lock().check();
}

/// A small block in a large buffer counts as the large buffer.
#[test]
fn slack_counts() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let whole = Block::from(vec![1; 100 << 10]);
    now(cache.get_or_load(key(1), 10, async || Ok(whole.slice(5..15)))).unwrap();
    assert_eq!(cache.stats().size_bytes, 100 << 10);
}

/// A block that a client holds is not evicted while another can be: that would free nothing.
#[test]
fn what_a_client_holds_is_evicted_last() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let held: Vec<_> =
        (0..20).map(|number| now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap()).collect();
    for number in 1000..3000 {
        now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
    }
    assert!((0..20).all(|number| cache.contains(key(number))));
    drop(held);
    for number in 3000..5000 {
        now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
    }
    assert!(!(0..20).any(|number| cache.contains(key(number))));
    // When clients hold everything, the limit is kept all the same.
    let held: Vec<_> = (5000..5500)
        .map(|number| now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap())
        .collect();
    cache.shards[0].0.lock().check();
    assert_eq!(held.len(), 500);
}

#[test]
fn what_was_loaded_ahead_and_used_once_does_not_outlive_what_was_loaded_on_demand() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    for number in 0..50 {
        assert_eq!(now(cache.prefetch(key(number), 4096, async || Ok(block(4096, 0)))), Ok(true));
        assert_eq!(now(cache.prefetch(key(number), 4096, async || panic!("loaded twice"))), Ok(false));
    }
    for number in 0..40 {
        now(cache.get_or_load(key(number), 4096, async || panic!("not loaded ahead"))).unwrap();
    }
    for number in 1000..2000 {
        now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
    }
    assert!(!(0..50).any(|number| cache.contains(key(number))));
    let stats = cache.stats();
    assert_eq!((stats.prefetched, stats.prefetch_used, stats.prefetch_wasted), (50, 40, 10));
    cache.shards[0].0.lock().check();
}

#[test]
fn a_use_that_joins_a_load_ahead_is_its_use() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let slot = Arc::new(Mutex::new(None));
    let mut ahead = pin!(cache.prefetch(key(1), 512, || Manual(slot.clone())));
    assert!(poll(ahead.as_mut()).is_pending());
    let mut use_ = pin!(cache.get_or_load(key(1), 512, async || panic!("a second load")));
    assert!(poll(use_.as_mut()).is_pending());
    *slot.lock() = Some(Ok(block(512, 3)));
    assert!(matches!(poll(ahead.as_mut()), Poll::Ready(Ok(true))));
    assert!(matches!(poll(use_.as_mut()), Poll::Ready(Ok(block)) if block[0] == 3));
    assert_eq!(cache.stats().prefetch_used, 1);
}

#[test]
fn who_comes_while_a_load_runs_waits_for_it_and_gets_its_result() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    for result in [Ok(block(512, 9)), Err("broken")] {
        let number = u64::from(result.is_ok());
        let slot = Arc::new(Mutex::new(None));
        let mut first = pin!(cache.get_or_load(key(number), 4096, || Manual(slot.clone())));
        assert!(poll(first.as_mut()).is_pending());
        let mut second = pin!(cache.get_or_load(key(number), 4096, async || panic!("a second load")));
        assert!(poll(second.as_mut()).is_pending());
        *slot.lock() = Some(result.clone());
        let Poll::Ready(got) = poll(first.as_mut()) else { panic!("the loader is done") };
        assert_eq!(got.is_ok(), result.is_ok());
        let Poll::Ready(got) = poll(second.as_mut()) else { panic!("the waiter was not served") };
        assert_eq!(got.is_ok(), result.is_ok());
    }
    // A failure is not remembered.
    assert!(now(cache.get_or_load(key(0), 4096, async || Ok(block(512, 1)))).is_ok());
}

#[test]
fn a_cancelled_load_is_taken_over_by_a_waiter() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let mut first = Box::pin(cache.get_or_load(key(1), 4096, std::future::pending::<Failing>));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(cache.get_or_load(key(1), 4096, async || Ok(block(512, 2))));
    assert!(poll(second.as_mut()).is_pending());
    drop(first);
    let Poll::Ready(Ok(got)) = poll(second.as_mut()) else { panic!("nobody took over") };
    assert_eq!(got[0], 2);
}

#[test]
fn the_limit_holds_for_every_mix_of_sizes() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let mut state = 1_u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 33) % 700;
        let len = 512 << ((number * 7) % 11);
        let got = now(cache.get_or_load(key(number), 2 * len as usize, async || Ok(block(len as usize, number as u8))))
            .unwrap();
        assert_eq!((got.len() as u64, got[0]), (len, number as u8));
        assert!(cache.stats().size_bytes <= LIMIT_MIN_BYTES as u64);
        if state.is_multiple_of(97) {
            cache.remove(key(number));
        }
        if state.is_multiple_of(13) {
            cache.put(key(number), &block(len as usize, number as u8));
        }
        if state.is_multiple_of(499) {
            cache.shards[0].0.lock().check();
        }
    }
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.ghost_hits > 0, "the test does not reach eviction: {stats:?}");
}

#[test]
fn what_is_put_is_found_and_takes_the_place_of_what_was_there() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    for fill in 1..3 {
        cache.put(key(1), &block(4096, fill));
        assert_eq!(now(cache.get_or_load(key(1), 4096, async || panic!("it is here"))).unwrap()[0], fill);
    }
    assert_eq!(cache.stats().size_bytes, 4096);
    cache.put(key(2), &block(LIMIT_MIN_BYTES, 1));
    assert!(cache.get(key(2)).is_none());
    cache.shards[0].0.lock().check();
}

/// The bytes read of a place before it was written do not come back after.
#[test]
fn what_is_put_while_it_is_loaded_stays() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let slot = Arc::new(Mutex::new(None));
    let mut loader = pin!(cache.get_or_load(key(1), 4096, || Manual(slot.clone())));
    assert!(poll(loader.as_mut()).is_pending());
    let mut waiter = pin!(cache.get_or_load(key(1), 4096, async || panic!("it is here")));
    assert!(poll(waiter.as_mut()).is_pending());
    cache.put(key(1), &block(4096, 2));
    assert!(matches!(poll(waiter.as_mut()), Poll::Ready(Ok(block)) if block[0] == 2));
    *slot.lock() = Some(Ok(block(4096, 1)));
    assert!(poll(loader.as_mut()).is_ready());
    assert_eq!(cache.get(key(1)).unwrap()[0], 2);
    assert_eq!(cache.stats().loading_bytes, 0);
    cache.shards[0].0.lock().check();
}

#[test]
fn a_block_too_large_for_the_limit_passes_through() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    assert!(now(cache.get_or_load(key(1), 4096, async || Ok(block(LIMIT_MIN_BYTES, 1)))).is_ok());
    assert_eq!(cache.stats().size_bytes, 0);
    assert!(cache.get(key(1)).is_none());
}

#[test]
fn what_is_used_often_survives_a_scan() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let hot = 32;
    for _ in 0..3 {
        for number in 0..hot {
            now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
        }
    }
    for number in 1000..5000 {
        now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
    }
    let kept = (0..hot).filter(|number| cache.get(key(*number)).is_some()).count();
    assert_eq!(kept as u64, hot);
}

#[test]
fn lowering_the_limit_evicts_at_once() {
    let cache: Cache<&str> = Cache::new(4 * LIMIT_MIN_BYTES);
    for number in 0..1000 {
        now(cache.get_or_load(key(number), 4096, async || Ok(block(4096, 0)))).unwrap();
    }
    cache.set_limit_bytes(LIMIT_MIN_BYTES);
    assert!(cache.stats().size_bytes <= LIMIT_MIN_BYTES as u64);
}
