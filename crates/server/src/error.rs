//! Errors of a server and its clients.

use std::error::Error as _;
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
    /// Something went wrong at one place: a socket, a folder, a step.
    #[error("{place}")]
    In {
        /// The place.
        place: String,
        /// The error.
        source: Box<ServerError>,
    },
    /// A folder or the process at the other end is another user's.
    #[error("{0}")]
    Untrusted(String),
    /// Something is at the place of a socket.
    #[error("{0}")]
    Occupied(&'static str),
    /// A server did not answer in time.
    #[error("the server at {} did not answer", .0.display())]
    Silent(PathBuf),
    /// The other end speaks another language.
    #[error("{0}")]
    Protocol(String),
    /// It is refused, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The words of a command line mean nothing.
    #[error(transparent)]
    Use(#[from] WrongUse),
    /// Another process has the pool, and is to be asked.
    #[error(transparent)]
    Owned(#[from] Owned),
    /// No pool has the name.
    #[error(transparent)]
    NoSuchPool(#[from] NoSuchPool),
    /// A pool that was imported is not there any more.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// A mount is in use.
    #[error("pool or dataset is busy")]
    Busy,
    /// A verb on the pool, or a setting of a new one.
    #[error(transparent)]
    Admin(Box<AdminError>),
    /// A dataset of the pool.
    #[error(transparent)]
    Dsl(Box<DslError>),
    /// There is no such volume.
    #[error("there is no such volume")]
    NoSuchVolume,
    /// Nothing of a pool is mounted any more.
    #[error("pool '{0}' is being exported: mount it when that has ended")]
    Closing(String),
    /// The devices of a pool fail.
    #[error(
        "pool '{pool}': pool I/O is currently suspended ({reason}); 'zpool clear {pool}' once its devices are back"
    )]
    Suspended {
        /// The pool.
        pool: String,
        /// The reason.
        reason: String,
    },
    /// A file or socket of this machine.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line that is no such JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A structure that a server sent is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The notes of this system.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A mount.
    #[error(transparent)]
    Mount(Box<MountError>),
    /// A dataset could not be opened to be mounted.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// A volume.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A task ended early.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

/// With errors of this crate, unless another is said.
pub(crate) type Result<T, E = ServerError> = std::result::Result<T, E>;

impl ServerError {
    /// The error of a file or socket, where it is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::In { source, .. } => source.io(),
            Self::Io(error) => Some(error),
            _ => None,
        }
    }

    /// The error with all its causes.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(&format!(": {cause}"));
            next = cause.source();
        }
        text
    }

    /// The error in one text: each cause that says something new.
    pub fn causes(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            let said = cause.to_string();
            add_cause(&mut text, &said);
            next = cause.source();
        }
        text
    }
}

/// Adds a cause to the text of an error, as far as it says something new: of two places, one in the other, the inner one stays.
pub fn add_cause(text: &mut String, cause: &str) {
    if text.contains(cause) {
        return;
    }
    let at = text.rfind(": ").map_or(0, |at| at + 2);
    match cause.strip_prefix(&text[at..]) {
        Some(rest) if at > 0 && rest.starts_with(' ') => text.truncate(at),
        _ => text.push_str(": "),
    }
    text.push_str(cause);
}

impl From<ValueError> for ServerError {
    fn from(error: ValueError) -> Self {
        AdminError::from(error).into()
    }
}

/// Errors that are large.
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

boxed!(Admin(AdminError), Dsl(DslError), Mount(MountError), Open(OpenError), Spa(SpaError));

impl From<rustix::io::Errno> for ServerError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// It is refused, for this reason.
pub(crate) fn refused(why: impl Into<String>) -> ServerError {
    ServerError::Refused(why.into())
}

/// Says where an error was.
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

#[cfg(test)]
mod tests {
    use super::add_cause;

    #[test]
    fn a_place_is_named_once() {
        let told = |text: &str, cause: &str| {
            let mut text = text.to_owned();
            add_cause(&mut text, cause);
            text
        };
        let inner = "objset 25 object 7 level 0 block 383: no space";
        assert_eq!(told("pool 'o': objset 25 object 7", inner), format!("pool 'o': {inner}"));
        assert_eq!(told("'x' does not fit", inner), format!("'x' does not fit: {inner}"));
        assert_eq!(
            told("pool 'o': objset 25 object 7", "objset 25 object 71: x"),
            "pool 'o': objset 25 object 7: objset 25 object 71: x"
        );
        assert_eq!(told("a: b", "b"), "a: b");
    }
}
