//! The pool's history.

use std::collections::VecDeque;

use cenote_format::nvlist::NvList;
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Value, json};

use crate::report::map;
use crate::{Report, TimeText, values};

/// The newest records of the history, as many as the report's limit; with `verbose` every field of each.
#[boxed]
pub async fn history(report: &mut Report, pool: &View, verbose: bool) {
    let (time, limit) = (report.time, report.limit);
    let mut kept: VecDeque<Value> = VecDeque::new();
    let mut count = 0_u64;
    let read = pool.history(|record| {
        count += 1;
        if kept.len() >= limit {
            kept.pop_front();
        }
        kept.push_back(if verbose { values::nvlist(&record) } else { row(&record, time) });
    });
    let read = read.await;
    report.take("history", read);
    report.put("record_count", count);
    report.list_of(count, "records", kept.into());
}

/// Time, txg and what happened.
fn row(record: &NvList, shown: TimeText) -> Value {
    let text = |name: &str| record.text(name).map(ToString::to_string);
    let time = record.u64("history time");
    let what = if let Some(command) = text("history command") {
        command
    } else if let Some(event) = text("internal_name") {
        let dataset =
            text("dsname").map_or_else(String::new, |name| format!(" {name} ({})", record.u64("dsid").unwrap_or(0)));
        format!("[{event}]{dataset} {}", text("history internal str").unwrap_or_default())
    } else if let Some(ioctl) = text("ioctl") {
        format!("ioctl {ioctl}")
    } else {
        format!(
            "[event {}] {}",
            record.u64("history internal event").unwrap_or(0),
            text("history internal str").unwrap_or_default()
        )
    };
    Value::Object(map([
        ("time", time.map_or(json!(null), |time| shown(time, "%Y-%m-%d %H:%M:%S").into())),
        ("txg", record.u64("history txg").into()),
        ("what", what.trim_end().into()),
    ]))
}
