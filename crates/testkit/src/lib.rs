//! Helpers that the tests of all crates share. This crate is not part of the engine and nothing that ships depends on it.
//!
//! # Need
//!
//! The judge of a reader of OpenZFS pools is a pool that OpenZFS wrote, together with an account of what OpenZFS itself
//! saw in it. Such *golden pools* come as a folder per *theme*:
//!
//! ```text
//!   THEME/a.img.zst, b.img.zst …  the vdevs' images, packed (sparse when unpacked)
//!   THEME/manifest.json.zst       what OpenZFS showed of the pool: every file's metadata and hash, properties, status
//!   THEME/zdb.txt.zst             zdb's account: labels, configuration, metaslabs, block statistics
//!   THEME/streams/NAME.zfs.zst    send streams, where the theme has some; zstream.txt.zst is zstream's account of them
//! ```
//!
//! The full set is too large for the repository, which carries a selection of the same layout in `testdata/golden`.
//!
//! # Life of an image
//!
//! [`Golden::find`] picks the set: the folder in the environment variable `CENOTE_GOLDEN`, else `../shared/golden` beside the repository,
//! else the repository's own selection. [`Theme::unpacked`] unpacks all images of a theme into a folder below the build's target folder
//! whose name carries a hash of the images' contents, and hands out the same folder from then on. Unpacking goes to a temporary neighbour
//! that is renamed when it is complete and its hashes were right, so test processes that run at once neither see half an image nor need a
//! lock. Unpacked images are read-only; a test that writes takes [`Theme::scratch`].
//!
//! # Invariants
//!
//! 1. Bytes handed out have the SHA-256 that the manifest states.
//! 2. An unpacked folder exists completely or not at all.
//! 3. A comparison counts what it compared: a report over nothing is not a success ([`compare::Report::is_match`]).
//!
//! # Rejected
//!
//! Unpacking into memory for every test (a set is more than a gigabyte of mostly holes), and checking in unpacked images.

mod cache;
pub mod campaign;
pub mod compare;
mod elsewhere;
mod golden;
pub mod gpt;
pub mod manifest;
mod part;
pub mod walk;
pub mod zdb;

use std::path::Path;

pub use elsewhere::Elsewhere;
pub use golden::{Golden, Scratch, Theme, Unpacked, theme, theme_if_present};
pub use part::{Part, VARIABLE as PART_VARIABLE};

/// The repository's root folder.
pub fn repository_root() -> &'static Path {
    // This crate lies two folders below the root.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in crates/testkit")
}
