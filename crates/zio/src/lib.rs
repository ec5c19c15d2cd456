//! The I/O pipeline of one block pointer.
//!
//! # Theory
//!
//! **Need.** A block pointer says where up to three copies of a block lie, how it was checksummed, compressed and
//! encrypted, and when it was born. The layers above want the block's *logical* bytes, verified, or an error that lists the attempts.
//! They should not have to handle copies, gang blocks, compression or encryption.
//!
//! **On disk.** A block pointer (`cenote_format::blkptr`) is embedded (the data is in the pointer), a hole (no data),
//! plain (each DVA is a copy), or gang (each DVA is a copy of a *gang header*, which points to the pieces).
//!
//! **Life of a read.** [`Zio::read`] is one async function:
//! ```text
//! embedded? ── yes ─► decompress payload ─────────────────────────────► logical bytes
//!     │ no
//! for each copy: read from its vdev ─► checksum ok? ─ no ─► next reconstruction, child, copy
//!     │ (gang: read header, verify, read pieces the same way, concatenate)
//! physical bytes, verified ─► MAC / decrypt ─► decompress ─► logical bytes
//! ```
//! The checksum is verified *inside* the vdev layer, by a function that the caller passes down, since only the vdev knows which other
//! children or parity reconstructions remain to be tried. Every fault is recorded in the tree's fault log with its location, even if the
//! read succeeds in the end.
//!
//! **Life of a write.** [`Zio::write`] reverses this: a block of zeros becomes a hole, a block that compresses well enough is compressed,
//! and one that compresses to 112 bytes or less is embedded in the pointer. Any other block is checksummed, gets its DVAs from the
//! caller's [`Allocator`], and is written to all of them at once. If no free range is large enough, it becomes a gang block.
//!
//! **Damage.** A read that succeeds although a copy was bad tells of the block; what is bad is written again where the block's place is kept for
//! it (`scrub`).
//!
//! **Invariants.**
//! 1. No byte leaves this crate that did not pass its checksum (and, where the dataset's key is loaded, its MAC). Tested by
//!    mutation (`mutation`): what is verified is asserted to be as long as its pointer says.
//! 2. The memory of one read is bounded by the sizes in the block pointer, 16 MiB each at most: the physical block, the logical block,
//!    and at most one decrypted copy.
//! 3. A gang tree is at most [`gang::DEPTH_MAX`] headers deep and its pieces never exceed the pointer's physical size (asserted in
//!    `gang`, where it is read, and in `write`, where it is made; a pool that breaks it gives an error).
//! 4. A write that fails frees all that it allocated: every allocated DVA is either written or freed (asserted in [`Zio::place`]). If
//!    several blocks are allocated together, each gets one DVA for each copy, and no DVA is left over (asserted in `batch`).
//!
//! **Crash.** Reads leave nothing. Writes go to space that is free in the last txg on disk, so a crash leaves bytes that no block pointer
//! refers to. The blocks with these pointers are written later, and the uberblock last.
//!
//! **Rejected.** A pipeline of stages in a bit mask, as OpenZFS's zio has it: the stages exist to hand an I/O from thread to thread. An
//! async function has the same stages in order, and the compiler checks the transitions.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod batch;
mod data_errors;
mod error;
pub mod gang;
mod heal;
mod log_block;
pub mod mutation;
mod read;
mod ready;
mod regang;
mod scrub;
mod seal;
mod shelf;
mod store;
mod transform;
mod write;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_codec::checksum::Salt;
use cenote_codec::crypt::DatasetKey;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_taskq::sync::Mutex;
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::VdevTree;

pub use batch::{Places, PreparedBatch};
pub use data_errors::{DataError, DataErrors};
pub use error::{OutsideExtents, ZioError, ZioErrorKind};
pub use heal::Health;
pub use log_block::log_pointer;
pub use ready::{ReadyBlock, ReadyForm};
pub use scrub::{Copies, Damaged, Keeper, Scrubbed, Unmended};
pub use seal::Seal;
pub use shelf::{Shelf, ShelfState, Shelves};
pub use write::{
    AllocationRequest, AllocationUnits, Allocator, NoSpace, ORDER, Placed, Prepared, WritePolicy, Written,
};

/// The logical position of a block (OpenZFS's zbookmark): objset, object, level, block. Used in errors and as authenticated data of
/// encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// The dataset's objset (0: the MOS).
    pub objset: ObjsetId,
    /// The object; 0 is the meta-dnode.
    pub object: ObjectId,
    /// The level: 0 is data; -1 the objset block itself; -2 an intent log block.
    pub level: i8,
    /// The block's index at that level.
    pub block: BlockId,
}

impl Bookmark {
    /// The level of an objset block.
    pub const LEVEL_OBJSET: i8 = -1;
    /// The level of an intent log block.
    pub const LEVEL_ZIL: i8 = -2;

    /// The bookmark of an objset's own block.
    #[must_use]
    pub const fn objset(objset: ObjsetId) -> Self {
        Self { objset, object: ObjectId(0), level: Self::LEVEL_OBJSET, block: BlockId(0) }
    }
}

