//! Administration of a pool's datasets, as plain functions.
//!
//! # Theory
//!
//! **Need.** The command line, a server's socket, tests and programs that embed the engine all create file systems and volumes, set
//! properties and destroy datasets. Each operation (*verb*: `create`, `destroy`, ...) is implemented once, here. `cenote_spa` manages
//! datasets but not their contents: a new file system needs its root directory (`cenote_zpl`), a new volume its size (`cenote_zvol`).
//!
//! **Shape.** A verb is a *request* ([`Request`]): all that its command says, with a check that needs no pool, `run`, and its line for
//! the pool's history. Users of datasets notice it ([`Users`]). It is made of *sync tasks*, as in OpenZFS
//! ([`SyncTask`](cenote_spa::SyncTask)): a check, which only reads, and a change, one task or several as one atomic change. Programs that
//! need neither users nor history call the functions.
//! ```text
//! request            function              sync tasks
//! ───────────────────────────────────────────────────────────────────────────────────────────────────────────
//! (server's)         create_pool           (by spa)           with root directory and all properties
//! CreateRequest      create_filesystem     Create             with missing parents, root directory and all properties
//!                    create_volume         Create             with missing parents, size, reservation and all properties
//! CloneRequest       clone_dataset         Clone              with all properties
//! SnapshotRequest    take_snapshots        (by spa::sync)     all in one txg, with everything written before
//! BookmarkRequest    create_bookmarks      CreateBookmarks    all or none
//! RedactRequest      redact                Begin, Add         a redaction bookmark, then its list in as many txgs as that takes
//! HoldRequest        hold, release         Holds              all or none
//! RenameRequest      (Pool's)              (by spa)           with missing parents
//! PromoteRequest     promote               Promote            the origin's snapshots become the clone's
//! RollbackRequest    rollback              Rollback           with the newer snapshots and bookmarks destroyed
//! SetRequest         set_properties        SetProperties      one for each dataset, all or none
//! InheritRequest     inherit_property      InheritProperty    one for each dataset, all or none
//! DestroyRequest     destroy               Destroy            a dataset, or a tree of them, from below
//!                    destroy_snapshots     DestroySnapshots   all are checked first; in as many txgs as keep each short
//!                    destroy_bookmarks     DestroyBookmarks   all that exist
//! SetPoolRequest, SetVdevRequest, UpgradeRequest, ClearRequest                (by spa)
//! OfflineRequest, OnlineRequest, ReopenRequest,
//! ClearDevicesRequest                                         (by spa)           each device in a txg of its own
//! AttachRequest, DetachRequest                                (by spa)           the server opens the new device
//! ```
//! Streams have modules of their own: [`send`], [`receive`], and [`stream`] for streams that are made from other streams. [`values`]
//! parses property values.
//!
//! **Life of `zfs create -p -o quota=1G tank/a/b`.** The request parses the settings. The task takes the pool's syncer. Its check finds that `tank/a` is missing and
//! `tank` can have it, and that each property can have its value. The change makes `tank/a`, `tank/a/b` and its root directory, and sets
//! the property. The sync writes all of it in one txg, and mounts of `tank` show `tank/a`.
//!
//! **Invariants.**
//! 1. A change whose check has passed does not fail half-way, except by a failure of a device or of memory. So the check considers the
//!    task as a whole: names that are given twice, and snapshots with deferred destroy that disappear together with a destroyed clone.
//! 2. A verb is in one txg, so a crash leaves all of it or nothing. There are two exceptions: `redact`, whose bookmark is marked as
//!    incomplete until it ends, and a `destroy_snapshots` that takes longer than a fifth of a second, after which any number of the
//!    snapshots may be left.
//! 3. A dataset that is open to be changed, or a snapshot that somebody reads, is not destroyed.
//!
//! **Crash.** As [`cenote_spa::Pool::change`].
//!
//! **Rejected.** *Verbs as methods of the pool*: `spa` would depend on `zpl` and `zvol`, which are above it. *Steps made one
//! after another, each on disk*: `create -p` and `destroy -r` stopped half-way where a later step was refused.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod bookmark;
mod checkpoint;
mod clone;
mod compatibility;
mod create;
mod destroy;
mod destroying;
mod device;
mod error;
mod hold;
mod leaf_work;
pub mod missing;
mod named;
mod new_properties;
mod newpool;
mod pool;
mod properties;
pub mod receive;
mod redact;
mod reguid;
mod rename;
mod request;
mod rollback;
mod scan;
pub mod send;
mod snapshot;
mod split;
pub mod stream;
pub mod values;
mod volume;

use bookmark::{CreateBookmarks, DestroyBookmarks};
use cenote_spa::{NewBookmark, Pool, PropertyValue};
use cenote_taskq::{BoxFuture, boxed};
use clone::Clone;
use create::{Create, create_filesystem_of};
use destroy::Destroy;
use hold::Holds;
use rollback::Promote;

