//! The findings of reading every block, as a document and as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_props::number::nicebytes;
use cenote_scan::{BadBlock, BlockCounts, VerifyReport};
use cenote_spa::View;
use serde_json::{Map, Value, json};

/// The names of objects with bad blocks.
pub type Places = BTreeMap<(ObjsetId, ObjectId), String>;

/// The objects with bad blocks, whose names are to be had.
pub fn damaged(report: &VerifyReport) -> BTreeSet<(ObjsetId, ObjectId)> {
    let bad = report.errors.iter().chain(&report.bad_copies);
    bad.filter_map(|block| block.bookmark).map(|bookmark| (bookmark.objset, bookmark.object)).collect()
}

/// Lines of each kind that the text has.
const LINES_MAX: usize = 20;

/// A bad block as a document.
fn document(block: &BadBlock, places: &Places) -> Value {
    let mut object = Map::new();
    if let Some(at) = block.bookmark {
        if let Some(place) = places.get(&(at.objset, at.object)) {
            object.insert("place".into(), json!(place));
        }
        object.insert("objset".into(), json!(at.objset.0));
        object.insert("object".into(), json!(at.object.0));
        object.insert("level".into(), json!(at.level));
        object.insert("block".into(), json!(at.block.0));
    }
    object.insert("error".into(), json!(block.why));
    Value::Object(object)
}

/// Bad blocks as a person reads them: each place once, with the first of its errors.
fn lines(blocks: &[BadBlock], places: &Places) -> Vec<String> {
    let mut lines = Vec::new();
    let mut by_place: BTreeMap<(ObjsetId, ObjectId), Vec<&BadBlock>> = BTreeMap::new();
    for block in blocks {
        match block.bookmark.map(|at| (at.objset, at.object)).filter(|at| places.contains_key(at)) {
            Some(at) => by_place.entry(at).or_default().push(block),
            None => lines.push(block.to_string()),
        }
    }
    for (at, blocks) in by_place {
        let (place, first) = (&places[&at], blocks[0]);
        let block = first.bookmark.map(|at| (at.level, at.block));
        let which = match block {
            Some((0, number)) => format!("block {number}"),
            Some((level, number)) => format!("level {level} block {number}"),
            None => String::new(),
        };
        lines.push(match blocks.len() {
            1 => format!("{place}: {which}: {}", first.why),
            count => format!("{place}: {count} blocks, first {which}: {}", first.why),
        });
    }
    lines
}

/// The findings as a document; `seconds` is how long it took, `places` the names of what [`damaged`] gives.
pub fn verified(pool: &View, report: &VerifyReport, places: &Places, seconds: f64) -> Value {
    let documents = |blocks: &[BadBlock]| blocks.iter().map(|block| document(block, places)).collect::<Vec<_>>();
    let total = report.statistics.total;
    let misuses: Vec<String> = report.misuses.iter().map(ToString::to_string).collect();
    let leaks: Vec<Value> = report
        .leaks
        .iter()
        .map(|leak| json!({ "vdev": leak.vdev.0, "start": leak.range.start, "end": leak.range.end }))
        .collect();
    let mut verified = json!({
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
        "errors": documents(&report.errors),
        "bad_copy_count": report.bad_copy_count,
        "bad_copies": documents(&report.bad_copies),
        "misuse_count": report.misuse_count,
        "misuses": misuses,
        "leaked_bytes": report.leaked_bytes,
        "leaks": leaks,
        "problems": report.problems,
        "missed_txgs": pool.tree().status().behind().iter().map(|leaf| (leaf.name.clone(), json!(leaf.missed.to_string())))
            .collect::<Map<_, _>>(),
        "seconds": seconds,
    });
    if let Some((first, _)) = report.moved {
        verified["first_txg"] = json!(first.0);
    }
    verified
}

/// The findings as a person reads them, of so many bytes.
pub fn verified_text(pool: &View, report: &VerifyReport, places: &Places, done_bytes: u64, seconds: f64) -> String {
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
    list(
        &mut text,
        "blocks that cannot be read",
        (report.error_count, report.errors.len()),
        &lines(&report.errors, places),
    );
    let copies = (report.bad_copy_count, report.bad_copies.len());
    list(&mut text, "bad copies of readable blocks", copies, &lines(&report.bad_copies, places));
    let misuses = (report.misuse_count, report.misuses.len());
    list(&mut text, "blocks in places that are not theirs", misuses, &report.misuses);
    if report.leaked_bytes > 0 {
        let _ = writeln!(text, "leaked: {}", nicebytes(report.leaked_bytes));
        for leak in report.leaks.iter().take(LINES_MAX) {
            let _ = writeln!(text, "  vdev {} {:#x}..{:#x}", leak.vdev, leak.range.start, leak.range.end);
        }
    }
    list(&mut text, "other problems", (report.problems.len() as u64, report.problems.len()), &report.problems);
    let status = pool.tree().status();
    let behind: Vec<String> =
        status.behind().iter().map(|leaf| format!("{}: missed txgs {}", leaf.name, leaf.missed)).collect();
    let count = (behind.len() as u64, behind.len());
    list(&mut text, "devices that have missed txgs and need to be resilvered", count, &behind);
    if let Some((first, last)) = report.moved {
        let _ = writeln!(
            text,
            "the pool was written meanwhile, and read as of txg {first} to {last}: this is of blocks that were there all the time"
        );
    }
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

/// Lines for what there is, of which so much was kept. A line may stand for several.
fn list(text: &mut String, what: &str, (count, kept): (u64, usize), lines: &[impl std::fmt::Display]) {
    let kept = kept as u64;
    if count == 0 {
        return;
    }
    let of_first = if kept < count { format!(" (here are the first {kept})") } else { String::new() };
    let _ = writeln!(text, "{what}: {count}{of_first}");
    for line in lines.iter().take(LINES_MAX) {
        let _ = writeln!(text, "  {line}");
    }
    if lines.len() > LINES_MAX {
        let _ = writeln!(text, "  ... and {} more lines; --json has all", lines.len() - LINES_MAX);
    }
}
