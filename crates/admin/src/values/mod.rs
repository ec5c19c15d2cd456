//! Values that people set properties to: parsed and checked as OpenZFS does, with its words, in one place for `zfs set`,
//! `zfs create -o` and `zpool create -O`.

mod creation;
mod pool;
mod size;

use std::collections::BTreeSet;

use cenote_props::effect::{self, Effect};
use cenote_props::{Kind, Property, dataset, find, is_user_property};
use cenote_spa::PropertyValue;
use thiserror::Error;

use crate::AUTO;

pub use cenote_dsl::name::{check_new_dataset, check_new_pool, check_new_snapshot, pool_of};
pub use cenote_props::{Types, WrongUse};
pub use creation::{PoolSettings, root_setting, stored_only};
pub use pool::{check_first, new_pool_setting, parse_ashift};
pub(crate) use pool::{pool_setting, vdev_setting};
pub use size::parse_size;

type Result<T> = std::result::Result<T, ValueError>;

/// Text of a value at most, in bytes, with the zero that ends it (`ZFS_MAXPROPLEN`).
const VALUE_MAX_BYTES: usize = 8192;
/// The name of a user property at most, in bytes, with the zero that ends it (`ZAP_MAXNAMELEN`).
const NAME_MAX_BYTES: usize = 256;
/// A part of a mount point at most, in bytes, with the zero that ends it (`ZFS_MAX_DATASET_NAME_LEN`).
const PART_MAX_BYTES: usize = 256;
/// Blocks of files at most, in bytes (`SPA_MAXBLOCKSIZE`); what a pool has no feature for is refused when it is known.
const BLOCK_MAX_BYTES: u64 = 16 << 20;

/// Limits of numbers: none is more than any.
const LIMITS: [&str; 2] = ["filesystem_limit", "snapshot_limit"];

/// Why a setting is refused, in OpenZFS's words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// It is not of the form `PROPERTY=VALUE`.
    #[error("{0}")]
    Syntax(String),
    /// There is no such property.
    #[error("{0}")]
    Unknown(String),
    /// The property cannot be set, or not then.
    #[error("{0}")]
    ReadOnly(String),
    /// Cenote cannot set it yet.
    #[error("{0}")]
    NotYet(String),
    /// The property cannot have the value, or such a dataset the property.
    #[error("{0}")]
    Invalid(String),
}

/// A value that a property cannot have.
pub(crate) fn invalid(what: impl Into<String>) -> ValueError {
    ValueError::Invalid(what.into())
}

/// When a property is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// With the root dataset of a pool that is made.
    PoolCreation,
    /// With a dataset that is made.
    Creation,
    /// With a dataset that is made as a clone.
    Cloning,
    /// Of a dataset that exists.
    Later,
}

/// A setting's name and value.
///
/// # Errors
/// It has no `=`.
pub(crate) fn setting(text: &str) -> Result<(&str, &str)> {
    text.split_once('=').ok_or_else(|| ValueError::Syntax("missing '=' for property=value argument".into()))
}

/// A value as it is kept.
///
/// # Errors
/// It is none that the property can have, in OpenZFS's words.
pub(crate) fn kept(property: &Property, value: &str) -> Result<PropertyValue> {
    let name = property.name;
    let kept = match property.kind {
        Kind::Number(_) if value == "none" && LIMITS.contains(&name) => u64::MAX,
        Kind::Number(_) if value == "none" => 0,
        Kind::Number(_) if value == "auto" && name == "refreservation" => AUTO,
        Kind::Number(_) if value == "auto" => {
            return Err(ValueError::Invalid(format!("'auto' is invalid value for '{name}'")));
        }
        Kind::Number(_) => match parse_size(value)? {
            0 if ["quota", "refquota"].contains(&name) => {
                return Err(ValueError::Invalid("use 'none' to disable quota/refquota".into()));
            }
            number => number,
        },
        Kind::Index(words, _) => property.number(value).ok_or_else(|| {
            let words: Vec<&str> = match words {
                [("off", _), ("on", _)] => vec!["on", "off"],
                words => words.iter().map(|(word, _)| *word).collect(),
            };
            invalid(one_of(name, value, &words))
        })?,
        Kind::Text(_) if value.len() >= VALUE_MAX_BYTES => {
            return Err(ValueError::Invalid(format!("'{name}' is too long")));
        }
        Kind::Text(_) => {
            check_text(name, value)?;
            return Ok(PropertyValue::Text(value.to_owned()));
        }
    };
    if name == "recordsize" && (!kept.is_power_of_two() || !(512..=BLOCK_MAX_BYTES).contains(&kept)) {
        return Err(ValueError::Invalid(format!("'{name}' must be power of 2 from 512B to 16M")));
    }
    let is_size = kept.is_power_of_two() && (512..=BLOCK_MAX_BYTES).contains(&kept);
    if name == "special_small_blocks" && kept != 0 && !is_size {
        let what = format!("invalid '{name}={kept}' property: must be zero or a power of 2 from 512B to 16M");
        return Err(ValueError::Invalid(what));
    }
    Ok(PropertyValue::Number(kept))
}

