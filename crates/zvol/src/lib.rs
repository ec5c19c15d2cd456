//! Volumes of a pool as block devices.
//!
//! # Theory
//!
//! **Need.** A volume is an objset with one large object; clients want its size and its bytes at any offset, and which
//! ranges are holes, so that they can be skipped.
//!
//! **On disk.** Object 1 is the data, with blocks of `volblocksize`; object 2 is a ZAP whose entry `size` is `volsize`
//! in bytes. A snapshot of a volume is the same, frozen.
//!
//! **Life of a read.** The data object reads the blocks of the range concurrently and returns one buffer; a range within one block is not
//! copied.
//!
//! **Invariants.** No read goes past `volsize`. The size comes from the pool, so no allocation relies on it.
//!
//! **Rejected.** A layer of its own for caching: the block cache is below.
//!
//! **Writing** is described in [`Volume`]'s module, and the durability that clients of an open volume get in [`mod@live`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod claim;
pub mod live;
mod replay;
mod volume;

pub use self::claim::Claim;
pub use self::volume::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Volume, VolumeError, VolumeSpec};
