//! Errors with the errno that a client of a file system expects.

use cenote_dmu::{DmuError, DmuErrorKind};
use cenote_format::FormatError;
use thiserror::Error;

/// The errnos that reading can end in, with Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Errno {
    /// No such file or directory.
    NoEntry = 2,
    /// Input or output error: a device failed.
    Io = 5,
    /// Permission denied: the dataset's key is not loaded.
    Access = 13,
    /// Not a directory.
    NotDirectory = 20,
    /// Is a directory.
    IsDirectory = 21,
    /// Invalid argument.
    Invalid = 22,
    /// Name too long.
    NameTooLong = 36,
    /// No such extended attribute.
    NoData = 61,
    /// Checksum or structure error (Linux's `EBADE`, which OpenZFS returns for checksum errors).
    Checksum = 52,
    /// Not supported.
    NotSupported = 95,
}

/// Why an operation on a file failed.
#[derive(Clone, Debug, Error)]
pub enum ZplError {
    /// Below: an object or block could not be read.
    #[error("{0}")]
    Dmu(#[from] DmuError),
    /// No entry of this name.
    #[error("no such file or directory")]
    NoEntry,
    /// Not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// A directory where a file is needed.
    #[error("is a directory")]
    IsDirectory,
    /// Not a symbolic link.
    #[error("not a symbolic link")]
    NotSymlink,
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// A name longer than the dataset allows.
    #[error("name too long")]
    NameTooLong,
    /// Bytes of a file's attributes that are not valid.
    #[error("object {object}: {error}")]
    Format {
        /// The object.
        object: u64,
        /// What is wrong.
        error: FormatError,
    },
    /// A contradiction between structures.
    #[error("object {object}: {what}")]
    Corrupt {
        /// The object.
        object: u64,
        /// What contradicts what.
        what: String,
    },
    /// A dataset of another kind or of a version that is not known.
    #[error("{0}")]
    Unsupported(String),
}

impl ZplError {
    /// The errno to hand to a client.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Dmu(error) if error.is_key_missing() => Errno::Access,
            Self::Dmu(error) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Errno::NoEntry,
            Self::Dmu(error) if matches!(error.kind, DmuErrorKind::Zio(_)) => Errno::Io,
            Self::Dmu(_) | Self::Format { .. } | Self::Corrupt { .. } => Errno::Checksum,
            Self::NoEntry => Errno::NoEntry,
            Self::NotDirectory => Errno::NotDirectory,
            Self::IsDirectory => Errno::IsDirectory,
            Self::NotSymlink => Errno::Invalid,
            Self::NoXattr => Errno::NoData,
            Self::NameTooLong => Errno::NameTooLong,
            Self::Unsupported(_) => Errno::NotSupported,
        }
    }
}