/// The refusal of a word that a property does not know: with those that begin with it, and all in lines of a terminal's width.
fn one_of(name: &str, value: &str, words: &[&str]) -> String {
    const LINE_BYTES_MAX: usize = 90;
    const LIKE_MAX: usize = 3;
    let mut text = format!("'{name}' must be one of '");
    let mut line_bytes = text.len();
    for (at, word) in words.iter().enumerate() {
        let word = if at == 0 { (*word).to_owned() } else { format!(" | {word}") };
        if line_bytes + word.len() > LINE_BYTES_MAX {
            text.push_str("\n   ");
            line_bytes = 3;
        }
        line_bytes += word.len();
        text.push_str(&word);
    }
    text.push('\'');
    let like: Vec<&str> = words.iter().copied().filter(|word| !value.is_empty() && word.starts_with(value)).collect();
    if let Some(like) = like.get(..like.len().min(LIKE_MAX)).filter(|like| !like.is_empty()) {
        text.push_str(&format!("\n(like '{value}': {})", like.join(", ")));
    }
    text
}

/// Quotas of users, groups and projects: properties that are named by whom they are for.
const OF_ACCOUNTS: [&str; 6] =
    ["userquota@", "groupquota@", "projectquota@", "userobjquota@", "groupobjquota@", "projectobjquota@"];

fn check_text(name: &str, value: &str) -> Result<()> {
    if name != "mountpoint" || ["none", "legacy"].contains(&value) {
        return Ok(());
    }
    if !value.starts_with('/') {
        return Err(ValueError::Invalid(format!("'{name}' must be an absolute path, 'none', or 'legacy'")));
    }
    if value.split('/').any(|part| part.len() >= PART_MAX_BYTES) {
        return Err(ValueError::Invalid(format!("component of '{name}' is too long")));
    }
    Ok(())
}

/// Refuses a user property whose name or value no pool keeps: of a pool as of a dataset or a snapshot.
fn check_user_property(name: &str, value: &str) -> Result<()> {
    if name.len() >= NAME_MAX_BYTES {
        return Err(ValueError::Invalid(format!("property name '{name}' is too long")));
    }
    if value.len() >= VALUE_MAX_BYTES {
        return Err(ValueError::Invalid("property value too long".into()));
    }
    Ok(())
}

/// The name of a property of datasets of these types that may be set then.
///
/// # Errors
/// It may not, or not yet.
pub fn dataset_property(name: &str, when: When, types: Types) -> Result<String> {
    if is_user_property(name) {
        check_user_property(name, "")?;
        return Ok(name.to_owned());
    }
    let Some(property) = find(dataset::PROPERTIES, name) else {
        if OF_ACCOUNTS.iter().any(|prefix| name.starts_with(prefix)) {
            let what =
                "quotas of users, groups and projects; 'quota' and 'refquota' of a dataset for each of them limit it";
            return Err(ValueError::NotYet(format!("not supported yet: '{name}': {what}")));
        }
        return Err(ValueError::Unknown(format!("invalid property '{name}'")));
    };
    let name = property.name;
    if !property.types.intersects(types) {
        return Err(ValueError::Invalid(format!("'{name}' does not apply to datasets of this type")));
    }
    if property.is_read_only() {
        match when {
            When::Creation | When::Cloning | When::PoolCreation if is_once(property) => {
                return Err(ValueError::NotYet(format!(
                    "not supported yet: making datasets with the property '{name}'"
                )));
            }
            _ => return Err(ValueError::ReadOnly(format!("'{name}' is readonly"))),
        }
    }
    if name == "volsize" && matches!(when, When::Creation | When::PoolCreation) {
        return Err(ValueError::Invalid(format!("property '{name}' specified multiple times")));
    }
    if effect::of_dataset(property) == Effect::NotYet {
        return Err(ValueError::NotYet(format!("not supported yet: changing the property '{name}'")));
    }
    Ok(name.to_owned())
}

