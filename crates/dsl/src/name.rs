//! Names of datasets: `pool/a/b`, `pool/a/b@snapshot`, `pool/a/b#bookmark`.
//!
//! There are two sets of rules. New names ([`check_new_pool`], [`check_new_dataset`], [`check_new_snapshot`]) follow OpenZFS's rules, with its
//! messages: parts of letters, digits and `-_.: `, a pool's name beginning with a letter, at most 255 bytes and 50 levels. Look-ups
//! ([`Name::parse`]) accept more: names that OpenZFS itself makes (`%recv`, `$ORIGIN`), and names that other software made by other rules, since
//! otherwise those could not be renamed or destroyed.

use cenote_format::dsl::pool_directory;

use crate::DslError;
pub use crate::error::NameError;

/// The longest full name in bytes.
pub const NAME_MAX_BYTES: usize = 255;

/// The part of a name after its directory: a head, snapshot or bookmark.
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
            return Err(bad(NameError::Empty));
        }
        if text.len() > NAME_MAX_BYTES {
            return Err(bad(NameError::TooLong));
        }
        let (dir, tail) = match text.find(['@', '#']) {
            None => (text, Tail::Head),
            Some(at) => {
                let (dir, rest) = (&text[..at], &text[at + 1..]);
                if rest.contains(['@', '#']) {
                    return Err(bad(NameError::ManyDelimiters));
                }
                (dir, if text.as_bytes()[at] == b'@' { Tail::Snapshot(rest) } else { Tail::Bookmark(rest) })
            }
        };
        if dir.starts_with('/') {
            return Err(bad(NameError::LeadingSlash));
        }
        if dir.ends_with('/') {
            return Err(bad(NameError::TrailingSlash));
        }
        for part in dir.split('/') {
            if part.is_empty() {
                return Err(bad(NameError::EmptyPart));
            }
            check_part(part).map_err(bad)?;
        }
        if let Tail::Snapshot(part) | Tail::Bookmark(part) = tail {
            if part.is_empty() || part.contains('/') {
                return Err(bad(NameError::EmptyPart));
            }
            check_part(part).map_err(bad)?;
        }
        Ok(Self { dir, tail })
    }
}

/// The longest name of a pool in bytes: `NAME/$ORIGIN@$ORIGIN` must be a name too.
const POOL_NAME_MAX_BYTES: usize = NAME_MAX_BYTES - 2 - 2 * pool_directory::ORIGIN_DIR.len();
/// Levels of a dataset's name, the pool's included (`zfs_max_dataset_nesting`).
const LEVELS_MAX: usize = 50;

/// The pool's part of the name of a dataset, snapshot or bookmark. The name is not checked.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// True if a dataset has this name, or is below the dataset with this name.
#[must_use]
pub fn is_at_or_below(dataset: &str, name: &str) -> bool {
    dataset.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True if a dataset is below the dataset with this name.
#[must_use]
pub fn is_below(dataset: &str, name: &str) -> bool {
    dataset != name && is_at_or_below(dataset, name)
}

/// The name of the parent dataset, and the last part of the name; `None` for a pool's root.
#[must_use]
pub fn parent_and_last(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('/')
}

/// The name of the parent dataset; `None` for a pool's root.
#[must_use]
pub fn parent_of(name: &str) -> Option<&str> {
    Some(parent_and_last(name)?.0)
}

/// Checks the name of a new pool.
///
/// # Errors
/// The rule that it breaks.
pub fn check_new_pool(name: &str) -> Result<(), NameError> {
    if name.len() > POOL_NAME_MAX_BYTES {
        return Err(NameError::TooLong);
    }
    if let Some(letter) = name.chars().find(|letter| !is_legal(*letter)) {
        return Err(NameError::BadPoolCharacter(letter));
    }
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err(NameError::NoLetter);
    }
    if ["mirror", "raidz", "draid", "spare"].iter().any(|kind| name.starts_with(kind)) || name == "log" {
        return Err(NameError::Reserved);
    }
    Ok(())
}

/// Checks the full name of a new file system or volume.
///
/// # Errors
/// The rule that it breaks.
pub fn check_new_dataset(name: &str) -> Result<(), NameError> {
    if name.contains('@') {
        return Err(NameError::SnapshotDelimiter);
    }
    if name.contains('#') {
        return Err(NameError::BookmarkDelimiter);
    }
    check_new_parts(name)?;
    check_depth(name)
}

