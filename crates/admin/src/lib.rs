//! Administration of a pool's datasets, as plain functions.
//!
//! # Theory
//!
//! **Need.** The command line, a server's socket, tests and programs that embed the engine all create file systems and volumes, set
//! properties and destroy datasets. Each operation (*verb*: `create`, `destroy`, ...) is implemented once, here. `cenote_spa` manages
//! datasets but not their contents: a new file system needs its root directory (`cenote_zpl`), a new volume its size (`cenote_zvol`).
//!
//! **Shape.** A verb is a sync task, as in OpenZFS ([`SyncTask`](cenote_spa::SyncTask)): a check, which only reads, and a change. The
//! functions below execute one sync task, or several as one atomic change:
//! ```text
//! create_pool         (by spa)           with root directory and all properties
//! create_filesystem   Create             with missing parents, root directory and all properties
//! create_filesystem_of                   the same, whose root directory belongs to somebody
//! create_volume       Create             with missing parents, size, reservation and all properties
//! destroy             Destroy            a dataset, or a tree of them, from below
//! set_properties      SetProperties      one for each dataset, all or none
//! inherit_property    InheritProperty    one for each dataset, all or none
//! take_snapshots      (by spa::sync)     all in one txg, with everything written before
//! destroy_snapshots   DestroySnapshots   all are checked first; in as many txgs as keep each short
//! clone_dataset       Clone              with all properties
//! promote             Promote            the origin's snapshots become the clone's
//! rollback            Rollback           with the newer snapshots and bookmarks destroyed
//! create_bookmarks    CreateBookmarks    all or none
//! destroy_bookmarks   DestroyBookmarks   all that exist
//! redact              Begin, Add         a redaction bookmark, then its list in as many txgs as that takes
//! hold, release       Holds              all or none
//! ```
//! Streams have modules of their own: [`send`], [`receive`], and [`stream`] for streams that are made from other streams. [`values`]
//! parses property values.
//!
//! **Life of `zfs create -p -o quota=1G tank/a/b`.** The task takes the pool's syncer. Its check finds that `tank/a` is missing and
//! `tank` can have it, and that each property can have its value. The change makes `tank/a`, `tank/a/b` and its root directory, and sets
//! the property. The sync writes all of it in one txg.
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
mod clone;
mod compatibility;
mod create;
mod destroy;
mod error;
pub mod missing;
mod named;
mod new_properties;
mod newpool;
mod properties;
pub mod receive;
mod redact;
pub mod send;
mod snapshot;
pub mod stream;
pub mod values;
mod volume;

use bookmark::{CreateBookmarks, DestroyBookmarks};
use cenote_spa::{NewBookmark, Pool, PropertyValue};
use cenote_taskq::BoxFuture;
use clone::Clone;
use create::Create;
use properties::{InheritProperty, SetProperties};
use snapshot::{Holds, Promote};

pub use bookmark::BookmarkRequest;
pub use compatibility::{CompatibilityError, ReadList, lacking_features};
pub use create::{Owner, VolumePlan, VolumeShape, outermost_new, plan_volume};
pub use destroy::{Destroy, Reach, check_goes_alone};
pub use error::{AdminError, Reason, Verb};
pub use named::{NamedSnapshots, clones_of, still_there};
pub use new_properties::{NewVolume, new_properties};
pub use newpool::{NewPool, create_pool};
pub use redact::{RedactError, RedactRequest, redact, redact_in};
pub use snapshot::{DestroySnapshots, Rollback, take_snapshots, tree_names};
pub use volume::{Resize, set_reserved};

/// The name of a property and its value, as stored.
pub type Setting = (String, PropertyValue);

/// The value of `refreservation` that stands for as much as a volume needs (`auto`). No dataset can reserve so much.
pub const AUTO: u64 = u64::MAX;

