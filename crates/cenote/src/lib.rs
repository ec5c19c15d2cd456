//! OpenZFS pools without a kernel module: read, written, made and watched by an ordinary process.
//!
//! ```
//! # use cenote::CreateOptions;
//! use cenote::{Error, OpenOptions, Runtime};
//!
//! fn main() -> Result<(), Error> {
//! #   let folder = tempfile::tempdir().unwrap();
//! #   let images = folder.path();
//! #   let image = images.join("a.img").display().to_string();
//!     let runtime = Runtime::new()?;
//! #   runtime.block_on(async {
//! #       let pool = CreateOptions::new([image]).file_bytes(64 << 20).create(&runtime, "tank").await?;
//! #       pool.create_filesystem("tank/home", &[]).await?;
//! #       pool.filesystem("tank/home").await?.write("/note", "water the plants").await?;
//! #       pool.export().await
//! #   })?;
//!     runtime.block_on(async {
//!         let options = OpenOptions::new().search(images).write(true);
//!         let pool = options.open(&runtime, "tank").await?;
//!         let home = pool.filesystem("tank/home").await?;
//!         let note = home.read("/note").await?;
//!         home.write("/copy", &note).await?;
//!         pool.export().await
//!     })
//! }
//! ```
//!
//! # Names
//!
//! | | |
//! |---|---|
//! | [`Runtime`] | threads and devices, or a simulation of both; [`Runtime::block_on`] waits for any function here |
//! | [`OpenOptions`], [`CreateOptions`] | how a pool is found and opened, and how one is made |
//! | [`Pool`] | an open pool: its datasets, health, events, history and txgs; [`Pool::export`] exports it |
//! | [`Dataset`], [`Snapshot`] | a dataset or snapshot by its name: properties, snapshots, clones, holds, [changes](Changes) |
//! | [`SendOptions`], [`ReceiveOptions`] | snapshots as streams, for another pool |
//! | [`Bookmark`] | the place of a snapshot in time, from which changes can be sent |
//! | [`FileSystem`], [`File`] | files and directories, by path and by handle |
//! | [`Volume`] | a block device's bytes |
//! | [`Error`] | a [kind](ErrorKind) to match, a [place](Place), and the cause in words |
//!
//! # Examples
//!
//! `cargo run -p cenote --example NAME`: `list` pools and datasets, `cat` a file, `write_tree`, `volume`, `watch` a pool whose device goes
//! away, copy files out of a `damaged` pool, `power_cut` (a simulated one), `replicate` a pool into another, `server` (a small file server over a pool).
//!
//! # Theory
//!
//! **Need.** A program that opens a pool should not have to know the engine's crates or the life of a txg. It should get the same safety
//! checks as the command line: devices in use, pools that another system has, intent logs to replay, the properties of each dataset.
//!
//! **In memory.**
//! ```text
//! Pool ─ View                      opened read-only: one txg, no lock
//!      ─ cenote_spa::Pool          opened to be changed: written in the background
//!      ─ open: dataset ─► Open     file systems and volumes in use; each is open once, however many handles there are
//! Dataset, Snapshot                a name and a pool; looked up at each call
//! FileSystem, File, Volume         a handle of what is open, which waits while it is suspended (cenote_inuse::Seat)
//! ```
//!
//! **Life of a call.** A name is looked up in the pool's open state. A head dataset is opened between two changes of the pool, with its
//! properties and its intent log, which is replayed first; a snapshot, and a dataset that Cenote cannot write yet, is read as it is on
//! disk, and held so that it cannot be destroyed meanwhile. The crates below make each change in a txg; the call waits until it is
//! durable if the property `sync` requires that. Administration uses `cenote_admin`. Streams, changes and history are read from a view of one
//! txg, which is kept meanwhile; a stream and a list of changes are made while they are taken.
//!
//! **Invariants.**
//! 1. A dataset is open at most once in a process, so all users share its locks. Before a destroy, an open dataset that is no longer in use is
//!    closed; one that is in use makes the operation fail. During a rollback or a rename, calls of open datasets wait, and then go on.
//! 2. An error's kind is derived from the types of the underlying errors, never from their text.
//! 3. The public interface names no type of the crates below.
//!
//! **Crash.** As [`cenote_spa::Pool`]: the pool is consistent as of its last txg, and later synced changes are in the intent logs.
//!
//! **Rejected.** *A blocking version of each function*: [`Runtime::block_on`] does the same. *Handles that prevent the rename of a
//! dataset*: [`Dataset`] is only a name. *`From` for the error of each crate*: these types would become part of the interface.
//!
//! **Not here yet**: redaction, healing from streams, adding and removing devices, upgrades: the command line has them. Changing keys: the
//! function says what to do instead.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bookmark;
mod create;
mod dataset;
mod diff;
mod error;
mod file;
mod filesystem;
mod history;
mod hold;
mod key;
mod metadata;
#[cfg(test)]
mod obeyed;
mod open;
mod options;
mod pool;
mod pulled;
mod raise;
mod readdir;
mod receive;
mod runtime;
mod send;
mod setters;
mod snapshot;
mod status;
mod users;
mod volume;

pub use bookmark::Bookmark;
pub use create::CreateOptions;
pub use dataset::{DataError, Dataset, DatasetKind, DatasetSpace, Property, Source};
pub use diff::{Change, ChangeKind, Changes};
pub use error::{Error, ErrorKind, Place};
pub use file::{Bytes, File, SyncTicket};
pub use filesystem::{FileSystem, Space};
pub use history::{HistoryEvent, HistoryRecord};
pub use hold::Hold;
pub use key::KeyStatus;
pub use metadata::{FileKind, Metadata};
pub use options::{FoundPool, OpenOptions};
pub use pool::Pool;
pub use readdir::{DirEntry, ReadDir};
pub use receive::{ReceiveOptions, Received, SentName};
pub use runtime::{Runtime, SimulatedDisk, Task};
pub use send::{SendOptions, SendStream, Sent};
pub use snapshot::Snapshot;
pub use status::{Event, Health, Status, TxgSummary, Vdev, Watch};
pub use volume::Volume;