pub use bookmark::BookmarkRequest;
pub use cenote_spa::{LeafAction, LeafWorkKind};
pub use checkpoint::CheckpointRequest;
pub use clone::CloneRequest;
pub use compatibility::{Lists, ReadList, lacking_features};
pub use create::{CreateRequest, Owner, TellNew, VolumeShape};
pub use destroy::Reach;
pub use destroying::{DestroyCaller, DestroyRequest};
pub use device::{
    AttachRequest, ChangedDevices, ClearDevicesRequest, DetachRequest, NamedDevice, OfflineRequest, OnlineRequest,
    ReopenRequest,
};
pub use error::{AdminError, CompatibilityError, Reason, Verb};
pub use hold::HoldRequest;
pub use leaf_work::LeafWorkRequest;
pub use newpool::{NewPool, create_pool};
pub use pool::{ClearRequest, SetPoolRequest, SetVdevRequest, UpgradeRequest};
pub use properties::{InheritRequest, SetRequest, inherit_property, set_properties};
pub use redact::{RedactError, RedactRequest, redact, redact_in};
pub use reguid::ReguidRequest;
pub use rename::RenameRequest;
pub use request::{Changed, Going, Line, NoUsers, Request, Suspended, Users, Volumes};
pub use rollback::{PromoteRequest, RollbackRequest, rollback};
pub use scan::{Activity, CancelRemovalRequest, ResilverRequest, ScrubAction, ScrubRequest, wait};
pub use snapshot::{SnapshotRequest, take_snapshots, tree_names};
pub use split::SplitRequest;

/// The name of a property and its value, as stored.
pub type Setting = (String, PropertyValue);

/// The value of `refreservation` that stands for as much as a volume needs (`auto`). No dataset can reserve so much.
pub const AUTO: u64 = u64::MAX;

/// Creates a file system with these properties; with `parents` also its missing ancestors. Returns false if it already existed, which is
/// an error without `parents`. The root directories belong to root.
///
/// # Errors
/// The name is taken or invalid, the parent does not exist, a property value is invalid, there is no space for the reservation; or as
/// [`Pool::change`].
pub fn create_filesystem<'a>(
    pool: &'a Pool,
    name: &'a str,
    settings: Vec<Setting>,
    parents: bool,
) -> BoxFuture<'a, Result<bool, AdminError>> {
    Box::pin(create_filesystem_of(pool, name, settings, parents, Owner::ROOT))
}

/// Creates a volume with these properties; with `parents` also its missing ancestors. Returns false if it already existed, which is an
/// error without `parents`.
///
/// # Errors
/// As [`create_filesystem`]; or the size is invalid.
#[boxed]
pub async fn create_volume(
    pool: &Pool,
    name: &str,
    shape: VolumeShape,
    settings: Vec<Setting>,
    parents: bool,
) -> Result<bool, AdminError> {
    pool.sync_task(Create::volume(name, shape, settings, parents, Owner::ROOT)).await
}

/// Destroys a dataset, with as much of what depends on it as `reach` says. The blocks are freed in the background.
///
/// # Errors
/// There is none of this name, it is in use or has what depends on it; or as [`Pool::change`].
#[boxed]
pub async fn destroy(pool: &Pool, name: &str, reach: Reach) -> Result<(), AdminError> {
    pool.wait_logs_freed().await?;
    pool.sync_task(Destroy::new(pool, name, reach)).await
}

/// Destroys snapshots; with `is_deferred` those with holds or clones go with the last of them. The blocks are freed in the background. `told`
/// gets the number of snapshots of each step as it is on disk: as many are in a txg as take a fifth of a second, so that the pool's other
/// changes never wait for long.
///
/// # Errors
/// One is not there, or has holds or clones, and then all stay, unless that has come about between two steps; or as [`Pool::change`].
pub fn destroy_snapshots<'a>(
    pool: &'a Pool,
    names: &'a [String],
    is_deferred: bool,
    told: &'a (dyn Fn(usize) + Send + Sync),
) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(snapshot::destroy_in_steps(pool, names, is_deferred, told))
}

/// Makes a dataset as a clone of a snapshot, with all these properties.
///
/// # Errors
/// The snapshot is not there, the name cannot be had, a property cannot have its value; or as [`Pool::change`].
#[boxed]
pub async fn clone_dataset(pool: &Pool, origin: &str, name: &str, settings: Vec<Setting>) -> Result<(), AdminError> {
    pool.sync_task(Clone::new(origin, name, settings)).await
}

/// Promotes a clone: the snapshots of the origin's dataset up to the origin become the clone's.
///
/// # Errors
/// The dataset is no clone, both have a snapshot of the same name, there is no space; or as [`Pool::change`].
#[boxed]
pub async fn promote(pool: &Pool, name: &str) -> Result<(), AdminError> {
    pool.sync_task(Promote(name.to_owned())).await
}

/// Makes bookmarks, all of them or none.
///
/// # Errors
/// The pool lacks the feature `bookmarks`, a name is taken or invalid, a source does not exist or is not an ancestor of the dataset; or
/// as [`Pool::change`].
#[boxed]
pub async fn create_bookmarks(pool: &Pool, bookmarks: Vec<NewBookmark>) -> Result<(), AdminError> {
    pool.sync_task(CreateBookmarks(bookmarks)).await
}

/// Destroys bookmarks. Names that do not exist are ignored.
#[boxed]
pub async fn destroy_bookmarks(pool: &Pool, names: Vec<String>) -> Result<(), AdminError> {
    pool.sync_task(DestroyBookmarks(names)).await
}

/// Puts a hold with this tag on snapshots: on all, or none.
///
/// # Errors
/// One is not there, or has such a hold; or as [`Pool::change`].
#[boxed]
pub async fn hold(pool: &Pool, tag: &str, snapshots: &[String]) -> Result<(), AdminError> {
    pool.sync_task(Holds::new(tag, snapshots, false)).await
}

/// Releases the holds with this tag on snapshots: on all, or none. A snapshot with deferred destroy is destroyed with its last hold.
///
/// # Errors
/// One is not there, or has no such hold; or as [`Pool::change`].
#[boxed]
pub async fn release(pool: &Pool, tag: &str, snapshots: &[String]) -> Result<(), AdminError> {
    pool.sync_task(Holds::new(tag, snapshots, true)).await
}
