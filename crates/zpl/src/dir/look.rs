//! Looking names up and listing directories, as of the newest change.

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::NormFlags;
use cenote_format::zpl::DirEntry as Word;
use cenote_taskq::boxed;

use super::entry::word;
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::{Attributes, FileKind, ZplError, names};

/// The longest target of a symbolic link that any client takes, in bytes.
const TARGET_MAX_BYTES: u64 = 65_536;
/// Size in bytes of the old znode; a short link's target follows it in the bonus.
const ZNODE_BYTES: usize = 264;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and zero.
    pub name: Vec<u8>,
    /// The object it refers to.
    pub object: ObjectId,
    /// The kind of that object, if the entry has it (old datasets' entries do not).
    pub kind: Option<FileKind>,
    /// Where a listing goes on after this entry.
    pub next: Cursor,
}

/// Entries of a directory, and what is odd about others.
#[derive(Debug, Default)]
pub struct Listed {
    /// Entries that can be shown; none at the end.
    pub entries: Vec<DirEntry>,
    /// The first of the entries there that cannot be.
    pub odd: Option<ZplError>,
}

impl Listed {
    fn note(&mut self, error: ZplError) {
        self.odd.get_or_insert(error);
    }
}

/// A place in a directory's listing that stays good across calls: the hash and differentiator after which to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub(crate) after: Option<(u64, u32)>,
}

impl Cursor {
    /// The beginning.
    pub const START: Self = Self { after: None };

    /// The cursor as one number, for front ends whose protocol has only that; 0 is the beginning. The hash has at most
    /// 48 significant high bits and the differentiator fills the low ones, as in OpenZFS's cookies.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        match self.after {
            None => 0,
            Some((hash, cd)) => (hash | u64::from(cd & 0xffff)).wrapping_add(1),
        }
    }

    /// The inverse of [`Cursor::to_u64`], for hashes of names (28 high bits).
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        match number.checked_sub(1) {
            None => Self::START,
            Some(number) => Self { after: Some((number & !0xffff, (number & 0xffff) as u32)) },
        }
    }
}

impl FileSystem {
    /// The entry of a name in a directory.
    pub(crate) async fn entry(&self, directory: &Node, name: &[u8]) -> Result<Option<Word>, ZplError> {
        if name.len() > names::LONG_NAME_MAX_BYTES {
            return Err(ZplError::NameTooLong);
        }
        if !directory.is_directory() {
            return Err(ZplError::NotDirectory);
        }
        if !names::is_valid(name) {
            return Ok(None);
        }
        let _entries = directory.look_at_entries().await;
        directory.check_there()?;
        let zap = Zap::open(directory.object.clone()).await?;
        let mut found = zap.lookup(name).await?;
        if found.is_none() && self.folds_names(&zap)? {
            let mut listing = zap.listing();
            while let Some(batch) = listing.next().await? {
                let rules = self.shared.master.names;
                if let Some(entry) = batch.into_iter().find(|entry| rules.same(entry.name(), name)) {
                    found = Some(entry.value);
                    break;
                }
            }
        }
        found.map(|value| word(directory.id, &value)).transpose()
    }

    fn folds_names(&self, zap: &Zap) -> Result<bool, ZplError> {
        let folding = NormFlags::TO_UPPER | NormFlags::TO_LOWER;
        Ok(self.shared.master.names.fold() || !zap.norm_flags()?.difference(folding).is_empty())
    }

    /// The object that a name in a directory leads to.
    ///
    /// # Errors
    /// There is none.
    #[boxed]
    pub async fn lookup(&self, directory: ObjectId, name: &[u8]) -> Result<ObjectId, ZplError> {
        let directory = self.node(directory).await?;
        Ok(self.entry(&directory, name).await?.ok_or_else(|| names::missing(name))?.object)
    }

    /// As [`FileSystem::lookup`], with what is found there.
    ///
    /// # Errors
    /// There is none.
    #[boxed]
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

    /// Up to `count_max` entries of a directory after a place (without `.` and `..`), in the order of places; none at the end. An entry
    /// that is there all the time that a listing takes is listed once, whatever comes and goes meanwhile.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    #[boxed]
    pub async fn list(&self, directory: ObjectId, cursor: Cursor, count_max: usize) -> Result<Vec<DirEntry>, ZplError> {
        Ok(self.list_with_odd(directory, cursor, count_max).await?.entries)
    }

