//! The meta objset.

use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Value, json};

use crate::object::{each_entry, list};
use crate::{Report, Target, values};

/// The directory of the MOS, and the type and size of every object in it.
#[boxed]
pub async fn mos(report: &mut Report, pool: &View) {
    report.put("pool", pool.name());
    report.put("guid", pool.guid().0);
    report.put("txg", pool.txg().0);
    report.put("rootbp", pool.uberblock().rootbp.to_string());
    let (mut directory, limit) = (Vec::new(), report.limit);
    each_entry(report, pool.directory(), |entry| {
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
    list(report, &Target::mos(pool)).await;
}