/// A property that is chosen when its dataset is made.
fn is_once(property: &Property) -> bool {
    use cenote_props::Attribute::{Once, OnceDefault};
    matches!(property.attribute, Once | OnceDefault)
}

/// The name of a property of datasets by its name or its column: `compress` is `compression`. Others are as they are.
#[must_use]
pub(crate) fn full_name(name: &str) -> &str {
    find(dataset::PROPERTIES, name).map_or(name, |property| property.name)
}

/// Refuses a property that is set twice in one command, be it by two of its names.
pub fn check_once<'a>(settings: impl IntoIterator<Item = &'a String>) -> Result<()> {
    let mut names = BTreeSet::new();
    for setting in settings {
        let name = full_name(setting.split('=').next().unwrap_or_default());
        if !names.insert(name) {
            return Err(ValueError::Invalid(format!("property '{name}' specified multiple times")));
        }
    }
    Ok(())
}

/// The setting of `PROPERTY=VALUE` for a dataset of these types; none where the dataset is made so without it.
///
/// # Errors
/// The property may not be set then, or cannot have this value.
pub fn dataset_setting(text: &str, when: When, types: Types) -> Result<Option<(String, PropertyValue)>> {
    let (name, value) = setting(text)?;
    let name = full_name(name);
    // A property that is chosen at creation may be given the one value that Cenote makes datasets with.
    if when != When::Later
        && let Some(property) = find(dataset::PROPERTIES, name).filter(|property| is_once(property))
    {
        let usual = match property.name {
            "encryption" => Some("off"),
            "casesensitivity" | "keyformat" | "normalization" | "utf8only" => {
                property.default_number().and_then(|number| property.word(number))
            }
            _ => None,
        };
        if usual == Some(value) && property.types.intersects(types) {
            return Ok(None);
        }
    }
    let name = dataset_property(name, when, types)?;
    let value = match find(dataset::PROPERTIES, &name) {
        Some(property) => kept(property, value)?,
        None => {
            check_user_property(&name, value)?;
            PropertyValue::Text(value.to_owned())
        }
    };
    let is_auto = name == "refreservation" && matches!(value, PropertyValue::Number(AUTO));
    if is_auto && !types.contains(Types::VOLUME) {
        return Err(ValueError::Invalid(format!("'{name}=auto' only allowed on volumes")));
    }
    Ok(Some((name, value)))
}

/// All settings of a command for datasets of these types.
///
/// # Errors
/// As [`dataset_setting`], of the first that is wrong.
pub fn dataset_settings<'a>(
    texts: impl IntoIterator<Item = &'a String>,
    when: When,
    types: Types,
) -> Result<Vec<(String, PropertyValue)>> {
    texts.into_iter().filter_map(|text| dataset_setting(text, when, types).transpose()).collect()
}

/// Of these settings of datasets those that are kept and nothing more, a line for each.
#[must_use]
pub(crate) fn stored_of_datasets(settings: &[(String, PropertyValue)]) -> Vec<String> {
    let set = settings.iter().map(|(name, value)| (name.as_str(), value));
    stored_only(effect::of_dataset, dataset::PROPERTIES, set)
}

/// True for the name of a property that pools have.
#[must_use]
pub fn is_pool_property(name: &str) -> bool {
    cenote_props::pool::find(name).is_some()
}

/// The line that says that this setting of a pool is kept and nothing more, if it is.
#[must_use]
pub(crate) fn stored_of_pool(name: &str, value: Option<&PropertyValue>) -> Vec<String> {
    stored_only(effect::of_pool, cenote_props::pool::PROPERTIES, value.map(|value| (name, value)))
}

