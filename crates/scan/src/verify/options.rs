//! The checks of a verify.

/// The checks to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Read all data, not only what leads to it.
    pub data: bool,
    /// Account for space: load space maps, find leaks and double references.
    pub space: bool,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { data: true, space: true }
    }
}
