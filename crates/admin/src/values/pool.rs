//! The property arguments of `zpool set` and `zpool create -o`.

use cenote_props::effect::{self, Effect};
use cenote_props::{find, is_user_property, pool};
use cenote_spa::PropertyValue;

use super::{ValueError, check_user_property, invalid, kept, setting};

type Result<T> = std::result::Result<T, ValueError>;

/// Text of a comment at most (`ZPROP_MAX_COMMENT`).
const COMMENT_MAX_BYTES: usize = 32;

/// The property and value of `zpool set PROPERTY=VALUE`; no value where it takes the property away.
///
/// # Errors
/// The property may not be set, or cannot have this value.
pub(crate) fn pool_setting(text: &str) -> Result<(String, Option<PropertyValue>)> {
    let (name, value) = setting(text)?;
    if is_user_property(name) {
        check_user_property(name, value)?;
        return Ok((name.to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    let Some(property) = find(pool::PROPERTIES, name) else {
        return Err(ValueError::Unknown(format!("invalid property '{name}'")));
    };
    if property.is_read_only() {
        return Err(ValueError::ReadOnly(format!("property '{}' is readonly", property.name)));
    }
    if effect::of_pool(property) == Effect::NotYet {
        return Err(ValueError::NotYet(format!("not supported yet: changing the property '{}'", property.name)));
    }
    if property.name == "cachefile" {
        let what = "not supported yet: the property 'cachefile' by other ways than 'zpool create', 'import' and 'set'";
        return Err(ValueError::NotYet(what.into()));
    }
    // Whether its lists can be read is known where they are (`Lists`).
    if property.name == "compatibility" {
        return Ok(("compatibility".to_owned(), Some(PropertyValue::Text(value.to_owned()))));
    }
    if property.name == "ashift" {
        let ashift = parse_ashift(value)?.unwrap_or(0);
        return Ok(("ashift".to_owned(), Some(PropertyValue::Number(ashift.into()))));
    }
    // The dataset's number, which is kept, is known where the pool is.
    if property.name == "bootfs" {
        return Ok(("bootfs".to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    if property.name == "comment" {
        if value.len() > COMMENT_MAX_BYTES {
            return Err(ValueError::Invalid(format!("comment must not exceed {COMMENT_MAX_BYTES} characters")));
        }
        if !value.chars().all(|letter| (' '..='~').contains(&letter)) {
            return Err(ValueError::Invalid("comment may only have printable characters".into()));
        }
        return Ok(("comment".to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    Ok((property.name.to_owned(), Some(kept(property, value)?)))
}

/// The value of `-o ashift=`; `None`: as the devices ask for.
pub fn parse_ashift(value: &str) -> Result<Option<u32>> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(ashift @ 9..=16) => Ok(Some(ashift)),
        Ok(ashift) => {
            Err(invalid(format!("invalid 'ashift={ashift}' property: only values between 9 and 16 are allowed.")))
        }
        Err(_) => Err(invalid("ashift must be a number.")),
    }
}

/// The property and value of `zpool set PROPERTY=VALUE POOL VDEV`; no value where it takes the property away.
///
/// # Errors
/// The property may not be set, or cannot have this value.
pub(crate) fn vdev_setting(text: &str) -> Result<(String, Option<PropertyValue>)> {
    /// Numbers that change the rules of faults.
    const NUMBERS: [&str; 6] = ["checksum_n", "checksum_t", "io_n", "io_t", "slow_io_n", "slow_io_t"];
    let (name, value) = setting(text)?;
    let texts = || (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()));
    if is_user_property(name) {
        check_user_property(name, value)?;
        return Ok((name.to_owned(), texts()));
    }
    let word = |words: &[(&str, Option<u64>)]| {
        let found = words.iter().find(|(word, _)| *word == value).map(|(_, number)| number.map(PropertyValue::Number));
        found.ok_or_else(|| {
            ValueError::Invalid(format!(
                "'{name}' must be one of '{}'",
                words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" | ")
            ))
        })
    };
    let value = match name {
        "comment" => texts(),
        "slow_io_events" | "allocating" | "autosit" | "sit_out" => word(&[("on", Some(1)), ("off", Some(0))])?,
        "scheduler" => word(&[("auto", Some(0)), ("on", Some(1)), ("off", Some(2))])?,
        "alloc_bias" => match value {
            "none" => None,
            "log" | "special" | "dedup" => texts(),
            _ => return Err(ValueError::Invalid("'alloc_bias' must be one of 'none | log | special | dedup'".into())),
        },
        // That it begins with '/dev/' is for the pool to say, which knows whether the vdev has one.
        "path" if value.is_empty() || value.contains('\0') => {
            return Err(ValueError::Invalid("'path' must be the path of a device".into()));
        }
        "path" => texts(),
        "failfast" => word(&[("on", Some(1)), ("off", Some(0)), ("inherit", None)])?,
        name if NUMBERS.contains(&name) => match value {
            // As before it was set.
            "-" | "none" => None,
            value => match value.parse() {
                Ok(number) => Some(PropertyValue::Number(number)),
                Err(_) => return Err(ValueError::Invalid(format!("bad numeric value '{value}'"))),
            },
        },
        name => {
            return Err(ValueError::Unknown(format!("invalid property '{name}', or one that cannot be set")));
        }
    };
    Ok((name.to_owned(), value))
}

/// As [`pool_setting`], of a pool that is made.
///
/// # Errors
/// As there; or the property is one of pools that exist.
pub fn new_pool_setting(text: &str) -> Result<(String, Option<PropertyValue>)> {
    check_first(setting(text)?.0)?;
    pool_setting(text)
}

/// Refuses a property of pools that is neither set when one is made nor when it is imported.
pub fn check_first(name: &str) -> Result<()> {
    match find(pool::PROPERTIES, name) {
        Some(property) if property.name == "bootfs" => {
            Err(ValueError::Invalid("property 'bootfs' cannot be set at creation or import time".into()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_vdevs_are_kept_as_openzfs_keeps_them() {
        let kept = |text| vdev_setting(text).map(|(_, value)| value).map_err(|error| error.to_string());
        let number = |number| Ok(Some(PropertyValue::Number(number)));
        assert_eq!(kept("checksum_n=3"), number(3));
        assert_eq!((kept("io_t=none"), kept("comment=")), (Ok(None), Ok(None)));
        assert_eq!(kept("failfast=inherit"), Ok(None));
        assert_eq!((kept("scheduler=off"), kept("sit_out=on")), (number(2), number(1)));
        assert_eq!((kept("allocating=off"), kept("alloc_bias=none")), (number(0), Ok(None)));
        assert_eq!(kept("my:own=x"), Ok(Some(PropertyValue::Text("x".into()))));
        for (wrong, why) in [
            ("io_n=x", "bad numeric"),
            ("slow_io_events=yes", "must be one of"),
            ("allocating=maybe", "must be one of 'on | off'"),
            ("alloc_bias=normal", "must be one of 'none | log"),
            ("path=", "path of a device"),
            ("scheduler=never", "must be one of"),
            ("guid=3", "cannot be set"),
        ] {
            assert!(kept(wrong).unwrap_err().contains(why), "{wrong}: {:?}", kept(wrong));
        }
    }

    #[test]
    fn settings_of_pools_are_kept_as_openzfs_keeps_them() {
        assert_eq!(pool_setting("comment=").unwrap(), ("comment".into(), None));
        assert_eq!(pool_setting("autotrim=on").unwrap().1, Some(PropertyValue::Number(1)));
        for wrong in ["size=1", "multihost=maybe", "comment=\u{e9}", "feature@x=enabled", "version=28"] {
            assert!(pool_setting(wrong).is_err(), "{wrong}");
        }
    }
}
