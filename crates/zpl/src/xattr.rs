//! Extended attributes, from both places that a file can keep them in.
//!
//! With `xattr=sa` they are one packed nvlist of byte arrays in the attribute `ZPL_DXATTR`; with `xattr=dir` each is a
//! file in a hidden directory. A file may have both; the nvlist wins for a name in both, as in OpenZFS.
//!
//! Names carry their Linux namespace (`user.`, `trusted.`, `security.`, `system.`). Those written by systems without
//! namespaces have none, and belong to `user.`.

use std::collections::BTreeMap;

use cenote_format::ids::ObjectId;
use cenote_format::nvlist::NvList;
use cenote_format::sa::ZplAttribute;

use crate::directory::Cursor;
use crate::{FileSystem, ZplError};

/// The largest value that is read into memory, in bytes. Linux clients cannot set more than 64 KiB.
pub const XATTR_VALUE_MAX_BYTES: usize = 1 << 20;
/// Names and values of one file together at most, in bytes: memory that one file can make a reader take. Writers keep to it too, so
/// that nothing is written that could not be read.
pub const XATTRS_MAX_BYTES: usize = 16 << 20;
/// Names of one file at most; Linux lists 64 KiB of them.
pub const XATTR_NAMES_MAX: usize = 8 << 10;
/// Entries asked for at a time.
const BATCH: usize = 1024;

pub(crate) const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// A stored name as Linux shows it.
pub(crate) fn linux_name(stored: &[u8]) -> Vec<u8> {
    if NAMESPACES.iter().any(|namespace| stored.starts_with(namespace)) {
        stored.to_vec()
    } else {
        [b"user.", stored].concat()
    }
}

impl FileSystem {
    /// All extended attributes of a file with their values, sorted by name.
    ///
    /// # Errors
    /// They cannot be read, or are more than [`XATTRS_MAX_BYTES`] or [`XATTR_NAMES_MAX`].
    pub async fn xattrs(&self, id: ObjectId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError> {
        let found = self.xattrs_within(id, XATTRS_MAX_BYTES).await?;
        found.ok_or_else(|| corrupt(id, "more than 16 MiB of extended attributes"))
    }

    /// The same, if names and values together are no more than `max_bytes`; `None` if they are, without having read more.
    ///
    /// # Errors
    /// They cannot be read, or are more than [`XATTR_NAMES_MAX`].
    pub async fn xattrs_within(
        &self,
        id: ObjectId,
        max_bytes: usize,
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<u8>>>, ZplError> {
        let mut found = BTreeMap::new();
        let mut left = max_bytes;
        let dnode = self.dnode(id).await?;
        let values = self.sa().record(&dnode).await?;
        if let Some(directory) = values.find_u64(ZplAttribute::Xattr).filter(|directory| *directory != 0) {
            let directory = ObjectId(directory);
            let mut cursor = Cursor::START;
            loop {
                let entries = self.list_xattrs(directory, cursor, BATCH).await?;
                let Some(last) = entries.last() else { break };
                cursor = last.next;
                for entry in entries {
                    if found.len() >= XATTR_NAMES_MAX {
                        return Err(corrupt(id, "more extended attributes than any client can list"));
                    }
                    let Some(room) = left.checked_sub(entry.name.len()) else { return Ok(None) };
                    let Some(value) = self.xattr_file(entry.object, room).await? else { return Ok(None) };
                    left = room - value.len();
                    found.insert(linux_name(&entry.name), value);
                }
            }
        }
        if let Some(packed) = values.bytes(ZplAttribute::Dxattr).filter(|packed| !packed.is_empty()) {
            if packed.len() > left {
                return Ok(None);
            }
            let list = NvList::parse(packed).map_err(|error| ZplError::Format { object: id.0, error })?;
            for (name, _) in list.iter() {
                let value = name.as_str().and_then(|name| list.bytes(name));
                let Some(value) = value else {
                    return Err(corrupt(id, "an extended attribute that is not bytes"));
                };
                found.insert(linux_name(name.as_bytes()), value.to_vec());
            }
        }
        Ok(Some(found))
    }

    /// A value, if it is no more than `max_bytes`.
    async fn xattr_file(&self, id: ObjectId, max_bytes: usize) -> Result<Option<Vec<u8>>, ZplError> {
        let file = self.open_file(id).await?;
        let size = file.attributes().size_bytes;
        if size > XATTR_VALUE_MAX_BYTES as u64 {
            return Err(corrupt(id, "an extended attribute larger than 1 MiB"));
        }
        if size > max_bytes as u64 {
            return Ok(None);
        }
        Ok(Some(file.read(0, size as usize).await?.to_vec()))
    }

    /// The value of one extended attribute, by its Linux name.
    pub async fn xattr(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, ZplError> {
        self.xattrs(id).await?.remove(name).ok_or(ZplError::NoXattr)
    }
}

fn corrupt(id: ObjectId, what: &str) -> ZplError {
    ZplError::Corrupt { object: id.0, what: what.into() }
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
