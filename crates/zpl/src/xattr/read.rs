//! Reading extended attributes.

use std::collections::BTreeMap;

use cenote_dmu::sa::SaRecord;
use cenote_dmu::{DmuErrorKind, Object, Zap};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_taskq::boxed;

use super::{XATTR_NAMES_MAX, XATTR_VALUE_MAX_BYTES, XATTRS_MAX_BYTES, linux_name, unpack};
use crate::dir::{Cursor, word};
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::{FileKind, ZplError, posix_acl};

/// Entries asked for at a time.
const BATCH: usize = 1024;
/// Names that are listed at most.
const NAMES_MAX: usize = 1 << 16;

impl FileSystem {
    /// All extended attributes of a file with their values, sorted by name.
    ///
    /// # Errors
    /// They cannot be read, or are more than [`XATTRS_MAX_BYTES`] or [`XATTR_NAMES_MAX`].
    #[boxed]
    pub async fn xattrs(&self, id: ObjectId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError> {
        let found = self.xattrs_within(id, XATTRS_MAX_BYTES).await?;
        found.ok_or_else(|| corrupt(id, "more than 16 MiB of extended attributes"))
    }

    /// The same, if names and values together are no more than `max_bytes`; `None` if they are, without having read more.
    ///
    /// # Errors
    /// They cannot be read, or are more than [`XATTR_NAMES_MAX`].
    #[boxed]
    pub async fn xattrs_within(
        &self,
        id: ObjectId,
        max_bytes: usize,
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<u8>>>, ZplError> {
        let mut found = BTreeMap::new();
        let mut left = max_bytes;
        let node = self.node(id).await?;
        let _shared = node.look().await;
        let record = node.record();
        if let Some(directory) = self.hidden_dir(&record).await? {
            let directory = directory.id();
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
                    // A name that leads nowhere has no value.
                    let Some(value) = there(self.xattr_file(entry.object, room).await)? else { continue };
                    let Some(value) = value else { return Ok(None) };
                    left = room - value.len();
                    found.insert(linux_name(&entry.name), value);
                }
            }
        }
        if record.bytes(ZplAttribute::Dxattr).is_some_and(|packed| packed.len() > left) {
            return Ok(None);
        }
        found.extend(unpack(id, &record)?.into_iter().map(|(name, value)| (linux_name(&name), value)));
        Ok(Some(found))
    }

    /// A value in the hidden directory, if it is no more than `max_bytes`.
    async fn xattr_file(&self, id: ObjectId, max_bytes: usize) -> Result<Option<Vec<u8>>, ZplError> {
        let file = self.node(id).await?;
        file.check_kind(FileKind::File)?;
        let size = file.size_bytes();
        if size > XATTR_VALUE_MAX_BYTES as u64 {
            return Err(corrupt(id, "an extended attribute larger than 1 MiB"));
        }
        if size > max_bytes as u64 {
            return Ok(None);
        }
        Ok(Some(file.object.read(0, size as usize).await?.to_vec()))
    }

    /// The value of an extended attribute, by its Linux name.
    ///
    /// # Errors
    /// It is not there.
    #[boxed]
    pub async fn xattr(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, ZplError> {
        let node = self.node(id).await?;
        let _shared = node.look().await;
        self.stored_xattr(&node, name).await?.ok_or(ZplError::NoXattr)
    }

    /// The names of all extended attributes, sorted.
    ///
    /// # Errors
    /// They cannot be read.
    #[boxed]
    pub async fn xattr_names(&self, id: ObjectId) -> Result<Vec<Vec<u8>>, ZplError> {
        let node = self.node(id).await?;
        let _shared = node.look().await;
        let record = node.record();
        let mut names: Vec<Vec<u8>> = unpack(id, &record)?.iter().map(|(stored, _)| linux_name(stored)).collect();
        if let Some(directory) = self.hidden_dir(&record).await? {
            let found = Zap::open(directory).await?.list(None, NAMES_MAX).await?;
            names.extend(found.iter().map(|entry| linux_name(entry.name())));
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The value of an attribute that is stored in either place.
    pub(crate) async fn stored_xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        let pairs = unpack(node.id, &node.record())?;
        if let Some((_, value)) = pairs.into_iter().find(|(stored, _)| linux_name(stored) == name) {
            return Ok(Some(value));
        }
        self.xattr_in_dir(node, name).await
    }

    /// The list that a directory hands down.
    pub(crate) async fn default_acl(&self, directory: &Node) -> Result<Option<Vec<u8>>, ZplError> {
        self.stored_xattr(directory, posix_acl::DEFAULT).await
    }

    /// The value of an attribute of the hidden directory.
    pub(super) async fn xattr_in_dir(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        let Some(directory) = self.hidden_dir(&node.record()).await? else { return Ok(None) };
        let id = directory.id();
        let zap = Zap::open(directory).await?;
        let found = match zap.lookup(name).await? {
            Some(found) => Some(found),
            // Names that other systems have stored are without a namespace.
            None => match name.strip_prefix(b"user.") {
                Some(bare) if linux_name(bare) == name => zap.lookup(bare).await?,
                _ => None,
            },
        };
        match found {
            Some(found) => Ok(there(self.xattr_file(word(id, &found)?.object, usize::MAX).await)?.flatten()),
            None => Ok(None),
        }
    }

    /// The hidden directory of a file, if it has one. Where the one that it names is not there it has none, as in OpenZFS: the file itself
    /// is there, and its other attributes are.
    pub(crate) async fn hidden_dir(&self, record: &SaRecord) -> Result<Option<Object>, ZplError> {
        match directory_of(record) {
            Some(id) => there(self.dnode(id).await),
            None => Ok(None),
        }
    }
}

/// A part of a file, or nothing where the part is not there: an absent part does not make an absent file.
pub(crate) fn there<T>(found: Result<T, ZplError>) -> Result<Option<T>, ZplError> {
    match found {
        Ok(part) => Ok(Some(part)),
        Err(ZplError::NoEntry) => Ok(None),
        Err(ZplError::Dmu(error)) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The hidden directory of a file.
pub(crate) fn directory_of(record: &SaRecord) -> Option<ObjectId> {
    Some(ObjectId(record.u64(ZplAttribute::Xattr))).filter(|id| id.0 != 0)
}

fn corrupt(id: ObjectId, what: &str) -> ZplError {
    ZplError::Corrupt { object: id.0, what: what.into() }
}
