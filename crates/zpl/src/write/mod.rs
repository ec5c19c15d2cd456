//! Writing file systems: making one, or opening one that exists, and files and directories in it.
//!
//! A file is an object with its attributes in the bonus, in the order in which OpenZFS packs them, so that what it reads
//! from fixed places (owner, generation, project) is there. A directory is a ZAP from names to objects with their type in
//! the upper bits.
//!
//! Everything here is done by one caller at a time: [`FileSystemMut`] is not shared.

mod existing;

use cenote_dmu::sa::{SaForm, SaHandle, SaRecord, SaTables, bonus_room_bytes};
use cenote_dmu::{DmuError, DmuErrorKind, Object, ObjectSpec, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::nvlist::{NvList, NvString, NvValue};
use cenote_format::sa::ZplAttribute;
use cenote_format::zap::ZapValue;
use cenote_format::znode::ZnodeFlags;
use cenote_format::zpl::{DirEntry, MASTER_NODE, master_node, version};

use crate::record::{Birth, Times};
use crate::{Time, ZplError, names};

/// The bits of a mode that say what a file is.
pub const MODE_KIND: u32 = 0o170_000;
/// Type bits of a mode: a directory.
pub const MODE_DIR: u32 = 0o040_000;
/// A regular file.
pub const MODE_FILE: u32 = 0o100_000;
/// A symbolic link.
pub const MODE_SYMLINK: u32 = 0o120_000;
/// A block device.
const MODE_BLOCK: u32 = 0o060_000;
/// A character device.
const MODE_CHARACTER: u32 = 0o020_000;

/// Extended attributes are kept in an attribute while all of them take no more than this, packed
/// (`DXATTR_MAX_SA_SIZE`); then in a hidden directory.
const XATTRS_MAX_BYTES: usize = 64 << 10;
/// And while no value is larger than this (`DXATTR_MAX_ENTRY_SIZE`).
const XATTR_MAX_BYTES: usize = 32 << 10;
/// The smallest block of a file.
const BLOCK_MIN_BYTES: u64 = 512;

/// Where extended attributes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// In an attribute of the file (`xattr=sa`), as far as they fit.
    #[default]
    Sa,
    /// As files in a hidden directory (`xattr=dir`).
    Dir,
}

/// A file system that is written.
pub struct FileSystemMut {
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

/// What a new file has that is not its content.
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
    /// What it names.
    pub object: ObjectId,
    /// That object's mode.
    pub mode: u32,
}

impl FileSystemMut {
    /// Makes an empty file system in a new objset: master node, attribute tables, delete queue, and a root directory.
    ///
    /// # Errors
    /// The objset is not new, or cannot be changed.
    pub async fn create(objset: &Objset, txg: Txg, root: &NodeSpec) -> Result<Self, ZplError> {
        let master = objset.create_at(txg, MASTER_NODE, &ObjectSpec::new(DmuType::MASTER_NODE, 512))?;
        let (tables, sa_master) = SaTables::create(objset, txg).await?;
        let queue = Zap::create_object(objset, txg, DmuType::UNLINKED_SET, &[]).await?;
        let mut this = Self {
            objset: objset.clone(),
            tables,
            root: ObjectId(0),
            xattrs: XattrMode::default(),
            record_bytes: 128 << 10,
            dnode_slots: 1,
        };
        let object = objset.create_object(txg, &node_spec(DmuType::DIRECTORY_CONTENTS, 512))?;
        this.root = object.id();
        Zap::create(object.clone())?.flush(txg).await?;
        let root = NodeSpec {
            mode: root.mode & 0o7777 | MODE_DIR,
            parent: this.root,
            links: 2,
            size_bytes: 2,
            ..root.clone()
        };
        this.set_attributes(txg, &object, &root).await?;
        let mut zap = Zap::create(master)?;
        for (name, value) in [
            (master_node::NORMALIZATION, 0),
            (master_node::UTF8_ONLY, 0),
            (master_node::CASE_SENSITIVITY, 0),
            (master_node::VERSION, version::CURRENT),
            (master_node::SA_ATTRIBUTES, sa_master.0),
            (master_node::UNLINKED_SET, queue.id().0),
            (master_node::ROOT, this.root.0),
        ] {
            zap.insert(name.as_bytes(), &ZapValue::from_u64(value)).await?;
        }
        zap.flush(txg).await?;
        Ok(this)
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
        let block = if is_dir { BLOCK_MIN_BYTES as u32 } else { self.block_bytes(size_bytes) };
        let spec = ObjectSpec { slots: self.dnode_slots, ..node_spec(kind, block) };
        Ok(self.objset.create_object(txg, &spec)?)
    }

    /// The block size of a file: one block while it fits a record.
    fn block_bytes(&self, size_bytes: u64) -> u32 {
        if size_bytes >= u64::from(self.record_bytes) {
            return self.record_bytes;
        }
        size_bytes.next_multiple_of(BLOCK_MIN_BYTES).max(BLOCK_MIN_BYTES) as u32
    }

    /// Writes a directory's entries, all of them, into an object that has none yet.
    ///
    /// # Errors
    /// Two have the same name, or a name cannot be one.
    pub async fn write_entries(&self, txg: Txg, directory: &Object, entries: &[NewEntry]) -> Result<(), ZplError> {
        let mut zap = Zap::create(directory.clone())?;
        for entry in entries {
            if entry.name.len() > names::NAME_MAX_BYTES {
                return Err(ZplError::NameTooLong);
            }
            zap.insert(&entry.name, &entry_value(directory, entry)?).await?;
        }
        zap.flush(txg).await?;
        Ok(())
    }

