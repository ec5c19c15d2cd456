//! Features as properties of a pool.

use crate::error::Result;
use cenote_props::pool::{FEATURE_PREFIX, UNSUPPORTED_PREFIX};
use cenote_spa::{
    FeatureName, View,
    features::{FEATURES, FeatureState},
};

/// The order in which OpenZFS numbers and lists features.
const ORDER: [&str; 44] = [
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "bookmarks",
    "filesystem_limits",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "encryption",
    "project_quota",
    "device_removal",
    "obsolete_counts",
    "zpool_checkpoint",
    "spacemap_v2",
    "allocation_classes",
    "resilver_defer",
    "bookmark_v2",
    "redaction_bookmarks",
    "redacted_datasets",
    "bookmark_written",
    "log_spacemap",
    "livelist",
    "device_rebuild",
    "zstd_compress",
    "draid",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "block_cloning",
    "vdev_zaps_v2",
    "redaction_list_spill",
    "raidz_expansion",
    "fast_dedup",
    "longname",
    "large_microzap",
];

/// Every feature's property and value: `feature@lz4_compress` is `active`. Unknown features are last.
pub(super) async fn features(pool: &View) -> Result<Vec<(String, &'static str)>> {
    let rank = |name: &str| ORDER.iter().position(|each| *each == name).unwrap_or(ORDER.len());
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for (name, state) in pool.features().await? {
        match name {
            // OpenZFS 2.3 does not list features that it does not know.
            FeatureName::Known(feature) if feature.is_newer() && state == FeatureState::Disabled => {}
            FeatureName::Known(feature) => {
                let value = match state {
                    FeatureState::Disabled => "disabled",
                    FeatureState::Enabled => "enabled",
                    FeatureState::Active => "active",
                };
                known.push((rank(feature.name), format!("{FEATURE_PREFIX}{}", feature.name), value));
            }
            FeatureName::Unknown(guid) => {
                // If an unknown feature forbade reading, the pool would not be open.
                let value = if state == FeatureState::Active { "readonly" } else { "inactive" };
                unknown.push((format!("{UNSUPPORTED_PREFIX}{guid}"), value));
            }
        }
    }
    known.sort_by_key(|(rank, ..)| *rank);
    Ok(known.into_iter().map(|(_, name, value)| (name, value)).chain(unknown).collect())
}

/// True if a name can be that of a feature.
pub(super) fn is_feature(name: &str) -> bool {
    let known = |name: &str| FEATURES.iter().any(|feature| feature.name == name);
    name.strip_prefix(FEATURE_PREFIX).is_some_and(known) || name.starts_with(UNSUPPORTED_PREFIX)
}
