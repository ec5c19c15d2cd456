//! Claims on ranges of a volume, and the tasks that wait for them.

use std::sync::Arc;
use std::time::Duration;

use cenote_spa::TopKind;
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Rng, Runtime};
use cenote_zvol::{Claim, Volume, VolumeSpec};

use super::common::*;

const BLOCK: u64 = 16 << 10;

/// A pool with a volume of 64 blocks full of ones, on disk.
fn with_volume(seed: u64, test: impl AsyncFnOnce(&Machine, &cenote_spa::Pool, Volume)) {
    let runtime = Runtime::simulated(seed);
    let slow = Latency { read: Duration::from_millis(3), jitter: Duration::from_millis(2), ..Latency::default() };
    let machine = Machine::new(&runtime, 1, slow);
    runtime.block_on(async {
        machine.make(TopKind::Single, 12).await;
        let pool = machine.open().await;
        let spec = VolumeSpec { size_bytes: 64 * BLOCK, block_bytes: BLOCK as u32 };
        let (_, volume) = machine.volume(&pool, &spec).await;
        let ones = vec![1; 64 * BLOCK as usize];
        volume.claim(0, 64 * BLOCK).await.unwrap().write(pool.txg(), 0, &ones).await.unwrap();
        pool.export().await.unwrap();
        // Nothing is in the cache, so that parts of blocks have to be read.
        let mut pool = machine.open().await;
        let head = pool.open_head(VOLUME).await.unwrap();
        let volume = Volume::open(&head.objset).await.unwrap();
        test(&machine, &mut pool, volume).await;
    });
}

#[test]
fn parts_of_one_block_that_many_write_at_once_are_all_there() {
    for seed in 0..6 {
        with_volume(seed, async |machine, pool, volume| {
            let txg = pool.txg();
            let mut model = vec![1_u8; 64 * BLOCK as usize];
            let mut sectors: Vec<u64> = (0..8 * BLOCK / 512).collect();
            let mut rng = Rng::new(seed);
            for at in 1..sectors.len() {
                sectors.swap(at, rng.below(at as u64 + 1) as usize);
            }
            let mut joins = Vec::new();
            for sector in sectors {
                let volume = volume.clone();
                let bytes = vec![(sector % 251) as u8 + 2; 512];
                model[sector as usize * 512..][..512].copy_from_slice(&bytes);
                joins.push(machine.handle.spawn(Class::Issue, async move {
                    let claim = volume.claim(sector * 512, 512).await.unwrap();
                    claim.write(txg, sector * 512, &bytes).await.unwrap();
                }));
            }
            for join in joins {
                join.await.unwrap();
            }
            let read = volume.read(0, model.len()).await.unwrap();
            assert!(*read == *model, "{:?}", first_difference(&read, &model));
            pool.sync().await.unwrap();
            machine.judge(Some(&model)).await;
        });
    }
}

#[test]
fn a_claim_keeps_out_who_wants_its_blocks_and_nobody_else() {
    with_volume(1, async |machine, pool, volume| {
        let txg = pool.txg();
        let held = volume.claim(BLOCK + 5, 10).await.unwrap();
        // Other blocks, whole and in part.
        let others = machine.handle.timeout(Duration::from_secs(1), async {
            volume.claim(0, BLOCK).await.unwrap().write(txg, 7, b"seven").await.unwrap();
            volume.claim(2 * BLOCK, 100).await.unwrap().clear(txg).await.unwrap();
        });
        assert!(others.await.is_some(), "changes of other blocks waited");
        // The same block, and all blocks; reading waits for nobody.
        for (from, len) in [(BLOCK + 100, 1), (0, 2 * BLOCK)] {
            let same = machine.handle.timeout(Duration::from_secs(1), volume.claim(from, len));
            assert!(same.await.is_none(), "{from} {len}");
        }
        assert!(machine.handle.timeout(Duration::from_secs(1), volume.claim_all()).await.is_none());
        assert!(machine.handle.timeout(Duration::from_secs(1), volume.read(0, 4 * BLOCK as usize)).await.is_some());
        // Tasks that waited and gave up left nothing behind.
        drop(held);
        assert!(machine.handle.timeout(Duration::from_secs(1), volume.claim_all()).await.is_some());
    });
}

/// Many tasks want ranges at random, hold them for a while, and some lose patience: no two hold the same block, and all come to
/// an end.
#[test]
fn claims_at_random_exclude_each_other_and_all_are_served() {
    for seed in 0..8 {
        with_volume(seed, async |machine, _, volume| {
            let held: Arc<Mutex<Vec<bool>>> = Arc::new(Mutex::new(vec![false; 64]));
            let mut dice = Rng::new(seed);
            let mut joins = Vec::new();
            for _ in 0..60 {
                let (volume, held, handle) = (volume.clone(), held.clone(), machine.handle.clone());
                let mut rng = Rng::new(dice.next_u64());
                joins.push(machine.handle.spawn(Class::Issue, async move {
                    let mut served = 0;
                    for _ in 0..10 {
                        let first = rng.below(64);
                        let most = if rng.chance(1, 10) { 64 - first } else { (64 - first).min(3) };
                        let count = 1 + rng.below(most);
                        let patience = if rng.chance(1, 4) { 1 } else { 1_000_000 };
                        let claim = volume.claim(first * BLOCK, count * BLOCK);
                        let claim: Option<Claim> =
                            handle.timeout(Duration::from_millis(patience), claim).await.map(Result::unwrap);
                        let Some(claim) = claim else { continue };
                        let mark = |to: bool| {
                            let mut held = held.lock();
                            for block in &mut held[first as usize..(first + count) as usize] {
                                assert_ne!(*block, to, "two have one block");
                                *block = to;
                            }
                        };
                        mark(true);
                        handle.sleep(Duration::from_micros(rng.below(3000))).await;
                        mark(false);
                        drop(claim);
                        served += 1;
                    }
                    served
                }));
            }
            let mut served = 0;
            for join in joins {
                served += join.await.unwrap();
            }
            assert!(served > 300, "{served}");
            drop(machine.handle.timeout(Duration::from_secs(1), volume.claim_all()).await.expect("all is free"));
        });
    }
}