/// The name of a property that datasets inherit, when they are to do so, or (`received`) to go back to what they have received.
///
/// # Errors
/// There is none, or it is not inherited.
pub(crate) fn inherited_property(name: &str, received: bool) -> Result<String> {
    let property = match dataset_property(name, When::Later, Types::DATASET) {
        Err(ValueError::Unknown(text)) => return Err(ValueError::Syntax(text)),
        Err(ValueError::ReadOnly(_)) => return Err(ValueError::ReadOnly(format!("{name} property is read-only"))),
        Err(error) => return Err(ValueError::Invalid(format!("cannot inherit '{name}': {error}"))),
        Ok(property) => property,
    };
    if received && ["volsize", "version"].contains(&property.as_str()) {
        return Err(ValueError::Invalid(format!("'{property}' property cannot be reverted to a received value")));
    }
    if !received && find(dataset::PROPERTIES, &property).is_some_and(|property| !property.is_inheritable()) {
        let hint = match property.as_str() {
            "quota" | "refreservation" => format!(
                "\nuse 'zfs set {property}=none' to clear\nuse 'zfs inherit -S {property}' to revert to received value"
            ),
            _ => String::new(),
        };
        return Err(ValueError::Invalid(format!("'{property}' property cannot be inherited{hint}")));
    }
    Ok(property)
}

