//! Errors of a server and its clients.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use cenote_admin::AdminError;
use cenote_admin::values::ValueError;
use cenote_dsl::DslError;
use cenote_format::FormatError;
use cenote_fuse::{MountError, OpenError};
use cenote_host::HostError;
use cenote_nbd::ExportError;
use cenote_props::WrongUse;
use cenote_spa::{NamePool, SpaError};
use cenote_taskq::JoinError;
use thiserror::Error;

use crate::{Gone, NoSuchPool, Owned};

/// Errors of a server and its clients.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An error at one place: a socket, a folder, a step.
    #[error("{place}")]
    In {
        /// The place.
        place: String,
        /// The error.
        source: Box<ServerError>,
    },
    /// A folder, or the process at the other end, belongs to another user.
    #[error("{0}")]
    Untrusted(String),
    /// The path of a socket is taken.
    #[error("{0}")]
    Occupied(&'static str),
    /// A server did not answer in time.
    #[error("the server at {} did not answer", .0.display())]
    Silent(PathBuf),
    /// The other end does not follow the protocol.
    #[error("{0}")]
    Protocol(String),
    /// A refusal, with its reason.
    #[error("{0}")]
    Refused(String),
    /// The command line is not valid.
    #[error(transparent)]
    Use(#[from] WrongUse),
    /// Another process has the pool, and must be asked.
    #[error(transparent)]
    Owned(#[from] Owned),
    /// No pool has the name.
    #[error(transparent)]
    NoSuchPool(#[from] NoSuchPool),
    /// An imported pool no longer exists.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// A mount is in use.
    #[error("pool or dataset is busy")]
    Busy,
    /// An error of a verb on the pool, or of a setting of a new one.
    #[error(transparent)]
    Admin(Box<AdminError>),
    /// An error of a dataset of the pool.
    #[error(transparent)]
    Dsl(Box<DslError>),
    /// The volume does not exist.
    #[error("there is no such volume")]
    NoSuchVolume,
    /// The pool is being exported: no more mounts.
    #[error("pool '{0}' is being exported: mount it when that has ended")]
    Closing(String),
    /// The devices of a pool fail.
    #[error(
        "pool '{pool}': pool I/O is currently suspended ({reason}); 'zpool clear {pool}' once its devices are back{others}"
    )]
    Suspended {
        /// The pool.
        pool: String,
        /// The reason.
        reason: String,
        /// Devices that cannot help, each in words after a semicolon.
        others: String,
    },
    /// An error of a file or socket of this machine.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is not valid JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A structure that a server sent is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An error of this host's records.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An error of a mount.
    #[error(transparent)]
    Mount(Box<MountError>),
    /// A dataset could not be opened for mounting.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// An error of a volume.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A task ended early.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// An error of the pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

/// A result with this crate's errors by default.
pub(crate) type Result<T, E = ServerError> = std::result::Result<T, E>;

impl ServerError {
    /// The error of a file or socket, if it is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::In { source, .. } => source.io(),
            Self::Io(error) => Some(error),
            _ => None,
        }
    }

    /// The error with all its causes that say something new.
    pub fn chain(&self) -> String {
        cenote_props::chain(self)
    }
}

impl From<AdminError> for ServerError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Use(error) => error.into(),
            AdminError::Told(error) => error.into(),
            AdminError::Users(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::Admin(Box::new(AdminError::Users(error))),
            },
            error => Self::Admin(Box::new(error)),
        }
    }
}

impl From<ValueError> for ServerError {
    fn from(error: ValueError) -> Self {
        AdminError::from(error).into()
    }
}

/// Converts large errors, boxed.
macro_rules! boxed {
    ($($variant:ident($error:ty)),*) => {
        $(impl From<$error> for ServerError {
            fn from(error: $error) -> Self {
                Self::$variant(Box::new(error))
            }
        })*
    };
}

impl NamePool for ServerError {
    fn spa(&mut self) -> Option<&mut SpaError> {
        match self {
            Self::Spa(error) => Some(error),
            Self::Admin(error) => error.spa(),
            _ => None,
        }
    }
}

boxed!(Dsl(DslError), Mount(MountError), Open(OpenError), Spa(SpaError));

impl From<rustix::io::Errno> for ServerError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A refusal for this reason.
pub(crate) fn refused(why: impl Into<String>) -> ServerError {
    ServerError::Refused(why.into())
}

/// Adds a place to an error.
pub(crate) trait Context<T> {
    fn context(self, place: impl Display) -> Result<T>;

    fn with_context<P: Display>(self, place: impl FnOnce() -> P) -> Result<T>;
}

impl<T, E: Into<ServerError>> Context<T> for Result<T, E> {
    fn context(self, place: impl Display) -> Result<T> {
        self.with_context(|| place)
    }

    fn with_context<P: Display>(self, place: impl FnOnce() -> P) -> Result<T> {
        self.map_err(|error| ServerError::In { place: place().to_string(), source: Box::new(error.into()) })
    }
}
