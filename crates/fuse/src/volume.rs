//! One dataset or snapshot of a mount, opened: its file system and the properties that a mount obeys.

use cenote_dsl::{Dataset, DslError};
use cenote_spa::View;
use cenote_zpl::{Attributes, FileSystem, Properties, Snapdir, Time, ZplError};
use thiserror::Error;

use crate::node::Place;
use crate::server::{Errno, Stat};

/// Why a dataset cannot be opened for a mount.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Below: names, properties, keys.
    #[error("{0}")]
    Dsl(#[from] DslError),
    /// Below: the file system.
    #[error("cannot open '{0}': {1}")]
    Zpl(String, ZplError),
    /// Its key is not loaded.
    #[error("cannot mount '{0}': its key is not loaded")]
    KeyNotLoaded(String),
    /// It is half received or half destroyed.
    #[error("cannot mount '{0}': it is inconsistent (a receive or destroy was not completed)")]
    Inconsistent(String),
    /// It has nothing to show.
    #[error("cannot mount '{0}': it has no contents")]
    Empty(String),
}

impl OpenError {
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Dsl(DslError::NoSuchDataset(_) | DslError::BadName { .. }) => Errno::NOENT,
            Self::Dsl(_) => Errno::IO,
            Self::Zpl(_, error) => errno(error),
            Self::KeyNotLoaded(_) => Errno::ACCESS,
            Self::Inconsistent(_) => Errno::BUSY,
            Self::Empty(_) => Errno::NODATA,
        }
    }
}

pub(crate) fn errno(error: &ZplError) -> Errno {
    Errno::from_raw_os_error(error.errno() as i32)
}

/// A dataset or snapshot, opened.
pub(crate) struct Volume {
    pub(crate) slot: u16,
    pub(crate) filesystem: FileSystem,
    pub(crate) dataset: Dataset,
    pub(crate) snapdir: Snapdir,
    /// Whether POSIX ACLs are in force (`acltype=posix`).
    pub(crate) has_acls: bool,
    /// Whether `user.` and `trusted.` attributes are shown (`xattr`).
    pub(crate) has_xattrs: bool,
    pub(crate) record_size_bytes: u32,
}

impl Volume {
    pub(crate) async fn open(pool: &View, dataset: Dataset, slot: u16) -> Result<Self, OpenError> {
        let dsl = pool.dsl();
        let name = dataset.name();
        if dataset.is_inconsistent() {
            return Err(OpenError::Inconsistent(name));
        }
        if dsl.encryption(&dataset.dir).await?.is_some_and(|encryption| !encryption.is_loaded) {
            return Err(OpenError::KeyNotLoaded(name));
        }
        let objset = dsl.open(&dataset).await?.ok_or_else(|| OpenError::Empty(name.clone()))?;
        let filesystem = FileSystem::open(objset).await.map_err(|error| OpenError::Zpl(name, error))?;
        let Properties { files, has_xattrs, snapdir, .. } = Properties::read(dsl, &dataset.dir).await?;
        let snapdir = if dataset.is_snapshot() { Snapdir::Disabled } else { snapdir };
        let (has_acls, record_size_bytes) = (files.has_posix_acls, files.record_bytes);
        Ok(Self { slot, filesystem, dataset, snapdir, has_acls, has_xattrs, record_size_bytes })
    }

    /// Whether there is a `.zfs`.
    pub(crate) fn has_control(&self) -> bool {
        self.snapdir != Snapdir::Disabled
    }

    /// What `stat` shows of an object, whose inode number is `ino`.
    pub(crate) fn stat(&self, attributes: &Attributes, ino: u64) -> Stat {
        let is_root = attributes.object == self.filesystem.root();
        let shows_control = is_root && self.snapdir == Snapdir::Visible;
        // A file of no block yet has the size that its first block may have.
        let block_size = match attributes.block_size_bytes {
            0 => self.record_size_bytes,
            size => u32::try_from(size).unwrap_or(self.record_size_bytes),
        };
        Stat {
            ino,
            kind: attributes.kind,
            permissions: attributes.permissions,
            link_count: attributes.link_count.saturating_add(u64::from(shows_control)),
            uid: attributes.uid,
            gid: attributes.gid,
            device: attributes.device,
            size_bytes: attributes.size_bytes,
            blocks: attributes.blocks,
            is_passing: attributes.is_changed,
            block_size_bytes: block_size,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            created: attributes.created,
        }
    }

    /// The place of an object of this volume; the root's is its own.
    pub(crate) fn place(&self, object: cenote_format::ids::ObjectId) -> Place {
        if object == self.filesystem.root() {
            Place::Root { slot: self.slot }
        } else {
            Place::Object { slot: self.slot, object }
        }
    }
}

/// What `stat` shows of a directory that is in no dataset.
pub(crate) fn made_directory(ino: u64, permissions: u32, link_count: u64, at: Time) -> Stat {
    Stat {
        ino,
        kind: cenote_zpl::FileKind::Directory,
        permissions,
        link_count,
        uid: 0,
        gid: 0,
        device: (0, 0),
        size_bytes: link_count,
        blocks: 0,
        is_passing: false,
        block_size_bytes: 512,
        accessed: at,
        modified: at,
        changed: at,
        created: at,
    }
}
