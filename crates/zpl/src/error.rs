//! Errors with the errno that a client of a file system expects.

use cenote_dmu::sa::NotRegistered;
use cenote_dmu::tx::TxError;
use cenote_dmu::{DmuError, DmuErrorKind};
use cenote_format::FormatError;
use cenote_zil::ReplayError;
use thiserror::Error;

/// The errnos that operations can end in, with Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Errno {
    /// Operation not permitted: a flag of the file forbids it.
    NotPermitted = 1,
    /// No such file or directory.
    NoEntry = 2,
    /// Input or output error: a device failed.
    Io = 5,
    /// Permission denied: the dataset's key is not loaded.
    Access = 13,
    /// File exists.
    Exists = 17,
    /// Cross-device link: what is linked or renamed belongs to another project.
    CrossDevice = 18,
    /// Not a directory.
    NotDirectory = 20,
    /// Is a directory.
    IsDirectory = 21,
    /// Invalid argument.
    Invalid = 22,
    /// File too large.
    TooLarge = 27,
    /// No space left on device.
    NoSpace = 28,
    /// Read-only file system.
    ReadOnly = 30,
    /// Name too long.
    NameTooLong = 36,
    /// Directory not empty.
    NotEmpty = 39,
    /// Too many levels of symbolic links.
    Loop = 40,
    /// No such extended attribute.
    NoData = 61,
    /// Checksum or structure error (Linux's `EBADE`, which OpenZFS returns for checksum errors).
    Checksum = 52,
    /// Not supported.
    NotSupported = 95,
    /// The file was removed.
    Stale = 116,
    /// A quota is used up.
    Quota = 122,
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
    /// A symbolic link that leads out of the file system: its target is absolute.
    #[error("a link to {}, which is outside of the dataset", .0.escape_ascii())]
    LinkOutside(Vec<u8>),
    /// Symbolic links that lead to one another.
    #[error("too many levels of symbolic links")]
    Loop,
    /// A name longer than the dataset allows.
    #[error("name too long")]
    NameTooLong,
    /// An entry of this name is there.
    #[error("file exists")]
    Exists,
    /// A directory that has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The target's new place would be in another project.
    #[error("a file does not move between projects by link or rename: copy it")]
    CrossDevice,
    /// A flag of the file forbids it: clear that first.
    #[error("not permitted: the file is {0}")]
    NotPermitted(&'static str),
    /// The request makes no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Larger than a file, or all attributes of a file, can be.
    #[error("too large")]
    TooLarge,
    /// No room for what is to be written: free some first.
    #[error("no space left in the pool")]
    NoSpace,
    /// No room below this dataset: free some, or raise its quota.
    #[error("the quota of '{0}' is used up")]
    Quota(String),
    /// The file system is open to be read only.
    #[error("the file system is read-only")]
    ReadOnly,
    /// The file was removed while it was in use.
    #[error("the file was removed")]
    Stale,
    /// The pool is not written any more.
    #[error("the pool is not written any more: {0}")]
    Closed(String),
    /// Bytes of a file's attributes that are not valid.
    #[error("object {object}: {error}")]
    Format {
        /// The object.
        object: u64,
        /// The fault.
        error: FormatError,
    },
    /// A contradiction between structures.
    #[error("object {object}: {what}")]
    Corrupt {
        /// The object.
        object: u64,
        /// The contradiction.
        what: String,
    },
    /// The intent log is there and cannot be replayed; it stays as it is.
    #[error("{0}")]
    Replay(Box<ReplayError>),
    /// A dataset of another kind or of a version that is not known.
    #[error("{0}")]
    Unsupported(String),
}

impl From<TxError> for ZplError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::NoSpace => Self::NoSpace,
            TxError::Quota(name) => Self::Quota(name),
            TxError::Closed | TxError::Suspended(_) => Self::Closed(error.to_string()),
        }
    }
}

impl From<ReplayError> for ZplError {
    fn from(error: ReplayError) -> Self {
        Self::Replay(Box::new(error))
    }
}

impl From<NotRegistered> for ZplError {
    fn from(error: NotRegistered) -> Self {
        Self::Unsupported(error.to_string())
    }
}

impl ZplError {
    /// The errno to hand to a client.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Dmu(error) if error.is_key_missing() => Errno::Access,
            Self::Dmu(error) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Errno::NoEntry,
            Self::Dmu(error) if matches!(error.kind, DmuErrorKind::Zio(_)) => Errno::Io,
            Self::Dmu(error) if matches!(error.kind, DmuErrorKind::NoRoom(_)) => Errno::TooLarge,
            Self::Dmu(error) if matches!(error.kind, DmuErrorKind::Unsupported(_)) => Errno::NotSupported,
            Self::Dmu(_) | Self::Format { .. } | Self::Corrupt { .. } => Errno::Checksum,
            Self::NoEntry => Errno::NoEntry,
            Self::NotDirectory => Errno::NotDirectory,
            Self::IsDirectory => Errno::IsDirectory,
            Self::NotSymlink => Errno::Invalid,
            Self::NoXattr => Errno::NoData,
            Self::LinkOutside(_) => Errno::CrossDevice,
            Self::Loop => Errno::Loop,
            Self::NameTooLong => Errno::NameTooLong,
            Self::Exists => Errno::Exists,
            Self::NotEmpty => Errno::NotEmpty,
            Self::CrossDevice => Errno::CrossDevice,
            Self::NotPermitted(_) => Errno::NotPermitted,
            Self::Invalid(_) => Errno::Invalid,
            Self::TooLarge => Errno::TooLarge,
            Self::NoSpace => Errno::NoSpace,
            Self::Quota(_) => Errno::Quota,
            Self::ReadOnly => Errno::ReadOnly,
            Self::Stale => Errno::Stale,
            Self::Closed(_) => Errno::Io,
            Self::Replay(_) => Errno::Io,
            Self::Unsupported(_) => Errno::NotSupported,
        }
    }
}
