//! Directories: looking names up and listing them.

use cenote_dmu::{Zap, ZapEntry};
use cenote_format::ids::ObjectId;
use cenote_format::zap::{NormFlags, ZapValue};

use crate::names;
use crate::{Attributes, CaseSensitivity, FileKind, FileSystem, ZplError};

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and zero.
    pub name: Vec<u8>,
    /// The object it refers to.
    pub object: ObjectId,
    /// What that is, if the entry says so (old datasets' entries do not).
    pub kind: Option<FileKind>,
    /// Where a listing goes on after this entry.
    pub next: Cursor,
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

/// Object number and type of a directory entry's value: the type in the top 4 bits, the object in the lower 48.
fn entry_value(value: &ZapValue) -> Option<(ObjectId, Option<FileKind>)> {
    let word = value.integers().next()?;
    let object = ObjectId(word & 0xffff_ffff_ffff);
    Some((object, FileKind::of_entry_type((word >> 60) as u8)))
}

impl FileSystem {
    async fn directory(&self, id: ObjectId) -> Result<Zap, ZplError> {
        let dnode = self.dnode(id).await?;
        if dnode.phys().object_type != cenote_format::dmu_type::DmuType::DIRECTORY_CONTENTS {
            return Err(ZplError::NotDirectory);
        }
        Ok(Zap::open(dnode).await?)
    }

    /// The object that `name` refers to in `directory`.
    pub async fn lookup(&self, directory: ObjectId, name: &[u8]) -> Result<ObjectId, ZplError> {
        if name.len() > names::LONG_NAME_MAX_BYTES {
            return Err(ZplError::NameTooLong);
        }
        let zap = self.directory(directory).await?;
        if !names::is_valid(name) {
            return Err(ZplError::NoEntry);
        }
        let mut found = zap.lookup(name).await?;
        if found.is_none() && self.folds_names(&zap)? {
            let mut listing = zap.listing();
            while let Some(batch) = listing.next().await? {
                if let Some(entry) = batch.into_iter().find(|entry| names::same(self, entry.name(), name)) {
                    found = Some(entry.value);
                    break;
                }
            }
        }
        let value = found.ok_or_else(|| names::missing(name))?;
        let (object, _) = entry_value(&value).ok_or_else(|| bad_value(directory))?;
        Ok(object)
    }

    fn folds_names(&self, zap: &Zap) -> Result<bool, ZplError> {
        let folding = NormFlags::TO_UPPER | NormFlags::TO_LOWER;
        Ok(self.case_sensitivity() == CaseSensitivity::Insensitive
            || !zap.norm_flags()?.difference(folding).is_empty()
            || self.normalisation() != 0)
    }

    /// Up to `count_max` entries of `directory` after `cursor` (without `.` and `..`), in the order of cursors. Empty at
    /// the end.
    pub async fn list(&self, directory: ObjectId, cursor: Cursor, count_max: usize) -> Result<Vec<DirEntry>, ZplError> {
        self.list_valid(directory, cursor, count_max, names::is_valid).await
    }

    /// The same for the hidden directory of a file's extended attributes, whose names may have slashes.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn list_xattrs(
        &self,
        directory: ObjectId,
        cursor: Cursor,
        count_max: usize,
    ) -> Result<Vec<DirEntry>, ZplError> {
        self.list_valid(directory, cursor, count_max, names::is_valid_xattr).await
    }

    async fn list_valid(
        &self,
        directory: ObjectId,
        cursor: Cursor,
        count_max: usize,
        is_valid: fn(&[u8]) -> bool,
    ) -> Result<Vec<DirEntry>, ZplError> {
        let zap = self.directory(directory).await?;
        let mut listing = zap.listing();
        if let Some((hash, _)) = cursor.after {
            listing.seek(hash);
        }
        let mut entries = Vec::new();
        while let Some(batch) = listing.next().await? {
            for entry in batch {
                if cursor.after.is_some_and(|after| (entry.hash, entry.cd) <= after) {
                    continue;
                }
                entries.push(dir_entry(directory, entry, is_valid)?);
            }
            if entries.len() >= count_max {
                // The cursor of the last entry kept leads back to the rest of this leaf.
                entries.truncate(count_max);
                break;
            }
        }
        Ok(entries)
    }

    /// Follows `path`, whose parts are separated by `/`, from the root directory; symbolic links are not followed.
    pub async fn resolve(&self, path: &[u8]) -> Result<Attributes, ZplError> {
        let mut at = self.root();
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            at = match part {
                b".." => self.attributes(at).await?.parent,
                name => self.lookup(at, name).await?,
            };
        }
        self.attributes(at).await
    }
}

fn bad_value(directory: ObjectId) -> ZplError {
    ZplError::Corrupt { object: directory.0, what: "a directory entry without a value".into() }
}

fn dir_entry(directory: ObjectId, entry: ZapEntry, is_valid: fn(&[u8]) -> bool) -> Result<DirEntry, ZplError> {
    if !is_valid(entry.name()) {
        let what = format!("an entry with the illegal name {:?}", String::from_utf8_lossy(entry.name()));
        return Err(ZplError::Corrupt { object: directory.0, what });
    }
    let (object, kind) = entry_value(&entry.value).ok_or_else(|| bad_value(directory))?;
    let next = Cursor { after: Some((entry.hash, entry.cd)) };
    Ok(DirEntry { name: entry.name().to_vec(), object, kind, next })
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

    #[test]
    fn the_type_of_an_entry_is_in_the_top_bits() {
        let value = ZapValue::from_u64((8 << 60) | 77);
        assert_eq!(entry_value(&value), Some((ObjectId(77), Some(FileKind::File))));
        assert_eq!(entry_value(&ZapValue::from_u64(5)), Some((ObjectId(5), None)));
    }
}
