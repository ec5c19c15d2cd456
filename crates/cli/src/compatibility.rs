//! The property `compatibility`: which features a pool may have, as files of OpenZFS list them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cenote_spa::features::by_name;

/// Where the files are that are named without a path.
const DIRS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// A file's size at most.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// The features that a value allows: nothing for `off` (all of them), none for `legacy`, else those that every file of a list,
/// separated with commas, names.
pub(crate) fn allowed(value: &str) -> Result<Option<BTreeSet<String>>> {
    match value {
        "" | "off" => return Ok(None),
        "legacy" => return Ok(Some(BTreeSet::new())),
        _ => {}
    }
    let mut all: Option<BTreeSet<String>> = None;
    for name in value.split(',') {
        let listed = read(name).with_context(|| format!("property 'compatibility': cannot use '{name}'"))?;
        all = Some(match all {
            None => listed,
            Some(all) => all.intersection(&listed).cloned().collect(),
        });
    }
    Ok(all)
}

fn read(name: &str) -> Result<BTreeSet<String>> {
    let path = match name.starts_with('/') {
        true => PathBuf::from(name),
        false if name.is_empty() || name.contains('/') => bail!("no name of a file"),
        false => {
            let mut places = DIRS.iter().map(|dir| Path::new(dir).join(name));
            places
                .find(|path| path.exists())
                .context("there is no such file in /etc or /usr/share/zfs/compatibility.d")?
        }
    };
    if std::fs::metadata(&path)?.len() > FILE_MAX_BYTES {
        bail!("it is too large to be a list of features");
    }
    parse(&std::fs::read_to_string(&path)?)
}

/// Names between white space and commas; `#` begins a comment.
fn parse(text: &str) -> Result<BTreeSet<String>> {
    let words = text.lines().flat_map(|line| {
        let line = line.split('#').next().unwrap_or("");
        line.split(|letter: char| letter.is_whitespace() || letter == ',').filter(|word| !word.is_empty())
    });
    let mut found = BTreeSet::new();
    for word in words {
        if by_name(word).is_none() {
            bail!("'{word}' is no feature that this version knows");
        }
        found.insert(word.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_features_are_read() {
        assert_eq!(allowed("off").unwrap(), None);
        assert_eq!(allowed("legacy").unwrap(), Some(BTreeSet::new()));
        let found = parse("# what GRUB reads\nlz4_compress hole_birth # and\nembedded_data,sha512\n").unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["embedded_data", "hole_birth", "lz4_compress", "sha512"]);
        assert!(parse("lz4_compress nothing").is_err());
        for wrong in ["a/b", "no-such-file-anywhere", ","] {
            assert!(allowed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pool_may_have_what_every_file_lists() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (one, two) = (file("one", "lz4_compress skein"), file("two", "skein sha512"));
        let found = allowed(&format!("{one},{two}")).unwrap().unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["skein"]);
    }
}
