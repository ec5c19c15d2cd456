//! The pools that a process has open, and its services for them: mounts, volumes, and commands of other processes.
//!
//! # Theory
//!
//! **Need.** Only one process can have a pool open for writing. It carries out the commands of other processes (create a dataset, mount,
//! serve a volume, report statistics), and it keeps running while one of its pools is exported or has failing devices. The embedding
//! program decides how pools are found and opened, and the form of a request; this crate does the rest, and prints nothing.
//!
//! **Shape.**
//! ```text
//! Session ─ open_pool, Writing ─► a pool, found, opened and closed by the rules that all processes share
//!         ├ carry_out             a request of admin, with the users of this process (users);  verbs: those of devices, receive
//!         └ serving, mounting     long-running commands;  looking: damaged pools
//! Pools ─┬─ ServedPool ─┬─ Pool           written in the background, watched (watch)
//! (service)             ├─ LiveMounts     datasets that are mounted (mounts)
//!        │              └─ OpenVolumes    volumes that clients write (volumes)
//!        ├─ Control      requests over a socket (listener, protocol) ─► Handler, of the program
//!        └─ Console      receives messages, of the program
//! ```
//!
//! **Life of a pool.** The program opens it and adds it ([`Pools::add`]). It takes commands, and gets mounts and volumes. It ends as [`Pools`]
//! describes, and is exported.
//!
//! **Invariants.** 1. A volume and a dataset are open once, however many clients have them. 2. No request reaches a pool after its end has
//! begun. 3. While the server waits for one client, no other client and no sync waits.
//!
//! **Crash.** The pool is as of its last txg; later changes that were acknowledged as durable are in its intent logs.
//!
//! **Rejected.** *Requests as verbs of their own*: every command would be written twice, so the program defines their form. *Modules of the
//! command line*, as before: programs that embed the engine could serve nothing.

#![forbid(unsafe_code)]

mod autoreplace;
pub mod background;
mod delegated;
mod ending;
mod error;
pub mod exporting;
mod hooks;
mod image_files;
pub mod importing;
mod listener;
pub mod looking;
pub mod mounting;
mod mounts;
mod newpool;
pub mod protocol;
mod returned;
mod served;
mod service;
pub mod serving;
mod session;
mod shown;
pub mod signals;
mod suspend;
pub mod unmounting;
mod users;
pub mod verbs;
mod volumes;
mod watch;
pub mod writing;

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

pub use cenote_props::add_cause;
pub use cenote_spa::{FoundPool, Rewind, SpaError, View, tunables};
pub use cenote_taskq::{BoxFuture, Either, Handle, IoChoice, IoMode, Runtime, RuntimeOptions, race};
use delegated::Delegated;
pub use error::ServerError;
pub use hooks::Hooks;
pub use image_files::ImageFiles;
pub use listener::{Call, Ended, Gathered, Handler, Request};
pub use mounts::LiveMounts;
pub use newpool::{NewPool, NewPoolRequest, check_pool_name};
pub(crate) use protocol::PinnedTxg;
pub use protocol::{Input, Owned, Passed, Who};
pub use served::{End, ServedPool, suspended};
pub use service::{Pools, Volumes};
pub use session::{Found, Gone, Lost, NoSuchPool, Session, SessionOptions, Shown, choose, no_label};
pub(crate) use suspend::SuspendedDataset;
pub(crate) use volumes::PoolVolumes;
pub use volumes::{LiveVolumes, OpenVolumes};
pub(crate) use volumes::{Locked, SuspendedVolume};
pub(crate) use watch::Recovery;

/// Receives messages for the person or program that a process works for.
pub trait Console: Send + Sync {
    /// Reports something that a person should know.
    fn warn(&self, line: &str);

    /// Reports something that a person may like to know, although the request was fulfilled. Not for programs that parse a command's output.
    fn advise(&self, line: &str);

    /// Reports the present state.
    fn note(&self, line: &str);

    /// Shows the progress through `total_bytes` until the returned function is dropped. That is called with the bytes done since.
    fn progress(&self, label: &str, total_bytes: u64) -> Box<dyn Fn(u64) + Send>;

    /// Messages go to a file from now on.
    fn redirect(&self, to: File);

    /// Asks the process at a socket to run a command line, and shows its output. Returns the exit status.
    ///
    /// # Errors
    /// It does not answer, or refuses such a line.
    fn ask(&self, socket: &Path, line: &[&OsStr]) -> Result<u8, ServerError>;
}
