//! The findings of reading every block, as a document and as text.

use std::fmt::Write as _;

use cenote_props::number::nicebytes;
use cenote_scan::{BlockCounts, VerifyReport};
use cenote_spa::View;
use serde_json::{Map, Value, json};

/// Lines of each kind that the text has.
const LINES_MAX: usize = 20;

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

/// The findings as a person reads them, of so many bytes.
pub fn verified_text(pool: &View, report: &VerifyReport, done_bytes: u64, seconds: f64) -> String {
    let mut text = String::new();
    let total: BlockCounts = report.statistics.total;
    let rate = done_bytes as f64 / seconds.max(1e-6);
    let _ = writeln!(text, "pool '{}' at txg {}", pool.name(), pool.txg());
    let _ = writeln!(
        text,
        "read {} blocks, {} in {seconds:.1} s ({}/s)",
        total.count,
        nicebytes(done_bytes),
        nicebytes(rate as u64)
    );
    let _ = writeln!(
        text,
        "logical {}, physical {}, allocated {}",
        nicebytes(total.lsize_bytes),
        nicebytes(total.psize_bytes),
        nicebytes(total.asize_bytes)
    );
    let statistics = &report.statistics;
    if statistics.dedup_count > 0 {
        let _ = writeln!(
            text,
            "shared by dedup: {} in {} references",
            nicebytes(statistics.dedup_bytes),
            statistics.dedup_count
        );
    }
    if statistics.clone_count > 0 {
        let _ = writeln!(
            text,
            "shared by cloning: {} in {} references",
            nicebytes(statistics.clone_bytes),
            statistics.clone_count
        );
    }
    list(&mut text, "blocks that cannot be read", report.error_count, report.errors.iter());
    list(&mut text, "bad copies of readable blocks", report.bad_copy_count, report.bad_copies.iter());
    list(&mut text, "blocks in places that are not theirs", report.misuse_count, report.misuses.iter());
    if report.leaked_bytes > 0 {
        let _ = writeln!(text, "leaked: {}", nicebytes(report.leaked_bytes));
        for leak in report.leaks.iter().take(LINES_MAX) {
            let _ = writeln!(text, "  vdev {} {:#x}..{:#x}", leak.vdev, leak.range.start, leak.range.end);
        }
    }
    list(&mut text, "other problems", report.problems.len() as u64, report.problems.iter());
    let status = pool.tree().status();
    let behind: Vec<String> =
        status.behind().iter().map(|leaf| format!("{}: missed txgs {}", leaf.name, leaf.missed)).collect();
    list(&mut text, "devices that have missed txgs and need to be resilvered", behind.len() as u64, behind.iter());
    let verdict = match (report.is_clean(), report.space.is_some()) {
        (true, _) if !behind.is_empty() => {
            "every block is readable in every copy, but the pool is degraded: devices have missed txgs"
        }
        (true, true) => {
            "all is well: every block is readable in every copy, and the space maps account for all of them"
        }
        (true, false) => "every block is readable in every copy; space was not accounted for",
        (false, _) => "the pool has damage",
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn list(text: &mut String, what: &str, count: u64, lines: impl Iterator<Item = impl std::fmt::Display>) {
    if count == 0 {
        return;
    }
    let _ = writeln!(text, "{what}: {count}");
    for line in lines.take(LINES_MAX) {
        let _ = writeln!(text, "  {line}");
    }
    if count > LINES_MAX as u64 {
        let _ = writeln!(text, "  ... and {} more", count - LINES_MAX as u64);
    }
}