/// Creates a file system with these properties; with `parents` also its missing ancestors. Returns false if it already existed, which is
/// an error without `parents`. The root directories of what is made belong to `owner`.
///
/// # Errors
/// The name is taken or invalid, the parent does not exist, a property value is invalid, there is no space for the reservation; or as
/// [`Pool::change`].
pub fn create_filesystem_of<'a>(
    pool: &'a Pool,
    name: &'a str,
    settings: Vec<Setting>,
    parents: bool,
    owner: Owner,
) -> BoxFuture<'a, Result<bool, AdminError>> {
    Box::pin(async move { pool.sync_task(Create::filesystem(name, settings, parents, owner)).await })
}

/// As [`create_filesystem_of`] root.
///
/// # Errors
/// As [`create_filesystem_of`].
pub fn create_filesystem<'a>(
    pool: &'a Pool,
    name: &'a str,
    settings: Vec<Setting>,
    parents: bool,
) -> BoxFuture<'a, Result<bool, AdminError>> {
    create_filesystem_of(pool, name, settings, parents, Owner::ROOT)
}

/// Creates a volume with these properties; with `parents` also its missing ancestors, which belong to `owner`. Returns false if it
/// already existed, which is an error without `parents`.
///
/// # Errors
/// As [`create_filesystem_of`]; or the size is invalid.
pub fn create_volume_of<'a>(
    pool: &'a Pool,
    name: &'a str,
    shape: VolumeShape,
    settings: Vec<Setting>,
    parents: bool,
    owner: Owner,
) -> BoxFuture<'a, Result<bool, AdminError>> {
    Box::pin(async move { pool.sync_task(Create::volume(name, shape, settings, parents, owner)).await })
}

/// As [`create_volume_of`] root.
///
/// # Errors
/// As [`create_volume_of`].
pub fn create_volume<'a>(
    pool: &'a Pool,
    name: &'a str,
    shape: VolumeShape,
    settings: Vec<Setting>,
    parents: bool,
) -> BoxFuture<'a, Result<bool, AdminError>> {
    create_volume_of(pool, name, shape, settings, parents, Owner::ROOT)
}

/// Destroys a dataset, with as much of what depends on it as `reach` says. The blocks are freed in the background.
///
/// # Errors
/// There is none of this name, it is in use or has what depends on it; or as [`Pool::change`].
pub fn destroy<'a>(pool: &'a Pool, name: &'a str, reach: Reach) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move {
        pool.wait_logs_freed().await?;
        pool.sync_task(Destroy::new(pool, name, reach)).await
    })
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
pub fn clone_dataset<'a>(
    pool: &'a Pool,
    origin: &'a str,
    name: &'a str,
    settings: Vec<Setting>,
) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move { pool.sync_task(Clone::new(origin, name, settings)).await })
}

/// Rolls a dataset that is not open back to one of its snapshots. With `destroys_newer`, newer snapshots and bookmarks are destroyed;
/// otherwise they are an error.
///
/// # Errors
/// There is no such snapshot, there are newer ones, the dataset is in use; or as [`Pool::change`].
pub fn rollback<'a>(pool: &'a Pool, snapshot: &'a str, destroys_newer: bool) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move {
        pool.wait_logs_freed().await?;
        let task = pool.check_task(Rollback::new(pool, snapshot, destroys_newer)).await?;
        // Dirty data of the dataset is written first: it belongs to the tree that is freed.
        pool.sync().await?;
        pool.sync_task(task).await
    })
}

/// The datasets that are clones of snapshots which are newer than a snapshot of the same dataset.
///
/// # Errors
/// There is no such snapshot, or datasets cannot be read.
pub fn clones_of_newer<'a>(pool: &'a Pool, snapshot: &'a str) -> BoxFuture<'a, Result<Vec<String>, AdminError>> {
    Box::pin(async move {
        let dsl = pool.dsl()?;
        let target = dsl.dataset(snapshot).await?;
        let head = dsl.head(&target.dir).await?;
        let Some(head) = head.filter(|_| target.is_snapshot()) else {
            return Err(AdminError::refused(Verb::Rollback, snapshot, Reason::NoSnapshot));
        };
        let mut clones = Vec::new();
        for other in dsl.snapshots(&head).await? {
            if other.phys.creation_txg > target.phys.creation_txg {
                clones.extend(dsl.clones(&other).await?);
            }
        }
        Ok(clones)
    })
}

