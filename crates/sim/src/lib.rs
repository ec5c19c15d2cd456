//! Machines, pools and judges in simulation, for tests.
//!
//! # Theory
//!
//! **Need.** Tests of many crates run the whole engine on simulated disks: power cuts, written pools, administration, volumes. Each needs
//! disks, a pool on them, and checks of the pool. This crate has them once, so all tests benefit from a new kind of disk fault or a new
//! check.
//!
//! **Shape.**
//! ```text
//! Machine    simulated disks of one runtime, and where they are found          machine
//! Layout     which vdevs a pool has on them                                    layout
//! new_pool   a pool with a root directory, the same for the same calls         pool
//! check      Cenote's own verify of what is on the disks                       judge
//! zdb        OpenZFS's `zdb`, on the same disks copied to files                judge
//! audit_space  the space accounting of datasets, recomputed from block trees   space
//! tree       a file system as simple as can be: the model, and what there is       tree
//! written    a pool that tests of many crates make, change, cut off and open   written
//! ```
//! A test is part of the crate that it tests, which has this crate as a dev-dependency, even if the crate is below this one: Cargo allows that
//! circle for the tests in `tests/`, which use the crate from outside, and builds the crate once for both. A model that only one
//! crate's tests use stays with them.
//!
//! **Invariants.** The same seed and the same calls give the same bytes on the disks.

#![forbid(unsafe_code)]

mod judge;
mod layout;
mod machine;
mod pool;
mod space;
pub mod tree;
pub mod written;

pub use judge::{check, zdb};
pub use layout::{LAYOUTS, Layout, SINGLE};
pub use machine::{MUTANT_VARIABLE, Machine, disk, slow, tops};
pub use pool::{CACHE_BYTES, new_pool, options};
pub use space::audit_space;
