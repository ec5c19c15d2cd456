//! The used and available bytes of an open dataset, as its users see them.

/// The space that a dataset uses and may still use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadSpace {
    /// Bytes that it refers to.
    pub referenced_bytes: u64,
    /// Bytes that it may use beyond those.
    pub available_bytes: u64,
    /// Objects in it.
    pub objects: u64,
}
