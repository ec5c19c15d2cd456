//! The bodies of the fuzz targets, here so that the package `fuzz` and a plain test run the same code.
//!
//! A body takes any bytes, parses them every way there is, walks what came out, and panics if a parser panics or if a
//! value does not survive being emitted and parsed again. Each has a line in `fuzz/src/lib.rs`.

pub mod core;
pub mod objects;
pub mod streams;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name; in the package `fuzz`, with `format_` in front.
    pub name: &'static str,
    /// Its body.
    pub run: fn(&[u8]),
    /// Valid inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets, a list for each group of structures.
pub const TARGETS: &[&[Target]] = &[core::TARGETS, objects::TARGETS, streams::TARGETS];
