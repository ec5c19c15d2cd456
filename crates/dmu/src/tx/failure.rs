//! The end of a pool's txgs before the pool is closed.

use thiserror::Error;

use super::TxError;

/// The reason for which no txg of a pool is written any more, though the pool was not closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TxgFailure {
    /// A txg could not be written, or a change in it was left half-made.
    #[error("{reason}")]
    Unwritten {
        /// The error in the words of the pool, which is above this layer and has errors of its own.
        reason: String,
    },
    /// The last handle of the pool went away: nobody is left who could have its txgs written.
    #[error("the pool was let go without being exported")]
    LetGo,
}

impl TxgFailure {
    /// The failure of a pool that says `error` of its txg.
    pub fn unwritten(error: &(impl std::fmt::Display + ?Sized)) -> Self {
        Self::Unwritten { reason: error.to_string() }
    }
}

impl From<TxgFailure> for TxError {
    fn from(failure: TxgFailure) -> Self {
        Self::Suspended(failure.to_string())
    }
}
