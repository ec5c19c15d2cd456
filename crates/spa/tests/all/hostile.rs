//! Uberblocks on disk that no pool has.

use cenote_format::ids::Txg;
use cenote_format::uberblock::Uberblock;
use cenote_sim::written::*;
use cenote_spa::{ImportOptions, PoolError, SpaError, find, open};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{OpenOptions, Runtime};
use cenote_vdev::disk::Disk;
use cenote_vdev::ring::write_multihost;

#[test]
fn a_pool_at_the_last_txg_is_not_opened_for_writing() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let machine = machine_of(&runtime, 1, Latency::default());
        make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await.export().await.unwrap();
        let found = find(&handle, &machine.paths).await.0.remove(0);
        let copies = found.leaves.values().flat_map(|leaf| &leaf.uberblocks);
        let newest: Uberblock = copies.map(|copy| copy.uberblock).max_by(Uberblock::cmp_age).unwrap();
        let device = handle.open(&machine.paths[0], OpenOptions { write: true, ..OpenOptions::default() }).await;
        let disk = Disk::whole(device.unwrap());
        write_multihost(&disk, 12, 0, &Uberblock { txg: Txg(u64::MAX), ..newest }).await.unwrap();
        disk.flush().await.unwrap();
        drop(disk);
        let found = find(&handle, &machine.paths).await.0.remove(0);
        let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
        let refused = open(&handle, found, &how, write_options()).await.map(drop).unwrap_err();
        assert!(
            matches!(&refused, SpaError::Pool { error: PoolError::Unsupported(what), .. } if what.contains("which no pool comes to")),
            "{refused}"
        );
    });
}
