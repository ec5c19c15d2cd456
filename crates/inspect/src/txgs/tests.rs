//! Tests of records of txgs, and a record for tests.

use cenote_format::ids::{Txg, VdevId};
use cenote_metaslab::{MetaslabId, TxgWork};

use super::*;

/// A record with a value in each field.
pub(crate) fn record() -> TxgRecord {
    let metaslab = |index| MetaslabId { vdev: VdevId(1), index };
    let space = TxgWork {
        allocated_bytes: 3 << 20,
        freed_bytes: 4096,
        allocated_from: 2,
        loaded: 1,
        unloaded: 5,
        flushed: 6,
        condensed: 7,
        map_bytes: 800,
        log_bytes: 9000,
        retired: 10,
        logs: 11,
        log_blocks: 12,
        metaslabs: vec![
            MetaslabWork {
                allocated_bytes: 3 << 20,
                freed_bytes: 4096,
                log_bytes: 9000,
                is_loaded: true,
                flushed: Some(Flushed::Condensed),
                map_bytes: 800,
                ..MetaslabWork::new(metaslab(7))
            },
            MetaslabWork::new(metaslab(9)),
        ],
        metaslabs_left_out: 36,
    };
    TxgRecord {
        txg: Txg(42),
        waited: Duration::from_micros(20),
        begun: cenote_taskq::Instant::default(),
        took: Duration::from_micros(1500),
        dirty_bytes: 1 << 20,
        is_change: true,
        passes: 3,
        serial: Duration::from_micros(700),
        space,
        phases: vec![(Phase::Flush, Duration::from_micros(400)), (Phase::Flush, Duration::from_micros(100))],
    }
}

#[test]
fn json_has_all_of_it() {
    let short = object(&record(), false);
    assert_eq!(short["flush_ns"], 500_000);
    assert_eq!((&short["logs_retired"], &short["log_blocks"]), (&json!(10), &json!(12)));
    assert!(short.get("metaslabs").is_none());
    let long = object(&record(), true);
    assert_eq!((&long["metaslabs_left_out"], &long["metaslabs"][0]["metaslab"]), (&json!(36), &json!(7)));
    assert_eq!(long["metaslabs"][0]["is_condensed"], true);
    assert_eq!(long["metaslabs"][1]["is_flushed"], false);
}
