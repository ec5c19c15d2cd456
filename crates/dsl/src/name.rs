//! Names of datasets: `pool/a/b`, `pool/a/b@snapshot`, `pool/a/b#bookmark`.
//!
//! The rules are those of `zfs(8)`: parts of letters, digits and `-_.: `, the pool's name beginning with a letter, the
//! whole at most 255 bytes.

use crate::DslError;

/// The longest full name in bytes.
pub const NAME_MAX_BYTES: usize = 255;

/// What a name refers to, beyond the directory.
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
    /// What of it.
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

fn check_part(part: &str) -> Result<(), &'static str> {
    // '%' stands in names of half-received datasets, '$' in those that the pool itself makes.
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ' | '%' | '$');
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
    fn illegal_names_are_refused() {
        let long = "x".repeat(256);
        for bad in
            ["", "/tank", "tank/", "tank//a", "tank@", "@a", "tank@a@b", "tank@a#b", "tank@a/b", "tank/..", "t*", &long]
        {
            assert!(Name::parse(bad).is_err(), "{bad:?}");
        }
    }
}
