//! Extended attributes of files in use: in one attribute of the file as long as they fit, else as files in a hidden
//! directory. Whatever form a name is found in is read; a name that is set is in one form only from then on.

use cenote_dmu::sa::SaRecord;
use cenote_dmu::tx::Cost;
use cenote_format::ids::ObjectId;
use cenote_format::nvlist::{NvList, NvString, NvValue};
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;

use super::LiveFileSystem;
use super::create::MODE_SETGID;
use super::node::Node;
use super::posix_acl;
use super::xattr_dir::DirEdit;
use crate::acl;
use crate::record::{MODE_KIND, changed, put_acl};
use crate::write::XattrMode;
use crate::xattr::{NAMESPACES, linux_name};
use crate::{FileKind, ZplError};

/// All of them together in an attribute, packed, at most: the length of an attribute has 16 bits.
const PACKED_MAX_BYTES: usize = (64 << 10) - 4;
/// A value in an attribute at most (`DXATTR_MAX_ENTRY_SIZE`).
const VALUE_MAX_BYTES: usize = 32 << 10;
/// A value at most, as Linux has it (`XATTR_SIZE_MAX`).
const VALUE_LIMIT_BYTES: usize = 64 << 10;
/// A name at most (`XATTR_NAME_MAX`).
const NAME_MAX_BYTES: usize = 255;

/// What must be so for an attribute to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrSet {
    /// Nothing.
    #[default]
    Any,
    /// It is not there (`XATTR_CREATE`).
    Create,
    /// It is there (`XATTR_REPLACE`).
    Replace,
}

/// Names, as stored, with values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Attributes packed into one.
pub(super) fn pack(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut list = NvList::new();
    for (name, value) in pairs {
        list.push(NvString::new(name), NvValue::ByteArray(value.clone()));
    }
    list.emit_xdr()
}

fn unpack(object: ObjectId, record: &SaRecord) -> Result<Pairs, ZplError> {
    let packed = record.bytes(ZplAttribute::Dxattr).filter(|packed| !packed.is_empty());
    let Some(packed) = packed else { return Ok(Pairs::new()) };
    let list = NvList::parse(packed).map_err(|error| ZplError::Format { object: object.0, error })?;
    let pair = |(name, value): (&NvString, &NvValue)| match value {
        NvValue::ByteArray(value) => Ok((name.as_bytes().to_vec(), value.clone())),
        _ => Err(ZplError::Corrupt { object: object.0, what: "an extended attribute that is not bytes".into() }),
    };
    list.iter().map(pair).collect()
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

/// Refuses names of the namespace `system` but those of the two POSIX access control lists: others would be kept as if somebody
/// obeyed them.
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

impl LiveFileSystem {
    /// The value of an attribute that is stored in either form.
    pub(super) async fn stored_xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        let pairs = unpack(node.id, &node.record())?;
        if let Some((_, value)) = pairs.into_iter().find(|(stored, _)| linux_name(stored) == name) {
            return Ok(Some(value));
        }
        self.xattr_in_dir(node, name).await
    }

    /// The list that a directory hands down.
    pub(super) async fn default_acl(&self, directory: &Node) -> Result<Option<Vec<u8>>, ZplError> {
        self.stored_xattr(directory, posix_acl::DEFAULT).await
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// It is not there.
    pub async fn xattr(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, ZplError> {
        let node = self.node(id).await?;
        let _shared = node.lock.read().await;
        self.stored_xattr(&node, name).await?.ok_or(ZplError::NoXattr)
    }

    /// The names of all extended attributes, sorted.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn xattr_names(&self, id: ObjectId) -> Result<Vec<Vec<u8>>, ZplError> {
        let node = self.node(id).await?;
        let _shared = node.lock.read().await;
        let mut names: Vec<Vec<u8>> =
            unpack(id, &node.record())?.iter().map(|(stored, _)| linux_name(stored)).collect();
        names.extend(self.xattr_dir_names(&node).await?.iter().map(|stored| linux_name(stored)));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Sets an extended attribute. An access control list changes the mode too.
    ///
    /// # Errors
    /// It is (or is not) there though it must not be (or must), it is too large, or a flag forbids it.
    pub async fn set_xattr(&self, id: ObjectId, name: &[u8], value: &[u8], how: XattrSet) -> Result<(), ZplError> {
        self.set_xattr_dropping(id, name, value, how, 0).await
    }

    /// The same, asked for by somebody who is not in the file's group: an access control list takes set-group-id away.
    ///
    /// # Errors
    /// As [`Self::set_xattr`].
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
        let _lock = node.lock.write().await;
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
            record.put(ZplAttribute::Mode, u64::from(mode))?;
            put_acl(&mut record, mode, node.is_directory())?;
            let flags = (record.flags() - ZnodeFlags::NO_EXECS_DENIED) | acl::flags(mode);
            record.put(ZplAttribute::Flags, flags.bits())?;
            value = list;
        } else if name == posix_acl::DEFAULT {
            posix_acl::check(value.as_deref().unwrap_or_default())?;
            if node.mode() & MODE_KIND != FileKind::Directory.mode_bits() {
                return Err(ZplError::Invalid("only directories hand an access control list down"));
            }
        }
        self.put_xattr(&node, record, name, value).await
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    /// It is not there, or a flag forbids it.
    pub async fn remove_xattr(&self, id: ObjectId, name: &[u8]) -> Result<(), ZplError> {
        check_name(name)?;
        let node = self.node(id).await?;
        let _lock = node.lock.write().await;
        check_changeable(&node)?;
        if self.stored_xattr(&node, name).await?.is_none() {
            return Err(ZplError::NoXattr);
        }
        self.put_xattr(&node, node.record(), name, None).await
    }

    async fn put_xattr(
        &self,
        node: &Node,
        mut record: SaRecord,
        name: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<(), ZplError> {
        changed(&mut record, self.now())?;
        let edit = self.stage_xattr(node, &mut record, name, value).await?;
        let plan = self.plan(node, record).await?;
        let bytes = edit.as_ref().map_or(0, |edit| edit.bytes());
        let tx = self
            .source()
            .begin(Cost::default().with_repack().with_entries(2).with_objects(2).with_bytes(bytes))
            .await?;
        let plan = match edit {
            Some(edit) => self.apply_edit(edit, plan, tx.txg()).await?,
            None => plan,
        };
        node.store(tx.txg(), plan)
    }

    /// Puts a value into a record if it may and fits, and says what is to change in the hidden directory.
    pub(super) async fn stage_xattr(
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