/// Promotes a clone: the snapshots of the origin's dataset up to the origin become the clone's.
///
/// # Errors
/// The dataset is no clone, both have a snapshot of the same name, there is no space; or as [`Pool::change`].
pub fn promote<'a>(pool: &'a Pool, name: &'a str) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move { pool.sync_task(Promote(name.to_owned())).await })
}

/// Makes bookmarks, all of them or none.
///
/// # Errors
/// The pool lacks the feature `bookmarks`, a name is taken or invalid, a source does not exist or is not an ancestor of the dataset; or
/// as [`Pool::change`].
pub fn create_bookmarks(pool: &Pool, bookmarks: Vec<NewBookmark>) -> BoxFuture<'_, Result<(), AdminError>> {
    Box::pin(async move { pool.sync_task(CreateBookmarks(bookmarks)).await })
}

/// Destroys bookmarks. Names that do not exist are ignored.
///
/// # Errors
/// As [`Pool::change`].
pub fn destroy_bookmarks(pool: &Pool, names: Vec<String>) -> BoxFuture<'_, Result<(), AdminError>> {
    Box::pin(async move { pool.sync_task(DestroyBookmarks(names)).await })
}

/// Puts a hold with this tag on snapshots: on all, or none.
///
/// # Errors
/// One is not there, or has such a hold; or as [`Pool::change`].
pub fn hold<'a>(pool: &'a Pool, tag: &'a str, snapshots: &'a [String]) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move { pool.sync_task(Holds::new(tag, snapshots, false)).await })
}

/// Releases the holds with this tag on snapshots: on all, or none. A snapshot with deferred destroy is destroyed with its last hold.
///
/// # Errors
/// One is not there, or has no such hold; or as [`Pool::change`].
pub fn release<'a>(pool: &'a Pool, tag: &'a str, snapshots: &'a [String]) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move { pool.sync_task(Holds::new(tag, snapshots, true)).await })
}

/// Refuses settings that cannot be made in one change. The checks of `volsize` and `refreservation` use the dataset's space before the
/// change, so neither may be set together with another property, nor for several datasets.
///
/// # Errors
/// They cannot.
pub fn check_together(dataset_count: usize, settings: &[Setting]) -> Result<(), AdminError> {
    let needs_room = settings.iter().any(|(property, _)| ["volsize", "refreservation"].contains(&property.as_str()));
    if needs_room && (dataset_count > 1 || settings.len() > 1) {
        return Err(AdminError::NotTogether);
    }
    Ok(())
}

/// Sets properties of datasets: all of them, or none.
///
/// # Errors
/// As [`check_together`]; there is no such dataset, a property does not apply to it or cannot have its value, there is no room for what is reserved; or as
/// [`Pool::change`].
pub fn set_properties<'a>(
    pool: &'a Pool,
    datasets: &'a [String],
    settings: &'a [Setting],
) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move {
        check_together(datasets.len(), settings)?;
        let tasks = datasets.iter().map(|dataset| SetProperties::new(dataset, settings.to_vec())).collect();
        pool.sync_tasks(tasks).await.map(drop)
    })
}

/// Clears a local property of datasets so that they inherit it, with `recursive` also on all datasets below: on all, or none. With
/// `received` (`-S`) a received value takes effect, if there is one.
///
/// # Errors
/// There is no such dataset, the property does not apply to it, or what was received cannot be in force; a reservation of several
/// datasets was to be reverted; or as [`Pool::change`].
pub fn inherit_property<'a>(
    pool: &'a Pool,
    datasets: &'a [String],
    property: &'a str,
    recursive: bool,
    received: bool,
) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move {
        if received && property == "refreservation" && datasets.len() > 1 {
            return Err(AdminError::NotTogether);
        }
        let task = |dataset: &String| InheritProperty::new(dataset, property, recursive, received);
        let tasks = datasets.iter().map(task).collect();
        pool.sync_tasks(tasks).await.map(drop)
    })
}
