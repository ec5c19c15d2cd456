//! Making pools: what `zpool create` and `cenote build` have in common.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use cenote_admin::create_pool;
use cenote_admin::values::When;
use cenote_props::{Types, dataset, effect, pool as pool_table};
use cenote_spa::{
    Clock, CreateOptions, DiskSpec, PropertyValue,
    features::{FEATURES, by_name},
};

use crate::compatibility;
use crate::context::Context;
use crate::made::Made;
use crate::outcome::usage;
use crate::values::{dataset_setting, note_stored, pool_setting};
use cenote_host::inuse::refuse_used;
use cenote_host::layout::Layout;
use cenote_host::{clock, host, refuse_mismatch};

/// The sectors of an image that is made from a seed, unless others are asked for.
const IMAGE_ASHIFT: u32 = 9;

/// What is asked for, as the command line has it.
pub(crate) struct Wish<'a> {
    pub(crate) name: &'a str,
    pub(crate) layout: &'a Layout,
    /// `-o`.
    pub(crate) pool: &'a [String],
    /// `-O`.
    pub(crate) dataset: &'a [String],
    /// Size of files that do not exist.
    pub(crate) size: Option<u64>,
    pub(crate) seed: Option<u64>,
    pub(crate) force: bool,
    /// For the history.
    pub(crate) command: String,
}

/// A pool whose first txg is not written yet, with an empty root file system.
pub(crate) struct NewPool {
    /// The pool, and its root directory.
    pub(crate) made: cenote_admin::NewPool,
    /// Times are to be no later than this.
    pub(crate) latest_s: Option<u64>,
}

impl NewPool {
    /// Makes it, in memory and in labels, and the files that it needs.
    pub(crate) async fn make(context: &Context, wish: &Wish<'_>) -> Result<(Self, Made)> {
        let settings = PoolSettings::parse(wish.pool)?;
        let properties = wish.dataset.iter().filter_map(|setting| dataset_property(setting).transpose());
        let properties = properties.collect::<Result<Vec<_>>>()?;
        let of_dataset = properties.iter().map(|(name, value)| (name.as_str(), value));
        note_stored(context, effect::of_dataset, dataset::PROPERTIES, of_dataset);
        let of_pool = settings.properties.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_ref()?)));
        note_stored(context, effect::of_pool, pool_table::PROPERTIES, of_pool);
        refuse_used(context.handle(), wish.layout, wish.force).await?;
        if !wish.force {
            refuse_mismatch(None, wish.layout)?;
        }
        let clock = clock()?;
        let made = Made::unfinished(context, wish.layout, wish.size)?;
        // An image that is to be the same wherever it is made does not follow the file system that it is made on.
        let of_image = settings.ashift.or(wish.seed.map(|_| IMAGE_ASHIFT));
        let (mut tops, auxiliaries) = wish.layout.open(context.handle(), &|path| made.place(path), of_image).await?;
        let is_image = tops.iter().flat_map(|top| &top.disks).all(|disk| disk.is_file);
        if wish.seed.is_some() {
            tops.iter_mut().flat_map(|top| &mut top.disks).for_each(name_by_file);
        }
        let options = CreateOptions {
            name: wish.name.to_owned(),
            tops,
            auxiliaries,
            ashift: if is_image { of_image } else { settings.ashift },
            disabled_features: settings.disabled_features,
            properties: settings.ashift.map(|ashift| ("ashift".to_owned(), u64::from(ashift))).into_iter().collect(),
            seed: wish.seed,
            clock,
            host: host(wish.seed.is_some()),
            command: wish.command.clone(),
            user: 0,
            cache_bytes: context.import_options().cache_bytes,
            check: false,
        };
        let new = create_pool(context.handle(), options, &settings.properties, &properties).await?;
        new.files.keep_no_data();
        let latest_s = if let Clock::Fixed(time) = clock { Some(time) } else { None };
        Ok((Self { made: new, latest_s }, made))
    }
}

/// Has labels name a file without its folder, so that an image made from a seed does not depend on where it is made. An import finds
/// the pool's files by their guids, and OpenZFS wants absolute paths.
fn name_by_file(disk: &mut DiskSpec) {
    if disk.is_file
        && let Some(name) = Path::new(&disk.path).file_name()
    {
        disk.path = format!("/{}", name.to_string_lossy());
    }
}

/// What `-o` has said.
struct PoolSettings {
    ashift: Option<u32>,
    disabled_features: Vec<String>,
    properties: Vec<(String, Option<PropertyValue>)>,
}

impl PoolSettings {
    fn parse(settings: &[String]) -> Result<Self> {
        let (mut ashift, mut properties) = (None, Vec::new());
        // What every feature that OpenZFS 2.3 knows would be, unless it is named.
        let mut allowed = None;
        let (mut enabled, mut disabled) = (Vec::new(), Vec::new());
        for setting in settings {
            let (name, value) = setting.split_once('=').ok_or_else(|| usage("missing value in -o PROPERTY=VALUE"))?;
            match (name, value) {
                ("ashift", value) => ashift = parse_ashift(value)?,
                ("compatibility", value) => {
                    allowed = compatibility::allowed(value)?;
                    properties.push((name.to_owned(), Some(PropertyValue::Text(value.to_owned()))));
                }
                // Where commands find pools is their user's affair.
                ("cachefile", _) => {}
                (feature, value) if feature.starts_with("feature@") => {
                    let feature = &feature["feature@".len()..];
                    match value {
                        _ if by_name(feature).is_none() => bail!("property 'feature@{feature}' is not a valid feature"),
                        "enabled" => enabled.push(feature.to_owned()),
                        "disabled" => disabled.push(feature.to_owned()),
                        _ => bail!("property 'feature@{feature}' can only be set to 'enabled' or 'disabled'"),
                    }
                }
                _ => properties.push(pool_setting(setting)?),
            }
        }
        let left_out = FEATURES.iter().map(|feature| feature.name).filter(|name| {
            allowed.as_ref().is_some_and(|allowed: &BTreeSet<String>| !allowed.contains(*name))
                && !enabled.iter().any(|enabled| enabled == name)
        });
        disabled.extend(left_out.map(str::to_owned));
        Ok(Self { ashift, disabled_features: disabled, properties })
    }
}

/// What `-o ashift=` says; nothing for what devices say.
pub(crate) fn parse_ashift(value: &str) -> Result<Option<u32>> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(ashift @ 9..=16) => Ok(Some(ashift)),
        Ok(ashift) => bail!("invalid 'ashift={ashift}' property: only values between 9 and 16 are allowed."),
        Err(_) => bail!("ashift must be a number."),
    }
}

/// The setting of `-O PROPERTY=VALUE`, as it is kept; none where the pool is made so without it.
fn dataset_property(setting: &str) -> Result<Option<(String, PropertyValue)>> {
    if !setting.contains('=') {
        return Err(usage("missing value in -O PROPERTY=VALUE"));
    }
    dataset_setting(setting, When::PoolCreation, Types::FILESYSTEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_kept_as_numbers_and_text() {
        let kept = |setting| dataset_property(setting).unwrap().unwrap().1;
        assert_eq!(kept("compression=zstd"), PropertyValue::Number(16));
        assert_eq!(kept("recordsize=1M"), PropertyValue::Number(1 << 20));
        assert_eq!(kept("mountpoint=/x"), PropertyValue::Text("/x".into()));
        assert_eq!(kept("org.example:note=a"), PropertyValue::Text("a".into()));
        for wrong in ["compression=best", "nothing=1", "encryption=on", "atime"] {
            assert!(dataset_property(wrong).is_err(), "{wrong}");
        }
    }
}
