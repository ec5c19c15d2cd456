//! Directories that are filled: new ones, and those that exist.

use std::collections::BTreeMap;

use cenote_dmu::{Object, Zap};
use cenote_format::ids::Txg;
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::DirEntry;
use cenote_taskq::boxed;

use super::{BulkWriter, MODE_DIR, MODE_KIND, NewEntry};
use crate::dir::entry_value;
use crate::{ZplError, names};

/// Entries of a directory that is added to, at most: they are all looked at.
const ENTRIES_MAX: usize = 1 << 22;

impl BulkWriter {
    /// Writes a directory's entries, all of them, into an object that has none yet.
    ///
    /// # Errors
    /// Two have the same name, or a name cannot be one.
    #[boxed]
    pub async fn write_entries(&self, txg: Txg, directory: &Object, entries: &[NewEntry]) -> Result<(), ZplError> {
        let mut zap = Zap::create(directory.clone())?;
        insert(&mut zap, entries).await?;
        Ok(zap.flush(txg).await?)
    }

    /// All entries of a directory, by name.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    #[boxed]
    pub async fn entries(&self, directory: &Object) -> Result<BTreeMap<Vec<u8>, DirEntry>, ZplError> {
        let entries = Zap::open(directory.clone()).await?.entries(ENTRIES_MAX).await?;
        Ok(entries
            .into_iter()
            .map(|entry| (entry.name().to_vec(), DirEntry::from_word(entry.value.as_u64().unwrap_or(0))))
            .collect())
    }

    /// Adds entries to a directory that exists, and brings its attributes up to date. `now` is seconds and nanoseconds.
    ///
    /// # Errors
    /// A name is there already or cannot be one; or the directory has what new files would have to take over.
    #[boxed]
    pub async fn add_entries(
        &self,
        txg: Txg,
        directory: &Object,
        entries: &[NewEntry],
        now: [u64; 2],
    ) -> Result<(), ZplError> {
        let mut attributes = self.tables.open(directory).await?;
        let mut record = attributes.record().clone();
        if record.flags().contains(ZnodeFlags::PROJECT_INHERIT) {
            let what = "not supported yet: adding to a directory whose project new files take over";
            return Err(ZplError::Unsupported(what.to_owned()));
        }
        let directories = entries.iter().filter(|entry| entry.mode & MODE_KIND == MODE_DIR).count() as u64;
        record.put_words(ZplAttribute::Mtime, &now)?;
        record.put_words(ZplAttribute::Ctime, &now)?;
        for (attribute, more) in [(ZplAttribute::Size, entries.len() as u64), (ZplAttribute::Links, directories)] {
            record.put(attribute, record.u64(attribute).saturating_add(more))?;
        }
        let Some(form) = attributes.form_of(&record).filter(|_| record.is_usual()).cloned() else {
            let what = "not supported yet: a directory with unusual attributes";
            return Err(ZplError::Unsupported(what.to_owned()));
        };
        let mut zap = Zap::open(directory.clone()).await?;
        insert(&mut zap, entries).await?;
        zap.flush(txg).await?;
        Ok(attributes.store(directory, txg, record, form)?)
    }
}

/// Puts entries into a directory's ZAP.
async fn insert(zap: &mut Zap, entries: &[NewEntry]) -> Result<(), ZplError> {
    for entry in entries {
        if entry.name.len() > names::NAME_MAX_BYTES {
            return Err(ZplError::NameTooLong);
        }
        zap.insert(&entry.name, &entry_value(entry.object, entry.mode)?).await?;
    }
    Ok(())
}
