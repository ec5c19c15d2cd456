//! Verbs that users of a pool notice: each is `admin`'s, with what this process's mounts and volumes do before and after it.
//!
//! # Theory
//!
//! **Need.** A dataset that is destroyed, renamed, rolled back or received into may be mounted, or served as a volume, by the process that
//! does it. `admin` refuses a dataset in use; the pool's owner knows which uses end without harm, and who has to wait.
//!
//! **Life of one.** The verb's function takes the pool ([`Writing`](crate::writing::Writing)) that the caller has opened. Mounts let go of
//! what goes, users of what changes wait, the verb is done in one txg, and then mounts show what is there. The command is noted in the pool's
//! history as its caller gave it.
//!
//! **Invariants.** 1. Mounts that let go and users that had to wait go on, however the verb ends. 2. A command that failed is not noted.

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
