//! File systems whose files change while they are in use.
//!
//! # Theory
//!
//! **Need.** Many programs at once make, change, rename and remove files, and see at once what others have done; each
//! change becomes durable with a txg, whole or not at all; and what a program has open stays there though its name is gone.
//!
//! **On disk** nothing but what `cenote_zpl` describes, and one thing more: the *delete queue* (`DELETE_QUEUE` of the master
//! node), a ZAP with the numbers of objects that have no name any more and are to be freed.
//!
//! **In memory.**
//! ```text
//! LiveFileSystem   objset, source of txgs, attribute tables, nodes in use, garbage
//!   Node           one object in use: locks, range locks, newest attributes (`SaRecord`), handles
//!   OpenFile       a handle: its node is not freed before it is closed
//! ```
//! Blocks are not kept here: the objset's layers have those that are not on disk yet, the cache the others. A node is there
//! while someone uses it, a directory's for a while after ([`node::NodeTable`]); later its attributes are read again. ZAPs of directories
//! that were changed lately stay open ([`directories`]).
//!
//! **Life of a change** (a new file).
//! 1. The name is checked, the directory locked; the new attributes are put together, and layouts that they need are made.
//! 2. The source is asked for a txg, with the cost at worst ([`cenote_dmu::tx::Cost`]). That may take a while.
//! 3. The object is made, its attributes packed, the entry put into the directory's ZAP, the directory's own attributes
//!    changed in their places.
//! 4. The txg is let go, then the locks.
//!
//! Steps of 3 cannot fail for want of anything but readable blocks; what they read they read before, in 1, as far as that
//! is known.
//!
//! **Locks**, in the order in which they are taken; who has one takes none of an earlier kind.
//! 1. `renames`, one for a file system: held while a directory moves to another, so that no two moves make a cycle.
//! 2. Nodes (`Node::lock`), several in the order of their numbers. Names are looked up without, then locks are taken, then
//!    names are looked up again; if they lead elsewhere now it begins anew.
//! 3. Ranges of a file's bytes. Those who write data share the node's lock and hold their ranges alone, rounded to blocks,
//!    so that writes to different blocks go on at once. Readers take a shared range and no node's lock.
//! 4. The delete queue's, the attribute tables'.
//! 5. A txg. Who holds one waits for no lock above.
//! 6. `Node::entries`, for the moment in which a directory's changed blocks are put in place of the old ones.
//!
//! So operations on one node follow each other in locks and therefore in txgs, and no change of an earlier txg comes after
//! one of a later. Writers of data, who share a lock, are put in order by `Node::begin_shared`.
//!
//! **Invariants.**
//! 1. An operation's changes are in one txg, save those that are said to go in steps; each step leaves a sound file.
//! 2. A directory's size is the number of its entries and 2; its links are 2 and one for each directory in it.
//! 3. An object with no link is in the delete queue or is freed in the same txg.
//! 4. Attributes that we do not know stay as they are.
//! 5. A file of more than one block has blocks whose size is a power of two.
//!
//! **Large things go in steps.** What is freed of one object in a txg is bounded ([`steps`]), so a file of any size is
//! truncated or removed in memory that does not depend on it. A truncated file loses its end first, and has the size that
//! is left after each step. A file that loses its name, or its last user, is only put into the delete queue; a task frees
//! it later ([`LiveFileSystem::garbage`], [`LiveFileSystem::reap`]), and nobody waits for that but changes for which there
//! is no space without it (`unlinked`).
//!
//! **Crash.** What the last txg on disk has is there, whole. Objects in the delete queue are freed when the file system is
//! opened again ([`LiveFileSystem::reap`]).
//!
//! **Rejected.** *One lock for a file system*: simple, and one slow look-up would hold up all. *A lock for each name*, as
//! OpenZFS has: two creations in one directory meet at its ZAP anyway. *Attributes only in the objset*: every `stat` would
//! unpack them, and every change of a time would.
//!
//! **Not here yet.** Files from before system attributes; names that are compared without regard to case or in a normal
//! form; inherited NFSv4 access control lists; reading ahead; quotas of users; the intent log.

mod attributes;
mod create;
mod data;
mod directories;
mod listing;
mod names;
mod node;
mod posix_acl;
mod rename;
mod steps;
mod truncate;
mod unlinked;
mod xattr;
mod xattr_dir;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::sa::SaTables;
use cenote_dmu::tx::TxgSource;
use cenote_dmu::{Objset, Zap};
use cenote_format::ids::ObjectId;
use cenote_format::zpl::{MASTER_NODE, master_node, version};
use cenote_taskq::sync::{Mutex, RwLock};
use cenote_taskq::{AsyncMutex, Notify};

pub use attributes::AttributeChange;
pub use create::NewNode;
pub use data::OpenFile;
pub use rename::RenameMode;
pub use truncate::Allocation;

pub use xattr::XattrSet;

use crate::write::XattrMode;
use crate::{Time, ZplError};
use directories::Directories;
use node::{Node, NodeTable};
use unlinked::Garbage;

