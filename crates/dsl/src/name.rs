//! Names of datasets: `pool/a/b`, `pool/a/b@snapshot`, `pool/a/b#bookmark`.
//!
//! Two sets of rules. New names ([`check_new_pool`], [`check_new_dataset`], [`check_new_snapshot`]) follow OpenZFS's, word for word of
//! its reasons: parts of letters, digits and `-_.: `, a pool's name beginning with a letter, at most 255 bytes and 50 levels.
//! Look-ups ([`Name::parse`]) accept more: names that OpenZFS itself makes (`%recv`, `$ORIGIN`), and names that other software made
//! by other rules, which could not be renamed or destroyed otherwise.

use cenote_format::dsl::pool_directory;

use crate::DslError;

/// The longest full name in bytes.
pub const NAME_MAX_BYTES: usize = 255;

/// The head, snapshot or bookmark that a name refers to, beyond the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail<'a> {
    /// The head: a file system or volume.
    Head,
    /// A snapshot.
    Snapshot(&'a str),
    /// A bookmark.
    Bookmark(&'a str),
}

/// A name in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The directory: `pool/a/b`.
    pub dir: &'a str,
    /// The rest of the name.
    pub tail: Tail<'a>,
}

impl<'a> Name<'a> {
    /// Parses and checks a name.
    ///
    /// # Errors
    /// [`DslError::BadName`] with the rule that it breaks.
    pub fn parse(text: &'a str) -> Result<Self, DslError> {
        let bad = |reason| DslError::BadName { name: text.into(), reason };
        if text.is_empty() {
            return Err(bad("a name must not be empty"));
        }
        if text.len() > NAME_MAX_BYTES {
            return Err(bad("name is too long"));
        }
        let (dir, tail) = match text.find(['@', '#']) {
            None => (text, Tail::Head),
            Some(at) => {
                let (dir, rest) = (&text[..at], &text[at + 1..]);
                if rest.contains(['@', '#']) {
                    return Err(bad("multiple '@' and/or '#' delimiters in name"));
                }
                (dir, if text.as_bytes()[at] == b'@' { Tail::Snapshot(rest) } else { Tail::Bookmark(rest) })
            }
        };
        if dir.starts_with('/') {
            return Err(bad("leading slash in name"));
        }
        if dir.ends_with('/') {
            return Err(bad("trailing slash in name"));
        }
        for part in dir.split('/') {
            if part.is_empty() {
                return Err(bad("empty component or misplaced '@' or '#' delimiter in name"));
            }
            check_part(part).map_err(bad)?;
        }
        if let Tail::Snapshot(part) | Tail::Bookmark(part) = tail {
            if part.is_empty() || part.contains('/') {
                return Err(bad("empty component or misplaced '@' or '#' delimiter in name"));
            }
            check_part(part).map_err(bad)?;
        }
        Ok(Self { dir, tail })
    }

    /// The pool's name.
    #[must_use]
    pub fn pool(&self) -> &'a str {
        self.dir.split('/').next().unwrap_or(self.dir)
    }
}

/// The longest name of a pool in bytes: `NAME/$ORIGIN@$ORIGIN` has to be a name too.
const POOL_NAME_MAX_BYTES: usize = NAME_MAX_BYTES - 2 - 2 * pool_directory::ORIGIN_DIR.len();
/// Levels of a dataset's name, the pool's included (`zfs_max_dataset_nesting`).
const LEVELS_MAX: usize = 50;

/// The pool's part of a name of a dataset, snapshot or bookmark, whether or not it can be one.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// Whether a dataset has a name, or is below the dataset that has it.
#[must_use]
pub fn is_at_or_below(dataset: &str, name: &str) -> bool {
    dataset.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Checks the name of a new pool.
///
/// # Errors
/// Why not, in OpenZFS's words.
pub fn check_new_pool(name: &str) -> Result<(), String> {
    if name.len() > POOL_NAME_MAX_BYTES {
        return Err("name is too long".into());
    }
    if let Some(letter) = name.chars().find(|letter| !is_legal(*letter)) {
        let hint = if letter == '/' { "\nuse 'zfs create' to create a dataset" } else { "" };
        return Err(format!("invalid character '{letter}' in pool name{hint}"));
    }
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err("name must begin with a letter".into());
    }
    if ["mirror", "raidz", "draid", "spare"].iter().any(|kind| name.starts_with(kind)) || name == "log" {
        return Err("name is reserved".into());
    }
    Ok(())
}

/// Checks the full name of a new file system or volume.
///
/// # Errors
/// Why not, in OpenZFS's words.
pub fn check_new_dataset(name: &str) -> Result<(), String> {
    if name.contains('@') {
        return Err("snapshot delimiter '@' is not expected here".into());
    }
    if name.contains('#') {
        return Err("bookmark delimiter '#' is not expected here".into());
    }
    check_new_parts(name)?;
    if name.matches('/').count() >= LEVELS_MAX {
        return Err("maximum name nesting depth exceeded".into());
    }
    Ok(())
}

/// Checks the full name of a new snapshot, or the new name of a snapshot.
///
/// # Errors
/// Why not, in OpenZFS's words.
pub fn check_new_snapshot(name: &str) -> Result<(), String> {
    const MISPLACED: &str = "empty component or misplaced '@' or '#' delimiter in name";
    let Some((dataset, snapshot)) = name.split_once('@') else {
        return Err("missing '@' delimiter in snapshot name".into());
    };
    if name.contains('#') {
        return Err("bookmark delimiter '#' is not expected here".into());
    }
    if snapshot.contains('@') {
        return Err("multiple '@' and/or '#' delimiters in name".into());
    }
    if dataset.is_empty() || snapshot.is_empty() || snapshot.contains('/') {
        return Err(MISPLACED.into());
    }
    check_new_letters(snapshot)?;
    check_no_path(snapshot)?;
    if name.len() > NAME_MAX_BYTES {
        return Err("name is too long".into());
    }
    Ok(())
}

