//! Extended attributes, in both places that a file can keep them in.
//!
//! With `xattr=sa` they are one packed nvlist of byte arrays in the attribute `ZPL_DXATTR`; with `xattr=dir` each is a
//! file in a hidden directory. A file may have both; the nvlist wins for a name in both, as in OpenZFS.
//!
//! Names carry their Linux namespace (`user.`, `trusted.`, `security.`, `system.`). Those written by systems without
//! namespaces have none, and belong to `user.`.
//!
//! A name that is set is in one of the two from then on.

mod hidden;
mod read;
mod set;

use cenote_dmu::sa::SaRecord;
use cenote_format::ids::ObjectId;
use cenote_format::nvlist::{NvList, NvString, NvValue};
use cenote_format::sa::ZplAttribute;

pub(crate) use hidden::hidden_birth;
pub(crate) use read::{directory_of, there};
pub use set::XattrSet;
pub(crate) use set::xattr_record;

use crate::ZplError;

/// The largest value that is read into memory, in bytes. Linux clients cannot set more than 64 KiB.
pub const XATTR_VALUE_MAX_BYTES: usize = 1 << 20;
/// Names and values of one file together at most, in bytes: memory that one file can make a reader take. Writers keep to it too, so
/// that nothing is written that could not be read.
pub const XATTRS_MAX_BYTES: usize = 16 << 20;
/// Names of one file at most; Linux lists 64 KiB of them.
pub const XATTR_NAMES_MAX: usize = 8 << 10;
/// All of them together in an attribute, packed, at most: the length of an attribute has 16 bits.
pub(crate) const PACKED_MAX_BYTES: usize = (64 << 10) - 4;
/// A value in an attribute at most (`DXATTR_MAX_ENTRY_SIZE`).
pub(crate) const VALUE_MAX_BYTES: usize = 32 << 10;
/// The mode of a hidden directory, and that of a value in it.
pub(crate) const HIDDEN_DIR_MODE: u32 = 0o041_777;
pub(crate) const HIDDEN_FILE_MODE: u32 = 0o100_644;

pub(crate) const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// A stored name as Linux shows it.
pub(crate) fn linux_name(stored: &[u8]) -> Vec<u8> {
    if NAMESPACES.iter().any(|namespace| stored.starts_with(namespace)) {
        stored.to_vec()
    } else {
        [b"user.", stored].concat()
    }
}

/// Names, as stored, with values.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Attributes packed into one.
pub(crate) fn pack(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut list = NvList::new();
    for (name, value) in pairs {
        list.push(NvString::new(name), NvValue::ByteArray(value.clone()));
    }
    let packed = list.emit_xdr();
    debug_assert!(
        NvList::parse(&packed).is_ok_and(|list| list.iter().count() == pairs.len()),
        "what is packed can be unpacked"
    );
    packed
}

pub(crate) fn unpack(object: ObjectId, record: &SaRecord) -> Result<Pairs, ZplError> {
    let packed = record.bytes(ZplAttribute::Dxattr).filter(|packed| !packed.is_empty());
    let Some(packed) = packed else { return Ok(Pairs::new()) };
    let list = NvList::parse(packed).map_err(|error| ZplError::Format { object: object.0, error })?;
    let pair = |(name, value): (&NvString, &NvValue)| match value {
        NvValue::ByteArray(value) => Ok((name.as_bytes().to_vec(), value.clone())),
        _ => Err(ZplError::Corrupt { object: object.0, what: "an extended attribute that is not bytes".into() }),
    };
    list.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_namespace_belong_to_user() {
        assert_eq!(linux_name(b"comment"), b"user.comment");
        assert_eq!(linux_name(b"user.comment"), b"user.comment");
        assert_eq!(linux_name(b"security.selinux"), b"security.selinux");
    }
}
