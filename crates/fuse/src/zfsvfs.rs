//! One dataset or snapshot of a mount, opened (OpenZFS's `zfsvfs_t`): its file system and the properties that a mount obeys.

use cenote_dsl::DslError;
use cenote_inuse::{Frozen, OpenError, Why};
use cenote_spa::LongHold;
use cenote_taskq::sync::{Mutex, RwLock};
use cenote_zpl::{Attributes, FileKind, FileSystem, Properties, Snapdir, Time};

use crate::live::{Live, errno};
use crate::server::{Caller, Errno, Stat};

/// How names of system attributes begin.
const SYSTEM: &[u8] = b"system.";

/// The errno of a request for a dataset that cannot be opened.
pub(crate) fn open_errno(error: &OpenError) -> Errno {
    match error {
        OpenError::Dsl(DslError::NoSuchDataset(_) | DslError::BadName { .. }) => Errno::NOENT,
        OpenError::Zpl(_, error) => errno(error),
        OpenError::Refused(_, why) => match why {
            Why::KeyNotLoaded => Errno::ACCESS,
            Why::Inconsistent | Why::InUse(_) => Errno::BUSY,
            Why::Snapshot | Why::ReadOnly => Errno::ROFS,
            Why::Lost => Errno::IO,
            _ => Errno::NODATA,
        },
        _ => Errno::IO,
    }
}

/// A dataset or snapshot, opened.
pub(crate) struct Zfsvfs {
    pub(crate) filesystem: FileSystem,
    /// The properties that count for what is shown.
    shown: RwLock<Properties>,
    is_snapshot: bool,
    /// The means to change it, if it can be changed.
    live: Option<Live>,
    /// Keeps what is shown as it is on disk.
    hold: Mutex<Option<LongHold>>,
}

impl Zfsvfs {
    /// One that does not change while it is open.
    pub(crate) fn frozen(frozen: Frozen<FileSystem>, properties: Properties, is_snapshot: bool) -> Self {
        let Frozen { contents: filesystem, hold, .. } = frozen;
        let (shown, hold) = (RwLock::new(properties), Mutex::new(hold));
        let zfsvfs = Self { filesystem, shown, is_snapshot, live: None, hold };
        zfsvfs.obey(properties);
        zfsvfs
    }

    /// One that is changed through its mount.
    pub(crate) fn live(live: Live, properties: Properties) -> Self {
        live.obey(&properties);
        let (filesystem, shown) = (live.filesystem().clone(), RwLock::new(properties));
        Self { filesystem, shown, is_snapshot: false, live: Some(live), hold: Mutex::default() }
    }

    /// The hold of a snapshot, which its slot keeps for longer: programs may still know files of it.
    pub(crate) fn take_hold(&self) -> Option<LongHold> {
        self.hold.lock().take()
    }

    fn shown(&self) -> Properties {
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
        self.live.as_ref().filter(|_| !self.shown.read().forbidden.write).ok_or(Errno::ROFS)
    }

    /// Obeys changed properties from the next request on. The kernel learns only at a mount whether there are POSIX access control
    /// lists, so `acltype` counts from the next mount on.
    /// True where `.zfs` is listed or found now and was not before, or the other way round: then the client is to be told.
    pub(crate) fn obey(&self, mut properties: Properties) -> bool {
        let has_control_changed = {
            let mut now = self.shown.write();
            properties.files.has_posix_acls = now.files.has_posix_acls;
            if self.is_snapshot {
                properties.snapdir = Snapdir::Disabled;
            }
            std::mem::replace(&mut *now, properties).snapdir != properties.snapdir
        };
        if let Some(live) = &self.live {
            live.obey(&properties);
        }
        has_control_changed
    }

    /// Ends its use, when no request comes any more.
    pub(crate) async fn close(&self) {
        if let Some(live) = &self.live {
            live.close(false).await;
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

    /// True if an attribute is there, as far as the dataset's properties say.
    pub(crate) fn has_xattr(&self, name: &[u8]) -> bool {
        self.shown().has_xattr(name)
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
