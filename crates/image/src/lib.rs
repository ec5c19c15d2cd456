//! Files into pools and out of them: building, archives, copying and manifests.
//!
//! # Theory
//!
//! **Need.** A pool is made from a directory, an archive or an OCI image, and its files go out as an archive, as copies or as a
//! description. A command, a server and a program with the engine in it do so with the same functions, which print nothing and know no
//! command line.
//!
//! **Shape.**
//! ```text
//! source of files                      pool                      target
//! build::Folder      ┐                                  ┌ archive::Archive   a pax archive, in one pass
//! build::oci         ├► FileTree ► Builder ► txgs ► Walk ┤ copy::copy         a directory of this machine
//! build::tarball     ┘                                  └ manifest           JSON that contents are compared by
//! ```
//! [`files`] has the files of a dataset by their paths. [`walk::Walk`] goes through a directory tree depth first, reads the attributes of what comes next while its user works on what came
//! before, and holds a bounded number of names. [`Content`] gives a file's bytes and holes in order, past what cannot be read.
//! [`Progress`] and callbacks tell how far the work is and what went wrong in one file while the rest goes on.
//!
//! **Invariants.**
//! 1. A directory is entered once, whatever the entries that lead to it say: cycles and shared subtrees of a hostile pool are reported
//!    and left.
//! 2. Memory is bounded: by the constants of [`walk`], by the bytes in flight, by a bit for each object, and for an archive's entries by a
//!    budget ([`build::Budget`]).
//! 3. No link of a source or target is followed that somebody else could have put there ([`build::Folder`], [`copy`](mod@copy)).
//!
//! **Crash.** A pool that is built is whole with its last txg; files added to a pool that exists are there with one txg, or not at all.
//!
//! **Rejected.** *Modules of the command line*, as they were before: nothing else could use them, and their errors were text.

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

/// Told how far a work is that moves bytes.
pub trait Progress: Send + Sync {
    /// So many bytes more are done.
    fn advance(&self, bytes: u64);
}
