//! Machines, pools and judges in simulation, for tests.
//!
//! # Theory
//!
//! **Need.** Tests of many crates run the whole engine on simulated disks: power cuts, written pools, verbs, volumes. Each needs disks, a
//! pool on them, and a judge of the pool. They are made here once: a fault that a disk learns to show is there for all tests, and a check
//! that a judge learns is made by all.
//!
//! **Shape.**
//! ```text
//! Machine    simulated disks of one runtime, and where they are found          machine
//! Layout     which vdevs a pool has on them                                    layout
//! new_pool   a pool with a root directory, the same for the same calls         pool
//! check      Cenote's own verify of what is on the disks                       judge
//! zdb        OpenZFS's, of the same disks copied to files                      judge
//! audit_space  what datasets take, counted anew from their trees               space
//! ```
//! A test stands with the crate that it tests, and has this crate as a dev-dependency. The models that tests compare with stay with
//! them: a model of files and a model of space have nothing in common but their form.
//!
//! **Invariants.** The same seed and the same calls give the same bytes on the disks.

#![forbid(unsafe_code)]

mod judge;
mod layout;
mod machine;
mod pool;
mod space;

pub use judge::{check, zdb};
pub use layout::{LAYOUTS, Layout, SINGLE};
pub use machine::{Machine, disk, slow, tops};
pub use pool::{CACHE_BYTES, new_pool, options};
pub use space::audit_space;
