//! Errors of receiving a stream.

use cenote_dmu::DmuError;
use cenote_dmu::tx::TxError;
use cenote_dsl::DslError;
use cenote_spa::SpaError;
use cenote_zio::ZioError;
use thiserror::Error;

use crate::SendError;

/// The reason why a stream is not received. The texts are OpenZFS's if OpenZFS has one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiverError {
    /// The stream is damaged, or ends too soon.
    #[error(transparent)]
    Stream(#[from] SendError),
    /// A record states something impossible.
    #[error("record at offset {offset_bytes}: {what}")]
    Invalid {
        /// The record's offset.
        offset_bytes: u64,
        /// The fault.
        what: String,
    },
    /// The stream names no snapshot.
    #[error("invalid stream (bad snapshot name)")]
    BadName,
    /// The stream is of a kind of dataset that cannot be received.
    #[error("invalid record type: 0x{0:x}")]
    Kind(u32),
    /// The stream is deduplicated.
    #[error("stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs recv [...]'")]
    Dedup,
    /// The stream has unknown features.
    #[error("stream has unsupported feature, feature flags = {features:x} (unknown flags = {unknown:x})")]
    Unknown {
        /// All of them.
        features: u64,
        /// The unknown ones.
        unknown: u64,
    },
    /// A raw stream of an old sender, which does not tell which objects have spill blocks.
    #[error("Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated.")]
    NoSpillFlag,
    /// A kind of stream that is not supported yet.
    #[error("not supported yet: receiving {0}")]
    Unsupported(&'static str),
    /// The stream is not of the snapshot to be healed: the guids differ.
    #[error("local snapshot doesn't match the snapshot in the provided stream")]
    OtherSnapshot,
    /// A raw stream for a dataset that is not encrypted.
    #[error("stream is not compatible with the data in the pool.")]
    Incompatible,
    /// Reading or writing a block failed.
    #[error(transparent)]
    Block(#[from] ZioError),
    /// Looking up a dataset failed.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// An error of the pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
    /// An error about an object.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// An error about a transaction.
    #[error(transparent)]
    Tx(#[from] TxError),
}

impl From<SpaError> for ReceiverError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}
