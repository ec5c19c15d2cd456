//! The findings of reading every block, as a document.

use cenote_scan::VerifyReport;
use cenote_spa::View;
use serde_json::{Map, Value, json};

/// The findings as a document; `seconds` is how long it took.
pub fn verified(pool: &View, report: &VerifyReport, seconds: f64) -> Value {
    let total = report.statistics.total;
    let misuses: Vec<String> = report.misuses.iter().map(ToString::to_string).collect();
    let leaks: Vec<Value> = report
        .leaks
        .iter()
        .map(|leak| json!({ "vdev": leak.vdev.0, "start": leak.range.start, "end": leak.range.end }))
        .collect();
    json!({
        "pool": pool.name(),
        "txg": pool.txg().0,
        "clean": report.is_clean(),
        "block_count": total.count,
        "logical_bytes": total.lsize_bytes,
        "physical_bytes": total.psize_bytes,
        "allocated_bytes": total.asize_bytes,
        "gang_count": total.gangs,
        "embedded_count": report.statistics.embedded,
        "dedup_bytes": report.statistics.dedup_bytes,
        "dedup_count": report.statistics.dedup_count,
        "clone_bytes": report.statistics.clone_bytes,
        "clone_count": report.statistics.clone_count,
        "space_map_allocated_bytes": report.allocated_bytes,
        "accounted_bytes": report.statistics.accounted_bytes(),
        "error_count": report.error_count,
        "errors": report.errors,
        "bad_copy_count": report.bad_copy_count,
        "bad_copies": report.bad_copies,
        "misuse_count": report.misuse_count,
        "misuses": misuses,
        "leaked_bytes": report.leaked_bytes,
        "leaks": leaks,
        "problems": report.problems,
        "missed_txgs": pool.tree().status().behind().iter().map(|leaf| (leaf.name.clone(), json!(leaf.missed.to_string())))
            .collect::<Map<_, _>>(),
        "seconds": seconds,
    })
}
