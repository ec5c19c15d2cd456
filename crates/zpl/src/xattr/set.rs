//! Setting extended attributes.

use cenote_dmu::sa::SaRecord;
use cenote_dmu::tx::Cost;
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::zil::{SetSaXattr, Tx as Record};
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::boxed;

use super::hidden::DirEdit;
use super::{NAMESPACES, PACKED_MAX_BYTES, Pairs, VALUE_MAX_BYTES, linux_name, pack, unpack};
use crate::ZplError;
use crate::acl;
use crate::filesystem::FileSystem;
use crate::filesystem::XattrMode;
use crate::node::Node;
use crate::posix_acl;
use crate::record::{MODE_SETGID, changed, put_acl};

/// A value at most, as Linux has it (`XATTR_SIZE_MAX`).
const VALUE_LIMIT_BYTES: usize = 64 << 10;
/// A name at most (`XATTR_NAME_MAX`).
const NAME_MAX_BYTES: usize = 255;

/// The condition for setting an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrSet {
    /// None.
    #[default]
    Any,
    /// It is not there (`XATTR_CREATE`).
    Create,
    /// It is there (`XATTR_REPLACE`).
    Replace,
}

fn put_pairs(record: &mut SaRecord, pairs: &Pairs) -> Result<(), ZplError> {
    if pairs.is_empty() {
        record.remove(ZplAttribute::Dxattr);
        return Ok(());
    }
    Ok(record.set(ZplAttribute::Dxattr, &pack(pairs))?)
}

/// # Errors
/// It cannot be the name of an attribute.
fn check_name(name: &[u8]) -> Result<(), ZplError> {
    if name.len() > NAME_MAX_BYTES {
        return Err(ZplError::NameTooLong);
    }
    let in_namespace = NAMESPACES.iter().any(|space| name.len() > space.len() && name.starts_with(space));
    if !in_namespace {
        return Err(ZplError::Unsupported("extended attributes are of user, trusted, security or system".into()));
    }
    // A slash is a letter like any other: these are no names of a path, also where they stand in a hidden directory.
    if name.contains(&0) {
        return Err(ZplError::Invalid("such a name of an extended attribute"));
    }
    Ok(())
}

/// Refuses names of the namespace `system` but those of the two POSIX access control lists: others would be stored although they have no
/// effect.
fn check_settable(name: &[u8]) -> Result<(), ZplError> {
    check_name(name)?;
    if name.starts_with(b"system.") && name != posix_acl::ACCESS && name != posix_acl::DEFAULT {
        return Err(ZplError::Unsupported("of the namespace system only POSIX access control lists can be set".into()));
    }
    Ok(())
}

/// # Errors
/// A flag forbids changing the node's attributes.
fn check_changeable(node: &Node) -> Result<(), ZplError> {
    node.check_there()?;
    let fixed = ZnodeFlags::IMMUTABLE | ZnodeFlags::APPEND_ONLY;
    if node.with(|record| record.flags()).intersects(fixed) {
        return Err(ZplError::NotPermitted("immutable, or only to be appended to"));
    }
    Ok(())
}

/// Puts a mode into a record, with what says the same.
fn put_mode(record: &mut SaRecord, mode: u32, is_directory: bool) -> Result<(), ZplError> {
    record.put(ZplAttribute::Mode, u64::from(mode))?;
    put_acl(record, mode, is_directory)?;
    let flags = (record.flags() - ZnodeFlags::NO_EXECS_DENIED) | acl::flags(mode);
    record.put(ZplAttribute::Flags, flags.bits())?;
    Ok(())
}

/// The record of an attribute that has got a value, or was taken away.
pub(crate) fn xattr_record<'a>(object: ObjectId, name: &'a [u8], value: Option<&'a [u8]>) -> Record<'a> {
    Record::SetSaXattr(SetSaXattr { object, name: name.into(), value: value.unwrap_or_default().into() })
}

impl FileSystem {
    /// Sets an extended attribute. An access control list changes the mode too.
    ///
    /// # Errors
    /// It is (or is not) there though it must not be (or must), it is too large, or a flag forbids it.
    #[boxed]
    pub async fn set_xattr(&self, id: ObjectId, name: &[u8], value: &[u8], how: XattrSet) -> Result<(), ZplError> {
        self.set_xattr_dropping(id, name, value, how, 0).await
    }

