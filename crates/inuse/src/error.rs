//! The reasons that a dataset cannot be used.

use std::fmt;

use cenote_dsl::DslError;
use cenote_spa::{NamePool, SpaError, User};
use cenote_zpl::ZplError;
use cenote_zvol::VolumeError;
use cenote_zvol::live::LiveVolumeError;
use thiserror::Error;

/// An error of opening a dataset for use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Below: names, properties, keys.
    #[error("{0}")]
    Dsl(#[from] DslError),
    /// Below: the pool.
    #[error("{0}")]
    Spa(Box<SpaError>),
    /// Below: the file system.
    #[error("cannot open '{0}': {1}")]
    Zpl(String, ZplError),
    /// Below: the volume.
    #[error("cannot open '{0}': {1}")]
    Volume(String, Box<LiveVolumeError>),
    /// The dataset is not one that can be opened so.
    #[error("cannot open '{0}': {1}")]
    Refused(String, Why),
}

/// The reason that a dataset is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Its key is not loaded.
    KeyNotLoaded,
    /// It is half received or half destroyed.
    Inconsistent,
    /// It has no contents.
    Empty,
    /// It is a volume.
    IsVolume,
    /// It is a file system.
    IsFileSystem,
    /// A snapshot is to be changed.
    Snapshot,
    /// Its property `readonly` is on.
    ReadOnly,
    /// A user of this process has it.
    InUse(User),
    /// It was suspended, and could not be opened again.
    Lost,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyNotLoaded => "its key is not loaded",
            Self::Inconsistent => {
                "it is half received or half destroyed ('zfs receive -s' goes on with it, 'zfs receive -A' gives it up)"
            },
            Self::Empty => "it has no contents",
            Self::IsVolume => "it is a volume; 'cenote serve --rw' lets clients write it",
            Self::IsFileSystem => "it is a file system, and no volume",
            Self::Snapshot => "a snapshot does not change",
            Self::ReadOnly => "its property readonly is on ('zfs set readonly=off' turns that off)",
            Self::InUse(user) => return user.fmt(f),
            Self::Lost => "it could not be opened again after its dataset was changed, and serves nothing: close it and open it again",
        })
    }
}

impl From<SpaError> for OpenError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

impl NamePool for OpenError {
    fn spa(&mut self) -> Option<&mut SpaError> {
        match self {
            Self::Spa(error) => Some(error),
            _ => None,
        }
    }
}

impl OpenError {
    pub(crate) fn volume(name: &str, error: impl Into<VolumeError>) -> Self {
        Self::Volume(name.to_owned(), Box::new(error.into().into()))
    }
}
