//! Making files, directories, links and devices.

use std::sync::Arc;

use cenote_dmu::sa::{SaForm, SaHandle, SaRecord, bonus_room_bytes};
use cenote_dmu::tx::Cost;
use cenote_dmu::{Object, ObjectSpec, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_format::zil::{Create, CreateKind, FuidDomains, Tx as Record};
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::boxed;

use super::entry::{check_name_in, entry_value};
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::posix_acl;
use crate::record::{BLOCK_MIN_BYTES, Birth, MODE_SETGID, Origin, Times, time, touch};
use crate::xattr::{unpack, xattr_record};
use crate::{Attributes, FileKind, Time, ZplError};

/// The longest target of a link.
const TARGET_MAX_BYTES: usize = 4095;

/// The properties of a node to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permission bits.
    pub mode: u32,
    /// Permission bits that are not to be set, unless the directory has a default access control list.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands down its own.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// A symbolic link's target.
    pub target: Option<Vec<u8>>,
}

/// The record of a node that was made.
fn made<'a>(directory: ObjectId, name: &'a [u8], new: &'a NewNode, slots: u8, node: &Node) -> Record<'a> {
    let kind = match (&new.target, node.is_directory()) {
        (Some(target), _) => CreateKind::Symlink { target: target.into() },
        (None, true) => CreateKind::Directory,
        (None, false) => CreateKind::File,
    };
    node.with(|record| {
        let created = time(record, ZplAttribute::Crtime);
        Record::Create(Box::new(Create {
            kind,
            directory,
            object: node.id,
            dnode_slots: u16::from(slots),
            mode: record.u64(ZplAttribute::Mode),
            uid: record.u64(ZplAttribute::Uid),
            gid: record.u64(ZplAttribute::Gid),
            generation: record.u64(ZplAttribute::Gen),
            creation_time: [created.seconds.cast_unsigned(), created.nanoseconds],
            rdev: record.u64(ZplAttribute::Rdev),
            xvattr: None,
            acl: None,
            domains: FuidDomains::default(),
            name: name.into(),
        }))
    })
}

/// A node that is ready to be made, but whose txg has not been assigned yet.
pub(crate) struct Unborn {
    record: SaRecord,
    form: SaForm,
    spec: ObjectSpec,
    origin: Option<Origin>,
}

impl FileSystem {
    /// Makes a node and its name.
    ///
    /// # Errors
    /// The name is there already or cannot be one, or the directory is none or takes nothing new.
    #[boxed]
    pub async fn create(&self, parent: ObjectId, name: &[u8], new: &NewNode) -> Result<Attributes, ZplError> {
        let (node, _) = self.create_node(parent, name, new, false, None).await?;
        node.attributes()
    }

    /// Makes a node; opened as a handle where that is asked for. One that is made again is what it was, and inherits nothing.
    #[boxed]
    pub(crate) async fn create_node(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewNode,
        open: bool,
        origin: Option<Origin>,
    ) -> Result<(Arc<Node>, Txg), ZplError> {
        let kind = FileKind::of_mode(u64::from(new.mode)).ok_or(ZplError::Invalid("a mode that names no kind"))?;
        if (kind == FileKind::Symlink) != new.target.is_some() {
            return Err(ZplError::Invalid("symbolic links have a target, and nothing else has"));
        }
        if new.target.as_ref().is_some_and(|target| target.is_empty() || target.len() > TARGET_MAX_BYTES) {
            return Err(ZplError::NameTooLong);
        }
        let parent = self.node(parent).await?;
        check_name_in(&parent, name)?;
        let _parent = parent.in_use()?.lock.write().await;
        self.check_parent(&parent)?;
        let mut zap = self.in_use()?.zaps.open(&parent.object).await?;
        if zap.lookup(name).await?.is_some() {
            self.in_use()?.zaps.keep(zap);
            return Err(ZplError::Exists);
        }
        let now = self.now();
        let unborn = self.unborn(&parent, kind, new, now, origin).await?;
        let slots = unborn.spec.slots;
        self.shared.objset.look_for_numbers().await?;
        let cost = Cost::default().with_entries(2).with_repack().with_objects(1);
        let mut tx = self.begin(cost).await?;
        let txg = tx.txg();
        let is_dir = kind == FileKind::Directory;
        let object = self.object_of(&unborn, txg)?;
        let finish = async {
            let mode = unborn.mode();
            let attributes = unborn.attributes(&object, txg)?;
            if is_dir {
                Zap::create(object.clone())?.flush(txg).await?;
            }
            // The look-up has read what this changes. If it cannot be, the object goes again.
            zap.insert(name, &entry_value(object.id(), mode)?).await?;
            parent.update(txg, |record| {
                record.put(ZplAttribute::Size, record.u64(ZplAttribute::Size).saturating_add(1))?;
                let links = record.u64(ZplAttribute::Links).saturating_add(u64::from(is_dir));
                record.put(ZplAttribute::Links, links)?;
                touch(record, now)
            })?;
            let entries = parent.in_use()?.entries.write().await;
            zap.flush(txg).await?;
            drop(entries);
            self.in_use()?.zaps.keep(zap);
            let node = self.in_use()?.nodes.add(object.clone(), attributes).await;
            assert_eq!(node.id, object.id(), "a new node has its object's number");
            debug_assert_eq!(node.is_directory(), is_dir, "a new node is what was asked for");
            if open {
                node.count_open(true);
            }
            Ok::<_, ZplError>(node)
        };
        match finish.await {
            Ok(node) => {
                let inherited = node.with(|record| unpack(node.id, record))?;
                if inherited.iter().all(|(_, list)| tx.may_log_xattr(Some(list))) {
                    tx.log(made(parent.id, name, new, slots, &node));
                    for (name, list) in &inherited {
                        tx.log_with_names(xattr_record(node.id, name, Some(list)));
                    }
                }
                Ok((node, txg))
            }
            Err(error) => {
                object.free(txg);
                Err(error)
            }
        }
    }

