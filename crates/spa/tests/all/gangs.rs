//! Goal: in a pool so fragmented that its metadata is stored in gang blocks, a txg takes few passes and little space. Method: tunables force
//! all blocks from a certain size on to be gangs.

use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Rng, Runtime};

use crate::maps::opened;
use cenote_sim::written::blocks::{filled, write_some};
use cenote_sim::written::*;

/// The limit for the passes of a txg. Three are usual.
const PASSES_MAX: u32 = 8;

/// Each pass wrote gang blocks to new places. That changed the space maps, which were gang blocks too, so the next pass wrote them again. A pool
/// of 64 MiB that was an eighth full took all its space in one txg, and was suspended.
#[test]
fn passes_come_to_an_end_where_space_maps_are_gangs() {
    for (seed, ganged_from_bytes) in [(1, 512 + 1), (2, 2048)] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1, Latency::default());
        runtime.block_on(async {
            let objects = filled(&handle, &machine, 4, 9).await;
            let pool = opened(&handle, &machine.paths, small()).await;
            let tuned = pool.peek(move |syncer| {
                syncer.tune_space(|tunables| {
                    tunables.metaslab_force_ganging = ganged_from_bytes;
                    tunables.metaslab_force_ganging_pct = 100;
                    // Each txg flushes the log space map into the metaslabs' space maps.
                    tunables.zfs_unflushed_log_txg_max = 1;
                });
            });
            tuned.await.unwrap();
            let head = pool.open_head("written").await.unwrap();
            let mut opened = Vec::new();
            for id in objects {
                opened.push(head.objset().object(id).await.unwrap());
            }
            let mut rng = Rng::new(seed);
            for _ in 0..6 {
                write_some(&head, &opened, &mut rng).await;
                pool.sync().await.unwrap();
                let passes = pool.history().last().expect("a txg").passes;
                assert!(passes <= PASSES_MAX, "seed {seed}: {passes} passes");
            }
            drop((head, opened));
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, "with gangs");
        });
        if seed == 1 && cenote_testkit::zdb::program("zdb").is_some() {
            let images = machine.images();
            cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
        }
    }
}
