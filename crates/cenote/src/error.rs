//! One error for all calls: a kind to match, a place, and the cause in words.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The kind of an error, for programs that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Bytes were read that are not what was written, or structures that contradict themselves; no redundancy made up for them.
    Corrupt,
    /// A device failed.
    Io,
    /// Too few devices are there, or take what is written.
    Unavailable,
    /// There is no such pool, dataset, file, attribute or property.
    NotFound,
    /// It is there already; or a directory that is to go has entries.
    Exists,
    /// Somebody uses it: another process, another system, an open file system, a snapshot or clone that depends on it.
    Busy,
    /// No space is left in the pool.
    NoSpace,
    /// A quota of the dataset, of one above it or of a user is used up. The pool may have space.
    Quota,
    /// The pool, the dataset or the snapshot is not open to be changed.
    ReadOnly,
    /// A flag of the file forbids it.
    Denied,
    /// The dataset is encrypted and its key is missing, or a key is not the dataset's.
    Key,
    /// Cenote cannot do that yet.
    NotSupported,
    /// The request makes no sense: a bad name or value, a file where a directory is needed.
    Misuse,
    /// The pool was exported, or a txg could not be written: the handle is of no use any more.
    Closed,
    /// The file or directory that was open is gone: its dataset was rolled back.
    Stale,
    /// It was given up before its end, and can be tried again: the runtime ends, or a txg that was read could not be kept, since too much of it
    /// was freed meanwhile.
    Interrupted,
}

/// The place of an error, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The pool.
    pub pool: Option<String>,
    /// The dataset or snapshot, with its whole name.
    pub dataset: Option<String>,
    /// The path in the file system, or of a file of this system.
    pub path: Option<PathBuf>,
    /// The number of the objset; 0 is the pool's own.
    pub objset: Option<u64>,
    /// The object's number.
    pub object: Option<u64>,
    /// The block's level and number in the object.
    pub block: Option<(i8, u64)>,
    /// The device that failed first.
    pub device: Option<String>,
    /// The offset on that device in bytes.
    pub offset_bytes: Option<u64>,
}

/// Why a call failed. `Display` is the whole message; it ends with advice where there is some.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    place: Place,
    source: Box<dyn StdError + Send + Sync>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, place: Place, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Box::new(Inner { kind, place, source: source.into() }))
    }

    /// An error of a request that makes no sense.
    pub(crate) fn misuse(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, Place::default(), what.into())
    }

    /// The error below, as it is.
    pub(crate) fn below(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
        &mut *self.0.source
    }

    /// The same error, of a pool.
    pub(crate) fn of_pool(mut self, name: &str) -> Self {
        self.0.place.pool.get_or_insert_with(|| name.to_owned());
        self
    }

    /// The same error, of a dataset.
    pub(crate) fn of_dataset(mut self, name: &str) -> Self {
        self.0.place.dataset.get_or_insert_with(|| name.to_owned());
        let pool = name.split(['/', '@']).next().unwrap_or_default();
        self.0.place.pool.get_or_insert_with(|| pool.to_owned());
        self
    }

    /// The same error, of a path.
    pub(crate) fn of_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.place.path.get_or_insert_with(|| path.into());
        self
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The place of the error.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.0.place
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.place.dataset, &self.0.place.path) {
            (Some(dataset), Some(path)) => write!(f, "{dataset}: {}: {}", path.display(), self.0.source),
            _ => self.0.source.fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.source()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Exists => io::ErrorKind::AlreadyExists,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::Quota => io::ErrorKind::QuotaExceeded,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::Denied | ErrorKind::Key => io::ErrorKind::PermissionDenied,
            ErrorKind::NotSupported => io::ErrorKind::Unsupported,
            ErrorKind::Misuse => io::ErrorKind::InvalidInput,
            ErrorKind::Stale => io::ErrorKind::StaleNetworkFileHandle,
            // `io::ErrorKind::Interrupted` means that the same call is made again at once, as `read_exact` does.
            ErrorKind::Io | ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Interrupted => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