    /// The same, with what is said of entries that nobody could use: their names are none of a path, or they have no value. Entries `.` and
    /// `..`, which some systems write (Lustre), are left out silently: every directory shows its own.
    ///
    /// # Errors
    /// As [`FileSystem::list`].
    #[boxed]
    pub async fn list_with_odd(
        &self,
        directory: ObjectId,
        cursor: Cursor,
        count_max: usize,
    ) -> Result<Listed, ZplError> {
        let directory = self.node(directory).await?;
        list(&directory, cursor, count_max, names::is_valid).await
    }

    /// The same for the hidden directory of a file's extended attributes, whose names may have slashes.
    ///
    /// # Errors
    /// As [`FileSystem::list`].
    #[boxed]
    pub async fn list_xattrs(
        &self,
        directory: ObjectId,
        cursor: Cursor,
        count_max: usize,
    ) -> Result<Vec<DirEntry>, ZplError> {
        let directory = self.node(directory).await?;
        Ok(list(&directory, cursor, count_max, names::is_valid_xattr).await?.entries)
    }

    /// The target of a symbolic link: any bytes.
    ///
    /// # Errors
    /// It is none.
    #[boxed]
    pub async fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, ZplError> {
        let node = self.node(id).await?;
        if node.kind() != Some(FileKind::Symlink) {
            return Err(ZplError::NotSymlink);
        }
        if let Some(target) = node.with(|record| record.bytes(ZplAttribute::Symlink).map(<[u8]>::to_vec)) {
            return Ok(target);
        }
        let size = node.size_bytes();
        if size > TARGET_MAX_BYTES {
            return Err(ZplError::Corrupt { object: id.0, what: format!("a link target of {size} bytes") });
        }
        let len = size as usize;
        let head = node.object.phys();
        if head.bonus_type == DmuType::ZNODE
            && let Some(target) = head.bonus.get(ZNODE_BYTES..ZNODE_BYTES + len)
        {
            return Ok(target.to_vec());
        }
        Ok(node.object.read(0, len).await?.to_vec())
    }
}

/// Entries of a directory after a place.
async fn list(
    directory: &Node,
    cursor: Cursor,
    count_max: usize,
    is_valid: fn(&[u8]) -> bool,
) -> Result<Listed, ZplError> {
    directory.check_kind(FileKind::Directory)?;
    let _entries = directory.look_at_entries().await;
    let zap = Zap::open(directory.object.clone()).await?;
    let (mut cursor, mut listed) = (cursor, Listed::default());
    // No entries mean the end, so a part of the directory without any that can be shown is passed over.
    while listed.entries.is_empty() {
        let found = zap.list(cursor.after, count_max).await?;
        assert!(found.len() <= count_max, "no more entries come than were asked for");
        let Some(last) = found.last() else { break };
        cursor = Cursor { after: Some((last.hash, last.cd)) };
        for entry in found {
            let next = Cursor { after: Some((entry.hash, entry.cd)) };
            let odd = |what| ZplError::Corrupt { object: directory.id.0, what };
            match word(directory.id, &entry.value) {
                _ if matches!(entry.name(), b"." | b"..") => {}
                _ if !is_valid(entry.name()) => {
                    listed.note(odd(format!("an entry with the illegal name '{}'", entry.name().escape_ascii())));
                }
                Err(error) => listed.note(error),
                Ok(Word { object: ObjectId(0), .. }) => {
                    listed.note(odd(format!("the entry '{}' leads nowhere", entry.name().escape_ascii())));
                }
                Ok(Word { object, kind }) => {
                    let kind = FileKind::of_entry_type(kind);
                    listed.entries.push(DirEntry { name: entry.name().to_vec(), object, kind, next });
                }
            }
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_the_trip_through_one_number() {
        assert_eq!(Cursor::from_u64(Cursor::START.to_u64()), Cursor::START);
        for (hash, cd) in [(0, 0), (0xffff_fff0_0000_0000, 3), (0x8000_0000_0000_0000, 0xffff)] {
            let cursor = Cursor { after: Some((hash, cd)) };
            assert_eq!(Cursor::from_u64(cursor.to_u64()), cursor);
        }
    }
}
