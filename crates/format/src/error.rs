//! The error of this crate: the structure, the place in it, and the fault.

use thiserror::Error;

/// Bytes that are not what a structure allows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{structure} at byte {offset}: {kind}")]
pub struct FormatError {
    /// The structure's name as the field knows it (`uberblock`, `blkptr`, `zap leaf`, ...).
    pub structure: &'static str,
    /// Offset in bytes of the offending field within the structure.
    pub offset: usize,
    /// The fault.
    pub kind: FormatErrorKind,
}

/// The fault in the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatErrorKind {
    /// Fewer bytes than the structure needs.
    #[error("truncated: needs {need_bytes} bytes, has {have_bytes}")]
    Truncated {
        /// Bytes needed.
        need_bytes: usize,
        /// Bytes there.
        have_bytes: usize,
    },
    /// A magic number that is none.
    #[error("bad magic {found:#x}, expected {expected:#x}")]
    BadMagic {
        /// The number found.
        found: u64,
        /// The structure's magic number.
        expected: u64,
    },
    /// A field whose value no version of the format allows, or that contradicts another field.
    #[error("{field} = {value} is not valid ({rule})")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// Text or structured data that breaks a rule.
    #[error("{0}")]
    Malformed(&'static str),
    /// A bound of ours on recursion, count or size was exceeded.
    #[error("{what}: {value} exceeds the limit of {limit}")]
    Limit {
        /// The name of the bounded quantity.
        what: &'static str,
        /// The value found.
        value: u64,
        /// The bound.
        limit: u64,
    },
    /// Valid in principle, but not something this version knows.
    #[error("not supported yet: {0}")]
    Unsupported(&'static str),
}

impl FormatError {
    /// A structure cut short.
    #[must_use]
    pub(crate) fn truncated(structure: &'static str, need_bytes: usize, have_bytes: usize) -> Self {
        Self { structure, offset: have_bytes, kind: FormatErrorKind::Truncated { need_bytes, have_bytes } }
    }

    /// A field with a value that is not allowed.
    #[must_use]
    pub fn invalid(
        structure: &'static str,
        offset: usize,
        field: &'static str,
        value: u64,
        rule: &'static str,
    ) -> Self {
        Self { structure, offset, kind: FormatErrorKind::Invalid { field, value, rule } }
    }

    /// More of something than can be.
    pub(crate) const fn limit(
        structure: &'static str,
        offset: usize,
        what: &'static str,
        value: usize,
        limit: usize,
    ) -> Self {
        let kind = FormatErrorKind::Limit { what, value: value as u64, limit: limit as u64 };
        Self { structure, offset, kind }
    }

    /// A rule of shape broken.
    #[must_use]
    pub fn malformed(structure: &'static str, offset: usize, what: &'static str) -> Self {
        Self { structure, offset, kind: FormatErrorKind::Malformed(what) }
    }
}
