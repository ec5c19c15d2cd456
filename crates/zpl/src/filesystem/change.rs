//! Attributes: as of the newest change, and changing them.

use cenote_dmu::sa::{SaForm, SaRecord, bonus_room_of};
use cenote_dmu::tx::{Cost, TxgSource};
use cenote_dmu::{DmuError, DmuErrorKind};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zil::{FuidDomains, SetAttr, Tx as Record};
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::boxed;

use super::FileSystem;
use crate::acl;
use crate::node::Node;
use crate::posix_acl;
use crate::record::{MODE_KIND, Plan, put_acl, put_time, time};
use crate::xattr::xattr_record;
use crate::{Attributes, FileKind, Time, ZplError};

/// A change of a node's attributes; those that are absent stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits, with set-uid, set-gid and sticky.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: the first step of a change, on its own.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub accessed: Option<Time>,
    /// Last change of content.
    pub modified: Option<Time>,
    /// Last change of attributes; now if absent.
    pub changed: Option<Time>,
    /// Flags to set, and flags to clear.
    pub flags: Option<(ZnodeFlags, ZnodeFlags)>,
    /// Project.
    pub project: Option<u64>,
}

/// Flags that may be changed: others say how the node is made.
const SETTABLE: ZnodeFlags = ZnodeFlags::IMMUTABLE
    .union(ZnodeFlags::APPEND_ONLY)
    .union(ZnodeFlags::NO_DUMP)
    .union(ZnodeFlags::NO_UNLINK)
    .union(ZnodeFlags::PROJECT_INHERIT)
    .union(ZnodeFlags::READONLY)
    .union(ZnodeFlags::HIDDEN)
    .union(ZnodeFlags::SYSTEM)
    .union(ZnodeFlags::ARCHIVE)
    .union(ZnodeFlags::OFFLINE)
    .union(ZnodeFlags::SPARSE)
    .union(ZnodeFlags::REPARSE);

impl FileSystem {
    /// Changes attributes; returns the new ones.
    ///
    /// # Errors
    /// It is not there, a flag forbids it, or its access control list says more than a mode can and is to be kept.
    #[boxed]
    pub async fn set_attributes(&self, id: ObjectId, change: &AttributeChange) -> Result<Attributes, ZplError> {
        let node = self.node(id).await?;
        let _lock = node.in_use()?.lock.write().await;
        node.check_there()?;
        let only_flags = AttributeChange { flags: change.flags, ..AttributeChange::default() };
        let is_fixed = self.obeys_flags() && node.with(|record| record.flags()).contains(ZnodeFlags::IMMUTABLE);
        if is_fixed && *change != only_flags {
            return Err(ZplError::NotPermitted("immutable"));
        }
        if let Some(size) = change.size_bytes {
            self.set_size(&node, size).await?;
        }
        let rest = AttributeChange { size_bytes: None, ..*change };
        if rest != AttributeChange::default() {
            self.change_record(&node, &rest).await?;
        }
        node.attributes()
    }

    /// Changes all but the size of a node that is locked.
    pub(crate) async fn change_record(&self, node: &Node, change: &AttributeChange) -> Result<(), ZplError> {
        let mut record = node.record();
        for (attribute, id) in [(ZplAttribute::Uid, change.uid), (ZplAttribute::Gid, change.gid)] {
            if let Some(id) = id {
                record.put(attribute, u64::from(id))?;
            }
        }
        for (attribute, time) in [
            (ZplAttribute::Atime, change.accessed),
            (ZplAttribute::Mtime, change.modified),
            (ZplAttribute::Ctime, Some(change.changed.unwrap_or_else(|| self.now()))),
        ] {
            if let Some(time) = time {
                put_time(&mut record, attribute, time)?;
            }
        }
        if let Some((set, clear)) = change.flags {
            if !SETTABLE.contains(set | clear) {
                return Err(ZplError::Invalid("a flag that is not set by hand"));
            }
            record.put(ZplAttribute::Flags, ((record.flags() - clear) | set).bits())?;
        }
        if let Some(project) = change.project {
            put_project(&mut record, node, project)?;
        }
        let mut acl = None;
        if let Some(permissions) = change.permissions {
            acl = self.change_mode(node, &mut record, permissions).await?;
        }
        let logged_acl = acl.clone();
        let edit = match acl {
            Some(acl) => self.stage_xattr(node, &mut record, posix_acl::ACCESS, Some(acl)).await?,
            None => None,
        };
        let plan = self.plan(node, record).await?;
        let mut tx = self.begin(Cost::default().with_repack().with_entries(1).with_objects(2)).await?;
        let has_records = change.flags.is_none() && change.project.is_none() && edit.is_none();
        let is_logged = has_records && (logged_acl.is_none() || tx.may_log_xattr(logged_acl.as_deref()));
        let plan = match edit {
            Some(edit) => self.apply_edit(edit, plan, tx.txg()).await?,
            None => plan,
        };
        if change.accessed.is_some() {
            node.forget_access();
        }
        node.store(tx.txg(), plan)?;
        match record_of(node, change) {
            Some(record) if is_logged => tx.log(record),
            // The time of the change is no promise.
            None if is_logged => tx.needs_no_record(),
            _ => {}
        }
        if is_logged && logged_acl.is_some() {
            tx.log(xattr_record(node.id, posix_acl::ACCESS, logged_acl.as_deref()));
        }
        drop(tx);
        if change.uid.is_some() || change.gid.is_some() || change.project.is_some() {
            self.own_xattrs(node).await?;
        }
        Ok(())
    }

