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
//! | [`Pool`] | its datasets, its health, its txgs; [`Pool::export`] lets it go |
//! | [`Dataset`], [`Snapshot`] | names in a pool: properties, snapshots, clones |
//! | [`FileSystem`], [`File`] | files and directories, by path and by handle |
//! | [`Volume`] | a block device's bytes |
//! | [`Error`] | a [kind](ErrorKind) to match, a [place](Place), and the cause in words |
//!
//! # Examples
//!
//! `cargo run -p cenote --example NAME`: `list` pools and datasets, `cat` a file, `write_tree`, `volume`, `watch` a pool whose device goes
//! away, copy out of a `damaged` pool, `power_cut` in a simulation, `server` with a pool in it.
//!
//! # Theory
//!
//! **Need.** A program that opens a pool should know neither how a txg is made nor in which of fifteen crates; and it should get all the
//! care that the command line takes: devices that somebody has, pools of other systems, intent logs, the properties of each dataset.
//!
//! **In memory.**
//! ```text
//! Pool ─ View                      opened read-only: one txg, no lock
//!      ─ cenote_spa::Pool          opened to be changed: written in the background
//!      ─ open: dataset ─► Open     file systems and volumes in use; each is open once, however many handles there are
//! Dataset, Snapshot                a name and a pool; looked up at each call
//! FileSystem, File, Volume         a handle of what is open
//! ```
//!
//! **Life of a call.** A name is looked up in the pool's open state. A head dataset is opened between two changes of the pool, with its
//! properties and its intent log, which is replayed first; a snapshot, and a dataset that cannot be written yet, is read as it is on disk,
//! and held so that nobody destroys it. A change is made by the crates below in a txg, and waited for where the property `sync` asks for it.
//! Verbs are those of `cenote_admin`.
//!
//! **Invariants.**
//! 1. A dataset is open at most once in a process, so its locks are all there are. What nobody uses is closed before its dataset is
//!    renamed, rolled back or destroyed, and what somebody uses refuses that.
//! 2. An error's kind follows from the types of the errors below, never from their words.
//! 3. Nothing public names a type of a crate below.
//!
//! **Crash.** As [`cenote_spa::Pool`]: the pool is whole as of its last txg, and what was synced is in the intent logs.
//!
//! **Rejected.** *A blocking twin of each function*: one function that blocks on any of them says the same. *Handles that keep a dataset
//! from being renamed*: a name costs nothing. *Errors as `From` of each crate's*: they would be part of the interface.
//!
//! **Not here yet**: sending and receiving, bookmarks and holds, adding devices, upgrades. The command line has them.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod create;
mod dataset;
mod error;
mod file;
mod filesystem;
mod metadata;
mod options;
mod pool;
mod raise;
mod readdir;
mod runtime;
mod snapshot;
mod status;
mod volume;

pub use create::CreateOptions;
pub use dataset::{DataError, Dataset, DatasetKind, DatasetSpace, Property, Source};
pub use error::{Error, ErrorKind, Place};
pub use file::{Bytes, File, SyncTicket};
pub use filesystem::{FileSystem, Space};
pub use metadata::{FileKind, Metadata};
pub use options::{FoundPool, OpenOptions};
pub use pool::Pool;
pub use readdir::{DirEntry, ReadDir};
pub use runtime::{Runtime, SimulatedDisk, Task};
pub use snapshot::Snapshot;
pub use status::{Event, Health, Status, TxgSummary, Vdev, Watch};
pub use volume::Volume;
