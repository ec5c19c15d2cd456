//! Why something of the system could not be had.

use std::io;
use std::path::{Path, PathBuf};

use cenote_spa::SpaError;
use thiserror::Error;

/// Why something of the system could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// A file or folder could not be used.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something could not be done with a device or file.
    #[error("cannot {verb} '{}': {error}", path.display())]
    Cannot {
        /// The verb: `open`, `make`, `read`.
        verb: &'static str,
        /// The device or file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file has not the content that it should have.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A folder is one that another user could put something into.
    #[error("{}: {what}", path.display())]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A path that was named is not there.
    #[error("cannot open '{}': no such file or directory", .0.display())]
    NoSuchPath(PathBuf),
    /// No pool of this name was found.
    #[error("cannot import '{0}': no such pool available")]
    NoSuchPool(String),
    /// A device of a new vdev is not there.
    #[error("cannot open '{}': no such device (--size makes files)", .0.display())]
    NoSuchDevice(PathBuf),
    /// Words that name no vdevs, or disks that cannot be put together so.
    #[error("{0}")]
    Layout(String),
    /// A device that somebody has.
    #[error("{0}")]
    InUse(String),
    /// Devices that hold something, or vdevs that differ from the others, which a caller may insist on.
    #[error("invalid vdev specification\nuse '-f' to override the following errors:\n{0}")]
    Overridable(String),
    /// A variable of the environment is missing, or has no such value.
    #[error("{0}")]
    Variable(String),
    /// Of a pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

impl From<SpaError> for HostError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

/// Says which file an error is about.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, HostError>;

    /// The same with the verb that failed.
    fn when(self, verb: &'static str, path: &Path) -> Result<T, HostError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, HostError> {
        self.map_err(|error| HostError::Io { path: path.to_owned(), error: error.into() })
    }

    fn when(self, verb: &'static str, path: &Path) -> Result<T, HostError> {
        self.map_err(|error| HostError::Cannot { verb, path: path.to_owned(), error: error.into() })
    }
}
