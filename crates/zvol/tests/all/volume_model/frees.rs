//! Memory that freeing takes.

use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_spa::TopKind;
use cenote_taskq::Runtime;
use cenote_taskq::sim::disk::Latency;
use cenote_zvol::VolumeSpec;
use cenote_zvol::live::{Clear, LiveVolume};

use super::common::*;

const BLOCK: u64 = 4 << 10;
const BLOCKS: u64 = 8 << 10;

#[test]
fn a_large_discard_keeps_to_the_limit_of_dirty_data_and_passes_holes_over() {
    let runtime = Runtime::simulated(3);
    let machine = Machine::new(&runtime, 1, Latency::default());
    runtime.block_on(async {
        machine.make(TopKind::Single, 12).await;
        let pool = machine.open().await;
        let spec = VolumeSpec { size_bytes: 1 << 40, block_bytes: BLOCK as u32 };
        machine.volume(&pool, &spec).await;
        pool.sync().await.unwrap();
        let tunables = TxTunables { zfs_dirty_data_max: 2 << 20, ..TxTunables::default() };
        let pool = pool.start(tunables).await;
        let head = pool.open_head(VOLUME).await.unwrap();
        let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await.unwrap();
        for at in 0..BLOCKS / 64 {
            volume.write(at * 64 * BLOCK, &vec![7; 64 * BLOCK as usize]).await.unwrap();
        }
        pool.sync().await.unwrap();
        let (limit, before) = (pool.txgs().dirty().max_bytes(), pool.history().last().unwrap().txg);
        // A terabyte, of which 32 MiB are there.
        assert!(volume.clear(0, 1 << 40, Clear::Discarded).await.unwrap().is_some());
        pool.sync().await.unwrap();
        let dirty: Vec<u64> =
            pool.history().iter().filter(|record| record.txg > before).map(|record| record.dirty_bytes).collect();
        // 512 bytes for each block; the last step that came in below the limit has 1024 of them.
        assert!(dirty.iter().sum::<u64>() >= BLOCKS * 512, "{dirty:?}");
        assert!(
            dirty.iter().all(|bytes| *bytes <= limit + (1 << 20)),
            "{dirty:?} bytes were dirty of {limit} that may be"
        );
        assert_eq!(volume.clear(0, 1 << 40, Clear::Discarded).await.unwrap(), None, "there is nothing left");
        assert_eq!(volume.volume().next_data(0).await.unwrap(), None);
        assert!(volume.clear(BLOCK, 1 << 40, Clear::Discarded).await.is_err(), "it ends behind the volume");
        drop(volume);
        pool.export().await.unwrap();
        machine.judge(None).await;
    });
}
