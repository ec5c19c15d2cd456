//! The mutation test: golden pools, damaged, through the whole read path in simulation.
//!
//! # Need
//!
//! Every byte of a pool is hostile: a disk decays, a writer has a bug, an attacker crafts a USB stick. For any bytes the read path returns
//! data or an error; it never panics or hangs, and its memory is bounded. The decoders have fuzz targets of their own; this test covers the
//! code that uses decoded values: walks, recursion, allocations, consistency between structures.
//!
//! # Life of a mutation
//!
//! A number, the *seed*, decides everything: the pool, the damage, the options of the import, the schedule.
//!
//! ```text
//! seed ─► pool ─► its images as simulated disks, copy-on-write ─► damage ─► find, import, walk ─► verdict
//! ```
//!
//! There are three kinds of damage:
//!
//! * *blind* ([`damage`]): bits, ranges, copies, cut-off ends, anywhere on the disks. Checksums catch most of it; it tests
//!   labels, partition tables, reconstruction, other copies, and giving up.
//! * *sealed* ([`damage`]): labels and uberblocks are changed and their checksums made right again.
//! * *logical* ([`logical`]): blocks are changed behind their checksums, by a hook in the I/O pipeline. So hostile values
//!   reach every parser and everything that trusts one, up to cycles of block pointers.
//!
//! [`walk`] then does what a user could: finds, imports, lists, reads, verifies. Errors are good answers.
//!
//! # Verdict
//!
//! A panic anywhere (also one that a task boundary caught), a simulation that stands still or takes more than
//! [`trial::STEPS_MAX`] steps, memory beyond [`memory::LIMIT_BYTES`], or [`trial::SECONDS_MAX`] of real time is a failure.
//! `mutate --seed N` does the same again.
//!
//! # Rejected
//!
//! Sealing changed blocks up the tree on the disk: it costs a writer, and tests no line more than the hook.

pub mod damage;
pub mod logical;
pub mod memory;
pub mod pools;
pub mod random;
pub mod trial;
pub mod walk;
