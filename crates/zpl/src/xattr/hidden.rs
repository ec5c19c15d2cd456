//! Extended attributes as files in a hidden directory, which its owner's lock guards.
//!
//! A value that is set is a new file in the place of the old one, so that it is whole whatever happens.

use std::sync::Arc;

use cenote_dmu::sa::{SaForm, SaHandle, SaRecord, bonus_room_bytes, bonus_room_of};
use cenote_dmu::tx::Cost;
use cenote_dmu::{Object, ObjectSpec, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::ZapValue;
use cenote_format::znode::ZnodeFlags;

use super::read::{directory_of, there};
use super::{HIDDEN_DIR_MODE, HIDDEN_FILE_MODE, XATTR_NAMES_MAX, XATTR_VALUE_MAX_BYTES, XATTRS_MAX_BYTES, linux_name};
use crate::delete_queue::is_small;
use crate::dir::{entry_value, word};
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::record::{BLOCK_MIN_BYTES, Birth, Origin, Plan, Times, changed, touch};
use crate::{Time, ZplError};

/// Attributes of one file at most whose owner is changed with the file's.
const NAMES_MAX: usize = 1 << 16;
/// Up to this many values are within a reader's bound whatever their sizes, so that they need not be added up.
const FEW: usize = XATTRS_MAX_BYTES / XATTR_VALUE_MAX_BYTES - 1;
/// Files whose owner is changed in one txg.
const BATCH: usize = 64;

/// A change of a hidden directory, all of it read and ready.
pub(crate) struct DirEdit {
    /// The directory, if there is one yet.
    directory: Option<Arc<Node>>,
    /// Its attributes afterwards.
    record: SaRecord,
    form: SaForm,
    /// Its entries afterwards, if there is one yet: an entry that is new leads nowhere yet.
    zap: Option<Zap>,
    /// The name as it is to be stored.
    name: Vec<u8>,
    value: Option<(Vec<u8>, SaRecord, SaForm)>,
    replaced: Option<Object>,
}

impl DirEdit {
    /// Bytes of the new value's blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.value.as_ref().map_or(0, |(value, ..)| value.len().next_multiple_of(512) as u64)
    }
}

