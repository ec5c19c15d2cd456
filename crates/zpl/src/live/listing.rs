//! Looking names up and listing directories, as of the newest change.

use cenote_dmu::Zap;
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::ZapValue;
use cenote_format::zpl::DirEntry as Word;

use super::LiveFileSystem;
use super::node::Node;
use crate::{Attributes, Cursor, DirEntry, FileKind, ZplError, names};

/// # Errors
/// It cannot be the name of a new entry.
pub(super) fn check_name(name: &[u8]) -> Result<(), ZplError> {
    if name.len() > names::NAME_MAX_BYTES {
        return Err(ZplError::NameTooLong);
    }
    if names::is_valid(name) { Ok(()) } else { Err(ZplError::Invalid("such a name")) }
}

/// What an entry's value says.
pub(super) fn word(directory: ObjectId, value: &ZapValue) -> Result<Word, ZplError> {
    let word = value.integers().next();
    let what = "a directory entry without a value";
    let word = word.ok_or_else(|| ZplError::Corrupt { object: directory.0, what: what.into() })?;
    Ok(Word::from_word(word))
}

/// An entry's value.
pub(super) fn entry_value(id: ObjectId, mode: u32) -> Result<ZapValue, ZplError> {
    let word = Word { object: id, kind: (mode >> 12 & 0xf) as u8 }.word();
    Ok(ZapValue::from_u64(word.map_err(|error| ZplError::Format { object: id.0, error })?))
}

impl LiveFileSystem {
    /// What a name in a directory leads to.
    pub(super) async fn entry(&self, directory: &Node, name: &[u8]) -> Result<Option<Word>, ZplError> {
        if name.len() > names::LONG_NAME_MAX_BYTES {
            return Err(ZplError::NameTooLong);
        }
        if !directory.is_directory() {
            return Err(ZplError::NotDirectory);
        }
        let _entries = directory.entries.read().await;
        directory.check_there()?;
        let found = Zap::open(directory.object.clone()).await?.lookup(name).await?;
        found.map(|value| word(directory.id, &value)).transpose()
    }

    /// The object that a name in a directory leads to.
    ///
    /// # Errors
    /// There is none.
    pub async fn lookup(&self, directory: ObjectId, name: &[u8]) -> Result<ObjectId, ZplError> {
        let directory = self.node(directory).await?;
        Ok(self.entry(&directory, name).await?.ok_or_else(|| names::missing(name))?.object)
    }

    /// As [`LiveFileSystem::lookup`], with what is found there.
    ///
    /// # Errors
    /// There is none.
    pub async fn find(&self, directory: ObjectId, name: &[u8]) -> Result<Attributes, ZplError> {
        let directory = self.node(directory).await?;
        loop {
            let found = self.entry(&directory, name).await?.ok_or_else(|| names::missing(name))?;
            match self.attributes(found.object).await {
                // It may have been removed meanwhile, and another may have its name.
                Err(error) if self.entry(&directory, name).await? == Some(found) => return Err(error),
                Err(_) => {}
                Ok(attributes) => return Ok(attributes),
            }
        }
    }

    /// The attributes of an object that somebody has noted by its number, or of the directory above it: what a file handle leads to.
    /// Who noted it compares the generation.
    ///
    /// # Errors
    /// It is none of the files that names lead to, or not any more ([`ZplError::Stale`]).
    pub async fn find_by_number(&self, id: ObjectId, is_above: bool) -> Result<Attributes, ZplError> {
        let has_name = |found: &Attributes| found.link_count > 0 && !found.flags.is_xattr();
        let found = self.attributes(id).await?;
        if !has_name(&found) {
            return Err(ZplError::Stale);
        }
        if !is_above {
            return Ok(found);
        }
        if found.kind != FileKind::Directory {
            return Err(ZplError::NotDirectory);
        }
        let above = self.attributes(found.parent).await?;
        if has_name(&above) { Ok(above) } else { Err(ZplError::Stale) }
    }

    /// Up to `count_max` entries of a directory behind a place, without `.` and `..`; none at the end. An entry that is there
    /// all the time that a listing takes is listed once, whatever comes and goes meanwhile.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub async fn list(&self, directory: ObjectId, cursor: Cursor, count_max: usize) -> Result<Vec<DirEntry>, ZplError> {
        let directory = self.node(directory).await?;
        directory.check_kind(FileKind::Directory)?;
        let _entries = directory.entries.read().await;
        let found = Zap::open(directory.object.clone()).await?.list(cursor.after, count_max).await?;
        let mut entries = Vec::with_capacity(found.len());
        for entry in found {
            if !names::is_valid(entry.name()) {
                let what = "an entry whose name cannot be one".to_owned();
                return Err(ZplError::Corrupt { object: directory.id.0, what });
            }
            let Word { object, kind } = word(directory.id, &entry.value)?;
            entries.push(DirEntry {
                name: entry.name().to_vec(),
                object,
                kind: FileKind::of_entry_type(kind),
                next: Cursor { after: Some((entry.hash, entry.cd)) },
            });
        }
        Ok(entries)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It is none.
    pub async fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, ZplError> {
        let node = self.node(id).await?;
        if FileKind::of_mode(u64::from(node.mode())) != Some(FileKind::Symlink) {
            return Err(ZplError::NotSymlink);
        }
        if let Some(target) = node.with(|record| record.bytes(ZplAttribute::Symlink).map(<[u8]>::to_vec)) {
            return Ok(target);
        }
        let size = node.size_bytes();
        if size > u64::from(u16::MAX) {
            return Err(ZplError::Corrupt { object: id.0, what: format!("a link target of {size} bytes") });
        }
        Ok(node.object.read(0, size as usize).await?.to_vec())
    }
}
