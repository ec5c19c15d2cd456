//! `cenote inspect mos`.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::object::{each_entry, list};
use super::report::Common;
use super::{open, values};
use crate::context::Context;
use crate::outcome::Outcome;

/// The meta objset: its directory of objects, and the type and size of every object in it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    report.put("pool", pool.name());
    report.put("guid", pool.guid().0);
    report.put("txg", pool.txg().0);
    report.put("rootbp", pool.uberblock().rootbp.to_string());
    let (mut directory, limit) = (Vec::new(), report.limit);
    each_entry(&mut report, pool.directory(), |entry| {
        let value = match values::zap_value(&entry.value) {
            Value::Array(words) => words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ").into(),
            plain => plain,
        };
        directory.push(json!({ "name": values::zap_key(&entry.key), "value": value }));
        directory.len() <= limit
    })
    .await;
    directory.sort_by_key(|row| row["name"].to_string());
    report.first("directory", directory);
    list(&mut report, &open::mos(&pool)).await;
    report.finish(&context)
}
