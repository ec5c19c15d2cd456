//! The tables of `zpool upgrade`: features that exist, that pools lack, and that were enabled.

use std::fmt::Write as _;

use cenote_spa::features::{FEATURES, Feature};

/// The first lines of each table.
pub const UPGRADE_HEAD: &str = "This system supports ZFS pool feature flags.\n\n";

/// The features that upgraded pools get (`-v`).
#[must_use]
pub fn features_text() -> String {
    let mut text = format!(
        "{UPGRADE_HEAD}The following features are supported:\n\nFEAT DESCRIPTION\n{}\n",
        "-------------------------------------------------------------"
    );
    for feature in FEATURES.iter().filter(|feature| !feature.is_newer()) {
        let compatible = if feature.read_only_compatible { " (read-only compatible)" } else { "" };
        let _ = writeln!(text, "{:<37}{compatible}\n     {}", feature.name, feature.description);
    }
    text
}

/// Pools with the features that each lacks.
#[must_use]
pub fn lacking_text(pools: &[(String, Vec<&'static Feature>)]) -> String {
    let mut text = format!("{UPGRADE_HEAD}All pools are formatted using feature flags.\n\n");
    if pools.iter().all(|(_, lacking)| lacking.is_empty()) {
        text.push_str("Every feature flags pool has all supported and requested features enabled.\n");
        return text;
    }
    text.push_str(concat!(
        "Some supported features are not enabled on the following pools. Once a\n",
        "feature is enabled the pool may become incompatible with software\n",
        "that does not support the feature. See zpool-features(7) for details.\n\n",
        "Note that the pool 'compatibility' feature can be used to inhibit\nfeature upgrades.\n\n",
        "POOL  FEATURE\n---------------\n",
    ));
    for (name, lacking) in pools.iter().filter(|(_, lacking)| !lacking.is_empty()) {
        let _ = writeln!(text, "{name}");
        for feature in lacking {
            let _ = writeln!(text, "      {}", feature.name);
        }
    }
    text
}

/// The features that were enabled in a pool.
#[must_use]
pub fn enabled_text(name: &str, enabled: &[&Feature]) -> String {
    let mut text = format!("Enabled the following features on '{name}':\n");
    for feature in enabled {
        let _ = writeln!(text, "  {}", feature.name);
    }
    text.push('\n');
    text
}
