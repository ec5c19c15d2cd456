//! Why a verify could not begin.

use cenote_format::ids::{Guid, Txg};
use cenote_spa::SpaError;
use thiserror::Error;

use crate::walk::ViewError;

/// Why a walk could not begin.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The pool cannot be read far enough.
    #[error("{0}")]
    View(#[from] SpaError),
    /// There is no view of it.
    #[error("{0}")]
    NoView(#[from] ViewError),
    /// The datasets of a pool that has gone on since a stop cannot all be found, so that those not found would count as destroyed.
    #[error("{0}")]
    Datasets(String),
    /// The text of a stop does not fit together.
    #[error("not the text of a verify that stopped: {0}")]
    StopText(String),
    /// The stop is of another pool.
    #[error("the verify that stopped was of the pool with guid {was}, and this one has {is}")]
    OtherPool {
        /// The pool's guid in the stop.
        was: Guid,
        /// The guid of this pool.
        is: Guid,
    },
    /// The stop is not one of this pool's states.
    #[error("the verify stopped in another state of the pool: as of txg {was}, and this is as of {is}")]
    OtherState {
        /// The txg of the stop.
        was: Txg,
        /// The pool's txg.
        is: Txg,
    },
    /// The stop is of a verify with other options.
    #[error("the verify that stopped had other options")]
    OtherOptions,
}
