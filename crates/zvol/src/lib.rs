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
//! **Life of a read.** Offset and length to the data object, which reads the blocks concurrently and returns one buffer;
//! within one block nothing is copied.
//!
//! **Invariants.** Nothing is read past `volsize`. The size comes from the pool and is not trusted for any allocation.
//!
//! **Rejected.** A layer of its own for caching: the block cache is below.
//!
//! **Writing** has a theory of its own: [`Volume`]'s module; so has what clients of a volume in use are told: [`mod@live`].

mod claim;
pub mod live;
mod replay;
mod volume;

pub use self::claim::Claim;
pub use self::volume::{BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Volume, VolumeError, VolumeSpec};
