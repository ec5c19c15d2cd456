//! The I/O pipeline of one block pointer.
//!
//! # Theory
//!
//! **Need.** A block pointer says where up to three copies of a block lie, how it was checksummed, compressed and
//! encrypted, and when it was born. Everything above wants its *logical* bytes, verified, or an error that says what
//! was tried. Nothing above should know of copies, gangs, compression or ciphers.
//!
//! **On disk.** A block pointer (`cenote_format::blkptr`) is embedded (the data is in the pointer), a hole (no data),
//! plain (each DVA is a copy), or gang (each DVA is a copy of a *gang header*, which points to the pieces).
//!
//! **Life of a read.** [`Zio::read`] is one async function with a natural control flow:
//! ```text
//! embedded? ── yes ─► decompress payload ─────────────────────────────► logical bytes
//!     │ no
//! for each copy: read from its vdev ─► checksum ok? ─ no ─► next reconstruction, child, copy
//!     │ (gang: read header, verify, read pieces the same way, concatenate)
//! physical bytes, verified ─► MAC / decrypt ─► decompress ─► logical bytes
//! ```
//! The checksum is checked *inside* the vdev layer, by a function handed down, since only the vdev knows which other
//! children or parity reconstructions remain to be tried. Every fault on the way goes to the tree's fault log with its place, even if the
//! read succeeds in the end.
//!
//! **Life of a write.** [`Zio::write`] goes the other way: a block of zeros becomes a hole, a block that compresses well enough is
//! compressed, a tiny one is embedded in the pointer; the rest is checksummed, gets places from the layer above through [`Allocator`], and
//! is written to all of them at once. Where no place is large enough it is written in pieces, as a gang.
//!
//! **Invariants.**
//! 1. No byte leaves this crate that did not pass its checksum (and, where the dataset's key is loaded, its MAC). Tested by
//!    mutation (`mutation`): what is verified is asserted to be as long as its pointer says.
//! 2. The memory of one read is bounded by the sizes in the pointer, which the format bounds by 16 MiB (32 MiB where a
//!    pool's feature allows it): physical, logical, and at most one decrypted copy.
//! 3. A gang tree is at most [`gang::DEPTH_MAX`] headers deep and its pieces never exceed the pointer's physical size (asserted in
//!    `gang`, where it is read, and in `write`, where it is made; a pool that breaks it gives an error).
//! 4. A write that fails frees all that it allocated: every allocated place is either written or freed (asserted in [`Zio::place`]). Of
//!    blocks that are placed together each has as many places as copies, and no place is left over (asserted in `batch`).
//!
//! **Crash.** Reads leave nothing. Writes go to space that is free in the txg on disk, so a crash leaves bytes that nothing
//! points to; what points to them is written later, by the same means, up to the uberblock.
//!
//! **Rejected.** A stage machine with a bit mask, as the original has it: its stages exist to hand an I/O from thread
//! to thread; an async function keeps the same stages in order with the compiler checking the hand-overs.

mod batch;
mod error;
pub mod gang;
mod heal;
mod log_block;
#[cfg(feature = "mutation")]
pub mod mutation;
mod read;
mod ready;
mod regang;
mod store;
mod transform;
mod write;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_codec::checksum::Salt;
use cenote_codec::crypt::DatasetKey;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::VdevTree;

pub use batch::{Places, PreparedBatch};
pub use error::{ZioError, ZioErrorKind};
pub use heal::Health;
pub use log_block::log_pointer;
pub use read::Copies;
pub use ready::{ReadyBlock, ReadyForm, Seal};
pub use write::{
    AllocationRequest, AllocationUnits, Allocator, NoSpace, ORDER, Placed, Prepared, WritePolicy, Written,
};

/// Where a block belongs logically: dataset, object, level, block. For errors, and for what ciphers bind to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// What a read needs beside the pointer.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// Where the block belongs.
    pub bookmark: Bookmark,
    /// The dataset's key, if the dataset is encrypted and its key is loaded.
    pub key: Option<&'a DatasetKey>,
    /// What it is for.
    pub class: QueueClass,
}

impl<'a> ReadContext<'a> {
    /// For a reader that waits for the block.
    #[must_use]
    pub const fn new(bookmark: Bookmark, key: Option<&'a DatasetKey>) -> Self {
        Self { bookmark, key, class: QueueClass::SyncRead }
    }

    /// The same, for another purpose.
    #[must_use]
    pub const fn of_class(self, class: QueueClass) -> Self {
        Self { class, ..self }
    }
}

/// The pipeline over a pool's vdevs. Cheap to clone.
#[derive(Clone)]
pub struct Zio {
    shared: Arc<Shared>,
}

struct Shared {
    tree: Arc<VdevTree>,
    salt: OnceLock<Salt>,
    no_salt: Salt,
    /// Whether gang headers may be larger than 512 bytes here.
    dynamic_gang: AtomicBool,
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
            }),
        }
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

    fn salt(&self) -> &Salt {
        self.shared.salt.get().unwrap_or(&self.shared.no_salt)
    }
}
