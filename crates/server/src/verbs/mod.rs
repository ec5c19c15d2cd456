//! Verbs that need more of this system than the pool: devices to add and to remove, and a stream to receive. The others are requests of
//! `admin`, which [`Session::carry_out`](crate::Session::carry_out) carries out with this process's [users](crate::users).

mod add;
mod attach;
mod receive;
mod remove;
mod split;

pub use add::AddRequest;
pub use attach::{Attaching, detach_device};
pub use receive::receive;
pub use remove::{Device, find_devices, mapping_bytes, remove_devices, work_on_leaves};
pub use split::Splitting;
