//! Goal: written data is read again without a device where `primarycache` has it so, and only there; `primarycache` and `prefetch`
//! change nothing but that. Method: an object of noise is written in simulation, and the cache's counts of what it had to load say
//! which reads went to a device.

use cenote_dmu::{Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_spa::{PropertyValue, TopKind};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Rng, Runtime};

use cenote_sim::written::*;

const BLOCK_BYTES: usize = 128 << 10;
const BLOCKS: u64 = 24;

/// Misses of the cache while the object is read from its begin to its end, in pieces, by a reader that lets blocks be read ahead.
async fn misses(object: &Object, content: &[u8]) -> (u64, u64) {
    let before = object.dmu().cache().stats();
    let zfetch = object.zfetch();
    for (at, piece) in content.chunks(BLOCK_BYTES).enumerate() {
        let read = object.read_prefetching((at * BLOCK_BYTES) as u64, piece.len(), &zfetch).await.unwrap();
        assert!(read[..] == *piece, "block {at}");
    }
    let after = object.dmu().cache().stats();
    (after.misses - before.misses, after.prefetched - before.prefetched)
}

#[test]
fn written_data_stays_in_the_cache_as_primarycache_has_it() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let tops = machine.tops(&handle, &[(TopKind::Single, 1)]).await.unwrap();
        let pool = make(&handle, options(tops, 12)).await;
        let head = pool.root().unwrap().clone();
        let object =
            head.objset.create_object(pool.txg(), &ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, BLOCK_BYTES as u32));
        let object = object.unwrap();
        let mut content = vec![0; BLOCK_BYTES * BLOCKS as usize];
        let mut rng = Rng::new(7);
        let mut write = async || {
            rng.fill(&mut content);
            object.write(pool.txg(), 0, &content).await.unwrap();
            pool.sync().await.unwrap();
            content.clone()
        };
        let set = async |name, number| {
            pool.set_property(&head, name, &PropertyValue::Number(number)).await.unwrap();
        };

        let content = write().await;
        assert_eq!(misses(&object, &content).await, (0, 0), "all is kept by default");
        let before = object.dmu().cache().stats().size_bytes;
        let content = write().await;
        assert_eq!(misses(&object, &content).await, (0, 0), "what comes in its place is kept");
        let after = object.dmu().cache().stats().size_bytes;
        assert!(after < before + content.len() as u64 / 4, "what was replaced is not: {before}, then {after}");

        for (primary, what) in [(1, "metadata"), (0, "none")] {
            set("primarycache", primary).await;
            set("prefetch", 0).await;
            let content = write().await;
            assert_eq!(misses(&object, &content).await, (BLOCKS, 0), "{what}: data is not kept");
            assert_eq!(misses(&object, &content).await, (BLOCKS, 0), "{what}: nor what was read");
            set("prefetch", 2).await;
            let (missed, ahead) = misses(&object, &content).await;
            assert!(ahead >= BLOCKS / 2 && missed + ahead >= BLOCKS, "{what}: it is read ahead: {missed}, {ahead}");
            assert!(misses(&object, &content).await.1 >= BLOCKS / 2, "{what}: and is not kept after that");
        }

        let content = write().await;
        set("primarycache", 2).await;
        misses(&object, &content).await;
        assert_eq!(misses(&object, &content).await, (0, 0), "what was read is kept again");
        pool.export().await.unwrap();
    });
}
