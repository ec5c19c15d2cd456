//! What `zpool set` and `zpool create -o` say of a pool.

use anyhow::{Result, bail};
use cenote_props::effect::{self, Effect};
use cenote_props::{find, is_user_property, pool};
use cenote_spa::PropertyValue;

use crate::values::{kept, setting};

/// Text of a comment at most (`ZPROP_MAX_COMMENT`).
const COMMENT_MAX_BYTES: usize = 32;

/// What `zpool set PROPERTY=VALUE` says; nothing for a value that takes the property away.
pub(crate) fn pool_setting(text: &str) -> Result<(String, Option<PropertyValue>)> {
    let (name, value) = setting(text)?;
    if is_user_property(name) {
        return Ok((name.to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    let Some(property) = find(pool::PROPERTIES, name) else {
        bail!("invalid property '{name}'");
    };
    if property.is_read_only() {
        bail!("property '{}' is readonly", property.name);
    }
    if effect::of_pool(property) == Effect::NotYet {
        bail!("not supported yet: changing the property '{}'", property.name);
    }
    if property.name == "comment" {
        if value.len() > COMMENT_MAX_BYTES {
            bail!("comment must not exceed {COMMENT_MAX_BYTES} characters");
        }
        if !value.chars().all(|letter| (' '..='~').contains(&letter)) {
            bail!("comment may only have printable characters");
        }
        return Ok(("comment".to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    Ok((property.name.to_owned(), Some(kept(property, value)?)))
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
