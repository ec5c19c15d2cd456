//! The settings of pools that are made, by `-o` and `-O` of `zpool create` and `zpool add`.

use std::collections::BTreeSet;

use cenote_props::effect::{self, Effect};
use cenote_props::{Property, Types, find};
use cenote_spa::PropertyValue;
use cenote_spa::features::{FEATURES, by_name};

use super::{ValueError, When, dataset_setting, invalid, new_pool_setting, parse_ashift};
use crate::AdminError;
use crate::compatibility::{ReadList, allowed};

/// Of these settings those that are kept and nothing more, a line for each, so that nobody relies on them.
pub fn stored_only<'a>(
    effect_of: fn(&Property) -> Effect,
    table: &'static [Property],
    settings: impl IntoIterator<Item = (&'a str, &'a PropertyValue)>,
) -> Vec<String> {
    let is_stored = |name: &str, value: &PropertyValue| match (find(table, name), value) {
        (Some(property), PropertyValue::Number(number)) => effect::is_ignored(effect_of(property), property, *number),
        _ => false,
    };
    let stored = settings.into_iter().filter(|(name, value)| is_stored(name, value));
    stored.map(|(name, _)| format!("note: '{name}' is stored; Cenote does not obey it yet")).collect()
}

/// The settings of a pool that is made, by `-o`.
#[derive(Clone, Debug, Default)]
pub struct PoolSettings {
    /// The smallest unit of its vdevs, as a power of two.
    pub ashift: Option<u32>,
    /// Features that it does not have.
    pub disabled_features: Vec<String>,
    /// Properties, with their values as they are kept.
    pub properties: Vec<(String, Option<PropertyValue>)>,
}

impl PoolSettings {
    /// From settings.
    ///
    /// # Errors
    /// One is none that a new pool can have.
    pub fn parse(settings: &[String], read_list: ReadList<'_>) -> Result<Self, AdminError> {
        let (mut ashift, mut properties) = (None, Vec::new());
        // The features that may be enabled, unless each is named; without a list, all that OpenZFS 2.3 knows.
        let mut may_have = None;
        let (mut enabled, mut disabled) = (Vec::new(), Vec::new());
        for setting in settings {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| ValueError::Syntax("missing value in -o PROPERTY=VALUE".into()))?;
            match (name, value) {
                ("ashift", value) => {
                    ashift = parse_ashift(value)?;
                    properties.extend(ashift.map(|of| (name.to_owned(), Some(PropertyValue::Number(of.into())))));
                }
                ("compatibility", value) => {
                    may_have = allowed(value, read_list)?;
                    properties.push((name.to_owned(), Some(PropertyValue::Text(value.to_owned()))));
                }
                // Where commands find pools is their user's affair.
                ("cachefile", _) => {}
                (feature, value) if feature.starts_with("feature@") => {
                    let feature = &feature["feature@".len()..];
                    match value {
                        _ if by_name(feature).is_none() => {
                            return Err(invalid(format!("property 'feature@{feature}' is not a valid feature")).into());
                        }
                        "enabled" => enabled.push(feature.to_owned()),
                        "disabled" => disabled.push(feature.to_owned()),
                        _ => {
                            let what =
                                format!("property 'feature@{feature}' can only be set to 'enabled' or 'disabled'");
                            return Err(invalid(what).into());
                        }
                    }
                }
                _ => properties.push(new_pool_setting(setting).map_err(|error| of_new_pool(name, error))?),
            }
        }
        let left_out = FEATURES.iter().map(|feature| feature.name).filter(|name| {
            may_have.as_ref().is_some_and(|may_have: &BTreeSet<String>| !may_have.contains(*name))
                && !enabled.iter().any(|enabled| enabled == name)
        });
        disabled.extend(left_out.map(str::to_owned));
        Ok(Self { ashift, disabled_features: disabled, properties })
    }
}

/// The error of a setting of a new pool. OpenZFS has other words for an unknown property here than for `zpool set`.
fn of_new_pool(name: &str, error: ValueError) -> ValueError {
    match error {
        ValueError::Unknown(_) => {
            ValueError::Unknown(format!("property '{name}' is not a valid pool or vdev property"))
        }
        error => error,
    }
}

/// The setting of `-O PROPERTY=VALUE` of a pool that is made, as it is kept; none where the pool is made so without it.
///
/// # Errors
/// It is none that a root file system can have.
pub fn root_setting(setting: &str) -> Result<Option<(String, PropertyValue)>, ValueError> {
    if !setting.contains('=') {
        return Err(ValueError::Syntax("missing value in -O PROPERTY=VALUE".into()));
    }
    dataset_setting(setting, When::PoolCreation, Types::FILESYSTEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_kept_as_numbers_and_text() {
        let kept = |setting| root_setting(setting).unwrap().unwrap().1;
        assert_eq!(kept("compression=zstd"), PropertyValue::Number(16));
        assert_eq!(kept("recordsize=1M"), PropertyValue::Number(1 << 20));
        assert_eq!(kept("mountpoint=/x"), PropertyValue::Text("/x".into()));
        assert_eq!(kept("org.example:note=a"), PropertyValue::Text("a".into()));
        for wrong in ["compression=best", "nothing=1", "encryption=on", "atime"] {
            assert!(root_setting(wrong).is_err(), "{wrong}");
        }
    }
}
