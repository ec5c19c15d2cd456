//! The cache against its invariants, and against what clients see.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use cenote_taskq::buf::Block;

use super::*;

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
    assert_eq!(now(cache.get_or_load(key(1), async || Ok(block(4096, 1)))).unwrap()[0], 1);
    assert_eq!(now(cache.get_or_load(key(1), async || panic!("loaded twice"))).unwrap()[0], 1);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.size_bytes), (1, 1, 4096));
}

#[test]
fn who_comes_while_a_load_runs_waits_for_it_and_gets_its_result() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    for result in [Ok(block(512, 9)), Err("broken")] {
        let number = u64::from(result.is_ok());
        let slot = Arc::new(Mutex::new(None));
        let mut first = pin!(cache.get_or_load(key(number), || Manual(slot.clone())));
        assert!(poll(first.as_mut()).is_pending());
        let mut second = pin!(cache.get_or_load(key(number), async || panic!("a second load")));
        assert!(poll(second.as_mut()).is_pending());
        *slot.lock() = Some(result.clone());
        let Poll::Ready(got) = poll(first.as_mut()) else { panic!("the loader is done") };
        assert_eq!(got.is_ok(), result.is_ok());
        let Poll::Ready(got) = poll(second.as_mut()) else { panic!("the waiter was not served") };
        assert_eq!(got.is_ok(), result.is_ok());
    }
    // A failure is not remembered.
    assert!(now(cache.get_or_load(key(0), async || Ok(block(512, 1)))).is_ok());
}

#[test]
fn a_cancelled_load_is_taken_over_by_a_waiter() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let mut first = Box::pin(cache.get_or_load(key(1), std::future::pending::<Failing>));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(cache.get_or_load(key(1), async || Ok(block(512, 2))));
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
        let got = now(cache.get_or_load(key(number), async || Ok(block(len as usize, number as u8)))).unwrap();
        assert_eq!((got.len() as u64, got[0]), (len, number as u8));
        assert!(cache.stats().size_bytes <= LIMIT_MIN_BYTES as u64);
        if state.is_multiple_of(97) {
            cache.remove(key(number));
        }
        if state.is_multiple_of(499) {
            cache.shards[0].lock().check();
        }
    }
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.ghost_hits > 0, "the test does not reach eviction: {stats:?}");
}

#[test]
fn a_block_too_large_for_the_limit_passes_through() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    assert!(now(cache.get_or_load(key(1), async || Ok(block(LIMIT_MIN_BYTES, 1)))).is_ok());
    assert_eq!(cache.stats().size_bytes, 0);
    assert!(cache.get(key(1)).is_none());
}

#[test]
fn what_is_used_often_survives_a_scan() {
    let cache: Cache<&str> = Cache::new(LIMIT_MIN_BYTES);
    let hot = 32;
    for _ in 0..3 {
        for number in 0..hot {
            now(cache.get_or_load(key(number), async || Ok(block(4096, 0)))).unwrap();
        }
    }
    for number in 1000..5000 {
        now(cache.get_or_load(key(number), async || Ok(block(4096, 0)))).unwrap();
    }
    let kept = (0..hot).filter(|number| cache.get(key(*number)).is_some()).count();
    assert_eq!(kept as u64, hot);
}

#[test]
fn lowering_the_limit_evicts_at_once() {
    let cache: Cache<&str> = Cache::new(4 * LIMIT_MIN_BYTES);
    for number in 0..1000 {
        now(cache.get_or_load(key(number), async || Ok(block(4096, 0)))).unwrap();
    }
    cache.set_limit_bytes(LIMIT_MIN_BYTES);
    assert!(cache.stats().size_bytes <= LIMIT_MIN_BYTES as u64);
}
