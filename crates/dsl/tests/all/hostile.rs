//! Numbers in datasets on disk that no pool has: what is changed there is refused, or goes on with the largest number there is. Nothing panics.

use cenote_format::Endian;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_sim::written::*;
use cenote_spa::{Pool, PropertyValue, SpaError, Syncer};
use cenote_taskq::Runtime;
use cenote_taskq::sim::disk::Latency;

async fn pool_with(runtime: &Runtime, datasets: &[&str]) -> Pool {
    let handle = runtime.handle();
    let machine = machine_of(runtime, 1, Latency::default());
    let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
    for name in datasets {
        pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

/// Puts fields of a directory or dataset into the MOS as if they had been found there.
async fn put(syncer: &Syncer, object: ObjectId, bonus: &[u8]) {
    let object = syncer.dsl().mos().object(object).await.unwrap();
    object.set_bonus(syncer.txg(), bonus).unwrap();
}

async fn forge_used(pool: &Pool, name: &'static str, used_bytes: u64) {
    let forged = pool.change(move |syncer| {
        Box::pin(async move {
            let dir = syncer.dsl().dir(name).await.unwrap();
            let phys = DslDirPhys { used_bytes, ..dir.phys };
            put(syncer, dir.object, &phys.emit(Endian::Little)).await;
            Ok::<_, SpaError>(())
        })
    });
    forged.await.unwrap();
}

#[test]
fn a_directory_that_uses_more_than_any_pool_has_is_moved_and_destroyed() {
    for used_bytes in [1 << 63, u64::MAX, i64::MAX as u64] {
        let runtime = Runtime::simulated(1);
        runtime.block_on(async {
            let pool = pool_with(&runtime, &["written/a", "written/b", "written/a/c"]).await;
            forge_used(&pool, "written/a", used_bytes).await;
            pool.rename_dataset("written/a", "written/b/a").await.unwrap();
            pool.sync().await.unwrap();
            // Bytes of a child count in the directory above: across the largest signed number, there and back.
            let bytes = PropertyValue::Number(1 << 20);
            pool.change_property("written/b/a/c", "refreservation", Some(&bytes)).await.unwrap();
            pool.change_property("written/b/a/c", "refreservation", None).await.unwrap();
            pool.destroy_dataset("written/b/a/c").await.unwrap();
            pool.destroy_dataset("written/b/a").await.unwrap();
            pool.sync().await.unwrap();
        });
    }
}

#[test]
fn a_snapshot_that_counts_as_many_clones_as_there_can_be_gets_none() {
    let runtime = Runtime::simulated(1);
    runtime.block_on(async {
        let pool = pool_with(&runtime, &[]).await;
        let forged = pool.change(|syncer| {
            Box::pin(async {
                let origin = syncer.dsl().origin();
                let phys = syncer.dsl().dataset_phys(origin).await.unwrap();
                let phys = DslDatasetPhys { child_count: u64::MAX, ..phys };
                put(syncer, origin, &phys.emit(Endian::Little)).await;
                Ok::<_, SpaError>(())
            })
        });
        forged.await.unwrap();
        let refused = pool.create_dataset("written/a", ObjsetType::Other).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("more clones than there can be"), "{refused}");
    });
}
