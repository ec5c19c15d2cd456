//! An opened file system: what its master node names and, where it is changed, what that takes.

mod change;
mod find;
mod logged;
mod master;
pub(crate) mod options;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cenote_dmu::tx::{Cost, SyncMode, TxgSource};
use cenote_dmu::{Object, Objset};
use cenote_format::ids::ObjectId;
use cenote_taskq::sync::{Mutex, RwLock};
use cenote_taskq::{AsyncMutex, Notify, boxed};
use cenote_zil::{Log, LoggedTx};

pub use change::AttributeChange;
pub(crate) use master::{Master, NewMaster};
pub use options::{AccessTimes, FileSystemOptions, XattrMode};

use self::logged::LoggedFiles;
use crate::delete_queue::{Garbage, Share};
use crate::dir::OpenZaps;
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

/// The state of a file system that is open to be changed.
pub(crate) struct InUse {
    log: Arc<Log>,
    /// Where the log reads data; none where nothing is logged.
    data: OnceLock<Arc<LoggedFiles>>,
    pub(crate) queue: ObjectId,
    pub(crate) nodes: NodeTable,
    pub(crate) zaps: OpenZaps,
    /// Held while a directory moves to another.
    pub(crate) renames: AsyncMutex<()>,
    /// Held to change the delete queue.
    pub(crate) queue_lock: AsyncMutex<()>,
    options: RwLock<FileSystemOptions>,
    /// Its intent log is replayed: what the records say was allowed when they were made.
    is_replayed: bool,
    /// Objects in the delete queue that are not open.
    pub(crate) garbage: Mutex<Garbage>,
    pub(crate) garbage_came: Notify,
    /// Held to free garbage.
    pub(crate) reaping: AsyncMutex<()>,
    /// How much was freed in which txg.
    pub(crate) share: Mutex<Share>,
    /// Nodes that have no name any more and are used without being open, where the user says when that ends.
    pub(crate) kept: OnceLock<Mutex<BTreeMap<ObjectId, Arc<Node>>>>,
}

impl InUse {
    /// Where txgs come from.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }
}

impl FileSystem {
    /// Opens the file system of an objset to be read: of a snapshot, a view, a pool that is open read-only. Changes are refused
    /// ([`ZplError::ReadOnly`]).
    ///
    /// # Errors
    /// It is none, or cannot be read.
    #[boxed]
    pub async fn open(objset: Objset) -> Result<Self, ZplError> {
        let master = Master::open(&objset).await?;
        Ok(Self { shared: Arc::new(Shared { objset, master, in_use: None }) })
    }

    /// Opens the file system of a head dataset to be changed, in txgs of `source`, without a log: see [`Self::open_logged`].
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn open_head(
        objset: &Objset,
        source: Arc<dyn TxgSource>,
        options: FileSystemOptions,
    ) -> Result<Self, ZplError> {
        Self::open_logged(objset, Arc::new(Log::without(source, SyncMode::Standard)), options).await
    }

    /// The same, which gives the log the contents of its files.
    ///
    /// # Errors
    /// It is open to be read only.
    pub(crate) fn logging_data(self) -> Result<Self, ZplError> {
        let in_use = self.in_use()?;
        let data = in_use.data.get_or_init(|| Arc::new(LoggedFiles::new(&self)));
        let weak: std::sync::Weak<LoggedFiles> = Arc::downgrade(data);
        in_use.log.set_data(weak);
        Ok(self)
    }

    /// As [`FileSystem::open_logged`], as far as its intent log was replayed. `is_replayed`: to do that.
    pub(crate) async fn open_unreplayed(
        objset: &Objset,
        log: Arc<Log>,
        options: FileSystemOptions,
        is_replayed: bool,
    ) -> Result<Self, ZplError> {
        if !options.record_bytes.is_power_of_two() || options.record_bytes < 512 {
            return Err(ZplError::Invalid("a record size is a power of two of at least 512 bytes"));
        }
        assert!(objset.is_open(), "a file system that is changed is in an objset that is");
        let master = Master::open(objset).await?;
        let in_use = InUse {
            log,
            data: OnceLock::new(),
            queue: master.changeable()?,
            nodes: NodeTable::new(options.access_times),
            zaps: OpenZaps::default(),
            renames: AsyncMutex::new(()),
            queue_lock: AsyncMutex::new(()),
            options: RwLock::new(options),
            is_replayed,
            garbage: Mutex::default(),
            garbage_came: Notify::new(),
            reaping: AsyncMutex::new(()),
            share: Mutex::default(),
            kept: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(Shared { objset: objset.clone(), master, in_use: Some(in_use) }) })
    }

    /// The same file system, whose user says when it forgets a node ([`Self::forgotten`]): a directory or a device, pipe or socket
    /// that loses its last name is there until then, whoever has it open or as the current directory. Files and symbolic links are
    /// there only as long as they are open.
    ///
    /// # Panics
    /// It was asked for before.
    #[must_use]
    pub fn keeping_until_forgotten(self) -> Self {
        if let Some(in_use) = &self.shared.in_use {
            let was_new = in_use.kept.set(Mutex::default()).is_ok();
            assert!(was_new, "asked for once");
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

    /// The queue of files that were unlinked while open.
    #[must_use]
    pub fn unlinked_set(&self) -> Option<ObjectId> {
        self.shared.master.unlinked_set
    }

    /// The table of domains for ids that are not POSIX.
    #[must_use]
    pub(crate) fn fuid_table(&self) -> Option<ObjectId> {
        self.shared.master.fuid_table
    }

    /// The dnode of a file or directory.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    #[boxed]
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

    /// The state that changes need.
    ///
    /// # Errors
    /// It is open to be read only.
    pub(crate) fn in_use(&self) -> Result<&InUse, ZplError> {
        self.shared.in_use.as_ref().ok_or(ZplError::ReadOnly)
    }

    /// Whether flags and projects are to be obeyed. A replay does not: that a flag was taken away is logged when somebody asks for its
    /// object, and may come later in the log than a name that was changed since.
    pub(crate) fn obeys_flags(&self) -> bool {
        self.shared.in_use.as_ref().is_none_or(|in_use| !in_use.is_replayed)
    }

    /// Where changes get their txgs from, and are logged.
    ///
    /// # Errors
    /// It is open to be read only.
    pub(crate) fn log(&self) -> Result<&Log, ZplError> {
        Ok(self.in_use()?.log())
    }

    /// Begins a change, which says what is to be logged of it.
    ///
    /// # Errors
    /// It is open to be read only, or as [`TxgSource::begin`].
    pub(crate) async fn begin(&self, cost: Cost) -> Result<LoggedTx, ZplError> {
        Ok(self.log()?.begin_change(cost).await?)
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
