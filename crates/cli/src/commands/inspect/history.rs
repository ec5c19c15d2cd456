//! `cenote inspect history`.

use std::collections::VecDeque;

use anyhow::Result;
use cenote_format::nvlist::NvList;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::report::{Common, map};
use super::{open, values};
use crate::context::Context;
use crate::outcome::Outcome;

/// The pool's history: the newest --limit records of commands and events, oldest first.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Every field of each record.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    let mut kept: VecDeque<Value> = VecDeque::new();
    let mut count = 0_u64;
    let read = pool.history(|record| {
        count += 1;
        if kept.len() >= args.common.limit {
            kept.pop_front();
        }
        kept.push_back(if args.verbose { values::nvlist(&record) } else { row(&record) });
    });
    let read = read.await;
    report.take("history", read);
    report.put("record_count", count);
    report.list_of(count, "records", kept.into());
    report.finish(&context)
}

/// Time, txg and what happened.
fn row(record: &NvList) -> Value {
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
        ("time", time.map_or(json!(null), |time| crate::time::format(time, "%Y-%m-%d %H:%M:%S").into())),
        ("txg", record.u64("history txg").into()),
        ("what", what.trim_end().into()),
    ]))
}
