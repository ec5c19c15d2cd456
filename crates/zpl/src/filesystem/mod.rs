//! An opened file system: what its master node names and, where it is changed, what that takes.

mod change;
mod find;
mod master;
pub(crate) mod options;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::tx::TxgSource;
use cenote_dmu::{Object, Objset};
use cenote_format::ids::ObjectId;
use cenote_taskq::sync::{Mutex, RwLock};
use cenote_taskq::{AsyncMutex, Notify};

pub use change::AttributeChange;
pub(crate) use master::{Master, NewMaster};
pub use options::{AccessTimes, FileSystemOptions, XattrMode};

use crate::delete_queue::{Garbage, Share};
use crate::dir::KeptZaps;
use crate::names::CaseSensitivity;
use crate::node::{Node, NodeTable};
use crate::{Time, ZplError};

/// An opened file system, or a snapshot of one. Cheap to clone; all may use it at once.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) objset: Objset,
    pub(crate) master: Master,
    in_use: Option<InUse>,
}

/// What a file system needs that is changed.
pub(crate) struct InUse {
    source: Arc<dyn TxgSource>,
    pub(crate) queue: ObjectId,
    pub(crate) nodes: NodeTable,
    pub(crate) zaps: KeptZaps,
    /// Held while a directory moves to another.
    pub(crate) renames: AsyncMutex<()>,
    /// Held by whoever changes the delete queue.
    pub(crate) queue_lock: AsyncMutex<()>,
    options: RwLock<FileSystemOptions>,
    /// Objects in the delete queue that nobody has open.
    pub(crate) garbage: Mutex<Garbage>,
    pub(crate) garbage_came: Notify,
    /// Held by whoever frees garbage.
    pub(crate) reaping: AsyncMutex<()>,
    /// How much was freed in which txg.
    pub(crate) share: Mutex<Share>,
    /// What has no name any more and is used without being open, where the user says when that ends.
    pub(crate) kept: Option<Mutex<BTreeMap<ObjectId, Arc<Node>>>>,
}

impl InUse {
    /// Where txgs come from.
    pub(crate) fn source(&self) -> &dyn TxgSource {
        self.source.as_ref()
    }
}

impl FileSystem {
    /// Opens the file system of an objset to be read: of a snapshot, a view, a pool that is open read-only. What would change it is
    /// refused ([`ZplError::ReadOnly`]).
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub async fn open(objset: Objset) -> Result<Self, ZplError> {
        let master = Master::open(&objset).await?;
        Ok(Self { shared: Arc::new(Shared { objset, master, in_use: None }) })
    }

    /// Opens the file system of a head dataset to be changed, in txgs of `source`. Objects that its last user left in the delete
    /// queue are garbage now: see [`FileSystem::reap`].
    ///
    /// # Errors
    /// It is none, or one of a kind that cannot be changed yet.
    pub async fn open_head(
        objset: &Objset,
        source: Arc<dyn TxgSource>,
        options: FileSystemOptions,
    ) -> Result<Self, ZplError> {
        if !options.record_bytes.is_power_of_two() || options.record_bytes < 512 {
            return Err(ZplError::Invalid("a record size is a power of two of at least 512 bytes"));
        }
        assert!(objset.is_open(), "a file system that is changed is in an objset that is");
        let master = Master::open(objset).await?;
        let in_use = InUse {
            source,
            queue: master.changeable()?,
            nodes: NodeTable::new(options.access_times),
            zaps: KeptZaps::default(),
            renames: AsyncMutex::new(()),
            queue_lock: AsyncMutex::new(()),
            options: RwLock::new(options),
            garbage: Mutex::default(),
            garbage_came: Notify::new(),
            reaping: AsyncMutex::new(()),
            share: Mutex::default(),
            kept: None,
        };
        Ok(Self { shared: Arc::new(Shared { objset: objset.clone(), master, in_use: Some(in_use) }) })
    }

    /// The same file system, whose user says when it forgets a node ([`Self::forgotten`]): a directory or a device, pipe or socket
    /// that loses its last name is there until then, whoever has it open or as the current directory. Files and symbolic links are
    /// there only as long as they are open.
    ///
    /// # Panics
    /// It is in use already.
    #[must_use]
    pub fn keeping_until_forgotten(mut self) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("asked for before the file system is used");
        if let Some(in_use) = &mut shared.in_use {
            in_use.kept = Some(Mutex::default());
        }
        self
    }

    /// The objset.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.shared.objset
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.shared.in_use.is_none()
    }

    /// The file system's version (property `version`).
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.master.version
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> ObjectId {
        self.shared.master.root
    }

    /// How names are compared.
    #[must_use]
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        self.shared.master.names.case
    }

    /// The Unicode normalisation of names, as the ZAP's flag bits; 0 for none.
    #[must_use]
    pub fn normalisation(&self) -> u64 {
        self.shared.master.names.normalisation
    }

    /// Whether names must be UTF-8.
    #[must_use]
    pub fn utf8_only(&self) -> bool {
        self.shared.master.names.utf8_only
    }

    /// The queue of files that were unlinked while open.
    #[must_use]
    pub fn unlinked_set(&self) -> Option<ObjectId> {
        self.shared.master.unlinked_set
    }

    /// The table of domains for ids that are not POSIX.
    #[must_use]
    pub fn fuid_table(&self) -> Option<ObjectId> {
        self.shared.master.fuid_table
    }

    /// The dnode of a file or directory.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub async fn dnode(&self, id: ObjectId) -> Result<Object, ZplError> {
        Ok(self.shared.objset.object(id).await?)
    }

    /// How it is changed; the defaults where it is not.
    #[must_use]
    pub fn options(&self) -> FileSystemOptions {
        self.shared.in_use.as_ref().map_or_else(FileSystemOptions::default, |in_use| *in_use.options.read())
    }

    /// Changes how it is changed, from the next operation on.
    pub fn set_options(&self, options: FileSystemOptions) {
        if let Some(in_use) = &self.shared.in_use {
            in_use.nodes.set_access_times(options.access_times);
            *in_use.options.write() = options;
        }
    }

    /// What changes take.
    ///
    /// # Errors
    /// It is open to be read only.
    pub(crate) fn in_use(&self) -> Result<&InUse, ZplError> {
        self.shared.in_use.as_ref().ok_or(ZplError::ReadOnly)
    }

    /// Where changes get their txgs from.
    ///
    /// # Errors
    /// It is open to be read only.
    pub(crate) fn source(&self) -> Result<&dyn TxgSource, ZplError> {
        Ok(self.in_use()?.source())
    }

    /// The node of an object, which was not removed.
    pub(crate) async fn node(&self, id: ObjectId) -> Result<Arc<Node>, ZplError> {
        let (objset, tables) = (&self.shared.objset, &self.shared.master.tables);
        let Some(in_use) = &self.shared.in_use else {
            return Ok(Arc::new(Node::frozen(objset.object(id).await?, tables).await?));
        };
        let node = in_use.nodes.node(objset, tables, id).await?;
        node.check_there()?;
        Ok(node)
    }

    /// The time, as changes note it.
    pub(crate) fn now(&self) -> Time {
        let now = self.shared.objset.dmu().handle().unix_time();
        Time { seconds: now.as_secs().cast_signed(), nanoseconds: u64::from(now.subsec_nanos()) }
    }
}