impl FileSystem {
    /// Gets a change of the hidden directory ready: a value set, or taken away. `record` is the owner's, which is told of a
    /// directory that is to be made.
    pub(crate) async fn stage_dir(
        &self,
        node: &Node,
        record: &mut SaRecord,
        name: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<DirEdit, ZplError> {
        let now = self.now();
        let mut replaced = None;
        let mut has_entry = false;
        let mut stored = name.to_vec();
        // In the place of one that is not there another is made.
        let hidden = match node.with(directory_of) {
            Some(id) => there(self.node(id).await)?,
            None => None,
        };
        let (directory, mut own, mut zap) = match hidden {
            Some(hidden) => {
                let id = hidden.id;
                let zap = Zap::open(hidden.object.clone()).await?;
                let bare = name.strip_prefix(b"user.").unwrap_or(name);
                if zap.lookup(name).await?.is_none() && linux_name(bare) == name && zap.lookup(bare).await?.is_some() {
                    stored = bare.to_vec();
                }
                if let Some(found) = zap.lookup(&stored).await? {
                    has_entry = true;
                    replaced = there(self.dnode(word(id, &found)?.object).await)?;
                    if replaced.as_ref().is_some_and(|object| !is_small(object)) {
                        let what = "not supported yet: replacing an extended attribute of many blocks";
                        return Err(ZplError::Unsupported(what.into()));
                    }
                }
                let own = hidden.record();
                (Some(hidden), own, Some(zap))
            }
            None => {
                record.put(ZplAttribute::Xattr, 0)?;
                (
                    None,
                    hidden_birth(record, HIDDEN_DIR_MODE, node.id, 2, 2, Times::all(now))
                        .record(&self.shared.master.tables)?,
                    None,
                )
            }
        };
        if let (Some(value), Some(hidden)) = (&value, &directory) {
            self.check_room(hidden, &stored, value.len()).await?;
        }
        let entries = match (has_entry, value.is_some()) {
            (true, false) => -1,
            (false, true) => 1,
            _ => 0,
        };
        own.put(ZplAttribute::Size, own.u64(ZplAttribute::Size).saturating_add_signed(entries))?;
        touch(&mut own, now)?;
        if let Some(zap) = &mut zap {
            match &value {
                Some(_) => zap.set(&stored, &ZapValue::from_u64(0)).await?,
                None => drop(zap.remove(&stored).await?),
            }
        }
        let value = match value {
            Some(value) => {
                let parent = directory.as_ref().map_or(ObjectId(0), |hidden| hidden.id);
                let birth = hidden_birth(record, HIDDEN_FILE_MODE, parent, value.len() as u64, 1, Times::all(now));
                let record = birth.record(&self.shared.master.tables)?;
                let form = self.form(bonus_room_bytes(1), &record).await?;
                Some((value, record, form))
            }
            None => None,
        };
        let room = directory.as_ref().map_or_else(|| bonus_room_bytes(1), |hidden| bonus_room_of(&hidden.object));
        let form = self.form(room, &own).await?;
        Ok(DirEdit { directory, record: own, form, zap, name: stored, value, replaced })
    }

    /// Checks that with a new value the attributes in the hidden directory stay within a reader's bounds.
    ///
    /// # Errors
    /// They would be too many or too large; or one cannot be read.
    async fn check_room(&self, hidden: &Node, name: &[u8], value_bytes: usize) -> Result<(), ZplError> {
        let entries = Zap::open(hidden.object.clone()).await?.list(None, XATTR_NAMES_MAX + 1).await?;
        let others = entries.iter().filter(|entry| entry.name() != name);
        let count = others.clone().count();
        // The packed attributes, which are no more than 64 KiB, and the name itself.
        let mut total = (64 << 10) + name.len() + value_bytes;
        if count > FEW {
            for entry in others {
                let Some(file) = there(self.node(word(hidden.id, &entry.value)?.object).await)? else { continue };
                total = total.saturating_add(entry.name().len()).saturating_add(file.size_bytes() as usize);
            }
        }
        if count >= XATTR_NAMES_MAX || total > XATTRS_MAX_BYTES {
            return Err(ZplError::NoSpace);
        }
        Ok(())
    }

    /// Makes a change of the hidden directory; the owner's plan comes back with the directory's number.
    pub(crate) async fn apply_edit(&self, edit: DirEdit, mut plan: Plan, txg: Txg) -> Result<Plan, ZplError> {
        let DirEdit { directory, record, form, zap, name, value, replaced } = edit;
        assert_eq!(directory.is_some(), zap.is_some(), "a hidden directory that is there has entries");
        assert!(directory.is_some() || value.is_some(), "a hidden directory is made for a value");
        assert!(replaced.is_none() || directory.is_some(), "a value that is replaced is in a directory");
        let mut own = Plan { record, form };
        let (object, mut zap) = match (&directory, zap) {
            (Some(hidden), Some(zap)) => (hidden.object.clone(), zap),
            _ => {
                let spec = ObjectSpec::new(DmuType::DIRECTORY_CONTENTS, BLOCK_MIN_BYTES);
                let made = self.shared.objset.create_object(txg, &spec.with_bonus(DmuType::SA, Vec::new()))?;
                own.record.put(ZplAttribute::Gen, txg.0)?;
                plan.record.put(ZplAttribute::Xattr, made.id().0)?;
                let zap = Zap::create(made.clone())?;
                (made, zap)
            }
        };
        if let Some((value, mut record, form)) = value {
            let block = (value.len() as u32).next_multiple_of(512).max(BLOCK_MIN_BYTES);
            let spec = ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, block.min(128 << 10));
            let file = self.shared.objset.create_object(txg, &spec.with_bonus(DmuType::SA, Vec::new()))?;
            record.put(ZplAttribute::Gen, txg.0)?;
            record.put(ZplAttribute::Parent, object.id().0)?;
            SaHandle::create(&file, txg, record, form)?;
            file.write(txg, 0, &value).await?;
            zap.set(&name, &entry_value(file.id(), HIDDEN_FILE_MODE)?).await?;
        }
        zap.flush(txg).await?;
        match directory {
            Some(hidden) => hidden.store(txg, own)?,
            None => drop(SaHandle::create(&object, txg, own.record, own.form)?),
        }
        if let Some(replaced) = replaced {
            replaced.free(txg);
        }
        Ok(plan)
    }

