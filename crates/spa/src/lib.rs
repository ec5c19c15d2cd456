//! The pool: finding, importing, configuration, features, history.
//!
//! # Theory
//!
//! **Need.** To open one pool from many files and devices, an import determines which of them belong to the pool, its vdev tree, the
//! newest usable uberblock, whether Cenote supports all features of the pool for reading or writing, and whether another host or process
//! has the pool open.
//!
//! **On disk.** Every leaf has four labels, each with the configuration of its own top-level vdev and a ring of
//! uberblocks. An uberblock points to the MOS, and the MOS holds or leads to everything else: the whole configuration, features,
//! datasets, history, error log.
//!
//! **Life of an import.**
//! ```text
//! paths ─ probe all in parallel ─► leaves with labels ─ group by pool guid ─► candidates
//! candidate ─ best label of each top-level vdev ─► provisional tree (with hole and missing vdevs)
//!           ─ newest uberblock that is allowed ─► MOS ─► trusted configuration ─► final tree
//!           ─ features, hostid, activity ─► may it be opened?
//!           ─ dirty time logs, leaves left behind, mappings of removed vdevs, salt ─► [`View`]
//! ```
//! The provisional tree is used only to read the MOS; the configuration in the MOS then replaces it.
//!
//! **In memory.** [`View`] is a pool as of one txg: the tree, the pipeline, the cache, the MOS and the datasets. It never changes. An
//! import returns a view whose devices are opened read-only. [`Pool::view`] returns a view of a pool that this process writes; it pins
//! the txg, so the txg's blocks are not reused.
//!
//! **Invariants.**
//! 1. An import writes nothing: a device opened here cannot be written through its descriptor. Writing is [`Pool`].
//! 2. A pool with an active unknown feature that is not read-only compatible is refused with the feature's name.
//! 3. A pool that another system may have open is refused unless forced, and watched for activity where it says that it
//!    is protected (`multihost`).
//! 4. A pool that was not exported is written only if the process that had it is known to be dead, or with `-f`; a pool that this
//!    machine's ZFS module has imported is never written (`owner`).
//! 5. Rewinding changes nothing on disk: it only chooses an older uberblock.
//!
//! **Crash.** An import writes nothing, so a crash leaves nothing.
//!
//! **Rejected.** Two passes, as OpenZFS's `zpool import` has them (`ZFS_IOC_POOL_TRYIMPORT`, then the import): one open serves both.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod admin;
mod audit;
mod auxiliary;
mod behind;
mod config;
mod errlog;
mod error;
mod events;
mod failmode;
pub mod features;
mod figures;
mod find;
mod foreign;
pub mod history;
mod import;
mod indirect;
mod intent_log;
mod inuse;
mod jobs;
pub mod multihost;
mod open;
mod options;
mod owner;
mod pins;
mod placed;
mod pool;
mod refcount;
mod small;
mod space;
mod status;
mod sync;
pub mod tunables;
mod view;

pub use admin::add::AddOptions;
pub use admin::attach::{AttachOptions, LogLeaves, NewDevice, stands_for};
pub use admin::bookmark::NewBookmark;
pub use admin::dataset::{FileSizes, PropertyValue};
pub use admin::offline::{Offline, Onlined};
pub use admin::receive::{Received, Receiving};
pub use admin::receive_spec::{RawSpec, ReceivePoint, ReceiveRefusal, ReceiveSpec, Resumable};
pub use admin::received::ReceivedPropertyError;
pub use admin::snapshot::NewSnapshot;
pub use admin::split::{SplitOptions, legs_of};
pub use auxiliary::{FoundAuxiliary, SpareUse};
pub use cenote_dsl::Head;
pub use config::PoolState;
pub use errlog::{ErrorScrubbed, LoggedError};
pub use error::{FailedPool, NamePool, PoolError, Refusal, SpaError};
pub use events::{Event, Events, NewEvents, state_name};
pub use failmode::FailMode;
pub use figures::{Checkpoint, CloneFigures, DedupFigures};
pub use find::{Choice, CopiedLeaf, FoundLeaf, FoundPool, LOCK_PATIENCE, SkipReason, Skipped, find};
pub use foreign::foreign;
pub use import::import;
pub use inuse::{HeadSpace, LongHold, User};
pub use jobs::JobStatus;
pub use jobs::leaf::LeafWorkKind;
pub use jobs::scan::{
    ErrorReport, ScanOrder, ScanPass, ScanPlace, ScanRange, ScanReport, ScanSeat, ScanTask, ScanWork, TreeHistory,
    Unreported, WalkedTree,
};
pub use open::existing::{WriteOptions, open};
pub use open::new::{CreateOptions, create, create_with_metaslabs};
pub use open::spares_l2cache::AuxSpec;
pub use open::vdevs::{DiskSpec, TopKind, TopSpec};
pub use options::{ImportOptions, Notice, Rewind};
pub use owner::{KERNEL_POOLS, holder_id, kernel_pool};
pub use pool::{
    HeadFrees, HealCounts, HealedBlock, KeptTxg, LiveHead, MemoryLimits, Pool, SyncTask, TxgRecord, WeakPool,
};
pub use space::LogFigures;
pub use status::{Condition, condition, condition_with, device_condition};
pub use sync::leaf_work::LeafAction;
pub use sync::{Clock, Host, Phase, ScrubSince, Syncer};
pub use view::{FeatureName, View};
