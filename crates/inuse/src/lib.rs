//! Datasets in use: file systems and volumes are opened, obey their properties, and are suspended and closed in one way, whoever uses them.
//!
//! # Theory
//!
//! **Need.** Mounts, clients of volumes, and programs that use the library all work with datasets of a pool that this process writes. They see a
//! dataset in their own ways (paths and nodes, exports, handles), but what it takes to use one is the same, and a difference between them is a
//! fault: a log that only one of them replays, a property that only one of them obeys.
//!
//! **In memory.**
//! ```text
//! open_files  ─► Live(OpenFiles)    file system, head, intent log, reaper
//!             ─► Frozen(FileSystem) as it is on disk, with a long hold
//! open_volume ─► Live(LiveVolume)   volume, head, intent log
//!             ─► Frozen(Volume)     as it is on disk, with a long hold
//! ```
//! The pool has the registry of the datasets in use ([`cenote_spa::Pool::user`], [`cenote_spa::Pool::is_long_held`]); each user has a table of
//! what it has opened, by its own keys.
//!
//! **Life of a dataset in use.**
//! 1. *Look*, between two changes of the pool: the dataset still is the one that the user found; it is whole, of the right kind, and its key is
//!    loaded; no other user has it open to be changed. Its properties are read, with the sizes of blocks and dnodes that the pool's features allow.
//! 2. *Take*, in the same look: the head of a file system or volume is opened and its user recorded; or, of a snapshot and of a head that
//!    Cenote cannot change yet, a long hold is taken, so that it remains as it is on disk.
//! 3. *Open*: the intent log is replayed. A property `readonly` does not prevent that: without it the dataset is not what its last user was
//!    told.
//! 4. *Obey*: the first call begins to free the delete queue of a file system, unless it is read-only. Each later call applies changed
//!    properties from the next request on. [`properties_of`] reads those of all datasets in use in one look.
//! 5. *Suspend and resume*: a rollback, or the end of a receive, needs the head closed. The user's [`Seat`] has new requests wait, those that have
//!    begun end ([`unused`]), the dataset is stopped ([`OpenFiles::stop`]) and dropped, changed, and opened again from step 1, with the files that are
//!    open ([`KeptFiles`]).
//! 6. *Close*.
//!
//! **Invariants.** 1. A head is open to be changed once in a process, so all its users share its locks. 2. A log is replayed before any user gets
//! the dataset. 3. All users of a kind obey the same properties: `crates/cenote/src/obeyed.rs` sets each of them on each kind of user, and looks.
//! 4. What is frozen has a long hold, if its pool can change. 5. No request has a dataset that is being closed.
//!
//! **Power cut.** Opening changes nothing on disk but what the replay of a log does, which `cenote_zil` describes.
//!
//! **Rejected.** *A volume with `readonly=on` is opened as it is on disk*: its log was not replayed, and `readonly=off` reached its clients only
//! when they connected again. *One trait for the two kinds*: they have opening in common, and no operation.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod error;
mod files;
mod kept;
mod seat;
mod take;
mod volume;

use std::sync::Arc;
use std::time::Duration;

pub use error::{OpenError, Why};
pub use files::{OpenFiles, open_files};
pub use kept::{KeptFile, KeptFiles};
pub use seat::{Patience, Reopen, Seat, Suspended, Taken};
pub use take::{allow_sizes, is_obeyed, properties_of};
pub use volume::{obey, open_volume};

use cenote_spa::{LongHold, Pool, User, View};
use cenote_taskq::Handle;

/// The interval between checks for the end of requests.
const REQUESTS_POLL: Duration = Duration::from_millis(2);

/// Takes sentences for a person: an error of which no request returns.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// A request to use a dataset.
#[derive(Clone)]
pub struct Use {
    /// The user.
    pub user: User,
    /// It is opened to be changed, or not at all.
    pub is_for_changes: bool,
    /// Takes errors of work in the background.
    pub report: Report,
}

/// The pool of a dataset that is opened.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// As of a txg: nothing changes.
    View(&'a View),
    /// In use.
    Pool(&'a Pool),
}

/// A dataset that was opened.
pub enum Opened<L, F> {
    /// To be changed.
    Live(L),
    /// As it is on disk.
    Frozen(Frozen<F>),
}

impl<L, F> Opened<L, F> {
    /// The means to change it, if it can be changed.
    pub const fn live(&self) -> Option<&L> {
        match self {
            Self::Live(live) => Some(live),
            Self::Frozen(_) => None,
        }
    }
}

/// A dataset that does not change while it is open.
pub struct Frozen<F> {
    /// The file system or volume.
    pub contents: F,
    /// Keeps it, in a pool in use.
    pub hold: Option<LongHold>,
    /// The reason that it is not changed, of a head.
    pub why: Option<String>,
}

/// Waits until no request has an open dataset, of which the caller has taken the last reference that requests find.
pub async fn unused<T>(handle: &Handle, opened: &Arc<T>) {
    while Arc::strong_count(opened) > 1 {
        handle.sleep(REQUESTS_POLL).await;
    }
}
