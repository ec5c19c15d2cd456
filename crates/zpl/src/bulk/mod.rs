//! Filling a file system in bulk: making one, or opening one that exists, and writing files and directories whose attributes are known.
//!
//! A file is an object with its attributes in the bonus, in the order in which OpenZFS packs them, so that what it reads
//! from fixed places (owner, generation, project) is there. A directory is a ZAP from names to objects with their type in
//! the upper bits.
//!
//! Everything here is done by one caller at a time, in txgs that the caller holds: [`BulkWriter`] is not shared, and no node, lock or
//! delete queue is in its way. The same calls make the same objects, byte for byte. Records, tables and the master node are those of
//! [`FileSystem`](crate::FileSystem), which changes what is in use.

mod directory;

use cenote_dmu::sa::{SaHandle, SaRecord, SaTables, bonus_room_bytes};
use cenote_dmu::{DmuError, DmuErrorKind, Kinds, Object, ObjectSpec, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::objset::ObjsetFlags;
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::boxed;

use crate::filesystem::{Master, NewMaster, XattrMode};
use crate::record::{BLOCK_MIN_BYTES, Birth, Times, is_device};
use crate::xattr::{HIDDEN_DIR_MODE, HIDDEN_FILE_MODE, PACKED_MAX_BYTES, VALUE_MAX_BYTES, hidden_birth, pack};
use crate::{FileKind, Time, ZplError};

/// The bits of a mode that say what a file is.
pub const MODE_KIND: u32 = 0o170_000;
/// Type bits of a mode: a directory.
pub const MODE_DIR: u32 = FileKind::Directory.mode_bits();
/// A regular file.
pub const MODE_FILE: u32 = FileKind::File.mode_bits();
/// A symbolic link.
pub const MODE_SYMLINK: u32 = FileKind::Symlink.mode_bits();

/// A file system that one caller fills.
pub struct BulkWriter {
    objset: Objset,
    tables: SaTables,
    root: ObjectId,
    /// Where extended attributes go.
    pub xattrs: XattrMode,
    /// The block size of files that are larger (`recordsize`).
    pub record_bytes: u32,
    /// Slots of new dnodes (`dnodesize`).
    pub dnode_slots: u8,
}

/// The attributes of a new file: all but its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSpec {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Last access: seconds and nanoseconds since 1970.
    pub atime: [u64; 2],
    /// Last modification.
    pub mtime: [u64; 2],
    /// Last change of attributes.
    pub ctime: [u64; 2],
    /// Creation.
    pub crtime: [u64; 2],
    /// The directory that holds it.
    pub parent: ObjectId,
    /// Bytes; of a directory the number of entries and 2 more.
    pub size_bytes: u64,
    /// Links.
    pub links: u64,
    /// Device number of a device, as Linux has it: 12 bits of major above 20 of minor.
    pub rdev: u64,
    /// A symbolic link's target.
    pub target: Option<Vec<u8>>,
    /// Extended attributes, POSIX ACLs among them: name with namespace, and value; sorted by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An entry of a directory that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The object that it names.
    pub object: ObjectId,
    /// That object's mode.
    pub mode: u32,
}

impl BulkWriter {
    fn new(objset: &Objset, tables: SaTables, root: ObjectId) -> Self {
        let (objset, xattrs) = (objset.clone(), XattrMode::default());
        Self { objset, tables, root, xattrs, record_bytes: 128 << 10, dnode_slots: 1 }
    }

    /// Has the files' data pass by the cache, from the next sync on: a program that only fills a file system reads none of it again.
    pub fn keep_no_data(&self) {
        let mut policy = self.objset.policy();
        policy.caching.primary = Kinds::Metadata;
        self.objset.set_policy(policy);
    }

    /// Makes an empty file system in a new objset: master node, attribute tables, delete queue, and a root directory.
    ///
    /// # Errors
    /// The objset is not new, or cannot be changed.
    #[boxed]
    pub async fn create(objset: &Objset, txg: Txg, root: &NodeSpec) -> Result<Self, ZplError> {
        let master = NewMaster::create(objset, txg).await?;
        let object = objset.create_object(txg, &node_spec(DmuType::DIRECTORY_CONTENTS, BLOCK_MIN_BYTES))?;
        let mut this = Self::new(objset, master.tables.clone(), object.id());
        Zap::create(object.clone())?.flush(txg).await?;
        let root = NodeSpec {
            mode: root.mode & 0o7777 | MODE_DIR,
            parent: this.root,
            links: 2,
            size_bytes: 2,
            ..root.clone()
        };
        this.set_attributes(txg, &object, &root).await?;
        master.finish(txg, this.root).await?;
        Ok(this)
    }

    /// Opens the file system of an objset that is on disk.
    ///
    /// # Errors
    /// It is none, or one of a kind that cannot be added to yet.
    #[boxed]
    pub async fn open(objset: &Objset) -> Result<Self, ZplError> {
        let flags = objset.phys().flags;
        let has_accounts = objset.phys().userused_dnode.is_some();
        if has_accounts && !flags.contains(ObjsetFlags::USERACCOUNTING_COMPLETE) {
            let what = "not supported yet: adding files while the accounts of users are being made";
            return Err(ZplError::Unsupported(what.into()));
        }
        let master = Master::open(objset).await?;
        master.changeable()?;
        Ok(Self::new(objset, master.tables, master.root))
    }

