//! Errors about datasets, each with the dataset's name where it is known.

use cenote_dmu::DmuError;
use cenote_format::FormatError;
use thiserror::Error;

use crate::name::NameError;

/// Why something about a dataset failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DslError {
    /// An object of the MOS, or of the dataset, could not be read.
    #[error("{0}")]
    Dmu(#[from] DmuError),
    /// A structure is not valid.
    #[error("MOS object {object}: {error}")]
    Format {
        /// The object of the MOS.
        object: u64,
        /// The fault.
        error: FormatError,
    },
    /// No dataset has this name.
    #[error("cannot open '{0}': dataset does not exist")]
    NoSuchDataset(String),
    /// The name is not legal.
    #[error("'{name}': {reason}")]
    BadName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: NameError,
    },
    /// Structures contradict each other.
    #[error("MOS object {object}: {what}")]
    Corrupt {
        /// The object of the MOS.
        object: u64,
        /// The contradiction.
        what: String,
    },
    /// A dataset is half received or half destroyed: its contents are incomplete.
    #[error(
        "'{0}': dataset is busy: it is half received or half destroyed ('zfs receive -s' goes on with it, 'zfs receive -A' gives it up)"
    )]
    Inconsistent(String),
    /// The dataset is not encrypted.
    #[error("'{0}' is not encrypted")]
    NotEncrypted(String),
    /// The key given is not the dataset's.
    #[error("Key load error: incorrect key provided for '{0}'")]
    WrongKey(String),
    /// The key does not have the form of the dataset's `keyformat`.
    #[error("Key load error for '{dataset}': {reason}")]
    BadKeyForm {
        /// The dataset.
        dataset: String,
        /// The fault found in it.
        reason: String,
    },
    /// The dataset's key is needed and not loaded.
    #[error("'{0}' is encrypted and its key is not loaded")]
    KeyNotLoaded(String),
    /// This version does not support an operation.
    #[error("not supported yet: {0}")]
    Unsupported(String),
}
