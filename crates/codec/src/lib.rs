//! Checksums, compression, ciphers and parity: the arithmetic done on a block between memory and disk.
//!
//! # Theory
//!
//! **Need.** A block pointer names how its block was transformed (compressed, encrypted) and what its bytes sum to; a
//! RAID-Z stripe holds parity in a fixed code. All of it is arithmetic over byte slices that must agree, bit for bit,
//! with what OpenZFS computes, at the speed of memory.
//!
//! **Shape.** One module a family, and nothing that knows of pools, devices or tasks: slices in, slices or small values
//! out. State that is costly to prepare and shared by many blocks (a pool's salted checksum templates, a dataset's keys)
//! is a value the caller makes once and lends to each call.
//!
//! **The life of one block read.** Its bytes arrive; [`checksum::verify`] compares them with the pointer's four words
//! (on a mismatch the device layer rebuilds the bytes with `raidz` or takes another copy, and asks again); then they
//! are decrypted and authenticated; then decompressed into a buffer of the logical size.
//!
//! **Invariants.**
//!
//! 1. No function panics, loops without bound or allocates more than it was told to, whatever the bytes.
//! 2. Every fast kernel has a scalar twin of the same meaning, and tests compare the two on every length and alignment.
//! 3. `unsafe` lives in the `simd` module alone; each block of it says why it is sound. The kernel in use is chosen
//!    once, by what the processor reports.
//! 4. Nothing reads memory in host order without saying so: each function takes the order of its data.
//!
//! **Crash.** No state here outlives a call.
//!
//! **Rejected.** General Reed-Solomon crates (RAID-Z's generators 1, 2, 4 and its unequal columns are not their
//! interface); calling C for Skein and Edon-R (two hundred lines of safe Rust do).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod checksum;
pub mod compress;
pub mod crypt;
#[doc(hidden)]
pub mod fuzz;
mod kernel;
pub mod raidz;
#[allow(unsafe_code)]
mod simd;
