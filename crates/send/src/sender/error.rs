//! Errors of making a stream.

use std::io;

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_format::ids::ObjectId;
use cenote_spa::SpaError;
use cenote_zio::ZioError;
use thiserror::Error;

/// The reason why a stream could not be made, or not completed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SenderError {
    /// A block could not be read.
    #[error("'{dataset}': {source}")]
    Block {
        /// The dataset that is sent.
        dataset: String,
        /// The block, and the reason.
        source: ZioError,
    },
    /// An object of the dataset contradicts itself.
    #[error("'{dataset}', object {object}: {what}")]
    Corrupt {
        /// The dataset that is sent.
        dataset: String,
        /// The object; 0 for the meta-dnode.
        object: ObjectId,
        /// The contradiction.
        what: String,
    },
    /// The dataset is encrypted, its key is not loaded, and the stream is not raw.
    #[error("'{0}': source key must be loaded")]
    KeyNotLoaded(String),
    /// The incremental source is not earlier than the snapshot.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier,
    /// A micro ZAP above 128 KiB, which is never split, in a stream without large blocks.
    #[error("source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream")]
    LargeMicrozap,
    /// The name does not fit a BEGIN record.
    #[error("'{0}': the name is too long for a stream")]
    NameTooLong(String),
    /// The object at which a stream should resume does not exist.
    #[error("'{dataset}' has no object {object} to go on with")]
    NoSuchObject {
        /// The dataset.
        dataset: String,
        /// The object.
        object: ObjectId,
    },
    /// The dataset cannot be sent, or lacks a part that was requested.
    #[error("'{dataset}': {what}")]
    Invalid {
        /// The dataset.
        dataset: String,
        /// The part that is missing.
        what: &'static str,
    },
    /// A form of stream that this version does not make.
    #[error("'{dataset}': not supported yet: {what}")]
    Unsupported {
        /// The dataset.
        dataset: String,
        /// The form.
        what: &'static str,
    },
    /// An object of the pool or the dataset could not be read.
    #[error("{0}")]
    Dmu(Box<DmuError>),
    /// Something about a dataset could not be read.
    #[error("{0}")]
    Dsl(Box<DslError>),
    /// Something about the pool could not be read.
    #[error("{0}")]
    Spa(Box<SpaError>),
    /// The stream could not be written.
    #[error("{0}")]
    Output(#[from] io::Error),
    /// A read task ended early: the program is shutting down.
    #[error("'{0}': a read did not come to an end")]
    Interrupted(String),
}

impl From<DmuError> for SenderError {
    fn from(error: DmuError) -> Self {
        Self::Dmu(Box::new(error))
    }
}

impl From<DslError> for SenderError {
    fn from(error: DslError) -> Self {
        Self::Dsl(Box::new(error))
    }
}

impl From<SpaError> for SenderError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

impl SenderError {
    /// True if devices or their contents are at fault: in OpenZFS's terms, an I/O error.
    #[must_use]
    pub const fn is_unreadable(&self) -> bool {
        matches!(self, Self::Block { .. } | Self::Corrupt { .. } | Self::Dmu(_))
    }
}