/// Checks the full name of a new bookmark.
///
/// # Errors
/// Why not, in OpenZFS's words.
pub fn check_new_bookmark(name: &str) -> Result<(), String> {
    match name.split_once('#') {
        None => Err("missing '#' delimiter in bookmark name".into()),
        Some((_, bookmark)) if bookmark.contains(['@', '#']) => {
            Err("multiple '@' and/or '#' delimiters in name".into())
        }
        Some((dataset, bookmark)) => check_new_snapshot(&format!("{dataset}@{bookmark}")),
    }
}

fn check_new_parts(name: &str) -> Result<(), String> {
    if name.len() > NAME_MAX_BYTES {
        return Err("name is too long".into());
    }
    if name.starts_with('/') {
        return Err("leading slash in name".into());
    }
    if name.ends_with('/') {
        return Err("trailing slash in name".into());
    }
    for part in name.split('/') {
        check_new_letters(part)?;
        if part.is_empty() {
            return Err("empty component or misplaced '@' or '#' delimiter in name".into());
        }
        check_no_path(part)?;
    }
    Ok(())
}

/// Refuses names that mean something else in a path: snapshots stand in the directory `.zfs/snapshot`.
fn check_no_path(part: &str) -> Result<(), String> {
    match part {
        "." => Err("self reference, '.' is found in name".into()),
        ".." => Err("parent reference, '..' is found in name".into()),
        _ => Ok(()),
    }
}

fn check_new_letters(part: &str) -> Result<(), String> {
    match part.chars().find(|letter| !is_legal(*letter)) {
        Some(letter) => Err(format!("invalid character '{letter}' in name")),
        None => Ok(()),
    }
}

/// `true` for characters that a new name may contain.
const fn is_legal(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | ':' | ' ')
}

fn check_part(part: &str) -> Result<(), &'static str> {
    // '%' stands in names of half-received datasets, '$' in those that the pool itself makes.
    let legal = |c: char| is_legal(c) || matches!(c, '%' | '$');
    if !part.chars().all(legal) {
        return Err("invalid character in name");
    }
    if part == "." || part == ".." {
        return Err("'.' and '..' are no names");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_at_the_delimiter() {
        let name = Name::parse("tank/a b/c@monday").unwrap();
        assert_eq!((name.dir, name.tail, name.pool()), ("tank/a b/c", Tail::Snapshot("monday"), "tank"));
        assert_eq!(Name::parse("tank#x").unwrap().tail, Tail::Bookmark("x"));
        assert_eq!(Name::parse("tank").unwrap().tail, Tail::Head);
    }

    #[test]
    fn new_names_are_those_that_openzfs_takes() {
        for good in ["tank", "A", "tank.1", "t-_:. x", "c0", "log2", "loglog"] {
            assert_eq!(check_new_pool(good), Ok(()), "{good}");
        }
        for (bad, reason) in [
            ("", "begin with a letter"),
            ("1abc", "begin with a letter"),
            ("-a", "begin with a letter"),
            ("a%", "invalid character '%' in pool name"),
            ("a/b", "use 'zfs create'"),
            ("a@b", "invalid character '@'"),
            ("\u{e4}", "invalid character '\u{e4}'"),
            ("mirror", "reserved"),
            ("mirrored", "reserved"),
            ("raidz1", "reserved"),
            ("draid", "reserved"),
            ("spares", "reserved"),
            ("log", "reserved"),
            (&"x".repeat(240), "too long"),
        ] {
            assert!(check_new_pool(bad).unwrap_err().contains(reason), "{bad}");
        }
        assert_eq!(check_new_pool(&"x".repeat(239)), Ok(()));

        for good in ["tank/a", "tank/a b/c:d", "1abc/a", "tank/...", "tank/1"] {
            assert_eq!(check_new_dataset(good), Ok(()), "{good}");
        }
        let deep = |slashes: usize| format!("t{}", "/a".repeat(slashes));
        assert_eq!(check_new_dataset(&deep(49)), Ok(()));
        for (bad, reason) in [
            ("tank/a@b", "snapshot delimiter '@' is not expected here"),
            ("tank/a#b", "bookmark delimiter '#' is not expected here"),
            ("tank/a%b", "invalid character '%' in name"),
            ("tank/d$e", "invalid character '$' in name"),
            ("tank/a/", "trailing slash"),
            ("/tank/a", "leading slash"),
            ("tank//a", "empty component"),
            ("tank/.", "self reference"),
            ("tank/../a", "parent reference"),
            ("tank/a\nb", "invalid character"),
            (&deep(50), "nesting depth"),
            (&format!("t/{}", "x".repeat(254)), "too long"),
        ] {
            assert!(check_new_dataset(bad).unwrap_err().contains(reason), "{bad}");
        }

        assert_eq!(check_new_snapshot("tank/a@b c"), Ok(()));
        assert_eq!(check_new_snapshot("tank/a@..."), Ok(()));
        for bad in ["tank/a", "tank/a@", "@a", "tank@a/b", "tank@a@b", "tank@a#b", "tank@a%", "tank@.", "tank@.."] {
            assert!(check_new_snapshot(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn illegal_names_are_refused() {
        let long = "x".repeat(256);
        for bad in
            ["", "/tank", "tank/", "tank//a", "tank@", "@a", "tank@a@b", "tank@a#b", "tank@a/b", "tank/..", "t*", &long]
        {
            assert!(Name::parse(bad).is_err(), "{bad:?}");
        }
    }
}
