//! Errors of reading values.

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_spa::SpaError;
use cenote_zpl::ZplError;
use cenote_zvol::VolumeError;
use thiserror::Error;

/// The reason that a value cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListError {
    /// An object of the pool.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// A dataset of the pool.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// A file system of the pool.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// A volume of the pool.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

/// With errors of this crate, unless another is said.
pub(crate) type Result<T, E = ListError> = std::result::Result<T, E>;

impl From<SpaError> for ListError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}
