//! Names and sizes of the datasets of a life, as writers, models and judges know them.

/// The block cache's limit.
pub(crate) const CACHE_BYTES: usize = 8 << 20;
pub(crate) const FILE_SYSTEMS: [&str; 2] = ["written/f0", "written/f1"];
/// Writers in each file system.
pub(crate) const WRITERS: usize = 2;
pub(crate) const VOLUME: &str = "written/v0";
pub(crate) const VOLUME_BLOCK_BYTES: u32 = 8 << 10;
pub(crate) const RANGES: u64 = 3;
/// No multiple of a block, so that writers meet in blocks.
pub(crate) const RANGE_BYTES: u64 = 130_000;

pub(crate) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn dir_name(number: usize) -> String {
    format!("d{number}")
}