/// The setting of `PROPERTY=VALUE` for a snapshot: a user property, the only kind that one can have of its own.
///
/// # Errors
/// It is none, or is too long.
pub(crate) fn snapshot_setting(text: &str) -> Result<(String, String)> {
    let (name, value) = setting(text)?;
    if !is_user_property(name) {
        return Err(ValueError::Invalid("this property can not be modified for snapshots".into()));
    }
    match dataset_setting(text, When::Creation, Types::DATASET)? {
        Some((name, PropertyValue::Text(value))) => Ok((name, value)),
        _ => Err(ValueError::Invalid(format!("property '{name}' cannot be '{value}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILESYSTEM: Types = Types::FILESYSTEM;

    fn set(text: &str) -> Result<(String, PropertyValue)> {
        dataset_setting(text, When::Later, FILESYSTEM).map(Option::unwrap)
    }

    #[test]
    fn settings_are_kept_as_openzfs_keeps_them() {
        assert_eq!(set("compression=lz4").unwrap().1, PropertyValue::Number(15));
        assert_eq!(set("quota=none").unwrap().1, PropertyValue::Number(0));
        assert_eq!(set("recordsize=1M").unwrap().1, PropertyValue::Number(1 << 20));
        assert_eq!(set("special_small_blocks=16M").unwrap().1, PropertyValue::Number(16 << 20));
        // Columns are names too.
        assert_eq!(set("recsize=1M").unwrap(), ("recordsize".into(), PropertyValue::Number(1 << 20)));
        assert!(check_once(&["compress=off".to_owned(), "compression=on".to_owned()]).is_err());
        assert_eq!(set("mountpoint=/x").unwrap().1, PropertyValue::Text("/x".into()));
        assert_eq!(set("a:b=c").unwrap(), ("a:b".into(), PropertyValue::Text("c".into())));
    }

    #[test]
    fn bad_values_are_refused_in_openzfs_words() {
        for (setting, words) in [
            ("used=1", "'used' is readonly"),
            ("utf8only=on", "'utf8only' is readonly"),
            ("encryption=on", "'encryption' is readonly"),
            ("nothing=1", "invalid property 'nothing'"),
            ("userquota@root=1G", "not supported yet: 'userquota@root'"),
            ("projectobjquota@7=1", "not supported yet: 'projectobjquota@7'"),
            ("compression=zst", "(like 'zst': zstd, zstd-fast, zstd-1)"),
            ("dedup=on", "not supported yet"),
            ("compression", "missing '='"),
            ("compression=best", "'compression' must be one of 'on | off | lzjb | "),
            ("atime=perhaps", "'atime' must be one of 'on | off'"),
            ("copies=4", "'copies' must be one of '1 | 2 | 3'"),
            ("recordsize=x", "bad numeric value 'x'"),
            ("recordsize=1000", "'recordsize' must be power of 2 from 512B to 16M"),
            ("recordsize=0", "'recordsize' must be power of 2 from 512B to 16M"),
            ("recordsize=32M", "'recordsize' must be power of 2 from 512B to 16M"),
            ("recordsize=auto", "'auto' is invalid value for 'recordsize'"),
            ("refreservation=auto", "'refreservation=auto' only allowed on volumes"),
            ("quota=0", "use 'none' to disable quota/refquota"),
            ("quota=8Gi", "invalid numeric suffix 'Gi'"),
            ("quota=1GG", "invalid numeric suffix 'GG'"),
            ("quota=16E", "numeric value is too large"),
            ("quota=1z", "numeric value is too large"),
            ("quota=18446744073709551616", "numeric value is too large"),
            ("special_small_blocks=300", "invalid 'special_small_blocks=300' property: must be zero or a power of 2"),
            ("special_small_blocks=32M", "must be zero or a power of 2 from 512B to 16M"),
            ("mountpoint=relative", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
            ("mountpoint=", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
            ("volsize=1M", "'volsize' does not apply to datasets of this type"),
        ] {
            let error = set(setting).unwrap_err().to_string();
            assert!(error.contains(words), "{setting}: {error}");
        }
        let long = "x".repeat(256);
        assert!(set(&format!("mountpoint=/{long}")).unwrap_err().to_string().contains("component of 'mountpoint'"));
        assert!(set(&format!("a:{long}=1")).unwrap_err().to_string().contains("is too long"));
        assert!(set(&format!("a:b={}", "x".repeat(8192))).unwrap_err().to_string().contains("property value too long"));
    }

    #[test]
    fn what_is_not_inherited_is_refused_with_what_clears_it() {
        assert_eq!(inherited_property("compression", false).unwrap(), "compression");
        let words = |name| inherited_property(name, false).unwrap_err().to_string();
        assert!(words("quota").contains("use 'zfs set quota=none' to clear\n"));
        assert!(words("quota").ends_with("use 'zfs inherit -S quota' to revert to received value"));
        assert_eq!(words("nothing"), "invalid property 'nothing'");
        assert_eq!(words("used"), "used property is read-only");
        assert_eq!(inherited_property("quota", true).unwrap(), "quota");
        let words = inherited_property("volsize", true).unwrap_err().to_string();
        assert_eq!(words, "'volsize' property cannot be reverted to a received value");
    }

    #[test]
    fn a_snapshot_has_user_properties_of_legal_names_and_sizes_alone() {
        let set = |text: String| snapshot_setting(&text).map_err(|error| error.to_string());
        let (name, value) = (format!("a:{}", "n".repeat(253)), "v".repeat(8191));
        assert_eq!(set(format!("{name}={value}")), Ok((name.clone(), value.clone())));
        assert_eq!(set(format!("a:b={value}v")).unwrap_err(), "property value too long");
        assert_eq!(set(format!("{name}n=1")).unwrap_err(), format!("property name '{name}n' is too long"));
        for other in ["A:b=1", "a:b c=1", "a:b+=1", "compression=off", "nothing=1", "=1"] {
            assert_eq!(
                set(other.to_owned()).unwrap_err(),
                "this property can not be modified for snapshots",
                "{other}"
            );
        }
    }

    #[test]
    fn what_is_chosen_at_creation_may_be_what_there_is_and_is_not_called_read_only_otherwise() {
        let create = |text| dataset_setting(text, When::Creation, FILESYSTEM);
        for usual in ["encryption=off", "utf8only=off", "normalization=none", "casesensitivity=sensitive"] {
            assert_eq!(create(usual).unwrap(), None, "{usual}");
        }
        for other in ["encryption=on", "utf8only=on", "normalization=formD", "casesensitivity=mixed"] {
            let error = create(other).unwrap_err().to_string();
            assert!(error.contains("not supported yet"), "{other}: {error}");
        }
        for wrong in ["encryption=on", "dedup=on", "used=1"] {
            assert!(dataset_setting(wrong, When::PoolCreation, FILESYSTEM).is_err(), "{wrong}");
        }
    }
}