    /// The root directory.
    #[must_use]
    pub const fn root(&self) -> ObjectId {
        self.root
    }

    /// The objset.
    #[must_use]
    pub const fn objset(&self) -> &Objset {
        &self.objset
    }

    /// Makes an object for a node of this mode; what it is called and what it holds comes later. `size_bytes` is what a
    /// regular file will hold, which decides on its block size.
    ///
    /// # Errors
    /// The objset cannot be changed.
    pub fn new_node(&self, txg: Txg, mode: u32, size_bytes: u64) -> Result<Object, ZplError> {
        let is_dir = mode & MODE_KIND == MODE_DIR;
        let kind = if is_dir { DmuType::DIRECTORY_CONTENTS } else { DmuType::PLAIN_FILE_CONTENTS };
        let block = if is_dir { BLOCK_MIN_BYTES } else { self.block_bytes(size_bytes) };
        let spec = ObjectSpec { slots: self.dnode_slots, ..node_spec(kind, block) };
        Ok(self.objset.create_object(txg, &spec)?)
    }

    /// The block size of a file: one block while it fits a record.
    fn block_bytes(&self, size_bytes: u64) -> u32 {
        if size_bytes >= u64::from(self.record_bytes) {
            return self.record_bytes;
        }
        let block = (size_bytes as u32).next_multiple_of(BLOCK_MIN_BYTES).max(BLOCK_MIN_BYTES);
        debug_assert!(u64::from(block) >= size_bytes, "a file that fits a record is one block");
        block
    }

    /// Writes a node's attributes, all of them; extended ones too.
    ///
    /// # Errors
    /// They are too large.
    #[boxed]
    pub async fn set_attributes(&mut self, txg: Txg, object: &Object, node: &NodeSpec) -> Result<(), ZplError> {
        let birth = node.birth();
        let mut record = birth.record(&self.tables)?;
        if let Some(target) = &node.target {
            record.set(ZplAttribute::Symlink, target)?;
        }
        if !node.xattrs.is_empty() {
            let packed = pack(&node.xattrs);
            let fits =
                packed.len() <= PACKED_MAX_BYTES && node.xattrs.iter().all(|(_, value)| value.len() <= VALUE_MAX_BYTES);
            if self.xattrs == XattrMode::Sa && fits {
                record.set(ZplAttribute::Dxattr, &packed)?;
            } else {
                let hidden = self.write_hidden(txg, object.id(), &record, birth.times, &node.xattrs).await?;
                record.put(ZplAttribute::Xattr, hidden.0)?;
            }
        }
        self.put(txg, object, record).await
    }

    /// Makes the hidden directory of a node's extended attributes, with its owner's times.
    async fn write_hidden(
        &mut self,
        txg: Txg,
        owner: ObjectId,
        record: &SaRecord,
        times: Times,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<ObjectId, ZplError> {
        let directory = self.new_node(txg, HIDDEN_DIR_MODE, 0)?;
        let mut entries = Vec::new();
        for (name, value) in xattrs {
            let size_bytes = value.len() as u64;
            let file = self.new_node(txg, HIDDEN_FILE_MODE, size_bytes)?;
            file.write(txg, 0, value).await?;
            let birth = hidden_birth(record, HIDDEN_FILE_MODE, directory.id(), size_bytes, 1, times);
            self.put(txg, &file, birth.record(&self.tables)?).await?;
            entries.push(NewEntry { name: name.clone(), object: file.id(), mode: HIDDEN_FILE_MODE });
        }
        self.write_entries(txg, &directory, &entries).await?;
        let birth = hidden_birth(record, HIDDEN_DIR_MODE, owner, entries.len() as u64 + 2, 2, times);
        self.put(txg, &directory, birth.record(&self.tables)?).await?;
        Ok(directory.id())
    }

    /// Gives a new object attributes, with layouts added that are missing.
    async fn put(&self, txg: Txg, object: &Object, mut record: SaRecord) -> Result<(), ZplError> {
        assert_ne!(txg, Txg(0), "a file's generation is the txg that made it");
        record.put(ZplAttribute::Gen, txg.0)?;
        let room = bonus_room_bytes(object.phys().slots() as u8);
        let fail = |kind: DmuErrorKind| DmuError::new(self.objset.id(), object.id(), kind);
        let form = match self.tables.form(room, &record).map_err(fail)? {
            Some(form) => form,
            None => self.tables.adding().await?.form(txg, room, &record).await.map_err(fail)?,
        };
        SaHandle::create(object, txg, record, form)?;
        Ok(())
    }
}

impl NodeSpec {
    fn birth(&self) -> Birth {
        let time = |[seconds, nanoseconds]: [u64; 2]| Time { seconds: seconds.cast_signed(), nanoseconds };
        Birth {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            project: 0,
            parent: self.parent,
            size_bytes: self.size_bytes,
            links: self.links,
            flags: ZnodeFlags::empty(),
            rdev: is_device(self.mode).then_some(self.rdev),
            times: Times {
                accessed: time(self.atime),
                modified: time(self.mtime),
                changed: time(self.ctime),
                created: time(self.crtime),
            },
        }
    }
}

/// An object with system attributes.
fn node_spec(kind: DmuType, block_bytes: u32) -> ObjectSpec {
    ObjectSpec::new(kind, block_bytes).with_bonus(DmuType::SA, Vec::new())
}
