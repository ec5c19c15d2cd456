//! Offsets that no object has are refused.

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_sim::written::*;
use cenote_taskq::Runtime;
use cenote_taskq::sim::disk::Latency;

#[test]
fn a_write_where_no_object_reaches_is_refused() {
    let runtime = Runtime::simulated(1);
    runtime.block_on(async {
        let machine = machine_of(&runtime, 1, Latency::default());
        let handle = runtime.handle();
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
        let root = pool.root().unwrap().objset;
        let object = root.create_object(pool.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 512)).unwrap();
        for offset in [u64::MAX, u64::MAX - 10] {
            let refused = object.write(pool.txg(), offset, &[7; 64]).await.unwrap_err();
            assert!(refused.to_string().contains("where no object reaches"), "{refused}");
        }
        pool.sync().await.unwrap();
    });
}
