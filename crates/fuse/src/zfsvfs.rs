//! One dataset or snapshot of a mount, opened (OpenZFS's `zfsvfs_t`): its file system and the properties that a mount obeys.

use cenote_dsl::DslError;
use cenote_spa::{NamePool, SpaError};
use cenote_taskq::sync::RwLock;
use cenote_zpl::{Attributes, FileKind, FileSystem, FileSystemOptions, Properties, Snapdir, Time, ZplError};
use thiserror::Error;

use crate::live::Live;
use crate::server::{Caller, Errno, Stat};

/// The extended attributes that hold POSIX access control lists, and how names of system attributes begin.
const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const SYSTEM: &[u8] = b"system.";

/// Why a dataset cannot be opened for a mount.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Below: names, properties, keys.
    #[error("{0}")]
    Dsl(#[from] DslError),
    /// Below: the file system.
    #[error("cannot open '{0}': {1}")]
    Zpl(String, ZplError),
    /// Below: the pool in use.
    #[error("{0}")]
    Spa(Box<SpaError>),
    /// Its key is not loaded.
    #[error("cannot mount '{0}': its key is not loaded")]
    KeyNotLoaded(String),
    /// It is half received or half destroyed.
    #[error("cannot mount '{0}': it is inconsistent (a receive or destroy was not completed)")]
    Inconsistent(String),
    /// It has nothing to show.
    #[error("cannot mount '{0}': it has no contents")]
    Empty(String),
    /// A snapshot is asked to be changed.
    #[error("cannot mount '{0}' with --rw: a snapshot does not change")]
    Snapshot(String),
    /// It is no file system.
    #[error("cannot mount '{0}': it is a volume; 'cenote serve --rw' lets clients write it")]
    Volume(String),
    /// Its property `readonly` is on.
    #[error("cannot mount '{0}' with --rw: its property readonly is on ('cenote zfs set readonly=off {0}')")]
    ReadOnly(String),
    /// It was suspended for a rollback, and could not be opened again.
    #[error("'{0}' could not be opened again and serves nothing: unmount it and mount it again")]
    Lost(String),
    /// Another mount has it.
    #[error("cannot mount '{0}': it is mounted already")]
    InUse(String),
}

impl From<SpaError> for OpenError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

impl NamePool for OpenError {
    fn spa(&mut self) -> Option<&mut SpaError> {
        match self {
            Self::Spa(error) => Some(error),
            _ => None,
        }
    }
}

impl OpenError {
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Dsl(DslError::NoSuchDataset(_) | DslError::BadName { .. }) => Errno::NOENT,
            Self::Dsl(_) | Self::Spa(_) | Self::Lost(_) => Errno::IO,
            Self::Zpl(_, error) => errno(error),
            Self::KeyNotLoaded(_) => Errno::ACCESS,
            Self::Inconsistent(_) | Self::InUse(_) => Errno::BUSY,
            Self::Empty(_) | Self::Volume(_) => Errno::NODATA,
            Self::Snapshot(_) | Self::ReadOnly(_) => Errno::ROFS,
        }
    }
}

pub(crate) fn errno(error: &ZplError) -> Errno {
    Errno::from_raw_os_error(error.errno() as i32)
}

/// The properties that count for what is shown.
#[derive(Clone, Copy, Debug)]
struct Shown {
    files: FileSystemOptions,
    has_xattrs: bool,
    snapdir: Snapdir,
    is_read_only: bool,
}

impl Shown {
    const fn of(properties: Properties) -> Self {
        let Properties { files, has_xattrs, snapdir, forbidden, .. } = properties;
        Self { files, has_xattrs, snapdir, is_read_only: forbidden.write }
    }
}

/// A dataset or snapshot, opened.
pub(crate) struct Zfsvfs {
    pub(crate) filesystem: FileSystem,
    shown: RwLock<Shown>,
    /// The means to change it, if it can be changed.
    live: Option<Live>,
}

impl Zfsvfs {
    /// One that does not change while it is open.
    pub(crate) fn frozen(filesystem: FileSystem, properties: Properties, is_snapshot: bool) -> Self {
        let mut shown = Shown::of(properties);
        if is_snapshot {
            shown.snapdir = Snapdir::Disabled;
        }
        Self { filesystem, shown: RwLock::new(shown), live: None }
    }

