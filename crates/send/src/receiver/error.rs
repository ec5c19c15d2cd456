//! Why a stream is not received.

use cenote_dmu::DmuError;
use cenote_dmu::tx::TxError;
use cenote_dsl::DslError;
use cenote_spa::SpaError;
use cenote_zio::ZioError;
use thiserror::Error;

use crate::SendError;

/// Why a stream is not received. The texts are OpenZFS's where it has them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiverError {
    /// The stream is damaged, or ends too soon.
    #[error(transparent)]
    Stream(#[from] SendError),
    /// A record says what cannot be.
    #[error("record at offset {offset_bytes}: {what}")]
    Invalid {
        /// Where it begins.
        offset_bytes: u64,
        /// The fault.
        what: String,
    },
    /// The stream names no snapshot.
    #[error("invalid stream (bad snapshot name)")]
    BadName,
    /// The stream is of a kind of dataset that is not received.
    #[error("invalid record type: 0x{0:x}")]
    Kind(u32),
    /// The stream is deduplicated.
    #[error("stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs recv [...]'")]
    Dedup,
    /// The stream has features that are not known.
    #[error("stream has unsupported feature, feature flags = {features:x} (unknown flags = {unknown:x})")]
    Unknown {
        /// All of them.
        features: u64,
        /// Those that are not known.
        unknown: u64,
    },
    /// A raw stream of an old sender, which does not tell of spill blocks.
    #[error("Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated.")]
    NoSpillFlag,
    /// A kind of stream that is not supported yet.
    #[error("not supported yet: receiving {0}")]
    Unsupported(&'static str),
    /// The stream is not of the snapshot that is to be healed: the guids differ.
    #[error("local snapshot doesn't match the snapshot in the provided stream")]
    OtherSnapshot,
    /// A raw stream for a dataset that is not encrypted.
    #[error("stream is not compatible with the data in the pool.")]
    Incompatible,
    /// An error in reading or writing a block.
    #[error(transparent)]
    Block(#[from] ZioError),
    /// An error in looking up a dataset.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// Of the pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
    /// Of an object.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// Of a transaction.
    #[error(transparent)]
    Tx(#[from] TxError),
}

impl From<SpaError> for ReceiverError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}
