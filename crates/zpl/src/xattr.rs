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
const VALUE_MAX_BYTES: u64 = 1 << 20;
/// Names and values of one file together at most, in bytes: memory that one file can make a reader take.
const TOTAL_MAX_BYTES: usize = 64 << 20;
/// Names of one file at most.
const NAMES_MAX: usize = 1 << 16;
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
    pub async fn xattrs(&self, id: ObjectId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError> {
        let mut found = BTreeMap::new();
        let mut total = 0;
        let dnode = self.dnode(id).await?;
        let values = self.sa().values(&dnode).await?;
        if let Some(directory) = values.u64(ZplAttribute::Xattr).filter(|directory| *directory != 0) {
            let directory = ObjectId(directory);
            let mut cursor = Cursor::START;
            loop {
                let entries = self.list(directory, cursor, BATCH).await?;
                let Some(last) = entries.last() else { break };
                cursor = last.next;
                for entry in entries {
                    if found.len() >= NAMES_MAX {
                        return Err(corrupt(id, "more extended attributes than any client can list"));
                    }
                    let value = self.xattr_file(entry.object).await?;
                    total += entry.name.len() + value.len();
                    if total > TOTAL_MAX_BYTES {
                        return Err(corrupt(id, "more than 64 MiB of extended attributes"));
                    }
                    found.insert(linux_name(&entry.name), value);
                }
            }
        }
        if let Some(packed) = values.bytes(ZplAttribute::Dxattr).filter(|packed| !packed.is_empty()) {
            let list = NvList::parse(packed).map_err(|error| ZplError::Format { object: id.0, error })?;
            for (name, _) in list.iter() {
                let value = name.as_str().and_then(|name| list.bytes(name));
                let Some(value) = value else {
                    return Err(corrupt(id, "an extended attribute that is not bytes"));
                };
                found.insert(linux_name(name.as_bytes()), value.to_vec());
            }
        }
        Ok(found)
    }

    async fn xattr_file(&self, id: ObjectId) -> Result<Vec<u8>, ZplError> {
        let file = self.open_file(id).await?;
        let size = file.attributes().size_bytes;
        if size > VALUE_MAX_BYTES {
            return Err(corrupt(id, "an extended attribute larger than 1 MiB"));
        }
        Ok(file.read(0, size as usize).await?.to_vec())
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