    /// Prepares a new node of a directory, before a txg is assigned.
    pub(crate) async fn unborn(
        &self,
        parent: &Node,
        kind: FileKind,
        new: &NewNode,
        now: Time,
        origin: Option<Origin>,
    ) -> Result<Unborn, ZplError> {
        let record = self.child_record(parent, kind, new, now, origin).await?;
        let slots = origin.map_or(self.options().dnode_slots, |origin| origin.slots);
        let form = self.form(bonus_room_bytes(slots), &record).await?;
        let is_dir = kind == FileKind::Directory;
        let contents = if is_dir { DmuType::DIRECTORY_CONTENTS } else { DmuType::PLAIN_FILE_CONTENTS };
        let spec = ObjectSpec::new(contents, BLOCK_MIN_BYTES).with_bonus(DmuType::SA, Vec::new());
        Ok(Unborn { record, form, spec: ObjectSpec { slots, ..spec }, origin })
    }

    /// Allocates its object in a txg. If the node is not made after all, the caller frees the object.
    pub(crate) fn object_of(&self, unborn: &Unborn, txg: Txg) -> Result<Object, ZplError> {
        Ok(match unborn.origin {
            Some(origin) => self.shared.objset.create_at(txg, origin.object, &unborn.spec)?,
            None => self.shared.objset.create_object(txg, &unborn.spec)?,
        })
    }

    /// # Errors
    /// Nothing can be put into this directory.
    pub(crate) fn check_parent(&self, parent: &Node) -> Result<(), ZplError> {
        parent.check_there()?;
        parent.check_kind(FileKind::Directory)?;
        let (links, flags) = parent.with(|record| (record.u64(ZplAttribute::Links), record.flags()));
        if links == 0 {
            return Err(ZplError::NoEntry);
        }
        if self.obeys_flags() && flags.contains(ZnodeFlags::IMMUTABLE) {
            return Err(ZplError::NotPermitted("immutable"));
        }
        Ok(())
    }

    /// A new node's attributes, with those that it inherits. Files in a hidden directory inherit the flag `ZFS_XATTR` from it.
    async fn child_record(
        &self,
        parent: &Node,
        kind: FileKind,
        new: &NewNode,
        now: Time,
        origin: Option<Origin>,
    ) -> Result<SaRecord, ZplError> {
        let above = parent.record();
        if above.flags().contains(ZnodeFlags::INHERIT_ACE) {
            let what = "not supported yet: new files in a directory whose NFSv4 access control list is inherited";
            return Err(ZplError::Unsupported(what.into()));
        }
        let is_dir = kind == FileKind::Directory;
        let parent_mode = above.u64(ZplAttribute::Mode) as u32;
        let hands_group_down = parent_mode & MODE_SETGID != 0 && origin.is_none();
        let acls = match self.options().has_posix_acls && kind != FileKind::Symlink && origin.is_none() {
            true => self.default_acl(parent).await?,
            false => None,
        };
        let mut mode = new.mode;
        let mut inherited = Vec::new();
        match acls {
            Some(default) => (mode, inherited) = posix_acl::inherit(&default, mode, is_dir)?,
            None => mode &= !(new.umask & 0o777),
        }
        if hands_group_down && is_dir {
            mode |= MODE_SETGID;
        }
        let mut flags = above.flags() & ZnodeFlags::XATTR;
        let mut project = 0;
        // Symbolic links, devices, pipes and sockets do not inherit a project.
        if above.flags().contains(ZnodeFlags::PROJECT_INHERIT) && matches!(kind, FileKind::File | FileKind::Directory) {
            project = above.u64(ZplAttribute::Projid);
            if is_dir {
                flags |= ZnodeFlags::PROJECT_INHERIT;
            }
            if project != 0 {
                flags |= ZnodeFlags::PROJECT_ID;
            }
        }
        let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        let (major, minor) = new.device;
        if is_device && (major >= 1 << 12 || minor >= 1 << 20) {
            return Err(ZplError::Invalid("a device number of more than 12 and 20 bits"));
        }
        let rdev = is_device.then(|| u64::from(major) << 20 | u64::from(minor));
        let birth = Birth {
            mode,
            uid: u64::from(new.uid),
            gid: if hands_group_down { above.u64(ZplAttribute::Gid) } else { u64::from(new.gid) },
            project,
            parent: parent.id,
            size_bytes: if is_dir { 2 } else { new.target.as_ref().map_or(0, |target| target.len() as u64) },
            links: if is_dir { 2 } else { 1 },
            flags,
            rdev,
            times: Times::all(origin.map_or(now, |origin| origin.created)),
        };
        let mut record = birth.record(&self.shared.master.tables)?;
        if let Some(target) = &new.target {
            record.set(ZplAttribute::Symlink, target)?;
        }
        if !inherited.is_empty() {
            record.set(ZplAttribute::Dxattr, &crate::xattr::pack(&inherited))?;
        }
        Ok(record)
    }
}

impl Unborn {
    /// Writes the attributes to its object.
    pub(crate) fn attributes(self, object: &Object, txg: Txg) -> Result<SaHandle, ZplError> {
        let Self { mut record, form, origin, .. } = self;
        record.put(ZplAttribute::Gen, origin.map_or(txg.0, |origin| origin.generation))?;
        Ok(SaHandle::create(object, txg, record, form)?)
    }

    /// Its mode.
    pub(crate) fn mode(&self) -> u32 {
        self.record.u64(ZplAttribute::Mode) as u32
    }
}