    /// Writes a node's attributes, all of them; extended ones too.
    ///
    /// # Errors
    /// They are too large.
    pub async fn set_attributes(&mut self, txg: Txg, object: &Object, node: &NodeSpec) -> Result<(), ZplError> {
        let packed = pack_xattrs(&node.xattrs);
        let fits =
            packed.len() <= XATTRS_MAX_BYTES && node.xattrs.iter().all(|(_, value)| value.len() <= XATTR_MAX_BYTES);
        if node.xattrs.is_empty() {
            return self.put_attributes(txg, object, node, Kept::Plain).await;
        }
        if self.xattrs == XattrMode::Sa && fits {
            return self.put_attributes(txg, object, node, Kept::Packed(packed)).await;
        }
        let directory = self.write_xattr_dir(txg, object.id(), node).await?;
        self.put_attributes(txg, object, node, Kept::Dir(directory)).await
    }

    /// Makes the hidden directory of a node's extended attributes.
    async fn write_xattr_dir(&mut self, txg: Txg, owner: ObjectId, node: &NodeSpec) -> Result<ObjectId, ZplError> {
        let directory = self.new_node(txg, MODE_DIR, 0)?;
        let mut entries = Vec::new();
        for (name, value) in &node.xattrs {
            let mode = MODE_FILE | 0o644;
            let file = self.new_node(txg, mode, value.len() as u64)?;
            file.write(txg, 0, value).await?;
            let spec = hidden(node, mode, directory.id(), value.len() as u64, 1);
            self.put_attributes(txg, &file, &spec, Kept::Hidden).await?;
            entries.push(NewEntry { name: name.clone(), object: file.id(), mode });
        }
        self.write_entries(txg, &directory, &entries).await?;
        let spec = hidden(node, MODE_DIR | 0o1777, owner, entries.len() as u64 + 2, 2);
        self.put_attributes(txg, &directory, &spec, Kept::Hidden).await?;
        Ok(directory.id())
    }

    async fn put_attributes(&mut self, txg: Txg, object: &Object, node: &NodeSpec, kept: Kept) -> Result<(), ZplError> {
        let kind = node.mode & MODE_KIND;
        let time = |[seconds, nanoseconds]: [u64; 2]| Time { seconds: seconds.cast_signed(), nanoseconds };
        let birth = Birth {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            project: 0,
            parent: node.parent,
            size_bytes: node.size_bytes,
            links: node.links,
            flags: if matches!(kept, Kept::Hidden) { ZnodeFlags::XATTR } else { ZnodeFlags::empty() },
            rdev: matches!(kind, MODE_BLOCK | MODE_CHARACTER).then_some(node.rdev),
            times: Times {
                accessed: time(node.atime),
                modified: time(node.mtime),
                changed: time(node.ctime),
                created: time(node.crtime),
            },
        };
        let mut record = birth.record(&self.tables)?;
        record.put(ZplAttribute::Gen, txg.0)?;
        if let Some(target) = &node.target {
            record.set(ZplAttribute::Symlink, target)?;
        }
        match kept {
            Kept::Dir(directory) => record.put(ZplAttribute::Xattr, directory.0)?,
            Kept::Packed(packed) => record.set(ZplAttribute::Dxattr, &packed)?,
            Kept::Plain | Kept::Hidden => {}
        }
        let form = self.form(txg, object, &record).await?;
        SaHandle::create(object, txg, record, form)?;
        Ok(())
    }

    /// How a record is packed, with layouts added that are missing.
    async fn form(&self, txg: Txg, object: &Object, record: &SaRecord) -> Result<SaForm, ZplError> {
        let room = bonus_room_bytes(object.phys().slots() as u8);
        let fail = |kind: DmuErrorKind| DmuError::new(self.objset.id(), object.id(), kind);
        match self.tables.form(room, record).map_err(fail)? {
            Some(form) => Ok(form),
            None => Ok(self.tables.adding().await?.form(txg, room, record).await.map_err(fail)?),
        }
    }
}

/// An entry as a directory holds it.
fn entry_value(directory: &Object, entry: &NewEntry) -> Result<ZapValue, ZplError> {
    let word = DirEntry { object: entry.object, kind: (entry.mode >> 12 & 0xf) as u8 }.word();
    Ok(ZapValue::from_u64(word.map_err(|error| ZplError::Format { object: directory.id().0, error })?))
}

const fn is_directory(mode: u32) -> bool {
    mode & MODE_KIND == MODE_DIR
}

/// How a node's extended attributes are kept.
enum Kept {
    /// It has none.
    Plain,
    /// It has none, and is a part of another's.
    Hidden,
    /// In an attribute.
    Packed(Vec<u8>),
    /// In a hidden directory.
    Dir(ObjectId),
}

/// A node of a hidden directory, with its owner's times.
fn hidden(owner: &NodeSpec, mode: u32, parent: ObjectId, size_bytes: u64, links: u64) -> NodeSpec {
    NodeSpec { mode, parent, size_bytes, links, target: None, xattrs: Vec::new(), ..owner.clone() }
}

fn pack_xattrs(xattrs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut list = NvList::new();
    for (name, value) in xattrs {
        list.push(NvString::new(name), NvValue::ByteArray(value.clone()));
    }
    list.emit_xdr()
}

/// An object with system attributes.
fn node_spec(kind: DmuType, block_bytes: u32) -> ObjectSpec {
    ObjectSpec::new(kind, block_bytes).with_bonus(DmuType::SA, Vec::new())
}