/// How a file system is changed: what its dataset's properties say.
#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    /// Bytes of a block of files that are larger (`recordsize`): a power of two.
    pub record_bytes: u32,
    /// Where new extended attributes go (`xattr`).
    pub xattrs: XattrMode,
    /// Slots of new dnodes (`dnodesize`).
    pub dnode_slots: u8,
    /// Changing the mode of a file discards an access control list that says more than a mode (`aclmode=discard`).
    /// Otherwise that is refused.
    pub acl_is_discarded: bool,
    /// New files take over the default POSIX access control list of their directory (`acltype=posix`).
    pub has_posix_acls: bool,
    /// When reading a file changes its access time (`atime`, `relatime`).
    pub access_times: AccessTimes,
}

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never (`atime=off`).
    Never,
    /// Where the file was changed since it was last read, and once a day (`relatime=on`).
    #[default]
    Relative,
    /// Always (`relatime=off`).
    Always,
}

impl Default for LiveOptions {
    fn default() -> Self {
        let xattrs = XattrMode::default();
        Self {
            record_bytes: 128 << 10,
            xattrs,
            dnode_slots: 1,
            acl_is_discarded: true,
            has_posix_acls: false,
            access_times: AccessTimes::default(),
        }
    }
}

/// A file system in use, for changing. Cheap to clone; all may use it at once.
#[derive(Clone)]
pub struct LiveFileSystem {
    shared: Arc<Shared>,
}

struct Shared {
    objset: Objset,
    source: Arc<dyn TxgSource>,
    tables: SaTables,
    root: ObjectId,
    queue: ObjectId,
    nodes: NodeTable,
    directories: Directories,
    renames: AsyncMutex<()>,
    /// Held by whoever changes the delete queue.
    queue_lock: AsyncMutex<()>,
    options: RwLock<LiveOptions>,
    /// Objects in the delete queue that nobody has open.
    garbage: Mutex<Garbage>,
    garbage_came: Notify,
    /// Held by whoever frees garbage.
    reaping: AsyncMutex<()>,
    /// How much was freed in which txg.
    share: Mutex<steps::Share>,
    /// What has no name any more and is used without being open, where somebody says when that ends.
    kept: Option<Mutex<BTreeMap<ObjectId, Arc<Node>>>>,
}

impl LiveFileSystem {
    /// Opens the file system of an objset. Objects that its last user left in the delete queue are garbage now: see
    /// [`LiveFileSystem::reap`].
    ///
    /// # Errors
    /// It is none, or one of a kind that cannot be changed yet.
    pub async fn open(objset: &Objset, source: Arc<dyn TxgSource>, options: LiveOptions) -> Result<Self, ZplError> {
        let unsupported = |what: &str| Err(ZplError::Unsupported(format!("not supported yet: {what}")));
        if !options.record_bytes.is_power_of_two() || options.record_bytes < 512 {
            return Err(ZplError::Invalid("a record size is a power of two of at least 512 bytes"));
        }
        let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
        let word = async |name: &str| {
            Ok::<_, ZplError>(master.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64()))
        };
        if word(master_node::VERSION).await? != Some(version::CURRENT) {
            return unsupported("changing a file system of an older version");
        }
        for name in [master_node::NORMALIZATION, master_node::UTF8_ONLY, master_node::CASE_SENSITIVITY] {
            if word(name).await?.unwrap_or(0) != 0 {
                return unsupported(&format!("changing a file system with the property '{name}'"));
            }
        }
        let missing = |what: &str| ZplError::Corrupt { object: MASTER_NODE.0, what: format!("no {what}") };
        let root = word(master_node::ROOT).await?.ok_or_else(|| missing("root directory"))?;
        let tables = word(master_node::SA_ATTRIBUTES).await?.ok_or_else(|| missing("table of attributes"))?;
        let queue = word(master_node::UNLINKED_SET).await?.ok_or_else(|| missing("delete queue"))?;
        Ok(Self {
            shared: Arc::new(Shared {
                tables: SaTables::load(objset, ObjectId(tables)).await?,
                objset: objset.clone(),
                source,
                root: ObjectId(root),
                queue: ObjectId(queue),
                nodes: NodeTable::default(),
                directories: Directories::default(),
                renames: AsyncMutex::new(()),
                queue_lock: AsyncMutex::new(()),
                options: RwLock::new(options),
                garbage: Mutex::default(),
                garbage_came: Notify::new(),
                reaping: AsyncMutex::new(()),
                share: Mutex::default(),
                kept: None,
            }),
        })
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
        shared.kept = Some(Mutex::default());
        self
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> ObjectId {
        self.shared.root
    }

    /// The objset.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.shared.objset
    }

    /// How it is changed.
    #[must_use]
    pub fn options(&self) -> LiveOptions {
        *self.shared.options.read()
    }

    /// Changes how it is changed, from the next operation on.
    pub fn set_options(&self, options: LiveOptions) {
        *self.shared.options.write() = options;
    }

    fn source(&self) -> &dyn TxgSource {
        self.shared.source.as_ref()
    }

    /// The node of an object, which was not removed.
    async fn node(&self, id: ObjectId) -> Result<Arc<Node>, ZplError> {
        let node = self.shared.nodes.node(&self.shared.objset, &self.shared.tables, id).await?;
        node.check_there()?;
        Ok(node)
    }

    fn now(&self) -> Time {
        let now = self.shared.objset.dmu().handle().unix_time();
        Time { seconds: now.as_secs().cast_signed(), nanoseconds: u64::from(now.subsec_nanos()) }
    }
}