    /// The record of the mode that a node has.
    pub(crate) fn mode_record(&self, node: &Node) -> Record<'static> {
        let permissions = Some(node.mode());
        let change = AttributeChange { permissions, ..AttributeChange::default() };
        record_of(node, &change).expect("a mode has a record")
    }

    /// How a record is packed into a bonus of so many bytes. Layouts that are missing are added, in a txg of their own; so the caller
    /// holds none.
    pub(crate) async fn form(&self, room_bytes: usize, record: &SaRecord) -> Result<SaForm, ZplError> {
        let (tables, objset) = (&self.shared.master.tables, &self.shared.objset);
        let fail = |kind: DmuErrorKind| DmuError::new(objset.id(), ObjectId(0), kind);
        if let Some(form) = tables.form(room_bytes, record).map_err(fail)? {
            return Ok(form);
        }
        let mut adding = tables.adding().await?;
        if let Some(form) = tables.form(room_bytes, record).map_err(fail)? {
            return Ok(form);
        }
        let tx = self.log()?.begin_apart(Cost::default().with_entries(2)).await?;
        Ok(adding.form(tx.txg(), room_bytes, record).await.map_err(fail)?)
    }

    /// A record with the form that it is to have: the one that the node has, as long as nothing changes its length.
    pub(crate) async fn plan(&self, node: &Node, record: SaRecord) -> Result<Plan, ZplError> {
        if let Some(form) = node.form_if_same_shape(&record) {
            return Ok(Plan { record, form });
        }
        let form = self.form(bonus_room_of(&node.object), &record).await?;
        Ok(Plan { record, form })
    }

    /// Puts a mode into a record, and the access control list that says the same. Returns a POSIX list that has to change.
    async fn change_mode(
        &self,
        node: &Node,
        record: &mut SaRecord,
        permissions: u32,
    ) -> Result<Option<Vec<u8>>, ZplError> {
        let kind = record.u64(ZplAttribute::Mode) as u32 & MODE_KIND;
        let mode = kind | permissions & 0o7777;
        let flags = record.flags();
        // Of an old znode the list stays as it is.
        let has_list = record.has(ZplAttribute::DaclAces) && acl::is_there(record);
        if has_list && !self.options().acl_is_discarded {
            let what = "not supported yet: changing the mode of a file with an NFSv4 access control list, unless the property \
                        'aclmode' is 'discard'";
            return Err(ZplError::Unsupported(what.into()));
        }
        record.put(ZplAttribute::Mode, u64::from(mode))?;
        put_acl(record, mode, kind == FileKind::Directory.mode_bits())?;
        let stale = ZnodeFlags::INHERIT_ACE | ZnodeFlags::ACL_OBJECT_ACE | ZnodeFlags::NO_EXECS_DENIED;
        record.put(ZplAttribute::Flags, ((flags - stale) | acl::flags(mode)).bits())?;
        match self.stored_xattr(node, posix_acl::ACCESS).await? {
            Some(acl) => Ok(Some(posix_acl::with_mode(&acl, mode)?)),
            None => Ok(None),
        }
    }
}

/// The record of attributes that a node has got, if there are any that records have.
fn record_of(node: &Node, change: &AttributeChange) -> Option<Record<'static>> {
    let mut mask = 0;
    for (is_asked, bit) in [
        (change.permissions.is_some(), SetAttr::MASK_MODE),
        (change.uid.is_some(), SetAttr::MASK_UID),
        (change.gid.is_some(), SetAttr::MASK_GID),
        (change.accessed.is_some(), SetAttr::MASK_ATIME),
        (change.modified.is_some(), SetAttr::MASK_MTIME),
    ] {
        mask |= if is_asked { bit } else { 0 };
    }
    if mask == 0 {
        return None;
    }
    Some(node.with(|record| {
        let words = |attribute| {
            let time = time(record, attribute);
            [time.seconds.cast_unsigned(), time.nanoseconds]
        };
        Record::SetAttr(Box::new(SetAttr {
            object: node.id,
            mask,
            mode: record.u64(ZplAttribute::Mode),
            uid: record.u64(ZplAttribute::Uid),
            gid: record.u64(ZplAttribute::Gid),
            size_bytes: record.u64(ZplAttribute::Size),
            access_time: words(ZplAttribute::Atime),
            modification_time: words(ZplAttribute::Mtime),
            xvattr: None,
            domains: FuidDomains::default(),
        }))
    }))
}

/// Puts a project into a record, where accounting finds it.
fn put_project(record: &mut SaRecord, node: &Node, project: u64) -> Result<(), ZplError> {
    if project > u64::from(u32::MAX) {
        return Err(ZplError::Invalid("a project of more than 32 bits"));
    }
    if project == 0 && !record.has(ZplAttribute::Projid) {
        return Ok(());
    }
    if !record.is_usual() {
        let what = format!("not supported yet: a project for object {}, whose attributes are in an old order", node.id);
        return Err(ZplError::Unsupported(what));
    }
    record.put(ZplAttribute::Projid, project)?;
    Ok(record.put(ZplAttribute::Flags, (record.flags() | ZnodeFlags::PROJECT_ID).bits())?)
}