impl std::fmt::Display for Bookmark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.level {
            Self::LEVEL_OBJSET => write!(f, "objset {} root block", self.objset),
            Self::LEVEL_ZIL => write!(f, "objset {} intent log block {}", self.objset, self.block),
            level => write!(f, "objset {} object {} level {level} block {}", self.objset, self.object, self.block),
        }
    }
}

/// The context of a read, beside the block pointer.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// Where the block belongs.
    pub bookmark: Bookmark,
    /// The dataset's key, if the dataset is encrypted and its key is loaded.
    pub key: Option<&'a DatasetKey>,
    /// Its class in the vdev queue.
    pub class: QueueClass,
    /// Nobody asked for it: where it fails, whoever wants it asks again.
    pub is_ahead: bool,
    /// The blocks that may go to cache devices, for [`Zio::read_shelved`].
    pub shelf: Shelf,
}

impl<'a> ReadContext<'a> {
    /// For a reader that waits for the block.
    #[must_use]
    pub const fn new(bookmark: Bookmark, key: Option<&'a DatasetKey>) -> Self {
        Self { bookmark, key, class: QueueClass::SyncRead, is_ahead: false, shelf: Shelf::None }
    }

    /// The same, for another purpose.
    #[must_use]
    pub const fn of_class(self, class: QueueClass) -> Self {
        Self { class, ..self }
    }

    /// The same, of blocks that may go to cache devices.
    #[must_use]
    pub const fn shelved(self, shelf: Shelf) -> Self {
        Self { shelf, ..self }
    }

    /// The same, ahead of those who want it.
    #[must_use]
    pub const fn ahead(self) -> Self {
        Self { class: QueueClass::AsyncRead, is_ahead: true, ..self }
    }
}

/// The pipeline over a pool's vdevs. Cheap to clone.
#[derive(Clone)]
pub struct Zio {
    shared: Arc<Shared>,
    /// The keeper of the blocks that are read. Where it keeps them no more, a block that cannot be read is no error of the pool.
    keeper: Option<Arc<dyn Keeper>>,
}

struct Shared {
    tree: Arc<VdevTree>,
    salt: OnceLock<Salt>,
    no_salt: Salt,
    /// Whether gang headers may be larger than 512 bytes here.
    dynamic_gang: AtomicBool,
    errors: Arc<DataErrors>,
    when_damaged: OnceLock<Box<dyn Fn(Damaged) + Send + Sync>>,
    /// Cache devices, of a pool that is written.
    shelves: OnceLock<Arc<dyn Shelves>>,
    /// Of those found before somebody is told of them.
    damaged_before: Mutex<Vec<Damaged>>,
}

impl Zio {
    /// The pipeline over `tree`. The pool's checksum salt is set later ([`Zio::set_salt`]), since it is read through it.
    #[must_use]
    pub fn new(tree: Arc<VdevTree>) -> Self {
        Self {
            shared: Arc::new(Shared {
                tree,
                salt: OnceLock::new(),
                no_salt: Salt::unknown(),
                dynamic_gang: AtomicBool::new(false),
                errors: Arc::default(),
                when_damaged: OnceLock::new(),
                shelves: OnceLock::new(),
                damaged_before: Mutex::default(),
            }),
            keeper: None,
        }
    }

    /// The same for a reader of one txg, as long as that is kept.
    #[must_use]
    pub fn while_kept(self, keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }

    /// Blocks that could not be read for good.
    #[must_use]
    pub fn data_errors(&self) -> &Arc<DataErrors> {
        &self.shared.errors
    }

    /// The error of a read that its caller gets.
    fn failed(&self, bp: &Blkptr, context: ReadContext<'_>, kind: ZioErrorKind) -> ZioError {
        let is_kept = || self.keeper.as_ref().is_none_or(|keeper| keeper.is_kept());
        if kind.is_of_data() && !context.is_ahead && is_kept() {
            self.shared.errors.note(DataError { bookmark: context.bookmark, birth: bp.logical_birth() });
        }
        ZioError::new(context.bookmark, kind)
    }

    /// The vdevs below.
    #[must_use]
    pub fn tree(&self) -> &Arc<VdevTree> {
        &self.shared.tree
    }

    /// Sets the pool's 32-byte checksum salt (`org.illumos:checksum_salt`). Only the first call has an effect.
    pub fn set_salt(&self, salt: &[u8; Salt::SIZE]) {
        let _ = self.shared.salt.set(Salt::new(salt));
    }

    /// Says whether the feature `dynamic_gang_header` is active: headers may then fill a vdev's smallest allocation.
    pub fn set_dynamic_gang(&self, active: bool) {
        self.shared.dynamic_gang.store(active, Ordering::Relaxed);
    }

    /// Gives the pool cache devices. Only the first call has an effect.
    pub fn set_shelves(&self, shelves: Arc<dyn Shelves>) {
        let _ = self.shared.shelves.set(shelves);
    }

    fn salt(&self) -> &Salt {
        self.shared.salt.get().unwrap_or(&self.shared.no_salt)
    }
}
