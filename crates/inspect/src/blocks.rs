//! Blocks by type, and the account of space.

use cenote_format::dmu_type::DmuType;
use cenote_scan::{BlockCounts, VerifyReport};
use cenote_spa::View;
use serde_json::{Map, Value, json};

use crate::Report;

/// Counts of blocks by type and level, and the account of space, of what a walk over all blocks found. `by_level` has a row for each level.
pub fn blocks(report: &mut Report, pool: &View, found: &VerifyReport, by_level: bool) {
    for bad in found.errors.iter().chain(&found.bad_copies) {
        report.problem(bad);
    }
    for text in &found.problems {
        report.problem(text);
    }
    for misuse in &found.misuses {
        report.problem(misuse);
    }
    let statistics = &found.statistics;
    let total = statistics.total;
    report.put("txg", pool.txg().0);
    report.put("bp_count", total.count);
    report.put("gang_count", total.gangs);
    report.put("embedded_count", statistics.embedded);
    report.put("same_vdev_copies_count", total.ditto_same_vdev);
    report.put("bp_logical_bytes", total.lsize_bytes);
    report.put("bp_physical_bytes", total.psize_bytes);
    report.put("bp_allocated_bytes", total.asize_bytes);
    report.put("dedup_bytes", statistics.dedup_bytes);
    report.put("dedup_count", statistics.dedup_count);
    report.put("clone_bytes", statistics.clone_bytes);
    report.put("clone_count", statistics.clone_count);
    report.put("checkpoint_bytes", statistics.checkpoint_bytes);
    report.put("accounted_bytes", statistics.accounted_bytes());
    if found.space.is_some() {
        report.put("space_map_allocated_bytes", found.allocated_bytes);
        report.put("leaked_bytes", found.leaked_bytes);
        if found.leaked_bytes > 0 {
            report.problem(format_args!("{} bytes are allocated and nothing refers to them", found.leaked_bytes));
        }
        for leak in &found.leaks {
            report.problem(format_args!("leaked: vdev {} {:#x}..{:#x}", leak.vdev, leak.range.start, leak.range.end));
        }
    }
    let mut rows = Vec::new();
    if statistics.deferred.count > 0 {
        rows.push(row("freed, not yet returned", None, &statistics.deferred, &total));
    }
    for (number, levels) in &statistics.by_type {
        let name = DmuType(*number).to_string();
        let mut sum = BlockCounts::default();
        for counts in levels {
            sum.count += counts.count;
            sum.lsize_bytes += counts.lsize_bytes;
            sum.psize_bytes += counts.psize_bytes;
            sum.asize_bytes += counts.asize_bytes;
        }
        let has_levels = levels.iter().filter(|counts| counts.count > 0).count() > 1;
        if by_level && has_levels {
            for (level, counts) in levels.iter().enumerate().rev().filter(|(_, counts)| counts.count > 0) {
                rows.push(row(&name, Some(level), counts, &total));
            }
        }
        rows.push(row(&name, None, &sum, &total));
    }
    rows.push(row("total", None, &total, &total));
    report.list("types", rows);
}

fn row(name: &str, level: Option<usize>, counts: &BlockCounts, total: &BlockCounts) -> Value {
    let hundredths = |value: f64| Value::from((value * 100.0).round() / 100.0);
    let mut row = Map::new();
    row.insert("blocks".into(), counts.count.into());
    row.insert("lsize_bytes".into(), counts.lsize_bytes.into());
    row.insert("psize_bytes".into(), counts.psize_bytes.into());
    row.insert("asize_bytes".into(), counts.asize_bytes.into());
    row.insert("average_bytes".into(), counts.asize_bytes.checked_div(counts.count).into());
    let compression = counts.lsize_bytes as f64 / counts.psize_bytes.max(1) as f64;
    row.insert("compression".into(), if counts.psize_bytes == 0 { json!(1.0) } else { hundredths(compression) });
    row.insert("percent".into(), hundredths(100.0 * counts.asize_bytes as f64 / total.asize_bytes.max(1) as f64));
    row.insert("type".into(), level.map_or_else(|| name.to_owned(), |level| format!("{name} L{level}")).into());
    Value::Object(row)
}
