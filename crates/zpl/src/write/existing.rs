//! File systems that exist: opening one, and adding to its directories.

use std::collections::BTreeMap;

use cenote_dmu::{ORDER, Object, Objset, Zap};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::objset::ObjsetFlags;
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::{DirEntry, MASTER_NODE, master_node, version};

use super::sa::SaMut;
use super::{FileSystemMut, NewEntry, XattrMode};
use crate::{ZplError, names};

/// Entries of a directory that is added to, at most: they are all looked at.
const ENTRIES_MAX: usize = 1 << 22;
/// Where attributes stand behind the header of a bonus.
const SIZE_OFFSET: usize = 8;
const FLAGS_OFFSET: usize = 48;
const MTIME_OFFSET: usize = 72;
const CTIME_OFFSET: usize = 88;
const LINKS_OFFSET: usize = 120;

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
            sa: SaMut::open(objset, ObjectId(tables)).await?,
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
        let mut bonus = directory.phys().bonus.clone();
        let unusual = || ZplError::Unsupported("not supported yet: a directory with unusual attributes".to_owned());
        let start = self.sa.usual_start(&bonus).ok_or_else(unusual)?;
        let mut change = |offset: usize, new: &dyn Fn(u64) -> u64| {
            let place = bonus.get_mut(start + offset..start + offset + 8)?;
            let before = ORDER.u64(place.try_into().ok()?);
            place.copy_from_slice(&ORDER.bytes64(new(before)));
            Some(before)
        };
        let flags = ZnodeFlags::from_bits_retain(change(FLAGS_OFFSET, &|flags| flags).ok_or_else(unusual)?);
        if flags.contains(ZnodeFlags::PROJECT_INHERIT) {
            let what = "not supported yet: adding to a directory whose project new files take over";
            return Err(ZplError::Unsupported(what.to_owned()));
        }
        let directories = entries.iter().filter(|entry| super::is_directory(entry.mode)).count() as u64;
        for (offset, word) in [(MTIME_OFFSET, now[0]), (MTIME_OFFSET + 8, now[1])] {
            change(offset, &|_| word).ok_or_else(unusual)?;
        }
        for (offset, word) in [(CTIME_OFFSET, now[0]), (CTIME_OFFSET + 8, now[1])] {
            change(offset, &|_| word).ok_or_else(unusual)?;
        }
        change(SIZE_OFFSET, &|size| size.saturating_add(entries.len() as u64)).ok_or_else(unusual)?;
        change(LINKS_OFFSET, &|links| links.saturating_add(directories)).ok_or_else(unusual)?;
        let mut zap = Zap::open(directory.clone()).await?;
        for entry in entries {
            if entry.name.len() > names::NAME_MAX_BYTES {
                return Err(ZplError::NameTooLong);
            }
            zap.insert(&entry.name, &super::entry_value(directory, entry)?).await?;
        }
        zap.flush(txg).await?;
        Ok(directory.set_bonus(txg, &bonus)?)
    }
}
