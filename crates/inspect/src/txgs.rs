//! The last txgs of a pool in use: their content, and the phases that their sync took its time for.

use std::time::Duration;

use cenote_metaslab::{Flushed, MetaslabWork};
use cenote_spa::{Phase, TxgRecord};
use serde_json::{Value, json};

use crate::Report;

/// Names of the phases of a sync.
const PHASES: [(Phase, &str); 6] = [
    (Phase::Datasets, "datasets_ns"),
    (Phase::FirstPass, "first_pass_ns"),
    (Phase::Space, "space_ns"),
    (Phase::LaterPasses, "later_passes_ns"),
    (Phase::Flush, "flush_ns"),
    (Phase::Commit, "commit_ns"),
];

/// An object for each txg; with `metaslabs` one for each metaslab that was worked on too.
pub fn txgs(report: &mut Report, records: &[TxgRecord], metaslabs: bool) {
    report.list("txgs", records.iter().map(|record| object(record, metaslabs)).collect());
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn object(record: &TxgRecord, is_verbose: bool) -> Value {
    let space = &record.space;
    let mut row = json!({
        "txg": record.txg.0,
        "dirty_bytes": record.dirty_bytes,
        "is_change": record.is_change,
        "passes": record.passes,
        "wait_ns": nanoseconds(record.waited),
        "sync_ns": nanoseconds(record.took),
        "serial_ns": nanoseconds(record.serial),
        "allocated_bytes": space.allocated_bytes,
        "freed_bytes": space.freed_bytes,
        "metaslabs_allocated_from": space.allocated_from,
        "metaslabs_loaded": space.loaded,
        "metaslabs_unloaded": space.unloaded,
        "metaslabs_flushed": space.flushed,
        "metaslabs_condensed": space.condensed,
        "map_bytes": space.map_bytes,
        "log_bytes": space.log_bytes,
        "logs": space.logs,
        "logs_retired": space.retired,
        "log_blocks": space.log_blocks,
    });
    for (phase, name) in PHASES {
        row[name] = nanoseconds(record.phase(phase)).into();
    }
    if is_verbose {
        row["metaslabs"] = space.metaslabs.iter().map(metaslab_object).collect();
        row["metaslabs_left_out"] = space.metaslabs_left_out.into();
    }
    row
}

fn metaslab_object(work: &MetaslabWork) -> Value {
    json!({
        "vdev": work.metaslab.vdev.0,
        "metaslab": work.metaslab.index,
        "allocated_bytes": work.allocated_bytes,
        "freed_bytes": work.freed_bytes,
        "map_bytes": work.map_bytes,
        "log_bytes": work.log_bytes,
        "is_loaded": work.is_loaded,
        "is_unloaded": work.is_unloaded,
        "is_flushed": work.flushed.is_some(),
        "is_condensed": work.flushed == Some(Flushed::Condensed),
    })
}

#[cfg(test)]
pub(crate) mod tests;
