//! The rules for valid names, and comparing names where a dataset folds case or normalises.

use unicode_normalization::UnicodeNormalization;

use crate::ZplError;

/// The longest name that is made, in bytes.
pub(crate) const NAME_MAX_BYTES: usize = 255;
/// The longest name that there can be, with the feature `longname`, in bytes.
pub(crate) const LONG_NAME_MAX_BYTES: usize = 1023;

/// The error for a name that is not found: one that is too long to be made says so, as programs expect.
pub(crate) const fn missing(name: &[u8]) -> ZplError {
    if name.len() > NAME_MAX_BYTES { ZplError::NameTooLong } else { ZplError::NoEntry }
}

/// Whether `name` can be an entry of a directory.
pub(crate) fn is_valid(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= LONG_NAME_MAX_BYTES
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

/// Whether `name` can be an entry of a hidden directory of extended attributes: no path leads through one, so a slash is a letter.
pub(crate) fn is_valid_xattr(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= LONG_NAME_MAX_BYTES && !name.contains(&0)
}

/// How names are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// Byte by byte (after normalisation, if any).
    Sensitive,
    /// Without regard to case.
    Insensitive,
    /// Sensitive for POSIX clients, insensitive for others.
    Mixed,
}

/// The rules for names of a file system, fixed when it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRules {
    pub(crate) case: CaseSensitivity,
    /// The Unicode normalisation, as the ZAP's flag bits; 0 for none.
    pub(crate) normalisation: u64,
    pub(crate) utf8_only: bool,
}

impl NameRules {
    /// Whether names that differ may be the same.
    pub(crate) fn fold(self) -> bool {
        self.case == CaseSensitivity::Insensitive || self.normalisation != 0
    }

    /// Whether two names are the same: byte by byte, or apart from normalisation and case.
    pub(crate) fn same(self, a: &[u8], b: &[u8]) -> bool {
        if a == b {
            return true;
        }
        let fold = self.case == CaseSensitivity::Insensitive;
        if self.normalisation == 0 {
            return fold && equal_ignoring_case(a, b);
        }
        match (std::str::from_utf8(a), std::str::from_utf8(b)) {
            // Compatibility decomposition is the coarsest of the four forms; it also equates what the form of this dataset
            // may keep apart, which a listing that compares exact names first never confuses.
            (Ok(a), Ok(b)) if fold => folded(a).nfkd().eq(folded(b).nfkd()),
            (Ok(a), Ok(b)) => a.nfkd().eq(b.nfkd()),
            _ => fold && equal_ignoring_case(a, b),
        }
    }
}

/// Whether two names are the same apart from case. Folding is that of Unicode's simple lower case, after upper case, so
/// that letters whose cases do not map one to one meet.
pub(crate) fn equal_ignoring_case(a: &[u8], b: &[u8]) -> bool {
    match (std::str::from_utf8(a), std::str::from_utf8(b)) {
        (Ok(a), Ok(b)) => folded(a).eq(folded(b)),
        _ => a.eq_ignore_ascii_case(b),
    }
}

fn folded(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_break_a_path_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 1024]] {
            assert!(!is_valid(bad), "{bad:?}");
        }
        assert!(is_valid(b"..."));
        assert!(is_valid_xattr(b"user.a/b") && !is_valid_xattr(b"") && !is_valid_xattr(b"user.\0"));
        assert!(is_valid(&[0xff, 0xfe]));
    }

    #[test]
    fn case_is_folded_beyond_ascii() {
        assert!(equal_ignoring_case("ÄpfelΣ".as_bytes(), "äPFELς".as_bytes()));
        assert!(!equal_ignoring_case(b"a", b"b"));
        assert!(equal_ignoring_case(&[0xff, b'A'], &[0xff, b'a']));
    }
}