/// Refuses names with '%' in them, which are those of half-received datasets. Verbs that name or create datasets check every name that they are
/// given.
///
/// # Errors
/// [`NameError::BadCharacter`].
pub fn check_no_received(name: &str) -> Result<(), NameError> {
    match name.contains('%') {
        true => Err(NameError::BadCharacter('%')),
        false => Ok(()),
    }
}

/// Refuses the name of a dataset with more than 50 levels, the pool's included.
///
/// # Errors
/// [`NameError::TooDeep`].
pub fn check_depth(name: &str) -> Result<(), NameError> {
    match name.matches('/').count() >= LEVELS_MAX {
        true => Err(NameError::TooDeep),
        false => Ok(()),
    }
}

/// Checks the full name of a new snapshot, or the new name of a snapshot.
///
/// # Errors
/// The rule that it breaks.
pub fn check_new_snapshot(name: &str) -> Result<(), NameError> {
    let Some((dataset, snapshot)) = name.split_once('@') else {
        return Err(NameError::NoSnapshotDelimiter);
    };
    if name.contains('#') {
        return Err(NameError::BookmarkDelimiter);
    }
    if snapshot.contains('@') {
        return Err(NameError::ManyDelimiters);
    }
    if dataset.is_empty() || snapshot.is_empty() || snapshot.contains('/') {
        return Err(NameError::EmptyPart);
    }
    check_no_received(dataset)?;
    check_new_letters(snapshot)?;
    check_no_path(snapshot)?;
    if name.len() > NAME_MAX_BYTES {
        return Err(NameError::TooLong);
    }
    Ok(())
}

/// Checks the full name of a new bookmark.
///
/// # Errors
/// The rule that it breaks.
pub fn check_new_bookmark(name: &str) -> Result<(), NameError> {
    match name.split_once('#') {
        None => Err(NameError::NoBookmarkDelimiter),
        Some((_, bookmark)) if bookmark.contains(['@', '#']) => Err(NameError::ManyDelimiters),
        Some((dataset, bookmark)) => check_new_snapshot(&format!("{dataset}@{bookmark}")),
    }
}

fn check_new_parts(name: &str) -> Result<(), NameError> {
    if name.len() > NAME_MAX_BYTES {
        return Err(NameError::TooLong);
    }
    if name.starts_with('/') {
        return Err(NameError::LeadingSlash);
    }
    if name.ends_with('/') {
        return Err(NameError::TrailingSlash);
    }
    for part in name.split('/') {
        check_new_letters(part)?;
        if part.is_empty() {
            return Err(NameError::EmptyPart);
        }
        check_no_path(part)?;
    }
    Ok(())
}

/// Refuses parts that mean something else in a path, since snapshots appear in the directory `.zfs/snapshot`.
fn check_no_path(part: &str) -> Result<(), NameError> {
    match part {
        "." => Err(NameError::SelfReference),
        ".." => Err(NameError::ParentReference),
        _ => Ok(()),
    }
}

fn check_new_letters(part: &str) -> Result<(), NameError> {
    match part.chars().find(|letter| !is_legal(*letter)) {
        Some(letter) => Err(NameError::BadCharacter(letter)),
        None => Ok(()),
    }
}

/// `true` for characters that a new name may contain.
const fn is_legal(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | ':' | ' ')
}

fn check_part(part: &str) -> Result<(), NameError> {
    // Names of half-received datasets contain '%', and those that the pool itself makes contain '$'.
    let legal = |c: char| is_legal(c) || matches!(c, '%' | '$');
    if !part.chars().all(legal) {
        return Err(NameError::IllegalCharacter);
    }
    if part == "." || part == ".." {
        return Err(NameError::PathReference);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_at_the_delimiter() {
        let name = Name::parse("tank/a b/c@monday").unwrap();
        assert_eq!((name.dir, name.tail), ("tank/a b/c", Tail::Snapshot("monday")));
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
            assert!(check_new_pool(bad).unwrap_err().to_string().contains(reason), "{bad}");
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
            assert!(check_new_dataset(bad).unwrap_err().to_string().contains(reason), "{bad}");
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
