//! Names as they are hashed: a ZAP may fold letters and compose characters before, so that names which differ in that alone meet.
//!
//! Names of snapshots and bookmarks are ASCII, where composing changes nothing; so are most names of files. Other names are not normalised
//! here: such a ZAP is looked through for them, and they are not entered.

use std::borrow::Cow;

use cenote_format::zap::NormFlags;

/// A name as a ZAP with these flags hashes it; `None` where that takes more than ASCII.
pub(super) fn normalised(name: &[u8], flags: NormFlags) -> Option<Cow<'_, [u8]>> {
    if flags.is_empty() {
        return Some(Cow::Borrowed(name));
    }
    if !name.is_ascii() {
        return None;
    }
    Some(match (flags.contains(NormFlags::TO_UPPER), flags.contains(NormFlags::TO_LOWER)) {
        (true, _) => Cow::Owned(name.to_ascii_uppercase()),
        (false, true) => Cow::Owned(name.to_ascii_lowercase()),
        (false, false) => Cow::Borrowed(name),
    })
}