    /// One that is changed through its mount.
    pub(crate) fn live(live: Live, properties: Properties) -> Self {
        Self { filesystem: live.filesystem().clone(), shown: RwLock::new(Shown::of(properties)), live: Some(live) }
    }

    fn shown(&self) -> Shown {
        *self.shown.read()
    }

    /// The means to change it, if it can be changed; its properties may forbid it all the same.
    pub(crate) const fn as_live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    /// The means to change it.
    ///
    /// # Errors
    /// It is a snapshot, is read as of a txg, or its properties forbid it.
    pub(crate) fn changeable(&self) -> Result<&Live, Errno> {
        self.live.as_ref().filter(|_| !self.shown.read().is_read_only).ok_or(Errno::ROFS)
    }

    /// Has a head obey changed properties from the next request on. The kernel learns only at a mount whether there are POSIX access control
    /// lists, so `acltype` counts from the next mount on.
    /// True where `.zfs` is listed or found now and was not before, or the other way round: then the client is to be told.
    pub(crate) fn set_properties(&self, properties: Properties) -> bool {
        let mut shown = Shown::of(properties);
        let has_control_changed = {
            let mut now = self.shown.write();
            shown.files.has_posix_acls = now.files.has_posix_acls;
            std::mem::replace(&mut *now, shown).snapdir != shown.snapdir
        };
        if let Some(live) = &self.live {
            live.set_properties(&properties, shown.files);
        }
        has_control_changed
    }

    /// Ends its use, when no request comes any more.
    pub(crate) async fn close(&self) {
        if let Some(live) = &self.live {
            live.close(!self.shown().is_read_only).await;
        }
    }

    /// Whether there is a `.zfs`.
    pub(crate) fn has_control(&self) -> bool {
        self.shown().snapdir != Snapdir::Disabled
    }

    /// Whether `.zfs` is listed.
    pub(crate) fn lists_control(&self) -> bool {
        self.shown().snapdir == Snapdir::Visible
    }

    /// The size of blocks of large files, in bytes.
    pub(crate) fn record_bytes(&self) -> u32 {
        self.shown().files.record_bytes
    }

    /// Whether an attribute is there, as far as the dataset's properties say.
    pub(crate) fn has_xattr(&self, name: &[u8]) -> bool {
        let shown = self.shown();
        if name.starts_with(SYSTEM) {
            return shown.files.has_posix_acls && ACL_NAMES.contains(&name);
        }
        shown.has_xattrs || !(name.starts_with(b"user.") || name.starts_with(b"trusted."))
    }

    /// The answer to reading an attribute that is not there by the dataset's properties. The kernel asks for the list of a file that is
    /// not the caller's before it lets anyone open it, and takes any other error for the answer.
    pub(crate) fn no_xattr(name: &[u8]) -> Errno {
        if name.starts_with(SYSTEM) { Errno::NODATA } else { Errno::OPNOTSUPP }
    }

    /// Whether a caller may see an attribute's name. The kernel checks the capability when a value is read; a list is for us to trim.
    /// A name with a zero in it cannot be told.
    pub(crate) fn lists_xattr(&self, name: &[u8], caller: Caller) -> bool {
        !name.contains(&0) && self.has_xattr(name) && (caller.uid == 0 || !name.starts_with(b"trusted."))
    }

    /// The attributes that `stat` shows of an object, whose inode number is `ino`.
    pub(crate) fn stat(&self, attributes: &Attributes, ino: u64) -> Stat {
        let shown = self.shown();
        let shows_control = attributes.object == self.filesystem.root() && shown.snapdir == Snapdir::Visible;
        let record = shown.files.record_bytes;
        // A file of no block yet has the size that its first block may have.
        let block = match attributes.block_size_bytes {
            0 => record,
            size => u32::try_from(size).unwrap_or(record),
        };
        // The only block of a file grows with it, up to a record: a program that writes by this size is not to begin with sectors, and
        // takes it for the size of holes, which it is in a file that is longer.
        let may_grow = self.live.is_some()
            && attributes.kind == FileKind::File
            && attributes.size_bytes <= attributes.block_size_bytes;
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
            block_size_bytes: if may_grow { block.max(record) } else { block },
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            created: attributes.created,
        }
    }
}

/// The attributes of a directory that no dataset has.
pub(crate) fn made_directory(ino: u64, permissions: u32, link_count: u64, at: Time) -> Stat {
    Stat {
        ino,
        kind: FileKind::Directory,
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
