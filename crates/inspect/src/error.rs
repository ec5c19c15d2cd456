//! Errors of an inspection that has no report.

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_format::FormatError;
use cenote_spa::SpaError;
use cenote_vdev::error::VdevError;
use thiserror::Error;

/// The reason why something cannot be inspected at all. A lesser fault is a problem of the [`Report`](crate::Report) instead.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InspectError {
    /// There is nothing of this name or number, or it has no contents.
    #[error("{0}")]
    NotThere(String),
    /// Words that name nothing.
    #[error("{0}")]
    Misuse(String),
    /// An object of the pool.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// A dataset of the pool.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// A structure is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The devices that labels describe.
    #[error(transparent)]
    Vdev(#[from] VdevError),
    /// The pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

impl From<SpaError> for InspectError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}
