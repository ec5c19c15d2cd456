//! The path of an object, found upwards: each object knows its parent, and the parent's entries know its name.

use std::collections::BTreeMap;

use crate::{Cursor, FileSystem, ZplError};
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

/// Directories above one another at most, as for walks.
const DEPTH_MAX: usize = 4096;
/// Entries asked for at a time.
const BATCH: usize = 4096;
/// Names kept from one search to the next.
const NAMES_MAX: usize = 1 << 20;

/// Finds paths in one file system; directories that it has read are remembered, so that finding all files of one costs
/// no more than reading it once.
pub struct PathFinder {
    filesystem: FileSystem,
    /// By directory: the first name of each object in it.
    names: BTreeMap<ObjectId, BTreeMap<ObjectId, Vec<u8>>>,
    name_count: usize,
}

impl PathFinder {
    /// For a file system.
    pub fn new(filesystem: &FileSystem) -> Self {
        Self { filesystem: filesystem.clone(), names: BTreeMap::new(), name_count: 0 }
    }

    /// Where an object is: `/a/b`. A file with several names is found under one that its last parent has; a directory of
    /// extended attributes, which has no name, shows as `<xattrdir>`. [`ZplError::NoEntry`] where its parent has no name
    /// for it: another of its links was removed, or it was unlinked while open.
    #[boxed]
    pub async fn path(&mut self, object: ObjectId) -> Result<Vec<u8>, ZplError> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = object;
        while at != self.filesystem.root() {
            if parts.len() >= DEPTH_MAX {
                let what = "its parents form a cycle".to_owned();
                return Err(ZplError::Corrupt { object: object.0, what });
            }
            let parent = self.filesystem.attributes(at).await?.parent;
            let above = self.filesystem.attributes(parent).await?;
            if above.xattr_directory == Some(at) {
                parts.push(b"<xattrdir>".to_vec());
            } else {
                parts.push(self.name_in(parent, at).await?);
            }
            at = parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    /// The name of an entry of `directory` that refers to `object`.
    async fn name_in(&mut self, directory: ObjectId, object: ObjectId) -> Result<Vec<u8>, ZplError> {
        if let Some(names) = self.names.get(&directory) {
            return names.get(&object).cloned().ok_or(ZplError::NoEntry);
        }
        let mut names: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
        let (mut cursor, mut found) = (Cursor::START, None);
        loop {
            let batch = self.filesystem.list(directory, cursor, BATCH).await?;
            let Some(last) = batch.last() else { break };
            cursor = last.next;
            for entry in batch {
                if entry.object == object && found.is_none() {
                    found = Some(entry.name.clone());
                }
                if names.len() < NAMES_MAX {
                    names.entry(entry.object).or_insert(entry.name);
                }
            }
        }
        // One directory that is too large to remember is read again for each of its files.
        if names.len() < NAMES_MAX {
            if self.name_count.saturating_add(names.len()) > NAMES_MAX {
                self.names.clear();
                self.name_count = 0;
            }
            self.name_count += names.len();
            self.names.insert(directory, names);
        }
        found.ok_or(ZplError::NoEntry)
    }
}
