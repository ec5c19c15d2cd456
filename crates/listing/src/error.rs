//! Errors of reading values.

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_props::WrongUse;
use cenote_spa::SpaError;
use cenote_zpl::ZplError;
use cenote_zvol::VolumeError;
use thiserror::Error;

/// The reason why a value cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListError {
    /// An error about an object of the pool.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// An error about a dataset of the pool.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// An error about a file system of the pool.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// An error about a volume of the pool.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A word names no vdev.
    #[error(transparent)]
    WrongUse(#[from] WrongUse),
    /// A list of properties has one that is none.
    #[error("{0}")]
    Property(WrongUse),
    /// An error of the pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

/// A result with this crate's errors by default.
pub(crate) type Result<T, E = ListError> = std::result::Result<T, E>;

impl From<SpaError> for ListError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}
