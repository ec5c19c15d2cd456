//! Every on-disk and stream structure of OpenZFS: bytes in, value or typed error out.
//!
//! # Theory
//!
//! **Need.** The crates above this one work with values (a block pointer, a directory entry); the devices deliver bytes. A pool's bytes
//! are hostile until checked: they may be truncated, bit-flipped, cyclic or made by an attacker, and they may be of either byte order,
//! since ZFS writes in the order of the machine and readers adapt.
//!
//! **Shape.** One module for each structure. Each begins with a diagram of the bytes, then has named offsets, a *value* (a plain
//! struct of checked fields), `parse(&[u8], Endian) -> Result<Value, FormatError>` and `emit`. Structures that are read
//! far more often than copied (block pointers, dnodes, ZAP blocks) also have a *view* that borrows the bytes.
//!
//! **Contract.** No function of this crate panics on any input, allocates more than a small constant times the length of
//! its input, or recurses deeper than a stated bound. `parse(emit(v)) == v` for every valid value, in both byte orders.
//! The crate does no I/O and knows no clock, thread or random source.
//!
//! **Sources.** Facts (offsets, magic numbers, names, limits) come from OpenZFS's public headers and manual pages and
//! from pools made by OpenZFS; FORMAT.md describes the format in prose.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod acl;
pub mod blkptr;
pub mod bpobj;
pub mod bptree;
pub mod brt;
pub mod byteswap;
pub mod ddt;
pub mod dmu_type;
pub mod dnode;
pub mod dsl;
pub mod eck;
pub mod endian;
pub mod enums;
pub mod errlog;
pub mod error;
pub mod foreign;
#[doc(hidden)]
pub mod fuzz;
pub mod gang;
pub mod history;
pub mod ids;
pub mod indirect;
pub mod l2arc;
pub mod label;
pub mod needs;
pub mod nvlist;
pub mod objset;
pub mod sa;
pub mod spacemap;
pub mod stream;
pub mod uberblock;
pub mod zap;
pub mod zil;
pub mod zil_header;
pub mod znode;
pub mod zpl;

mod words;

pub use endian::Endian;
pub use error::{FormatError, FormatErrorKind};
