//! Verbs that users of a pool notice: each calls `admin`'s verb, and before and after it adapts this process's mounts and volumes.
//!
//! # Theory
//!
//! **Need.** A dataset that is destroyed, renamed, rolled back or received into may be mounted, or served as a volume, by the process that does
//! it. `admin` refuses a dataset in use; the pool's owner knows which uses can end without harm, and which users must wait.
//!
//! **Life of a verb.** Its function takes the pool ([`Writing`](crate::writing::Writing)) that the caller has opened. Mounts release datasets to
//! be destroyed, users of changing datasets wait, the verb is done in one txg, and then mounts show the new state. The command is recorded in
//! the pool's history as its caller gave it.
//!
//! **Invariants.** 1. Mounts that released datasets, and users that had to wait, continue even if the verb fails. 2. A failed command is not
//! recorded.

mod add;
mod destroy;
mod hold;
mod receive;
mod remove;
mod rename;
mod resize;
mod rollback;

pub use add::AddRequest;
pub use destroy::{DestroyCaller, DestroyRequest, destroy};
pub use hold::{HoldRequest, change_holds};
pub use receive::receive;
pub use remove::{Device, find_devices, remove_devices};
pub use rename::{RenameRequest, rename};
pub use resize::set_properties;
pub use rollback::rollback;
