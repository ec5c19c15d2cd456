//! The property `compatibility`: which features a pool may have, as files of OpenZFS list them.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use cenote_dsl::property::Value;
use cenote_spa::features::{FEATURES, Feature, FeatureState, by_name};
use cenote_spa::{FeatureName, View};
use cenote_taskq::boxed;

use crate::error::{AdminError, CompatibilityError, ListError};

/// Reads a file of features by its name, as the caller's system has it: its text.
pub type ReadList<'a> = &'a (dyn Fn(&str) -> io::Result<String> + Send + Sync);

/// The features that a value allows: nothing for `off` (all of them), none for `legacy`, else those that every file of a list,
/// separated with commas, names.
///
/// # Errors
/// A list cannot be read, or names what is no feature.
pub(crate) fn allowed(value: &str, read: ReadList<'_>) -> Result<Option<BTreeSet<String>>, CompatibilityError> {
    match value {
        "" | "off" => return Ok(None),
        "legacy" => return Ok(Some(BTreeSet::new())),
        _ => {}
    }
    let mut all: Option<BTreeSet<String>> = None;
    for name in value.split(',') {
        let listed = read(name).map_err(ListError::from).and_then(|text| parse(&text));
        let listed = listed.map_err(|why| CompatibilityError { name: name.to_owned(), why })?;
        all = Some(match all {
            None => listed,
            Some(all) => all.intersection(&listed).cloned().collect(),
        });
    }
    Ok(all)
}

/// The reader of lists of a system. Without one there are none.
#[derive(Clone, Copy)]
pub struct Lists(pub fn(&str) -> io::Result<String>);

impl Default for Lists {
    fn default() -> Self {
        Self(|_| Err(io::Error::new(io::ErrorKind::NotFound, "nobody reads lists of features here")))
    }
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lists")
    }
}

impl Lists {
    /// Whether a value of the property can be used: each list that it names can be read, and lists features.
    pub(crate) fn check(self, value: &str) -> Result<(), AdminError> {
        Ok(allowed(value, &self.0).map(drop)?)
    }
}

/// Names between white space and commas; `#` begins a comment.
fn parse(text: &str) -> Result<BTreeSet<String>, ListError> {
    let words = text.lines().flat_map(|line| {
        let line = line.split('#').next().unwrap_or("");
        line.split(|letter: char| letter.is_whitespace() || letter == ',').filter(|word| !word.is_empty())
    });
    let mut found = BTreeSet::new();
    for word in words {
        if by_name(word).is_none() {
            return Err(ListError::Unknown(word.to_owned()));
        }
        found.insert(word.to_owned());
    }
    Ok(found)
}

/// The features that a pool lacks of those that it may have, of the ones that OpenZFS 2.3 knows.
///
/// # Errors
/// The pool cannot be read, or its list of features not be used.
#[boxed]
pub async fn lacking_features(pool: &View, read: ReadList<'_>) -> Result<Vec<&'static Feature>, AdminError> {
    let states = pool.features().await?;
    let is_enabled = |feature: &Feature| {
        let name = |name: &FeatureName| matches!(name, FeatureName::Known(known) if known.name == feature.name);
        states.iter().any(|(found, state)| name(found) && *state != FeatureState::Disabled)
    };
    let compatibility = match pool.config().str("compatibility") {
        Some(text) => Some(text.to_owned()),
        None => match pool.properties().await?.get("compatibility") {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        },
    };
    let may_have = allowed(compatibility.as_deref().unwrap_or("off"), read)?;
    let wanted = FEATURES.iter().filter(|feature| !feature.is_newer() && !is_enabled(feature));
    Ok(wanted.filter(|feature| may_have.as_ref().is_none_or(|may| may.contains(feature.name))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> io::Result<String> {
        match name {
            "one" => Ok("lz4_compress skein".into()),
            "two" => Ok("skein sha512".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    #[test]
    fn lists_of_features_are_read() {
        assert_eq!(allowed("off", &read).unwrap(), None);
        assert_eq!(allowed("legacy", &read).unwrap(), Some(BTreeSet::new()));
        let found = parse("# what GRUB reads\nlz4_compress hole_birth # and\nembedded_data,sha512\n").unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["embedded_data", "hole_birth", "lz4_compress", "sha512"]);
        assert!(parse("lz4_compress nothing").is_err());
        for wrong in ["three", "one,three", ","] {
            assert!(allowed(wrong, &read).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pool_may_have_what_every_file_lists() {
        let found = allowed("one,two", &read).unwrap().unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["skein"]);
    }
}
