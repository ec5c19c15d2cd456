//! The pool: finding, importing, configuration, features, history.
//!
//! # Theory
//!
//! **Need.** To open one pool from many files and devices, an import finds out which of them belong together, what the vdev tree is, which
//! uberblock is the newest usable one, whether this program may read or write the pool, and whether another host or process has it open
//! now.
//!
//! **On disk.** Every leaf has four labels, each with the configuration of its own top-level vdev and a ring of
//! uberblocks. An uberblock names the MOS; the MOS names everything else: the whole configuration, features, datasets,
//! history, error log.
//!
//! **Life of an import.**
//! ```text
//! paths ─ probe all in parallel ─► leaves with labels ─ group by pool guid ─► candidates
//! candidate ─ best label of each top-level vdev ─► provisional tree (holes and missing filled in)
//!           ─ newest uberblock that is allowed ─► MOS ─► trusted configuration ─► final tree
//!           ─ features, hostid, activity ─► may it be opened?
//!           ─ dirty time logs, leaves left behind, mappings of removed vdevs, salt ─► [`View`]
//! ```
//! The provisional tree is only trusted to read the MOS; what the MOS says replaces it.
//!
//! **In memory.** [`View`] is a pool as of one txg: the tree, the pipeline, the cache, the MOS and the datasets. It never changes. An import
//! gives one whose devices are opened read-only; a pool in use gives one that keeps its txg ([`Pool::view`]).
//!
//! **Invariants.**
//! 1. An import writes nothing: a device opened here cannot be written through its descriptor. Writing is [`Pool`].
//! 2. A pool with an unknown feature that its rules say must not be read is refused with the feature's name.
//! 3. A pool that another system may have open is refused unless forced, and watched for activity where it says that it
//!    is protected (`multihost`).
//! 4. A pool that was not exported is written only where its last user is known to be gone, or forced; one that the kernel's module of
//!    this machine has is not written at all (`owner`).
//! 5. Rewinding changes nothing on disk: it only chooses an older uberblock.
//!
//! **Crash.** An import writes nothing, so a crash leaves nothing.
//!
//! **Rejected.** Two passes (try, then import) as the original's command line has them: one open serves both.

mod admin;
mod audit;
mod behind;
mod config;
mod errlog;
mod error;
mod failmode;
pub mod features;
mod figures;
mod find;
mod foreign;
pub mod history;
mod import;
mod indirect;
mod intent_log;
mod jobs;
mod longholds;
pub mod multihost;
mod open;
mod owner;
mod pins;
mod pool;
mod refcount;
mod small;
mod space;
mod status;
mod sync;
pub mod tunables;
mod view;

pub use admin::add::AddOptions;
pub use admin::bookmark::NewBookmark;
pub use admin::dataset::{FileSizes, PropertyValue};
pub use admin::receive::{RECEIVED, Received, Receiving};
pub use admin::receive_spec::{RawSpec, ReceivePoint, ReceiveRefusal, ReceiveSpec, Resumable};
pub use admin::snapshot::NewSnapshot;
pub use cenote_dsl::Head;
pub use config::PoolState;
pub use errlog::LoggedError;
pub use error::{FailedPool, Refusal, SpaError};
pub use failmode::FailMode;
pub use figures::{Checkpoint, CloneFigures, DedupFigures};
pub use find::{Choice, CopiedLeaf, FoundAuxiliary, FoundLeaf, FoundPool, LOCK_PATIENCE, SkipReason, Skipped, find};
pub use foreign::foreign;
pub use import::{ImportOptions, Rewind, import};
pub use jobs::JobStatus;
pub use longholds::LongHold;
pub use open::existing::{WriteOptions, open};
pub use open::new::{CreateOptions, create, create_with_metaslabs};
pub use open::spares_l2cache::AuxSpec;
pub use open::vdevs::{DiskSpec, TopKind, TopSpec};
pub use owner::{KERNEL_POOLS, kernel_pool};
pub use pool::{HeadFrees, HeadSpace, KeptTxg, LiveHead, MemoryLimits, Pool, SyncTask, TxgRecord};
pub use space::LogFigures;
pub use status::{Condition, condition, condition_with, device_condition};
pub use sync::{Clock, Host, Phase, Syncer};
pub use view::{FeatureName, View};
