//! The property arguments of `zpool set` and `zpool create -o`.

use cenote_props::effect::{self, Effect};
use cenote_props::{find, is_user_property, pool};
use cenote_spa::PropertyValue;

use super::{ValueError, check_user_property, kept, setting};

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
    fn settings_of_pools_are_kept_as_openzfs_keeps_them() {
        assert_eq!(pool_setting("comment=").unwrap(), ("comment".into(), None));
        assert_eq!(pool_setting("autotrim=on").unwrap().1, Some(PropertyValue::Number(1)));
        for wrong in ["size=1", "multihost=maybe", "comment=\u{e9}", "feature@x=enabled", "version=28"] {
            assert!(pool_setting(wrong).is_err(), "{wrong}");
        }
    }
}
