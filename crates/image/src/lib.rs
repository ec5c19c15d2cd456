//! Files into pools and out of them: building, archives, copying and manifests.
//!
//! # Theory
//!
//! **Need.** A pool is made from a directory, an archive or an OCI image, and its files are exported as an archive, as copies or as a
//! description. A command, a server and a program that embeds the engine use the same functions for this, which print nothing and do not depend
//! on a command line.
//!
//! **Shape.**
//! ```text
//! source of files                      pool                      target
//! build::Folder      ┐                                  ┌ archive::Archive   a pax archive, in one pass
//! build::oci         ├► FileTree ► Builder ► txgs ► Walk ┤ copy::copy         a directory of this machine
//! build::tarball     ┘                                  └ manifest           JSON that contents are compared by
//! ```
//! [`files`] finds the files of a dataset by their paths. [`walk::Walk`] visits a directory tree depth first, reads the attributes of the next
//! entries while its user works on earlier ones, and holds a bounded number of names. [`Content`] gives a file's bytes and holes in order, and
//! skips unreadable blocks. [`Progress`] and callbacks report the progress, and problems with one file while the rest continues.
//!
//! **Invariants.**
//! 1. A directory is entered once, even if several entries lead to it: cycles and shared subtrees of a hostile pool are reported and skipped.
//! 2. Memory is bounded: by the constants of [`walk`], by the bytes in flight, by a bit for each object, and for an archive's entries by a
//!    budget ([`build::Budget`]).
//! 3. No link of a source or target is followed that another user could have put there ([`build::Folder`], [`copy`](mod@copy)).
//!
//! **Crash.** A new pool is complete with its last txg; files are added to an existing pool in one txg, all or none.
//!
//! **Rejected.** *Modules of the command line*, as before: no other program could use them, and their errors were text.

#![forbid(unsafe_code)]

pub mod archive;
pub mod build;
mod content;
pub mod copy;
pub mod demo;
mod error;
pub mod files;
pub mod lines;
pub mod manifest;
mod objects;
#[cfg(test)]
mod testpool;
pub mod unpack;
pub mod walk;

pub use content::{Content, Piece};
pub use error::ImageError;
pub use objects::ObjectSet;

/// Gets the progress of work that moves bytes.
pub trait Progress: Send + Sync {
    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
}
