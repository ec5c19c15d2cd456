//! File systems that exist: opening one, and adding to its directories.

use std::collections::BTreeMap;

use cenote_dmu::sa::SaTables;
use cenote_dmu::{Object, Objset, Zap};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::objset::ObjsetFlags;
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::{DirEntry, MASTER_NODE, master_node, version};

use super::{FileSystemMut, NewEntry, XattrMode};
use crate::{ZplError, names};

/// Entries of a directory that is added to, at most: they are all looked at.
const ENTRIES_MAX: usize = 1 << 22;
impl FileSystemMut {
    /// Opens the file system of an objset that is on disk.
    ///
    /// # Errors
    /// It is none, or one of a kind that cannot be added to yet.
    pub async fn open(objset: &Objset) -> Result<Self, ZplError> {
        let unsupported = |what: &str| Err(ZplError::Unsupported(format!("not supported yet: {what}")));
        let flags = objset.phys().flags;
        let has_accounts = objset.phys().userused_dnode.is_some();
        if has_accounts && !flags.contains(ObjsetFlags::USERACCOUNTING_COMPLETE) {
            return unsupported("adding files while the accounts of users are being made");
        }
        let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
        let word = async |name: &str| {
            Ok::<_, ZplError>(master.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64()))
        };
        if word(master_node::VERSION).await? != Some(version::CURRENT) {
            return unsupported("adding files to a file system of an older version");
        }
        for name in [master_node::NORMALIZATION, master_node::UTF8_ONLY, master_node::CASE_SENSITIVITY] {
            if word(name).await?.unwrap_or(0) != 0 {
                return unsupported(&format!("adding files to a file system with the property '{name}'"));
            }
        }
        let missing = |what: &str| ZplError::Corrupt { object: MASTER_NODE.0, what: format!("no {what}") };
        let root = word(master_node::ROOT).await?.ok_or_else(|| missing("root directory"))?;
        let tables = word(master_node::SA_ATTRIBUTES).await?.ok_or_else(|| missing("table of attributes"))?;
        Ok(Self {
            tables: SaTables::load(objset, ObjectId(tables)).await?,
            objset: objset.clone(),
            root: ObjectId(root),
            xattrs: XattrMode::default(),
            record_bytes: 128 << 10,
            dnode_slots: 1,
        })
    }

    /// All entries of a directory, by name.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
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
        let directories = entries.iter().filter(|entry| super::is_directory(entry.mode)).count() as u64;
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
        for entry in entries {
            if entry.name.len() > names::NAME_MAX_BYTES {
                return Err(ZplError::NameTooLong);
            }
            zap.insert(&entry.name, &super::entry_value(directory, entry)?).await?;
        }
        zap.flush(txg).await?;
        Ok(attributes.store(directory, txg, record, form)?)
    }
}
