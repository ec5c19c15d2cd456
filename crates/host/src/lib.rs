//! The host system: its disks, its host id, the cache file of imported pools, and the records of processes that have pools open.
//!
//! # Theory
//!
//! **Need.** The engine takes devices, a host id and memory as arguments, so that it can be simulated. A process that opens pools of a real
//! system finds them in the same places and obeys the same rules, whether it is the command line or a program with the engine in it.
//!
//! **Shape.**
//! ```text
//! disks       files and devices where pools are looked for; the pool of a name among those found
//! cachefile   pools that are imported: names and devices              pools.json
//! configs     their configurations, where a pool names a file for it  cachefile=PATH
//! compatibility lists of features
//! owners      processes that have pools open for writing              owners/GUID-MARK
//! holder      processes that have image files locked
//! accounts    users and groups by number
//! identity    host id, name and clock
//! layout      vdevs as people name them, opened
//! labelclear  labels taken off a device
//! imported    devices of pools that this system has: in the cache file, or a process's
//! inuse       devices that cannot be used for vdevs
//! memory      how large the block cache is
//! mounthelper command lines of mount(8)'s helpers
//! mounts      which datasets are mounted where
//! users       processes that use a mount
//! ```
//!
//! **Invariants.** 1. A file is trusted only if this user or root has written it (`folders::own_folder`). 2. A note of an owner is made
//! before the pool's labels name it ([`owners`]). 3. Nothing is made of a device of a pool that this system has, whatever its label says and
//! whether or not a process has the pool open at the moment ([`imported`](imported::imported)).
//!
//! **Crash.** Each file is replaced as a whole.
//!
//! **Rejected.** *Modules of the command line*, as they were before: programs that embed the engine opened pools without these rules.

#![forbid(unsafe_code)]

mod accounts;
mod cachefile;
mod compatibility;
mod configs;
mod disks;
mod error;
mod folders;
pub mod holder;
mod identity;
pub mod images;
mod imported;
pub mod inuse;
mod labelclear;
pub mod layout;
mod memory;
pub mod mounthelper;
mod mounts;
pub mod owners;
mod replication;
mod users;

pub use accounts::Accounts;
pub use cachefile::{CacheFile, Entry};
pub use compatibility::feature_list;
pub use configs::{CacheSetting, ConfigFile, ListedPool};
pub use disks::{DEFAULT_DIRS, all_device_paths, choose, device_paths, search};
pub use error::HostError;
pub use folders::make_own_folder;
pub use holder::Holder;
pub use identity::{clock, host, host_id};
pub use imported::Imported;
pub use labelclear::clear_labels;
pub use memory::{default_cache_bytes, usable};
pub use mounts::{Mounted, Mounts, Renamed};
pub use replication::refuse_mismatch;
pub use users::{User, users_of};
