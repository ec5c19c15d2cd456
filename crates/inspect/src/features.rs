//! Feature flags.

use std::collections::BTreeMap;

use cenote_format::dsl::pool_directory;
use cenote_spa::{FeatureName, View};
use cenote_taskq::boxed;
use serde_json::json;

use crate::Report;

/// Feature flags with their reference counts; with `all` those that are disabled too.
#[boxed]
pub async fn features(report: &mut Report, pool: &View, all: bool) {
    report.put("version", pool.config().u64("version"));
    let mut counts: [BTreeMap<String, u64>; 3] = Default::default();
    let maps =
        [pool_directory::FEATURES_FOR_READ, pool_directory::FEATURES_FOR_WRITE, pool_directory::FEATURE_ENABLED_TXG];
    for (counts, name) in counts.iter_mut().zip(maps) {
        *counts = report.take(name, pool.feature_counts(name).await).unwrap_or_default();
    }
    let [for_read, for_write, enabled] = counts;
    let mut rows = Vec::new();
    for (feature, state) in report.take("features", pool.features().await).unwrap_or_default() {
        let (guid, known) = match &feature {
            FeatureName::Known(known) => (known.guid, Some(known)),
            FeatureName::Unknown(guid) => (guid.as_str(), None),
        };
        let count = for_read.get(guid).or(for_write.get(guid));
        if count.is_none() && !all {
            continue;
        }
        rows.push(json!({
            "feature": known.map_or("?", |known| known.name),
            "guid": guid,
            "state": format!("{state:?}").to_lowercase(),
            "references": count,
            "needed_to": if for_read.contains_key(guid) { "read" } else { "write" },
            "enabled_txg": enabled.get(guid),
            "known": known.is_some(),
        }));
    }
    report.list("features", rows);
}