    /// Replays the creation of a hidden directory (`TX_MKXATTR`). Its entries have records of their own.
    pub(crate) async fn replay_hidden_dir(
        &self,
        owner: ObjectId,
        mode: u32,
        (uid, gid): (u32, u32),
        origin: Origin,
    ) -> Result<(), ZplError> {
        let node = self.node(owner).await?;
        let _lock = node.in_use()?.lock.write().await;
        if self.hidden_dir(&node.record()).await?.is_some() {
            return Err(ZplError::Exists);
        }
        let mut record = node.record();
        record.put(ZplAttribute::Xattr, origin.object.0)?;
        let birth = Birth {
            mode,
            uid: u64::from(uid),
            gid: u64::from(gid),
            ..hidden_birth(&record, HIDDEN_DIR_MODE, owner, 2, 2, Times::all(origin.created))
        };
        let mut own = birth.record(&self.shared.master.tables)?;
        own.put(ZplAttribute::Gen, origin.generation)?;
        let form = self.form(bonus_room_bytes(origin.slots), &own).await?;
        let plan = self.plan(&node, record).await?;
        let tx = self.begin(Cost::default().with_objects(2).with_repack()).await?;
        let txg = tx.txg();
        let spec = ObjectSpec::new(DmuType::DIRECTORY_CONTENTS, BLOCK_MIN_BYTES).with_bonus(DmuType::SA, Vec::new());
        let spec = ObjectSpec { slots: origin.slots, ..spec };
        let object = self.shared.objset.create_at(txg, origin.object, &spec)?;
        SaHandle::create(&object, txg, own, form)?;
        Zap::create(object)?.flush(txg).await?;
        node.store(txg, plan)
    }

    /// Gives the hidden directory and its files the owner, group and project of the file that they belong to, which is
    /// locked; a few in each txg.
    pub(crate) async fn own_xattrs(&self, node: &Node) -> Result<(), ZplError> {
        let Some(object) = self.hidden_dir(&node.record()).await? else { return Ok(()) };
        let directory = object.id();
        let mut ids = vec![directory];
        for entry in Zap::open(object.clone()).await?.list(None, NAMES_MAX).await? {
            ids.push(word(directory, &entry.value)?.object);
        }
        let owner = node.record();
        let now: Time = self.now();
        for ids in ids.chunks(BATCH) {
            let mut changes = Vec::new();
            for id in ids {
                let Some(hidden) = there(self.node(*id).await)? else { continue };
                let mut record = hidden.record();
                for attribute in [ZplAttribute::Uid, ZplAttribute::Gid] {
                    record.put(attribute, owner.u64(attribute))?;
                }
                if owner.flags().contains(ZnodeFlags::PROJECT_ID) && record.is_usual() {
                    record.put(ZplAttribute::Projid, owner.u64(ZplAttribute::Projid))?;
                    record.put(ZplAttribute::Flags, (record.flags() | ZnodeFlags::PROJECT_ID).bits())?;
                }
                changed(&mut record, now)?;
                changes.push((hidden.clone(), self.plan(&hidden, record).await?));
            }
            let tx = self.begin(Cost::default().with_objects(changes.len() as u64)).await?;
            for (hidden, plan) in changes {
                hidden.store(tx.txg(), plan)?;
            }
        }
        Ok(())
    }
}

/// A node of a hidden directory: its owner's.
pub(crate) fn hidden_birth(
    owner: &SaRecord,
    mode: u32,
    parent: ObjectId,
    size_bytes: u64,
    links: u64,
    times: Times,
) -> Birth {
    debug_assert!(matches!(mode, HIDDEN_DIR_MODE | HIDDEN_FILE_MODE), "what is hidden is a directory of files");
    let mut flags = ZnodeFlags::XATTR;
    if owner.flags().contains(ZnodeFlags::PROJECT_ID) {
        flags |= ZnodeFlags::PROJECT_ID;
    }
    Birth {
        mode,
        uid: owner.u64(ZplAttribute::Uid),
        gid: owner.u64(ZplAttribute::Gid),
        project: owner.u64(ZplAttribute::Projid),
        parent,
        size_bytes,
        links,
        flags,
        rdev: None,
        times,
    }
}