    /// The same for a caller that is not in the file's group: an access control list takes set-group-id away.
    ///
    /// # Errors
    /// As [`Self::set_xattr`].
    #[boxed]
    pub async fn set_xattr_without_setgid(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<(), ZplError> {
        self.set_xattr_dropping(id, name, value, how, MODE_SETGID).await
    }

    async fn set_xattr_dropping(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        dropped: u32,
    ) -> Result<(), ZplError> {
        check_settable(name)?;
        if value.len() > VALUE_LIMIT_BYTES {
            return Err(ZplError::TooLarge);
        }
        let node = self.node(id).await?;
        let _lock = node.in_use()?.lock.write().await;
        check_changeable(&node)?;
        match (how, self.stored_xattr(&node, name).await?.is_some()) {
            (XattrSet::Create, true) => return Err(ZplError::Exists),
            (XattrSet::Replace, false) => return Err(ZplError::NoXattr),
            _ => {}
        }
        let mut record = node.record();
        let mut value = Some(value.to_vec());
        if name == posix_acl::ACCESS {
            let (bits, list) = posix_acl::to_mode(value.as_deref().unwrap_or_default())?;
            let mode = record.u64(ZplAttribute::Mode) as u32 & !(0o777 | dropped) | bits;
            put_mode(&mut record, mode, node.is_directory())?;
            value = list;
        } else if name == posix_acl::DEFAULT {
            posix_acl::check(value.as_deref().unwrap_or_default())?;
            if !node.is_directory() {
                return Err(ZplError::Invalid("only directories hand an access control list down"));
            }
        }
        self.put_xattr(&node, record, name, value).await
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    /// It is not there, or a flag forbids it.
    #[boxed]
    pub async fn remove_xattr(&self, id: ObjectId, name: &[u8]) -> Result<(), ZplError> {
        check_name(name)?;
        let node = self.node(id).await?;
        let _lock = node.in_use()?.lock.write().await;
        check_changeable(&node)?;
        if self.stored_xattr(&node, name).await?.is_none() {
            return Err(ZplError::NoXattr);
        }
        self.put_xattr(&node, node.record(), name, None).await
    }

    /// Replays `TX_SETSAXATTR`: sets an attribute in the packed list, or removes it if the value is empty. Permissions were checked when the record
    /// was made. Attributes in a hidden directory have records of their own. An access control list also changes the mode: logs of ours have a
    /// separate record for that, logs of OpenZFS have none.
    pub(crate) async fn replay_xattr(&self, id: ObjectId, stored: &[u8], value: &[u8]) -> Result<(), ZplError> {
        let node = self.node(id).await?;
        let _lock = node.in_use()?.lock.write().await;
        node.check_there()?;
        let name = linux_name(stored);
        let mut record = node.record();
        let mut pairs = unpack(node.id, &record)?;
        pairs.retain(|(stored, _)| linux_name(stored) != name);
        if !value.is_empty() {
            pairs.push((name.to_vec(), value.to_vec()));
        }
        if pack(&pairs).len() > PACKED_MAX_BYTES {
            return Err(ZplError::NoSpace);
        }
        put_pairs(&mut record, &pairs)?;
        if name == posix_acl::ACCESS
            && !value.is_empty()
            && let Ok((bits, _)) = posix_acl::to_mode(value)
        {
            let mode = record.u64(ZplAttribute::Mode) as u32 & !0o777 | bits;
            put_mode(&mut record, mode, node.is_directory())?;
        }
        changed(&mut record, self.now())?;
        let plan = self.plan(&node, record).await?;
        let tx = self.begin(Cost::default().with_repack()).await?;
        node.store(tx.txg(), plan)
    }

    async fn put_xattr(
        &self,
        node: &Node,
        mut record: SaRecord,
        name: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<(), ZplError> {
        changed(&mut record, self.now())?;
        let has_mode = record.u64(ZplAttribute::Mode) != node.word(ZplAttribute::Mode);
        let logged = value.clone();
        let edit = self.stage_xattr(node, &mut record, name, value).await?;
        let plan = self.plan(node, record).await?;
        let bytes = edit.as_ref().map_or(0, |edit| edit.bytes());
        let cost = Cost::default().with_repack().with_entries(2).with_objects(2).with_bytes(bytes);
        let mut tx = self.begin(cost).await?;
        let is_logged = edit.is_none() && tx.may_log_xattr(logged.as_deref());
        let plan = match edit {
            Some(edit) => self.apply_edit(edit, plan, tx.txg()).await?,
            None => plan,
        };
        node.store(tx.txg(), plan)?;
        if is_logged {
            if has_mode {
                tx.log(self.mode_record(node));
            }
            tx.log(xattr_record(node.id, name, logged.as_deref()));
        }
        Ok(())
    }

    /// Puts a value into a record if it may and fits, and says what is to change in the hidden directory.
    pub(crate) async fn stage_xattr(
        &self,
        node: &Node,
        record: &mut SaRecord,
        name: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<Option<DirEdit>, ZplError> {
        let mut pairs = unpack(node.id, record)?;
        pairs.retain(|(stored, _)| linux_name(stored) != name);
        let is_there = self.xattr_in_dir(node, name).await?.is_some();
        let Some(value) = value else {
            put_pairs(record, &pairs)?;
            return if is_there { self.stage_dir(node, record, name, None).await.map(Some) } else { Ok(None) };
        };
        if self.options().xattrs == XattrMode::Sa && value.len() <= VALUE_MAX_BYTES {
            let mut all = pairs.clone();
            all.push((name.to_vec(), value.clone()));
            let mut fuller = record.clone();
            let packed = pack(&all);
            if packed.len() <= PACKED_MAX_BYTES {
                fuller.set(ZplAttribute::Dxattr, &packed)?;
                // With all else that the file has it may still be more than a spill block holds.
                if self.plan(node, fuller.clone()).await.is_ok() {
                    *record = fuller;
                    return if is_there { self.stage_dir(node, record, name, None).await.map(Some) } else { Ok(None) };
                }
            }
        }
        put_pairs(record, &pairs)?;
        self.stage_dir(node, record, name, Some(value)).await.map(Some)
    }
}
