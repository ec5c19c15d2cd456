//! The entries of a directory's ZAP.

use cenote_format::ids::ObjectId;
use cenote_format::zap::ZapValue;
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::DirEntry;

use crate::node::Node;
use crate::{ZplError, names};

/// # Errors
/// It cannot be the name of a new entry.
pub(crate) fn check_name(name: &[u8]) -> Result<(), ZplError> {
    if name.len() > names::NAME_MAX_BYTES {
        return Err(ZplError::NameTooLong);
    }
    if names::is_valid(name) { Ok(()) } else { Err(ZplError::Invalid("such a name")) }
}

/// As [`check_name`], for an entry of this directory. Paths do not reach a hidden directory, so its names may contain slashes.
pub(crate) fn check_name_in(directory: &Node, name: &[u8]) -> Result<(), ZplError> {
    if directory.with(|record| record.flags().contains(ZnodeFlags::XATTR)) && names::is_valid_xattr(name) {
        return Ok(());
    }
    check_name(name)
}

/// Decodes the value of a directory entry.
pub(crate) fn word(directory: ObjectId, value: &ZapValue) -> Result<DirEntry, ZplError> {
    let what = "a directory entry without a value";
    let word = value.integers().next();
    let word = word.ok_or_else(|| ZplError::Corrupt { object: directory.0, what: what.into() })?;
    Ok(DirEntry::from_word(word))
}

/// An entry's value.
pub(crate) fn entry_value(id: ObjectId, mode: u32) -> Result<ZapValue, ZplError> {
    let word = DirEntry { object: id, kind: (mode >> 12 & 0xf) as u8 }.word();
    Ok(ZapValue::from_u64(word.map_err(|error| ZplError::Format { object: id.0, error })?))
}
